//! What was moved lately: no pod is moved twice within an hour, and what was moved is expected where it goes before any
//! report tells of it.
//!
//! It is the memory of one process. A new leader begins without.

use super::load::{Load, Side, Watched, is_prod};
use crate::framework::Why;
use crate::state::{NodeUsage, PodInfo, Snapshot};
use jiff::{SignedDuration, Timestamp};
use koord_model::resources::Amounts;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// How long a pod that was moved is left alone, and so is what came in its place.
pub(super) const REST: SignedDuration = SignedDuration::from_hours(1);
/// How long a move takes at most: a pod that is still where it was may be moved then, and one that came is believed to
/// use what is reported of it.
pub(super) const SETTLE: SignedDuration = SignedDuration::from_mins(5);
/// Times of objects are whole seconds.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Who makes a pod anew: its controller's UID, or its own name when it has none.
type Key = Arc<str>;

#[derive(Debug, Clone)]
struct Entry {
    uid: Arc<str>,
    key: Key,
    at: Timestamp,
    from: Arc<str>,
    /// Where it is expected, and once it is there, where it is.
    to: Option<Arc<str>>,
    /// What came in its place.
    came: Option<Arc<PodInfo>>,
    usage: Amounts,
    prod: bool,
    /// Whether the pod is still where it was.
    there: bool,
}

/// Moves of the last hour, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: Vec<Entry>,
    /// When the first move of those was that are made anew by this controller.
    keys: FxHashMap<Key, Timestamp>,
    uids: FxHashMap<Arc<str>, usize>,
    /// Which entries concern a node: of those that are settled, none.
    leaving: FxHashMap<Arc<str>, Vec<usize>>,
    coming: FxHashMap<Arc<str>, Vec<usize>>,
}

fn key(pod: &PodInfo) -> Key {
    match pod.controller() {
        Some(owner) => owner.uid.clone(),
        None => format!("{}/{}", pod.namespace, pod.name).into(),
    }
}

impl Ledger {
    /// A cycle begins: looks what became of what was moved.
    pub(super) fn begin(&mut self, snapshot: &Snapshot) {
        let now = snapshot.now;
        self.entries
            .retain(|entry| now.duration_since(entry.at) < REST);
        for index in [&mut self.leaving, &mut self.coming] {
            index.clear();
        }
        self.keys.clear();
        self.uids.clear();
        if self.entries.is_empty() {
            return;
        }
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let first = self.keys.entry(entry.key.clone()).or_insert(entry.at);
            *first = entry.at.min(*first);
            self.uids.insert(entry.uid.clone(), at);
            (entry.there, entry.came) = (false, None);
        }
        self.look(snapshot);
        for (at, entry) in self.entries.iter().enumerate() {
            let settled = now.duration_since(entry.at) >= SETTLE;
            if settled {
                continue;
            }
            if entry.there {
                self.leaving.entry(entry.from.clone()).or_default().push(at);
            }
            if let Some(to) = &entry.to {
                self.coming.entry(to.clone()).or_default().push(at);
            }
        }
    }

    /// Finds the pods that were moved, and those that came in their place.
    fn look(&mut self, snapshot: &Snapshot) {
        let mut waiting: FxHashMap<Key, Vec<usize>> = FxHashMap::default();
        for (at, entry) in self.entries.iter().enumerate().rev() {
            waiting.entry(entry.key.clone()).or_default().push(at);
        }
        let mut newest: Vec<&Arc<PodInfo>> = Vec::new();
        for pod in snapshot.pods.iter().filter(|pod| pod.is_active()) {
            if let Some(at) = self.uids.get(&pod.uid)
                && let Some(entry) = self.entries.get_mut(*at)
            {
                if pod.node.as_ref() == Some(&entry.from) {
                    entry.there = true;
                } else {
                    entry.to.clone_from(&pod.node);
                    entry.came = Some(pod.clone());
                }
            } else if pod.node.is_some() && self.first(pod).is_some() {
                newest.push(pod);
            }
        }
        newest.sort_by(|a, b| (a.created, &a.uid).cmp(&(b.created, &b.uid)));
        let mut taken = FxHashSet::default();
        for pod in newest {
            let Some(places) = waiting.get(&key(pod)) else {
                continue;
            };
            // The oldest move that nothing came of yet, and that was before this pod.
            let of = places.iter().rev().find(|at| {
                let open = |entry: &Entry| {
                    entry.came.is_none() && !entry.there && entry.at <= pod.created + SECOND
                };
                self.entries.get(**at).is_some_and(open) && !taken.contains(*at)
            });
            if let Some(at) = of.copied()
                && let Some(entry) = self.entries.get_mut(at)
            {
                taken.insert(at);
                entry.to.clone_from(&pod.node);
                entry.came = Some(pod.clone());
            }
        }
    }

    /// When the move was that this pod may have come of.
    fn first(&self, pod: &PodInfo) -> Option<Timestamp> {
        if self.keys.is_empty() {
            return None;
        }
        let at = match pod.controller() {
            Some(owner) => self.keys.get(&owner.uid),
            None => self.keys.get(&key(pod)),
        };
        at.copied().filter(|at| *at <= pod.created + SECOND)
    }

    /// Whether `pod` may be moved.
    ///
    /// # Errors
    /// It, or what it came in the place of, was moved lately.
    pub(super) fn allows(&self, pod: &PodInfo, now: Timestamp) -> Result<(), Why> {
        let moved = self.uids.get(&pod.uid).and_then(|at| self.entries.get(*at));
        if let Some(entry) = moved {
            let ago = now.duration_since(entry.at).as_secs();
            if pod.node.as_ref() != Some(&entry.from) {
                let said = format!("it was moved {ago} s ago, and once an hour is enough");
                return Err(Why::new("MovedLately", said));
            }
            if now.duration_since(entry.at) < SETTLE {
                let said = format!("its move was asked for {ago} s ago");
                return Err(Why::new("MovesAlready", said));
            }
            return Ok(());
        }
        let Some(first) = self.first(pod) else {
            return Ok(());
        };
        let ago = now.duration_since(first).as_secs();
        let said = format!("it may have come of a move {ago} s ago, and once an hour is enough");
        Err(Why::new("MovedLately", said))
    }

    /// `pod`, which uses `usage`, is moved, to `to` if that is known.
    pub(super) fn record(
        &mut self,
        pod: &PodInfo,
        usage: &Amounts,
        to: Option<Arc<str>>,
        now: Timestamp,
    ) {
        let Some(from) = pod.node.clone() else { return };
        let entry = Entry {
            uid: pod.uid.clone(),
            key: key(pod),
            at: now,
            from,
            to,
            came: None,
            usage: usage.clone(),
            prod: is_prod(pod),
            there: true,
        };
        let (from, to) = (entry.from.clone(), entry.to.clone());
        // The order stays that of time but for what is tried again, which is the latest of its pod.
        let at = match self.uids.get(&pod.uid).copied() {
            Some(at) if at < self.entries.len() => {
                self.entries[at] = entry;
                at
            }
            _ => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.uids.insert(pod.uid.clone(), at);
        // A later pool of the same cycle knows of it.
        self.leaving.entry(from).or_default().push(at);
        if let Some(to) = to {
            self.coming.entry(to).or_default().push(at);
        }
    }

    /// Takes what leaves `load` off it, and notes what comes to it: of a pod that runs there already, what it will use
    /// beyond what is reported.
    pub(super) fn correct(&self, load: &mut Load<'_>, report: &NodeUsage, watched: &Watched) {
        let of = |index: &FxHashMap<Arc<str>, Vec<usize>>| {
            let places = index.get(&load.node.name).into_iter().flatten();
            let entries = places.filter_map(|at| self.entries.get(*at));
            entries.collect::<Vec<_>>()
        };
        let (leaving, coming) = (of(&self.leaving), of(&self.coming));
        for entry in leaving {
            let row = watched.of_pod(&entry.usage);
            let sides = [Some(Side::Node), entry.prod.then_some(Side::Prod)];
            for side in sides.into_iter().flatten() {
                let used = match side {
                    Side::Node => &mut load.usage,
                    Side::Prod => &mut load.prod,
                };
                for (used, less) in used.iter_mut().zip(&row) {
                    *used = used.saturating_sub(*less).max(0);
                }
            }
        }
        for entry in coming {
            let mut row = watched.of_pod(&entry.usage);
            if let Some(came) = &entry.came {
                let reported = report
                    .pods
                    .iter()
                    .find(|metric| metric.namespace == came.namespace && metric.name == came.name);
                let mut reported = reported
                    .map(|metric| metric.usage.clone())
                    .unwrap_or_default();
                // The pod itself is counted already.
                reported.set(koord_model::resources::PODS, 1);
                for (more, resource) in row.iter_mut().zip(&watched.resources) {
                    *more = more.saturating_sub(reported.get(resource.id)).max(0);
                }
            }
            for (coming, more) in load.coming.iter_mut().zip(&row) {
                *coming = coming.saturating_add(*more);
            }
        }
    }
}
