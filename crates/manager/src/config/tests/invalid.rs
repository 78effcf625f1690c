//! Refused values and removed settings: the last valid ones stay in force, and an event reports it.

use super::*;

/// Returns, for each case, key, valid text, field, and a cluster strategy whose value for the field is
/// refused.
fn refused() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    let burst = r#"{"clusterStrategy": {"cfsQuotaBurstPercent": 200}}"#;
    let qos = r#"{"clusterStrategy": {"beClass": {"cpuQOS": {"groupIdentity": -1}}}}"#;
    let threshold = r#"{"clusterStrategy": {"enable": true, "memoryEvictThresholdPercent": 80}}"#;
    let system = r#"{"clusterStrategy": {"totalNetworkBandwidth": "10G"}}"#;
    let colocation = r#"{"enable": true, "cpuReclaimThresholdPercent": 70}"#;
    let amplification = r#"{"enable": true, "resourceAmplificationRatio": {"cpu": 1.5}}"#;
    vec![
        (
            "cpu-burst-config",
            burst,
            "cfsQuotaBurstPercent",
            r#"{"clusterStrategy": {"cfsQuotaBurstPercent": -1}}"#,
        ),
        (
            "cpu-burst-config",
            burst,
            "cfsQuotaBurstPeriodSeconds",
            r#"{"clusterStrategy": {"cfsQuotaBurstPeriodSeconds": 9000000000000000000}}"#,
        ),
        (
            "resource-qos-config",
            qos,
            "groupIdentity",
            r#"{"clusterStrategy": {"beClass": {"cpuQOS": {"groupIdentity": 99}}}}"#,
        ),
        (
            "resource-qos-config",
            qos,
            "catRangeStartPercent",
            r#"{"clusterStrategy": {"beClass": {"resctrlQOS": {"catRangeStartPercent": 80, "catRangeEndPercent": 20}}}}"#,
        ),
        (
            "resource-threshold-config",
            threshold,
            "memoryEvictLowerPercent",
            r#"{"clusterStrategy": {"memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 90}}"#,
        ),
        (
            "resource-threshold-config",
            threshold,
            "cpuEvictTimeWindowSeconds",
            r#"{"clusterStrategy": {"cpuEvictTimeWindowSeconds": 9000000000000000000}}"#,
        ),
        (
            "system-config",
            system,
            "totalNetworkBandwidth",
            r#"{"clusterStrategy": {"totalNetworkBandwidth": "-1G"}}"#,
        ),
        (
            "colocation-config",
            colocation,
            "resourceDiffThreshold",
            r#"{"enable": true, "resourceDiffThreshold": 1e308}"#,
        ),
        (
            "colocation-config",
            colocation,
            "metricReportIntervalSeconds",
            r#"{"enable": true, "metricReportIntervalSeconds": 9000000000000000000}"#,
        ),
        (
            "colocation-config",
            colocation,
            "metricAggregateDurationSeconds",
            r#"{"enable": true, "metricAggregateDurationSeconds": 9000000000000000000}"#,
        ),
        (
            "colocation-config",
            colocation,
            "degradeTimeMinutes",
            r#"{"enable": true, "degradeTimeMinutes": 9000000000000000000}"#,
        ),
        (
            "colocation-config",
            colocation,
            "updateTimeThresholdSeconds",
            r#"{"enable": true, "updateTimeThresholdSeconds": 9000000000000000000}"#,
        ),
        (
            "resource-amplification-config",
            amplification,
            "resourceAmplificationRatio.cpu",
            r#"{"enable": true, "resourceAmplificationRatio": {"cpu": 1e300}}"#,
        ),
        (
            "resource-amplification-config",
            amplification,
            "resourceAmplificationRatio.memory",
            r#"{"enable": true, "resourceAmplificationRatio": {"memory": 1e6}}"#,
        ),
    ]
}

#[test]
fn invalid_value_leaves_the_last_valid_section_in_force() {
    for (key, good, field, bad) in refused() {
        let before = read(&[(key, good)]);
        let (after, problems) = before.updated(&data(&[(key, bad)]));
        assert_eq!(after.settings, before.settings, "{key}: {bad}");
        assert_eq!(problems.len(), 1, "{bad}: {problems:?}");
        let SettingsProblem {
            message,
            is_refused,
            ..
        } = &problems[0];
        for part in [
            key,
            field,
            "must be",
            "the settings before it stay in force",
        ] {
            assert!(*is_refused && message.contains(part), "{bad}: {message}");
        }
        assert!(message.len() < 250, "{message}");
        // The first settings of all: the defaults hold.
        let (first, _) = Config::default().updated(&data(&[(key, bad)]));
        assert_eq!(first.settings, SloControllerConfig::default(), "{bad}");
    }
}

#[test]
fn invalid_override_leaves_its_nodes_to_the_cluster() {
    let text = r#"{"clusterStrategy": {"cfsQuotaBurstPercent": 200}, "nodeStrategies": [
        {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "cfsQuotaBurstPercent": -1}]}"#;
    let (config, problems) = Config::default().updated(&data(&[("cpu-burst-config", text)]));
    let (spec, _) = config.slo(&node(json!({"pool": "a"}), json!({})));
    let burst = spec.cpu_burst_strategy.unwrap();
    assert_eq!(burst.cfs_quota_burst_percent, Some(200));
    assert_eq!(problems.len(), 1, "{problems:?}");
    for part in [
        "\"a\"",
        "cfsQuotaBurstPercent",
        "-1",
        "the cluster's settings",
    ] {
        assert!(problems[0].message.contains(part), "{problems:?}");
    }
}

/// Half a pair of thresholds does nothing; upstream accepts it, and clusters may have it.
#[test]
fn threshold_without_its_pair_is_accepted_and_reported() {
    let text = r#"{"clusterStrategy": {"enable": true, "cpuEvictBESatisfactionLowerPercent": 30}}"#;
    let entry = data(&[("resource-threshold-config", text)]);
    let (config, problems) = Config::default().updated(&entry);
    let (spec, _) = config.slo(&plain());
    let strategy = spec.resource_used_threshold_with_be.unwrap();
    assert_eq!(strategy.cpu_evict_be_satisfaction_lower_percent, Some(30));
    assert!(!problems[0].is_refused && problems[0].message.contains("to be set"));
}

#[test]
fn duplicate_name_is_accepted_and_reported() {
    let text =
        r#"{"enable": true, "cpuReclaimThresholdPercent": 50, "cpuReclaimThresholdPercent": 70}"#;
    let (config, problems) = Config::default().updated(&data(&[(keys::COLOCATION, text)]));
    let strategy = config.strategy(&plain()).unwrap();
    assert_eq!(strategy.batch.cpu_reclaim_percent, 70);
    assert_eq!(problems.len(), 1);
    for part in [
        "cpuReclaimThresholdPercent is 70",
        "more than once",
        "the last value counts",
    ] {
        assert!(problems[0].message.contains(part), "{problems:?}");
    }
}

#[test]
fn emptied_settings_keep_batch_resources() {
    let burst = (
        "cpu-burst-config",
        r#"{"clusterStrategy": {"policy": "auto"}}"#,
    );
    let on = read(&[(keys::COLOCATION, r#"{"enable": true}"#), burst]);
    for entries in [
        vec![],
        vec![(keys::COLOCATION, ""), burst],
        vec![burst],
        vec![(keys::COLOCATION, " \n"), ("cpu-burst-config", "null")],
    ] {
        let emptied = data(&entries);
        let (unchanged, problems) = on.updated(&emptied);
        assert_eq!(unchanged.settings, on.settings, "{entries:?}");
        assert_eq!(problems.len(), 1, "{entries:?}: {problems:?}");
        assert_eq!(problems[0].reason, "SLOConfigEmptied");
        assert!(
            problems[0].message.contains("stay in force"),
            "{problems:?}"
        );
        // Whatever else changes meanwhile.
        let (again, problems) = unchanged.updated(&emptied);
        assert_eq!((again.settings, problems.len()), (on.settings.clone(), 1));
        let off = data(&[(keys::COLOCATION, r#"{"enable": false}"#), burst]);
        let (off, problems) = unchanged.updated(&off);
        assert_eq!((off.strategy(&plain()), problems), (None, Vec::new()));
    }
}

#[test]
fn removed_section_has_its_defaults_and_is_reported() {
    let colocation = (keys::COLOCATION, r#"{"enable": true}"#);
    let burst = (
        "cpu-burst-config",
        r#"{"clusterStrategy": {"policy": "auto"}}"#,
    );
    let (next, problems) = read(&[colocation, burst]).updated(&data(&[colocation]));
    let (spec, _) = next.slo(&plain());
    assert_eq!(
        spec.cpu_burst_strategy.unwrap().policy,
        Some(CPUBurstPolicy::None)
    );
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].reason, "SLOConfigSectionRemoved");
    assert!(!problems[0].is_refused && problems[0].message.contains("cpu-burst-config"));
}
