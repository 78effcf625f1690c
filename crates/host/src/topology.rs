//! CPU topology from sysfs.

use crate::cpuset::{self, CpuSet};
use crate::error::{HostError, Malformed, Result};
use crate::root::Root;
use std::collections::BTreeSet;
use std::fs;

/// Location of an online CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuLocation {
    /// Logical CPU number.
    pub cpu: u32,
    /// Core number, unique within the machine: see [`CpuTopology::read`].
    pub core: u32,
    /// Package (socket) number.
    pub socket: u32,
    /// NUMA node.
    pub node: u32,
    /// Id of the last-level (L3) cache; the socket where the machine reports none.
    pub l3: u32,
}

/// The CPUs of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuTopology {
    /// Online CPUs, by number.
    pub cpus: Vec<CpuLocation>,
    /// Online CPUs as a set.
    pub online: CpuSet,
    /// NUMA nodes that have memory or CPUs.
    pub nodes: Vec<u32>,
    /// True if hyper-threading is active.
    pub smt: bool,
}

impl CpuTopology {
    /// Reads the topology of the machine.
    ///
    /// The kernel's `core_id` is only unique within a socket, so cores are renumbered, in the
    /// order of their first CPU, as `lscpu` does.
    ///
    /// # Errors
    /// When a file cannot be read or parsed.
    pub fn read(root: &Root) -> Result<Self> {
        let online = online(root)?;
        let nodes = node_ids(root)?;
        let mut node_of = Vec::new();
        for node in &nodes {
            let cpus = list(root, &format!("devices/system/node/node{node}/cpulist"))?;
            node_of.push((*node, cpus.unwrap_or_default()));
        }
        let mut cpus = Vec::with_capacity(online.len());
        let mut cores: Vec<(u32, u32, u32)> = Vec::new();
        for cpu in online.iter() {
            let file = |name: &str| {
                number(
                    root,
                    &format!("devices/system/cpu/cpu{cpu}/topology/{name}"),
                )
            };
            let socket = file("physical_package_id")?.unwrap_or(0);
            let die = file("die_id")?.unwrap_or(0);
            let core_id = (socket, die, file("core_id")?.unwrap_or(cpu));
            let core = match cores.iter().position(|other| *other == core_id) {
                Some(position) => position,
                None => {
                    cores.push(core_id);
                    cores.len() - 1
                }
            };
            let node = node_of.iter().find(|(_, members)| members.contains(cpu));
            cpus.push(CpuLocation {
                cpu,
                core: u32::try_from(core).unwrap_or(u32::MAX),
                socket,
                node: node.map_or(0, |(node, _)| *node),
                l3: l3_id(root, cpu)?.unwrap_or(socket),
            });
        }
        let smt = root
            .read(&root.sys("devices/system/cpu/smt/active"))?
            .map_or(cores.len() < cpus.len(), |text| text.trim() == "1");
        Ok(Self {
            cpus,
            online,
            nodes,
            smt,
        })
    }

    /// Returns the number of online CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cpus.len()
    }

    /// Returns whether no CPU was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty()
    }

    /// Returns the CPUs for which `belongs` returns true.
    pub fn cpus_where(&self, belongs: impl Fn(&CpuLocation) -> bool) -> CpuSet {
        self.cpus
            .iter()
            .filter(|cpu| belongs(cpu))
            .map(|cpu| cpu.cpu)
            .collect()
    }

    /// Returns the NUMA node of `cpu`.
    #[must_use]
    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.cpus
            .iter()
            .find(|location| location.cpu == cpu)
            .map(|location| location.node)
    }
}

/// Returns the online CPUs; empty where the machine does not report them.
///
/// # Errors
/// When the file cannot be read or parsed.
pub fn online(root: &Root) -> Result<CpuSet> {
    Ok(list(root, "devices/system/cpu/online")?.unwrap_or_default())
}

fn list(root: &Root, relative: &str) -> Result<Option<CpuSet>> {
    root.read_with(&root.sys(relative), cpuset::parse)
}

/// Reads a number; `None` for -1, which sysfs uses for "unknown".
fn number(root: &Root, relative: &str) -> Result<Option<u32>> {
    let value = root.read_with(&root.sys(relative), crate::reader::signed)?;
    Ok(value.and_then(|value| u32::try_from(value).ok()))
}

/// Returns the online NUMA nodes without those that exist for devices only. A kernel without NUMA support has
/// node 0.
pub(crate) fn node_ids(root: &Root) -> Result<Vec<u32>> {
    let initiators = list(root, "devices/system/node/has_generic_initiator")?.unwrap_or_default();
    let online = list(root, "devices/system/node/online")?;
    let mut nodes: BTreeSet<u32> = match online {
        Some(online) => online.difference(&initiators).iter().collect(),
        None => BTreeSet::new(),
    };
    if nodes.is_empty() {
        nodes.insert(0);
    }
    Ok(nodes.into_iter().collect())
}

/// Returns the id of the L3 cache of a CPU; `None` if the kernel reports none.
fn l3_id(root: &Root, cpu: u32) -> Result<Option<u32>> {
    let dir = root.sys(&format!("devices/system/cpu/cpu{cpu}/cache"));
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if crate::error::is_gone(&error) => return Ok(None),
        Err(error) => return Err(HostError::io("list", &dir, error)),
    };
    for entry in entries.flatten() {
        let index = entry.path();
        if root
            .read(&index.join("level"))?
            .is_none_or(|level| level.trim() != "3")
        {
            continue;
        }
        if let Some(id) = root.read(&index.join("id"))? {
            let id = id.trim().parse().map_err(|_| {
                HostError::malformed(&index.join("id"), Malformed::new("a cache id", &id))
            })?;
            return Ok(Some(id));
        }
        // Older kernels have no id: the first CPU that shares the cache serves as id.
        let path = index.join("shared_cpu_list");
        let sharing: Option<CpuSet> = root.read_with(&path, cpuset::parse)?;
        return Ok(sharing.and_then(|cpus| cpus.iter().next()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &tempfile::TempDir, path: &str, text: &str) {
        let path = dir.path().join("sys/devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn two_sockets_with_hyper_threads() {
        let temp = tempfile::tempdir().unwrap();
        put(&temp, "cpu/online", "0-7\n");
        put(&temp, "cpu/smt/active", "1\n");
        put(&temp, "node/online", "0-2\n");
        put(&temp, "node/has_generic_initiator", "2\n");
        put(&temp, "node/node0/cpulist", "0-1,4-5\n");
        put(&temp, "node/node1/cpulist", "2-3,6-7\n");
        for cpu in 0..8 {
            let socket = (cpu % 4) / 2;
            put(
                &temp,
                &format!("cpu/cpu{cpu}/topology/physical_package_id"),
                &socket.to_string(),
            );
            put(
                &temp,
                &format!("cpu/cpu{cpu}/topology/core_id"),
                &(cpu % 2).to_string(),
            );
            put(&temp, &format!("cpu/cpu{cpu}/cache/index3/level"), "3\n");
            put(
                &temp,
                &format!("cpu/cpu{cpu}/cache/index3/id"),
                &format!("{socket}\n"),
            );
        }
        let topology = CpuTopology::read(&Root::below(temp.path()).unwrap()).unwrap();
        let flat: Vec<_> = topology
            .cpus
            .iter()
            .map(|c| (c.cpu, c.core, c.socket, c.node))
            .collect();
        assert_eq!(
            flat,
            [
                (0, 0, 0, 0),
                (1, 1, 0, 0),
                (2, 2, 1, 1),
                (3, 3, 1, 1),
                (4, 0, 0, 0),
                (5, 1, 0, 0),
                (6, 2, 1, 1),
                (7, 3, 1, 1)
            ]
        );
        assert_eq!(topology.nodes, [0, 1]);
        assert!(topology.smt);
        assert_eq!(
            topology.cpus_where(|cpu| cpu.l3 == 1).to_string(),
            "2-3,6-7"
        );
        assert_eq!(topology.node_of(6), Some(1));
    }

    #[test]
    fn a_machine_without_topology_files() {
        let temp = tempfile::tempdir().unwrap();
        put(&temp, "cpu/online", "0-1\n");
        let topology = CpuTopology::read(&Root::below(temp.path()).unwrap()).unwrap();
        assert_eq!(
            topology.cpus.iter().map(|c| c.core).collect::<Vec<_>>(),
            [0, 1]
        );
        assert_eq!((topology.nodes.as_slice(), topology.smt), (&[0][..], false));
    }

    #[test]
    fn garbage_names_the_file() {
        let temp = tempfile::tempdir().unwrap();
        put(&temp, "cpu/online", "zero\n");
        let error = CpuTopology::read(&Root::below(temp.path()).unwrap()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("cpu/online: expected a CPU list"),
            "{error}"
        );
    }

    #[test]
    fn this_machine() {
        let topology = CpuTopology::read(&Root::system().unwrap()).unwrap();
        assert!(!topology.is_empty());
    }
}
