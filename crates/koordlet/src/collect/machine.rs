//! Slowly changing facts about the machine: processor, topology, NUMA nodes.

use koord_host::procfs::{CpuInfo, MemInfo, kernel_release};
use koord_host::resctrl::{self, Schema};
use koord_host::topology::{CpuLocation, CpuTopology};
use koord_host::{HostError, Root};

/// Pages of one size on one NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// Size of a page in KiB.
    pub size_kib: u64,
    /// Number of pages.
    pub total: u64,
    /// Number of free pages.
    pub free: u64,
}

/// NUMA node of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// Number of the NUMA node.
    pub id: u32,
    /// Memory of the NUMA node; `None` if the kernel does not report it.
    pub memory: Option<MemInfo>,
    /// Huge pages, by size.
    pub huge_pages: Vec<HugePages>,
}

/// Processor, CPU topology and NUMA nodes of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineInfo {
    /// Kernel release.
    pub kernel: String,
    /// `GenuineIntel`, `AuthenticAMD` or an ARM implementer.
    pub vendor: String,
    /// Marketing name of the processor.
    pub model: String,
    /// True if hyper-threading is active.
    pub hyper_threads: bool,
    /// True if the processor may exceed its base frequency; `None` if the kernel does not report it.
    pub turbo: Option<bool>,
    /// Ways of the L3 cache that resctrl can allocate, as a bit mask in hexadecimal; empty without resctrl.
    pub cat_l3_mask: String,
    /// Every online CPU.
    pub cpus: Vec<CpuLocation>,
    /// Number of physical cores.
    pub cores: usize,
    /// Number of sockets.
    pub sockets: usize,
    /// NUMA nodes, by number.
    pub numa: Vec<NumaNode>,
}

impl MachineInfo {
    /// Reads procfs and sysfs, with huge pages if `huge_pages`.
    ///
    /// # Errors
    /// When an existing file cannot be read or parsed.
    pub fn read(root: &Root, huge_pages: bool) -> Result<Self, HostError> {
        let topology = CpuTopology::read(root)?;
        let cpu = CpuInfo::read(root)?;
        let count = |of: fn(&CpuLocation) -> u32| {
            let mut ids: Vec<u32> = topology.cpus.iter().map(of).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.len()
        };
        let text = |path: &str| root.read(&root.sys(path));
        let mut numa = Vec::new();
        for id in &topology.nodes {
            numa.push(NumaNode {
                id: *id,
                memory: MemInfo::read_node(root, *id)?,
                huge_pages: if huge_pages {
                    read_huge_pages(root, *id)?
                } else {
                    Vec::new()
                },
            });
        }
        let no_turbo = text("devices/system/cpu/intel_pstate/no_turbo")?;
        let boost = text("devices/system/cpu/cpufreq/boost")?;
        let turbo = match (no_turbo, boost) {
            (Some(no), _) => Some(no.trim() == "0"),
            (None, Some(boost)) => Some(boost.trim() == "1"),
            _ => None,
        };
        let resctrl = resctrl::info(root)?.unwrap_or_default();
        let caches = [Schema::L3, Schema::L3Data];
        let l3 = caches.iter().find_map(|cache| resctrl.caches.get(cache));
        Ok(Self {
            kernel: kernel_release(root)?.unwrap_or_default(),
            vendor: cpu.vendor,
            model: cpu.model,
            hyper_threads: topology.smt,
            turbo,
            cat_l3_mask: l3.map_or_else(String::new, |cache| format!("{:x}", cache.mask)),
            cores: count(|cpu| cpu.core),
            sockets: count(|cpu| cpu.socket),
            numa,
            cpus: topology.cpus,
        })
    }
}

/// Returns the huge pages of a NUMA node, sorted by size; none if the kernel has no such files.
fn read_huge_pages(root: &Root, node: u32) -> Result<Vec<HugePages>, HostError> {
    let relative = format!("devices/system/node/node{node}/hugepages");
    let mut sizes = Vec::new();
    let Ok(entries) = std::fs::read_dir(root.sys(&relative)) else {
        return Ok(sizes);
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let size = name.to_str().and_then(|name| {
            let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            size.parse().ok()
        });
        let Some(size_kib) = size else { continue };
        let number = |file: &str| {
            let path = entry.path().join(file);
            let read = root.read_with(&path, koord_host::reader::number);
            read.map(Option::unwrap_or_default)
        };
        sizes.push(HugePages {
            size_kib,
            total: number("nr_hugepages")?,
            free: number("free_hugepages")?,
        });
    }
    sizes.sort_unstable_by_key(|pages| pages.size_kib);
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::fake::Tree;

    #[test]
    fn machine_info_matches_lscpu() {
        let tree = Tree::v1("0-3").unwrap();
        tree.put(
            "proc/cpuinfo",
            "vendor_id\t: GenuineIntel\nmodel name\t: X @ 2 GHz\nflags\t: cat_l3\n",
        )
        .unwrap();
        tree.put("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
            .unwrap();
        tree.put("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n")
            .unwrap();
        tree.put("sys/fs/resctrl/info/L3/cbm_mask", "7ff\n")
            .unwrap();
        let node = "sys/devices/system/node/node0";
        tree.put(
            &format!("{node}/meminfo"),
            "Node 0 MemTotal: 100 kB\nNode 0 MemFree: 40 kB\n",
        )
        .unwrap();
        for (size, total) in [("1048576", 1), ("2048", 8)] {
            let pages = format!("{node}/hugepages/hugepages-{size}kB");
            tree.put(&format!("{pages}/nr_hugepages"), &format!("{total}\n"))
                .unwrap();
            tree.put(&format!("{pages}/free_hugepages"), "1\n").unwrap();
        }
        let info = MachineInfo::read(tree.root(), true).unwrap();
        assert_eq!(
            (info.vendor.as_str(), info.model.as_str(), info.turbo),
            ("GenuineIntel", "X @ 2 GHz", Some(false))
        );
        assert_eq!(
            (info.kernel.as_str(), info.cat_l3_mask.as_str()),
            ("6.1.0-18-amd64", "7ff")
        );
        assert_eq!(info.cpus.len(), 4);
        assert!(info.cores >= 1 && info.sockets == 1);
        let numa = &info.numa[0];
        assert_eq!(numa.memory.map(|memory| memory.total), Some(102_400));
        let sizes: Vec<_> = numa
            .huge_pages
            .iter()
            .map(|p| (p.size_kib, p.total))
            .collect();
        assert_eq!(sizes, [(2048, 8), (1_048_576, 1)]);
        let without = MachineInfo::read(tree.root(), false).unwrap();
        assert!(without.numa[0].huge_pages.is_empty());
        tree.put("sys/devices/system/cpu/online", "zero\n").unwrap();
        let error = MachineInfo::read(tree.root(), false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("cpu/online"), "{error}");
    }
}
