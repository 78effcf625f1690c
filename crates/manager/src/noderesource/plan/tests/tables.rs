//! Rows of upstream's tables around the formulas: what a node's plan is made of as a whole, when it is
//! written, and what of a NodeResourceTopology matters. Facts of Koordinator's
//! `pkg/slo-controller/noderesource/resource_calculator_test.go` and
//! `plugins/batchresource/{plugin,noderesourcetopology_event_handler}_test.go`.

use super::numa::{topology, zone};
use super::*;
use crate::facts::FieldMask;
use crate::noderesource::is_relevant;
use crate::noderesource::plugins::ZoneAmounts;
use k8s_openapi::api::core::v1::Pod;

fn pod(name: &str, qos: Option<&str>, requests: &[(&str, &str)], phase: &str) -> Arc<PodFacts> {
    let containers = requests.iter().map(|(cpu, memory)| {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    });
    let labels = qos.map(|qos| json!({"koordinator.sh/qosClass": qos}));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "test", "name": name, "labels": labels},
        "spec": {"nodeName": "n", "containers": containers.collect::<Vec<_>>()},
        "status": {"phase": phase},
    }))
    .unwrap();
    Arc::new(PodFacts::from_pod(&pod, FieldMask::default()))
}

/// Returns a node of 100 cores and 120 G with four pods: a service of 20 cores that uses 11, batch work that
/// uses 10, a pending pod without a class of 20 cores and 40 G that uses 22, and batch work that has ended.
fn busy(reclaimable: Option<(&str, &str)>) -> PlanCase {
    let used = |cpu: &str, memory: &str| json!({"resources": {"cpu": cpu, "memory": memory}});
    let pod_used = |name: &str, cpu: &str, memory: &str| json!({"namespace": "test", "name": name, "podUsage": used(cpu, memory)});
    let mut status = json!({
        "updateTime": "2026-01-01T00:59:30Z",
        "nodeMetric": {"nodeUsage": used("50", "55G"), "systemUsage": used("7", "12G")},
        "podsMetric": [pod_used("a", "11", "11G"), pod_used("b", "10", "10G"), pod_used("c", "22", "22G")],
    });
    if let Some((cpu, memory)) = reclaimable {
        status["prodReclaimableMetric"] = json!({"resource": used(cpu, memory)});
    }
    let list = json!({"cpu": "100", "memory": "120G"});
    let mut case = case();
    case.node = serde_json::from_value(json!({
        "metadata": {"name": "n"}, "status": {"capacity": list, "allocatable": list},
    }))
    .unwrap();
    case.metric = Some(
        serde_json::from_value(json!({
            "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
            "metadata": {"name": "n"}, "spec": {}, "status": status,
        }))
        .unwrap(),
    );
    case.pods = vec![
        pod("a", Some("LS"), &[("20", "20G")], "Running"),
        pod("b", Some("BE"), &[("0", "0")], "Running"),
        pod("c", None, &[("10", "20G"), ("10", "20G")], "Pending"),
        pod("d", Some("BE"), &[("10", "10G")], "Succeeded"),
    ];
    case
}

fn amounts(plan: &Plan) -> [Value; 4] {
    let allocatable = &plan.status.as_ref().unwrap()["status"]["allocatable"];
    [BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY].map(|name| {
        let text = allocatable[name].as_str().unwrap();
        json!(text.parse::<Quantity>().unwrap().value())
    })
}

#[test]
fn node_sums_match_upstream() {
    let giga = 1_000_000_000_i64;
    // There is no measurement of a service that requests all of the CPU: 40 − 14 − 20 G are left.
    let mut full = busy(None);
    let list = json!({"cpu": "20", "memory": "40G"});
    full.node = serde_json::from_value(json!({
        "metadata": {"name": "n"}, "status": {"capacity": list, "allocatable": list},
    }))
    .unwrap();
    full.pods.truncate(1);
    full.status().pods_metric.clear();
    full.status().node_metric = Some(Default::default());
    for (mut case, percent, by_request, want) in [
        (full, (65, 65), false, [0, 6 * giga, 0, 0]),
        // 100 − 35 − 7 − (11 + 22); 120 − 42 − 12 − (11 + 22) G.
        (busy(None), (65, 65), false, [25_000, 33 * giga, 0, 0]),
        (busy(None), (70, 70), false, [30_000, 39 * giga, 0, 0]),
        // 120 − 24 − 0 − (20 + 40) G.
        (busy(None), (70, 80), true, [30_000, 36 * giga, 0, 0]),
        (
            busy(Some(("10", "20G"))),
            (65, 65),
            false,
            [25_000, 33 * giga, 10_000, 20 * giga],
        ),
    ] {
        let batch = &mut case.strategy.as_mut().unwrap().batch;
        (batch.cpu_reclaim_percent, batch.memory_reclaim_percent) = percent;
        if by_request {
            batch.memory = reclaim::MemoryPolicy::Request;
        }
        let want = want.map(|amount| json!(amount));
        assert_eq!(amounts(&case.plan()), want, "{percent:?} {by_request}");
    }
}

/// Returns a node that publishes 20 and 40 G of batch resources and has this much to give.
fn shows_and_has(cpu: &str, memory: &str) -> PlanCase {
    let mut case = case();
    let shown = json!({BATCH_CPU: "20", BATCH_MEMORY: "40G"});
    let mut list = json!({"cpu": cpu, "memory": memory});
    json_merge(&mut list, &shown);
    case.node = serde_json::from_value(json!({
        "metadata": {"name": "n"}, "status": {"capacity": list, "allocatable": list},
    }))
    .unwrap();
    case.plugins = koord_app::flags::selection("BatchResource").unwrap();
    case.status().node_metric.as_mut().unwrap().system_usage = Default::default();
    case
}

/// Returns the published amounts afterwards: batch CPU in thousandths of cores, batch memory in bytes.
fn shown_after(case: &PlanCase) -> [Option<i64>; 2] {
    let plan = case.plan();
    [(BATCH_CPU, Some(20)), (BATCH_MEMORY, Some(40_000_000_000))].map(|(name, before)| {
        let Some(status) = &plan.status else {
            return before;
        };
        match status["status"]["allocatable"].get(name) {
            None => before,
            Some(Value::Null) => None,
            Some(text) => Some(text.as_str().unwrap().parse::<Quantity>().unwrap().value()),
        }
    })
}

#[test]
fn writes_follow_thresholds() {
    let giga = 1_000_000_000_i64;
    let gibi = 1_i64 << 30;
    let now: Timestamp = NOW.parse().unwrap();
    let long_ago = now - std::time::Duration::from_secs(600);
    let unchanged = [Some(20), Some(40 * giga)];
    for (cpu, memory, synced, threshold, want) in [
        // A little more is not written before it is due.
        ("20m", "40Gi", now, 0.1, unchanged),
        ("20m", "40Gi", long_ago, 0.1, [Some(20), Some(40 * gibi)]),
        ("20m", "40G", long_ago, 0.1, unchanged),
        ("20m", "40G", now, 0.1, unchanged),
        // More than a tenth of either is written at once, unless the threshold is higher.
        ("15m", "40G", now, 0.1, [Some(15), Some(40 * giga)]),
        ("20m", "70G", now, 0.1, [Some(20), Some(70 * giga)]),
        ("30m", "50Gi", now, 0.1, [Some(30), Some(50 * gibi)]),
        ("30m", "50Gi", now, 0.6, unchanged),
        // There are no parts of a thousandth of a core, nor of bytes.
        (
            "22200u",
            "42950637649920m",
            now,
            0.1,
            [Some(23), Some(42_950_637_650)],
        ),
    ] {
        let mut case = shows_and_has(cpu, memory);
        case.synced = Some(synced);
        case.strategy.as_mut().unwrap().diff_threshold = threshold;
        assert_eq!(shown_after(&case), want, "{cpu} {memory} {threshold}");
    }
    let mut off = shows_and_has("20m", "40G");
    (off.synced, off.strategy) = (Some(now), None);
    assert_eq!(shown_after(&off), [None, None]);
    // Without a topology none is written, whatever happens to the node.
    assert_eq!(off.plan().topology, None);
    assert_eq!(shows_and_has("30m", "50Gi").plan().topology, None);
}

/// Returns names and amounts of each zone.
fn shown(zones: &[Zone]) -> Vec<Vec<(&str, String)>> {
    let mut all = Vec::new();
    for zone in zones {
        let mut amounts = Vec::new();
        for resource in &zone.resources {
            let ResourceInfo {
                name,
                capacity,
                allocatable,
                available,
            } = resource;
            assert_eq!([capacity, available], [allocatable; 2], "{name}");
            amounts.push((name.as_str(), allocatable.to_string()));
        }
        all.push(amounts);
    }
    all
}

#[test]
fn zone_batch_resources_are_replaced() {
    let amount = |zone: &str, cpu: i64, giga: i64, ratio: Option<f64>| {
        let cpu = Quantity::from_value(cpu);
        ZoneAmounts {
            zone: zone.to_owned(),
            cpu: crate::noderesource::normalized(cpu, ratio),
            memory: Quantity::from_value(giga * 1_000_000_000),
        }
    };
    let plain = topology(&json!([
        zone("node-0", "50", "200Gi"),
        zone("node-1", "50", "180Gi"),
    ]));
    let first = [
        amount("node-0", 25_000, 62, None),
        amount("node-1", 25_000, 58, None),
    ];
    let (added, far) = zones_after(&plain.spec.zones, &first, 0.1).unwrap();
    assert!(far, "new resources are written at once");
    let zone_resources = |cpu: &str, memory: &str, total: &str| {
        vec![
            ("cpu", "50".to_owned()),
            (BATCH_CPU, cpu.to_owned()),
            (BATCH_MEMORY, memory.to_owned()),
            ("memory", total.to_owned()),
        ]
    };
    assert_eq!(
        shown(&added),
        [
            zone_resources("25k", "62G", "200Gi"),
            zone_resources("25k", "58G", "180Gi")
        ]
    );
    for (ratio, cpu) in [(None, ["15k", "10k"]), (Some(1.2), ["18k", "12k"])] {
        let next = [
            amount("node-0", 15_000, 30, ratio),
            amount("node-1", 10_000, 20, ratio),
        ];
        let (updated, far) = zones_after(&added, &next, 0.1).unwrap();
        assert!(far);
        assert_eq!(
            shown(&updated),
            [
                zone_resources(cpu[0], "30G", "200Gi"),
                zone_resources(cpu[1], "20G", "180Gi")
            ]
        );
    }
}

#[test]
fn topology_uses_only_cpu_and_memory_of_zones() {
    let zones = |zones: &[(&str, &[(&str, &str)])]| {
        let all = zones.iter().map(|(name, resources)| {
            let each = resources.iter().map(|(name, amount)| {
                json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount})
            });
            json!({"name": name, "type": "Node", "resources": each.collect::<Vec<_>>()})
        });
        topology(&Value::Array(all.collect()))
    };
    let full: &[(&str, &str)] = &[("cpu", "10"), ("memory", "20Gi"), ("other-resource", "1")];
    let bare: &[(&str, &str)] = &[("other-resource", "1")];
    let with_other: &[(&str, &str)] = &[("cpu", "10"), ("memory", "20Gi"), ("other-resource", "2")];
    let less_memory: &[(&str, &str)] =
        &[("cpu", "10"), ("memory", "15Gi"), ("other-resource", "1")];
    let more_cpu: &[(&str, &str)] = &[("cpu", "20"), ("memory", "20Gi"), ("other-resource", "1")];
    let two_zones = zones(&[("node-0", full), ("node-1", full)]);
    let one_zone = zones(&[("node-0", full)]);
    for (at, (old, new, want)) in [
        (two_zones.clone(), two_zones.clone(), false),
        (
            two_zones.clone(),
            zones(&[("node-0", full), ("node-1", with_other)]),
            false,
        ),
        (
            two_zones.clone(),
            zones(&[("node-0", bare), ("node-1", full)]),
            true,
        ),
        (
            two_zones.clone(),
            zones(&[("node-0", full), ("node-1", bare)]),
            true,
        ),
        (
            two_zones.clone(),
            zones(&[("node-0", full), ("node-1", less_memory)]),
            true,
        ),
        (one_zone.clone(), two_zones.clone(), true),
        (two_zones, one_zone, true),
        (
            zones(&[("node-0", full), ("node-1", more_cpu)]),
            zones(&[("node-0", more_cpu), ("node-1", full)]),
            true,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(is_relevant(&old, &new), want, "row {at}");
    }
    // Batch resources that koordlet dropped when it rewrote the list have to be restored; the manager's own
    // changes are not relevant.
    let batch: &[(&str, &str)] = &[("cpu", "10"), (BATCH_CPU, "5k"), ("memory", "20Gi")];
    let other: &[(&str, &str)] = &[("cpu", "10"), (BATCH_CPU, "4k"), ("memory", "20Gi")];
    let with = |resources| zones(&[("node-0", resources)]);
    assert!(is_relevant(&with(batch), &with(full)));
    assert!(!is_relevant(&with(batch), &with(other)));
}
