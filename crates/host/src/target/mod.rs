//! Targets of writes: one value in the kernel, with the rules for writing it.
//!
//! A [`Target`] is a file, or a part of a file, that has a value of its own. Its row defines the valid
//! values, how to recognize that the file already holds one, and how its values relate to those of parents
//! and children ([`Order`]), so that a caller that writes many can sort them.

mod cgroup;
mod dry_run;
mod sysctl;

pub use sysctl::{SchedFeature, Sysctl};

use crate::cgroup::{FileWrite, Resource, is_rounded_quota};
use crate::core_sched::CookieOperation;
use crate::device::Device;
use crate::error::{HostError, Malformed, Result};
use crate::order::Order;
use crate::path::CgroupPath;
use crate::resctrl::{ResctrlGroup, Schema};
use crate::root::{Root, Version};
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// A part of a resctrl group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResctrlFile {
    /// The group itself: `1` creates it, `0` removes it.
    Directory,
    /// A line of `schemata`; the value is what follows the colon, e.g. `0=fe;1=fe`.
    Schemata(Schema),
    /// `tasks`: one thread id per write, and an action rather than a state.
    Tasks,
}

/// An attribute of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attribute {
    /// `oom_score_adj`, -1000 to 1000.
    OomScoreAdj,
    /// The core-scheduling cookie, a number; 0 is none. A write is an action: `new`, `from PID`, or `0`.
    CoreSchedCookie,
}

/// A value in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// A file of a control group.
    Cgroup {
        /// The cgroup.
        group: CgroupPath,
        /// The file.
        resource: Resource,
    },
    /// The line of one device in a file of a control group; the value is the rest of the line, in
    /// v1 units.
    CgroupLine {
        /// The cgroup.
        group: CgroupPath,
        /// The file.
        resource: Resource,
        /// The device.
        key: Device,
    },
    /// A knob of the machine.
    Sysctl(Sysctl),
    /// A feature of the scheduler: `1` or `0`.
    SchedFeature(SchedFeature),
    /// A part of a resctrl group.
    Resctrl {
        /// The cgroup.
        group: ResctrlGroup,
        /// The part.
        file: ResctrlFile,
    },
    /// An attribute of a process.
    Process {
        /// The process.
        pid: u32,
        /// The attribute.
        attribute: Attribute,
    },
}

/// A [`Target`] without its instance: a writer claims it for all groups or processes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetKind {
    /// A file of control groups, whole or by line.
    Cgroup(Resource),
    /// A knob of the machine.
    Sysctl(Sysctl),
    /// The scheduler's features.
    SchedFeature,
    /// A part of resctrl groups.
    Resctrl(ResctrlFile),
    /// An attribute of processes.
    Process(Attribute),
}

impl TargetKind {
    /// Returns the name in logs and audit records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroup(resource) => resource.name(),
            Self::Sysctl(sysctl) => sysctl.name(),
            Self::SchedFeature => "sched_features",
            Self::Resctrl(ResctrlFile::Directory) => "resctrl",
            Self::Resctrl(ResctrlFile::Schemata(schema)) => schema.name(),
            Self::Resctrl(ResctrlFile::Tasks) => "tasks",
            Self::Process(Attribute::OomScoreAdj) => "oom_score_adj",
            Self::Process(Attribute::CoreSchedCookie) => "core_sched_cookie",
        }
    }
}

impl Target {
    /// Returns the target for a file of a control group.
    #[must_use]
    pub fn cgroup(group: &CgroupPath, resource: Resource) -> Self {
        Self::Cgroup {
            group: group.clone(),
            resource,
        }
    }

    /// Returns the kind of the target.
    #[must_use]
    pub fn kind(&self) -> TargetKind {
        match self {
            Self::Cgroup { resource, .. } | Self::CgroupLine { resource, .. } => {
                TargetKind::Cgroup(*resource)
            }
            Self::Sysctl(sysctl) => TargetKind::Sysctl(*sysctl),
            Self::SchedFeature(_) => TargetKind::SchedFeature,
            Self::Resctrl { file, .. } => TargetKind::Resctrl(*file),
            Self::Process { attribute, .. } => TargetKind::Process(*attribute),
        }
    }

    /// Returns the control group, for targets that have one.
    #[must_use]
    pub fn group(&self) -> Option<&CgroupPath> {
        match self {
            Self::Cgroup { group, .. } | Self::CgroupLine { group, .. } => Some(group),
            _ => None,
        }
    }

    /// Returns the resource, for targets that are a file of a control group.
    #[must_use]
    pub fn resource(&self) -> Option<Resource> {
        match self {
            Self::Cgroup { resource, .. } | Self::CgroupLine { resource, .. } => Some(*resource),
            _ => None,
        }
    }

    /// Returns the location of the value for users: the group, `sysctl`, `process 12`.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Cgroup { group, .. } | Self::CgroupLine { group, .. } => {
                group.as_str().to_owned()
            }
            Self::Sysctl(_) | Self::SchedFeature(_) => "sysctl".to_owned(),
            Self::Resctrl { group, .. } => format!("resctrl{group}"),
            Self::Process { pid, .. } => format!("process {pid}"),
        }
    }

    /// Returns the depth of the target: parents before children, processes after every group.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::Cgroup { group, .. } | Self::CgroupLine { group, .. } => group.depth(),
            Self::Sysctl(_) | Self::SchedFeature(_) => 0,
            Self::Resctrl { group, .. } => usize::from(!group.is_root()),
            Self::Process { .. } => usize::MAX,
        }
    }

    /// Returns the rank among the targets of one depth. Values that must be raised first, and so lowered
    /// last, come first: a quota before its burst, a limit before the protection below it.
    #[must_use]
    pub fn rank(&self) -> u8 {
        match self.kind() {
            TargetKind::Cgroup(resource) => match resource {
                // Leaving idle resets the weight, so the weight comes after it.
                Resource::CpuIdle => 0,
                Resource::CpuShares => 1,
                Resource::CfsPeriod => 2,
                Resource::CfsQuota => 3,
                Resource::CfsBurst => 4,
                Resource::MemoryLimit => 5,
                Resource::MemoryHigh => 6,
                Resource::MemoryLow => 7,
                Resource::MemoryMin => 8,
                _ => 9,
            },
            TargetKind::Resctrl(ResctrlFile::Directory) => 0,
            TargetKind::Resctrl(ResctrlFile::Schemata(_)) => 1,
            TargetKind::Resctrl(ResctrlFile::Tasks) => 2,
            TargetKind::Sysctl(_) | TargetKind::SchedFeature | TargetKind::Process(_) => 0,
        }
    }

    /// Returns the constraint between the target's value and those of its parents and children.
    #[must_use]
    pub fn order(&self) -> Order {
        match self {
            Self::Cgroup { resource, .. } => resource.order(),
            _ => Order::Plain,
        }
    }

    /// Returns whether a written value stays until the next write. Not so for `tasks` and `memory.reclaim`,
    /// which trigger actions, and for processes, whose ids are reused.
    #[must_use]
    pub fn is_stable(&self) -> bool {
        !matches!(
            self.kind(),
            TargetKind::Resctrl(ResctrlFile::Tasks)
                | TargetKind::Process(_)
                | TargetKind::Cgroup(Resource::Procs | Resource::Tasks | Resource::MemoryReclaim)
        )
    }

    /// Checks a value before it is written.
    ///
    /// # Errors
    /// [`HostError::Invalid`], naming target, value and what would be valid.
    pub fn validate(&self, value: &str) -> Result<()> {
        let expected = match self {
            Self::Cgroup { resource, .. } => return resource.validate(value),
            Self::CgroupLine { resource, key, .. } => {
                return resource.validate(&format!("{key} {value}"));
            }
            Self::Sysctl(sysctl) => return sysctl.validate(value),
            Self::SchedFeature(_) => {
                if matches!(value, "0" | "1") {
                    return Ok(());
                }
                "0 or 1"
            }
            Self::Resctrl { group, file } => match file {
                ResctrlFile::Directory => {
                    if !group.is_root() && matches!(value, "0" | "1") {
                        return Ok(());
                    }
                    "0 or 1, for a group other than the root"
                }
                ResctrlFile::Schemata(schema) => match schema.parse(value) {
                    Ok(_) => return Ok(()),
                    Err(malformed) => malformed.expected,
                },
                ResctrlFile::Tasks => {
                    if value.parse::<i32>().is_ok_and(|id| id > 0) {
                        return Ok(());
                    }
                    "a thread id"
                }
            },
            Self::Process { attribute, .. } => match attribute {
                Attribute::OomScoreAdj => {
                    if value
                        .parse::<i32>()
                        .is_ok_and(|adj| (-1000..=1000).contains(&adj))
                    {
                        return Ok(());
                    }
                    "-1000 to 1000"
                }
                Attribute::CoreSchedCookie => {
                    if CookieOperation::parse(value).is_some() {
                        return Ok(());
                    }
                    "\"new\", \"from PID\" or 0"
                }
            },
        };
        Err(HostError::Invalid {
            resource: self.kind().name(),
            value: value.to_owned(),
            expected,
        })
    }

    /// Returns true if other programs write the same value in another form.
    fn is_written_in_forms(&self) -> bool {
        matches!(
            self.resource(),
            Some(Resource::CpuShares | Resource::CfsQuota)
        )
    }

    /// Returns the process, for targets that are a core-scheduling cookie.
    fn core_sched_pid(&self) -> Option<u32> {
        match self {
            Self::Process {
                pid,
                attribute: Attribute::CoreSchedCookie,
            } => Some(*pid),
            _ => None,
        }
    }

    /// Returns the path of the file or directory.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] when the mounted cgroup version has no such file.
    pub fn path(&self, root: &Root) -> Result<PathBuf> {
        Ok(match self {
            Self::Cgroup { group, resource }
            | Self::CgroupLine {
                group, resource, ..
            } => root.cgroup(group).file(*resource)?,
            Self::Sysctl(sysctl) => sysctl.path(root),
            Self::SchedFeature(_) => SchedFeature::path(root),
            Self::Resctrl { group, file } => match file {
                ResctrlFile::Directory => group.dir(root),
                ResctrlFile::Schemata(_) => group.dir(root).join("schemata"),
                ResctrlFile::Tasks => group.dir(root).join("tasks"),
            },
            Self::Process { pid, attribute } => match attribute {
                Attribute::OomScoreAdj => root.proc(&format!("{pid}/oom_score_adj")),
                Attribute::CoreSchedCookie => root.proc(&pid.to_string()),
            },
        })
    }

    /// Parses the value from the file's content.
    fn decode(&self, root: &Root, content: &str) -> std::result::Result<String, Malformed> {
        Ok(match self {
            Self::Cgroup { resource, .. } => {
                return resource.decode_with(root.version(), root.weight_formula(), content);
            }
            Self::CgroupLine { resource, key, .. } => {
                resource.decode_line(root.version(), content, *key)
            }
            Self::SchedFeature(feature) => feature
                .state(content)
                .ok_or_else(|| Malformed::new("the scheduler feature", content))?
                .to_owned(),
            Self::Resctrl {
                file: ResctrlFile::Schemata(schema),
                ..
            } => schema
                .line(content)
                .ok_or_else(|| Malformed::new("a line of this resource", content))?
                .to_owned(),
            _ => content.trim().to_owned(),
        })
    }

    /// Returns true if the file with content `current` already holds `value`.
    fn holds(&self, root: &Root, current: &str, value: &str) -> bool {
        match self {
            Self::Cgroup { group, resource } => {
                let version = root.version();
                // A group of systemd's, whose quotas runtimes round like systemd.
                let is_unit = || {
                    [".scope", ".slice"]
                        .iter()
                        .any(|it| group.name().ends_with(it))
                };
                resource.holds(version, current, value)
                    || (*resource == Resource::CfsQuota
                        && is_unit()
                        && is_rounded_quota(version, current, value))
            }
            Self::CgroupLine { resource, key, .. } => {
                resource.holds(root.version(), current, &format!("{key} {value}"))
            }
            Self::Resctrl {
                file: ResctrlFile::Schemata(schema),
                ..
            } => {
                let present = schema.line(current).map(|line| schema.parse(line));
                match (present, schema.parse(value)) {
                    // Domains that `value` does not name are kept.
                    (Some(Ok(present)), Ok(wanted)) => wanted
                        .iter()
                        .all(|(id, value)| present.get(id) == Some(value)),
                    _ => false,
                }
            }
            Self::Resctrl {
                file: ResctrlFile::Tasks,
                ..
            } => false,
            _ => self
                .decode(root, current)
                .is_ok_and(|present| present == value),
        }
    }

    /// Returns the text to write so that the file with content `current` holds `value`.
    fn encode(&self, root: &Root, value: &str, current: &str) -> String {
        match self {
            Self::Cgroup { resource, .. } => {
                resource.encode_with(root.version(), root.weight_formula(), value, current)
            }
            Self::CgroupLine { resource, key, .. } => {
                resource.encode(root.version(), &format!("{key} {value}"), current)
            }
            Self::SchedFeature(feature) => feature.word(value),
            Self::Resctrl {
                file: ResctrlFile::Schemata(schema),
                ..
            } => {
                // The kernel accepts whole lines only.
                format!("{}:{value}\n", schema.name())
            }
            _ => value.to_owned(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.kind().name();
        match self {
            Self::Cgroup { group, .. } => write!(f, "{group} {name}"),
            Self::CgroupLine { group, key, .. } => write!(f, "{group} {name} {key}"),
            Self::Sysctl(_) => f.write_str(name),
            Self::SchedFeature(feature) => write!(f, "{name} {feature}"),
            Self::Resctrl { group, file } => match file {
                ResctrlFile::Directory => write!(f, "resctrl {group}"),
                _ => write!(f, "resctrl {group} {name}"),
            },
            Self::Process { pid, .. } => write!(f, "process {pid} {name}"),
        }
    }
}

impl Root {
    /// Reads the value of `target`; `None` when its group, process or file is gone.
    ///
    /// # Errors
    /// When this kernel has no such file, or it cannot be read or parsed.
    pub fn read_target(&self, target: &Target) -> Result<Option<String>> {
        if let Some(overlay) = self.overlay() {
            return self.read_intended(overlay, target);
        }
        let path = target.path(self)?;
        if let Target::Resctrl {
            file: ResctrlFile::Directory,
            ..
        } = target
        {
            return Ok(Some(if path.is_dir() { "1" } else { "0" }.to_owned()));
        }
        if let Some(pid) = target.core_sched_pid() {
            return match self.cookie(pid, CookieOperation::Get) {
                Ok(cookie) => Ok(Some(cookie.to_string())),
                Err(error) if error.is_gone() => Ok(None),
                Err(error) => Err(error),
            };
        }
        self.read_short(&path, |content| target.decode(self, content))
    }

    /// Returns the number of the inode behind `target`: a different one means that the file was recreated
    /// since. `None` where there is no file, and for processes, whose files have no lasting inode.
    #[must_use]
    pub fn target_inode(&self, target: &Target) -> Option<u64> {
        if matches!(target, Target::Process { .. }) {
            return None;
        }
        let path = target.path(self).ok()?;
        Some(std::fs::metadata(path).ok()?.ino())
    }

    /// Returns true if `target` has `value` now; `None` if its cgroup, process or file does not exist.
    ///
    /// # Errors
    /// As [`Root::read_target`].
    pub fn target_holds(&self, target: &Target, value: &str) -> Result<Option<bool>> {
        if let Some(overlay) = self.overlay() {
            return self.intended_holds(overlay, target, value);
        }
        if let Target::Resctrl {
            file: ResctrlFile::Directory,
            ..
        } = target
        {
            return Ok(self.read_target(target)?.map(|now| now == value));
        }
        if let (Some(pid), Some(wanted)) = (target.core_sched_pid(), CookieOperation::parse(value))
        {
            return match self.cookie(pid, CookieOperation::Get) {
                Ok(now) => self.has_cookie(now, wanted).map(Some),
                Err(error) if error.is_gone() => Ok(None),
                Err(error) => Err(error),
            };
        }
        let path = target.path(self)?;
        self.read_short(&path, |content| Ok(target.holds(self, content, value)))
    }

    /// Writes `value` to `target` unless it has it already.
    ///
    /// # Errors
    /// [`HostError::Invalid`] before anything is written; else the kernel's error, with path
    /// and value. [`HostError::is_gone`] is true for a vanished group or process.
    pub fn write_target(&self, target: &Target, value: &str) -> Result<FileWrite> {
        self.write_target_after(target, value, None)
    }

    /// Writes a target like [`Root::write_target`], but never keeps `previous`, the value that this process
    /// wrote last. A CPU weight or quota that is only equivalent to `value`, such as one rounded by systemd,
    /// is kept if another program wrote it, and overwritten if it is `previous`.
    ///
    /// # Errors
    /// As [`Root::write_target`].
    pub fn write_target_after(
        &self,
        target: &Target,
        value: &str,
        previous: Option<&str>,
    ) -> Result<FileWrite> {
        let value = value.trim();
        target.validate(value)?;
        self.put_target(
            target,
            value,
            previous.filter(|previous| *previous != value),
        )
    }

    /// Writes a target like [`Root::write_target`], but without validation: `value` was read from this target and may
    /// be outside of the range that koord writes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn restore_target(&self, target: &Target, value: &str) -> Result<FileWrite> {
        self.put_target(target, value, None)
    }

    /// Writes `memory.reclaim`, which cannot be read. EAGAIN means that less was reclaimed than requested,
    /// which is not a failure.
    fn put_reclaim(&self, path: PathBuf, value: &str) -> Result<FileWrite> {
        match self.write(&path, value) {
            Err(error) if error.os_error() != Some(libc::EAGAIN) => Err(error),
            _ => Ok(FileWrite {
                path,
                old: String::new(),
                new: value.to_owned(),
                changed: true,
            }),
        }
    }

    /// Writes a validated value unless the target holds it. An equivalent form of the value is kept, unless the
    /// file still has `previous`.
    fn put_target(
        &self,
        target: &Target,
        value: &str,
        previous: Option<&str>,
    ) -> Result<FileWrite> {
        if let Some(overlay) = self.overlay() {
            return self.put_intended(overlay, target, value);
        }
        let path = target.path(self)?;
        if let Target::Resctrl {
            file: ResctrlFile::Directory,
            ..
        } = target
        {
            return self.put_directory(path, value);
        }
        if let (Some(pid), Some(wanted)) = (target.core_sched_pid(), CookieOperation::parse(value))
        {
            return self.put_cookie(pid, wanted, path);
        }
        if target.resource() == Some(Resource::MemoryReclaim) {
            return self.put_reclaim(path, value);
        }
        let current = self.read_short(&path, |content| Ok(content.to_owned()))?;
        let not_found = || std::io::Error::from_raw_os_error(libc::ENOENT);
        let current = current.ok_or_else(|| HostError::io("read", &path, not_found()))?;
        if let Target::SchedFeature(feature) = target
            && feature.state(&current).is_none()
        {
            return Err(HostError::Unsupported {
                resource: target.kind().name(),
                version: "this kernel",
            });
        }
        let old = target
            .decode(self, &current)
            .unwrap_or_else(|_| current.trim().to_owned());
        let encoded = target.encode(self, value, &current);
        let is_previous = || {
            let previous = previous.map(|previous| target.encode(self, previous, &current));
            previous.is_some_and(|it| it != encoded && it.trim() == current.trim())
        };
        let changed =
            !target.holds(self, &current, value) || (target.is_written_in_forms() && is_previous());
        if changed {
            self.write(&path, &encoded)?;
        } else if target.resource() == Some(Resource::CpuShares)
            && self.version() == Version::V2
            && let (Ok(shares), Ok(weight)) = (value.parse(), current.trim().parse())
        {
            self.observe_weight(shares, weight);
        }
        Ok(FileWrite {
            path,
            old,
            new: value.to_owned(),
            changed,
        })
    }

    /// Executes the operation `cookie` on a process, and returns its core-scheduling cookie afterwards; 0
    /// means none.
    fn cookie(&self, pid: u32, cookie: CookieOperation) -> Result<u64> {
        let answer = self.writer().core_sched(&self.dirs().proc, pid, cookie);
        answer.map_err(|error| match error.raw_os_error() {
            // Without core scheduling, without prctl for it, or without hyper-threads.
            Some(libc::EINVAL | libc::ENOSYS | libc::ENODEV) => HostError::Unsupported {
                resource: TargetKind::Process(Attribute::CoreSchedCookie).name(),
                version: "this kernel",
            },
            _ => HostError::call(format!("prctl(PR_SCHED_CORE, {cookie:?}, {pid})"), error),
        })
    }

    fn has_cookie(&self, now: u64, wanted: CookieOperation) -> Result<bool> {
        Ok(match wanted {
            CookieOperation::Get => true,
            CookieOperation::New => false,
            CookieOperation::From(from) => {
                now != 0 && now == self.cookie(from, CookieOperation::Get)?
            }
            CookieOperation::Clear => now == 0,
        })
    }

    fn put_cookie(&self, pid: u32, wanted: CookieOperation, path: PathBuf) -> Result<FileWrite> {
        let old = self.cookie(pid, CookieOperation::Get)?;
        let changed = !self.has_cookie(old, wanted)?;
        let new = if changed {
            self.cookie(pid, wanted)?
        } else {
            old
        };
        Ok(FileWrite {
            path,
            old: old.to_string(),
            new: new.to_string(),
            changed,
        })
    }

    fn put_directory(&self, path: PathBuf, value: &str) -> Result<FileWrite> {
        let old = if path.is_dir() { "1" } else { "0" };
        let changed = old != value;
        if changed {
            let result = match value {
                "1" => self.writer().make_dir(&path),
                _ => self.writer().remove_dir(&path),
            };
            let action = if value == "1" { "create" } else { "remove" };
            result.map_err(|error| HostError::io(action, &path, error))?;
        }
        Ok(FileWrite {
            path,
            old: old.to_owned(),
            new: value.to_owned(),
            changed,
        })
    }
}

#[cfg(test)]
mod tests;
