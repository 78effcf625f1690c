//! Where the kubelet puts pods and containers in the cgroup tree.

use koord_api::qos::KubeQos;
use koord_host::{CgroupPath, HostError, Root};

/// How the kubelet names cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// `kubepods/besteffort/pod<uid>/<id>`.
    Cgroupfs,
    /// `kubepods.slice/kubepods-besteffort.slice/…`.
    Systemd,
}

/// The naming scheme and the group that all of it is below.
#[derive(Debug, Clone)]
pub struct Layout {
    driver: Driver,
    parent: CgroupPath,
}

impl Layout {
    /// The layout below `parent` (usually the root group).
    #[must_use]
    pub fn new(driver: Driver, parent: CgroupPath) -> Self {
        Self { driver, parent }
    }

    /// Finds out the driver from the directories that exist; cgroupfs when there are none yet.
    #[must_use]
    pub fn detect(root: &Root, parent: CgroupPath) -> Self {
        let slice = parent.join("kubepods.slice");
        let systemd = slice.is_ok_and(|path| root.cgroup(&path).exists());
        Self::new(
            if systemd {
                Driver::Systemd
            } else {
                Driver::Cgroupfs
            },
            parent,
        )
    }

    /// The naming scheme.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// The group of a QoS class; guaranteed pods live directly in the group of all pods.
    ///
    /// # Errors
    /// Never for a valid parent; the path type is checked.
    pub fn qos(&self, qos: KubeQos) -> Result<CgroupPath, HostError> {
        self.parent.join(match (self.driver, qos) {
            (Driver::Cgroupfs, KubeQos::Guaranteed) => "kubepods",
            (Driver::Cgroupfs, KubeQos::Burstable) => "kubepods/burstable",
            (Driver::Cgroupfs, KubeQos::BestEffort) => "kubepods/besteffort",
            (Driver::Systemd, KubeQos::Guaranteed) => "kubepods.slice",
            (Driver::Systemd, KubeQos::Burstable) => "kubepods.slice/kubepods-burstable.slice",
            (Driver::Systemd, KubeQos::BestEffort) => "kubepods.slice/kubepods-besteffort.slice",
        })
    }

    /// The group of a pod.
    ///
    /// # Errors
    /// When the UID cannot be part of a path.
    pub fn pod(&self, qos: KubeQos, uid: &str) -> Result<CgroupPath, HostError> {
        if uid.is_empty() || uid.contains('/') {
            return Err(HostError::Path {
                path: uid.to_owned(),
                reason: "is no pod UID",
            });
        }
        let class = self.qos(qos)?;
        match self.driver {
            Driver::Cgroupfs => class.join(&format!("pod{uid}")),
            Driver::Systemd => {
                let infix = match qos {
                    KubeQos::Guaranteed => "",
                    KubeQos::Burstable => "-burstable",
                    KubeQos::BestEffort => "-besteffort",
                };
                let uid = uid.replace('-', "_");
                class.join(&format!("kubepods{infix}-pod{uid}.slice"))
            }
        }
    }

    /// The group of a container below its pod's; `id` as in the pod's status, `runtime://hash`.
    ///
    /// # Errors
    /// When the id has no runtime or cannot be part of a path.
    pub fn container(&self, pod: &CgroupPath, id: &str) -> Result<CgroupPath, HostError> {
        let (runtime, hash) = id
            .split_once("://")
            .filter(|(_, hash)| !hash.is_empty())
            .ok_or_else(|| HostError::Path {
                path: id.to_owned(),
                reason: "is no container id",
            })?;
        match self.driver {
            Driver::Cgroupfs => pod.join(hash),
            Driver::Systemd => {
                let prefix = match runtime {
                    "containerd" => "cri-containerd-",
                    "cri-o" => "crio-",
                    "pouch" => "pouch-",
                    _ => "docker-",
                };
                pod.join(&format!("{prefix}{hash}.scope"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_both_drivers() {
        let cgroupfs = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        let pod = cgroupfs.pod(KubeQos::BestEffort, "a-1").unwrap();
        assert_eq!(pod.as_str(), "kubepods/besteffort/poda-1");
        assert_eq!(
            cgroupfs.container(&pod, "koord://c0").unwrap().as_str(),
            "kubepods/besteffort/poda-1/c0"
        );
        let guaranteed = cgroupfs.pod(KubeQos::Guaranteed, "a-1").unwrap();
        assert_eq!(guaranteed.as_str(), "kubepods/poda-1");
        assert!(cgroupfs.container(&pod, "c0").is_err());
        assert!(cgroupfs.pod(KubeQos::BestEffort, "../x").is_err());

        let parent = CgroupPath::new("test").unwrap();
        let systemd = Layout::new(Driver::Systemd, parent);
        let pod = systemd.pod(KubeQos::Burstable, "a-1").unwrap();
        assert_eq!(
            pod.as_str(),
            "test/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_1.slice"
        );
        let container = systemd.container(&pod, "containerd://c0").unwrap();
        assert_eq!(container.name(), "cri-containerd-c0.scope");
    }
}
