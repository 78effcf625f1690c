//! NUMA nodes from sysfs: their CPUs, memory, huge pages and distances.

use crate::cpuset::{self, CpuSet};
use crate::error::{HostError, Malformed, Result, is_gone};
use crate::procfs::MemInfo;
use crate::root::Root;
use std::collections::BTreeMap;
use std::fs;

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NumaNode {
    /// Number.
    pub id: u32,
    /// Online CPUs; none where there is only memory, as with CXL.
    pub cpus: CpuSet,
    /// Memory in bytes, huge pages included.
    pub memory: u64,
    /// Number of huge pages by their size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
    /// Distance to NUMA nodes by number, as in the ACPI SLIT (10 is local); empty where the machine does not
    /// report it.
    pub distances: BTreeMap<u32, u32>,
}

/// Returns the NUMA nodes of the machine, by number. Nodes that exist for the distances of devices only
/// (generic initiators), without CPUs and memory, are left out. A kernel without NUMA support has none.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn nodes(root: &Root) -> Result<Vec<NumaNode>> {
    let all = every_node(root)?;
    let initiators: Option<CpuSet> = root.read_with(
        &root.sys("devices/system/node/has_generic_initiator"),
        cpuset::parse,
    )?;
    let initiators = initiators.unwrap_or_default();
    let node = |id: u32| {
        let dir = root.sys(&format!("devices/system/node/node{id}"));
        if !dir.is_dir() {
            return Ok(None);
        }
        let memory = root.read_with(&dir.join("meminfo"), MemInfo::parse)?;
        let path = dir.join("distance");
        let distances = root.read_with(&path, |text| distances(text, &all))?;
        let node = NumaNode {
            id,
            cpus: root
                .read_with(&dir.join("cpulist"), cpuset::parse)?
                .unwrap_or_default(),
            memory: memory.map_or(0, |memory| memory.total),
            huge_pages: huge_pages(root, &dir.join("hugepages"))?,
            distances: distances.unwrap_or_default(),
        };
        let is_empty = node.cpus.is_empty() && node.memory == 0;
        Ok(Some(node).filter(|_| !(is_empty && initiators.contains(id))))
    };
    all.iter().filter_map(|id| node(*id).transpose()).collect()
}

/// Returns the numbers of all online NUMA nodes, including those that exist for devices only: the kernel's
/// list of distances has one entry for each.
fn every_node(root: &Root) -> Result<Vec<u32>> {
    let online: Option<CpuSet> =
        root.read_with(&root.sys("devices/system/node/online"), cpuset::parse)?;
    Ok(online.unwrap_or_default().iter().collect())
}

fn distances(text: &str, nodes: &[u32]) -> std::result::Result<BTreeMap<u32, u32>, Malformed> {
    let wrong = || Malformed::new("as many distances as NUMA nodes are online", text);
    let distances: Option<Vec<u32>> = text
        .split_ascii_whitespace()
        .map(|number| number.parse().ok())
        .collect();
    let distances = distances.ok_or_else(wrong)?;
    if distances.len() != nodes.len() {
        return Err(wrong());
    }
    Ok(nodes.iter().copied().zip(distances).collect())
}

/// Reads `hugepages-2048kB/nr_hugepages` and its siblings.
fn huge_pages(root: &Root, dir: &std::path::Path) -> Result<BTreeMap<u64, u64>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(BTreeMap::new()),
        Err(error) => return Err(HostError::io("list", dir, error)),
    };
    let mut pages = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let size = name.to_str().and_then(|name| {
            let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            size.parse::<u64>().ok()?.checked_mul(1024)
        });
        let Some(size) = size else {
            continue;
        };
        let path = entry.path().join("nr_hugepages");
        let count = root.read_with(&path, |text| {
            let count = text.trim().parse::<u64>();
            count.map_err(|_| Malformed::new("a number of huge pages", text))
        })?;
        pages.insert(size, count.unwrap_or(0));
    }
    Ok(pages)
}

/// Returns the CPUs by type (`core`, `atom`) on a machine with different CPUs, from the kernel's performance
/// counters; empty elsewhere.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn cpu_types(root: &Root) -> Result<BTreeMap<String, CpuSet>> {
    let dir = root.sys("devices");
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(BTreeMap::new()),
        Err(error) => return Err(HostError::io("list", &dir, error)),
    };
    let mut types = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("cpu_")) else {
            continue;
        };
        let cpus: Option<CpuSet> = root.read_with(&entry.path().join("cpus"), cpuset::parse)?;
        types.extend(cpus.map(|cpus| (name.to_owned(), cpus)));
    }
    Ok(types)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sys(tempfile::TempDir);

    impl Sys {
        /// Creates a machine with these NUMA nodes: CPUs, KiB of memory, distances.
        fn new(online: &str, nodes: &[(u32, &str, u64, &str)]) -> Self {
            let sys = Self(tempfile::tempdir().unwrap());
            sys.put("online", online);
            for (id, cpus, memory, distance) in nodes {
                sys.put(&format!("node{id}/cpulist"), &format!("{cpus}\n"));
                let meminfo = format!("Node {id} MemTotal: {memory} kB\nNode {id} MemFree: 1 kB\n");
                sys.put(&format!("node{id}/meminfo"), &meminfo);
                sys.put(&format!("node{id}/distance"), &format!("{distance}\n"));
            }
            sys
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join("sys/devices/system/node").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self) -> Result<Vec<NumaNode>> {
            nodes(&Root::below(self.0.path()).unwrap())
        }

        /// Formats each node as `number cpus bytes distances`.
        fn text(&self) -> Vec<String> {
            let show = |node: NumaNode| {
                let distances: Vec<String> = node
                    .distances
                    .iter()
                    .map(|(to, distance)| format!("{to}:{distance}"))
                    .collect();
                let (id, cpus, memory) = (node.id, node.cpus, node.memory);
                format!("{id} [{cpus}] {memory} {}", distances.join(" "))
            };
            self.read().unwrap().into_iter().map(show).collect()
        }
    }

    #[test]
    fn two_nodes_with_huge_pages() {
        let two = [(0, "0-3,8-11", 64, "10 21"), (1, "4-7,12-15", 32, "21 10")];
        let sys = Sys::new("0-1", &two);
        for (kib, count) in [(2048, 8), (1_048_576, 0)] {
            let file = format!("node1/hugepages/hugepages-{kib}kB/nr_hugepages");
            sys.put(&file, &format!("{count}\n"));
        }
        assert_eq!(
            sys.text(),
            [
                "0 [0-3,8-11] 65536 0:10 1:21",
                "1 [4-7,12-15] 32768 0:21 1:10"
            ]
        );
        let pages = &sys.read().unwrap()[1].huge_pages;
        assert_eq!(*pages, BTreeMap::from([(2 << 20, 8), (1 << 30, 0)]));
    }

    /// Sub-NUMA clusters: of two sockets with two nodes each, the sibling is nearer.
    #[test]
    fn sub_numa_clusters_are_four_nodes() {
        let four = [
            (0, "0-1", 1, "10 12 21 21"),
            (1, "2-3", 1, "12 10 21 21"),
            (2, "4-5", 1, "21 21 10 12"),
            (3, "6-7", 1, "21 21 12 10"),
        ];
        let lines = Sys::new("0-3", &four).text();
        assert_eq!(lines[0], "0 [0-1] 1024 0:10 1:12 2:21 3:21");
        assert_eq!(lines[3], "3 [6-7] 1024 0:21 1:21 2:12 3:10");
    }

    #[test]
    fn eight_nodes() {
        let distance = |id: u32| {
            let to = (0..8).map(|to| if to == id { "10" } else { "32" });
            to.collect::<Vec<_>>().join(" ")
        };
        let rows: Vec<_> = (0..8)
            .map(|id| (id, id.to_string(), distance(id)))
            .collect();
        let rows: Vec<_> = rows
            .iter()
            .map(|(id, cpus, distance)| (*id, cpus.as_str(), 4, distance.as_str()))
            .collect();
        let lines = Sys::new("0-7", &rows).text();
        assert_eq!(lines.len(), 8);
        assert_eq!(
            lines[5],
            "5 [5] 4096 0:32 1:32 2:32 3:32 4:32 5:10 6:32 7:32"
        );
    }

    /// CXL memory has no CPUs; numbers have holes; a node of devices only has a distance, and is none.
    #[test]
    fn memory_only_nodes_and_nodes_for_devices() {
        let sys = Sys::new(
            "0,2,5",
            &[
                (0, "0-1", 8, "10 14 20"),
                (2, "", 16, "14 10 20"),
                (5, "", 0, "20 20 10"),
            ],
        );
        // A node with a device of its own may have memory as well.
        sys.put("has_generic_initiator", "2,5\n");
        assert_eq!(
            sys.text(),
            ["0 [0-1] 8192 0:10 2:14 5:20", "2 [] 16384 0:14 2:10 5:20"]
        );
    }

    #[test]
    fn malformed_files_are_named() {
        let bad = |distance: &str, cpus: &str| {
            let error = Sys::new("0-1", &[(0, cpus, 1, distance), (1, "1", 1, "20 10")]);
            error.read().unwrap_err().to_string()
        };
        for (distance, cpus, file) in [
            ("10", "0", "node0/distance"),
            ("10 20 30", "0", "node0/distance"),
            ("10 far", "0", "node0/distance"),
            ("10 20", "0-", "node0/cpulist"),
        ] {
            let error = bad(distance, cpus);
            assert!(error.contains(file), "{error}");
        }
        let sys = Sys::new("0", &[(0, "0", 1, "10")]);
        sys.put("node0/meminfo", "Node 0 MemTotal: much kB\n");
        assert!(
            sys.read()
                .unwrap_err()
                .to_string()
                .contains("node0/meminfo")
        );
        sys.put(
            "node0/meminfo",
            "Node 0 MemTotal: 1 kB\nNode 0 MemFree: 1 kB\n",
        );
        sys.put("node0/hugepages/hugepages-2048kB/nr_hugepages", "-1\n");
        assert!(sys.read().unwrap_err().to_string().contains("nr_hugepages"));
    }

    #[test]
    fn cpu_types_of_hybrid_machine_are_listed() {
        let sys = Sys::new("0", &[(0, "0-7", 1, "10")]);
        let types = || cpu_types(&Root::below(sys.0.path()).unwrap()).map_err(|e| e.to_string());
        assert_eq!(types().unwrap(), BTreeMap::new());
        for (name, cpus) in [("core", "0-3\n"), ("atom", "4-7\n")] {
            sys.put(&format!("../../cpu_{name}/cpus"), cpus);
        }
        let cpu_types = types().unwrap();
        let cpu_types: Vec<String> = cpu_types
            .iter()
            .map(|(t, cpus)| format!("{t} {cpus}"))
            .collect();
        assert_eq!(cpu_types, ["atom 4-7", "core 0-3"]);
        sys.put("../../cpu_core/cpus", "3-0\n");
        let error = types().unwrap_err();
        assert!(error.contains("cpu_core/cpus"), "{error}");
    }

    /// Checks the machine that runs the test.
    #[test]
    fn the_real_machine_adds_up() {
        let root = Root::system().unwrap();
        let all_nodes = nodes(&root).unwrap();
        if all_nodes.is_empty() {
            return crate::testing::skip("numa", "this kernel has no NUMA nodes in sysfs");
        }
        let mut cpus = CpuSet::default();
        for node in &all_nodes {
            cpus = cpus.iter().chain(node.cpus.iter()).collect();
            assert_eq!(node.distances.get(&node.id), Some(&10), "{node:?}");
        }
        assert_eq!(cpus, crate::topology::online(&root).unwrap());
        assert!(
            all_nodes.iter().any(|node| node.memory > 0),
            "{all_nodes:?}"
        );
    }
}
