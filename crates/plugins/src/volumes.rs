//! Volume plugins: `VolumeBinding`, `VolumeZone`, `VolumeRestrictions` and `NodeVolumeLimits`.
//!
//! Pods with equivalent claims share cached node results: each plugin adds to the signature what its rules
//! read of claims and of the objects they name (topology, class, request, driver), but not their names. A
//! claim is signed individually where the rules treat it individually: if another pod uses it, if a volume is
//! reserved for it, or if its volume is attached somewhere. Changes on a node, such as free volumes of its
//! host or attached volumes, are handled by touching the node.

mod attached;
mod binding;
mod capacity;
mod limits;
mod matching;
mod metrics;
mod plan;
mod pool;
mod restrictions;
mod search;
mod storage;
mod trimmed;
mod zone;

pub(crate) use binding::build as build_binding;
pub(crate) use limits::NodeVolumeLimits;
pub(crate) use restrictions::VolumeRestrictions;
#[cfg(test)]
pub(crate) use trimmed::{TrimmedAttachment, TrimmedVolume};
pub(crate) use zone::VolumeZone;

use k8s_openapi::api::core::v1::Volume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_scheduler::framework::{Action, ClusterEvent, IndexKind, Interest, Subject, View};
use koord_scheduler::state::PodInfo;
use std::sync::LazyLock;
use storage::Storage;
pub(crate) use trimmed::TrimmedClaim;

const CLAIMS: &str = "persistentvolumeclaims.v1.";
const VOLUMES: &str = "persistentvolumes.v1.";
const CLASSES: &str = "storageclasses.v1.storage.k8s.io";
const CSI_NODES: &str = "csinodes.v1.storage.k8s.io";
const CSI_DRIVERS: &str = "csidrivers.v1.storage.k8s.io";
const CAPACITIES: &str = "csistoragecapacities.v1.storage.k8s.io";
const ATTACHMENTS: &str = "volumeattachments.v1.storage.k8s.io";

/// Annotation in which older clients set the storage class of a claim or volume.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Key of a namespaced object, `namespace/name`.
type Key = String;

/// Returns the pod's volumes; for a bound pod, only those other than named claims. A reservation has none,
/// because these plugins ignore reservations.
fn volumes(pod: &PodInfo) -> &[Volume] {
    pod.object.volumes()
}

/// Reference of a pod to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClaimUse {
    name: String,
    key: Key,
    /// True if the claim is created for this pod (generic ephemeral volume) and must be owned by it.
    ephemeral: bool,
}

impl ClaimUse {
    fn new(pod: &PodInfo, name: String, ephemeral: bool) -> Self {
        Self {
            key: format!("{}/{name}", pod.namespace),
            name,
            ephemeral,
        }
    }

    /// Returns the claim of a pod volume; `None` for volumes without one.
    fn from_volume(pod: &PodInfo, volume: &Volume) -> Option<Self> {
        match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(Self::new(pod, claim.claim_name.clone(), false)),
            (None, Some(_)) => {
                let name = format!("{}-{}", pod.name, volume.name);
                Some(Self::new(pod, name, true))
            }
            (None, None) => None,
        }
    }

    /// Returns a message if `claim` must be owned by this pod and is not.
    fn ownership_problem(&self, pod: &PodInfo, claim: &TrimmedClaim) -> Option<String> {
        let owned = claim.controllers.iter().any(|uid| **uid == *pod.uid);
        (self.ephemeral && !owned).then(|| {
            let key = &self.key;
            format!("PVC {key:?} was not created for pod \"{pod}\" (pod is not owner)")
        })
    }
}

/// Claims of a pod in the order of its volumes. Cached per pod.
#[derive(Debug)]
struct CachedClaims(Vec<ClaimUse>);

/// Returns the claims that `pod` uses, in the order of its volumes.
fn claims(pod: &PodInfo) -> &[ClaimUse] {
    if !uses_claims(pod) {
        return &[];
    }
    let parse = |pod: &PodInfo| {
        let apart = pod.object.claims_apart();
        let apart = apart.map(|name| ClaimUse::new(pod, name.to_owned(), false));
        let used = volumes(pod).iter();
        let used = used.filter_map(|volume| ClaimUse::from_volume(pod, volume));
        CachedClaims(apart.chain(used).collect())
    };
    &pod.facet(parse).0
}

/// Returns the claims of `pod` that exist independently of it.
fn independent_claims(pod: &PodInfo) -> impl Iterator<Item = &ClaimUse> {
    claims(pod).iter().filter(|used| !used.ephemeral)
}

/// Returns true if `pod` uses a claim.
fn uses_claims(pod: &PodInfo) -> bool {
    let mut volumes = volumes(pod).iter();
    pod.object.claims_apart().next().is_some()
        || volumes
            .any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some())
}

/// Returns the key of the claim in `event`, by which the queue finds pods that use it.
fn event_claim_key(event: &ClusterEvent<'_>) -> Option<String> {
    let claim: &TrimmedClaim = event.object?.new_as()?;
    Some(claim.names.key())
}

/// Returns the keys of the claims that `pod` uses.
fn used_claim_keys(pod: &PodInfo) -> Vec<&str> {
    claims(pod).iter().map(|used| &*used.key).collect()
}

/// Returns true if `pod` uses this claim.
fn uses(pod: &PodInfo, claim: &TrimmedClaim) -> bool {
    *claim.names.namespace == *pod.namespace
        && claims(pod)
            .iter()
            .any(|used| *used.name == *claim.names.name)
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the index of claims, volumes and related objects, which all volume plugins read.
fn storage(view: View<'_>) -> &Storage {
    static NONE: LazyLock<Storage> = LazyLock::new(Storage::default);
    view.index().unwrap_or(&NONE)
}

fn indexes() -> Vec<IndexKind> {
    vec![IndexKind::new::<Storage>()]
}

fn interest(subject: Subject, actions: Action) -> Interest {
    Interest { subject, actions }
}
