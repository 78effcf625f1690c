//! Reservation: resources held on a node for pods that come later.
//!
//! Source: Koordinator `apis/scheduling/v1alpha1/reservation_types.go`.

use crate::duration::GoDuration;
use crate::quantity::ResourceList;
use crate::serde_util::open_enum;
use k8s_openapi::api::core::v1::{ObjectReference, PodTemplateSpec, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

open_enum! {
    /// How pods draw from a reservation.
    ReservationAllocatePolicy {
        /// Old unset value; same as [`ReservationAllocatePolicy::Aligned`].
        Default = "",
        /// From the reservation first, then from the node.
        Aligned = "Aligned",
        /// Reserved resources only from the reservation.
        Restricted = "Restricted",
    }
}

open_enum! {
    /// Where pre-allocated pods may come from.
    PreAllocationMode {
        /// Pods the owners match.
        Default = "Default",
        /// Any pre-allocatable pod of the cluster.
        Cluster = "Cluster",
    }
}

open_enum! {
    /// State of a reservation.
    ReservationPhase {
        /// Not scheduled yet.
        Pending = "Pending",
        /// Scheduled; owners may use it.
        Available = "Available",
        /// Used up by its owner.
        Succeeded = "Succeeded",
        /// Scheduled, but waits for its resources.
        Waiting = "Waiting",
        /// Expired or impossible.
        Failed = "Failed",
    }
}

/// Condition type: the reservation was placed on a node.
pub const RESERVATION_CONDITION_SCHEDULED: &str = "Scheduled";
/// Condition type: the reservation can be used.
pub const RESERVATION_CONDITION_READY: &str = "Ready";
/// Condition reason: placed on a node.
pub const RESERVATION_REASON_SCHEDULED: &str = "Scheduled";
/// Condition reason: no node fits.
pub const RESERVATION_REASON_UNSCHEDULABLE: &str = "Unschedulable";
/// Condition reason: can be used.
pub const RESERVATION_REASON_AVAILABLE: &str = "Available";
/// Condition reason: used up.
pub const RESERVATION_REASON_SUCCEEDED: &str = "Succeeded";
/// Condition reason: older than its time to live.
pub const RESERVATION_REASON_EXPIRED: &str = "Expired";

/// What is reserved, for whom and for how long.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "scheduling.koordinator.sh",
    version = "v1alpha1",
    kind = "Reservation",
    plural = "reservations",
    status = "ReservationStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"State of the reservation"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.nodeName"}"#,
    printcolumn = r#"{"name":"TTL","type":"string","jsonPath":".spec.ttl"}"#,
    printcolumn = r#"{"name":"Expires","type":"string","jsonPath":".spec.expires"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ReservationSpec {
    /// Pod whose requests and constraints are reserved.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::any"))]
    pub template: PodTemplateSpec,
    /// Who may use the reservation; one match is enough.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub owners: Vec<ReservationOwner>,
    /// Time to live from creation; 0 is for ever. Not used when `expires` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "24h")))]
    pub ttl: Option<GoDuration>,
    /// When the reservation ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Whether running pods may be taken into the reservation before it has room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_allocation: Option<bool>,
    /// Which pods those are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_allocation_policy: Option<PreAllocationPolicy>,
    /// Whether the first owner uses the reservation up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = true)))]
    pub allocate_once: Option<bool>,
    /// How owners draw from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Aligned", "Restricted"])))]
    pub allocate_policy: Option<ReservationAllocatePolicy>,
    /// Whether new owners are turned away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
    /// Taints owners must tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// Which running pods a reservation may take in.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PreAllocationPolicy {
    /// Where the pods may come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "Default", "enum" = ["Default", "Cluster"])))]
    pub mode: Option<PreAllocationMode>,
    /// Whether more than one pod may be taken in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = false)))]
    pub enable_multiple: Option<bool>,
}

/// Pods that may use a reservation; every set field must match.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
pub struct ReservationOwner {
    /// One pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectReference>,
    /// Pods of one controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ReservationControllerReference>,
    /// Pods with these labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
}

/// A controller, optionally of one namespace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReservationControllerReference {
    /// API version of the controller.
    pub api_version: String,
    /// Kind of the controller.
    pub kind: String,
    /// Name of the controller.
    pub name: String,
    /// UID of the controller.
    pub uid: String,
    /// Whether the reference is to the managing controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether the owner waits for its dependants when deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
    /// Namespace of the controller.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// A reservation to be made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationTemplateSpec {
    /// Labels and annotations of the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    /// What to reserve.
    #[serde(default)]
    pub spec: ReservationSpec,
}

/// Where the reservation is and who uses it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReservationStatus {
    /// State.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "Pending")))]
    pub phase: Option<ReservationPhase>,
    /// Details of the state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ReservationCondition>,
    /// Pods that use the reservation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub current_owners: Vec<ObjectReference>,
    /// Node of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// What is reserved.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: ResourceList,
    /// What owners use of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated: ResourceList,
}

/// One aspect of a reservation's state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReservationCondition {
    /// Aspect.
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Machine-readable reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Explanation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it was last checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// When it last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}
