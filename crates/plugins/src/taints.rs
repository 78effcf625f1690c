//! `TaintToleration`: keeps pods off nodes with taints that they do not tolerate.

use crate::common::tolerations;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use koord_model::nodes::{NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, tolerates_comparing};
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Filter, Holders, Interest,
    Normalize, Plugin, Points, PreScore, PreScoreResult, QueueHints, QueueingHint, Rejection,
    Roles, Score, Sign, Signable, Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use serde_json::Value;

/// State of the `TaintToleration` plugin.
#[derive(Debug)]
pub(crate) struct TaintToleration {
    /// True if tolerations may use the operators `Lt` and `Gt`.
    compares: bool,
}

/// Builds the plugin.
pub(crate) fn build(
    _value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let gate = context.gates.get("TaintTolerationComparisonOperators");
    let compares = gate == Some(&true);
    Ok(Box::new(TaintToleration { compares }))
}

fn tolerations_of(pod: &PodInfo) -> &[Toleration] {
    pod.spec()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default()
}

/// Returns the first NoSchedule or NoExecute taint that is not tolerated.
fn find_untolerated<'a>(
    tolerations: &[Toleration],
    taints: &'a [Taint],
    compares: bool,
) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| taint.effect == NO_SCHEDULE || taint.effect == NO_EXECUTE)
        .find(|taint| !tolerates_comparing(tolerations, taint, compares))
}

/// Returns the taints of `node`.
fn taints_of<'a>(cycle: &Cycle<'a>, node: NodeIndex) -> &'a [Taint] {
    let nodes = cycle.view.nodes;
    // Most nodes have no taints; the bit avoids loading their info.
    let info = nodes.is_tainted(node).then(|| nodes.info(node)).flatten();
    info.map(|info| info.taints()).unwrap_or_default()
}

impl Plugin for TaintToleration {
    const ROLES: Roles<Self> = Roles::none()
        .queue_hints()
        .sign()
        .filter()
        .pre_score()
        .score();

    fn name(&self) -> &'static str {
        "TaintToleration"
    }
    fn points(&self) -> Points {
        Points::FILTER.or(Points::PRE_SCORE).or(Points::SCORE)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for TaintToleration {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        tolerations::sign(tolerations_of(pod), signature);
        Signable::Yes
    }
}

impl Filter for TaintToleration {
    fn filter(&self, cycle: &Cycle<'_>, _state: &State, node: NodeIndex) -> Verdict {
        match find_untolerated(
            tolerations_of(cycle.pod),
            taints_of(cycle, node),
            self.compares,
        ) {
            None => Ok(()),
            Some(_) => Err(Rejection::unresolvable("node(s) had untolerated taint(s)")),
        }
    }
}

impl PreScore for TaintToleration {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let relevant = |toleration: &&Toleration| {
            matches!(
                toleration.effect.as_deref(),
                None | Some("" | PREFER_NO_SCHEDULE)
            )
        };
        let relevant_tolerations: Vec<Toleration> = tolerations_of(cycle.pod)
            .iter()
            .filter(relevant)
            .cloned()
            .collect();
        PreScoreResult::Ready(State::new(relevant_tolerations))
    }
}

impl Score for TaintToleration {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let taints = taints_of(cycle, node);
        if taints.is_empty() {
            return 0;
        }
        let tolerations = state
            .get::<Vec<Toleration>>()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let untolerated_count = taints
            .iter()
            .filter(|taint| taint.effect == PREFER_NO_SCHEDULE)
            .filter(|taint| !tolerates_comparing(tolerations, taint, self.compares))
            .count();
        i64::try_from(untolerated_count).unwrap_or(i64::MAX)
    }
    fn normalization(&self) -> Normalize {
        Normalize::MaxReversed
    }
}

impl QueueHints for TaintToleration {
    fn interests(&self) -> Vec<Interest> {
        vec![
            Interest {
                subject: Subject::Node,
                actions: Action::ADD.or(Action::NODE_TAINT),
            },
            Interest {
                subject: Subject::UnscheduledPod,
                actions: Action::POD_SPEC,
            },
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        match event.node {
            Some(node)
                if find_untolerated(tolerations_of(pod), node.taints(), self.compares)
                    .is_some() =>
            {
                QueueingHint::Skip
            }
            _ => QueueingHint::Queue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::nodes::{tolerates, untolerated};

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        let value = Some(value.to_owned());
        Taint {
            key: key.to_owned(),
            value,
            effect: effect.to_owned(),
            time_added: None,
        }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let non_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Toleration {
            key: non_empty(key),
            operator: non_empty(operator),
            value: non_empty(value),
            effect: non_empty(effect),
            toleration_seconds: None,
        }
    }

    #[test]
    fn tolerations_match_by_key_operator_value_and_effect() {
        let taint = taint("k", "v", NO_SCHEDULE);
        for (key, operator, value, effect, expected) in [
            ("k", "Equal", "v", NO_SCHEDULE, true),
            ("k", "", "v", "", true),
            ("k", "", "w", "", false),
            ("k", "Exists", "", "", true),
            ("", "Exists", "", "", true),
            ("", "", "v", "", false),
            ("j", "Exists", "", "", false),
            ("k", "Exists", "", NO_EXECUTE, false),
        ] {
            let toleration = toleration(key, operator, value, effect);
            assert_eq!(
                tolerates(std::slice::from_ref(&toleration), &taint),
                expected,
                "{toleration:?}"
            );
        }
    }

    #[test]
    fn prefer_no_schedule_does_not_reject() {
        let taints = [
            taint("a", "", PREFER_NO_SCHEDULE),
            taint("b", "1", NO_EXECUTE),
        ];
        assert_eq!(
            untolerated(&[], &taints).map(|taint| taint.key.as_str()),
            Some("b")
        );
        assert_eq!(untolerated(&[], &taints[..1]), None);
    }
}
