//! Objects as they come from the API server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// An object as text, with what a watch has to know of it. Lists and watches of all kinds are of these: as
/// much code as they are, they are compiled once, and hand on two pointers instead of large objects.
///
/// Can be read from text only, and of an event only if its type comes first, as API servers write it.
#[derive(Debug, Clone)]
pub(super) struct RawObject {
    /// Name, namespace, uid and version.
    metadata: Box<ObjectMeta>,
    pub(super) json: Box<RawValue>,
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

/// Reads what the metadata of the object `json` say of it; nothing of an object without any.
fn metadata_of(json: &str) -> ObjectMeta {
    let mut found = Metadata::default();
    let mut deserializer = serde_json::Deserializer::from_str(json);
    // Ends in an error as a rule: what comes after the metadata is not read.
    let _ = deserializer.deserialize_map(ToMetadata(&mut found));
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
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

struct ToMetadata<'a>(&'a mut Metadata);

impl<'de> Visitor<'de> for ToMetadata<'_> {
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
    fn an_event_is_read_with_its_version() {
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
    fn metadata_that_cannot_be_read_are_none() {
        for json in ["7", "{}", r#"{"metadata":7}"#, r#"{"metadata":{"name":7}}"#] {
            assert_eq!(metadata_of(json), ObjectMeta::default(), "{json}");
        }
    }
}
