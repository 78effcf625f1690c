//! Objects from the API server that are not decoded.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::de::value::MapDeserializer;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// An object as JSON text, with the metadata that a watch needs. Lists and watches of all kinds use this
/// type, so that their code is compiled once and moves two pointers instead of large objects.
#[derive(Debug, Clone)]
pub(crate) struct RawObject {
    /// The metadata that is always decoded: name, namespace, uid and resource version.
    metadata: Box<ObjectMeta>,
    pub(crate) json: Box<RawValue>,
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(TextOrValue(deserializer))?;
        Ok(Self {
            metadata: Box::new(metadata_of(json.get())),
            json,
        })
    }
}

/// A deserializer of a [`RawValue`] that also accepts a decoded value. API servers write `type` of a watch
/// event first; if `object` precedes it, serde buffers a decoded value until it has read `type`.
struct TextOrValue<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for TextOrValue<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = TextOrValueVisitor { name, visitor };
        self.0.deserialize_newtype_struct(name, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// The visitor of a [`RawValue`], which expects a map with the name of the type as key and the text as value.
struct TextOrValueVisitor<V> {
    name: &'static str,
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for TextOrValueVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(map)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        let text = Value::deserialize(value)?.to_string();
        let map = std::iter::once((self.name, text));
        self.visitor.visit_map(MapDeserializer::new(map))
    }
}

/// Reads name, namespace, uid and resource version of an object; a field is `None` if it is missing or
/// invalid.
pub(crate) fn metadata_of(json: &str) -> ObjectMeta {
    let mut metadata = WatchMetadata::default();
    let mut deserializer = serde_json::Deserializer::from_str(json);
    // Usually returns an error, because nothing after the metadata is read.
    let _ = deserializer.deserialize_map(MetadataVisitor(&mut metadata));
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
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

/// Reads the metadata, and stops there.
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
    fn watch_event_with_the_object_first_is_the_same() {
        let json = r#"{"metadata":{"name":"n","resourceVersion":"7"},"x":[-1,18446744073709551615,0.5,null,"\u00e4"]}"#;
        let line = format!(r#"{{"object":{json},"type":"DELETED"}}"#);
        let WatchEvent::Deleted(object) =
            serde_json::from_str::<WatchEvent<RawObject>>(&line).unwrap()
        else {
            panic!("{line}");
        };
        let value = |json: &str| serde_json::from_str::<Value>(json).unwrap();
        assert_eq!(value(object.json.get()), value(json));
        assert_eq!(object.meta().name.as_deref(), Some("n"));
        assert_eq!(object.meta().resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn unreadable_metadata_is_empty() {
        for json in ["7", "{}", r#"{"metadata":7}"#, r#"{"metadata":{"name":7}}"#] {
            assert_eq!(metadata_of(json), ObjectMeta::default(), "{json}");
        }
    }
}
