//! Component schemas, with the extensions that kubectl looks for: built-in types from the committed file,
//! custom resources from their definitions.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::resource::GroupVersionKind;
use crate::schema::{ListType, MergeStrategy, types};

const PREFIX: &str = "#/components/schemas/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Schemas of the built-in types, sorted by name: each line has a component's name, a tab and its schema.
pub(super) const COMPONENTS: &str = include_str!("components.txt");

/// Returns the texts of the built-in schemas by component name.
fn builtin() -> &'static BTreeMap<&'static str, &'static str> {
    static BUILTIN: OnceLock<BTreeMap<&str, &str>> = OnceLock::new();
    BUILTIN.get_or_init(|| {
        COMPONENTS
            .lines()
            .filter_map(|l| l.split_once('\t'))
            .collect()
    })
}

/// Go packages of built-in types as they start component names, each followed by the name of a group.
const PACKAGES: [&str; 4] = [
    "io.k8s.api.",
    "io.k8s.apimachinery.pkg.apis.",
    "io.k8s.apiextensions-apiserver.pkg.apis.",
    "io.k8s.kube-aggregator.pkg.apis.",
];

/// Collects the components of one document.
#[derive(Default)]
pub(super) struct Schemas {
    components: Map<String, Value>,
    kinds: Vec<(String, GroupVersionKind)>,
    custom: Map<String, Value>,
}

impl Schemas {
    /// Adds a built-in type; returns its component name.
    pub(super) fn add_builtin(
        &mut self,
        type_name: &str,
        gvk: &GroupVersionKind,
    ) -> Option<String> {
        let (group, tail) = type_name.split_once('/')?;
        let component = |prefix: &&str| format!("{prefix}{group}.{tail}");
        let mut names = PACKAGES.iter().map(component);
        let name = names.find(|name| builtin().contains_key(name.as_str()))?;
        self.add_component(&name);
        self.kinds.push((name.clone(), gvk.clone()));
        Some(name)
    }

    /// Adds a built-in component and everything that it refers to.
    fn add_component(&mut self, name: &str) {
        let mut missing = vec![name.to_owned()];
        while let Some(name) = missing.pop() {
            if self.components.contains_key(&name) {
                continue;
            }
            let text = builtin().get(name.as_str());
            if let Some(schema) = text.and_then(|text| serde_json::from_str(text).ok()) {
                collect_references(&schema, &mut missing);
                self.components.insert(name, schema);
            }
        }
    }

    /// Adds the schema of a custom resource; returns its component name.
    pub(super) fn add_custom(&mut self, gvk: &GroupVersionKind, raw: &Value) -> Option<String> {
        let mut parts: Vec<&str> = gvk.group.split('.').collect();
        parts.reverse();
        let name = format!("{}.{}.{}", parts.join("."), gvk.version, gvk.kind);
        self.add_component(&format!("{META}.ObjectMeta"));
        let mut schema = raw.clone();
        let map = schema.as_object_mut()?;
        let properties = map.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(p) = properties {
            let text = |d: &str| json!({"type": "string", "description": d});
            p.insert(
                "apiVersion".to_owned(),
                text("APIVersion defines the group and version of the object."),
            );
            p.insert("kind".to_owned(), text("Kind of the object."));
            p.insert(
                "metadata".to_owned(),
                json!({
                    "description": "Standard object's metadata.",
                    "allOf": [{"$ref": format!("{PREFIX}{META}.ObjectMeta")}],
                }),
            );
        }
        self.custom.insert(name.clone(), schema);
        self.kinds.push((name.clone(), gvk.clone()));
        Some(name)
    }

    /// Adds the body of deletions.
    pub(super) fn add_delete_options(&mut self) {
        self.add_component(&format!("{META}.DeleteOptions"));
        self.add_component(&format!("{META}.Status"));
    }

    /// Returns all components by name.
    pub(super) fn finish(mut self) -> Map<String, Value> {
        let mut out = std::mem::take(&mut self.components);
        out.extend(std::mem::take(&mut self.custom));
        for (name, schema) in &mut out {
            if let Some(type_name) = fact_name(name) {
                merge_hints(schema, &type_name);
            }
            wrap_references(schema);
        }
        for (name, gvk) in &self.kinds {
            if let Some(Value::Object(schema)) = out.get_mut(name) {
                let list = schema
                    .entry("x-kubernetes-group-version-kind")
                    .or_insert_with(|| Value::Array(Vec::new()));
                let entry = json!({
                    "group": &*gvk.group, "version": &*gvk.version, "kind": &*gvk.kind,
                });
                if let Value::Array(list) = list
                    && !list.contains(&entry)
                {
                    list.push(entry);
                }
            }
        }
        out
    }
}

/// Converts a component name such as `io.k8s.api.core.v1.Pod` to a name in the fact table such as
/// `core/v1.Pod`.
fn fact_name(component: &str) -> Option<String> {
    let remainder = component
        .strip_prefix("io.k8s.api.")
        .or_else(|| component.strip_prefix("io.k8s.apimachinery.pkg.apis."))
        .or_else(|| component.strip_prefix("io.k8s.apiextensions-apiserver.pkg.apis."))?;
    remainder
        .split_once('.')
        .map(|(group, tail)| format!("{group}/{tail}"))
}

/// Adds the extensions that define how patches merge the lists of a type.
fn merge_hints(schema: &mut Value, type_name: &str) {
    let Some(named) = types::find(type_name) else {
        return;
    };
    if named.schema.atomic
        && let Some(map) = schema.as_object_mut()
    {
        map.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, property) in properties {
        let (Some(field), Some(map)) = (named.field(name), property.as_object_mut()) else {
            continue;
        };
        if field.merge != MergeStrategy::Default {
            let strategy = if field.retain_keys {
                "merge,retainKeys"
            } else {
                "merge"
            };
            map.insert("x-kubernetes-patch-strategy".to_owned(), strategy.into());
        }
        if let MergeStrategy::Key(key) = field.merge {
            map.insert("x-kubernetes-patch-merge-key".to_owned(), key.into());
        }
        if field.items.is_none() {
            if field.atomic {
                map.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
            }
            continue;
        }
        let kind = match &field.list_type {
            ListType::Atomic => "atomic",
            ListType::Set => "set",
            ListType::Map(keys) => {
                map.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
                "map"
            }
        };
        map.insert("x-kubernetes-list-type".to_owned(), kind.into());
    }
}

/// Returns every component of the built-in kinds under its name in the fact table.
#[cfg(test)]
pub(crate) fn components() -> Vec<(String, Value)> {
    let mut schemas = Schemas::default();
    for name in builtin().keys() {
        schemas.add_component(name);
    }
    let all = schemas.finish();
    all.into_iter()
        .filter_map(|(name, schema)| Some((fact_name(&name)?, schema)))
        .collect()
}

/// Adds the names of the components that a schema refers to.
fn collect_references(schema: &Value, names: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            let reference = map.get("$ref").and_then(Value::as_str);
            names.extend(
                reference
                    .and_then(|r| r.strip_prefix(PREFIX))
                    .map(str::to_owned),
            );
            map.values()
                .for_each(|value| collect_references(value, names));
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect_references(item, names)),
        _ => {}
    }
}

/// Moves `$ref`s with siblings into an `allOf`, because OpenAPI 3.0 ignores siblings of a `$ref`.
fn wrap_references(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(wrap_references);
            if map.len() > 1
                && let Some(reference) = map.get("$ref").filter(|r| r.is_string()).cloned()
            {
                map.remove("$ref");
                map.insert("allOf".to_owned(), json!([{"$ref": reference}]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_object::schema::{Type, types::find};

    /// The table and the `k8s-openapi` crate have the same Kubernetes version: each describes the fields of
    /// the other.
    #[test]
    fn the_table_agrees_with_k8s_openapi() {
        let mut observed = 0;
        let mut faults = Vec::new();
        for (name, schema) in components() {
            let Some(this) = find(&name) else {
                continue;
            };
            observed += 1;
            let properties = schema["properties"].as_object();
            let expected: Vec<&str> = properties
                .into_iter()
                .flat_map(|p| p.keys().map(String::as_str))
                .collect();
            for (key, field) in &this.fields {
                let Some(property) = properties.and_then(|p| p.get(*key)) else {
                    faults.push(format!("{name}.{key} is not in k8s-openapi"));
                    continue;
                };
                let want = match field.kind {
                    Type::String | Type::Bytes | Type::Time | Type::MicroTime => "string",
                    Type::Boolean => "boolean",
                    Type::Int32 | Type::Integer => "integer",
                    Type::Number => "number",
                    Type::Array | Type::WrappedStrings => "array",
                    Type::Object if field.additional.is_some() => "object",
                    _ => continue,
                };
                if property.get("type").is_some_and(|t| t != want) {
                    faults.push(format!(
                        "{name}.{key} is {want}, there {}",
                        property["type"]
                    ));
                }
            }
            for key in expected.iter().filter(|k| this.field(k).is_none()) {
                faults.push(format!("{name} lacks {key}"));
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(observed > 400, "{observed}");
    }
}
