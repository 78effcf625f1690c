//! Conversion between versions. Custom resources change only their apiVersion; the built-in pairs are core/v1
//! Event and events.k8s.io/v1 Event, with different field names, and the versions of HorizontalPodAutoscaler
//! ([`super::autoscaler`]).

use serde_json::{Map, Value, json};

use super::autoscaler;
use crate::resource::Resource;

/// Fields of an Event that are called differently in core/v1 and in events.k8s.io/v1, as pairs of names.
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

fn is_old_autoscaler(resource: &Resource) -> bool {
    resource.is("autoscaling", "horizontalpodautoscalers")
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

impl Resource {
    /// Converts from the stored form to this version, with the defaults of its schema.
    #[must_use]
    pub fn from_storage(&self, mut object: Value) -> Value {
        if self.reads_stored() {
            return object;
        }
        if is_new_event(self)
            && let Some(map) = object.as_object_mut()
        {
            rename(map, true);
        }
        if is_old_autoscaler(self) {
            autoscaler::to_v1(&mut object);
        }
        set_version((&self.api_version(), &self.kind), &mut object);
        if self.is_custom() {
            self.schema.apply_defaults(&mut object);
        }
        object
    }

    /// Converts from this version to the stored form.
    #[must_use]
    pub fn to_storage(&self, mut object: Value) -> Value {
        if self.storage_version {
            return object;
        }
        if is_new_event(self)
            && let Some(map) = object.as_object_mut()
        {
            rename(map, false);
            // The core form always has these two.
            map.entry("source").or_insert_with(|| json!({}));
            map.entry("involvedObject").or_insert_with(|| json!({}));
        }
        if is_old_autoscaler(self) {
            autoscaler::to_v2(&mut object);
        }
        let storage = &self.storage;
        set_version((&storage.api_version(), &storage.kind), &mut object);
        object
    }

    /// Converts an object of this resource to `target`'s version. Both must share a table.
    #[must_use]
    pub fn convert(&self, object: Value, target: &Self) -> Value {
        target.from_storage(self.to_storage(object))
    }
}
