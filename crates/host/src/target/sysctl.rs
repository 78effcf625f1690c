//! Settings of the whole machine: sysctls and knobs in sysfs.

use crate::error::{HostError, Malformed, Result};
use crate::root::Root;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A system-wide setting of the kernel: a file in procfs or sysfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sysctl {
    /// `vm.min_free_kbytes`, in KiB.
    MinFreeKbytes,
    /// `vm.watermark_scale_factor`, in 1/10000 of the memory.
    WatermarkScaleFactor,
    /// `memcg_reaper/reap_background` (Anolis).
    MemcgReapBackground,
    /// `kernel.sched_group_identity_enabled` (Anolis).
    GroupIdentityEnabled,
    /// `kernel.sched_idle_saver_wmark` (Anolis), in nanoseconds.
    IdleSaverWatermark,
    /// `kernel.sched_core` (Anolis): core scheduling.
    SchedCore,
    /// `pagecache_limit/enabled` (Anolis).
    PagecacheLimitEnabled,
}

struct SysctlRow {
    name: &'static str,
    sysfs: bool,
    path: &'static str,
    min: i64,
    max: i64,
    expected: &'static str,
}

impl Sysctl {
    /// All knobs.
    pub const ALL: [Self; 7] = [
        Self::MinFreeKbytes,
        Self::WatermarkScaleFactor,
        Self::MemcgReapBackground,
        Self::GroupIdentityEnabled,
        Self::IdleSaverWatermark,
        Self::SchedCore,
        Self::PagecacheLimitEnabled,
    ];

    /// Returns name, file and range of the knob.
    #[rustfmt::skip]
    fn row(self) -> SysctlRow {
        let proc = |name, path, min, max, expected| SysctlRow { name, sysfs: false, path, min, max, expected };
        let sys = |name, path, min, max, expected| SysctlRow { name, sysfs: true, path, min, max, expected };
        match self {
            Self::MinFreeKbytes => proc(
                "vm.min_free_kbytes", "sys/vm/min_free_kbytes",
                10_240, 10_485_760, "10240 to 10485760 KiB",
            ),
            Self::WatermarkScaleFactor => proc(
                "vm.watermark_scale_factor", "sys/vm/watermark_scale_factor", 10, 400, "10 to 400",
            ),
            Self::MemcgReapBackground => sys(
                "memcg_reaper.reap_background", "kernel/mm/memcg_reaper/reap_background",
                0, 1, "0 or 1",
            ),
            Self::GroupIdentityEnabled => proc(
                "kernel.sched_group_identity_enabled", "sys/kernel/sched_group_identity_enabled",
                0, 1, "0 or 1",
            ),
            Self::IdleSaverWatermark => proc(
                "kernel.sched_idle_saver_wmark", "sys/kernel/sched_idle_saver_wmark",
                0, i64::MAX, "nanoseconds, at least 0",
            ),
            Self::SchedCore => proc("kernel.sched_core", "sys/kernel/sched_core", 0, 1, "0 or 1"),
            Self::PagecacheLimitEnabled => sys(
                "pagecache_limit.enabled", "kernel/mm/pagecache_limit/enabled", 0, 1, "0 or 1",
            ),
        }
    }

    /// Returns the name in logs and audit records.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(self, root: &Root) -> PathBuf {
        let row = self.row();
        if row.sysfs {
            root.sys(row.path)
        } else {
            root.proc(row.path)
        }
    }

    /// Returns the smallest and the largest value that koord writes; the kernel's own range may be wider.
    #[must_use]
    pub fn range(self) -> (i64, i64) {
        let row = self.row();
        (row.min, row.max)
    }

    /// Returns whether this kernel has the knob.
    #[must_use]
    pub fn exists(self, root: &Root) -> bool {
        self.path(root).is_file()
    }

    pub(super) fn validate(self, value: &str) -> Result<()> {
        let row = self.row();
        match value.parse::<i64>() {
            Ok(number) if (row.min..=row.max).contains(&number) => Ok(()),
            _ => Err(HostError::Invalid {
                resource: row.name,
                value: value.to_owned(),
                expected: row.expected,
            }),
        }
    }
}

/// The name of a scheduler feature, such as `CORE_SCHED`: capitals, digits and underscores, without
/// the `NO_` that switches it off.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchedFeature(Arc<str>);

impl SchedFeature {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the file that lists all features: debugfs moved it with Linux 5.13.
    #[must_use]
    pub fn path(root: &Root) -> PathBuf {
        let new = root.sys("kernel/debug/sched/features");
        if new.exists() {
            new
        } else {
            root.sys("kernel/debug/sched_features")
        }
    }

    /// Returns `1` or `0`; `None` when the kernel has no such feature.
    pub(super) fn state(&self, list: &str) -> Option<&'static str> {
        let name = self.as_str();
        list.split_ascii_whitespace().find_map(|word| {
            if word == name {
                Some("1")
            } else if word.strip_prefix("NO_") == Some(name) {
                Some("0")
            } else {
                None
            }
        })
    }

    /// Returns the word that switches the feature to `state`.
    pub(super) fn word(&self, state: &str) -> String {
        if state == "1" {
            self.as_str().to_owned()
        } else {
            format!("NO_{self}")
        }
    }
}

impl FromStr for SchedFeature {
    type Err = Malformed;
    fn from_str(name: &str) -> std::result::Result<Self, Malformed> {
        let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || name.len() > 64 || name.starts_with("NO_") || !name.bytes().all(plain)
        {
            return Err(Malformed::new(
                "a scheduler feature such as CORE_SCHED",
                name,
            ));
        }
        Ok(Self(Arc::from(name)))
    }
}

impl fmt::Display for SchedFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
