//! Readers of procfs files.

pub mod cpuinfo;
pub mod diskstats;
pub mod meminfo;
pub mod process;
pub mod stat;

pub use cpuinfo::CpuInfo;
pub use diskstats::DiskStat;
pub use meminfo::MemInfo;
pub use process::{ProcessStat, SchedStat};
pub use stat::{CpuTicks, ProcStat};

use crate::error::{Malformed, Result};
use crate::root::Root;

/// Load averages of `/proc/loadavg`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[expect(missing_docs, reason = "the usual three")]
pub struct LoadAvg {
    pub one: f64,
    pub five: f64,
    pub fifteen: f64,
}

impl LoadAvg {
    /// Parses `/proc/loadavg`.
    ///
    /// # Errors
    /// When there are not three numbers.
    pub fn parse(text: &str) -> std::result::Result<Self, Malformed> {
        let mut numbers = text
            .split_ascii_whitespace()
            .map_while(|field| field.parse().ok());
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(one), Some(five), Some(fifteen)) => Ok(Self { one, five, fifteen }),
            _ => Err(Malformed::new("three load averages", text)),
        }
    }
}

/// Reads the load averages of the machine.
///
/// # Errors
/// When the file cannot be read or parsed.
pub fn loadavg(root: &Root) -> Result<Option<LoadAvg>> {
    root.read_with(&root.proc("loadavg"), LoadAvg::parse)
}

/// Reads the kernel release, such as `6.1.0-18-amd64`.
///
/// # Errors
/// When the file cannot be read.
pub fn kernel_release(root: &Root) -> Result<Option<String>> {
    Ok(root
        .read(&root.proc("sys/kernel/osrelease"))?
        .map(|text| text.trim().to_owned()))
}

/// Reads the id of this boot, a new UUID each time the kernel starts.
///
/// # Errors
/// When the file cannot be read.
pub fn boot_id(root: &Root) -> Result<Option<String>> {
    Ok(root
        .read(&root.proc("sys/kernel/random/boot_id"))?
        .map(|text| text.trim().to_owned()))
}

/// Returns the kernel's clock ticks per second, the unit of `/proc/stat`.
#[must_use]
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_averages() {
        let load = LoadAvg::parse("0.10 1.25 3.00 1/200 99\n").unwrap();
        assert_eq!((load.one, load.five, load.fifteen), (0.1, 1.25, 3.0));
        assert!(LoadAvg::parse("0.1 x 3").is_err());
    }
}
