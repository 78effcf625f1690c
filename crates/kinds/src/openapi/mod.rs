//! OpenAPI v3 documents, which kubectl reads before it sends objects (`apply`, `create`) and for `kubectl
//! explain`.

mod binary;
mod builtin;
#[cfg(test)]
mod derived;
mod paths;
pub mod v2;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::registry::Registry;
use super::resource::{GroupVersionKind, Resource};

/// Builds the document of `GET /openapi/v3`: the addresses of the documents, with a hash of their content.
#[must_use]
pub fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    for ((group, version), resources) in by_version(registry) {
        let path = if group.is_empty() {
            format!("api/{version}")
        } else {
            format!("apis/{group}/{version}")
        };
        let url = format!("/openapi/v3/{path}?hash={}", hash(&resources));
        paths.insert(path, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// Builds the document of `GET /openapi/v3/api/v1` or `/openapi/v3/apis/{group}/{version}`; `None` if there
/// is none.
#[must_use]
pub fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let all = by_version(registry);
    let resources = all.get(&(Arc::from(group), Arc::from(version)))?;
    let mut schemas = builtin::Schemas::default();
    let mut paths = Map::new();
    for r in resources {
        let name = match (&r.custom, r.schema.named()) {
            (Some(c), _) => schemas.add_custom(&r.gvk(), &c.raw_schema),
            (None, named) => named.and_then(|t| schemas.add_builtin(t.name, &r.gvk())),
        };
        paths::add(&mut paths, r, name.as_deref());
    }
    // Bodies of subresources whose kind is not a resource of its own.
    for sub in resources.iter().flat_map(|r| &r.subresources) {
        if let Some(type_name) = subresource_type(&sub.response) {
            schemas.add_builtin(type_name, &sub.response);
        }
    }
    schemas.add_delete_options();
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "components": {"schemas": schemas.finish()},
    }))
}

/// Version of the emulated API.
const VERSION: &str = "v1.35.0";

fn subresource_type(gvk: &GroupVersionKind) -> Option<&'static str> {
    match (&*gvk.group, &*gvk.kind) {
        ("autoscaling", "Scale") => Some("autoscaling/v1.Scale"),
        ("policy", "Eviction") => Some("policy/v1.Eviction"),
        ("authentication.k8s.io", "TokenRequest") => Some("authentication/v1.TokenRequest"),
        _ => None,
    }
}

type ByVersion = BTreeMap<(Arc<str>, Arc<str>), Vec<Arc<Resource>>>;

fn by_version(registry: &Registry) -> ByVersion {
    let mut out = ByVersion::new();
    for r in registry.all() {
        out.entry((r.group.clone(), r.version.clone()))
            .or_default()
            .push(r);
    }
    out
}

/// Hashes the content of a document. Built-in schemas change only with the program; those of definitions are
/// hashed.
fn hash(resources: &[Arc<Resource>]) -> String {
    let mut hasher = rustc_hash::FxHasher::default();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    VERSION.hash(&mut hasher);
    for r in resources {
        (&r.group, &r.version, &r.plural, &r.kind, r.namespaced).hash(&mut hasher);
        for s in &r.subresources {
            s.name.hash(&mut hasher);
        }
        if let Some(c) = &r.custom {
            c.raw_schema.to_string().hash(&mut hasher);
        }
    }
    let first = hasher.finish();
    // FxHash is 64 bits wide; a second, salted round makes accidental equality negligible.
    (first, "salt").hash(&mut hasher);
    format!("{first:016X}{:016X}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_patched_and_explained() {
        let registry = Registry::builtin();
        let index = index(&registry);
        for r in registry.all() {
            let path = if r.group.is_empty() {
                format!("api/{}", r.version)
            } else {
                format!("apis/{}/{}", r.group, r.version)
            };
            assert!(index["paths"].get(&path).is_some(), "{path}");
        }
        for (group, version) in [("", "v1"), ("apps", "v1"), ("apiextensions.k8s.io", "v1")] {
            let doc = document(&registry, group, version).unwrap();
            let schemas = doc["components"]["schemas"].as_object().unwrap();
            for r in registry.all() {
                if &*r.group != group || &*r.version != version || !r.stored {
                    continue;
                }
                let gvk = json!({"group": group, "version": version, "kind": &*r.kind});
                let patch = doc["paths"].as_object().unwrap().values().find_map(|p| {
                    p.get("patch")
                        .filter(|o| o["x-kubernetes-group-version-kind"] == gvk)
                });
                let patch = patch.unwrap_or_else(|| panic!("no patch for {}", r.kind));
                let parameters = patch["parameters"].as_array().unwrap();
                assert!(
                    parameters.iter().any(|p| p["name"] == "fieldValidation"),
                    "{}",
                    r.kind
                );
                let schema = schemas.values().find(|s| {
                    s["x-kubernetes-group-version-kind"]
                        .as_array()
                        .is_some_and(|list| list.contains(&gvk))
                });
                assert!(schema.is_some(), "no schema for {}", r.kind);
            }
            check_references(&doc, schemas);
            assert!(!doc.to_string().contains("\"parameters\":[]"));
        }
        assert!(document(&registry, "nope", "v1").is_none());
    }

    /// Checks that every `$ref` has a target.
    fn check_references(value: &Value, schemas: &Map<String, Value>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    let name = target.strip_prefix("#/components/schemas/").unwrap_or("");
                    assert!(schemas.contains_key(name), "dangling {target}");
                }
                map.values().for_each(|v| check_references(v, schemas));
            }
            Value::Array(items) => items.iter().for_each(|v| check_references(v, schemas)),
            _ => {}
        }
    }

    #[test]
    fn pod_spec_is_described() {
        let doc = document(&Registry::builtin(), "", "v1").unwrap();
        let spec = &doc["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"];
        let containers = &spec["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(containers["type"], "array");
        let reference = &containers["items"]["$ref"];
        assert_eq!(
            reference,
            "#/components/schemas/io.k8s.api.core.v1.Container"
        );
    }
}
