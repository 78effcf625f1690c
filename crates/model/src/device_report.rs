//! What a node's agent says of its devices: the Device object that follows from what was found.
//!
//! The agent is one writer of that object among several: administrators put partition tables and labels
//! there. [`plan`] therefore changes the keys that are reported and takes back only those that the agent
//! wrote itself, which the object's managed fields tell.
//!
//! Source of formats: Koordinator `pkg/koordlet/statesinformer/impl/states_device_linux.go`.

pub mod xpu;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    Condition, ManagedFieldsEntry, OwnerReference, Time,
};
use koord_api::scheduling::{CONDITION_HEALTHY, Device, DeviceInfo, DeviceType};
use koord_api::{annotations, labels};
use std::collections::BTreeMap;

/// The field manager under which the agent writes.
pub const MANAGER: &str = "koordlet";

/// Labels of the Device that a report may have.
pub const OWN_LABELS: [&str; 4] = [
    labels::NODE_GPU_VENDOR,
    labels::NODE_GPU_MODEL,
    labels::NODE_GPU_DRIVER_VERSION,
    labels::NODE_GPU_PARTITION_POLICY,
];

/// Annotations of the Device that a report may have.
pub const OWN_ANNOTATIONS: [&str; 1] = [annotations::DEVICE_GPU_PARTITIONS];

/// Longest message of a condition in bytes, as the schema of conditions has it.
const LONGEST_MESSAGE: usize = 32_768;

/// Something that was found and cannot be used as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The field, such as `[1].minor`; empty for the whole.
    pub field: String,
    /// Its value.
    pub value: String,
    /// What is wrong with it, and what becomes of it.
    pub why: String,
}

/// Whether a device works, as its source says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether it does.
    pub healthy: bool,
    /// The source's code for what is wrong; may be empty.
    pub code: String,
    /// The same in words; may be empty.
    pub message: String,
}

/// A device that was found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Detected {
    /// What is reported of it, without conditions.
    pub info: DeviceInfo,
    /// What becomes its condition `Healthy`; without one it has none.
    pub health: Option<Health>,
}

/// What is reported.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The devices. Those without a minor are left out: nobody could be given one.
    pub devices: Vec<Detected>,
    /// Labels, of [`OWN_LABELS`].
    pub labels: BTreeMap<String, String>,
    /// Annotations, of [`OWN_ANNOTATIONS`].
    pub annotations: BTreeMap<String, String>,
}

/// Whose devices they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    /// The node's name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// The Device to write: a new one where there is none, the changed one where something is to be changed,
/// and nothing where the stored one says what is reported.
///
/// Devices of types `gpu` and `rdma` are the agent's; others stay. A device that is known by type and id
/// keeps its labels and its module, which are not reported, and a condition whose status is the same
/// keeps its time. `now` is cut to whole seconds.
#[must_use]
pub fn plan(old: Option<&Device>, owner: Owner<'_>, report: &Report, now: Time) -> Option<Device> {
    let mut new = old.cloned().unwrap_or_else(|| {
        let mut new = Device::default();
        new.metadata.name = Some(owner.name.to_owned());
        new
    });
    let known = old.map_or(&[][..], |old| &old.spec.devices);
    let now = Time(k8s_openapi::jiff::Timestamp::from_second(now.0.as_second()).unwrap_or(now.0));
    let mut devices: Vec<DeviceInfo> = known.iter().filter(|one| !is_ours(one)).cloned().collect();
    let found = report.devices.iter().filter(|one| one.info.minor.is_some());
    devices.extend(found.map(|found| described(found, known, &now)));
    devices.sort_by(|a, b| place(a).cmp(&place(b)));
    let mut in_order = known.to_vec();
    in_order.sort_by(|a, b| place(a).cmp(&place(b)));
    if devices != in_order {
        new.spec.devices = devices;
    }
    let fields = new.metadata.managed_fields.clone().unwrap_or_default();
    let wrote = |map: &str, key: &str| wrote(&fields, map, key);
    let is_own = |key: &str| OWN_LABELS.contains(&key) && wrote("f:labels", key);
    merge(&mut new.metadata.labels, &report.labels, is_own);
    let is_own = |key: &str| OWN_ANNOTATIONS.contains(&key) && wrote("f:annotations", key);
    merge(&mut new.metadata.annotations, &report.annotations, is_own);
    own(&mut new, owner);
    (old != Some(&new)).then_some(new)
}

fn is_ours(device: &DeviceInfo) -> bool {
    matches!(device.type_, Some(DeviceType::Gpu | DeviceType::Rdma))
}

/// By what devices are ordered.
fn place(device: &DeviceInfo) -> (Option<&str>, Option<i32>, &str) {
    let type_ = device.type_.as_ref().map(DeviceType::as_str);
    (type_, device.minor, &device.id)
}

fn described(found: &Detected, known: &[DeviceInfo], now: &Time) -> DeviceInfo {
    let mut info = found.info.clone();
    let before = known
        .iter()
        .find(|one| one.type_ == info.type_ && one.id == info.id);
    if let Some(before) = before {
        info.labels.clone_from(&before.labels);
        info.module_id = before.module_id;
    }
    info.conditions.clear();
    if let Some(health) = &found.health {
        let mut condition = condition(health, now.clone());
        let conditions = before.map_or(&[][..], |before| &before.conditions);
        let same = conditions
            .iter()
            .find(|one| one.type_ == condition.type_ && one.status == condition.status);
        if let Some(same) = same {
            condition.last_transition_time = same.last_transition_time.clone();
            condition.observed_generation = same.observed_generation;
        }
        info.conditions.push(condition);
    }
    info
}

/// The condition that tells `health`.
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
            // The code as it is must not get lost.
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

/// `code` as the reason of a condition: letters, digits, `_`, `,` and `:`, beginning with a letter. The API
/// server refuses the whole Device for one that is not, such as `-8001` or `chip error`. Nothing for an
/// empty code.
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

/// Whether the agent wrote `key` last, as the managed fields say.
fn wrote(fields: &[ManagedFieldsEntry], map: &str, key: &str) -> bool {
    let ours = fields
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(MANAGER));
    let key = format!("f:{key}");
    ours.filter_map(|entry| entry.fields_v1.as_ref())
        .any(|set| set.0["f:metadata"][map].get(&key).is_some())
}

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

/// Sees to it that the Device goes with its node. Another node of that name may have had it before.
fn own(device: &mut Device, owner: Owner<'_>) {
    let references = device.metadata.owner_references.get_or_insert_default();
    let ours = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: owner.name.to_owned(),
        uid: owner.uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    if !references.contains(&ours) {
        references.retain(|one| one.kind != "Node" && one.controller != Some(true));
        references.push(ours);
    }
}

#[cfg(test)]
mod tests;
