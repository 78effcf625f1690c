//! What the kernel refuses and changes, file by file.

use super::kernel::{Place, child_dirs, errno, read};
use crate::cpuset::CpuSet;
use libc::{EACCES, EBUSY, EINVAL, ENOSPC, ERANGE};
use std::fs;
use std::io;
use std::path::Path;

const PAGE: u64 = 4096;
const V1_UNLIMITED: u64 = 9_223_372_036_854_771_712;

/// Writes `value` to the existing file `name`.
pub(super) fn write(place: &Place<'_>, name: &str, value: &str) -> io::Result<()> {
    match (place.tree, name) {
        ("cpu" | "v2", _)
            if name.starts_with("cpu.") && place.is_root() && name != "cpu.pressure" =>
        {
            Err(errno(EINVAL))
        }
        ("cpu", "cpu.shares") => {
            let shares: u64 = number(value)?;
            refuse_idle(place)?;
            place.set(name, &shares.clamp(2, 262_144).to_string())
        }
        ("v2", "cpu.weight") => {
            let weight: u64 = number(value)?;
            if !(1..=10_000).contains(&weight) {
                return Err(errno(ERANGE));
            }
            refuse_idle(place)?;
            place.set(name, &weight.to_string())
        }
        ("cpu" | "v2", "cpu.idle") => idle(place, value),
        ("cpu", "cpu.cfs_quota_us") => {
            let quota: i64 = number(value)?;
            let quota = if quota < 0 { -1 } else { quota };
            let bandwidth = Bandwidth {
                quota,
                ..Bandwidth::v1(place.dir)
            };
            bandwidth.check(place)?;
            place.set(name, &quota.to_string())
        }
        ("cpu", "cpu.cfs_period_us") => {
            let bandwidth = Bandwidth {
                period: number(value)?,
                ..Bandwidth::v1(place.dir)
            };
            bandwidth.check(place)?;
            place.set(name, &bandwidth.period.to_string())
        }
        ("cpu", "cpu.cfs_burst_us") => {
            let bandwidth = Bandwidth {
                burst: number(value)?,
                ..Bandwidth::v1(place.dir)
            };
            bandwidth.check(place)?;
            place.set(name, &bandwidth.burst.to_string())
        }
        ("v2", "cpu.max") => {
            let old = Bandwidth::v2(place.dir);
            let mut fields = value.split_ascii_whitespace();
            let quota = match fields.next() {
                Some("max") => -1,
                Some(text) => i64::try_from(number::<u64>(text)?).unwrap_or(i64::MAX),
                None => return Err(errno(EINVAL)),
            };
            let period = fields.next().map_or(Ok(old.period), number)?;
            let bandwidth = Bandwidth {
                quota,
                period,
                ..old
            };
            bandwidth.check(place)?;
            let quota = if quota == -1 {
                "max".to_owned()
            } else {
                quota.to_string()
            };
            place.set(name, &format!("{quota} {period}"))
        }
        ("v2", "cpu.max.burst") => {
            let bandwidth = Bandwidth {
                burst: number(value)?,
                ..Bandwidth::v2(place.dir)
            };
            bandwidth.check(place)?;
            place.set(name, &bandwidth.burst.to_string())
        }
        ("cpuset", "cpuset.cpus" | "cpuset.mems") => v1_set(place, name, value),
        ("v2", "cpuset.cpus" | "cpuset.mems") => {
            let set: CpuSet = value.parse().map_err(|_| errno(EINVAL))?;
            place.set(name, &set.to_string())?;
            refresh_v2_cpus(place.mount, place.online)
        }
        ("memory", "memory.limit_in_bytes") => {
            let limit = bytes(value, "-1").map(|limit| limit.min(V1_UNLIMITED))?;
            let usage = place.read("memory.usage_in_bytes").parse().unwrap_or(0);
            if limit < usage {
                return Err(errno(EBUSY));
            }
            place.set(name, &limit.to_string())
        }
        ("v2", "memory.max" | "memory.high" | "memory.low" | "memory.min") => {
            let limit = bytes(value, "max")?;
            let text = if limit >= V1_UNLIMITED {
                "max".to_owned()
            } else {
                limit.to_string()
            };
            place.set(name, &text)
        }
        ("unified" | "v2", "cgroup.freeze") | ("v2", "memory.oom.group") => match value {
            "0" | "1" => place.set(name, value),
            _ => Err(errno(EINVAL)),
        },
        ("freezer", "freezer.state") => match value {
            "FROZEN" | "THAWED" => place.set(name, value),
            _ => Err(errno(EINVAL)),
        },
        ("blkio", _) if name.starts_with("blkio.throttle.") => throttle(place, name, value),
        // Even root, whom file modes do not stop.
        _ if is_read_only(name) => Err(errno(EINVAL)),
        // A vendor file that a test has put.
        _ => place.set(name, value),
    }
}

fn is_read_only(name: &str) -> bool {
    matches!(
        name,
        "cpu.stat"
            | "cpuacct.stat"
            | "cpuacct.usage"
            | "cpuset.effective_cpus"
            | "cpuset.cpus.effective"
            | "memory.stat"
            | "memory.numa_stat"
            | "memory.usage_in_bytes"
            | "memory.current"
            | "memory.events"
            | "cgroup.controllers"
    )
}

fn number<T: std::str::FromStr>(value: &str) -> io::Result<T> {
    value.parse().map_err(|_| errno(EINVAL))
}

/// A group with the idle policy has no weight of its own.
fn refuse_idle(place: &Place<'_>) -> io::Result<()> {
    if place.read("cpu.idle") == "1" {
        Err(errno(EINVAL))
    } else {
        Ok(())
    }
}

fn idle(place: &Place<'_>, value: &str) -> io::Result<()> {
    let idle: i64 = number(value)?;
    if !(0..=1).contains(&idle) {
        return Err(errno(EINVAL));
    }
    if place.read("cpu.idle") == idle.to_string() {
        return Ok(());
    }
    // The former weight is forgotten: while idle it reads 3 (v2: 0), and afterwards the default.
    let (weight, shown) = match (place.tree, idle) {
        ("cpu", 1) => ("cpu.shares", "3"),
        ("cpu", _) => ("cpu.shares", "1024"),
        (_, 1) => ("cpu.weight", "0"),
        (_, _) => ("cpu.weight", "100"),
    };
    place.set(weight, shown)?;
    place.set("cpu.idle", value)
}

/// CFS bandwidth in microseconds; a quota of -1 is unlimited.
#[derive(Clone, Copy)]
struct Bandwidth {
    quota: i64,
    period: u64,
    burst: u64,
}

impl Bandwidth {
    fn v1(dir: &Path) -> Self {
        Self {
            quota: read(dir, "cpu.cfs_quota_us").parse().unwrap_or(-1),
            period: read(dir, "cpu.cfs_period_us").parse().unwrap_or(100_000),
            burst: read(dir, "cpu.cfs_burst_us").parse().unwrap_or(0),
        }
    }

    fn v2(dir: &Path) -> Self {
        let text = read(dir, "cpu.max");
        let (quota, period) = text.split_once(' ').unwrap_or(("max", "100000"));
        Self {
            quota: quota.parse().unwrap_or(-1),
            period: period.parse().unwrap_or(100_000),
            burst: read(dir, "cpu.max.burst").parse().unwrap_or(0),
        }
    }

    /// CPU share as quota / period, exact enough as parts per 2^20 like the kernel's own ratio.
    fn ratio(self) -> Option<u64> {
        let quota = u64::try_from(self.quota).ok()?;
        Some(quota.saturating_mul(1 << 20) / self.period.max(1))
    }

    fn check(self, place: &Place<'_>) -> io::Result<()> {
        let refused = !(1000..=1_000_000).contains(&self.period)
            || (self.quota != -1 && self.quota < 1000)
            || (self.quota != -1 && i64::try_from(self.burst).unwrap_or(i64::MAX) > self.quota);
        if refused || (place.tree == "cpu" && !self.fits(place)) {
            return Err(errno(EINVAL));
        }
        Ok(())
    }

    /// On v1 no child may have more than its nearest limited ancestor. The whole tree is checked,
    /// so lowering a parent below a child is refused as well.
    fn fits(self, place: &Place<'_>) -> bool {
        let mut limit = None;
        let mut dir = place.dir.parent();
        while let Some(ancestor) = dir.filter(|ancestor| ancestor.starts_with(place.mount)) {
            limit = limit.or_else(|| Self::v1(ancestor).ratio());
            dir = ancestor.parent();
        }
        match (self.ratio(), limit) {
            (Some(own), Some(limit)) if own > limit => return false,
            _ => {}
        }
        children_fit(place.dir, self.ratio().or(limit))
    }
}

fn children_fit(dir: &Path, limit: Option<u64>) -> bool {
    child_dirs(dir).iter().all(|child| {
        let own = Bandwidth::v1(child).ratio();
        match (own, limit) {
            (Some(own), Some(limit)) if own > limit => false,
            _ => children_fit(child, own.or(limit)),
        }
    })
}

/// v1: a subset of the parent, a superset of the children, and not empty while in use.
fn v1_set(place: &Place<'_>, name: &str, value: &str) -> io::Result<()> {
    if place.is_root() {
        return Err(errno(EACCES));
    }
    let set: CpuSet = value.parse().map_err(|_| errno(EINVAL))?;
    let online = if name == "cpuset.cpus" {
        place.online.clone()
    } else {
        CpuSet::from_iter([0])
    };
    // CPUs that the machine can never have, and what it could have but has not.
    if name == "cpuset.cpus" && set.iter().last() > online.iter().last() {
        return Err(errno(ERANGE));
    }
    if !set.is_subset(&online) {
        return Err(errno(EINVAL));
    }
    let of = |dir: &Path| read(dir, name).parse::<CpuSet>().unwrap_or_default();
    for child in child_dirs(place.dir) {
        if !of(&child).is_subset(&set) {
            return Err(errno(EBUSY));
        }
    }
    if place
        .dir
        .parent()
        .is_some_and(|parent| !set.is_subset(&of(parent)))
    {
        return Err(errno(EACCES));
    }
    if set.is_empty() && !place.read("cgroup.procs").is_empty() {
        return Err(errno(ENOSPC));
    }
    place.set(name, &set.to_string())?;
    if name == "cpuset.cpus" {
        place.set("cpuset.effective_cpus", &set.to_string())?;
    }
    Ok(())
}

/// v2: the effective set is what is configured and the parent has, else what the parent has.
fn refresh_v2_cpus(dir: &Path, inherited: &CpuSet) -> io::Result<()> {
    for child in child_dirs(dir) {
        let file = child.join("cpuset.cpus.effective");
        let own: CpuSet = read(&child, "cpuset.cpus").parse().unwrap_or_default();
        let common = own.intersection(inherited);
        let effective = if common.is_empty() {
            inherited.clone()
        } else {
            common
        };
        if file.exists() {
            fs::write(file, format!("{effective}\n"))?;
        }
        refresh_v2_cpus(&child, &effective)?;
    }
    Ok(())
}

/// A size with an optional K, M or G, rounded down to pages; `unlimited` is the word for no limit.
fn bytes(value: &str, unlimited: &str) -> io::Result<u64> {
    if value == unlimited {
        return Ok(V1_UNLIMITED);
    }
    let (digits, shift) = match value.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&value[..at], 10),
        Some((at, 'm' | 'M')) => (&value[..at], 20),
        Some((at, 'g' | 'G')) => (&value[..at], 30),
        _ => (value, 0),
    };
    let number: u64 = number(digits)?;
    Ok(number.saturating_mul(1 << shift) / PAGE * PAGE)
}

/// One line per device; zero removes it.
fn throttle(place: &Place<'_>, name: &str, value: &str) -> io::Result<()> {
    let (device, limit) = value.split_once(' ').ok_or_else(|| errno(EINVAL))?;
    let (major, minor) = device.split_once(':').ok_or_else(|| errno(EINVAL))?;
    let (_, _, limit) = (
        number::<u32>(major)?,
        number::<u32>(minor)?,
        number::<u64>(limit.trim())?,
    );
    let text = place.read(name);
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| line.split(' ').next() != Some(device))
        .map(str::to_owned)
        .collect();
    if limit > 0 {
        lines.push(format!("{device} {limit}"));
    }
    place.set(name, &lines.join("\n"))
}
