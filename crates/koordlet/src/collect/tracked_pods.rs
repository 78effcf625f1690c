//! The tracked pods, each with its open files and a unique number.

use super::pod::TrackedPod;
use crate::states::PodInfo;
use crate::store::{SeriesSubject, Store};
use koord_host::{CgroupPath, Root};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Milliseconds for which a pod is kept that is no longer listed but still has its cgroup: the first list
/// after a kubelet restart may lack pods.
const KEEP_MS: u64 = 600_000;

/// The tracked pods of the node.
#[derive(Debug, Default)]
pub struct TrackedPods {
    list: Option<Arc<Vec<PodInfo>>>,
    tracked: FxHashMap<String, TrackedPod>,
    /// Pods that are not listed any more, by UID: the pod, its cgroup and since when it is missing, in
    /// milliseconds.
    missing: FxHashMap<String, (TrackedPod, CgroupPath, u64)>,
    last_id: u64,
    version: u64,
}

impl TrackedPods {
    /// Returns the current pod list; `None` until the first one arrived.
    #[must_use]
    pub fn list(&self) -> Option<&Arc<Vec<PodInfo>>> {
        self.list.as_ref()
    }

    /// Returns the version of the list, which grows with each new list.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the listed pods with their collectors.
    pub fn iter(&self) -> impl Iterator<Item = (&PodInfo, &TrackedPod)> {
        self.list
            .as_deref()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(|info| Some((info, self.tracked.get(&info.uid)?)))
    }

    /// Calls `each` with every listed pod.
    pub fn for_each(&mut self, mut each: impl FnMut(&PodInfo, &mut TrackedPod)) {
        for info in self.list.iter().flat_map(|pods| pods.iter()) {
            if let Some(pod) = self.tracked.get_mut(&info.uid) {
                each(info, pod);
            }
        }
    }

    /// Follows a new list. Returns the cgroups of pods that changed, whose files the kubelet or the runtime
    /// may have written; `None` if the list is unchanged.
    pub fn follow(
        &mut self,
        list: Option<Arc<Vec<PodInfo>>>,
        now_ms: u64,
        root: &Root,
        store: &mut Store,
    ) -> Option<Vec<CgroupPath>> {
        let is_unchanged = match (&list, &self.list) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (None, None) => true,
            _ => false,
        };
        if is_unchanged {
            return None;
        }
        let old_list = std::mem::replace(&mut self.list, list);
        let before: FxHashMap<&str, &PodInfo> = old_list
            .iter()
            .flat_map(|pods| pods.iter())
            .map(|pod| (pod.uid.as_str(), pod))
            .collect();
        let mut old = std::mem::take(&mut self.tracked);
        let mut changed = Vec::new();
        for info in self.list.iter().flat_map(|pods| pods.iter()) {
            let tracked = old.remove(&info.uid);
            let tracked = tracked.or_else(|| Some(self.missing.remove(&info.uid)?.0));
            let mut pod = tracked.unwrap_or_else(|| {
                self.last_id += 1;
                TrackedPod::new(self.last_id)
            });
            if before.get(info.uid.as_str()) != Some(&info) {
                changed.push(info.cgroup.clone());
                pod.follow(info, &mut self.last_id, store);
            }
            self.tracked.insert(info.uid.clone(), pod);
        }
        for (uid, pod) in old {
            if let Some(info) = before.get(uid.as_str()) {
                self.missing.insert(uid, (pod, info.cgroup.clone(), now_ms));
            }
        }
        self.version += 1;
        self.sweep(now_ms, root, store);
        Some(changed)
    }

    /// Removes pods that are not listed once their cgroup is removed or `KEEP_MS` has passed.
    pub fn sweep(&mut self, now_ms: u64, root: &Root, store: &mut Store) {
        self.missing.retain(|_, (pod, group, since)| {
            let keep = now_ms.saturating_sub(*since) < KEEP_MS && root.cgroup(group).exists();
            if !keep {
                store.remove(SeriesSubject::Pod(pod.id));
                for container in &pod.containers {
                    store.remove(SeriesSubject::Container(container.id));
                }
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::{Driver, Layout};
    use crate::store::Metric;
    use koord_host::fake::Tree;
    use serde_json::json;

    fn list(names: &[&str]) -> Option<Arc<Vec<PodInfo>>> {
        let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        let pod = |name: &&str| {
            let pod = serde_json::from_value(json!({
                "metadata": {"uid": name, "name": name},
                "spec": {"containers": [{"name": "c"}]},
                "status": {"phase": "Running", "containerStatuses": [{"name": "c",
                    "containerID": format!("koord://{name}c"), "image": "", "imageID": "",
                    "ready": true, "restartCount": 0}]}
            }));
            PodInfo::from_pod(&pod.unwrap(), &layout).unwrap()
        };
        Some(Arc::new(names.iter().map(pod).collect()))
    }

    #[test]
    fn a_partial_list_loses_nothing() {
        let tree = Tree::v1("0-1").unwrap();
        for name in ["a", "b"] {
            tree.group(&format!("kubepods/besteffort/pod{name}"))
                .unwrap();
        }
        let (mut pods, mut store, root) = (TrackedPods::default(), Store::new(), tree.root());
        let two_pods = list(&["a", "b"]);
        assert_eq!(
            pods.follow(two_pods.clone(), 0, root, &mut store)
                .map(|g| g.len()),
            Some(2)
        );
        assert_eq!(pods.follow(two_pods.clone(), 0, root, &mut store), None);
        let ids: Vec<u64> = pods.iter().map(|(_, pod)| pod.id).collect();
        let container = pods.iter().nth(1).unwrap().1.containers[0].id;
        store.push((SeriesSubject::Pod(ids[1]), Metric::CpuUsage), 0, 5.0);
        store.push(
            (SeriesSubject::Container(container), Metric::CpuUsage),
            0,
            5.0,
        );

        pods.follow(list(&["a"]), 1000, root, &mut store);
        assert_eq!(pods.iter().count(), 1);
        pods.sweep(500_000, root, &mut store);
        assert_eq!(store.len(), 2);
        pods.follow(two_pods, 500_000, root, &mut store);
        let ids_after: Vec<u64> = pods.iter().map(|(_, pod)| pod.id).collect();
        assert_eq!((ids_after, store.len()), (ids, 2));

        // A pod that is absent for longer is removed, at once if its cgroup is removed.
        tree.vanish(&CgroupPath::new("kubepods/besteffort/podb").unwrap())
            .unwrap();
        pods.follow(list(&["a"]), 600_000, root, &mut store);
        assert!(store.is_empty());
        assert_eq!(pods.version(), 4);
    }

    #[test]
    fn a_missing_pod_is_not_kept_for_ever() {
        let tree = Tree::v2("0-1").unwrap();
        tree.group("kubepods/besteffort/poda").unwrap();
        let (mut pods, mut store, root) = (TrackedPods::default(), Store::new(), tree.root());
        pods.follow(list(&["a"]), 0, root, &mut store);
        let (id, _) = pods.iter().map(|(_, pod)| (pod.id, ())).next().unwrap();
        store.push((SeriesSubject::Pod(id), Metric::CpuUsage), 0, 5.0);
        pods.follow(list(&[]), 0, root, &mut store);
        pods.sweep(KEEP_MS - 1, root, &mut store);
        assert!(!store.is_empty());
        pods.sweep(KEEP_MS, root, &mut store);
        assert!(store.is_empty());
        pods.follow(list(&["a"]), KEEP_MS, root, &mut store);
        assert_ne!(
            pods.iter().next().unwrap().1.id,
            id,
            "a number is used once"
        );
    }

    #[test]
    fn only_changed_pods_are_returned() {
        let tree = Tree::v1("0-1").unwrap();
        let (mut pods, mut store, root) = (TrackedPods::default(), Store::new(), tree.root());
        let changed_uids = |changed: Option<Vec<CgroupPath>>| -> Vec<String> {
            let groups = changed.unwrap().into_iter();
            groups.map(|group| group.name().to_owned()).collect()
        };
        let two_pods = list(&["a", "b"]);
        assert_eq!(
            changed_uids(pods.follow(two_pods, 0, root, &mut store)),
            ["poda", "podb"]
        );
        let longer_list = list(&["a", "b", "c"]);
        assert_eq!(
            changed_uids(pods.follow(longer_list, 1, root, &mut store)),
            ["podc"]
        );
        let fewer = list(&["a", "c"]);
        assert!(changed_uids(pods.follow(fewer, 2, root, &mut store)).is_empty());
    }

    #[test]
    fn restarted_container_starts_new_series() {
        let tree = Tree::v1("0-1").unwrap();
        let (mut pods, mut store, root) = (TrackedPods::default(), Store::new(), tree.root());
        pods.follow(list(&["a"]), 0, root, &mut store);
        let id = pods.iter().next().unwrap().1.containers[0].id;
        store.push((SeriesSubject::Container(id), Metric::CpuUsage), 0, 5.0);
        let mut changed = list(&["a"]).unwrap().as_ref().clone();
        changed[0].containers[0].cgroup = CgroupPath::new("kubepods/besteffort/poda/other").ok();
        pods.follow(Some(Arc::new(changed)), 1, root, &mut store);
        assert_ne!(pods.iter().next().unwrap().1.containers[0].id, id);
        assert!(store.is_empty());
    }
}
