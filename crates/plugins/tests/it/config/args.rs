//! Upstream's tables of valid and invalid plugin arguments.

use koord_scheduler::framework::BuildContext;
use serde_json::{Value, json};

/// Rows of upstream's validation tables: plugin, case, args, and what an error must name. This value means no
/// error.
const VALID: &str = "";

fn check(rows: &[(&str, &str, Value, &str)]) {
    let registry = koord_plugins::registry();
    for (plugin, case, fields, names) in rows {
        // Plugins that do not exist yet are skipped.
        let Some(factory) = registry.find(plugin) else {
            continue;
        };
        let built = (factory.build)(Some(fields), &BuildContext::default());
        match built {
            Ok(_) => assert_eq!(*names, VALID, "{plugin}: {case}"),
            Err(error) => {
                let text = error.to_string();
                assert!(
                    *names != VALID && text.contains(names),
                    "{plugin}: {case}: {text}"
                );
            }
        }
    }
}

#[test]
fn load_aware_args() {
    let name = "LoadAwareScheduling";
    check(&[
        (name, "empty", json!({}), VALID),
        (
            name,
            "expiration",
            json!({"nodeMetricExpirationSeconds": 180}),
            VALID,
        ),
        (
            name,
            "expiration 0",
            json!({"nodeMetricExpirationSeconds": 0}),
            "nodeMetricExpirationSeconds",
        ),
        (
            name,
            "expiration below 0",
            json!({"nodeMetricExpirationSeconds": -1}),
            "-1",
        ),
        (
            name,
            "weights",
            json!({"resourceWeights": {"cpu": 1, "memory": 100}}),
            VALID,
        ),
        (
            name,
            "weight 0",
            json!({"resourceWeights": {"cpu": 0}}),
            "resourceWeights[cpu]",
        ),
        (
            name,
            "weight 101",
            json!({"resourceWeights": {"cpu": 101}}),
            "101",
        ),
        (
            name,
            "dominant below 0",
            json!({"dominantResourceWeight": -1}),
            "dominantResourceWeight",
        ),
        (
            name,
            "dominant 101",
            json!({"dominantResourceWeight": 101}),
            "dominantResourceWeight",
        ),
        (
            name,
            "dominant 100",
            json!({"dominantResourceWeight": 100}),
            VALID,
        ),
        (
            name,
            "threshold below 0",
            json!({"usageThresholds": {"cpu": -1}}),
            "usageThresholds[cpu]",
        ),
        (
            name,
            "threshold 101",
            json!({"usageThresholds": {"cpu": 101}}),
            "usageThresholds[cpu]",
        ),
        (
            name,
            "factor 0",
            json!({"estimatedScalingFactors": {"cpu": 0}}),
            "estimatedScalingFactors[cpu]",
        ),
        (
            name,
            "factor 101",
            json!({"estimatedScalingFactors": {"cpu": 101}}),
            "estimatedScalingFactors[cpu]",
        ),
        (
            name,
            "weight without factor",
            json!({"resourceWeights": {"nvidia.com/gpu": 1}}),
            "estimatedScalingFactors[nvidia.com/gpu]",
        ),
        (
            name,
            "aggregated",
            json!({"aggregated": {"usageAggregationType": "p95", "scoreAggregationType": "avg",
                "usageAggregatedDuration": "5m"}}),
            VALID,
        ),
        (
            name,
            "aggregation type",
            json!({"aggregated": {"usageAggregationType": "p42"}}),
            "p42",
        ),
        (
            name,
            "aggregated duration below 0",
            json!({"aggregated": {"usageAggregatedDuration": "-1s"}}),
            "usageAggregatedDuration",
        ),
    ]);
}

#[test]
fn quota_args() {
    let name = "ElasticQuota";
    check(&[
        (name, "empty", json!({}), VALID),
        (
            name,
            "default max",
            json!({"defaultQuotaGroupMax": {"cpu": "1", "memory": "1Gi"}}),
            VALID,
        ),
        (
            name,
            "default max below 0",
            json!({"defaultQuotaGroupMax": {"cpu": "-1"}}),
            "defaultQuotaGroupMax",
        ),
        (
            name,
            "system max below 0",
            json!({"systemQuotaGroupMax": {"cpu": "-1"}}),
            "systemQuotaGroupMax",
        ),
        (
            name,
            "delay below 0",
            json!({"delayEvictTime": "-1s"}),
            "delayEvictTime",
        ),
        (
            name,
            "interval below 0",
            json!({"revokePodInterval": "-1s"}),
            "revokePodInterval",
        ),
        (
            name,
            "durations",
            json!({"delayEvictTime": "2m", "revokePodInterval": "1s"}),
            VALID,
        ),
    ]);
}

#[test]
fn gang_args() {
    let name = "Coscheduling";
    check(&[
        (
            name,
            "valid",
            json!({"defaultTimeout": "600s", "controllerWorkers": 1}),
            VALID,
        ),
        (
            name,
            "timeout below 0",
            json!({"defaultTimeout": "-1s"}),
            "defaultTimeout",
        ),
        (
            name,
            "workers 0",
            json!({"controllerWorkers": 0}),
            "controllerWorkers",
        ),
        (
            name,
            "workers below 0",
            json!({"controllerWorkers": -1}),
            "controllerWorkers",
        ),
    ]);
}

fn scoring(weight: i64) -> Value {
    json!({"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": weight}]})
}

#[test]
fn device_args() {
    let name = "DeviceShare";
    check(&[
        (name, "no strategy", json!({}), VALID),
        (
            name,
            "strategy",
            json!({"scoringStrategy": scoring(1)}),
            VALID,
        ),
        (
            name,
            "weight 0",
            json!({"scoringStrategy": scoring(0)}),
            "weight",
        ),
        (
            name,
            "weight 101",
            json!({"scoringStrategy": scoring(101)}),
            "101",
        ),
    ]);
}

#[test]
fn numa_args() {
    let name = "NodeNUMAResource";
    check(&[
        (
            name,
            "no policy",
            json!({"defaultCPUBindPolicy": ""}),
            VALID,
        ),
        (
            name,
            "full",
            json!({"defaultCPUBindPolicy": "FullPCPUs"}),
            VALID,
        ),
        (
            name,
            "spread",
            json!({"defaultCPUBindPolicy": "SpreadByPCPUs"}),
            VALID,
        ),
        (
            name,
            "unknown policy",
            json!({"defaultCPUBindPolicy": "Nope"}),
            "Nope",
        ),
        // Missing strategies are defaulted before the check.
        (name, "no strategies", json!({}), VALID),
        (
            name,
            "weight 0",
            json!({"scoringStrategy": scoring(0)}),
            "weight",
        ),
        (
            name,
            "NUMA weight 101",
            json!({"numaScoringStrategy": scoring(101)}),
            "101",
        ),
    ]);
}

#[test]
fn reservation_args() {
    let name = "Reservation";
    let mut rows = vec![
        (
            name,
            "defaults",
            json!({"minCandidateNodesPercentage": 10, "minCandidateNodesAbsolute": 100,
                "gcDurationSeconds": 86400, "gcIntervalSeconds": 60, "resyncIntervalSeconds": 60}),
            VALID,
        ),
        (
            name,
            "zeros",
            json!({"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0,
                "gcDurationSeconds": 0, "gcIntervalSeconds": 0, "resyncIntervalSeconds": 0}),
            VALID,
        ),
        (
            name,
            "percentage below 0",
            json!({"minCandidateNodesPercentage": -1}),
            "minCandidateNodesPercentage",
        ),
        (
            name,
            "percentage 101",
            json!({"minCandidateNodesPercentage": 101}),
            "101",
        ),
        (
            name,
            "absolute below 0",
            json!({"minCandidateNodesAbsolute": -1}),
            "minCandidateNodesAbsolute",
        ),
        (
            name,
            "gc duration below 0",
            json!({"gcDurationSeconds": -1}),
            "gcDurationSeconds",
        ),
        (
            name,
            "gc interval below 0",
            json!({"gcIntervalSeconds": -1}),
            "gcIntervalSeconds",
        ),
        (
            name,
            "resync below 0",
            json!({"resyncIntervalSeconds": -1}),
            "resyncIntervalSeconds",
        ),
        (
            name,
            "groups",
            json!({"ignoredResources": ["example.com/gpu"], "ignoredResourceGroups": ["example.com"]}),
            VALID,
        ),
        (
            name,
            "group with slash",
            json!({"ignoredResourceGroups": ["example.com/x"]}),
            "ignoredResourceGroups",
        ),
        (
            name,
            "group that is no domain",
            json!({"ignoredResourceGroups": ["_bad_"]}),
            "ignoredResourceGroups",
        ),
        (
            name,
            "empty lists",
            json!({"ignoredResources": [], "ignoredResourceGroups": []}),
            VALID,
        ),
        (
            name,
            "group kubernetes.io",
            json!({"ignoredResourceGroups": ["kubernetes.io"]}),
            "kubernetes.io",
        ),
    ];
    for native in [
        "cpu",
        "memory",
        "pods",
        "ephemeral-storage",
        "hugepages-2Mi",
        "kubernetes.io/batch-cpu",
        "example.com/-bad",
    ] {
        let fields = json!({"ignoredResources": [native]});
        rows.push((name, native, fields, "ignoredResources"));
    }
    check(&rows);
}

#[test]
fn hint_and_small_plugin_args() {
    let hint = "SchedulingHint";
    check(&[
        (hint, "valid", json!({"maxHintNodes": 100}), VALID),
        (hint, "one", json!({"maxHintNodes": 1}), VALID),
        (hint, "zero", json!({"maxHintNodes": 0}), "maxHintNodes"),
        (hint, "below 0", json!({"maxHintNodes": -1}), "-1"),
        (
            "NodeResourcesFitPlus",
            "valid",
            json!({"resources": {"cpu": {"type": "MostAllocated", "weight": 2}}}),
            VALID,
        ),
        (
            "NodeResourcesFitPlus",
            "unknown type",
            json!({"resources": {"cpu": {"type": "Most", "weight": 2}}}),
            "Most",
        ),
        (
            "ScarceResourceAvoidance",
            "unknown field",
            json!({"resource": ["nvidia.com/gpu"]}),
            "resource",
        ),
    ]);
}
