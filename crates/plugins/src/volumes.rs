//! The volume plugins: `VolumeBinding`, `VolumeZone`, `VolumeRestrictions`, `NodeVolumeLimits`.
//!
//! Pods whose claims are of one kind share what is found on nodes: a plugin signs what its rules read
//! of claims and of what they name (places, classes, requests, drivers), and not how they are called.
//! Where the rules tell a claim from others of its kind, because a pod uses it already, because a volume
//! is meant for it or its volume is attached somewhere, it signs that, too. What changes on a
//! node is told by touching it: free volumes of its host, volumes that it has attached.

mod attached;
mod binding;
mod limits;
mod matching;
mod metrics;
mod plan;
mod pool;
mod restrictions;
mod rooms;
mod search;
mod seen;
mod storage;
mod zone;

pub(crate) use binding::build as build_binding;
pub(crate) use limits::NodeVolumeLimits;
pub(crate) use restrictions::VolumeRestrictions;
#[cfg(test)]
pub(crate) use seen::{SeenAttachment, SeenVolume};
pub(crate) use zone::VolumeZone;

use k8s_openapi::api::core::v1::Volume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_scheduler::framework::{Action, ClusterEvent, IndexKind, Interest, Subject, View};
use koord_scheduler::state::PodInfo;
pub(crate) use seen::SeenClaim;
use std::sync::LazyLock;
use storage::Storage;

const CLAIMS: &str = "persistentvolumeclaims.v1.";
const VOLUMES: &str = "persistentvolumes.v1.";
const CLASSES: &str = "storageclasses.v1.storage.k8s.io";
const CSI_NODES: &str = "csinodes.v1.storage.k8s.io";
const CSI_DRIVERS: &str = "csidrivers.v1.storage.k8s.io";
const CAPACITIES: &str = "csistoragecapacities.v1.storage.k8s.io";
const ATTACHMENTS: &str = "volumeattachments.v1.storage.k8s.io";

/// The annotation by which older clients name the class of a claim or volume.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// `namespace/name`.
type Key = String;

/// The pod's volumes; of a bound pod, those that are no claim with a name. A reservation has none: these plugins
/// ignore holders.
fn volumes(pod: &PodInfo) -> &[Volume] {
    pod.object.volumes()
}

/// A claim that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Used {
    name: String,
    key: Key,
    /// Whether it is made for this pod and must be owned by it.
    ephemeral: bool,
}

impl Used {
    fn new(pod: &PodInfo, name: String, ephemeral: bool) -> Self {
        Self {
            key: format!("{}/{name}", pod.namespace),
            name,
            ephemeral,
        }
    }

    fn of(pod: &PodInfo, volume: &Volume) -> Option<Self> {
        match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(Self::new(pod, claim.claim_name.clone(), false)),
            (None, Some(_)) => {
                let name = format!("{}-{}", pod.name, volume.name);
                Some(Self::new(pod, name, true))
            }
            (None, None) => None,
        }
    }

    /// Why `claim` is not this pod's, if it must be.
    fn foreign(&self, pod: &PodInfo, claim: &SeenClaim) -> Option<String> {
        let owned = claim.controllers.iter().any(|uid| **uid == *pod.uid);
        (self.ephemeral && !owned).then(|| {
            let key = &self.key;
            format!("PVC {key:?} was not created for pod \"{pod}\" (pod is not owner)")
        })
    }
}

/// The claims of a pod, in order of its volumes.
#[derive(Debug)]
struct Claims(Vec<Used>);

/// The claims that `pod` uses, in order of its volumes.
fn claims(pod: &PodInfo) -> &[Used] {
    if !uses_claims(pod) {
        return &[];
    }
    let read = |pod: &PodInfo| {
        let apart = pod.object.claims_apart();
        let apart = apart.map(|name| Used::new(pod, name.to_owned(), false));
        let used = volumes(pod).iter();
        let used = used.filter_map(|volume| Used::of(pod, volume));
        Claims(apart.chain(used).collect())
    };
    &pod.facet(read).0
}

/// Those of them that are not made for this pod alone.
fn standing(pod: &PodInfo) -> impl Iterator<Item = &Used> {
    claims(pod).iter().filter(|used| !used.ephemeral)
}

fn uses_claims(pod: &PodInfo) -> bool {
    let mut volumes = volumes(pod).iter();
    pod.object.claims_apart().next().is_some()
        || volumes
            .any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some())
}

/// Under which name pods that use it are found, for an event that is about a claim.
fn claim_told(event: &ClusterEvent<'_>) -> Option<String> {
    let claim: &SeenClaim = event.object?.new_as()?;
    Some(claim.names.key())
}

/// The names of the claims that `pod` uses.
fn claim_names(pod: &PodInfo) -> Vec<&str> {
    claims(pod).iter().map(|used| &*used.key).collect()
}

/// Whether `pod` uses this claim.
fn uses(pod: &PodInfo, claim: &SeenClaim) -> bool {
    *claim.names.namespace == *pod.namespace
        && claims(pod)
            .iter()
            .any(|used| *used.name == *claim.names.name)
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Claims, volumes and what describes them, which all of these plugins read.
fn storage(view: View<'_>) -> &Storage {
    static NONE: LazyLock<Storage> = LazyLock::new(Storage::default);
    view.index().unwrap_or(&NONE)
}

fn indexes() -> Vec<IndexKind> {
    vec![IndexKind::of::<Storage>()]
}

fn interest(subject: Subject, actions: Action) -> Interest {
    Interest { subject, actions }
}
