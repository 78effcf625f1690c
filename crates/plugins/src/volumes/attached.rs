//! Number of attached volumes per node and driver, updated as pods and attachments change. A filter call then
//! costs in proportion to the pod's volumes, not to those on the node.

use super::claims;
use super::limits::{CountedVolume, migrated};
use super::storage::Storage;
use k8s_openapi::api::storage::v1::CSINode;
use koord_scheduler::state::PodInfo;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Driver and volume handle, which identify a volume.
pub(super) type Handle = (String, String);

/// Volumes by driver and handle, with the number of uses of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VolumeCounts(BTreeMap<String, BTreeMap<String, usize>>);

impl VolumeCounts {
    pub(super) fn add(&mut self, (driver, handle): &Handle) {
        let handles = self.0.entry(driver.clone()).or_default();
        *handles.entry(handle.clone()).or_default() += 1;
    }

    pub(super) fn remove(&mut self, (driver, handle): &Handle) {
        let Some(handles) = self.0.get_mut(driver) else {
            return;
        };
        if let Some(count) = handles.get_mut(handle) {
            *count -= 1;
            if *count == 0 {
                handles.remove(handle);
            }
        }
        if handles.is_empty() {
            self.0.remove(driver);
        }
    }

    /// Returns the number of volumes per driver.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        let drivers = self.0.iter();
        drivers.map(|(driver, handles)| (driver.as_str(), handles.len()))
    }

    /// Returns the number of volumes of a driver.
    pub(super) fn count(&self, driver: &str) -> usize {
        self.0.get(driver).map_or(0, BTreeMap::len)
    }

    pub(super) fn has(&self, driver: &str, handle: &str) -> bool {
        let handles = self.0.get(driver);
        handles.is_some_and(|handles| handles.contains_key(handle))
    }
}

/// Volumes and limits of one node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeVolumes {
    /// Maximum number of volumes per driver, for drivers that report one.
    limits: BTreeMap<String, i64>,
    pub(super) volumes: VolumeCounts,
    /// Uids of the pods that use claims.
    pods: BTreeSet<Arc<str>>,
}

impl NodeVolumes {
    pub(super) fn limit(&self, driver: &str) -> Option<i64> {
        self.limits.get(driver).copied()
    }

    pub(super) fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }
}

/// Pod on a node, with its volumes there.
#[derive(Debug)]
struct PlacedPod {
    pod: Arc<PodInfo>,
    node: String,
    volumes: Vec<Handle>,
}

/// Volumes of all nodes. Nodes are keyed by name, because volumes may be attached before the node is
/// received.
#[derive(Debug, Default)]
pub(super) struct AttachedVolumes {
    nodes: FxHashMap<String, NodeVolumes>,
    pods: FxHashMap<Arc<str>, PlacedPod>,
    attachments: FxHashMap<String, (String, Option<Handle>)>,
    /// Number of nodes that have a limit, per driver.
    limited: FxHashMap<String, usize>,
}

/// Returns the volume limits in a CSINode, by driver.
fn limits(node: Option<&CSINode>) -> BTreeMap<String, i64> {
    let drivers = node.map(|node| node.spec.drivers.as_slice());
    let limits = drivers.unwrap_or_default().iter().filter_map(|driver| {
        let count = driver.allocatable.as_ref()?.count?;
        Some((driver.name.clone(), i64::from(count)))
    });
    limits.collect()
}

/// Returns the volumes of a pod that is on a node. Claims that are missing or not owned by the pod are
/// skipped.
pub(super) fn volumes_of(
    storage: &Storage,
    pod: &PodInfo,
    node: Option<&CSINode>,
) -> BTreeSet<Handle> {
    let sources = claims(pod).iter().filter_map(|used| {
        let claim = storage.claims.get(&used.key)?;
        if used.ownership_problem(pod, claim).is_some() {
            return None;
        }
        CountedVolume::from_claim(storage, claim)
    });
    sources
        .filter_map(|source| source.handle_on(node))
        .collect()
}

impl AttachedVolumes {
    pub(super) fn node(&self, name: &str) -> Option<&NodeVolumes> {
        self.nodes.get(name)
    }

    /// Returns the volumes of a pod that is on a node.
    pub(super) fn volumes(&self, uid: &str) -> &[Handle] {
        self.pods
            .get(uid)
            .map_or(&[], |placed| placed.volumes.as_slice())
    }

    /// Returns true if any node has a limit for the driver, or for the CSI driver that replaced this in-tree
    /// plugin.
    pub(super) fn is_limited(&self, name: &str) -> bool {
        let limited = |driver: &str| self.limited.contains_key(driver);
        limited(name) || migrated(name).is_some_and(limited)
    }

    /// Adds a pod with its volumes to a node.
    pub(super) fn add_pod(&mut self, storage: &Storage, pod: &Arc<PodInfo>, node: &str) {
        let csi_node = storage.csi_nodes.get(node).map(|node| &**node);
        let volumes: Vec<Handle> = volumes_of(storage, pod, csi_node).into_iter().collect();
        let node_volumes = self.nodes.entry(node.to_owned()).or_default();
        node_volumes.pods.insert(pod.uid.clone());
        for volume in &volumes {
            node_volumes.volumes.add(volume);
        }
        let placed = PlacedPod {
            pod: pod.clone(),
            node: node.to_owned(),
            volumes,
        };
        self.pods.insert(pod.uid.clone(), placed);
    }

    /// Removes a pod. Returns it with its node.
    pub(super) fn remove_pod(&mut self, uid: &str) -> Option<(Arc<PodInfo>, String)> {
        let placed = self.pods.remove(uid)?;
        if let Some(node_volumes) = self.nodes.get_mut(&placed.node) {
            node_volumes.pods.remove(uid);
            for volume in &placed.volumes {
                node_volumes.volumes.remove(volume);
            }
            self.remove_empty(&placed.node);
        }
        Some((placed.pod, placed.node))
    }

    /// Updates the volumes of a pod from its claims. Returns its node if they changed.
    pub(super) fn update_pod(&mut self, storage: &Storage, uid: &str) -> Option<String> {
        let placed = self.pods.get(uid)?;
        let csi_node = storage.csi_nodes.get(&placed.node).map(|node| &**node);
        let now = volumes_of(storage, &placed.pod, csi_node);
        if now.iter().eq(&placed.volumes) {
            return None;
        }
        let (pod, node) = self.remove_pod(uid)?;
        self.add_pod(storage, &pod, &node);
        Some(node)
    }

    /// Updates an attachment. Returns the nodes whose volumes may have changed.
    pub(super) fn update_attachment(&mut self, storage: &Storage, name: &str) -> Vec<String> {
        let now = storage.attachments.get(name).map(|attachment| {
            let node = attachment.node.to_string();
            let volume = attachment.volume.as_deref();
            let volume = volume.and_then(|name| storage.volumes.get(name));
            let csi_node = storage.csi_nodes.get(&node).map(|node| &**node);
            let handle = volume
                .and_then(|volume| CountedVolume::from_volume(volume))
                .and_then(|source| source.handle_on(csi_node));
            (node, handle)
        });
        if self.attachments.get(name) == now.as_ref() {
            return Vec::new();
        }
        let mut touched = Vec::new();
        if let Some((node, handle)) = self.attachments.remove(name) {
            if let (Some(handle), Some(node_volumes)) = (handle, self.nodes.get_mut(&node)) {
                node_volumes.volumes.remove(&handle);
                self.remove_empty(&node);
            }
            touched.push(node);
        }
        if let Some((node, handle)) = now {
            if let Some(handle) = &handle {
                self.nodes
                    .entry(node.clone())
                    .or_default()
                    .volumes
                    .add(handle);
            }
            touched.push(node.clone());
            self.attachments.insert(name.to_owned(), (node, handle));
        }
        touched
    }

    /// Updates the limits of a node, and all volumes on it, from its CSINode.
    pub(super) fn update_node(&mut self, storage: &Storage, name: &str) {
        let csi_node = storage.csi_nodes.get(name);
        let node_volumes = self.nodes.entry(name.to_owned()).or_default();
        let now = limits(csi_node.map(|node| &**node));
        let before = std::mem::replace(&mut node_volumes.limits, now);
        for driver in node_volumes.limits.keys() {
            *self.limited.entry(driver.clone()).or_default() += 1;
        }
        for driver in before.keys() {
            if let Some(nodes) = self.limited.get_mut(driver) {
                *nodes -= 1;
                if *nodes == 0 {
                    self.limited.remove(driver);
                }
            }
        }
        let pods: Vec<Arc<str>> = node_volumes.pods.iter().cloned().collect();
        for uid in pods {
            self.update_pod(storage, &uid);
        }
        let attachments: Vec<String> = storage.attached(name).cloned().collect();
        for attachment in attachments {
            self.update_attachment(storage, &attachment);
        }
        self.remove_empty(name);
    }

    /// Returns true if the pod is on a node.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// Removes the entry of a node without limits, volumes and pods.
    fn remove_empty(&mut self, name: &str) {
        if self
            .nodes
            .get(name)
            .is_some_and(|node_volumes| *node_volumes == NodeVolumes::default())
        {
            self.nodes.remove(name);
        }
    }
}
