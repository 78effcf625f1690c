//! Four machines with CPUs and GPUs, and pods of every kind that has state in the scheduler.

use super::PATIENCE;
use super::checks::{always, capacity, counted, gangs};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::scheduling::{Device, ElasticQuota, PodGroup, Reservation};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_host::testing::poll_until;
use koord_kube::api::{ListParams, Patch, PatchParams, PostParams};
use koord_kube::kube_core::{NamespaceResourceScope, Resource};
use koord_kube::{Api, Change, Client, Informer, Scope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const QUOTA: &str = "quota.scheduling.koordinator.sh/name";
const GROUP: &str = "pod-group.scheduling.sigs.k8s.io";

/// Kind of pod (its name before the dash), number of pods, and number that fit.
pub(super) const PODS: [(&str, usize, usize); 9] = [
    ("batch", 6, 4),
    ("cpuset", 6, 6),
    ("gpu", 20, 16),
    ("ganga", 4, 4),
    ("gangb", 4, 4),
    ("hopeless", 5, 0),
    ("quota", 6, 4),
    ("rival", 6, 3),
    ("web", 8, 8),
];

pub(super) struct FailoverWorld {
    server: Arc<ApiServer>,
    clock: Clock,
    client: Client,
}

/// Pods from an informer.
pub(super) struct Pods {
    changes: tokio::sync::mpsc::Receiver<Change<Pod>>,
    all: BTreeMap<String, Arc<Pod>>,
    _stop: tokio_util::sync::DropGuard,
}

pub(super) fn name_of(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

pub(super) fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

/// Returns the condition messages of a pod.
fn condition_messages(pod: &Pod) -> String {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let messages = conditions
        .flatten()
        .filter_map(|condition| condition.message.clone());
    messages.collect::<Vec<_>>().join("; ")
}

impl Pods {
    fn bound(&self, kind: &str) -> usize {
        let bound = self.all.iter().filter(|(_, pod)| node_of(pod).is_some());
        bound
            .filter(|(name, _)| name.split('-').next() == Some(kind))
            .count()
    }

    /// Waits until this many pods of each kind are bound; the first number is ignored. Checks the invariants
    /// on every change.
    pub(super) async fn until(&mut self, case: &str, kinds: &[(&str, usize, usize)]) {
        let wait = async {
            while kinds.iter().any(|(kind, _, want)| self.bound(kind) < *want) {
                match self.changes.recv().await {
                    Some(Change::Applied { new, .. }) => {
                        self.all.insert(name_of(&new), new);
                        let bound = self.all.values().filter(|pod| node_of(pod).is_some());
                        always(&bound.map(AsRef::as_ref).collect::<Vec<_>>(), case);
                    }
                    Some(Change::Deleted(last)) => {
                        self.all.remove(&name_of(&last));
                    }
                    Some(Change::Synced) => {}
                    None => panic!("{case}: the informer ended"),
                }
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            let places = self.all.iter().map(|(name, pod)| {
                (
                    name,
                    node_of(pod).unwrap_or_else(|| condition_messages(pod)),
                )
            });
            panic!(
                "{case}: not all pods are bound: {:?}",
                places.collect::<Vec<_>>()
            );
        }
    }

    /// Waits until every pod that fits is bound.
    pub(super) async fn wait_bound(&mut self, case: &str) {
        self.until(case, &PODS).await;
    }

    /// Waits until the late pods are bound, too.
    pub(super) async fn wait_late_bound(&mut self, case: &str) {
        self.until(case, &[("late", 4, 4)]).await;
    }
}

fn allocatable() -> Value {
    json!({"cpu": "16", "memory": "64Gi", "pods": "110",
        "kubernetes.io/batch-cpu": "4000", "kubernetes.io/batch-memory": "4Gi",
        "koordinator.sh/gpu": "200",
        "koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200",
        "koordinator.sh/gpu-memory": "160Gi", "example.com/slot": "1"})
}

pub(super) fn pod(name: &str, metadata: Value, requests: Value) -> Value {
    let mut value = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"schedulerName": "koord-scheduler", "containers": [
            {"name": "c", "image": "i", "resources": {"requests": requests, "limits": requests}}
        ]}
    });
    value["metadata"]["name"] = json!(name);
    value["metadata"]["namespace"] = json!("default");
    value
}

/// Builds a pod with exclusive CPUs.
fn exclusive(name: &str) -> Value {
    let metadata = json!({
        "labels": {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"},
        "annotations": {"scheduling.koordinator.sh/resource-spec":
            json!({"preferredCPUBindPolicy": "FullPCPUs"}).to_string()}
    });
    pod(name, metadata, json!({"cpu": "4", "memory": "1Gi"}))
}

fn build(kind: &str, number: usize) -> Value {
    let name = format!("{kind}-{number}");
    let labels = |key: &str, value: &str| json!({"labels": {key: value}});
    let small = json!({"cpu": "1", "memory": "100Mi"});
    match kind {
        "batch" => {
            let share =
                json!({"kubernetes.io/batch-cpu": "3000", "kubernetes.io/batch-memory": "1Gi"});
            pod(&name, labels("koordinator.sh/qosClass", "BE"), share)
        }
        "cpuset" => exclusive(&name),
        "gpu" => {
            let share =
                json!({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"});
            pod(&name, json!({}), share)
        }
        "hopeless" => pod(&name, labels(GROUP, kind), json!({"cpu": "10"})),
        "quota" => pod(&name, labels(QUOTA, "q"), small),
        // Two gangs of three, and four slots.
        "rival" => {
            let gang = ["rivala", "rivalb"][number % 2];
            pod(&name, labels(GROUP, gang), json!({"example.com/slot": "1"}))
        }
        "web" => pod(&name, labels("app", "web"), small),
        gang => pod(&name, labels(GROUP, gang), small),
    }
}

impl FailoverWorld {
    /// Starts an API server with this many machines.
    pub(super) async fn bare(machines: usize) -> Self {
        let clock = super::clock();
        let mut config = Config::memory(clock.clone());
        config.controllers = koord_app::flags::Selection::none();
        let server = ApiServer::open(config).await.unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let world = Self {
            server,
            clock,
            client,
        };
        for number in 0..machines {
            world.machine(&format!("n{number}")).await;
        }
        world
    }

    pub(super) async fn start() -> Self {
        let world = Self::bare(4).await;
        for (gang, members) in [
            ("ganga", 4),
            ("gangb", 4),
            ("hopeless", 5),
            ("rivala", 3),
            ("rivalb", 3),
        ] {
            world
                .put::<PodGroup>(json!({
                    "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
                    "metadata": {"name": gang, "namespace": "default"},
                    "spec": {"minMember": members}
                }))
                .await;
        }
        world
            .put::<ElasticQuota>(json!({
                "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
                "metadata": {"name": "q", "namespace": "default", "labels":
                    {"quota.scheduling.koordinator.sh/parent": "koordinator-root-quota"}},
                "spec": {"min": {"cpu": "4", "memory": "8Gi"}, "max": {"cpu": "4", "memory": "8Gi"}}
            }))
            .await;
        world
    }

    /// Creates a machine with 16 logical CPUs on two NUMA nodes, and two GPUs.
    async fn machine(&self, name: &str) {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {}}})).unwrap();
        let api: Api<Node> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &node).await.unwrap();
        let status = json!({"status": {"allocatable": allocatable(), "capacity": allocatable()}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
        let cpu = |id: u32| json!({"id": id, "core": id / 2, "socket": 0, "node": id / 8});
        let zone = |id: u32| {
            let resource = |name: &str, amount: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
            json!({"name": format!("node-{id}"), "type": "Node",
                "resources": [resource("cpu", "8"), resource("memory", "32Gi")]})
        };
        let detail: Vec<Value> = (0..16).map(cpu).collect();
        let topology: NodeResourceTopology = serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
            "metadata": {"name": name, "annotations":
                {"node.koordinator.sh/cpu-topology": json!({"detail": detail}).to_string()}},
            "topologyPolicies": ["None"], "zones": [zone(0), zone(1)]
        }))
        .unwrap();
        self.all(&topology).await;
        let gpu = |minor: u8| {
            json!({"type": "gpu", "id": format!("{name}-gpu-{minor}"), "minor": minor, "health": true,
                "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                    "koordinator.sh/gpu-memory": "80Gi"},
                "topology": {"socketID": 0, "nodeID": minor, "pcieID": format!("pci{minor}")}})
        };
        let device: Device = serde_json::from_value(json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": name}, "spec": {"devices": [gpu(0), gpu(1)]}
        }))
        .unwrap();
        self.all(&device).await;
    }

    pub(super) async fn all<K>(&self, object: &K)
    where
        K: Resource<DynamicType = ()> + koord_kube::Decode + Serialize,
    {
        let api: Api<K> = Api::all(self.client.clone());
        api.create(&PostParams::default(), object).await.unwrap();
    }

    pub(super) async fn put<K>(&self, value: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + koord_kube::Decode
            + DeserializeOwned
            + Serialize,
    {
        let object: K = serde_json::from_value(value).unwrap();
        let api: Api<K> = Api::namespaced(self.client.clone(), "default");
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Creates all objects of users at once.
    pub(super) async fn create(&self) {
        for (number, policy) in ["Aligned", "Restricted"].into_iter().enumerate() {
            let reservation: Reservation = serde_json::from_value(json!({
                "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
                "metadata": {"name": format!("r{number}")},
                "spec": {
                    "allocateOnce": false, "ttl": "0s", "allocatePolicy": policy,
                    "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                    "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [
                        {"name": "c", "image": "i",
                            "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}]}}
                }
            }))
            .unwrap();
            self.all(&reservation).await;
        }
        let most = PODS.iter().map(|(_, count, _)| *count).max().unwrap_or(0);
        for number in 0..most {
            for (kind, count, _) in PODS {
                if number < count {
                    self.put::<Pod>(build(kind, number)).await;
                }
            }
        }
    }

    /// Creates more pods, for the second leader.
    pub(super) async fn create_late(&self) {
        for number in 0..2 {
            self.put::<Pod>(exclusive(&format!("late-cpu{number}")))
                .await;
        }
        for number in 0..2 {
            let small = json!({"cpu": "1"});
            let late = pod(&format!("late-{number}"), json!({}), small);
            self.put::<Pod>(late).await;
        }
    }

    pub(super) async fn pods(&self) -> Pods {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let informer = Informer::<Pod>::start(self.client.clone(), Scope::default(), stop);
        Pods {
            changes: informer.changes,
            all: BTreeMap::new(),
            _stop: guard,
        }
    }

    /// Returns the holder of the lease.
    pub(super) async fn holder(&self) -> Option<String> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let lease = api.get_opt("koord-scheduler").await.unwrap();
        lease?.spec?.holder_identity
    }

    /// Returns the server's clock.
    pub(super) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Returns the server, for fault injection.
    pub(super) fn server(&self) -> &ApiServer {
        &self.server
    }

    pub(super) async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + koord_kube::Decode + Clone,
    {
        let api: Api<K> = Api::all(self.client.clone());
        api.list(&ListParams::default()).await.unwrap().items
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Checks that nothing is over-allocated or owned twice.
    pub(super) async fn fits(&self, case: &str) {
        let pods = self.list::<Pod>().await;
        let bound: Vec<&Pod> = pods.iter().filter(|pod| node_of(pod).is_some()).collect();
        capacity(&bound, &self.list::<Reservation>().await, case);
    }

    /// Checks the consistency of the API's objects. Statuses from controllers may lag behind the pods, so
    /// they are waited for; everything else must hold immediately.
    pub(super) async fn check(&self, case: &str) {
        let pods = self.list::<Pod>().await;
        let bound: Vec<&Pod> = pods.iter().filter(|pod| node_of(pod).is_some()).collect();
        capacity(&bound, &self.list::<Reservation>().await, case);
        always(&bound, case);
        gangs(&bound, case);
        let mut wrong = None;
        let check = async || {
            let pods = self.list::<Pod>().await;
            wrong = counted(
                &pods,
                &self.list::<ElasticQuota>().await,
                &self.list::<Reservation>().await,
            );
            wrong.is_none().then_some(())
        };
        // The controllers run in the meantime.
        let right = tokio::time::timeout(PATIENCE, poll_until(check)).await;
        assert!(right.is_ok(), "{case}: {wrong:?}");
    }
}
