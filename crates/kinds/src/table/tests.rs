use super::*;
use crate::Registry;

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

fn cells(group: &str, version: &str, plural: &str, object: Value) -> Vec<String> {
    let resource = Registry::builtin().find(group, version, plural).unwrap();
    let table = resource.to_table(&[object], Include::Metadata, now());
    let columns = table["columnDefinitions"].as_array().unwrap().len();
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), columns, "{plural}");
    cells
        .iter()
        .map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned))
        .collect()
}

fn pod(spec: Value, status: Value) -> Value {
    json!({
        "metadata": {"name": "p", "creationTimestamp": "2026-01-02T03:03:05Z"},
        "spec": spec, "status": status,
    })
}

#[test]
fn pod_status_column() {
    let two = json!({"containers": [{"name": "a"}, {"name": "b"}]});
    let one = json!({"containers": [{"name": "a"}]});
    let init =
        json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
    for (spec, status, expect) in [
        (one.clone(), json!({"phase": "Pending"}), "0/1 Pending 0"),
        (
            two.clone(),
            json!({"phase": "Running", "containerStatuses": [
                {"ready": true, "restartCount": 2, "state": {"running": {}},
                 "lastState": {"terminated": {"finishedAt": "2026-01-02T02:59:05Z"}}},
                {"ready": true, "restartCount": 1, "state": {"running": {}}}]}),
            "2/2 Running 3 (5m ago)",
        ),
        (
            one.clone(),
            json!({"phase": "Running", "containerStatuses": [
                {"ready": false, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
            "0/1 CrashLoopBackOff 4",
        ),
        (
            one.clone(),
            json!({"phase": "Failed", "containerStatuses": [
                {"ready": false, "state": {"terminated": {"exitCode": 3}}}]}),
            "0/1 ExitCode:3 0",
        ),
        (
            one.clone(),
            json!({"phase": "Succeeded", "containerStatuses": [
                {"ready": false, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}),
            "0/1 Completed 0",
        ),
        (
            init,
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 0}}},
                {"name": "j", "state": {"running": {}}}]}),
            "0/1 Init:1/2 0",
        ),
        (
            one.clone(),
            json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
            "0/1 SchedulingGated 0",
        ),
        (
            one,
            json!({"phase": "Failed", "reason": "Evicted"}),
            "0/1 Evicted 0",
        ),
    ] {
        let row = cells("", "v1", "pods", pod(spec, status));
        assert_eq!(row[1..4].join(" "), expect);
        assert_eq!(row[4], "60s");
        assert_eq!(row[5], "<none>");
    }
    let mut removed = pod(two, json!({"phase": "Running"}));
    removed["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    assert_eq!(cells("", "v1", "pods", removed)[2], "Terminating");
}

#[test]
fn rows_of_other_kinds() {
    let node = json!({
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": ""},
            "creationTimestamp": "2026-01-02T01:04:05Z"},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.35.0"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    });
    assert_eq!(
        cells("", "v1", "nodes", node)[..6].join(" "),
        "n Ready,SchedulingDisabled worker 120m v1.35.0 10.0.0.1"
    );
    let deploy = json!({"metadata": {"name": "d"}, "spec": {"replicas": 3, "selector":
        {"matchLabels": {"a": "b"}}, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 2}});
    assert_eq!(
        cells("apps", "v1", "deployments", deploy).join(" "),
        "d 2/3 3 2 <unknown> c i a=b"
    );
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p"},
        "type": "Normal", "reason": "Scheduled", "message": "m\n", "count": 2,
        "lastTimestamp": "2026-01-02T03:04:00Z", "source": {"component": "s", "host": "h"}});
    let row = cells("", "v1", "events", event);
    assert_eq!(row[..4].join(" "), "5s Normal Scheduled pod/p");
    assert_eq!(
        (row[5].as_str(), row[6].as_str(), row[8].as_str()),
        ("s, h", "m", "2")
    );
    let pdb = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "50%"}});
    assert_eq!(
        cells("policy", "v1", "poddisruptionbudgets", pdb)[1..3].join(" "),
        "50% N/A"
    );
}

#[test]
fn every_printer_survives_nonsense() {
    let junk = [
        Value::Null,
        json!([]),
        json!({"metadata": 1, "spec": "x", "status": [1], "data": true}),
        json!({"metadata": {"labels": [], "creationTimestamp": 3}, "spec": {"containers": {}, "ports": [1],
            "initContainers": [null]}, "status": {"conditions": [1], "containerStatuses": [0, "a"],
            "initContainerStatuses": [7]}}),
    ];
    for resource in Registry::builtin().all() {
        let table = resource.to_table(&junk, Include::Object, now());
        let columns = table["columnDefinitions"].as_array().unwrap().len();
        for row in table["rows"].as_array().unwrap() {
            assert_eq!(
                row["cells"].as_array().unwrap().len(),
                columns,
                "{}",
                resource.plural
            );
        }
    }
}
