//! Hints about a pending pod from API objects alone: labels that no node has, a `schedulerName` that no
//! scheduler serves.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, Pod};
use koord_api::{Quantity, quantity, requests, resources};
use std::collections::BTreeSet;

/// Maximum number of label values that are listed.
const SHOWN: usize = 5;
/// Resources that koord-manager computes for nodes.
const RECLAIMED: [&str; 4] = [
    resources::BATCH_CPU,
    resources::BATCH_MEMORY,
    resources::MID_CPU,
    resources::MID_MEMORY,
];

/// Returns what keeps `pod` from all of `nodes`. `schedulers` are the served scheduler names; `None` if they
/// are unknown.
pub(super) fn hints(pod: &Pod, nodes: &[Node], schedulers: Option<&[String]>) -> Vec<String> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    if spec.node_name.is_some() {
        return Vec::new();
    }
    let mut hints = Vec::new();
    let scheduler = spec
        .scheduler_name
        .as_deref()
        .unwrap_or("default-scheduler");
    if let Some(served) = schedulers
        && !served.iter().any(|name| name == scheduler)
    {
        hints.push(format!(
            "no scheduler serves schedulerName {scheduler:?}; served are {}",
            served.join(", ")
        ));
    }
    if let Some(gates) = spec
        .scheduling_gates
        .as_ref()
        .filter(|gates| !gates.is_empty())
    {
        let names: Vec<&str> = gates.iter().map(|gate| gate.name.as_str()).collect();
        hints.push(format!(
            "held back by scheduling gates: {}",
            names.join(", ")
        ));
    }
    for (key, value) in spec.node_selector.iter().flatten() {
        if !nodes.iter().any(|node| label(node, key) == Some(value)) {
            hints.push(format!(
                "no node has label {key}={value}, which nodeSelector requires{}",
                existing_values(nodes, key)
            ));
        }
    }
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    // Terms are alternatives: one that no node satisfies only matters if it is the only one.
    let terms = required.map(|selector| &selector.node_selector_terms[..]);
    if let [term] = terms.unwrap_or_default() {
        for requirement in term.match_expressions.iter().flatten() {
            if !nodes
                .iter()
                .any(|node| meets_requirement(node, requirement))
            {
                hints.push(format!(
                    "no node has label {}, which nodeAffinity requires{}",
                    shown(requirement),
                    existing_values(nodes, &requirement.key)
                ));
            }
        }
    }
    hints
}

/// Returns the reclaimed resources that a pending pod requests and no node has enough of, each with the node to
/// explain. `nearest` are nodes with what they lack, as the scheduler reports them; without any, the nodes'
/// allocatable amounts decide.
pub(super) fn reclaimed_shortages(
    pod: &Pod,
    nodes: &[Node],
    nearest: &[(&str, &str)],
) -> Vec<(&'static str, String)> {
    let Some(spec) = pod.spec.as_ref().filter(|spec| spec.node_name.is_none()) else {
        return Vec::new();
    };
    let requests = requests::pod_requests(spec).unwrap_or_default();
    let requested = RECLAIMED.into_iter().filter_map(|resource| {
        let needed = requests.get(resource)?;
        (!needed.is_zero()).then_some((resource, *needed))
    });
    requested
        .filter_map(|(resource, needed)| {
            if let Some((node, _)) = nearest.iter().find(|(_, lacks)| lacks.contains(resource)) {
                return Some((resource, (*node).to_owned()));
            }
            let best = nodes
                .iter()
                .max_by_key(|node| allocatable(node, resource))?;
            let is_short = nearest.is_empty() && allocatable(best, resource) < needed;
            is_short.then(|| (resource, best.metadata.name.clone().unwrap_or_default()))
        })
        .collect()
}

/// Returns the amount of a resource that a node offers.
fn allocatable(node: &Node, resource: &str) -> Quantity {
    let amounts = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let amount = amounts.and_then(|amounts| quantity::parse(amounts.get(resource)?).ok());
    amount.unwrap_or_default()
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a String> {
    node.metadata.labels.as_ref()?.get(key)
}

/// Returns true if the labels of `node` meet `requirement`, or if its operator is not checked here.
fn meets_requirement(node: &Node, requirement: &NodeSelectorRequirement) -> bool {
    let value = label(node, &requirement.key);
    let listed =
        || value.is_some_and(|value| requirement.values.iter().flatten().any(|v| v == value));
    match requirement.operator.as_str() {
        "In" => listed(),
        "Exists" => value.is_some(),
        "NotIn" => !listed(),
        "DoesNotExist" => value.is_none(),
        // Other operators are left to the scheduler.
        _ => true,
    }
}

fn shown(requirement: &NodeSelectorRequirement) -> String {
    let values: Vec<&str> = requirement
        .values
        .iter()
        .flatten()
        .map(String::as_str)
        .collect();
    match (requirement.operator.as_str(), &values[..]) {
        ("In", [one]) => format!("{}={one}", requirement.key),
        (operator, []) => format!("{} ({operator})", requirement.key),
        (operator, _) => format!("{} ({operator} {})", requirement.key, values.join(", ")),
    }
}

/// Returns the values of a label that nodes have.
fn existing_values(nodes: &[Node], key: &str) -> String {
    let values: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| label(node, key))
        .map(String::as_str)
        .collect();
    if values.is_empty() {
        return String::new();
    }
    let ellipsis = if values.len() > SHOWN { ", ..." } else { "" };
    let shown: Vec<&str> = values.into_iter().take(SHOWN).collect();
    format!(" (there are {}{ellipsis})", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn hints_of(spec: Value, schedulers: Option<&[&str]>) -> Vec<String> {
        let nodes = ["a", "b"].map(|zone| {
            serde_json::from_value(json!({"metadata": {"labels": {"zone": zone}}})).unwrap()
        });
        let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let schedulers: Option<Vec<String>> =
            schedulers.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        hints(&pod, &nodes, schedulers.as_deref())
    }

    #[test]
    fn missing_label_lists_existing_values() {
        let selects =
            |selector: Value| hints_of(json!({"containers": [], "nodeSelector": selector}), None);
        assert_eq!(selects(json!({"zone": "a"})), Vec::<String>::new());
        assert_eq!(
            selects(json!({"zone": "c", "disk": "ssd"})),
            [
                "no node has label disk=ssd, which nodeSelector requires",
                "no node has label zone=c, which nodeSelector requires (there are a, b)",
            ]
        );
        let wants = |requirement: Value| {
            hints_of(
                json!({"containers": [], "affinity": {"nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchExpressions": [requirement]}]}}}}),
                None,
            )
        };
        let none = Vec::<String>::new();
        assert_eq!(
            wants(json!({"key": "zone", "operator": "In", "values": ["b"]})),
            none
        );
        assert_eq!(
            wants(json!({"key": "zone", "operator": "NotIn", "values": ["b"]})),
            none
        );
        assert_eq!(
            wants(json!({"key": "zone", "operator": "Gt", "values": ["1"]})),
            none
        );
        assert_eq!(
            wants(json!({"key": "gpu", "operator": "Exists"})),
            ["no node has label gpu (Exists), which nodeAffinity requires"]
        );
        assert_eq!(
            wants(json!({"key": "zone", "operator": "In", "values": ["c", "d"]})),
            ["no node has label zone (In c, d), which nodeAffinity requires (there are a, b)"]
        );
    }

    #[test]
    fn shortage_of_a_reclaimed_resource_names_a_node() {
        let node = |name: &str, amount: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"name": name},
                "status": {"allocatable": {"kubernetes.io/batch-cpu": amount}}}))
            .unwrap()
        };
        let nodes = [node("a", "0"), node("b", "2k")];
        let pod = |cpu: &str, bound: Option<&str>| -> Pod {
            serde_json::from_value(json!({"spec": {"nodeName": bound, "containers": [
                {"name": "c", "resources": {"requests": {"kubernetes.io/batch-cpu": cpu}}}]}}))
            .unwrap()
        };
        let lacks = "kubernetes.io/batch-cpu: needs 4k, free 0";
        let none: &[&str] = &[];
        for (cpu, bound, nearest, expected) in [
            ("4k", None, &[][..], &["b"][..]),
            ("1k", None, &[], none),
            ("4k", None, &[("a", lacks)], &["a"]),
            ("4k", None, &[("a", "cpu: needs 4, free 1")], none),
            ("4k", Some("b"), &[], none),
            ("0", None, &[], none),
        ] {
            let found = reclaimed_shortages(&pod(cpu, bound), &nodes, nearest);
            let found: Vec<&str> = found.iter().map(|(_, node)| node.as_str()).collect();
            assert_eq!(found, expected, "{cpu} {nearest:?}");
        }
        assert!(reclaimed_shortages(&pod("4k", None), &[], &[]).is_empty());
    }

    #[test]
    fn unserved_scheduler_name_is_reported() {
        let spec = json!({"containers": [], "schedulerName": "kord-scheduler"});
        assert_eq!(hints_of(spec.clone(), None), Vec::<String>::new());
        assert_eq!(
            hints_of(
                spec.clone(),
                Some(&["koord-scheduler", "default-scheduler"])
            ),
            [
                "no scheduler serves schedulerName \"kord-scheduler\"; served are koord-scheduler, \
                 default-scheduler"
            ]
        );
        assert_eq!(
            hints_of(spec, Some(&["kord-scheduler"])),
            Vec::<String>::new()
        );
        let bound = json!({"containers": [], "schedulerName": "x", "nodeName": "n"});
        assert_eq!(hints_of(bound, Some(&[])), Vec::<String>::new());
    }
}
