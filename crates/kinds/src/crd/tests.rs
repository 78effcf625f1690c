use serde_json::{Value, json};

use super::*;
use crate::Registry;
use crate::table::Include;

fn widget(change: Value) -> Value {
    let mut d = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {"name": "v1alpha1", "served": true, "storage": false, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
                {"name": "v1", "served": true, "storage": true,
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas"}},
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                        {"name": "When", "type": "date", "jsonPath": ".spec.when", "priority": 1}],
                    "selectableFields": [{"jsonPath": ".spec.color"}],
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "required": ["size"], "properties": {
                            "size": {"type": "integer", "minimum": 1},
                            "color": {"type": "string", "default": "red"},
                            "when": {"type": "string", "format": "date-time"},
                            "replicas": {"type": "integer"}}},
                        "status": {"type": "object", "properties": {
                            "phase": {"type": "string"}, "replicas": {"type": "integer"}}}}}}},
            ],
        },
    });
    json_patch::merge(&mut d, &change);
    d
}

fn errors(change: Value) -> Vec<String> {
    let registry = Registry::builtin();
    match registry.install_crd(&widget(change)) {
        Ok(()) => Vec::new(),
        Err(e) => e.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn definitions_are_validated() {
    assert_eq!(errors(json!({})), [""; 0]);
    for (change, expect) in [
        (
            json!({"metadata": {"name": "w"}}),
            "metadata.name: Invalid value: \"w\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            json!({"spec": {"scope": "Galaxy"}}),
            "spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        (
            json!({"spec": {"scope": null}}),
            "spec.scope: Required value",
        ),
        (
            json!({"spec": {"names": {"kind": "Wid get"}}}),
            "spec.names.kind: Invalid value",
        ),
        (
            json!({"spec": {"versions": []}}),
            "spec.versions: Required value: must have at least one version",
        ),
        (
            json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true}]}}),
            "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
        ),
        (
            json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": false,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}}),
            "spec.versions: Invalid value: [\"v1\"]: must have exactly one version marked as storage version",
        ),
        (
            json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}}}]}}),
            "spec.versions[0].schema.openAPIV3Schema.properties[a].default: Invalid value: \"string\"",
        ),
        (
            json!({"spec": {"group": "x.k8s.io"}, "metadata": {"name": "widgets.x.k8s.io"}}),
            "metadata.annotations[api-approved.kubernetes.io]: Required value",
        ),
        (json!({"spec": null}), "spec: Required value"),
    ] {
        let matches = errors(change.clone());
        assert!(
            matches.iter().any(|e| e.starts_with(expect)),
            "{change}: {matches:?}"
        );
    }
}

#[test]
fn a_definition_is_served_in_all_its_versions() {
    let registry = Registry::builtin();
    let before = registry.generation();
    registry.install_crd(&widget(json!({}))).unwrap();
    assert!(registry.generation() > before);
    let v1 = registry.find("example.com", "v1", "widgets").unwrap();
    let alpha = registry.find("example.com", "v1alpha1", "widgets").unwrap();
    assert_eq!(v1.table, alpha.table);
    assert!(v1.storage_version && !alpha.storage_version);
    assert_eq!(&*registry.storage(&v1.table).unwrap().version, "v1");
    assert!(v1.subresource("scale").is_some() && alpha.subresource("status").is_none());
    assert_eq!((&*v1.list_kind, &*v1.singular), ("WidgetList", "widget"));

    let object = json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "w", "namespace": "d"}, "spec": {"size": 2}});
    let observed = v1.convert(object.clone(), &alpha);
    assert_eq!(observed["apiVersion"], "example.com/v1alpha1");
    assert_eq!(alpha.convert(observed, &v1)["apiVersion"], "example.com/v1");

    registry.remove_crd("widgets.example.com");
    assert!(registry.find("example.com", "v1", "widgets").is_none());
    assert!(registry.has_group("apps", Some("v1")) && !registry.has_group("example.com", None));
}

#[test]
fn objects_go_through_the_schema() {
    let registry = Registry::builtin();
    registry.install_crd(&widget(json!({}))).unwrap();
    let r = registry.find("example.com", "v1", "widgets").unwrap();
    let mut o = json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "w", "namespace": "d"},
        "spec": {"size": 2, "bogus": 1, "when": "2026-01-02T03:00:00Z"}, "status": {"phase": "x"}});
    assert_eq!(r.unknown_fields(&o), ["unknown field \"spec.bogus\""]);
    r.prune(&mut o);
    r.default_object(&mut o);
    r.prepare_create(&mut o);
    assert!(r.validate_create(&o).is_empty());
    assert_eq!(
        o["spec"],
        json!({"size": 2, "color": "red", "when": "2026-01-02T03:00:00Z"})
    );
    assert!(o.get("status").is_none());
    assert_eq!(o["metadata"]["generation"], 1);
    o["metadata"]["resourceVersion"] = "5".into();

    // Only the status passes through /status; labels sent there are dropped.
    let mut new = o.clone();
    new["status"] = json!({"phase": "Ready"});
    new["spec"]["size"] = 9.into();
    new["metadata"]["labels"] = json!({"a": "b"});
    r.prepare_update(Some("status"), &o, &mut new);
    assert_eq!(
        (&new["status"]["phase"], &new["spec"]["size"]),
        (&json!("Ready"), &json!(2))
    );
    assert!(new["metadata"].get("labels").is_none());
    assert_eq!(new["metadata"]["generation"], 1);

    let mut new = o.clone();
    new["spec"]["size"] = 0.into();
    new["status"] = json!({"phase": "dropped"});
    r.prepare_update(None, &o, &mut new);
    assert_eq!(new["metadata"]["generation"], 2);
    assert!(new.get("status").is_none());
    let errors = r.validate_update(None, &new, &o);
    assert_eq!(
        errors[0].to_string(),
        "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"
    );
    if let Some(m) = new["metadata"].as_object_mut() {
        m.remove("resourceVersion");
    }
    let errors = r.validate_update(None, &new, &o);
    assert_eq!(
        errors[0].to_string(),
        "metadata.resourceVersion: Invalid value: \"\": must be specified for an update"
    );

    assert!(r.supports_field("spec.color") && !r.supports_field("spec.size"));
    let index = r.index(&o);
    assert!(
        index
            .fields
            .iter()
            .any(|(k, v)| &**k == "spec.color" && &**v == "red")
    );
    let now = "2026-01-02T03:04:05Z".parse().unwrap();
    let table = r.to_table(&[o], Include::None, now);
    assert_eq!(table["rows"][0]["cells"], json!(["w", 2, "4m5s"]));
    assert_eq!(table["columnDefinitions"][2]["priority"], 1);
}

#[test]
fn immutable_parts_of_a_definition() {
    let mut old = widget(json!({}));
    default_definition(&mut old);
    old["status"] = json!({"storedVersions": ["v1"]});
    let mut new = old.clone();
    new["spec"]["scope"] = "Cluster".into();
    new["spec"]["versions"][1]["name"] = "v2".into();
    let errors: Vec<String> = validate_definition_update(&new, &old)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        errors,
        [
            "spec.scope: Invalid value: \"Cluster\": field is immutable",
            "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; must be explicitly added",
        ]
    );
}

#[test]
fn the_definitions_of_this_product_are_accepted() {
    let registry = Registry::builtin();
    for crd in koord_api::crds() {
        let value = serde_json::to_value(&crd).unwrap();
        let name = meta::name(&value).to_owned();
        let shape = registry
            .find_kind(APIEXTENSIONS, "v1", "CustomResourceDefinition")
            .unwrap();
        assert_eq!(shape.unknown_fields(&value), [""; 0], "{name}");
        shape.check_types(&value).unwrap();
        registry
            .install_crd(&value)
            .unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert!(!registry.crd_resources(&name).is_empty(), "{name}");
    }
}
