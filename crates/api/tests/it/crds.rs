//! The generated custom resource definitions against a summary of upstream's.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const UPSTREAM: &str = include_str!("upstream-crds.txt");

/// Lines that differ on purpose: (line, `+` ours only or `-` upstream only, reason). None today.
const INTENDED: &[(&str, char, &str)] = &[];

#[test]
fn definitions_equal_upstreams() {
    let ours: BTreeSet<String> = qualified(&summary());
    let upstream: BTreeSet<String> = qualified(UPSTREAM);
    let intended = |line: &str, side: char| {
        INTENDED
            .iter()
            .any(|(known, known_side, _)| *known == line && *known_side == side)
    };
    let mut differences = Vec::new();
    differences.extend(
        ours.difference(&upstream)
            .filter(|l| !intended(l, '+'))
            .map(|line| format!("+ {line}")),
    );
    differences.extend(
        upstream
            .difference(&ours)
            .filter(|l| !intended(l, '-'))
            .map(|line| format!("- {line}")),
    );
    differences.sort_by(|a, b| a[2..].cmp(&b[2..]));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    for (line, side, reason) in INTENDED {
        let present = if *side == '+' { &ours } else { &upstream };
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
        let mut found = Vec::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("crd ") {
                name.clone_into(&mut crd);
            }
            if line.starts_with("column ") {
                found.push(format!("{crd} {line}"));
            }
        }
        found
    };
    assert_eq!(columns(&summary()), columns(UPSTREAM));
}

#[test]
fn there_are_thirteen_and_all_can_be_installed() {
    let crds = koord_api::crds();
    assert_eq!(crds.len(), 13);
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

#[test]
fn the_yaml_stream_reads_back() {
    let stream = koord_api::crds_yaml().unwrap();
    let documents: Vec<Value> = stream
        .split("---\n")
        .filter(|document| !document.is_empty())
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect();
    assert_eq!(documents, koord_api::crd_values());
}

/// The rules of a structural schema that the API server insists on.
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

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn summary() -> String {
    let mut out = Vec::new();
    for crd in koord_api::crd_values() {
        out.push(format!("crd {}", text(&crd, "/metadata/name")));
        let short = crd
            .pointer("/spec/names/shortNames")
            .and_then(Value::as_array)
            .map(|names| {
                names
                    .iter()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(",")
            })
            .unwrap_or_default();
        out.push(format!(
            "names kind={} list={} plural={} singular={} short={short} scope={}",
            text(&crd, "/spec/names/kind"),
            text(&crd, "/spec/names/listKind"),
            text(&crd, "/spec/names/plural"),
            text(&crd, "/spec/names/singular"),
            text(&crd, "/spec/scope"),
        ));
        let annotations = crd
            .pointer("/metadata/annotations")
            .and_then(Value::as_object);
        for (key, value) in annotations.into_iter().flatten() {
            out.push(format!("annotation {key}={}", value.as_str().unwrap()));
        }
        for version in crd["spec"]["versions"].as_array().unwrap() {
            out.push(format!(
                "version {} served={} storage={} status={}",
                text(version, "/name"),
                version["served"],
                version["storage"],
                version.pointer("/subresources/status").is_some(),
            ));
            let columns = version
                .get("additionalPrinterColumns")
                .and_then(Value::as_array);
            for column in columns.into_iter().flatten() {
                let described = if column.get("description").is_some() {
                    " description"
                } else {
                    ""
                };
                out.push(format!(
                    "column {} {} {}{described}",
                    text(column, "/name"),
                    text(column, "/type"),
                    text(column, "/jsonPath"),
                ));
            }
            let root = &version["schema"]["openAPIV3Schema"];
            let required = required_of(root);
            for (name, field) in root["properties"].as_object().unwrap() {
                if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    render(&mut out, name, field, required.contains(name.as_str()));
                }
            }
        }
    }
    out.join("\n")
}

fn required_of(schema: &Value) -> BTreeSet<&str> {
    schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn render(out: &mut Vec<String>, path: &str, schema: &Value, required: bool) {
    let mut attributes = attributes_of(schema);
    if required {
        attributes.push("required".to_owned());
    }
    let (name, nested) = if let Some(items) = schema.get("items") {
        // Items that are standard atomic structs are not marked in the summary.
        let inner = attributes_of(items)
            .into_iter()
            .filter(|a| a != "map-type=atomic");
        attributes.extend(inner.map(|attribute| format!("items.{attribute}")));
        (
            format!("[]{}", type_of(items)),
            Some((format!("{path}[]"), items)),
        )
    } else if let Some(values) = schema.get("additionalProperties") {
        (
            format!("map[string]{}", type_of(values)),
            Some((format!("{path}{{}}"), values)),
        )
    } else {
        (type_of(schema), Some((path.to_owned(), schema)))
    };
    attributes.sort();
    let attributes: String = attributes
        .iter()
        .map(|attribute| format!(" {attribute}"))
        .collect();
    out.push(format!("{path}: {name}{attributes}"));
    if let Some((prefix, schema)) = nested
        && !matches!(type_of(schema).as_str(), "LabelSelector" | "Condition")
    {
        let required = required_of(schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            render(
                out,
                &format!("{prefix}.{name}"),
                field,
                required.contains(name.as_str()),
            );
        }
    }
}

fn type_of(schema: &Value) -> String {
    let bare = without_descriptions(schema);
    if bare == label_selector() {
        return "LabelSelector".to_owned();
    }
    if bare["properties"]["observedGeneration"].is_object() && bare == condition() {
        return "Condition".to_owned();
    }
    let object = schema.as_object().unwrap();
    let preserve = object.contains_key("x-kubernetes-preserve-unknown-fields");
    match (
        object.get("type").and_then(Value::as_str),
        object.get("format").and_then(Value::as_str),
    ) {
        (None, _) if preserve => "any".to_owned(),
        (None, _) if object.contains_key("x-kubernetes-int-or-string") => {
            assert_eq!(
                schema["anyOf"],
                json!([{ "type": "integer" }, { "type": "string" }])
            );
            match schema["pattern"].as_str() {
                Some(koord_api::schema::QUANTITY_PATTERN) => "Quantity".to_owned(),
                Some(other) => format!("int-or-string pattern={other}"),
                None => "int-or-string".to_owned(),
            }
        }
        (None, _) => "untyped".to_owned(),
        (Some(kind), None) if preserve => format!("{kind}(preserve-unknown)"),
        (Some(kind), None) => kind.to_owned(),
        (Some(kind), Some(format)) => format!("{kind}/{format}"),
    }
}

fn attributes_of(schema: &Value) -> Vec<String> {
    let mut attributes = Vec::new();
    for (keyword, value) in schema.as_object().unwrap() {
        let plain = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        let plain = plain.strip_suffix(".0").unwrap_or(&plain);
        match keyword.as_str() {
            "type"
            | "format"
            | "properties"
            | "items"
            | "additionalProperties"
            | "required"
            | "description"
            | "anyOf"
            | "x-kubernetes-int-or-string"
            | "x-kubernetes-preserve-unknown-fields" => {}
            "pattern" if schema.get("x-kubernetes-int-or-string").is_some() => {}
            "x-kubernetes-map-type" if type_of(schema) == "LabelSelector" => {}
            "enum" => {
                let values: Vec<_> = value
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(Value::as_str)
                    .collect();
                attributes.push(format!("enum={}", values.join("|")));
            }
            other => attributes.push(format!(
                "{}={plain}",
                other.trim_start_matches("x-kubernetes-")
            )),
        }
    }
    attributes
}

fn without_descriptions(schema: &Value) -> Value {
    match schema {
        Value::Object(object) => {
            let mut bare = Map::new();
            for (key, value) in object {
                // A description is text; a property of that name is an object.
                if key != "description" || !value.is_string() {
                    bare.insert(key.clone(), without_descriptions(value));
                }
            }
            Value::Object(bare)
        }
        Value::Array(items) => items.iter().map(without_descriptions).collect(),
        other => other.clone(),
    }
}

fn label_selector() -> Value {
    json!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchExpressions": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string" },
                        "operator": { "type": "string" },
                        "values": {
                            "type": "array",
                            "x-kubernetes-list-type": "atomic",
                            "items": { "type": "string" },
                        },
                    },
                },
            },
            "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
        },
    })
}

fn condition() -> Value {
    json!({
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": { "type": "string", "format": "date-time" },
            "message": { "type": "string", "maxLength": 32768 },
            "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
            "reason": {
                "type": "string", "minLength": 1, "maxLength": 1024,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
            "type": {
                "type": "string", "maxLength": 316,
                "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
            },
        },
    })
}
