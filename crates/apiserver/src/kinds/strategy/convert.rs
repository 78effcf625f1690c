//! Conversion between versions. Custom resources change only their apiVersion; the one built-in
//! pair is core/v1 Event and events.k8s.io/v1 Event, two spellings of the same object.

use serde_json::{Map, Value, json};

use crate::kinds::resource::Resource;

/// core/v1 name, events.k8s.io/v1 name.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("source", "deprecatedSource"),
];

fn is_new_event(resource: &Resource) -> bool {
    resource.is("events.k8s.io", "events")
}

fn rename(map: &mut Map<String, Value>, to_new: bool) {
    for (core, new) in EVENT_FIELDS {
        let (from, to) = if to_new { (core, new) } else { (new, core) };
        if let Some(v) = map.remove(from) {
            map.insert(to.to_owned(), v);
        }
    }
}

fn set_version(resource: (&str, &str), object: &mut Value) {
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), resource.0.into());
        map.insert("kind".to_owned(), resource.1.into());
    }
}

pub(in crate::kinds) fn from_storage(resource: &Resource, object: &mut Value) {
    if is_new_event(resource)
        && let Some(map) = object.as_object_mut()
    {
        rename(map, true);
    }
    set_version((&resource.api_version(), &resource.kind), object);
}

pub(in crate::kinds) fn to_storage(resource: &Resource, object: &mut Value) {
    if is_new_event(resource)
        && let Some(map) = object.as_object_mut()
    {
        rename(map, false);
        // The core form always has these two.
        map.entry("source").or_insert_with(|| json!({}));
        map.entry("involvedObject").or_insert_with(|| json!({}));
    }
    set_version(
        (&resource.storage.api_version(), &resource.storage.kind),
        object,
    );
}

pub(in crate::kinds) fn convert(from: &Resource, object: Value, target: &Resource) -> Value {
    target.from_storage(from.to_storage(object))
}
