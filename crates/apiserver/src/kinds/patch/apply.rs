//! Server-side apply.

use jiff::Timestamp;
use serde_json::Value;

use crate::kinds::resource::Resource;
use crate::kinds::status::ApiError;

/// Applies `applied` on behalf of `manager`; `live` is `None` when the object does not exist yet.
///
/// # Errors
/// 409 with one `FieldManagerConflict` cause per field that another manager owns.
pub fn apply(
    _resource: &Resource,
    live: Option<&Value>,
    applied: &Value,
    _manager: &str,
    _force: bool,
    _now: Timestamp,
) -> Result<Value, ApiError> {
    let mut out = live.cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    json_patch::merge(&mut out, applied);
    Ok(out)
}

/// Records in `metadata.managedFields` what a create or update by `manager` changed.
pub fn track_update(
    _resource: &Resource,
    _old: Option<&Value>,
    _new: &mut Value,
    _manager: &str,
    _now: Timestamp,
) {
}
