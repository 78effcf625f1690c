//! Custom resource definitions: their validation, and the resources they define.

mod deprecation;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::builtin::{ALL_VERBS, APIEXTENSIONS, OBJECT_SUB, TERMINATING_VERBS};
use super::jsonpath::Path;
use super::resource::{Column, CustomVersion, GroupVersionKind, Resource, ScalePaths, Subresource};
use super::schema::{self, Schema};
use super::status::FieldError;
use super::{meta, names};
use crate::TableId;

/// Applies the API defaults of a definition.
pub(super) fn default_definition(definition: &mut Value) {
    let kind = meta::str_at(definition, &["spec", "names", "kind"]).to_owned();
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(Value::Object(names)) = spec.get_mut("names")
        && !kind.is_empty()
    {
        names
            .entry("singular")
            .or_insert_with(|| kind.to_lowercase().into());
        names
            .entry("listKind")
            .or_insert_with(|| format!("{kind}List").into());
    }
    let conversion = spec.entry("conversion").or_insert_with(|| json!({}));
    if let Value::Object(map) = conversion {
        map.entry("strategy").or_insert_with(|| "None".into());
    }
}

fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Returns all validation errors of a definition.
#[must_use]
pub fn validate_definition(definition: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(spec) = definition.get("spec").filter(|s| s.is_object()) else {
        return vec![FieldError::required("spec", "")];
    };
    check_names(definition, spec, &mut errors);
    check_approval(definition, spec, &mut errors);
    if spec.get("preserveUnknownFields").and_then(Value::as_bool) == Some(true) {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true,
            "must be false in order to use defaults in the schema",
        ));
    }
    match meta::str_at(spec, &["conversion", "strategy"]) {
        "" | "None" | "Webhook" => {}
        other => errors.push(FieldError::not_supported(
            "spec.conversion.strategy",
            other,
            &["None", "Webhook"],
        )),
    }
    check_versions(spec, &mut errors);
    errors
}

/// Checks the group and the names of a definition.
fn check_names(definition: &Value, spec: &Value, errors: &mut Vec<FieldError>) {
    let group = string(spec, "group");
    let no_names = json!({});
    let object = spec.get("names").unwrap_or(&no_names);
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if let Some(detail) = names::dns1123_subdomain(group) {
        errors.push(FieldError::invalid("spec.group", group, detail));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid(
            "spec.group",
            group,
            "should be a domain with at least one dot",
        ));
    }
    match string(spec, "scope") {
        "Namespaced" | "Cluster" => {}
        "" => errors.push(FieldError::required("spec.scope", "")),
        other => errors.push(FieldError::not_supported(
            "spec.scope",
            other,
            &["Cluster", "Namespaced"],
        )),
    }
    for key in ["plural", "singular", "kind", "listKind"] {
        let path = format!("spec.names.{key}");
        let text = string(object, key);
        if text.is_empty() {
            errors.push(FieldError::required(path, ""));
        } else if let Some(detail) = names::dns1035_label(&text.to_lowercase()) {
            errors.push(FieldError::invalid(path, text, detail));
        }
    }
    for key in ["shortNames", "categories"] {
        for (i, v) in list(object, key).iter().enumerate() {
            if let Some(detail) = v.as_str().and_then(names::dns1035_label) {
                errors.push(FieldError::invalid(
                    format!("spec.names.{key}[{i}]"),
                    v.clone(),
                    detail,
                ));
            }
        }
    }
    let kind = string(object, "kind");
    if !kind.is_empty() && string(object, "listKind") == kind {
        errors.push(FieldError::invalid(
            "spec.names.listKind",
            kind,
            "kind and listKind may not be the same",
        ));
    }
    let expected = format!("{}.{group}", string(object, "plural"));
    if meta::name(definition) != expected {
        errors.push(FieldError::invalid(
            "metadata.name",
            meta::name(definition),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
}

/// Checks that groups of the Kubernetes project have the annotation about the approval of the API.
fn check_approval(definition: &Value, spec: &Value, errors: &mut Vec<FieldError>) {
    let group = string(spec, "group");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|d| group == *d || group.strip_suffix(d).is_some_and(|g| g.ends_with('.')));
    let approved = definition
        .get("metadata")
        .and_then(|m| m.get("annotations"))
        .and_then(|a| a.get("api-approved.kubernetes.io"))
        .and_then(Value::as_str)
        .unwrap_or("");
    if protected && approved.is_empty() {
        errors.push(FieldError::required(
            "metadata.annotations[api-approved.kubernetes.io]",
            "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111",
        ));
    }
}

/// Checks the versions of a definition: one is stored, names are unique.
fn check_versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = list(spec, "versions");
    if versions.is_empty() {
        errors.push(FieldError::required(
            "spec.versions",
            "must have at least one version",
        ));
        return;
    }
    let mut observed = BTreeSet::new();
    let mut storage = 0;
    for (i, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{i}]");
        let name = string(version, "name");
        if let Some(detail) = names::dns1035_label(name) {
            errors.push(FieldError::invalid(format!("{path}.name"), name, detail));
        }
        if !observed.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        if version.get("storage").and_then(Value::as_bool) == Some(true) {
            storage += 1;
        }
        deprecation::check(version, &path, errors);
        if let Err(e) = compile(version, &path) {
            errors.extend(e);
        }
    }
    if storage != 1 {
        errors.push(FieldError::invalid(
            "spec.versions",
            Value::from(
                versions
                    .iter()
                    .map(|v| string(v, "name").into())
                    .collect::<Vec<Value>>(),
            ),
            "must have exactly one version marked as storage version",
        ));
    }
}

/// A compiled entry of `spec.versions`.
struct Compiled {
    schema: Schema,
    custom: CustomVersion,
    scale: Option<ScalePaths>,
}

/// Compiles one entry of `spec.versions`.
fn compile(version: &Value, path: &str) -> Result<Compiled, Vec<FieldError>> {
    let schema_path = format!("{path}.schema.openAPIV3Schema");
    let Some(raw) = meta::at(version, &["schema", "openAPIV3Schema"]).filter(|v| v.is_object())
    else {
        return Err(vec![FieldError::required(
            schema_path,
            "schemas are required",
        )]);
    };
    let schema = schema::parse(raw, &schema_path)?;
    let mut errors = Vec::new();
    check_defaults(&schema, &schema_path, &mut errors);
    let mut columns = Vec::new();
    for (i, c) in list(version, "additionalPrinterColumns").iter().enumerate() {
        let at = format!("{path}.additionalPrinterColumns[{i}]");
        let kind = string(c, "type");
        const TYPES: [&str; 5] = ["integer", "number", "string", "boolean", "date"];
        if !TYPES.contains(&kind) {
            errors.push(FieldError::not_supported(
                format!("{at}.type"),
                kind,
                &TYPES,
            ));
        }
        match Path::parse(string(c, "jsonPath")) {
            Ok(parsed) => columns.push(Column {
                name: string(c, "name").to_owned(),
                kind: kind.to_owned(),
                format: string(c, "format").to_owned(),
                description: string(c, "description").to_owned(),
                priority: c.get("priority").and_then(Value::as_i64).unwrap_or(0),
                path: parsed,
            }),
            Err(detail) => errors.push(FieldError::invalid(
                format!("{at}.jsonPath"),
                string(c, "jsonPath"),
                detail,
            )),
        }
    }
    let mut selectable_fields = Vec::new();
    for (i, f) in list(version, "selectableFields").iter().enumerate() {
        let text = string(f, "jsonPath");
        match Path::parse(text) {
            Ok(parsed) => {
                selectable_fields.push((Arc::from(text.trim_start_matches('.')), parsed));
            }
            Err(detail) => errors.push(FieldError::invalid(
                format!("{path}.selectableFields[{i}].jsonPath"),
                text,
                detail,
            )),
        }
    }
    let subresources = version.get("subresources");
    let scale = subresources.and_then(|s| s.get("scale")).and_then(|scale| {
        let mut keys = |field: &str, needed: bool| -> Option<Vec<String>> {
            let text = string(scale, field);
            if text.is_empty() && !needed {
                return None;
            }
            let parsed = Path::parse(text).ok();
            let keys = parsed
                .as_ref()
                .and_then(Path::keys)
                .filter(|k| !k.is_empty());
            if keys.is_none() {
                errors.push(FieldError::invalid(
                    format!("{path}.subresources.scale.{field}"),
                    text,
                    "must be a JSON path without array notation",
                ));
            }
            Some(keys?.into_iter().map(str::to_owned).collect())
        };
        Some(ScalePaths {
            spec: keys("specReplicasPath", true)?,
            status: keys("statusReplicasPath", true)?,
            selector: keys("labelSelectorPath", false),
        })
    });
    if !errors.is_empty() {
        return Err(errors);
    }
    let custom = CustomVersion {
        raw_schema: raw.clone(),
        columns,
        selectable_fields,
        rewritten: false,
        terminating: false,
        deprecation: None,
    };
    Ok(Compiled {
        schema,
        custom,
        scale,
    })
}

fn has_defaults(schema: &Schema) -> bool {
    schema.default.is_some()
        || schema.properties().values().any(has_defaults)
        || schema.items.as_deref().is_some_and(has_defaults)
        || schema.additional.as_deref().is_some_and(has_defaults)
}

/// Checks that the defaults in a schema are valid themselves.
fn check_defaults(schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(default) = &schema.default {
        let mut filled = Value::clone(default);
        schema.apply_defaults(&mut filled);
        schema.validate(&filled, &format!("{path}.default"), errors);
    }
    for (key, inner) in schema.properties() {
        check_defaults(inner, &format!("{path}.properties[{key}]"), errors);
    }
    if let Some(inner) = &schema.items {
        check_defaults(inner, &format!("{path}.items"), errors);
    }
    if let Some(inner) = &schema.additional {
        check_defaults(inner, &format!("{path}.additionalProperties"), errors);
    }
}

fn names_of(object: &Value, key: &str) -> Vec<Arc<str>> {
    list(object, key)
        .iter()
        .filter_map(|v| v.as_str().map(Arc::from))
        .collect()
}

/// Resources of a definition.
#[derive(Debug, Clone)]
pub(super) struct DefinedResources {
    /// Name of the definition.
    pub(super) name: Arc<str>,
    /// One resource per served version, preferred first.
    pub(super) served: Vec<Arc<Resource>>,
    /// Storage version, if it is not served.
    pub(super) hidden: Option<Arc<Resource>>,
}

/// Returns the resources of a (defaulted and valid) definition.
pub(super) fn resources(definition: &Value) -> Result<DefinedResources, Vec<FieldError>> {
    let name: Arc<str> = meta::name(definition).into();
    let Some(spec) = definition.get("spec") else {
        return Err(vec![FieldError::required("spec", "")]);
    };
    let no_names = json!({});
    let names_object = spec.get("names").unwrap_or(&no_names);
    let group = string(spec, "group");
    let kind = string(names_object, "kind");
    let plural = string(names_object, "plural");
    let storage_name = list(spec, "versions")
        .iter()
        .find(|v| v.get("storage").and_then(Value::as_bool) == Some(true))
        .map_or("", |v| string(v, "name"));
    let storage = GroupVersionKind::new(group, storage_name, kind);
    let terminating = !meta::text(definition, "deletionTimestamp").is_empty();
    let versions = list(spec, "versions");
    let (mut out, mut hidden) = (Vec::new(), None);
    for (i, version) in versions.iter().enumerate() {
        let is_storage = string(version, "name") == storage_name;
        let served = version.get("served").and_then(Value::as_bool) == Some(true);
        if !served && !is_storage {
            continue;
        }
        let Compiled {
            schema,
            mut custom,
            scale,
        } = compile(version, &format!("spec.versions[{i}]"))?;
        custom.rewritten = versions.len() > 1 || has_defaults(&schema);
        custom.terminating = terminating;
        custom.deprecation = deprecation::warning(spec, version);
        let own = GroupVersionKind::new(group, string(version, "name"), kind);
        let mut subresources = Vec::new();
        if scale.is_some() {
            subresources.push(Subresource {
                name: Cow::Borrowed("scale"),
                response: GroupVersionKind::new("autoscaling", "v1", "Scale"),
                verbs: OBJECT_SUB,
            });
        }
        if meta::at(version, &["subresources", "status"]).is_some_and(|s| !s.is_null()) {
            subresources.push(Subresource {
                name: Cow::Borrowed("status"),
                response: own.clone(),
                verbs: OBJECT_SUB,
            });
        }
        let resource = Arc::new(Resource {
            group: own.group.clone(),
            version: own.version.clone(),
            kind: own.kind.clone(),
            plural: plural.into(),
            singular: string(names_object, "singular").into(),
            list_kind: string(names_object, "listKind").into(),
            short_names: names_of(names_object, "shortNames"),
            categories: names_of(names_object, "categories"),
            namespaced: string(spec, "scope") == "Namespaced",
            verbs: if terminating {
                TERMINATING_VERBS
            } else {
                ALL_VERBS
            },
            subresources,
            storage_version: is_storage,
            storage: storage.clone(),
            table: TableId::new(group, plural),
            stored: true,
            schema: Arc::new(schema),
            generation: true,
            scale,
            custom: Some(Arc::new(custom)),
        });
        // Clients never look up a version that is stored but not served.
        if served {
            out.push(resource);
        } else {
            hidden = Some(resource);
        }
    }
    out.sort_by_key(|r| std::cmp::Reverse(meta::version_rank(&r.version)));
    Ok(DefinedResources {
        name,
        served: out,
        hidden,
    })
}

/// Validates an update of a definition: group, scope and kind may not change, and a stored version may not
/// disappear.
#[must_use]
pub fn validate_definition_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = validate_definition(new);
    for path in [
        &["spec", "group"][..],
        &["spec", "scope"],
        &["spec", "names", "kind"],
    ] {
        let (before, after) = (meta::str_at(old, path), meta::str_at(new, path));
        if before != after {
            errors.push(FieldError::invalid(
                path.join("."),
                after,
                "field is immutable",
            ));
        }
    }
    let versions = meta::at(new, &["spec", "versions"]).and_then(Value::as_array);
    let stored = meta::at(old, &["status", "storedVersions"]).and_then(Value::as_array);
    let names: HashSet<&Value> = versions
        .into_iter()
        .flatten()
        .filter_map(|version| version.get("name"))
        .collect();
    for (i, name) in stored.into_iter().flatten().enumerate() {
        if !names.contains(name) {
            errors.push(FieldError::invalid(
                format!("status.storedVersions[{i}]"),
                name.clone(),
                "missing from spec.versions; must be explicitly added",
            ));
        }
    }
    errors
}

/// Returns true if the resource is `customresourcedefinitions`.
#[must_use]
pub fn is_definition(resource: &Resource) -> bool {
    resource.is(APIEXTENSIONS, "customresourcedefinitions")
}

#[cfg(test)]
mod tests;
