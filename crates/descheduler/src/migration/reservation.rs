//! The reservation of a job: room for what will replace the pod, on another node.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, ObjectReference, Pod, PodTemplateSpec,
};
use koord_api::duration::GoDuration;
use koord_api::labels;
use koord_api::scheduling::{
    PodMigrateReservationOptions, PodMigrationJob, Reservation, ReservationControllerReference,
    ReservationOwner, ReservationPhase, ReservationSpec, ReservationTemplateSpec,
};
use std::collections::BTreeMap;

/// Label of a reservation: who made it.
pub const CREATED_BY: &str = "app.kubernetes.io/created-by";
/// Its value here.
pub const CREATOR: &str = "koord-descheduler";

/// What the reservation of `job` is called, whether it exists or not.
#[must_use]
pub fn name(job: &PodMigrationJob) -> String {
    let options = job.spec.reservation_options.as_ref();
    let by_ref = options.and_then(|options| options.reservation_ref.as_ref()?.name.clone());
    let template = options.and_then(|options| options.template.as_ref());
    let by_user = template.and_then(|template| template.metadata.as_ref()?.name.clone());
    let given = [by_ref, by_user].into_iter().flatten();
    let mut given = given.filter(|name| !name.is_empty());
    let uid = || job.metadata.uid.clone().unwrap_or_default();
    given.next().unwrap_or_else(uid)
}

/// What `job` reserves for the replacement of `pod`: as its user says, the rest from the pod. If `without_claims`,
/// PersistentVolumeClaims and ephemeral volumes are left out.
#[must_use]
pub fn options(
    job: &PodMigrationJob,
    pod: &Pod,
    without_claims: bool,
    now: Timestamp,
) -> PodMigrateReservationOptions {
    let mut options = job.spec.reservation_options.clone().unwrap_or_default();
    let mut template = options.template.take().unwrap_or_default();
    let meta = template.metadata.get_or_insert_default();
    meta.name = Some(name(job));
    let known = meta.labels.get_or_insert_default();
    known.insert(CREATED_BY.to_owned(), CREATOR.to_owned());
    known.insert(labels::RESERVATION_ORDER.to_owned(), order(now));
    let spec = &mut template.spec;
    if spec.template == PodTemplateSpec::default() {
        spec.template = template_of(pod);
    }
    if spec.owners.is_empty() {
        spec.owners = owners(pod);
    }
    // Whoever uses it uses it up: it is there for one pod.
    spec.allocate_once = Some(true);
    let ttl = job.spec.ttl.filter(|ttl| *ttl > GoDuration::ZERO);
    if spec.ttl.is_none() && spec.expires.is_none() {
        spec.ttl = ttl;
    }
    let pod_spec = spec.template.spec.get_or_insert_default();
    pod_spec.node_name = None;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    if let Some(node) = node.filter(|node| !node.is_empty()) {
        avoid(pod_spec, node);
    }
    if without_claims && let Some(volumes) = &mut pod_spec.volumes {
        let moves = |volume: &k8s_openapi::api::core::v1::Volume| {
            volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none()
        };
        volumes.retain(moves);
    }
    options.template = Some(template);
    options
}

/// The object that `options` describe.
#[must_use]
pub fn object(options: &PodMigrateReservationOptions) -> Reservation {
    let ReservationTemplateSpec { metadata, spec } = options.template.clone().unwrap_or_default();
    Reservation {
        metadata: metadata.unwrap_or_default(),
        spec,
        status: None,
    }
}

/// How a job names `reservation`.
#[must_use]
pub fn reference(reservation: &Reservation) -> ObjectReference {
    ObjectReference {
        kind: Some("Reservation".to_owned()),
        // As upstream: the version without its group.
        api_version: Some("v1alpha1".to_owned()),
        name: reservation.metadata.name.clone(),
        uid: reservation.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The value of label `scheduling.koordinator.sh/reservation-order`: who is younger comes later.
#[must_use]
pub fn order(now: Timestamp) -> String {
    now.as_millisecond().to_string()
}

/// Whether a descheduler made `reservation`.
#[must_use]
pub fn is_ours(reservation: &Reservation) -> bool {
    label(reservation, CREATED_BY) == Some(CREATOR)
}

/// The value of one of its labels.
#[must_use]
pub fn label<'a>(reservation: &'a Reservation, key: &str) -> Option<&'a str> {
    let labels: &BTreeMap<_, _> = reservation.metadata.labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

/// Whether somebody has used it: it holds room for nobody else.
#[must_use]
pub fn is_spent(reservation: &Reservation) -> bool {
    let Some(status) = &reservation.status else {
        return false;
    };
    status.phase == Some(ReservationPhase::Succeeded) || !status.current_owners.is_empty()
}

/// Whether it is for a pod that waits for a node itself.
#[must_use]
pub fn is_for_pending(spec: &ReservationSpec) -> bool {
    let alone = |owner: &ReservationOwner| {
        owner.object.is_some() && owner.controller.is_none() && owner.label_selector.is_none()
    };
    spec.owners.iter().any(alone)
}

fn template_of(pod: &Pod) -> PodTemplateSpec {
    let mut metadata = pod.metadata.clone();
    metadata.managed_fields = None;
    metadata.resource_version = None;
    PodTemplateSpec {
        metadata: Some(metadata),
        spec: pod.spec.clone(),
    }
}

/// The pod itself while it waits for a node, else its controller.
fn owners(pod: &Pod) -> Vec<ReservationOwner> {
    let meta = &pod.metadata;
    let status = pod.status.as_ref();
    let pending = status.is_some_and(|status| status.phase.as_deref() == Some("Pending"));
    let scheduled = status.into_iter().flat_map(|status| &status.conditions);
    let mut scheduled = scheduled
        .flatten()
        .filter(|one| one.type_ == "PodScheduled");
    if pending && scheduled.next().is_some_and(|one| one.status == "False") {
        let object = ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        };
        return vec![ReservationOwner {
            object: Some(object),
            ..ReservationOwner::default()
        }];
    }
    let mut controllers = meta.owner_references.iter().flatten();
    let controller = controllers.find(|owner| owner.controller == Some(true));
    let by_controller = controller.map(|owner| ReservationOwner {
        controller: Some(ReservationControllerReference {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: owner.controller,
            block_owner_deletion: owner.block_owner_deletion,
            namespace: meta.namespace.clone().unwrap_or_default(),
        }),
        ..ReservationOwner::default()
    });
    by_controller.into_iter().collect()
}

/// `node` is none of those that it may be on. Terms are alternatives: each has to say so.
fn avoid(spec: &mut k8s_openapi::api::core::v1::PodSpec, node: &str) {
    let affinity = spec.affinity.get_or_insert_default();
    let affinity = affinity.node_affinity.get_or_insert_default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    let elsewhere = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let terms = &mut required.node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        let fields = term.match_fields.get_or_insert_default();
        if !fields.contains(&elsewhere) {
            fields.push(elsewhere.clone());
        }
    }
}
