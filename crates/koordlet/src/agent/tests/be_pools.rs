//! CPU sets of batch pods by NUMA node (gate BECPUManager), together with suppression.

use super::*;
use crate::states::node::SystemQos;
use crate::states::topology::Pool;

/// Returns a rig of eight CPUs on two NUMA nodes. CPU 0 is reserved, 1 belongs to SYSTEM pods, 6 to an LSR
/// pod and 7 to an LSE pod.
fn rig(gates: &[(Gate, bool)]) -> Rig {
    let mut settings = Settings::default();
    settings.gates.set(Gate::BECPUManager, true);
    for (gate, on) in gates {
        settings.gates.set(*gate, *on);
    }
    let rig = Rig::on(Tree::hybrid("0-7").unwrap(), settings);
    for path in [
        "podbe/sandbox",
        "podone/c1",
        "podboth/c1",
        "podgone/c1",
        "podpinned/c1",
        "podplain/c1",
    ] {
        rig.tree
            .group(&format!("kubepods/besteffort/{path}"))
            .unwrap();
    }
    rig.tree.group("kubepods/burstable/podmixed/c1").unwrap();
    let with_status = |mut pod: Pod, status: serde_json::Value| {
        let key = "scheduling.koordinator.sh/resource-status".to_owned();
        pod.metadata.annotations = Some([(key, status.to_string())].into());
        pod
    };
    let batch = |name: &str, more: serde_json::Value| {
        let mut requests = json!({"kubernetes.io/batch-cpu": "2000"});
        requests
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        pod(name, "BE", json!({"requests": requests}))
    };
    let numa = |nodes: &[i32]| {
        let node =
            |node: &i32| json!({"node": node, "resources": {"kubernetes.io/batch-cpu": "1000"}});
        json!({"numaNodeResources": nodes.iter().map(node).collect::<Vec<_>>()})
    };
    let none = || json!({});
    rig.pods(vec![
        pod(
            "ls",
            "LS",
            json!({"requests": {"cpu": "1", "memory": "1Gi"}}),
        ),
        with_status(pod("lse", "LSE", none()), json!({"cpuset": "7"})),
        with_status(pod("lsr", "LSR", none()), json!({"cpuset": "6"})),
        batch_pod(),
        with_status(batch("one", none()), numa(&[1])),
        with_status(batch("both", none()), numa(&[0, 1])),
        with_status(batch("gone", none()), numa(&[5])),
        pod("plain", "", none()),
        with_status(batch("pinned", none()), json!({"cpuset": "3,7"})),
        with_status(batch("mixed", json!({"memory": "1Gi"})), numa(&[0])),
    ]);
    let pool = |node: i32, cpus: &str| Pool {
        socket: node,
        node,
        cpuset: cpus.to_owned(),
        cpus: cpus.parse().unwrap(),
    };
    // Pools from before these CPUs were taken.
    rig.states.topology.store(Some(Arc::new(TopologyInfo {
        shared_pools: vec![pool(0, "0-3"), pool(1, "4-5")],
        be_shared_pools: vec![pool(0, "0-3"), pool(1, "4-7")],
        reserved: "0".parse().unwrap(),
        system_qos: Some(SystemQos {
            cpus: "1".parse().unwrap(),
            exclusive: true,
        }),
        ..TopologyInfo::default()
    })));
    rig
}

/// Asserts the CPU sets of the class, its pods and its containers.
fn pools_hold(rig: &Rig, what: &str) {
    for (path, want) in [
        ("", "2-6"),
        ("/podbe", "2-6"),
        ("/podone", "2-6"),
        ("/podbe/c1", "2-6"),
        ("/podbe/sandbox", "2-6"),
        ("/podone/c1", "4-6"),
        ("/podboth/c1", "2-6"),
        ("/podgone/c1", "2-6"),
        ("/podpinned/c1", "3"),
        ("/podplain/c1", "2-6"),
    ] {
        assert_eq!(cpus_of(rig, path), want, "{what}: {path}");
    }
    let mixed = CgroupPath::new("kubepods/burstable/podmixed/c1").unwrap();
    let cpus = rig.tree.root().cgroup(&mixed).cpuset().unwrap().unwrap();
    assert_eq!(cpus.to_string(), "2-3", "{what}");
    let refused: Vec<_> = rig
        .tree
        .writes()
        .into_iter()
        .filter(|write| write.refused.is_some())
        .collect();
    assert!(refused.is_empty(), "{what}: {refused:?}");
}

#[test]
fn batch_pods_keep_to_their_nodes_pools_under_every_suppression() {
    for (mode, policy, quota) in [
        // 65 % of 4 cores less 1 core of the service less 0.1 of the system.
        ("upstream", "cfsQuota", 150_000),
        ("upstream", "cpuset", 150_000),
        ("pressure", "cpuset", -1),
    ] {
        let mut rig = rig(&[]);
        rig.slo(json!({
            "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressPolicy": policy},
            "extensions": {"cpuSuppress": {"mode": mode}}}));
        // Without signals, the guard takes some seconds to release batch work.
        for _ in 0..24 {
            rig.step(BUSY);
        }
        let context = format!("{mode} {policy}");
        pools_hold(&rig, &context);
        assert_eq!(rig.quota(), quota, "{context}");
        // Foreign values do not last.
        for (path, cpus) in [("podone/c1", "2"), ("podbe/c1", "3")] {
            let group = CgroupPath::new(&format!("kubepods/besteffort/{path}")).unwrap();
            let group = rig.tree.root().cgroup(&group);
            group.set_value(Resource::CpusetCpus, cpus).unwrap();
        }
        for _ in 0..12 {
            rig.step(BUSY);
        }
        pools_hold(&rig, &context);
        rig.slo(json!({"resourceUsedThresholdWithBE": {"enable": false}}));
        for _ in 0..3 {
            rig.step(BUSY);
        }
        assert_eq!(rig.quota(), -1, "{context}");
        pools_hold(&rig, &context);
    }
}

#[test]
fn pools_need_no_suppression() {
    let mut rig = rig(&[(Gate::BECPUSuppress, false)]);
    rig.suppress("upstream");
    for _ in 0..12 {
        rig.step(BUSY);
    }
    pools_hold(&rig, "closed");
    assert_eq!(rig.quota(), -1);
    // Another pod takes a CPU: the pools change at once, before the annotation is updated.
    let mut exclusive_pod = pod("lse2", "LSE", json!({}));
    let key = "scheduling.koordinator.sh/resource-status".to_owned();
    exclusive_pod.metadata.annotations =
        Some([(key.clone(), json!({"cpuset": "4"}).to_string())].into());
    let mut batch = batch_pod();
    batch.metadata.uid = Some("one".to_owned());
    let status =
        json!({"numaNodeResources": [{"node": 1, "resources": {"kubernetes.io/batch-cpu": "1"}}]});
    batch.metadata.annotations = Some([(key, status.to_string())].into());
    rig.pods(vec![exclusive_pod, batch]);
    rig.step(BUSY);
    assert_eq!(cpus_of(&rig, "/podone/c1"), "5-7", "7 and 6 are free now");
    assert_eq!(cpus_of(&rig, ""), "2-3,5-7");
}

#[test]
fn without_pools_nothing_is_written() {
    let mut rig = rig(&[]);
    rig.states.topology.store(None);
    rig.slo(json!({"resourceUsedThresholdWithBE": {"enable": true}}));
    drop(rig.tree.writes());
    for _ in 0..12 {
        rig.step(BUSY);
    }
    let cpusets = rig
        .tree
        .writes()
        .into_iter()
        .filter(|write| write.file.ends_with("cpuset.cpus"));
    assert_eq!(
        cpusets
            .filter(|write| write.file.contains("besteffort"))
            .count(),
        0
    );
}
