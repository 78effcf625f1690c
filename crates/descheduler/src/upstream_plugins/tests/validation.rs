//! Rejected arguments, and the fields in the errors.

use super::*;

/// Builds a framework in which `name` has `args`, whether it is a strategy or not.
fn with(name: &str, args: &Value) -> Result<Framework, String> {
    if name == "DefaultEvictor" {
        framework("PodLifeTime", &json!({"maxPodLifeTimeSeconds": 1}), args)
    } else {
        framework(name, args, &json!({}))
    }
}

#[test]
fn arguments_are_refused_as_upstream_does() {
    let table = include_str!("tables/validation.jsonl");
    let (mut refused, mut wrong) = (0, Vec::new());
    let rows: Vec<Value> = table
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for row in &rows {
        let outcome = with(row["name"].as_str().unwrap(), &row["args"]);
        refused += usize::from(outcome.is_err());
        if outcome.is_err() != row["refused"].as_bool().unwrap() {
            wrong.push(format!("{row}: {:?}", outcome.err()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!((rows.len(), refused), (92, 56));
}

#[test]
fn refused_arguments_are_named() {
    let both_lists = json!({"include": ["a"], "exclude": ["b"]});
    let low = |over: Value| {
        merged(
            json!({"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}}),
            over,
        )
    };
    for (name, args, expected) in [
        (
            "PodLifeTime",
            json!({"states": ["Running", "Runing"]}),
            "states: \"Runing\" is none of",
        ),
        (
            "PodLifeTime",
            json!({"maxPodLifeTimeSeconds": -1}),
            "args.maxPodLifeTimeSeconds: invalid value: integer `-1`",
        ),
        (
            "RemoveFailedPods",
            json!({"namespaces": both_lists}),
            "namespaces: only one of include (a) and exclude (b)",
        ),
        (
            "RemovePodsHavingTooManyRestarts",
            json!({"podRestartThreshold": 0}),
            "podRestartThreshold: 0 is less than 1",
        ),
        (
            "RemovePodsViolatingNodeAffinity",
            json!({"nodeAffinityType": ["required"]}),
            "nodeAffinityType: \"required\" is none of",
        ),
        (
            "RemovePodsViolatingTopologySpreadConstraint",
            json!({"constraints": ["foo"]}),
            "constraints: \"foo\" is none of",
        ),
        (
            "LowNodeUtilization",
            low(json!({"thresholds": {"memory": 1}})),
            "targetThresholds.memory: is missing",
        ),
        (
            "LowNodeUtilization",
            low(json!({"thresholds": {"cpu": 60}})),
            "thresholds.cpu: 60 is above targetThresholds.cpu 50",
        ),
        (
            "LowNodeUtilization",
            low(json!({"metricsUtilization": {}})),
            "metricsUtilization.source: is missing",
        ),
        (
            "LowNodeUtilization",
            low(
                json!({"metricsUtilization": {"source": "Prometheus", "prometheus": {"query": "q"}}}),
            ),
            "metricsUtilization.source: \"Prometheus\" cannot be asked here",
        ),
        (
            "HighNodeUtilization",
            json!({"thresholds": {"cpu": 101}}),
            "thresholds.cpu: 101 is not within 0 and 100",
        ),
        (
            "HighNodeUtilization",
            json!({"thresholds": {"cpu": 1}, "evictableNamespaces": {"include": ["a"]}}),
            "evictableNamespaces.include: only exclude",
        ),
        (
            "DefaultEvictor",
            json!({"nodeSelector": "a in"}),
            "nodeSelector: \"a in\"",
        ),
        (
            "DefaultEvictor",
            json!({"priorityThreshold": {"value": 2_000_000_001}}),
            "priorityThreshold.value: 2000000001 is above 2000000000",
        ),
        (
            "DefaultEvictor",
            json!({"minPodAge": "5"}),
            "args.minPodAge: duration \"5\"",
        ),
        (
            "DefaultEvictor",
            json!({"podProtections": {"defaultDisabled": ["PodsWithPVC"]}}),
            "podProtections.defaultDisabled: \"PodsWithPVC\" is none of",
        ),
    ] {
        let error = with(name, &args).unwrap_err();
        assert!(error.contains(expected), "{name} {args}: {error}");
        assert!(error.contains("profiles[0].pluginConfig["), "{error}");
    }
    // Like in upstream, unknown fields are ignored, and every strategy has an extension point.
    with(
        "PodLifeTime",
        &json!({"maxPodLifeTimeSeconds": 1, "maxPodLifetime": 2}),
    )
    .unwrap();
    with(
        "LowNodeUtilization",
        &low(json!({"metricsUtilization": {"metricsServer": true}})),
    )
    .unwrap();
}
