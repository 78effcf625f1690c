use super::*;
use proptest::prelude::*;
use serde_json::json;

/// Encodes JSON with the same table; what Go would send, except for zero values it also writes.
fn encode(named: &Named, map: &Map<String, Value>) -> Vec<u8> {
    let mut out = Vec::new();
    for field in &named.wire {
        if let Some(inner) = field.inline {
            if field.number > 0 {
                bytes(&mut out, field.number, &encode(types::get(inner), map));
            }
        } else if let Some(v) = map.get(field.json) {
            value(&mut out, field.number, named.field(field.json).unwrap(), v);
        }
    }
    out
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push((n as u8) | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn bytes(out: &mut Vec<u8>, number: u32, b: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, b.len() as u64);
    out.extend(b);
}

fn int(out: &mut Vec<u8>, number: u32, n: i64) {
    varint(out, u64::from(number) << 3);
    varint(out, n as u64);
}

fn value(out: &mut Vec<u8>, number: u32, schema: &Schema, v: &Value) {
    match (schema.kind, v) {
        (Type::String, Value::String(s)) => bytes(out, number, s.as_bytes()),
        (Type::Bytes, Value::String(s)) => {
            let raw = base64::engine::general_purpose::STANDARD.decode(s).unwrap();
            bytes(out, number, &raw);
        }
        (Type::Quantity, Value::String(s)) => {
            let mut inner = Vec::new();
            bytes(&mut inner, 1, s.as_bytes());
            bytes(out, number, &inner);
        }
        (Type::IntOrString, v) => {
            let mut inner = Vec::new();
            match v {
                Value::String(s) => {
                    int(&mut inner, 1, 1);
                    bytes(&mut inner, 3, s.as_bytes());
                }
                v => int(&mut inner, 2, v.as_i64().unwrap()),
            }
            bytes(out, number, &inner);
        }
        (Type::Time | Type::MicroTime, Value::String(s)) => {
            let t: jiff::Timestamp = s.parse().unwrap();
            let mut inner = Vec::new();
            int(&mut inner, 1, t.as_second());
            int(&mut inner, 2, i64::from(t.subsec_nanosecond()));
            bytes(out, number, &inner);
        }
        (Type::Boolean, v) => int(out, number, i64::from(v.as_bool().unwrap())),
        (Type::Int32 | Type::Integer, v) => int(out, number, v.as_i64().unwrap()),
        (Type::Array, Value::Array(items)) => {
            items
                .iter()
                .for_each(|i| value(out, number, schema.element(), i));
        }
        (Type::Object, Value::Object(map)) => match schema.named() {
            Some(named) => bytes(out, number, &encode(named, map)),
            None => {
                for (k, v) in map {
                    let mut entry = Vec::new();
                    bytes(&mut entry, 1, k.as_bytes());
                    value(&mut entry, 2, schema.member(k), v);
                    bytes(out, number, &entry);
                }
            }
        },
        (Type::WrappedStrings, Value::Array(items)) => {
            let mut inner = Vec::new();
            items
                .iter()
                .for_each(|i| bytes(&mut inner, 1, i.as_str().unwrap().as_bytes()));
            bytes(out, number, &inner);
        }
        (Type::FieldsV1 | Type::Raw | Type::Any, v) => {
            let mut inner = Vec::new();
            bytes(&mut inner, 1, v.to_string().as_bytes());
            bytes(out, number, &inner);
        }
        other => panic!("{other:?}"),
    }
}

fn envelope(object: &Value) -> Vec<u8> {
    let (api_version, kind) = (
        meta::str_at(object, &["apiVersion"]),
        meta::str_at(object, &["kind"]),
    );
    let named = type_of(api_version, kind).unwrap();
    let mut tm = Vec::new();
    bytes(&mut tm, 1, api_version.as_bytes());
    bytes(&mut tm, 2, kind.as_bytes());
    let mut out = MAGIC.to_vec();
    bytes(&mut out, 1, &tm);
    bytes(&mut out, 2, &encode(named, object.as_object().unwrap()));
    bytes(&mut out, 3, b"");
    bytes(&mut out, 4, b"");
    out
}

#[test]
fn decodes_what_clients_post() {
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
            "spec": {"user": "u", "extra": {"k": ["a", "b"]}}}),
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
            "deleteOptions": {"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}}}),
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "p"}, "value": -5}),
    ] {
        assert_eq!(decode(&envelope(&object)).unwrap(), object);
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

/// Bodies as a kube-apiserver encodes them, with the JSON of the same objects.
fn recorded() -> Vec<(Vec<u8>, Value)> {
    let vectors = include_str!("../../../tests/it/vectors/apply.json");
    let vectors: Value = serde_json::from_str(vectors).unwrap();
    let scenarios = vectors["scenarios"].as_array().unwrap();
    let found = scenarios.iter().find(|s| s["name"] == "protobuf").unwrap();
    let steps = found["steps"].as_array().unwrap();
    let body = |kind: &str, path: &Value| {
        let found = steps
            .iter()
            .find(|s| s["path"] == *path && s["accept"] == kind);
        found.map(|s| s["answer"]["body"].clone())
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

/// Without nulls, empty strings and empty objects, which protobuf does not tell from absent ones.
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
            let _ = decode(&body);
        }
        let mut body = MAGIC.to_vec();
        body.extend(&tail);
        let _ = decode(&body);
    }
}
