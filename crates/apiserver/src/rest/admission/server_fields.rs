//! Fields that the server sets regardless of the client, beyond those that depend only on the kind.

use crate::rest::core::Core;
use crate::rest::{check, meta};
use crate::store::TableId;
use koord_kinds::Resource;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::{Value, json};

/// Finalizer of custom resource definitions, which holds them until their objects are deleted.
pub(crate) const CRD_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Label with a namespace's own name.
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Sets the server's fields of a new object.
pub(in crate::rest) fn on_create(
    core: &Core,
    resource: &Resource,
    object: &mut Value,
) -> Result<(), ApiError> {
    if resource.is_custom() {
        return Ok(());
    }
    match (&*resource.group, &*resource.plural) {
        ("", "namespaces") => new_namespace(object),
        ("", "services") => cluster_ip(core, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            reject_builtin(core, resource, object)?;
            let mut finalizers = meta::finalizers(object);
            if !finalizers.iter().any(|f| f == CRD_FINALIZER) {
                finalizers.push(CRD_FINALIZER.to_owned());
                meta::set_finalizers(object, &finalizers);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Rejects a CustomResourceDefinition for a built-in resource: its objects would be served as custom ones, too,
/// and be deleted with the definition.
fn reject_builtin(core: &Core, resource: &Resource, definition: &Value) -> Result<(), ApiError> {
    let group = meta::text(definition, &["spec", "group"]);
    let plural = meta::text(definition, &["spec", "names", "plural"]);
    let is_builtin = core
        .registry()
        .all()
        .iter()
        .any(|r| !r.is_custom() && &*r.group == group && &*r.plural == plural);
    if !is_builtin {
        return Ok(());
    }
    let e = FieldError::invalid(
        "spec.names.plural",
        plural,
        format!("is a built-in resource of group {group}"),
    );
    let name = meta::name(definition);
    Err(check::invalid(resource, name, &[e]))
}

/// Restores the server's fields of an updated object.
pub(in crate::rest) fn on_update(
    core: &Core,
    resource: &Resource,
    subresource: Option<&str>,
    old: &Value,
    new: &mut Value,
) {
    if resource.is_custom() {
        return;
    }
    match (&*resource.group, &*resource.plural, subresource) {
        ("", "namespaces", sub) => {
            if sub != Some("finalize") {
                let retained = meta::at(old, &["spec", "finalizers"]).cloned();
                let spec = meta::section(new, "spec");
                match retained {
                    Some(f) => spec.insert("finalizers".to_owned(), f),
                    None => spec.remove("finalizers"),
                };
            }
            namespace_label(new);
            // Only a deletion sets a namespace to Terminating, on which its contents are deleted.
            let phase = if meta::deleting(new) {
                "Terminating"
            } else {
                "Active"
            };
            meta::section(new, "status").insert("phase".to_owned(), phase.into());
        }
        ("", "services", None)
            if meta::text(new, &["spec", "clusterIP"]).is_empty()
                && meta::text(new, &["spec", "type"]) != "ExternalName" =>
        {
            let retained = meta::at(old, &["spec", "clusterIP"]).cloned();
            match retained {
                Some(ip) => {
                    let spec = meta::section(new, "spec");
                    spec.insert("clusterIPs".to_owned(), json!([ip]));
                    spec.insert("clusterIP".to_owned(), ip);
                }
                None => cluster_ip(core, new),
            }
        }
        _ => {}
    }
}

fn new_namespace(object: &mut Value) {
    namespace_label(object);
    let spec = meta::section(object, "spec");
    spec.insert("finalizers".to_owned(), json!(["kubernetes"]));
    meta::section(object, "status").insert("phase".to_owned(), "Active".into());
}

pub(super) fn namespace_label(object: &mut Value) {
    let name = meta::name(object).to_owned();
    let metadata = meta::section(object, "metadata");
    let labels = metadata.entry("labels").or_insert(Value::Null);
    meta::as_object(labels).insert(NAMESPACE_NAME_LABEL.to_owned(), name.into());
}

/// Sets a service's address from 10.96.0.0/16. It is not routed, but clients expect one.
fn cluster_ip(core: &Core, service: &mut Value) {
    if meta::text(service, &["spec", "type"]) == "ExternalName" {
        return;
    }
    let requested = meta::text(service, &["spec", "clusterIP"]).to_owned();
    let address = if requested.is_empty() {
        let table = TableId::new("", "services");
        let mut address = String::new();
        for _ in 0..64 {
            address = format!("10.96.{}.{}", fastrand::u8(1..=254), fastrand::u8(1..=254));
            let holders = core.store().list(&table, None, None, None, Some(1), &|e| {
                e.index.field("spec.clusterIP") == Some(address.as_str())
            });
            if holders.is_ok_and(|p| p.items.is_empty()) {
                break;
            }
        }
        address
    } else {
        requested
    };
    let spec = meta::section(service, "spec");
    spec.insert("clusterIPs".to_owned(), json!([address]));
    spec.insert("clusterIP".to_owned(), address.into());
}
