//! Recent moves by strategies that balance nodes. A pod moved by one strategy is not moved back by another
//! within an hour. Until a NodeMetric includes it, the pod is expected on its target node. The job that moves
//! a pod shows whether the move succeeded: a pod that stayed is not expected anywhere else, and moves of its
//! workload pause, longer with each failure.
//!
//! Each move is recorded in its job, so that the next leader and the histories of other strategies can read
//! it. A move without a job is recorded only in the strategy that made it.

mod outcome;
mod record;

use crate::framework::{Cycle, SkipReason};
use crate::migration::status;
use crate::state::{PodInfo, Snapshot};
use jiff::{SignedDuration, Timestamp};
use koord_api::scheduling::PodMigrationJob;
use koord_model::resources::Amounts;
use outcome::MoveOutcome;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Time for which a moved pod and its replacement are left alone.
pub(crate) const REST: SignedDuration = SignedDuration::from_hours(1);
/// Time until a move counts as complete: afterwards a pod still on its source node may be moved again, and
/// the reported usage of a replacement is used.
pub(crate) const SETTLE: SignedDuration = SignedDuration::from_mins(5);
/// Pause of a workload's moves after a failed job. Doubles with each failure, up to [`SETTLE`].
const PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// Resolution of timestamps in API objects.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Identifies a workload: its controller's UID, or for a pod without a controller its own namespace and name.
type Key = Arc<str>;

/// A move of a pod.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) uid: Arc<str>,
    key: Key,
    at: Timestamp,
    /// Name of the PodMigrationJob, if the pod is moved by one.
    job: Option<Arc<str>>,
    outcome: MoveOutcome,
    /// Time of the eviction if known, or else `at`.
    moved: Timestamp,
    /// Number of failed moves of the workload in a row if this one fails, too.
    attempt: u32,
    from: Arc<str>,
    /// Expected target node; once the replacement runs, its node.
    to: Option<Arc<str>>,
    /// The pod that replaced the moved one.
    pub(crate) replacement: Option<Arc<PodInfo>>,
    /// Usage of the pod when it was moved.
    pub(crate) usage: Amounts,
    /// True if the pod is of priority class prod.
    pub(crate) prod: bool,
    /// True if the pod is still on the node it is moved from.
    on_source: bool,
    /// True if the pod is still on that node and is being deleted.
    deleting: bool,
}

impl Entry {
    /// Returns true if the move is over and NodeMetrics include its effect.
    fn is_settled(&self, now: Timestamp) -> bool {
        self.outcome != MoveOutcome::Pending && now.duration_since(self.moved) >= SETTLE
    }
}

/// Failed moves of one workload.
#[derive(Debug, Clone, Copy)]
struct WorkloadFailures {
    /// Number of failures in a row.
    attempt: u32,
    /// Time of the last failure.
    at: Timestamp,
}

impl WorkloadFailures {
    /// Returns when the next move may be tried.
    fn pause_ends(&self) -> Timestamp {
        let doubled = 1_i32 << self.attempt.saturating_sub(1).min(10);
        let pause = PAUSE.saturating_mul(doubled).min(SETTLE);
        self.at.saturating_add(pause).unwrap_or(self.at)
    }
}

/// Moves of the last hour, oldest first.
#[derive(Debug, Default)]
pub(crate) struct MoveHistory {
    entries: Vec<Entry>,
    /// Time of the first recorded move of each workload.
    keys: FxHashMap<Key, Timestamp>,
    uids: FxHashMap<Arc<str>, usize>,
    /// Names of the jobs that were read, or that this process created.
    read: FxHashSet<Arc<str>>,
    failures: FxHashMap<Key, WorkloadFailures>,
    /// Indexes of the unsettled entries that concern a node.
    leaving: FxHashMap<Arc<str>, Vec<usize>>,
    coming: FxHashMap<Arc<str>, Vec<usize>>,
}

fn key(pod: &PodInfo) -> Key {
    match pod.controller() {
        Some(owner) => owner.uid.clone(),
        None => format!("{}/{}", pod.namespace, pod.name).into(),
    }
}

/// Returns the value in `all` for the workload of `pod`.
fn lookup_workload<'a, T>(all: &'a FxHashMap<Key, T>, pod: &PodInfo) -> Option<&'a T> {
    match pod.controller() {
        Some(owner) => all.get(&owner.uid),
        None => all.get(&key(pod)),
    }
}

/// Returns until when the next leader needs `job` because it moved a pod; `None` if it did not.
pub(crate) fn retained_until(job: &PodMigrationJob, now: Timestamp) -> Option<Timestamp> {
    let went = record::has_move_history(job) && outcome::from_job(job, false) == MoveOutcome::Moved;
    let created = status::created(job, now)?;
    let moved = outcome::evicted_at(job, now).unwrap_or(created);
    moved.checked_add(REST).ok().filter(|_| went)
}

impl MoveHistory {
    /// Starts a cycle: updates the outcomes of recorded moves.
    pub(crate) fn begin(&mut self, snapshot: &Snapshot) {
        let now = snapshot.now;
        let is_recent = |at: Timestamp| now.duration_since(at) < REST;
        self.failures.retain(|_, failure| is_recent(failure.at));
        self.read_jobs(snapshot);
        for index in [&mut self.leaving, &mut self.coming] {
            index.clear();
        }
        self.rebuild_indexes();
        if self.entries.is_empty() {
            return;
        }
        let candidates = self.find_pods(snapshot);
        if self.update_outcomes(snapshot) {
            self.rebuild_indexes();
        }
        self.assign_replacements(candidates);
        for (at, entry) in self.entries.iter().enumerate() {
            if entry.is_settled(now) {
                continue;
            }
            if entry.on_source {
                self.leaving.entry(entry.from.clone()).or_default().push(at);
            }
            if let Some(to) = &entry.to {
                self.coming.entry(to.clone()).or_default().push(at);
            }
        }
    }

    /// Indexes the entries by workload and by UID.
    fn rebuild_indexes(&mut self) {
        self.keys.clear();
        self.uids.clear();
        for (at, entry) in self.entries.iter().enumerate() {
            let first = self.keys.entry(entry.key.clone()).or_insert(entry.at);
            *first = entry.at.min(*first);
            self.uids.insert(entry.uid.clone(), at);
        }
    }

    /// Reads jobs that are not recorded yet, such as those of earlier leaders.
    fn read_jobs(&mut self, snapshot: &Snapshot) {
        let before = self.entries.len();
        for job in snapshot
            .jobs
            .iter()
            .filter(|job| record::has_move_history(job))
        {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            if !self.read.contains(name) {
                self.read.insert(name.into());
                self.entries
                    .extend(record::read(job, &snapshot.table, snapshot.now));
            }
        }
        if self.entries.len() > before {
            self.entries.sort_by_key(|entry| entry.at);
        }
        self.read.retain(|name| snapshot.job(name).is_some());
    }

    /// Finds the pods that were moved, and returns those that may be their replacements.
    fn find_pods<'a>(&mut self, snapshot: &'a Snapshot) -> Vec<&'a Arc<PodInfo>> {
        let mut pods_by_uid = FxHashMap::default();
        let mut candidates = Vec::new();
        for pod in snapshot.pods.iter().filter(|pod| pod.is_active()) {
            if self.uids.contains_key(&pod.uid) {
                pods_by_uid.insert(pod.uid.clone(), pod);
            } else if pod.node.is_some() && self.first(pod).is_some() {
                candidates.push(pod);
            }
        }
        for entry in &mut self.entries {
            let pod = pods_by_uid.get(&entry.uid);
            let pod_on_source = pod.filter(|pod| pod.node.as_ref() == Some(&entry.from));
            entry.on_source = pod_on_source.is_some();
            entry.deleting = pod_on_source.is_some_and(|pod| pod.deleting);
            entry.replacement = None;
        }
        candidates
    }

    /// Updates the outcomes from the jobs. Returns true if entries were removed because they failed or are
    /// too old.
    fn update_outcomes(&mut self, snapshot: &Snapshot) -> bool {
        let before = self.entries.len();
        let is_recent = |entry: &Entry| snapshot.now.duration_since(entry.moved) < REST;
        let failures = &mut self.failures;
        self.entries.retain_mut(|entry| {
            let Some(name) = &entry.job else {
                return is_recent(entry);
            };
            let stays = entry.on_source && !entry.deleting;
            let job = snapshot.job(name);
            match job {
                Some(job) => {
                    entry.outcome = outcome::from_job(job, stays);
                    entry.moved = outcome::evicted_at(job, snapshot.now)
                        .unwrap_or(entry.at)
                        .max(entry.at);
                    if let Some(node) = outcome::reserved_node(job) {
                        entry.to = Some(node.into());
                    }
                }
                // The job was never created, or a user deleted it.
                None if entry.outcome == MoveOutcome::Pending && stays => {
                    entry.outcome = MoveOutcome::Failed
                }
                None if entry.outcome == MoveOutcome::Pending => entry.outcome = MoveOutcome::Moved,
                None => {}
            }
            match entry.outcome {
                MoveOutcome::Pending => true,
                MoveOutcome::Moved => {
                    let before = failures.get(&entry.key);
                    if before.is_some_and(|failure| failure.at <= entry.moved) {
                        failures.remove(&entry.key);
                    }
                    is_recent(entry)
                }
                MoveOutcome::Failed => {
                    let ended = job.and_then(|job| outcome::failed_at(job, snapshot.now));
                    let failed_at = ended.unwrap_or(entry.at).max(entry.at);
                    let attempt = entry.attempt;
                    let recorded = failures.entry(entry.key.clone());
                    let recorded = recorded.or_insert(WorkloadFailures {
                        attempt,
                        at: failed_at,
                    });
                    *recorded = WorkloadFailures {
                        attempt: attempt.max(recorded.attempt),
                        at: failed_at.max(recorded.at),
                    };
                    false
                }
            }
        });
        self.entries.len() < before
    }

    /// Assigns new pods to moves that have no replacement yet.
    fn assign_replacements(&mut self, mut candidates: Vec<&Arc<PodInfo>>) {
        let mut waiting: FxHashMap<Key, Vec<usize>> = FxHashMap::default();
        for (at, entry) in self.entries.iter().enumerate().rev() {
            waiting.entry(entry.key.clone()).or_default().push(at);
        }
        candidates.sort_by(|a, b| (a.created, &a.uid).cmp(&(b.created, &b.uid)));
        let mut matched = FxHashSet::default();
        for pod in candidates {
            let Some(places) = waiting.get(&key(pod)) else {
                continue;
            };
            // The oldest move without a replacement that happened before this pod was created.
            let oldest = places.iter().rev().find(|index| {
                let open = |entry: &Entry| {
                    entry.replacement.is_none()
                        && !entry.on_source
                        && entry.at <= pod.created + SECOND
                };
                self.entries.get(**index).is_some_and(open) && !matched.contains(*index)
            });
            if let Some(index) = oldest.copied()
                && let Some(entry) = self.entries.get_mut(index)
            {
                matched.insert(index);
                entry.to.clone_from(&pod.node);
                entry.replacement = Some(pod.clone());
            }
        }
    }

    /// Returns the time of the move that `pod` may be the replacement of.
    fn first(&self, pod: &PodInfo) -> Option<Timestamp> {
        if self.keys.is_empty() {
            return None;
        }
        let first_move = lookup_workload(&self.keys, pod);
        first_move
            .copied()
            .filter(|first_move| *first_move <= pod.created + SECOND)
    }

    /// Checks whether `pod` may be moved.
    ///
    /// # Errors
    /// Returns the rule that forbids it: the pod, or the pod that it replaced, was moved recently, or moves
    /// of its workload failed.
    pub(crate) fn allows(&self, pod: &PodInfo, now: Timestamp) -> Result<(), SkipReason> {
        let moved = self
            .uids
            .get(&pod.uid)
            .and_then(|index| self.entries.get(*index));
        if let Some(entry) = moved {
            if pod.node.as_ref() != Some(&entry.from) {
                let ago = now.duration_since(entry.moved).as_secs();
                let detail = format!("it was moved {ago} s ago, and once an hour is enough");
                return Err(SkipReason::new("MovedLately", detail));
            }
            if !entry.is_settled(now) {
                let ago = now.duration_since(entry.at).as_secs();
                let detail = format!("its move was asked for {ago} s ago");
                return Err(SkipReason::new("MovesAlready", detail));
            }
            return Ok(());
        }
        self.check_pause(pod, now)?;
        let Some(first) = self.first(pod) else {
            return Ok(());
        };
        let ago = now.duration_since(first).as_secs();
        let detail = format!("it may have come of a move {ago} s ago, and once an hour is enough");
        Err(SkipReason::new("MovedLately", detail))
    }

    /// Checks that moves of the workload of `pod` are not paused after a failure.
    fn check_pause(&self, pod: &PodInfo, now: Timestamp) -> Result<(), SkipReason> {
        if self.failures.is_empty() {
            return Ok(());
        }
        let failure = lookup_workload(&self.failures, pod);
        let Some(failure) = failure.filter(|failure| now < failure.pause_ends()) else {
            return Ok(());
        };
        let ago = now.duration_since(failure.at).as_secs();
        let remaining = failure.pause_ends().duration_since(now).as_secs().max(1);
        let detail = match failure.attempt {
            1 => format!("a move of its workload failed {ago} s ago: the next in {remaining} s"),
            times => format!(
                "{times} moves of its workload failed in a row, the last {ago} s ago: the next in {remaining} s"
            ),
        };
        Err(SkipReason::new("MoveFailed", detail))
    }

    /// Records the move of `pod`, which was planned last, unless it is only shown.
    pub(crate) fn record_planned(&mut self, cycle: &mut Cycle<'_>, pod: &PodInfo) {
        if !cycle.is_last_move_real() {
            return;
        }
        let snapshot = cycle.snapshot();
        let node = pod.node.as_ref();
        let report = node.and_then(|node| snapshot.usage.get(node));
        let usage = report.and_then(|report| report.pod_usage(pod));
        let to = cycle.tentative_target().cloned();
        let usage = usage.cloned().unwrap_or_default();
        self.record(pod, &usage, to, cycle.job(), snapshot);
    }

    /// Records the move of `pod` with its `usage`, to node `to` if known, also in the annotations of `job` if
    /// there is one.
    pub(crate) fn record(
        &mut self,
        pod: &PodInfo,
        usage: &Amounts,
        to: Option<Arc<str>>,
        job: Option<&mut PodMigrationJob>,
        snapshot: &Snapshot,
    ) {
        let now = snapshot.now;
        let Some(from) = pod.node.clone() else { return };
        let key = key(pod);
        let failed = self.failures.get(&key);
        let attempt = failed.map_or(0, |failure| failure.attempt);
        let entry = Entry {
            uid: pod.uid.clone(),
            key,
            at: now,
            outcome: match job {
                Some(_) => MoveOutcome::Pending,
                None => MoveOutcome::Moved,
            },
            job: job
                .as_ref()
                .and_then(|job| job.metadata.name.as_deref().map(Arc::from)),
            moved: now,
            attempt: attempt.saturating_add(1),
            from,
            to,
            replacement: None,
            usage: usage.clone(),
            prod: pod.is_prod(),
            on_source: true,
            deleting: false,
        };
        if let Some(job) = job {
            record::write(&entry, job, &snapshot.table);
        }
        self.read.extend(entry.job.clone());
        let (from, to) = (entry.from.clone(), entry.to.clone());
        // Entries stay ordered by time, except that a retried move replaces the earlier entry of its pod.
        let index = match self.uids.get(&pod.uid).copied() {
            Some(index) if index < self.entries.len() => {
                self.entries[index] = entry;
                index
            }
            _ => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.uids.insert(pod.uid.clone(), index);
        // A later pool of the same cycle must see the move.
        self.leaving.entry(from).or_default().push(index);
        if let Some(to) = to {
            self.coming.entry(to).or_default().push(index);
        }
    }

    /// Returns the unsettled moves away from `node`.
    pub(crate) fn leaving(&self, node: &str) -> impl Iterator<Item = &Entry> {
        self.entries_on(&self.leaving, node)
    }

    /// Returns the unsettled moves to `node`.
    pub(crate) fn moves_to(&self, node: &str) -> impl Iterator<Item = &Entry> {
        self.entries_on(&self.coming, node)
    }

    fn entries_on<'a>(
        &'a self,
        index: &'a FxHashMap<Arc<str>, Vec<usize>>,
        node: &str,
    ) -> impl Iterator<Item = &'a Entry> {
        let places = index.get(node).into_iter().flatten();
        places.filter_map(|entry_index| self.entries.get(*entry_index))
    }
}
