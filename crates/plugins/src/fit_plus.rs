//! `NodeResourcesFitPlus`: spreads or packs pods by a strategy per resource.

use crate::common::args::{decode, invalid};
use koord_model::resources::{CPU, MEMORY, PODS, ResourceId, ResourceTable, percent};
use koord_scheduler::framework::{
    BoxedPlugin, BuildContext, BuildError, Cycle, Holders, Plugin, Points, PreScore,
    PreScoreResult, Roles, Score, Sign, Signable, Signature, State,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const NAME: &str = "NodeResourcesFitPlus";

/// Arguments of `NodeResourcesFitPlus`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    resources: BTreeMap<String, Preference>,
}

/// A resource's strategy and weight.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Preference {
    #[serde(rename = "type")]
    kind: FitPlusStrategy,
    #[serde(default)]
    weight: i64,
}

/// A strategy for scoring the utilization of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum FitPlusStrategy {
    LeastAllocated,
    MostAllocated,
    /// Accepted, but scores 0.
    RequestedToCapacityRatio,
}

/// The `NodeResourcesFitPlus` plugin.
#[derive(Debug)]
pub(crate) struct FitPlus {
    args: Args,
}

/// The scored resources: resource, strategy and weight, and the pod's request.
#[derive(Debug)]
struct FitPlusResources(Vec<(ResourceId, Preference, i64)>);

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = decode(NAME, value)?;
    for (name, preference) in &args.resources {
        if preference.weight < 0 {
            let message = format!(
                "args.resources[{name}].weight: {} is below 0",
                preference.weight
            );
            return Err(invalid(NAME, message));
        }
        if preference.kind == FitPlusStrategy::RequestedToCapacityRatio {
            tracing::warn!(
                plugin = NAME,
                resource = name,
                "resource not scored: type RequestedToCapacityRatio is not supported"
            );
        }
    }
    Ok(Box::new(FitPlus { args }))
}

/// Returns the percentage of `total` that is free (LeastAllocated) or used (MostAllocated).
fn points(kind: FitPlusStrategy, used: i64, total: i64) -> i64 {
    let share = |part: i64| percent(part, total).unwrap_or(0);
    match kind {
        _ if total <= 0 => 0,
        FitPlusStrategy::LeastAllocated if used > total => 0,
        FitPlusStrategy::LeastAllocated => share(total - used),
        FitPlusStrategy::MostAllocated => share(used.min(total)),
        FitPlusStrategy::RequestedToCapacityRatio => 0,
    }
}

impl Plugin for FitPlus {
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

impl Sign for FitPlus {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        signature.amounts(&pod.requests);
        signature.number(pod.scoring[0]);
        signature.number(pod.scoring[1]);
        Signable::Yes
    }
}

impl PreScore for FitPlus {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let pod = cycle.pod;
        let scored = self.args.resources.iter().filter_map(|(name, preference)| {
            let id = cycle.view.resources.get(name)?;
            let pod_request = match id {
                CPU => pod.scoring[0],
                MEMORY => pod.scoring[1],
                _ => pod.requests.get(id),
            };
            let requested = pod.requests.get(id) > 0 && id != PODS;
            requested.then_some((id, *preference, pod_request))
        });
        PreScoreResult::Ready(State::new(FitPlusResources(scored.collect())))
    }
}

impl Score for FitPlus {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let Some(FitPlusResources(scored)) = state.get::<FitPlusResources>() else {
            return 0;
        };
        let [cpu, memory] = cycle.requested_for_scoring(node);
        let (mut sum, mut weights) = (0_i64, 0_i64);
        for (id, preference, pod_request) in scored {
            let used = match *id {
                CPU => cpu,
                MEMORY => memory,
                id => cycle.requested(node, id),
            };
            let total = cycle.view.nodes.allocatable(node, *id);
            let score = points(preference.kind, used.saturating_add(*pod_request), total);
            sum = sum.saturating_add(score.saturating_mul(preference.weight));
            weights = weights.saturating_add(preference.weight);
        }
        if weights == 0 { 100 } else { sum / weights }
    }
}
