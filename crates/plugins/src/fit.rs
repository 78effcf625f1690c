//! `NodeResourcesFit`: filters nodes by free resources and scores them by utilization, with a configurable
//! strategy.

mod args;

use crate::common::resources::is_scalar;
use args::{Args, FitStrategy};
use koord_api::priority::PriorityClass;
use koord_api::priority::resource_priority_class;
use koord_model::resources::{self, CPU, MEMORY, PODS, ResourceId, ResourceTable};
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Code, Cycle, Explain, Filter,
    Holders, Interest, Plugin, Points, PreFilter, PreFilterResult, PreScore, PreScoreResult,
    QueueHints, QueueingHint, Reason, Reasons, Rejection, Roles, Score, Shortfall, Sign, Signable,
    Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, NodeInfo, PodInfo, ResourceColumn};
use serde_json::Value;

pub(crate) const NAME: &str = "NodeResourcesFit";
const TOO_MANY: &str = "Too many pods";

/// The `NodeResourcesFit` plugin.
#[derive(Debug)]
pub(crate) struct Fit {
    args: Args,
}

/// The pod's requests, each with the rejection reason for when it does not fit.
#[derive(Debug)]
struct Needs(Vec<(ResourceId, i64, Reason)>);

/// The node on which a pod event freed capacity.
enum FreedCapacity<'a> {
    On(&'a NodeInfo),
    /// The pod's node does not exist anymore.
    Nowhere,
    /// The event does not name a node.
    Somewhere,
}

fn freed_capacity<'a>(
    event: &ClusterEvent<'_>,
    other: &PodInfo,
    view: View<'a>,
) -> FreedCapacity<'a> {
    // An assigned pod that was added may have moved here from another node, so capacity was freed on that
    // one.
    let moved = event.action.meets(Action::ADD);
    let node = other.node.as_deref();
    let Some(node) = node.filter(|_| event.subject == Subject::AssignedPod && !moved) else {
        return FreedCapacity::Somewhere;
    };
    let info = view
        .nodes
        .find(node)
        .and_then(|index| view.nodes.info(index));
    info.map_or(FreedCapacity::Nowhere, |info| FreedCapacity::On(info))
}

/// The scored resources: resource, weight and the pod's request.
#[derive(Debug)]
struct FitResources(Vec<(ResourceId, i64, i64)>);

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let mut args: Args = crate::common::args::decode(NAME, value)?;
    args.validate()?;
    args.ignore_extender_resources(&context.ignored_resources);
    Ok(Box::new(Fit { args }))
}

impl Fit {
    /// Returns true if this plugin does not check requests of this resource.
    fn is_unchecked(&self, id: ResourceId, name: &str) -> bool {
        id == PODS || self.args.ignores(name)
    }

    fn needs(&self, pod: &PodInfo, table: &ResourceTable) -> Needs {
        let mut needs = Vec::new();
        for (id, amount) in pod.requests.iter() {
            let name = table.name(id);
            if amount == 0 || self.is_unchecked(id, &name) {
                continue;
            }
            let reason = match id {
                CPU => Reason::Static("Insufficient cpu"),
                MEMORY => Reason::Static("Insufficient memory"),
                resources::EPHEMERAL_STORAGE => Reason::Static("Insufficient ephemeral-storage"),
                _ => Reason::from(format!("Insufficient {name}")),
            };
            needs.push((id, amount, reason));
        }
        Needs(needs)
    }

    /// Returns the weighted mean score of `resources`, each given as (used including the pod, allocatable,
    /// weight).
    #[inline]
    fn mean(&self, resources: impl Iterator<Item = (i64, i64, i64)>) -> i64 {
        let strategy = &self.args.scoring_strategy;
        let (mut sum, mut weights) = (0_i64, 0_i64);
        for (used, total, weight) in resources {
            if total == 0 {
                continue;
            }
            let score = strategy.score(used, total);
            // The ratio strategy leaves resources that score nothing out of the mean.
            if score == 0 && strategy.kind == FitStrategy::RequestedToCapacityRatio {
                continue;
            }
            sum += score * weight;
            weights += weight;
        }
        match weights {
            0 => 0,
            weights if strategy.kind == FitStrategy::RequestedToCapacityRatio => {
                (2 * sum + weights) / (2 * weights)
            }
            weights => sum / weights,
        }
    }
}

/// Returns the used amount of resource `id`: the scoring amounts for CPU and memory, `requested()` for
/// others.
#[inline]
fn used([cpu, memory]: [i64; 2], id: ResourceId, requested: impl Fn() -> i64) -> i64 {
    match id {
        CPU => cpu,
        MEMORY => memory,
        _ => requested(),
    }
}

impl Plugin for Fit {
    const ROLES: Roles<Self> = Roles::none()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .explain();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for Fit {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        signature.amounts(&pod.requests);
        signature.number(pod.scoring[0]);
        signature.number(pod.scoring[1]);
        Signable::Yes
    }
}

impl PreFilter for Fit {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        PreFilterResult::ready(self.needs(cycle.pod, cycle.view.resources))
    }
}

impl Filter for Fit {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let nodes = cycle.view.nodes;
        let full = cycle.requested(node, PODS) >= nodes.allocatable(node, PODS);
        let needs = state
            .get::<Needs>()
            .map(|needs| needs.0.as_slice())
            .unwrap_or_default();
        let lacks = |(id, amount, _): &&(ResourceId, i64, Reason)| {
            *amount
                > nodes
                    .allocatable(node, *id)
                    .saturating_sub(cycle.requested(node, *id))
        };
        let mut lacking = needs.iter().filter(lacks).peekable();
        if !full && lacking.peek().is_none() {
            return Ok(());
        }
        let mut code = Code::Unschedulable;
        let mut reasons: Vec<Reason> = full
            .then_some(Reason::Static(TOO_MANY))
            .into_iter()
            .collect();
        for (id, amount, reason) in lacking {
            if *amount > nodes.allocatable(node, *id) {
                code = Code::Unresolvable;
            }
            reasons.push(reason.clone());
        }
        let reasons = match <[Reason; 1]>::try_from(reasons) {
            Ok([reason]) => Reasons::One(reason),
            Err(reasons) => Reasons::Many(reasons.into()),
        };
        Err(Rejection { code, reasons })
    }
    fn filter_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        refuse: &mut dyn FnMut(usize, Rejection),
    ) {
        let all = cycle.view.nodes;
        let needs = state.get::<Needs>().into_iter().flat_map(|needs| &needs.0);
        let needs: Vec<_> = needs
            .map(|(id, amount, _)| (all.column(*id), *amount))
            .collect();
        let pods = all.column(PODS);
        for (at, node) in nodes.iter().enumerate() {
            let lacks = |(column, amount): &(ResourceColumn<'_>, i64)| {
                let free = column
                    .allocatable(*node)
                    .saturating_sub(column.requested(*node));
                *amount > free
            };
            let full = pods.requested(*node) >= pods.allocatable(*node);
            // The reasons are computed only for rejected nodes, which are few.
            if (full || needs.iter().any(lacks))
                && let Err(rejection) = Filter::filter(self, cycle, state, *node)
            {
                refuse(at, rejection);
            }
        }
    }
}

impl PreScore for Fit {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let pod = cycle.pod;
        let scored = self
            .args
            .scoring_strategy
            .resources
            .iter()
            .filter_map(|spec| {
                let id = cycle.view.resources.get(&spec.name)?;
                let adds = match id {
                    CPU => pod.scoring[0],
                    MEMORY => pod.scoring[1],
                    _ => pod.requests.get(id),
                };
                (adds > 0 || !is_scalar(id)).then_some((id, spec.weight, adds))
            });
        PreScoreResult::Ready(State::new(FitResources(scored.collect())))
    }
}

impl Score for Fit {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let nodes = cycle.view.nodes;
        let Some(FitResources(scored)) = state.get::<FitResources>() else {
            return 0;
        };
        let scoring = cycle.requested_for_scoring(node);
        self.mean(scored.iter().map(|(id, weight, adds)| {
            let used = used(scoring, *id, || cycle.requested(node, *id));
            let total = nodes.allocatable(node, *id);
            (used.saturating_add(*adds), total, *weight)
        }))
    }
    fn score_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let Some(FitResources(scored)) = state.get::<FitResources>() else {
            return;
        };
        let all = cycle.view.nodes;
        let columns = scored
            .iter()
            .map(|(id, weight, adds)| (all.column(*id), *id, *weight, *adds));
        let columns: Vec<_> = columns.collect();
        for (score, node) in scores.iter_mut().zip(nodes) {
            let scoring = all.requested_for_scoring(*node);
            *score = self.mean(columns.iter().map(|(column, id, weight, adds)| {
                let used = used(scoring, *id, || column.requested(*node));
                (
                    used.saturating_add(*adds),
                    column.allocatable(*node),
                    *weight,
                )
            }));
        }
    }
}

impl QueueHints for Fit {
    fn interests(&self) -> Vec<Interest> {
        let pod = Action::DELETE.or(Action::POD_SCALE_DOWN);
        vec![
            Interest {
                subject: Subject::AssignedPod,
                actions: pod,
            },
            Interest {
                subject: Subject::Node,
                actions: Action::ADD.or(Action::NODE_ALLOCATABLE),
            },
            Interest {
                subject: Subject::UnscheduledPod,
                actions: Action::POD_SCALE_DOWN,
            },
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, view: View<'_>) -> QueueingHint {
        // A node that is too small even when empty cannot help.
        let large = |node: &NodeInfo| {
            let enough = |(id, amount): (ResourceId, i64)| {
                amount == 0
                    || amount <= node.allocatable.get(id)
                    || self.is_unchecked(id, &view.resources.name(id))
            };
            node.allocatable.get(PODS) > 0 && pod.requests.iter().all(enough)
        };
        let helps = match (event.node, event.pod) {
            (Some(node), _) => large(node),
            (None, Some(other)) => match freed_capacity(event, other, view) {
                FreedCapacity::On(node) => large(node),
                FreedCapacity::Nowhere => false,
                FreedCapacity::Somewhere => true,
            },
            _ => true,
        };
        if helps {
            QueueingHint::Queue
        } else {
            QueueingHint::Skip
        }
    }
}

impl Explain for Fit {
    fn explain_shortfall(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Shortfall,
    ) {
        let nodes = cycle.view.nodes;
        let mut note = |id: ResourceId, amount: i64| {
            let total = nodes.allocatable(node, id);
            let free = total.saturating_sub(cycle.requested(node, id)).max(0);
            if amount > free {
                let name = cycle.view.resources.name(id);
                #[allow(clippy::cast_precision_loss, reason = "a ratio")]
                let missing = (amount - free) as f64 / amount as f64;
                // A request larger than the whole node cannot be met by evictions, so it is farther away.
                // Batch and mid resources are the exception: they grow when prod pods use less.
                let varies = resource_priority_class(&name) != PriorityClass::None;
                let distance = if amount > total && !varies {
                    10.0
                } else {
                    missing
                };
                out.add(distance, || {
                    let [needs, free] = [amount, free].map(|value| resources::shown(id, value));
                    format!("{name}: needs {needs}, free {free}")
                });
            }
        };
        note(PODS, 1);
        for (id, amount, _) in state.get::<Needs>().iter().flat_map(|needs| &needs.0) {
            note(*id, *amount);
        }
    }
}
