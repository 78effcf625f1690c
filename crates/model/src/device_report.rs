//! Device object of a node from the devices that koordlet detected.
//!
//! koordlet is one writer of that object among several: administrators set partition tables and labels there.
//! [`plan`] therefore changes the reported keys and removes only those that koordlet wrote itself, according
//! to the object's managed fields.
//!
//! Source of formats: Koordinator `pkg/koordlet/statesinformer/impl/states_device_linux.go`.

pub mod xpu;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    Condition, ManagedFieldsEntry, OwnerReference, Time,
};
use koord_api::scheduling::{CONDITION_HEALTHY, Device, DeviceInfo, DeviceType};
use koord_api::{annotations, labels};
use std::collections::BTreeMap;

/// Field manager of koordlet's writes.
pub const MANAGER: &str = "koordlet";

/// Labels of the Device that a report can set.
pub const OWN_LABELS: [&str; 4] = [
    labels::NODE_GPU_VENDOR,
    labels::NODE_GPU_MODEL,
    labels::NODE_GPU_DRIVER_VERSION,
    labels::NODE_GPU_PARTITION_POLICY,
];

/// Annotations of the Device that a report can set.
pub const OWN_ANNOTATIONS: [&str; 1] = [annotations::DEVICE_GPU_PARTITIONS];

/// Maximum length of a condition message in bytes, from the schema of conditions.
const LONGEST_MESSAGE: usize = 32_768;

/// Problem of a detected device or its description.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path of the field, such as `[1].minor`; empty for the whole input.
    pub field: String,
    /// Value of the field.
    pub value: String,
    /// Reason and consequence.
    pub why: String,
}

/// Health of a device as reported by its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// True if the device works.
    pub healthy: bool,
    /// Error code of the source; may be empty.
    pub code: String,
    /// Error message of the source; may be empty.
    pub message: String,
}

/// Detected device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Detected {
    /// Reported description, without conditions.
    pub info: DeviceInfo,
    /// Source of its condition `Healthy`; without it the device has no such condition.
    pub health: Option<Health>,
}

/// Detected devices and the labels and annotations to report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Detected devices. Those without a minor are not reported, because they cannot be allocated.
    pub devices: Vec<Detected>,
    /// Labels, a subset of [`OWN_LABELS`].
    pub labels: BTreeMap<String, String>,
    /// Annotations, a subset of [`OWN_ANNOTATIONS`].
    pub annotations: BTreeMap<String, String>,
}

/// Node that the devices belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// UID of the node.
    pub uid: &'a str,
}

/// Returns the Device to write: a new object if there is none, the changed one if the stored one differs from
/// the report, and `None` if it does not.
///
/// koordlet manages devices of types `gpu` and `rdma`; others are kept. A device with the type and id of a
/// stored one keeps its labels and module id, which are not reported; a condition with unchanged status keeps
/// its time. `now` is truncated to whole seconds.
#[must_use]
pub fn plan(old: Option<&Device>, owner: Owner<'_>, report: &Report, now: Time) -> Option<Device> {
    let mut new = old.cloned().unwrap_or_else(|| {
        let mut new = Device::default();
        new.metadata.name = Some(owner.name.to_owned());
        new
    });
    let existing = old.map_or(&[][..], |old| &old.spec.devices);
    let now = Time(k8s_openapi::jiff::Timestamp::from_second(now.0.as_second()).unwrap_or(now.0));
    let mut devices: Vec<DeviceInfo> = existing
        .iter()
        .filter(|device| !is_own_device(device))
        .cloned()
        .collect();
    let reported = report
        .devices
        .iter()
        .filter(|device| device.info.minor.is_some());
    devices.extend(reported.map(|reported| described(reported, existing, &now)));
    devices.sort_by(|a, b| place(a).cmp(&place(b)));
    let mut in_order = existing.to_vec();
    in_order.sort_by(|a, b| place(a).cmp(&place(b)));
    if devices != in_order {
        new.spec.devices = devices;
    }
    let fields = new.metadata.managed_fields.clone().unwrap_or_default();
    let is_written = |map: &str, key: &str| has_written(&fields, map, key);
    let is_own = |key: &str| OWN_LABELS.contains(&key) && is_written("f:labels", key);
    merge(&mut new.metadata.labels, &report.labels, is_own);
    let is_own = |key: &str| OWN_ANNOTATIONS.contains(&key) && is_written("f:annotations", key);
    merge(&mut new.metadata.annotations, &report.annotations, is_own);
    set_owner(&mut new, owner);
    (old != Some(&new)).then_some(new)
}

fn is_own_device(device: &DeviceInfo) -> bool {
    matches!(device.type_, Some(DeviceType::Gpu | DeviceType::Rdma))
}

/// Returns the sort key of a device.
fn place(device: &DeviceInfo) -> (Option<&str>, Option<i32>, &str) {
    let type_ = device.type_.as_ref().map(DeviceType::as_str);
    (type_, device.minor, &device.id)
}

/// Returns the entry of a detected device; labels and unchanged conditions are those of the existing entry.
fn described(detected: &Detected, existing: &[DeviceInfo], now: &Time) -> DeviceInfo {
    let mut info = detected.info.clone();
    let before = existing
        .iter()
        .find(|device| device.type_ == info.type_ && device.id == info.id);
    if let Some(before) = before {
        info.labels.clone_from(&before.labels);
        info.module_id = before.module_id;
    }
    info.conditions.clear();
    if let Some(health) = &detected.health {
        let mut condition = condition(health, now.clone());
        let conditions = before.map_or(&[][..], |before| &before.conditions);
        let unchanged = conditions.iter().find(|existing| {
            existing.type_ == condition.type_ && existing.status == condition.status
        });
        if let Some(unchanged) = unchanged {
            condition.last_transition_time = unchanged.last_transition_time.clone();
            condition.observed_generation = unchanged.observed_generation;
        }
        info.conditions.push(condition);
    }
    info
}

/// Returns the condition for `health`.
#[must_use]
pub fn condition(health: &Health, now: Time) -> Condition {
    let (status, reason, mut message) = if health.healthy {
        (
            "True",
            "DeviceHealthy".to_owned(),
            "device is healthy".to_owned(),
        )
    } else {
        let message = match health.message.as_str() {
            "" => "device is unhealthy",
            message => message,
        };
        match reason(&health.code) {
            Some(reason) if reason == health.code => ("False", reason, message.to_owned()),
            // The original code must not be lost.
            Some(reason) => (
                "False",
                reason,
                format!("{message} (code {:?})", health.code),
            ),
            None => ("False", "Unknown".to_owned(), message.to_owned()),
        }
    };
    while message.len() > LONGEST_MESSAGE {
        message.pop();
    }
    Condition {
        type_: CONDITION_HEALTHY.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        last_transition_time: now,
        observed_generation: None,
    }
}

/// Converts `code` to a condition reason: letters, digits, `_`, `,` and `:`, starting with a letter. The API
/// server rejects the whole Device for an invalid reason, such as `-8001` or `chip error`. Returns `None` for
/// an empty code.
fn reason(code: &str) -> Option<String> {
    let code = code.trim();
    if code.is_empty() {
        return None;
    }
    let letter = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | ',' | ':' => letter,
        _ => '_',
    };
    let text: String = code.chars().take(256).map(letter).collect();
    let text = text.trim_end_matches([',', ':']);
    if text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Some(text.to_owned());
    }
    Some(format!("Code_{}", text.trim_start_matches(['_', ',', ':'])))
}

/// Returns true if koordlet wrote `key` last, according to the managed fields.
fn has_written(fields: &[ManagedFieldsEntry], map: &str, key: &str) -> bool {
    let own = fields
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(MANAGER));
    let key = format!("f:{key}");
    own.filter_map(|entry| entry.fields_v1.as_ref())
        .any(|set| set.0["f:metadata"][map].get(&key).is_some())
}

/// Sets the `reported` entries in labels or annotations, and removes other ones for which `is_own` returns true.
fn merge(
    map: &mut Option<BTreeMap<String, String>>,
    reported: &BTreeMap<String, String>,
    is_own: impl Fn(&str) -> bool,
) {
    if let Some(map) = map {
        map.retain(|key, _| reported.contains_key(key) || !is_own(key));
    }
    if !reported.is_empty() {
        let map = map.get_or_insert_default();
        map.extend(
            reported
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
    }
}

/// Sets the owner reference, so that the Device is deleted with its node. A reference to an earlier node of
/// that name is removed.
fn set_owner(device: &mut Device, owner: Owner<'_>) {
    let references = device.metadata.owner_references.get_or_insert_default();
    let reference = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: owner.name.to_owned(),
        uid: owner.uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    if !references.contains(&reference) {
        references.retain(|other| other.kind != "Node" && other.controller != Some(true));
        references.push(reference);
    }
}

#[cfg(test)]
mod tests;
