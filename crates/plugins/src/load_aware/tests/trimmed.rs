//! Conversion of NodeMetric reports to their trimmed form.

use super::*;

#[test]
fn report_amounts_are_read_by_name() {
    let listed = |name: &str, cpu: &str, class: &str| {
        json!({"namespace": "ns", "name": name, "priority": class,
            "podUsage": {"resources": {"cpu": cpu}}})
    };
    let rest = json!({
        "nodeMetric": {
            "systemUsage": {"resources": {"cpu": "1500m"}},
            "aggregatedNodeUsages": [
                {"duration": "5m0s", "usage": {"p95": {"resources": {"cpu": "5"}}}},
                {"duration": "15m0s", "usage": {"p95": {"resources": {"cpu": "15"}}, "p99": {}}},
                {"duration": "30m0s", "usage": {"p99": {}}},
            ],
        },
        "podsMetric": [
            listed("b", "2", "koord-prod"),
            listed("a", "1", "koord-batch"),
            // Listed twice: the last entry counts.
            listed("b", "3", "koord-batch"),
            {"namespace": "ns", "name": "c"},
        ],
    });
    let change = metric("n", "10", rest);
    let object = change.new_as::<NodeMetric>().unwrap();
    let metric = TrimmedNodeMetric::from(object);
    assert_eq!((&*metric.name, metric.interval), ("n", 60_000));
    assert_eq!(metric.updated, Some(at(0)));
    let usage = metric.usage.as_ref().unwrap();
    assert_eq!(usage.get("cpu"), 10_000);
    assert_eq!(usage.get("memory"), 10 << 30);
    assert_eq!(usage.get("example.com/gpu"), 0);
    assert_eq!(metric.system.get("cpu"), 1500);
    let pod = |name: &str| {
        let pod = metric.pod("ns", name)?;
        Some((pod.usage.get("cpu"), pod.prod))
    };
    assert_eq!(pod("a"), Some((1000, false)));
    assert_eq!(pod("b"), Some((3000, false)));
    assert_eq!(pod("c"), None, "its usage is not reported");
    assert!(metric.pod("other", "a").is_none());
    let minutes = |minutes: i64| koord_api::duration::GoDuration::from_secs(60 * minutes);
    for (kind, over, expected) in [
        ("p95", 5, Some(5000)),
        ("p95", 0, Some(15_000)),
        ("p95", 10, None),
        // No window has it: the mean is used if any window will do.
        ("p99", 0, Some(10_000)),
        ("p99", 30, None),
    ] {
        let usage = metric.aggregated(kind, minutes(over));
        let cpu = usage.map(|amounts| amounts.get("cpu"));
        assert_eq!(cpu, expected, "{kind} over {over} minutes");
    }
}

#[test]
fn plugin_accepts_whole_and_trimmed_reports() {
    let mut engine = engine(json!({}));
    let change = metric("n", "60", json!({}));
    let trimmed = engine.plugins().as_delivered(change.clone());
    let metric = trimmed.new_as::<TrimmedNodeMetric>().unwrap();
    assert_eq!(
        *metric,
        TrimmedNodeMetric::from(change.new_as::<NodeMetric>().unwrap())
    );
    engine.node_applied(node("n", json!({})), at(0));
    engine.object_changed(&trimmed, at(0));
    assert_eq!(place(&mut engine, pod("p", json!({})), 1), HOT);
}
