//! The executor's cache of each target: the value it wrote, the original value, the last refusal.

use super::backoff::Refusal;
use super::{Intent, WriteSubject};
use crate::conditions::{Condition, Conditions};
use koord_host::{CgroupPath, Device, HostError, Resource, Root, Target};
use rustc_hash::FxHashMap;

/// Maximum number of original values that are stored; those of later targets cannot be restored.
const MAX_ORIGINALS: usize = 1 << 16;
/// Maximum age in milliseconds at which a written value is assumed to be unchanged.
const EXPIRE_MS: u64 = 120_000;
/// Number of consecutive replacements by another program after which they are reported.
const MAX_REWRITES: u8 = 3;

/// A change that can be undone.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) target: Target,
    pub(super) subject: WriteSubject,
    /// Content of the file before the first write.
    pub(super) original: String,
    /// Value that was written last.
    pub(super) written: String,
}

#[derive(Debug, Default)]
struct WriteRecord {
    /// Value and time of the last write; `None` if the file must be read.
    cached: Option<(String, u64)>,
    /// Value before the first write, and the subject of that write.
    original: Option<(String, WriteSubject)>,
    written: String,
    /// The refusal of the last write, if the kernel refused it.
    refused: Option<Refusal>,
    /// Foreign value that the step before the exact value replaced.
    stepping: Option<String>,
    /// Number of consecutive rounds in which the value was found replaced.
    rewrites: u8,
}

/// A file within a cgroup, or its line of a device.
type CgroupFile = (Resource, Option<Device>);

/// Write records, by cgroup: invalidation is always of a cgroup with its children.
#[derive(Debug)]
pub(super) struct WriteCache {
    groups: FxHashMap<CgroupPath, Vec<(CgroupFile, WriteRecord)>>,
    others: FxHashMap<Target, WriteRecord>,
    originals: usize,
    /// Upper bound of the number of records with a refusal.
    refusals: usize,
    force_after_ms: u64,
    pub(super) conditions: Conditions,
}

impl WriteCache {
    pub(super) fn new(force_after_ms: u64) -> Self {
        Self {
            groups: FxHashMap::default(),
            others: FxHashMap::default(),
            originals: 0,
            refusals: 0,
            force_after_ms,
            conditions: Conditions::default(),
        }
    }

    /// Returns true if `target` refused earlier writes and `value` has to wait.
    pub(super) fn holds_back(
        &mut self,
        root: &Root,
        target: &Target,
        value: &str,
        now_ms: u64,
    ) -> bool {
        if self.refusals == 0 {
            return false;
        }
        let refusal = self.get_mut(target).and_then(|it| it.refused.as_mut());
        refusal.is_some_and(|refusal| refusal.holds_back(root, target, value, now_ms))
    }

    /// Returns the value that was written to `target` last, if any.
    pub(super) fn last_written(&self, target: &Target) -> Option<&str> {
        let record = self.get(target)?;
        (!record.written.is_empty()).then_some(record.written.as_str())
    }

    /// Returns whether `value` was written to `target` so recently that the file need not be read.
    pub(super) fn is_fresh(&self, target: &Target, value: &str, now_ms: u64) -> bool {
        let cached = self.get(target).and_then(|record| record.cached.as_ref());
        cached.is_some_and(|(written, at)| {
            written == value && now_ms.saturating_sub(*at) < self.force_after_ms
        })
    }

    /// Records that `target` has `value` now. `exact` is true for the intended value, false for an
    /// intermediate step. `original` is the previous content if it was changed.
    pub(super) fn record_write(
        &mut self,
        intent: &Intent,
        value: &str,
        exact: bool,
        original: Option<String>,
        now_ms: u64,
    ) {
        let target = &intent.target;
        let has_room = self.originals < MAX_ORIGINALS;
        let mut added = 0;
        let changed = original.is_some();
        let record = self.record(target);
        let refused = record.refused.take().is_some();
        let stepping = record.stepping.take();
        let foreign = changed && (stepping.is_some() || record.written == intent.value);
        if foreign && !exact {
            record.stepping.clone_from(&original);
        }
        let mut rewritten = None;
        if exact && target.is_stable() {
            let before = record.rewrites;
            record.rewrites = match (changed, foreign) {
                (false, _) => 0,
                (true, true) => before.saturating_add(1),
                (true, false) => before,
            };
            if record.rewrites >= MAX_REWRITES {
                let foreign_value = stepping.as_ref().or(original.as_ref());
                let foreign_value = foreign_value.map_or("", String::as_str);
                rewritten = Some(Some(format!(
                    "another program replaces {value} each time, last with {foreign_value}"
                )));
            } else if before >= MAX_REWRITES {
                rewritten = Some(None);
            }
        }
        if target.is_stable() {
            record.cached = exact.then(|| (value.to_owned(), now_ms));
            if let Some(original) = original {
                value.clone_into(&mut record.written);
                if record.original.is_none() && has_room {
                    record.original = Some((original, intent.subject.clone()));
                    added = 1;
                }
            }
        }
        self.originals += added;
        match rewritten {
            None => {}
            Some(None) => {
                let name = target.to_string();
                self.conditions.clear(Condition::ValueRewritten, &name);
            }
            Some(Some(message)) => {
                let name = target.to_string();
                self.conditions
                    .set(Condition::ValueRewritten, &name, &message);
            }
        }
        if refused {
            let name = target.to_string();
            self.conditions.clear(Condition::WriteRefused, &name);
        }
        if changed {
            self.expire_related(target);
        }
        if changed
            && value == "0"
            && let Target::Cgroup {
                group,
                resource: Resource::CpuIdle,
            } = target
        {
            // The kernel has reset the weight to its default.
            let record = self.record(&Target::cgroup(group, Resource::CpuShares));
            record.cached = None;
            record.rewrites = 0;
        }
    }

    /// Records that the kernel refused to write `value` to `target`. Returns the seconds until the next
    /// attempt if the caller has to log it: if there was no refusal before, or one with another cause.
    pub(super) fn refused(
        &mut self,
        root: &Root,
        target: &Target,
        value: &str,
        error: &HostError,
        now_ms: u64,
    ) -> Option<u64> {
        let record = self.record(target);
        record.cached = None;
        let last = record.refused.take();
        let fresh = last.is_none();
        let before = last.as_ref().map(|last| last.cause.clone());
        let refusal = Refusal::new(last, root, target, value, error, now_ms);
        let is_new = before.as_ref() != Some(&refusal.cause);
        let (cause, seconds) = (refusal.cause.clone(), refusal.remaining_seconds(now_ms));
        record.refused = Some(refusal);
        self.refusals += usize::from(fresh);
        let message = format!("{cause}; written again after {seconds} s");
        let name = target.to_string();
        self.conditions
            .set_quietly(Condition::WriteRefused, &name, &message);
        is_new.then_some(seconds)
    }

    /// Ends the wait of refused files of the same kind in cgroups above and below a changed one, because the
    /// kernel checks them against each other.
    fn expire_related(&mut self, changed: &Target) {
        if self.refusals == 0 {
            return;
        }
        let (Some(group), Some(resource)) = (changed.group(), changed.resource()) else {
            return;
        };
        for (path, records) in &mut self.groups {
            if path == group || !(path.is_within(group) || group.is_within(path)) {
                continue;
            }
            let related = records
                .iter_mut()
                .filter(|((file, _), _)| *file == resource);
            for refusal in related.filter_map(|(_, record)| record.refused.as_mut()) {
                refusal.expire();
            }
        }
    }

    /// Removes the record of `target`, which does not exist (any more).
    pub(super) fn remove(&mut self, target: &Target) {
        let record = match split_target(target) {
            Some((group, file)) => self.groups.get_mut(group).and_then(|records| {
                let index = records.iter().position(|(other, _)| *other == file)?;
                Some(records.swap_remove(index).1)
            }),
            None => self.others.remove(target),
        };
        if let Some(record) = &record {
            end_conditions(&self.conditions, record, || target.to_string());
        }
        self.originals -= record.map_or(0, |record| usize::from(record.original.is_some()));
    }

    /// Makes the next batch read the files of `group` and its children.
    pub(super) fn invalidate(&mut self, group: &CgroupPath) {
        for (path, records) in &mut self.groups {
            if path.is_within(group) {
                for (_, record) in records {
                    record.cached = None;
                }
            }
        }
    }

    /// Removes and returns the undoable changes of `wanted` targets.
    pub(super) fn take_originals(&mut self, wanted: impl Fn(&Target) -> bool) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut take = |target: Target, record: &mut WriteRecord| {
            if record.original.is_some() && wanted(&target) {
                record.cached = None;
                changes.extend(record.original.take().map(|(original, subject)| Change {
                    target,
                    subject,
                    original,
                    written: std::mem::take(&mut record.written),
                }));
            }
        };
        for (group, records) in &mut self.groups {
            for (file, record) in records {
                take(join_target(group, *file), record);
            }
        }
        for (target, record) in &mut self.others {
            take(target.clone(), record);
        }
        self.originals -= changes.len();
        changes
    }

    /// Drops old records, and original values of removed cgroups.
    pub(super) fn sweep(&mut self, root: &Root, now_ms: u64) {
        let (mut dropped, mut refusals) = (0, 0);
        let conditions = self.conditions.clone();
        let mut keep = |record: &mut WriteRecord, exists: bool, target: &dyn Fn() -> Target| {
            let old = |at: u64| now_ms.saturating_sub(at) >= EXPIRE_MS;
            if record.cached.as_ref().is_some_and(|(_, at)| old(*at)) {
                record.cached = None;
            }
            let unwanted = |refusal: &mut Refusal| !exists || old(refusal.wanted_ms);
            if record.refused.as_mut().is_some_and(unwanted) {
                end_conditions(&conditions, record, || target().to_string());
                record.refused = None;
            }
            let worth = record.original.is_some() || record.refused.is_some();
            let keep = record.cached.is_some() || (exists && worth);
            if !keep {
                end_conditions(&conditions, record, || target().to_string());
            }
            refusals += usize::from(keep && record.refused.is_some());
            dropped += usize::from(!keep && record.original.is_some());
            keep
        };
        self.groups.retain(|group, records| {
            // A cgroup with recent writes need not be checked.
            let active = records.iter().any(|(_, record)| record.cached.is_some());
            let exists = active || root.cgroup(group).exists();
            records.retain_mut(|(file, record)| {
                let file = *file;
                keep(record, exists, &|| join_target(group, file))
            });
            !records.is_empty()
        });
        self.others.retain(|target, record| {
            let worth = record.original.is_some() || record.refused.is_some();
            keep(record, worth, &|| target.clone())
        });
        self.originals -= dropped;
        self.refusals = refusals;
    }

    fn get_mut(&mut self, target: &Target) -> Option<&mut WriteRecord> {
        match split_target(target) {
            Some((group, file)) => self
                .groups
                .get_mut(group)?
                .iter_mut()
                .find(|(other, _)| *other == file)
                .map(|(_, record)| record),
            None => self.others.get_mut(target),
        }
    }

    fn get(&self, target: &Target) -> Option<&WriteRecord> {
        match split_target(target) {
            Some((group, file)) => self
                .groups
                .get(group)?
                .iter()
                .find(|(other, _)| *other == file)
                .map(|(_, record)| record),
            None => self.others.get(target),
        }
    }

    fn record(&mut self, target: &Target) -> &mut WriteRecord {
        let Some((group, file)) = split_target(target) else {
            return self.others.entry(target.clone()).or_default();
        };
        let records = self.groups.entry(group.clone()).or_default();
        let index = match records.iter().position(|(other, _)| *other == file) {
            Some(index) => index,
            None => {
                records.push((file, WriteRecord::default()));
                records.len() - 1
            }
        };
        &mut records[index].1
    }
}

/// Ends the conditions that `record` has set.
fn end_conditions(conditions: &Conditions, record: &WriteRecord, target: impl Fn() -> String) {
    if record.refused.is_some() {
        conditions.clear(Condition::WriteRefused, &target());
    }
    if record.rewrites >= MAX_REWRITES {
        conditions.clear(Condition::ValueRewritten, &target());
    }
}

fn split_target(target: &Target) -> Option<(&CgroupPath, CgroupFile)> {
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

fn join_target(group: &CgroupPath, (resource, key): CgroupFile) -> Target {
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
