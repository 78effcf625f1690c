//! What the executor remembers of each target: the value it wrote, the one before, the last refusal.

use super::{Intent, Subject};
use koord_host::{CgroupPath, Device, Resource, Root, Target};
use rustc_hash::FxHashMap;

/// How many values from before are kept; those of later targets cannot be restored.
const MAX_ORIGINALS: usize = 1 << 16;
/// How long a written value is believed at most.
const EXPIRE_MS: u64 = 120_000;

/// A change that can be undone.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) target: Target,
    pub(super) subject: Subject,
    /// What the file said before.
    pub(super) original: String,
    /// What was written last.
    pub(super) ours: String,
}

#[derive(Debug, Default)]
struct Record {
    /// What was written last, and when; `None` when the file must be looked at.
    cached: Option<(String, u64)>,
    /// The value before the first write, and whom it concerns.
    original: Option<(String, Subject)>,
    ours: String,
    refused: Option<String>,
}

/// A file within a group.
type Part = (Resource, Option<Device>);

/// By group, because what is forgotten is always a group with all below it.
#[derive(Debug)]
pub(super) struct Memory {
    groups: FxHashMap<CgroupPath, Vec<(Part, Record)>>,
    others: FxHashMap<Target, Record>,
    originals: usize,
    force_after_ms: u64,
}

impl Memory {
    pub(super) fn new(force_after_ms: u64) -> Self {
        Self {
            groups: FxHashMap::default(),
            others: FxHashMap::default(),
            originals: 0,
            force_after_ms,
        }
    }

    /// Whether `value` was written to `target` so recently that it need not be looked at.
    pub(super) fn is_fresh(&self, target: &Target, value: &str, now_ms: u64) -> bool {
        let cached = self.get(target).and_then(|record| record.cached.as_ref());
        cached.is_some_and(|(written, at)| {
            written == value && now_ms.saturating_sub(*at) < self.force_after_ms
        })
    }

    /// Notes that `target` says `value` now. `exact`: as the intent wants it, not a step on the
    /// way. `original`: what it said before, when it was changed.
    pub(super) fn wrote(
        &mut self,
        intent: &Intent,
        value: &str,
        exact: bool,
        original: Option<String>,
        now_ms: u64,
    ) {
        let target = &intent.target;
        let room = self.originals < MAX_ORIGINALS;
        let mut kept = 0;
        let changed = original.is_some();
        let record = self.record(target);
        record.refused = None;
        if target.is_stable() {
            record.cached = exact.then(|| (value.to_owned(), now_ms));
            if let Some(original) = original {
                value.clone_into(&mut record.ours);
                if record.original.is_none() && room {
                    record.original = Some((original, intent.subject.clone()));
                    kept = 1;
                }
            }
        }
        self.originals += kept;
        if changed
            && value == "0"
            && let Target::Cgroup {
                group,
                resource: Resource::CpuIdle,
            } = target
        {
            // The weight is back at its default now, whatever was written before.
            self.record(&Target::cgroup(group, Resource::CpuShares))
                .cached = None;
        }
    }

    /// Notes a refusal. Returns whether it is a new one, which wants a log line.
    pub(super) fn refused(&mut self, target: &Target, error: &str) -> bool {
        let record = self.record(target);
        record.cached = None;
        let new = record.refused.as_deref() != Some(error);
        record.refused = Some(error.to_owned());
        new
    }

    /// Notes that `target` does not exist (any more).
    pub(super) fn gone(&mut self, target: &Target) {
        let record = match part(target) {
            Some((group, part)) => self.groups.get_mut(group).and_then(|records| {
                let at = records.iter().position(|(known, _)| *known == part)?;
                Some(records.swap_remove(at).1)
            }),
            None => self.others.remove(target),
        };
        self.originals -= record.map_or(0, |record| usize::from(record.original.is_some()));
    }

    /// Makes the next batch look at the files of `group` and below.
    pub(super) fn forget(&mut self, group: &CgroupPath) {
        for (path, records) in &mut self.groups {
            if path.is_within(group) {
                for (_, record) in records {
                    record.cached = None;
                }
            }
        }
    }

    /// Takes the undoable changes to `wanted` targets out.
    pub(super) fn take_originals(&mut self, wanted: impl Fn(&Target) -> bool) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut take = |target: Target, record: &mut Record| {
            if record.original.is_some() && wanted(&target) {
                record.cached = None;
                changes.extend(record.original.take().map(|(original, subject)| Change {
                    target,
                    subject,
                    original,
                    ours: std::mem::take(&mut record.ours),
                }));
            }
        };
        for (group, records) in &mut self.groups {
            for (part, record) in records {
                take(whole(group, *part), record);
            }
        }
        for (target, record) in &mut self.others {
            take(target.clone(), record);
        }
        self.originals -= changes.len();
        changes
    }

    /// Drops what is old, and the values from before of groups that are gone.
    pub(super) fn sweep(&mut self, root: &Root, now_ms: u64) {
        let mut dropped = 0;
        let mut keep = |record: &mut Record, exists: bool| {
            let old = |at: u64| now_ms.saturating_sub(at) >= EXPIRE_MS;
            if record.cached.as_ref().is_some_and(|(_, at)| old(*at)) {
                record.cached = None;
            }
            let worth = record.original.is_some() || record.refused.is_some();
            let keep = record.cached.is_some() || (exists && worth);
            dropped += usize::from(!keep && record.original.is_some());
            keep
        };
        self.groups.retain(|group, records| {
            // A group that is written all the time need not be looked at.
            let active = records.iter().any(|(_, record)| record.cached.is_some());
            let exists = active || root.cgroup(group).exists();
            records.retain_mut(|(_, record)| keep(record, exists));
            !records.is_empty()
        });
        // Processes come and go: their refusals are told again after a while.
        self.others.retain(|_, record| {
            let undoable = record.original.is_some();
            keep(record, undoable)
        });
        self.originals -= dropped;
    }

    fn get(&self, target: &Target) -> Option<&Record> {
        match part(target) {
            Some((group, part)) => self
                .groups
                .get(group)?
                .iter()
                .find(|(known, _)| *known == part)
                .map(|(_, record)| record),
            None => self.others.get(target),
        }
    }

    fn record(&mut self, target: &Target) -> &mut Record {
        let Some((group, part)) = part(target) else {
            return self.others.entry(target.clone()).or_default();
        };
        let records = self.groups.entry(group.clone()).or_default();
        let at = match records.iter().position(|(known, _)| *known == part) {
            Some(at) => at,
            None => {
                records.push((part, Record::default()));
                records.len() - 1
            }
        };
        &mut records[at].1
    }
}

fn part(target: &Target) -> Option<(&CgroupPath, Part)> {
    match target {
        Target::Cgroup { group, resource } => Some((group, (*resource, None))),
        Target::CgroupLine {
            group,
            resource,
            key,
        } => Some((group, (*resource, Some(*key)))),
        _ => None,
    }
}

fn whole(group: &CgroupPath, (resource, key): Part) -> Target {
    let group = group.clone();
    match key {
        None => Target::Cgroup { group, resource },
        Some(key) => Target::CgroupLine {
            group,
            resource,
            key,
        },
    }
}
