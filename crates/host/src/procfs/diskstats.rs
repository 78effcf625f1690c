//! `/proc/diskstats`: I/O counters of block devices.

use crate::device::Device;
use crate::error::{Malformed, Result};
use crate::root::Root;

/// Counters of a block device since boot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskStat {
    /// Name below `/dev`.
    pub name: String,
    /// Reads done.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Milliseconds with at least one request in flight.
    pub busy_ms: u64,
}

/// The unit of the file, whatever the device's own.
const SECTOR: u64 = 512;

/// Parses the file: one device a line, with at least eleven counters.
///
/// # Errors
/// When a line is shorter or a field is no number.
pub fn parse(text: &str) -> std::result::Result<Vec<(Device, DiskStat)>, Malformed> {
    let parse_line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (major, minor) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let name = fields.next()?.to_owned();
        let counters: Vec<u64> = fields.map_while(|word| word.parse().ok()).collect();
        let counter = |at: usize| counters.get(at).copied();
        // reads, merged, sectors, ms, writes, merged, sectors, ms, under way, busy ms, weighted ms
        counter(10)?;
        let stat = DiskStat {
            name,
            reads: counter(0)?,
            read_bytes: counter(2)?.saturating_mul(SECTOR),
            writes: counter(4)?,
            written_bytes: counter(6)?.saturating_mul(SECTOR),
            busy_ms: counter(9)?,
        };
        Some((Device { major, minor }, stat))
    };
    text.lines()
        .map(|line| {
            parse_line(line).ok_or_else(|| Malformed::new("a device with eleven counters", line))
        })
        .collect()
}

/// Returns the machine's block devices; empty where there is no such file.
///
/// # Errors
/// When the file cannot be read or parsed.
pub fn read(root: &Root) -> Result<Vec<(Device, DiskStat)>> {
    let devices = root.read_with(&root.proc("diskstats"), parse)?;
    Ok(devices.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_their_counters() {
        let text = "   8       0 sda 10 1 16 4 20 2 32 5 0 77 9 0 0 0 0 1 2\n\
                    \x20253       1 dm-1 1 0 2 0 3 0 4 0 0 6 0\n";
        let devices = parse(text).unwrap();
        let (device, stat) = &devices[0];
        assert_eq!(
            (device.to_string(), stat.name.as_str()),
            ("8:0".to_owned(), "sda")
        );
        assert_eq!((stat.reads, stat.read_bytes), (10, 16 * 512));
        assert_eq!(
            (stat.writes, stat.written_bytes, stat.busy_ms),
            (20, 32 * 512, 77)
        );
        assert_eq!(devices[1].0.to_string(), "253:1");
        for bad in ["8 0 sda 1 2 3", "8 x sda 1 2 3 4 5 6 7 8 9 10 11", "8 0"] {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.found, bad);
        }
    }

    #[test]
    fn this_machine() {
        let root = Root::system().unwrap();
        let text = root
            .read(&root.proc("diskstats"))
            .unwrap()
            .unwrap_or_default();
        assert_eq!(read(&root).unwrap().len(), text.lines().count());
    }
}
