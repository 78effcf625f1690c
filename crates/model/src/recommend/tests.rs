use super::container::Sample;
use super::*;
use crate::histogram::UnixMillis;
use std::collections::BTreeMap;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const T0: UnixMillis = 1_767_225_600_000;
const MIB: f64 = 1_048_576.0;

fn sample(pod: &str, time: i64, cpu: f64, memory: f64) -> Sample<'_> {
    Sample {
        pod,
        time,
        cpu: Some(cpu),
        memory: Some(memory),
    }
}

/// Adds one sample of the same use per minute for `days`.
fn steady(settings: &Settings, days: f64, cpu: f64, memory: f64) -> ContainerModel {
    let mut model = ContainerModel::new(settings);
    for minute in 0..=(days * 1440.0) as i64 {
        assert!(model.add(settings, sample("a", T0 + minute * MINUTE, cpu, memory)));
    }
    model
}

fn distribution(model: &ContainerModel, settings: &Settings) -> Distribution {
    estimate(model, settings, settings.percentiles, 1).unwrap()
}

#[test]
fn steady_usage_is_recommended_with_margin() {
    let settings = Settings::peak();
    let recommended = distribution(&steady(&settings, 2.0, 0.4, 600.0 * MIB), &settings);
    // A bucket is 5 % wide and is represented by its end: 0.4 × 1.05 and 600 MiB × 1.05, up to 6 % more.
    let (cpu, memory) = (
        recommended.target.cpu_milli,
        recommended.target.memory as f64 / MIB,
    );
    assert!((420..=446).contains(&cpu), "{cpu}m");
    assert!((630.0..=669.0).contains(&memory), "{memory} MiB");
    assert_eq!(recommended.target.memory % (1 << 20), 0);
    assert_eq!(recommended.samples, 2 * 1440 + 1);
    assert!((recommended.confidence - 2.0).abs() < 0.01);
    assert!(recommended.lower.cpu_milli <= recommended.target.cpu_milli);
    // Two days: 1 + 1/2.
    let ratio = recommended.upper.cpu_milli as f64 / recommended.target.cpu_milli as f64;
    assert!((ratio - 1.5).abs() < 0.01, "{ratio}");
}

#[test]
fn pod_minimum_is_shared_by_containers() {
    let settings = Settings::peak();
    let model = steady(&settings, 1.0, 0.001, MIB);
    for (containers, cpu, memory) in [(1, 25, 250), (2, 13, 125), (4, 7, 63)] {
        let recommended = estimate(&model, &settings, settings.percentiles, containers).unwrap();
        assert_eq!(
            (
                recommended.target.cpu_milli,
                recommended.target.memory >> 20
            ),
            (cpu, memory),
            "{containers} containers"
        );
    }
}

#[test]
fn presets_differ_in_percentiles() {
    let (peak, vpa) = (Settings::peak(), Settings::vpa());
    assert_eq!(
        (peak.percentiles.cpu, peak.percentiles.memory),
        (0.99, 0.95)
    );
    assert_eq!((vpa.percentiles.cpu, vpa.percentiles.memory), (0.9, 0.9));
    let mut model = ContainerModel::new(&peak);
    // 7 % of the samples are high: within p99, not within p90.
    for minute in 0..1000 {
        let cpu = if minute % 100 < 7 { 2.0 } else { 0.2 };
        model.add(&peak, sample("a", T0 + minute * MINUTE, cpu, 1e9));
    }
    assert_eq!((peak.margin, vpa.margin), (0.05, 0.15));
    assert!(distribution(&model, &peak).target.cpu_milli > 2090);
    assert!(distribution(&model, &vpa).target.cpu_milli < 250);
}

#[test]
fn repeated_and_late_samples_are_not_counted() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    assert!(model.add(&settings, sample("a", T0, 1.0, 1e9)));
    assert!(!model.add(&settings, sample("a", T0, 1.0, 1e9)));
    assert!(!model.add(&settings, sample("a", T0 - 1, 1.0, 1e9)));
    assert!(model.add(&settings, sample("b", T0, 1.0, 1e9)));
    assert!(!model.add(&settings, sample("c", T0, f64::NAN, -1.0)));
    assert_eq!(model.count(), 2);
}

#[test]
fn only_the_peak_of_a_window_counts() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    for (at, memory) in [(0, 300.0), (1, 900.0), (2, 400.0), (23, 500.0)] {
        model.add(&settings, sample("a", T0 + at * HOUR, 0.1, memory * MIB));
    }
    // One peak of 900 MiB, although three of the four samples were lower.
    let half = model.memory.percentile(0.01) / MIB;
    assert!((900.0..955.0).contains(&half), "{half}");
    // The next window begins 24 h after the first sample; its peak has the same weight and is newer.
    model.add(&settings, sample("a", T0 + 25 * HOUR, 0.1, 300.0 * MIB));
    let low = model.memory.percentile(0.5) / MIB;
    assert!((300.0..320.0).contains(&low), "{low}");
    let high = distribution(&model, &settings).points[4].1.memory >> 20;
    assert!((900..956).contains(&high), "{high}");
}

#[test]
fn oom_kill_raises_recommendation_once() {
    let settings = Settings::peak();
    let mut model = steady(&settings, 1.0, 0.1, 300.0 * MIB);
    let before = distribution(&model, &settings).target.memory;
    let at = T0 + DAY + MINUTE;
    // max(request 2 GiB, peak 300 MiB) × 1.2 > + 100 MiB.
    assert!(model.oom(&settings, "a", at, Some(2048.0 * MIB)));
    assert!(!model.oom(&settings, "a", at, Some(2048.0 * MIB)), "twice");
    let after = distribution(&model, &settings).target.memory;
    let want = 2048.0 * 1.2 * 1.05;
    let got = after as f64 / MIB;
    assert!(
        before < 400 << 20 && got >= want && got < want * 1.06,
        "{got} MiB"
    );
    // A small container gets 100 MiB more: 300 + 100.
    let mut small = steady(&settings, 0.5, 0.1, 300.0 * MIB);
    assert!(small.oom(&settings, "a", T0 + DAY / 2 + MINUTE, None));
    let got = small.memory.percentile(1.0) / MIB;
    assert!((400.0..425.0).contains(&got), "{got}");
    // An OOM kill before the window is ignored.
    assert!(!small.oom(&settings, "a", T0 - DAY, Some(4096.0 * MIB)));
}

#[test]
fn confidence_is_the_lesser_of_time_and_samples() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    assert_eq!(model.confidence(), 0.0);
    for hour in 0..=48 {
        model.add(&settings, sample("a", T0 + hour * HOUR, 0.1, 1e9));
    }
    assert!((model.confidence() - 49.0 / 1440.0).abs() < 1e-9);
    assert!((steady(&settings, 0.5, 0.1, 1e9).confidence() - 0.5).abs() < 1e-2);
}

#[test]
fn no_recommendation_before_both_are_measured() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    assert_eq!(estimate(&model, &settings, settings.percentiles, 1), None);
    model.add(
        &settings,
        Sample {
            memory: None,
            ..sample("a", T0, 0.1, 0.0)
        },
    );
    assert_eq!(estimate(&model, &settings, settings.percentiles, 1), None);
}

#[test]
fn restart_changes_no_recommendation() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    for minute in 0..3 * 1440 {
        let load = 1.0 + (minute % 1440) as f64 / 1440.0;
        model.add(
            &settings,
            sample("a", T0 + minute * MINUTE, load, load * 1e9),
        );
    }
    let now = T0 + 3 * DAY;
    model.oom(&settings, "a", now - MINUTE, Some(3e9));
    let mut restored = ContainerModel::load(&settings, &model.save(), now).unwrap();
    assert_eq!(
        distribution(&restored, &settings),
        distribution(&model, &settings)
    );
    // The open window goes on: a lower use changes nothing, a kill learned before is not learned
    // again, and the sample before the restart is not counted again.
    for one in [&mut model, &mut restored] {
        assert!(!one.oom(&settings, "a", now - MINUTE, Some(3e9)));
        assert!(!one.add(&settings, sample("a", now - MINUTE, 9.0, 9e9)));
        assert!(one.add(&settings, sample("a", now, 1.0, 1e9)));
    }
    assert_eq!(
        distribution(&restored, &settings),
        distribution(&model, &settings)
    );
}

#[test]
fn changed_half_life_preserves_sample_proportions() {
    let long = Settings::peak();
    let short = Settings {
        cpu_half_life_ms: HOUR,
        ..Settings::peak()
    };
    let mut model = steady(&long, 20.0, 2.0, 1e9);
    let now = T0 + 20 * DAY;
    model = ContainerModel::load(&short, &model.save(), now).unwrap();
    // Three hours of lower use: the old samples weigh an eighth of what they did, and with one-day
    // weights in front (1440 / ln 2) they are still the larger part.
    for minute in 1..=180 {
        model.add(&short, sample("a", now + minute * MINUTE, 0.2, 1e9));
    }
    assert!(model.cpu.percentile(0.1) < 0.25 && model.cpu.percentile(0.95) > 1.9);
    for minute in 181..=24 * 60 {
        model.add(&short, sample("a", now + minute * MINUTE, 0.2, 1e9));
    }
    assert!(model.cpu.percentile(0.95) < 0.25);
}

#[test]
fn bad_checkpoints_name_the_field() {
    let settings = Settings::peak();
    let good = steady(&settings, 0.1, 0.1, 1e9).save();
    let now = T0 + DAY;
    let error = |change: &dyn Fn(&mut ContainerCheckpoint)| {
        let mut bad = good.clone();
        change(&mut bad);
        ContainerModel::load(&settings, &bad, now)
            .unwrap_err()
            .to_string()
    };
    for (text, says) in [
        (error(&|c| c.version = "v3".to_owned()), "\"v3\""),
        (
            error(&|c| c.cpu_half_life_ms = 0),
            "cpuHalfLife must be positive, got 0 ms",
        ),
        (error(&|c| c.cpu.total = -1.0), "cpuHistogram: totalWeight"),
        (
            error(&|c| c.memory.weights = BTreeMap::from([(999, 1)])),
            "memoryHistogram: bucketWeights key 999",
        ),
        (error(&|c| c.last = Some(T0 - DAY)), "lastSampleStart"),
        (error(&|c| c.last = Some(now + 9 * DAY)), "lastSampleStart"),
        (
            error(&|c| c.instances[0].peak = f64::INFINITY),
            "memoryPeaks of pod a: peak must be finite and not negative, got inf",
        ),
    ] {
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn container_without_samples_for_eight_days_expires() {
    let settings = Settings::peak();
    let mut model = steady(&settings, 0.1, 0.1, 1e9);
    assert!(!model.expire(&settings, T0 + 8 * DAY));
    assert!(model.instances.is_empty(), "its window is over");
    assert!(model.expire(&settings, T0 + 9 * DAY));
}

#[test]
fn settings_out_of_range_are_named() {
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut settings = Settings::peak();
        change(&mut settings);
        settings.check().map_err(|error| error.to_string())
    };
    assert_eq!(with(&|_| ()), Ok(()));
    for (found, says) in [
        (
            with(&|s| s.percentiles.cpu = 1.5),
            "cpu must be above 0 and at most 1, got 1.5",
        ),
        (with(&|s| s.percentiles.memory = f64::NAN), "memory"),
        (with(&|s| s.margin = -0.1), "margin"),
        (with(&|s| s.cpu_half_life_ms = 0), "cpuHalfLife"),
        (with(&|s| s.oom_ratio = 0.5), "oomRatio"),
        (with(&|s| s.min_memory = f64::INFINITY), "minMemory"),
    ] {
        let error = found.unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn factors_are_percent_of_the_request() {
    use admission::{scaling_factor, scaling_factors};
    for (recommended, requested, want) in [
        (250, 1000, Some(25)),
        (251, 1000, Some(26)),
        (1, 1_000_000, Some(1)),
        (2000, 1000, Some(100)),
        (i64::MAX, 1, Some(100)),
        (0, 1000, None),
        (100, 0, None),
    ] {
        assert_eq!(scaling_factor(recommended, requested), want);
    }
    let amounts = |requested: &[(&'static str, i64)], recommended: &[(&'static str, i64)]| {
        admission::ContainerAmounts {
            requested: requested.iter().copied().collect(),
            recommended: recommended.iter().copied().collect(),
        }
    };
    let containers = [
        amounts(
            &[("cpu", 1000), ("memory", 400)],
            &[("cpu", 300), ("memory", 100)],
        ),
        // No recommendation: the request is the expected use.
        amounts(&[("cpu", 1000)], &[]),
        amounts(&[("nvidia.com/gpu", 1)], &[]),
    ];
    assert_eq!(
        scaling_factors(&containers),
        BTreeMap::from([("cpu", 65), ("memory", 25)])
    );
}

#[test]
fn bounds_are_wide_and_finite_after_one_sample() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    assert!(model.add(&settings, sample("a", T0, 0.4, 600.0 * MIB)));
    let recommended = distribution(&model, &settings);
    // As after one sample's part of a day: 1 + 1440.
    let ratio = recommended.upper.cpu_milli as f64 / recommended.target.cpu_milli as f64;
    assert!((ratio - 1441.0).abs() < 5.0, "{ratio}");
}

#[test]
fn lower_bound_is_median() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    for minute in 0..=1440 {
        let cpu = if minute % 10 == 0 { 1.0 } else { 0.1 };
        let usage = sample("a", T0 + minute * MINUTE, cpu, 600.0 * MIB);
        assert!(model.add(&settings, usage));
    }
    let recommended = distribution(&model, &settings);
    assert!(recommended.target.cpu_milli >= 1050, "{recommended:?}");
    assert!(
        (100..130).contains(&recommended.lower.cpu_milli),
        "{recommended:?}"
    );
}

#[test]
fn checkpoints_keep_newest_pods_once_and_drop_future_windows() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    for pod in 0..100 {
        let name = format!("pod{pod}");
        assert!(model.add(&settings, sample(&name, T0 + pod * MINUTE, 0.4, MIB)));
    }
    let mut saved = model.save();
    let names: Vec<_> = saved
        .instances
        .iter()
        .map(|instance| instance.pod.clone())
        .collect();
    assert_eq!(names.len(), 64);
    assert!(!names.contains(&"pod35".to_owned()) && names.contains(&"pod36".to_owned()));
    // Fewer than are kept; otherwise a duplicate would be cut off with the rest.
    saved.instances.truncate(10);
    let twice = saved.instances[0].clone();
    saved.instances.push(twice);
    saved.instances[0].window_end = i64::MAX;
    let now = T0 + DAY;
    let resaved = ContainerModel::load(&settings, &saved, now).unwrap().save();
    assert_eq!(resaved.instances.len(), 10);
    let soon = now + settings.memory_window_ms;
    assert!(
        resaved
            .instances
            .iter()
            .all(|instance| instance.window_end <= soon)
    );
}

#[test]
fn oom_kill_counts_only_in_its_window() {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    assert!(model.add(&settings, sample("a", T0, 0.4, 100.0 * MIB)));
    let request = Some(800.0 * MIB);
    assert!(!model.oom(&settings, "a", T0 - HOUR, request), "before it");
    assert!(model.oom(&settings, "a", T0 + HOUR, request));
    for (hours, used) in [(30, 100.0), (31, 200.0)] {
        let usage = sample("a", T0 + hours * HOUR, 0.4, used * MIB);
        assert!(model.add(&settings, usage));
    }
    let instance = &model.save().instances[0];
    assert!((instance.peak - 200.0 * MIB).abs() < 1.0, "{instance:?}");
    assert!(instance.oom_peak.abs() < 1.0, "{instance:?}");
}
