use super::*;
use crate::slo::{CPUSuppressPolicy, CgroupBase};
use crate::{annotations, labels};
use serde_json::json;

fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn data(key: &str, value: &serde_json::Value) -> BTreeMap<String, String> {
    strings(&[(key, &value.to_string())])
}

fn messages(errors: &[ConfigError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn an_empty_config_map_gives_the_defaults() {
    let (config, report) = SloControllerConfig::parse(&BTreeMap::new());
    assert_eq!(config, SloControllerConfig::default());
    assert_eq!(report, Report::default());
    let strategy = serde_json::to_value(&config.colocation.cluster).unwrap();
    assert_eq!(
        strategy,
        json!({
            "enable": false,
            "metricAggregateDurationSeconds": 300,
            "metricReportIntervalSeconds": 60,
            "metricAggregatePolicy": { "durations": ["5m0s", "10m0s", "30m0s"] },
            "metricMemoryCollectPolicy": "usageWithoutPageCache",
            "cpuReclaimThresholdPercent": 60,
            "cpuCalculatePolicy": "usage",
            "memoryReclaimThresholdPercent": 65,
            "memoryCalculatePolicy": "usage",
            "degradeTimeMinutes": 15,
            "updateTimeThresholdSeconds": 300,
            "resourceDiffThreshold": 0.1,
            "midCPUThresholdPercent": 100,
            "midMemoryThresholdPercent": 100,
            "midUnallocatedPercent": 0,
            "midStaticCPUReservedPercent": 0,
            "midStaticMemoryReservedPercent": 0,
        })
    );
    let threshold = serde_json::to_value(&config.resource_threshold.cluster).unwrap();
    assert_eq!(
        threshold,
        json!({
            "enable": false,
            "cpuSuppressThresholdPercent": 65,
            "cpuSuppressPolicy": "cpuset",
            "memoryEvictThresholdPercent": 70,
            "cpuEvictPolicy": "evictByRealLimit",
        })
    );
    assert_eq!(
        serde_json::to_value(&config.resource_qos.cluster).unwrap(),
        json!({})
    );
    let burst = serde_json::to_value(&config.cpu_burst.cluster).unwrap();
    assert_eq!(
        burst,
        json!({
            "policy": "none",
            "cpuBurstPercent": 1000,
            "cfsQuotaBurstPercent": 300,
            "cfsQuotaBurstPeriodSeconds": -1,
            "sharePoolThresholdPercent": 50,
        })
    );
    let system = serde_json::to_value(&config.system.cluster).unwrap();
    assert_eq!(system, json!({ "totalNetworkBandwidth": "0" }));
}

#[test]
fn first_matching_override_inherits_from_cluster() {
    let (config, report) = SloControllerConfig::parse(&data(
        keys::COLOCATION,
        &json!({
            "enable": true,
            "cpuReclaimThresholdPercent": 70,
            "nodeConfigs": [
                { "name": "none", "cpuReclaimThresholdPercent": 1 },
                { "name": "a", "nodeSelector": { "matchLabels": { "pool": "a" } }, "memoryReclaimThresholdPercent": 80 },
                { "name": "a2", "nodeSelector": { "matchLabels": { "pool": "a" } }, "enable": false },
                { "name": "off", "nodeSelector": { "matchLabels": { "pool": "off" } }, "enable": false },
            ],
        }),
    ));
    assert_eq!(messages(&report.errors), [""; 0]);
    assert_eq!(
        messages(&report.warnings),
        ["colocation-config: override \"none\": nodeSelector is missing"]
    );
    let of = |pool: &str| {
        config
            .colocation
            .for_node("n", &strings(&[("pool", pool)]))
            .clone()
    };
    assert_eq!(of("x").cpu_reclaim_threshold_percent, Some(70));
    assert_eq!(of("x").memory_reclaim_threshold_percent, Some(65));
    assert_eq!(of("a").cpu_reclaim_threshold_percent, Some(70));
    assert_eq!(of("a").memory_reclaim_threshold_percent, Some(80));
    assert!(of("a").is_enabled());
    assert!(!of("off").is_enabled());
}

#[test]
fn invalid_section_keeps_content_others_update() {
    let mut config = SloControllerConfig::default();
    let report = config.update(&data(keys::COLOCATION, &json!({ "enable": true })));
    assert_eq!(report, Report::default());
    let report = config.update(&strings(&[
        (keys::COLOCATION, r#"{"enable": "yes"}"#),
        (
            keys::RESOURCE_THRESHOLD,
            r#"{"clusterStrategy":{"enable":true,"cpuSuppressPolicy":"cfsQuota"}}"#,
        ),
        (keys::SYSTEM, "{"),
        ("vendor-config", "x"),
    ]));
    assert!(config.colocation.cluster.is_enabled());
    let threshold = &config.resource_threshold.cluster;
    assert_eq!(threshold.enable, Some(true));
    assert_eq!(
        threshold.cpu_suppress_policy,
        Some(CPUSuppressPolicy::CfsQuota)
    );
    assert_eq!(config.extensions, strings(&[("vendor-config", "x")]));
    assert!(report.failed(keys::COLOCATION) && report.failed(keys::SYSTEM));
    assert!(!report.failed(keys::RESOURCE_THRESHOLD));
    let text = messages(&report.errors).join("\n");
    for part in [
        "colocation-config: field enable",
        "\"yes\"",
        "system-config: not JSON",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(
        report.errors[0].event_reason(),
        "ColocationCfgUnmarshalFailed"
    );
    assert_eq!(report.errors[1].event_reason(), "SLOCfgUnmarshalFailed");
}

#[test]
fn invalid_colocation_value_rejects_section_or_override() {
    let (config, report) = SloControllerConfig::parse(&data(
        keys::COLOCATION,
        &json!({ "enable": true, "degradeTimeMinutes": 0 }),
    ));
    assert_eq!(
        messages(&report.errors),
        ["colocation-config: field degradeTimeMinutes is 0: must be from 1 to 153722867"]
    );
    assert!(!config.colocation.cluster.is_enabled());

    let (config, report) = SloControllerConfig::parse(&data(
        keys::COLOCATION,
        &json!({
            "enable": true,
            "nodeConfigs": [{ "name": "bad", "nodeSelector": {}, "midUnallocatedPercent": 101, "cpuReclaimThresholdPercent": 10 }],
        }),
    ));
    assert_eq!(messages(&report.errors), [""; 0]);
    assert_eq!(
        messages(&report.warnings),
        [
            "colocation-config: override \"bad\": field midUnallocatedPercent is 101: must be from 0 to 100"
        ]
    );
    let strategy = config.colocation.for_node("n", &BTreeMap::new());
    assert_eq!(strategy.cpu_reclaim_threshold_percent, Some(60));
}

#[test]
fn api_violation_rejects_doubtful_value_is_accepted() {
    let mut config = SloControllerConfig::default();
    let threshold = |text: &str| strings(&[(keys::RESOURCE_THRESHOLD, text)]);
    let report = config.update(&threshold(
        r#"{"clusterStrategy": {"enable": true, "cpuSuppressThresholdPercent": 70}}"#,
    ));
    assert_eq!(report, Report::default());
    let before = config.clone();
    for (strategy, says) in [
        (
            r#"{"cpuSuppressThresholdPercent": 650}"#,
            "field cpuSuppressThresholdPercent is 650: must be from 0 to 100",
        ),
        (
            r#"{"memoryEvictLowerPercent": -1}"#,
            "field memoryEvictLowerPercent is -1: must be from 0 to 100",
        ),
    ] {
        let text = format!(r#"{{"clusterStrategy": {strategy}}}"#);
        let report = config.update(&threshold(&text));
        assert_eq!(
            messages(&report.errors),
            [format!("resource-threshold-config: {says}")]
        );
        assert_eq!(
            (report.warnings.len(), &config),
            (0, &before),
            "the last ones stay"
        );
    }

    // Of an override, only the override is left out.
    let report = config.update(&threshold(
        r#"{"clusterStrategy": {"enable": true},
            "nodeStrategies": [{"name": "a", "nodeSelector": {}, "cpuSuppressThresholdPercent": 650}]}"#,
    ));
    assert_eq!(messages(&report.errors), [""; 0]);
    assert_eq!(
        messages(&report.warnings),
        [
            "resource-threshold-config: override \"a\": field cpuSuppressThresholdPercent is 650: must \
          be from 0 to 100"
        ]
    );
    let strategy = config.resource_threshold.for_node("n", &BTreeMap::new());
    assert_eq!(strategy.cpu_suppress_threshold_percent, Some(65));

    // The definition has nothing against this, and upstream writes it; koordlet would refuse it.
    let report = config.update(&threshold(
        r#"{"clusterStrategy": {"memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 80}}"#,
    ));
    let counts = [report.errors, report.warnings, report.doubts].map(|counts| counts.len());
    assert_eq!(counts, [1, 0, 0]);
    let strategy = &config.resource_threshold.cluster;
    assert_eq!(strategy.memory_evict_lower_percent, None);

    let qos = r#"{"clusterStrategy": {"beClass": {"resctrlQOS": {"mbaPercent": 101},
        "blkioQOS": {"blocks": [{"ioCfg": {"ioWeightPercent": 0}}]}}}}"#;
    let report = config.update(&strings(&[(keys::RESOURCE_QOS, qos)]));
    assert_eq!(
        messages(&report.errors),
        [
            "resource-qos-config: field beClass.blkioQOS.blocks[0].ioCfg.ioWeightPercent is 0: must \
             be from 1 to 100",
            "resource-qos-config: field beClass.resctrlQOS.mbaPercent is 101: must be from 0 to 100",
        ]
    );
}

#[test]
fn a_nodes_annotation_and_labels_come_last() {
    let (config, _) =
        SloControllerConfig::parse(&data(keys::COLOCATION, &json!({ "enable": true })));
    let node_labels = strings(&[
        (labels::NODE_CPU_RECLAIM_RATIO, "0.29"),
        (labels::NODE_MEMORY_RECLAIM_RATIO, "-1"),
        (labels::NODE_MID_STATIC_CPU_RESERVED_RATIO, "1.5"),
    ]);
    let node_annotations = strings(&[(
        annotations::NODE_COLOCATION_STRATEGY,
        r#"{"CPUReclaimThresholdPercent": 99, "memoryReclaimThresholdPercent": 50}"#,
    )]);
    let (strategy, warnings) =
        colocation_strategy_for_node(&config.colocation, "n", &node_labels, &node_annotations);
    assert_eq!(strategy.cpu_reclaim_threshold_percent, Some(28));
    assert_eq!(strategy.memory_reclaim_threshold_percent, Some(50));
    assert_eq!(strategy.mid_static_cpu_reserved_percent, Some(150));
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0]
            .to_string()
            .contains("memory-reclaim-ratio has value \"-1\"")
    );

    let broken = strings(&[(annotations::NODE_COLOCATION_STRATEGY, "[")]);
    let (strategy, warnings) =
        colocation_strategy_for_node(&config.colocation, "n", &BTreeMap::new(), &broken);
    assert_eq!(strategy, config.colocation.cluster);
    assert_eq!(warnings.len(), 1);
}

#[test]
fn origins_name_source_of_each_setting() {
    let text = json!({
        "enable": true, "CPUReclaimThresholdPercent": 60, "memoryReclaimThresholdPercent": 70,
        "degradeTimeMinutes": 30, "midUnallocatedPercent": 5,
        "nodeConfigs": [
            {"name": "none", "cpuReclaimThresholdPercent": 1},
            {"nodeSelector": {"matchLabels": {"pool": "b"}}, "degradeTimeMinutes": 20,
             "memoryReclaimThresholdPercent": 50, "midUnallocatedPercent": 9},
        ],
    })
    .to_string();
    let (config, _) = SloControllerConfig::parse(&strings(&[(keys::COLOCATION, &text)]));
    let node_labels = strings(&[
        ("pool", "b"),
        (labels::NODE_MEMORY_RECLAIM_RATIO, "0.4"),
        (labels::NODE_CPU_RECLAIM_RATIO, "much"),
        (labels::NODE_MID_STATIC_CPU_RESERVED_RATIO, "0.1"),
        (labels::NODE_MID_STATIC_MEMORY_RESERVED_RATIO, "0.1"),
    ]);
    let annotation = r#"{"midUnallocatedPercent": 7, "batchCPUThresholdPercent": 80}"#;
    let node_annotations = strings(&[(annotations::NODE_COLOCATION_STRATEGY, annotation)]);
    let section = &config.colocation;
    let origins = colocation_origins(section, &text, "n", &node_labels, &node_annotations);
    for (field, origin) in [
        ("enable", "colocation-config"),
        // The default's value, but set explicitly.
        ("cpuReclaimThresholdPercent", "colocation-config"),
        (
            "memoryReclaimThresholdPercent",
            "label node.koordinator.sh/memory-reclaim-ratio",
        ),
        ("degradeTimeMinutes", "colocation-config, nodes \"#1\""),
        (
            "midUnallocatedPercent",
            "annotation node.koordinator.sh/colocation-strategy",
        ),
        (
            "batchCPUThresholdPercent",
            "annotation node.koordinator.sh/colocation-strategy",
        ),
        (
            "midStaticCPUReservedPercent",
            "label node.koordinator.sh/mid-static-cpu-reserved-ratio",
        ),
        (
            "midStaticMemoryReservedPercent",
            "label node.koordinator.sh/mid-static-memory-reserved-ratio",
        ),
        ("memoryCalculatePolicy", "default"),
    ] {
        assert_eq!(origins[field].to_string(), origin, "{field}");
    }
    assert_eq!(origins.get("batchMemoryThresholdPercent"), None);
    // What was refused decides nothing.
    let refused =
        r#"{"enable": true, "cpuReclaimThresholdPercent": 5, "midUnallocatedPercent": 500}"#;
    let origins = colocation_origins(section, refused, "n", &BTreeMap::new(), &BTreeMap::new());
    assert_eq!(origins["midUnallocatedPercent"], Origin::Default);
}

#[test]
fn a_bad_bandwidth_annotation_keeps_the_strategy() {
    let (config, _) = SloControllerConfig::parse(&data(
        keys::SYSTEM,
        &json!({ "clusterStrategy": { "minFreeKbytesFactor": 100, "totalNetworkBandwidth": "10G" } }),
    ));
    let with = |text: &str| {
        let annotation = strings(&[(annotations::NODE_BANDWIDTH, text)]);
        system_strategy_for_node(&config.system, "n", &BTreeMap::new(), &annotation)
    };
    let (strategy, warning) = with("25G");
    assert_eq!(strategy.total_network_bandwidth.unwrap().to_string(), "25G");
    assert_eq!(warning, None);
    let (strategy, warning) = with("fast");
    assert_eq!(strategy, config.system.cluster);
    assert!(warning.unwrap().to_string().contains("\"fast\""));
}

#[test]
fn an_override_replaces_the_whole_list_of_host_applications() {
    let (config, report) = SloControllerConfig::parse(&data(
        keys::HOST_APPLICATION,
        &json!({
            "applications": [{ "name": "nginx", "qos": "LS", "cgroupPath": { "base": "CgroupRoot", "relativePath": "nginx" } }],
            "nodeConfigs": [
                { "nodeSelector": { "matchLabels": { "pool": "b" } }, "applications": [{ "name": "redis" }] },
                { "nodeSelector": { "matchLabels": { "pool": "none" } } },
            ],
        }),
    ));
    assert_eq!(report, Report::default());
    let names = |pool: &str| -> Vec<String> {
        let node = config
            .host_application
            .for_node("n", &strings(&[("pool", pool)]));
        node.applications
            .iter()
            .map(|application| application.name.clone())
            .collect()
    };
    assert_eq!(names("a"), ["nginx"]);
    assert_eq!(names("b"), ["redis"]);
    assert_eq!(names("none"), [""; 0]);
    let path = config.host_application.cluster.applications[0]
        .cgroup_path
        .clone()
        .unwrap();
    assert_eq!(path.base, Some(CgroupBase::Root));
}

#[test]
fn thresholds_are_bounded_and_ordered() {
    let check = |strategy: serde_json::Value| -> Vec<String> {
        let strategy = serde_json::from_value(strategy).unwrap();
        threshold_violations(&strategy)
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(check(json!({ "memoryEvictThresholdPercent": 80 })), [""; 0]);
    assert_eq!(check(json!({ "memoryEvictLowerPercent": 60 })), [""; 0]);
    for (strategy, part) in [
        (
            json!({ "cpuSuppressThresholdPercent": 101 }),
            "cpuSuppressThresholdPercent is 101",
        ),
        (
            json!({ "memoryEvictLowerPercent": 75 }),
            "memoryEvictLowerPercent is 75: must be less than memoryEvictThresholdPercent, which is 70",
        ),
        (
            json!({ "memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 60 }),
            "memoryEvictLowerPercent is 60",
        ),
        (
            json!({ "memoryAllocatableEvictThresholdPercent": 90 }),
            "memoryAllocatableEvictThresholdPercent is 90: must be more than",
        ),
        (
            json!({ "cpuEvictLowerPercent": 60 }),
            "needs cpuEvictThresholdPercent",
        ),
        (
            json!({ "cpuEvictTimeWindowSeconds": 0 }),
            "cpuEvictTimeWindowSeconds is 0",
        ),
        (
            json!({ "allocatableEvictPriorityThreshold": 8000 }),
            "allocatableEvictPriorityThreshold is 8000",
        ),
    ] {
        let problems = check(strategy.clone());
        assert!(
            problems.len() == 1 && problems[0].contains(part),
            "{strategy}: {problems:?}"
        );
    }
}

#[test]
fn violations_of_the_qos_section_name_the_class() {
    let (config, report) = SloControllerConfig::parse(&data(
        keys::RESOURCE_QOS,
        &json!({
            "clusterStrategy": { "beClass": { "cpuQOS": { "groupIdentity": 2 } } },
            "nodeStrategies": [{ "name": "x", "nodeSelector": {}, "lsClass": { "memoryQOS": { "wmarkRatio": 101 } } }],
        }),
    ));
    assert_eq!(
        messages(&report.warnings),
        [
            "resource-qos-config: override \"x\": field lsClass.memoryQOS.wmarkRatio is 101: must be from 0 to 100"
        ]
    );
    assert!(config.resource_qos.cluster.be_class.is_some());
    let nodes = config.resource_qos.for_node("n", &BTreeMap::new());
    assert_eq!(nodes, &config.resource_qos.cluster);
    // The definition of NodeSLO has no bounds for it.
    let cluster = json!({"clusterStrategy": {"beClass": {"cpuQOS": {"groupIdentity": 3}}}});
    let (config, report) = SloControllerConfig::parse(&data(keys::RESOURCE_QOS, &cluster));
    assert_eq!(
        messages(&report.errors),
        ["resource-qos-config: field beClass.cpuQOS.groupIdentity is 3: must be from -1 to 2"]
    );
    assert_eq!(config.resource_qos.cluster.be_class, None);
}

#[test]
fn normalisation_and_amplification_are_read() {
    let (config, report) = SloControllerConfig::parse(&strings(&[
        (
            keys::CPU_NORMALIZATION,
            r#"{"enable":true,"ratioModel":{"Xeon A":{"baseRatio":1.5,"turboEnabledRatio":1.65}}}"#,
        ),
        (
            keys::RESOURCE_AMPLIFICATION,
            r#"{"enable":false,"nodeConfigs":[{"nodeSelector":{},"enable":true,"resourceAmplificationRatio":{"cpu":1.5}}]}"#,
        ),
    ]));
    assert_eq!(report, Report::default());
    let normalisation = &config.cpu_normalization.cluster;
    assert_eq!(
        normalisation.ratio_model["Xeon A"].turbo_enabled_ratio,
        Some(1.65)
    );
    let amplification = config
        .resource_amplification
        .for_node("n", &BTreeMap::new());
    assert_eq!(amplification.resource_amplification_ratio["cpu"], 1.5);
}

#[test]
fn settings_without_effect_are_remarked() {
    let findings = |key: &str, value: serde_json::Value| {
        let (_, report) = SloControllerConfig::parse(&data(key, &value));
        for actual in [&report.errors, &report.doubts, &report.left_out] {
            assert_eq!(messages(actual), [""; 0]);
        }
        messages(&report.remarks)
    };
    let check = |key: &str, value: serde_json::Value, parts: &[&str]| {
        let actual = findings(key, value);
        assert_eq!(actual.len(), parts.len(), "{actual:?}");
        for (message, part) in actual.iter().zip(parts) {
            assert!(
                message.starts_with(key) && message.contains(part),
                "{message}"
            );
        }
    };
    let selector = json!({ "matchLabels": { "a": "b" } });
    // Case does not count, selectors and free-form parts are no mistakes.
    let good = json!({ "ENABLE": true, "extensions": { "any": 1 }, "metricAggregatePolicy":
        { "durations": ["5m"] }, "nodeConfigs": [{ "name": "n", "nodeSelector": selector }] });
    check(keys::COLOCATION, good, &[]);
    let bad = json!({ "enabled": true, "cpuReclaimThresholdPercent": 300, "midReclaimMode": "",
        "metricAggregatePolicy": { "duration": ["5m"] }, "cpuCalculatePolicy": "request",
        "nodeConfigs": [{ "nodeSelector": selector, "cpuReclaimTresholdPercent": 70 }] });
    check(
        keys::COLOCATION,
        bad,
        &[
            "enabled is true: there is no such field",
            "metricAggregatePolicy.duration is [\"5m\"]",
            "nodeConfigs[0].cpuReclaimTresholdPercent is 70",
            "cpuReclaimThresholdPercent is 300: it is more than 100",
            "cpuCalculatePolicy is \"request\": it is none of usage, maxUsageRequest",
        ],
    );
}

/// Upstream writes such words to NodeMetrics and NodeSLOs; koordlets then take their defaults.
#[test]
fn a_word_that_means_nothing_counts_as_not_given() {
    let selector = json!({ "matchLabels": { "a": "b" } });
    let config = |pairs: &[(&str, &serde_json::Value)]| {
        let data = pairs.iter().map(|(k, v)| ((*k).to_owned(), v.to_string()));
        SloControllerConfig::parse(&data.collect())
    };
    let (config, report) = config(&[
        (
            keys::COLOCATION,
            &json!({ "enable": true, "memoryCalculatePolicy": "request", "cpuCalculatePolicy": "used",
                "midReclaimMode": "statik", "metricMemoryCollectPolicy": "usage",
                "nodeConfigs": [{ "nodeSelector": selector, "memoryCalculatePolicy": "used",
                                  "cpuReclaimThresholdPercent": 70 }] }),
        ),
        (
            keys::RESOURCE_THRESHOLD,
            &json!({ "clusterStrategy": { "enable": true, "CPUSuppressPolicy": "foo", "cpuEvictPolicy": "" },
                "nodeStrategies": [{ "nodeSelector": selector, "cpuSuppressPolicy": "cfsQuota" }] }),
        ),
        (
            keys::RESOURCE_QOS,
            &json!({ "clusterStrategy": { "policies": { "cpuPolicy": "idle", "netQOSPolicy": "tc" },
                "lsClass": { "networkQOS": { "enable": true, "ingressRequest": 101, "egressLimit": "-1M" } },
                "beClass": { "networkQOS": { "ingressRequest": "fast", "egressRequest": "10M",
                                             "ingressLimit": 100 },
                             "blkioQOS": { "enable": true, "blocks": [
                    { "name": "a", "type": "disk" }, { "name": "b", "type": "device" }] } } } }),
        ),
        (
            keys::CPU_BURST,
            &json!({ "clusterStrategy": { "policy": "always", "cpuBurstPercent": 200 } }),
        ),
        (
            keys::HOST_APPLICATION,
            &json!({ "applications": [
                { "name": "a", "qos": "ls" }, { "name": "b", "qos": "LS", "priority": "", "cgroupPath": { "base": "" } },
                { "name": "c", "priority": "prod" }, { "name": "d", "cgroupPath": { "base": "Root" } }] }),
        ),
    ]);
    for found in [&report.errors, &report.warnings, &report.doubts] {
        assert_eq!(messages(found), [""; 0]);
    }
    let memory = "usageWithoutPageCache, usageWithHotPageCache, usageWithPageCache";
    assert_eq!(
        messages(&report.left_out),
        [
            "colocation-config: field cpuCalculatePolicy is \"used\": it is none of usage, request, maxUsageRequest",
            "colocation-config: field midReclaimMode is \"statik\": it is none of static",
            &format!(
                "colocation-config: field metricMemoryCollectPolicy is \"usage\": it is none of {memory}"
            ),
            "colocation-config: override \"#0\": field memoryCalculatePolicy is \"used\": it is none of usage, request, maxUsageRequest",
            "resource-threshold-config: field CPUSuppressPolicy is \"foo\": it is none of cpuset, cfsQuota",
            "resource-qos-config: field policies.cpuPolicy is \"idle\": it is none of groupIdentity, coreSched",
            "resource-qos-config: field beClass.blkioQOS.blocks[0].type is \"disk\": it is none of device, volumegroup, podvolume, so beClass.blkioQOS.blocks[0] means nothing",
            "resource-qos-config: field beClass.networkQOS.ingressRequest is \"fast\": quantity \"fast\" does not start with a decimal number",
            "resource-qos-config: field lsClass.networkQOS.ingressRequest is 101: must be from 0 to 100",
            "resource-qos-config: field lsClass.networkQOS.egressLimit is \"-1M\": must not be negative",
            "cpu-burst-config: field policy is \"always\": it is none of none, cpuBurstOnly, cfsQuotaBurstOnly, auto",
            "host-application-config: field applications[2].priority is \"prod\": it is none of koord-prod, koord-mid, koord-batch, koord-free, so applications[2] means nothing",
            "host-application-config: field applications[0].qos is \"ls\": it is none of LSE, LSR, LS, BE, SYSTEM, so applications[0] means nothing",
            "host-application-config: field applications[3].cgroupPath.base is \"Root\": it is none of CgroupRoot, Kubepods, KubepodsBurstable, KubepodsBesteffort, so applications[3] means nothing",
        ]
    );
    // The lower layers are in effect, and so is everything else in the section.
    let plain = &config.colocation.cluster;
    let defaults = ColocationStrategy::defaults();
    assert!(plain.is_enabled());
    assert_eq!(plain.cpu_calculate_policy, defaults.cpu_calculate_policy);
    assert_eq!(plain.mid_reclaim_mode, None);
    let policy = &plain.metric_memory_collect_policy;
    assert_eq!(*policy, defaults.metric_memory_collect_policy);
    let node_labels = strings(&[("a", "b")]);
    let node = config.colocation.for_node("n", &node_labels);
    assert_eq!(node.memory_calculate_policy, Some(CalculatePolicy::Request));
    assert_eq!(node.cpu_reclaim_threshold_percent, Some(70));
    let threshold = &config.resource_threshold;
    let value = serde_json::to_value(&threshold.cluster).unwrap();
    assert_eq!(
        (
            &value["enable"],
            &value["cpuSuppressPolicy"],
            &value["cpuEvictPolicy"]
        ),
        (&json!(true), &json!("cpuset"), &json!("evictByRealLimit"))
    );
    let policy = &threshold.for_node("n", &node_labels).cpu_suppress_policy;
    assert_eq!(*policy, Some(CPUSuppressPolicy::CfsQuota));
    assert_eq!(
        serde_json::to_value(&config.resource_qos.cluster).unwrap(),
        json!({ "policies": { "netQOSPolicy": "tc" }, "lsClass": { "networkQOS": { "enable": true } },
            "beClass": { "networkQOS": { "egressRequest": "10M", "ingressLimit": 100 },
                         "blkioQOS": { "enable": true, "blocks": [{ "name": "b", "type": "device" }] } } })
    );
    let value = serde_json::to_value(&config.cpu_burst.cluster).unwrap();
    assert_eq!(
        (&value["policy"], &value["cpuBurstPercent"]),
        (&json!("none"), &json!(200))
    );
    let apps = &config.host_application.cluster.applications;
    let names: Vec<_> = apps.iter().map(|app| app.name.as_str()).collect();
    assert_eq!(names, ["b"]);

    // The same on a node, where the label's and the annotation's other values hold.
    let annotation = strings(&[(
        annotations::NODE_COLOCATION_STRATEGY,
        r#"{"cpuCalculatePolicy": "used", "cpuReclaimThresholdPercent": 44}"#,
    )]);
    let (strategy, warnings) =
        colocation_strategy_for_node(&config.colocation, "n", &BTreeMap::new(), &annotation);
    assert_eq!(strategy.cpu_calculate_policy, defaults.cpu_calculate_policy);
    assert_eq!(strategy.cpu_reclaim_threshold_percent, Some(44));
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}");
    };
    assert_eq!(
        warning.to_string(),
        "node.koordinator.sh/colocation-strategy has value \"used\", which is ignored: field \
         cpuCalculatePolicy: it is none of usage, request, maxUsageRequest"
    );
}
