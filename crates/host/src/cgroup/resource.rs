//! The resource table: file, hierarchy and valid values of each resource, in both versions.
//!
//! A resource is named after its cgroup v1 file, and its values are in the units of that file in both
//! versions: shares (2..=262144), microseconds, bytes; -1 is "unlimited" for the CPU quota and the memory
//! limit. The conversions to v2 happen here and nowhere else.

use super::weight::WeightFormula;
use crate::controller::Controller;
use crate::cpuset;
use crate::device::Device as BlockDevice;
use crate::error::{HostError, Malformed, Result};
use crate::order::Order;
use crate::root::Version;
use Controller::{Blkio, Cpu, Cpuacct, Cpuset, Memory, NetCls};

/// Lower bound of `cpu.shares`.
pub const MIN_SHARES: i64 = 2;
/// Upper bound of `cpu.shares`.
pub const MAX_SHARES: i64 = 262_144;
/// CPU shares of a new group.
pub const DEFAULT_SHARES: i64 = 1024;
/// Default CFS bandwidth period, in microseconds.
pub const DEFAULT_PERIOD_US: i64 = 100_000;
/// Smallest CFS quota that the kernel accepts, in microseconds.
pub const MIN_QUOTA_US: i64 = 1000;
/// Memory limit that v1 reports for "no limit": the largest page-aligned number.
const V1_UNLIMITED_MEMORY: i64 = 9_223_372_036_854_771_712;

/// Converts `cpu.shares` to `cpu.weight` (1..=10000): 1 + (shares - 2) · 9999 / 262142.
#[must_use]
pub fn shares_to_weight(shares: i64) -> i64 {
    1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - 2) * 9999 / 262_142
}

/// Converts `cpu.weight` to `cpu.shares`: (weight - 1) · 262142 / 9999 + 2.
#[must_use]
pub fn weight_to_shares(weight: i64) -> i64 {
    (weight.clamp(1, 10_000) - 1) * 262_142 / 9999 + 2
}

/// A cgroup file that koord reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(
    missing_docs,
    reason = "named after the kernel's files; see the table below"
)]
pub enum Resource {
    CpuShares,
    CfsQuota,
    CfsPeriod,
    CfsBurst,
    CpuBvtWarp,
    CpuIdle,
    CpuStat,
    Tasks,
    Procs,
    CpusetCpus,
    CpusetCpusEffective,
    CpusetMems,
    CpuacctUsage,
    CpuacctStat,
    CpuPressure,
    MemoryPressure,
    IoPressure,
    MemoryLimit,
    MemoryUsage,
    MemoryStat,
    MemoryNumaStat,
    MemoryEvents,
    MemoryMin,
    MemoryLow,
    MemoryHigh,
    MemoryReclaim,
    MemoryWmarkRatio,
    MemoryWmarkScaleFactor,
    MemoryWmarkMinAdj,
    MemoryPriority,
    MemoryUsePriorityOom,
    MemoryOomGroup,
    MemoryIdlePageStats,
    MemoryPagecacheLimitEnable,
    MemoryPagecacheLimitSize,
    MemoryPagecacheLimitSync,
    BlkioReadIops,
    BlkioWriteIops,
    BlkioReadBps,
    BlkioWriteBps,
    BlkioCostWeight,
    BlkioCostQos,
    BlkioCostModel,
    NetClsClassid,
}

/// Kind of values that a resource takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    ReadOnly,
    /// A number in a range.
    Range(i64, i64),
    /// -1 or at least 1000 microseconds.
    Quota,
    /// -1 or a number of bytes.
    Limit,
    /// A CPU or node list.
    List,
    /// A process or thread id, one per write.
    Pid,
    /// `MAJ:MIN value` with a minimum value.
    Device(i64),
    /// `MAJ:MIN key=value ...`.
    DeviceText,
}

struct ResourceRow {
    name: &'static str,
    v1: Option<(Controller, &'static str)>,
    v2: Option<(Controller, &'static str)>,
    kind: ValueKind,
}

impl Resource {
    /// All resources.
    pub const ALL: [Self; 44] = [
        Self::CpuShares,
        Self::CfsQuota,
        Self::CfsPeriod,
        Self::CfsBurst,
        Self::CpuBvtWarp,
        Self::CpuIdle,
        Self::CpuStat,
        Self::Tasks,
        Self::Procs,
        Self::CpusetCpus,
        Self::CpusetCpusEffective,
        Self::CpusetMems,
        Self::CpuacctUsage,
        Self::CpuacctStat,
        Self::CpuPressure,
        Self::MemoryPressure,
        Self::IoPressure,
        Self::MemoryLimit,
        Self::MemoryUsage,
        Self::MemoryStat,
        Self::MemoryNumaStat,
        Self::MemoryEvents,
        Self::MemoryMin,
        Self::MemoryLow,
        Self::MemoryHigh,
        Self::MemoryReclaim,
        Self::MemoryWmarkRatio,
        Self::MemoryWmarkScaleFactor,
        Self::MemoryWmarkMinAdj,
        Self::MemoryPriority,
        Self::MemoryUsePriorityOom,
        Self::MemoryOomGroup,
        Self::MemoryIdlePageStats,
        Self::MemoryPagecacheLimitEnable,
        Self::MemoryPagecacheLimitSize,
        Self::MemoryPagecacheLimitSync,
        Self::BlkioReadIops,
        Self::BlkioWriteIops,
        Self::BlkioReadBps,
        Self::BlkioWriteBps,
        Self::BlkioCostWeight,
        Self::BlkioCostQos,
        Self::BlkioCostModel,
        Self::NetClsClassid,
    ];

    /// Returns name, files and kind of values of the resource.
    #[rustfmt::skip]
    fn row(self) -> ResourceRow {
        use ValueKind::{Device, DeviceText, Limit, List, Pid, Quota, Range, ReadOnly};
        let both = |controller, name, kind| ResourceRow {
            name, v1: Some((controller, name)), v2: Some((controller, name)), kind,
        };
        let split = |controller, name, other, kind| ResourceRow {
            name, v1: Some((controller, name)), v2: Some((controller, other)), kind,
        };
        let v1_only = |controller, name, kind| ResourceRow {
            name, v1: Some((controller, name)), v2: None, kind,
        };
        let v2_only = |controller, name, kind| ResourceRow {
            name, v1: None, v2: Some((controller, name)), kind,
        };
        match self {
            Self::CpuShares => split(Cpu, "cpu.shares", "cpu.weight", Range(MIN_SHARES, MAX_SHARES)),
            Self::CfsQuota => split(Cpu, "cpu.cfs_quota_us", "cpu.max", Quota),
            Self::CfsPeriod => split(Cpu, "cpu.cfs_period_us", "cpu.max", Range(1000, 1_000_000)),
            Self::CfsBurst => split(Cpu, "cpu.cfs_burst_us", "cpu.max.burst", Range(0, 100_000_000)),
            Self::CpuBvtWarp => both(Cpu, "cpu.bvt_warp_ns", Range(-1, 2)),
            Self::CpuIdle => both(Cpu, "cpu.idle", Range(0, 1)),
            Self::CpuStat => both(Cpu, "cpu.stat", ReadOnly),
            Self::Tasks => split(Cpu, "tasks", "cgroup.threads", Pid),
            Self::Procs => both(Cpu, "cgroup.procs", Pid),
            Self::CpusetCpus => both(Cpuset, "cpuset.cpus", List),
            Self::CpusetCpusEffective => {
                split(Cpuset, "cpuset.effective_cpus", "cpuset.cpus.effective", ReadOnly)
            }
            Self::CpusetMems => both(Cpuset, "cpuset.mems", List),
            Self::CpuacctUsage => split(Cpuacct, "cpuacct.usage", "cpu.stat", ReadOnly),
            Self::CpuacctStat => split(Cpuacct, "cpuacct.stat", "cpu.stat", ReadOnly),
            Self::CpuPressure => both(Cpuacct, "cpu.pressure", ReadOnly),
            Self::MemoryPressure => both(Cpuacct, "memory.pressure", ReadOnly),
            Self::IoPressure => both(Cpuacct, "io.pressure", ReadOnly),
            Self::MemoryLimit => split(Memory, "memory.limit_in_bytes", "memory.max", Limit),
            Self::MemoryUsage => split(Memory, "memory.usage_in_bytes", "memory.current", ReadOnly),
            Self::MemoryStat => both(Memory, "memory.stat", ReadOnly),
            Self::MemoryNumaStat => both(Memory, "memory.numa_stat", ReadOnly),
            Self::MemoryEvents => split(Memory, "memory.oom_control", "memory.events", ReadOnly),
            Self::MemoryMin => both(Memory, "memory.min", Range(0, i64::MAX)),
            Self::MemoryLow => both(Memory, "memory.low", Range(0, i64::MAX)),
            Self::MemoryHigh => both(Memory, "memory.high", Range(0, i64::MAX)),
            Self::MemoryReclaim => v2_only(Memory, "memory.reclaim", Range(1, i64::MAX)),
            Self::MemoryWmarkRatio => both(Memory, "memory.wmark_ratio", Range(0, 100)),
            Self::MemoryWmarkScaleFactor => both(Memory, "memory.wmark_scale_factor", Range(1, 1000)),
            Self::MemoryWmarkMinAdj => both(Memory, "memory.wmark_min_adj", Range(-25, 50)),
            Self::MemoryPriority => both(Memory, "memory.priority", Range(0, 12)),
            Self::MemoryUsePriorityOom => both(Memory, "memory.use_priority_oom", Range(0, 1)),
            Self::MemoryOomGroup => both(Memory, "memory.oom.group", Range(0, 1)),
            Self::MemoryIdlePageStats => v1_only(Memory, "memory.idle_page_stats", ReadOnly),
            Self::MemoryPagecacheLimitEnable => {
                v2_only(Memory, "memory.pagecache_limit.enable", Range(0, 1))
            }
            Self::MemoryPagecacheLimitSize => {
                v2_only(Memory, "memory.pagecache_limit.size", Range(0, i64::MAX))
            }
            Self::MemoryPagecacheLimitSync => {
                v2_only(Memory, "memory.pagecache_limit.sync", Range(0, 1))
            }
            Self::BlkioReadIops => {
                split(Blkio, "blkio.throttle.read_iops_device", "io.max", Device(0))
            }
            Self::BlkioWriteIops => {
                split(Blkio, "blkio.throttle.write_iops_device", "io.max", Device(0))
            }
            Self::BlkioReadBps => {
                split(Blkio, "blkio.throttle.read_bps_device", "io.max", Device(0))
            }
            Self::BlkioWriteBps => {
                split(Blkio, "blkio.throttle.write_bps_device", "io.max", Device(0))
            }
            Self::BlkioCostWeight => split(Blkio, "blkio.cost.weight", "io.weight", Device(1)),
            Self::BlkioCostQos => split(Blkio, "blkio.cost.qos", "io.cost.qos", DeviceText),
            Self::BlkioCostModel => split(Blkio, "blkio.cost.model", "io.cost.model", DeviceText),
            Self::NetClsClassid => v1_only(NetCls, "net_cls.classid", Range(0, 4_294_967_295)),
        }
    }

    /// Returns the cgroup v1 file name, which is also the name in logs and audit records.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the hierarchy and file name in `version`; `None` when it does not exist there.
    #[must_use]
    pub fn file(self, version: Version) -> Option<(Controller, &'static str)> {
        let row = self.row();
        match version {
            Version::V1 => row.v1,
            Version::V2 => row.v2,
        }
    }

    /// Returns whether the resource can be written.
    #[must_use]
    pub fn is_writable(self) -> bool {
        self.row().kind != ValueKind::ReadOnly
    }

    /// Returns the constraint between the file's value and those of the parent and child cgroups.
    #[must_use]
    pub fn order(self) -> Order {
        match self {
            Self::CfsQuota
            | Self::CfsBurst
            | Self::MemoryLimit
            | Self::MemoryMin
            | Self::MemoryLow
            | Self::MemoryHigh => Order::Limit,
            Self::CpusetCpus | Self::CpusetMems => Order::List,
            _ => Order::Plain,
        }
    }

    /// Checks a value in v1 units before it is written.
    ///
    /// # Errors
    /// [`HostError::Invalid`], naming resource, value and what would be valid.
    pub fn validate(self, value: &str) -> Result<()> {
        let ResourceRow { name, kind, .. } = self.row();
        let number = value.parse::<i64>().ok();
        let expected = match kind {
            ValueKind::ReadOnly => "nothing: it is read-only",
            ValueKind::Range(min, max) => {
                if number.is_some_and(|number| (min..=max).contains(&number))
                    || (value == "max" && self.accepts_max())
                {
                    return Ok(());
                }
                self.range_text()
            }
            ValueKind::Quota => {
                if number.is_some_and(|number| number == -1 || number >= MIN_QUOTA_US) {
                    return Ok(());
                }
                "-1 or at least 1000 microseconds"
            }
            ValueKind::Limit => {
                if number.is_some_and(|number| number >= -1) {
                    return Ok(());
                }
                "-1 or a number of bytes"
            }
            ValueKind::List => {
                if cpuset::parse(value).is_ok_and(|set| !set.is_empty()) {
                    return Ok(());
                }
                "a non-empty list such as \"0-3,8\""
            }
            ValueKind::Pid => {
                if number.is_some_and(|number| (0..=i64::from(i32::MAX)).contains(&number)) {
                    return Ok(());
                }
                "a process or thread id"
            }
            ValueKind::Device(min) => {
                let ok = split_device(value)
                    .is_some_and(|(_, rest)| rest.parse::<i64>().is_ok_and(|number| number >= min));
                if ok {
                    return Ok(());
                }
                "\"MAJOR:MINOR number\""
            }
            ValueKind::DeviceText => {
                if split_device(value).is_some_and(|(_, rest)| !rest.is_empty()) {
                    return Ok(());
                }
                "\"MAJOR:MINOR key=value ...\""
            }
        };
        Err(HostError::Invalid {
            resource: name,
            value: value.to_owned(),
            expected,
        })
    }

    /// Returns true for `memory.min`, `memory.low` and `memory.high`: their value is a number of bytes or `max`.
    fn accepts_max(self) -> bool {
        matches!(self, Self::MemoryMin | Self::MemoryLow | Self::MemoryHigh)
    }

    /// Returns the key of a limit in v2's `io.max`.
    fn io_max_key(self) -> Option<&'static str> {
        match self {
            Self::BlkioReadBps => Some("rbps"),
            Self::BlkioWriteBps => Some("wbps"),
            Self::BlkioReadIops => Some("riops"),
            Self::BlkioWriteIops => Some("wiops"),
            _ => None,
        }
    }

    /// Returns the range of valid values and their unit, for error messages.
    fn range_text(self) -> &'static str {
        match self {
            Self::CpuShares => "2 to 262144",
            Self::CfsPeriod => "1000 to 1000000 microseconds",
            Self::CfsBurst => "0 to 100000000 microseconds",
            Self::CpuBvtWarp => "-1 to 2",
            Self::MemoryWmarkRatio => "0 to 100",
            Self::MemoryWmarkScaleFactor => "1 to 1000",
            Self::MemoryWmarkMinAdj => "-25 to 50",
            Self::MemoryPriority => "0 to 12",
            Self::NetClsClassid => "0 to 4294967295",
            Self::MemoryReclaim => "a number of bytes, at least 1",
            Self::MemoryMin
            | Self::MemoryLow
            | Self::MemoryHigh
            | Self::MemoryPagecacheLimitSize => "a number of bytes, at least 0",
            _ => "0 or 1",
        }
    }

    /// Converts file content into a value in v1 units; weights by the linear formula.
    ///
    /// # Errors
    /// When the content does not have the file's format.
    pub fn decode(self, version: Version, content: &str) -> std::result::Result<String, Malformed> {
        self.decode_with(version, WeightFormula::Linear, content)
    }

    /// Converts file content into a value in v1 units; weights by `formula`.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub(crate) fn decode_with(
        self,
        version: Version,
        formula: WeightFormula,
        content: &str,
    ) -> std::result::Result<String, Malformed> {
        let content = content.trim();
        let first = content.split_ascii_whitespace().next().unwrap_or("");
        let number = |text: &str| {
            text.parse::<i64>()
                .map_err(|_| Malformed::new("a number", content))
        };
        Ok(match (self, version) {
            (Self::CpuShares, Version::V2) => formula.shares(number(content)?).to_string(),
            (Self::CfsQuota, Version::V2) => match first {
                "max" => "-1".to_owned(),
                quota => number(quota)?.to_string(),
            },
            (Self::CfsPeriod, Version::V2) => {
                let period = content.split_ascii_whitespace().nth(1).unwrap_or("");
                number(period)?.to_string()
            }
            (Self::MemoryLimit, Version::V1) => match number(content)? {
                limit if limit >= V1_UNLIMITED_MEMORY => "-1".to_owned(),
                limit => limit.to_string(),
            },
            (Self::MemoryLimit, Version::V2) if content == "max" => "-1".to_owned(),
            (resource, _) if resource.accepts_max() && content == "max" => i64::MAX.to_string(),
            (Self::CpuacctUsage, Version::V2) => {
                super::stat::usage_of_cpu_stat(content)?.to_string()
            }
            _ => content.to_owned(),
        })
    }

    /// Converts a value in v1 units into the text to write. `current` is the file's content, needed where one
    /// v2 file holds two values.
    pub(crate) fn encode(self, version: Version, value: &str, current: &str) -> String {
        self.encode_with(version, WeightFormula::Linear, value, current)
    }

    /// Encodes a value like [`Self::encode`], with weights by `formula`.
    pub(crate) fn encode_with(
        self,
        version: Version,
        formula: WeightFormula,
        value: &str,
        current: &str,
    ) -> String {
        let number = value.parse::<i64>().unwrap_or(0);
        match (self, version) {
            (Self::CpuShares, Version::V2) => formula.weight(number).to_string(),
            (Self::CfsQuota | Self::MemoryLimit, Version::V2) if number == -1 => "max".to_owned(),
            (Self::CfsPeriod, Version::V2) => {
                let quota = current.split_ascii_whitespace().next().unwrap_or("max");
                format!("{quota} {value}")
            }
            (resource, Version::V2) if resource.accepts_max() && number == i64::MAX => {
                "max".to_owned()
            }
            (resource, Version::V2) => match (resource.io_max_key(), split_device(value)) {
                (Some(key), Some((device, "0"))) => format!("{device} {key}=max"),
                (Some(key), Some((device, limit))) => format!("{device} {key}={limit}"),
                _ => value.to_owned(),
            },
            _ => value.to_owned(),
        }
    }

    /// Returns the value of one device in v1 units; without a line for it, the kernel's default.
    pub(crate) fn decode_line(self, version: Version, content: &str, key: BlockDevice) -> String {
        let key = key.to_string();
        let line = content.lines().find_map(|line| {
            let (first, rest) = line.trim().split_once(' ')?;
            (first == key).then(|| rest.trim())
        });
        match (self.io_max_key(), version) {
            (Some(name), Version::V2) => line
                .and_then(|line| {
                    line.split_ascii_whitespace()
                        .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
                })
                .filter(|limit| *limit != "max")
                .unwrap_or("0")
                .to_owned(),
            (Some(_), Version::V1) => line.unwrap_or("0").to_owned(),
            (None, _) if self == Self::BlkioCostWeight => {
                let default = content
                    .lines()
                    .find_map(|line| line.trim().strip_prefix("default "));
                line.or(default).unwrap_or("100").trim().to_owned()
            }
            (None, _) if self == Self::BlkioCostQos => line.unwrap_or("enable=0").to_owned(),
            (None, _) if self == Self::BlkioCostModel => line.unwrap_or("ctrl=auto").to_owned(),
            (None, _) => line.unwrap_or("").to_owned(),
        }
    }

    /// Returns true if a file with the content `current` already has the value `value`.
    pub(crate) fn holds(self, version: Version, current: &str, value: &str) -> bool {
        match self.row().kind {
            ValueKind::List => match (cpuset::parse(current), cpuset::parse(value)) {
                (Ok(current), Ok(value)) => current == value,
                _ => false,
            },
            ValueKind::Device(_) => split_device(value).is_some_and(|(device, wanted)| {
                let device = device.parse::<BlockDevice>();
                device.is_ok_and(|key| self.decode_line(version, current, key) == wanted)
            }),
            ValueKind::DeviceText => split_device(value).is_some_and(|(device, wanted)| {
                let device = device.parse::<BlockDevice>();
                device.is_ok_and(|key| has_fields(&self.decode_line(version, current, key), wanted))
            }),
            // Writing a pid is an action, not a state.
            ValueKind::Pid | ValueKind::ReadOnly => false,
            // The kernel keeps whole pages.
            ValueKind::Range(..) | ValueKind::Limit
                if self.accepts_max() || self == Self::MemoryLimit =>
            {
                let pages = |text: &str| match text {
                    "max" => Some(i64::MAX / page_size()),
                    text => text.parse::<i64>().ok().map(|bytes| bytes / page_size()),
                };
                let unlimited = |text: &str| self == Self::MemoryLimit && text == "-1";
                self.decode(version, current).is_ok_and(|now| {
                    if unlimited(&now) || unlimited(value) {
                        now == value
                    } else {
                        pages(&now).is_some() && pages(&now) == pages(value)
                    }
                })
            }
            // The runtime writes weights, too, by a formula that depends on its release.
            ValueKind::Range(..) if self == Self::CpuShares && version == Version::V2 => {
                match (current.trim().parse::<i64>(), value.parse::<i64>()) {
                    (Ok(weight), Ok(shares)) => WeightFormula::ALL.iter().any(|formula| {
                        formula.weight(shares) == weight || formula.shares(weight) == shares
                    }),
                    _ => false,
                }
            }
            ValueKind::Range(..) | ValueKind::Quota | ValueKind::Limit => {
                let encoded = self.encode(version, value, current);
                current.trim() == encoded
                    || self
                        .decode(version, current)
                        .is_ok_and(|decoded| decoded == value)
            }
        }
    }
}

/// Returns the bytes in a page of memory.
#[must_use]
pub fn page_size() -> i64 {
    i64::try_from(rustix::param::page_size())
        .unwrap_or(4096)
        .max(1)
}

/// Returns true if `current` is the CFS quota that systemd makes of `value`: it counts in hundredths of
/// a CPU, and runtimes with the systemd driver round up to the next one.
pub(crate) fn is_rounded_quota(version: Version, current: &str, value: &str) -> bool {
    const HUNDREDTH_US: i64 = 10_000;
    let mut fields = current.split_ascii_whitespace();
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let quota = number(fields.next());
    let period = match version {
        Version::V1 => Some(DEFAULT_PERIOD_US),
        Version::V2 => number(fields.next()),
    };
    let (Some(quota), Some(period), Some(value)) = (quota, period, number(Some(value))) else {
        return false;
    };
    if value <= 0 || period <= 0 {
        return false;
    }
    let (value, period) = (i128::from(value), i128::from(period));
    let hundredth = i128::from(HUNDREDTH_US);
    let per_second = value * 1_000_000 / period;
    let rounded = (per_second + hundredth - 1) / hundredth * hundredth;
    rounded * period / 1_000_000 == i128::from(quota)
}

/// Splits `MAJ:MIN rest`.
fn split_device(value: &str) -> Option<(&str, &str)> {
    let (device, rest) = value.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(major) && digits(minor)).then(|| (device, rest.trim()))
}

/// Returns true if `present` has every `key=value` of `wanted`, in any order. The kernel shows percentages
/// with decimals.
fn has_fields(present: &str, wanted: &str) -> bool {
    let fields_equal = |a: &str, b: &str| match (a.split_once('='), b.split_once('=')) {
        (Some((key, a)), Some((other, b))) if key == other => {
            a == b || matches!((a.parse::<f64>(), b.parse::<f64>()), (Ok(a), Ok(b)) if a == b)
        }
        _ => a == b,
    };
    wanted.split_ascii_whitespace().all(|field| {
        let mut fields = present.split_ascii_whitespace();
        fields.any(|present| fields_equal(present, field))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::survives;
    use proptest::prelude::*;

    #[test]
    fn shares_and_weight() {
        for (shares, weight) in [(2, 1), (1024, 39), (262_144, 10_000), (102, 4), (0, 1)] {
            assert_eq!(shares_to_weight(shares), weight, "{shares}");
        }
        for (weight, shares) in [(1, 2), (39, 998), (100, 2597), (10_000, 262_144), (0, 2)] {
            assert_eq!(weight_to_shares(weight), shares, "{weight}");
        }
    }

    #[test]
    fn decode_table() {
        use Resource as R;
        for (resource, version, content, value) in [
            (R::CfsQuota, Version::V1, "-1\n", "-1"),
            (R::CfsQuota, Version::V2, "max 100000\n", "-1"),
            (R::CfsQuota, Version::V2, "50000 100000\n", "50000"),
            (R::CfsPeriod, Version::V2, "50000 100000\n", "100000"),
            (R::CpuShares, Version::V2, "1\n", "2"),
            (R::MemoryLimit, Version::V1, "9223372036854771712\n", "-1"),
            (R::MemoryLimit, Version::V2, "max\n", "-1"),
            (R::MemoryLimit, Version::V2, "4096\n", "4096"),
            (R::MemoryHigh, Version::V2, "max\n", "9223372036854775807"),
            (
                R::CpuacctUsage,
                Version::V2,
                "usage_usec 12\nuser_usec 3\n",
                "12000",
            ),
            (R::CpusetCpus, Version::V1, "0-1\n", "0-1"),
        ] {
            assert_eq!(
                resource.decode(version, content).unwrap(),
                value,
                "{resource:?} {content}"
            );
        }
        assert!(R::CfsQuota.decode(Version::V2, "zz 1").is_err());
        assert!(R::CpuShares.decode(Version::V2, "").is_err());
    }

    #[test]
    fn validation_names_value_and_range() {
        use Resource as R;
        for (resource, good, bad) in [
            (R::CpuShares, "2", "1"),
            (R::CfsQuota, "-1", "999"),
            (R::CfsQuota, "1000", "-2"),
            (R::CfsBurst, "0", "100000001"),
            (R::CpusetCpus, "0-1", ""),
            (R::CpuBvtWarp, "-1", "3"),
            (R::MemoryLimit, "-1", "1Gi"),
            (R::BlkioReadBps, "8:0 1048576", "8 1"),
            (R::BlkioCostWeight, "8:0 1", "8:0 0"),
            (R::BlkioCostQos, "8:0 enable=1", "8:0"),
            (R::Procs, "1", "x"),
        ] {
            assert!(resource.validate(good).is_ok(), "{resource:?} {good}");
            let error = resource.validate(bad).unwrap_err().to_string();
            assert!(error.starts_with(resource.name()), "{error}");
        }
        assert!(R::CpuStat.validate("1").is_err());
    }

    #[test]
    fn a_value_that_is_already_there_is_recognised() {
        use Resource as R;
        for (resource, version, current, value, same) in [
            (R::CpusetCpus, Version::V1, "0-1\n", "0,1", true),
            (R::CpuShares, Version::V2, "39\n", "1024", true),
            (R::CpuShares, Version::V2, "100\n", "1024", true),
            (R::CpuShares, Version::V2, "50\n", "1024", false),
            (R::CpuShares, Version::V2, "174\n", "2048", true),
            (R::CpuShares, Version::V1, "100\n", "1024", false),
            (R::CfsQuota, Version::V2, "50000 100000\n", "50000", true),
            (R::CfsQuota, Version::V2, "max 100000\n", "-1", true),
            (R::CfsQuota, Version::V2, "max 100000\n", "50000", false),
            (R::CfsPeriod, Version::V2, "max 100000\n", "100000", true),
            (
                R::MemoryHigh,
                Version::V2,
                "max\n",
                "9223372036854775807",
                true,
            ),
            (
                R::BlkioReadBps,
                Version::V1,
                "8:0 1048576\n",
                "8:0 1048576",
                true,
            ),
            (R::BlkioReadBps, Version::V1, "", "8:0 0", true),
            (R::BlkioReadBps, Version::V1, "8:0 5\n", "8:0 0", false),
            (
                R::BlkioCostQos,
                Version::V1,
                "8:0 enable=1 ctrl=auto\n",
                "8:0 ctrl=auto",
                true,
            ),
            (
                R::BlkioCostQos,
                Version::V2,
                "8:0 enable=1 ctrl=user rpct=95.00 rlat=3000 min=50.00 max=150.00\n",
                "8:0 enable=1 ctrl=user rpct=95 rlat=3000",
                true,
            ),
            (
                R::BlkioCostQos,
                Version::V2,
                "8:0 rpct=95.50",
                "8:0 rpct=95",
                false,
            ),
            (R::BlkioCostQos, Version::V1, "", "8:0 enable=0", true),
            (R::BlkioCostQos, Version::V1, "", "8:0 enable=1", false),
            (R::BlkioCostModel, Version::V1, "", "8:0 ctrl=auto", true),
        ] {
            assert_eq!(
                resource.holds(version, current, value),
                same,
                "{resource:?} {current}"
            );
        }
    }

    #[test]
    fn every_resource_has_a_file_and_a_unique_name() {
        let names: std::collections::HashSet<_> = Resource::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), Resource::ALL.len());
        for resource in Resource::ALL {
            assert!(
                resource
                    .file(Version::V1)
                    .or(resource.file(Version::V2))
                    .is_some()
            );
        }
    }

    /// Any content decodes to the number in the file or to an error; nothing panics.
    #[test]
    fn any_content_is_handled() {
        survives("50000 100000\n", |content| {
            for resource in Resource::ALL {
                for version in [Version::V1, Version::V2] {
                    let Ok(value) = resource.decode(version, content) else {
                        continue;
                    };
                    let number = matches!(resource.row().kind, ValueKind::Range(..));
                    let valid = number && resource.validate(&value).is_ok();
                    let says = resource.holds(version, content, &value);
                    assert!(!valid || says, "{resource:?} {version:?} {content:?}");
                }
            }
            Resource::CfsPeriod.decode(Version::V2, content).is_ok()
        });
        for value in ["8:0 rbps=1 wbps=max", "0-3,8", "max"] {
            let is_valid = |text: &str| Resource::ALL.into_iter().any(|r| r.validate(text).is_ok());
            survives(value, is_valid);
        }
    }

    proptest! {
        #[test]
        fn weight_round_trips(weight in 1i64..=10_000) {
            prop_assert!((shares_to_weight(weight_to_shares(weight)) - weight).abs() <= 1);
        }
    }
}
