//! ScheduleExplanation: why an object is or is not schedulable.
//!
//! Source: Koordinator `apis/scheduling/v1alpha1/schedule_explanation_types.go`.

use crate::duration::GoDuration;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Object to explain.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "scheduling.koordinator.sh",
    version = "v1alpha1",
    kind = "ScheduleExplanation",
    plural = "scheduleexplanations",
    shortname = "sched-exp",
    namespaced,
    status = "ScheduleExplanationStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleExplanationSpec {
    /// Key of the object to explain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub question_object_key: String,
    /// Template of a pod to explain that does not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::any"))]
    pub question_object_template: Option<PodTemplateSpec>,
    /// Time that the explanation is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "24h")))]
    pub ttl: Option<GoDuration>,
}

/// The explanation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScheduleExplanationStatus {
    /// Time of the newest update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// True if the object is schedulable now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// True if the object is schedulable after preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable_after_preemption: Option<bool>,
    /// Reason why the object is not schedulable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_message: String,
    /// Explanations by topology domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detailed_explanation: Vec<DetailedExplanation>,
}

/// Explanation for one topology domain.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DetailedExplanation {
    /// The domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub topology_domain: String,
    /// True if the object is schedulable now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// True if the object is schedulable after preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable_after_preemption: Option<bool>,
    /// Reason why the object is not schedulable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_message: String,
    /// Attempt without preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_explanation: Option<SchedulingExplanation>,
    /// Attempt with preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_explanation: Option<SchedulingExplanation>,
    /// Pods that would be preempted, by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_possible_victims: Vec<NodePossibleVictims>,
}

/// Result of one attempt to schedule the object.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SchedulingExplanation {
    /// True if the attempt succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// Reason why the object is not schedulable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_message: String,
    /// Nodes that the pods would be placed on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feasible_scheduling_result: Vec<FeasibleSchedulingResult>,
    /// Rejected nodes, grouped by reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_failed_details: Vec<NodeFailedDetail>,
}

/// Node that one pod would be placed on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FeasibleSchedulingResult {
    /// Pod namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Pod name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Pod UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
}

/// Nodes rejected for one reason.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeFailedDetail {
    /// Plugin that rejected the nodes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_plugin: String,
    /// Reason of the rejection.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// True if preemption could make the nodes feasible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_might_help: Option<bool>,
    /// The nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<String>,
}

/// Pods that would be preempted on one node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodePossibleVictims {
    /// The node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub possible_victims: Vec<PossibleVictim>,
}

/// A pod that would be preempted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PossibleVictim {
    /// Pod namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Pod name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Pod UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// True if the pod is only nominated to the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_nominated_pod: Option<bool>,
}
