use super::*;
use koord_model::resources::ResourceTable;
use serde_json::{Value, json};

/// Checks the rows of kube-scheduler's `TestIsInterested`, and an extended resource.
#[test]
fn extender_applies_to_pods_with_managed_resources() {
    let memory = json!({"memory": "0"});
    let call =
        |container: Value, init: Value| json!({"containers": container, "initContainers": init});
    let plain = json!([{"name": "app"}]);
    let with = |key: &str, list: &Value| json!([{"name": "c", "resources": {key: list}}]);
    for (name, manages, spec, expected) in [
        ("nothing is managed", "", call(json!([]), json!([])), true),
        (
            "memory is, and none is asked for",
            "memory",
            call(plain.clone(), json!([])),
            false,
        ),
        (
            "requests",
            "memory",
            call(with("requests", &memory), json!([])),
            true,
        ),
        (
            "limits",
            "memory",
            call(with("limits", &memory), json!([])),
            true,
        ),
        (
            "an init container",
            "memory",
            call(plain, with("requests", &memory)),
            true,
        ),
        (
            "another one",
            "a.com/x",
            call(with("requests", &memory), json!([])),
            false,
        ),
        (
            "its own",
            "a.com/x",
            call(with("limits", &json!({"a.com/x": "1"})), json!([])),
            true,
        ),
    ] {
        let managed: Vec<Value> = match manages {
            "" => Vec::new(),
            name => vec![json!({ "name": name })],
        };
        let entry = json!({"urlPrefix": "http://x/", "managedResources": managed});
        let extender: Extender = serde_json::from_value(entry).unwrap();
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
        let pod = serde_json::from_value(pod).unwrap();
        let pod = PodInfo::new(Arc::new(pod), &ResourceTable::new()).unwrap();
        assert_eq!(is_interested(&extender, &pod), expected, "{name}");
    }
}
