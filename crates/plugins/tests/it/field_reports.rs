//! Situations that users of this kind of software reported, tested against the API server.
//!
//! The source of each is named at its test; inputs are our own. Time is virtual: to show that something does
//! not happen, a test waits for many retries of the scheduling queue.

use crate::api::{Scheduler, TestCluster};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::{ElasticQuota, PodGroup, Reservation};
use koord_host::testing::poll_until;
use koord_kube::Api;
use koord_kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use koord_kube::kube_core::{ApiResource, DynamicObject};
use koord_scheduler::config::Configuration;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;

const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";
const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";
const CPU_TOPOLOGY: &str = "node.koordinator.sh/cpu-topology";
const NUMA_POLICY: &str = "node.koordinator.sh/numa-topology-policy";

/// Cluster in virtual time with its scheduler.
struct Field {
    cluster: TestCluster,
    scheduler: Option<Scheduler>,
}

impl Field {
    async fn start() -> Self {
        let cluster = TestCluster::start_virtual().await;
        let scheduler = Some(cluster.schedule(|_| {}));
        Self { cluster, scheduler }
    }

    async fn restart_after(&mut self, change: impl AsyncFnOnce(&Self)) {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.stop().await;
        }
        change(self).await;
        self.scheduler = Some(self.cluster.schedule(|_| {}));
    }

    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let kind: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let types = kind.types.unwrap();
        let gvk = (&types).try_into().unwrap();
        let resource = ApiResource::from_gvk(&gvk);
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => {
                Api::namespaced_with(self.cluster.client.clone(), namespace, &resource)
            }
            None => Api::all_with(self.cluster.client.clone(), &resource),
        }
    }

    async fn create(&self, object: Value) {
        let parsed = serde_json::from_value(object.clone()).unwrap();
        let api = self.api(&object);
        api.create(&PostParams::default(), &parsed).await.unwrap();
    }

    async fn delete(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let now = DeleteParams::default().grace_period(0);
        self.api(object).delete(name, &now).await.unwrap();
    }

    async fn delete_pod(&self, name: &str) {
        let now = DeleteParams::default().grace_period(0);
        self.cluster.pods().delete(name, &now).await.unwrap();
    }

    /// Creates a node; `more` is merged into its metadata.
    async fn node(&self, name: &str, resources: Value, more: Value) {
        let mut all = json!({"cpu": "8", "memory": "256Gi", "pods": "110"});
        merge(&mut all, &resources);
        self.cluster.node(name, all, json!([])).await;
        if !more.is_null() {
            let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.cluster.client.clone());
            let patch = Patch::Merge(json!({"metadata": more}));
            api.patch(name, &PatchParams::default(), &patch)
                .await
                .unwrap();
        }
    }

    /// Reports the pod as running and ready, like the kubelet.
    async fn run(&self, name: &str) {
        let status = json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}]}});
        let params = PatchParams::default();
        let pods = self.cluster.pods();
        pods.patch_status(name, &params, &Patch::Strategic(&status))
            .await
            .unwrap();
    }

    async fn pod(&self, name: &str) -> Option<Pod> {
        self.cluster.pods().get_opt(name).await.unwrap()
    }

    async fn node_of(&self, name: &str) -> Option<String> {
        self.pod(name).await?.spec?.node_name
    }

    async fn annotation(&self, name: &str, key: &str) -> Value {
        let pod = self.pod(name).await.unwrap();
        let all = pod.metadata.annotations.unwrap_or_default();
        all.get(key)
            .map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }

    async fn get<K>(&self, api: Api<K>, name: &str) -> Value
    where
        K: koord_kube::Decode + serde::Serialize,
    {
        serde_json::to_value(api.get(name).await.unwrap()).unwrap()
    }

    async fn reservation(&self, name: &str) -> Value {
        self.get::<Reservation>(Api::all(self.cluster.client.clone()), name)
            .await
    }

    async fn quota(&self, name: &str) -> Value {
        let client = self.cluster.client.clone();
        self.get::<ElasticQuota>(Api::namespaced(client, "default"), name)
            .await
    }

    /// Waits until all of these pods are bound, at most five minutes of virtual time.
    async fn all_bound(&self, names: &[String]) {
        let mut missing = names.to_vec();
        let check = async || {
            let pods = self.cluster.pods().list(&ListParams::default()).await;
            let bound: BTreeSet<String> = (pods.unwrap().items.into_iter())
                .filter(|pod| {
                    pod.spec
                        .as_ref()
                        .is_some_and(|spec| spec.node_name.is_some())
                })
                .filter_map(|pod| pod.metadata.name)
                .collect();
            missing.retain(|name| !bound.contains(name));
            missing.is_empty().then_some(())
        };
        let bound = timeout(Duration::from_secs(300), poll_until(check)).await;
        assert!(bound.is_ok(), "not bound: {missing:?}");
    }

    /// Waits until the Reservation is Available and returns it.
    async fn available(&self, name: &str) -> Value {
        self.cluster
            .until(name, |object: &Reservation| {
                let value = serde_json::to_value(object).unwrap();
                (value["metadata"]["name"] == *name && value["status"]["phase"] == "Available")
                    .then_some(value)
            })
            .await
    }
}

/// Advances virtual time, by more than any backoff of the queue.
async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn merge(into: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        match (into.get_mut(key), value) {
            (Some(old @ Value::Object(_)), Value::Object(_)) => merge(old, value),
            _ => into[key] = value.clone(),
        }
    }
}

/// Builds a pod of one container with these requests as limits; `more` is merged into it.
fn pod(name: &str, requests: Value, more: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i",
                "resources": {"requests": requests, "limits": requests}}]}
    });
    merge(&mut pod, &more);
    pod
}

fn labeled(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

fn lsr(app: &str) -> Value {
    json!({"app": app, "koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"})
}

/// Builds a Reservation for pods with label `app`; `spec` is merged into its spec.
fn reservation(name: &str, app: &str, requests: Value, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": app}}}],
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [{
                "name": "c", "image": "i",
                "resources": {"requests": requests, "limits": requests}}]}}
        }
    });
    merge(&mut object["spec"], &spec);
    object
}

fn pod_group(name: &str, min: u32, annotations: Value) -> Value {
    json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"minMember": min}
    })
}

fn member(name: &str, cpu: &str, group: &str) -> Value {
    let labels = labeled(json!({"pod-group.scheduling.sigs.k8s.io": group}));
    pod(name, json!({"cpu": cpu}), labels)
}

fn quota(name: &str, min: Value, max: Value) -> Value {
    json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"min": min, "max": max}
    })
}

fn quota_label(name: &str) -> Value {
    labeled(json!({"quota.scheduling.koordinator.sh/name": name}))
}

/// Builds the NodeResourceTopology that koordlet writes: `count` NUMA nodes of `cpus` CPUs, two threads per
/// core.
fn topology(name: &str, count: u32, cpus: u32) -> Value {
    let detail: Vec<Value> = (0..count * cpus)
        .map(|id| json!({"id": id, "core": id / 2, "socket": id / cpus, "node": id / cpus}))
        .collect();
    let cpus = cpus.to_string();
    let zones: Vec<Value> = (0..count)
        .map(|id| zone(id, &[("cpu", &cpus, &cpus), ("memory", "100Gi", "100Gi")]))
        .collect();
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name,
            "annotations": {CPU_TOPOLOGY: json!({"detail": detail}).to_string()}},
        "zones": zones
    })
}

/// Builds a zone with name, capacity and available amount of each resource.
fn zone(id: u32, resources: &[(&str, &str, &str)]) -> Value {
    let list: Vec<Value> = resources
        .iter()
        .map(|(name, capacity, available)| {
            json!({"name": name, "capacity": capacity, "allocatable": capacity, "available": available})
        })
        .collect();
    json!({"name": format!("node-{id}"), "type": "Node", "resources": list})
}

async fn numa_node(field: &Field, name: &str, count: u32, cpus: u32, policy: &str) {
    field.create(topology(name, count, cpus)).await;
    let labels = json!({"labels": {NUMA_POLICY: policy}});
    let cpu = (count * cpus).to_string();
    field.node(name, json!({"cpu": cpu}), labels).await;
}

fn cpus(text: &Value) -> Vec<u32> {
    let text = text.as_str().unwrap_or_default();
    text.split(',')
        .filter(|part| !part.is_empty())
        .flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse().unwrap()..=last.parse().unwrap()
        })
        .collect()
}

/// koordinator-sh/koordinator#1247: the host port stays in use after the Reservation that held it was used.
#[tokio::test(start_paused = true)]
async fn host_port_stays_in_use_after_its_reservation() {
    let field = Field::start().await;
    field.node("n", json!({}), Value::Null).await;
    let port = json!([{"name": "c", "image": "i", "ports": [{"containerPort": 8080, "hostPort": 8080}],
        "resources": {"requests": {"cpu": "1"}}}]);
    let with_port = |name: &str, app: &str| {
        let labels_and_port =
            json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": port}});
        pod(name, json!({}), labels_and_port)
    };
    let template = json!({"allocateOnce": true, "template": {"spec": {"containers": port}}});
    let reserved = reservation("r", "web", json!({}), template);
    field.create(reserved.clone()).await;
    field.available("r").await;
    field.create(with_port("stranger", "other")).await;
    let (_, message) = field.cluster.refused("stranger", |_| true).await;
    assert!(message.contains("free ports"), "{message}");
    field.create(with_port("owner", "web")).await;
    assert_eq!(field.cluster.bound("owner").await, "n");
    field.run("owner").await;
    field.create(with_port("late", "other")).await;
    field
        .cluster
        .refused("late", |text| text.contains("free ports"))
        .await;
    field.delete(&reserved).await;
    pass(700).await;
    assert_eq!(field.node_of("late").await, None);
    assert_eq!(field.node_of("stranger").await, None);
}

/// koordinator-sh/koordinator#2883: an owner that does not fit into its Reservation gets unreserved CPUs.
#[tokio::test(start_paused = true)]
async fn owner_larger_than_reservation_gets_unreserved_cpus() {
    let field = Field::start().await;
    numa_node(&field, "n", 2, 8, "SingleNUMANode").await;
    let spec = json!({"allocateOnce": false, "allocatePolicy": "Restricted",
        "template": {"metadata": {"labels": lsr("r")}}});
    field
        .create(reservation("r", "a", json!({"cpu": "4"}), spec))
        .await;
    let reserved = field.available("r").await;
    let text = reserved["metadata"]["annotations"][RESOURCE_STATUS].as_str();
    let reserved: Value = serde_json::from_str(text.unwrap()).unwrap();
    field
        .create(pod("big", json!({"cpu": "8"}), labeled(lsr("a"))))
        .await;
    field.cluster.bound("big").await;
    let big = field.annotation("big", RESOURCE_STATUS).await;
    let reserved_cpus = cpus(&reserved["cpuset"]);
    assert!(
        cpus(&big["cpuset"])
            .iter()
            .all(|cpu| !reserved_cpus.contains(cpu)),
        "{big} {reserved}"
    );
    field
        .create(pod("stranger", json!({"cpu": "6"}), labeled(lsr("x"))))
        .await;
    field.cluster.refused("stranger", |_| true).await;
    field
        .create(pod("small", json!({"cpu": "4"}), labeled(lsr("a"))))
        .await;
    field.cluster.bound("small").await;
    let small = field.annotation("small", RESOURCE_STATUS).await;
    assert_eq!(cpus(&small["cpuset"]), reserved_cpus);
}

/// koordinator-sh/koordinator#468, #474: the owner is deleted while no scheduler runs.
#[tokio::test(start_paused = true)]
async fn reservation_status_is_corrected_after_restart() {
    let mut field = Field::start().await;
    field.node("n", json!({"cpu": "5"}), Value::Null).await;
    let spec = json!({"allocateOnce": false});
    field
        .create(reservation("r", "a", json!({"cpu": "4"}), spec))
        .await;
    field.available("r").await;
    let owner =
        |name: &str, cpu: &str| pod(name, json!({"cpu": cpu}), labeled(json!({"app": "a"})));
    field.create(owner("first", "3")).await;
    field.cluster.bound("first").await;
    pass(10).await;
    let before = field.reservation("r").await;
    assert_eq!(
        before["status"]["currentOwners"][0]["name"], "first",
        "{before}"
    );
    field
        .restart_after(async |field| field.delete_pod("first").await)
        .await;
    field.create(owner("second", "4")).await;
    assert_eq!(field.cluster.bound("second").await, "n");
    pass(60).await;
    let status = field.reservation("r").await["status"].clone();
    let owners = status["currentOwners"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "{status}");
    assert_eq!(owners[0]["name"], "second");
    assert_eq!(status["allocated"]["cpu"], "4");
}

/// koordinator-sh/koordinator#564: scoring does not divide by zero for a Reservation without resources.
#[tokio::test(start_paused = true)]
async fn empty_reservation_is_placed_and_used() {
    let field = Field::start().await;
    field.node("n1", json!({}), Value::Null).await;
    field.node("n2", json!({}), Value::Null).await;
    let nothing = json!({"cpu": "0", "memory": "0"});
    field
        .create(reservation("r", "z", nothing.clone(), json!({})))
        .await;
    field.available("r").await;
    field
        .create(pod("owner", nothing, labeled(json!({"app": "z"}))))
        .await;
    field
        .create(pod("other", json!({"cpu": "1"}), json!({})))
        .await;
    field
        .all_bound(&["owner".to_owned(), "other".to_owned()])
        .await;
}

/// koordinator-sh/koordinator#439: a Reservation without owners is rejected or reports what is wrong.
#[tokio::test(start_paused = true)]
async fn reservation_without_owners_is_reported() {
    let field = Field::start().await;
    field.node("n", json!({}), Value::Null).await;
    let object = reservation("r", "a", json!({"cpu": "1"}), json!({"owners": []}));
    let parsed = serde_json::from_value(object.clone()).unwrap();
    if let Err(error) = field
        .api(&object)
        .create(&PostParams::default(), &parsed)
        .await
    {
        assert!(error.to_string().contains("owners"), "{error}");
        return;
    }
    pass(10).await;
    let status = field.reservation("r").await["status"].to_string();
    assert!(status.to_lowercase().contains("owner"), "{status}");
}

/// koordinator-sh/koordinator#872: gang groups whose members arrive in mixed order do not block each other.
#[tokio::test(start_paused = true)]
async fn gang_groups_arriving_crosswise_start_one_by_one() {
    let field = Field::start().await;
    field.node("n", json!({}), Value::Null).await;
    for (gang, group) in [("a", "ab"), ("b", "ab"), ("c", "cd"), ("d", "cd")] {
        let names: Vec<String> = group.chars().map(|it| format!("default/{it}")).collect();
        let text = json!({"gang.scheduling.koordinator.sh/groups": json!(names).to_string()});
        field.create(pod_group(gang, 2, text)).await;
    }
    for gang in ["a", "c", "b", "d"] {
        for number in 0..2 {
            field
                .create(member(&format!("{gang}{number}"), "2", gang))
                .await;
        }
    }
    pass(120).await;
    let mut bound = Vec::new();
    for gang in ["a", "b", "c", "d"] {
        for number in 0..2 {
            let name = format!("{gang}{number}");
            if field.node_of(&name).await.is_some() {
                bound.push(name);
            }
        }
    }
    let first: Vec<String> = if bound.iter().any(|name| name.starts_with('a')) {
        ["a0", "a1", "b0", "b1"].map(str::to_owned).into()
    } else {
        ["c0", "c1", "d0", "d1"].map(str::to_owned).into()
    };
    assert_eq!(bound, first, "one group is bound whole");
    for name in &first {
        field.delete_pod(name).await;
    }
    let remaining: Vec<String> = ["a0", "a1", "b0", "b1", "c0", "c1", "d0", "d1"]
        .map(str::to_owned)
        .into_iter()
        .filter(|name| !first.contains(name))
        .collect();
    field.all_bound(&remaining).await;
}

/// koordinator-sh/koordinator#2148: a member that is deleted and recreated belongs to its gang.
#[tokio::test(start_paused = true)]
async fn recreated_member_still_belongs_to_its_gang() {
    let field = Field::start().await;
    field.node("n", json!({"cpu": "200"}), Value::Null).await;
    let mut names = Vec::new();
    for round in 0..30 {
        let gang = format!("g{round}");
        field.create(pod_group(&gang, 3, json!({}))).await;
        let name = |number: u32| format!("{gang}-{number}");
        field.create(member(&name(0), "1", &gang)).await;
        field.create(member(&name(1), "1", &gang)).await;
        field.delete_pod(&name(1)).await;
        field.create(member(&name(1), "1", &gang)).await;
        field.create(member(&name(2), "1", &gang)).await;
        names.extend((0..3).map(name));
    }
    field.all_bound(&names).await;
}

/// koordinator-sh/koordinator#874: members before their PodGroup, and a PodGroup that is recreated.
#[tokio::test(start_paused = true)]
async fn members_before_their_pod_group_start_soon_after_it() {
    let field = Field::start().await;
    field.node("n", json!({}), Value::Null).await;
    let soon = async |names: &[&str]| {
        let start = tokio::time::Instant::now();
        field
            .all_bound(
                &names
                    .iter()
                    .map(|&name| name.to_owned())
                    .collect::<Vec<_>>(),
            )
            .await;
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
    };
    for name in ["g0", "g1", "g2"] {
        field.create(member(name, "1", "g")).await;
    }
    pass(6).await;
    field.create(pod_group("g", 4, json!({}))).await;
    pass(6).await;
    assert_eq!(field.node_of("g0").await, None);
    field.create(member("g3", "1", "g")).await;
    soon(&["g0", "g1", "g2", "g3"]).await;

    let group = pod_group("h", 2, json!({}));
    field.create(group.clone()).await;
    field.create(member("h0", "1", "h")).await;
    pass(2).await;
    field.delete(&group).await;
    pass(1).await;
    field.create(member("h1", "1", "h")).await;
    pass(2).await;
    field.create(group).await;
    soon(&["h0", "h1"]).await;
}

/// koordinator-sh/koordinator#2030: a PodGroup with more members than its minimum counts all of them.
#[tokio::test(start_paused = true)]
async fn pod_group_counts_members_above_its_minimum() {
    let field = Field::start().await;
    field.node("n", json!({}), Value::Null).await;
    field.create(pod_group("g", 2, json!({}))).await;
    let names: Vec<String> = (0..6).map(|number| format!("p{number}")).collect();
    for name in &names {
        field.create(member(name, "100m", "g")).await;
    }
    field.all_bound(&names).await;
    for name in &names {
        field.run(name).await;
    }
    pass(15).await;
    let client = field.cluster.client.clone();
    let group = field
        .get::<PodGroup>(Api::namespaced(client, "default"), "g")
        .await;
    assert_eq!(group["status"]["phase"], "Running", "{group}");
    assert_eq!(group["status"]["running"], 6, "{group}");
}

/// koordinator-sh/koordinator#3185: a pod that is deleted while its attempt fails leaves the queue.
#[tokio::test(start_paused = true)]
async fn pod_deleted_while_unschedulable_leaves_the_queue() {
    let field = Field::start().await;
    field.node("n", json!({}), Value::Null).await;
    field
        .create(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "c", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
        .await;
    for number in 0..50_u64 {
        let name = format!("p{number}");
        let fields = json!({
            "metadata": {"annotations": {
                "gang.scheduling.koordinator.sh/name": format!("g{number}"),
                "gang.scheduling.koordinator.sh/min-available": "1"}},
            "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
        });
        field
            .create(pod(&name, json!({"cpu": "100m"}), fields))
            .await;
        tokio::time::sleep(Duration::from_millis(20 * (number % 3))).await;
        field.delete_pod(&name).await;
    }
    pass(10).await;
    let families = field.scheduler.as_ref().unwrap().metrics.gather();
    let pending = families
        .iter()
        .find(|it| it.name() == "scheduler_pending_pods");
    let pending: Vec<f64> = pending
        .unwrap()
        .get_metric()
        .iter()
        .map(|metric| metric.get_gauge().get_value())
        .collect();
    assert!(
        !pending.is_empty() && pending.iter().all(|&value| value == 0.0),
        "{pending:?}"
    );
}

/// koordinator-sh/koordinator#2393: a quota below its min gets what others lend.
#[tokio::test(start_paused = true)]
async fn quota_below_min_is_served_when_minimums_exceed_the_cluster() {
    let field = Field::start().await;
    for number in 0..10 {
        field
            .node(&format!("n{number}"), json!({"cpu": "10"}), Value::Null)
            .await;
    }
    for name in ["a", "b"] {
        let (min, max) = (json!({"cpu": "60"}), json!({"cpu": "100"}));
        field.create(quota(name, min, max)).await;
    }
    let names: Vec<String> = (0..11).map(|number| format!("p{number}")).collect();
    for name in &names {
        field
            .create(pod(name, json!({"cpu": "5"}), quota_label("a")))
            .await;
    }
    field.all_bound(&names).await;
}

/// kubernetes/kubernetes#131835: a pod that is resized in place counts with its current size.
#[tokio::test(start_paused = true)]
async fn resized_pod_counts_in_its_quota_with_its_new_size() {
    let field = Field::start().await;
    field.node("n", json!({"cpu": "16"}), Value::Null).await;
    field
        .create(quota("q", json!({"cpu": "0"}), json!({"cpu": "4"})))
        .await;
    let request = |name: &str, cpu: &str| {
        let containers =
            json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]);
        let mut fields = quota_label("q");
        fields["spec"] = json!({"containers": containers});
        pod(name, json!({}), fields)
    };
    field.create(request("first", "2")).await;
    field.cluster.bound("first").await;
    field.run("first").await;
    let resize = async |cpu: &str| {
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]);
        let patch = json!({"spec": {"containers": containers}});
        let params = PatchParams::default();
        let pods = field.cluster.pods();
        let patch = Patch::Strategic(&patch);
        let patched = pods.patch_subresource("resize", "first", &params, &patch);
        patched.await.unwrap();
    };
    resize("4").await;
    field.create(request("second", "1")).await;
    field
        .cluster
        .refused("second", |text| text.contains("quota"))
        .await;
    pass(30).await;
    assert_eq!(field.quota("q").await["status"]["used"]["cpu"], "4");
    resize("2").await;
    field.cluster.bound("second").await;
}

/// koordinator-sh/koordinator#1030: a prod pod preempts no batch pod of a quota that has enough for both.
#[tokio::test(start_paused = true)]
async fn quota_with_room_for_both_preempts_no_pod() {
    let field = Field::start().await;
    field.node("n", json!({}), Value::Null).await;
    let (min, max) = (json!({"memory": "5Gi"}), json!({"memory": "10Gi"}));
    field.create(quota("q", min, max)).await;
    let in_band = |name: &str, qos: &str, band: &str| {
        let mut fields = quota_label("q");
        fields["metadata"]["labels"]["koordinator.sh/qosClass"] = json!(qos);
        fields["metadata"]["labels"]["koordinator.sh/priority-class"] = json!(band);
        pod(name, json!({"memory": "500Mi"}), fields)
    };
    field.create(in_band("batch", "BE", "koord-batch")).await;
    field.cluster.bound("batch").await;
    field.create(in_band("prod", "LS", "koord-prod")).await;
    field.cluster.bound("prod").await;
    pass(60).await;
    assert!(field.node_of("batch").await.is_some());
}

/// koordinator-sh/koordinator#771: a node that is deleted and joins again counts for the quotas.
#[tokio::test(start_paused = true)]
async fn node_that_joins_again_counts_for_quotas() {
    let field = Field::start().await;
    field.node("n1", json!({"cpu": "4"}), Value::Null).await;
    field.node("n2", json!({"cpu": "4"}), Value::Null).await;
    field
        .create(quota("q", json!({"cpu": "0"}), json!({"cpu": "100"})))
        .await;
    pass(1).await;
    field
        .delete(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}}))
        .await;
    pass(2).await;
    field.node("n2", json!({"cpu": "4"}), Value::Null).await;
    for name in ["p1", "p2"] {
        field
            .create(pod(name, json!({"cpu": "3"}), quota_label("q")))
            .await;
    }
    field.all_bound(&["p1".to_owned(), "p2".to_owned()]).await;
}

/// koordinator-sh/koordinator#1682: CPUs for a bound pod come from what shared pods leave free on each NUMA
/// node.
#[tokio::test(start_paused = true)]
async fn bound_cpus_leave_room_for_shared_pods_of_each_numa_node() {
    let field = Field::start().await;
    numa_node(&field, "n", 2, 52, "BestEffort").await;
    let placed = |name: &str, cpu: &str, labels: Value, status: Value| {
        let fields = json!({
            "metadata": {"labels": labels, "annotations": {RESOURCE_STATUS: status.to_string()}},
            "spec": {"nodeName": "n"}
        });
        pod(name, json!({"cpu": cpu}), fields)
    };
    for (node, set) in [(0, "0-43"), (1, "52-95")] {
        let part = |cpu: &str| json!([{"node": node, "resources": {"cpu": cpu}}]);
        let status = json!({"cpuset": set, "numaNodeResources": part("44")});
        field
            .create(placed(&format!("lsr{node}"), "44", lsr("x"), status))
            .await;
        let labels =
            json!({"koordinator.sh/qosClass": "LS", "koordinator.sh/priority-class": "koord-prod"});
        let status = json!({"numaNodeResources": part("4")});
        field
            .create(placed(&format!("ls{node}"), "4", labels, status))
            .await;
    }
    pass(1).await;
    field
        .create(pod("new", json!({"cpu": "8"}), labeled(lsr("y"))))
        .await;
    field.cluster.bound("new").await;
    let status = field.annotation("new", RESOURCE_STATUS).await;
    let set = cpus(&status["cpuset"]);
    assert_eq!(set.len(), 8, "{status}");
    assert_eq!(set.iter().filter(|&&cpu| cpu < 52).count(), 4, "{status}");
    let is_allocated = |cpu: &u32| *cpu < 44 || (52..96).contains(cpu);
    assert!(!set.iter().any(is_allocated), "{status}");
}

/// koordinator-sh/koordinator#3081: allocations use the number of a NUMA node, not its position in a list.
#[tokio::test(start_paused = true)]
async fn numa_allocations_go_by_the_number_of_the_node() {
    let field = Field::start().await;
    numa_node(&field, "n", 3, 8, "SingleNUMANode").await;
    let part = |node: u32| json!({"node": node, "resources": {"cpu": "8"}});
    let status = json!({"numaNodeResources": [part(1), part(2)]}).to_string();
    let fields =
        json!({"metadata": {"annotations": {RESOURCE_STATUS: status}}, "spec": {"nodeName": "n"}});
    field.create(pod("big", json!({"cpu": "16"}), fields)).await;
    pass(1).await;
    let zones = async |name: &str| {
        let status = field.annotation(name, RESOURCE_STATUS).await;
        let list = status["numaNodeResources"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        list.iter()
            .map(|it| it["node"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    field.create(pod("x", json!({"cpu": "6"}), json!({}))).await;
    field.cluster.bound("x").await;
    assert_eq!(zones("x").await, [0]);
    field.create(pod("y", json!({"cpu": "6"}), json!({}))).await;
    field.cluster.refused("y", |_| true).await;
    field.delete_pod("big").await;
    field.cluster.bound("y").await;
    let placed = zones("y").await;
    assert!(placed == [1] || placed == [2], "{placed:?}");
}

/// koordinator-sh/koordinator#1613: an owner of a reserved GPU also gets an RDMA device.
#[tokio::test(start_paused = true)]
async fn owner_of_a_reserved_gpu_gets_an_rdma_device_too() {
    let field = Field::start().await;
    for name in ["g1", "g2"] {
        let gpu = |minor: u32| {
            json!({"type": "gpu", "minor": minor, "id": format!("GPU-{minor}"), "health": true,
                "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi",
                    "koordinator.sh/gpu-memory-ratio": "100"}})
        };
        let rdma = |minor: u32| {
            json!({"type": "rdma", "minor": minor, "id": format!("0000:{minor:02x}:00.0"),
                "health": true, "resources": {"koordinator.sh/rdma": "100"}})
        };
        field
            .create(json!({
                "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
                "metadata": {"name": name},
                "spec": {"devices": [gpu(0), gpu(1), rdma(0), rdma(1)]}
            }))
            .await;
        let amounts = json!({"cpu": "64", "koordinator.sh/gpu-core": "200",
            "koordinator.sh/gpu-memory-ratio": "200", "koordinator.sh/gpu-memory": "160Gi",
            "koordinator.sh/gpu": "200", "koordinator.sh/gpu.shared": "200", "koordinator.sh/rdma": "200"});
        field.node(name, amounts, Value::Null).await;
    }
    let gpu = json!({"cpu": "4", "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"});
    field
        .create(reservation(
            "r",
            "t",
            gpu.clone(),
            json!({"allocateOnce": true}),
        ))
        .await;
    let reserved = field.available("r").await;
    let mut with_rdma = gpu;
    with_rdma["koordinator.sh/rdma"] = json!("100");
    field
        .create(pod("owner", with_rdma, labeled(json!({"app": "t"}))))
        .await;
    let node = field.cluster.bound("owner").await;
    assert_eq!(reserved["status"]["nodeName"], node.as_str());
    let devices = field.annotation("owner", DEVICES).await;
    let text = reserved["metadata"]["annotations"][DEVICES]
        .as_str()
        .unwrap();
    let reserved: Value = serde_json::from_str(text).unwrap();
    assert_eq!(devices["gpu"][0]["minor"], reserved["gpu"][0]["minor"]);
    assert_eq!(
        devices["rdma"].as_array().map(Vec::len),
        Some(1),
        "{devices}"
    );
}

/// kubernetes-sigs/scheduler-plugins#967: a report that is created after the start counts.
#[tokio::test(start_paused = true)]
async fn topology_report_created_after_the_start_counts() {
    let cluster = TestCluster::start_virtual().await;
    let name = "NodeResourceTopologyMatch";
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"enabled": [{"name": name}]}}}]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let scheduler = Some(cluster.schedule(|options| options.config = Some(config)));
    let field = Field { cluster, scheduler };
    field.node("n1", json!({"cpu": "16"}), Value::Null).await;
    pass(2).await;
    let report = |name: &str, free: [&str; 2]| {
        let zones: Vec<Value> = (0..2)
            .map(|id| {
                zone(
                    id,
                    &[("cpu", "8", free[id as usize]), ("memory", "64Gi", "60Gi")],
                )
            })
            .collect();
        json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": name},
            "topologyPolicies": ["SingleNUMANodeContainerLevel"],
            "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"},
                {"name": "topologyManagerScope", "value": "container"}],
            "zones": zones
        })
    };
    field.create(report("n1", ["3", "3"])).await;
    pass(1).await;
    field
        .create(pod("p", json!({"cpu": "4", "memory": "1Gi"}), json!({})))
        .await;
    field
        .cluster
        .refused("p", |text| text.contains("align"))
        .await;
    field.create(report("n2", ["4", "3"])).await;
    field.node("n2", json!({"cpu": "16"}), Value::Null).await;
    assert_eq!(field.cluster.bound("p").await, "n2");
}
