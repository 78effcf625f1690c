mod be_pools;
mod blkio;
mod collectors;
mod cpu;
mod drills;
mod dry_run;
mod errors;
mod evict;
mod guard;
mod hooks;
mod measured;
mod node;
mod resctrl;
mod signals;
mod weights;

use super::*;
use crate::gates::Gate;
use crate::predict;
use crate::states::metric_policy::MetricPolicy;
use crate::states::topology::CpuManager;
use crate::states::{Driver, TopologyInfo};
use crate::states::{Layout, Slo};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::slo::NodeSLOSpec;
use koord_host::fake::Tree;
use serde_json::json;

const START: i64 = 1_748_000_000;

/// A fake machine of four CPUs with a service pod and a batch pod, and an agent on it.
struct Rig {
    tree: Tree,
    agent: Agent,
    registry: prometheus::Registry,
    states: Arc<States>,
    second: u64,
    service: CgroupPath,
    batch: CgroupPath,
    class: CgroupPath,
    /// Counters: ticks of the machine, nanoseconds of the groups, microseconds of stall.
    node_ticks: u64,
    service_ns: u64,
    batch_ns: u64,
    stall_us: u64,
    available_kib: u64,
    /// Seconds by which the wall clock was set forward.
    jumped: i64,
}

/// Load of one second.
#[derive(Clone, Copy)]
struct SecondOfLoad {
    node_cores: f64,
    service_cores: f64,
    batch_cores: f64,
    stalled: f64,
}

const BUSY: SecondOfLoad = SecondOfLoad {
    node_cores: 3.9,
    service_cores: 1.0,
    batch_cores: 2.8,
    stalled: 0.01,
};

impl Rig {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        Self::on(Tree::hybrid("0-3").unwrap(), settings)
    }

    fn on(tree: Tree, settings: Settings) -> Self {
        Self::on_machine(tree, settings, false)
    }

    fn on_machine(tree: Tree, mut settings: Settings, dry_run: bool) -> Self {
        settings.layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        let states = Arc::new(States::default());
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.record_start("n", 0);
        let log = audit::Log::default();
        log.set_metrics(metrics.clone());
        if dry_run {
            log.mark_dry_run();
        }
        let service = tree.group("kubepods/burstable/podls").unwrap();
        let class = tree.group("kubepods/besteffort").unwrap();
        let batch = tree.group("kubepods/besteffort/podbe").unwrap();
        tree.group("kubepods/besteffort/podbe/c1").unwrap();
        tree.group("kubepods/burstable/podls/c1").unwrap();
        let root = match dry_run {
            true => tree.root().dry_run(),
            false => tree.root().clone(),
        };
        let agent = Agent::new(root, settings, states.clone(), log, metrics).unwrap();
        let rig = Self {
            tree,
            agent,
            registry,
            states,
            second: 0,
            service,
            batch,
            class,
            node_ticks: 0,
            service_ns: 0,
            batch_ns: 0,
            stall_us: 0,
            available_kib: 12 << 20,
            jumped: 0,
        };
        rig.node(json!({}));
        rig.pods(vec![
            pod(
                "ls",
                "LS",
                json!({"requests": {"cpu": "1", "memory": "1Gi"}}),
            ),
            batch_pod(),
        ]);
        rig
    }

    fn node(&self, annotations: serde_json::Value) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": annotations},
            "status": {"capacity": {"cpu": "4", "memory": "16Gi"},
                "allocatable": {"cpu": "4", "memory": "16Gi"}}
        }))
        .unwrap();
        self.states
            .node
            .store(Some(Arc::new(NodeInfo::from_node(&node))));
    }

    fn pods(&self, pods: Vec<Pod>) {
        let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        self.states.publish_pods(pods.iter(), &layout);
    }

    fn slo(&self, value: serde_json::Value) {
        let spec: NodeSLOSpec = serde_json::from_value(value).unwrap();
        self.states.slo.store(Arc::new(Slo::from_spec(&spec)));
    }

    fn suppress(&self, mode: &str) {
        self.slo(json!({
            "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressPolicy": "cfsQuota"},
            "extensions": {"cpuSuppress": {"mode": mode}}}));
    }

    /// Advances the clock by one second with the given load and ticks the agent.
    fn step(&mut self, what: SecondOfLoad) -> TickOutcome {
        self.second += 1;
        self.node_ticks += (what.node_cores * 100.0) as u64;
        self.service_ns += (what.service_cores * 1e9) as u64;
        self.batch_ns += (what.batch_cores * 1e9) as u64;
        self.stall_us += (what.stalled * 1e6) as u64;
        let ticks = self.node_ticks;
        self.tree
            .put(
                "proc/stat",
                &format!("cpu  {ticks} 0 0 5 5 0 0 9 0 0\ncpu0 {ticks} 0 0 0\n"),
            )
            .unwrap();
        let available = self.available_kib;
        let meminfo = format!(
            "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: {available} kB\n\
             Buffers: 0 kB\nCached: 0 kB\nActive(file): 0 kB\nInactive(file): 0 kB\n\
             SReclaimable: 0 kB\n"
        );
        self.tree.put("proc/meminfo", &meminfo).unwrap();
        let stall = format!(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            self.stall_us
        );
        let kubepods = self.tree.group("kubepods").unwrap();
        let feed = |group: &CgroupPath, resource, text: &str| {
            self.tree.feed(group, resource, text).unwrap();
        };
        feed(&kubepods, Resource::CpuPressure, &stall);
        feed(&self.service, Resource::CpuPressure, &stall);
        for (group, ns, mib) in [
            (&self.service, self.service_ns, 1024_u64),
            (&self.batch, self.batch_ns, 2048),
            (&self.class, self.batch_ns, 2048),
        ] {
            let anon = mib << 20;
            let stat = format!(
                "total_inactive_anon 0\ntotal_active_anon {anon}\ntotal_inactive_file 8388608\n\
                 total_active_file 8388608\ntotal_unevictable 0\n"
            );
            if self.tree.root().version() == Version::V2 {
                let usage = ns / 1000;
                let usage = format!("usage_usec {usage}\nuser_usec {usage}\nsystem_usec 0\n");
                feed(group, Resource::CpuacctUsage, &usage);
                feed(group, Resource::MemoryStat, &stat.replace("total_", ""));
            } else {
                feed(group, Resource::CpuacctUsage, &format!("{ns}\n"));
                feed(group, Resource::MemoryStat, &stat);
            }
        }
        let now = self.now();
        self.agent.tick(now)
    }

    fn now(&self) -> TickTime {
        let wall = Timestamp::from_second(START + self.second as i64 + self.jumped).unwrap();
        TickTime {
            steady_ns: self.second * 1_000_000_000,
            wall,
        }
    }

    fn quota(&self) -> i64 {
        self.tree
            .root()
            .cgroup(&self.class)
            .cfs_quota()
            .unwrap()
            .unwrap()
    }

    fn shares(&self, group: &CgroupPath) -> i64 {
        self.tree
            .root()
            .cgroup(group)
            .cpu_shares()
            .unwrap()
            .unwrap()
    }
}

fn pod(name: &str, qos: &str, resources: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": name, "name": name, "namespace": "default",
            "labels": {"koordinator.sh/qosClass": qos}},
        "spec": {"priority": if qos == "BE" { 5500 } else { 9500 },
            "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "containerID": "koord://c1", "image": "", "imageID": "",
             "ready": true, "restartCount": 0}]}
    }))
    .unwrap()
}

fn batch_pod() -> Pod {
    pod(
        "be",
        "BE",
        json!({"requests": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "1Gi"}}),
    )
}

#[test]
fn a_report_has_the_published_shape() {
    let mut rig = Rig::new();
    for _ in 0..200 {
        rig.step(BUSY);
    }
    let now = rig.now();
    let status = rig
        .agent
        .report(&MetricPolicy::default(), now.ms(), now.wall)
        .unwrap();
    let value = serde_json::to_value(&status).unwrap();
    assert_eq!(
        value["nodeMetric"]["nodeUsage"]["resources"],
        json!({"cpu": "3900m", "memory": "4Gi"})
    );
    assert_eq!(
        value["nodeMetric"]["systemUsage"]["resources"],
        json!({"cpu": "100m", "memory": "1Gi"})
    );
    let windows = value["nodeMetric"]["aggregatedNodeUsages"]
        .as_array()
        .unwrap();
    assert_eq!(windows.len(), 3);
    assert_eq!(windows[0]["duration"], "5m0s");
    assert_eq!(windows[0]["usage"]["p95"]["resources"]["cpu"], "3900m");
    assert!(
        windows[2].get("usage").is_none(),
        "200 s cover less than half of 30 min"
    );
    assert_eq!(
        value["podsMetric"],
        json!([
            {"name": "be", "namespace": "default", "priority": "koord-batch", "qos": "BE",
             "podUsage": {"resources": {"cpu": "2800m", "memory": "2Gi"}}},
            {"name": "ls", "namespace": "default", "priority": "koord-prod", "qos": "LS",
             "podUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}}])
    );
    assert_eq!(
        value["prodReclaimableMetric"]["resource"]["resources"]["cpu"],
        "0"
    );
    assert_eq!(value["updateTime"], "2025-05-23T11:36:40Z");
    assert!(value.get("hostApplicationMetric").is_none());
}

#[test]
fn there_is_no_report_before_there_are_samples() {
    let mut rig = Rig::new();
    let now = rig.now();
    assert!(
        rig.agent
            .report(&MetricPolicy::default(), now.ms(), now.wall)
            .is_none()
    );
    rig.step(BUSY);
    let now = rig.now();
    assert!(
        rig.agent
            .report(&MetricPolicy::default(), now.ms(), now.wall)
            .is_none(),
        "rates need two"
    );
}

#[test]
fn batch_pods_get_their_values_and_every_write_is_recorded() {
    let mut rig = Rig::new();
    drop(rig.tree.writes());
    rig.step(BUSY);
    assert_eq!(rig.shares(&rig.batch), 2048);
    let entries = rig.agent.audit().entries();
    assert!(!entries.is_empty());
    let writes = rig.tree.writes();
    assert_eq!(
        entries.len(),
        writes.iter().filter(|w| w.refused.is_none()).count()
    );
    assert!(
        entries
            .iter()
            .all(|entry| entry.change.is_some() && entry.name == "be")
    );
    assert!(
        writes.iter().all(|write| write.refused.is_none()),
        "{writes:?}"
    );
    for _ in 0..30 {
        rig.step(BUSY);
    }
    assert!(rig.tree.writes().is_empty(), "nothing is written twice");
}

#[test]
fn the_class_follows_a_new_layout() {
    let mut rig = Rig::new();
    rig.suppress("upstream");
    for _ in 0..3 {
        rig.step(BUSY);
    }
    assert_eq!(rig.quota(), 150_000);
    // The kubelet turns out to use the other cgroup driver.
    let slice = "kubepods.slice/kubepods-besteffort.slice";
    rig.class = rig.tree.group(slice).unwrap();
    let layout = Layout::new(Driver::Systemd, CgroupPath::root());
    rig.states.layout.store(Some(Arc::new(layout)));
    for _ in 0..3 {
        rig.step(BUSY);
    }
    assert_eq!(rig.quota(), 150_000);
}

#[test]
fn nothing_is_suppressed_without_settings() {
    let mut rig = Rig::new();
    for _ in 0..10 {
        rig.step(SecondOfLoad {
            stalled: 0.9,
            ..BUSY
        });
    }
    assert_eq!(rig.quota(), -1);
}

#[test]
fn upstream_mode_caps_batch_work() {
    let mut rig = Rig::new();
    rig.suppress("upstream");
    for _ in 0..3 {
        rig.step(BUSY);
    }
    // 65 % of 4 cores less 1 core of the service less 0.1 of the system.
    assert_eq!(rig.quota(), 150_000);
    let entry = rig
        .agent
        .audit()
        .entries()
        .into_iter()
        .find(|e| e.level == 1)
        .unwrap();
    assert_eq!(
        (entry.reason.as_str(), entry.name.as_str()),
        ("AdjustBEByNodeCPUUsage", "n")
    );
    assert!(
        entry.message.contains("budget 1500m = 65% of 4000m"),
        "{}",
        entry.message
    );
    rig.slo(json!({"resourceUsedThresholdWithBE": {"enable": false}}));
    rig.step(BUSY);
    assert_eq!(rig.quota(), -1, "disabling takes the cap off");
}

#[test]
fn cpusets_shrink_with_groups_that_no_pod_list_names() {
    let mut rig = Rig::new();
    rig.tree.group("kubepods/besteffort/podbe/sandbox").unwrap();
    rig.slo(json!({
        "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressPolicy": "cpuset"},
        "extensions": {"cpuSuppress": {"mode": "upstream"}}}));
    for _ in 0..3 {
        rig.step(BUSY);
    }
    let cpus = |rig: &Rig, path: &str| {
        let group = rig.tree.root().cgroup(&CgroupPath::new(path).unwrap());
        group.cpuset().unwrap().unwrap().to_string()
    };
    for path in ["", "/podbe", "/podbe/c1", "/podbe/sandbox"] {
        let path = format!("kubepods/besteffort{path}");
        assert_eq!(cpus(&rig, &path), "0-1", "{path}");
    }
    rig.slo(json!({"resourceUsedThresholdWithBE": {"enable": false}}));
    for _ in 0..3 {
        rig.step(BUSY);
    }
    assert_eq!(cpus(&rig, "kubepods/besteffort/podbe/sandbox"), "0-3");
}

/// Returns the CPU set of a cgroup below the BE class.
fn cpus_of(rig: &Rig, path: &str) -> String {
    let path = CgroupPath::new(&format!("kubepods/besteffort{path}")).unwrap();
    let cpus = rig.tree.root().cgroup(&path).cpuset().unwrap();
    cpus.unwrap().to_string()
}

fn by_cpuset(rig: &mut Rig) {
    rig.slo(json!({
        "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressPolicy": "cpuset"},
        "extensions": {"cpuSuppress": {"mode": "upstream"}}}));
    for _ in 0..3 {
        rig.step(BUSY);
    }
}

/// Upstream's cases of reserved CPUs and system QoS resources.
#[test]
fn batch_work_keeps_off_reserved_and_system_cpus() {
    let system = |exclusive: bool| {
        let text = json!({"cpuset": "1", "cpusetExclusive": exclusive}).to_string();
        json!({"node.koordinator.sh/reservation": "{\"reservedCPUs\":\"0\"}",
            "node.koordinator.sh/system-qos-resource": text})
    };
    for (notes, want) in [
        (system(true), "2-3"),
        (system(false), "1-2"),
        (json!({}), "0-1"),
    ] {
        let mut rig = Rig::new();
        rig.node(notes);
        by_cpuset(&mut rig);
        for path in ["", "/podbe", "/podbe/c1"] {
            assert_eq!(cpus_of(&rig, path), want, "{path}");
        }
    }
    // The NodeResourceTopology has the same effect.
    let mut rig = Rig::new();
    let manager = CpuManager {
        reserved: "0".parse().unwrap(),
        ..CpuManager::default()
    };
    let topology = TopologyInfo {
        cpu_manager: Some(manager),
        ..TopologyInfo::default()
    };
    rig.states.topology.store(Some(Arc::new(topology)));
    by_cpuset(&mut rig);
    assert!(!cpus_of(&rig, "").starts_with('0'));
}

/// Under the kubelet's static policy, cgroups above containers keep all CPUs.
#[test]
fn static_kubelet_narrows_containers_only() {
    let mut rig = Rig::new();
    let manager = CpuManager {
        is_static: true,
        ..CpuManager::default()
    };
    let topology = TopologyInfo {
        cpu_manager: Some(manager),
        ..TopologyInfo::default()
    };
    rig.states.topology.store(Some(Arc::new(topology)));
    by_cpuset(&mut rig);
    for (path, want) in [("", "0-3"), ("/podbe", "0-3"), ("/podbe/c1", "0-1")] {
        assert_eq!(cpus_of(&rig, path), want, "{path}");
    }
    rig.slo(json!({"resourceUsedThresholdWithBE": {"enable": false}}));
    for _ in 0..3 {
        rig.step(BUSY);
    }
    assert_eq!(cpus_of(&rig, "/podbe/c1"), "0-3");
}

#[test]
fn idle_groups_are_an_option_and_leave_no_trace() {
    let mut rig = Rig::new();
    let slo = |idle: bool| {
        json!({"resourceUsedThresholdWithBE": {"enable": true},
            "extensions": {"cpuSuppress": {"mode": "pressure", "beCPUIdle": idle}}})
    };
    rig.slo(slo(true));
    rig.step(BUSY);
    rig.step(BUSY);
    let batch = rig.tree.root().cgroup(&rig.batch);
    assert_eq!(batch.cpu_idle().unwrap(), Some(true));
    let class = rig.tree.root().cgroup(&rig.class);
    assert_eq!(
        class.cpu_idle().unwrap(),
        Some(false),
        "never the group of the class"
    );
    rig.slo(slo(false));
    rig.step(BUSY);
    assert_eq!(
        (batch.cpu_idle().unwrap(), rig.shares(&rig.batch)),
        (Some(false), 2048)
    );
    assert!(
        rig.tree
            .writes()
            .iter()
            .all(|write| write.refused.is_none())
    );
}

#[test]
fn memory_pressure_evicts_batch_pods_once() {
    let mut settings = Settings::default();
    settings.gates.set(Gate::BEMemoryEvict, true);
    let mut rig = Rig::with(settings);
    rig.slo(json!({"resourceUsedThresholdWithBE":
        {"enable": true, "memoryEvictThresholdPercent": 80}}));
    rig.step(BUSY);
    assert!(rig.step(BUSY).evictions.is_empty());
    rig.available_kib = 2 << 20;
    let evictions = rig.step(BUSY).evictions;
    assert_eq!(
        evictions
            .iter()
            .map(|e| e.name.as_str())
            .collect::<Vec<_>>(),
        ["be"]
    );
    assert!(
        evictions[0].message.contains("node memory 87% >= 80%"),
        "{}",
        evictions[0].message
    );
    let now = rig.now();
    rig.agent.evicted(&evictions[0], now);
    for _ in 0..10 {
        assert!(
            rig.step(BUSY).evictions.is_empty(),
            "what is going already counts"
        );
    }
}

#[test]
fn a_tree_that_vanishes_is_survived() {
    let mut rig = Rig::new();
    rig.suppress("upstream");
    for _ in 0..3 {
        rig.step(BUSY);
    }
    for path in [
        "kubepods/besteffort/podbe/c1",
        "kubepods/besteffort/podbe",
        "kubepods/besteffort",
    ] {
        let group = CgroupPath::new(path).unwrap();
        rig.tree.vanish(&group).unwrap();
    }
    let mut second = 0;
    while second < 5 {
        second += 1;
        let later = TickTime {
            steady_ns: (rig.second + second) * 1_000_000_000,
            ..rig.now()
        };
        rig.agent.tick(later);
    }
}

#[test]
fn services_without_samples_do_not_make_the_predictor_lie() {
    let settings = Settings {
        training_interval_ms: 10_000,
        ..Settings::default()
    };
    let mut rig = Rig::with(settings);
    for _ in 0..40 {
        rig.step(BUSY);
    }
    let forecast = rig.agent.learning.predictor.forecast("ls").unwrap();
    assert!((1000..1100).contains(&forecast.cpu_p95), "{forecast:?}");
    assert!(
        rig.agent
            .learning
            .predictor
            .forecast("__node-koord-batch__")
            .is_some()
    );
    assert!(
        rig.agent
            .learning
            .predictor
            .forecast(predict::SYSTEM)
            .is_some()
    );
}
