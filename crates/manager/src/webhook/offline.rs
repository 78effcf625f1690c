//! The rules of the webhooks that depend on nothing but the objects: for checks of files, without a cluster.

use super::configmap;
use super::pod;
use super::profile;
use super::quota;
use crate::quotacheck;
use k8s_openapi::api::core::v1::Pod;
use koord_api::config::ClusterColocationProfile;
use koord_api::scheduling::ElasticQuota;
use std::collections::BTreeMap;

/// Returns the violated rules of a pod: reserved annotations, QoS class and priority, GPU requests. Each message
/// begins with the field. The priority must be set as in a cluster.
#[must_use]
pub fn pod_problems(pod: &Pod) -> Vec<String> {
    pod::problems(pod)
}

/// Returns the problems of a profile: field and message.
#[must_use]
pub fn profile_problems(profile: &ClusterColocationProfile) -> Vec<(&'static str, String)> {
    let problems = profile::problems(profile).into_iter();
    problems.map(|it| (it.field, it.problem)).collect()
}

/// Returns the problems of a quota by itself, each as `invalid value … for FIELD: expected …`.
#[must_use]
pub fn quota_problems(quota: &ElasticQuota) -> Vec<String> {
    quotacheck::own_problems(quota)
}

/// Returns the problems of quotas against their parents and siblings, with the index of the quota. A quota whose
/// parent is not among them is checked against its children only.
#[must_use]
pub fn quota_tree_problems(quotas: &[&ElasticQuota]) -> Vec<(usize, String)> {
    quota::tree_problems(quotas)
}

/// Returns the problems of the settings that the parser does not find: the key, the message, which begins with it,
/// and true if the webhook refuses them.
#[must_use]
pub fn settings_problems(data: &BTreeMap<String, String>) -> Vec<(&'static str, String, bool)> {
    configmap::problems_of_sections(data)
}
