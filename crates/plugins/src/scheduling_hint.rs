//! `SchedulingHint`: applies another component's hint on where to place a pod, read from an annotation.

use crate::common::args::{decode, invalid};
use koord_api::annotations::{SCHEDULING_HINT, SCHEDULING_HINT_DEPRECATED};
use koord_api::extension::SchedulingHint as Hint;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Holders, Interest, Plugin,
    Points, PreFilter, PreFilterResult, QueueHints, QueueingHint, Rejection, Roles, Sign, Signable,
    Signature, State, Subject, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use serde::Deserialize;
use serde_json::Value;

const NAME: &str = "SchedulingHint";

/// Arguments of `SchedulingHint`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    max_hint_nodes: i32,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            max_hint_nodes: 100,
        }
    }
}

/// The `SchedulingHint` plugin.
#[derive(Debug)]
pub(crate) struct SchedulingHint {
    /// Maximum number of entries of `preferredNodeNames` that are tried; later ones are ignored.
    max_nodes: usize,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = decode(NAME, value)?;
    match usize::try_from(args.max_hint_nodes) {
        Ok(max_nodes) if max_nodes > 0 => Ok(Box::new(SchedulingHint { max_nodes })),
        _ => {
            let message = format!("args.maxHintNodes: {} must be above 0", args.max_hint_nodes);
            Err(invalid(NAME, message))
        }
    }
}

/// Returns the key and the value of the pod's hint annotation.
fn hint_annotation(pod: &PodInfo) -> Option<(&'static str, &str)> {
    [SCHEDULING_HINT, SCHEDULING_HINT_DEPRECATED]
        .into_iter()
        .find_map(|key| Some((key, pod.annotation(key)?)))
}

/// The pod's parsed hint, or the error message; cached in the pod so that it is parsed only once.
struct ParsedHint(Result<Option<Hint>, String>);

fn hint(pod: &PodInfo) -> Result<Option<&Hint>, &str> {
    let parsed_hint = pod.facet(|pod| {
        let Some((key, text)) = hint_annotation(pod) else {
            return ParsedHint(Ok(None));
        };
        let parsed = serde_json::from_str(text).map(Some);
        ParsedHint(parsed.map_err(|error| format!("annotation {key}: {error}: {text:?}")))
    });
    parsed_hint
        .0
        .as_ref()
        .map(Option::as_ref)
        .map_err(String::as_str)
}

impl Plugin for SchedulingHint {
    const ROLES: Roles<Self> = Roles::none().queue_hints().sign().pre_filter();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for SchedulingHint {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        // Preferred nodes are tried before the results that pods of one signature share.
        for name in hint(pod)
            .ok()
            .flatten()
            .into_iter()
            .flat_map(|hint| &hint.node_names)
        {
            signature.text(name);
        }
        Signable::Yes
    }
}

impl PreFilter for SchedulingHint {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        match hint(cycle.pod) {
            Ok(Some(hint)) if !hint.node_names.is_empty() => {
                let names = hint.node_names.iter();
                let nodes = names.filter_map(|name| cycle.view.nodes.find(name));
                PreFilterResult::Ready {
                    state: State::default(),
                    nodes: Some(nodes.collect()),
                }
            }
            Ok(_) => PreFilterResult::Skip,
            Err(message) => PreFilterResult::Reject(Rejection::unresolvable(message.to_owned())),
        }
    }
    fn prefer(&self, cycle: &Cycle<'_>) -> Vec<NodeIndex> {
        let Ok(Some(hint)) = hint(cycle.pod) else {
            return Vec::new();
        };
        hint.preferred_node_names
            .iter()
            .take(self.max_nodes)
            .filter_map(|name| cycle.view.nodes.find(name))
            .collect()
    }
}

impl QueueHints for SchedulingHint {
    fn interests(&self) -> Vec<Interest> {
        vec![Interest {
            subject: Subject::Node,
            actions: Action::ADD,
        }]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        match (event.node, hint(pod)) {
            (Some(node), Ok(Some(hint)))
                if hint.node_names.iter().all(|name| **name != *node.name) =>
            {
                QueueingHint::Skip
            }
            (_, Err(_)) => QueueingHint::Skip,
            _ => QueueingHint::Queue,
        }
    }
}
