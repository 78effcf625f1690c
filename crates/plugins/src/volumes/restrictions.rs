//! `VolumeRestrictions`: prevents conflicts on disks with a single writer and on ReadWriteOncePod claims.

use super::storage::Storage;
use super::{CLAIMS, Key, independent_claims, indexes, interest, storage, uses, volumes};
use k8s_openapi::api::core::v1::Volume;
use koord_model::resources::ResourceTable;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, ClusterEvent, Cycle, Effects, Filter, IndexKind, Inputs, Interest, Plugin, PodEvents,
    Points, PreFilter, PreFilterResult, QueueHints, QueueingHint, Rejection, Roles, Sign, Signable,
    Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

const DISK: &str = "node(s) had no available disk";
const ONE_POD: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

/// State of the `VolumeRestrictions` plugin.
#[derive(Debug, Default)]
pub(crate) struct VolumeRestrictions {
    /// Uids of the pods on nodes that use a claim.
    users: FxHashMap<Key, FxHashSet<Arc<str>>>,
}

/// ReadWriteOncePod claims of a pod that other pods use, too, and the number of pods on nodes that use them
/// now.
#[derive(Debug)]
struct ExclusiveClaims {
    claims: Vec<Key>,
    users: i64,
}

fn claim_keys(pod: &PodInfo) -> impl Iterator<Item = &Key> {
    independent_claims(pod).map(|used| &used.key)
}

/// Returns true for volume types with a limit on concurrent use.
fn is_disk(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.rbd.is_some()
        || volume.iscsi.is_some()
}

/// Writes what [`conflict`] reads to `signature`.
fn sign_disk(volume: &Volume, signature: &mut Signature) {
    let mut disk = |kind: &str, ids: &[&str], read_only: Option<bool>| {
        signature.text(kind);
        signature.texts(ids);
        signature.flag(read_only == Some(true));
    };
    if let Some(gce) = &volume.gce_persistent_disk {
        disk("gce", &[&gce.pd_name], gce.read_only);
    }
    if let Some(ebs) = &volume.aws_elastic_block_store {
        disk("ebs", &[&ebs.volume_id], None);
    }
    if let Some(iscsi) = &volume.iscsi {
        disk("iscsi", &[&iscsi.iqn], iscsi.read_only);
    }
    if let Some(rbd) = &volume.rbd {
        let mut ids = vec![rbd.image.as_str(), rbd.pool.as_deref().unwrap_or("rbd")];
        ids.extend(rbd.monitors.iter().map(String::as_str));
        disk("rbd", &ids, rbd.read_only);
    }
}

/// Returns true if two pods on one node cannot use these volumes at the same time.
fn conflict(a: &Volume, b: &Volume) -> bool {
    let writes = |a: Option<bool>, b: Option<bool>| !(a == Some(true) && b == Some(true));
    if let (Some(a), Some(b)) = (&a.gce_persistent_disk, &b.gce_persistent_disk)
        && a.pd_name == b.pd_name
        && writes(a.read_only, b.read_only)
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&a.aws_elastic_block_store, &b.aws_elastic_block_store)
        && a.volume_id == b.volume_id
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&a.iscsi, &b.iscsi)
        && a.iqn == b.iqn
        && writes(a.read_only, b.read_only)
    {
        return true;
    }
    let pool = |pool: &Option<String>| pool.clone().unwrap_or_else(|| "rbd".to_owned());
    matches!((&a.rbd, &b.rbd), (Some(a), Some(b))
        if a.monitors.iter().any(|monitor| b.monitors.contains(monitor))
            && pool(&a.pool) == pool(&b.pool)
            && a.image == b.image
            && writes(a.read_only, b.read_only))
}

impl VolumeRestrictions {
    /// Returns the ReadWriteOncePod claims of `pod`.
    fn exclusive_claims(storage: &Storage, pod: &PodInfo) -> Result<Vec<Key>, Rejection> {
        let mut out = Vec::new();
        for used in independent_claims(pod) {
            let Some(claim) = storage.claims.get(&used.key) else {
                let name = &used.name;
                let text = format!("persistentvolumeclaim {name:?} not found");
                return Err(Rejection::unresolvable(text));
            };
            let mut modes = claim.access_modes.iter();
            if modes.any(|mode| **mode == *"ReadWriteOncePod") {
                out.push(used.key.clone());
            }
        }
        Ok(out)
    }
}

impl Plugin for VolumeRestrictions {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pod_events();

    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER.or(Points::FILTER)
    }
}

impl Sign for VolumeRestrictions {
    fn sign(&self, _: &PodInfo, _: &ResourceTable, _: &mut Signature) -> Signable {
        Signable::Yes
    }
    fn sign_external(&self, pod: &PodInfo, view: View<'_>, signature: &mut Signature) -> Signable {
        for volume in volumes(pod).iter().filter(|volume| is_disk(volume)) {
            sign_disk(volume, signature);
        }
        let storage = storage(view);
        let Ok(claims) = Self::exclusive_claims(storage, pod) else {
            return Signable::No;
        };
        // A claim that no other pod uses or requests excludes no node.
        for key in claims.iter().filter(|key| storage.is_shared(key, &pod.uid)) {
            let users = self.users.get(key).map_or(0, FxHashSet::len);
            signature.text(key);
            signature.count(users);
        }
        Signable::Yes
    }
}

impl Inputs for VolumeRestrictions {
    fn watches(&self) -> Vec<Watch> {
        Storage::watches(&[CLAIMS])
    }
    fn indexes(&self) -> Vec<IndexKind> {
        indexes()
    }
}

impl PreFilter for VolumeRestrictions {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let pod = cycle.pod;
        let storage = storage(cycle.view);
        let mut claims = match Self::exclusive_claims(storage, pod) {
            Ok(claims) => claims,
            Err(rejection) => return PreFilterResult::Reject(rejection),
        };
        claims.retain(|key| storage.is_shared(key, &pod.uid));
        if claims.is_empty() && !volumes(pod).iter().any(is_disk) {
            return PreFilterResult::Skip;
        }
        let users = claims.iter().filter_map(|key| self.users.get(key));
        let users: usize = users.map(FxHashSet::len).sum();
        let users = i64::try_from(users).unwrap_or(i64::MAX);
        PreFilterResult::ready(ExclusiveClaims { claims, users })
    }
}

impl Filter for VolumeRestrictions {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(exclusive) = state.get::<ExclusiveClaims>() else {
            return Ok(());
        };
        let own = volumes(cycle.pod);
        if own.iter().any(is_disk) {
            let clashes = |other: &Arc<PodInfo>| {
                let other_volumes = volumes(other);
                other_volumes
                    .iter()
                    .any(|b| own.iter().any(|a| conflict(a, b)))
            };
            if cycle.pods(node).any(clashes) {
                return Err(Rejection::unschedulable(DISK));
            }
        }
        if !exclusive.claims.is_empty() {
            let uses = |pods: &[Arc<PodInfo>]| {
                let keys = pods.iter().flat_map(|pod| claim_keys(pod));
                let shared = keys.filter(|key| exclusive.claims.contains(key));
                i64::try_from(shared.count()).unwrap_or(i64::MAX)
            };
            let overlay = cycle.overlay;
            if exclusive.users - uses(overlay.removed) + uses(overlay.added) > 0 {
                return Err(Rejection::unschedulable(ONE_POD));
            }
        }
        Ok(())
    }
}

impl QueueHints for VolumeRestrictions {
    fn interests(&self) -> Vec<Interest> {
        let change = Action::ADD.or(Action::UPDATE);
        vec![
            interest(Subject::AssignedPod, Action::DELETE),
            interest(Subject::Node, Action::ADD),
            interest(Subject::Object(CLAIMS), change),
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        let helps = match (event.pod, event.object) {
            (Some(deleted), _) => {
                let shares = claim_keys(deleted).any(|key| claim_keys(pod).any(|own| own == key));
                let disks = |a: &Volume| volumes(pod).iter().any(|b| conflict(a, b));
                shares || volumes(deleted).iter().any(disks)
            }
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

impl PodEvents for VolumeRestrictions {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        for key in claim_keys(pod) {
            self.users
                .entry(key.clone())
                .or_default()
                .insert(pod.uid.clone());
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        for key in claim_keys(pod) {
            if let Some(users) = self.users.get_mut(key) {
                users.remove(&pod.uid);
                if users.is_empty() {
                    self.users.remove(key);
                }
            }
        }
    }
}
