//! Four machines with CPUs and GPUs, and pods of every kind that has state in the scheduler.

use super::wire::{Fuse, Wire};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::scheduling::{Device, ElasticQuota, PodGroup, Reservation};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_kube::api::{ListParams, Patch, PatchParams, PostParams};
use koord_kube::kube_core::{NamespaceResourceScope, Resource};
use koord_kube::{Api, Change, Client, Informer, Scope};
use koord_scheduler::Options;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const QUOTA: &str = "quota.scheduling.koordinator.sh/name";
const GROUP: &str = "pod-group.scheduling.sigs.k8s.io";
const CPUS: &str = "scheduling.koordinator.sh/resource-status";
const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";
const ALLOCATED: &str = "scheduling.koordinator.sh/reservation-allocated";

/// Kind of pod (the part of its name before the dash), how many there are, how many find a place.
const PODS: [(&str, usize, usize); 7] = [
    ("cpuset", 6, 6),
    ("gpu", 20, 16),
    ("ganga", 4, 4),
    ("gangb", 4, 4),
    ("hopeless", 5, 0),
    ("quota", 6, 4),
    ("web", 4, 4),
];

/// Virtual time; only a run that hangs takes that long.
const PATIENCE: Duration = Duration::from_secs(7200);

pub(super) struct World {
    server: Arc<ApiServer>,
    clock: Clock,
    client: Client,
}

/// A scheduler that contends for leadership.
pub(super) struct Contender {
    stop: CancellationToken,
    task: JoinHandle<Result<(), koord_scheduler::Error>>,
}

impl Contender {
    /// The process is gone, and says goodbye to nobody.
    pub(super) async fn kill(self, fuse: &Fuse) {
        fuse.blow();
        self.stop.cancel();
        self.task.abort();
        let _ = self.task.await;
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// The pods as an informer shows them.
pub(super) struct Pods {
    changes: tokio::sync::mpsc::Receiver<Change<Pod>>,
    nodes: BTreeMap<String, Option<String>>,
    _stop: tokio_util::sync::DropGuard,
}

fn name_of(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

impl Pods {
    fn bound(&self, kind: &str) -> usize {
        let bound = self.nodes.iter().filter(|(_, node)| node.is_some());
        bound
            .filter(|(name, _)| name.split('-').next() == Some(kind))
            .count()
    }

    async fn until(&mut self, what: &str, kinds: &[(&str, usize, usize)]) {
        let wait = async {
            while kinds.iter().any(|(kind, _, want)| self.bound(kind) < *want) {
                match self.changes.recv().await {
                    Some(Change::Applied { new, .. }) => {
                        self.nodes.insert(name_of(&new), node_of(&new));
                    }
                    Some(Change::Deleted(last)) => {
                        self.nodes.remove(&name_of(&last));
                    }
                    Some(Change::Synced) => {}
                    None => panic!("{what}: the informer ended"),
                }
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{what}: not all pods are bound: {:?}", self.nodes);
        }
    }

    /// Every pod that can have a place has one.
    pub(super) async fn settled(&mut self, what: &str) {
        self.until(what, &PODS).await;
    }

    /// So have the late ones.
    pub(super) async fn late(&mut self, what: &str) {
        self.until(what, &[("late", 4, 4)]).await;
    }
}

fn room() -> Value {
    json!({"cpu": "16", "memory": "64Gi", "pods": "110", "koordinator.sh/gpu": "200",
        "koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200",
        "koordinator.sh/gpu-memory": "160Gi"})
}

fn pod(name: &str, metadata: Value, requests: Value) -> Value {
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

/// A pod with CPUs of its own.
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
        "cpuset" => exclusive(&name),
        "gpu" => {
            let share =
                json!({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"});
            pod(&name, json!({}), share)
        }
        "hopeless" => pod(&name, labels(GROUP, kind), json!({"cpu": "10"})),
        "quota" => pod(&name, labels(QUOTA, "q"), small),
        "web" => pod(&name, labels("app", "web"), small),
        gang => pod(&name, labels(GROUP, gang), small),
    }
}

impl World {
    pub(super) async fn start() -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let mut config = Config::memory(clock.clone());
        config.controllers = false;
        let server = ApiServer::open(config).await.unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let world = Self {
            server,
            clock,
            client,
        };
        for number in 0..4 {
            world.machine(&format!("n{number}")).await;
        }
        for (gang, members) in [("ganga", 4), ("gangb", 4), ("hopeless", 5)] {
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

    /// 16 logical CPUs on two NUMA nodes, and two GPUs.
    async fn machine(&self, name: &str) {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {}}})).unwrap();
        let api: Api<Node> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &node).await.unwrap();
        let status = json!({"status": {"allocatable": room(), "capacity": room()}});
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

    async fn all<K>(&self, object: &K)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api: Api<K> = Api::all(self.client.clone());
        api.create(&PostParams::default(), object).await.unwrap();
    }

    async fn put<K>(&self, value: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
    {
        let object: K = serde_json::from_value(value).unwrap();
        let api: Api<K> = Api::namespaced(self.client.clone(), "default");
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// What users ask for, all at once.
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

    /// More pods, for the second leader.
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
            nodes: BTreeMap::new(),
            _stop: guard,
        }
    }

    pub(super) fn schedule(&self, identity: &str, fuse: Arc<Fuse>) -> Contender {
        let context = Context {
            clock: self.clock.clone(),
            ..Context::new()
        };
        let mut options = Options::new(koord_plugins::registry());
        options.identity = identity.to_owned();
        let inner = self.server.service();
        let client = koord_kube::client::in_process(Wire { inner, fuse });
        let stop = context.shutdown.clone();
        let task = tokio::spawn(koord_scheduler::run(options, client, context));
        Contender { stop, task }
    }

    async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        api.list(&ListParams::default()).await.unwrap().items
    }

    /// Holds the API's objects against each other. What controllers write follows the pods: it is
    /// waited for, the rest must hold at once.
    pub(super) async fn check(&self, what: &str) {
        let pods = self.list::<Pod>().await;
        let bound: Vec<&Pod> = pods.iter().filter(|pod| node_of(pod).is_some()).collect();
        capacity(&bound, &self.list::<Reservation>().await, what);
        cpus(&bound, what);
        gpus(&bound, what);
        gangs(&bound, what);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let pods = self.list::<Pod>().await;
            let wrong = counted(
                &pods,
                &self.list::<ElasticQuota>().await,
                &self.list::<Reservation>().await,
            );
            let Some(wrong) = wrong else { return };
            assert!(tokio::time::Instant::now() < deadline, "{what}: {wrong}");
            // Time is virtual: this lets the controllers run, for as long as they have something to do.
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::task::yield_now().await;
        }
    }
}

fn milli(pod: &Pod, resource: &str) -> i64 {
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|spec| &spec.containers);
    containers
        .filter_map(|c| c.resources.as_ref()?.requests.as_ref()?.get(resource))
        .map(|quantity| koord_api::quantity::parse(quantity).unwrap().milli_value())
        .sum()
}

fn annotation(pod: &Pod, key: &str) -> Option<Value> {
    let text = pod.metadata.annotations.as_ref()?.get(key)?;
    Some(serde_json::from_str(text).unwrap())
}

fn quantity(value: &Value) -> i64 {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    let parsed: koord_api::quantity::Quantity = text.parse().unwrap();
    parsed.milli_value()
}

/// The owners of a reservation, by its uid.
fn owners<'a>(pods: &'a [&'a Pod], uid: &'a str) -> impl Iterator<Item = &'a Pod> {
    let owns = move |pod: &&&Pod| {
        annotation(pod, ALLOCATED).is_some_and(|allocated| allocated["uid"] == *uid)
    };
    pods.iter().filter(owns).copied()
}

fn as_json<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).unwrap()
}

/// Pods and what reservations hold beside their owners fit their nodes.
fn capacity(bound: &[&Pod], reservations: &[Reservation], what: &str) {
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for pod in bound {
        *used.entry(node_of(pod).unwrap()).or_default() += milli(pod, "cpu");
    }
    for reservation in reservations {
        let object = as_json(reservation);
        if object["status"]["phase"] != "Available" {
            continue;
        }
        let uid = reservation.metadata.uid.clone().unwrap();
        let taken: i64 = owners(bound, &uid).map(|pod| milli(pod, "cpu")).sum();
        let held = quantity(&object["status"]["allocatable"]["cpu"]);
        // Other policies let owners take the rest of what they need from the node.
        let closed = object["spec"]["allocatePolicy"] == "Restricted";
        assert!(
            !closed || taken <= held,
            "{what}: owners take {taken} of {held}: {object}"
        );
        let node = object["status"]["nodeName"].as_str().unwrap().to_owned();
        for pod in owners(bound, &uid) {
            assert_eq!(node_of(pod).unwrap(), node, "{what}: {}", name_of(pod));
        }
        *used.entry(node).or_default() += (held - taken).max(0);
    }
    for (node, used) in used {
        assert!(used <= 16_000, "{what}: {node} has {used}m of 16000m CPU");
    }
}

fn cpus(bound: &[&Pod], what: &str) {
    let mut owned: BTreeMap<(String, u32), String> = BTreeMap::new();
    for pod in bound.iter().filter(|pod| milli(pod, "cpu") == 4000) {
        let name = name_of(pod);
        let status = annotation(pod, CPUS).unwrap_or_else(|| panic!("{what}: {name} has no CPUs"));
        let list = status["cpuset"].as_str().unwrap();
        let ids = koord_api::extension::parse_cpu_list(list).unwrap();
        assert_eq!(ids.len(), 4, "{what}: {name}: {list}");
        for id in ids {
            let before = owned.insert((node_of(pod).unwrap(), id), name.clone());
            assert_eq!(before, None, "{what}: CPU {id} is also {name}'s");
        }
    }
}

fn gpus(bound: &[&Pod], what: &str) {
    let mut used: BTreeMap<(String, i64), i64> = BTreeMap::new();
    for pod in bound {
        if milli(pod, "koordinator.sh/gpu-core") == 0 {
            continue;
        }
        let name = name_of(pod);
        let devices = annotation(pod, DEVICES);
        let devices = devices.unwrap_or_else(|| panic!("{what}: {name} has no GPU"));
        for gpu in devices["gpu"].as_array().unwrap() {
            let at = (node_of(pod).unwrap(), gpu["minor"].as_i64().unwrap());
            *used.entry(at).or_default() += quantity(&gpu["resources"]["koordinator.sh/gpu-core"]);
        }
    }
    for (gpu, used) in used {
        assert!(used <= 100_000, "{what}: {gpu:?} is used to {used}");
    }
}

fn gangs(bound: &[&Pod], what: &str) {
    for (gang, members) in [("ganga", 4), ("gangb", 4), ("hopeless", 5)] {
        let of = |pod: &&&Pod| name_of(pod).split('-').next() == Some(gang);
        let there = bound.iter().filter(of).count();
        assert!(there == 0 || there == members, "{what}: {there} of {gang}");
    }
}

/// What a quota or a reservation counts wrong.
fn counted(pods: &[Pod], quotas: &[ElasticQuota], reservations: &[Reservation]) -> Option<String> {
    let bound: Vec<&Pod> = pods.iter().filter(|pod| node_of(pod).is_some()).collect();
    let quota = quotas
        .iter()
        .find(|quota| quota.metadata.name.as_deref() == Some("q"))?;
    let of = |pod: &&&Pod| {
        let labels = pod.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.get(QUOTA).is_some_and(|name| name == "q"))
    };
    let expected: i64 = bound.iter().filter(of).map(|pod| milli(pod, "cpu")).sum();
    let status = as_json(quota);
    let used = &status["status"]["used"]["cpu"];
    if used.is_null() || quantity(used) != expected {
        return Some(format!("quota q uses {used}, its pods {expected}m"));
    }
    for reservation in reservations {
        let status = as_json(reservation);
        let uid = reservation.metadata.uid.clone().unwrap_or_default();
        let expected: BTreeSet<String> = owners(&bound, &uid).map(name_of).collect();
        let listed = status["status"]["currentOwners"].as_array();
        let listed: BTreeSet<String> = listed
            .into_iter()
            .flatten()
            .filter_map(|owner| Some(owner["name"].as_str()?.to_owned()))
            .collect();
        if status["status"]["phase"] != "Available" || listed != expected {
            return Some(format!("{expected:?} own {status}"));
        }
    }
    None
}
