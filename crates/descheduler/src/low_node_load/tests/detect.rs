//! Upstream's tables of anomaly detection.

use super::super::detector::{Detector, Detectors};
use super::*;
use jiff::{SignedDuration, Timestamp};
use koord_api::duration::GoDuration;

fn now() -> Timestamp {
    TestCluster::default().now
}

fn condition(timeout: i64, abnormal: u32, normal: u32) -> AnomalyCondition {
    AnomalyCondition {
        timeout: GoDuration::from_secs(timeout),
        consecutive_abnormalities: abnormal,
        consecutive_normalities: normal,
    }
}

/// Upstream's `TestBasicDetector`: abnormal after two observations in a row, normal after one, with a timeout
/// of three seconds.
#[test]
fn detector_turns_abnormal_and_normal_again() {
    let (condition, mut detector, now) = (condition(3, 1, 0), Detector::default(), now());
    assert!(!detector.record(true, now, &condition));
    assert!(!detector.record(false, now, &condition));
    assert_eq!(detector.abnormal(), 1);
    assert!(detector.record(false, now, &condition));
    assert!(!detector.record(true, now, &condition));
    detector.record(false, now, &condition);
    assert!(detector.record(false, now, &condition));
    assert!(detector.is_abnormal(now + SignedDuration::from_secs(3)));
    let later = now + SignedDuration::from_millis(3001);
    assert!(!detector.is_abnormal(later));
    assert!(!detector.record(false, later, &condition));
    assert!(detector.record(false, later, &condition));
    assert_eq!(detector.abnormal(), 0);
}

/// Upstream's `TestBasicDetectorWithCustomNormalCondition`: normal after three observations in a row.
#[test]
fn detector_needs_consecutive_normal_observations() {
    let (condition, mut detector) = (condition(3, 1, 2), Detector::default());
    let marks = [
        (false, false),
        (false, true),
        (true, true),
        (true, true),
        (true, false),
        (false, false),
        (false, true),
        (true, true),
        (false, true),
        (true, true),
        (true, true),
        (true, false),
    ];
    for (at, (normal, wrong)) in marks.into_iter().enumerate() {
        assert_eq!(
            detector.record(normal, now(), &condition),
            wrong,
            "mark {at}"
        );
    }
}

/// Upstream's `Test_filterRealAbnormalNodes`.
#[test]
fn hot_for_long_matches_upstream() {
    let cases: [(u32, &[&str], usize, &[&str]); 4] = [
        (1, &[], 0, &["n1", "n2"]),
        (2, &[], 0, &[]),
        (2, &[], 2, &["n1", "n2"]),
        (2, &["n2"], 0, &["n2"]),
    ];
    for (abnormal, already, times, expected) in cases {
        let (condition, mut detectors) = (condition(0, abnormal, 1), Detectors::default());
        let mut hot = |nodes: &[&'static str]| -> Vec<&'static str> {
            let long = nodes
                .iter()
                .filter(|node| detectors.record_over(0, &Arc::from(**node), now(), &condition));
            long.copied().collect()
        };
        for _ in 0..abnormal {
            hot(already);
        }
        for _ in 0..times {
            hot(&["n1", "n2"]);
        }
        assert_eq!(hot(&["n1", "n2"]), expected);
    }
}

/// Upstream's `Test_resetNodesAsNormal` and `Test_tryMarkNodesAsNormal`.
#[test]
fn cooling_down_matches_upstream() {
    let (condition, node) = (condition(0, 2, 2), Arc::from("n"));
    let hot = || {
        let mut detectors = Detectors::default();
        let long: Vec<_> = (0..3)
            .map(|_| detectors.record_over(0, &node, now(), &condition))
            .collect();
        assert_eq!(long, [false, false, true]);
        detectors
    };
    let mut detectors = hot();
    detectors.reset(0, &node);
    assert!(!detectors.record_over(0, &node, now(), &condition));
    let mut detectors = hot();
    for _ in 0..2 {
        detectors.record_not_over(0, &node, now(), &condition);
    }
    assert!(detectors.record_over(0, &node, now(), &condition));
    for _ in 0..3 {
        detectors.record_not_over(0, &node, now(), &condition);
    }
    assert!(!detectors.record_over(0, &node, now(), &condition));
}

#[test]
fn detector_lives_as_long_as_its_node() {
    let (condition, mut detectors) = (condition(60, 2, 3), Detectors::default());
    let (old, new) = (Arc::from("uid-old"), Arc::from("uid-new"));
    let day = SignedDuration::from_hours(24);
    for cycle in 0..3 {
        let cycle_time = now() + day * cycle;
        assert_eq!(
            detectors.record_over(0, &old, cycle_time, &condition),
            cycle == 2
        );
        detectors.retain(&[&old].into_iter().collect());
    }
    detectors.retain(&[&new].into_iter().collect());
    assert_eq!(detectors.abnormal_count(0, &old), 0);
    assert!(!detectors.record_over(0, &old, now(), &condition));
    // Another pool has its own detectors.
    assert!(!detectors.record_over(1, &old, now(), &condition));
    assert_eq!(detectors.abnormal_count(1, &old), 1);
}

/// Runs cycles with this interval, each of which evicts one pod, and returns the cycles in which a pod was
/// evicted.
fn rounds(interval: &str, between: SignedDuration, condition: Value) -> Vec<usize> {
    use super::memory::{Described, report, world};
    let pods: Vec<_> = (0..9).map(|i| (format!("p{i}"), 100)).collect();
    let pods: Vec<_> = pods
        .iter()
        .map(|(name, cpu)| (name.as_str(), *cpu))
        .collect();
    let nodes: &[Described<'_>] = &[("a", 3000, &pods), ("b", 100, &[])];
    let mut world = world(nodes);
    let only = json!({"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}]});
    let args = merged(
        super::memory::thresholds(),
        json!({"anomalyCondition": condition}),
    );
    let config = json!({
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "deschedulingInterval": interval, "maxNoOfPodsToEvictTotal": 1,
        "profiles": [{
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}, "evict": only, "filter": only},
            "pluginConfig": [{"name": "LowNodeLoad", "args": args}],
        }],
    });
    let config = crate::config::Configuration::parse(&config.to_string()).unwrap();
    let completed = crate::registry::Registry::in_tree()
        .complete(config)
        .unwrap();
    let mut framework = completed.build().unwrap();
    let mut went = Vec::new();
    for cycle in 1..=8 {
        report(&mut world, nodes);
        if !crate::testing::moved(&framework.run(&world.snapshot())).is_empty() {
            went.push(cycle);
        }
        world.now += between;
    }
    went
}

#[test]
fn hot_for_long_lasts_into_next_cycle() {
    let (two, secs) = (
        json!({"consecutiveAbnormalities": 2}),
        SignedDuration::from_secs,
    );
    assert_eq!(rounds("2m", secs(120), two.clone()), [3, 4, 5, 8]);
    // Cycles start slightly late.
    assert_eq!(rounds("2m", secs(121), two.clone()), [3, 4, 7, 8]);
    // A longer configured timeout is kept.
    let long = merged(two.clone(), json!({"timeout": "7m"}));
    assert_eq!(rounds("2m", secs(121), long), [3, 4, 5, 6]);
    assert_eq!(rounds("10s", secs(10), two), [3, 4, 5, 6, 7, 8]);
}

#[test]
fn missing_observation_resets_the_count() {
    use super::memory::{Described, report, thresholds, world};
    let nodes: &[Described<'_>] = &[
        ("a", 1800, &[("p1", 1000)]),
        ("b", 100, &[]),
        ("c", 100, &[]),
    ];
    let condition = json!({"anomalyCondition": {"consecutiveAbnormalities": 5}});
    for gap in ["no report", "not ready"] {
        let mut world = world(nodes);
        let mut framework = framework(merged(thresholds(), condition.clone()));
        for cycle in 1..=10 {
            let mut now = world.clone();
            report(&mut now, nodes);
            if cycle == 4 && gap == "no report" {
                now.usage.retain(|usage| &*usage.name != "a");
            } else if cycle == 4 {
                now.nodes.retain(|node| &*node.name != "a");
                now.node(
                    "a",
                    json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
                );
            }
            let plan = framework.run(&now.snapshot());
            let is_moved = !crate::testing::moved(&plan).is_empty();
            assert_eq!(
                is_moved,
                cycle == 10,
                "{gap}, cycle {cycle}: {:?}",
                notes(&plan, "a")
            );
            world.now += SignedDuration::from_secs(10);
        }
    }
}
