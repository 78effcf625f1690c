//! Undecoded objects from the API server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// An object as JSON text, with the metadata that a watch needs. Lists and watches of all kinds use this type,
/// so that their code is compiled once and passes on two pointers instead of large objects.
///
/// It can be deserialized from JSON text only, and from a watch event only if `type` precedes `object`, as API
/// servers write it.
#[derive(Debug, Clone)]
pub(crate) struct RawObject {
    /// Only name, namespace, uid and resource version.
    metadata: Box<ObjectMeta>,
    pub(crate) json: Box<RawValue>,
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self {
            metadata: Box::new(metadata_of(json.get())),
            json,
        })
    }
}

/// Reads name, namespace, uid and resource version of an object; they are `None` where missing or wrong.
pub(crate) fn metadata_of(json: &str) -> ObjectMeta {
    let mut found = WatchMetadata::default();
    let mut deserializer = serde_json::Deserializer::from_str(json);
    // Fails as a rule, because nothing after the metadata is read.
    let _ = deserializer.deserialize_map(MetadataVisitor(&mut found));
    ObjectMeta {
        name: found.name,
        namespace: found.namespace,
        uid: found.uid,
        resource_version: found.resource_version,
        ..ObjectMeta::default()
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WatchMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

/// Stops at the metadata.
struct MetadataVisitor<'a>(&'a mut WatchMetadata);

impl<'de> Visitor<'de> for MetadataVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == "metadata" {
                *self.0 = map.next_value()?;
                break;
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

impl Resource for RawObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        (&of.kind).into()
    }
    fn group(of: &ApiResource) -> Cow<'_, str> {
        (&of.group).into()
    }
    fn version(of: &ApiResource) -> Cow<'_, str> {
        (&of.version).into()
    }
    fn plural(of: &ApiResource) -> Cow<'_, str> {
        (&of.plural).into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::WatchEvent;

    #[test]
    fn watch_event_has_text_and_version() {
        let json = r#"{"spec":{"metadata":{"name":"no"}},"metadata":{"name":"n","labels":{"a":"b"},"resourceVersion":"7"},"x":[1]}"#;
        let line = format!(r#"{{"type":"MODIFIED","object":{json}}}"#);
        let WatchEvent::Modified(object) =
            serde_json::from_str::<WatchEvent<RawObject>>(&line).unwrap()
        else {
            panic!("{line}");
        };
        assert_eq!(object.json.get(), json);
        assert_eq!(object.meta().name.as_deref(), Some("n"));
        assert_eq!(object.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(object.meta().labels, None);
    }

    #[test]
    fn unreadable_metadata_is_empty() {
        for json in ["7", "{}", r#"{"metadata":7}"#, r#"{"metadata":{"name":7}}"#] {
            assert_eq!(metadata_of(json), ObjectMeta::default(), "{json}");
        }
    }
}
