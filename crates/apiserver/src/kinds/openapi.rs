//! OpenAPI v3.

use serde_json::{Value, json};

use super::registry::Registry;

/// `GET /openapi/v3`.
#[must_use]
pub fn index(_registry: &Registry) -> Value {
    json!({"paths": {}})
}

/// `GET /openapi/v3/{api/v1|apis/group/version}`.
#[must_use]
pub fn document(_registry: &Registry, _group: &str, _version: &str) -> Option<Value> {
    None
}
