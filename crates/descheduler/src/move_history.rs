//! What was moved lately by strategies that weigh one place against another: what one of them has moved no other moves
//! back within an hour, and it is expected where it goes before any report tells of it. The job that moves a pod tells whether it went: what stayed is not expected anywhere, and its
//! workload pauses, longer with each failure.
//!
//! What is known of a move stands in its job, where the next leader and the ledgers of other strategies find it. Of what
//! is moved without a job, the strategy alone knows that moved it.

mod outcome;
mod record;

use crate::framework::{Cycle, Why};
use crate::migration::status;
use crate::state::{PodInfo, Snapshot};
use jiff::{SignedDuration, Timestamp};
use koord_api::scheduling::PodMigrationJob;
use koord_model::resources::Amounts;
use outcome::MoveOutcome;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// How long a pod that was moved is left alone, and so is what came in its place.
pub(crate) const REST: SignedDuration = SignedDuration::from_hours(1);
/// How long a move takes at most: a pod that is still where it was may be moved then, and one that came is believed to
/// use what is reported of it.
pub(crate) const SETTLE: SignedDuration = SignedDuration::from_mins(5);
/// How long the pods of a workload are left alone after a job of one has failed: twice as long with each that fails, at
/// most [`SETTLE`].
const PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// Times of objects are whole seconds.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Who makes a pod anew: its controller's UID, or its own name when it has none.
type Key = Arc<str>;

/// One move.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) uid: Arc<str>,
    key: Key,
    at: Timestamp,
    /// The job's name, if one moves it.
    job: Option<Arc<str>>,
    outcome: MoveOutcome,
    /// When it went, as far as that is known, or else `at`.
    moved: Timestamp,
    /// How many moves of its workload would have failed in a row with this one.
    attempt: u32,
    from: Arc<str>,
    /// Where it is expected, and once it is there, where it is.
    to: Option<Arc<str>>,
    /// What came in its place.
    pub(crate) replacement: Option<Arc<PodInfo>>,
    /// What the pod used.
    pub(crate) usage: Amounts,
    /// Whether it is of class prod.
    pub(crate) prod: bool,
    /// Whether the pod is still where it was.
    on_source: bool,
    /// Whether it is there, and is being deleted.
    deleting: bool,
}

impl Entry {
    /// Whether reports tell all there is to know of it.
    fn is_settled(&self, now: Timestamp) -> bool {
        self.outcome != MoveOutcome::Pending && now.duration_since(self.moved) >= SETTLE
    }
}

/// Moves of one workload that failed.
#[derive(Debug, Clone, Copy)]
struct WorkloadFailures {
    /// How many in a row.
    attempt: u32,
    /// When the last one did.
    at: Timestamp,
}

impl WorkloadFailures {
    /// When the next move may be tried.
    fn pause_ends(&self) -> Timestamp {
        let doubled = 1_i32 << self.attempt.saturating_sub(1).min(10);
        let pause = PAUSE.saturating_mul(doubled).min(SETTLE);
        self.at.saturating_add(pause).unwrap_or(self.at)
    }
}

/// Moves of the last hour, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct MoveHistory {
    entries: Vec<Entry>,
    /// When the first move of those was that are made anew by this controller.
    keys: FxHashMap<Key, Timestamp>,
    uids: FxHashMap<Arc<str>, usize>,
    /// Names of the jobs that were read, or that are of this process.
    read: FxHashSet<Arc<str>>,
    failures: FxHashMap<Key, WorkloadFailures>,
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

/// What `all` has of the workload of `pod`.
fn lookup_workload<'a, T>(all: &'a FxHashMap<Key, T>, pod: &PodInfo) -> Option<&'a T> {
    match pod.controller() {
        Some(owner) => all.get(&owner.uid),
        None => all.get(&key(pod)),
    }
}

/// Until when the next leader has to know of `job`, if it moved a pod.
pub(crate) fn retained_until(job: &PodMigrationJob, now: Timestamp) -> Option<Timestamp> {
    let went = record::is_in(job) && outcome::from_job(job, false) == MoveOutcome::Moved;
    let created = status::created(job, now)?;
    let moved = outcome::evicted_at(job, now).unwrap_or(created);
    moved.checked_add(REST).ok().filter(|_| went)
}

impl MoveHistory {
    /// A cycle begins: looks what became of what was moved.
    pub(crate) fn begin(&mut self, snapshot: &Snapshot) {
        let now = snapshot.now;
        let is_recent = |at: Timestamp| now.duration_since(at) < REST;
        self.failures.retain(|_, failure| is_recent(failure.at));
        self.read(snapshot);
        for index in [&mut self.leaving, &mut self.coming] {
            index.clear();
        }
        self.index();
        if self.entries.is_empty() {
            return;
        }
        let newest = self.find(snapshot);
        if self.judge(snapshot) {
            self.index();
        }
        self.match_with(newest);
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

    fn index(&mut self) {
        self.keys.clear();
        self.uids.clear();
        for (at, entry) in self.entries.iter().enumerate() {
            let first = self.keys.entry(entry.key.clone()).or_insert(entry.at);
            *first = entry.at.min(*first);
            self.uids.insert(entry.uid.clone(), at);
        }
    }

    /// Reads jobs that are not known yet: those of former leaders, when this one begins.
    fn read(&mut self, snapshot: &Snapshot) {
        let before = self.entries.len();
        for job in snapshot.jobs.iter().filter(|job| record::is_in(job)) {
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

    /// Finds the pods that were moved, and returns those that may have come in their place.
    fn find<'a>(&mut self, snapshot: &'a Snapshot) -> Vec<&'a Arc<PodInfo>> {
        let mut found = FxHashMap::default();
        let mut newest = Vec::new();
        for pod in snapshot.pods.iter().filter(|pod| pod.is_active()) {
            if self.uids.contains_key(&pod.uid) {
                found.insert(pod.uid.clone(), pod);
            } else if pod.node.is_some() && self.first(pod).is_some() {
                newest.push(pod);
            }
        }
        for entry in &mut self.entries {
            let pod = found.get(&entry.uid);
            let there = pod.filter(|pod| pod.node.as_ref() == Some(&entry.from));
            entry.on_source = there.is_some();
            entry.deleting = there.is_some_and(|pod| pod.deleting);
            entry.replacement = None;
        }
        newest
    }

    /// Asks the jobs what became of their pods. Whether any of them is no move any more, or was one too long ago.
    fn judge(&mut self, snapshot: &Snapshot) -> bool {
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
                // It was never made, or somebody has deleted it.
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
                    let at = ended.unwrap_or(entry.at).max(entry.at);
                    let attempt = entry.attempt;
                    let known = failures.entry(entry.key.clone());
                    let known = known.or_insert(WorkloadFailures { attempt, at });
                    *known = WorkloadFailures {
                        attempt: attempt.max(known.attempt),
                        at: at.max(known.at),
                    };
                    false
                }
            }
        });
        self.entries.len() < before
    }

    /// Matches pods that are new with moves that nothing came of yet.
    fn match_with(&mut self, mut newest: Vec<&Arc<PodInfo>>) {
        let mut waiting: FxHashMap<Key, Vec<usize>> = FxHashMap::default();
        for (at, entry) in self.entries.iter().enumerate().rev() {
            waiting.entry(entry.key.clone()).or_default().push(at);
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
                    entry.replacement.is_none()
                        && !entry.on_source
                        && entry.at <= pod.created + SECOND
                };
                self.entries.get(**at).is_some_and(open) && !taken.contains(*at)
            });
            if let Some(at) = of.copied()
                && let Some(entry) = self.entries.get_mut(at)
            {
                taken.insert(at);
                entry.to.clone_from(&pod.node);
                entry.replacement = Some(pod.clone());
            }
        }
    }

    /// When the move was that this pod may have come of.
    fn first(&self, pod: &PodInfo) -> Option<Timestamp> {
        if self.keys.is_empty() {
            return None;
        }
        let at = lookup_workload(&self.keys, pod);
        at.copied().filter(|at| *at <= pod.created + SECOND)
    }

    /// Whether `pod` may be moved.
    ///
    /// # Errors
    /// It, or what it came in the place of, was moved lately.
    pub(crate) fn allows(&self, pod: &PodInfo, now: Timestamp) -> Result<(), Why> {
        let moved = self.uids.get(&pod.uid).and_then(|at| self.entries.get(*at));
        if let Some(entry) = moved {
            if pod.node.as_ref() != Some(&entry.from) {
                let ago = now.duration_since(entry.moved).as_secs();
                let said = format!("it was moved {ago} s ago, and once an hour is enough");
                return Err(Why::new("MovedLately", said));
            }
            if !entry.is_settled(now) {
                let ago = now.duration_since(entry.at).as_secs();
                let said = format!("its move was asked for {ago} s ago");
                return Err(Why::new("MovesAlready", said));
            }
            return Ok(());
        }
        self.no_pause(pod, now)?;
        let Some(first) = self.first(pod) else {
            return Ok(());
        };
        let ago = now.duration_since(first).as_secs();
        let said = format!("it may have come of a move {ago} s ago, and once an hour is enough");
        Err(Why::new("MovedLately", said))
    }

    /// Whether the workload of `pod` does not pause after a move that failed.
    fn no_pause(&self, pod: &PodInfo, now: Timestamp) -> Result<(), Why> {
        if self.failures.is_empty() {
            return Ok(());
        }
        let failure = lookup_workload(&self.failures, pod);
        let Some(failure) = failure.filter(|failure| now < failure.pause_ends()) else {
            return Ok(());
        };
        let ago = now.duration_since(failure.at).as_secs();
        let left = failure.pause_ends().duration_since(now).as_secs().max(1);
        let said = match failure.attempt {
            1 => format!("a move of its workload failed {ago} s ago: the next in {left} s"),
            times => format!(
                "{times} moves of its workload failed in a row, the last {ago} s ago: the next in {left} s"
            ),
        };
        Err(Why::new("MoveFailed", said))
    }

    /// `pod`, which was put into the plan last, is moved, unless that is only shown.
    pub(crate) fn record_planned(&mut self, cycle: &mut Cycle<'_>, pod: &PodInfo) {
        if !cycle.is_last_move_real() {
            return;
        }
        let snapshot = cycle.snapshot();
        let node = pod.node.as_ref();
        let report = node.and_then(|node| snapshot.usage.get(node));
        let usage = report.and_then(|report| report.pod_usage(pod));
        let to = cycle.promised_target().cloned();
        let usage = usage.cloned().unwrap_or_default();
        self.record(pod, &usage, to, cycle.job(), snapshot);
    }

    /// `pod`, which uses `usage`, is moved by `job`, if one does it, to `to` if that is known. The job remembers it.
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

    /// What is known of the moves away from `node` that are not settled.
    pub(crate) fn leaving(&self, node: &str) -> impl Iterator<Item = &Entry> {
        self.entries_on(&self.leaving, node)
    }

    /// What is known of the moves to `node` that are not settled.
    pub(crate) fn coming(&self, node: &str) -> impl Iterator<Item = &Entry> {
        self.entries_on(&self.coming, node)
    }

    fn entries_on<'a>(
        &'a self,
        index: &'a FxHashMap<Arc<str>, Vec<usize>>,
        node: &str,
    ) -> impl Iterator<Item = &'a Entry> {
        let places = index.get(node).into_iter().flatten();
        places.filter_map(|at| self.entries.get(*at))
    }
}
