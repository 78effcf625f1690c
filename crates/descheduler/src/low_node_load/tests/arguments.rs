//! Upstream's tables of defaults and validation.

use super::*;

/// Upstream's `TestSetDefaults_LowNodeLoadArgs`.
#[test]
fn defaults_are_upstreams() {
    let usual = || {
        json!({
            "nodeFit": true, "nodeMetricExpirationSeconds": 180, "detectorCacheTimeout": "5m0s",
            "anomalyCondition": {"timeout": "1m0s", "consecutiveAbnormalities": 5, "consecutiveNormalities": 3},
            "resourceWeights": {"cpu": 1, "memory": 1},
        })
    };
    let cases = [
        (json!({}), json!({})),
        (json!({"nodeFit": false}), json!({"nodeFit": false})),
        (
            json!({"detectorCacheTimeout": "10m"}),
            json!({"detectorCacheTimeout": "10m0s"}),
        ),
        (
            json!({"anomalyCondition": {"timeout": "10s", "consecutiveNormalities": 3}}),
            json!({"anomalyCondition": {"timeout": "10s"}}),
        ),
        (
            json!({
                "lowThresholds": {"cpu": 30, "memory": 30, "pods": 10},
                "resourceWeights": {"cpu": 10, "memory": 5},
            }),
            json!({"resourceWeights": {"cpu": 10, "memory": 5, "pods": 1}}),
        ),
        (
            json!({"resourceWeights": {"cpu": -1, "gpu": 0}}),
            json!({"resourceWeights": {"gpu": 0}}),
        ),
    ];
    for (given, expected) in cases {
        let written = serde_json::to_value(args(given.clone())).unwrap();
        for (field, value) in merged(usual(), expected).as_object().unwrap() {
            assert_eq!(&written[field], value, "{field} of {given}");
        }
        // Writing it again gives the same.
        assert_eq!(args(written), args(given));
    }
}

fn condition(timeout: i64, abnormal: u32, normal: u32) -> AnomalyCondition {
    AnomalyCondition {
        timeout: koord_api::duration::GoDuration::from_secs(timeout),
        consecutive_abnormalities: abnormal,
        consecutive_normalities: normal,
    }
}

/// Upstream's `TestSetDefaults_NodePoolsUseDefaultArgsFromLowNodeLoadArgs`.
#[test]
fn pools_inherit_absent_fields() {
    let top = json!({
        "highThresholds": {"cpu": 80, "memory": 80}, "lowThresholds": {"cpu": 20, "memory": 20},
        "prodHighThresholds": {"cpu": 90}, "prodLowThresholds": {"cpu": 10},
        "resourceWeights": {"cpu": 2},
        "anomalyCondition": {"timeout": "2m", "consecutiveAbnormalities": 10, "consecutiveNormalities": 5},
        "nodePools": [{"name": "test-pool"}],
    });
    let pools = args(top).pools();
    assert_eq!((pools.len(), &*pools[0].name), (2, DEFAULT_POOL));
    let named = Pool {
        name: "test-pool".to_owned(),
        ..pools[0].clone()
    };
    assert_eq!(pools[1], named);
    assert_eq!(named.anomaly_condition, Some(condition(120, 10, 5)));
    assert_eq!(
        named.resource_weights,
        Some([("cpu".to_owned(), 2), ("memory".to_owned(), 1)].into())
    );

    let several = args(json!({
        "highThresholds": {"cpu": 80}, "lowThresholds": {"cpu": 20},
        "nodePools": [{"name": "pool-1"}, {"name": "pool-2", "highThresholds": {"cpu": 70}}],
    }));
    let high: Vec<_> = several
        .pools()
        .iter()
        .map(|pool| pool.high_thresholds.clone().unwrap()["cpu"])
        .collect();
    assert_eq!(high, [80.0, 80.0, 70.0]);
    assert!(
        several
            .pools()
            .iter()
            .all(|pool| pool.low_thresholds.as_ref().unwrap()["cpu"] == 20.0)
    );

    let zeros = args(json!({
        "anomalyCondition": {"timeout": "2m", "consecutiveAbnormalities": 10, "consecutiveNormalities": 5},
        "nodePools": [{"name": "test-pool", "anomalyCondition": {"timeout": "1m"}}],
    }));
    assert_eq!(
        zeros.pools()[1].anomaly_condition,
        Some(condition(60, 10, 5))
    );

    let own = args(json!({
        "highThresholds": {"cpu": 80}, "lowThresholds": {"cpu": 20},
        "nodePools": [{
            "name": "custom-pool", "highThresholds": {"cpu": 70}, "lowThresholds": {"cpu": 30},
            "anomalyCondition": {"consecutiveAbnormalities": 3, "consecutiveNormalities": 2},
        }],
    }));
    let own = &own.pools()[1];
    assert_eq!(own.anomaly_condition, Some(condition(0, 3, 2)));
    assert_eq!(own.low_thresholds.as_ref().unwrap()["cpu"], 30.0);
}

/// Upstream's tables of validation: number of nodes, namespaces, thresholds of a pool.
#[test]
fn values_are_refused_by_field_as_upstream_refuses_them() {
    let pool = |high: i64, low: i64| json!({"nodePools": [{"highThresholds": {"cpu": high}, "lowThresholds": {"cpu": low}}]});
    let names = |include: &[&str], exclude: &[&str]| json!({"evictableNamespaces": {"include": include, "exclude": exclude}});
    let cases = [
        (json!({"numberOfNodes": 10}), ""),
        (json!({"numberOfNodes": 5}), ""),
        (json!({"numberOfNodes": 0}), ""),
        (json!({"numberOfNodes": -1}), "numberOfNodes: -1 is below 0"),
        (json!({"numberOfNodes": -5}), "numberOfNodes: -5 is below 0"),
        (names(&["namespace1"], &[]), ""),
        (names(&[], &["namespace1"]), ""),
        (names(&["namespace1", "namespace2"], &[]), ""),
        (
            names(&["namespace1"], &["namespace2"]),
            "evictableNamespaces: only one of include (namespace1)",
        ),
        (
            names(&["namespace1", "namespace11"], &["namespace2"]),
            "evictableNamespaces: only one of",
        ),
        (
            names(&["namespace1"], &["namespace2", "namespace22"]),
            "evictableNamespaces: only one of",
        ),
        (pool(100, 90), ""),
        (pool(0, 0), ""),
        (
            pool(0, -1),
            "nodePools[0].lowThresholds.cpu: -1 is no percentage",
        ),
        (
            pool(100, -10),
            "nodePools[0].lowThresholds.cpu: -10 is no percentage",
        ),
        (
            pool(-10, -100),
            "nodePools[0].lowThresholds.cpu: -100 is no percentage",
        ),
        (pool(100, 50), ""),
        (pool(120, 50), ""),
        (pool(120, 120), ""),
        (
            pool(50, 60),
            "nodePools[0].lowThresholds.cpu: 60 is above highThresholds 50",
        ),
        (
            json!({"nodeMetricExpirationSeconds": 0}),
            "nodeMetricExpirationSeconds: 0 is not above 0",
        ),
        (
            json!({"highThresholds": {"cpu": 50}, "lowThresholds": {"cpu": 20}, "prodHighThresholds": {"cpu": 60}, "prodLowThresholds": {"cpu": 10}}),
            "prodHighThresholds.cpu: 60 is above highThresholds 50",
        ),
        (
            json!({"prodHighThresholds": {"cpu": 30}, "prodLowThresholds": {"cpu": 40}}),
            "prodLowThresholds.cpu: 40 is above prodHighThresholds 30",
        ),
    ];
    for (given, expected) in cases {
        match args(given.clone()).check() {
            Ok(()) => assert_eq!(expected, "", "{given}"),
            Err(error) => assert!(
                !expected.is_empty() && error.starts_with(expected),
                "{given}: {error}"
            ),
        }
    }
}

#[test]
fn threshold_without_counterpart_is_refused() {
    let cases = [
        (
            json!({"lowThresholds": {"cpu": 20, "memory": 20}, "highThresholds": {"cpu": 80}}),
            "lowThresholds.memory: highThresholds has no memory",
        ),
        (
            json!({"lowThresholds": {"cpu": 20}, "highThresholds": {"cpu": 80, "memory": 80}}),
            "highThresholds.memory: lowThresholds has no memory",
        ),
        (
            json!({"prodLowThresholds": {"cpu": 20}}),
            "prodLowThresholds.cpu: prodHighThresholds has no cpu",
        ),
        // A pool inherits whole maps: here one half of memory.
        (
            json!({
                "lowThresholds": {"cpu": 20, "memory": 20}, "highThresholds": {"cpu": 80, "memory": 80},
                "nodePools": [{"highThresholds": {"cpu": 70}}],
            }),
            "nodePools[0].lowThresholds.memory: highThresholds has no memory",
        ),
    ];
    for (given, expected) in cases {
        assert_eq!(args(given).check(), Err(expected.to_owned()));
    }
}

#[test]
fn shipped_configuration_is_parsed_completely() {
    let config = crate::config::tests::shipped();
    let profile = &config.profiles[0];
    let entry = profile
        .plugin_config
        .iter()
        .find(|entry| entry.name == NAME)
        .unwrap();
    let mut arguments = entry.args.clone();
    for field in ["apiVersion", "kind"] {
        arguments.as_object_mut().unwrap().remove(field);
    }
    let args = args(arguments);
    assert_eq!(args.check(), Ok(()));
    let high = args.high_thresholds.unwrap();
    assert_eq!((high["cpu"], high["memory"]), (75.0, 80.0));
    assert_eq!(args.victim_selection, VictimSelection::Variance);
}
