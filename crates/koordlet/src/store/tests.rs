use super::*;
use proptest::prelude::*;

const CPU: Metric = Metric::CpuUsage;

/// Reference implementation: keeps every sample that was pushed.
#[derive(Default)]
struct NaiveSeries(Vec<(u64, f64)>);

impl NaiveSeries {
    fn window(&self, now: u64, window: u64) -> Vec<f64> {
        let inside = |(at, _): &&(u64, f64)| *at <= now && *at >= now.saturating_sub(window);
        self.0
            .iter()
            .rev()
            .filter(inside)
            .map(|(_, v)| *v)
            .collect()
    }

    fn mean(&self, now: u64, window: u64) -> Option<f64> {
        let values = self.window(now, window);
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }
}

fn near(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs()) + 1e-9
}

#[test]
fn the_newest_sample_and_its_age() {
    let mut store = Store::new();
    let key = (SeriesSubject::Pod(7), CPU);
    assert_eq!(store.last(key, 0, u64::MAX), None);
    store.push(key, 1000, 5.0);
    store.push(key, 1100, 9.0);
    assert_eq!(store.last(key, 1100, 0), Some(9.0), "not the cell's mean");
    assert_eq!(store.average(key, 1100, 500), Some(7.0));
    assert_eq!(store.last(key, 3101, 2000), None);
    assert_eq!(store.last(key, 1000, 2000), None, "asked before its time");
    store.push(key, 900, 1.0);
    store.push(key, 2000, f64::NAN);
    assert_eq!(store.last(key, 1100, 0), Some(9.0), "neither late nor NaN");
    assert_eq!(store.last((SeriesSubject::Pod(8), CPU), 1100, 2000), None);
    store.remove(SeriesSubject::Pod(7));
    assert!(store.is_empty() && store.subjects().next().is_none());
}

#[test]
fn long_windows_of_a_pod_are_averages() {
    let mut store = Store::new();
    let key = (SeriesSubject::Pod(1), CPU);
    for second in 1..=1800_u64 {
        store.push(key, second * 1000, second as f64);
    }
    let now = 1_800_000;
    assert_eq!(store.average(key, now, 299_000), Some(1650.5));
    assert_eq!(store.average(key, now, 1_800_000), Some(900.5));
    let mut out = Vec::new();
    assert_eq!(store.collect(key, now, 1_800_000, &mut out), 1_790_000);
    assert_eq!((out.len(), out.first().copied()), (180, Some(1795.5)));
    assert_eq!(store.collect(key, now, 60_000, &mut out), 60_000);
    assert_eq!(out.len(), 61);
}

#[test]
fn gap_drops_old_samples_and_long_times_fit() {
    let mut store = Store::new();
    let key = (SeriesSubject::Pod(1), Metric::CpuThrottled);
    store.push(key, 0, 1.0);
    // More than 32 bits of milliseconds later.
    let later = 60 * 86_400_000;
    store.push(key, later, 3.0);
    assert_eq!(store.average(key, later, u64::MAX), Some(3.0));
    store.push(key, later + 1000, 5.0);
    assert_eq!(store.average(key, later + 1000, 1000), Some(4.0));
}

#[test]
fn memory_is_bounded_at_any_rate() {
    for (key, limit) in [
        ((SeriesSubject::Node, CPU), 30 * 1024),
        ((SeriesSubject::Pod(1), CPU), 5 * 1024 + 512),
        ((SeriesSubject::Pod(1), Metric::PsiIoSome), 1280),
        ((SeriesSubject::Container(1), CPU), 64),
    ] {
        for step in [50, 1000, 10_000] {
            let mut store = Store::new();
            for n in 0..4_000_000 / step {
                store.push(key, n * step, n as f64);
            }
            assert!(
                store.bytes() <= limit,
                "{key:?} every {step} ms: {}",
                store.bytes()
            );
        }
    }
}

#[test]
fn a_large_node_stays_small() {
    let mut store = Store::new();
    for second in 0..2000 {
        let now = second * 1000;
        for subject in [
            SeriesSubject::Node,
            SeriesSubject::System,
            SeriesSubject::Numa(0),
        ] {
            store.push((subject, CPU), now, 1.0);
            store.push((subject, Metric::MemoryUsage), now, 1.0);
        }
        for pod in 0..250 {
            store.push((SeriesSubject::Pod(pod), CPU), now, 1.0);
            store.push((SeriesSubject::Pod(pod), Metric::MemoryUsage), now, 1.0);
        }
        for container in 0..750 {
            for metric in [CPU, Metric::MemoryUsage, Metric::CpuThrottled] {
                store.push((SeriesSubject::Container(container), metric), now, 1.0);
            }
        }
    }
    assert_eq!(store.len(), 6 + 500 + 2250);
    assert!(store.bytes() < 3 << 20, "{}", store.bytes());
}

#[test]
fn container_series_keeps_newest_sample() {
    let mut store = Store::new();
    let key = (SeriesSubject::Container(1), CPU);
    store.push(key, 1000, 3.0);
    store.push(key, 2000, 5.0);
    assert_eq!(store.last(key, 2500, 1000), Some(5.0));
    assert_eq!(store.average(key, 2500, 10_000), Some(5.0));
    assert_eq!(store.average(key, 2500, 400), None, "too old");
    assert_eq!(
        store.average(key, 1500, 1000),
        None,
        "asked before its time"
    );
}

#[test]
fn names_of_metrics_are_distinct() {
    for metric in Metric::ALL {
        assert_eq!(Metric::from_name(metric.name()), Some(*metric));
    }
}

/// Times between samples: about a second, sometimes long.
fn gaps() -> impl Strategy<Value = Vec<(u64, f64)>> {
    let gap = prop_oneof![20 => 900..1100_u64, 1 => 1100..400_000_u64];
    prop::collection::vec((gap, 0.0..1e6_f64), 1..900)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn node_series_are_exact(steps in gaps(), window in 0..1_830_000_u64, later in 0..5000_u64) {
        let (mut store, mut naive, mut now) = (Store::new(), NaiveSeries::default(), 0);
        let key = (SeriesSubject::Node, CPU);
        for (gap, value) in steps {
            now += gap;
            store.push(key, now, value);
            naive.0.push((now, value));
        }
        let mut out = Vec::new();
        let span = store.collect(key, now + later, window, &mut out);
        prop_assert_eq!(&out, &naive.window(now + later, window));
        let times: Vec<u64> = naive.0.iter().map(|(at, _)| *at)
            .filter(|time| *time >= (now + later).saturating_sub(window)).collect();
        prop_assert_eq!(span, times.last().map_or(0, |last| last - times[0]));
        match (store.average(key, now + later, window), naive.mean(now + later, window)) {
            (Some(a), Some(b)) => prop_assert!(near(a, b, 1e-12), "{a} {b}"),
            (a, b) => prop_assert_eq!(a, b),
        }
    }

    #[test]
    fn pod_series_are_near(steps in gaps(), window in 0..1_800_000_u64) {
        let (mut store, mut naive, mut now) = (Store::new(), NaiveSeries::default(), 0);
        let key = (SeriesSubject::Pod(1), CPU);
        for (gap, value) in steps {
            now += gap;
            store.push(key, now, value);
            naive.0.push((now, value));
        }
        let fine = window.min(300_000);
        match (store.average(key, now, fine), naive.mean(now, fine)) {
            (Some(a), Some(b)) => prop_assert!(near(a, b, 1e-6), "{a} {b}"),
            (a, b) => prop_assert_eq!(a, b),
        }
        // Over more than that a cell may stick out of the window by its own width, and cells of
        // few samples (at gaps) weigh like full ones.
        let mut out = Vec::new();
        store.collect(key, now, window, &mut out);
        let all = naive.window(now, window + 11_000);
        let bounds = all.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        for value in out {
            prop_assert!(value >= bounds.0 * (1.0 - 1e-6) && value <= bounds.1 * (1.0 + 1e-6));
        }
    }

    #[test]
    fn a_fast_lane_keeps_the_mean(values in prop::collection::vec(0.0..1e3_f64, 600)) {
        let (mut store, mut naive) = (Store::new(), NaiveSeries::default());
        let key = (SeriesSubject::Pod(1), Metric::CpuHeldUp);
        for (n, value) in values.iter().enumerate() {
            store.push(key, n as u64 * 100, *value);
            naive.0.push((n as u64 * 100, *value));
        }
        let now = 59_900;
        let (a, b) = (store.average(key, now, now), naive.mean(now, now));
        prop_assert!(near(a.unwrap_or(0.0), b.unwrap_or(1.0), 1e-6), "{a:?} {b:?}");
    }
}
