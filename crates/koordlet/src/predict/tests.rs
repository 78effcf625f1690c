use super::reclaimable::{by_class, by_pod, estimate};
use super::*;
use crate::states::node::Amounts;
use crate::states::{Driver, Layout as Groups, PodInfo};
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
    PodInfo::from_pod(&pod, &Groups::new(Driver::Cgroupfs, CgroupPath::root())).unwrap()
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
    let prediction = estimate(&predictor, pods.iter(), node, now);
    // One core, one bucket up, and the margin of 10 %.
    assert!(
        (2800..2900).contains(&prediction.by_pod.reclaimable.cpu),
        "{prediction:?}"
    );
    // Two known pods' requests less class and system; the pod without a model is left out.
    assert!(
        (5400..5700).contains(&prediction.by_class.reclaimable.cpu),
        "{prediction:?}"
    );
    assert_eq!(
        prediction.published.reclaimable.cpu,
        prediction.by_pod.reclaimable.cpu
    );
    assert!(
        prediction.published.peak.cpu >= 8000,
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
    let uids: BTreeSet<String> = ["a", "b", NODE].map(str::to_owned).into();
    assert_eq!(restored.restore(&uids, T0 + 11 * MINUTE).unwrap(), 1);
    assert_eq!(restored.forecast("a"), predictor.forecast("a"));
    let remaining_files = || {
        let entries = std::fs::read_dir(&folder).unwrap().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        remaining_files(),
        ["a", "gone"],
        "what is broken is deleted"
    );

    // A pod that the first list lacked gets its model with its first sample.
    restored.train("a", 1.5, 3e9, T0 + 20 * MINUTE);
    restored.maintain(T0 + 20 * MINUTE).unwrap();
    restored.train("gone", 1.5, 3e9, T0 + 21 * MINUTE);
    let (late, before) = (restored.forecast("gone"), predictor.forecast("gone"));
    assert_eq!(late, before);
    assert!(late.is_some());

    // The file of a model that stays unused is deleted when models expire.
    std::fs::copy(folder.join("a"), folder.join("lost")).unwrap();
    let mut reloaded = Predictor::new(restored.config().clone());
    assert_eq!(reloaded.restore(&uids, T0 + 22 * MINUTE).unwrap(), 1);
    reloaded.train("a", 1.5, 3e9, T0 + 50 * MINUTE);
    reloaded.maintain(T0 + 52 * MINUTE).unwrap();
    assert!(remaining_files().contains(&"lost".to_owned()));
    reloaded.maintain(T0 + 53 * MINUTE).unwrap();
    assert!(!remaining_files().contains(&"lost".to_owned()));
}

#[test]
fn corrupted_checkpoints_start_afresh() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        dir: Some(dir.path().to_owned()),
        ..Config::default()
    };
    let good = json!({"UID": "x", "LastUpdated": "2025-05-23T11:33:20Z",
        "CPU": {"referenceTimestamp": "2025-05-23T00:00:00Z",
            "bucketWeights": {"3": 10000}, "totalWeight": 5.0},
        "Memory": {"referenceTimestamp": "2025-05-23T00:00:00Z",
            "bucketWeights": {"3": 10000}, "totalWeight": 5.0}});
    let with = |path: &str, value: serde_json::Value| {
        let mut changed = good.clone();
        *changed.pointer_mut(path).unwrap() = value;
        changed.to_string().into_bytes()
    };
    let cases: [(&str, Vec<u8>); 9] = [
        ("good", good.to_string().into_bytes()),
        ("empty", Vec::new()),
        ("cut", good.to_string().into_bytes()[..60].to_vec()),
        ("binary", vec![0xff; 100]),
        ("array", b"[]".to_vec()),
        ("negative", with("/CPU/totalWeight", json!(-1.0))),
        ("bucket", with("/CPU/bucketWeights", json!({"100000": 1}))),
        ("below", with("/Memory/bucketWeights", json!({"-1": 1}))),
        ("time", with("/LastUpdated", json!("yesterday"))),
    ];
    for (name, content) in &cases {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let uids: BTreeSet<String> = cases.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut predictor = Predictor::new(config);
    assert_eq!(predictor.restore(&uids, T0).unwrap(), 1);
    for (name, _) in &cases[1..] {
        assert!(!dir.path().join(name).exists(), "{name}");
        predictor.train(name, 1.0, 1.0, T0);
        assert!(predictor.forecast(name).is_some());
    }
}

/// Real checkpoints are far below the limit; white space fills the file.
#[test]
fn oversized_checkpoints_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let buckets = |layout: Layout| -> serde_json::Value {
        let weights: serde_json::Map<_, _> = (0..layout.count())
            .map(|bucket| (bucket.to_string(), json!(10_000)))
            .collect();
        json!({"referenceTimestamp": "2025-05-23T00:00:00Z", "bucketWeights": weights,
            "totalWeight": 1234.5678901234567})
    };
    let largest = json!({"UID": "x".repeat(36), "LastUpdated": "2025-05-23T11:33:20.123456789Z",
        "CPU": buckets(Layout::cpu()), "Memory": buckets(Layout::memory())});
    let mut bytes = largest.to_string().into_bytes();
    let limit = usize::try_from(checkpoint::LIMIT).unwrap();
    assert!(bytes.len() < limit / 20, "{}", bytes.len());
    let predictor = Predictor::new(Config::default());
    let path = dir.path().join("x");
    bytes.resize(limit, b' ');
    std::fs::write(&path, &bytes).unwrap();
    assert!(predictor.load(&path, T0).is_ok());
    bytes.push(b' ');
    std::fs::write(&path, &bytes).unwrap();
    let error = predictor.load(&path, T0).err().unwrap().to_string();
    let want = format!(
        "checkpoint {}: 262145 bytes, of 262144 at most",
        path.display()
    );
    assert_eq!(error, want);
}

#[test]
fn a_clock_that_jumps_neither_freezes_nor_keeps_models() {
    const DAY: i64 = 24 * 60 * MINUTE;
    for jump in [-400 * DAY, -DAY, DAY, 400 * DAY] {
        let mut predictor = Predictor::new(Config::default());
        let mut minute = |wall_jump: i64, minutes: std::ops::Range<i64>, cores: f64| {
            for minute in minutes {
                let wall = T0 + minute * MINUTE + wall_jump;
                let now = predictor.time(wall, (minute * MINUTE) as u64);
                predictor.train("a", cores, 1e9, now);
                predictor.maintain(now).unwrap();
            }
            predictor.forecast("a").unwrap().cpu_p95
        };
        assert!(minute(0, 0..100, 1.0) < 1100);
        // As many samples after the jump as before it: both the earlier and the new samples count.
        let after = minute(jump, 100..200, 4.0);
        assert!((4000..4400).contains(&after), "{jump}: {after}");
        let calm = minute(jump, 200..4000, 1.0);
        assert!(calm < 1100, "{jump}: {calm}");
        // A terminated pod is still dropped after half an hour.
        let now = predictor.time(T0, (4031 * MINUTE) as u64);
        predictor.maintain(now).unwrap();
        assert!(predictor.is_empty(), "{jump}");
    }
}

#[test]
fn a_file_from_the_future_counts_as_written_now() {
    const DAY: i64 = 24 * 60 * MINUTE;
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        dir: Some(dir.path().to_owned()),
        ..Config::default()
    };
    // The clock was a year ahead in the first run, and jumps in the second.
    let mut first = Predictor::new(config.clone());
    for minute in 0..100 {
        let now = first.time(T0 + 365 * DAY + minute * MINUTE, (minute * MINUTE) as u64);
        first.train("a", 4.0, 1e9, now);
        first.maintain(now).unwrap();
    }
    let uids: BTreeSet<String> = ["a".to_owned()].into();
    let mut second = Predictor::new(config.clone());
    let now = second.time(T0, 0);
    assert_eq!(second.restore(&uids, now).unwrap(), 1);
    assert!(second.forecast("a").unwrap().cpu_p95 >= 4000);
    for minute in 1..3000 {
        let wall = T0 + minute * MINUTE + if minute > 500 { 100 * DAY } else { 0 };
        let now = second.time(wall, (minute * MINUTE) as u64);
        second.train("a", 1.0, 1e9, now);
        second.maintain(now).unwrap();
    }
    assert!(second.forecast("a").unwrap().cpu_p95 < 1100);
    // The jump does not affect the third run, because the file has the clock of the last one.
    let mut third = Predictor::new(config);
    let now = third.time(T0 + 100 * DAY + 3001 * MINUTE, 0);
    assert_eq!(third.restore(&uids, now).unwrap(), 1);
    third.train("a", 4.0, 1e9, now);
    assert!(
        third.forecast("a").unwrap().cpu_p95 < 1100,
        "one sample does not outweigh two days"
    );
}

#[test]
fn full_and_read_only_disks_cost_the_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        dir: Some(dir.path().to_owned()),
        ..Config::default()
    };
    let mut predictor = Predictor::new(config.clone());
    predictor.train("a", 1.0, 1e9, T0);
    predictor.maintain(T0).unwrap();
    let old = std::fs::read(dir.path().join("a")).unwrap();

    // Writes to this device fail as on a full disk.
    std::os::unix::fs::symlink("/dev/full", dir.path().join("a.tmp")).unwrap();
    predictor.train("a", 1.0, 1e9, T0 + 10 * MINUTE);
    predictor.train("b", 1.0, 1e9, T0 + 10 * MINUTE);
    let error = predictor.maintain(T0 + 10 * MINUTE).unwrap_err();
    assert!(error.to_string().contains("/a: No space left"), "{error}");
    assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), old);
    assert!(dir.path().join("b").exists(), "the others are written");
    assert!(!dir.path().join("a.tmp").exists());
    predictor.maintain(T0 + 11 * MINUTE).unwrap();
    assert_ne!(
        std::fs::read(dir.path().join("a")).unwrap(),
        old,
        "tried again"
    );

    let mount = |options: &str| {
        let mut command = std::process::Command::new("mount");
        let command = command.args(["-t", "tmpfs", "-o", options, "tmpfs"]);
        let child_command = command.arg(dir.path()).stderr(std::process::Stdio::null());
        child_command.status().is_ok_and(|status| status.success())
    };
    if !mount("ro") {
        koord_host::testing::skip("mount", "no file system can be mounted");
        return;
    }
    let mut fresh = Predictor::new(config);
    assert_eq!(fresh.restore(&BTreeSet::new(), T0).unwrap(), 0);
    fresh.train("a", 1.0, 1e9, T0);
    let error = fresh.maintain(T0).unwrap_err().to_string();
    let forecast = fresh.forecast("a");
    let unmounted = std::process::Command::new("umount")
        .arg(dir.path())
        .status();
    assert!(unmounted.unwrap().success());
    assert!(error.contains("Read-only file system"), "{error}");
    assert!(forecast.is_some());
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
