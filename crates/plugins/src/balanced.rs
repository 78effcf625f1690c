//! `NodeResourcesBalancedAllocation`: prefers nodes whose resources are used evenly.

use crate::common::args;
use crate::common::resources::is_scalar;
use koord_model::resources::{ResourceId, ResourceTable};
use koord_scheduler::framework::{
    BoxedPlugin, BuildContext, BuildError, Cycle, Holders, Plugin, Points, PreScore,
    PreScoreResult, Roles, Score, Sign, Signable, Signature, State,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use serde::Deserialize;
use serde_json::Value;

const NAME: &str = "NodeResourcesBalancedAllocation";

/// Arguments of `NodeResourcesBalancedAllocation`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    resources: Vec<BalancedResourceSpec>,
}

/// A resource to balance; the only allowed weight is 1.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BalancedResourceSpec {
    name: String,
    #[serde(default)]
    weight: Option<i64>,
}

impl Default for Args {
    fn default() -> Self {
        let spec = |name: &str| BalancedResourceSpec {
            name: name.to_owned(),
            weight: None,
        };
        Self {
            resources: vec![spec("cpu"), spec("memory")],
        }
    }
}

/// The `NodeResourcesBalancedAllocation` plugin.
#[derive(Debug)]
pub(crate) struct BalancedAllocation {
    resources: Vec<String>,
}

/// The scored resources, each with the pod's request.
#[derive(Debug)]
struct BalancedResources(Vec<(ResourceId, i64)>);

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = args::decode(NAME, value)?;
    for spec in &args.resources {
        if spec.weight.is_some_and(|weight| weight != 1) {
            let message = format!("args.resources[{}].weight: only 1 is allowed", spec.name);
            return Err(args::invalid(NAME, message));
        }
    }
    let resources = args.resources.into_iter().map(|spec| spec.name).collect();
    Ok(Box::new(BalancedAllocation { resources }))
}

impl Plugin for BalancedAllocation {
    const ROLES: Roles<Self> = Roles::none().sign().pre_score().score();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_SCORE.or(Points::SCORE)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for BalancedAllocation {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        signature.amounts(&pod.requests);
        Signable::Yes
    }
}

impl PreScore for BalancedAllocation {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let scored: Vec<(ResourceId, i64)> = self
            .resources
            .iter()
            .filter_map(|name| cycle.view.resources.get(name))
            .map(|id| (id, cycle.pod.requests.get(id)))
            .filter(|(id, adds)| *adds > 0 || !is_scalar(*id))
            .collect();
        if scored.iter().all(|(_, adds)| *adds == 0) {
            return PreScoreResult::Skip;
        }
        PreScoreResult::Ready(State::new(BalancedResources(scored)))
    }
}

impl Score for BalancedAllocation {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let nodes = cycle.view.nodes;
        let Some(BalancedResources(scored)) = state.get::<BalancedResources>() else {
            return 0;
        };
        balance(scored.iter().map(|(id, adds)| {
            let used = cycle.requested(node, *id).saturating_add(*adds);
            (used, nodes.allocatable(node, *id))
        }))
    }
    fn score_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let Some(BalancedResources(scored)) = state.get::<BalancedResources>() else {
            return;
        };
        let all = cycle.view.nodes;
        let columns: Vec<_> = scored
            .iter()
            .map(|(id, adds)| (all.column(*id), *adds))
            .collect();
        for (score, node) in scores.iter_mut().zip(nodes) {
            *score = balance(columns.iter().map(|(column, adds)| {
                let used = column.requested(*node).saturating_add(*adds);
                (used, column.allocatable(*node))
            }));
        }
    }
}

/// Returns the score of a node, given the used amount (with the pod) and the allocatable of each resource.
#[inline]
#[allow(
    clippy::cast_precision_loss,
    reason = "fractions, as upstream computes them"
)]
fn balance(resources: impl Iterator<Item = (i64, i64)>) -> i64 {
    let mut fractions = [0.0_f64; 16];
    let mut count = 0;
    for (used, total) in resources {
        if total > 0 && count < fractions.len() {
            fractions[count] = (used as f64 / total as f64).min(1.0);
            count += 1;
        }
    }
    score(&fractions[..count])
}

/// Returns 100 for equal fractions, less the higher their standard deviation.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a score within 0 and 100"
)]
fn score(fractions: &[f64]) -> i64 {
    let deviation = match fractions {
        [] | [_] => 0.0,
        [a, b] => ((a - b) / 2.0).abs(),
        all => {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let variance = all.iter().map(|f| (f - mean).powi(2)).sum::<f64>() / all.len() as f64;
            variance.sqrt()
        }
    };
    ((1.0 - deviation) * 100.0) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_use_scores_highest() {
        assert_eq!(score(&[0.5, 0.5]), 100);
        assert_eq!(score(&[1.0, 0.0]), 50);
        assert_eq!(score(&[0.25]), 100);
        assert_eq!(score(&[0.0, 0.0, 1.0]), 52);
    }
}
