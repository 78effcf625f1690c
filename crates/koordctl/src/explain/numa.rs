//! Explains the NUMA nodes of a placed pod.

use k8s_openapi::api::core::v1::Pod;
use koord_api::extension::{self, ResourceStatus};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_api::topology::{ZONE_TYPE_NODE, zone_name};
use koord_api::{annotations, quantity::Quantity};
use koord_model::alignment::{Config, Policy};
use std::fmt::Write as _;

/// Explains which NUMA nodes the scheduler chose for `pod`, or that the kubelet of its node chooses, according to
/// `report`. `None` if neither does.
pub(super) fn explain_choice(pod: &Pod, report: Option<&NodeResourceTopology>) -> Option<String> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    let key = annotations::RESOURCE_STATUS;
    let status = match extension::read(pod.metadata.annotations.as_ref(), key) {
        Ok(status) => status.unwrap_or_default(),
        Err(error) => return Some(format!("NUMA nodes unknown: {error}")),
    };
    scheduler_choice(&status).or_else(|| kubelet_choice(node, report?))
}

fn scheduler_choice(status: &ResourceStatus) -> Option<String> {
    let zones = status.numa_node_resources.iter().map(|zone| {
        let name = u32::try_from(zone.node).map_or_else(|_| zone.node.to_string(), zone_name);
        let amount = |(name, amount): (&String, &Quantity)| format!("{name} {amount}");
        let amounts: Vec<String> = zone.resources.iter().map(amount).collect();
        format!("{name} ({})", amounts.join(", "))
    });
    let zones: Vec<String> = zones.collect();
    let mut text = match zones.as_slice() {
        [] if status.cpuset.is_empty() => return None,
        [] => "no NUMA node was chosen".to_owned(),
        zones => format!("the scheduler chose {}", zones.join(" and ")),
    };
    if !status.cpuset.is_empty() {
        let _ = write!(text, "; CPUs {}", status.cpuset);
    }
    Some(text)
}

fn kubelet_choice(node: &str, report: &NodeResourceTopology) -> Option<String> {
    let spec = &report.spec;
    let zones = spec.zones.iter();
    if zones.filter(|zone| zone.type_ == ZONE_TYPE_NODE).count() < 2 {
        return None;
    }
    let policies = spec.topology_policies.iter().map(String::as_str);
    let attributes = spec.attributes.iter();
    let attributes =
        attributes.map(|attribute| (attribute.name.as_str(), attribute.value.as_str()));
    let (config, _) = Config::read(policies, attributes);
    (config.policy != Policy::None).then(|| {
        let (policy, scope) = (config.policy.as_str(), config.scope.as_str());
        format!(
            "the kubelet of {node} chooses its NUMA nodes ({policy}, scope {scope}): \
             `koord node topology` shows them there"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(node: Option<&str>, status: &str) -> Pod {
        let mut metadata = json!({"name": "web"});
        if !status.is_empty() {
            metadata["annotations"] = json!({annotations::RESOURCE_STATUS: status});
        }
        let pod = json!({"metadata": metadata, "spec": {"nodeName": node, "containers": []}});
        serde_json::from_value(pod).unwrap()
    }

    fn report(policy: &str, zones: u32) -> NodeResourceTopology {
        let zone = |id: u32| json!({"name": zone_name(id), "type": "Node"});
        let zones: Value = (0..zones).map(zone).collect();
        serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": "n"}, "topologyPolicies": [policy], "zones": zones,
        }))
        .unwrap()
    }

    #[test]
    fn choice_of_the_scheduler_is_shown() {
        let status = r#"{"cpuset":"0-4","numaNodeResources":[
            {"node":0,"resources":{"cpu":"5","memory":"1Gi"}}, {"node":1,"resources":{"cpu":"2"}}]}"#;
        let single = report("SingleNUMANodePodLevel", 2);
        assert_eq!(
            explain_choice(&pod(Some("n"), status), Some(&single)).unwrap(),
            "the scheduler chose node-0 (cpu 5, memory 1Gi) and node-1 (cpu 2); CPUs 0-4"
        );
        assert_eq!(
            explain_choice(&pod(Some("n"), r#"{"cpuset":"3"}"#), None).unwrap(),
            "no NUMA node was chosen; CPUs 3"
        );
        let malformed = explain_choice(&pod(Some("n"), "{"), Some(&single)).unwrap();
        assert!(malformed.contains("resource-status"), "{malformed}");
        // An unbound pod has no choice yet.
        assert_eq!(explain_choice(&pod(None, status), Some(&single)), None);
    }

    #[test]
    fn choice_by_the_kubelet_is_shown() {
        let placement = |policy: &str, zones: u32| {
            let report = report(policy, zones);
            explain_choice(&pod(Some("n"), ""), Some(&report))
        };
        assert_eq!(
            placement("RestrictedPodLevel", 2).unwrap(),
            "the kubelet of n chooses its NUMA nodes (restricted, scope pod): `koord node topology` \
             shows them there"
        );
        assert_eq!(placement("None", 2), None);
        assert_eq!(placement("SingleNUMANodeContainerLevel", 1), None);
        assert_eq!(explain_choice(&pod(Some("n"), ""), None), None);
    }
}
