//! Parsing of pods and arguments, and the inspection views.

use super::*;

#[test]
fn only_production_pods_of_the_bound_classes_are_bound() {
    let settings = |policy: &str| {
        let args: Args = serde_json::from_value(json!({"defaultCPUBindPolicy": policy})).unwrap();
        args.settings().unwrap()
    };
    let read = |class: &str, priority: i32, cpu: &str, spec: Value, default: &str| {
        let change = json!({
            "metadata": {
                "labels": {"koordinator.sh/qosClass": class},
                "annotations": {"scheduling.koordinator.sh/resource-spec": spec.to_string()}
            },
            "spec": {"priority": priority}
        });
        let table = koord_model::resources::ResourceTable::new();
        let info = PodInfo::new(Arc::new(pod("p", cpu, change)), &table).unwrap();
        NumaPod::new(&info, &settings(default), &table).map(|incoming| {
            let cpu_request = incoming.unwrap().cpu_request?;
            let required = cpu_request.required.map_or("-", BindPolicy::as_str);
            Some(format!("{required} {}", cpu_request.preferred.as_str()))
        })
    };
    let preferred = |policy: &str| json!({"preferredCPUBindPolicy": policy});
    let required = |policy: &str| json!({"requiredCPUBindPolicy": policy});
    let ok = |text: &str| Ok(Some(text.to_owned()));
    let fraction = Err("the requested CPUs must be integer".to_owned());
    for (name, class, priority, cpu, spec, expected) in [
        (
            "LSR",
            "LSR",
            9500,
            "4",
            preferred("FullPCPUs"),
            ok("- FullPCPUs"),
        ),
        (
            "LSE",
            "LSE",
            9500,
            "4",
            preferred("SpreadByPCPUs"),
            ok("- SpreadByPCPUs"),
        ),
        (
            "required",
            "LSR",
            9500,
            "4",
            required("SpreadByPCPUs"),
            ok("SpreadByPCPUs SpreadByPCPUs"),
        ),
        (
            "required by default",
            "LSR",
            9500,
            "4",
            required("Default"),
            ok("FullPCPUs FullPCPUs"),
        ),
        ("no wish", "LSR", 9500, "4", json!({}), ok("- FullPCPUs")),
        (
            "shared class",
            "LS",
            9500,
            "4",
            preferred("FullPCPUs"),
            Ok(None),
        ),
        ("batch", "LSR", 5500, "4", preferred("FullPCPUs"), Ok(None)),
        ("mid", "LSR", 7500, "4", preferred("FullPCPUs"), Ok(None)),
        ("no cpu", "LSR", 9500, "0", preferred("FullPCPUs"), Ok(None)),
        (
            "a part of a CPU",
            "LSR",
            9500,
            "1500m",
            preferred("FullPCPUs"),
            fraction,
        ),
        (
            "another policy",
            "LSR",
            9500,
            "4",
            preferred("ConstrainedBurst"),
            Ok(None),
        ),
        (
            "required another",
            "LSR",
            9500,
            "4",
            required("ConstrainedBurst"),
            Ok(None),
        ),
    ] {
        assert_eq!(
            read(class, priority, cpu, spec, "FullPCPUs"),
            expected,
            "{name}"
        );
    }
    assert_eq!(
        read("LSR", 9500, "4", json!({}), ""),
        Ok(None),
        "no default"
    );
    assert_eq!(read("LSR", 9500, "4", required("Default"), ""), Ok(None));
}

#[test]
fn invalid_arguments_are_reported() {
    for (args, expected) in [
        (
            json!({"defaultCPUBindPolicy": "Half"}),
            "defaultCPUBindPolicy: \"Half\"",
        ),
        (json!({"scoringStrategy": {"type": "Balanced"}}), "Balanced"),
        (
            json!({"scoringStrategy": {"resources": [{"name": "cpu", "weight": 0}]}}),
            "scoringStrategy.resources[cpu].weight: 0",
        ),
        (
            json!({"numaScoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}}),
            "numaScoringStrategy.resources[cpu].weight: 101",
        ),
        (json!({"defaultCpuBindPolicy": ""}), "defaultCpuBindPolicy"),
    ] {
        let error = build(Some(&args), &BuildContext::default()).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(build(None, &BuildContext::default()).is_ok());
}

#[test]
fn inspection_lists_cpus_and_zones() {
    let mut engine = one(json!({}));
    place(
        &mut engine,
        lsr("a", "2", r#"{"preferredCPUExclusivePolicy":"PCPULevel"}"#),
    );
    let table = table(&mut engine, "n");
    assert_eq!(table["cpuTopology"]["numCPUs"], 16);
    assert_eq!(
        table["cpuTopology"]["cpuDetails"]["9"],
        json!({
            "cpuID": 9, "coreID": 65540, "nodeID": 1, "socketID": 1, "refCount": 0, "exclusivePolicy": ""
        })
    );
    assert_eq!(table["allocatedCPUs"]["1"]["refCount"], 1);
    assert_eq!(table["allocatedCPUs"]["1"]["exclusivePolicy"], "PCPULevel");
    assert_eq!(table["availableCPUs"], "2-15");
    assert_eq!(table["allocatedPods"][0]["cpuset"], "0-1");
    assert_eq!(
        table["remainingNUMANodeResources"][0]["resources"],
        json!({"cpu": "6", "memory": "32Gi"})
    );
    let query = std::collections::BTreeMap::new();
    let unknown = engine
        .inspector()
        .inspect(NAME, &["nodes", "x"], &query, now());
    let text = "node \"x\" not found".to_owned();
    assert_eq!(unknown, Err(NotShown::Failed(text)));
}

#[test]
fn explain_lists_requested_and_allocated_cpus() {
    let mut engine = one(json!({}));
    let explanation = |engine: &mut Engine, name: &str| {
        let explanation = engine.inspector().explain_pod("ns", name, now()).unwrap();
        explanation["plugins"].get(NAME).cloned()
    };
    // (pod, explanation while the pod waits)
    let rows = [
        (
            lsr("full", "40", FULL),
            Some(json!({
            "cpuBindPolicy": "FullPCPUs", "required": true, "cpus": 40})),
        ),
        (
            lsr("spread", "40", SPREAD),
            Some(json!({
            "cpuBindPolicy": "SpreadByPCPUs", "required": true, "cpus": 40})),
        ),
        (
            lsr(
                "preferred",
                "40",
                r#"{"preferredCPUBindPolicy":"SpreadByPCPUs"}"#,
            ),
            Some(json!({
            "cpuBindPolicy": "SpreadByPCPUs", "required": false, "cpus": 40})),
        ),
        (
            aligned("single", "40", r#"{"numaTopologyPolicy":"SingleNUMANode"}"#),
            Some(json!({"numaTopologyPolicy": "SingleNUMANode"})),
        ),
        (pod("shared", "40", json!({})), None),
    ];
    for (pod, expected) in rows {
        let name = pod.metadata.name.clone().unwrap();
        try_bind(&mut engine, pod).unwrap_err();
        assert_eq!(explanation(&mut engine, &name), expected, "{name}");
    }
    try_bind(&mut engine, lsr("broken", "4", "{nope")).unwrap_err();
    let broken = explanation(&mut engine, "broken").unwrap();
    let error = broken["error"].as_str().unwrap();
    assert!(
        error.contains("scheduling.koordinator.sh/resource-spec"),
        "{error}"
    );

    let bind = try_bind(&mut engine, lsr("has", "4", FULL)).unwrap();
    assert_eq!(
        explanation(&mut engine, "has").unwrap()["allocated"]["cpuset"],
        "0-3"
    );
    engine.pod_applied(Arc::new(bound(&bind)), now());
    assert_eq!(
        explanation(&mut engine, "has").unwrap()["allocated"]["cpuset"],
        "0-3"
    );
}
