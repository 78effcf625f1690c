//! The parsed Reservation: its terms, and the holder pod that stands for it in the queue and on its node.

use crate::common::allocate_policy::AllocatePolicy;
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, ResourceRequirements, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::GoDuration;
use koord_api::annotations;
use koord_api::extension::{ReservationRestrictedOptions, ReservedResources};
use koord_api::labels;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::scheduling::{Reservation, ReservationPhase};
use koord_model::resources::{
    self, Amounts, BATCH_CPU, CPU, MID_CPU, PODS, ResourceId, ResourceTable,
};
use koord_scheduler::framework::Problem;
use koord_scheduler::state::{PodError, PodInfo};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the container that requests the reserved amounts if these differ from the template.
const FAKE_CONTAINER: &str = "__internal_fake_container__";

/// Lifecycle phase of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The reservation has no node yet.
    Pending,
    /// The reservation is on its node and open to owners.
    Available,
    /// The reservation is on its node, but not open yet. Not produced here.
    Waiting,
    /// The reservation is used up, expired or failed.
    Over,
}

/// The parsed fields of a Reservation.
#[derive(Debug)]
pub(super) struct ReservationTerms {
    pub(super) phase: Phase,
    /// `status.nodeName`.
    pub(super) node: Option<Arc<str>>,
    pub(super) allocate_once: bool,
    /// True if it is closed to new owners or being deleted.
    pub(super) unschedulable: bool,
    pub(super) taints: Vec<Taint>,
    pub(super) labels: BTreeMap<String, String>,
    /// Value of the order label; lower is used first. `None` if it is unset, 0 or invalid.
    pub(super) order: Option<i64>,
    /// Amounts that owners may use; includes `pods` if their number is limited.
    pub(super) allocatable: Amounts,
    /// Amounts that are set aside and not available to owners.
    pub(super) reserved: Amounts,
    /// Resources that owners must take from the reservation alone if it is restricted; all of its resources
    /// otherwise.
    pub(super) resources: Vec<ResourceId>,
    /// The holder pod, with all of its requests.
    pub(super) pod: PodInfo,
    /// Message about what could not be parsed; no pod matches as an owner then.
    pub(super) error: Option<String>,
    /// Messages about parts that were ignored.
    pub(super) ignored: Vec<String>,
}

/// Error that makes a Reservation unusable; its text is part of the reservation's condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TermsError {
    #[error("the reservation has no {0}")]
    Missing(&'static str),
    #[error("{0}")]
    Invalid(String),
    #[error("spec.template: {0}")]
    Pod(#[from] PodError),
}

impl ReservationTerms {
    /// Parses a Reservation.
    pub(super) fn new(object: &Reservation, table: &ResourceTable) -> Result<Self, TermsError> {
        let status = object.status.as_ref();
        let node = status
            .map(|s| s.node_name.as_str())
            .filter(|name| !name.is_empty())
            .map(Arc::<str>::from);
        let phase = match status.and_then(|s| s.phase.as_ref()) {
            Some(ReservationPhase::Available) if node.is_some() => Phase::Available,
            Some(ReservationPhase::Waiting) if node.is_some() => Phase::Waiting,
            Some(ReservationPhase::Succeeded | ReservationPhase::Failed) => Phase::Over,
            _ => Phase::Pending,
        };
        let mut ignored = Vec::new();
        let mut error = None;
        let meta = &object.metadata;
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));

        if object.spec.owners.is_empty() {
            return Err(TermsError::Missing("spec.owners"));
        }
        if object.spec.ttl.is_none() && object.spec.expires.is_none() {
            return Err(TermsError::Missing("spec.ttl or spec.expires"));
        }
        let negative = |ttl: &GoDuration| *ttl < GoDuration::ZERO;
        if let Some(ttl) = object.spec.ttl.filter(negative) {
            let text = ttl.to_string();
            let invalid = |rest: &str| Problem::invalid("spec.ttl", &text, rest);
            if phase == Phase::Pending {
                return Err(TermsError::Invalid(invalid(
                    "0, which is for ever, or more",
                )));
            }
            ignored.push(invalid("0 or more; the last valid one stays in force"));
        }
        let mut pod = pod(object, phase, node.as_deref())?;
        if phase == Phase::Available {
            let reserved = status.map(|s| &s.allocatable);
            if let Some(reserved) = reserved.filter(|list| !list.is_empty()) {
                set_reserved_requests(&mut pod, reserved, table)?;
            }
        }
        let mut info = PodInfo::new(Arc::new(pod), table)?.into_holder(ObjectReference {
            api_version: Some("scheduling.koordinator.sh/v1alpha1".to_owned()),
            kind: Some("Reservation".to_owned()),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        });
        let allocatable = info.requests.clone();
        // A limit on the number of owners is no request of the reservation itself.
        if info.requests.contains(PODS) {
            info.requests = info.requests.iter().filter(|(id, _)| *id != PODS).collect();
        }

        let mut reserved = Amounts::new();
        match ReservedResources::from_annotations(meta.annotations.as_ref()) {
            Ok(aside) => {
                for (name, quantity) in aside.iter().flat_map(|aside| &aside.amounts) {
                    let id = table.intern(name);
                    reserved.add(id, resources::amount(id, quantity));
                }
            }
            Err(error) => ignored.push(format!("{error}; it is ignored")),
        }
        let mut names: Vec<ResourceId> = allocatable.iter().map(|(id, _)| id).collect();
        if AllocatePolicy::from_reservation(object) == AllocatePolicy::Restricted
            && let Some(text) = annotation(annotations::RESERVATION_RESTRICTED_OPTIONS)
        {
            match serde_json::from_str::<ReservationRestrictedOptions>(text) {
                Ok(options) => {
                    let listed: Vec<ResourceId> = options
                        .resources
                        .iter()
                        .map(|name| table.intern(name))
                        .collect();
                    if names.iter().any(|id| listed.contains(id)) {
                        names.retain(|id| listed.contains(id));
                    }
                }
                Err(reason) => {
                    error = Some(format!(
                        "annotation {}: {reason}: {text:?}",
                        annotations::RESERVATION_RESTRICTED_OPTIONS
                    ));
                }
            }
        }
        let labels = meta.labels.clone().unwrap_or_default();
        let order = labels
            .get(labels::RESERVATION_ORDER)
            .and_then(|text| text.parse::<i64>().ok())
            .filter(|order| *order != 0);
        Ok(Self {
            phase,
            node,
            allocate_once: object.spec.allocate_once.unwrap_or(true),
            unschedulable: object.spec.unschedulable.unwrap_or(false)
                || meta.deletion_timestamp.is_some(),
            taints: object.spec.taints.clone(),
            labels,
            order,
            allocatable,
            reserved,
            resources: names,
            pod: info,
            error,
            ignored,
        })
    }

    /// Returns true if the reservation holds no resource. The number of its owners may be limited.
    pub(super) fn is_empty(&self) -> bool {
        let mut amounts = self.allocatable.iter();
        amounts.all(|(id, amount)| id == PODS || amount == 0)
    }

    /// Returns the holder pod reduced by the amounts `taken` that owners use.
    pub(super) fn reduced_pod(&self, taken: &Amounts) -> PodInfo {
        let requests = koord_model::reservation::remaining(&self.pod.requests, taken);
        let mut scoring = self.pod.scoring;
        for (at, id) in [CPU, resources::MEMORY].into_iter().enumerate() {
            scoring[at] = scoring[at].saturating_sub(taken.get(id)).max(0);
        }
        let mut info = self.pod.clone();
        (info.requests, info.scoring) = (requests, scoring);
        info
    }
}

/// Builds the holder pod of a reservation.
fn pod(object: &Reservation, phase: Phase, node: Option<&str>) -> Result<Pod, TermsError> {
    let (meta, template) = (&object.metadata, &object.spec.template);
    let name = meta
        .name
        .clone()
        .ok_or(TermsError::Missing("metadata.name"))?;
    let uid = meta
        .uid
        .clone()
        .ok_or(TermsError::Missing("metadata.uid"))?;
    let mut spec = template
        .spec
        .clone()
        .ok_or(TermsError::Missing("spec.template.spec"))?;
    let outer = template.metadata.clone().unwrap_or_default();
    let mut labels = outer.labels.unwrap_or_default();
    labels.extend(meta.labels.clone().unwrap_or_default());
    let mut notes = outer.annotations.unwrap_or_default();
    notes.extend(meta.annotations.clone().unwrap_or_default());
    notes.insert(annotations::RESERVE_POD.to_owned(), "true".to_owned());
    notes.insert(annotations::RESERVATION_NAME.to_owned(), name);
    if object.spec.pre_allocation == Some(true) {
        notes.insert(annotations::IS_PRE_ALLOCATION.to_owned(), "true".to_owned());
    }
    // The template's node is only a request until the reservation is placed.
    if let Some(fixed) = spec.node_name.take().filter(|name| !name.is_empty()) {
        notes.insert(annotations::RESERVATION_NODE.to_owned(), fixed);
    }
    if matches!(phase, Phase::Available | Phase::Waiting) {
        spec.node_name = node.map(str::to_owned);
    }
    if spec.priority.is_none() {
        let labelled = meta
            .labels
            .as_ref()
            .and_then(|all| all.get(labels::POD_PRIORITY));
        let parsed = labelled.and_then(|text| text.parse::<i32>().ok());
        // The highest priority by default: the holder is never preempted, and with `enablePreemption` it is
        // above every pod.
        spec.priority = Some(parsed.unwrap_or(i32::MAX));
    }
    let metadata = ObjectMeta {
        name: Some(uid.clone()),
        uid: Some(uid),
        namespace: Some(
            outer
                .namespace
                .filter(|namespace| !namespace.is_empty())
                .unwrap_or_else(|| "default".to_owned()),
        ),
        labels: Some(labels),
        annotations: Some(notes),
        owner_references: outer.owner_references,
        creation_timestamp: meta.creation_timestamp.clone(),
        // A reservation that is being deleted is not placed; a placed one stays until it is gone.
        deletion_timestamp: meta
            .deletion_timestamp
            .clone()
            .filter(|_| phase == Phase::Pending),
        ..ObjectMeta::default()
    };
    Ok(Pod {
        metadata,
        spec: Some(spec),
        status: None,
    })
}

/// Makes `pod` request `reserved` in addition to other resources of its template, unless it does already.
fn set_reserved_requests(
    pod: &mut Pod,
    reserved: &ResourceList,
    table: &ResourceTable,
) -> Result<(), PodError> {
    let requested = PodInfo::new(Arc::new(pod.clone()), table)?.requests;
    let desired: Amounts = reserved
        .iter()
        .map(|(name, quantity)| {
            let id = table.intern(name);
            (id, resources::amount(id, quantity).max(0))
        })
        .collect();
    if requested == desired {
        return Ok(());
    }
    let mut all = requested;
    for (id, amount) in desired.iter() {
        all.set(id, amount);
    }
    let list: BTreeMap<String, _> = resource_list(&all, table)
        .into_iter()
        .map(|(name, quantity)| (name, quantity.to_k8s()))
        .collect();
    let Some(spec) = &mut pod.spec else {
        return Ok(());
    };
    spec.overhead = None;
    spec.resources = None;
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        container.resources = None;
    }
    spec.containers.push(Container {
        name: FAKE_CONTAINER.to_owned(),
        resources: Some(ResourceRequirements {
            limits: Some(list.clone()),
            requests: Some(list),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    });
    Ok(())
}

/// Formats amounts as the API does: memory and storage in binary units.
pub(super) fn resource_list(amounts: &Amounts, table: &ResourceTable) -> ResourceList {
    let quantity = |id: ResourceId, name: &str, amount: i64| match id {
        CPU => Quantity::from_milli(amount),
        PODS | BATCH_CPU | MID_CPU => Quantity::from_value(amount),
        _ if name.contains("memory") && !name.contains("ratio")
            || name.contains("storage")
            || name.starts_with("hugepages-") =>
        {
            Quantity::from_bytes(amount)
        }
        _ => Quantity::from_value(amount),
    };
    amounts
        .iter()
        .map(|(id, amount)| {
            let name = table.name(id);
            let quantity = quantity(id, &name, amount);
            (name.to_string(), quantity)
        })
        .collect()
}

/// Value of the annotation that replaces reserved amounts when a reservation is placed.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Resize {
    resources: ResourceList,
}

/// Returns the allocatable amounts for the status of a reservation that is being placed: its requests, with
/// the amounts that the resize annotation replaces.
///
/// # Errors
/// Returns a message that names the annotation if it is invalid.
pub(super) fn reserved_on_bind(
    object: &Reservation,
    terms: &ReservationTerms,
    table: &ResourceTable,
) -> Result<ResourceList, String> {
    let mut list = resource_list(&terms.allocatable, table);
    let key = annotations::RESERVATION_RESIZE_ALLOCATABLE;
    let text = object
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(key));
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        let resize: Resize = serde_json::from_str(text)
            .map_err(|error| format!("annotation {key}: {error}: {text:?}"))?;
        let mut negative = resize
            .resources
            .iter()
            .filter(|(_, amount)| amount.nanos() < 0);
        if let Some((name, amount)) = negative.next() {
            let field = format!("annotation {key}[{name}]");
            return Err(Problem::invalid(&field, amount.to_string(), "0 or more"));
        }
        list.extend(resize.resources);
    }
    Ok(list)
}
