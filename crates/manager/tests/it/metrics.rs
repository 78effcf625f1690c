//! Compares the names of metrics with those of upstream's program.

use crate::cluster::Cluster;
use koord_app::features::Gates;
use koord_app::flags;
use koord_manager::webhook::ServeMode;
use koord_manager::{Args, GATES, Options};
use prometheus::IntGauge;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Prefixes of upstream's metrics that are omitted, each with the reason.
const OMITTED: [(&str, &str); 12] = [
    ("apiserver_audit_", "no API server is linked in"),
    ("cardinality_enforcement_", "of Go's metrics library"),
    ("certwatcher_", "certificates are not watched as files"),
    ("controller_runtime_conversion_", "nothing is converted"),
    (
        "controller_runtime_reconcile_timeouts_",
        "a reconcile has no time limit",
    ),
    ("controller_runtime_terminal_", "no error is final"),
    (
        "controller_runtime_webhook_",
        "webhooks are measured step by step",
    ),
    ("process_network_", "the pod's, not the process's"),
    ("rest_client_exec_", "of credential plugins"),
    ("rest_client_transport_", "one transport is made once"),
    (
        "workqueue_longest_",
        "workqueue_work_duration_seconds measures it",
    ),
    (
        "workqueue_unfinished_",
        "workqueue_work_duration_seconds measures it",
    ),
];
const LIBRARY_METRICS: [&str; 3] = [
    "disabled_metrics_total",
    "hidden_metrics_total",
    "registered_metrics_total",
];

#[tokio::test(start_paused = true)]
async fn upstream_metric_names_are_served() {
    let cluster = Cluster::start().await;
    let (sender, served) = oneshot::channel();
    let sender = parking_lot::Mutex::new(Some(sender));
    let give = move |webhooks| {
        let sender = sender.lock().take();
        drop(sender.map(|sender| sender.send(webhooks)));
    };
    let all = "AllAlpha=true,AllBeta=true";
    cluster.manager(Options {
        gates: Gates::parse(GATES, all).unwrap(),
        webhooks: ServeMode::InProcess(Arc::new(give)),
        ..Options::default()
    });
    served.await.unwrap();
    let registry = &cluster.ctx.metrics;
    let args = flags::parse::<Args>(["koord-manager".into()]).unwrap().args;
    args.client_options(registry).unwrap();
    let names = include_str!("upstream-metrics.txt").lines();
    let names = names.filter(|line| !line.starts_with('#'));
    let mut left_out = std::collections::BTreeSet::new();
    for name in names.map(|line| line.split(' ').next().unwrap()) {
        // A name can be registered twice only with the same description.
        let is_taken = registry
            .register(Box::new(IntGauge::new(name, "Another").unwrap()))
            .is_err();
        let excuse = OMITTED.iter().find(|(start, _)| name.starts_with(start));
        match excuse {
            Some((start, reason)) => {
                assert!(!is_taken, "{name} exists, although: {reason}");
                left_out.insert(*start);
            }
            None if LIBRARY_METRICS.contains(&name) => assert!(!is_taken),
            None => assert!(is_taken, "{name} is missing"),
        }
    }
    assert_eq!(left_out.len(), OMITTED.len(), "{left_out:?}");
}
