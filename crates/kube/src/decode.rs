//! Reading objects from JSON, and where in one that cannot be read the mistake is.
//!
//! What reads a kind is much code, and a generic function would have it compiled into every crate that
//! calls it. So each kind has a function that is none, once.

use std::fmt::Write as _;

/// A kind whose objects are read from JSON.
pub trait Decode: Sized {
    /// Reads the object that `json` is.
    ///
    /// # Errors
    /// When it is no object of the kind; [`place`] tells where.
    fn decode(json: &str) -> serde_json::Result<Self>;
}

/// Implements [`Decode`] for kinds that are `Deserialize`.
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

/// Kubernetes' own, and koord's.
mod kinds {
    use k8s_openapi::api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
    };
    use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
    use k8s_openapi::api::batch::v1::Job;
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{
        ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
        ReplicationController, Secret, Service,
    };
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
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

    decode!(
        CSIDriver,
        CSINode,
        CSIStorageCapacity,
        ClusterColocationProfile,
        ClusterNetworkTopology,
        ConfigMap,
        CustomResourceDefinition,
        DaemonSet,
        Deployment,
        Device,
        ElasticQuota,
        ElasticQuotaProfile,
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
        StatefulSet,
        StorageClass,
        ValidatingWebhookConfiguration,
        VolumeAttachment,
        topology::v1alpha1::NodeResourceTopology,
        topology::v1alpha2::NodeResourceTopology,
    );
}

/// Returns the path of the value that `error` is about, for example `spec.containers[0].name`; it is empty
/// for the whole of `json`, which it came from. The error has a position only, which is behind the value,
/// and behind the end of what it is in if nothing follows.
#[must_use]
pub fn place(json: &str, error: &serde_json::Error) -> String {
    let lines = json.split_inclusive('\n').take(error.line().max(1) - 1);
    let end = lines.map(str::len).sum::<usize>() + error.column();
    let is_missing = error.to_string().starts_with("missing field");
    // Where the value begins.
    let (mut value, mut walk) = (0, Walk::new(json));
    while let Some(token) = walk.next() {
        match token {
            Token::Begin(start, is_scalar) => {
                if start > end || (start == end && is_scalar) {
                    break;
                }
                value = start;
            }
            Token::End(..) if walk.at > end => break,
            Token::End(start) if is_missing => value = start,
            Token::End(_) => {}
        }
    }
    let mut walk = Walk::new(json);
    while let Some(token) = walk.next() {
        if matches!(token, Token::Begin(start, _) if start == value) {
            break;
        }
    }
    walk.path()
}

/// The values of a JSON document, in order; it need not be a valid one.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The objects and lists around it.
    within: Vec<Within>,
    /// An object or list that has just begun, and is entered next.
    entered: Option<Within>,
}

enum Within {
    Object {
        start: usize,
        key: std::ops::Range<usize>,
        at_key: bool,
    },
    List {
        start: usize,
        index: usize,
    },
}

enum Token {
    /// A value begins there, and whether it is neither object nor list.
    Begin(usize, bool),
    /// The object or list that began there ends.
    End(usize),
}

impl<'a> Walk<'a> {
    fn new(json: &'a str) -> Self {
        Self {
            bytes: json.as_bytes(),
            at: 0,
            within: Vec::new(),
            entered: None,
        }
    }

    /// Returns the path of the value that has just begun.
    fn path(&self) -> String {
        let mut path = String::new();
        for part in &self.within {
            match part {
                Within::Object { key, .. } => {
                    let key = self.bytes.get(key.clone()).unwrap_or_default();
                    let key: String = serde_json::from_slice(key).unwrap_or_default();
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(&key);
                }
                Within::List { index, .. } => {
                    let _ = write!(path, "[{index}]");
                }
            }
        }
        path
    }

    /// Returns where the string whose first byte after the quote is at `at` ends.
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

impl Iterator for Walk<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        self.within.extend(self.entered.take());
        loop {
            let start = self.at;
            let byte = *self.bytes.get(start)?;
            self.at += 1;
            match byte {
                b':' => {}
                byte if byte.is_ascii_whitespace() => {}
                b',' => match self.within.last_mut() {
                    Some(Within::Object { at_key, .. }) => *at_key = true,
                    Some(Within::List { index, .. }) => *index += 1,
                    None => {}
                },
                b'}' | b']' => {
                    if let Some(Within::Object { start, .. } | Within::List { start, .. }) =
                        self.within.pop()
                    {
                        return Some(Token::End(start));
                    }
                }
                b'{' => {
                    self.entered = Some(Within::Object {
                        start,
                        key: 0..0,
                        at_key: true,
                    });
                    return Some(Token::Begin(start, false));
                }
                b'[' => {
                    self.entered = Some(Within::List { start, index: 0 });
                    return Some(Token::Begin(start, false));
                }
                b'"' => {
                    self.at = self.string_end(self.at);
                    match self.within.last_mut() {
                        Some(Within::Object { key, at_key, .. }) if *at_key => {
                            (*key, *at_key) = (start..self.at, false);
                        }
                        _ => return Some(Token::Begin(start, true)),
                    }
                }
                _ => {
                    let ends = |byte: &u8| {
                        matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace()
                    };
                    let rest = &self.bytes[self.at..];
                    self.at += rest.iter().position(ends).unwrap_or(rest.len());
                    return Some(Token::Begin(start, true));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    /// All places in `value`.
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
    fn the_place_of_a_mistake_is_the_one_that_a_reader_with_paths_finds() {
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
        for (pointer, instead) in all.iter().flat_map(|at| {
            [
                json!(7),
                json!("x"),
                json!({"k": 1}),
                json!([1]),
                json!(null),
            ]
            .map(|to| (at, to))
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
                    // Of a wrong version or kind it has the object that they are of.
                    (".", "/apiVersion" | "/kind") => &pointer[1..],
                    (".", _) => "",
                    (place, _) => place,
                };
                assert_eq!(
                    place(&json, &error),
                    slow,
                    "{error}: {pointer} = {instead}\n{json}"
                );
            }
        }
        assert!(wrong > 200, "{wrong}");
    }

    #[test]
    fn text_that_is_no_json_has_a_place_too() {
        let deep = format!("{}1", "[{\"a\":".repeat(100_000));
        for text in [
            "", "{", "]]}", "\"", "{\"a\\", "{\"a\" 1", "[,,{]", "\u{e9}", &deep,
        ] {
            let error = Pod::decode(text).unwrap_err();
            let _ = place(text, &error);
        }
        let error = Pod::decode("{\"spec\": {\"priority\": 1.5}}").unwrap_err();
        assert_eq!(place("", &error), "");
    }
}
