//! A dry run decides what a real run decides, and writes nothing.

use super::*;
use koord_host::fake::ResctrlHardware;
use std::collections::{BTreeMap, BTreeSet};

/// A machine with every strategy, a service and a batch pod.
fn rig(dry_run: bool) -> Rig {
    let mut settings = Settings {
        be_cpu_idle: true,
        ..Settings::default()
    };
    for gate in [
        Gate::BECPUSuppress,
        Gate::BECPUEvict,
        Gate::BEMemoryEvict,
        Gate::CPUBurst,
        Gate::CgroupReconcile,
        Gate::RdtResctrl,
        Gate::Resctrl,
        Gate::SystemConfig,
        Gate::GroupIdentity,
        Gate::BatchResource,
        Gate::CPUSetAllocator,
        Gate::CoreSched,
    ] {
        settings.gates.set(gate, true);
    }
    let tree = Tree::hybrid("0-3").unwrap();
    tree.mount_resctrl(ResctrlHardware::intel()).unwrap();
    let cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu cat_l3 mba\n";
    tree.put("proc/cpuinfo", cpuinfo).unwrap();
    tree.put("proc/sys/vm/watermark_scale_factor", "10\n")
        .unwrap();
    let rig = Rig::on_machine(tree, settings, dry_run);
    let threads = [(&rig.batch, "71\n72\n"), (&rig.service, "81\n82\n")];
    for (group, ids) in threads {
        let container = group.join("c1").unwrap();
        rig.tree.feed(&container, Resource::Tasks, ids).unwrap();
        for id in ids.lines() {
            rig.tree.put(&format!("proc/{id}/stat"), "").unwrap();
        }
    }
    rig
}

fn strategies(memory_threshold: i64, memory_qos: bool) -> serde_json::Value {
    let class = |identity: i64, end: i64| {
        json!({"enable": true,
            "cpuQOS": {"enable": true, "groupIdentity": identity},
            "memoryQOS": {"enable": memory_qos, "minLimitPercent": 40, "lowLimitPercent": 20,
                "throttlingPercent": 80, "wmarkRatio": 90},
            "resctrlQOS": {"enable": true, "catRangeStartPercent": 0, "catRangeEndPercent": end,
                "mbaPercent": end}})
    };
    json!({
        "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressPolicy": "cfsQuota",
            "cpuSuppressThresholdPercent": 65, "memoryEvictThresholdPercent": memory_threshold},
        "resourceQOSStrategy": {"beClass": class(-1, 30), "lsClass": class(2, 100)},
        "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000,
            "cfsQuotaBurstPercent": 300, "cfsQuotaBurstPeriodSeconds": -1},
        "systemStrategy": {"watermarkScaleFactor": 150},
        "extensions": {"cpuSuppress": {"mode": "upstream"}}})
}

/// Runs the machine through a day in small: idle, busy, short of memory, another program that writes, idle with
/// fewer strategies. Returns the evictions.
fn run(rig: &mut Rig) -> Vec<(u64, String)> {
    const IDLE: SecondOfLoad = SecondOfLoad {
        node_cores: 1.0,
        service_cores: 0.5,
        batch_cores: 0.4,
        stalled: 0.0,
    };
    let mut evictions = Vec::new();
    let mut steps = |rig: &mut Rig, load: SecondOfLoad, seconds: u32| {
        for _ in 0..seconds {
            let due = rig.step(load).evictions;
            let now = rig.now();
            for eviction in &due {
                rig.agent.evicted(eviction, now);
            }
            let second = rig.second;
            evictions.extend(due.into_iter().map(|it| (second, it.message)));
        }
    };
    rig.slo(strategies(90, true));
    steps(rig, IDLE, 20);
    steps(rig, BUSY, 90);
    rig.available_kib = 1 << 20;
    steps(rig, BUSY, 15);
    rig.available_kib = 12 << 20;
    // The kubelet sets the limit of a pod again.
    let path = rig.tree.root().cgroup(&rig.batch);
    let path = path.file(Resource::CpuShares).unwrap();
    std::fs::write(path, "77\n").unwrap();
    steps(rig, IDLE, 80);
    rig.slo(strategies(90, false));
    steps(rig, IDLE, 20);
    rig.pods(vec![pod(
        "ls",
        "LS",
        json!({"requests": {"cpu": "1", "memory": "1Gi"}}),
    )]);
    steps(rig, IDLE, 70);
    evictions
}

/// Returns what the audit log has of each record, without its number.
fn records(rig: &Rig) -> Vec<String> {
    let entries = rig.agent.audit().entries().into_iter();
    entries
        .map(|mut entry| {
            (entry.sequence, entry.dry_run) = (0, false);
            let change = entry.change.as_mut();
            if let Some(change) = change.filter(|change| change.file == "tasks") {
                // A dry run does not list the threads that are there already.
                change.old = None;
            }
            serde_json::to_string(&entry).unwrap()
        })
        .collect()
}

#[test]
fn dry_run_audits_what_a_run_writes_and_writes_nothing() {
    let (mut real, mut dry) = (rig(false), rig(true));
    let written = |rig: &Rig| {
        let writes = rig.tree.writes().into_iter();
        // The rig itself creates groups.
        let of_agent = writes.filter(|it| !it.file.ends_with("cgroup.subtree_control"));
        of_agent.map(|it| format!("{}={}", it.file, it.value))
    };
    for rig in [&real, &dry] {
        drop(rig.tree.writes());
    }
    assert_eq!(run(&mut real), run(&mut dry));
    assert_eq!(written(&dry).collect::<Vec<_>>(), Vec::<String>::new());
    let count = written(&real).count();
    assert!(count > 10, "{count}");
    let entries = dry.agent.audit().entries();
    assert!(entries.iter().all(|entry| entry.dry_run));
    let strategies: BTreeSet<&str> = entries.iter().map(|it| it.reason.as_str()).collect();
    assert!(strategies.len() >= 4, "{strategies:?}");
    let withheld = |rig: &Rig| -> BTreeMap<String, u64> {
        let families = rig.registry.gather();
        let mut families = families.iter();
        let family = families.find(|it| it.name() == "koordlet_dry_run_withheld_total");
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for metric in family.iter().flat_map(|family| family.get_metric()) {
            let mut labels = metric.get_label().iter();
            let reason = labels.find(|label| label.name() == "reason").unwrap();
            let count = metric.get_counter().get_value() as u64;
            *counts.entry(reason.value().to_owned()).or_default() += count;
        }
        counts
    };
    assert_eq!(withheld(&real), BTreeMap::new());
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for entry in &entries {
        *expected.entry(entry.reason.clone()).or_default() += 1;
    }
    assert_eq!(withheld(&dry), expected);
    let (expected, actual) = (records(&real), records(&dry));
    for (index, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
        assert_eq!(expected, actual, "record {index}");
    }
    assert_eq!(expected.len(), actual.len());
    let group = "BE".parse().unwrap();
    let tree = dry.tree.root();
    assert_eq!(koord_host::resctrl::tasks(tree, &group).unwrap(), None);
}
