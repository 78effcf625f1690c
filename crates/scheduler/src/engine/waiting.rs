//! Pods that keep their place while they wait for permission.

use super::measure::Point;
use crate::queue::PluginSet;
use crate::state::PodInfo;
use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A pod that keeps what it booked while it waits for permission.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) pod: Arc<PodInfo>,
    pub(super) profile: usize,
    pub(super) on: Vec<&'static str>,
    pub(super) since: Timestamp,
    /// Where: with permission still to come, or with something to happen before the binding.
    pub(super) point: Point,
    pub(super) until: Timestamp,
    /// Whose wait ends first, and how long that plugin wanted to wait.
    pub(super) patience: (&'static str, SignedDuration),
    /// The last event that would have helped it had it been refused by who it waits for.
    pub(super) missed: Option<&'static str>,
}

/// Waits, and when they end.
///
/// Invariant: each wait has an entry in `deadlines`, and each plugin that a pod waits for is in `awaited`.
#[derive(Debug, Default)]
pub(super) struct WaitingPods {
    pub(super) pods: FxHashMap<Arc<str>, Waiting>,
    /// Plugins that pods wait for, and those of waits that ended, until no pod waits.
    pub(super) awaited: PluginSet,
    /// When waits end; entries of pods that do not wait any more are dropped when they come up.
    pub(super) deadlines: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
}
