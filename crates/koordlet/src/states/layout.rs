//! Paths of pods and containers in the kubelet's cgroup tree.

mod find;
mod locate;

pub(crate) use find::LayoutFinder;
pub use find::{CgroupHint, DetectedLayout, Source};
pub(crate) use locate::{LocatedCgroups, Locator};

use super::slo::HostApp;
use koord_api::qos::{KubeQos, QosClass};
use koord_api::slo::CgroupBase;
use koord_host::{CgroupPath, HostError};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Cgroup driver of the kubelet, which determines the names of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// `kubepods/besteffort/pod<uid>/<id>`.
    Cgroupfs,
    /// `kubepods.slice/kubepods-besteffort.slice/…`.
    Systemd,
}

/// An unknown cgroup driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cgroup driver {0:?} is neither cgroupfs nor systemd")]
pub struct UnknownDriver(String);

impl FromStr for Driver {
    type Err = UnknownDriver;
    fn from_str(text: &str) -> Result<Self, UnknownDriver> {
        match text {
            "cgroupfs" => Ok(Self::Cgroupfs),
            "systemd" => Ok(Self::Systemd),
            other => Err(UnknownDriver(other.to_owned())),
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        })
    }
}

/// Cgroup driver and root of the kubelet's cgroup tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    driver: Driver,
    /// The kubelet's cgroupRoot in its own notation, such as `kubelet`.
    cgroup_root: CgroupPath,
    /// Cgroup of all pods.
    pods: CgroupPath,
    /// Prefix of the slices of QoS classes and pods under systemd, such as `kubelet-kubepods`.
    prefix: String,
    /// Cgroups of containers with other names, by the hash in the container's id.
    located: Arc<LocatedCgroups>,
}

impl Default for Layout {
    fn default() -> Self {
        Self::new(Driver::Cgroupfs, CgroupPath::root())
    }
}

impl Layout {
    /// Creates the layout of a kubelet with this `cgroupRoot` (usually the root cgroup). Under systemd the
    /// names of all parents are part of a slice's name: cgroupRoot `kubelet` gives
    /// `kubelet.slice/kubelet-kubepods.slice`.
    #[must_use]
    pub fn new(driver: Driver, cgroup_root: CgroupPath) -> Self {
        let mut names: Vec<&str> = cgroup_root.as_str().split('/').collect();
        names.retain(|name| !name.is_empty());
        names.push("kubepods");
        let (pods, prefix) = match driver {
            Driver::Cgroupfs => (names.join("/"), String::new()),
            Driver::Systemd => {
                let (mut path, mut prefix) = (String::new(), String::new());
                for name in names {
                    // Dashes within a name would mean another level.
                    let name = name.trim_end_matches(".slice").replace('-', "_");
                    for (text, between) in [(&mut prefix, "-"), (&mut path, "/")] {
                        if !text.is_empty() {
                            text.push_str(between);
                        }
                    }
                    prefix.push_str(&name);
                    path.push_str(&prefix);
                    path.push_str(".slice");
                }
                (path, prefix)
            }
        };
        // This exceeds the path limit only if the cgroupRoot nearly did.
        let pods = CgroupPath::new(&pods).unwrap_or_else(|_| CgroupPath::root());
        Self {
            driver,
            cgroup_root,
            pods,
            prefix,
            located: Arc::default(),
        }
    }

    /// Returns the layout with these cgroups of containers that do not follow the naming scheme.
    #[must_use]
    pub(crate) fn with_located(mut self, located: LocatedCgroups) -> Self {
        self.located = Arc::new(located);
        self
    }

    /// Returns the cgroups of containers that do not follow the naming scheme.
    pub(crate) fn located(&self) -> &LocatedCgroups {
        &self.located
    }

    /// Returns the naming scheme.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Returns the kubelet's cgroupRoot in its own notation.
    #[must_use]
    pub fn cgroup_root(&self) -> &CgroupPath {
        &self.cgroup_root
    }

    /// Returns the cgroup of a QoS class; guaranteed pods are directly in the cgroup of all pods.
    ///
    /// # Errors
    /// Never for a valid parent; the path type is checked.
    pub fn qos(&self, qos: KubeQos) -> Result<CgroupPath, HostError> {
        let name = match qos {
            KubeQos::Guaranteed => return Ok(self.pods.clone()),
            KubeQos::Burstable => "burstable",
            KubeQos::BestEffort => "besteffort",
        };
        match self.driver {
            Driver::Cgroupfs => self.pods.join(name),
            Driver::Systemd => self.pods.join(&format!("{}-{name}.slice", self.prefix)),
        }
    }

    /// Returns the cgroup of a pod.
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
                let class_name = match qos {
                    KubeQos::Guaranteed => self.prefix.as_str(),
                    _ => class.name().trim_end_matches(".slice"),
                };
                let uid = uid.replace('-', "_");
                class.join(&format!("{class_name}-pod{uid}.slice"))
            }
        }
    }

    /// Returns the cgroup of a container below that of its pod; `id` is as in the pod's status,
    /// `runtime://hash`.
    ///
    /// # Errors
    /// When the id has no runtime or cannot be part of a path.
    pub fn container(&self, pod: &CgroupPath, id: &str) -> Result<CgroupPath, HostError> {
        let (runtime, hash) = id
            .split_once("://")
            .filter(|(_, hash)| !hash.is_empty() && !hash.contains('/'))
            .ok_or_else(|| HostError::Path {
                path: id.to_owned(),
                reason: "is no container id",
            })?;
        if let Some(located) = self.located.get(hash) {
            return Ok(located.clone());
        }
        match self.driver {
            Driver::Cgroupfs => pod.join(hash),
            Driver::Systemd => {
                let prefix = match runtime {
                    "containerd" => "cri-containerd-",
                    "cri-o" => "crio-",
                    "pouch" => "pouch-",
                    "podman" => "libpod-",
                    _ => "docker-",
                };
                pod.join(&format!("{prefix}{hash}.scope"))
            }
        }
    }

    /// Returns the UID in the name of a pod's directory; `None` for other directories.
    #[must_use]
    pub fn pod_uid(&self, dir: &str) -> Option<String> {
        match self.driver {
            Driver::Cgroupfs => dir.strip_prefix("pod").map(str::to_owned),
            Driver::Systemd => {
                let name = dir.strip_suffix(".slice")?.strip_prefix(&self.prefix)?;
                let name = ["-burstable", "-besteffort"]
                    .iter()
                    .find_map(|class| name.strip_prefix(class))
                    .unwrap_or(name);
                let uid = name.strip_prefix("-pod")?;
                Some(uid.replace('_', "-"))
            }
        }
        .filter(|uid| !uid.is_empty())
    }

    /// Returns the hash in the name of a container's (or sandbox's) directory; `None` for other directories.
    #[must_use]
    pub fn container_hash<'a>(&self, dir: &'a str) -> Option<&'a str> {
        let name = dir.strip_suffix(".scope").unwrap_or(dir);
        let hash = ["cri-containerd-", "crio-", "docker-", "pouch-", "libpod-"]
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix))
            .unwrap_or(name);
        let matches_driver = match self.driver {
            Driver::Systemd => dir.len() > name.len() && hash.len() < name.len(),
            Driver::Cgroupfs => dir == name,
        };
        // The monitor process of a container of CRI-O or podman has a cgroup of its own.
        let is_monitor = hash.starts_with("conmon-");
        (matches_driver && !hash.is_empty() && !is_monitor).then_some(hash)
    }

    /// Returns the cgroup of the pod's sandbox: the only one of its `children` that is not a `known`
    /// container. `None` while there are several, as when a container starts.
    #[must_use]
    pub fn sandbox<'a>(
        &self,
        children: impl IntoIterator<Item = &'a CgroupPath>,
        known: impl Fn(&str) -> bool,
    ) -> Option<&'a CgroupPath> {
        let mut sandboxes = children.into_iter().filter(|group| {
            let hash = self.container_hash(group.name());
            hash.is_some_and(|hash| !known(hash))
        });
        let sandbox = sandboxes.next()?;
        sandboxes.next().is_none().then_some(sandbox)
    }

    /// Returns the cgroup of a host application: its own setting, or else one below `host-latency-sensitive`
    /// or `host-best-effort`.
    ///
    /// # Errors
    /// When it has no setting and is neither LS nor BE, when its base is unknown, or when its path leaves the
    /// tree.
    pub fn host_app(&self, app: &HostApp) -> Result<CgroupPath, HostError> {
        let refuse = |path: &str, reason| HostError::Path {
            path: path.to_owned(),
            reason,
        };
        let Some(path) = &app.path else {
            let class = match app.qos {
                QosClass::Ls => "host-latency-sensitive",
                QosClass::Be => "host-best-effort",
                _ => {
                    let reason =
                        "is a host application without cgroupPath that is neither LS nor BE";
                    return Err(refuse(&app.name, reason));
                }
            };
            if app.name.is_empty() {
                return Err(refuse(&app.name, "is no name of a host application"));
            }
            return CgroupPath::new(class)?.join(&app.name);
        };
        let base = match &path.base {
            None | Some(CgroupBase::Root) => CgroupPath::root(),
            Some(CgroupBase::Kubepods) => self.qos(KubeQos::Guaranteed)?,
            Some(CgroupBase::KubepodsBurstable) => self.qos(KubeQos::Burstable)?,
            Some(CgroupBase::KubepodsBesteffort) => self.qos(KubeQos::BestEffort)?,
            Some(CgroupBase::Other(other)) if other.is_empty() => CgroupPath::root(),
            Some(CgroupBase::Other(other)) => {
                return Err(refuse(other, "is no base of a host application"));
            }
        };
        base.join(path.parent_dir.trim_matches('/'))?
            .join(path.relative_path.trim_matches('/'))
    }
}

#[cfg(test)]
mod tests;
