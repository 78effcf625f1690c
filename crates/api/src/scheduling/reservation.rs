//! Reservation: resources reserved on a node for pods that are created later.
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
    /// Rule for allocating a reservation's resources to its owners.
    ReservationAllocatePolicy {
        /// Deprecated unset value; equivalent to [`ReservationAllocatePolicy::Aligned`].
        Default = "",
        /// Resources come from the reservation first, then from the node.
        Aligned = "Aligned",
        /// Reserved resources come only from the reservation.
        Restricted = "Restricted",
    }
}

open_enum! {
    /// Origin of pre-allocated pods.
    PreAllocationMode {
        /// Pods that match the owners.
        Default = "Default",
        /// Any pre-allocatable pod of the cluster.
        Cluster = "Cluster",
    }
}

open_enum! {
    /// State of a reservation.
    ReservationPhase {
        /// The reservation is not scheduled yet.
        Pending = "Pending",
        /// Scheduled; owners may use it.
        Available = "Available",
        /// An owner used the reservation up.
        Succeeded = "Succeeded",
        /// Scheduled, but its resources are not free yet.
        Waiting = "Waiting",
        /// Expired or not schedulable.
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

/// Resources to reserve, the pods that may use them, and the lifetime.
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
    /// Pod template whose requests and constraints are reserved.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::any"))]
    pub template: PodTemplateSpec,
    /// Selectors of the pods that may use the reservation; one match is enough.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub owners: Vec<ReservationOwner>,
    /// Time to live from creation; 0 means no expiry. Ignored if `expires` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "24h")))]
    pub ttl: Option<GoDuration>,
    /// Expiry time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Allows the reservation to be scheduled by absorbing running pods that free its resources later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_allocation: Option<bool>,
    /// Selection of the running pods to absorb.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_allocation_policy: Option<PreAllocationPolicy>,
    /// True if the reservation ends when its first owner uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = true)))]
    pub allocate_once: Option<bool>,
    /// Rule for allocating the reserved resources to owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Aligned", "Restricted"])))]
    pub allocate_policy: Option<ReservationAllocatePolicy>,
    /// True if the reservation admits no new owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
    /// Taints owners must tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// Selection of the running pods that a reservation may absorb.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PreAllocationPolicy {
    /// Origin of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "Default", "enum" = ["Default", "Cluster"])))]
    pub mode: Option<PreAllocationMode>,
    /// True if more than one pod may be absorbed.
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
    /// A single pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectReference>,
    /// Pods of one controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ReservationControllerReference>,
    /// Pods with these labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
}

/// Reference to a controller, optionally in one namespace.
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
    /// True if the reference points to the managing controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// True if the owner's deletion waits for its dependents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
    /// Namespace of the controller.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// Template of a reservation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationTemplateSpec {
    /// Labels and annotations of the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    /// Spec of the reservation.
    #[serde(default)]
    pub spec: ReservationSpec,
}

/// Observed state: node, amounts and current owners.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReservationStatus {
    /// Phase of the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "Pending")))]
    pub phase: Option<ReservationPhase>,
    /// Conditions of the reservation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ReservationCondition>,
    /// Pods that use the reservation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub current_owners: Vec<ObjectReference>,
    /// Node of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Reserved amounts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: ResourceList,
    /// Amounts allocated to owners.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated: ResourceList,
}

/// Condition of a reservation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReservationCondition {
    /// Type of the condition.
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
    /// Time of the last check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// Time of the last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}
