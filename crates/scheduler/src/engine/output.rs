//! Outputs of the engine: operations to carry out, and results of scheduling cycles.

use super::extender_calls::ExtenderCall;
use crate::framework::{BindPlan, Diagnosis, LazyMessage, PodPatch, Problem, RefusalEvent, Write};
use crate::state::PodInfo;
use jiff::Timestamp;
use std::sync::Arc;

/// A pod to bind.
#[derive(Debug, Clone)]
pub struct BindRequest {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The node to bind it to.
    pub node: Arc<str>,
    /// The labels and annotations to add first.
    pub patch: PodPatch,
    /// The requests that bind the pod.
    pub plan: BindPlan,
    /// The index of its profile.
    pub profile: usize,
    /// The bind plugin.
    pub binder: &'static str,
    /// The extender that binds the pod instead, as its position in the call order, ignorable ones last.
    pub extender: Option<usize>,
}

/// A pod that could not be scheduled.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The condition's reason: `Unschedulable` or `SchedulerError`.
    pub reason: &'static str,
    /// The condition's and the event's message.
    pub message: LazyMessage,
    /// `status.nominatedNodeName` to set; empty to clear it.
    pub nominated: Option<String>,
    /// The refusals per plugin and reason.
    pub diagnosis: Option<Arc<Diagnosis>>,
    /// Additional events from plugins.
    pub refusal_events: Vec<RefusalEvent>,
}

/// An operation that the engine requests.
#[derive(Debug, Clone)]
pub enum Output {
    /// Bind a pod, then call [`super::Engine::bind_finished`].
    Bind(BindRequest),
    /// Call extenders, then call [`super::Engine::apply_extender_result`].
    Consult(ExtenderCall),
    /// Write a condition and an event.
    Failed(Failure),
    /// Report an invalid object.
    Problem(Problem),
    /// Write to another object.
    Write(Write),
    /// Evict the victims of a preemption: condition, deletion, event.
    Evict {
        /// The pod to make room for.
        preemptor: Arc<PodInfo>,
        /// The node of the victims.
        node: Arc<str>,
        /// The victims.
        victims: Vec<Arc<PodInfo>>,
    },
    /// Write where a pod will be placed that is not bound at once.
    Expect {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The node that the pod is, or will be, placed on; empty to clear it.
        node: Arc<str>,
    },
    /// Write a condition on a pod that had no cycle of its own; no event.
    Explain {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The condition's message.
        message: String,
    },
}

/// The result of one scheduling cycle.
#[derive(Debug, Clone)]
pub struct CycleOutcome {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The index of its profile.
    pub profile: usize,
    /// The number of cycles so far.
    pub attempts: u32,
    /// The time at which it entered the queue.
    pub first_seen: Timestamp,
    /// The chosen node, if the cycle succeeded.
    pub node: Option<Arc<str>>,
    /// True if the cycle failed with an error rather than a refusal.
    pub error: bool,
    /// The number of evaluated nodes; 0 if the cycle did not succeed.
    pub evaluated: usize,
    /// The number of evaluated nodes that fit; 0 if the cycle did not succeed.
    pub feasible: usize,
}

/// A scheduling cycle that starts.
#[derive(Debug, Clone, Copy)]
pub struct CycleStart<'a> {
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
    /// The index of its profile.
    pub profile: usize,
    /// The number of cycles, including this one.
    pub attempts: u32,
    /// The time at which it entered the queue.
    pub first_seen: Timestamp,
    /// True if the pod is retried only because it waited the maximum time.
    pub flushed: bool,
}

/// A callback for the start of every cycle.
pub type Observer = Box<dyn Fn(CycleStart<'_>) + Send + Sync>;
