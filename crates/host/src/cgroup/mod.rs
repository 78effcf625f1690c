//! A control group, across all mounted hierarchies.

mod lifecycle;
pub mod psi;
pub mod resource;
pub mod stat;
pub mod weight;

pub use lifecycle::KillReport;
pub use psi::{Pressure, PressureKind, PressureLine};
pub use resource::Resource;
pub(crate) use resource::is_rounded_quota;
pub use stat::{CpuStat, MemoryStat};
pub use weight::WeightFormula;

use crate::controller::Controller;
use crate::cpuset::{self, CpuSet};
use crate::error::{HostError, Malformed, Result};
use crate::path::CgroupPath;
use crate::reader::{self, Reader};
use crate::root::{Root, Version};
use std::path::PathBuf;

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWrite {
    /// The file.
    pub path: PathBuf,
    /// The value before, in v1 units.
    pub old: String,
    /// The requested value, in v1 units.
    pub new: String,
    /// True if the file was written, false if it already held `new`.
    pub changed: bool,
}

/// A handle of a control group. The group need not exist.
#[derive(Debug, Clone)]
pub struct Cgroup {
    root: Root,
    path: CgroupPath,
}

impl Root {
    /// Returns the group at `path`, across all hierarchies. Does not check that it exists.
    #[must_use]
    pub fn cgroup(&self, path: &CgroupPath) -> Cgroup {
        Cgroup::new(self.clone(), path.clone())
    }
}

impl Cgroup {
    fn new(root: Root, path: CgroupPath) -> Self {
        Self { root, path }
    }

    /// Returns the path below the hierarchies' roots.
    #[must_use]
    pub fn path(&self) -> &CgroupPath {
        &self.path
    }

    /// Returns the machine.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the directory in the tree that carries `controller`; `None` when it is not mounted.
    #[must_use]
    pub fn dir(&self, controller: Controller) -> Option<PathBuf> {
        self.root
            .mount_of(controller)
            .map(|mount| self.path.under(mount))
    }

    /// Returns the directory in the unified tree.
    #[must_use]
    pub fn unified_dir(&self) -> Option<PathBuf> {
        self.root
            .unified_mount()
            .map(|mount| self.path.under(mount))
    }

    /// Returns the file of `resource`. PSI files are in the unified tree where one is mounted.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] when the mounted version has no such file.
    pub fn file(&self, resource: Resource) -> Result<PathBuf> {
        let version = self.root.version();
        let unsupported = |version| HostError::Unsupported {
            resource: resource.name(),
            version,
        };
        let (controller, name) = resource
            .file(version)
            .ok_or_else(|| unsupported(version.as_str()))?;
        let pressure = matches!(
            resource,
            Resource::CpuPressure | Resource::MemoryPressure | Resource::IoPressure
        );
        let dir = if pressure { self.unified_dir() } else { None };
        let dir = dir
            .or_else(|| self.dir(controller))
            .ok_or_else(|| unsupported("the mounted hierarchies"))?;
        Ok(dir.join(name))
    }

    /// Returns whether the group has a file for `resource`.
    #[must_use]
    pub fn supports(&self, resource: Resource) -> bool {
        self.file(resource).is_ok_and(|path| path.exists())
    }

    /// Returns the value of `resource` in v1 units; `None` when the group or the file is gone.
    ///
    /// # Errors
    /// When the version has no such file, or it cannot be read or parsed.
    pub fn value(&self, resource: Resource) -> Result<Option<String>> {
        let (version, formula) = (self.root.version(), self.root.weight_formula());
        self.root.read_short(&self.file(resource)?, |text| {
            match self.intended(resource, text) {
                Some(value) => Ok(value),
                None => resource.decode_with(version, formula, text),
            }
        })
    }

    /// Returns the value of a dry run, by the name of the [target](crate::target::Target), whose file has `content`.
    fn intended(&self, resource: Resource, content: &str) -> Option<String> {
        let overlay = self.root.overlay()?;
        overlay.value(&format!("{} {}", self.path, resource.name()), content)
    }

    fn number(&self, resource: Resource) -> Result<Option<i64>> {
        let path = self.file(resource)?;
        match self.value(resource)? {
            None => Ok(None),
            Some(text) => reader::signed(&text)
                .map(Some)
                .map_err(|bad| HostError::malformed(&path, bad)),
        }
    }

    fn read_parsed<T>(
        &self,
        resource: Resource,
        parse: impl FnOnce(&str) -> std::result::Result<T, Malformed>,
    ) -> Result<Option<T>> {
        self.root.read_short(&self.file(resource)?, |text| {
            match self.intended(resource, text) {
                Some(value) => parse(&value),
                None => parse(text),
            }
        })
    }

    /// Returns the CPU weight in shares.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn cpu_shares(&self) -> Result<Option<i64>> {
        self.number(Resource::CpuShares)
    }

    /// Returns the CFS quota in microseconds per period; -1 is unlimited.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn cfs_quota(&self) -> Result<Option<i64>> {
        self.number(Resource::CfsQuota)
    }

    /// Returns the CFS period in microseconds.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn cfs_period(&self) -> Result<Option<i64>> {
        self.number(Resource::CfsPeriod)
    }

    /// Returns the CFS burst in microseconds.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn cfs_burst(&self) -> Result<Option<i64>> {
        self.number(Resource::CfsBurst)
    }

    /// Returns whether the group has the idle policy.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn cpu_idle(&self) -> Result<Option<bool>> {
        Ok(self.number(Resource::CpuIdle)?.map(|idle| idle == 1))
    }

    /// Returns the configured CPU list; empty on v2 when nothing is configured.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn cpuset(&self) -> Result<Option<CpuSet>> {
        self.read_parsed(Resource::CpusetCpus, cpuset::parse)
    }

    /// Returns the CPUs that the group can actually use.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn effective_cpuset(&self) -> Result<Option<CpuSet>> {
        self.read_parsed(Resource::CpusetCpusEffective, cpuset::parse)
    }

    /// Returns the CPU time used so far, in nanoseconds.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn cpu_usage(&self) -> Result<Option<u64>> {
        Ok(self
            .number(Resource::CpuacctUsage)?
            .map(|usage| u64::try_from(usage).unwrap_or(0)))
    }

    /// Returns the throttling counters.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn cpu_stat(&self) -> Result<Option<CpuStat>> {
        self.read_parsed(Resource::CpuStat, CpuStat::parse)
    }

    /// Returns the memory charged to the group, in bytes, page cache included.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn memory_usage(&self) -> Result<Option<u64>> {
        self.read_parsed(Resource::MemoryUsage, reader::number)
    }

    /// Returns the memory limit in bytes; -1 is unlimited.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn memory_limit(&self) -> Result<Option<i64>> {
        self.number(Resource::MemoryLimit)
    }

    /// Returns the memory by kind, in bytes, including that of descendants.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn memory_stat(&self) -> Result<Option<MemoryStat>> {
        self.read_parsed(
            Resource::MemoryStat,
            stat::memory_stat_parser(self.root.version()),
        )
    }

    /// Returns the memory per NUMA node, in pages, with the node id.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn memory_numa_pages(&self) -> Result<Option<Vec<(u32, u64)>>> {
        let version = self.root.version();
        self.read_parsed(Resource::MemoryNumaStat, |text| {
            stat::numa_pages(version, text)
        })
    }

    /// Returns the number of OOM kills in this group.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn oom_kills(&self) -> Result<Option<u64>> {
        self.read_parsed(Resource::MemoryEvents, stat::oom_kills)
    }

    /// Returns the pressure of `kind`; `None` when the group is gone or the kernel keeps no PSI for it.
    ///
    /// # Errors
    /// As [`Cgroup::value`].
    pub fn pressure(&self, kind: PressureKind) -> Result<Option<Pressure>> {
        match self.read_parsed(kind.resource(), Pressure::parse) {
            Err(error) if error.is_unsupported() => Ok(None),
            other => other,
        }
    }

    /// Returns a reader of the CPU time used, in nanoseconds.
    ///
    /// # Errors
    /// When the file exists but cannot be opened.
    pub fn cpu_usage_reader(&self) -> Result<Option<Reader<u64>>> {
        let parse = match self.root.version() {
            Version::V1 => reader::number,
            Version::V2 => stat::usage_of_cpu_stat,
        };
        Reader::open(self.file(Resource::CpuacctUsage)?, parse)
    }

    /// Returns a reader of the throttling counters.
    ///
    /// # Errors
    /// When the file exists but cannot be opened.
    pub fn cpu_stat_reader(&self) -> Result<Option<Reader<CpuStat>>> {
        Reader::open(self.file(Resource::CpuStat)?, CpuStat::parse)
    }

    /// Returns a reader of the memory kinds.
    ///
    /// # Errors
    /// When the file exists but cannot be opened.
    pub fn memory_stat_reader(&self) -> Result<Option<Reader<MemoryStat>>> {
        let parse = stat::memory_stat_parser(self.root.version());
        Reader::open(self.file(Resource::MemoryStat)?, parse)
    }

    /// Returns a reader of the charged memory, in bytes.
    ///
    /// # Errors
    /// When the file exists but cannot be opened.
    pub fn memory_usage_reader(&self) -> Result<Option<Reader<u64>>> {
        Reader::open(self.file(Resource::MemoryUsage)?, reader::number)
    }

    /// Returns a reader of pressure; `None` when the group has no PSI files or PSI is switched off.
    ///
    /// # Errors
    /// When the file exists but cannot be opened.
    pub fn pressure_reader(&self, kind: PressureKind) -> Result<Option<Reader<Pressure>>> {
        let path = match self.file(kind.resource()) {
            Ok(path) => path,
            Err(error) if error.is_unsupported() => return Ok(None),
            Err(error) => return Err(error),
        };
        match Reader::open(path, Pressure::parse) {
            Err(error) if error.is_unsupported() => Ok(None),
            other => other,
        }
    }
}
