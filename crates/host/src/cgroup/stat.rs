//! Parsers of the statistics files.

use crate::error::Malformed;
use crate::root::Version;

/// `cpu.stat`. The counters of bandwidth control are zero when the file has none of them, as on v2
/// without the cpu controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuStat {
    /// CPU time used so far, in nanoseconds; `None` on v1, which has it in a file of its own.
    pub usage_ns: Option<u64>,
    /// Enforcement periods so far.
    pub nr_periods: u64,
    /// Periods in which the group was throttled.
    pub nr_throttled: u64,
    /// Time the group was throttled, in nanoseconds.
    pub throttled_ns: u64,
    /// Periods in which the group used burst.
    pub nr_bursts: u64,
    /// CPU time used beyond the quota thanks to burst, in nanoseconds.
    pub burst_ns: u64,
}

impl CpuStat {
    /// Parses `cpu.stat` of either version.
    ///
    /// # Errors
    /// When a line is not `key number`.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut stat = Self::default();
        for (key, value) in pairs(text) {
            let field = match key {
                "usage_usec" => stat.usage_ns.insert(0),
                "nr_periods" => &mut stat.nr_periods,
                "nr_throttled" => &mut stat.nr_throttled,
                "throttled_time" | "throttled_usec" => &mut stat.throttled_ns,
                "nr_bursts" => &mut stat.nr_bursts,
                "burst_time" | "burst_usec" => &mut stat.burst_ns,
                _ => continue,
            };
            let scale = if key.ends_with("_usec") { 1000 } else { 1 };
            *field = number("cpu.stat counters", text, value)?.saturating_mul(scale);
        }
        Ok(stat)
    }
}

/// Parses `usage_usec` of a v2 `cpu.stat`, in nanoseconds.
///
/// # Errors
/// When the key is missing or not a number.
pub fn usage_of_cpu_stat(text: &str) -> Result<u64, Malformed> {
    const EXPECTED: &str = "a usage_usec line";
    let (_, value) = pairs(text)
        .find(|(key, _)| *key == "usage_usec")
        .ok_or_else(|| Malformed::new(EXPECTED, text))?;
    Ok(number(EXPECTED, text, value)?.saturating_mul(1000))
}

/// `memory.stat`, in bytes, descendants included in both versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub struct MemoryStat {
    pub inactive_anon: u64,
    pub active_anon: u64,
    pub inactive_file: u64,
    pub active_file: u64,
    pub unevictable: u64,
}

impl MemoryStat {
    /// Parses a v1 file: the `total_` keys, which include descendants.
    ///
    /// # Errors
    /// When one of the needed keys is missing or not a number.
    pub fn parse_v1(text: &str) -> Result<Self, Malformed> {
        Self::parse(text, "total_")
    }

    /// Parses a v2 file.
    ///
    /// # Errors
    /// When one of the needed keys is missing or not a number.
    pub fn parse_v2(text: &str) -> Result<Self, Malformed> {
        Self::parse(text, "")
    }

    fn parse(text: &str, prefix: &str) -> Result<Self, Malformed> {
        let expected = "memory.stat with (in)active_anon, (in)active_file and unevictable";
        let mut stat = Self::default();
        let mut key_count = 0;
        for (key, value) in pairs(text) {
            let Some(key) = key.strip_prefix(prefix) else {
                continue;
            };
            let field = match key {
                "inactive_anon" => &mut stat.inactive_anon,
                "active_anon" => &mut stat.active_anon,
                "inactive_file" => &mut stat.inactive_file,
                "active_file" => &mut stat.active_file,
                "unevictable" => &mut stat.unevictable,
                _ => continue,
            };
            *field = number(expected, text, value)?;
            key_count += 1;
        }
        if key_count < 5 {
            return Err(Malformed::new(expected, text));
        }
        Ok(stat)
    }

    /// Returns the memory that cannot be dropped: inactive_anon + active_anon + unevictable.
    #[must_use]
    pub fn without_page_cache(&self) -> u64 {
        self.inactive_anon
            .saturating_add(self.active_anon)
            .saturating_add(self.unevictable)
    }

    /// Returns [`Self::without_page_cache`] plus the page cache: + active_file + inactive_file.
    #[must_use]
    pub fn with_page_cache(&self) -> u64 {
        self.without_page_cache()
            .saturating_add(self.active_file)
            .saturating_add(self.inactive_file)
    }

    /// Returns the kubelet's working set: charged memory less the inactive page cache.
    #[must_use]
    pub fn working_set(&self, usage: u64) -> u64 {
        usage.saturating_sub(self.inactive_file)
    }
}

pub(crate) fn memory_stat_parser(version: Version) -> fn(&str) -> Result<MemoryStat, Malformed> {
    match version {
        Version::V1 => MemoryStat::parse_v1,
        Version::V2 => MemoryStat::parse_v2,
    }
}

/// Returns the memory per NUMA node of `memory.numa_stat`, in 4096-byte pages: the `total` line on v1 (the
/// `hierarchical_total` line where there is one), anon + file on v2.
pub(crate) fn numa_pages(version: Version, text: &str) -> Result<Vec<(u32, u64)>, Malformed> {
    const EXPECTED: &str = "memory.numa_stat lines such as \"total=5 N0=5\"";
    let mut nodes: Vec<(u32, u64)> = Vec::new();
    let mut add = |line: &str, divisor: u64| -> Result<(), Malformed> {
        for field in line.split_ascii_whitespace() {
            let Some((node, value)) = field.strip_prefix('N').and_then(|f| f.split_once('='))
            else {
                continue;
            };
            let node: u32 = node.parse().map_err(|_| Malformed::new(EXPECTED, text))?;
            let pages = number(EXPECTED, text, value)? / divisor;
            match nodes.iter_mut().find(|(known, _)| *known == node) {
                Some((_, sum)) => *sum = sum.saturating_add(pages),
                None => nodes.push((node, pages)),
            }
        }
        Ok(())
    };
    match version {
        Version::V1 => {
            let line = |key: &str| text.lines().find(|line| line.starts_with(key));
            let line = line("hierarchical_total=")
                .or_else(|| line("total="))
                .ok_or_else(|| Malformed::new(EXPECTED, text))?;
            add(line, 1)?;
        }
        Version::V2 => {
            for key in ["anon ", "file "] {
                if let Some(line) = text.lines().find(|line| line.starts_with(key)) {
                    add(line, 4096)?;
                }
            }
        }
    }
    nodes.sort_unstable();
    Ok(nodes)
}

/// Parses `oom_kill` of `memory.oom_control` (v1) or `memory.events` (v2); 0 where the kernel has none.
pub(crate) fn oom_kills(text: &str) -> Result<u64, Malformed> {
    match pairs(text).find(|(key, _)| *key == "oom_kill") {
        Some((_, value)) => number("an oom_kill counter", text, value),
        None => Ok(0),
    }
}

fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(key, value)| (key, value.trim()))
}

fn number(expected: &'static str, text: &str, value: &str) -> Result<u64, Malformed> {
    value.parse().map_err(|_| Malformed::new(expected, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::survives;

    #[test]
    fn cpu_stat_of_both_versions() {
        let v1 = "nr_periods 10\nnr_throttled 3\nthrottled_time 700\nnr_bursts 1\nburst_time 5\n";
        let expected = CpuStat {
            usage_ns: None,
            nr_periods: 10,
            nr_throttled: 3,
            throttled_ns: 700,
            nr_bursts: 1,
            burst_ns: 5,
        };
        assert_eq!(CpuStat::parse(v1).unwrap(), expected);
        let v2 = "usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 7\n";
        let stat = CpuStat::parse(v2).unwrap();
        assert_eq!((stat.usage_ns, stat.throttled_ns), (Some(5000), 7000));
        assert_eq!(usage_of_cpu_stat(v2).unwrap(), 5000);
        assert!(CpuStat::parse("nr_periods x\n").is_err());
        assert!(usage_of_cpu_stat(v1).is_err());
    }

    #[test]
    fn memory_stat_of_both_versions() {
        let v1 = "cache 1\ninactive_anon 9\ntotal_inactive_anon 1\ntotal_active_anon 2\n\
                  total_inactive_file 4\ntotal_active_file 8\ntotal_unevictable 16\n";
        let stat = MemoryStat::parse_v1(v1).unwrap();
        assert_eq!(stat.without_page_cache(), 19);
        assert_eq!(stat.with_page_cache(), 31);
        assert_eq!((stat.working_set(100), stat.working_set(1)), (96, 0));
        let v2 = v1.replace("total_", "");
        assert_eq!(
            MemoryStat::parse_v2(&v2.replacen("inactive_anon 9\n", "", 1)).unwrap(),
            stat
        );
        assert!(MemoryStat::parse_v2("anon 5\n").is_err());
    }

    #[test]
    fn numa_and_oom() {
        let v1 = "total=6 N0=4 N1=2\nfile=1 N0=1\nhierarchical_total=9 N0=6 N1=3\n";
        assert_eq!(numa_pages(Version::V1, v1).unwrap(), [(0, 6), (1, 3)]);
        let v2 = "anon N0=8192 N1=0\nfile N0=4096 N1=4096\nshmem N0=1\n";
        assert_eq!(numa_pages(Version::V2, v2).unwrap(), [(0, 3), (1, 1)]);
        assert_eq!(
            oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n").unwrap(),
            2
        );
        assert_eq!(oom_kills("low 0\n").unwrap(), 0);
    }

    #[test]
    fn any_content_is_handled() {
        let cpu = "usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 7\n";
        survives(cpu, |text| CpuStat::parse(text).is_ok());
        let memory = "cache 1\ntotal_inactive_anon 1\ntotal_active_anon 2\n\
                      total_inactive_file 4\ntotal_active_file 8\ntotal_unevictable 16\n";
        survives(memory, |text| MemoryStat::parse_v1(text).is_ok());
        let numa = "total=5 N0=5\nanon=4 N0=4\nhierarchical_total=9 N0=4 N1=5\n";
        survives(numa, |text| numa_pages(Version::V1, text).is_ok());
        let numa = "anon N0=4 N1=8192\nfile N0=0 N1=1\n";
        survives(numa, |text| numa_pages(Version::V2, text).is_ok());
        survives("oom 0\noom_kill 3\n", |text| oom_kills(text).is_ok());
    }
}
