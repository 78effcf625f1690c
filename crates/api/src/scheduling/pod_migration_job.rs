//! PodMigrationJob: moves one pod to another node, by default after reserving resources there.
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
    /// Way in which a pod is moved.
    PodMigrationJobMode {
        /// Reserve resources on another node, then evict; the default.
        ReservationFirst = "ReservationFirst",
        /// Evict and let the scheduler find a node.
        EvictDirectly = "EvictDirectly",
    }
}

open_enum! {
    /// State of a job.
    PodMigrationJobPhase {
        /// The job has not started.
        Pending = "Pending",
        /// The job is in progress.
        Running = "Running",
        /// The pod was moved.
        Succeeded = "Succeeded",
        /// The pod was not moved.
        Failed = "Failed",
        /// The job was aborted.
        Aborted = "Aborted",
    }
}

/// Condition types of a PodMigrationJob.
pub mod pod_migration_job_conditions {
    /// The reservation exists.
    pub const RESERVATION_CREATED: &str = "ReservationCreated";
    /// The reservation has a node.
    pub const RESERVATION_SCHEDULED: &str = "ReservationScheduled";
    /// Other pods are preempted.
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
    /// The job is older than its time to live.
    pub const TIMEOUT: &str = "Timeout";
    /// The reservation could not be created.
    pub const FAILED_CREATE_RESERVATION: &str = "FailedCreateReservation";
    /// The reservation expired before use.
    pub const RESERVATION_EXPIRED: &str = "ReservationExpired";
    /// The reservation fits no node.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// A filter forbids the migration of the pod.
    pub const FORBIDDEN_MIGRATE_POD: &str = "ForbiddenMigratePod";
    /// The pod no longer exists.
    pub const MISSING_POD: &str = "MissingPod";
    /// The reservation no longer exists.
    pub const MISSING_RESERVATION: &str = "MissingReservation";
    /// Other pods are being preempted.
    pub const PREEMPTING: &str = "Preempting";
    /// Other pods were preempted.
    pub const PREEMPT_COMPLETE: &str = "PreemptComplete";
    /// The eviction was requested.
    pub const EVICTING: &str = "Evicting";
    /// The eviction was refused.
    pub const FAILED_EVICT: &str = "FailedEvict";
    /// The pod no longer exists.
    pub const EVICT_COMPLETE: &str = "EvictComplete";
    /// The job waits for the new pod to use the reservation.
    pub const WAIT_FOR_POD_BIND_RESERVATION: &str = "WaitForPodBindReservation";
    /// The job waits for the new pod to be ready.
    pub const WAIT_FOR_BOUND_POD_READY: &str = "WaitForBoundPodReady";
}

/// Pod to move and options of the migration.
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
    /// True if the job pauses before its next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Time after which an unfinished job is aborted; unset means the controller's default, 0 means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<GoDuration>,
    /// Way in which the pod is moved; unset means `ReservationFirst`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PodMigrationJobMode>,
    /// Pod to move.
    pub pod_ref: ObjectReference,
    /// Reservation to create or to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation_options: Option<PodMigrateReservationOptions>,
    /// Options for the deletion of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_options: Option<DeleteOptions>,
}

/// Reservation of a migration job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrateReservationOptions {
    /// Existing reservation to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation_ref: Option<ObjectReference>,
    /// Template of the reservation; unset means that it is derived from the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::any"))]
    pub template: Option<ReservationTemplateSpec>,
    /// Allows preemption of other pods for the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_options: Option<PodMigrationJobPreemptionOptions>,
}

/// Empty: there are no settings yet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrationJobPreemptionOptions {}

/// Observed progress of the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrationJobStatus {
    /// Phase of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PodMigrationJobPhase>,
    /// Current step of the job.
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
    /// Preempted pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preempted_pods_ref: Vec<ObjectReference>,
    /// Reservations created for preempted pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preempted_pods_reservation: Vec<PodMigrationJobPreemptedReservation>,
}

/// Condition of one step of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMigrationJobCondition {
    /// Name of the step, such as `ReservationCreated` or `Eviction`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Machine-readable reason, such as `Timeout`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Explanation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time of the last check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::schema::nullable_time")
    )]
    pub last_probe_time: Option<Time>,
    /// Time of the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::schema::nullable_time")
    )]
    pub last_transition_time: Option<Time>,
}

/// Reservation of a preempted pod.
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
    /// Phase of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The preempted pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted_pod_ref: Option<ObjectReference>,
    /// Pods that use the reservation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_ref: Vec<ObjectReference>,
}
