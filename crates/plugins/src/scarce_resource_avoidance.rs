//! `ScarceResourceAvoidance`: prefers nodes without scarce resources that the pod does not request.

use crate::common::args::decode;
use koord_model::resources::{PODS, ResourceId, ResourceTable};
use koord_scheduler::framework::{
    BoxedPlugin, BuildContext, BuildError, Cycle, Holders, Plugin, Points, PreScore,
    PreScoreResult, Roles, Score, Sign, Signable, Signature, State,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use serde::Deserialize;
use serde_json::Value;

const NAME: &str = "ScarceResourceAvoidance";

/// Arguments of `ScarceResourceAvoidance`: names of the scarce resources.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    resources: Vec<String>,
}

/// The `ScarceResourceAvoidance` plugin.
#[derive(Debug)]
pub(crate) struct ScarceResourceAvoidance {
    args: Args,
}

/// The scarce resources that the pod does not request.
#[derive(Debug)]
struct UnrequestedScarce(Vec<ResourceId>);

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    Ok(Box::new(ScarceResourceAvoidance {
        args: decode(NAME, value)?,
    }))
}

impl Plugin for ScarceResourceAvoidance {
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

impl Sign for ScarceResourceAvoidance {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        for (id, amount) in pod.requests.iter() {
            if amount > 0 {
                signature.number(i64::from(id.0));
            }
        }
        signature.number(-1);
        Signable::Yes
    }
}

impl PreScore for ScarceResourceAvoidance {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let names = self.args.resources.iter();
        let scarce = names.filter_map(|name| cycle.view.resources.get(name));
        let unrequested = scarce.filter(|id| cycle.pod.requests.get(*id) == 0);
        PreScoreResult::Ready(State::new(UnrequestedScarce(unrequested.collect())))
    }
}

impl Score for ScarceResourceAvoidance {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let (Some(UnrequestedScarce(unrequested)), Some(info)) = (
            state.get::<UnrequestedScarce>(),
            cycle.view.nodes.info(node),
        ) else {
            return 0;
        };
        let (mut offered, mut scarce) = (0_i64, 0_i64);
        for (id, amount) in info.allocatable.iter() {
            if amount > 0 && id != PODS && cycle.pod.requests.get(id) == 0 {
                offered += 1;
                scarce += i64::from(unrequested.contains(&id));
            }
        }
        if scarce == 0 {
            return 100;
        }
        (offered - scarce) * 100 / offered
    }
}
