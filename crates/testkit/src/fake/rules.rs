//! Checks and conversions by the kernel, file by file.

use super::kernel::{FakeDir, child_dirs, errno, read};
use super::processes::is_populated;
use koord_host::CpuSet;
use libc::{EACCES, EAGAIN, EBUSY, EINVAL, ENOSPC, ERANGE};
use std::fs;
use std::io;
use std::path::Path;

const PAGE: u64 = 4096;
/// Number of memory nodes that the kernel is built for (`CONFIG_NODES_SHIFT`).
const MAX_NODES: u32 = 1 << 10;
/// The longest quota, with the burst on top, that the kernel's fixed point can hold: 2^44 - 1 µs.
const MAX_BANDWIDTH_US: u64 = (1 << 44) - 1;
const V1_UNLIMITED: u64 = 9_223_372_036_854_771_712;

/// Writes `value` to the existing file `name` of a group, with the checks and the form of the kernel.
pub(super) fn write(place: &FakeDir<'_>, name: &str, value: &str) -> io::Result<()> {
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
                Some(text) => number::<u64>(text)
                    .ok()
                    .and_then(|quota| i64::try_from(quota).ok())
                    .ok_or_else(|| errno(EINVAL))?,
                None => return Err(errno(EINVAL)),
            };
            // Text that does not begin with a number is not a period, and the rest is not read.
            let period = fields
                .next()
                .and_then(|text| number(text).ok())
                .unwrap_or(old.period);
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
            let set = list(place, name, value)?;
            // Offline CPUs can be configured, missing nodes cannot.
            if name == "cpuset.mems" && !set.is_subset(&memory_nodes()) {
                return Err(errno(EINVAL));
            }
            if set.is_empty() && !place.read(name).is_empty() && is_populated(place.dir) {
                return Err(errno(ENOSPC));
            }
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
        ("v2", "memory.reclaim") => {
            let requested = bytes(value, "")?;
            let amount = |name: &str| place.read(name).parse().unwrap_or(0_u64);
            let current = amount("memory.current");
            let reclaimed = requested.min(current.saturating_sub(amount("memory.min")));
            place.set("memory.current", &(current - reclaimed).to_string())?;
            match reclaimed == requested {
                true => Ok(()),
                false => Err(errno(EAGAIN)),
            }
        }
        ("unified" | "v2", "cgroup.freeze") => match number::<i32>(value)? {
            0 | 1 => place.set(name, value),
            _ => Err(errno(ERANGE)),
        },
        ("v2", "memory.oom.group") => match value {
            "0" | "1" => place.set(name, value),
            _ => Err(errno(EINVAL)),
        },
        ("freezer", "freezer.state") => match value {
            "FROZEN" | "THAWED" => place.set(name, value),
            _ => Err(errno(EINVAL)),
        },
        ("blkio", _) if name.starts_with("blkio.throttle.") => throttle(place, name, value),
        ("v2", "io.max") => io_max(place, value),
        ("v2", "io.weight") => io_weight(place, value),
        // File modes do not restrict root, so this rule does.
        _ if is_read_only(name) => Err(errno(EINVAL)),
        // A vendor file that a test has created.
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
            | "cpuset.mems.effective"
            | "memory.stat"
            | "memory.numa_stat"
            | "memory.usage_in_bytes"
            | "memory.current"
            | "memory.events"
            | "cgroup.controllers"
    )
}

/// Parses an integer as the kernel does: a number that does not fit is ERANGE, other invalid text is EINVAL.
pub(super) fn number<T: TryFrom<i128>>(value: &str) -> io::Result<T> {
    let digits = value.strip_prefix(['+', '-']).unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(errno(EINVAL));
    }
    // The kernel's parsers of unsigned numbers accept no sign.
    if value.starts_with('-') && T::try_from(-1).is_err() {
        return Err(errno(EINVAL));
    }
    value
        .parse::<i128>()
        .ok()
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| errno(ERANGE))
}

/// Parses a list of CPUs or memory nodes as the kernel does: empty items are ignored, numbers beyond the
/// largest possible one are ERANGE, other invalid text is EINVAL.
fn list(place: &FakeDir<'_>, name: &str, value: &str) -> io::Result<CpuSet> {
    let limit = match name {
        "cpuset.cpus" => place.online.iter().last().map_or(1, |last| last + 1),
        _ => MAX_NODES,
    };
    let mut numbers = value.split(|c: char| !c.is_ascii_digit());
    let beyond = numbers.any(|number| number.parse::<u32>().is_ok_and(|number| number >= limit));
    let items: Vec<&str> = value.split(',').filter(|item| !item.is_empty()).collect();
    match CpuSet::from_kernel_list(&items.join(",")) {
        _ if beyond => Err(errno(ERANGE)),
        Ok(set) => Ok(set),
        Err(_) => Err(errno(EINVAL)),
    }
}

/// Rejects a weight for a group with `cpu.idle` set.
fn refuse_idle(place: &FakeDir<'_>) -> io::Result<()> {
    if place.read("cpu.idle") == "1" {
        Err(errno(EINVAL))
    } else {
        Ok(())
    }
}

fn idle(place: &FakeDir<'_>, value: &str) -> io::Result<()> {
    let idle: i64 = number(value)?;
    if !(0..=1).contains(&idle) {
        return Err(errno(EINVAL));
    }
    if place.read("cpu.idle") == idle.to_string() {
        return Ok(());
    }
    // The former weight is lost: while idle it reads 3 (v2: 0), and afterwards the default.
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

    /// Returns the CPU share as quota / period, exact enough as parts per 2^20 like the kernel's own ratio.
    fn ratio(self) -> Option<u64> {
        let quota = u64::try_from(self.quota).ok()?;
        Some(quota.saturating_mul(1 << 20) / self.period.max(1))
    }

    /// Checks quota, period and burst against the kernel's limits and, in v1, against the groups above and below.
    fn check(self, place: &FakeDir<'_>) -> io::Result<()> {
        // -1: without a quota, any burst.
        let quota = u64::try_from(self.quota).ok();
        let refused = !(1000..=1_000_000).contains(&self.period)
            || self.burst > u64::MAX / 1000
            || quota.is_some_and(|quota| {
                quota < 1000
                    || self.burst > quota
                    || quota.saturating_add(self.burst) > MAX_BANDWIDTH_US
            });
        if refused || (place.tree == "cpu" && !self.fits(place)) {
            return Err(errno(EINVAL));
        }
        Ok(())
    }

    /// Returns whether no child exceeds its nearest limited ancestor, as v1 requires. The whole tree is
    /// checked, so lowering a parent below a child is rejected as well.
    fn fits(self, place: &FakeDir<'_>) -> bool {
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

/// Returns the memory nodes: the machine has one.
fn memory_nodes() -> CpuSet {
    CpuSet::from_iter([0])
}

/// Writes a v1 list: it must be a subset of the parent's and a superset of the children's, and not empty
/// while in use.
fn v1_set(place: &FakeDir<'_>, name: &str, value: &str) -> io::Result<()> {
    if place.is_root() {
        return Err(errno(EACCES));
    }
    let set = list(place, name, value)?;
    let online = match name {
        "cpuset.cpus" => place.online.clone(),
        _ => memory_nodes(),
    };
    if !set.is_subset(&online) {
        return Err(errno(EINVAL));
    }
    let of = |dir: &Path| CpuSet::from_kernel_list(&read(dir, name)).unwrap_or_default();
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

/// Updates the effective CPUs of the groups below `dir` (v2): the configured CPUs that the parent has, or all
/// of the parent's if that is none.
fn refresh_v2_cpus(dir: &Path, inherited: &CpuSet) -> io::Result<()> {
    for child in child_dirs(dir) {
        let file = child.join("cpuset.cpus.effective");
        let own = CpuSet::from_kernel_list(&read(&child, "cpuset.cpus")).unwrap_or_default();
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

/// Parses a size with an optional K, M or G, rounded down to pages; `unlimited` is the word for no limit.
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
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(errno(EINVAL));
    }
    // An empty text is zero, and an overflow wraps around.
    let number = digits.bytes().fold(0_u64, |number, digit| {
        number
            .wrapping_mul(10)
            .wrapping_add(u64::from(digit - b'0'))
    });
    Ok(number.wrapping_mul(1 << shift) / PAGE * PAGE)
}

/// Writes a file with one line per device; the limit 0 removes the line.
fn throttle(place: &FakeDir<'_>, name: &str, value: &str) -> io::Result<()> {
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

/// Writes limits of one device to `io.max`. The device has one line, which is removed if all its limits are
/// `max`.
fn io_max(place: &FakeDir<'_>, value: &str) -> io::Result<()> {
    const KEYS: [&str; 4] = ["rbps", "wbps", "riops", "wiops"];
    let (device, fields) = value.split_once(' ').ok_or_else(|| errno(EINVAL))?;
    device
        .parse::<koord_host::Device>()
        .map_err(|_| errno(EINVAL))?;
    let text = place.read("io.max");
    let line = text
        .lines()
        .find(|line| line.split(' ').next() == Some(device));
    let mut limits = KEYS.map(|key| {
        let field = line.and_then(|line| {
            line.split(' ')
                .find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
        });
        field.unwrap_or("max").to_owned()
    });
    for field in fields.split_ascii_whitespace() {
        let (key, limit) = field.split_once('=').ok_or_else(|| errno(EINVAL))?;
        let at = KEYS.iter().position(|valid| *valid == key);
        let place = at.and_then(|at| limits.get_mut(at));
        let place = place.ok_or_else(|| errno(EINVAL))?;
        if limit != "max" {
            let limit: u64 = number(limit)?;
            if limit == 0 {
                return Err(errno(ERANGE));
            }
        }
        limit.clone_into(place);
    }
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| line.split(' ').next() != Some(device))
        .map(str::to_owned)
        .collect();
    if limits.iter().any(|limit| limit != "max") {
        let fields = KEYS.iter().zip(&limits);
        let fields: Vec<String> = fields
            .map(|(key, limit)| format!("{key}={limit}"))
            .collect();
        lines.push(format!("{device} {}", fields.join(" ")));
    }
    place.set("io.max", &lines.join("\n"))
}

/// Writes a weight of 1 to 10000 for all devices or for one; `default` removes that of a device.
fn io_weight(place: &FakeDir<'_>, value: &str) -> io::Result<()> {
    let (key, weight) = value.split_once(' ').unwrap_or(("default", value));
    let weight = weight.trim();
    if weight != "default" && !(1..=10_000).contains(&number::<u32>(weight)?) {
        return Err(errno(ERANGE));
    }
    if key != "default" {
        key.parse::<koord_host::Device>()
            .map_err(|_| errno(EINVAL))?;
    }
    let text = place.read("io.weight");
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| line.split(' ').next() != Some(key))
        .map(str::to_owned)
        .collect();
    if weight != "default" {
        lines.push(format!("{key} {weight}"));
    }
    place.set("io.weight", &lines.join("\n"))
}
