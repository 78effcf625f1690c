//! The node's CPU and memory.

use super::Rate;
use koord_host::error::Malformed;
use koord_host::procfs::{self, MemInfo};
use koord_host::{Reader, Root, Scratch};

/// A sample of the node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct NodeSample {
    /// Cores in use.
    pub cpu: Option<f64>,
    /// Bytes in use, page cache left out: total - available.
    pub memory: Option<f64>,
    /// Bytes in use, page cache included: total - free.
    pub memory_with_cache: Option<f64>,
    /// Installed memory in bytes.
    pub memory_total: Option<f64>,
}

/// Reads `/proc/stat` and `/proc/meminfo`.
#[derive(Debug)]
pub struct NodeCollector {
    root: Root,
    ticks_per_second: f64,
    stat: Option<Reader<u64>>,
    meminfo: Option<Reader<MemInfo>>,
    cpu: Rate,
}

impl NodeCollector {
    /// Creates a collector for `root`.
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self {
            root,
            ticks_per_second: procfs::ticks_per_second().max(1) as f64,
            stat: None,
            meminfo: None,
            cpu: Rate::default(),
        }
    }

    /// Takes a sample at `now_ns` of the monotonic clock.
    ///
    /// # Errors
    /// When a file cannot be read or parsed.
    pub fn sample(&mut self, now_ns: u64, scratch: &mut Scratch) -> koord_host::Result<NodeSample> {
        if self.stat.is_none() {
            self.stat = Reader::open(self.root.proc("stat"), used_ticks)?;
        }
        if self.meminfo.is_none() {
            self.meminfo = MemInfo::reader(&self.root)?;
        }
        let mut sample = NodeSample::default();
        if let Some(reader) = &self.stat
            && let Some(ticks) = reader.read(scratch)?
        {
            // Ticks per nanosecond to cores.
            sample.cpu = self
                .cpu
                .update(now_ns, ticks)
                .map(|rate| rate * 1e9 / self.ticks_per_second);
        }
        if let Some(reader) = &self.meminfo
            && let Some(info) = reader.read(scratch)?
        {
            sample.memory = Some(info.used() as f64);
            sample.memory_with_cache = Some(info.used_with_page_cache() as f64);
            sample.memory_total = Some(info.total as f64);
        }
        Ok(sample)
    }
}

/// Returns user + nice + system + irq + softirq of the first line, in ticks. Idle, I/O wait and steal are not
/// usage; guest time is part of user.
fn used_ticks(text: &str) -> Result<u64, Malformed> {
    let bad = || Malformed::new("a cpu line of ticks", text);
    let line = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("cpu "))
        .ok_or_else(bad)?;
    let mut sum = 0_u64;
    let mut fields = 0;
    for (index, field) in line.split_ascii_whitespace().take(7).enumerate() {
        let value: u64 = field.parse().map_err(|_| bad())?;
        if !matches!(index, 3 | 4) {
            sum = sum.saturating_add(value);
        }
        fields += 1;
    }
    if fields < 4 { Err(bad()) } else { Ok(sum) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_iowait_steal_and_guest_do_not_count() {
        let text = "cpu  10 20 30 1000 2000 40 50 600 7 8\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(used_ticks(text).unwrap(), 150);
        for bad in ["", "cpu0 1 2 3 4", "cpu  1 2", "cpu  1 x 3 4 5 6 7"] {
            assert!(used_ticks(bad).is_err(), "{bad:?}");
        }
    }
}
