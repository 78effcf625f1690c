//! Upstream's tables of batch and mid resources, row by row: inputs and expected numbers. Settings are read
//! from the text of the ConfigMap, as in the controller.

use super::numa::{topology, zone};
use super::*;
use crate::config::Config;
use crate::facts::FieldMask;
use k8s_openapi::api::core::v1::Pod;

/// Parses `"20/40G"` as a resource list.
fn amounts(text: &str) -> Value {
    match text.split_once('/') {
        Some((cpu, memory)) => json!({"cpu": cpu, "memory": memory}),
        None => json!({}),
    }
}

fn used(text: &str) -> Value {
    json!({ "resources": amounts(text) })
}

/// Parses name, QoS class, priority, phase, the NUMA node that it is bound to, and the request of each
/// container.
fn pod(text: &str) -> Arc<PodFacts> {
    let fields: Vec<_> = text.split_whitespace().collect();
    let [name, qos, priority, phase, numa, requests @ ..] = &fields[..] else {
        panic!("{text}")
    };
    let mut labels = json!({});
    if *qos != "-" {
        labels["koordinator.sh/qosClass"] = json!(qos);
    }
    let mut annotations = json!({});
    if let Ok(numa) = numa.parse::<i32>() {
        let bound = json!({"cpuset": "2-5,10-13", "numaNodeResources": [{"node": numa}]});
        annotations["scheduling.koordinator.sh/resource-status"] = json!(bound.to_string());
    }
    let container = |text: &&str| json!({"name": "c", "resources": {"requests": amounts(text)}});
    let containers: Vec<_> = requests.iter().map(container).collect();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "d", "name": name, "labels": labels, "annotations": annotations},
        "spec": {"nodeName": "n", "containers": containers, "priority": priority.parse::<i32>().ok()},
        "status": {"phase": phase},
    }))
    .unwrap();
    Arc::new(PodFacts::from_pod(&pod, FieldMask::default()))
}

/// Amounts of a NodeMetric.
#[derive(Clone, Copy)]
struct ReportedUsage<'a> {
    age_minutes: i64,
    node: &'a str,
    system: &'a str,
    reclaimable: &'a str,
    /// Name, usage and priority class.
    pods: &'a [(&'a str, &'a str, &'a str)],
    /// Usage and priority class.
    host: Option<(&'a str, &'a str)>,
}

impl ReportedUsage<'_> {
    fn metric(&self) -> NodeMetric {
        let now: Timestamp = NOW.parse().unwrap();
        let updated = now.as_second() - self.age_minutes * 60 - 20;
        let pods: Vec<_> = self
            .pods
            .iter()
            .map(|(name, usage, priority)| {
                json!({"namespace": "d", "name": name, "podUsage": used(usage), "priority": priority})
            })
            .collect();
        let host = self.host.iter().map(
            |(usage, priority)| json!({"name": "app", "usage": used(usage), "priority": priority}),
        );
        serde_json::from_value(json!({
            "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
            "metadata": {"name": "n"}, "spec": {},
            "status": {
                "updateTime": Timestamp::from_second(updated).unwrap().to_string(),
                "nodeMetric": {"nodeUsage": used(self.node), "systemUsage": used(self.system)},
                "podsMetric": pods,
                "hostApplicationMetric": host.collect::<Vec<_>>(),
                "prodReclaimableMetric": {"resource": used(self.reclaimable)},
            },
        }))
        .unwrap()
    }
}

/// Returns a case with these fields of the cluster's strategy, on a node of `capacity`.
fn with(strategy: &str, capacity: &str, allocatable: &str, reservation: &str) -> PlanCase {
    let mut settings: Value = serde_json::from_str(&format!("{{{strategy}}}")).unwrap();
    settings["enable"] = json!(true);
    let mut annotations = json!({});
    if !reservation.is_empty() {
        annotations["node.koordinator.sh/reservation"] = json!(reservation);
    }
    let mut case = case();
    case.node = serde_json::from_value(json!({
        "metadata": {"name": "n", "annotations": annotations},
        "status": {"capacity": amounts(capacity), "allocatable": amounts(allocatable)},
    }))
    .unwrap();
    let data = BTreeMap::from([("colocation-config".to_owned(), settings.to_string())]);
    let (config, problems) = Config::default().updated(&data);
    let refused: Vec<_> = problems
        .iter()
        .filter(|problem| {
            !problem
                .message
                .contains("in force, as Koordinator accepts it")
        })
        .collect();
    assert!(
        refused.is_empty() || strategy.contains("150"),
        "{refused:?}"
    );
    case.strategy = config.strategy(&case.node);
    case
}

/// The pods of the rows about node level.
const SERVICES: &[&str] = &[
    "a LS - Running - 20/20G",
    "b BE - Running - -",
    "c - - Pending - 10/20G 10/20G",
    "d BE - Succeeded - 10/10G",
];

const MEASURED: &[(&str, &str, &str)] = &[
    ("a", "11/11G", ""),
    ("b", "10/10G", ""),
    ("c", "22/22G", ""),
];

const SYSTEM: ReportedUsage<'_> = ReportedUsage {
    age_minutes: 0,
    node: "50/55G",
    system: "7/12G",
    reclaimable: "",
    pods: MEASURED,
    host: None,
};

#[test]
fn batch_of_a_node_by_policy_reservation_and_bounds() {
    let usage = r#""cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65"#;
    let request = r#""cpuReclaimThresholdPercent": 70, "memoryReclaimThresholdPercent": 80,
        "memoryCalculatePolicy": "request""#;
    let max_cpu = r#""cpuReclaimThresholdPercent": 70, "memoryReclaimThresholdPercent": 80,
        "memoryCalculatePolicy": "request", "cpuCalculatePolicy": "maxUsageRequest""#;
    let over = r#""cpuReclaimThresholdPercent": 150, "memoryReclaimThresholdPercent": 120,
        "memoryCalculatePolicy": "request", "cpuCalculatePolicy": "maxUsageRequest""#;
    let over_usage = r#""cpuReclaimThresholdPercent": 150, "memoryReclaimThresholdPercent": 120,
        "memoryCalculatePolicy": "maxUsageRequest", "cpuCalculatePolicy": "usage""#;
    let cpu_bound = r#""batchCPUThresholdPercent": 100"#;
    let memory_bound = r#""batchMemoryThresholdPercent": 100"#;
    let (all, less) = ("100/120G", "90/100G");
    let mut count = 0;
    for (strategy, bounds, allocatable, reservation, milli, giga) in [
        (usage, "", all, "", 25_000, 33),
        (usage, "", all, "{}", 25_000, 33),
        (usage, "", all, r#"{"reservedCPUs":"0-1"}"#, 25_000, 33),
        (usage, "", all, r#"{"reservedCPUs":"0-19"}"#, 12_000, 33),
        (usage, "", all, r#"{"resources":{"cpu":"20"}}"#, 12_000, 33),
        (
            usage,
            "",
            all,
            r#"{"resources":{"cpu":"20"},"reservedCPUs":"0-9"}"#,
            22_000,
            33,
        ),
        (
            usage,
            "",
            all,
            r#"{"resources":{"memory":"20G"}}"#,
            25_000,
            25,
        ),
        (
            usage,
            "",
            all,
            r#"{"resources":{"memory":"5G"}}"#,
            25_000,
            33,
        ),
        (
            usage,
            "",
            all,
            r#"{"resources":{"cpu":"2","memory":"5G"}}"#,
            25_000,
            33,
        ),
        (
            usage,
            "",
            all,
            r#"{"resources":{"cpu":"10","memory":"20G"}}"#,
            22_000,
            25,
        ),
        (
            usage,
            "",
            all,
            r#"{"resources":{"memory":"20G"},"reservedCPUs":"0-9"}"#,
            22_000,
            25,
        ),
        (
            usage,
            "",
            less,
            r#"{"resources":{"cpu":"2","memory":"5G"}}"#,
            22_000,
            25,
        ),
        (request, "", all, "", 30_000, 36),
        (
            request,
            "",
            all,
            r#"{"resources":{"memory":"5G"}}"#,
            30_000,
            31,
        ),
        (
            request,
            "",
            less,
            r#"{"resources":{"memory":"5G"}}"#,
            27_000,
            16,
        ),
        (
            request,
            "",
            all,
            r#"{"resources":{"memory":"10G"}}"#,
            30_000,
            26,
        ),
        (max_cpu, "", all, "", 21_000, 36),
        // Upstream's 101, and 110 below: batch is never more than the node has here.
        (over, "", all, "", 100_000, 84),
        (over, cpu_bound, all, "", 100_000, 84),
        (over, memory_bound, all, "", 100_000, 84),
        (over, "both", all, "", 100_000, 84),
        (over_usage, "", all, "", 100_000, 72),
        (over_usage, "both", all, "", 100_000, 72),
    ] {
        let bounds = match bounds {
            "" => String::new(),
            "both" => format!(", {cpu_bound}, {memory_bound}"),
            one => format!(", {one}"),
        };
        let mut case = with(
            &format!("{strategy}{bounds}"),
            all,
            allocatable,
            reservation,
        );
        case.metric = Some(SYSTEM.metric());
        case.pods = SERVICES.iter().map(|text| pod(text)).collect();
        let computed = case.plan().computed;
        let got = (
            computed[BATCH_CPU].milli_value(),
            computed[BATCH_MEMORY].value(),
        );
        assert_eq!(
            got,
            (milli, giga * 1_000_000_000),
            "{strategy}{bounds} {reservation}"
        );
        count += 1;
    }
    // Services outside Kubernetes count as the system's use, unless they are batch work.
    for (class, milli, giga) in [
        ("koord-prod", 25_000, 33),
        ("koord-mid", 25_000, 33),
        ("koord-batch", 28_000, 39),
    ] {
        let mut case = with(usage, all, all, "");
        case.pods = SERVICES.iter().map(|text| pod(text)).collect();
        let report = ReportedUsage {
            system: "4/6G",
            host: Some(("3/6G", class)),
            ..SYSTEM
        };
        case.metric = Some(report.metric());
        let computed = case.plan().computed;
        let got = (
            computed[BATCH_CPU].milli_value(),
            computed[BATCH_MEMORY].value(),
        );
        assert_eq!(got, (milli, giga * 1_000_000_000), "{class}");
        count += 1;
    }
    assert_eq!(count, 26);
}

/// Settings, the first pod, the others, what is measured and the zones; milli-cores and M of batch, of
/// the node and of each zone.
type Row<'a> = (
    &'a str,
    &'a str,
    &'a [&'a str],
    &'a [(&'a str, &'a str, &'a str)],
    &'a Value,
    i64,
    i64,
    &'a [(i64, i64)],
);

#[test]
fn batch_by_priority_classes_and_by_zone() {
    let usage = r#""cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65"#;
    let request = r#""cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65,
        "memoryCalculatePolicy": "request""#;
    let other_pods = [
        "prod1 - 9999 Running - 10/10G",
        "batch BE - Running - 10/10G",
        "mid BE 7000 Pending - 10/20G 10/20G",
        "prod2 - - Succeeded - 10/10G",
    ];
    let (ls, ls_at_0) = ("prod LS - Running - 10/10G", "prod LS - Running 0 10/10G");
    let (lse, lse_at_0) = ("lse LSE - Running - 10/10G", "lse LSE - Running 0 10/10G");
    let measured = [
        ("prod", "5/5G", ""),
        ("prod1", "6/6G", ""),
        ("batch", "10/10G", ""),
        ("mid", "22/22G", ""),
    ];
    let of_lse = [("lse", "5/5G", ""), measured[1], measured[2], measured[3]];
    // A pod that ended is still measured; the LSE pod is not.
    let missing = [
        ("prod1", "6/6G", "koord-prod"),
        ("prod2", "2/4G", "koord-prod"),
        ("batch", "10/10G", "koord-batch"),
        ("mid", "22/22G", "koord-mid"),
    ];
    let unlisted = [
        missing[0],
        missing[1],
        missing[2],
        missing[3],
        ("prod3", "4/8G", "koord-prod"),
        ("batch2", "8/8G", "koord-batch"),
    ];
    let ended = [("prod", "5/5G", ""), ("prod2", "10/10G", "")];
    let one_zone = json!([zone("node-0", "100", "120G")]);
    let two_zones = json!([zone("node-0", "50", "62G"), zone("node-1", "50", "58G")]);
    let none = json!([]);
    let all = &other_pods[..];
    let rows: [Row<'_>; 8] = [
        (usage, ls, all, &measured, &none, 25_000, 33_000, &[]),
        (
            usage,
            ls,
            &other_pods[..1],
            &ended,
            &none,
            35_000,
            43_000,
            &[],
        ),
        (usage, lse, all, &of_lse, &none, 20_000, 33_000, &[]),
        (
            usage,
            ls,
            all,
            &measured,
            &one_zone,
            25_000,
            33_000,
            &[(25_000, 33_000)],
        ),
        (
            usage,
            ls_at_0,
            all,
            &measured,
            &two_zones,
            25_000,
            33_000,
            &[(10_000, 15_300), (15_000, 17_700)],
        ),
        (
            request,
            lse_at_0,
            all,
            &of_lse,
            &two_zones,
            20_000,
            18_000,
            &[(5_000, 5_300), (15_000, 12_700)],
        ),
        (
            request,
            lse_at_0,
            all,
            &missing,
            &two_zones,
            18_000,
            18_000,
            &[(4_000, 5_300), (14_000, 12_700)],
        ),
        (
            request,
            lse_at_0,
            all,
            &unlisted,
            &two_zones,
            14_000,
            18_000,
            &[(2_000, 5_300), (12_000, 12_700)],
        ),
    ];
    for (at, (strategy, first, other_pods, pods, zones, milli, mega, by_zone)) in
        rows.into_iter().enumerate()
    {
        let mut case = with(strategy, "100/120G", "100/120G", "");
        let report = if pods.len() == 2 {
            ReportedUsage {
                node: "25/30G",
                system: "5/10G",
                pods,
                ..SYSTEM
            }
        } else {
            ReportedUsage { pods, ..SYSTEM }
        };
        case.metric = Some(report.metric());
        let first = std::iter::once(&first);
        case.pods = first.chain(other_pods).map(|text| pod(text)).collect();
        case.topology = Some(topology(zones));
        let plan = case.plan();
        let got = (
            plan.computed[BATCH_CPU].milli_value(),
            plan.computed[BATCH_MEMORY].value(),
        );
        assert_eq!(got, (milli, mega * 1_000_000), "row {at}");
        let amount = |zone: &Value, name: &str| {
            let mut resources = zone["resources"].as_array().unwrap().iter();
            let resource = resources.find(|resource| resource["name"] == name).unwrap();
            resource["available"]
                .as_str()
                .unwrap()
                .parse::<Quantity>()
                .unwrap()
                .value()
        };
        let zones = plan
            .topology
            .map_or(json!([]), |patch| patch["zones"].clone());
        let zones: Vec<_> = zones
            .as_array()
            .unwrap()
            .iter()
            .map(|zone| {
                (
                    amount(zone, BATCH_CPU),
                    amount(zone, BATCH_MEMORY) / 1_000_000,
                )
            })
            .collect();
        assert_eq!(zones, by_zone, "row {at}");
    }
}

#[test]
fn mid_by_prediction_share_and_bounds() {
    let plain = r#""degradeTimeMinutes": 10, "midStaticCPUReservedPercent": 10,
        "midStaticMemoryReservedPercent": 10"#;
    let impatient = r#""degradeTimeMinutes": 5"#;
    let bounded = r#""degradeTimeMinutes": 10, "midCPUThresholdPercent": 10,
        "midMemoryThresholdPercent": 20, "midUnallocatedPercent": 10"#;
    let fixed = |percent: i64| {
        format!(
            r#"{bounded}, "midReclaimMode": "static", "midStaticCPUReservedPercent": {percent},
            "midStaticMemoryReservedPercent": {percent}"#
        )
    };
    let (little, much) = (fixed(10), fixed(100));
    let report = |node, reclaimable, host| ReportedUsage {
        age_minutes: 0,
        node,
        system: "",
        reclaimable,
        pods: &[],
        host,
    };
    let old = ReportedUsage {
        age_minutes: 30,
        ..report("20/45G", "", None)
    };
    let usual = report("30/50G", "15/30G", None);
    let app = |amount, class| report("30/50G", "", Some((amount, class)));
    // Milli-cores and G of mid; of what prod did not request.
    let rows = [
        (impatient, old, None, None),
        (
            plain,
            report("20/45G", "10/15G", None),
            Some((10_000, 15)),
            Some((80_000, 160)),
        ),
        (bounded, usual, Some((10_000, 42)), Some((80_000, 160))),
        (
            plain,
            report("30/50G", "", None),
            Some((0, 0)),
            Some((80_000, 160)),
        ),
        (&little, usual, Some((10_000, 21)), None),
        (&much, usual, Some((10_000, 42)), None),
        (
            plain,
            report("", "20/20G", None),
            Some((0, 0)),
            Some((80_000, 160)),
        ),
        (
            plain,
            report("90/200G", "20/20G", None),
            Some((10_000, 10)),
            Some((80_000, 160)),
        ),
        (
            plain,
            app("5/15G", "koord-prod"),
            Some((0, 0)),
            Some((75_000, 155)),
        ),
        (
            plain,
            app("5/15G", "koord-mid"),
            Some((0, 0)),
            Some((80_000, 160)),
        ),
        (
            plain,
            app("2/10G", "koord-batch"),
            Some((0, 0)),
            Some((80_000, 160)),
        ),
    ];
    for (at, (strategy, report, want, unallocated)) in rows.into_iter().enumerate() {
        let mut case = with(strategy, "100/210G", "100/200G", "");
        case.metric = Some(report.metric());
        case.pods = ["a LS 9000 Running - 20/40G", "b BE 5999 Running - 15/30G"]
            .map(pod)
            .to_vec();
        let plan = case.plan();
        let got = plan.computed.get(MID_CPU).map(|cpu| {
            let memory = plan.computed[MID_MEMORY].value();
            (cpu.milli_value(), memory / 1_000_000_000)
        });
        assert_eq!(got, want, "row {at}: {:?}", plan.reset);
        let has_unallocated = |what: &str, amount: i64| {
            let mut lines = plan.messages.iter().filter(|line| line.contains(what));
            lines.any(|line| line.contains(&format!("unallocated:{amount} ")))
        };
        if let Some((cpu, memory)) = unallocated {
            assert!(
                has_unallocated("midAllocatable[CPU", cpu)
                    && has_unallocated("midAllocatable[Memory", memory),
                "row {at}: {:?}",
                plan.messages
            );
        }
    }
}
