//! Compares the generated custom resource definitions with a summary of upstream's.

use crate::summary::{self, QUANTITY};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;
use std::collections::BTreeSet;

const UPSTREAM: &str = include_str!("upstream-crds.txt");

/// Lines that differ on purpose: (line, `+` ours only or `-` upstream only, reason). None today.
const INTENDED: &[(&str, char, &str)] = &[];

/// Returns the short form of our definitions of upstream's kinds.
fn ours() -> String {
    let mut crds = koord_api::crd_values();
    crds.retain(|crd| {
        let name = crd["metadata"]["name"].as_str().unwrap();
        !koord_api::OWN_CRDS.contains(&name)
    });
    summary::summary(&crds)
}

#[test]
fn definitions_equal_upstreams() {
    assert_eq!(QUANTITY, koord_api::schema::QUANTITY_PATTERN);
    let own: BTreeSet<String> = qualified(&ours());
    let upstream: BTreeSet<String> = qualified(UPSTREAM);
    let intended = |line: &str, side: char| {
        INTENDED
            .iter()
            .any(|(known, known_side, _)| *known == line && *known_side == side)
    };
    let mut differences = Vec::new();
    differences.extend(
        own.difference(&upstream)
            .filter(|l| !intended(l, '+'))
            .map(|line| format!("+ {line}")),
    );
    differences.extend(
        upstream
            .difference(&own)
            .filter(|l| !intended(l, '-'))
            .map(|line| format!("- {line}")),
    );
    differences.sort_by(|a, b| a[2..].cmp(&b[2..]));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    for (line, side, reason) in INTENDED {
        let present = if *side == '+' { &own } else { &upstream };
        assert!(
            present.contains(*line),
            "intended difference is gone: {line} ({reason})"
        );
    }
}

#[test]
fn columns_keep_upstreams_order() {
    let columns = |text: &str| -> Vec<String> {
        let mut crd = String::new();
        let mut listed = Vec::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("crd ") {
                name.clone_into(&mut crd);
            }
            if line.starts_with("column ") {
                listed.push(format!("{crd} {line}"));
            }
        }
        listed
    };
    assert_eq!(columns(&ours()), columns(UPSTREAM));
}

#[test]
fn there_are_upstreams_thirteen_and_all_can_be_installed() {
    let crds = koord_api::crds();
    assert_eq!(crds.len(), 13 + koord_api::OWN_CRDS.len());
    for own in koord_api::OWN_CRDS {
        assert!(!UPSTREAM.contains(own), "upstream has {own}");
        let has_name = |crd: &&CustomResourceDefinition| crd.metadata.name.as_deref() == Some(own);
        assert_eq!(crds.iter().filter(has_name).count(), 1, "{own}");
    }
    for crd in &crds {
        let name = crd.metadata.name.as_deref().unwrap();
        assert_eq!(
            name,
            format!("{}.{}", crd.spec.names.plural, crd.spec.group)
        );
        assert_eq!(
            crd.spec
                .versions
                .iter()
                .filter(|version| version.storage)
                .count(),
            1,
            "{name}"
        );
        for version in &crd.spec.versions {
            let schema = version
                .schema
                .as_ref()
                .unwrap()
                .open_api_v3_schema
                .as_ref()
                .unwrap();
            structural(&serde_json::to_value(schema).unwrap(), name);
        }
    }
}

/// Checks that each class is in the band of its name, with the value of Koordinator's manifests.
#[test]
fn priority_classes_are_in_their_bands() {
    use koord_api::priority::PriorityClass;
    let classes = koord_api::priority_class_values();
    assert_eq!(classes.len(), PriorityClass::ALL.len());
    for class in classes {
        let name = class["metadata"]["name"].as_str().unwrap();
        let value = i32::try_from(class["value"].as_i64().unwrap()).unwrap();
        assert_eq!(PriorityClass::from_value(value).as_str(), name);
        let installed = [
            ("koord-prod", 9000),
            ("koord-mid", 7000),
            ("koord-batch", 5000),
            ("koord-free", 3000),
        ];
        assert!(installed.contains(&(name, value)), "{name}: {value}");
    }
}

/// Checks the rules of a structural schema that the API server enforces.
fn structural(schema: &Value, path: &str) {
    let object = schema
        .as_object()
        .unwrap_or_else(|| panic!("{path}: not an object"));
    let typed = object.contains_key("type")
        || object.contains_key("x-kubernetes-int-or-string")
        || object.contains_key("x-kubernetes-preserve-unknown-fields");
    assert!(typed, "{path}: no type");
    for keyword in [
        "$ref",
        "oneOf",
        "allOf",
        "definitions",
        "title",
        "const",
        "format_",
    ] {
        assert!(!object.contains_key(keyword), "{path}: {keyword}");
    }
    if object.contains_key("anyOf") {
        assert!(
            object.contains_key("x-kubernetes-int-or-string"),
            "{path}: anyOf"
        );
    }
    for (name, property) in object
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        structural(property, &format!("{path}.{name}"));
    }
    if let Some(items) = object.get("items") {
        structural(items, &format!("{path}[]"));
    }
    if let Some(values) = object.get("additionalProperties") {
        structural(values, &format!("{path}{{}}"));
    }
}

/// Prefixes each line with its definition and version, so that lines can be compared as a set.
fn qualified(summary: &str) -> BTreeSet<String> {
    let (mut crd, mut version) = (String::new(), String::new());
    let mut lines = BTreeSet::new();
    for line in summary
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(name) = line.strip_prefix("crd ") {
            name.clone_into(&mut crd);
            version.clear();
        } else if let Some(rest) = line.strip_prefix("version ") {
            rest.split(' ')
                .next()
                .unwrap_or_default()
                .clone_into(&mut version);
        }
        lines.insert(format!("{crd} {version} {line}"));
    }
    lines
}
