//! Finds the cgroups of containers that are not where the naming scheme has them.
//!
//! Runtimes name containers' cgroups in their own ways: CRI-O prefixes them under cgroupfs, too, and a
//! runtime whose driver is not the kubelet's puts them outside the pods' tree. Existing cgroups decide.

use super::super::pod::{Phase, PodInfo};
use koord_host::procfs::process;
use koord_host::{CgroupPath, Controller, Root};
use std::collections::{BTreeMap, BTreeSet};

/// Number of passes in which the processes are read each time; after that, only in every [`RARE_INTERVAL`]th
/// pass.
const EAGER_PASSES: u32 = 3;
/// Interval of reading processes after [`EAGER_PASSES`], in passes.
const RARE_INTERVAL: u32 = 30;
/// Consecutive passes in which a cgroup must be missing before it is reported: a container may have just
/// started or ended.
const REPORT_AFTER: u32 = 3;

/// Cgroups of containers, by the hash in the container's id, whose names differ from the naming scheme.
pub(crate) type LocatedCgroups = BTreeMap<String, CgroupPath>;

/// Finds containers' cgroups, pass by pass.
#[derive(Debug, Default)]
pub(crate) struct Locator {
    /// Number of passes for which the cgroup of a hash has been missing.
    missing: BTreeMap<String, u32>,
}

/// Result of a pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LocateResult {
    /// Cgroups under other names.
    pub(crate) located: LocatedCgroups,
    /// Running containers without a cgroup for a while, with the paths that were tried.
    pub(crate) missing: BTreeMap<String, String>,
}

impl Locator {
    /// Checks the cgroups of all running containers of `pods`; `last` is the result of the previous pass.
    pub(crate) fn pass(
        &mut self,
        root: &Root,
        pods: &[PodInfo],
        last: &LocatedCgroups,
    ) -> LocateResult {
        let mut pass = LocateResult::default();
        let mut unknown = Vec::new();
        for pod in pods.iter().filter(|pod| is_local(pod)) {
            for container in pod.all_containers().filter(|it| it.running) {
                let (Some(hash), Some(group)) = (container.hash(), &container.cgroup) else {
                    continue;
                };
                if root.cgroup(group).exists() {
                    if let Some(group) = last.get(hash) {
                        pass.located.insert(hash.to_owned(), group.clone());
                    }
                } else if let Some(group) = child_of(root, &pod.cgroup, hash) {
                    pass.located.insert(hash.to_owned(), group);
                } else {
                    unknown.push((pod, &container.name, hash, group));
                }
            }
        }
        let before = std::mem::take(&mut self.missing);
        let mut eager = BTreeSet::new();
        for (_, _, hash, _) in &unknown {
            let passes = before
                .get(*hash)
                .map_or(0, |passes| passes.saturating_add(1));
            self.missing.insert((*hash).to_owned(), passes);
            if passes < EAGER_PASSES || passes.is_multiple_of(RARE_INTERVAL) {
                eager.insert(*hash);
            }
        }
        let by_hash = by_processes(root, &eager);
        for (pod, name, hash, group) in unknown {
            if let Some(group) = by_hash.get(hash).filter(|group| is_of_pod(group, pod)) {
                self.missing.remove(hash);
                pass.located.insert(hash.to_owned(), group.clone());
            } else if self.missing.get(hash) >= Some(&REPORT_AFTER) {
                let message = format!(
                    "not found at {group}, under another name in {}, or through its processes",
                    pod.cgroup
                );
                let object = format!("{}/{} {name}", pod.namespace, pod.name);
                pass.missing.insert(object, message);
            }
        }
        pass
    }
}

/// Returns true if containers of `pod` run now, and in cgroups of this kernel.
fn is_local(pod: &PodInfo) -> bool {
    pod.phase == Phase::Running && !pod.deleting && pod.runtime_class.as_deref() != Some("kata")
}

/// Returns the child of `pod` that is named after `hash`.
fn child_of(root: &Root, pod: &CgroupPath, hash: &str) -> Option<CgroupPath> {
    let mut children = Vec::new();
    for controller in [Controller::Cpu, Controller::Memory] {
        children.extend(root.cgroup(pod).children_in(controller).unwrap_or_default());
    }
    let mut named = children
        .into_iter()
        .filter(|child| is_named(child.name(), hash));
    let first = named.next()?;
    named.all(|other| other == first).then_some(first)
}

/// Returns true if a cgroup called `name` belongs to the container `hash`: the hash behind any prefix, alone
/// or as a systemd unit. Monitor processes of a container have a cgroup of their own.
fn is_named(name: &str, hash: &str) -> bool {
    let name = [".scope", ".service", ".slice"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    let prefix = name.strip_suffix(hash);
    prefix.is_some_and(|prefix| {
        !prefix.contains("conmon") && (prefix.is_empty() || prefix.ends_with(['-', ':', '_']))
    })
}

/// Returns the cgroups in which the processes of containers run, by hash. Only the topmost cgroup that is
/// named after a container counts: a container may create others below its own.
fn by_processes(root: &Root, hashes: &BTreeSet<&str>) -> LocatedCgroups {
    let mut located = LocatedCgroups::new();
    if hashes.is_empty() {
        return located;
    }
    for pid in process::all(root).unwrap_or_default() {
        let in_tree = |controller| process::cgroup_of(root, pid, controller).ok().flatten();
        let Some(path) = in_tree(Some(Controller::Cpu)).or_else(|| in_tree(None)) else {
            continue;
        };
        let mut end = 0;
        for name in path.split('/') {
            end += name.len();
            if let Some(hash) = hashes.iter().find(|hash| is_named(name, hash)) {
                let group = path.get(..end).and_then(|path| CgroupPath::new(path).ok());
                if let Some(group) = group.filter(|group| root.cgroup(group).exists()) {
                    located.entry((*hash).to_owned()).or_insert(group);
                }
                break;
            }
            if has_container_id(name) {
                break;
            }
            end += 1;
        }
    }
    located
}

/// Returns true if `name` ends with the id of a container: 64 hex digits.
fn has_container_id(name: &str) -> bool {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let digits = name.bytes().rev().take_while(u8::is_ascii_hexdigit);
    digits.count() >= 64
}

/// Returns true if the path contains the pod's name, as with every runtime.
fn is_of_pod(group: &CgroupPath, pod: &PodInfo) -> bool {
    let path = group.as_str();
    path.contains(&pod.uid) || path.contains(&pod.uid.replace('-', "_")) || {
        let name = pod.cgroup.name();
        !name.is_empty() && path.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Driver, Layout};
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use koord_host::fake::Tree;
    use serde_json::json;

    const UID: &str = "7a3f2c10-0000-4000-8000-000000000001";
    const HASH: &str = "4f0c1bb2d8e94f0c1bb2d8e94f0c1bb2d8e94f0c1bb2d8e94f0c1bb2d8e9aaaa";

    fn pod(runtime: &str, layout: &Layout) -> PodInfo {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": UID, "name": "p", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "c", "containerID": format!("{runtime}://{HASH}"), "image": "", "imageID": "",
                 "ready": true, "restartCount": 0, "state": {"running": {}}}]}}))
        .unwrap();
        PodInfo::from_pod(&pod, layout).unwrap()
    }

    /// The cgroups of current runtimes with both drivers; see also the table of
    #[test]
    fn container_is_found_under_every_runtimes_name() {
        let plain = format!("kubepods/burstable/pod{UID}");
        let unit = UID.replace('-', "_");
        let slice =
            format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{unit}.slice");
        let kind = format!("kubelet/{plain}");
        let kind_slice = format!(
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-pod{unit}.slice"
        );
        let (cgroupfs, systemd) = (Driver::Cgroupfs, Driver::Systemd);
        let cases = [
            ("containerd", cgroupfs, "", format!("{plain}/{HASH}")),
            (
                "containerd",
                systemd,
                "",
                format!("{slice}/cri-containerd-{HASH}.scope"),
            ),
            ("containerd", cgroupfs, "kubelet", format!("{kind}/{HASH}")),
            (
                "containerd",
                systemd,
                "kubelet",
                format!("{kind_slice}/cri-containerd-{HASH}.scope"),
            ),
            // Its cgroup driver is not the kubelet's.
            (
                "containerd",
                systemd,
                "",
                format!("system.slice/kubepods-burstable-pod{unit}.slice:cri-containerd:{HASH}"),
            ),
            ("cri-o", cgroupfs, "", format!("{plain}/crio-{HASH}")),
            ("cri-o", systemd, "", format!("{slice}/crio-{HASH}.scope")),
            ("docker", cgroupfs, "", format!("{plain}/{HASH}")),
            (
                "docker",
                systemd,
                "",
                format!("{slice}/docker-{HASH}.scope"),
            ),
            ("podman", cgroupfs, "", format!("{plain}/libpod-{HASH}")),
            (
                "podman",
                systemd,
                "",
                format!("{slice}/libpod-{HASH}.scope"),
            ),
        ];
        for (runtime, driver, cgroup_root, path) in cases {
            for nested in [false, true] {
                let tree = Tree::v2("0-1").unwrap();
                let cgroup_root = CgroupPath::new(cgroup_root).unwrap();
                let layout = Layout::new(driver, cgroup_root);
                let group = tree.group(&path).unwrap();
                // Conmon's own cgroup is near, and crun may put the processes one level down.
                let parent = group.parent().unwrap();
                for name in [
                    format!("crio-conmon-{HASH}.scope"),
                    format!("crio-conmon-{HASH}"),
                ] {
                    tree.group(parent.join(&name).unwrap().as_str()).unwrap();
                }
                let inner = if nested { "/container" } else { "" };
                tree.group(&format!("{path}{inner}")).unwrap();
                tree.put("proc/77/cgroup", &format!("0::/{path}{inner}\n"))
                    .unwrap();
                let pod = pod(runtime, &layout);
                let mut locator = Locator::default();
                let pass = locator.pass(tree.root(), &[pod], &LocatedCgroups::new());
                assert_eq!(pass.missing, BTreeMap::new());
                let layout = layout.with_located(pass.located);
                let container = &self::pod(runtime, &layout).containers[0];
                assert_eq!(
                    container.cgroup.as_ref(),
                    Some(&group),
                    "{runtime} {driver}"
                );
            }
        }
    }

    #[test]
    fn missing_cgroup_is_reported_after_some_passes() {
        let tree = Tree::v2("0-1").unwrap();
        let layout = Layout::default();
        let pod = pod("containerd", &layout);
        tree.group(pod.cgroup.as_str()).unwrap();
        let mut locator = Locator::default();
        let pods = [pod];
        let mut reported = Vec::new();
        for _ in 0..5 {
            let pass = locator.pass(tree.root(), &pods, &LocatedCgroups::new());
            assert!(pass.located.is_empty());
            reported.push(pass.missing.len());
        }
        assert_eq!(reported, [0, 0, 0, 1, 1]);
        tree.group(&format!("{}/{HASH}", pods[0].cgroup.as_str()))
            .unwrap();
        let pass = locator.pass(tree.root(), &pods, &LocatedCgroups::new());
        assert_eq!(pass, LocateResult::default());
    }

    /// A container may use any names for cgroups that it creates below its own.
    #[test]
    fn cgroup_within_other_container_is_not_taken() {
        let tree = Tree::v2("0-1").unwrap();
        let other = "a".repeat(64);
        let path = format!("kubepods/besteffort/podx/{other}/pod{UID}/{HASH}");
        tree.group(&path).unwrap();
        tree.put("proc/77/cgroup", &format!("0::/{path}\n"))
            .unwrap();
        let pod = pod("containerd", &Layout::default());
        let mut locator = Locator::default();
        let pass = locator.pass(tree.root(), &[pod], &LocatedCgroups::new());
        assert!(pass.located.is_empty(), "{pass:?}");
    }
}
