//! Restricts pods of a quota tree to the nodes of the tree (gate `MultiQuotaTree`).
//!
//! Source: Koordinator `pkg/webhook/pod/mutating/multi_quota_tree_affinity.go`.

use super::check::Refusal;
use super::topology::QuotaTopology;
use koord_api::labels;
use koord_api::quota::ElasticQuotaProfile;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Adds the node affinity of its quota tree to a pod of `namespace`.
///
/// The quota is the one in the pod's label, or the one named like its namespace, or the one that claims the
/// namespace. Of the profiles of its tree the first by namespace and name is used.
///
/// # Errors
/// A part of the pod has the wrong JSON type.
pub(crate) fn bind_to_tree(
    topology: &QuotaTopology,
    profiles: &[Arc<ElasticQuotaProfile>],
    namespace: &str,
    pod: &mut Value,
) -> Result<(), Refusal> {
    let label = pod.pointer("/metadata/labels");
    let label = label.and_then(|all| all.get(labels::POD_QUOTA_NAME)?.as_str());
    let named = label.filter(|name| !name.is_empty());
    let quota = topology.named_or_claiming(named.unwrap_or(namespace), namespace);
    let Some(quota) = quota.filter(|quota| !quota.tree.is_empty()) else {
        return Ok(());
    };
    let of_tree = |profile: &&Arc<ElasticQuotaProfile>| {
        let labels = profile.metadata.labels.as_ref();
        labels.and_then(|all| all.get(labels::QUOTA_TREE_ID)) == Some(&quota.tree)
    };
    let key = |profile: &&Arc<ElasticQuotaProfile>| koord_kube::ObjectKey::from_object(&***profile);
    let Some(profile) = profiles.iter().filter(of_tree).min_by_key(key) else {
        return Ok(());
    };
    let required = requirements(profile);
    if required.is_empty() {
        return Ok(());
    }
    let mut value = pod;
    let mut path = String::new();
    for name in [
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ] {
        let parent = object(value, &path)?;
        value = parent.entry(name).or_insert(Value::Null);
        path = format!("{path}.{name}");
    }
    let terms = list(value, &path)?;
    if terms.is_empty() {
        terms.push(json!({}));
    }
    for (index, term) in terms.iter_mut().enumerate() {
        let path = format!("{path}[{index}]");
        let term = object(term, &path)?;
        let all = term.entry("matchExpressions").or_insert(Value::Null);
        let all = list(all, &format!("{path}.matchExpressions"))?;
        all.extend(required.iter().cloned());
    }
    Ok(())
}

/// Returns `value` as an object; null is replaced by an empty one.
fn object<'a>(value: &'a mut Value, path: &str) -> Result<&'a mut Map<String, Value>, Refusal> {
    if value.is_null() {
        *value = json!({});
    }
    let shown = if value.is_object() {
        String::new()
    } else {
        value.to_string()
    };
    let not_an_object = || {
        Refusal(format!(
            "{}: want an object, is {shown}",
            path.trim_start_matches('.')
        ))
    };
    value.as_object_mut().ok_or_else(not_an_object)
}

/// Returns `value` as a list; null is replaced by an empty one.
fn list<'a>(value: &'a mut Value, path: &str) -> Result<&'a mut Vec<Value>, Refusal> {
    if value.is_null() {
        *value = json!([]);
    }
    let shown = if value.is_array() {
        String::new()
    } else {
        value.to_string()
    };
    let not_a_list = || {
        Refusal(format!(
            "{}: want a list, is {shown}",
            path.trim_start_matches('.')
        ))
    };
    value.as_array_mut().ok_or_else(not_a_list)
}

/// Converts a profile's node selector to requirements of node affinity.
fn requirements(profile: &ElasticQuotaProfile) -> Vec<Value> {
    let selector = &profile.spec.node_selector;
    let labels = selector.match_labels.iter().flatten();
    let equal = labels.map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}));
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.map(|expression| {
        let mut requirement = json!({"key": expression.key, "operator": expression.operator});
        if let Some(values) = &expression.values {
            requirement["values"] = json!(values);
        }
        requirement
    });
    equal.chain(expressions).collect()
}

#[cfg(test)]
mod tests;
