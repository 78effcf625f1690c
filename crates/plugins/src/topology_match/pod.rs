//! A pod's alignment request, and its part in fingerprints.

use koord_api::qos::KubeQos;
use koord_model::alignment::{
    AlignmentRequest, ResourceDemand, ResourceKind, Role, fingerprint, has_own,
};
use koord_model::resources::{PODS, ResourceId, ResourceTable, amount};
use koord_scheduler::framework::Signature;
use koord_scheduler::state::{ContainerInfo, PodInfo};
use std::sync::Arc;

/// The pod's alignment request; cached in the pod so that it is parsed only once.
struct CachedAlignmentRequest(Option<Arc<AlignmentRequest>>);

/// Returns the alignment request of `pod`; `None` if no kubelet would align it, because it requests no
/// exclusive resources. `table` must be the process-wide table, since the parsed ids are cached.
pub(super) fn alignment_request<'p>(
    pod: &'p PodInfo,
    table: &ResourceTable,
) -> Option<&'p Arc<AlignmentRequest>> {
    let cached = pod.facet(|pod| CachedAlignmentRequest(read(pod, table).map(Arc::new)));
    cached.0.as_ref()
}

/// Parses the alignment request; `None` for a BestEffort pod without devices.
fn read(pod: &PodInfo, table: &ResourceTable) -> Option<AlignmentRequest> {
    let qos = pod.qos;
    let ask = AlignmentRequest {
        guaranteed: qos == KubeQos::Guaranteed,
        whole: pod
            .requests
            .iter()
            .filter(|(id, _)| *id != PODS)
            .map(|(id, amount)| ResourceDemand {
                id,
                amount,
                kind: ResourceKind::from_name(&table.name(id)),
            })
            .collect(),
        containers: containers(pod, table).collect(),
    };
    let mut wants = ask.containers.iter().flat_map(|(_, wants)| wants);
    let devices = wants.any(|want| is_extended(want, table));
    (qos != KubeQos::BestEffort || devices).then_some(ask)
}

fn is_extended(want: &ResourceDemand, table: &ResourceTable) -> bool {
    want.kind == ResourceKind::Host && table.name(want.id).contains('/')
}

fn containers<'p>(
    pod: &'p PodInfo,
    table: &'p ResourceTable,
) -> impl Iterator<Item = (Role, Vec<ResourceDemand>)> + 'p {
    let role = |container: &ContainerInfo| match container {
        container if container.is_sidecar() => Role::Sidecar,
        container if container.init => Role::Init,
        _ => Role::Main,
    };
    let all = pod.object.containers.iter();
    all.map(move |container| (role(container), container_requests(container, table)))
}

fn container_requests(container: &ContainerInfo, table: &ResourceTable) -> Vec<ResourceDemand> {
    let wants = container.requests.iter().filter_map(|(name, text)| {
        // Pods with invalid amounts are rejected before they get here.
        let read = text.parse().ok()?;
        let id = table.intern(name);
        Some(ResourceDemand {
            id,
            amount: amount(id, &read),
            kind: ResourceKind::from_name(name),
        })
    });
    let mut wants: Vec<ResourceDemand> = wants.collect();
    wants.sort_by_key(|want| want.id);
    wants
}

/// Adds the whole alignment request to the signature.
pub(super) fn sign(ask: &AlignmentRequest, signature: &mut Signature) {
    let mut list = |wants: &[ResourceDemand]| {
        signature.number(wants.len() as i64);
        for want in wants {
            signature.number(i64::from(want.id.0));
            signature.number(want.amount);
        }
    };
    list(&ask.whole);
    for (_, wants) in &ask.containers {
        list(wants);
    }
    let containers = ask.containers.iter();
    for (role, _) in containers.clone() {
        signature.number(*role as i64);
    }
    signature.number(containers.len() as i64);
    signature.number(2 + i64::from(ask.guaranteed));
}

/// A pod's hash for fingerprints, and whether it has exclusive resources.
#[derive(Debug, Clone)]
pub(super) struct PodFingerprint {
    pub(super) hash: u64,
    /// True if the pod has exclusive CPUs or memory.
    native: bool,
    /// The extended resources that the pod requests.
    devices: Vec<ResourceId>,
}

impl PodFingerprint {
    /// Computes the hash and the exclusive resources of `pod`.
    pub(super) fn from_pod(pod: &PodInfo, table: &ResourceTable) -> Self {
        let guaranteed = pod.qos == KubeQos::Guaranteed;
        let staying = containers(pod, table).filter(|(role, _)| *role != Role::Init);
        let staying: Vec<ResourceDemand> = staying.flat_map(|(_, wants)| wants).collect();
        let devices = staying.iter().filter(|want| is_extended(want, table));
        Self {
            hash: fingerprint::pod(&pod.namespace, &pod.name),
            native: guaranteed && has_own(&staying),
            devices: devices.map(|want| want.id).collect(),
        }
    }

    /// Returns true if the pod has exclusive resources: CPUs, memory, or an extended resource for which
    /// `lists` is true.
    pub(super) fn is_exclusive(&self, lists: impl Fn(ResourceId) -> bool) -> bool {
        self.native || self.devices.iter().any(|id| lists(*id))
    }
}
