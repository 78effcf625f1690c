//! Installs the custom resource definitions and PriorityClasses that koord needs.

use koord_kube::api::{ApiResource, DynamicObject, PostParams};
use koord_kube::{Api, Client, kube_core, patch};
use serde_json::Value;

/// Creates the custom resource definitions and PriorityClasses that do not exist. Existing ones are left
/// alone: they may belong to another version or to a user. If the manager may not create them, an operator
/// applies the output of `koord crds`.
pub(crate) async fn create_missing(client: Client) {
    let definitions = koord_api::crd_values();
    let classes = koord_api::priority_class_values();
    for object in definitions.into_iter().chain(classes) {
        let (kind, name) = (text(&object, "/kind"), text(&object, "/metadata/name"));
        match create(&client, object).await {
            Ok(true) => tracing::info!(kind, name, "created missing object"),
            Ok(false) => {}
            Err(error) if patch::is_status(&error, 403) => {
                tracing::info!(
                    kind,
                    name,
                    "not allowed to create missing object, apply the output of koord crds"
                );
            }
            Err(error) => tracing::warn!(kind, name, %error, "failed to create missing object"),
        }
    }
}

fn text(object: &Value, pointer: &str) -> String {
    let text = object.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

/// Creates `object` unless it exists; returns true if it was created.
async fn create(client: &Client, object: Value) -> Result<bool, koord_kube::Error> {
    let object: DynamicObject =
        serde_json::from_value(object).map_err(koord_kube::Error::SerdeError)?;
    let types = object.types.clone().unwrap_or_default();
    let (group, version) = types.api_version.split_once('/').unwrap_or_default();
    let kind = kube_core::GroupVersionKind::gvk(group, version, &types.kind);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if api.get_metadata_opt(name).await?.is_some() {
        return Ok(false);
    }
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(true),
        Err(error) if patch::is_conflict(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
