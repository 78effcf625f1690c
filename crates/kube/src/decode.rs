//! Decodes objects from JSON, and locates the error in an object that cannot be decoded.
//!
//! The decoder of a kind is a lot of code. Behind a generic function it would be compiled again in each crate
//! that calls it; so each kind implements [`Decode`] once, with a function that is not generic.

use std::fmt::Write as _;

/// A kind whose objects can be decoded from JSON.
pub trait Decode: Sized {
    /// Decodes one object.
    ///
    /// # Errors
    /// Fails if `json` is not an object of the kind; [`error_path`] locates the error.
    fn decode(json: &str) -> serde_json::Result<Self>;
}

/// Implements [`Decode`](crate::Decode) for kinds that implement `Deserialize`.
#[macro_export]
macro_rules! decode {
    ($($kind:ty),+ $(,)?) => {$(
        impl $crate::Decode for $kind {
            fn decode(json: &str) -> ::serde_json::Result<Self> {
                ::serde_json::from_str(json)
            }
        }
    )+};
}

/// Implementations for the kinds of Kubernetes and of koord.
mod kinds {
    use k8s_openapi::api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
    };
    use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
    use k8s_openapi::api::authentication::v1::TokenReview;
    use k8s_openapi::api::authorization::v1::SubjectAccessReview;
    use k8s_openapi::api::batch::v1::Job;
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{
        ConfigMap, Endpoints, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
        ReplicationController, Secret, Service, ServiceAccount,
    };
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
    use k8s_openapi::api::scheduling::v1::PriorityClass;
    use k8s_openapi::api::storage::v1::{
        CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
    };
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use koord_api::analysis::{Recommendation, RecommendationCheckpoint};
    use koord_api::config::ClusterColocationProfile;
    use koord_api::quota::ElasticQuotaProfile;
    use koord_api::scheduling::{
        ClusterNetworkTopology, Device, ElasticQuota, PodGroup, PodMigrationJob, Reservation,
    };
    use koord_api::slo::{NodeMetric, NodeSLO, RawNodeMetric, RawNodeSLO};
    use koord_api::topology;
    use kube::core::DynamicObject;

    decode!(
        CSIDriver,
        CSINode,
        CSIStorageCapacity,
        ClusterColocationProfile,
        ClusterNetworkTopology,
        ClusterRole,
        ClusterRoleBinding,
        ConfigMap,
        CustomResourceDefinition,
        DaemonSet,
        Deployment,
        Device,
        DynamicObject,
        ElasticQuota,
        ElasticQuotaProfile,
        Endpoints,
        Event,
        Job,
        Lease,
        MutatingWebhookConfiguration,
        Namespace,
        Node,
        NodeMetric,
        NodeSLO,
        PersistentVolume,
        PersistentVolumeClaim,
        Pod,
        PodDisruptionBudget,
        PodGroup,
        PodMigrationJob,
        PriorityClass,
        RawNodeMetric,
        RawNodeSLO,
        Recommendation,
        RecommendationCheckpoint,
        ReplicaSet,
        ReplicationController,
        Reservation,
        Secret,
        Service,
        ServiceAccount,
        StatefulSet,
        StorageClass,
        SubjectAccessReview,
        TokenReview,
        ValidatingWebhookConfiguration,
        VolumeAttachment,
        topology::v1alpha1::NodeResourceTopology,
        topology::v1alpha2::NodeResourceTopology,
    );
}

/// Returns the path of the value in `json` whose decoding failed with `error`, for example
/// `spec.containers[0].name`; empty for the root.
///
/// The error has only a position. It is after the value, or after the end of its container if the value is
/// the last one in it.
#[must_use]
pub fn error_path(json: &str, error: &serde_json::Error) -> String {
    let lines = json.split_inclusive('\n').take(error.line().max(1) - 1);
    let end = lines.map(str::len).sum::<usize>() + error.column();
    let is_missing_field = error.to_string().starts_with("missing field");
    let (mut value_start, mut walker) = (0, Walker::new(json));
    while let Some(event) = walker.next() {
        match event {
            Event::Start { at, is_scalar } => {
                if at > end || (at == end && is_scalar) {
                    break;
                }
                value_start = at;
            }
            Event::End { .. } if walker.at > end => break,
            Event::End { start } if is_missing_field => value_start = start,
            Event::End { .. } => {}
        }
    }
    let mut walker = Walker::new(json);
    let is_value = |event: &Event| matches!(event, Event::Start { at, .. } if *at == value_start);
    let _ = walker.find(is_value);
    walker.path()
}

/// Iterates over the values of a JSON document, which may be invalid.
struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The containers around the current value, outermost first.
    containers: Vec<Container>,
    /// The current value if it is a container: the next value is inside it.
    opened: Option<Container>,
}

/// An object or an array; `start` is the offset of its bracket.
enum Container {
    Object {
        start: usize,
        key: std::ops::Range<usize>,
        expects_key: bool,
    },
    Array {
        start: usize,
        index: usize,
    },
}

enum Event {
    /// A value starts at this offset.
    Start { at: usize, is_scalar: bool },
    /// The container that started at this offset ends.
    End { start: usize },
}

impl<'a> Walker<'a> {
    fn new(json: &'a str) -> Self {
        Self {
            bytes: json.as_bytes(),
            at: 0,
            containers: Vec::new(),
            opened: None,
        }
    }

    /// Returns the path of the current value.
    fn path(&self) -> String {
        let mut path = String::new();
        for container in &self.containers {
            match container {
                Container::Object { key, .. } => {
                    let key = self.bytes.get(key.clone()).unwrap_or_default();
                    let key: String = serde_json::from_slice(key).unwrap_or_default();
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(&key);
                }
                Container::Array { index, .. } => {
                    let _ = write!(path, "[{index}]");
                }
            }
        }
        path
    }

    /// Returns the offset after the string whose opening quote is before `at`.
    fn string_end(&self, mut at: usize) -> usize {
        while let Some(&byte) = self.bytes.get(at) {
            match byte {
                b'"' => return at + 1,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        self.bytes.len()
    }
}

impl Iterator for Walker<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.containers.extend(self.opened.take());
        loop {
            let start = self.at;
            let byte = *self.bytes.get(start)?;
            self.at += 1;
            let is_scalar = match byte {
                b':' => continue,
                byte if byte.is_ascii_whitespace() => continue,
                b',' => {
                    match self.containers.last_mut() {
                        Some(Container::Object { expects_key, .. }) => *expects_key = true,
                        Some(Container::Array { index, .. }) => *index += 1,
                        None => {}
                    }
                    continue;
                }
                b'}' | b']' => match self.containers.pop() {
                    Some(Container::Object { start, .. } | Container::Array { start, .. }) => {
                        return Some(Event::End { start });
                    }
                    None => continue,
                },
                b'{' => {
                    self.opened = Some(Container::Object {
                        start,
                        key: 0..0,
                        expects_key: true,
                    });
                    false
                }
                b'[' => {
                    self.opened = Some(Container::Array { start, index: 0 });
                    false
                }
                b'"' => {
                    self.at = self.string_end(self.at);
                    match self.containers.last_mut() {
                        Some(Container::Object {
                            key, expects_key, ..
                        }) if *expects_key => {
                            (*key, *expects_key) = (start..self.at, false);
                            continue;
                        }
                        _ => true,
                    }
                }
                _ => {
                    let ends = |byte: &u8| {
                        matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace()
                    };
                    let rest = &self.bytes[self.at..];
                    self.at += rest.iter().position(ends).unwrap_or(rest.len());
                    true
                }
            };
            return Some(Event::Start {
                at: start,
                is_scalar,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    /// Collects the JSON pointers of all values in `value`.
    fn pointers(value: &Value, at: &str, into: &mut Vec<String>) {
        into.push(at.to_owned());
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    pointers(value, &format!("{at}/{key}"), into);
                }
            }
            Value::Array(list) => {
                for (index, value) in list.iter().enumerate() {
                    pointers(value, &format!("{at}/{index}"), into);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn error_path_equals_that_of_a_tracking_decoder() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"a \"b\"": "c"}, "generation": 3, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]},
            "spec": {"nodeName": "n", "priority": 7, "containers": [
                {"name": "a", "ports": [{"containerPort": 80}, {"containerPort": 81}], "command": ["x", "y"]},
                {"name": "b", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}, "tty": true}],
                "tolerations": [{"key": "k", "operator": "Exists"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let mut all = Vec::new();
        pointers(&pod, "", &mut all);
        let mut wrong = 0;
        for (pointer, instead) in all.iter().flat_map(|pointer| {
            [
                json!(7),
                json!("x"),
                json!({"k": 1}),
                json!([1]),
                json!(null),
            ]
            .map(|to| (pointer, to))
        }) {
            let mut pod = pod.clone();
            *pod.pointer_mut(pointer).unwrap() = instead.clone();
            for json in [pod.to_string(), serde_json::to_string_pretty(&pod).unwrap()] {
                let Err(error) = Pod::decode(&json) else {
                    continue;
                };
                wrong += 1;
                let mut deserializer = serde_json::Deserializer::from_str(&json);
                let slow =
                    serde_path_to_error::deserialize::<_, Pod>(&mut deserializer).unwrap_err();
                let slow = slow.path().to_string();
                let slow = match (slow.as_str(), pointer.as_str()) {
                    // For a wrong version or kind it reports the object around it.
                    (".", "/apiVersion" | "/kind") => &pointer[1..],
                    (".", _) => "",
                    (path, _) => path,
                };
                assert_eq!(
                    error_path(&json, &error),
                    slow,
                    "{error}: {pointer} = {instead}\n{json}"
                );
            }
        }
        assert!(wrong > 200, "{wrong}");
    }

    #[test]
    fn error_path_of_invalid_json_terminates() {
        let deep = format!("{}1", "[{\"a\":".repeat(100_000));
        for text in [
            "", "{", "]]}", "\"", "{\"a\\", "{\"a\" 1", "[,,{]", "\u{e9}", &deep,
        ] {
            let error = Pod::decode(text).unwrap_err();
            let _ = error_path(text, &error);
        }
        let error = Pod::decode("{\"spec\": {\"priority\": 1.5}}").unwrap_err();
        assert_eq!(error_path("", &error), "");
    }
}
