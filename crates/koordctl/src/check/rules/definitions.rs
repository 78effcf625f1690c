//! Checks of custom resource definitions and of the components' permissions.

use super::read;
use crate::check::outcome::{Findings, Outcome, join_names};
use crate::check::snapshot::Snapshot;
use crate::fetch::{Fetched, elements, has_condition, name, text};
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) fn present(snapshot: &Snapshot) -> Outcome {
    let served = read!(snapshot.definitions);
    let mut findings = Findings::default();
    let (mut missing, mut upset) = (Vec::new(), Vec::new());
    let own = koord_api::crd_values();
    for definition in &own {
        match served.iter().find(|it| name(it) == name(definition)) {
            None => missing.push(name(definition)),
            Some(found) if !has_condition(found, "Established") => upset.push(name(found)),
            Some(found) => {
                for version in elements(definition, "/spec/versions") {
                    let version_name = text(version, "/name");
                    let versions = elements(found, "/spec/versions").iter();
                    let mut versions = versions.filter(|it| text(it, "/name") == version_name);
                    if !versions.any(|it| it["served"] == true) {
                        findings.warn(format!("{} does not serve {version_name}", name(found)));
                    }
                }
            }
        }
    }
    let (optional, needed): (Vec<&str>, Vec<&str>) = missing
        .into_iter()
        .partition(|it| koord_api::OWN_CRDS.contains(it));
    if !needed.is_empty() {
        findings.fail(format!("missing: {}", join_names(&needed)));
    }
    if !optional.is_empty() {
        findings.warn(format!(
            "missing, usage history is lost at a restart: {}",
            join_names(&optional)
        ));
    }
    if !upset.is_empty() {
        findings.fail(format!("not established: {}", join_names(&upset)));
    }
    findings.finish(format!("{} definitions", own.len()))
}

pub(super) fn pruned(snapshot: &Snapshot) -> Outcome {
    let served = read!(snapshot.definitions);
    let mut findings = Findings::default();
    let mut compared = 0;
    for definition in &koord_api::crd_values() {
        let Some(found) = served.iter().find(|it| name(it) == name(definition)) else {
            continue;
        };
        compared += 1;
        for version in elements(definition, "/spec/versions") {
            let versions = elements(found, "/spec/versions").iter();
            let mut same = versions.filter(|it| it["name"] == version["name"]);
            let Some(installed) = same.next() else {
                continue;
            };
            let mut lost = Vec::new();
            let schema = |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned();
            if let (Some(own), Some(installed)) = (schema(version), schema(installed)) {
                missing_fields(&own, &installed, "", &mut lost);
            }
            if !lost.is_empty() {
                findings.warn(format!(
                    "{} {}: {}",
                    name(definition),
                    text(version, "/name"),
                    join_names(&lost)
                ));
            }
        }
    }
    match compared {
        0 => Outcome::skipped("none of koord's definitions is installed"),
        compared => findings.finish(format!("{compared} definitions have all fields")),
    }
}

/// Adds the paths of the fields of schema `own` that an API server with schema `installed` prunes. Fields below
/// a pruned one are left out.
fn missing_fields(own: &Value, installed: &Value, path: &str, missing: &mut Vec<String>) {
    if installed["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    let properties = own["properties"].as_object();
    for (field, schema) in properties.into_iter().flatten() {
        let below = format!("{path}.{field}");
        match installed
            .pointer("/properties")
            .and_then(|it| it.get(field))
        {
            Some(other) => missing_fields(schema, other, &below, missing),
            None => missing.push(below.trim_start_matches('.').to_owned()),
        }
    }
    for (keyword, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if own[keyword].is_object() && installed[keyword].is_object() {
            let below = format!("{path}{suffix}");
            missing_fields(&own[keyword], &installed[keyword], &below, missing);
        }
    }
}

pub(super) fn stored(snapshot: &Snapshot) -> Outcome {
    let served = read!(snapshot.definitions);
    let mut findings = Findings::default();
    let mut count = 0;
    let own = koord_api::crd_values();
    for found in served
        .iter()
        .filter(|it| own.iter().any(|own| name(own) == name(it)))
    {
        count += 1;
        for stored in elements(found, "/status/storedVersions") {
            let mut versions = elements(found, "/spec/versions").iter();
            if !versions.any(|it| it["name"] == *stored && it["served"] == true) {
                findings.fail(format!(
                    "{}: stored version {stored} is not served",
                    name(found)
                ));
            }
        }
    }
    match count {
        0 => Outcome::skipped("none of koord's definitions is installed"),
        count => findings.finish(format!("{count} definitions")),
    }
}

pub(super) fn access(snapshot: &Snapshot) -> Outcome {
    if snapshot.access.is_empty() {
        return Outcome::skipped("no service account of a component exists");
    }
    let mut findings = Findings::default();
    let mut refused: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut granted = 0;
    for (description, answer) in &snapshot.access {
        match answer {
            Fetched::Read(true) => granted += 1,
            Fetched::Read(false) => {
                let (account, permission) = description.split_once(": ").unwrap_or_default();
                refused.entry(account).or_default().push(permission);
            }
            unknown => {
                let reason = unknown.read().err().unwrap_or_default();
                return Outcome::skipped(reason);
            }
        }
    }
    for (account, permissions) in refused {
        let shown = permissions.join(", ");
        findings.fail(format!("{account} may not: {shown}"));
    }
    findings.finish(format!("{granted} permissions granted"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pruned_field_is_named_once_and_with_its_path() {
        let leaf = json!({"type": "string"});
        let own = json!({"properties": {"a": {"properties": {"b": leaf, "c": {"properties": {"d": leaf}}}},
            "l": {"items": {"properties": {"x": leaf}}}}});
        let installed = json!({"properties": {"a": {"properties": {"b": leaf}}, "l": {"items": {"properties": {}}}}});
        let mut missing = Vec::new();
        missing_fields(&own, &installed, "", &mut missing);
        assert_eq!(missing, ["a.c", "l[].x"]);
        missing.clear();
        let open = json!({"x-kubernetes-preserve-unknown-fields": true});
        missing_fields(&own, &open, "", &mut missing);
        assert!(missing.is_empty());
    }
}
