//! The resource controllers of control groups.

/// A resource controller, as cgroup v1 names its hierarchies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Controller {
    Cpu,
    Cpuacct,
    Cpuset,
    Memory,
    Blkio,
    Pids,
    Freezer,
    NetCls,
    Hugetlb,
    PerfEvent,
}

impl Controller {
    /// All controllers.
    pub const ALL: [Self; 10] = [
        Self::Cpu,
        Self::Cpuacct,
        Self::Cpuset,
        Self::Memory,
        Self::Blkio,
        Self::Pids,
        Self::Freezer,
        Self::NetCls,
        Self::Hugetlb,
        Self::PerfEvent,
    ];

    /// Returns the name in mount options and v1 directory names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Blkio => "blkio",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
            Self::NetCls => "net_cls",
            Self::Hugetlb => "hugetlb",
            Self::PerfEvent => "perf_event",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|controller| controller.name() == name)
    }
}
