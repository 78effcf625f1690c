//! The controllers of a control plane: garbage collection, namespaces, aggregated roles, node and pod
//! lifecycle, disruption budgets, quotas, event expiry and the workload controllers.
//!
//! Each is a task over [`Api`] and writes only through its verbs, so what a controller does is
//! visible, validated and durable like everything else.

mod adoption;
mod aggregation;
mod cron;
mod cronjob;
mod daemonset;
mod definitions;
mod deployment;
mod disruption;
mod events;
mod every_namespace;
mod garbage;
mod job;
mod job_rules;
mod namespaces;
mod nodes;
mod objects;
mod pod_gc;
mod pods;
mod progress;
mod queue;
mod quota;
mod recorder;
mod replicaset;
mod revisions;
mod statefulset;
mod workload;

use crate::rest::Api;
use every_namespace::EveryNamespace;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use koord_app::flags::Selection;
use queue::Reconcile;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Parameters that controllers are started with.
struct StartParams<'a> {
    api: &'a Api,
    /// CA certificate (PEM) that is published to clients.
    authority: &'a str,
    /// Number of ended pods that are kept; 0: all.
    ended_pods: usize,
    stop: &'a CancellationToken,
}

type Task = BoxFuture<'static, ()>;

impl StartParams<'_> {
    fn queue(&self, controller: impl Reconcile) -> Task {
        queue::run(self.api.clone(), controller, self.stop.clone()).boxed()
    }

    fn task<F>(&self, run: fn(Api, CancellationToken) -> F) -> Task
    where
        F: Future<Output = ()> + Send + 'static,
    {
        run(self.api.clone(), self.stop.clone()).boxed()
    }
}

/// A controller's name and the function that starts it.
type ControllerEntry = (&'static str, fn(&StartParams<'_>) -> Task);

/// Every controller. The names are those of kube-controller-manager, where it has a counterpart.
const ALL: [ControllerEntry; 18] = [
    ("garbage-collector-controller", |s| s.task(garbage::run)),
    ("namespace-controller", |s| s.queue(namespaces::Namespaces)),
    ("customresourcedefinition-controller", |s| {
        s.queue(definitions::Definitions)
    }),
    ("serviceaccount-controller", |s| {
        s.queue(EveryNamespace::Account)
    }),
    ("clusterrole-aggregation-controller", |s| {
        s.queue(aggregation::Aggregation)
    }),
    ("root-ca-certificate-publisher-controller", |s| {
        s.queue(EveryNamespace::RootCa(s.authority.to_owned()))
    }),
    ("disruption-controller", |s| s.queue(disruption::Disruption)),
    ("resourcequota-controller", |s| {
        s.queue(quota::Quotas::new(s.api))
    }),
    ("pod-garbage-collector-controller", |s| {
        s.queue(pod_gc::PodGc::new(s.ended_pods))
    }),
    ("node-lifecycle-controller", |s| s.task(nodes::run)),
    ("event-ttl-controller", |s| s.task(events::run)),
    ("replicaset-controller", |s| {
        s.queue(replicaset::Replicas::Sets(Default::default()))
    }),
    ("replicationcontroller-controller", |s| {
        s.queue(replicaset::Replicas::Controllers(Default::default()))
    }),
    ("deployment-controller", |s| {
        s.queue(deployment::DEPLOYMENTS)
    }),
    ("job-controller", |s| s.queue(job::JOBS)),
    ("cronjob-controller", |s| s.queue(cronjob::CRON_JOBS)),
    ("daemonset-controller", |s| s.queue(daemonset::DAEMON_SETS)),
    ("statefulset-controller", |s| {
        s.queue(statefulset::STATEFUL_SETS)
    }),
];

/// Returns the names of all controllers.
#[must_use]
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// Starts the controllers that `selection` enables. `authority` is the CA certificate (PEM) that is published
/// to clients. The newest `ended_pods` pods that have ended are kept; 0 keeps all. The controllers end when
/// `shutdown` is cancelled; the returned tracker then completes.
pub fn start(
    api: &Api,
    authority: &str,
    selection: &Selection,
    ended_pods: usize,
    shutdown: &CancellationToken,
) -> TaskTracker {
    let tracker = TaskTracker::new();
    let start = StartParams {
        api,
        authority,
        ended_pods,
        stop: shutdown,
    };
    for (name, run) in ALL {
        if selection.enabled(name) {
            tracker.spawn(run(&start));
        }
    }
    tracker.close();
    tracker
}
