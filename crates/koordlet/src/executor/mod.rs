//! The one writer of kernel files.
//!
//! Strategies hand over [`Intent`]s; the executor orders them by level (limits grow from the root
//! down and shrink from the leaves up), leaves out what is already so, writes, and records an audit
//! line for every write. A group that vanished meanwhile is no error.

use crate::audit::{Entry, FileChange, Log, Subject};
use jiff::Timestamp;
use koord_host::{CgroupPath, CpuSet, HostError, Resource, Root};
use rustc_hash::FxHashMap;

/// How deep a group is; parents first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// A QoS class.
    Qos,
    /// A pod.
    Pod,
    /// A container.
    Container,
}

/// Whom the audit line names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's (or node's) name.
    pub name: String,
    /// The container's name.
    pub container: String,
}

/// A value that a strategy wants in a file.
#[derive(Debug, Clone)]
pub struct Intent {
    /// How deep the group is.
    pub level: Level,
    /// The group.
    pub group: CgroupPath,
    /// The file.
    pub resource: Resource,
    /// The value, in v1 units.
    pub value: String,
    /// Whom it concerns.
    pub target: Target,
    /// Why, as one word.
    pub reason: &'static str,
    /// Why, in numbers; becomes part of the audit message.
    pub because: String,
    /// Verbosity of the audit line.
    pub verbosity: u8,
    /// Whether a value written less than [`Executor::FORCE_AFTER_MS`] ago need not be looked at.
    pub cacheable: bool,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// Files that were changed.
    pub written: u32,
    /// Files that already had the value.
    pub same: u32,
    /// Files of groups that are gone or resources this kernel lacks.
    pub absent: u32,
    /// Files that the kernel refused.
    pub failed: u32,
}

#[derive(Debug)]
struct Cached {
    value: String,
    at_ms: u64,
}

type Key = (CgroupPath, Resource);

/// Writes intents, and remembers what it wrote.
#[derive(Debug)]
pub struct Executor {
    root: Root,
    log: Log,
    cache: FxHashMap<Key, Cached>,
    /// The last error of a file, so that the same refusal is logged once.
    refused: FxHashMap<Key, String>,
    swept_ms: u64,
    force_after_ms: u64,
    last: Vec<Refusal>,
}

/// A write that the kernel refused.
#[derive(Debug)]
pub struct Refusal {
    /// The group.
    pub group: CgroupPath,
    /// The file.
    pub resource: Resource,
    /// What the kernel said.
    pub error: HostError,
}

impl Executor {
    /// The default of `--resource-force-update-seconds`, in milliseconds.
    pub const FORCE_AFTER_MS: u64 = 60_000;
    const EXPIRE_MS: u64 = 120_000;

    /// An executor on `root` that records in `log`.
    #[must_use]
    pub fn new(root: Root, log: Log, force_after_ms: u64) -> Self {
        Self {
            root,
            log,
            cache: FxHashMap::default(),
            refused: FxHashMap::default(),
            swept_ms: 0,
            force_after_ms,
            last: Vec::new(),
        }
    }

    /// What the kernel refused in the last batch.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.last
    }

    /// Brings the files to the wanted values.
    pub fn apply(&mut self, mut intents: Vec<Intent>, now_ms: u64, wall: Timestamp) -> Applied {
        let mut applied = Applied::default();
        self.last.clear();
        self.sweep(now_ms);
        if intents.is_empty() {
            return applied;
        }
        // An idle group has no weight of its own: the kernel refuses to set one.
        let idle: Vec<CgroupPath> = intents
            .iter()
            .filter(|i| i.resource == Resource::CpuIdle && i.value == "1")
            .map(|i| i.group.clone())
            .collect();
        intents.retain(|i| i.resource != Resource::CpuShares || !idle.contains(&i.group));
        // A group that leaves idle may lose its weight in this very batch.
        let leaving: Vec<CgroupPath> = intents
            .iter()
            .filter(|i| i.resource == Resource::CpuIdle && !self.is_cached(i, now_ms))
            .map(|i| i.group.clone())
            .collect();
        intents.retain(|intent| {
            let at_risk = intent.resource == Resource::CpuShares && leaving.contains(&intent.group);
            let fresh = intent.cacheable && !at_risk && self.is_cached(intent, now_ms);
            applied.same += u32::from(fresh);
            !fresh
        });
        // Parents first; in one group `cpu.idle` before the weight, because leaving idle resets it.
        intents.sort_by_key(|i| (i.level, i.resource != Resource::CpuIdle));
        let mut done = vec![false; intents.len()];
        for (intent, done) in intents.iter().zip(&mut done) {
            if Order::of(intent.resource) == Order::Plain {
                *done = true;
                self.write(intent, &intent.value, true, now_ms, wall, &mut applied);
            } else if let Some(loose) = self.loosened(intent) {
                *done = loose == intent.value;
                self.write(intent, &loose, *done, now_ms, wall, &mut applied);
            }
        }
        for (intent, done) in intents.iter().zip(&done).rev() {
            if !done {
                self.write(intent, &intent.value, true, now_ms, wall, &mut applied);
            }
        }
        applied
    }

    /// Forgets what was written to `group`, so that the next batch looks at its files again.
    pub fn forget(&mut self, group: &CgroupPath) {
        self.cache.retain(|(path, _), _| !path.is_within(group));
    }

    fn is_cached(&self, intent: &Intent, now_ms: u64) -> bool {
        let key = (intent.group.clone(), intent.resource);
        self.cache.get(&key).is_some_and(|cached| {
            cached.value == intent.value
                && now_ms.saturating_sub(cached.at_ms) < self.force_after_ms
        })
    }

    /// The value to write on the way down, if the wanted one is looser than the present one.
    fn loosened(&self, intent: &Intent) -> Option<String> {
        let current = self
            .root
            .cgroup(&intent.group)
            .value(intent.resource)
            .ok()??;
        match Order::of(intent.resource) {
            Order::Plain => None,
            Order::Limit => {
                let number = |text: &str| match text.trim().parse::<i64>() {
                    Ok(-1) => Some(i64::MAX),
                    Ok(value) => Some(value),
                    Err(_) => None,
                };
                (number(&intent.value)? > number(&current)?).then(|| intent.value.clone())
            }
            Order::CpuSet => {
                let wanted: CpuSet = intent.value.parse().ok()?;
                let current: CpuSet = current.parse().ok()?;
                let union = wanted.union(&current);
                if union == wanted {
                    return (wanted != current).then(|| intent.value.clone());
                }
                (union != current).then(|| union.to_string())
            }
        }
    }

    fn write(
        &mut self,
        intent: &Intent,
        value: &str,
        last: bool,
        now_ms: u64,
        wall: Timestamp,
        applied: &mut Applied,
    ) {
        let key = (intent.group.clone(), intent.resource);
        match self
            .root
            .cgroup(&intent.group)
            .set_value(intent.resource, value)
        {
            Ok(written) => {
                self.refused.remove(&key);
                if written.changed {
                    applied.written += 1;
                    self.audit(intent, value, Some(written.old), wall);
                    if intent.resource == Resource::CpuIdle && value == "0" {
                        // The weight is back at its default now, whatever was written before.
                        self.cache
                            .remove(&(intent.group.clone(), Resource::CpuShares));
                    }
                } else {
                    applied.same += 1;
                }
                if last {
                    self.cache.insert(
                        key,
                        Cached {
                            value: value.to_owned(),
                            at_ms: now_ms,
                        },
                    );
                }
            }
            Err(error) if error.is_gone() || error.is_unsupported() => {
                self.cache.remove(&key);
                applied.absent += 1;
            }
            Err(error) => {
                self.cache.remove(&key);
                applied.failed += 1;
                let text = error.to_string();
                if self.refused.get(&key) != Some(&text) {
                    tracing::warn!(reason = intent.reason, error = %text, "write refused");
                    self.refused.insert(key, text);
                }
                self.last.push(Refusal {
                    group: intent.group.clone(),
                    resource: intent.resource,
                    error,
                });
            }
        }
    }

    fn audit(&self, intent: &Intent, value: &str, old: Option<String>, wall: Timestamp) {
        let subject = match intent.level {
            Level::Qos if intent.target.name.is_empty() => Subject::Group,
            Level::Qos => Subject::Node,
            Level::Pod | Level::Container => Subject::Pod,
        };
        let file = intent.resource.name();
        let because = if intent.because.is_empty() {
            String::new()
        } else {
            format!(": {}", intent.because)
        };
        let message = format!("update {} {file} to {value}{because}", intent.group);
        let mut entry = Entry::new(subject, intent.verbosity, intent.reason, message);
        entry.namespace.clone_from(&intent.target.namespace);
        entry.name.clone_from(&intent.target.name);
        entry.container.clone_from(&intent.target.container);
        entry.change = Some(FileChange {
            cgroup: intent.group.as_str().to_owned(),
            file,
            old,
            new: value.to_owned(),
        });
        self.log.record(wall, entry);
    }

    fn sweep(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.swept_ms) < 60_000 {
            return;
        }
        self.swept_ms = now_ms;
        self.cache
            .retain(|_, cached| now_ms.saturating_sub(cached.at_ms) < Self::EXPIRE_MS);
        if self.refused.len() > 4096 {
            self.refused.clear();
        }
    }
}

/// How the values of a resource compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Not at all: parents and children are independent.
    Plain,
    /// A larger number is looser; -1 is no limit.
    Limit,
    /// A superset is looser.
    CpuSet,
}

impl Order {
    fn of(resource: Resource) -> Self {
        match resource {
            Resource::CfsQuota
            | Resource::MemoryLimit
            | Resource::MemoryMin
            | Resource::MemoryLow
            | Resource::MemoryHigh => Self::Limit,
            Resource::CpusetCpus => Self::CpuSet,
            _ => Self::Plain,
        }
    }
}

#[cfg(test)]
mod tests;
