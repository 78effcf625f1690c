mod invalid;
mod rollout;
mod sections;

use super::*;
use koord_api::GoDuration;
use koord_api::slo::{CPUBurstPolicy, CPUSuppressPolicy};
use koord_model::reclaim::{CpuPolicy, MemoryPolicy, MidMode};
use serde_json::{Value, json};

fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
        .collect()
}

fn read(entries: &[(&str, &str)]) -> Config {
    let (config, problems) = Config::default().updated(&data(entries));
    assert_eq!(problems, []);
    config
}

fn node(labels: Value, annotations: Value) -> Node {
    let metadata = json!({"name": "n", "labels": labels, "annotations": annotations});
    serde_json::from_value(json!({ "metadata": metadata })).unwrap()
}

fn plain() -> Node {
    node(json!({}), json!({}))
}

/// Reads settings like [`read`], but accepts problems.
fn read_lenient(text: &str) -> Config {
    Config::default()
        .updated(&data(&[(keys::COLOCATION, text)]))
        .0
}

fn colocation(text: &str) -> Config {
    read(&[(keys::COLOCATION, text)])
}

#[test]
fn without_settings_colocation_is_off_and_metrics_have_defaults() {
    assert!(!Config::default().is_available());
    let config = read(&[]);
    assert!(config.is_available());
    assert_eq!(config.strategy(&plain()), None);
    let policy = config.metric_collect_policy(&plain());
    assert_eq!(policy.aggregate_duration_seconds, Some(300));
    assert_eq!(policy.report_interval_seconds, Some(60));
    let durations = policy.node_aggregate_policy.unwrap().durations;
    assert_eq!(durations, [5, 10, 30].map(GoDuration::from_mins));
    assert_eq!(
        policy.node_memory_collect_policy.unwrap().as_str(),
        "usageWithoutPageCache"
    );
}

#[test]
fn a_cluster_strategy_is_laid_over_the_defaults() {
    let config = colocation(
        r#"{"enable": true, "metricReportIntervalSeconds": 3, "CPUReclaimThresholdPercent": 80,
            "cpuCalculatePolicy": "maxUsageRequest", "memoryCalculatePolicy": "request",
            "degradeTimeMinutes": 2, "resourceDiffThreshold": 0.05, "midReclaimMode": "static",
            "midStaticCPUReservedPercent": 7, "batchMemoryThresholdPercent": 40}"#,
    );
    let strategy = config.strategy(&plain()).unwrap();
    assert_eq!(strategy.batch.cpu_reclaim_percent, 80);
    assert_eq!(strategy.batch.memory_reclaim_percent, 65);
    assert_eq!(strategy.batch.cpu, CpuPolicy::MaxUsageRequest);
    assert_eq!(strategy.batch.memory, MemoryPolicy::Request);
    assert_eq!(strategy.batch.memory_limit_percent, Some(40));
    assert_eq!(
        strategy.mid.mode,
        MidMode::Static {
            cpu_percent: 7,
            memory_percent: 0
        }
    );
    assert_eq!(
        (strategy.degrade_minutes, strategy.diff_threshold),
        (2, 0.05)
    );
    let policy = config.metric_collect_policy(&plain());
    assert_eq!(policy.report_interval_seconds, Some(3));
    assert_eq!(policy.aggregate_duration_seconds, Some(300));
}

#[test]
fn first_matching_node_config_applies() {
    let config = read_lenient(
        r#"{"enable": true, "cpuReclaimThresholdPercent": 70, "nodeConfigs": [
            {"name": "none", "cpuReclaimThresholdPercent": 1},
            {"name": "odd", "nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "Like"}]},
             "cpuReclaimThresholdPercent": 2},
            {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}},
             "cpuReclaimThresholdPercent": 50},
            {"name": "off", "nodeSelector": {"matchLabels": {"pool": "off"}}, "enable": false},
            {"name": "rest", "nodeSelector": {}, "memoryReclaimThresholdPercent": 10}]}"#,
    );
    let reclaim_percents = |pool: &str| {
        config
            .strategy(&node(json!({"pool": pool}), json!({})))
            .map(|strategy| {
                (
                    strategy.batch.cpu_reclaim_percent,
                    strategy.batch.memory_reclaim_percent,
                )
            })
    };
    assert_eq!(reclaim_percents("a"), Some((50, 65)));
    assert_eq!(reclaim_percents("b"), Some((70, 10)));
    assert_eq!(reclaim_percents("off"), None);
}

#[test]
fn off_for_the_cluster_is_off_for_every_node() {
    let config = colocation(
        r#"{"enable": false, "nodeConfigs": [{"nodeSelector": {}, "enable": true,
            "metricReportIntervalSeconds": 9}]}"#,
    );
    assert_eq!(config.strategy(&plain()), None);
    // Measuring follows the node's own setting.
    assert_eq!(
        config
            .metric_collect_policy(&plain())
            .report_interval_seconds,
        Some(9)
    );
}

#[test]
fn annotation_and_labels_of_a_node_have_the_last_word() {
    let config = colocation(r#"{"enable": true}"#);
    let percents = |labels: Value, annotation: &str| {
        let annotations = json!({"node.koordinator.sh/colocation-strategy": annotation});
        let strategy = config.strategy(&node(labels, annotations)).unwrap();
        (
            strategy.batch.cpu_reclaim_percent,
            strategy.batch.memory_reclaim_percent,
        )
    };
    assert_eq!(
        percents(json!({}), r#"{"cpuReclaimThresholdPercent": 90}"#),
        (90, 65)
    );
    assert_eq!(percents(json!({}), "{"), (60, 65));
    assert_eq!(
        percents(
            json!({}),
            r#"{"degradeTimeMinutes": 0, "cpuReclaimThresholdPercent": 9}"#
        ),
        (60, 65)
    );
    let labels = json!({"node.koordinator.sh/cpu-reclaim-ratio": "0.29",
        "node.koordinator.sh/memory-reclaim-ratio": "-1"});
    assert_eq!(
        percents(labels, r#"{"cpuReclaimThresholdPercent": 90}"#),
        (28, 65)
    );
}

#[test]
fn invalid_settings_keep_the_last_valid_ones() {
    let good = colocation(r#"{"enable": true, "cpuReclaimThresholdPercent": 70}"#);
    for (text, names) in [
        ("{", vec!["colocation-config", "not JSON"]),
        (
            r#"{"degradeTimeMinutes": "x"}"#,
            vec!["colocation-config", "degradeTimeMinutes", "x"],
        ),
        (
            r#"{"degradeTimeMinutes": 0}"#,
            vec!["degradeTimeMinutes", "0"],
        ),
        (
            r#"{"midCPUThresholdPercent": 101}"#,
            vec!["midCPUThresholdPercent", "101"],
        ),
        (r#"{"nodeConfigs": {}}"#, vec!["nodeConfigs"]),
        ("[1]", vec!["[1]"]),
    ] {
        let (config, problems) = good.updated(&data(&[(keys::COLOCATION, text)]));
        assert!(config.has_colocation_error() && config.is_available());
        assert_eq!(config.strategy(&plain()), good.strategy(&plain()), "{text}");
        assert_eq!(problems.len(), 1, "{text}");
        assert_eq!(problems[0].reason, "ColocationCfgUnmarshalFailed");
        for name in names {
            assert!(
                problems[0].message.contains(name),
                "{text}: {}",
                problems[0].message
            );
        }
        // The very first settings being unusable means that there are none.
        let (first, _) = Config::default().updated(&data(&[(keys::COLOCATION, text)]));
        assert!(!first.is_available() && first.is_present());
        // A good key clears the error.
        let (again, problems) = config.updated(&data(&[(keys::COLOCATION, "{}")]));
        assert!(!again.has_colocation_error() && problems.is_empty());
    }
}

#[test]
fn an_invalid_node_config_falls_back_to_the_cluster() {
    let text = r#"{"enable": true, "cpuReclaimThresholdPercent": 70, "nodeConfigs": [
        {"nodeSelector": {}, "cpuReclaimThresholdPercent": 80, "degradeTimeMinutes": -1}]}"#;
    let (config, problems) = Config::default().updated(&data(&[(keys::COLOCATION, text)]));
    assert_eq!(
        config.strategy(&plain()).unwrap().batch.cpu_reclaim_percent,
        70
    );
    for part in ["colocation-config", "#0", "degradeTimeMinutes", "-1"] {
        assert!(
            problems[0].message.contains(part),
            "{}",
            problems[0].message
        );
    }
}

#[test]
fn node_slo_has_all_sections_with_defaults() {
    let (spec, problem) = read(&[]).slo(&plain());
    assert_eq!(problem, None);
    assert_eq!(
        serde_json::to_value(&spec).unwrap(),
        json!({
            "resourceUsedThresholdWithBE": {
                "enable": false, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cpuset",
                "memoryEvictThresholdPercent": 70, "cpuEvictPolicy": "evictByRealLimit"},
            "resourceQOSStrategy": {},
            "cpuBurstStrategy": {"policy": "none", "cpuBurstPercent": 1000,
                "cfsQuotaBurstPercent": 300, "cfsQuotaBurstPeriodSeconds": -1,
                "sharePoolThresholdPercent": 50},
            "systemStrategy": {"totalNetworkBandwidth": "0"},
        })
    );
}

#[test]
fn sections_of_node_slo_are_independent() {
    let config = read(&[
        (
            "resource-threshold-config",
            r#"{"clusterStrategy": {"enable": true, "cpuSuppressThresholdPercent": 60},
             "nodeStrategies": [{"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}},
                                 "cpuSuppressPolicy": "cfsQuota"}]}"#,
        ),
        (
            "host-application-config",
            r#"{"applications": [{"name": "nginx", "qos": "LS"}],
             "nodeConfigs": [{"nodeSelector": {"matchLabels": {"pool": "b"}},
                              "applications": [{"name": "db", "qos": "LS"}]}]}"#,
        ),
    ]);
    let slo = |pool: &str| config.slo(&node(json!({"pool": pool}), json!({}))).0;
    let a = slo("a").resource_used_threshold_with_be.unwrap();
    assert_eq!(a.enable, Some(true));
    assert_eq!(a.cpu_suppress_threshold_percent, Some(60));
    assert_eq!(a.cpu_suppress_policy, Some(CPUSuppressPolicy::CfsQuota));
    let b = slo("b").resource_used_threshold_with_be.unwrap();
    assert_eq!(b.cpu_suppress_policy, Some(CPUSuppressPolicy::Cpuset));
    assert_eq!(slo("a").host_applications[0].name, "nginx");
    assert_eq!(slo("b").host_applications[0].name, "db");

    let bad = data(&[
        ("host-application-config", "{}"),
        (
            "resource-threshold-config",
            r#"{"clusterStrategy": {"enable": "yes"}}"#,
        ),
        (
            "cpu-burst-config",
            r#"{"clusterStrategy": {"policy": "auto"}}"#,
        ),
    ]);
    let (next, problems) = config.updated(&bad);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].reason, "SLOCfgUnmarshalFailed");
    for part in ["resource-threshold-config", "enable", "yes"] {
        assert!(
            problems[0].message.contains(part),
            "{}",
            problems[0].message
        );
    }
    let spec = next.slo(&plain()).0;
    assert_eq!(
        spec.resource_used_threshold_with_be.unwrap().enable,
        Some(true)
    );
    assert_eq!(
        spec.cpu_burst_strategy.unwrap().policy,
        Some(CPUBurstPolicy::Auto)
    );
}

#[test]
fn bandwidth_annotation_wins_if_valid() {
    let config = read(&[(
        "system-config",
        r#"{"clusterStrategy": {"totalNetworkBandwidth": "10G", "watermarkScaleFactor": 150}}"#,
    )]);
    let bandwidth_with = |text: &str| {
        let (spec, problem) = config.slo(&node(
            json!({}),
            json!({"node.koordinator.sh/network-bandwidth": text}),
        ));
        let system = spec.system_strategy.unwrap();
        assert_eq!(system.watermark_scale_factor, Some(150));
        (system.total_network_bandwidth.unwrap().to_string(), problem)
    };
    assert_eq!(bandwidth_with("25G"), ("25G".to_owned(), None));
    let (bandwidth, problem) = bandwidth_with("fast");
    assert_eq!(bandwidth, "10G");
    let problem = problem.unwrap();
    assert!(
        problem.contains("network-bandwidth") && problem.contains("fast"),
        "{problem}"
    );
}

#[test]
fn only_unusable_values_count_as_refused() {
    for (key, text, is_refused) in [
        (
            "colocation-config",
            r#"{"cpuReclaimThresholdPercent": -5}"#,
            true,
        ),
        ("colocation-config", r#"{"cpuReclaimPercent": 5}"#, false),
        (
            "cpu-suppress-config",
            r#"{"clusterStrategy": {"misspelt": 1}}"#,
            false,
        ),
        ("cpu-suppress-config", "{", true),
        (
            "cpu-suppress-config",
            r#"{"clusterStrategy": {"mode": "presure"}}"#,
            true,
        ),
        ("cpu-supress-config", "{}", false),
        (
            "resource-threshold-config",
            r#"{"clusterStrategy": {"cpuSuppressPolicy": "foo"}}"#,
            true,
        ),
    ] {
        let (_, problems) = Config::default().updated(&data(&[(key, text)]));
        let refusals: Vec<_> = problems.iter().map(|problem| problem.is_refused).collect();
        assert_eq!(refusals, [is_refused], "{key}: {text}: {problems:?}");
    }
}

/// Verifies that a refused value is never written, and that the event contains the settings in force.
#[test]
fn unknown_enum_value_reaches_no_node() {
    let text = r#"{"clusterStrategy": {"enable": true, "cpuSuppressPolicy": "foo"}}"#;
    let (config, problems) =
        Config::default().updated(&data(&[("resource-threshold-config", text)]));
    let (spec, _) = config.slo(&plain());
    let strategy = serde_json::to_value(spec.resource_used_threshold_with_be).unwrap();
    assert_eq!(strategy["cpuSuppressPolicy"], "cpuset");
    assert_eq!(strategy["enable"], true);
    let messages: Vec<_> = problems
        .iter()
        .map(|p| (p.reason, p.message.as_str()))
        .collect();
    assert_eq!(
        messages,
        [(
            "SLOCfgUnmarshalFailed",
            "resource-threshold-config: field cpuSuppressPolicy is \"foo\": it is none of cpuset, \
             cfsQuota; it counts as not given"
        )]
    );
}
