//! CPU limits that several strategies set on services and batch pods.

use super::*;

/// Sets a service with a limit of one core, whose quotas the kubelet has set.
fn limited(rig: &Rig, annotations: serde_json::Value, qos: &str) {
    rig.pods(vec![one_core_pod(annotations, qos), batch_pod()]);
    rig.kubelet_sets_quotas();
}

fn one_core_pod(annotations: serde_json::Value, qos: &str) -> Pod {
    let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    let mut service = pod("ls", qos, resources);
    service.metadata.annotations = serde_json::from_value(annotations).unwrap();
    service
}

impl Rig {
    fn container(&self) -> CgroupPath {
        self.service.join("c1").unwrap()
    }

    fn kubelet_sets_quotas(&self) {
        for group in [&self.service, &self.container()] {
            let group = self.tree.root().cgroup(group);
            group.set_cfs_quota(100_000).unwrap();
        }
        drop(self.tree.writes());
    }

    /// Returns quota and burst of the pod and of its container.
    fn limits(&self) -> [(i64, i64); 2] {
        [self.service.clone(), self.container()].map(|group| {
            let group = self.tree.root().cgroup(&group);
            let read = |value: koord_host::Result<Option<i64>>| value.unwrap().unwrap();
            (read(group.cfs_quota()), read(group.cfs_burst()))
        })
    }

    fn burst(&self, policy: &str) {
        self.slo(json!({"cpuBurstStrategy": {"policy": policy}}));
    }

    fn throttled(&mut self, periods: u64, throttled: u64) {
        let text = format!("nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 0\n");
        let container = self.container();
        self.tree
            .feed(&container, Resource::CpuStat, &text)
            .unwrap();
    }

    fn refused(&self) -> Vec<String> {
        let writes = self.tree.writes().into_iter();
        writes
            .filter(|write| write.refused.is_some())
            .map(|write| format!("{write:?}"))
            .collect()
    }
}

const IDLE: SecondOfLoad = SecondOfLoad {
    node_cores: 0.5,
    service_cores: 0.2,
    batch_cores: 0.1,
    stalled: 0.0,
};

#[test]
fn a_burst_buffer_never_exceeds_the_quota() {
    let mut rig = Rig::new();
    limited(&rig, json!({}), "LS");
    rig.burst("cpuBurstOnly");
    rig.step(IDLE);
    rig.step(IDLE);
    // 1000 % of the limit is configured; the kernel accepts no more than the quota.
    assert_eq!(rig.limits(), [(100_000, 100_000), (100_000, 100_000)]);
    let shown = |rig: &Rig, file: &str| {
        let text = koord_app::metrics::encode(&rig.registry).unwrap();
        let name = format!("koordlet_container_scaled_cfs_{file}_us{{");
        let line = text.lines().find(|line| line.starts_with(&name));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<i64>().ok())
    };
    assert_eq!(shown(&rig, "burst"), Some(100_000));
    assert_eq!(shown(&rig, "quota"), Some(100_000));
    rig.burst("none");
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(100_000, 0), (100_000, 0)]);
    assert_eq!(shown(&rig, "burst"), None, "nothing is given any more");
    assert_eq!(rig.refused(), Vec::<String>::new());
}

#[test]
fn a_throttled_service_gets_more_while_the_pool_has_room() {
    let mut rig = Rig::new();
    limited(&rig, json!({}), "LS");
    rig.burst("cfsQuotaBurstOnly");
    rig.throttled(10, 0);
    for _ in 0..6 {
        rig.step(IDLE);
    }
    assert_eq!(rig.limits()[1].0, 100_000, "nothing is throttled");
    let mut periods = 10;
    for want in [120_000, 144_000, 172_800] {
        periods += 10;
        rig.throttled(periods, periods - 10);
        rig.step(IDLE);
        assert_eq!(rig.limits()[1].0, want);
        assert_eq!(rig.limits()[0].0, want, "the pod's follows");
    }
    for _ in 0..10 {
        periods += 10;
        rig.throttled(periods, periods - 10);
        rig.step(IDLE);
    }
    assert_eq!(rig.limits()[1].0, 300_000, "300 % of the limit at most");
    // The pool is overloaded: back by steps, down to the limit.
    let busy = SecondOfLoad {
        node_cores: 3.9,
        service_cores: 2.0,
        ..IDLE
    };
    for _ in 0..30 {
        rig.step(busy);
    }
    assert_eq!(rig.limits(), [(100_000, 0), (100_000, 0)]);
    assert_eq!(rig.refused(), Vec::<String>::new());
}

#[test]
fn a_pods_annotation_goes_before_the_node() {
    let mut rig = Rig::new();
    let asks =
        json!({"koordinator.sh/cpuBurst": "{\"policy\":\"cpuBurstOnly\",\"cpuBurstPercent\":50}"});
    limited(&rig, asks, "LS");
    rig.slo(json!({"cpuBurstStrategy": {"policy": "none"}}));
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(100_000, 50_000), (100_000, 50_000)]);
}

#[test]
fn leftovers_of_an_earlier_run_are_taken_back_once() {
    let mut rig = Rig::new();
    limited(&rig, json!({}), "LS");
    for group in [rig.service.clone(), rig.container()] {
        let group = rig.tree.root().cgroup(&group);
        group.set_cfs_quota(250_000).unwrap();
    }
    rig.burst("none");
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(100_000, 0), (100_000, 0)]);
    // Later writes by the kubelet or other programs are kept.
    let group = rig.tree.root().cgroup(&rig.service);
    group.set_cfs_quota(200_000).unwrap();
    for _ in 0..15 {
        rig.step(IDLE);
    }
    assert_eq!(rig.limits()[0].0, 200_000);
}

#[test]
fn normalization_scales_and_is_taken_back() {
    let mut settings = Settings::default();
    settings.gates.set(Gate::CPUNormalization, true);
    let mut rig = Rig::with(settings);
    limited(&rig, json!({}), "LS");
    rig.node(json!({"node.koordinator.sh/cpu-normalization-ratio": "1.50"}));
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(66_667, 0), (66_667, 0)]);
    rig.node(json!({"node.koordinator.sh/cpu-normalization-ratio": "1.20"}));
    rig.step(IDLE);
    assert_eq!(rig.limits()[1].0, 83_334);
    rig.node(json!({}));
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(100_000, 0), (100_000, 0)]);
    assert_eq!(rig.refused(), Vec::<String>::new());
}

#[test]
fn burst_follows_normalization() {
    let mut settings = Settings::default();
    settings.gates.set(Gate::CPUNormalization, true);
    let mut rig = Rig::with(settings);
    limited(&rig, json!({}), "LS");
    rig.burst("auto");
    rig.node(json!({"node.koordinator.sh/cpu-normalization-ratio": "2.00"}));
    for _ in 0..3 {
        rig.step(IDLE);
    }
    assert_eq!(rig.limits(), [(50_000, 50_000), (50_000, 50_000)]);
    assert_eq!(rig.refused(), Vec::<String>::new());
}

#[test]
fn pods_with_cpus_of_their_own_have_no_quota() {
    let mut rig = Rig::new();
    let with_cpus = |cpus: &str| {
        let status = json!({"cpuset": cpus}).to_string();
        json!({"scheduling.koordinator.sh/resource-status": status})
    };
    let status = with_cpus("0");
    limited(&rig, status.clone(), "LSR");
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(-1, 0), (-1, 0)]);
    // It gets more CPUs than it requests, so its limit applies again.
    rig.pods(vec![one_core_pod(with_cpus("0-1"), "LSR"), batch_pod()]);
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(100_000, 0), (100_000, 0)]);
    let settings = Settings {
        unset_cpu_quota: false,
        ..Settings::default()
    };
    let mut rig = Rig::with(settings);
    limited(&rig, status, "LSR");
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(100_000, 0), (100_000, 0)]);
}

#[test]
fn a_container_without_the_kubelets_quota_is_left_alone() {
    let mut rig = Rig::new();
    let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    rig.pods(vec![pod("ls", "LS", resources), batch_pod()]);
    rig.burst("auto");
    rig.step(IDLE);
    assert_eq!(rig.limits(), [(-1, 0), (-1, 0)]);
}

#[test]
fn containers_get_the_cpus_the_scheduler_gave_the_pod() {
    let mut rig = Rig::new();
    let status = json!({"scheduling.koordinator.sh/resource-status": "{\"cpuset\":\"1-2\"}"});
    limited(&rig, status, "LSR");
    rig.step(IDLE);
    let cpus = |rig: &Rig| {
        let group = rig.tree.root().cgroup(&rig.container());
        group.cpuset().unwrap().unwrap().to_string()
    };
    assert_eq!(cpus(&rig), "1-2");
    let container = rig.tree.root().cgroup(&rig.container());
    container.set_cpuset(&"0-3".parse().unwrap()).unwrap();
    for _ in 0..10 {
        rig.step(IDLE);
    }
    assert_eq!(cpus(&rig), "1-2", "a foreign list does not stand");
    let entry = rig.agent.audit().entries().pop().unwrap();
    assert_eq!(
        (entry.reason.as_str(), entry.name.as_str()),
        ("CPUSetAllocator", "ls")
    );
}

#[test]
fn batch_quotas_follow_the_nodes_ratio_with_the_gate_closed() {
    let mut rig = Rig::new();
    let batch = json!({
        "requests": {"kubernetes.io/batch-cpu": "2000"},
        "limits": {"kubernetes.io/batch-cpu": "3000"}});
    rig.pods(vec![pod("be", "BE", batch)]);
    rig.node(json!({"node.koordinator.sh/cpu-normalization-ratio": "1.50"}));
    rig.step(IDLE);
    let group = rig.tree.root().cgroup(&rig.batch);
    assert_eq!(group.cfs_quota().unwrap(), Some(200_000));
}

#[test]
fn a_service_bursts_on_a_node_without_the_class_of_batch_pods() {
    let mut rig = Rig::new();
    limited(&rig, json!({}), "LS");
    for path in ["/podbe/c1", "/podbe", ""] {
        let group = CgroupPath::new(&format!("kubepods/besteffort{path}")).unwrap();
        rig.tree.vanish(&group).unwrap();
    }
    rig.burst("cpuBurstOnly");
    rig.pass();
    rig.pass();
    assert_eq!(rig.limits(), [(100_000, 100_000), (100_000, 100_000)]);
}
