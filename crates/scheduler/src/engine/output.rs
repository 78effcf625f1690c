//! What the engine wants done, and what it says of what it did.

use super::consult::Consultation;
use crate::framework::{BindPlan, Diagnosis, PodPatch, Problem, Remark, Words, Write};
use crate::state::PodInfo;
use jiff::Timestamp;
use std::sync::Arc;

/// A pod that is to be bound.
#[derive(Debug, Clone)]
pub struct BindRequest {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// Where it goes.
    pub node: Arc<str>,
    /// What to add to it first.
    pub patch: PodPatch,
    /// How.
    pub plan: BindPlan,
    /// Its profile's position.
    pub profile: usize,
    /// The plugin that says how.
    pub binder: &'static str,
    /// The extender that does it instead, by its position in the order in which they are asked, those that may be ignored last.
    pub extender: Option<usize>,
}

/// A pod that could not be placed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The condition's reason: `Unschedulable` or `SchedulerError`.
    pub reason: &'static str,
    /// The condition's and the event's message.
    pub message: Words,
    /// `status.nominatedNodeName` to set; empty to clear it.
    pub nominated: Option<String>,
    /// Counts per plugin and reason.
    pub diagnosis: Option<Arc<Diagnosis>>,
    /// What plugins add, as events of their own.
    pub remarks: Vec<Remark>,
}

/// What the engine wants done.
#[derive(Debug, Clone)]
pub enum Output {
    /// Bind a pod, then call [`super::Engine::bind_finished`].
    Bind(BindRequest),
    /// Ask extenders, then call [`super::Engine::consulted`].
    Consult(Consultation),
    /// Write a condition and an event.
    Failed(Failure),
    /// Report an object that could not be understood.
    Problem(Problem),
    /// Write to another object.
    Write(Write),
    /// Evict the victims of a preemption: condition, deletion, event.
    Evict {
        /// The pod that room is made for.
        preemptor: Arc<PodInfo>,
        /// Where.
        node: Arc<str>,
        /// Who goes.
        victims: Vec<Arc<PodInfo>>,
    },
    /// Let others know where a pod will go that is not bound at once.
    Expect {
        /// The pod.
        pod: Arc<PodInfo>,
        /// Where it has its place, or will have it when others have gone; empty: nowhere any more.
        node: Arc<str>,
    },
    /// Write a condition on a pod that was not tried itself; no event.
    Explain {
        /// The pod.
        pod: Arc<PodInfo>,
        /// The condition's message.
        message: String,
    },
}

/// How one cycle ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// Its profile's position.
    pub profile: usize,
    /// Cycles it took so far.
    pub attempts: u32,
    /// When it entered the queue.
    pub first_seen: Timestamp,
    /// Where it goes, if it goes.
    pub node: Option<Arc<str>>,
    /// Whether it failed by an error rather than a refusal.
    pub error: bool,
    /// Of a pod that goes somewhere, how many nodes were compared, and how many of them fit.
    pub evaluated: usize,
    /// See `evaluated`.
    pub feasible: usize,
}

/// A cycle that begins.
#[derive(Debug, Clone, Copy)]
pub struct Started<'a> {
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
    /// Its profile's position.
    pub profile: usize,
    /// Cycles so far, with this one.
    pub attempts: u32,
    /// When it entered the queue.
    pub first_seen: Timestamp,
    /// Whether it is tried only because it waited long enough.
    pub flushed: bool,
}

/// Is told of every cycle before it begins.
pub type Observer = Box<dyn Fn(Started<'_>) + Send + Sync>;
