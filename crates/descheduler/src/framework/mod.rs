//! How strategies, filters and an evictor make a plan together.
//!
//! A [`Profile`] has strategies in order, filters that all have to agree, and one evictor. [`Framework::run`] lets every profile
//! look at a snapshot; what comes out is a [`Plan`], and nothing else has happened.

mod backoff;
mod cycle;
mod departures;
mod handles;
mod limits;
mod plan;

pub use crate::rules::Why;
pub use backoff::EvictionBackoff;
pub use cycle::{Cycle, Framework};
pub use departures::{Departures, ProfileDepartures};
pub use handles::PluginHandles;
pub use limits::{Limiter, Limits};
pub use plan::{Action, Finding, Intent, Move, Note, Plan, SkippedPod};

use crate::migration::Migrations;
use crate::state::{NodeInfo, PodInfo, Snapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, LabelSelector};
use std::fmt::Debug;
use std::sync::Arc;

/// What a strategy cannot go on after; the cycle ends with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{strategy}: {problem}")]
pub struct StrategyError {
    /// Which one.
    pub strategy: &'static str,
    /// What is wrong.
    pub problem: String,
}

/// Says which pods have to go.
pub trait Strategy: Debug + Send {
    /// The plugin's name, as in the configuration.
    fn name(&self) -> &'static str;
    /// Looks at the cluster and asks `cycle` to evict, pod by pod. What it may keep in itself between cycles is
    /// what it has learnt over time, such as how long a node has been hot.
    ///
    /// # Errors
    /// It cannot do its work at all. Nothing else runs in this cycle then.
    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError>;
}

/// Says which pods may go.
pub trait Filter: Debug + Send {
    /// The plugin's name, as in the configuration.
    fn name(&self) -> &'static str;
    /// A new cycle begins.
    fn begin(&mut self, _snapshot: &Snapshot) {}
    /// Whether `pod` may be moved at all.
    ///
    /// # Errors
    /// It may not, and why.
    fn filter(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), Why>;
    /// The last question before a pod is evicted, among `nodes` of the profile.
    ///
    /// # Errors
    /// It may not go, and why.
    fn pre_evict(
        &self,
        _snapshot: &Snapshot,
        _nodes: &[Arc<NodeInfo>],
        _pod: &PodInfo,
    ) -> Result<(), Why> {
        Ok(())
    }
    /// `pod` was put into the plan, by this profile or another. Later questions of this cycle count with it.
    fn moved(&mut self, _snapshot: &Snapshot, _pod: &Arc<PodInfo>) {}
    /// What it shares with whoever works on jobs, if it is about them.
    fn migrations(&self) -> Option<Arc<Migrations>> {
        None
    }
    /// Whether it reads [`Snapshot::storage_classes`], which are followed only if somebody does.
    fn reads_storage_classes(&self) -> bool {
        false
    }
}

/// What a strategy asks for.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
    /// The strategy's name.
    pub strategy: &'static str,
    /// Why, for people.
    pub reason: &'a str,
    /// How to delete it, when the strategy has a say.
    pub delete_options: Option<&'a DeleteOptions>,
}

/// Says how a pod goes.
pub trait Evictor: Debug + Send {
    /// The plugin's name, as in the configuration.
    fn name(&self) -> &'static str;
    /// A new cycle begins.
    fn begin(&mut self, _snapshot: &Snapshot) {}
    /// Whether `pod` would go at all: asked before it is promised room, which nobody else gets then. Filters have
    /// agreed by now.
    ///
    /// # Errors
    /// It would not, and why.
    fn admits(&self, _snapshot: &Snapshot, _pod: &PodInfo) -> Result<(), Why> {
        Ok(())
    }
    /// What has to be done for the pod to go, after [`Evictor::admits`] let it. It counts from then on, also in a dry
    /// run, where nothing comes of the answer.
    ///
    /// # Errors
    /// It does not, and why.
    fn evict(&mut self, snapshot: &Snapshot, ask: &Ask<'_>) -> Result<Intent, Why>;
    /// Another profile put `pod` into the plan.
    fn moved(&mut self, _snapshot: &Snapshot, _pod: &PodInfo) {}
    /// What it shares with whoever works on jobs, if it makes them.
    fn migrations(&self) -> Option<Arc<Migrations>> {
        None
    }
}

/// Who knows where pods can go: the scheduler's own rules, handed in by whoever runs the descheduler.
pub trait Placement: Debug + Send {
    /// A new cycle begins; what was promised in an earlier one is forgotten.
    fn begin(&mut self, snapshot: &Snapshot);
    /// Finds a node for what will replace `pod`, other than its own, beside everything promised before, and promises
    /// that room to it.
    ///
    /// # Errors
    /// There is none, and why.
    fn promise(&mut self, snapshot: &Snapshot, pod: &Arc<PodInfo>) -> Result<Arc<str>, Why>;
    /// The cycle is over: nothing more is asked before the next one begins.
    fn end(&mut self) {}
}

/// One profile, ready to run.
#[derive(Debug)]
pub struct Profile {
    /// Its name.
    pub name: Arc<str>,
    /// Which nodes it looks at; all without one.
    pub node_selector: Option<LabelSelector>,
    /// Run first, in order.
    pub deschedule: Vec<Box<dyn Strategy>>,
    /// Run when those of all profiles are through, in order.
    pub balance: Vec<Box<dyn Strategy>>,
    /// All have to agree.
    pub filters: Vec<Box<dyn Filter>>,
    /// Carries out.
    pub evictor: Box<dyn Evictor>,
}

#[cfg(test)]
mod tests;
