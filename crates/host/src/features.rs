//! Features of this kernel, found by probing and not by version numbers.

use crate::cgroup::{PressureKind, Resource};
use crate::controller::Controller;
use crate::error::Result;
use crate::path::CgroupPath;
use crate::resctrl;
use crate::root::{Root, Version};
use std::fmt;

/// Layout of the mounted cgroup trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupMode {
    /// Without any cgroup tree.
    None,
    /// A hierarchy per controller.
    V1,
    /// [`CgroupMode::V1`] with the unified tree mounted in addition.
    Hybrid,
    /// The unified tree only.
    V2,
}

/// Features of a kernel. Each boolean is true if the files or the mechanism in its comment exist and can be
/// used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one mechanism that is there or not"
)]
pub struct KernelFeatures {
    /// Layout of the cgroup trees.
    pub mode: CgroupMode,
    /// `cpu.cfs_quota_us` or `cpu.max`.
    pub cfs_quota: bool,
    /// `cpu.cfs_burst_us` or `cpu.max.burst`.
    pub cfs_burst: bool,
    /// `cpu.idle`.
    pub cpu_idle: bool,
    /// `cpuset.cpus`.
    pub cpuset: bool,
    /// Memory controller.
    pub memory: bool,
    /// `memory.min`, `memory.low` and `memory.high`.
    pub memory_qos: bool,
    /// `memory.wmark_ratio` (Anolis).
    pub memory_wmark: bool,
    /// Per-group pressure files that can be read.
    pub cgroup_psi: bool,
    /// `/proc/pressure` that can be read.
    pub system_psi: bool,
    /// `cgroup.kill`.
    pub cgroup_kill: bool,
    /// Per-thread run-queue delay in `/proc/<pid>/schedstat`.
    pub schedstat: bool,
    /// `cpu.bvt_warp_ns` (Anolis group identity).
    pub bvt: bool,
    /// Core scheduling.
    pub core_sched: bool,
    /// Cache allocation: the CPU supports it, and resctrl is or can be mounted.
    pub resctrl_cat: bool,
    /// Memory bandwidth allocation, likewise.
    pub resctrl_mba: bool,
    /// Cold-page tracking (kidled, Anolis).
    pub kidled: bool,
    /// Block I/O throttling: `blkio.throttle.*` or `io.max`.
    pub blkio: bool,
    /// True if this process can write the cpu hierarchy.
    pub writable: bool,
}

/// Probes the kernel of `root`. Files that only exist below the root group are looked up in the groups on the
/// top level.
///
/// # Errors
/// When a file exists but cannot be read.
pub fn probe(root: &Root) -> Result<KernelFeatures> {
    probe_at(root, &CgroupPath::root())
}

/// Probes the kernel like [`probe`], but `group` first. A negative result for a group that does not exist yet means
/// nothing: probe again.
///
/// # Errors
/// As [`probe`].
pub fn probe_at(root: &Root, group: &CgroupPath) -> Result<KernelFeatures> {
    let mut groups = vec![root.cgroup(group)];
    if group.is_root() {
        for child in groups[0].children()? {
            groups.extend(CgroupPath::new(&child).ok().map(|path| root.cgroup(&path)));
        }
    }
    let has = |resource| groups.iter().any(|group| group.supports(resource));
    // Without readable files of resctrl neither is supported.
    let (resctrl_cat, resctrl_mba) = resctrl::allocates(root).unwrap_or_default();
    let mut cgroup_psi = false;
    for group in &groups {
        cgroup_psi = cgroup_psi || group.pressure(PressureKind::Cpu).ok().flatten().is_some();
    }
    let mode = match (root.version(), root.has_cgroups(), root.is_hybrid()) {
        (_, false, _) => CgroupMode::None,
        (Version::V2, ..) => CgroupMode::V2,
        (Version::V1, _, true) => CgroupMode::Hybrid,
        (Version::V1, _, false) => CgroupMode::V1,
    };
    let unified = |name: &str| {
        groups
            .iter()
            .filter_map(|group| group.unified_dir())
            .any(|dir| dir.join(name).exists())
    };
    Ok(KernelFeatures {
        mode,
        cfs_quota: has(Resource::CfsQuota),
        cfs_burst: has(Resource::CfsBurst),
        cpu_idle: has(Resource::CpuIdle),
        cpuset: has(Resource::CpusetCpus),
        memory: has(Resource::MemoryStat),
        memory_qos: has(Resource::MemoryMin) && has(Resource::MemoryHigh),
        memory_wmark: has(Resource::MemoryWmarkRatio),
        cgroup_psi,
        system_psi: crate::cgroup::psi::system(root, PressureKind::Cpu)
            .ok()
            .flatten()
            .is_some(),
        cgroup_kill: unified("cgroup.kill"),
        schedstat: root.proc("self/schedstat").exists(),
        bvt: has(Resource::CpuBvtWarp),
        core_sched: root.proc("sys/kernel/sched_core").exists()
            || root
                .read(&root.sys("kernel/debug/sched/features"))
                .ok()
                .flatten()
                .is_some_and(|text| text.contains("CORE_SCHED")),
        resctrl_cat,
        resctrl_mba,
        kidled: root.sys("kernel/mm/kidled/scan_period_in_seconds").exists(),
        blkio: has(Resource::BlkioReadBps),
        writable: is_writable(root),
    })
}

fn is_writable(root: &Root) -> bool {
    let Some(mount) = root.mount_of(Controller::Cpu) else {
        return false;
    };
    rustix::fs::access(mount, rustix::fs::Access::WRITE_OK).is_ok()
        && rustix::fs::statvfs(mount)
            .is_ok_and(|stat| !stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

impl KernelFeatures {
    /// Returns one line per mechanism, for the log at start.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let yes_no = |has: bool| if has { "yes" } else { "no" };
        let mode = match self.mode {
            CgroupMode::None => "none",
            CgroupMode::V1 => "v1",
            CgroupMode::Hybrid => "v1 with a unified v2 tree",
            CgroupMode::V2 => "v2",
        };
        let mut lines = vec![format!(
            "cgroups: {mode}{}",
            if self.writable { "" } else { ", read-only" }
        )];
        let rows = [
            ("CPU bandwidth (cfs quota)", self.cfs_quota),
            ("CPU burst (cfs_burst_us)", self.cfs_burst),
            ("idle groups (cpu.idle)", self.cpu_idle),
            ("CPU sets (cpuset)", self.cpuset),
            ("memory controller", self.memory),
            ("memory protection (memory.min/low/high)", self.memory_qos),
            ("memory watermarks (memory.wmark_ratio)", self.memory_wmark),
            ("pressure per group (PSI)", self.cgroup_psi),
            ("pressure of the machine (PSI)", self.system_psi),
            ("run-queue delay (schedstat)", self.schedstat),
            ("kill a whole group (cgroup.kill)", self.cgroup_kill),
            ("group identity (cpu.bvt_warp_ns)", self.bvt),
            ("core scheduling", self.core_sched),
            ("cache allocation (resctrl L3)", self.resctrl_cat),
            ("memory bandwidth allocation (resctrl MB)", self.resctrl_mba),
            ("cold pages (kidled)", self.kidled),
            ("block I/O throttling (blkio or io.max)", self.blkio),
        ];
        lines.extend(
            rows.iter()
                .map(|(name, has)| format!("{name}: {}", yes_no(*has))),
        );
        lines
    }
}

impl fmt::Display for KernelFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn fakes_of_each_mode() {
        let hybrid = fake::Tree::hybrid("0-3").unwrap();
        let features = probe(hybrid.root()).unwrap();
        assert_eq!(features.mode, CgroupMode::Hybrid);
        assert!(features.cpu_idle && features.cfs_burst && features.cgroup_psi && features.memory);
        assert!(!features.bvt && !features.memory_qos && !features.core_sched);
        assert_eq!(features.lines()[0], "cgroups: v1 with a unified v2 tree");

        let v1 = fake::Tree::v1("0-3").unwrap();
        let features = probe(v1.root()).unwrap();
        assert_eq!(
            (features.mode, features.cgroup_psi),
            (CgroupMode::V1, false)
        );

        let v2 = fake::Tree::v2("0-3").unwrap();
        let group = CgroupPath::new("kubepods").unwrap();
        v2.root()
            .cgroup(&group)
            .create(&[Controller::Cpu, Controller::Memory])
            .unwrap();
        let features = probe(v2.root()).unwrap();
        assert_eq!(features.mode, CgroupMode::V2);
        assert!(features.memory_qos && features.cfs_quota);
    }

    #[test]
    fn an_empty_machine_has_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let features = probe(&Root::below(temp.path()).unwrap()).unwrap();
        assert_eq!(features.mode, CgroupMode::None);
        assert!(!features.writable);
    }
}
