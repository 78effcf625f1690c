//! Restriction of nodes to their own objects (Kubernetes' NodeRestriction).
//!
//! The node authorizer ([`crate::authz`]) decides by the path of a request; this plugin makes the checks that
//! need the object. It also applies to a node that has more permissions by a binding.

use super::{AdmissionAttributes, Operation};
use crate::authz::{LEASES, node_of};
use crate::rest::core::Core;
use crate::rest::meta;
use crate::store::{Key, TableId};
use koord_kinds::status::ApiError;
use serde_json::Value;
use std::collections::BTreeSet;

/// Domain of labels, with its subdomains, that only administrators may set on nodes.
const RESERVED: &str = "node-restriction.kubernetes.io";
/// Domains, with their subdomains, of labels that a node may set on itself.
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Labels in other Kubernetes domains that a node may set on itself.
const OWN_LABELS: [&str; 10] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
/// Status fields of a PersistentVolumeClaim that a node may write.
const OF_CLAIM: [&str; 4] = [
    "capacity",
    "conditions",
    "allocatedResources",
    "allocatedResourceStatuses",
];

/// Checks a write by a node.
///
/// # Errors
/// 403.
pub(super) fn restrict(
    core: &Core,
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let Some(node) = attributes.sender().and_then(node_of) else {
        return Ok(());
    };
    let resource = attributes.resource;
    // The name in the URL, or that of the new object.
    let name = match attributes.name {
        "" => meta::name(object),
        name => name,
    };
    let permit = |holds: bool, reason: &str| {
        if holds {
            Ok(())
        } else {
            Err(reason.to_owned())
        }
    };
    let result = match (&*resource.group, &*resource.plural) {
        ("", "pods") => pod(core, attributes, node, object, old),
        ("", "nodes") => node_itself(attributes, node, name, object, old),
        ("", "persistentvolumeclaims") => claim(attributes, node, object, old),
        ("coordination.k8s.io", "leases") if attributes.namespace != LEASES => Err(format!(
            "can only access leases in the {LEASES:?} system namespace"
        )),
        ("coordination.k8s.io", "leases") => permit(
            name == node,
            "can only access node lease with the same name as the requesting node",
        ),
        ("storage.k8s.io", "csinodes") => permit(
            name == node,
            "can only access CSINode with the same name as the requesting node",
        ),
        ("resource.k8s.io", "resourceslices") => {
            let of = |slice: &Value| meta::text(slice, &["spec", "nodeName"]) == node;
            let own = object.is_null() || of(object);
            permit(
                own && old.is_none_or(of),
                "can only access ResourceSlice with the same NodeName as the requesting node",
            )
        }
        _ => Ok(()),
    };
    result.map_err(|reason| ApiError::forbidden(&resource.group, &resource.plural, name, &reason))
}

/// Restricts the writes of a node to pods and statuses of its own pods.
fn pod(
    core: &Core,
    attributes: &AdmissionAttributes<'_>,
    node: &str,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), String> {
    let on_node =
        |pod: Option<&Value>| pod.is_some_and(|pod| meta::text(pod, &["spec", "nodeName"]) == node);
    match (attributes.subresource, attributes.operation) {
        ("", Operation::Create) => Err(format!(
            "node {node:?} can only create mirror pods, which this server does not take"
        )),
        ("", Operation::Delete) if on_node(old) => Ok(()),
        ("", Operation::Delete) => Err(format!(
            "node {node:?} can only delete pods with spec.nodeName set to itself"
        )),
        ("", Operation::Update) => Err(format!(
            "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
        )),
        ("status", _) if !on_node(old) => Err(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        )),
        ("status", _) => {
            let unchanged = |path: &[&str]| same(old, Some(object), path);
            if !unchanged(&["metadata", "labels"]) {
                return Err(format!(
                    "node {node:?} cannot update labels through pod status"
                ));
            }
            if !unchanged(&["status", "resourceClaimStatuses"]) {
                return Err(format!(
                    "node {node:?} cannot update resource claim statuses"
                ));
            }
            Ok(())
        }
        ("eviction", _) => {
            let key = Key::new(attributes.namespace, attributes.name);
            let entry = core.store().get(&TableId::new("", "pods"), &key);
            // If the pod does not exist, the eviction itself fails.
            match entry.map(|entry| entry.value()) {
                Some(pod) if !on_node(Some(&pod)) => Err(format!(
                    "node {node} can only evict pods with spec.nodeName set to itself"
                )),
                _ => Ok(()),
            }
        }
        (other, _) => Err(format!(
            "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
        )),
    }
}

/// Restricts the writes of a node to its own Node object.
fn node_itself(
    attributes: &AdmissionAttributes<'_>,
    node: &str,
    name: &str,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), String> {
    if name != node {
        return Err(format!(
            "node {node:?} is not allowed to modify node {name:?}"
        ));
    }
    let labels = |message: String| match foreign_labels(object, old) {
        labels if labels.is_empty() => Ok(()),
        labels => Err(format!("{message}: {labels}")),
    };
    match attributes.operation {
        Operation::Delete => Ok(()),
        Operation::Create => labels(format!(
            "node {node:?} is not allowed to set the following labels"
        )),
        Operation::Update => {
            for (what, path) in [
                ("taints", ["spec", "taints"]),
                // A reference to an owner that does not exist would have the node garbage collected.
                ("ownerReferences", ["metadata", "ownerReferences"]),
            ] {
                if !same(old, Some(object), &path) {
                    return Err(format!("node {node:?} is not allowed to modify {what}"));
                }
            }
            labels("is not allowed to modify labels".to_owned())
        }
    }
}

fn claim(
    attributes: &AdmissionAttributes<'_>,
    node: &str,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), String> {
    if (attributes.subresource, attributes.operation) != ("status", Operation::Update) {
        return Err("may only update PVC status".to_owned());
    }
    let tail = |claim: &Value| {
        let mut claim = claim.clone();
        if let Some(status) = claim.get_mut("status").and_then(Value::as_object_mut) {
            status.retain(|field, value| !OF_CLAIM.contains(&&**field) && !value.is_null());
        }
        let metadata = meta::section(&mut claim, "metadata");
        metadata.retain(|field, _| field != "resourceVersion" && field != "managedFields");
        claim
    };
    if old.map(tail) != Some(tail(object)) {
        return Err(format!(
            "node {node:?} is not allowed to update fields other than status.capacity and \
             status.conditions"
        ));
    }
    Ok(())
}

/// Returns true if the value at `path` is unchanged; missing and empty are equal.
fn same(old: Option<&Value>, new: Option<&Value>, path: &[&str]) -> bool {
    let at = |object: Option<&'_ Value>| {
        let value = object.and_then(|object| meta::at(object, path)).cloned();
        value.filter(|value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        })
    };
    at(old) == at(new)
}

/// Returns the changed labels that a node may not set or remove on itself.
fn foreign_labels(object: &Value, old: Option<&Value>) -> String {
    let labels = |object: &Value| {
        let labels = meta::at(object, &["metadata", "labels"]).and_then(Value::as_object);
        labels.cloned().unwrap_or_default()
    };
    let (new, old) = (labels(object), old.map(labels).unwrap_or_default());
    let keys: BTreeSet<&String> = new.keys().chain(old.keys()).collect();
    let foreign = keys
        .into_iter()
        .filter(|key| new.get(*key) != old.get(*key));
    let foreign: Vec<&str> = foreign
        .map(String::as_str)
        .filter(|key| is_foreign(key))
        .collect();
    foreign.join(", ")
}

fn is_foreign(label: &str) -> bool {
    let Some((domain, _)) = label.split_once('/') else {
        return false;
    };
    let below = |of: &str| {
        domain
            .strip_suffix(of)
            .is_some_and(|tail| tail.is_empty() || tail.ends_with('.'))
    };
    if below(RESERVED) {
        return true;
    }
    let own = OWN_LABELS.contains(&label) || OWN_DOMAINS.iter().any(|of| below(of));
    (below("kubernetes.io") || below("k8s.io")) && !own
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows follow the tests of Kubernetes' NodeRestriction.
    #[test]
    fn foreign_labels_of_node_are_refused() {
        for (label, foreign) in [
            ("foo", false),
            ("example.com/foo", false),
            ("mykubernetes.io/foo", false),
            ("kubernetes.io/hostname", false),
            ("topology.kubernetes.io/zone", false),
            ("node.kubernetes.io/instance-type", false),
            ("node.kubernetes.io/foo", false),
            ("foo.node.kubernetes.io/foo", false),
            ("kubelet.kubernetes.io/foo", false),
            ("foo.kubelet.kubernetes.io/foo", false),
            ("node-restriction.kubernetes.io/foo", true),
            ("foo.node-restriction.kubernetes.io/foo", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("kubernetes.io/foo", true),
            ("other.kubernetes.io/foo", true),
            ("k8s.io/foo", true),
            ("other.k8s.io/foo", true),
        ] {
            assert_eq!(is_foreign(label), foreign, "{label}");
        }
    }
}
