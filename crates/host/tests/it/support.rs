//! A group of the test's own on the real tree, removed at the end.

use koord_host::testing::skip;
use koord_host::{CgroupPath, Controller, HostError, Root};
use std::sync::atomic::{AtomicU32, Ordering};

/// The controllers that the tests use.
pub(crate) const CONTROLLERS: [Controller; 6] = [
    Controller::Cpu,
    Controller::Cpuacct,
    Controller::Cpuset,
    Controller::Memory,
    Controller::Blkio,
    Controller::Freezer,
];

/// A group on the real tree.
pub(crate) struct TestHierarchy {
    pub(crate) root: Root,
    pub(crate) path: CgroupPath,
}

impl TestHierarchy {
    /// Creates the group, or records a skipped test.
    pub(crate) fn new() -> Option<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let root = Root::system().unwrap();
        let name = format!("koord-test-{}-{number}", std::process::id());
        let path = CgroupPath::new(&name).unwrap();
        let created = if root.has_cgroups() {
            root.cgroup(&path).create(&CONTROLLERS).map(|_| ())
        } else {
            Err(HostError::Unsupported {
                resource: "cgroup",
                version: "this machine",
            })
        };
        match created {
            Ok(()) => Some(Self { root, path }),
            Err(error) => {
                skip("cgroup-write", error);
                None
            }
        }
    }
}

impl Drop for TestHierarchy {
    fn drop(&mut self) {
        let group = self.root.cgroup(&self.path);
        for _ in 0..200 {
            let _ = group.kill();
            if group.remove().is_ok() {
                return;
            }
            std::thread::yield_now();
        }
        eprintln!("left behind: {}", self.path);
    }
}
