//! Decoding of objects that may not match the type of their kind.
//!
//! The schemas of custom resources are less strict than Rust types: a duration may be any text there. One
//! such object must not break the list of all others.

use super::ObjectKey;

use crate::decode::{self, Decode};
use crate::raw_object::metadata_of;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::Deserialize;
use serde_json::Value;

/// An object, or the description of one that cannot be decoded. Lists and watches of it continue where those
/// of `K` fail.
#[derive(Debug, Clone)]
pub struct Readable<K>(pub Result<K, Box<Unread>>);

/// An object that cannot be decoded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{problem}")]
pub struct Unread {
    /// The metadata of the object; only names, uid and resource version if the metadata itself cannot be
    /// decoded.
    pub metadata: ObjectMeta,
    /// Path of the field, and what is wrong with its value.
    pub problem: String,
}

impl Unread {
    /// Returns namespace (empty for cluster-scoped objects) and name.
    pub(super) fn names(&self) -> (&str, &str) {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        (namespace, self.metadata.name.as_deref().unwrap_or_default())
    }

    pub(super) fn key(&self) -> ObjectKey {
        let (namespace, name) = self.names();
        ObjectKey::new(namespace, name)
    }
}

impl<K: Decode> Decode for Readable<K> {
    /// Decodes one object; never fails.
    fn decode(json: &str) -> serde_json::Result<Self> {
        Ok(Self::from_json(json))
    }
}

impl<K: Decode> Readable<K> {
    /// Decodes one object.
    pub(super) fn from_json(json: &str) -> Self {
        Self(K::decode(json).map_err(|error| Box::new(Unread::new(json, &error))))
    }
}

impl Unread {
    /// Describes why decoding `json` failed with `error`.
    fn new(json: &str, error: &serde_json::Error) -> Self {
        let value: Value = serde_json::from_str(json).unwrap_or_default();
        let metadata = value.get("metadata").map(ObjectMeta::deserialize);
        let reason = error.to_string();
        // The position is relative to the object, and the path is more useful.
        let reason = reason
            .rsplit_once(" at line ")
            .map_or(&*reason, |(reason, _)| reason);
        let problem = match decode::error_path(json, error).as_str() {
            "" => reason.to_owned(),
            path => format!("{path}: {reason}"),
        };
        Self {
            metadata: metadata
                .and_then(Result::ok)
                .unwrap_or_else(|| metadata_of(json)),
            problem,
        }
    }
}

koord_api::delegate_resource! {
    <K> Readable<K> as K {
        fn meta(&self) -> &ObjectMeta {
            match &self.0 {
                Ok(object) => object.meta(),
                Err(unread) => &unread.metadata,
            }
        }
        fn meta_mut(&mut self) -> &mut ObjectMeta {
            match &mut self.0 {
                Ok(object) => object.meta_mut(),
                Err(unread) => &mut unread.metadata,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_api::scheduling::PodMigrationJob;
    use kube::Resource;
    use serde_json::json;

    #[test]
    fn undecodable_object_does_not_hide_others() {
        let job = |name: &str, spec: Value| {
            json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "PodMigrationJob",
                "metadata": {"name": name, "uid": name}, "spec": spec})
        };
        let template = json!({"podRef": {}, "reservationOptions": {"template": {"metadata": 7}}});
        let read: Vec<_> = [
            job("a", json!({"podRef": {}, "ttl": "5m"})),
            job("b", json!({"podRef": {}, "ttl": "5 minutes"})),
            job("c", template),
        ]
        .map(|job| Readable::<PodMigrationJob>::from_json(&job.to_string()))
        .iter()
        .map(|it| {
            let problem = it.0.as_ref().err().map(ToString::to_string);
            let name = it.meta().name.clone().unwrap();
            (name, problem.unwrap_or_default())
        })
        .collect();
        assert_eq!(read[0], ("a".to_owned(), String::new()));
        assert_eq!(read[1].0, "b");
        let (field, value) = read[1].1.split_once(": ").unwrap();
        assert_eq!(field, "spec.ttl");
        assert!(value.contains("\"5 minutes\" has unknown unit"), "{value}");
        assert_eq!(read[2].0, "c");
        let (field, _) = read[2].1.split_once(": ").unwrap();
        assert_eq!(field, "spec.reservationOptions.template.metadata");
    }

    #[test]
    fn undecodable_metadata_keeps_the_name() {
        let json = json!({"metadata": {"name": "a", "labels": 7, "uid": "u"}, "spec": {}});
        let unread = Readable::<PodMigrationJob>::decode(&json.to_string())
            .unwrap()
            .0
            .unwrap_err();
        assert_eq!(unread.names(), ("", "a"));
        assert_eq!(unread.metadata.uid.as_deref(), Some("u"));
        assert!(unread.problem.starts_with("metadata.labels: "), "{unread}");
    }
}
