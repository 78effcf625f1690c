//! PodMigrationJob: moves one pod to another node, by default after reserving its new place.
//!
//! Source: Koordinator `apis/scheduling/v1alpha1/pod_migration_job_types.go`.

use super::ReservationTemplateSpec;
use crate::duration::GoDuration;
use crate::serde_util::open_enum;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Time};
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

open_enum! {
    /// How a pod is moved.
    PodMigrationJobMode {
        /// Reserve a place, then evict; the default.
        ReservationFirst = "ReservationFirst",
        /// Evict and let the scheduler find a place.
        EvictDirectly = "EvictDirectly",
    }
}

open_enum! {
    /// State of a job.
    PodMigrationJobPhase {
        /// Not started.
        Pending = "Pending",
        /// Under way.
        Running = "Running",
        /// The pod was moved.
        Succeeded = "Succeeded",
        /// The pod was not moved.
        Failed = "Failed",
        /// Given up.
        Aborted = "Aborted",
    }
}

/// Condition types of a PodMigrationJob.
pub mod pod_migration_job_conditions {
    /// The reservation exists.
    pub const RESERVATION_CREATED: &str = "ReservationCreated";
    /// The reservation has a node.
    pub const RESERVATION_SCHEDULED: &str = "ReservationScheduled";
    /// Other pods make room.
    pub const PREEMPTION: &str = "Preemption";
    /// The pod is being evicted.
    pub const EVICTION: &str = "Eviction";
    /// The new pod has a node.
    pub const POD_SCHEDULED: &str = "PodScheduled";
    /// The new pod uses the reservation.
    pub const POD_BOUND_RESERVATION: &str = "PodBoundReservation";
    /// The new pod is ready.
    pub const BOUND_POD_READY: &str = "BoundPodReady";
    /// The reservation is used.
    pub const RESERVATION_BOUND: &str = "ReservationBound";
}

/// Condition reasons of a PodMigrationJob.
pub mod pod_migration_job_reasons {
    /// Older than its time to live.
    pub const TIMEOUT: &str = "Timeout";
    /// The reservation could not be created.
    pub const FAILED_CREATE_RESERVATION: &str = "FailedCreateReservation";
    /// The reservation expired before use.
    pub const RESERVATION_EXPIRED: &str = "ReservationExpired";
    /// No node fits the reservation.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// A filter forbids to move the pod.
    pub const FORBIDDEN_MIGRATE_POD: &str = "ForbiddenMigratePod";
    /// The pod is gone.
    pub const MISSING_POD: &str = "MissingPod";
    /// The reservation is gone.
    pub const MISSING_RESERVATION: &str = "MissingReservation";
    /// Other pods are making room.
    pub const PREEMPTING: &str = "Preempting";
    /// Other pods made room.
    pub const PREEMPT_COMPLETE: &str = "PreemptComplete";
    /// The eviction was asked for.
    pub const EVICTING: &str = "Evicting";
    /// The eviction was refused.
    pub const FAILED_EVICT: &str = "FailedEvict";
    /// The pod is gone.
    pub const EVICT_COMPLETE: &str = "EvictComplete";
    /// Waits for the new pod to use the reservation.
    pub const WAIT_FOR_POD_BIND_RESERVATION: &str = "WaitForPodBindReservation";
    /// Waits for the new pod to be ready.
    pub const WAIT_FOR_BOUND_POD_READY: &str = "WaitForBoundPodReady";
}

/// Which pod to move, and how.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "scheduling.koordinator.sh",
    version = "v1alpha1",
    kind = "PodMigrationJob",
    plural = "podmigrationjobs",
    shortname = "pmj",
    status = "PodMigrationJobStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"State of the job"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.status","description":"Step the job is at"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.nodeName"}"#,
    printcolumn = r#"{"name":"Reservation","type":"string","jsonPath":".spec.reservationOptions.reservationRef.name"}"#,
    printcolumn = r#"{"name":"PodNamespace","type":"string","jsonPath":".spec.podRef.namespace"}"#,
    printcolumn = r#"{"name":"Pod","type":"string","jsonPath":".spec.podRef.name"}"#,
    printcolumn = r#"{"name":"NewPod","type":"string","jsonPath":".status.podRef.name"}"#,
    printcolumn = r#"{"name":"TTL","type":"string","jsonPath":".spec.ttl"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PodMigrationJobSpec {
    /// Whether the job waits before its next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Time after which an unfinished job is aborted; unset means the controller's default, 0 is for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<GoDuration>,
    /// How the pod is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PodMigrationJobMode>,
    /// The pod.
    pub pod_ref: ObjectReference,
    /// The reservation to make or to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation_options: Option<PodMigrateReservationOptions>,
    /// How the pod is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_options: Option<DeleteOptions>,
}

/// The reservation of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrateReservationOptions {
    /// An existing reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation_ref: Option<ObjectReference>,
    /// What the reservation is made from; unset means from the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::any"))]
    pub template: Option<ReservationTemplateSpec>,
    /// Whether other pods may be preempted for the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_options: Option<PodMigrationJobPreemptionOptions>,
}

/// No settings yet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrationJobPreemptionOptions {}

/// How far the job is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrationJobStatus {
    /// State.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PodMigrationJobPhase>,
    /// Step the job is at.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Machine-readable reason of the state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Explanation of the state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Details of the steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PodMigrationJobCondition>,
    /// Node of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The new pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_ref: Option<ObjectReference>,
    /// Pods that made room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preempted_pods_ref: Vec<ObjectReference>,
    /// Reservations made for pods that made room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preempted_pods_reservation: Vec<PodMigrationJobPreemptedReservation>,
}

/// One step of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrationJobCondition {
    /// Step; see [`pod_migration_job_conditions`].
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Machine-readable reason; see [`pod_migration_job_reasons`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Explanation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it was last checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::schema::nullable_time")
    )]
    pub last_probe_time: Option<Time>,
    /// When it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::schema::nullable_time")
    )]
    pub last_transition_time: Option<Time>,
}

/// The reservation of a pod that made room.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrationJobPreemptedReservation {
    /// Namespace of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Node of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// State of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The pod that made room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted_pod_ref: Option<ObjectReference>,
    /// Pods that use the reservation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_ref: Vec<ObjectReference>,
}
