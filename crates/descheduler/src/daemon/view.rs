//! The cluster as the API server tells it, and snapshots of it.

use crate::state::{NodeInfo, NodeUsage, PodError, PodInfo, Shapes, Snapshot};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::scheduling::PodMigrationJob;
use koord_api::slo::NodeMetric;
use koord_kube::{Client, Informer, Mirrored, Scope, Store};
use koord_model::resources::ResourceTable;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Mirrors of every kind that a cycle looks at.
#[derive(Debug)]
pub(super) struct View {
    shapes: Arc<Shapes>,
    nodes: Mirror<NodeInfo>,
    pods: Mirror<Seen>,
    usage: Mirror<NodeUsage>,
    jobs: Mirror<PodMigrationJob>,
    budgets: Mirror<PodDisruptionBudget>,
    namespaces: Mirror<Namespace>,
    priority_classes: Mirror<PriorityClass>,
}

/// A pod as it was read.
#[derive(Debug)]
enum Seen {
    Pod(Arc<PodInfo>),
    /// It is no pod of an API server.
    Unread {
        namespace: String,
        name: String,
    },
}

impl Seen {
    fn new(pod: Pod, shapes: &Shapes) -> Self {
        let (namespace, name) = pod.names();
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        match PodInfo::new(pod, shapes) {
            Ok(pod) => Self::Pod(Arc::new(pod)),
            Err(error @ PodError::Missing(_)) => {
                tracing::warn!(namespace, name, %error, "a pod is not looked at");
                Self::Unread { namespace, name }
            }
        }
    }
}

impl Mirrored for Seen {
    fn names(&self) -> (&str, &str) {
        match self {
            Self::Pod(pod) => pod.names(),
            Self::Unread { namespace, name } => (namespace, name),
        }
    }
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pod(pod), Self::Pod(other)) => pod.is_same(other),
            _ => false,
        }
    }
    fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Pod(pod) => pod.resource_version(),
            Self::Unread { .. } => None,
        }
    }
}

/// The mirror of one kind, for who reads its content only.
#[derive(Debug)]
struct Mirror<V> {
    store: Store<V>,
    absent: watch::Receiver<bool>,
}

impl<V: Mirrored> Mirror<V> {
    fn of(informer: Informer<V>) -> Self {
        let Informer {
            store,
            mut changes,
            absent,
        } = informer;
        tokio::spawn(async move { while changes.recv().await.is_some() {} });
        Self { store, absent }
    }

    /// Waits for the first list, or for the API server to say that it has no such kind.
    async fn settled(&self) {
        let mut absent = self.absent.clone();
        tokio::select! {
            _ = self.store.wait_synced() => {}
            _ = absent.wait_for(|absent| *absent) => {}
        }
    }
}

impl View {
    /// Begins to follow the API server, until `stop`.
    pub(super) fn start(client: &Client, stop: &CancellationToken) -> Self {
        let shapes = Arc::new(Shapes::new(Arc::new(ResourceTable::new())));
        let all = || (client.clone(), Scope::default(), stop.clone());
        let (client, scope, stop) = all();
        let of = shapes.clone();
        let nodes = Informer::start_kept(
            client,
            scope,
            move |node: Node| NodeInfo::new(node, of.table()),
            stop,
        );
        let (client, scope, stop) = all();
        let of = shapes.clone();
        let pods = Informer::start_kept(client, scope, move |pod| Seen::new(pod, &of), stop);
        let (client, scope, stop) = all();
        let of = shapes.clone();
        let usage = Informer::start_kept(
            client,
            scope,
            move |metric: NodeMetric| NodeUsage::new(metric, of.table()),
            stop,
        );
        let start = all();
        let jobs = Informer::start(start.0, start.1, start.2);
        let start = all();
        let budgets = Informer::start(start.0, start.1, start.2);
        let start = all();
        let namespaces = Informer::start(start.0, start.1, start.2);
        let start = all();
        let priority_classes = Informer::start(start.0, start.1, start.2);
        Self {
            shapes,
            nodes: Mirror::of(nodes),
            pods: Mirror::of(pods),
            usage: Mirror::of(usage),
            jobs: Mirror::of(jobs),
            budgets: Mirror::of(budgets),
            namespaces: Mirror::of(namespaces),
            priority_classes: Mirror::of(priority_classes),
        }
    }

    /// Waits until every kind is known that the API server has.
    pub(super) async fn settled(&self) {
        self.nodes.settled().await;
        self.pods.settled().await;
        self.usage.settled().await;
        self.jobs.settled().await;
        self.budgets.settled().await;
        self.namespaces.settled().await;
        self.priority_classes.settled().await;
    }

    /// As it stands at `now`.
    pub(super) fn snapshot(&self, now: Timestamp) -> Snapshot {
        let pods = self.pods.store.list().into_iter();
        let pods = pods.filter_map(|seen| match &*seen {
            Seen::Pod(pod) => Some(pod.clone()),
            Seen::Unread { .. } => None,
        });
        let mut snapshot = Snapshot::empty(now, self.shapes.table().clone())
            .with(self.nodes.store.list(), pods.collect());
        let usage = self.usage.store.list().into_iter();
        snapshot.usage = usage.map(|usage| (usage.name.clone(), usage)).collect();
        snapshot.jobs = self.jobs.store.list();
        let name = |job: &Arc<PodMigrationJob>| job.metadata.name.clone();
        snapshot.jobs.sort_by_cached_key(name);
        snapshot.budgets = self.budgets.store.list();
        let namespaces = self.namespaces.store.list().into_iter();
        let named = namespaces.filter_map(|namespace| {
            let name = namespace.metadata.name.as_deref()?;
            let labels = namespace.metadata.labels.clone();
            Some((Arc::from(name), labels.unwrap_or_default()))
        });
        snapshot.namespaces = named.collect();
        let classes = self.priority_classes.store.list().into_iter();
        let valued = classes.filter_map(|class| Some((class.metadata.name.clone()?, class.value)));
        snapshot.priority_classes = valued.collect();
        snapshot
    }
}
