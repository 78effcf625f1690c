//! The controllers that a control plane needs to be one: garbage collection, namespaces, sums of roles, node and pod
//! lifecycle, disruption budgets, quotas, event expiry and the workload controllers.
//!
//! Each is a task over [`Api`] and writes only through its verbs, so what a controller does is
//! visible, validated and durable like everything else.

mod accounts;
mod aggregation;
mod daemonset;
mod definitions;
mod deployment;
mod disruption;
mod events;
mod garbage;
mod job;
mod namespaces;
mod nodes;
mod pod_gc;
mod pods;
mod queue;
mod quota;
mod replicaset;
mod root_ca;
mod statefulset;

use crate::rest::Api;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Starts every controller; `authority` is the certificate (PEM) that clients are to trust. They
/// end when `shutdown` is cancelled; the tracker tells when.
pub fn start(api: &Api, authority: &str, shutdown: &CancellationToken) -> TaskTracker {
    let tracker = TaskTracker::new();
    let (a, s) = (|| api.clone(), || shutdown.clone());
    tracker.spawn(garbage::run(a(), s()));
    tracker.spawn(queue::run(a(), namespaces::Namespaces, s()));
    tracker.spawn(queue::run(a(), definitions::Definitions, s()));
    tracker.spawn(queue::run(a(), accounts::Accounts, s()));
    tracker.spawn(queue::run(a(), aggregation::Aggregation, s()));
    let pem = authority.to_owned();
    tracker.spawn(queue::run(a(), root_ca::RootCa { pem }, s()));
    tracker.spawn(queue::run(a(), disruption::Disruption, s()));
    tracker.spawn(queue::run(a(), quota::Quotas::new(api), s()));
    tracker.spawn(queue::run(a(), pod_gc::PodGc::default(), s()));
    tracker.spawn(nodes::run(a(), s()));
    tracker.spawn(events::run(a(), s()));
    tracker.spawn(queue::run(a(), replicaset::ReplicaSets, s()));
    tracker.spawn(queue::run(a(), deployment::Deployments, s()));
    tracker.spawn(queue::run(a(), job::Jobs, s()));
    tracker.spawn(queue::run(a(), daemonset::DaemonSets, s()));
    tracker.spawn(queue::run(a(), statefulset::StatefulSets, s()));
    tracker.close();
    tracker
}
