//! The only writer of kernel files.
//!
//! Strategies hand over [`Intent`]s; the executor orders them by depth (limits grow from the root down and
//! shrink from the leaves up), skips values that the files have already, writes, and adds an audit record for
//! every write. A cgroup that was removed meanwhile is no error.

mod backoff;
mod write_cache;

use crate::audit::{self, Entry, FileChange, Log};
use crate::conditions::Conditions;
use crate::metrics::{AgentPart, Metrics};
use jiff::Timestamp;
use koord_host::target::Sysctl;
use koord_host::{CgroupPath, FileWrite, HostError, Order, Resource, Root, Target, TargetKind};
use rustc_hash::FxHashSet;
use std::time::Instant;
use write_cache::WriteCache;

/// Object that the audit record names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum WriteSubject {
    /// A cgroup that belongs to no pod.
    #[default]
    Group,
    /// The node.
    Node {
        /// Name.
        name: String,
    },
    /// A pod.
    Pod {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// A container.
    Container {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
        /// The container's name.
        name: String,
    },
}

/// An intended write of a kernel value.
#[derive(Debug, Clone)]
pub struct Intent {
    /// File to write.
    pub target: Target,
    /// Value in cgroup v1 units.
    pub value: String,
    /// Object named in the audit record.
    pub subject: WriteSubject,
    /// Reason as one word.
    pub reason: &'static str,
    /// Reason in numbers; part of the audit message.
    pub because: String,
    /// Verbosity of the audit record.
    pub verbosity: u8,
    /// True if the file need not be read when the same value was written less than
    /// [`Executor::FORCE_AFTER_MS`] ago.
    pub cacheable: bool,
    /// Level label for the metric of hook reconciles; `None` for other writes.
    pub reconciles: Option<&'static str>,
}

/// Result of a batch, in numbers of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchResult {
    /// Files that were changed.
    pub written: u32,
    /// Files that already had the value.
    pub same: u32,
    /// Files of removed cgroups or processes, or that this kernel lacks.
    pub absent: u32,
    /// Files that the kernel refused.
    pub failed: u32,
    /// Files that refused an earlier write and are not written again yet.
    pub held_back: u32,
}

/// A write that the kernel refused.
#[derive(Debug)]
pub struct RefusedWrite {
    /// File that refused the write.
    pub target: Target,
    /// Error of the kernel.
    pub error: HostError,
}

/// Time of a batch.
#[derive(Debug, Clone, Copy)]
struct BatchTime {
    /// Milliseconds of the monotonic clock.
    ms: u64,
    wall: Timestamp,
}

/// Writes intents and caches what it wrote.
#[derive(Debug)]
pub struct Executor {
    root: Root,
    log: Log,
    cache: WriteCache,
    swept_ms: u64,
    last: Vec<RefusedWrite>,
    metrics: Option<Metrics>,
}

impl Executor {
    /// The default of `--resource-force-update-seconds`, in milliseconds.
    pub const FORCE_AFTER_MS: u64 = 60_000;
    const SWEEP_MS: u64 = 60_000;

    /// Creates an executor on `root` that records in `log`.
    #[must_use]
    pub fn new(root: Root, log: Log, force_after_ms: u64) -> Self {
        Self {
            root,
            log,
            cache: WriteCache::new(force_after_ms),
            swept_ms: 0,
            last: Vec::new(),
            metrics: None,
        }
    }

    /// Records the duration of each change in `metrics`.
    #[must_use]
    pub fn measured(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Reports files that refuse values or whose values are replaced, in `conditions`.
    #[must_use]
    pub fn reporting(mut self, conditions: Conditions) -> Self {
        self.cache.conditions = conditions;
        self
    }

    /// Returns true if this executor has changed `target`.
    #[must_use]
    pub fn has_written(&self, target: &Target) -> bool {
        self.cache.last_written(target).is_some()
    }

    /// Returns the writes that the kernel refused in the last batch.
    #[must_use]
    pub fn refusals(&self) -> &[RefusedWrite] {
        &self.last
    }

    /// Writes the intended values. Of several intents for one target the last counts.
    pub fn apply(&mut self, intents: Vec<Intent>, now_ms: u64, wall: Timestamp) -> BatchResult {
        let mut applied = BatchResult::default();
        self.last.clear();
        if now_ms.saturating_sub(self.swept_ms) >= Self::SWEEP_MS {
            self.swept_ms = now_ms;
            self.cache.sweep(&self.root, now_ms);
        }
        if !intents.is_empty() {
            let time = BatchTime { ms: now_ms, wall };
            let pending = self.pending(intents, now_ms, &mut applied);
            self.write_all(&pending, false, time, &mut applied);
        }
        applied
    }

    /// Drops the cached values of `group` and its children, so that the next batch reads their files. Call it
    /// when a pod has changed, because the kubelet then writes its own values.
    pub fn invalidate(&mut self, group: &CgroupPath) {
        self.cache.invalidate(group);
    }

    /// Restores the values that the files of `wanted` targets had before this executor first wrote them. A
    /// file whose value is not the last written one was changed by another program, and is kept.
    pub fn restore(
        &mut self,
        wanted: impl Fn(&Target) -> bool,
        now_ms: u64,
        wall: Timestamp,
    ) -> BatchResult {
        let mut applied = BatchResult::default();
        self.last.clear();
        let root = &self.root;
        let mut intents: Vec<Intent> = self
            .cache
            .take_originals(wanted)
            .into_iter()
            .filter(|change| {
                root.target_holds(&change.target, &change.written)
                    .is_ok_and(|says| says == Some(true))
            })
            .map(|change| Intent {
                target: change.target,
                value: change.original,
                subject: change.subject,
                reason: "restore",
                because: "the value before this agent".to_owned(),
                verbosity: 1,
                cacheable: false,
                reconciles: None,
            })
            .collect();
        self.sort(&mut intents);
        self.write_all(&intents, true, BatchTime { ms: now_ms, wall }, &mut applied);
        applied
    }

    /// Returns the intents that must be executed, in the order of the way down.
    fn pending(
        &mut self,
        mut intents: Vec<Intent>,
        now_ms: u64,
        applied: &mut BatchResult,
    ) -> Vec<Intent> {
        // A cgroup that changes its idle policy may lose its weight in this batch.
        let turning: FxHashSet<CgroupPath> = intents
            .iter()
            .filter(|i| i.target.resource() == Some(Resource::CpuIdle))
            .filter(|i| !self.cache.is_fresh(&i.target, &i.value, now_ms))
            .filter_map(|i| i.target.group().cloned())
            .collect();
        self.sort(&mut intents);
        // The sort is stable: of several for one target the last one is behind the others.
        intents.reverse();
        intents
            .dedup_by(|earlier, later| earlier.target == later.target && later.target.is_stable());
        intents.reverse();
        intents.retain(|intent| {
            let at_risk = intent.target.resource() == Some(Resource::CpuShares)
                && intent.target.group().is_some_and(|g| turning.contains(g));
            let fresh = intent.cacheable
                && !at_risk
                && self.cache.is_fresh(&intent.target, &intent.value, now_ms);
            applied.same += u32::from(fresh);
            if fresh {
                return false;
            }
            let (root, target) = (&self.root, &intent.target);
            let held_back = self.cache.holds_back(root, target, &intent.value, now_ms);
            applied.held_back += u32::from(held_back);
            !held_back
        });
        intents
    }

    /// Sorts parents first and, within a cgroup, files that must be raised first. An idle cgroup has no
    /// weight of its own, and the kernel refuses to set one, so such intents are dropped.
    #[expect(clippy::unused_self, reason = "reads better next to its callers")]
    fn sort(&self, intents: &mut Vec<Intent>) {
        let idle: FxHashSet<CgroupPath> = intents
            .iter()
            .filter(|i| i.target.resource() == Some(Resource::CpuIdle) && i.value == "1")
            .filter_map(|i| i.target.group().cloned())
            .collect();
        if !idle.is_empty() {
            intents.retain(|i| {
                i.target.resource() != Some(Resource::CpuShares)
                    || i.target.group().is_none_or(|group| !idle.contains(group))
            });
        }
        intents.sort_by(|a, b| {
            // Group identity and core scheduling exclude each other: one is switched off before the other
            // is switched on.
            let turns_on = |i: &Intent| {
                let switch = matches!(
                    i.target,
                    Target::Sysctl(Sysctl::SchedCore | Sysctl::GroupIdentityEnabled)
                );
                switch && i.value != "0"
            };
            let key = |i: &Intent| {
                let place = (i.target.depth(), i.target.rank());
                (place, !i.target.is_stable(), turns_on(i))
            };
            // Actions keep the order in which they were requested.
            let by_target = || match a.target.is_stable() {
                true => a.target.cmp(&b.target),
                false => std::cmp::Ordering::Equal,
            };
            key(a).cmp(&key(b)).then_with(by_target)
        });
    }

    /// Writes down through `intents` those that get looser, and back up those that get tighter.
    fn write_all(
        &mut self,
        intents: &[Intent],
        back: bool,
        at: BatchTime,
        applied: &mut BatchResult,
    ) {
        let mut tighter = Vec::new();
        for intent in intents {
            if intent.target.order() == Order::Plain {
                self.write(intent, &intent.value, true, back, at, applied);
            } else if let Some(loose) = self.loosened(intent) {
                let exact = loose == intent.value;
                self.write(intent, &loose, exact, back, at, applied);
                if !exact {
                    tighter.push(intent);
                }
            } else {
                tighter.push(intent);
            }
        }
        for intent in tighter.into_iter().rev() {
            self.write(intent, &intent.value, true, back, at, applied);
        }
    }

    /// Returns the value to write on the way down, if the intended one is looser than the current one.
    fn loosened(&self, intent: &Intent) -> Option<String> {
        let current = self.root.read_target(&intent.target).ok()??;
        intent.target.order().loosened(&current, &intent.value)
    }

    /// Writes a value, or restores it if `back`, and records the result.
    fn write(
        &mut self,
        intent: &Intent,
        value: &str,
        exact: bool,
        back: bool,
        at: BatchTime,
        applied: &mut BatchResult,
    ) {
        let target = &intent.target;
        let began = Instant::now();
        let result = if back {
            self.root.restore_target(target, value)
        } else {
            let previous = self.cache.last_written(target);
            self.root.write_target_after(target, value, previous)
        };
        self.measure(intent, &result, began);
        match result {
            Ok(FileWrite { changed, old, .. }) => {
                if changed {
                    applied.written += 1;
                    self.audit(intent, value, Some(old.clone()), at.wall);
                } else {
                    applied.same += 1;
                }
                if !back {
                    let original = changed.then_some(old);
                    self.cache
                        .record_write(intent, value, exact, original, at.ms);
                }
            }
            Err(error) if error.is_gone() || error.is_unsupported() => {
                applied.absent += 1;
                self.cache.remove(target);
            }
            Err(error) => {
                applied.failed += 1;
                let refused = self
                    .cache
                    .refused(&self.root, target, &intent.value, &error, at.ms);
                if let Some(retry_after_s) = refused {
                    let reason = intent.reason;
                    tracing::warn!(reason, %target, %error, retry_after_s, "write refused");
                }
                self.last.push(RefusedWrite {
                    target: target.clone(),
                    error,
                });
            }
        }
    }

    fn measure(&self, intent: &Intent, done: &koord_host::Result<FileWrite>, began: Instant) {
        let Some(metrics) = &self.metrics else { return };
        if self.root.is_dry_run() {
            return;
        }
        let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
        let kind = intent.target.kind();
        if let Some(level) = intent.reconciles {
            metrics.reconciled(level, kind.name(), done.is_ok(), milliseconds);
        }
        let ok = match done {
            Ok(written) if written.changed => true,
            Ok(_) => return,
            Err(error) if error.is_gone() || error.is_unsupported() => return,
            Err(_) => false,
        };
        if !ok {
            metrics.failed(AgentPart::Strategy, intent.reason);
        }
        let kind = match kind {
            TargetKind::Cgroup(_) => "cgroup",
            TargetKind::Sysctl(_) | TargetKind::SchedFeature => "system",
            TargetKind::Resctrl(_) => "resctrl",
            TargetKind::Process(_) => "process",
        };
        metrics.record_write(kind, ok, milliseconds);
    }

    /// Records a write in the audit log.
    fn audit(&self, intent: &Intent, value: &str, old: Option<String>, wall: Timestamp) {
        let kind = match intent.subject {
            WriteSubject::Group => audit::Subject::Group,
            WriteSubject::Node { .. } => audit::Subject::Node,
            WriteSubject::Pod { .. } | WriteSubject::Container { .. } => audit::Subject::Pod,
        };
        let because = if intent.because.is_empty() {
            String::new()
        } else {
            format!(": {}", intent.because)
        };
        let message = format!("update {} to {value}{because}", intent.target);
        let mut entry = Entry::new(kind, intent.verbosity, intent.reason, message);
        match &intent.subject {
            WriteSubject::Group => {}
            WriteSubject::Node { name } => entry.name.clone_from(name),
            WriteSubject::Pod { namespace, name } => {
                entry.namespace.clone_from(namespace);
                entry.name.clone_from(name);
            }
            WriteSubject::Container {
                namespace,
                pod,
                name,
            } => {
                entry.namespace.clone_from(namespace);
                entry.name.clone_from(pod);
                entry.container.clone_from(name);
            }
        }
        entry.change = Some(FileChange {
            cgroup: intent.target.place(),
            file: intent.target.kind().name(),
            old,
            new: value.to_owned(),
        });
        self.log.record(wall, entry);
    }
}

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
