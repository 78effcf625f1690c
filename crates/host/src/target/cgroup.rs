//! Writes values of control groups.

use super::Target;
use crate::cgroup::{Cgroup, FileWrite, Resource};
use crate::cpuset::CpuSet;
use crate::error::Result;
use crate::path::CgroupPath;
use crate::root::{Root, Version};

impl Cgroup {
    /// Writes `value` (v1 units) unless the file already holds it.
    ///
    /// # Errors
    /// [`Invalid`](crate::HostError::Invalid) before anything is written; else the kernel's error, with path
    /// and value. [`is_gone`](crate::HostError::is_gone) is true for a vanished group.
    pub fn set_value(&self, resource: Resource, value: &str) -> Result<FileWrite> {
        let target = Target::cgroup(self.path(), resource);
        self.root().write_target(&target, value)
    }

    /// Sets the CPU weight, in shares.
    ///
    /// # Errors
    /// As [`Cgroup::set_value`].
    pub fn set_cpu_shares(&self, shares: i64) -> Result<FileWrite> {
        self.set_value(Resource::CpuShares, &shares.to_string())
    }

    /// Sets the CFS quota in microseconds per period; -1 removes it.
    ///
    /// # Errors
    /// As [`Cgroup::set_value`].
    pub fn set_cfs_quota(&self, quota: i64) -> Result<FileWrite> {
        self.set_value(Resource::CfsQuota, &quota.to_string())
    }

    /// Sets the idle policy. Switching it off leaves the group at the default weight, not at its former one
    /// (the kernel does not keep it), so the caller must write the shares next.
    ///
    /// # Errors
    /// As [`Cgroup::set_value`].
    pub fn set_cpu_idle(&self, idle: bool) -> Result<FileWrite> {
        self.set_value(Resource::CpuIdle, if idle { "1" } else { "0" })
    }

    /// Sets the CPU list.
    ///
    /// # Errors
    /// As [`Cgroup::set_value`].
    pub fn set_cpuset(&self, cpus: &CpuSet) -> Result<FileWrite> {
        self.set_value(Resource::CpusetCpus, &cpus.to_string())
    }

    /// Sets the memory limit in bytes; -1 removes it.
    ///
    /// # Errors
    /// As [`Cgroup::set_value`].
    pub fn set_memory_limit(&self, bytes: i64) -> Result<FileWrite> {
        self.set_value(Resource::MemoryLimit, &bytes.to_string())
    }
}

impl Root {
    /// Records the weight of `group`, to which a runtime of cgroup v2 gave `shares`.
    pub fn observe_group(&self, group: &CgroupPath, shares: i64) {
        if self.version() != Version::V2 {
            return;
        }
        let target = Target::cgroup(group, Resource::CpuShares);
        let Ok(path) = target.path(self) else { return };
        if let Ok(Some(weight)) = self.read_short(&path, |text| Ok(text.trim().parse().ok())) {
            weight.inspect(|weight| self.observe_weight(shares, *weight));
        }
    }
}
