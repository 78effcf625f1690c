//! The Node objects of simulated nodes.

use crate::{KWOK_NODE_ANNOTATION, Layout, NODE_ANNOTATION, NODE_LABEL, TOPOLOGY_ANNOTATION};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::resources;
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// Properties of a simulated machine.
#[derive(Debug, Clone)]
pub struct NodeTemplate {
    /// Capacity and allocatable. Default: 32 CPUs, 128 Gi, 110 pods.
    pub capacity: ResourceList,
    /// `status.nodeInfo.architecture`.
    pub architecture: String,
    /// `status.nodeInfo.kubeletVersion`.
    pub kubelet_version: String,
    /// NUMA nodes of the node, if it has any.
    pub numa: Option<Layout>,
}

impl NodeTemplate {
    /// Returns a template with these NUMA nodes and their total CPU, memory and devices.
    #[must_use]
    pub fn with_numa(layout: Layout) -> Self {
        let mut template = Self::default();
        template.capacity.extend(layout.capacity());
        template.numa = Some(layout);
        template
    }
}

impl Default for NodeTemplate {
    fn default() -> Self {
        let capacity = [
            (resources::CPU, Quantity::from_value(32)),
            (resources::MEMORY, Quantity::from_bytes(128 << 30)),
            (resources::PODS, Quantity::from_value(110)),
            (
                resources::EPHEMERAL_STORAGE,
                Quantity::from_bytes(100 << 30),
            ),
        ];
        Self {
            capacity: capacity
                .map(|(name, amount)| (name.to_owned(), amount))
                .into(),
            architecture: "amd64".to_owned(),
            kubelet_version: "v1.35.0-sim".to_owned(),
            numa: None,
        }
    }
}

/// Returns the name of simulated node `index`, from 0.
#[must_use]
pub fn name(index: usize) -> String {
    format!("sim-{index}")
}

/// Returns the index of a node named by [`name`].
pub(crate) fn index(name: &str) -> Option<usize> {
    name.strip_prefix("sim-")?.parse().ok()
}

/// Returns whether this crate created `node`, so that it may also delete it.
pub(crate) fn is_own(node: &Node) -> bool {
    let marked = node
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(NODE_ANNOTATION))
        .is_some_and(|value| value == "true");
    marked
        && node
            .metadata
            .name
            .as_deref()
            .is_some_and(|name| index(name).is_some())
}

/// Returns whether `node` was created by an earlier run and is not one of the first `nodes` nodes.
#[must_use]
pub fn is_surplus(node: &Node, nodes: usize) -> bool {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    is_own(node) && index(name).is_some_and(|index| index >= nodes)
}

/// Returns node `index` as its kubelet registers it: ready, so that it takes one write to get there.
///
/// # Errors
/// When the template's architecture or capacity cannot be in a Node.
pub(crate) fn registered(
    index: usize,
    template: &NodeTemplate,
    now: Timestamp,
) -> Result<Node, serde_json::Error> {
    let name = name(index);
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": { KWOK_NODE_ANNOTATION: "fake", NODE_ANNOTATION: "true" },
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": template.architecture,
                NODE_LABEL: "true",
                // kubectl shows it in the column ROLES.
                "node-role.kubernetes.io/simulated": "",
            },
        },
    });
    if let Some(layout) = &template.numa {
        object["metadata"]["annotations"][TOPOLOGY_ANNOTATION] = json!(json!(layout).to_string());
    }
    let mut node: Node = serde_json::from_value(object)?;
    let mut patch = ready_status(&node, template, now);
    node.status = serde_json::from_value(patch["status"].take())?;
    Ok(node)
}

/// The conditions of a healthy kubelet: type, status, reason, message.
const CONDITIONS: [(&str, &str, &str, &str); 5] = [
    (
        "Ready",
        "True",
        "KubeletReady",
        "simulated: pods are said to run, and nothing runs",
    ),
    (
        "MemoryPressure",
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    (
        "DiskPressure",
        "False",
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
    ),
    (
        "PIDPressure",
        "False",
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
    ),
    (
        "NetworkUnavailable",
        "False",
        "RouteCreated",
        "RouteController created a route",
    ),
];

/// Returns whether the `Ready` condition of `node` is true.
pub(crate) fn is_ready(node: &Node) -> bool {
    node.status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        })
}

/// Returns the address of a managed node: the one it has, else one made from its index or name.
pub(crate) fn address(node: &Node) -> String {
    let existing = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref())
        .and_then(|addresses| {
            addresses
                .iter()
                .find(|address| address.type_ == "InternalIP")
        })
        .map(|address| address.address.clone());
    existing.unwrap_or_else(|| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let number = index(name).map_or_else(
            || (crate::usage::hash(0, name) & 0xffff) as u32,
            |index| u32::try_from(index).unwrap_or(u32::MAX) & 0xffff,
        );
        // 10.64.0.1 and on.
        Ipv4Addr::from(0x0a40_0001_u32.wrapping_add(number)).to_string()
    })
}

/// Returns the default capacity of `node`: that of its own NUMA nodes, else the template's.
fn capacity(node: &Node, template: &NodeTemplate) -> ResourceList {
    let mut capacity = template.capacity.clone();
    // An invalid layout is logged where its kubelet is started.
    if let Ok(Some(layout)) = Layout::from_node(node) {
        let of_template = template.numa.iter().flat_map(|numa| numa.devices.keys());
        for resource in of_template {
            capacity.remove(resource);
        }
        capacity.extend(layout.capacity());
    }
    capacity
}

/// Returns the status patch that makes `node` ready. Existing capacity is kept.
pub(crate) fn ready_status(node: &Node, template: &NodeTemplate, now: Timestamp) -> Value {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let conditions: Vec<Value> = CONDITIONS
        .iter()
        .map(|(kind, status, reason, message)| {
            json!({
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            })
        })
        .collect();
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let mut status = json!({
        "phase": "Running",
        "conditions": conditions,
        "addresses": [
            { "type": "InternalIP", "address": address(node) },
            { "type": "Hostname", "address": name },
        ],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
        "nodeInfo": {
            "architecture": template.architecture,
            "operatingSystem": "linux",
            "osImage": "simulated",
            "kernelVersion": "simulated",
            "containerRuntimeVersion": "sim://1",
            "kubeletVersion": template.kubelet_version,
            "kubeProxyVersion": template.kubelet_version,
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        },
    });
    let current = node.status.as_ref();
    if current
        .and_then(|status| status.capacity.as_ref())
        .is_none_or(|amounts| amounts.is_empty())
    {
        status["capacity"] = json!(capacity(node, template));
    }
    if current
        .and_then(|s| s.allocatable.as_ref())
        .is_none_or(|amounts| amounts.is_empty())
    {
        status["allocatable"] = json!(capacity(node, template));
    }
    json!({ "status": status })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_simulated;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_marked_nodes_are_managed_and_only_ours_are_deleted() {
        let marked = |name: &str, key: &str, value: &str| {
            node(json!({ "metadata": { "name": name, "annotations": { key: value } } }))
        };
        assert!(is_simulated(&marked("a", KWOK_NODE_ANNOTATION, "fake")));
        assert!(is_simulated(&marked("a", NODE_ANNOTATION, "true")));
        assert!(!is_simulated(&marked("a", NODE_ANNOTATION, "false")));
        assert!(!is_simulated(&node(
            json!({ "metadata": { "name": "sim-1" } })
        )));
        assert!(is_own(&marked("sim-3", NODE_ANNOTATION, "true")));
        assert!(!is_own(&marked("other", NODE_ANNOTATION, "true")));
        assert!(!is_own(&marked("sim-3", KWOK_NODE_ANNOTATION, "fake")));
        let third = marked("sim-3", NODE_ANNOTATION, "true");
        assert!(is_surplus(&third, 3) && !is_surplus(&third, 4));
        assert!(!is_surplus(&marked("other", NODE_ANNOTATION, "true"), 0));
    }

    #[test]
    fn registered_node_is_ready_and_keeps_its_capacity() {
        let mut template = NodeTemplate::default();
        let node_object = registered(7, &template, Timestamp::UNIX_EPOCH).unwrap();
        assert!(is_simulated(&node_object) && is_ready(&node_object));
        let capacity = node_object
            .status
            .as_ref()
            .and_then(|s| s.allocatable.as_ref());
        assert_eq!(capacity.unwrap()["cpu"].0, "32");
        template
            .capacity
            .insert(resources::CPU.to_owned(), Quantity::from_value(8));
        let patch = ready_status(&node_object, &template, Timestamp::UNIX_EPOCH);
        assert_eq!(patch["status"].get("capacity"), None);
        assert_eq!(patch["status"]["addresses"][0]["address"], "10.64.0.8");
        assert_eq!(patch["status"]["conditions"].as_array().unwrap().len(), 5);
        let bare = node(json!({ "metadata": { "name": "k" } }));
        let patch = ready_status(&bare, &template, Timestamp::UNIX_EPOCH);
        assert_eq!(patch["status"]["capacity"]["cpu"], "8");
        assert_eq!(patch["status"]["allocatable"]["memory"], "128Gi");
        let mut ready = patch;
        ready["metadata"] = json!({ "name": "k" });
        assert!(is_ready(&node(ready)));
    }

    #[test]
    fn a_node_with_numa_nodes_and_no_capacity_has_what_they_have() {
        let mut layout = Layout::new(2, 8).unwrap();
        layout.devices = [("ex.com/a".to_owned(), vec![0, 1])].into();
        let annotation = json!(layout).to_string();
        let object = json!({"metadata": {"name": "k",
            "annotations": {NODE_ANNOTATION: "true", TOPOLOGY_ANNOTATION: annotation}}});
        let mut other = Layout::new(1, 2).unwrap();
        other.devices = [("ex.com/b".to_owned(), vec![0])].into();
        for template in [NodeTemplate::default(), NodeTemplate::with_numa(other)] {
            let patch = ready_status(&node(object.clone()), &template, Timestamp::UNIX_EPOCH);
            for amounts in ["capacity", "allocatable"] {
                let amounts = &patch["status"][amounts];
                assert_eq!(amounts["cpu"], "16");
                assert_eq!(amounts["memory"], "64Gi");
                assert_eq!(amounts["pods"], "110");
                assert_eq!(amounts["ex.com/a"], "2");
                assert_eq!(amounts.get("ex.com/b"), None);
            }
        }
    }
}
