//! Checks of metadata, and of the labels and annotations that koord reads.

use super::document::{FaultPlace, PlaceTarget, without_position};
use super::fault::{Fault, suggest};
use super::kinds::type_faults;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::configmap::{
    SloControllerConfig, colocation_strategy_for_node, system_strategy_for_node,
};
use koord_api::duration::GoDuration;
use koord_api::extension::{self, AnnotationError, GangAnnotationError};
use koord_api::lenient::ReadError;
use koord_api::slo::{BlkIOQOSCfg, CPUBurstConfig};
use koord_api::{annotations, labels, selector};
use koord_object::names;
use koord_object::schema::types;
use koord_object::selector::label_problem;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

type Texts = BTreeMap<String, String>;

/// Reads an annotation.
type Reader = fn(&str, &Texts) -> Result<Option<Value>, AnnotationError>;

/// Annotations with the parsers that the components use.
const FORMATS: &[(&str, Reader)] = &[
    (annotations::POD_CPU_BURST, json::<CPUBurstConfig>),
    (
        annotations::POD_MEMORY_QOS,
        json::<extension::PodMemoryQOSConfig>,
    ),
    (annotations::POD_BLKIO_QOS, json::<BlkIOQOSCfg>),
    (
        annotations::POD_NETWORK_QOS,
        json::<extension::PodNetworkQOS>,
    ),
    (annotations::POD_CPU_QOS, |_, all| {
        unless(extension::pod_cpu_qos(Some(all)))
    }),
    (annotations::POD_RESCTRL, json::<extension::Resctrl>),
    (
        annotations::POD_EXTENDED_RESOURCE_SPEC,
        json::<extension::ExtendedResourceSpec>,
    ),
    (annotations::POD_EVICTION_POLICY, |_, all| {
        unless(extension::eviction_policy(Some(all)))
    }),
    (annotations::POD_EVICTION_PRIORITY, |_, all| {
        unless(extension::eviction_priority(Some(all)))
    }),
    (annotations::POD_OOM_SCORE_ADJ, |_, all| {
        unless(extension::OomScoreAdj::read_default(Some(all)))
    }),
    (annotations::POD_OOM_SCORE_ADJ_SPEC, |_, all| {
        unless(extension::OomScoreAdj::read_containers(Some(all)).map(Some))
    }),
    (annotations::EVICTION_COST, eviction_cost),
    (
        annotations::SCHEDULING_HINT,
        json::<extension::SchedulingHint>,
    ),
    (annotations::RESOURCE_SPEC, json::<extension::ResourceSpec>),
    (
        annotations::RESOURCE_STATUS,
        json::<extension::ResourceStatus>,
    ),
    (
        annotations::NUMA_TOPOLOGY_SPEC,
        json::<extension::NumaTopologySpec>,
    ),
    (
        annotations::DEVICE_ALLOCATED,
        json::<extension::DeviceAllocations>,
    ),
    (
        annotations::DEVICE_ALLOCATE_HINT,
        json::<extension::DeviceAllocateHints>,
    ),
    (
        annotations::DEVICE_JOINT_ALLOCATE,
        json::<extension::DeviceJointAllocate>,
    ),
    (
        annotations::GPU_PARTITION_SPEC,
        json::<extension::GpuPartitionSpec>,
    ),
    (
        annotations::RESERVATION_AFFINITY,
        json::<extension::ReservationAffinity>,
    ),
    (
        annotations::EXACT_MATCH_RESERVATION,
        json::<extension::ExactMatchReservationSpec>,
    ),
    (
        annotations::RESERVATION_RESTRICTED_OPTIONS,
        json::<extension::ReservationRestrictedOptions>,
    ),
    (
        annotations::SOFT_EVICTION,
        json::<extension::SoftEvictionSpec>,
    ),
    (
        annotations::LOAD_ESTIMATED_SCALING_FACTORS,
        json::<BTreeMap<String, i64>>,
    ),
    (
        annotations::GANG_NETWORK_TOPOLOGY_SPEC,
        json::<extension::NetworkTopologySpec>,
    ),
    (
        annotations::NODE_RESERVATION,
        json::<extension::NodeReservation>,
    ),
    (
        annotations::NODE_SYSTEM_QOS_RESOURCE,
        json::<extension::SystemQosResource>,
    ),
    (
        annotations::NODE_USAGE_THRESHOLDS,
        json::<extension::CustomUsageThresholds>,
    ),
    (
        annotations::NODE_RESOURCE_AMPLIFICATION_RATIO,
        json::<BTreeMap<String, f64>>,
    ),
    (
        annotations::NODE_CPU_NORMALIZATION_RATIO,
        normalization_ratio,
    ),
    (
        annotations::DEVICE_GPU_PARTITIONS,
        json::<extension::GpuPartitionTable>,
    ),
];

const CPU_BIND_POLICIES: &[&str] = &["Default", "FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst"];

/// Values of texts in annotations of JSON: key, path with `[]` for each item of a list, values.
const ENUMERATIONS: &[(&str, &str, &[&str])] = &[
    (
        annotations::POD_CPU_BURST,
        "policy",
        &["none", "auto", "cpuBurstOnly", "cfsQuotaBurstOnly"],
    ),
    (
        annotations::POD_MEMORY_QOS,
        "policy",
        &["default", "none", "auto"],
    ),
    (
        annotations::RESOURCE_SPEC,
        "requiredCPUBindPolicy",
        CPU_BIND_POLICIES,
    ),
    (
        annotations::RESOURCE_SPEC,
        "preferredCPUBindPolicy",
        CPU_BIND_POLICIES,
    ),
    (
        annotations::RESOURCE_SPEC,
        "preferredCPUExclusivePolicy",
        &["None", "PCPULevel", "NUMANodeLevel"],
    ),
    (
        annotations::NUMA_TOPOLOGY_SPEC,
        "numaTopologyPolicy",
        &["BestEffort", "Restricted", "SingleNUMANode"],
    ),
    (
        annotations::NUMA_TOPOLOGY_SPEC,
        "singleNUMANodeExclusive",
        &["Preferred", "Required"],
    ),
    (
        annotations::GPU_PARTITION_SPEC,
        "allocatePolicy",
        &["Restricted", "BestEffort"],
    ),
    (
        annotations::DEVICE_JOINT_ALLOCATE,
        "requiredScope",
        &["SamePCIe"],
    ),
    (
        annotations::GANG_NETWORK_TOPOLOGY_SPEC,
        "gatherStrategy[].strategy",
        &["MustGather", "PreferGather"],
    ),
    (
        annotations::NODE_RESERVATION,
        "applyPolicy",
        &["Default", "ReservedCPUsOnly"],
    ),
    (
        annotations::NODE_USAGE_THRESHOLDS,
        "aggregatedUsage.usageAggregationType",
        &["avg", "p50", "p90", "p95", "p99"],
    ),
];

const SWITCH: &[&str] = &["true", "false"];

/// Values of labels.
const LABELS: &[(&str, &[&str])] = &[
    (labels::POD_QOS, &["LSE", "LSR", "LS", "BE", "SYSTEM"]),
    (
        labels::POD_PRIORITY_CLASS,
        &["koord-prod", "koord-mid", "koord-batch", "koord-free"],
    ),
    (labels::POD_PREEMPTIBLE, SWITCH),
    (labels::QUOTA_IS_PARENT, SWITCH),
    (labels::QUOTA_ALLOW_LENT_RESOURCE, SWITCH),
    (labels::QUOTA_IS_ROOT, SWITCH),
    (labels::NODE_NUMA_RESERVATION, SWITCH),
    (labels::NODE_CPU_NORMALIZATION_ENABLED, SWITCH),
    (
        labels::NODE_CPU_BIND_POLICY,
        &["None", "FullPCPUsOnly", "SpreadByPCPUs"],
    ),
    (
        labels::NODE_NUMA_ALLOCATE_STRATEGY,
        &["MostAllocated", "LeastAllocated", "DistributeEvenly"],
    ),
    (
        labels::NODE_NUMA_TOPOLOGY_POLICY,
        &["", "BestEffort", "Restricted", "SingleNUMANode"],
    ),
];

/// Values of annotations that are plain texts.
const PLAIN: &[(&str, &[&str])] = &[
    (annotations::GANG_MODE, &["Strict", "NonStrict"]),
    (annotations::GANG_MATCH_POLICY, MATCH_POLICIES),
    (annotations::GANG_MATCH_POLICY_ALIAS, MATCH_POLICIES),
];

const MATCH_POLICIES: &[&str] = &["only-waiting", "waiting-and-running", "once-satisfied"];

/// Parses annotation `key` as JSON of type `T`, and returns what is left of it.
fn json<T: DeserializeOwned + Serialize>(
    key: &str,
    all: &Texts,
) -> Result<Option<Value>, AnnotationError> {
    let parsed = extension::read::<T>(Some(all), key)?;
    Ok(parsed.and_then(|parsed| serde_json::to_value(parsed).ok()))
}

/// Returns the error of an annotation whose fields are not compared.
fn unless<T>(parsed: Result<Option<T>, AnnotationError>) -> Result<Option<Value>, AnnotationError> {
    parsed.map(|_| None)
}

fn eviction_cost(key: &str, all: &Texts) -> Result<Option<Value>, AnnotationError> {
    let text = all.get(key).map(String::as_str).unwrap_or_default();
    let parsed = extension::parse_eviction_cost(text);
    unless(parsed.map(Some).map_err(|problem| AnnotationError {
        key: key.to_owned(),
        value: text.to_owned(),
        problem,
    }))
}

fn normalization_ratio(key: &str, all: &Texts) -> Result<Option<Value>, AnnotationError> {
    let text = all.get(key).map(String::as_str).unwrap_or_default();
    let parsed = extension::parse_normalization_ratio(text);
    unless(parsed.map(Some).map_err(|error| AnnotationError {
        key: key.to_owned(),
        value: text.to_owned(),
        problem: ReadError::Field {
            path: ".".to_owned(),
            message: error.to_string(),
        },
    }))
}

/// Returns the faults of an object's metadata.
pub(super) fn faults(object: &Value) -> Vec<Fault> {
    let metadata = &object["metadata"];
    let mut faults = Vec::new();
    let of_type = type_faults(types::object_meta(), metadata);
    if !metadata.is_null() {
        faults.extend(of_type.into_iter().map(|it| {
            let message = format!("metadata.{}", it.message);
            Fault { message, ..it }.below("metadata")
        }));
    }
    faults.extend(label_faults(&metadata["labels"], "metadata.labels"));
    faults.extend(annotation_faults(
        &metadata["annotations"],
        "metadata.annotations",
    ));
    faults
}

/// Returns the fault of an object's name.
pub(super) fn name_fault(object: &Value) -> Option<Fault> {
    let metadata = &object["metadata"];
    let text = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
    // A name that is no text is reported with the types.
    let is_named = !metadata["name"].is_null() || text("generateName").is_some();
    let message = match text("name") {
        None if is_named => return None,
        None => "metadata.name is missing".to_owned(),
        // Roles and others may have names that are no domain names; all names are part of a path.
        Some(name) => format!("metadata.name: {}", names::path_segment(name)?),
    };
    Some(Fault::error(FaultPlace::value("metadata.name"), message))
}

/// Returns the texts in a map of texts.
pub(super) fn texts(map: &Value) -> Texts {
    let members = map.as_object().into_iter().flatten();
    let texts = members.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

/// Returns the faults of the labels at `path`.
pub(super) fn label_faults(map: &Value, path: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (key, value) in texts(map) {
        let place = format!("{path}.{key}");
        if let Some(problem) = label_problem(&key, &value) {
            faults.push(Fault::error(
                FaultPlace::value(&*place),
                format!("{place}: {problem}"),
            ));
        }
        faults.extend(value_fault(LABELS, &key, &value, &place));
        if !annotations::ALL.contains(&&*key) {
            faults.extend(key_fault(&key, &place, labels::ALL, "label"));
        } else if !labels::ALL.contains(&&*key) {
            let message = format!("{place}: {key} is an annotation, as a label it has no effect");
            faults.push(Fault::warning(FaultPlace::name(place), message));
        }
    }
    faults
}

/// Returns the fault of a text that is none of the values in `table`.
fn value_fault(table: &[(&str, &[&str])], key: &str, value: &str, path: &str) -> Option<Fault> {
    let (_, values) = table.iter().find(|(name, _)| *name == key)?;
    (!values.contains(&value)).then(|| not_one_of(path, value, values, FaultPlace::value(path)))
}

fn not_one_of(path: &str, value: &str, values: &[&str], place: FaultPlace) -> Fault {
    let names: Vec<&str> = values.iter().copied().filter(|it| !it.is_empty()).collect();
    let expected = names.join(", ");
    let message = format!("{path}: invalid value {value:?}: expected one of {expected}");
    let mut fault = Fault::error(place, message);
    fault.hint = suggest(value, names.into_iter()).map(|it| format!("did you mean {it}?"));
    fault
}

/// Returns the fault of a key that is most likely a misspelling.
fn key_fault(key: &str, path: &str, keys: &[&'static str], noun: &str) -> Option<Fault> {
    let (domain, _) = key.split_once('/')?;
    let is_own = domain.contains("koordinator") || domain.contains("scheduling.sigs.k8s.io");
    if !is_own || keys.contains(&key) {
        return None;
    }
    let close = suggest(key, keys.iter().copied())?;
    let message = format!("{path}: there is no {noun} {key}; it has no effect");
    Some(Fault::error(FaultPlace::name(path), message).with_hint(format!("did you mean {close}?")))
}

/// Returns the faults of the annotations at `path`.
pub(super) fn annotation_faults(map: &Value, path: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let all = texts(map);
    for (key, text) in &all {
        let place = format!("{path}.{key}");
        faults.extend(value_fault(PLAIN, key, text, &place));
        if !labels::ALL.contains(&&**key) {
            faults.extend(key_fault(key, &place, annotations::ALL, "annotation"));
        } else if !annotations::ALL.contains(&&**key) {
            let message = format!("{place}: {key} is a label, as an annotation it has no effect");
            faults.push(Fault::warning(FaultPlace::name(&*place), message));
        }
        let Some((_, read)) = FORMATS.iter().find(|(name, _)| name == key) else {
            continue;
        };
        let parsed = match read(key, &all) {
            Ok(parsed) => parsed,
            Err(error) => {
                faults.push(read_fault(&error.problem, &place));
                continue;
            }
        };
        let Ok(document) = serde_json::from_str::<Value>(text) else {
            continue;
        };
        if let Some(parsed) = parsed {
            let mut lost = Vec::new();
            add_lost(&document, &parsed, "", &mut lost);
            for field in lost {
                let names = parsed.as_object().into_iter().flatten();
                let names = names.map(|(name, _)| name.as_str());
                let mut fault = Fault::unknown_field(&field, names);
                fault.message = format!("{place}: {}; it has no effect", fault.message);
                faults.push(fault.inside(&place));
            }
        }
        for (_, field, values) in ENUMERATIONS.iter().filter(|(name, ..)| name == key) {
            for (at, value) in values_at(&document, field) {
                let Some(value) = value.as_str().filter(|it| !it.is_empty()) else {
                    continue;
                };
                if !values.contains(&value) {
                    let shown = format!("{place}: {at}");
                    faults.push(
                        not_one_of(&shown, value, values, FaultPlace::value(at)).inside(&place),
                    );
                }
            }
        }
    }
    faults
}

/// Returns the fault of a JSON text at `path`.
pub(super) fn read_fault(error: &ReadError, path: &str) -> Fault {
    let message = format!("{path}: {error}");
    match error {
        ReadError::Syntax(text) => {
            let position = super::text::position_in_message(text);
            let place = FaultPlace::from(PlaceTarget::Position(position)).inside(path);
            Fault::error(place, without_position(&message))
        }
        ReadError::Field {
            path: field,
            message: reason,
        } => {
            let message = match field.as_str() {
                "." => format!("{path}: {reason}"),
                _ => message,
            };
            Fault::error(FaultPlace::value(field), message).inside(path)
        }
    }
}

/// Adds the paths of the members of `text` that `parsed` does not have, and that are not empty.
fn add_lost(text: &Value, parsed: &Value, path: &str, lost: &mut Vec<String>) {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    };
    match (text, parsed) {
        (Value::Object(members), Value::Object(_)) => {
            for (name, value) in members {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{name}");
                match koord_api::lenient::member(parsed, name) {
                    Some(parsed) => add_lost(value, parsed, &path, lost),
                    None if is_empty(value) => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(items), Value::Array(parsed)) => {
            for (at, (item, parsed)) in items.iter().zip(parsed).enumerate() {
                add_lost(item, parsed, &format!("{path}[{at}]"), lost);
            }
        }
        _ => {}
    }
}

/// Returns the values at `path`, in which `[]` stands for each item of a list, with their paths.
fn values_at<'a>(value: &'a Value, path: &str) -> Vec<(String, &'a Value)> {
    let mut values = vec![(String::new(), value)];
    for part in path.split('.') {
        let (name, is_list) = match part.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (part, false),
        };
        let mut next = Vec::new();
        for (path, value) in values {
            let Some(value) = koord_api::lenient::member(value, name) else {
                continue;
            };
            let path = super::document::join(&path, name);
            match (is_list, value) {
                (true, Value::Array(items)) => {
                    let items = items.iter().enumerate();
                    next.extend(items.map(|(at, item)| (format!("{path}[{at}]"), item)));
                }
                (true, _) => {}
                (false, value) => next.push((path, value)),
            }
        }
        values = next;
    }
    values
}

/// Returns the fault of a label selector at `path`.
pub(super) fn selector_fault(selector: Option<&LabelSelector>, path: String) -> Option<Fault> {
    let error = selector::matches(selector?, &Texts::new()).err()?;
    let message = format!("{path}: {error}");
    Some(Fault::error(FaultPlace::value(path), message))
}

/// Returns the faults of the gang that the metadata of a pod or a PodGroup at `prefix` describes.
pub(super) fn pod_gang_fault(pod: &Pod, prefix: &str) -> Option<Fault> {
    let error = extension::gang_spec(pod).err()?;
    Some(gang_fault(&error, prefix))
}

fn gang_fault(error: &GangAnnotationError, prefix: &str) -> Fault {
    let (GangAnnotationError::Number { key, .. }
    | GangAnnotationError::Duration { key, .. }
    | GangAnnotationError::Groups { key, .. }) = error;
    let map = match *key == labels::POD_GROUP_MIN_AVAILABLE_DEPRECATED {
        true => "labels",
        false => "annotations",
    };
    let path = super::document::join(prefix, &format!("metadata.{map}.{key}"));
    Fault::error(FaultPlace::value(path), error.to_string())
}

/// Returns the faults of the annotations of a PodGroup.
pub(super) fn gang_faults(object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let all = texts(&object["metadata"]["annotations"]);
    if let Some(text) = all.get(annotations::GANG_GROUPS)
        && let Err(error) = extension::gang_groups(text)
    {
        faults.push(gang_fault(&error, ""));
    }
    let key = annotations::GANG_WAITING_TIME;
    if let Some(text) = all.get(key)
        && let Err(problem) = text.parse::<GoDuration>()
    {
        faults.push(gang_fault(
            &GangAnnotationError::Duration { key, problem },
            "",
        ));
    }
    faults
}

/// Returns the faults of the labels and annotations of a Node.
pub(super) fn node_faults(object: &Value) -> Vec<Fault> {
    let labels = texts(&object["metadata"]["labels"]);
    let annotations = texts(&object["metadata"]["annotations"]);
    let config = SloControllerConfig::default();
    let (_, warnings) = colocation_strategy_for_node(&config.colocation, "", &labels, &annotations);
    let (_, warning) = system_strategy_for_node(&config.system, "", &labels, &annotations);
    let faults = warnings.into_iter().chain(warning).map(|it| {
        let of_label = format!("metadata.labels.{}", it.key);
        let of_annotation = format!("metadata.annotations.{}", it.key);
        let place = FaultPlace::from(PlaceTarget::Paths(vec![of_label, of_annotation]));
        Fault::error(place, it.to_string())
    });
    faults.collect()
}
