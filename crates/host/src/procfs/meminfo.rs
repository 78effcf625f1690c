//! `/proc/meminfo` and its per-NUMA-node sibling.

use crate::error::{Malformed, Result};
use crate::reader::Reader;
use crate::root::Root;

/// Memory of the machine or of one NUMA node, in bytes. Missing lines are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub struct MemInfo {
    pub total: u64,
    pub free: u64,
    /// Zero for a NUMA node, whose file has no such line.
    pub available: u64,
    pub buffers: u64,
    pub cached: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub slab_reclaimable: u64,
    pub swap_total: u64,
    pub swap_free: u64,
    /// Number of pages of the default huge page size.
    pub huge_pages_total: u64,
    pub huge_page_size: u64,
}

impl MemInfo {
    /// Parses either file (`MemTotal: 5 kB` or `Node 0 MemTotal: 5 kB`).
    ///
    /// # Errors
    /// When MemTotal or MemFree is missing or a number is not one.
    pub fn parse(text: &str) -> std::result::Result<Self, Malformed> {
        let mut info = Self::default();
        let (mut total, mut free) = (false, false);
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let key = key.rsplit(' ').next().unwrap_or(key);
            let field = match key {
                "MemTotal" => {
                    total = true;
                    &mut info.total
                }
                "MemFree" => {
                    free = true;
                    &mut info.free
                }
                "MemAvailable" => &mut info.available,
                "Buffers" => &mut info.buffers,
                "Cached" => &mut info.cached,
                "Active(file)" => &mut info.active_file,
                "Inactive(file)" => &mut info.inactive_file,
                "SReclaimable" => &mut info.slab_reclaimable,
                "SwapTotal" => &mut info.swap_total,
                "SwapFree" => &mut info.swap_free,
                "HugePages_Total" => &mut info.huge_pages_total,
                "Hugepagesize" => &mut info.huge_page_size,
                _ => continue,
            };
            let value = value.trim();
            let (number, scale) = match value.strip_suffix("kB") {
                Some(number) => (number.trim(), 1024),
                None => (value, 1),
            };
            let number: u64 = number
                .parse()
                .map_err(|_| Malformed::new("meminfo lines of kB", line))?;
            *field = number.saturating_mul(scale);
        }
        if total && free {
            Ok(info)
        } else {
            Err(Malformed::new("meminfo with MemTotal and MemFree", text))
        }
    }

    /// Returns the memory used by the machine: MemTotal - MemAvailable.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.available)
    }

    /// Returns the memory used including the page cache: MemTotal - MemFree.
    #[must_use]
    pub fn used_with_page_cache(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Returns the memory used by a NUMA node, whose file has no MemAvailable: MemTotal - (MemFree +
    /// Active(file) + Inactive(file) + SReclaimable).
    #[must_use]
    pub fn numa_used(&self) -> u64 {
        let droppable = self
            .free
            .saturating_add(self.active_file)
            .saturating_add(self.inactive_file)
            .saturating_add(self.slab_reclaimable);
        self.total.saturating_sub(droppable)
    }

    /// Reads the current memory of the machine.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn read(root: &Root) -> Result<Option<Self>> {
        root.read_with(&root.proc("meminfo"), Self::parse)
    }

    /// Returns a reader of the machine's memory.
    ///
    /// # Errors
    /// When the file exists but cannot be opened.
    pub fn reader(root: &Root) -> Result<Option<Reader<Self>>> {
        Reader::open(root.proc("meminfo"), Self::parse)
    }

    /// Reads the current memory of NUMA node `node`.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn read_node(root: &Root, node: u32) -> Result<Option<Self>> {
        let path = root.sys(&format!("devices/system/node/node{node}/meminfo"));
        root.read_with(&path, Self::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::survives;

    #[test]
    fn machine_and_node() {
        let text = "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nBuffers: 1 kB\n\
                    HugePages_Total: 3\nHugepagesize: 2048 kB\n";
        let info = MemInfo::parse(text).unwrap();
        assert_eq!(
            (info.used(), info.used_with_page_cache()),
            (400 * 1024, 900 * 1024)
        );
        assert_eq!(
            (info.huge_pages_total, info.huge_page_size),
            (3, 2048 * 1024)
        );
        let node = "Node 0 MemTotal: 100 kB\nNode 0 MemFree: 10 kB\nNode 0 Active(file): 5 kB\n\
                    Node 0 Inactive(file): 6 kB\nNode 0 SReclaimable: 7 kB\n";
        assert_eq!(MemInfo::parse(node).unwrap().numa_used(), 72 * 1024);
        assert!(MemInfo::parse("MemTotal: x kB\nMemFree: 1 kB\n").is_err());
        assert!(MemInfo::parse("MemTotal: 1 kB\n").is_err());
    }

    #[test]
    fn any_content_is_handled() {
        let sample = "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nBuffers: 1 kB\n";
        survives(sample, |text| MemInfo::parse(text).is_ok());
    }
}
