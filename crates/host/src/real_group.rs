//! A group of this kernel for unit tests.

use crate::testing::skip;
use crate::{Cgroup, CgroupPath, Controller, Result, Root};

/// A group of this kernel for a unit test, removed at the end with its processes.
pub(crate) struct RealGroup(pub(crate) Cgroup);

impl RealGroup {
    /// Creates a cgroup. If that is impossible on this machine, reports the test as skipped and returns
    /// `None`.
    #[track_caller]
    pub(crate) fn new(name: &str, controllers: &[Controller]) -> Result<Option<Self>> {
        let root = Root::system()?;
        let path = CgroupPath::new(&format!("koord-{name}-{}", std::process::id()))?;
        let group = root.cgroup(&path);
        if !root.has_cgroups() || group.create(controllers).is_err() {
            skip("cgroup-write", "the cgroup tree cannot be written");
            return Ok(None);
        }
        Ok(Some(Self(group)))
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        for _ in 0..1000 {
            if self.0.kill().is_ok() && self.0.remove().is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}
