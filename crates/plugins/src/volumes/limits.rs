//! `NodeVolumeLimits`: a node takes no more volumes of a CSI driver than the driver says it can.

use super::storage::{Storage, annotation, claim_class, key, volume_name};
use super::{
    ATTACHMENTS, CLAIMS, CLASSES, CSI_NODES, VOLUMES, claims, indexes, interest, storage, uses,
    uses_claims,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, ClusterEvent, Cycle, Helps, IndexKind, Interest, Plugin, Points, PreFilter, Rejection,
    Signable, Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use std::collections::{BTreeMap, BTreeSet};

const TOO_MANY: &str = "node(s) exceed max volume count";
/// Lists the in-tree plugins whose volumes the node handles through CSI.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// In-tree plugins and the CSI drivers that took over.
const DRIVERS: [(&str, &str); 6] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

/// Driver and handle: what makes a volume one volume.
type Attached = BTreeSet<(String, String)>;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct NodeVolumeLimits;

/// The in-tree plugin and the handle of a volume that is not a CSI volume.
fn in_tree(volume: &PersistentVolume) -> Option<(&'static str, String)> {
    let spec = volume.spec.as_ref()?;
    if let Some(disk) = &spec.aws_elastic_block_store {
        return Some(("kubernetes.io/aws-ebs", disk.volume_id.clone()));
    }
    if let Some(disk) = &spec.gce_persistent_disk {
        return Some(("kubernetes.io/gce-pd", disk.pd_name.clone()));
    }
    if let Some(disk) = &spec.azure_disk {
        return Some(("kubernetes.io/azure-disk", disk.disk_uri.clone()));
    }
    if let Some(disk) = &spec.cinder {
        return Some(("kubernetes.io/cinder", disk.volume_id.clone()));
    }
    if let Some(disk) = &spec.vsphere_volume {
        return Some(("kubernetes.io/vsphere-volume", disk.volume_path.clone()));
    }
    let disk = spec.portworx_volume.as_ref()?;
    Some(("kubernetes.io/portworx-volume", disk.volume_id.clone()))
}

/// The CSI driver that handles an in-tree plugin's volumes on this node.
fn migrated(plugin: &str, node: Option<&CSINode>) -> Option<&'static str> {
    let listed = annotation(&node?.metadata, MIGRATED)?;
    let (_, driver) = DRIVERS.iter().find(|(name, _)| *name == plugin)?;
    listed
        .split(',')
        .any(|name| name == plugin)
        .then_some(driver)
}

impl NodeVolumeLimits {
    /// The driver and handle of a claim's volume, made or not.
    fn volume_of(
        storage: &Storage,
        claim: &PersistentVolumeClaim,
        node: Option<&CSINode>,
    ) -> Option<(String, String)> {
        let Some(volume) = storage.volumes.get(volume_name(claim)) else {
            // Not made yet: it will be one more volume of the class's driver.
            let class = storage.classes.get(&claim_class(claim))?;
            let provisioner = &class.provisioner;
            let driver = migrated(provisioner, node).unwrap_or(provisioner);
            return Some((driver.to_owned(), format!("claim {}", key(&claim.metadata))));
        };
        Self::handle(volume, node)
    }

    fn handle(volume: &PersistentVolume, node: Option<&CSINode>) -> Option<(String, String)> {
        if let Some(csi) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) {
            return Some((csi.driver.clone(), csi.volume_handle.clone()));
        }
        let (plugin, handle) = in_tree(volume)?;
        Some((migrated(plugin, node)?.to_owned(), handle))
    }

    /// The CSI volumes of a pod. A new pod's claims must exist.
    fn volumes_of(
        storage: &Storage,
        pod: &PodInfo,
        node: Option<&CSINode>,
        new: bool,
        out: &mut Attached,
    ) -> Result<(), Rejection> {
        for used in claims(pod) {
            let Some(claim) = storage.claims.get(&used.key) else {
                if new {
                    let text = format!("persistentvolumeclaim {:?} not found", used.name);
                    return Err(Rejection::unresolvable(text));
                }
                continue;
            };
            if let Some(problem) = used.foreign(pod, claim) {
                if new {
                    return Err(Rejection::error(problem));
                }
                continue;
            }
            if let Some(volume) = Self::volume_of(storage, claim, node) {
                out.insert(volume);
            }
        }
        Ok(())
    }
}

fn by_driver(volumes: &Attached) -> BTreeMap<&str, i64> {
    let mut out = BTreeMap::new();
    for (driver, _) in volumes {
        *out.entry(driver.as_str()).or_default() += 1;
    }
    out
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER.or(Points::FILTER)
    }
    fn interests(&self) -> Vec<Interest> {
        vec![
            interest(Subject::Object(CSI_NODES), Action::ADD.or(Action::UPDATE)),
            interest(Subject::AssignedPod, Action::DELETE),
            interest(Subject::Object(CLAIMS), Action::ADD),
            interest(Subject::Object(ATTACHMENTS), Action::DELETE),
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> Helps {
        let helps = match (event.pod, event.object) {
            (Some(gone), _) => uses_claims(gone),
            (_, Some(change)) => change.new_as().is_none_or(|claim| uses(pod, claim)),
            _ => true,
        };
        if helps { Helps::Queue } else { Helps::Skip }
    }
    fn sign(&self, pod: &PodInfo, _view: View<'_>, _signature: &mut Signature) -> Signable {
        if uses_claims(pod) {
            Signable::No
        } else {
            Signable::Yes
        }
    }
    fn watches(&self) -> Vec<Watch> {
        Storage::watches(&[CLAIMS, VOLUMES, CLASSES, CSI_NODES, ATTACHMENTS])
    }
    fn indexes(&self) -> Vec<IndexKind> {
        indexes()
    }
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilter {
        if uses_claims(cycle.pod) {
            PreFilter::ready(())
        } else {
            PreFilter::Skip
        }
    }
    fn filter(&self, cycle: &Cycle<'_>, _state: &State, node: NodeIndex) -> Verdict {
        let name = cycle.view.nodes.name(node);
        let storage = storage(cycle.view);
        let csi_node = storage.csi_nodes.get(&**name).map(|node| &**node);
        let mut new = Attached::new();
        Self::volumes_of(storage, cycle.pod, csi_node, true, &mut new)?;
        let drivers = csi_node.map(|node| node.spec.drivers.as_slice());
        let limits: BTreeMap<&str, i64> = drivers
            .unwrap_or_default()
            .iter()
            .filter_map(|driver| {
                let count = driver.allocatable.as_ref()?.count?;
                Some((driver.name.as_str(), i64::from(count)))
            })
            .collect();
        if new.is_empty() || limits.is_empty() {
            return Ok(());
        }
        let mut attached = Attached::new();
        for pod in cycle.pods(node) {
            // What is there is there, whatever its claims look like now.
            let _ = Self::volumes_of(storage, pod, csi_node, false, &mut attached);
        }
        let attachments = storage.attached(name);
        for attachment in attachments.filter_map(|name| storage.attachments.get(name)) {
            let volume = attachment.spec.source.persistent_volume_name.as_ref();
            let volume = volume.and_then(|name| storage.volumes.get(name));
            if let Some(volume) = volume.and_then(|volume| Self::handle(volume, csi_node)) {
                attached.insert(volume);
            }
        }
        let new: Attached = new.difference(&attached).cloned().collect();
        let there = by_driver(&attached);
        for (driver, count) in by_driver(&new) {
            if let Some(limit) = limits.get(driver)
                && there.get(driver).copied().unwrap_or(0) + count > *limit
            {
                return Err(Rejection::unschedulable(TOO_MANY));
            }
        }
        Ok(())
    }
}
