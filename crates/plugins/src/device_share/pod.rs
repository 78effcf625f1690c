//! A pod's device requests, and the allocation in its annotation.

use crate::common::allocate_policy;
use koord_api::extension::{
    DeviceAllocateHints, DeviceAllocations, DeviceJointAllocate, GpuPartitionSpec,
};
use koord_api::{annotations, labels};
use koord_model::device::{
    Allocation, DeviceHolding, DeviceResource, DeviceType, Need, PerMinor, Units,
};
use koord_model::resources::{ResourceId, ResourceTable};
use koord_scheduler::framework::{Problem, Signature};
use koord_scheduler::state::{Booked, PodInfo};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

const RESOURCES: usize = DeviceResource::ALL.len();
/// Annotations whose `extensions` request the devices of an earlier decision again.
const SCHEDULING_HINTS: [&str; 2] = [
    "internal.scheduling.koordinator.sh/scheduling-hint",
    "scheduling.koordinator.sh/scheduling-hint",
];
const PRE_ALLOCATION_REQUIRED: &str = "scheduling.koordinator.sh/pre-allocation-required";
const NO_TEMPLATE: &str = "no matched GPU shared resource template";

/// Devices of an earlier decision to use again: units per device and the virtual functions, by device type.
pub(super) type PreviousDevices = ([PerMinor; 3], [Vec<(u8, String)>; 3]);

/// A pod's device request as PreFilter computes it.
#[derive(Debug)]
pub(super) struct DevicePod {
    pub(super) need: Need,
    /// GPU isolation provider that the node must have for the pod to share a GPU; `None` if any will do.
    pub(super) isolation: Option<String>,
    /// True if the pod must be placed in a reservation.
    pub(super) needs_reservation: bool,
    /// True if the pod may also use devices that are reserved for others.
    pub(super) ignores_reservations: bool,
    pub(super) designated: Option<PreviousDevices>,
}

/// Resource ids of the device resources, in the order of [`DeviceResource::ALL`].
pub(super) type DeviceResourceIds = [ResourceId; RESOURCES];

/// Returns the ids of the device resources.
pub(super) fn resource_ids(table: &ResourceTable) -> DeviceResourceIds {
    DeviceResource::ALL.map(|resource| table.intern(resource.name()))
}

/// Returns the pod's requests for device resources.
fn units(pod: &PodInfo, resource_ids: &DeviceResourceIds) -> Units {
    let amounts = DeviceResource::ALL.into_iter().zip(resource_ids);
    amounts
        .map(|(resource, id)| (resource, pod.requests.get(*id)))
        .filter(|(_, amount)| *amount != 0)
        .collect()
}

/// Returns true if the pod requests devices.
pub(super) fn requests_devices(pod: &PodInfo, resource_ids: &DeviceResourceIds) -> bool {
    !units(pod, resource_ids).is_zero()
}

/// Returns the pod's device request; `None` if it requests no devices. Shared requests for resources in
/// `templated` are rejected, because templates are not supported.
///
/// # Errors
/// Returns the message that rejects the pod on every node: an invalid annotation or an impossible request.
pub(super) fn device_pod(
    pod: &PodInfo,
    templated: &[DeviceResource],
    resource_ids: &DeviceResourceIds,
) -> Result<Option<DevicePod>, String> {
    let units = units(pod, resource_ids);
    if units.is_zero() && pod.annotation(annotations::DEVICE_ALLOCATED).is_none() {
        return Ok(None);
    }
    let parsed = pod.facet(DeviceAnnotations::read);
    let before = parsed.holding.as_ref().map_err(Clone::clone)?.as_ref();
    if units.is_zero() {
        return Ok(None);
    }
    let (hints, joint, partition) = parsed.hints.as_ref().map_err(Clone::clone)?;
    let need = Need::new(&units, hints, joint.as_ref(), partition.as_ref())
        .map_err(|error| error.to_string())?;
    let Some(need) = need else {
        return Ok(None);
    };
    if let Some(gpu) = need.gpu.as_ref().filter(|gpu| gpu.shared)
        && templated.iter().any(|resource| gpu.each.lists(*resource))
    {
        return Err(NO_TEMPLATE.to_owned());
    }
    let has_affinity = parsed.has_affinity.clone()?;
    let isolation = label(pod, labels::GPU_ISOLATION_PROVIDER);
    Ok(Some(DevicePod {
        need,
        isolation: isolation.filter(|text| !text.is_empty()).map(str::to_owned),
        needs_reservation: has_affinity || label(pod, PRE_ALLOCATION_REQUIRED) == Some("true"),
        ignores_reservations: label(pod, labels::RESERVATION_IGNORED) == Some("true"),
        designated: before
            .filter(|_| parsed.keeps_devices)
            .map(previous_devices),
    }))
}

/// Adds everything that [`device_pod`] reads to the pod's signature.
pub(super) fn sign(pod: &PodInfo, resource_ids: &DeviceResourceIds, signature: &mut Signature) {
    let allocated = pod.annotation(annotations::DEVICE_ALLOCATED);
    signature.text(allocated.unwrap_or_default());
    let units = units(pod, resource_ids);
    if units.is_zero() {
        return;
    }
    for (resource, amount) in units.iter() {
        signature.number(resource as i64);
        signature.number(amount);
    }
    for key in [
        annotations::DEVICE_ALLOCATE_HINT,
        annotations::DEVICE_JOINT_ALLOCATE,
        annotations::GPU_PARTITION_SPEC,
        annotations::RESERVATION_AFFINITY,
        SCHEDULING_HINTS[0],
        SCHEDULING_HINTS[1],
    ] {
        signature.text(pod.annotation(key).unwrap_or_default());
    }
    for key in [
        labels::GPU_ISOLATION_PROVIDER,
        labels::RESERVATION_IGNORED,
        PRE_ALLOCATION_REQUIRED,
    ] {
        signature.text(label(pod, key).unwrap_or_default());
    }
    signature.number(i64::from(pod.is_holder()));
}

/// The pod's device annotations, parsed once. Each part has its own error, because not every caller needs
/// every part.
#[derive(Debug)]
struct DeviceAnnotations {
    holding: Result<Option<DeviceHolding>, String>,
    hints: Result<AllocationHints, String>,
    /// True if the pod has a reservation affinity, so that it must be placed in a reservation.
    has_affinity: Result<bool, String>,
    /// True if the pod is to get the devices of an earlier decision again.
    keeps_devices: bool,
}

/// The allocate hints, the joint allocation, and the GPU partition spec.
type AllocationHints = (
    DeviceAllocateHints,
    Option<DeviceJointAllocate>,
    Option<GpuPartitionSpec>,
);

impl DeviceAnnotations {
    fn read(pod: &PodInfo) -> Self {
        let key = annotations::RESERVATION_AFFINITY;
        let affinity: Result<Option<Value>, String> = parse(pod, key, "ReservationAffinity");
        Self {
            holding: parse_holding(pod),
            hints: allocation_hints(pod),
            has_affinity: affinity.map(|it| it.is_some_and(|value| !value.is_null())),
            keeps_devices: keeps_devices(pod),
        }
    }
}

fn allocation_hints(pod: &PodInfo) -> Result<AllocationHints, String> {
    let hints = parse(pod, annotations::DEVICE_ALLOCATE_HINT, "DeviceAllocateHint")?;
    let hints: Option<DeviceAllocateHints> = hints;
    let key = annotations::DEVICE_JOINT_ALLOCATE;
    let joint = parse(pod, key, "DeviceJointAllocate")?;
    let partition = parse(pod, annotations::GPU_PARTITION_SPEC, "GPUPartitionSpec")?;
    Ok((hints.unwrap_or_default(), joint, partition))
}

/// Returns the allocation in the pod's annotation; `None` if it has none.
///
/// # Errors
/// Returns what is wrong with the annotation, with its key and value.
pub(super) fn parse_holding(pod: &PodInfo) -> Result<Option<DeviceHolding>, String> {
    let key = annotations::DEVICE_ALLOCATED;
    let Some(text) = pod.annotation(key) else {
        return Ok(None);
    };
    let malformed = |error: String| format!("annotation {key} is malformed: {error}: {text:?}");
    let parsed: Option<DeviceAllocations> =
        serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
    let devices = Allocation::from_annotation(&parsed.unwrap_or_default()).map_err(malformed)?;
    if devices.is_empty() {
        return Ok(None);
    }
    // An invalid reservation annotation is reported by the Reservation plugin; here the pod then counts as
    // outside of reservations.
    let from = allocate_policy::allocated(pod).ok().flatten();
    Ok(Some(DeviceHolding {
        devices,
        reserves: pod.is_holder(),
        from: from.map(|from| from.uid.as_str().into()),
    }))
}

fn label<'a>(pod: &'a PodInfo, key: &str) -> Option<&'a str> {
    pod.label(key)
}

fn parse<T: DeserializeOwned>(pod: &PodInfo, key: &str, what: &str) -> Result<Option<T>, String> {
    let Some(text) = pod.annotation(key) else {
        return Ok(None);
    };
    serde_json::from_str(text)
        .map_err(|error| format!("invalid {what} annotation, err: {error}: {key}: {text:?}"))
}

fn keeps_devices(pod: &PodInfo) -> bool {
    let texts = SCHEDULING_HINTS
        .iter()
        .filter_map(|key| pod.annotation(key));
    let mut hints = texts.filter_map(|text| serde_json::from_str::<Value>(text).ok());
    hints.any(|hint| {
        let extensions = hint.get("extensions");
        extensions.is_some_and(|extensions| extensions.get(super::NAME).is_some())
    })
}

fn previous_devices(holding: &DeviceHolding) -> PreviousDevices {
    let units = DeviceType::ALL.map(|kind| holding.devices.units(kind));
    let functions = DeviceType::ALL.map(|kind| {
        let grants = holding.devices.grants(kind).iter();
        let all = grants.flat_map(|grant| {
            let functions = grant.functions.iter();
            functions.map(|function| (grant.minor, function.bus_id.clone()))
        });
        let mut all: Vec<(u8, String)> = all.collect();
        all.sort_unstable();
        all
    });
    (units, functions)
}

/// Creates a problem report about `pod`, which may stand for a Reservation.
pub(super) fn problem(pod: &Arc<PodInfo>, message: String) -> Problem {
    let (kind, namespace, name) = match pod.booked() {
        Booked::Pod(_) => ("Pod", pod.namespace.to_string(), pod.name.to_string()),
        Booked::Holder(object) => {
            let name = object.name.clone().unwrap_or_default();
            ("Reservation", String::new(), name)
        }
    };
    Problem {
        kind,
        namespace,
        name,
        uid: pod.uid.to_string(),
        message,
    }
}
