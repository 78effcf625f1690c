//! Strategies, filters and evictors, and how they make a plan.
//!
//! A [`Profile`] has strategies in order, filters that all have to agree, and one evictor. [`Framework::run`]
//! runs every profile on a snapshot and returns a [`Plan`], without any side effects.

mod backoff;
mod cycle;
mod departures;
mod handles;
mod limits;
mod plan;

pub use crate::rules::SkipReason;
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

/// An error that a strategy cannot recover from; it ends the cycle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{strategy}: {problem}")]
pub struct StrategyError {
    /// Name of the strategy.
    pub strategy: &'static str,
    /// Description of the error.
    pub problem: String,
}

/// Selects the pods to evict.
pub trait Strategy: Debug + Send {
    /// Returns the plugin's name, as in the configuration.
    fn name(&self) -> &'static str;
    /// Examines the cluster and requests evictions from `cycle`, pod by pod. A strategy may keep state
    /// between cycles, such as how long a node has been hot.
    ///
    /// # Errors
    /// Returns an error if it cannot do its work at all. Nothing else runs in this cycle then.
    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError>;
}

/// Decides which pods may be evicted.
pub trait Filter: Debug + Send {
    /// Returns the plugin's name, as in the configuration.
    fn name(&self) -> &'static str;
    /// Starts a cycle.
    fn begin(&mut self, _snapshot: &Snapshot) {}
    /// Checks whether `pod` may be moved at all.
    ///
    /// # Errors
    /// Returns why it may not.
    fn filter(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason>;
    /// Checks `pod` once more just before it is evicted; `nodes` are those of the profile.
    ///
    /// # Errors
    /// Returns why it may not be evicted.
    fn pre_evict(
        &self,
        _snapshot: &Snapshot,
        _nodes: &[Arc<NodeInfo>],
        _pod: &PodInfo,
    ) -> Result<(), SkipReason> {
        Ok(())
    }
    /// Records that `pod` was put into the plan, by this profile or another. Later checks of the cycle take
    /// it into account.
    fn moved(&mut self, _snapshot: &Snapshot, _pod: &Arc<PodInfo>) {}
    /// Returns the state shared with the controller of migration jobs, if the plugin has any.
    fn migrations(&self) -> Option<Arc<Migrations>> {
        None
    }
    /// Returns true if it reads [`Snapshot::storage_classes`], which are only watched if a filter needs them.
    fn reads_storage_classes(&self) -> bool {
        false
    }
}

/// A strategy's request to evict a pod.
#[derive(Debug, Clone, Copy)]
pub struct EvictionRequest<'a> {
    /// The pod to evict.
    pub pod: &'a Arc<PodInfo>,
    /// Name of the strategy.
    pub strategy: &'static str,
    /// Reason for users.
    pub reason: &'a str,
    /// Delete options, if the strategy sets them.
    pub delete_options: Option<&'a DeleteOptions>,
}

/// Decides how a pod is evicted.
pub trait Evictor: Debug + Send {
    /// Returns the plugin's name, as in the configuration.
    fn name(&self) -> &'static str;
    /// Starts a cycle.
    fn begin(&mut self, _snapshot: &Snapshot) {}
    /// Checks whether `pod` can be evicted. Called after the filters agreed and before a target is reserved
    /// for it, as no other pod gets that capacity then.
    ///
    /// # Errors
    /// Returns why it cannot.
    fn admits(&self, _snapshot: &Snapshot, _pod: &PodInfo) -> Result<(), SkipReason> {
        Ok(())
    }
    /// Returns what must be done to evict the pod, after [`Evictor::admits`] agreed. The eviction counts from
    /// then on, also in a dry run, which ignores the result.
    ///
    /// # Errors
    /// Returns why it is not evicted.
    fn evict(
        &mut self,
        snapshot: &Snapshot,
        request: &EvictionRequest<'_>,
    ) -> Result<Intent, SkipReason>;
    /// Records that another profile put `pod` into the plan.
    fn moved(&mut self, _snapshot: &Snapshot, _pod: &PodInfo) {}
    /// Returns the state shared with the controller of migration jobs, if the evictor creates them.
    fn migrations(&self) -> Option<Arc<Migrations>> {
        None
    }
}

/// Finds target nodes by the scheduler's own rules. The program that runs the descheduler provides it.
pub trait Placement: Debug + Send {
    /// Starts a cycle and drops the tentative placements of the previous one.
    fn begin(&mut self, snapshot: &Snapshot);
    /// Finds a node for the replacement of `pod`, other than its own, in addition to all earlier placements,
    /// and reserves the capacity for it until the cycle ends.
    ///
    /// # Errors
    /// Returns why no node fits.
    fn place_tentatively(
        &mut self,
        snapshot: &Snapshot,
        pod: &Arc<PodInfo>,
    ) -> Result<Arc<str>, SkipReason>;
    /// Ends the cycle: it is not called again before the next cycle begins.
    fn end(&mut self) {}
}

/// A profile, ready to run.
#[derive(Debug)]
pub struct Profile {
    /// Name of the profile.
    pub name: Arc<str>,
    /// Selector of its nodes; all nodes without one.
    pub node_selector: Option<LabelSelector>,
    /// Strategies that run first, in order.
    pub deschedule: Vec<Box<dyn Strategy>>,
    /// Strategies that run after the `deschedule` strategies of all profiles, in order.
    pub balance: Vec<Box<dyn Strategy>>,
    /// Filters that must all agree.
    pub filters: Vec<Box<dyn Filter>>,
    /// Evictor that carries out evictions.
    pub evictor: Box<dyn Evictor>,
}

#[cfg(test)]
mod tests;
