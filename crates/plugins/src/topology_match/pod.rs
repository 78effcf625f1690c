//! A pod's side.

use koord_api::qos::KubeQos;
use koord_model::alignment::{Ask, Kind, Role, Want, fingerprint, has_own};
use koord_model::resources::{PODS, ResourceId, ResourceTable, amount};
use koord_scheduler::framework::Signature;
use koord_scheduler::state::{ContainerInfo, PodInfo};
use std::sync::Arc;

/// What a pod asks for, as it was read once.
struct Asked(Option<Arc<Ask>>);

/// What `pod` asks for; `None` when no kubelet would align it: nothing of its own is asked for. `table` is
/// the process's: numbers are handed out once.
pub(super) fn ask<'p>(pod: &'p PodInfo, table: &ResourceTable) -> Option<&'p Arc<Ask>> {
    let asked = pod.facet(|pod| Asked(read(pod, table).map(Arc::new)));
    asked.0.as_ref()
}

fn read(pod: &PodInfo, table: &ResourceTable) -> Option<Ask> {
    let qos = pod.qos;
    let ask = Ask {
        guaranteed: qos == KubeQos::Guaranteed,
        whole: pod
            .requests
            .iter()
            .filter(|(id, _)| *id != PODS)
            .map(|(id, amount)| Want {
                id,
                amount,
                kind: Kind::of(&table.name(id)),
            })
            .collect(),
        containers: containers(pod, table).collect(),
    };
    let mut wants = ask.containers.iter().flat_map(|(_, wants)| wants);
    let devices = wants.any(|want| is_extended(want, table));
    (qos != KubeQos::BestEffort || devices).then_some(ask)
}

fn is_extended(want: &Want, table: &ResourceTable) -> bool {
    want.kind == Kind::Host && table.name(want.id).contains('/')
}

fn containers<'p>(
    pod: &'p PodInfo,
    table: &'p ResourceTable,
) -> impl Iterator<Item = (Role, Vec<Want>)> + 'p {
    let role = |container: &ContainerInfo| match container {
        container if container.is_sidecar() => Role::Sidecar,
        container if container.init => Role::Init,
        _ => Role::Main,
    };
    let all = pod.object.containers.iter();
    all.map(move |container| (role(container), wants(container, table)))
}

fn wants(container: &ContainerInfo, table: &ResourceTable) -> Vec<Want> {
    let wants = container.requests.iter().filter_map(|(name, text)| {
        // A pod with an amount that cannot be read never comes here.
        let read = text.parse().ok()?;
        let id = table.intern(name);
        Some(Want {
            id,
            amount: amount(id, &read),
            kind: Kind::of(name),
        })
    });
    let mut wants: Vec<Want> = wants.collect();
    wants.sort_by_key(|want| want.id);
    wants
}

/// Writes all of an ask.
pub(super) fn sign(ask: &Ask, signature: &mut Signature) {
    let mut list = |wants: &[Want]| {
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

/// What a pod is in fingerprints.
#[derive(Debug, Clone)]
pub(super) struct Print {
    pub(super) hash: u64,
    /// Whether it has whole cores or memory of its own.
    native: bool,
    /// The extended resources that it asks for.
    devices: Vec<ResourceId>,
}

impl Print {
    pub(super) fn of(pod: &PodInfo, table: &ResourceTable) -> Self {
        let guaranteed = pod.qos == KubeQos::Guaranteed;
        let staying = containers(pod, table).filter(|(role, _)| *role != Role::Init);
        let staying: Vec<Want> = staying.flat_map(|(_, wants)| wants).collect();
        let devices = staying.iter().filter(|want| is_extended(want, table));
        Self {
            hash: fingerprint::pod(&pod.namespace, &pod.name),
            native: guaranteed && has_own(&staying),
            devices: devices.map(|want| want.id).collect(),
        }
    }

    /// Whether it has something for itself alone, on a node whose zones list what `lists` says.
    pub(super) fn is_exclusive(&self, lists: impl Fn(ResourceId) -> bool) -> bool {
        self.native || self.devices.iter().any(|id| lists(*id))
    }
}
