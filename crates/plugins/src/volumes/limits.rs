//! `NodeVolumeLimits`: limits the volumes per CSI driver on a node to the number that the driver reports.

use super::attached::{AttachedVolumes, Handle, VolumeCounts, volumes_of};
use super::storage::{Identity, Storage, key};
use super::trimmed::{Disk, TrimmedAttachment, TrimmedClaim, TrimmedVolume};
use super::{
    ATTACHMENTS, CLAIMS, CLASSES, CSI_NODES, VOLUMES, annotation, claims, indexes, interest,
    storage, uses, uses_claims,
};
use k8s_openapi::api::core::v1::PersistentVolumeSpec;
use k8s_openapi::api::storage::v1::CSINode;
use koord_model::resources::ResourceTable;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, ClusterEvent, Cycle, Effects, Filter, IndexKind, Inputs, Interest, ObjectChange,
    ObjectEvents, Plugin, PodEvents, Points, PreFilter, PreFilterResult, QueueHints, QueueingHint,
    Rejection, Roles, Sign, Signable, Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use std::borrow::Cow;
use std::sync::Arc;

const TOO_MANY: &str = "node(s) exceed max volume count";
/// Annotation that lists the in-tree plugins whose volumes the node handles through CSI.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Table of in-tree plugins and the CSI drivers that replaced them.
const DRIVERS: [(&str, &str); 6] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

/// State of the `NodeVolumeLimits` plugin.
#[derive(Debug, Default)]
pub(crate) struct NodeVolumeLimits {
    attached: AttachedVolumes,
}

/// Returns the in-tree plugin and the handle of a volume that is not a CSI volume.
pub(super) fn in_tree_disk(spec: &PersistentVolumeSpec) -> Option<Disk> {
    let disk = |plugin, handle: &String| {
        let handle = handle.as_str().into();
        Some(Disk::InTree { plugin, handle })
    };
    if let Some(ebs) = &spec.aws_elastic_block_store {
        return disk("kubernetes.io/aws-ebs", &ebs.volume_id);
    }
    if let Some(gce) = &spec.gce_persistent_disk {
        return disk("kubernetes.io/gce-pd", &gce.pd_name);
    }
    if let Some(azure) = &spec.azure_disk {
        return disk("kubernetes.io/azure-disk", &azure.disk_uri);
    }
    if let Some(cinder) = &spec.cinder {
        return disk("kubernetes.io/cinder", &cinder.volume_id);
    }
    if let Some(vsphere) = &spec.vsphere_volume {
        return disk("kubernetes.io/vsphere-volume", &vsphere.volume_path);
    }
    let portworx = spec.portworx_volume.as_ref()?;
    disk("kubernetes.io/portworx-volume", &portworx.volume_id)
}

/// Returns the CSI driver that replaced an in-tree plugin.
pub(super) fn migrated(plugin: &str) -> Option<&'static str> {
    let (_, driver) = DRIVERS.iter().find(|(name, _)| *name == plugin)?;
    Some(driver)
}

/// Returns the CSI driver that handles an in-tree plugin's volumes on this node.
fn migrated_on(plugin: &str, node: Option<&CSINode>) -> Option<&'static str> {
    let listed = annotation(&node?.metadata, MIGRATED)?;
    let driver = migrated(plugin)?;
    listed
        .split(',')
        .any(|name| name == plugin)
        .then_some(driver)
}

/// Returns the identity of a volume with its CSI driver, or the driver that replaced its in-tree plugin,
/// whether or not nodes migrated.
pub(super) fn identity(volume: &TrimmedVolume) -> Option<Identity> {
    let (driver, handle) = match volume.disk.as_ref()? {
        Disk::Csi { driver, handle } => (&**driver, handle),
        Disk::InTree { plugin, handle } => (migrated(plugin)?, handle),
    };
    Some((driver.to_owned(), handle.to_string()))
}

/// Volume that counts toward a limit, independent of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CountedVolume<'a> {
    /// Name of the CSI driver or in-tree plugin.
    name: &'a str,
    handle: Cow<'a, str>,
    /// True for in-tree volumes, which count only where a CSI driver replaced the plugin.
    in_tree_source: bool,
}

impl<'a> CountedVolume<'a> {
    /// Returns the volume of a claim, provisioned or not.
    pub(super) fn from_claim(storage: &'a Storage, claim: &'a TrimmedClaim) -> Option<Self> {
        if let Some(volume) = storage.volumes.get(&*claim.volume) {
            return Self::from_volume(volume);
        }
        // Not provisioned yet: it will be one more volume of the class's driver.
        let class = storage.classes.get(&*claim.class)?;
        Some(Self {
            name: &class.provisioner,
            handle: format!("claim {}", claim.names.key()).into(),
            in_tree_source: false,
        })
    }

    pub(super) fn from_volume(volume: &'a TrimmedVolume) -> Option<Self> {
        let (name, handle, in_tree_source) = match volume.disk.as_ref()? {
            Disk::Csi { driver, handle } => (&**driver, handle, false),
            Disk::InTree { plugin, handle } => (*plugin, handle, true),
        };
        Some(Self {
            name,
            handle: (&**handle).into(),
            in_tree_source,
        })
    }

    /// Returns the driver on this node if the volume counts there.
    fn driver(&self, node: Option<&CSINode>) -> Option<&'a str> {
        match migrated_on(self.name, node) {
            Some(driver) => Some(driver),
            None => (!self.in_tree_source).then_some(self.name),
        }
    }

    /// Returns driver and handle on this node, if the volume counts there.
    pub(super) fn handle_on(&self, node: Option<&CSINode>) -> Option<Handle> {
        let driver = self.driver(node)?;
        Some((driver.to_owned(), self.handle.to_string()))
    }
}

/// Returns the volumes of a new pod, whose claims must exist. The flag is true if the volume may already be
/// on a node: used by another pod, attached, or the volume of another claim.
fn counted_volumes<'a>(
    storage: &'a Storage,
    pod: &'a PodInfo,
) -> Result<Vec<(CountedVolume<'a>, bool)>, Rejection> {
    let mut out: Vec<(CountedVolume<'_>, bool)> = Vec::new();
    for used in claims(pod) {
        let Some(claim) = storage.claims.get(&used.key) else {
            let text = format!("persistentvolumeclaim {:?} not found", used.name);
            return Err(Rejection::unresolvable(text));
        };
        if let Some(problem) = used.ownership_problem(pod, claim) {
            return Err(Rejection::error(problem));
        }
        let Some(source) = CountedVolume::from_claim(storage, claim) else {
            continue;
        };
        let volume = storage.volumes.get(&*claim.volume);
        let may_be_attached = storage.is_shared(&used.key, &pod.uid)
            || volume.is_some_and(|volume| storage.may_be_attached(volume));
        if out.iter().all(|(other, _)| *other != source) {
            out.push((source, may_be_attached));
        }
    }
    Ok(out)
}

/// Volume of the pod that is being scheduled, independent of the node.
#[derive(Debug)]
struct PodVolume {
    name: String,
    handle: String,
    in_tree_source: bool,
    /// True if it may already be on a node.
    may_be_attached: bool,
}

/// Volumes of the pod that is being scheduled.
#[derive(Debug)]
struct PodVolumes(Result<Vec<PodVolume>, Rejection>);

impl NodeVolumeLimits {
    /// Returns the volumes on a node with the pods of the cycle's overlay removed and added.
    fn with_overlay(
        &self,
        cycle: &Cycle<'_>,
        volumes: &VolumeCounts,
        node: Option<&CSINode>,
    ) -> VolumeCounts {
        let mut out = volumes.clone();
        for pod in cycle.overlay.removed {
            for volume in self.attached.volumes(&pod.uid) {
                out.remove(volume);
            }
        }
        for pod in cycle.overlay.added {
            for volume in &volumes_of(storage(cycle.view), pod, node) {
                out.add(volume);
            }
        }
        out
    }

    /// Adds the nodes with these names to [`Effects::touched`], as their verdicts may have changed.
    fn touch(names: impl IntoIterator<Item = String>, view: View<'_>, fx: &mut Effects) {
        let names = names.into_iter();
        fx.touched
            .extend(names.filter_map(|name| view.nodes.find(&name)));
    }

    /// Updates the volumes of all pods that use one of these claims.
    fn update_claim_users<'a>(
        &mut self,
        claims: impl IntoIterator<Item = &'a String>,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let storage = storage(view);
        for claim in claims {
            for uid in storage.users(claim) {
                self.update_pod(uid, view, fx);
            }
        }
    }

    /// Updates the volumes of one pod, which may be on a node or in an overlay.
    fn update_pod(&mut self, uid: &Arc<str>, view: View<'_>, fx: &mut Effects) {
        if self.attached.has(uid) {
            Self::touch(self.attached.update_pod(storage(view), uid), view, fx);
        } else {
            fx.demand_changed.push(uid.clone());
        }
    }
}

impl Plugin for NodeVolumeLimits {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .object_events()
        .pod_events();

    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER.or(Points::FILTER)
    }
}

impl Sign for NodeVolumeLimits {
    fn sign(&self, _: &PodInfo, _: &ResourceTable, _: &mut Signature) -> Signable {
        Signable::Yes
    }
    fn sign_external(&self, pod: &PodInfo, view: View<'_>, signature: &mut Signature) -> Signable {
        let Ok(counted) = counted_volumes(storage(view), pod) else {
            return Signable::No;
        };
        for (source, may_be_attached) in counted {
            if self.attached.is_limited(source.name) {
                signature.text(source.name);
                signature.flag(source.in_tree_source);
                signature.text(if may_be_attached { &source.handle } else { "" });
            }
        }
        Signable::Yes
    }
}

impl Inputs for NodeVolumeLimits {
    fn watches(&self) -> Vec<Watch> {
        Storage::watches(&[CLAIMS, VOLUMES, CLASSES, CSI_NODES, ATTACHMENTS])
    }
    fn indexes(&self) -> Vec<IndexKind> {
        indexes()
    }
}

impl PreFilter for NodeVolumeLimits {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        if !uses_claims(cycle.pod) {
            return PreFilterResult::Skip;
        }
        let pod_volumes = counted_volumes(storage(cycle.view), cycle.pod).map(|counted| {
            let own = |(source, may_be_attached): (CountedVolume<'_>, bool)| PodVolume {
                name: source.name.to_owned(),
                handle: source.handle.into_owned(),
                in_tree_source: source.in_tree_source,
                may_be_attached,
            };
            counted.into_iter().map(own).collect()
        });
        PreFilterResult::ready(PodVolumes(pod_volumes))
    }
}

impl Filter for NodeVolumeLimits {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(PodVolumes(pod_volumes)) = state.get() else {
            return Ok(());
        };
        let pod_volumes = pod_volumes.as_ref().map_err(Clone::clone)?;
        let name = cycle.view.nodes.name(node);
        let Some(node_volumes) = self
            .attached
            .node(name)
            .filter(|node_volumes| node_volumes.has_limits())
        else {
            return Ok(());
        };
        let csi_node = storage(cycle.view).csi_nodes.get(&**name);
        let csi_node = csi_node.map(|node| &**node);
        let with_overlay;
        let attached = if cycle.overlay.is_empty() {
            &node_volumes.volumes
        } else {
            with_overlay = self.with_overlay(cycle, &node_volumes.volumes, csi_node);
            &with_overlay
        };
        let mut new = VolumeCounts::default();
        for volume in pod_volumes {
            let source = CountedVolume {
                name: &volume.name,
                handle: volume.handle.as_str().into(),
                in_tree_source: volume.in_tree_source,
            };
            // A volume that nothing else uses is new on every node. Pods that share this result see
            // it as new also on the node for which this pod is nominated.
            if let Some((driver, handle)) = source.handle_on(csi_node)
                && !(volume.may_be_attached && attached.has(&driver, &handle))
            {
                new.add(&(driver, handle));
            }
        }
        for (driver, count) in new.counts() {
            let total = i64::try_from(attached.count(driver) + count).unwrap_or(i64::MAX);
            if node_volumes
                .limit(driver)
                .is_some_and(|limit| total > limit)
            {
                return Err(Rejection::unschedulable(TOO_MANY));
            }
        }
        Ok(())
    }
}

impl QueueHints for NodeVolumeLimits {
    fn interests(&self) -> Vec<Interest> {
        vec![
            interest(Subject::Object(CSI_NODES), Action::ADD.or(Action::UPDATE)),
            interest(Subject::AssignedPod, Action::DELETE),
            interest(Subject::Object(CLAIMS), Action::ADD),
            interest(Subject::Object(ATTACHMENTS), Action::DELETE),
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        let helps = match (event.pod, event.object) {
            (Some(removed), _) => uses_claims(removed),
            (_, Some(change)) => change.new_as().is_none_or(|claim| uses(pod, claim)),
            _ => true,
        };
        if helps {
            QueueingHint::Queue
        } else {
            QueueingHint::Skip
        }
    }
    fn event_subject(&self, event: &ClusterEvent<'_>) -> Option<String> {
        super::event_claim_key(event)
    }
    fn referenced_objects<'a>(&self, pod: &'a PodInfo) -> Vec<&'a str> {
        super::used_claim_keys(pod)
    }
}

impl ObjectEvents for NodeVolumeLimits {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let storage = storage(view);
        match change.kind {
            CLAIMS => {
                let claim = change.new_as::<TrimmedClaim>();
                self.update_claim_users(claim.map(|claim| claim.names.key()).iter(), view, fx);
            }
            VOLUMES => {
                let Some(volume) = change.new_as::<TrimmedVolume>() else {
                    return;
                };
                let name = volume.names.key();
                self.update_claim_users(storage.claims_on(&name), view, fx);
                for attachment in storage.attachments_of(&name) {
                    let nodes = self.attached.update_attachment(storage, attachment);
                    Self::touch(nodes, view, fx);
                }
            }
            CLASSES => {
                for uid in storage.pods() {
                    self.update_pod(uid, view, fx);
                }
            }
            CSI_NODES => {
                if let Some(node) = change.new_as::<CSINode>() {
                    let name = key(&node.metadata);
                    self.attached.update_node(storage, &name);
                    Self::touch([name], view, fx);
                }
            }
            ATTACHMENTS => {
                if let Some(attachment) = change.new_as::<TrimmedAttachment>() {
                    let name = attachment.names.key();
                    let nodes = self.attached.update_attachment(storage, &name);
                    Self::touch(nodes, view, fx);
                }
            }
            _ => {}
        }
    }
}

impl PodEvents for NodeVolumeLimits {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        if uses_claims(pod) {
            let name = view.nodes.name(node);
            self.attached.add_pod(storage(view), pod, name);
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.attached.remove_pod(&pod.uid);
    }
}
