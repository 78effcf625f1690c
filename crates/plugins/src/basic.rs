//! The small built-in plugins: queue order, scheduling gates, node name, cordoned nodes, binding, and the
//! rejection of pods with resource claims or workload pod groups.

use k8s_openapi::api::core::v1::{Taint, WorkloadReference};
use koord_model::nodes::tolerates;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, Bind, BindPlan, Cycle, Filter, Holders, Interest, Plugin, Points, PreEnqueue,
    PreFilter, PreFilterResult, QueueHints, QueueingHint, Rejection, Roles, Sign, Signable,
    Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};

/// `PrioritySort`: orders the queue by priority and then by age; the queue itself implements it.
#[derive(Debug)]
pub(crate) struct PrioritySort;

impl Plugin for PrioritySort {
    const ROLES: Roles<Self> = Roles::none();

    fn name(&self) -> &'static str {
        "PrioritySort"
    }
    fn points(&self) -> Points {
        Points::QUEUE_SORT
    }
}

/// `SchedulingGates`: keeps pods with `spec.schedulingGates` out of the queue.
#[derive(Debug)]
pub(crate) struct SchedulingGates;

impl Plugin for SchedulingGates {
    const ROLES: Roles<Self> = Roles::none().pre_enqueue();

    fn name(&self) -> &'static str {
        "SchedulingGates"
    }
    fn points(&self) -> Points {
        Points::PRE_ENQUEUE
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl PreEnqueue for SchedulingGates {
    fn pre_enqueue(&self, pod: &PodInfo) -> Verdict {
        if pod.gates.is_empty() {
            return Ok(());
        }
        let gates = pod.gates.join(" ");
        Err(Rejection::unresolvable(format!(
            "waiting for scheduling gates: [{gates}]"
        )))
    }
}

/// `DynamicResources`: rejects pods with resource claims, because claims are not allocated yet. Bound without
/// its claims, such a pod would never start.
#[derive(Debug)]
pub(crate) struct DynamicResources;

impl Plugin for DynamicResources {
    const ROLES: Roles<Self> = Roles::none().queue_hints().sign().pre_filter();

    fn name(&self) -> &'static str {
        "DynamicResources"
    }
    fn points(&self) -> Points {
        // All points at which configurations may list it.
        Points::PRE_ENQUEUE
            .or(Points::PRE_FILTER)
            .or(Points::FILTER)
            .or(Points::POST_FILTER)
            .or(Points::RESERVE)
            .or(Points::PRE_BIND)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for DynamicResources {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        signature.number(i64::from(has_claims(pod)));
        Signable::Yes
    }
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        if has_claims(cycle.pod) {
            return PreFilterResult::Reject(Rejection::unresolvable(
                "the pod has resource claims, which this scheduler does not allocate",
            ));
        }
        PreFilterResult::Skip
    }
}

impl QueueHints for DynamicResources {
    fn interests(&self) -> Vec<Interest> {
        vec![Interest {
            subject: Subject::UnscheduledPod,
            actions: Action::POD_SPEC,
        }]
    }
}

fn has_claims(pod: &PodInfo) -> bool {
    let claims = pod.spec().and_then(|spec| spec.resource_claims.as_ref());
    claims.is_some_and(|claims| !claims.is_empty())
}

/// `GangScheduling`: rejects pods that belong to a pod group of the Workload API, because groups are not
/// placed yet. A member placed alone could hold a node for others that never arrive.
#[derive(Debug)]
pub(crate) struct GangScheduling;

impl Plugin for GangScheduling {
    const ROLES: Roles<Self> = Roles::none().queue_hints().sign().pre_filter();

    fn name(&self) -> &'static str {
        "GangScheduling"
    }
    fn points(&self) -> Points {
        // All points at which configurations may list it.
        Points::PRE_ENQUEUE
            .or(Points::PRE_FILTER)
            .or(Points::RESERVE)
            .or(Points::PERMIT)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for GangScheduling {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        signature.number(i64::from(workload_of(pod).is_some()));
        Signable::Yes
    }
}

impl PreFilter for GangScheduling {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let Some(workload) = workload_of(cycle.pod) else {
            return PreFilterResult::Skip;
        };
        let named = match workload.name.as_str() {
            "" => format!("spec.schedulingGroup names {:?}", workload.pod_group),
            name => format!(
                "spec.workloadRef names {:?} of {name:?}",
                workload.pod_group
            ),
        };
        PreFilterResult::Reject(Rejection::unresolvable(format!(
            "{named}: this scheduler does not place pod groups of the Workload API"
        )))
    }
}

impl QueueHints for GangScheduling {
    fn interests(&self) -> Vec<Interest> {
        vec![Interest {
            subject: Subject::UnscheduledPod,
            actions: Action::POD_SPEC,
        }]
    }
}

fn workload_of(pod: &PodInfo) -> Option<&WorkloadReference> {
    pod.spec()?.workload_ref.as_ref()
}

/// `NodeName`: places a pod that names a node only on that node.
#[derive(Debug)]
pub(crate) struct NodeName;

impl Plugin for NodeName {
    const ROLES: Roles<Self> = Roles::none().queue_hints().sign().pre_filter().filter();

    fn name(&self) -> &'static str {
        "NodeName"
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER.or(Points::FILTER)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for NodeName {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        signature.text(pod.node.as_deref().unwrap_or_default());
        Signable::Yes
    }
}

impl PreFilter for NodeName {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        match cycle.pod.node {
            None => PreFilterResult::Skip,
            Some(_) => PreFilterResult::Ready {
                state: State::default(),
                nodes: None,
            },
        }
    }
}

impl Filter for NodeName {
    fn filter(&self, cycle: &Cycle<'_>, _state: &State, node: NodeIndex) -> Verdict {
        match &cycle.pod.node {
            Some(wanted) if wanted != cycle.view.nodes.name(node) => Err(Rejection::unresolvable(
                "node(s) didn't match the requested node name",
            )),
            _ => Ok(()),
        }
    }
}

impl QueueHints for NodeName {
    fn interests(&self) -> Vec<Interest> {
        vec![Interest {
            subject: Subject::Node,
            actions: Action::ADD,
        }]
    }
    fn hint(
        &self,
        pod: &PodInfo,
        event: &koord_scheduler::framework::ClusterEvent<'_>,
        _view: View<'_>,
    ) -> QueueingHint {
        match (event.node, &pod.node) {
            (Some(node), Some(wanted)) if node.name != *wanted => QueueingHint::Skip,
            _ => QueueingHint::Queue,
        }
    }
}

/// `NodeUnschedulable`: keeps pods off cordoned nodes unless they tolerate the taint.
#[derive(Debug)]
pub(crate) struct NodeUnschedulable;

impl NodeUnschedulable {
    fn tolerated(pod: &PodInfo) -> bool {
        let taint = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let tolerations = pod.spec().and_then(|spec| spec.tolerations.as_deref());
        tolerates(tolerations.unwrap_or_default(), &taint)
    }
}

impl Plugin for NodeUnschedulable {
    const ROLES: Roles<Self> = Roles::none().queue_hints().sign().pre_filter().filter();

    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER.or(Points::FILTER)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for NodeUnschedulable {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        signature.number(i64::from(Self::tolerated(pod)));
        Signable::Yes
    }
}

impl PreFilter for NodeUnschedulable {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        if Self::tolerated(cycle.pod) {
            return PreFilterResult::Skip;
        }
        PreFilterResult::Ready {
            state: State::default(),
            nodes: None,
        }
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, cycle: &Cycle<'_>, _state: &State, node: NodeIndex) -> Verdict {
        if cycle.view.nodes.is_unschedulable(node) {
            return Err(Rejection::unresolvable("node(s) were unschedulable"));
        }
        Ok(())
    }
}

impl QueueHints for NodeUnschedulable {
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
    fn hint(
        &self,
        _pod: &PodInfo,
        event: &koord_scheduler::framework::ClusterEvent<'_>,
        _view: View<'_>,
    ) -> QueueingHint {
        if event.node.is_some_and(|node| node.unschedulable) {
            QueueingHint::Skip
        } else {
            QueueingHint::Queue
        }
    }
}

/// `DefaultBinder`: binds through the pod's binding subresource.
#[derive(Debug)]
pub(crate) struct DefaultBinder;

impl Plugin for DefaultBinder {
    const ROLES: Roles<Self> = Roles::none().bind();

    fn name(&self) -> &'static str {
        "DefaultBinder"
    }
    fn points(&self) -> Points {
        Points::BIND
    }
}

impl Bind for DefaultBinder {
    fn bind(&self, _cycle: &Cycle<'_>, _node: NodeIndex) -> BindPlan {
        BindPlan::Binding
    }
}

#[cfg(test)]
mod tests;
