//! The reservation of a job: capacity on another node for the replacement of its pod.

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

/// Label of a reservation: the component that created it.
pub const CREATED_BY: &str = "app.kubernetes.io/created-by";
/// Value of [`CREATED_BY`] for the descheduler's reservations.
pub const CREATOR: &str = "koord-descheduler";

/// Returns the name of the reservation of `job`, whether it exists or not.
#[must_use]
pub fn name(job: &PodMigrationJob) -> String {
    let options = job.spec.reservation_options.as_ref();
    let by_ref = options.and_then(|options| options.reservation_ref.as_ref()?.name.clone());
    let template = options.and_then(|options| options.template.as_ref());
    let by_user = template.and_then(|template| template.metadata.as_ref()?.name.clone());
    let names = [by_ref, by_user].into_iter().flatten();
    let mut names = names.filter(|name| !name.is_empty());
    let uid = || job.metadata.uid.clone().unwrap_or_default();
    names.next().unwrap_or_else(uid)
}

/// Returns the reservation options of `job`: the user's settings, completed from `pod`. If `without_claims`,
/// PersistentVolumeClaims and ephemeral volumes are omitted.
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
    let reservation_labels = meta.labels.get_or_insert_default();
    reservation_labels.insert(CREATED_BY.to_owned(), CREATOR.to_owned());
    reservation_labels.insert(labels::RESERVATION_ORDER.to_owned(), order(now));
    let spec = &mut template.spec;
    if spec.template == PodTemplateSpec::default() {
        spec.template = template_of(pod);
    }
    if spec.owners.is_empty() {
        spec.owners = owners(pod);
    }
    // The reservation is for a single pod.
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

/// Builds the Reservation object from `options`.
#[must_use]
pub fn object(options: &PodMigrateReservationOptions) -> Reservation {
    let ReservationTemplateSpec { metadata, spec } = options.template.clone().unwrap_or_default();
    Reservation {
        metadata: metadata.unwrap_or_default(),
        spec,
        status: None,
    }
}

/// Returns the reference to `reservation` that a job stores.
#[must_use]
pub fn reference(reservation: &Reservation) -> ObjectReference {
    ObjectReference {
        kind: Some("Reservation".to_owned()),
        // Like upstream: the version without its group.
        api_version: Some("v1alpha1".to_owned()),
        name: reservation.metadata.name.clone(),
        uid: reservation.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Returns the value of label `scheduling.koordinator.sh/reservation-order` for a reservation created at
/// `now`.
#[must_use]
pub fn order(now: Timestamp) -> String {
    now.as_millisecond().to_string()
}

/// Returns true if a descheduler created `reservation`.
#[must_use]
pub fn is_ours(reservation: &Reservation) -> bool {
    label(reservation, CREATED_BY) == Some(CREATOR)
}

/// Returns the value of a label of `reservation`.
#[must_use]
pub fn label<'a>(reservation: &'a Reservation, key: &str) -> Option<&'a str> {
    let labels: &BTreeMap<_, _> = reservation.metadata.labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

/// Returns true if a pod has used the reservation, so that it holds no capacity for others.
#[must_use]
pub fn is_spent(reservation: &Reservation) -> bool {
    let Some(status) = &reservation.status else {
        return false;
    };
    status.phase == Some(ReservationPhase::Succeeded) || !status.current_owners.is_empty()
}

/// Returns true if the reservation is for a pending pod itself, not for a replacement.
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

/// Returns the owners of the reservation: the pod itself while it is unschedulable, else its controller.
fn owners(pod: &Pod) -> Vec<ReservationOwner> {
    let meta = &pod.metadata;
    let status = pod.status.as_ref();
    let pending = status.is_some_and(|status| status.phase.as_deref() == Some("Pending"));
    let scheduled = status.into_iter().flat_map(|status| &status.conditions);
    let mut scheduled = scheduled
        .flatten()
        .filter(|condition| condition.type_ == "PodScheduled");
    if pending
        && scheduled
            .next()
            .is_some_and(|condition| condition.status == "False")
    {
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

/// Excludes `node` by required node affinity. Terms are alternatives, so each of them gets the requirement.
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
