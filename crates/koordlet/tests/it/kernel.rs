//! The agent on the real kernel, if the test may write cgroups.

use crate::agent::{NODE, add_pod, cluster, typed};
use k8s_openapi::api::core::v1::Pod;
use koord_api::qos::KubeQos;
use koord_api::slo::{NodeMetric, NodeSLO, NodeSLOSpec};
use koord_app::{Clock, Context};
use koord_host::cgroup::resource::{shares_to_weight, weight_to_shares};
use koord_host::process::{ChildProcess, Spawn, Spawner};
use koord_host::root::Controller;
use koord_host::testing::{eventually, skip};
use koord_host::{Cgroup, CgroupPath, Resource, Root, Target, Version, features};
use koord_kube::Api;
use koord_kube::api::PostParams;
use koordlet::gates::Gate;
use koordlet::states::{Driver, Layout, PodInfo, Slo, States};
use koordlet::time::TickTime;
use koordlet::{Agent, Metrics, Options, Settings, audit};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn the_loop_follows_real_groups() {
    let root = Root::system().unwrap();
    let writable = features::probe(&root).is_ok_and(|features| features.writable);
    if !writable {
        skip("cgroup-write", "cgroups cannot be written here");
        return;
    }
    let top = CgroupPath::new(&format!("koord-test-agent-{}", std::process::id())).unwrap();
    let layout = Layout::new(Driver::Cgroupfs, top.clone());
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"uid": "be", "namespace": "d", "name": "be",
            "labels": {"koordinator.sh/qosClass": "BE"}},
        "spec": {"containers": [{"name": "c", "resources": {
            "requests": {"kubernetes.io/batch-cpu": "500"},
            "limits": {"kubernetes.io/batch-cpu": "500"}}}]},
        "status": {"phase": "Running", "qosClass": "BestEffort",
            "containerStatuses": [{"name": "c", "containerID": "containerd://c", "image": "",
                "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]}
    }))
    .unwrap();
    let info = PodInfo::from_pod(&pod, &layout).unwrap();
    let container = root.cgroup(&info.cgroup.join("c").unwrap());
    container.create(&Controller::ALL).unwrap();
    let states = Arc::new(States::default());
    states.pods.store(Some(Arc::new(vec![info])));
    let settings = Settings {
        layout,
        ..Settings::default()
    };
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let log = audit::Log::default();
    let mut agent = Agent::new(root.clone(), settings, states, log, metrics).unwrap();
    for second in 1..=12_u64 {
        agent.tick(TickTime {
            steady_ns: second * 1_000_000_000,
            wall: jiff::Timestamp::from_second(1_748_000_000 + second as i64).unwrap(),
        });
    }
    // Half a core: 512 shares, or the nearest weight; and its quota.
    let (shares, quota) = (
        container.cpu_shares().unwrap(),
        container.cfs_quota().unwrap(),
    );
    root.cgroup(&top).remove().unwrap();
    assert!(
        shares.is_some_and(|shares| (490..=530).contains(&shares)),
        "{shares:?}"
    );
    assert_eq!(quota, Some(50_000));
}

/// Returns a disk of this machine that can be limited, with its number.
fn disk() -> Option<(String, String)> {
    let entries = std::fs::read_dir("/sys/class/block").ok()?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let is_disk = |name: &String| {
        let dir = format!("/sys/class/block/{name}");
        let exists = |file: &str| std::path::Path::new(&format!("{dir}/{file}")).exists();
        exists("device") && !exists("partition")
    };
    let name = names.into_iter().filter_map(|name| name.into_string().ok());
    let name = name.into_iter().find(is_disk)?;
    let number = std::fs::read_to_string(format!("/sys/class/block/{name}/dev")).ok()?;
    Some((format!("/dev/{name}"), number.trim().to_owned()))
}

#[test]
fn limits_of_a_disk_stand_and_go() {
    let root = Root::system().unwrap();
    let features = features::probe(&root).unwrap();
    if !features.writable {
        skip("cgroup-write", "cgroups cannot be written here");
        return;
    }
    let Some((device, number)) = disk().filter(|_| features.blkio) else {
        skip("disk", "there is no disk, or its use cannot be limited");
        return;
    };
    let top = CgroupPath::new(&format!("koord-test-blkio-{}", std::process::id())).unwrap();
    let layout = Layout::new(Driver::Cgroupfs, top.clone());
    let class = root.cgroup(&layout.qos(KubeQos::BestEffort).unwrap());
    class.create(&[Controller::Cpu, Controller::Blkio]).unwrap();
    let limit = Target::CgroupLine {
        group: class.path().clone(),
        resource: Resource::BlkioReadBps,
        key: number.parse().unwrap(),
    };
    let states = Arc::new(States::default());
    states.pods.store(Some(Arc::new(Vec::new())));
    let mut settings = Settings {
        layout,
        ..Settings::default()
    };
    settings.gates.set(Gate::BlkIOReconcile, true);
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let log = audit::Log::default();
    let mut agent = Agent::new(root.clone(), settings, states.clone(), log, metrics).unwrap();
    let mut second = 0_u64;
    // The disks are read on a thread of their own.
    let mut reaches = |enable: bool, want: &str| {
        let blocks = json!([{"name": device, "type": "device", "ioCfg": {"readBPS": 1 << 30}}]);
        let spec: NodeSLOSpec = typed(json!({"resourceQOSStrategy": {"beClass": {"blkioQOS":
            {"enable": enable, "blocks": blocks}}}}));
        states.slo.store(Arc::new(Slo::from_spec(&spec)));
        let began = Instant::now();
        let mut current = None;
        while current.as_deref() != Some(want) && began.elapsed() < Duration::from_secs(30) {
            second += 1;
            agent.tick(TickTime {
                steady_ns: second * 1_000_000_000,
                wall: jiff::Timestamp::from_second(1_748_000_000 + second as i64).unwrap(),
            });
            std::thread::yield_now();
            current = root.read_target(&limit).unwrap();
        }
        current
    };
    let applied = reaches(true, "1073741824");
    let removed = reaches(false, "0");
    root.cgroup(&top).remove().unwrap();
    assert_eq!(applied.as_deref(), Some("1073741824"), "{device}");
    assert_eq!(removed.as_deref(), Some("0"));
}

/// Groups below one of the test, with a busy process in each, removed at the end.
struct TestGroups {
    root: Root,
    top: CgroupPath,
    spawner: Spawner,
    processes: Vec<ChildProcess>,
}

impl TestGroups {
    fn new() -> Option<Self> {
        let root = Root::system().unwrap();
        if !features::probe(&root).is_ok_and(|features| features.writable) {
            skip("cgroup-write", "cgroups cannot be written here");
            return None;
        }
        let top = CgroupPath::new(&format!("koord-agent-test-{}", std::process::id())).unwrap();
        let spawner = Spawner::start(root.clone()).unwrap();
        let processes = Vec::new();
        Some(Self {
            root,
            top,
            spawner,
            processes,
        })
    }

    fn group(&self, path: &str) -> Cgroup {
        let path = format!("kubepods/{path}");
        self.root.cgroup(&self.top.join(&path).unwrap())
    }

    /// Creates a container's groups as the kubelet and the runtime do, with a process that never sleeps.
    fn container(&mut self, path: &str) -> Cgroup {
        let group = self.group(path);
        let controllers = [
            Controller::Cpu,
            Controller::Cpuacct,
            Controller::Cpuset,
            Controller::Memory,
        ];
        group.create(&controllers).unwrap();
        let spawn = Spawn {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), "while :; do :; done".into()],
            cgroups: group.entrances(),
            ..Spawn::default()
        };
        self.processes.push(self.spawner.spawn(spawn).unwrap());
        group
    }
}

impl Drop for TestGroups {
    fn drop(&mut self) {
        let top = self.root.cgroup(&self.top);
        for _ in 0..10_000 {
            let _ = top.kill();
            for process in &mut self.processes {
                let _ = process.reap();
            }
            if top.remove().is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Waits until a file of a group has `value`, in v1 units. Skipped on kernels without the file.
async fn wait_for_value(group: &Cgroup, resource: Resource, value: i64) {
    if !group.supports(resource) {
        assert!(
            group.root().version() == Version::V1 && resource.name().starts_with("memory."),
            "{resource:?} is missing"
        );
        return;
    }
    let context = format!("{value} in {} of {}", resource.name(), group.path());
    eventually(&context, async || {
        (group.value(resource).unwrap() == Some(value.to_string())).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_measures_and_enforces_on_this_kernel() {
    let Some(mut ground) = TestGroups::new() else {
        return;
    };
    let (_server, client) = cluster(&Clock::system()).await;
    let ls = add_pod(
        &client,
        "ls",
        json!({"koordinator.sh/qosClass": "LS"}),
        json!({"requests": {"cpu": "250m", "memory": "128Mi"},
               "limits": {"cpu": "500m", "memory": "256Mi"}}),
    )
    .await;
    let batch = json!({"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"});
    let be = add_pod(
        &client,
        "be",
        json!({"koordinator.sh/qosClass": "BE"}),
        json!({"requests": batch, "limits": batch}),
    )
    .await;
    let ls_container = ground.container(&format!("burstable/pod{ls}/ls"));
    let ls_pod = ground.group(&format!("burstable/pod{ls}"));
    let be_container = ground.container(&format!("besteffort/pod{be}/be"));
    let be_pod = ground.group(&format!("besteffort/pod{be}"));
    // Written by the kubelet.
    for group in [&ls_pod, &ls_container] {
        group.set_cfs_quota(50_000).unwrap();
    }

    let slo = json!({"metadata": {"name": NODE}, "spec": {
        "resourceUsedThresholdWithBE": {"enable": true},
        "extensions": {"cpuSuppress": {"mode": "pressure", "beCPUIdle": true}},
        "cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 60},
        "resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": true,
            "minLimitPercent": 25, "lowLimitPercent": 50, "throttlingPercent": 50}}}}});
    let slos: Api<NodeSLO> = Api::all(client.clone());
    slos.create(&PostParams::default(), &typed(slo))
        .await
        .unwrap();
    let metrics: Api<NodeMetric> = Api::all(client.clone());
    let metric = json!({"metadata": {"name": NODE}, "spec": {"metricCollectPolicy":
        {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 30}}});
    metrics
        .create(&PostParams::default(), &typed(metric))
        .await
        .unwrap();
    let mut settings = Settings {
        interval_ms: 100,
        reconcile_interval_ms: 500,
        layout: Layout::new(Driver::Cgroupfs, ground.top.clone()),
        ..Settings::default()
    };
    for gate in [Gate::CPUBurst, Gate::CgroupReconcile] {
        settings.gates.set(gate, true);
    }
    let options = Options {
        node_name: NODE.to_owned(),
        root: Some(ground.root.clone()),
        detect_layout: None,
        settings,
        report_interval: Some(Duration::from_millis(500)),
        ..Options::default()
    };
    let ctx = Context::new();
    let running = tokio::spawn(koordlet::run(options, client, ctx.clone()));

    // Memory QoS: shares of the request, and throttling half-way between request and limit.
    for group in [&ls_pod, &ls_container] {
        wait_for_value(group, Resource::MemoryMin, 32 << 20).await;
        wait_for_value(group, Resource::MemoryLow, 64 << 20).await;
    }
    wait_for_value(&ls_container, Resource::MemoryHigh, 192 << 20).await;
    let class = ground.group("burstable");
    wait_for_value(&class, Resource::MemoryMin, 32 << 20).await;
    // Burst: 60 % of half a core in a period of 100 ms, at both levels, under the quota.
    for group in [&ls_pod, &ls_container] {
        wait_for_value(group, Resource::CfsBurst, 30_000).await;
        wait_for_value(group, Resource::CfsQuota, 50_000).await;
    }
    // Batch resources, below a pod that has the idle policy.
    wait_for_value(&be_pod, Resource::CpuIdle, 1).await;
    let shares = match ground.root.version() {
        Version::V1 => 1536,
        Version::V2 => weight_to_shares(shares_to_weight(1536)),
    };
    wait_for_value(&be_container, Resource::CpuShares, shares).await;
    // Suppression lifts the quotas of batch pods while it limits the class, which the test's own
    // busy loops may bring about.
    let class = ground.group("besteffort");
    eventually("the quota of the batch container", async || {
        let expected = match class.cfs_quota().unwrap() {
            Some(-1) => Some(150_000),
            _ => Some(-1),
        };
        (be_container.cfs_quota().unwrap() == expected).then_some(())
    })
    .await;
    wait_for_value(&be_container, Resource::MemoryLimit, 1 << 30).await;
    wait_for_value(&be_pod, Resource::MemoryLimit, 1 << 30).await;

    // And both pods were measured.
    eventually("the usage of both pods", async || {
        let status = serde_json::to_value(metrics.get(NODE).await.unwrap().status?).unwrap();
        let pods = status["podsMetric"].as_array()?.clone();
        let busy = pods.iter().filter(|pod| {
            let cpu = pod["podUsage"]["resources"]["cpu"].as_str();
            cpu.is_some_and(|cpu| cpu != "0")
        });
        (busy.count() == 2).then_some(())
    })
    .await;
    ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
}
