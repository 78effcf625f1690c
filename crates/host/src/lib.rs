//! The Linux kernel under an injectable root: cgroup v1 and v2, procfs, sysfs, PSI, scheduling
//! attributes and process placement.
//!
//! Start from a [`Root`]: it holds the locations of procfs, sysfs and the cgroup tree, and the mounted
//! cgroup hierarchies. A [`Cgroup`] is one group across all of them; it reads typed values and writes
//! them back, independent of the machine's cgroup version.
//!
//! Conventions in this crate:
//! * a group, process or file that is gone is `Ok(None)` when reading, and an error for which
//!   [`HostError::is_gone`] holds when writing;
//! * content that cannot be parsed is [`HostError::Malformed`], with path and content;
//! * values are in the units of the cgroup v1 files (shares, microseconds, bytes), -1 means
//!   unlimited where it does in v1.
//!
//! Invariants: this crate does not depend on Kubernetes; it is the only crate of the workspace where
//! `unsafe` may appear, and each use has a comment on its soundness.

// The fake kernel is koord-testkit's source, which names this crate from outside. Tests that depend on this
// crate, and its own, compile it as a part of this crate: another copy would have other types.
#[cfg(any(test, feature = "fake"))]
extern crate self as koord_host;

pub mod capability;
pub mod cgroup;
mod controller;
pub mod core_sched;
pub mod cpuset;
#[cfg(test)]
mod damage;
mod device;
pub mod error;
#[cfg(any(test, feature = "fake"))]
#[path = "../../testkit/src/fake/mod.rs"]
pub mod fake;
pub mod features;
pub mod limits;
pub mod memory;
mod mount_namespace;
mod mounts;
pub mod numa;
pub mod nvml;
mod order;
mod overlay;
pub mod packets;
pub mod path;
pub mod pci;
pub mod perf;
pub mod process;
pub mod procfs;
pub mod rdma;
pub mod reader;
#[cfg(test)]
mod real_group;
pub mod resctrl;
pub mod root;
pub mod sched;
pub mod target;
#[cfg(any(test, feature = "fake"))]
#[path = "../../testkit/src/testing/mod.rs"]
pub mod testing;
pub mod topology;
pub mod watch;

pub use capability::Capabilities;
pub use cgroup::{Cgroup, FileWrite, PressureKind, Resource, WeightFormula};
pub use controller::Controller;
pub use cpuset::CpuSet;
pub use device::Device;
pub use error::{HostError, Malformed, Result};
pub use mount_namespace::MountNamespace;
pub use order::Order;
pub use path::CgroupPath;
pub use reader::{Reader, Scratch};
pub use resctrl::{ResctrlGroup, Schema};
pub use root::{Dirs, Root, Version};
pub use target::{Attribute, ResctrlFile, SchedFeature, Sysctl, Target, TargetKind};

/// Returns whether this process has root's effective user id.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns this process's effective user id.
#[must_use]
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the size in bytes of the file system that holds `path`.
///
/// # Errors
/// When the path does not exist or statvfs fails.
pub fn filesystem_size(path: &std::path::Path) -> Result<u64> {
    let stat =
        rustix::fs::statvfs(path).map_err(|error| HostError::io("statvfs", path, error.into()))?;
    Ok(stat.f_frsize.saturating_mul(stat.f_blocks))
}
