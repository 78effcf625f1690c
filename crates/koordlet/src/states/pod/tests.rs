use super::*;
use crate::states::Driver;
use proptest::prelude::*;
use serde_json::json;

fn info(value: serde_json::Value) -> PodInfo {
    let pod: Pod = serde_json::from_value(value).unwrap();
    PodInfo::from_pod(&pod, &Layout::new(Driver::Cgroupfs, CgroupPath::root())).unwrap()
}

#[test]
fn a_batch_pod() {
    let pod = info(json!({
        "metadata": {"uid": "u1", "name": "be", "namespace": "default",
            "labels": {"koordinator.sh/qosClass": "BE"},
            "annotations": {"koordinator.sh/eviction-policy": "[\"MemoryEvict\"]"}},
        "spec": {"priority": 5500, "containers": [
            {"name": "a", "resources": {
                "requests": {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}}},
            {"name": "b"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "a", "containerID": "koord://c1", "image": "", "imageID": "", "ready": true, "restartCount": 0}]}
    }));
    assert_eq!(pod.qos, QosClass::Be);
    assert_eq!(pod.priority_class, PriorityClass::Batch);
    assert_eq!(pod.cgroup.as_str(), "kubepods/besteffort/podu1");
    assert_eq!(pod.containers[0].cgroup.as_ref().unwrap().name(), "c1");
    assert_eq!(pod.containers[0].batch.unwrap().cpu_request, Some(1500));
    assert_eq!(pod.containers[0].batch.unwrap().cpu_limit, None);
    assert_eq!(pod.containers[1].batch, None);
    assert_eq!(pod.batch_cpu_request(), 1500);
    assert!(!pod.may_be_evicted_by("BEMemoryEvict"));
    assert!(pod.is_best_effort() && pod.is_active());
}

#[test]
fn requests_count_init_containers_and_overhead() {
    let pod = info(json!({
        "metadata": {"uid": "u1"},
        "spec": {
            "overhead": {"cpu": "100m"},
            "initContainers": [
                {"name": "i", "resources": {"requests": {"cpu": "3"}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]}
    }));
    assert_eq!((pod.cpu_request, pod.memory_request), (3100, 1 << 30));
    assert_eq!(pod.kube_qos, KubeQos::Burstable);
    assert_eq!(pod.qos_default, QosClass::Ls);
}

#[test]
fn pod_level_requests_replace_the_sum() {
    let pod = info(json!({
        "metadata": {"uid": "u1"},
        "spec": {
            "resources": {"requests": {"cpu": "2"}},
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]}
    }));
    assert_eq!((pod.cpu_request, pod.memory_request), (2000, 1 << 30));
}

#[test]
fn only_a_hash_of_the_kubelet_moves_the_group() {
    let group = |hash: &str| {
        let pod = info(json!({
            "metadata": {"uid": "u1", "annotations": {"kubernetes.io/config.hash": hash}},
            "spec": {"containers": [{"name": "a"}]}
        }));
        pod.cgroup.as_str().to_owned()
    };
    let hash = "0123456789abcdef0123456789abcdef";
    assert_eq!(group(hash), format!("kubepods/besteffort/pod{hash}"));
    for foreign in ["6f1c2a5e-0d6b-4a51-9a55-0d3b8f0e7a11", "../x", ""] {
        assert_eq!(group(foreign), "kubepods/besteffort/podu1");
    }
}

#[test]
fn malformed_annotations_do_not_lose_the_pod() {
    let pod = info(json!({
        "metadata": {"uid": "u1", "annotations": {
            "koordinator.sh/eviction-policy": "nonsense",
            "node.koordinator.sh/extended-resource-spec": "{"}},
        "spec": {"containers": [{"name": "a"}]}
    }));
    assert!(!pod.may_be_evicted_by("BEMemoryEvict"));
    assert_eq!(pod.phase, Phase::Unknown);
}

const MANY: &str = r#"{
    "metadata": {"uid": "u1", "name": "p", "namespace": "a", "labels": {
            "koordinator.sh/qosClass": "LS", "koordinator.sh/priority": "1200",
            "koordinator.sh/eviction-enabled": "true", "koordinator.sh/core-sched-group-id": "",
            "koordinator.sh/core-sched-policy": "exclusive",
            "koordinator.sh/gpu-isolation-provider": "HAMi-core"},
        "annotations": {}},
    "spec": {"priority": 9100, "hostNetwork": true, "runtimeClassName": "kata",
        "initContainers": [
            {"name": "i", "resources": {"limits": {"cpu": "1"}}},
            {"name": "s", "restartPolicy": "Always",
             "resources": {"requests": {"kubernetes.io/mid-cpu": "500"}}}],
        "containers": [{"name": "a", "resources": {
            "requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "2"}}}]},
    "status": {"phase": "Running",
        "initContainerStatuses": [
            {"name": "i", "containerID": "containerd://i0", "image": "", "imageID": "", "ready": true,
             "restartCount": 0, "state": {"terminated": {"exitCode": 0}}},
            {"name": "s", "containerID": "containerd://s0", "image": "", "imageID": "", "ready": true,
             "restartCount": 0, "state": {"running": {}}}],
        "containerStatuses": [
            {"name": "a", "containerID": "containerd://a0", "image": "", "imageID": "", "ready": true,
             "restartCount": 0, "state": {"running": {}}}]}
}"#;

fn noted(notes: &serde_json::Value, last: Option<&PodInfo>) -> (PodInfo, Vec<Malformed>) {
    let mut value: serde_json::Value = serde_json::from_str(MANY).unwrap();
    value["metadata"]["annotations"] = notes.clone();
    let pod: Pod = serde_json::from_value(value).unwrap();
    PodInfo::read(&pod, &Layout::default(), last).unwrap()
}

#[test]
fn pod_has_all_inputs_of_hooks_and_strategies() {
    let (pod, malformed) = noted(&json!({}), None);
    assert_eq!(malformed, []);
    assert_eq!((pod.priority_value, pod.sub_priority), (9100, Some(1200)));
    assert!(pod.eviction_enabled && pod.host_network);
    assert_eq!(pod.runtime_class.as_deref(), Some("kata"));
    let settings = pod.settings();
    assert_eq!(settings.core_sched_group.as_deref(), Some(""));
    assert_eq!(settings.core_sched_policy, CoreSchedPolicy::Exclusive);
    assert_eq!(settings.gpu_isolation.as_deref(), Some("HAMi-core"));
    let main = &pod.containers[0];
    assert_eq!(
        (main.role, main.running, main.hash()),
        (Role::Main, true, Some("a0"))
    );
    let native = NativeResources {
        cpu_request: Some(250),
        cpu_limit: Some(2000),
        memory_request: Some(1 << 30),
        memory_limit: None,
    };
    assert_eq!(main.native, native);
    let [init, sidecar] = &pod.init_containers[..] else {
        panic!("{:?}", pod.init_containers);
    };
    assert_eq!(
        (init.role, init.running, init.native.cpu_limit),
        (Role::Init, false, Some(1000))
    );
    assert_eq!((sidecar.role, sidecar.running), (Role::Sidecar, true));
    assert_eq!(sidecar.mid.as_ref().unwrap().cpu_request, Some(500));
    assert_eq!(
        sidecar.cgroup.as_ref().unwrap().as_str(),
        "kubepods/burstable/podu1/s0"
    );
    let resident: Vec<_> = pod.resident_containers().map(|c| c.name.as_str()).collect();
    assert_eq!(
        (resident, pod.all_containers().count()),
        (vec!["a", "s"], 3)
    );

    let plain = info(json!({"metadata": {"uid": "u2"}, "spec": {"containers": [{"name": "a"}]}}));
    assert_eq!(
        (plain.settings(), plain.settings.is_none()),
        (&settings::NONE, true)
    );
    assert_eq!((plain.sub_priority, plain.eviction_enabled), (None, false));
}

/// Key, a good value, a malformed one.
const NOTES: [(&str, &str, &str); 13] = [
    (
        "koordinator.sh/cpuBurst",
        r#"{"policy":"auto","cpuBurstPercent":200}"#,
        r#"{"cpuBurstPercent":0}"#,
    ),
    (
        "koordinator.sh/cpuBurst",
        r#"{"policy":"auto"}"#,
        r#"{"policy":"sometimes"}"#,
    ),
    (
        "koordinator.sh/cpuQOS",
        r#"{"enable":true,"groupIdentity":-1}"#,
        r#"{"groupIdentity":9}"#,
    ),
    (
        "koordinator.sh/memoryQOS",
        r#"{"policy":"auto","wmarkRatio":90}"#,
        r#"{"wmarkRatio":"x"}"#,
    ),
    (
        "koordinator.sh/blkioQOS",
        r#"{"blocks":[{"name":"/dev/vda","type":"device"}]}"#,
        "[]",
    ),
    (
        "koordinator.sh/networkQOS",
        r#"{"ingressLimit":"10M"}"#,
        r#"{"ingressLimit":"x"}"#,
    ),
    ("koordinator.sh/eviction-priority", "7", "seven"),
    (
        "koordinator.sh/eviction-policy",
        r#"["CPUEvict"]"#,
        "CPUEvict",
    ),
    ("koordinator.sh/oom-score-adj", "-500", "5000"),
    (
        "koordinator.sh/oom-score-adj-spec",
        r#"{"a":-500}"#,
        r#"{"a":5000}"#,
    ),
    (
        "scheduling.koordinator.sh/resource-status",
        r#"{"cpuset":"0-3","numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}]}"#,
        r#"{"cpuset":"3-0"}"#,
    ),
    (
        "scheduling.koordinator.sh/device-allocated",
        r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50"}}]}"#,
        r#"{"gpu":[{"minor":"one"}]}"#,
    ),
    (
        "node.koordinator.sh/resctrl",
        r#"{"mb":{"schemata":{"percent":20}}}"#,
        r#"{"mb":"all"}"#,
    ),
];

#[test]
fn malformed_annotation_keeps_last_good_value_and_is_reported() {
    let (none, _) = noted(&json!({}), None);
    for (key, good, bad) in NOTES {
        let (first, malformed) = noted(&json!({ key: good }), None);
        assert_eq!(malformed, [], "{key}");
        assert_ne!(first, none, "{key}");
        let (kept, malformed) = noted(&json!({ key: bad }), Some(&first));
        assert_eq!(kept, first, "{key}");
        assert_eq!(malformed.len(), 1, "{key}: {malformed:?}");
        assert_eq!(
            (malformed[0].field.as_str(), malformed[0].value.as_str()),
            (key, bad)
        );
        let (mut fresh, _) = noted(&json!({ key: bad }), None);
        if key.ends_with("eviction-policy") {
            assert_eq!(
                fresh.evictable_by.take(),
                Some(vec![]),
                "no evictor is allowed"
            );
        }
        assert_eq!(fresh, none, "{key}");
        let (removed, malformed) = noted(&json!({}), Some(&first));
        assert_eq!((removed, malformed), (none.clone(), Vec::new()), "{key}");
    }
    let all: serde_json::Map<_, _> = NOTES
        .iter()
        .map(|(key, good, _)| ((*key).to_owned(), json!(good)))
        .collect();
    let (pod, malformed) = noted(&json!(all), None);
    assert_eq!(malformed, []);
    let settings = pod.settings();
    assert_eq!(settings.oom_score_adj.for_container("a"), Some(-500));
    assert_eq!(
        (settings.numa[0].node, pod.cpus.as_ref().map(CpuSet::len)),
        (1, Some(4))
    );
    assert_eq!(settings.devices["gpu"][0].minor, 1);
    assert_eq!(
        settings.resctrl.as_ref().unwrap().1,
        r#"{"mb":{"schemata":{"percent":20}}}"#
    );
    assert!(pod.may_be_evicted_by("CPUEvict") && !pod.may_be_evicted_by("MemoryEvict"));
    // Upstream: the empty policy allows no evictor.
    let (pod, malformed) = noted(&json!({"koordinator.sh/eviction-policy": ""}), None);
    assert!(!pod.may_be_evicted_by("CPUEvict"));
    assert_eq!(malformed.len(), 1);
}

#[test]
fn malformed_amounts_are_named_and_batch_amounts_stay() {
    let spec = "node.koordinator.sh/extended-resource-spec";
    let good = r#"{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":"1k"}}}}"#;
    let (first, _) = noted(&json!({ spec: good }), None);
    assert_eq!(first.containers[0].batch.unwrap().cpu_limit, Some(1000));
    let (kept, malformed) = noted(&json!({ spec: "{" }), Some(&first));
    assert_eq!(kept, first);
    assert_eq!(malformed[0].field, spec);

    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"uid": "u", "labels": {"koordinator.sh/priority": "high"}},
        "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "two"}}}]}}))
    .unwrap();
    let (pod, mut malformed) = PodInfo::read(&pod, &Layout::default(), None).unwrap();
    malformed.sort();
    let named: Vec<_> = malformed
        .iter()
        .map(|m| (m.field.as_str(), m.value.as_str()))
        .collect();
    let limit = "spec.containers[0].resources.limits[cpu]";
    assert_eq!(named, [("koordinator.sh/priority", "high"), (limit, "two")]);
    assert_eq!(
        (pod.sub_priority, pod.containers[0].native),
        (None, NativeResources::default())
    );
}

/// Any user who creates a pod can write the annotation, and a container would get the devices' files.
#[test]
fn rdma_devices_without_request_are_ignored() {
    let key = "scheduling.koordinator.sh/device-allocated";
    let rdma_and_gpu = json!({"rdma": [{"minor": 0, "id": "0000:3b:00.0"}], "gpu": [{"minor": 1}]});
    let rdma = json!({"rdma": [{"minor": 0, "id": "0000:3b:00.0"}]});
    let file = "0123456789abcdef0123456789abcdef";
    let states = crate::states::States::default();
    let listed = |uid: &str, devices: &serde_json::Value, request: &str| {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": uid, "name": "p", "namespace": "d",
                "annotations": {key: devices.to_string()}},
            "spec": {"containers": [{"name": "a", "resources": {"requests": {request: "1"}}}]}}))
        .unwrap();
        states.publish_pods([pod].iter(), &Layout::default());
        let pods = states.pods.load_full().unwrap();
        let devices = pods[0].settings().devices.keys().cloned();
        (
            devices.collect::<Vec<_>>().join(" "),
            pods[0].settings.is_none(),
        )
    };
    let own = "koordinator.sh/rdma";
    for (uid, devices, request, want) in [
        ("u", &rdma_and_gpu, own, ("gpu rdma", false)),
        // The same pod without a request: its devices are not kept.
        ("u", &rdma_and_gpu, "cpu", ("gpu", false)),
        ("u", &rdma, "cpu", ("", true)),
        ("u", &rdma, own, ("rdma", false)),
        (file, &rdma, "cpu", ("rdma", false)),
    ] {
        let (kinds, plain) = listed(uid, devices, request);
        assert_eq!((kinds.as_str(), plain), want, "{uid} {devices} {request}");
        let standing = states.malformed_inputs.current();
        let complaint = standing.get("Pod d/p").map(|all| all[0].clone());
        let refused = want.0.is_empty() || want.0 == "gpu";
        assert_eq!(complaint.is_some(), refused, "{complaint:?}");
        if let Some(complaint) = complaint {
            assert_eq!(
                (complaint.field, complaint.value),
                (key.to_owned(), devices.to_string())
            );
        }
    }
}

#[test]
fn plugin_conflict_is_found_in_any_container() {
    let status = |name: &str, message: &str| {
        json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "CreateContainerError", "message": message}}})
    };
    let text = "plugins \"00-a\" and \"10-b\" both tried to set CPU shares";
    for (init, main, want) in [
        (vec![], vec![status("a", "x"), status("b", text)], Some("b")),
        (vec![status("i", text)], vec![status("a", "x")], Some("i")),
        (vec![], vec![status("a", "x")], None),
    ] {
        let pod = info(json!({"metadata": {"uid": "u"}, "status": {
            "initContainerStatuses": init, "containerStatuses": main}}));
        let conflict = pod.conflict.as_deref();
        assert_eq!(conflict.map(|conflict| conflict.container.as_str()), want);
        if let Some(conflict) = conflict {
            assert_eq!(conflict.plugins, ["00-a", "10-b"]);
            assert_eq!(conflict.field, "CPU shares");
        }
    }
}

/// Size of a typical pod: no annotations, three containers.
#[test]
fn a_plain_pod_is_small() {
    assert!(size_of::<PodInfo>() <= 400, "{}", size_of::<PodInfo>());
    assert!(
        size_of::<ContainerInfo>() <= 256,
        "{}",
        size_of::<ContainerInfo>()
    );
}

proptest! {
    /// Any annotation value keeps the pod listed and its values valid.
    #[test]
    fn any_annotation_leaves_the_pod(
        indexes in prop::collection::vec(0..NOTES.len(), 0..4),
        text in prop_oneof!["\\PC{0,16}", "[0-9,-]{0,8}", r#"\{"[a-z]{0,8}":[0-9-]{1,20}\}"#],
    ) {
        let notes: serde_json::Map<_, _> =
            indexes.iter().map(|index| (NOTES[*index].0.to_owned(), json!(text))).collect();
        let (pod, malformed) = noted(&json!(notes), None);
        prop_assert!(malformed.len() <= notes.len());
        let adj = pod.settings().oom_score_adj.for_container("a");
        prop_assert!(adj.is_none_or(|adj| (-1000..=1000).contains(&adj)));
        let identity = pod.settings().cpu_qos.as_ref().and_then(|cpu| cpu.group_identity);
        prop_assert!(identity.is_none_or(|identity| (-1..=2).contains(&identity)));
        prop_assert!(pod.cpus.is_none_or(|cpus| !cpus.is_empty()));
    }
}
