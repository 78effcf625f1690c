use super::*;
use crate::testing::LogLines;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Runs a controller whose reconciles of the key `k` have these results, `None` being a panic. Returns the
/// start time of each reconcile, in milliseconds, and the metrics.
async fn run(results: Vec<Option<Result<Action, String>>>) -> (Vec<u128>, String) {
    let registry = prometheus::Registry::new();
    let metrics = ControllerMetrics::register(&registry).unwrap();
    let queue = WorkQueue::default();
    let (start, begun) = (Instant::now(), Mutex::new(Vec::new()));
    let reconcile = |key: &'static str| {
        let mut begun = begun.lock();
        let result = results.get(begun.len()).cloned();
        begun.push(start.elapsed().as_millis());
        if begun.len() == results.len() {
            queue.close();
        }
        drop(begun);
        async move {
            assert_eq!(key, "k");
            result.flatten().expect("a reconcile that panics")
        }
    };
    let controller = Controller::new(
        "c",
        queue.clone(),
        2,
        &metrics,
        crate::log_reconcile_failures!(),
        reconcile,
    );
    let shown = koord_app::metrics::encode(&registry).unwrap();
    for line in [
        "controller_runtime_max_concurrent_reconciles{controller=\"c\"} 2",
        "controller_runtime_reconcile_panics_total{controller=\"c\"} 0",
        "workqueue_adds_total{controller=\"c\",name=\"c\"} 0",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    controller.queue().add("k");
    controller.run().await;
    let shown = koord_app::metrics::encode(&registry).unwrap();
    drop(controller);
    (begun.into_inner(), shown)
}

#[tokio::test(start_paused = true)]
async fn requeue_after_brings_a_key_back_after_its_delay() {
    let later = Some(Ok(Action::RequeueAfter(Duration::from_secs(7))));
    let (begun, metrics) = run(vec![later, Some(Ok(Action::Done))]).await;
    assert_eq!(begun, [0, 7000]);
    for line in [
        "controller_runtime_reconcile_total{controller=\"c\",result=\"requeue_after\"} 1",
        "controller_runtime_reconcile_total{controller=\"c\",result=\"success\"} 1",
        "controller_runtime_active_workers{controller=\"c\"} 0",
        "workqueue_retries_total{controller=\"c\",name=\"c\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_key_backs_off_until_it_succeeds() {
    let failed = || Some(Err("no".to_owned()));
    let soon = Some(Ok(Action::RequeueAfter(Duration::from_millis(1))));
    let results = vec![failed(), failed(), failed(), soon, failed(), failed()];
    let (begun, metrics) = run(results).await;
    // 5, 10 and 20 ms; the success resets the back-off.
    assert_eq!(begun, [0, 5, 15, 35, 36, 41]);
    let errors = "controller_runtime_reconcile_errors_total{controller=\"c\"} 5";
    assert!(metrics.contains(errors), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn panic_is_counted_and_the_key_is_requeued() {
    let (begun, metrics) = run(vec![None, None, Some(Ok(Action::Done))]).await;
    assert_eq!(begun, [0, 5, 15]);
    for line in [
        "controller_runtime_reconcile_panics_total{controller=\"c\"} 2",
        "controller_runtime_reconcile_total{controller=\"c\",result=\"error\"} 2",
        "controller_runtime_reconcile_total{controller=\"c\",result=\"success\"} 1",
        "controller_runtime_active_workers{controller=\"c\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_logged_by_the_module_that_runs_the_controller() {
    let (log, _guard) = LogLines::capture();
    let failed = || Some(Err("no".to_owned()));
    run(vec![failed(), failed(), None, Some(Ok(Action::Done))]).await;
    // The second failure is a debug line.
    let expected = [
        concat!(" WARN ", module_path!(), ": reconcile failed, retrying"),
        concat!("ERROR ", module_path!(), ": reconcile panicked, retrying"),
    ];
    let lines = log.lines();
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }
}
