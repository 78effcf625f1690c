//! Room that is promised to pods, and the victims that are to leave it.

use super::memo::Memo;
use super::nominator::Nominator;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Nominations, evictions under way, and what searches for victims found.
///
/// Invariant: `evicting` holds booked pods only; `kept` is empty except from the settlement of a group until the
/// post-filter plugins have run.
#[derive(Debug, Default)]
pub(super) struct Preemptor {
    pub(super) nominator: Nominator,
    pub(super) memo: Memo,
    /// Victims whose eviction was asked for, with the pod that it is for, by uid.
    pub(super) evicting: FxHashMap<Arc<str>, Arc<str>>,
    /// Pods that keep their place as a promise should they have to give it back now, by uid.
    pub(super) kept: FxHashMap<Arc<str>, Arc<str>>,
    /// How often room was looked for.
    pub(super) searches: u64,
    /// How many pods had to go for it.
    pub(super) victims: usize,
}
