//! Per-kind strategies: defaulting, what clients may not set, validation, conversion.

pub(super) mod validate;

use serde_json::Value;

use super::resource::{Behavior, Resource};
use super::status::FieldError;

pub(super) fn default_object(_resource: &Resource, _object: &mut Value) {}
pub(super) fn prepare_create(_resource: &Resource, _object: &mut Value) {}
pub(super) fn prepare_update(_r: &Resource, _sub: Option<&str>, _old: &Value, _new: &mut Value) {}
pub(super) fn validate_create(_resource: &Resource, _object: &Value) -> Vec<FieldError> {
    Vec::new()
}
pub(super) fn validate_update(
    _resource: &Resource,
    _sub: Option<&str>,
    _new: &Value,
    _old: &Value,
) -> Vec<FieldError> {
    Vec::new()
}
pub(super) fn convert(_from: &Resource, object: Value, _target: &Resource) -> Value {
    object
}
pub(super) fn from_storage(resource: &Resource, object: &mut Value) {
    if let Behavior::Custom(_) = &resource.behavior {
        object["apiVersion"] = resource.api_version().into();
    }
}
pub(super) fn to_storage(resource: &Resource, object: &mut Value) {
    object["apiVersion"] = resource.storage.api_version().into();
}
