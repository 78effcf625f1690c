//! The manifests: they grant exactly the permissions that the scheduler uses.

use crate::api::{TestCluster, allocatable};
use http::{Method, Request, Response};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Node, PersistentVolume, PersistentVolumeClaim, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use koord_api::scheduling::{ClusterNetworkTopology, ElasticQuota, PodGroup, Reservation};
use koord_app::flags;
use koord_host::testing::eventually;
use koord_kube::api::{Patch, PatchParams};
use koord_kube::{Api, Change, Client, Informer, Scope};
use koord_scheduler::config::Configuration;
use koord_scheduler::{Args, Options};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceExt, service_fn};

/// Permissions that this test does not use, with the reason for each.
const OTHERWISE_USED: &[(&str, &str)] = &[
    (
        "get reservations.scheduling.koordinator.sh",
        "asked when one changes while it is placed, which one_write.rs tests",
    ),
    (
        "create tokenreviews.authentication.k8s.io",
        "asked by the TLS server, which koord tests by itself",
    ),
    (
        "create subjectaccessreviews.authorization.k8s.io",
        "asked by the TLS server, which koord tests by itself",
    ),
];

/// The account and its roles.
const RBAC: &str = "charts/koord/files/scheduler/rbac.yaml";

/// All objects of the scheduler, rendered from the chart.
const MANIFEST: &str = "deploy/scheduler/scheduler.yaml";

/// Returns the objects in a file of the repository.
fn documents(file: &str) -> Vec<Value> {
    let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

fn only<K: DeserializeOwned>(file: &str, kind: &str) -> K {
    let mut matching = documents(file).into_iter().filter(|d| d["kind"] == kind);
    let object = matching.next().unwrap();
    assert!(matching.next().is_none(), "{file} has more than one {kind}");
    serde_json::from_value(object).unwrap()
}

/// Attributes of a request that authorization reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ApiRequest {
    verb: &'static str,
    group: String,
    /// Resource with its subresource.
    resource: String,
    namespace: String,
    name: String,
}

impl std::fmt::Display for ApiRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&right(self.verb, &self.resource, &self.group))
    }
}

fn right(verb: &str, resource: &str, group: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    format!("{verb} {resource}{dot}{group}")
}

fn request_attributes<B>(request: &Request<B>) -> ApiRequest {
    let mut parts: Vec<&str> = request.uri().path().split('/').skip(1).collect();
    let group = if parts.remove(0) == "api" {
        ""
    } else {
        parts.remove(0)
    };
    parts.remove(0);
    let namespaced = parts[0] == "namespaces" && parts.len() > 2;
    let namespace = if namespaced {
        let namespace = parts[1];
        parts.drain(..2);
        namespace
    } else {
        ""
    };
    let name = parts.get(1).copied().unwrap_or_default();
    let watches = request
        .uri()
        .query()
        .is_some_and(|query| query.contains("watch=true"));
    let verb = match *request.method() {
        Method::GET if !name.is_empty() => "get",
        Method::GET if watches => "watch",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if !name.is_empty() => "delete",
        _ => "something else",
    };
    let mut resource = parts[0].to_owned();
    for subresource in parts.iter().skip(2) {
        resource.push('/');
        resource.push_str(subresource);
    }
    ApiRequest {
        verb,
        group: group.to_owned(),
        resource,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// Returns the policy rules with the namespace of each, or empty for a cluster role.
fn rules() -> Vec<(String, PolicyRule)> {
    let everywhere: ClusterRole = only(RBAC, "ClusterRole");
    let role: Role = only(RBAC, "Role");
    let namespace = role.metadata.namespace.unwrap();
    let everywhere = everywhere.rules.unwrap().into_iter();
    let role = role.rules.unwrap().into_iter();
    everywhere
        .map(|rule| (String::new(), rule))
        .chain(role.map(|rule| (namespace.clone(), rule)))
        .collect()
}

fn covers((namespace, rule): &(String, PolicyRule), attributes: &ApiRequest) -> bool {
    let has =
        |list: &Option<Vec<String>>, what: &str| list.iter().flatten().any(|listed| listed == what);
    let named = rule.resource_names.as_ref().is_none_or(Vec::is_empty)
        || has(&rule.resource_names, &attributes.name);
    has(&rule.api_groups, &attributes.group)
        && has(&rule.resources, &attributes.resource)
        && rule.verbs.iter().any(|verb| verb == attributes.verb)
        && (namespace.is_empty() || *namespace == attributes.namespace)
        && named
}

fn granted(rules: &[(String, PolicyRule)]) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for (_, rule) in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                assert!(group != "*" && resource != "*", "least rights");
                out.extend(rule.verbs.iter().map(|verb| right(verb, resource, group)));
            }
        }
    }
    assert!(
        !out.iter().any(|right| right.starts_with('*')),
        "least rights"
    );
    out
}

/// Requests by permission, and requests that were rejected because no rule allows them.
#[derive(Default)]
struct Record {
    used: BTreeSet<String>,
    refused: BTreeSet<ApiRequest>,
}

/// Returns a client with the permissions of the manifests.
fn limited(cluster: &TestCluster) -> (Client, Arc<Mutex<Record>>) {
    let record = Arc::new(Mutex::new(Record::default()));
    let (recorder, rules, router) = (record.clone(), Arc::new(rules()), cluster.server.service());
    let client = koord_kube::client::in_process(service_fn(
        move |request: Request<koord_kube::client::Body>| {
            let (router, attributes) = (router.clone(), request_attributes(&request));
            let allowed = rules.iter().any(|rule| covers(rule, &attributes));
            let mut record = recorder.lock();
            if allowed {
                record.used.insert(attributes.to_string());
            } else {
                record.refused.insert(attributes.clone());
            }
            drop(record);
            async move {
                if !allowed {
                    return Err(BoxError::from(format!("forbidden: {attributes:?}")));
                }
                let answer: Response<_> = router.oneshot(request).await?;
                Ok(answer)
            }
        },
    ));
    (client, record)
}

async fn create(cluster: &TestCluster, path: &str, object: Value) {
    let body = serde_json::to_vec(&object).unwrap();
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(body).unwrap();
    let created: Result<Value, _> = cluster.client.request(request).await;
    created.unwrap_or_else(|error| panic!("{path}: {error}"));
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const KOORD: &str = "/apis/scheduling.koordinator.sh/v1alpha1";
const SIGS: &str = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default";

fn pod(name: &str, cpu: &str, labels: Value, more: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
        }
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn reservation(name: &str, resources: Value, ttl: &str) -> Value {
    json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"owns": name}}}],
            "ttl": ttl,
            "template": {"spec": {
                "schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "image": "i",
                    "resources": {"requests": resources, "limits": resources}}]
            }}
        }
    })
}

async fn volumes(cluster: &TestCluster) {
    for (class, provisioner) in [
        ("late", "csi.example"),
        ("hand", "kubernetes.io/no-provisioner"),
    ] {
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": class}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"});
        create(cluster, "/apis/storage.k8s.io/v1/storageclasses", object).await;
        let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": class},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}}}});
        create(cluster, claims, claim).await;
    }
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "hand",
            "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}});
    create(cluster, "/api/v1/persistentvolumes", volume).await;
    let api: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let available = json!({"status": {"phase": "Available"}});
    let patch = Patch::Merge(&available);
    api.patch_status("v", &PatchParams::default(), &patch)
        .await
        .unwrap();
    for class in ["late", "hand"] {
        let data = json!({"volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": class}}
        ]});
        create(cluster, PODS, pod(class, "0", json!({}), data)).await;
    }
    let key = "volume.kubernetes.io/selected-node";
    cluster
        .until("a node for the claim", |claim: &PersistentVolumeClaim| {
            claim.metadata.annotations.as_ref()?.get(key).cloned()
        })
        .await;
    cluster
        .until("a claim for the volume", |volume: &PersistentVolume| {
            volume.spec.as_ref()?.claim_ref.clone()
        })
        .await;
}

async fn reservations(cluster: &TestCluster) {
    let gpu = json!({"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"});
    for object in [
        reservation("kept", json!({"cpu": "2"}), "1h"),
        reservation("gpu", gpu, "1h"),
        reservation("brief", json!({"cpu": "1"}), "1s"),
    ] {
        create(cluster, &format!("{KOORD}/reservations"), object).await;
    }
    let has_gpu = |r: &Reservation| {
        let annotations = r.metadata.annotations.as_ref()?;
        annotations
            .get("scheduling.koordinator.sh/device-allocated")
            .cloned()
    };
    cluster.until("a reserved GPU", has_gpu).await;
    // It uses the reservation only, or runs next to one that the scheduler does not see as available yet.
    let mut owner = pod("owner", "1", json!({"owns": "kept"}), json!({}));
    let affinity = json!({"name": "kept"}).to_string();
    owner["metadata"]["annotations"] =
        json!({"scheduling.koordinator.sh/reservation-affinity": affinity});
    create(cluster, PODS, owner).await;
    cluster
        .until("an owner", |r: &Reservation| {
            let owners = &r.status.as_ref()?.current_owners;
            (!owners.is_empty()).then_some(())
        })
        .await;
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let scope = Scope::default();
    let mut informer = Informer::<Reservation>::start(cluster.client.clone(), scope, stop);
    let mut observed = false;
    let over = async {
        while let Some(change) = informer.changes.recv().await {
            let brief = |r: &Reservation| r.metadata.name.as_deref() == Some("brief");
            match change {
                Change::Applied { new, .. } => observed |= brief(&new),
                Change::Deleted(old) if brief(&old) => return,
                Change::Synced if !observed => return,
                _ => {}
            }
        }
    };
    let patience = std::time::Duration::from_secs(30);
    tokio::time::timeout(patience, over).await.unwrap();
}

async fn groups_and_quotas(cluster: &TestCluster) {
    let group = json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "g"}, "spec": {"minMember": 2}});
    create(cluster, &format!("{SIGS}/podgroups"), group).await;
    let quota = json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": "q"}, "spec": {"max": {"cpu": "4"}, "min": {"cpu": "2"}}});
    create(cluster, &format!("{SIGS}/elasticquotas"), quota).await;
    let labels = json!({"pod-group.scheduling.sigs.k8s.io": "g",
        "quota.scheduling.koordinator.sh/name": "q"});
    for name in ["g0", "g1"] {
        create(cluster, PODS, pod(name, "1", labels.clone(), json!({}))).await;
    }
    cluster
        .until("the group's status", |group: &PodGroup| {
            let status = serde_json::to_value(group.status.as_ref()?).ok()?;
            (status["scheduled"] == 2).then_some(())
        })
        .await;
    cluster
        .until("the quota's use", |quota: &ElasticQuota| {
            let quota = serde_json::to_value(quota).ok()?;
            (quota["status"]["used"]["cpu"] == "2").then_some(())
        })
        .await;
    cluster
        .until("the default quota", |quota: &ElasticQuota| {
            let name = quota.metadata.name.as_deref()?;
            (name == "koordinator-default-quota").then_some(())
        })
        .await;
}

/// Makes a quota exceed its runtime, and waits for the eviction of its pod.
async fn overuse(cluster: &TestCluster) {
    let quota = json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": "over"}, "spec": {"max": {"cpu": "4"}, "min": {"cpu": "0"}}});
    create(cluster, &format!("{SIGS}/elasticquotas"), quota).await;
    let labels = json!({"quota.scheduling.koordinator.sh/name": "over"});
    create(cluster, PODS, pod("over", "1", labels, json!({}))).await;
    cluster.bound("over").await;
    let quotas: Api<ElasticQuota> = Api::namespaced(cluster.client.clone(), "default");
    let less = json!({"spec": {"max": {"cpu": "0"}}});
    let patch = Patch::Merge(&less);
    quotas
        .patch("over", &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually("eviction", async || {
        let pod = cluster.pods().get_opt("over").await.unwrap();
        pod.is_none().then_some(())
    })
    .await;
}

/// Waits for the status of the network topology.
async fn topology(cluster: &TestCluster) {
    let object = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ClusterNetworkTopology", "metadata": {"name": "default"},
        "spec": {"networkTopologySpec": [{"topologyLayer": "NodeTopologyLayer"}]}});
    create(
        cluster,
        &format!("{KOORD}/clusternetworktopologies"),
        object,
    )
    .await;
    cluster
        .until(
            "the topology's status",
            |topology: &ClusterNetworkTopology| {
                let detail = &topology.status.as_ref()?.detail_status;
                (detail.first()?.node_num == 1).then_some(())
            },
        )
        .await;
}

/// Creates a pod that preempts another, and one that fits on no node and reports that twice.
async fn refusals(cluster: &TestCluster) {
    for (class, value) in [("low", 1), ("high", 1000)] {
        let object = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": class}, "value": value});
        create(
            cluster,
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            object,
        )
        .await;
    }
    let class = |name: &str| json!({"priorityClassName": name});
    create(cluster, PODS, pod("low", "8", json!({}), class("low"))).await;
    cluster.bound("low").await;
    create(cluster, PODS, pod("high", "9", json!({}), class("high"))).await;
    cluster.bound("high").await;
    create(cluster, PODS, pod("huge", "16", json!({}), json!({}))).await;
    cluster.refused("huge", |_| true).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let mut capacity = machine();
    capacity["cpu"] = json!("17");
    let capacity = json!({"status": {"allocatable": capacity, "capacity": capacity}});
    let patch = Patch::Merge(&capacity);
    nodes
        .patch_status("n", &PatchParams::default(), &patch)
        .await
        .unwrap();
    cluster
        .until("a repeated event", |event: &Event| {
            (event.count.unwrap_or(0) > 1).then_some(())
        })
        .await;
}

fn machine() -> Value {
    let mut out = allocatable("16");
    for gpu in ["gpu", "gpu-core", "gpu-memory-ratio"] {
        out[format!("koordinator.sh/{gpu}")] = json!("100");
    }
    out
}

/// Returns the configuration in the ConfigMap, with immediate removal of expired reservations and immediate
/// eviction for quota overuse.
fn configuration() -> Configuration {
    let map: ConfigMap = only(MANIFEST, "ConfigMap");
    let text = &map.data.unwrap()["koord-scheduler-config"];
    assert!(Configuration::parse(text).is_ok(), "as it is");
    let mut config: Value = serde_saphyr::from_str(text).unwrap();
    let quick = json!({"name": "Reservation", "args": {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "ReservationArgs",
        "gcDurationSeconds": 1, "gcIntervalSeconds": 1}});
    let args = config["profiles"][0]["pluginConfig"]
        .as_array_mut()
        .unwrap();
    args.push(quick);
    let quotas = args.iter_mut().find(|args| args["name"] == "ElasticQuota");
    let quotas = &mut quotas.unwrap()["args"];
    quotas["monitorAllQuotas"] = json!(true);
    quotas["delayEvictTime"] = json!("0s");
    Configuration::parse(&config.to_string()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_uses_exactly_its_permissions() {
    let cluster = TestCluster::start().await;
    cluster.node("n", machine(), json!([])).await;
    let device = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
    "metadata": {"name": "n"}, "spec": {"devices": [{
        "type": "gpu", "id": "GPU-0", "minor": 0, "health": true,
        "resources": {"koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": "80Gi"}
    }]}});
    create(&cluster, &format!("{KOORD}/devices"), device).await;

    let (client, record) = limited(&cluster);
    let scheduler = cluster.schedule_through(client, |options: &mut Options| {
        options.leader_elect = true;
        options.build.network_topology = true;
        options.config = Some(configuration());
    });
    volumes(&cluster).await;
    reservations(&cluster).await;
    groups_and_quotas(&cluster).await;
    overuse(&cluster).await;
    topology(&cluster).await;
    refusals(&cluster).await;
    scheduler.stop().await;

    let record = record.lock();
    assert_eq!(
        record.refused,
        BTreeSet::new(),
        "asked for, and no rule allows it"
    );
    let granted = granted(&rules());
    let unused: Vec<&str> = granted
        .difference(&record.used)
        .map(String::as_str)
        .collect();
    let mut expected: Vec<&str> = OTHERWISE_USED.iter().map(|(right, _)| *right).collect();
    expected.sort_unstable();
    assert_eq!(unused, expected, "granted, and nothing uses it");
}

#[test]
fn written_configuration_parses_to_the_same() {
    let map: ConfigMap = only(MANIFEST, "ConfigMap");
    let text = &map.data.unwrap()["koord-scheduler-config"];
    for (name, config) in [
        ("the manifest's", Some(Configuration::parse(text).unwrap())),
        ("the built-in", None),
        ("kube-scheduler's", Some(Configuration::default())),
    ] {
        let mut options = Options::new(koord_plugins::registry());
        options.config = config;
        let first = options.written().unwrap();
        options.config = Some(Configuration::parse(&first).unwrap());
        assert_eq!(options.written().unwrap(), first, "{name}");
        assert!(first.contains("NodeResourcesFit"), "{name}");
        // Arguments of the built-in profile, of three plugins.
        let shown = ["batch-memory", "usageThresholds", "quotaGroupNamespace"];
        let shown = shown.map(|field| first.contains(field));
        assert_eq!(shown, [name != "kube-scheduler's"; 3], "{name}");
    }
}

#[test]
fn manifests_are_consistent() {
    let deployment: Deployment = only(MANIFEST, "Deployment");
    let account: ServiceAccount = only(RBAC, "ServiceAccount");
    let template = deployment.spec.unwrap().template.spec.unwrap();
    assert_eq!(template.service_account_name, account.metadata.name);
    let container = &template.containers[0];
    let argv = container
        .args
        .iter()
        .flatten()
        .filter(|arg| !arg.starts_with("--config"));
    let argv = std::iter::once("koord-scheduler").chain(argv.map(String::as_str));
    let parsed = flags::parse::<Args>(argv.map(std::ffi::OsString::from)).unwrap();
    assert_eq!((parsed.args.port, parsed.args.secure_port), (0, 10259));
    let options = parsed.args.options(koord_plugins::registry()).unwrap();
    assert_eq!(options.notes, [""; 0], "every flag has an effect");
    for binding in ["ClusterRoleBinding", "RoleBinding"] {
        let binding: Value = only(RBAC, binding);
        let role: Value = only(RBAC, binding["roleRef"]["kind"].as_str().unwrap());
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        assert_eq!(
            binding["metadata"]["namespace"],
            role["metadata"]["namespace"]
        );
        assert_eq!(
            binding["subjects"],
            json!([{"kind": "ServiceAccount", "name": account.metadata.name,
                "namespace": account.metadata.namespace}])
        );
    }
    let leader = configuration().leader_election;
    let own_role: Role = only(RBAC, "Role");
    assert_eq!(own_role.metadata.namespace, Some(leader.resource_namespace));
    let named = own_role.rules.unwrap()[1].resource_names.clone();
    assert_eq!(named, Some(vec![leader.resource_name]));
}
