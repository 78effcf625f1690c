//! Replacement of resource names in pods (annotation `pod.koordinator.sh/replace-resources`).
//!
//! Source: Koordinator `pkg/util/transformer`.

use crate::resources::canonical;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use koord_api::annotations;
use koord_api::extension::parse_replace_resources;
use std::collections::BTreeMap;

/// Renames and removes resources of containers and overhead as the annotation specifies, deprecated names
/// first. Without the annotation nothing changes. CPU under another name counts in milli-cores.
pub fn replace_resources(pod: &mut Pod) {
    let annotations = pod.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(annotations::POD_REPLACE_RESOURCES)) else {
        return;
    };
    let rules = parse_replace_resources(text);
    let Some(spec) = &mut pod.spec else { return };
    let containers = spec.containers.iter_mut();
    for container in containers.chain(spec.init_containers.iter_mut().flatten()) {
        if let Some(resources) = &mut container.resources {
            for list in [&mut resources.requests, &mut resources.limits] {
                replace(list.as_mut(), &rules);
            }
        }
    }
    replace(spec.overhead.as_mut(), &rules);
}

/// Removes and renames resources; a name that already exists is not overwritten.
fn replace(list: Option<&mut BTreeMap<String, Quantity>>, rules: &[(&str, Option<&str>)]) {
    let Some(list) = list else { return };
    let renamed: Vec<String> = list
        .keys()
        .filter(|name| canonical(name) != **name)
        .cloned()
        .collect();
    for old in renamed {
        move_to(list, &old, canonical(&old));
    }
    for (from, _) in rules.iter().filter(|(_, to)| to.is_none()) {
        list.remove(*from);
    }
    for (from, to) in rules {
        if let Some(to) = to {
            move_to(list, from, to);
        }
    }
}

fn move_to(list: &mut BTreeMap<String, Quantity>, from: &str, to: &str) {
    if list.contains_key(to) {
        return;
    }
    let Some(mut quantity) = list.remove(from) else {
        return;
    };
    if from == "cpu"
        && let Ok(parsed) = koord_api::quantity::parse(&quantity)
    {
        // Other resources have no fractions, so CPU counts in milli-cores.
        quantity = Quantity(parsed.milli_value().to_string());
    }
    list.insert(to.to_owned(), quantity);
}
