//! Discovery documents: the aggregated form (`apidiscovery.k8s.io`) and the legacy ones.

use serde_json::{Map, Value, json};

use super::builtin::METRICS;
use super::meta::version_rank;
use super::registry::Registry;
use super::resource::{GroupVersionKind, Resource, Subresource};
use std::sync::Arc;

/// Content type of [`aggregated`] responses; clients compare the parameters exactly.
pub const AGGREGATED_V2: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Like [`AGGREGATED_V2`], for clients that support only the beta version.
pub const AGGREGATED_V2BETA1: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// Versions of one group in order of preference, each with its resources.
#[derive(Debug, Clone)]
pub struct Group {
    /// Group name, empty for core.
    pub name: Arc<str>,
    /// Versions, preferred first.
    pub versions: Vec<(Arc<str>, Vec<Arc<Resource>>)>,
}

/// Returns all groups in serving order.
#[must_use]
pub fn groups(registry: &Registry) -> Vec<Group> {
    let mut out: Vec<Group> = Vec::new();
    for resource in registry.all() {
        let at = match out.iter().position(|g| g.name == resource.group) {
            Some(at) => at,
            None => {
                out.push(Group {
                    name: resource.group.clone(),
                    versions: Vec::new(),
                });
                out.len() - 1
            }
        };
        let versions = &mut out[at].versions;
        match versions.iter_mut().find(|(v, _)| *v == resource.version) {
            Some((_, list)) => list.push(resource),
            None => versions.push((resource.version.clone(), vec![resource])),
        }
    }
    for group in &mut out {
        group
            .versions
            .sort_by_key(|(v, _)| std::cmp::Reverse(version_rank(v)));
    }
    // `metrics.k8s.io` comes last, as upstream: the group priority of its APIService is 100, that of custom
    // resources 1000. kubectl resolves a name to the first group that has it, and `nodemetrics` must find
    // Koordinator's resource, not the kind NodeMetrics of `metrics.k8s.io`.
    out.sort_by_key(|group| &*group.name == METRICS);
    out
}

fn kind_value(gvk: &GroupVersionKind) -> Value {
    json!({"group": &*gvk.group, "version": &*gvk.version, "kind": &*gvk.kind})
}

/// Builds the aggregated document for `/api` (`core`) or `/apis`; `version` is `v2` or `v2beta1`.
#[must_use]
pub fn aggregated(registry: &Registry, core: bool, version: &str) -> Value {
    let items: Vec<Value> = groups(registry)
        .iter()
        .filter(|g| g.name.is_empty() == core)
        .map(|g| {
            let versions: Vec<Value> = g
                .versions
                .iter()
                .map(|(v, resources)| {
                    let resources: Vec<Value> =
                        resources.iter().map(|r| aggregated_resource(r)).collect();
                    json!({"version": &**v, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut meta = Map::new();
            if !g.name.is_empty() {
                meta.insert("name".to_owned(), (&*g.name).into());
            }
            meta.insert("creationTimestamp".to_owned(), Value::Null);
            json!({"metadata": meta, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

/// Returns the entry of a resource in the aggregated discovery document.
fn aggregated_resource(r: &Resource) -> Value {
    let mut out = json!({
        "resource": &*r.plural,
        "responseKind": kind_value(&r.gvk()),
        "scope": if r.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": &*r.singular,
        "verbs": r.verbs,
    });
    if let Value::Object(map) = &mut out {
        if !r.short_names.is_empty() {
            map.insert("shortNames".to_owned(), strings(&r.short_names));
        }
        if !r.categories.is_empty() {
            map.insert("categories".to_owned(), strings(&r.categories));
        }
        if !r.subresources.is_empty() {
            let subs: Vec<Value> = r
                .subresources
                .iter()
                .map(|s| {
                    json!({
                        "subresource": s.name,
                        "responseKind": kind_value(&s.response),
                        "verbs": s.verbs,
                    })
                })
                .collect();
            map.insert("subresources".to_owned(), subs.into());
        }
    }
    out
}

fn strings(list: &[Arc<str>]) -> Value {
    list.iter().map(|s| Value::from(&**s)).collect()
}

/// Builds the document of `GET /api`; `address` is `host:port` of the server.
#[must_use]
pub fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

fn group_value(group: &Group) -> Value {
    let version = |v: &str| json!({"groupVersion": format!("{}/{v}", group.name), "version": v});
    let versions: Vec<Value> = group.versions.iter().map(|(v, _)| version(v)).collect();
    let preferred = versions.first().cloned().unwrap_or(Value::Null);
    json!({"name": &*group.name, "versions": versions, "preferredVersion": preferred})
}

/// Builds the document of `GET /apis`.
#[must_use]
pub fn group_list(registry: &Registry) -> Value {
    let all = groups(registry);
    let items: Vec<Value> = all
        .iter()
        .filter(|g| !g.name.is_empty())
        .map(group_value)
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": items})
}

/// Builds the document of `GET /apis/{group}`; `None` if the group does not exist.
#[must_use]
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let all = groups(registry);
    let group = all
        .iter()
        .find(|g| !g.name.is_empty() && &*g.name == name)?;
    let mut out = group_value(group);
    out["kind"] = "APIGroup".into();
    out["apiVersion"] = "v1".into();
    Some(out)
}

/// Builds the document of `GET /apis/{group}/{version}` or `GET /api/v1` (empty group); `None` if it does not
/// exist.
#[must_use]
pub fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let all = groups(registry);
    let group = all.iter().find(|g| &*g.name == group)?;
    let (_, resources) = group.versions.iter().find(|(v, _)| &**v == version)?;
    let mut list = Vec::new();
    for r in resources {
        let mut entry = json!({
            "name": &*r.plural,
            "singularName": &*r.singular,
            "namespaced": r.namespaced,
            "kind": &*r.kind,
            "verbs": r.verbs,
        });
        if !r.short_names.is_empty() {
            entry["shortNames"] = strings(&r.short_names);
        }
        if !r.categories.is_empty() {
            entry["categories"] = strings(&r.categories);
        }
        if r.stored {
            entry["storageVersionHash"] = storage_version_hash(&r.storage).into();
        }
        list.push(entry);
        list.extend(r.subresources.iter().map(|s| legacy_subresource(r, s)));
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": super::meta::api_version(&group.name, version),
        "resources": list,
    }))
}

/// Returns a hash of the version in which objects are stored, for tools that migrate stored objects.
fn storage_version_hash(storage: &GroupVersionKind) -> String {
    use base64::Engine as _;
    let text = format!("{}/{}/{}", storage.group, storage.version, storage.kind);
    let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let start = hash.as_ref().get(..8).unwrap_or_default();
    base64::engine::general_purpose::STANDARD.encode(start)
}

fn legacy_subresource(r: &Resource, s: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", r.plural, s.name),
        "singularName": "",
        "namespaced": r.namespaced,
        "kind": &*s.response.kind,
        "verbs": s.verbs,
    });
    // Clients read here which group and version an eviction, for example, must have.
    if s.response.group != r.group || s.response.version != r.version {
        entry["group"] = (&*s.response.group).into();
        entry["version"] = (&*s.response.version).into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes of a kube-apiserver for these two.
    #[test]
    fn storage_versions_are_named_as_upstream() {
        let hash = |list: &Value, name: &str| {
            let all = list["resources"].as_array().unwrap();
            let matches = all.iter().find(|r| r["name"] == name).unwrap();
            matches["storageVersionHash"].clone()
        };
        let registry = Registry::builtin();
        let core = resource_list(&registry, "", "v1").unwrap();
        assert_eq!(hash(&core, "pods"), "xPOwRZ+Yhw8=");
        assert_eq!(hash(&core, "bindings"), Value::Null);
        let apps = resource_list(&registry, "apps", "v1").unwrap();
        assert_eq!(hash(&apps, "deployments"), "8aSe+NMegvE=");
    }

    #[test]
    fn versions_are_ordered() {
        let mut v = ["foo", "v1alpha1", "v2beta1", "v1", "v10", "v1beta2", "v2"];
        v.sort_by_key(|v| std::cmp::Reverse(version_rank(v)));
        assert_eq!(
            v,
            ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "foo"]
        );
    }

    #[test]
    fn core_comes_first_and_eviction_names_its_group() {
        let registry = Registry::builtin();
        assert_eq!(&*groups(&registry)[0].name, "");
        let list = resource_list(&registry, "", "v1").unwrap();
        let eviction = list["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|r| r["name"] == "pods/eviction")
            .unwrap();
        assert_eq!(eviction["group"], "policy");
        assert_eq!(eviction["version"], "v1");
        assert!(resource_list(&registry, "apps", "v2").is_none());
        let apps = group(&registry, "apps").unwrap();
        assert_eq!(apps["preferredVersion"]["groupVersion"], "apps/v1");
    }

    #[test]
    fn definitions_precede_usage_in_discovery() {
        let registry = Registry::builtin();
        for crd in koord_api::crd_values() {
            registry.install_crd(&crd).unwrap();
        }
        let groups = groups(&registry);
        let names: Vec<&str> = groups.iter().map(|group| &*group.name).collect();
        assert_eq!((names[0], names.last()), ("", Some(&METRICS)));
        assert!(names.contains(&"slo.koordinator.sh"), "{names:?}");
    }

    #[test]
    fn get_all_order() {
        let all: Vec<String> = Registry::builtin()
            .all()
            .iter()
            .filter(|r| r.categories.iter().any(|c| &**c == "all"))
            .map(|r| r.plural.to_string())
            .collect();
        assert_eq!(all[..3], ["pods", "replicationcontrollers", "services"]);
    }
}
