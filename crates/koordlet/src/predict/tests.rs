use super::reclaimable::{by_class, by_pod, estimate};
use super::*;
use crate::states::node::Amounts;
use crate::states::{Driver, Layout, PodInfo};
use jiff::Timestamp;
use koord_host::CgroupPath;
use serde_json::json;
use std::collections::BTreeSet;

const T0: UnixMillis = 1_748_000_000_000;
const MINUTE: i64 = 60_000;

fn amounts(cpu: i64, memory: i64) -> Amounts {
    Amounts { cpu, memory }
}

fn pod(name: &str, age_hours: i64) -> PodInfo {
    let created = Timestamp::from_millisecond(T0 - age_hours * 3_600_000).unwrap();
    let pod = serde_json::from_value(json!({
        "metadata": {"uid": name, "name": name, "creationTimestamp": created,
            "labels": {"koordinator.sh/qosClass": "LS"}},
        "spec": {"containers": [{"name": "c",
            "resources": {"requests": {"cpu": "4", "memory": "4Gi"}}}]},
        "status": {"phase": "Running"}
    }))
    .unwrap();
    PodInfo::of(&pod, &Layout::new(Driver::Cgroupfs, CgroupPath::root())).unwrap()
}

#[test]
fn reclaimable_is_bounded_by_request_and_node() {
    let forecast = |request, peak| PodForecast { request, peak };
    let young = forecast(amounts(1000, 100), None);
    let modest = forecast(amounts(4000, 400), Some(amounts(1000, 100)));
    let greedy = forecast(amounts(1000, 100), Some(amounts(3000, 300)));
    let all = by_pod(&[young, modest, greedy], amounts(10_000, 1000));
    assert_eq!(all.reclaimable, amounts(3000, 300));
    assert_eq!(all.peak, amounts(5000, 500));
    let small = by_pod(&[young, modest, greedy], amounts(5000, 100));
    assert_eq!(small.reclaimable, amounts(1000, 0));
    let class = by_class(
        amounts(6000, 600),
        amounts(7000, 100),
        amounts(10_000, 1000),
    );
    assert_eq!(class.reclaimable, amounts(0, 500));
}

#[test]
fn the_smaller_estimate_is_published() {
    let mut predictor = Predictor::new(Config::default());
    for minute in 0..30 {
        let now = T0 + minute * MINUTE;
        predictor.train("old", 1.0, 1e9, now);
        predictor.train(&class_uid(PriorityClass::Prod), 2.0, 2e9, now);
        predictor.train(SYSTEM, 0.1, 1e8, now);
    }
    let pods = [pod("old", 48), pod("young", 1), pod("unknown", 48)];
    let node = amounts(16_000, 64 << 30);
    let now = Timestamp::from_millisecond(T0 + 30 * MINUTE).unwrap();
    let found = estimate(&predictor, pods.iter(), node, now);
    // One core, one bucket up, and the margin of 10 %.
    assert!(
        (2800..2900).contains(&found.by_pod.reclaimable.cpu),
        "{found:?}"
    );
    // Two known pods' requests less class and system; the pod without a model is left out.
    assert!(
        (5400..5700).contains(&found.by_class.reclaimable.cpu),
        "{found:?}"
    );
    assert_eq!(
        found.published.reclaimable.cpu,
        found.by_pod.reclaimable.cpu
    );
    assert!(
        found.published.peak.cpu >= 8000,
        "unpredicted pods count with their request"
    );
}

#[test]
fn checkpoints_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        dir: Some(dir.path().join("models")),
        ..Config::default()
    };
    let mut predictor = Predictor::new(config.clone());
    for uid in ["a", "b", "gone"] {
        for minute in 0..10 {
            predictor.train(uid, 1.5, 3e9, T0 + minute * MINUTE);
        }
    }
    predictor.maintain(T0 + 10 * MINUTE).unwrap();
    let folder = dir.path().join("models");
    std::fs::write(folder.join("b"), "{not json").unwrap();
    std::fs::write(folder.join("a.tmp"), "half").unwrap();
    let text = std::fs::read_to_string(folder.join("a")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(saved["UID"], "a");
    assert!(saved["CPU"]["bucketWeights"].is_object() && saved["LastUpdated"].is_string());

    let mut restored = Predictor::new(config);
    let known: BTreeSet<String> = ["a", "b", NODE].map(str::to_owned).into();
    assert_eq!(restored.restore(&known, T0 + 11 * MINUTE).unwrap(), 1);
    assert_eq!(restored.forecast("a"), predictor.forecast("a"));
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert_eq!(left.len(), 1, "what is unknown or broken is deleted");
}

#[test]
fn old_models_are_dropped_with_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        dir: Some(dir.path().to_owned()),
        ..Config::default()
    };
    let mut predictor = Predictor::new(config);
    predictor.train("a", 1.0, 1.0, T0);
    predictor.maintain(T0).unwrap();
    assert!(dir.path().join("a").exists());
    predictor.maintain(T0 + 31 * MINUTE).unwrap();
    assert!(predictor.is_empty() && !dir.path().join("a").exists());
}

#[test]
fn few_files_are_written_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        dir: Some(dir.path().to_owned()),
        ..Config::default()
    };
    let mut predictor = Predictor::new(config);
    for n in 0..30 {
        predictor.train(&format!("pod-{n}"), 1.0, 1.0, T0);
    }
    let count = || std::fs::read_dir(dir.path()).unwrap().count();
    for want in [12, 24, 30, 30] {
        predictor.maintain(T0 + 1).unwrap();
        assert_eq!(count(), want);
    }
}
