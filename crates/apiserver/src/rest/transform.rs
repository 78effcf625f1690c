//! Conversion of objects to the representation that a client requests.

use super::accept::{MetaVersion, ObjectForm};
use super::meta;
use super::query::Query;
use super::write::Object;
use bytes::Bytes;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use koord_kinds::table::Include;
use serde_json::{Map, Value, json};

/// Parses `includeObject` of a Table request.
pub(super) fn include(query: &Query) -> Result<Include, ApiError> {
    match query.get("includeObject") {
        None | Some("Metadata") => Ok(Include::Metadata),
        Some("Object") => Ok(Include::Object),
        Some("None") => Ok(Include::None),
        Some(other) => Err(ApiError::bad_request(format!(
            "unrecognized includeObject value: {other:?}"
        ))),
    }
}

/// Returns one object as JSON in the requested form: as it is, its metadata only, or a Table with one row.
pub(super) fn object_bytes(
    resource: &Resource,
    object: &Object,
    form: ObjectForm,
    include: Include,
    now: jiff::Timestamp,
) -> Bytes {
    match form {
        ObjectForm::Object => object.bytes(resource),
        ObjectForm::Metadata(version) => {
            Bytes::from(metadata_only(&object.value(resource), version).to_string())
        }
        ObjectForm::Table(version) => {
            let value = object.value(resource);
            let list = json!({ "resourceVersion": meta::resource_version(&value) });
            Bytes::from(table(resource, &[value], include, version, list, now).to_string())
        }
    }
}

/// Returns the `PartialObjectMetadata` of an object.
pub(super) fn metadata_only(object: &Value, version: MetaVersion) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": version.api_version(),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new())),
    })
}

/// Returns a Table with list metadata.
pub(super) fn table(
    resource: &Resource,
    items: &[Value],
    include: Include,
    version: MetaVersion,
    list_metadata: Value,
    now: jiff::Timestamp,
) -> Value {
    let mut table = resource.to_table(items, include, now);
    let root = meta::as_object(&mut table);
    root.insert("metadata".to_owned(), list_metadata);
    root.insert("apiVersion".to_owned(), version.api_version().into());
    if version == MetaVersion::V1Beta1 {
        for row in root
            .get_mut("rows")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(object) = row
                .get_mut("object")
                .filter(|o| o.get("kind").and_then(Value::as_str) == Some("PartialObjectMetadata"))
            {
                meta::as_object(object)
                    .insert("apiVersion".to_owned(), version.api_version().into());
            }
        }
    }
    table
}
