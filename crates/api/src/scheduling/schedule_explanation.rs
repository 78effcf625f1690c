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

/// What is asked about.
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
    /// Object the question is about.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub question_object_key: String,
    /// Or a pod that does not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::any"))]
    pub question_object_template: Option<PodTemplateSpec>,
    /// How long the answer is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "24h")))]
    pub ttl: Option<GoDuration>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScheduleExplanationStatus {
    /// When it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// Whether the object fits now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// Whether it fits when others are preempted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable_after_preemption: Option<bool>,
    /// Why it does not fit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_message: String,
    /// By topology domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detailed_explanation: Vec<DetailedExplanation>,
}

/// The answer for one topology domain.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DetailedExplanation {
    /// The domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub topology_domain: String,
    /// Whether the object fits now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// Whether it fits when others are preempted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable_after_preemption: Option<bool>,
    /// Why it does not fit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_message: String,
    /// Without preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_explanation: Option<SchedulingExplanation>,
    /// With preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_explanation: Option<SchedulingExplanation>,
    /// Who would be preempted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_possible_victims: Vec<NodePossibleVictims>,
}

/// One attempt to place the object.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SchedulingExplanation {
    /// Whether it fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// Why it does not fit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_message: String,
    /// Where its pods would go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feasible_scheduling_result: Vec<FeasibleSchedulingResult>,
    /// Which nodes were refused and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_failed_details: Vec<NodeFailedDetail>,
}

/// Where one pod would go.
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

/// Nodes refused for one reason.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeFailedDetail {
    /// Plugin that refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_plugin: String,
    /// Its reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Whether preemption could change that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_might_help: Option<bool>,
    /// The nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<String>,
}

/// Who would be preempted on one node.
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
    /// Whether it only waits for the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_nominated_pod: Option<bool>,
}
