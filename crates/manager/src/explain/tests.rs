use super::*;
use koord_api::labels;
use serde_json::{Value, json};

/// Returns a node of 10 cores and 10 G, of which the system uses 1 and 1 G, with one measured service, one
/// new service, and a batch pod.
fn objects() -> Objects {
    let used = |cpu: &str, memory: &str| json!({"resources": {"cpu": cpu, "memory": memory}});
    let list = json!({"cpu": "10", "memory": "10G", BATCH_CPU: "5k"});
    let node = json!({"metadata": {"name": "n"},
        "status": {"capacity": list, "allocatable": list}});
    let metric = json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": "n"}, "spec": {},
        "status": {"updateTime": "2026-01-01T00:59:30Z",
            "nodeMetric": {"systemUsage": used("1", "1G")},
            "podsMetric": [{"namespace": "d", "name": "web", "podUsage": used("2", "1G"),
                            "priority": "koord-prod"}]}});
    let pod = |name: &str, qos: &str| {
        json!({"metadata": {"namespace": "d", "name": name,
                   "labels": {"koordinator.sh/qosClass": qos}},
               "spec": {"nodeName": "n", "containers": [{"name": "c",
                   "resources": {"requests": {"cpu": "3", "memory": "2G"}}}]},
               "status": {"phase": "Running"}})
    };
    let read = |value| serde_json::from_value(value).unwrap();
    Objects {
        node: serde_json::from_value(node).unwrap(),
        metric: Some(serde_json::from_value(metric).unwrap()),
        topology: None,
        pods: [pod("web", "LS"), pod("new", "LS"), pod("batch", "BE")]
            .map(read)
            .to_vec(),
        settings: Some(BTreeMap::from([(
            "colocation-config".to_owned(),
            "{\"enable\": true, \"cpuReclaimThresholdPercent\": 80}".to_owned(),
        )])),
        charge_unmeasured: true,
    }
}

/// Explains, and checks that each sum adds up to what the manager writes.
fn explain(objects: &Objects) -> Explanation {
    let explanation = node(objects, "2026-01-01T01:00:00Z".parse().unwrap());
    let zones = explanation.zones.iter().flat_map(|zone| &zone.resources);
    for resource in explanation.resources.iter().chain(zones) {
        let all = resource.terms.iter().map(|term| term.amount);
        let sum = all.fold(Quantity::ZERO, |a, b| a + b);
        assert_eq!(sum, resource.computed.unwrap_or_default(), "{resource:?}");
    }
    for resource in &explanation.resources {
        let Some(computed) = resource.computed else {
            continue;
        };
        let (expected, shown) = if resource.name.ends_with("cpu") {
            let milli = computed.milli_value();
            (Quantity::from_value(milli), format!("{milli}m"))
        } else {
            let shown = match computed.value() >> 20 {
                0 => "0".to_owned(),
                mebibytes => format!("{mebibytes}Mi"),
            };
            (computed, shown)
        };
        let said_so = |note: &String| {
            note.starts_with(resource.name) && note.contains(&format!(" to {shown}"))
        };
        let written = resource.published == Some(expected) || explanation.notes.iter().any(said_so);
        assert!(written, "{resource:?}: {:?}", explanation.notes);
    }
    explanation
}

/// Returns label, amount and setting of each term of a resource. Amounts are in thousandths of cores or in
/// bytes.
fn amounts(resource: &Resource) -> Vec<(&str, i64, &str)> {
    let cpu = resource.name.ends_with("cpu");
    let terms = resource.terms.iter();
    terms
        .map(|term| {
            let amount = if cpu {
                term.amount.milli_value()
            } else {
                term.amount.value()
            };
            (&*term.what, amount, term.setting.as_deref().unwrap_or(""))
        })
        .collect()
}

fn origin<'a>(resource: &'a Resource, what: &str) -> &'a str {
    let term = resource.terms.iter().find(|term| term.what == what);
    term.unwrap().from.as_deref().unwrap()
}

fn with_settings(objects: &mut Objects, settings: &[(&str, Value)]) {
    let settings = settings.iter();
    let settings = settings.map(|(key, value)| ((*key).to_owned(), value.to_string()));
    objects.settings = Some(settings.collect());
}

fn annotate(objects: &mut Objects, key: &str, value: &str) {
    let annotations = objects.node.metadata.annotations.get_or_insert_default();
    annotations.insert(key.to_owned(), value.to_owned());
}

fn label(objects: &mut Objects, key: &str, value: &str) {
    let labels = objects.node.metadata.labels.get_or_insert_default();
    labels.insert(key.to_owned(), value.to_owned());
}

fn status(objects: &mut Objects) -> &mut NodeMetricStatus {
    objects.metric.as_mut().unwrap().status.as_mut().unwrap()
}

fn topology(model: &str, zones: &[(&str, &str, &str, &str)]) -> NodeResourceTopology {
    let info = json!({"cpuModel": model}).to_string();
    let zones: Vec<_> = zones
        .iter()
        .map(|(name, cpu, memory, batch)| {
            let resource = |name: &str, amount: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
            json!({"name": name, "type": "Node", "resources": [
                resource("cpu", cpu), resource("memory", memory), resource(BATCH_CPU, batch)]})
        })
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
        "metadata": {"name": "n", "annotations": {annotations::NODE_CPU_BASIC_INFO: info}},
        "topologyPolicies": ["None"], "zones": zones,
    }))
    .unwrap()
}

#[test]
fn explanation_lists_terms_of_amount() {
    let explanation = explain(&objects());
    assert_eq!(
        (explanation.refused.as_ref(), explanation.report_age_seconds),
        (None, Some(30))
    );
    let [cpu, memory, mid_cpu, mid_memory] = &explanation.resources[..] else {
        panic!("{explanation:?}")
    };
    // 10 − 2 − 1 − (2 + 3)
    assert_eq!(cpu.computed.unwrap().value(), 2);
    assert_eq!(cpu.published.unwrap().value(), 5000);
    assert_eq!(
        amounts(cpu),
        [
            ("capacity", 10_000, ""),
            ("safety margin", -2_000, "cpuReclaimThresholdPercent=80"),
            ("system use", -1_000, ""),
            ("services", -5_000, "cpuCalculatePolicy=usage"),
        ]
    );
    assert_eq!(origin(cpu, "safety margin"), "colocation-config");
    assert_eq!(origin(cpu, "services"), "default");
    // 10 − 3.5 − 1 − (1 + 2)
    let giga = 1_000_000_000;
    assert_eq!(
        amounts(memory),
        [
            ("capacity", 10 * giga, ""),
            (
                "safety margin",
                -35 * giga / 10,
                "memoryReclaimThresholdPercent=65"
            ),
            ("system use", -giga, ""),
            ("services", -3 * giga, "memoryCalculatePolicy=usage"),
        ]
    );
    assert_eq!(origin(memory, "safety margin"), "default");
    for mid in [mid_cpu, mid_memory] {
        let nothing = [
            ("reclaimable", 0, ""),
            ("unallocated", 0, "midUnallocatedPercent=0"),
        ];
        assert_eq!(amounts(mid), nothing);
    }
    let charged: Vec<_> = explanation
        .services
        .iter()
        .map(|service| (service.name.as_str(), service.by, service.cpu.value()))
        .collect();
    assert_eq!(charged, [("d/new", "request", 3), ("d/web", "measured", 2)]);
    assert!(explanation.notes[0].contains("batch-cpu is about to change to 2000m"));
    assert!(explanation.notes[1].contains("batch-memory is about to change to 2384Mi"));
    assert_eq!(
        (explanation.zones.len(), explanation.problems.len()),
        (0, 0)
    );
}

#[test]
fn each_policy_names_itself_and_where_it_was_set() {
    let source = "colocation-config, nodes \"pool b\"";
    let annotation = "annotation node.koordinator.sh/colocation-strategy";
    let mut objects = objects();
    with_settings(
        &mut objects,
        &[(
            keys::COLOCATION,
            json!({"enable": true, "cpuReclaimThresholdPercent": 80,
            "nodeConfigs": [{"name": "pool b", "nodeSelector": {"matchLabels": {"pool": "b"}},
                "cpuCalculatePolicy": "maxUsageRequest", "memoryCalculatePolicy": "request",
                "midUnallocatedPercent": 10, "batchMemoryThresholdPercent": 10}]}),
        )],
    );
    label(&mut objects, "pool", "b");
    label(&mut objects, labels::NODE_CPU_RECLAIM_RATIO, "0.9");
    annotate(
        &mut objects,
        annotations::NODE_COLOCATION_STRATEGY,
        "{\"midCPUThresholdPercent\": 5, \"memoryReclaimThresholdPercent\": 90}",
    );
    let reservation = "{\"resources\":{\"cpu\":\"1\",\"memory\":\"2G\"}}";
    annotate(&mut objects, annotations::NODE_RESERVATION, reservation);
    let explanation = explain(&objects);
    let [cpu, memory, mid_cpu, mid_memory] = &explanation.resources[..] else {
        panic!("{explanation:?}")
    };
    // 10 − 1 − 1 − (max(3, 2) + 3)
    assert_eq!(
        amounts(cpu),
        [
            ("capacity", 10_000, ""),
            ("safety margin", -1_000, "cpuReclaimThresholdPercent=90"),
            ("system use", -1_000, ""),
            ("services", -6_000, "cpuCalculatePolicy=maxUsageRequest"),
        ]
    );
    let label = "label node.koordinator.sh/cpu-reclaim-ratio";
    assert_eq!(origin(cpu, "safety margin"), label);
    assert_eq!(origin(cpu, "services"), source);
    // 10 − 1 − 2 − (2 + 2), a tenth at most
    let giga = 1_000_000_000;
    assert_eq!(
        amounts(memory),
        [
            ("capacity", 10 * giga, ""),
            ("safety margin", -giga, "memoryReclaimThresholdPercent=90"),
            ("reserved", -2 * giga, "memoryCalculatePolicy=request"),
            ("services", -4 * giga, "memoryCalculatePolicy=request"),
            ("limit", -2 * giga, "batchMemoryThresholdPercent=10"),
        ]
    );
    assert_eq!(origin(memory, "safety margin"), annotation);
    assert_eq!(origin(memory, "limit"), source);
    // A tenth of 10 − 1 − 6; at most 500m. Of memory a tenth of 10 − 2 − 4.
    assert_eq!(
        amounts(mid_cpu),
        [
            ("reclaimable", 0, ""),
            ("unallocated", 300, "midUnallocatedPercent=10"),
        ]
    );
    assert_eq!(origin(mid_cpu, "unallocated"), source);
    // Reasons have the units of the sums.
    for (term, shown) in [
        (&cpu.terms[2], "(1000m)"),
        (&mid_cpu.terms[1], "(3000m)"),
        (&mid_memory.terms[1], "(3814Mi)"),
    ] {
        assert!(term.why.contains(shown), "{term:?}");
    }
    assert_eq!(mid_memory.computed.unwrap().value(), giga * 4 / 10);
}

#[test]
fn external_factors_are_terms() {
    let mut objects = objects();
    let ratios = json!({"enable": true, "ratioModel": {"M": {"baseRatio": 1.2}}});
    let factors = json!({"enable": true, "resourceAmplificationRatio": {"memory": 1.5}});
    with_settings(
        &mut objects,
        &[
            (
                keys::COLOCATION,
                json!({"enable": true, "cpuReclaimThresholdPercent": 100}),
            ),
            (keys::CPU_NORMALIZATION, ratios),
            (keys::RESOURCE_AMPLIFICATION, factors),
        ],
    );
    let used = |cpu: &str| json!({"resources": {"cpu": cpu, "memory": "500M"}});
    let apps = json!([{"name": "nginx", "usage": used("500m"), "priority": "koord-prod"},
                      {"name": "spark", "usage": used("900m"), "priority": "koord-batch"}]);
    status(&mut objects).host_application_metric = serde_json::from_value(apps).unwrap();
    status(&mut objects).prod_reclaimable_metric =
        serde_json::from_value(json!({"resource": used("700m")})).unwrap();
    status(&mut objects)
        .node_metric
        .as_mut()
        .unwrap()
        .node_usage = serde_json::from_value(used("9600m")).unwrap();
    let parties = json!({"allocations": [
        {"name": "yarn", "priority": "koord-batch",
         "resources": {BATCH_CPU: "1000", BATCH_MEMORY: "20G"}},
        {"name": "other", "priority": "koord-mid", "resources": {BATCH_CPU: "1000"}}]});
    let key = annotations::NODE_THIRD_PARTY_ALLOCATIONS;
    annotate(&mut objects, key, &parties.to_string());
    objects.topology = Some(topology(
        "M",
        &[("node-0", "4", "4G", "1"), ("node-1", "6", "6G", "2")],
    ));
    let explanation = explain(&objects);
    let [cpu, memory, mid_cpu, _] = &explanation.resources[..] else {
        panic!("{explanation:?}")
    };
    // (10 − 0 − 1 − 0.5 − 5) × 1.2 − 1
    assert_eq!(
        amounts(cpu),
        [
            ("capacity", 10_000, ""),
            ("safety margin", 0, "cpuReclaimThresholdPercent=100"),
            ("system use", -1_000, ""),
            ("host apps", -500, ""),
            ("services", -5_000, "cpuCalculatePolicy=usage"),
            ("normalization", 700, "ratio=1.20"),
            ("third party", -1_000, ""),
        ]
    );
    assert!(cpu.terms[1].taken && !cpu.terms[5].taken);
    assert_eq!(origin(cpu, "normalization"), "cpu-normalization-config");
    assert!(cpu.terms[6].why.contains("\"yarn\""));
    let last = memory.terms.last().unwrap();
    assert_eq!(
        (&*last.what, memory.computed.unwrap().value()),
        ("missing", 0)
    );
    // 0.7 are reclaimable, 0.4 are unused.
    assert_eq!(
        amounts(mid_cpu),
        [
            ("reclaimable", 700, ""),
            ("in use", -300, ""),
            ("unallocated", 0, "midUnallocatedPercent=0"),
        ]
    );
    let apps: Vec<_> = explanation
        .host_applications
        .iter()
        .map(|app| (&*app.name, app.by))
        .collect();
    assert_eq!(apps, [("nginx", "system use"), ("spark", "not charged")]);
    // 4 − 0.5 − 0.25 − 2.5 and 6 − 0.5 − 0.25 − 2.5, each a fifth more; nothing of third parties.
    let zones: Vec<_> = explanation
        .zones
        .iter()
        .map(|zone| {
            let cpu = &zone.resources[0];
            let (computed, shown) = (cpu.computed.unwrap(), cpu.published.unwrap());
            (&*zone.name, computed.milli_value(), shown.value())
        })
        .collect();
    assert_eq!(zones, [("node-0", 900, 1), ("node-1", 3_300, 2)]);
    assert_eq!(explanation.zones[0].resources[1].published, None);
    assert_eq!(
        explanation.zones[0].resources[0].terms[0].why,
        "of the zone"
    );
    assert_eq!(cpu.terms[0].why, "of the node");
    let amplified = explanation.notes.last().unwrap();
    assert!(
        amplified.contains("{\"cpu\":1.20,\"memory\":1.50}")
            && amplified.contains("resource-amplification-config and cpu-normalization-config"),
        "{amplified}"
    );
}

#[test]
fn small_changes_name_their_delay() {
    let mut objects = objects();
    let status = objects.node.status.as_mut().unwrap();
    let allocatable = status.allocatable.as_mut().unwrap();
    allocatable.get_mut(BATCH_CPU).unwrap().0 = "2100".to_owned();
    let notes = explain(&objects).notes;
    assert!(
        notes[0].contains("changes to 2000m when the node is due")
            && notes[0].contains("0.1 of what is published waits up to 300 s"),
        "{notes:?}"
    );
}

#[test]
fn invalid_node_metadata_is_a_problem() {
    let mut objects = objects();
    label(&mut objects, labels::NODE_CPU_RECLAIM_RATIO, "much");
    label(
        &mut objects,
        labels::NODE_CPU_NORMALIZATION_ENABLED,
        "maybe",
    );
    for (key, value) in [
        (annotations::NODE_THIRD_PARTY_ALLOCATIONS, "["),
        (annotations::NODE_RESERVATION, "{\"reservedCPUs\":\"x\"}"),
        (
            annotations::NODE_COLOCATION_STRATEGY,
            "{\"degradeTimeMinutes\": -1}",
        ),
    ] {
        annotate(&mut objects, key, value);
    }
    let explanation = explain(&objects);
    for (problem, says) in explanation.problems.iter().zip([
        "cpu-reclaim-ratio has value \"much\"",
        "colocation-strategy is ignored: field degradeTimeMinutes is -1",
        "reservedCPUs",
        "CPUNormalization: label node.koordinator.sh/cpu-normalization-enabled is \"maybe\"",
        "thirdPartyAllocations",
    ]) {
        assert!(problem.contains(says), "{problem}");
    }
    assert_eq!(explanation.problems.len(), 5, "{:?}", explanation.problems);
    // The settings' own value holds.
    let cpu = &explanation.resources[0];
    assert_eq!(origin(cpu, "safety margin"), "colocation-config");
}

#[test]
fn removed_resources_have_a_reason() {
    let refused = |objects: &Objects| explain(objects).refused.unwrap();
    let mut old = objects();
    status(&mut old).update_time = None;
    assert_eq!(refused(&old), "the report is too old");
    let long_ago: Timestamp = "2026-01-01T00:30:00Z".parse().unwrap();
    status(&mut old).update_time = Some(long_ago.into());
    assert_eq!(
        refused(&old),
        "the report is too old: 1800 s old (degradeTimeMinutes=15: default)"
    );
    let mut off = objects();
    off.settings = None;
    let explanation = explain(&off);
    assert_eq!(
        explanation.refused.unwrap(),
        "co-location is off for the node (enable: default)"
    );
    assert_eq!(explanation.resources[0].computed, None);
    assert_eq!(explanation.resources[0].published.unwrap().value(), 5000);
    // On for the node alone is off.
    let key = annotations::NODE_COLOCATION_STRATEGY;
    annotate(&mut off, key, "{\"enable\": true}");
    assert!(refused(&off).starts_with("co-location is off for the cluster"));
    let mut off = objects();
    annotate(&mut off, key, "{\"enable\": false}");
    assert_eq!(
        refused(&off),
        "co-location is off for the node (enable: annotation node.koordinator.sh/colocation-strategy)"
    );
}
