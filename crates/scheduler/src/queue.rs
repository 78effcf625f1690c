//! The scheduling queue: ready pods by priority and age, refused pods by the plugins that refused them.

use crate::state::PodInfo;
use jiff::{SignedDuration, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Refused pods are retried after this time even if no event helped them.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(5 * 60);
/// The interval of the check for such pods.
const STALE_EVERY: SignedDuration = SignedDuration::from_secs(30);

/// A set of plugin instances.
pub(crate) type PluginSet = u128;

/// Backoff times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) initial: SignedDuration,
    pub(crate) max: SignedDuration,
}

/// The reason for which a pod is put back into the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Refusal {
    /// Plugins refused the pod; an event that one of them is interested in wakes it.
    Unschedulable { by: PluginSet, pending: bool },
    /// A step failed; the pod is retried after a backoff.
    Error,
}

/// The state of a queued pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueState {
    Active,
    Backoff { until: Timestamp, error: bool },
    Refused { by: PluginSet },
    Gated { by: PluginSet },
    InFlight,
}

/// A queued pod, with its history.
#[derive(Debug, Clone)]
pub(crate) struct QueuedPod {
    pub(crate) info: Arc<PodInfo>,
    /// The last update received while the pod was assumed; it applies if the pod returns to the queue.
    newer: Option<Arc<PodInfo>>,
    /// The number of scheduling cycles so far.
    pub(crate) attempts: u32,
    /// The time at which the pod first entered the queue with its gates open.
    pub(crate) first_seen: Timestamp,
    /// True if it is retried only because it waited the maximum time.
    pub(crate) flushed: bool,
    /// Names of objects that it references, while it is refused.
    names: Vec<Box<str>>,
    refusals: u32,
    errors: u32,
    since: Timestamp,
    place: QueueState,
    /// The scheduler name at its last refusal, as an index into [`Queue::schedulers`].
    scheduler: usize,
    /// Identifies the current state; heap entries with another ticket are stale.
    ticket: u64,
}

/// A description of a queued pod's state for users.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueStatus {
    pub(crate) place: &'static str,
    /// The plugins that keep it in this state.
    pub(crate) by: PluginSet,
    /// Earliest time of the next attempt, whatever events occur; `None` for no limit.
    pub(crate) until: Option<Timestamp>,
    pub(crate) attempts: u32,
    pub(crate) first_seen: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
struct ActiveKey {
    priority: i32,
    since: Timestamp,
    ticket: u64,
    uid: Arc<str>,
}

impl Ord for ActiveKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let older = |a: &Self, b: &Self| b.since.cmp(&a.since).then(b.ticket.cmp(&a.ticket));
        self.priority
            .cmp(&other.priority)
            .then_with(|| older(self, other))
    }
}
impl PartialOrd for ActiveKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The end of a backoff, ordered by when the pods are retried.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BackoffEntry {
    second: i64,
    priority: Reverse<i32>,
    until: Timestamp,
    ticket: u64,
    uid: Arc<str>,
}

/// The number of queued pods by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Ready for a scheduling cycle.
    pub(crate) active: usize,
    /// Waiting for the end of their backoff.
    pub(crate) backoff: usize,
    /// Waiting for an event.
    pub(crate) unschedulable: usize,
    /// Held back by a scheduling gate or another pre-enqueue plugin.
    pub(crate) gated: usize,
    /// Pods in a scheduling cycle, waiting for permission, or being bound.
    pub(crate) in_flight: usize,
}

/// The scheduling queue with all pods that are not bound yet.
#[derive(Debug)]
pub(crate) struct Queue {
    backoff: Backoff,
    pods: FxHashMap<Arc<str>, QueuedPod>,
    active: BinaryHeap<ActiveKey>,
    /// Backoffs by the second in which they end, then by priority: pods whose backoffs end together are
    /// retried in that order.
    waiting: BinaryHeap<Reverse<BackoffEntry>>,
    refused: FxHashMap<PluginSet, FxHashSet<Arc<str>>>,
    /// The names of schedulers whose pods were refused.
    schedulers: Vec<Box<str>>,
    /// The number of refused pods by refusing plugins and scheduler.
    refusals: FxHashMap<(PluginSet, usize), usize>,
    /// Refused pods by the names of objects that they reference.
    named: FxHashMap<Box<str>, FxHashSet<Arc<str>>>,
    tickets: u64,
    stale_checked: Timestamp,
    counts: Pending,
    /// The number of pods by queue that they entered and cause, since last taken.
    incoming: FxHashMap<(&'static str, &'static str), u64>,
}

impl Queue {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            pods: FxHashMap::default(),
            active: BinaryHeap::new(),
            waiting: BinaryHeap::new(),
            refused: FxHashMap::default(),
            schedulers: Vec::new(),
            refusals: FxHashMap::default(),
            named: FxHashMap::default(),
            tickets: 0,
            stale_checked: Timestamp::UNIX_EPOCH,
            counts: Pending::default(),
            incoming: FxHashMap::default(),
        }
    }

    pub(crate) fn pending(&self) -> Pending {
        let Pending {
            active,
            backoff,
            unschedulable,
            gated,
            ..
        } = self.counts;
        let waiting = active + backoff + unschedulable + gated;
        Pending {
            in_flight: self.pods.len().saturating_sub(waiting),
            ..self.counts
        }
    }

    pub(crate) fn take_incoming(&mut self) -> FxHashMap<(&'static str, &'static str), u64> {
        std::mem::take(&mut self.incoming)
    }

    /// Returns a pod for which `is` holds.
    pub(crate) fn find(&self, is: impl Fn(&PodInfo) -> bool) -> Option<&Arc<PodInfo>> {
        self.pods.values().map(|pod| &pod.info).find(|pod| is(pod))
    }

    /// Iterates over all pods, in no particular order.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.values().map(|pod| &pod.info)
    }

    /// Describes the state of a pod.
    pub(crate) fn describe(&self, uid: &str) -> Option<QueueStatus> {
        let pod = self.pods.get(uid)?;
        let (place, by, until) = match pod.place {
            QueueState::Active => ("active", 0, None),
            QueueState::Backoff { until, .. } => ("backoff", 0, Some(until)),
            QueueState::Refused { by } => {
                let until = pod.since.saturating_add(self.delay(pod.refusals)).ok();
                ("unschedulable", by, until.filter(|_| pod.refusals > 0))
            }
            QueueState::Gated { by } => ("gated", by, None),
            QueueState::InFlight => ("inFlight", 0, None),
        };
        Some(QueueStatus {
            place,
            by,
            until,
            attempts: pod.attempts,
            first_seen: pod.first_seen,
        })
    }

    /// Returns the pod with this uid if it is in flight.
    pub(crate) fn in_flight(&self, uid: &str) -> Option<&QueuedPod> {
        self.get(uid)
            .filter(|pod| pod.place == QueueState::InFlight)
    }

    pub(crate) fn get(&self, uid: &str) -> Option<&QueuedPod> {
        self.pods.get(uid)
    }

    /// Adds a new pod; `gated` holds the plugins that keep it out.
    pub(crate) fn add(&mut self, info: Arc<PodInfo>, gated: PluginSet, now: Timestamp) {
        let uid = info.uid.clone();
        if self.pods.contains_key(&uid) {
            self.replace(info);
            return;
        }
        let pod = QueuedPod {
            info,
            newer: None,
            attempts: 0,
            first_seen: now,
            flushed: false,
            names: Vec::new(),
            refusals: 0,
            errors: 0,
            since: now,
            place: QueueState::InFlight,
            scheduler: 0,
            ticket: 0,
        };
        self.pods.insert(uid.clone(), pod);
        let place = if gated == 0 {
            QueueState::Active
        } else {
            QueueState::Gated { by: gated }
        };
        self.set_state(&uid, place, "UnschedulablePodAdd");
    }

    /// Replaces the content of a queued pod without moving it. Priority changes take effect.
    pub(crate) fn replace(&mut self, info: Arc<PodInfo>) {
        let uid = info.uid.clone();
        let Some(pod) = self.pods.get_mut(&uid) else {
            return;
        };
        let reorder = pod.info.priority != info.priority && pod.place == QueueState::Active;
        pod.info = info;
        if reorder {
            self.set_state(&uid, QueueState::Active, "UnschedulablePodUpdate");
        }
    }

    /// Stores an update of an assumed pod for [`Self::take_newer`].
    pub(crate) fn store_update(&mut self, newer: Arc<PodInfo>) {
        if let Some(pod) = self.pods.get_mut(&newer.uid) {
            pod.newer = Some(newer);
        }
    }

    /// Takes the stored update of a pod.
    pub(crate) fn take_newer(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        self.pods.get_mut(uid)?.newer.take()
    }

    /// Removes a pod.
    pub(crate) fn remove(&mut self, uid: &str) -> Option<QueuedPod> {
        self.remove_from_indexes(uid);
        self.pods.remove(uid)
    }

    /// Moves a refused or gated pod on: to backoff if that has not ended, else to the ready pods. Returns
    /// whether it moved.
    pub(crate) fn wake(&mut self, uid: &str, event: &'static str, now: Timestamp) -> bool {
        let Some(pod) = self.pods.get(uid) else {
            return false;
        };
        if !matches!(
            pod.place,
            QueueState::Refused { .. } | QueueState::Gated { .. }
        ) {
            return false;
        }
        let until = pod
            .since
            .saturating_add(self.delay(pod.refusals))
            .unwrap_or(Timestamp::MAX);
        let place = if pod.refusals > 0 && until > now {
            QueueState::Backoff {
                until,
                error: false,
            }
        } else {
            QueueState::Active
        };
        self.set_state(uid, place, event);
        true
    }

    /// Makes a pod ready at once, unless it is gated or in flight.
    pub(crate) fn activate(&mut self, uid: &str) {
        let Some(pod) = self.pods.get(uid) else {
            return;
        };
        if !matches!(
            pod.place,
            QueueState::InFlight | QueueState::Active | QueueState::Gated { .. }
        ) {
            self.set_state(uid, QueueState::Active, "ForceActivate");
        }
    }

    /// Sets the plugins that keep a pod out of the queue; an empty set lets it in.
    pub(crate) fn gate(&mut self, uid: &str, by: PluginSet, now: Timestamp) {
        let Some(pod) = self.pods.get(uid) else {
            return;
        };
        match (matches!(pod.place, QueueState::Gated { .. }), by) {
            (true, 0) => {
                // It was not waiting for this scheduler before.
                if let Some(pod) = self.pods.get_mut(uid).filter(|pod| pod.attempts == 0) {
                    pod.first_seen = now;
                }
                self.wake(uid, "UnschedulablePodUpdate", now);
            }
            (_, 0) => {}
            (_, by) if pod.place == (QueueState::Gated { by }) => {}
            (_, by) if pod.place != QueueState::InFlight => {
                self.set_state(uid, QueueState::Gated { by }, "UnschedulablePodUpdate");
            }
            _ => {}
        }
    }

    /// Iterates over the refused pods by the plugins that refused them.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (PluginSet, &FxHashSet<Arc<str>>)> {
        self.refused.iter().map(|(by, pods)| (*by, pods))
    }

    /// Iterates over the numbers of refused pods, by refusing plugins and scheduler name.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (PluginSet, &str, usize)> {
        self.refusals.iter().map(|((by, scheduler), pods)| {
            let name = self.schedulers.get(*scheduler);
            (*by, name.map_or("", |name| &**name), *pods)
        })
    }

    /// Iterates over the refused pods that reference the object `name`, with the plugins that refused them.
    pub(crate) fn named(&self, name: &str) -> impl Iterator<Item = (PluginSet, &QueuedPod)> {
        let uids = self.named.get(name).into_iter().flatten();
        uids.filter_map(|uid| {
            let pod = self.pods.get(uid)?;
            match pod.place {
                QueueState::Refused { by } => Some((by, pod)),
                _ => None,
            }
        })
    }

    /// Indexes a refused pod by the `names` of objects that it references, until it is retried.
    pub(crate) fn index_references(&mut self, uid: &str, names: Vec<Box<str>>) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        if !matches!(pod.place, QueueState::Refused { .. }) {
            return;
        }
        for name in &names {
            let pods = self.named.entry(name.clone()).or_default();
            pods.insert(pod.info.uid.clone());
        }
        pod.names.extend(names);
    }

    /// Ends backoffs that are over, and wakes pods that have been refused for too long.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        while let Some(Reverse(BackoffEntry {
            until, ticket, uid, ..
        })) = self.waiting.peek()
        {
            let current = self.pods.get(uid).is_some_and(|pod| pod.ticket == *ticket);
            if current && *until > now {
                break;
            }
            let uid = uid.clone();
            self.waiting.pop();
            if current {
                self.set_state(&uid, QueueState::Active, "BackoffComplete");
            }
        }
        if now.duration_since(self.stale_checked) >= STALE_EVERY {
            self.stale_checked = now;
            let stale: Vec<Arc<str>> = self
                .pods
                .values()
                .filter(|pod| matches!(pod.place, QueueState::Refused { .. }))
                .filter(|pod| now.duration_since(pod.since) > STALE_AFTER)
                .map(|pod| pod.info.uid.clone())
                .collect();
            for uid in stale {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.flushed = true;
                }
                self.wake(&uid, "UnschedulableTimeout", now);
            }
        }
    }

    /// Returns when [`Self::tick`] next has something to do, as far as is known.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let backoff = self.waiting.peek().map(|Reverse(wake)| wake.until);
        let stale = (self.counts.unschedulable > 0).then(|| {
            self.stale_checked
                .saturating_add(STALE_EVERY)
                .unwrap_or(Timestamp::MAX)
        });
        backoff.into_iter().chain(stale).min()
    }

    /// Takes the next pod to schedule. If none is ready, a refused (not a failed) pod need not wait for the
    /// end of its backoff.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<QueuedPod> {
        self.tick(now);
        let uid = loop {
            match self.active.pop() {
                Some(key) if self.is_current(&key.uid, key.ticket) => break key.uid,
                Some(_) => {}
                None => {
                    let uid = self.early()?;
                    let event = ("active", "PopFromBackoffQ");
                    *self.incoming.entry(event).or_default() += 1;
                    break uid;
                }
            }
        };
        self.set_state(&uid, QueueState::InFlight, "");
        let pod = self.pods.get_mut(&uid)?;
        pod.attempts += 1;
        Some(pod.clone())
    }

    /// Takes a particular pod, in whatever state it waits, unless a plugin other than `allowed` gates it.
    pub(crate) fn take(&mut self, uid: &str, allowed: PluginSet) -> Option<QueuedPod> {
        match self.pods.get(uid)?.place {
            QueueState::InFlight => return None,
            QueueState::Gated { by } if by & !allowed != 0 => return None,
            _ => {}
        }
        self.set_state(uid, QueueState::InFlight, "");
        let pod = self.pods.get_mut(uid)?;
        pod.attempts += 1;
        Some(pod.clone())
    }

    /// Puts back a pod that was popped.
    pub(crate) fn refuse(&mut self, uid: &str, refusal: Refusal, now: Timestamp) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        pod.since = now;
        pod.flushed = false;
        let place = match refusal {
            Refusal::Unschedulable { by, pending } => {
                pod.errors = 0;
                // A pod that only waits for something did not fail: it gets no backoff.
                pod.refusals = if pending { 0 } else { pod.refusals + 1 };
                QueueState::Refused { by }
            }
            Refusal::Error => {
                pod.errors += 1;
                let errors = pod.errors;
                let until = now
                    .saturating_add(self.delay(errors))
                    .unwrap_or(Timestamp::MAX);
                QueueState::Backoff { until, error: true }
            }
        };
        self.set_state(uid, place, "ScheduleAttemptFailure");
    }

    fn early(&mut self) -> Option<Arc<str>> {
        // Rare and short: only when nothing else is ready.
        let mut skipped = Vec::new();
        let mut next = None;
        while let Some(entry) = self.waiting.pop() {
            let Reverse(BackoffEntry { ticket, uid, .. }) = &entry;
            let Some(pod) = self.pods.get(uid).filter(|pod| pod.ticket == *ticket) else {
                continue;
            };
            if matches!(pod.place, QueueState::Backoff { error: false, .. }) {
                next = Some(uid.clone());
                break;
            }
            skipped.push(entry);
        }
        self.waiting.extend(skipped);
        next
    }

    fn delay(&self, failures: u32) -> SignedDuration {
        let mut delay = self.backoff.initial;
        for _ in 1..failures.min(32) {
            delay = delay.saturating_mul(2);
            if delay >= self.backoff.max {
                return self.backoff.max;
            }
        }
        delay.min(self.backoff.max)
    }

    fn is_current(&self, uid: &str, ticket: u64) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.ticket == ticket)
    }

    /// Removes the pod from the indexes and counts of its current state.
    fn remove_from_indexes(&mut self, uid: &str) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        for name in std::mem::take(&mut pod.names) {
            if let Some(pods) = self.named.get_mut(&name) {
                pods.remove(uid);
                if pods.is_empty() {
                    self.named.remove(&name);
                }
            }
        }
        match pod.place {
            QueueState::Active => self.counts.active -= 1,
            QueueState::Backoff { .. } => self.counts.backoff -= 1,
            QueueState::Gated { .. } => self.counts.gated -= 1,
            QueueState::Refused { by } => {
                self.counts.unschedulable -= 1;
                let key = (by, pod.scheduler);
                if let Some(pods) = self.refusals.get_mut(&key) {
                    *pods -= 1;
                    if *pods == 0 {
                        self.refusals.remove(&key);
                    }
                }
                if let Some(pods) = self.refused.get_mut(&by) {
                    pods.remove(uid);
                    if pods.is_empty() {
                        self.refused.remove(&by);
                    }
                }
            }
            QueueState::InFlight => {}
        }
    }

    /// Moves the pod to state `place`; `event` is the reason for the metric of incoming pods.
    fn set_state(&mut self, uid: &str, place: QueueState, event: &'static str) {
        self.remove_from_indexes(uid);
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        self.tickets += 1;
        pod.ticket = self.tickets;
        pod.place = place;
        let (uid, ticket) = (pod.info.uid.clone(), pod.ticket);
        let queue = match place {
            QueueState::Active => "active",
            QueueState::Backoff { .. } => "backoff",
            QueueState::Refused { .. } => "unschedulable",
            QueueState::Gated { .. } => "gated",
            QueueState::InFlight => "",
        };
        if !queue.is_empty() {
            *self.incoming.entry((queue, event)).or_default() += 1;
        }
        match place {
            QueueState::Active => {
                self.counts.active += 1;
                let (priority, since) = (pod.info.priority, pod.since);
                self.active.push(ActiveKey {
                    priority,
                    since,
                    ticket,
                    uid,
                });
            }
            QueueState::Backoff { until, .. } => {
                self.counts.backoff += 1;
                self.waiting.push(Reverse(BackoffEntry {
                    second: until.as_second(),
                    priority: Reverse(pod.info.priority),
                    until,
                    ticket,
                    uid,
                }));
            }
            QueueState::Refused { by } => {
                self.counts.unschedulable += 1;
                let name = pod.info.scheduler_name();
                let position = self.schedulers.iter().position(|other| **other == *name);
                pod.scheduler = position.unwrap_or_else(|| {
                    self.schedulers.push(name.into());
                    self.schedulers.len() - 1
                });
                *self.refusals.entry((by, pod.scheduler)).or_default() += 1;
                self.refused.entry(by).or_default().insert(uid);
            }
            QueueState::Gated { .. } => self.counts.gated += 1,
            QueueState::InFlight => {}
        }
    }
}

#[cfg(test)]
mod tests;
