//! `/apis/v1/nodes/:nodeName`: a node and the pods on it, in the form of upstream's node dump. Its field
//! names come from Go structs: some in lower case, some not.

use super::inspection::{amounts, host_ports, without_empty};
use crate::engine::Engine;
use crate::state::{NodeIndex, NodeInfo, PodInfo};
use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_model::resources::{Amounts, CPU, MEMORY};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Returns the dump of the node with this name; null if there is none.
pub(super) fn dump(engine: &Engine, name: &str) -> Value {
    let nodes = engine.cluster().nodes();
    let index = nodes.find(name);
    let Some((index, info)) = index.and_then(|index| Some((index, nodes.info(index)?))) else {
        return Value::Null;
    };
    let mut pods: Vec<&PodInfo> = nodes.booked(index).map(|pod| &**pod).collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let terms_of = |keep: fn(&Affinity) -> bool| -> Vec<Value> {
        let matching = pods.iter().filter(|pod| affinity(pod).is_some_and(keep));
        matching.map(|pod| pod_info(pod)).collect()
    };
    let requested = |id| nodes.requested(index, id);
    let allocatable = |id| nodes.allocatable(index, id);
    let [cpu, memory] = nodes.requested_for_scoring(index);
    let any = |affinity: &Affinity| {
        affinity.pod_affinity.is_some() || affinity.pod_anti_affinity.is_some()
    };
    let table = engine.cluster().resources();
    let for_scoring = [(CPU, cpu), (MEMORY, memory)]
        .into_iter()
        .collect::<Amounts>();
    without_empty(json!({
        "node": *info.object,
        "pods": pods.iter().map(|pod| pod_info(pod)).collect::<Vec<_>>(),
        "podsWithAffinity": terms_of(any),
        "podsWithRequiredAntiAffinity": terms_of(|affinity| !required_anti(affinity).is_empty()),
        "usedPorts": host_ports(pods.iter().copied()),
        "requested": amounts(table, requested),
        "nonZeroRequested": amounts(table, |id| for_scoring.get(id)),
        "remaining": amounts(table, |id| allocatable(id) - requested(id)),
        "allocatable": amounts(table, allocatable),
        "imageStates": images(engine, index, info),
        "pvcRefCounts": claims(&pods),
        "generation": nodes.version(index),
    }))
}

fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    pod.spec()?.affinity.as_ref()
}

fn required_anti(affinity: &Affinity) -> &[PodAffinityTerm] {
    let anti = affinity.pod_anti_affinity.as_ref();
    let terms = anti.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_deref()
    });
    terms.unwrap_or_default()
}

/// Returns upstream's dump of a pod on a node.
fn pod_info(pod: &PodInfo) -> Value {
    let list = |terms: Vec<Value>| {
        if terms.is_empty() {
            Value::Null
        } else {
            terms.into()
        }
    };
    let required = |terms: Option<&Vec<PodAffinityTerm>>| {
        list(
            terms
                .into_iter()
                .flatten()
                .map(|t| term(pod, t).into())
                .collect(),
        )
    };
    let affinity = affinity(pod);
    let pod_affinity = affinity.and_then(|a| a.pod_affinity.as_ref());
    let apart = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
    let weighted = |weight: i32, t: &PodAffinityTerm| {
        let mut out = term(pod, t);
        out.insert("Weight".to_owned(), json!(weight));
        Value::Object(out)
    };
    let near_soft = pod_affinity.and_then(|a| {
        a.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let apart_soft = apart.and_then(|a| {
        a.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let soft = |terms: Option<&Vec<WeightedPodAffinityTerm>>| {
        let terms = terms.into_iter().flatten();
        list(
            terms
                .map(|t| weighted(t.weight, &t.pod_affinity_term))
                .collect(),
        )
    };
    json!({
        "Pod": pod.named_object(),
        "RequiredAffinityTerms": required(
            pod_affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
        ),
        "RequiredAntiAffinityTerms": required(
            apart.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
        ),
        "PreferredAffinityTerms": soft(near_soft),
        "PreferredAntiAffinityTerms": soft(apart_soft),
    })
}

fn term(pod: &PodInfo, term: &PodAffinityTerm) -> Map<String, Value> {
    let listed = term.namespaces.iter().flatten();
    let mut namespaces: Map<String, Value> = listed.map(|name| (name.clone(), json!({}))).collect();
    if namespaces.is_empty() && term.namespace_selector.is_none() {
        namespaces.insert(pod.namespace.to_string(), json!({}));
    }
    let mut out = Map::new();
    out.insert("Namespaces".to_owned(), namespaces.into());
    out.insert(
        "Selector".to_owned(),
        selector(term.label_selector.as_ref()),
    );
    out.insert("TopologyKey".to_owned(), json!(term.topology_key));
    let of_namespaces = selector(term.namespace_selector.as_ref());
    out.insert("NamespaceSelector".to_owned(), of_namespaces);
    out
}

/// Returns a label selector as JSON. As a Go scheduler prints them, a selector that matches nothing is an
/// object and one that matches everything an empty list; requirements, which Go prints as empty objects, are
/// spelled out.
fn selector(selector: Option<&LabelSelector>) -> Value {
    let Some(selector) = selector else {
        return json!({});
    };
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| json!({"key": key, "operator": "=", "values": [value]}));
    let expressions = selector.match_expressions.iter().flatten();
    let mut all: Vec<Value> = labels.chain(expressions.map(|e| json!(e))).collect();
    all.sort_by(|a, b| a["key"].as_str().cmp(&b["key"].as_str()));
    all.into()
}

/// Returns how many of `pods` use each claim (`namespace/name`).
fn claims(pods: &[&PodInfo]) -> BTreeMap<String, usize> {
    let mut out = BTreeMap::new();
    for pod in pods {
        for claim in pod.object.claims() {
            let key = format!("{}/{claim}", pod.namespace);
            *out.entry(key).or_default() += 1;
        }
    }
    out
}

fn names(info: &NodeInfo) -> impl Iterator<Item = (&str, i64)> {
    let status = info.object.status.as_ref();
    let images = status
        .and_then(|status| status.images.as_deref())
        .unwrap_or_default();
    images.iter().flat_map(|image| {
        let size = image.size_bytes.unwrap_or(0);
        image
            .names
            .iter()
            .flatten()
            .map(move |name| (&**name, size))
    })
}

/// Returns the images on this node, with the number of nodes that have each.
fn images(engine: &Engine, index: NodeIndex, info: &NodeInfo) -> Value {
    let mut images: FxHashMap<&str, (i64, usize)> =
        names(info).map(|(name, size)| (name, (size, 1))).collect();
    if images.is_empty() {
        return json!({});
    }
    let nodes = engine.cluster().nodes();
    let other_nodes = nodes.indices().filter(|other| *other != index);
    for other in other_nodes.filter_map(|other| nodes.info(other)) {
        for (name, _) in names(other) {
            if let Some((_, nodes)) = images.get_mut(name) {
                *nodes += 1;
            }
        }
    }
    let images = images.into_iter();
    images
        .map(|(name, (size, nodes))| {
            (
                name.to_owned(),
                json!({"Size": size, "NumNodes": nodes, "Nodes": null}),
            )
        })
        .collect()
}
