use super::*;
use encode::{delimited as bytes, integer as int};
use proptest::prelude::*;
use serde_json::json;

#[test]
fn client_bodies_are_decoded() {
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
            "data": {"a": "b", "empty": ""}, "binaryData": {"x": "AAEC"}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "d", "labels": {"app": "d"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "d"}},
                "template": {"metadata": {"labels": {"app": "d"}}, "spec": {
                    "containers": [{"name": "c", "image": "i", "command": ["a", "b"],
                        "livenessProbe": {"httpGet": {"path": "/", "port": "http"}},
                        "ports": [{"containerPort": 80}],
                        "resources": {"requests": {"cpu": "100m"}}}],
                    "volumes": [{"name": "v", "hostPath": {"path": "/x"}}, {"name": "e", "emptyDir": {}}]}},
                "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}}}}),
        json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", "namespace": "d"},
            "target": {"kind": "Node", "name": "n"}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
            "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15,
                "renewTime": "2026-01-02T03:04:05.123456Z"}}),
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": "u", "extra": {"k": ["a", "b"]}}, "status": {"allowed": false}}),
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
            "deleteOptions": {"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}}}),
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "p"}, "value": -5}),
    ] {
        assert_eq!(decode(&encode(&object).unwrap()).unwrap(), object);
    }
}

#[test]
fn drops_zero_values_that_go_writes() {
    // ObjectMeta with empty strings, a zero time and generation 0, as Go encodes it.
    let mut metadata = Vec::new();
    bytes(&mut metadata, 1, b"n");
    bytes(&mut metadata, 2, b"");
    bytes(&mut metadata, 5, b"");
    int(&mut metadata, 7, 0);
    bytes(&mut metadata, 8, b"");
    let mut ns = Vec::new();
    bytes(&mut ns, 1, &metadata);
    bytes(&mut ns, 2, b"");
    bytes(&mut ns, 3, b"");
    let mut tm = Vec::new();
    bytes(&mut tm, 1, b"v1");
    bytes(&mut tm, 2, b"Namespace");
    let mut body = MAGIC.to_vec();
    bytes(&mut body, 1, &tm);
    bytes(&mut body, 2, &ns);
    assert_eq!(
        decode(&body).unwrap(),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
    );
}

/// Requests to a kube-apiserver with its responses in protobuf and JSON.
fn steps() -> Vec<Value> {
    let vectors = include_str!("../../../apiserver/tests/it/vectors/apply.json");
    let vectors: Value = serde_json::from_str(vectors).unwrap();
    let scenarios = vectors["scenarios"].as_array().unwrap();
    let matches = scenarios.iter().find(|s| s["name"] == "protobuf").unwrap();
    matches["steps"].as_array().unwrap().clone()
}

/// Returns the protobuf response to the request whose path has this end.
fn answer(path: &str) -> Vec<u8> {
    let steps = steps();
    let requested = |s: &&Value| s["path"].as_str().unwrap().ends_with(path);
    let body = &steps.iter().find(requested).unwrap()["answer"]["body"];
    let standard = base64::engine::general_purpose::STANDARD;
    standard.decode(body.as_str().unwrap()).unwrap()
}

/// Bodies as a kube-apiserver encodes them, with the JSON of the same objects.
fn recorded() -> Vec<(Vec<u8>, Value)> {
    let steps = steps();
    let body = |kind: &str, path: &Value| {
        let matches = steps
            .iter()
            .find(|s| s["path"] == *path && s["accept"] == kind);
        matches.map(|s| s["answer"]["body"].clone())
    };
    let mut out = Vec::new();
    for step in steps.iter().filter(|s| s["accept"] == "application/json") {
        let bytes = body("application/vnd.kubernetes.protobuf", &step["path"]).unwrap();
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(bytes.as_str().unwrap())
            .unwrap();
        out.push((bytes, step["answer"]["body"].clone()));
    }
    out
}

/// Removes nulls, empty strings and empty objects, which protobuf does not distinguish from absent ones.
fn lean(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| (k.clone(), lean(v)))
            .filter(|(_, v)| !v.is_null() && *v != "" && *v != json!({}))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(lean).collect(),
        other => other.clone(),
    }
}

#[test]
fn decodes_definitions_and_workloads_as_a_server_sends_them() {
    let mut kinds = Vec::new();
    for (bytes, json) in recorded() {
        if json["kind"].as_str().unwrap().ends_with("List") {
            continue;
        }
        kinds.push(json["kind"].clone());
        let got = decode(&bytes).unwrap();
        assert_eq!(lean(&got), lean(&json));
    }
    assert_eq!(kinds, ["CustomResourceDefinition", "Deployment"]);
}

#[test]
fn encoding_equals_kube_apiserver_bytes() {
    let mut kinds = Vec::new();
    for (bytes, json) in recorded() {
        let kind = json["kind"].as_str().unwrap();
        kinds.push(kind.to_owned());
        let actual = encode(&json).unwrap();
        assert_eq!(actual, bytes, "{kind}");
    }
    assert_eq!(
        kinds,
        ["CustomResourceDefinition", "Deployment", "ConfigMapList"]
    );
    for refused in ["/widgets/l", "/deployments/nope"] {
        let bytes = answer(refused);
        let status = decode(&bytes).unwrap();
        assert_eq!(encode(&status).unwrap(), bytes, "{refused}");
    }
}

#[test]
fn an_event_has_a_length_and_no_envelope() {
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}});
    let event = encode_event("ADDED", &object).unwrap();
    let (length, event) = event.split_at(4);
    assert_eq!(length, (event.len() as u32).to_be_bytes());
    let mut expected = vec![0x0a, 5];
    expected.extend(b"ADDED");
    let inner = encode(&object).unwrap();
    let mut raw = Vec::new();
    bytes(&mut raw, 1, &inner);
    bytes(&mut expected, 2, &raw);
    assert_eq!(event, expected);
}

#[test]
fn unencodable_values_are_errors() {
    let custom = json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {}});
    for kind in ["Widget", "WidgetList"] {
        let mut object = custom.clone();
        object["kind"] = kind.into();
        assert!(matches!(
            encode(&object),
            Err(ProtoError::UnknownKind { .. })
        ));
    }
    let wrong = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": 1}});
    assert_eq!(
        encode(&wrong).unwrap_err().to_string(),
        "protobuf body is malformed: field name cannot hold 1"
    );
    let metadata = json!({"name": "w", "labels": {"b": "2", "a": "1"}});
    let partial = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7"}, "items": [{"metadata": metadata}]});
    let text = String::from_utf8_lossy(&encode(&partial).unwrap()).into_owned();
    let [a, b] = ["\u{1}a\u{12}\u{1}1", "\u{1}b\u{12}\u{1}2"].map(|s| text.find(s).unwrap());
    assert!(a < b, "maps are sorted");
}

#[test]
fn a_schema_may_be_something_else() {
    let named = types::find("apiextensions/v1.JSONSchemaProps").unwrap();
    let read = |name: &str, b: &[u8]| {
        let payload = Payload::Bytes(b);
        read_value(named.field(name).unwrap(), name, payload, 0).unwrap()
    };
    assert_eq!(read("additionalProperties", &[0x08, 1]), json!(true));
    assert_eq!(read("additionalProperties", &[]), json!(false));
    let mut schema = Vec::new();
    bytes(&mut schema, 5, b"string");
    let mut wrapped = Vec::new();
    bytes(&mut wrapped, 2, &schema);
    assert_eq!(
        read("additionalProperties", &wrapped),
        json!({"type": "string"})
    );
    assert_eq!(read("items", &wrapped), json!([{"type": "string"}]));
    let mut wrapped = Vec::new();
    bytes(&mut wrapped, 1, &schema);
    assert_eq!(read("items", &wrapped), json!({"type": "string"}));
}

#[test]
fn unknown_kinds_and_broken_bodies() {
    let mut tm = Vec::new();
    bytes(&mut tm, 1, b"slo.koordinator.sh/v1alpha1");
    bytes(&mut tm, 2, b"NodeMetric");
    let mut body = MAGIC.to_vec();
    bytes(&mut body, 1, &tm);
    assert!(matches!(decode(&body), Err(ProtoError::UnknownKind { .. })));
    assert!(matches!(decode(b"{}"), Err(ProtoError::Malformed(_))));
    body.extend([0x12, 0xff]);
    assert!(matches!(decode(&body), Err(ProtoError::Malformed(_))));
}

proptest! {
    #[test]
    fn never_panics(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
        for (version, kind) in [("v1", "Pod"), ("v1", "Node"), ("v1", "Event"), ("v1", "Secret"),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinition")] {
            let mut tm = Vec::new();
            bytes(&mut tm, 1, version.as_bytes());
            bytes(&mut tm, 2, kind.as_bytes());
            let mut body = MAGIC.to_vec();
            bytes(&mut body, 1, &tm);
            bytes(&mut body, 2, &tail);
            if let Ok(object) = decode(&body) {
                prop_assert_eq!(object["kind"].as_str(), Some(kind));
            }
        }
        let mut body = MAGIC.to_vec();
        body.extend(&tail);
        let _ = decode(&body);
    }
}
