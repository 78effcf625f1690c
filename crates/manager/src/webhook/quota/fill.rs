//! Defaults of a new quota: parent, tree id and shared weight.
//!
//! Source: Koordinator `pkg/webhook/elasticquota/quota_topology.go`, `fillQuotaDefaultInformation`.

use super::check::Refusal;
use super::topology::QuotaTopology;
use koord_api::quantity::ResourceList;
use koord_api::quota::ROOT_QUOTA;
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use std::collections::BTreeMap;

/// Labels and annotations to set on a new quota.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Defaults {
    /// Labels by key.
    pub(crate) labels: BTreeMap<&'static str, String>,
    /// Annotations by key.
    pub(crate) annotations: BTreeMap<&'static str, String>,
    /// True if the shared weight is the maximum because none was set.
    pub(crate) weight_is_max: bool,
}

/// Returns the missing fields of a new quota; none for the root quota.
pub(crate) fn defaults(
    topology: &QuotaTopology,
    quota: &ElasticQuota,
) -> Result<Defaults, Refusal> {
    let mut set = Defaults::default();
    let name = quota.metadata.name.as_deref().unwrap_or_default();
    if name == ROOT_QUOTA {
        return Ok(set);
    }
    let parent = quota.parent();
    if quota.label(labels::QUOTA_PARENT).is_empty() {
        set.labels.insert(labels::QUOTA_PARENT, parent.to_owned());
    }
    if quota.label(labels::QUOTA_TREE_ID).is_empty() && parent != ROOT_QUOTA {
        let Some(parent) = topology.get(parent) else {
            return Err(Refusal(format!(
                "fill quota {name} failed, parent not exist: {parent}"
            )));
        };
        if !parent.tree.is_empty() {
            set.labels
                .insert(labels::QUOTA_TREE_ID, parent.tree.clone());
        }
    }
    let key = annotations::QUOTA_SHARED_WEIGHT;
    let max = &quota.spec.max;
    if quota.annotation(key).is_empty() {
        set.weight_is_max = !max.is_empty();
        if set.weight_is_max {
            set.annotations.insert(key, encode_list(max));
        }
        return Ok(set);
    }
    let weight = quota
        .amounts(key)
        .map_err(|error| Refusal(format!("{name} {error}")))?;
    let fixed: ResourceList = max
        .iter()
        .map(|(resource, most)| {
            let configured = weight.get(resource).unwrap_or(most);
            (resource.clone(), *configured)
        })
        .collect();
    if !fixed.keys().eq(weight.keys()) {
        set.annotations.insert(key, encode_list(&fixed));
    }
    Ok(set)
}

/// Encodes a resource list for an annotation.
pub(crate) fn encode_list(list: &ResourceList) -> String {
    serde_json::to_string(list).unwrap_or_default()
}

#[cfg(test)]
mod tests;
