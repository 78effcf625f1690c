//! Tests against the embedded API server.

use super::*;
use axum::extract::Request;
use axum::middleware::Next;
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_kube::api::PostParams;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

struct ScaleCluster {
    server: Arc<ApiServer>,
    client: Client,
    workloads: Workloads,
    /// Number of scale requests.
    asked: Arc<AtomicUsize>,
}

/// Returns a CustomResourceDefinition; with a path to its replicas it has a scale.
fn definition(group: &str, version: &str, kind: &str, plural: &str, scale: bool) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut version = json!({"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    if scale {
        let paths =
            json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
        version["subresources"] = json!({"scale": paths});
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": [version],
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")}},
    })
}

impl ScaleCluster {
    async fn start() -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let mut config = Config::memory(clock);
        config.controllers = koord_app::flags::Selection::none();
        let server = ApiServer::open(config).await.unwrap();
        let scale_requests = Arc::new(AtomicUsize::new(0));
        let count = scale_requests.clone();
        let look = move |request: Request, next: Next| {
            if request.uri().path().ends_with("/scale") {
                count.fetch_add(1, Ordering::SeqCst);
            }
            next.run(request)
        };
        let service = server.service().layer(axum::middleware::from_fn(look));
        let client = koord_kube::client::in_process(service);
        let workloads = Workloads::new(client.clone(), CancellationToken::new());
        Self {
            server,
            client,
            workloads,
            asked: scale_requests,
        }
    }

    /// Creates an object and returns its UID.
    async fn put(&self, path: &str, value: &Value) -> Arc<str> {
        let body = serde_json::to_vec(value).unwrap();
        let request = axum::http::Request::post(path).header("content-type", "application/json");
        let created: Value = self
            .client
            .request(request.body(body).unwrap())
            .await
            .unwrap();
        created["metadata"]["uid"].as_str().unwrap().into()
    }

    async fn resolve(&self, owners: &[(&str, &str, &str, &Arc<str>)]) -> Vec<Workload> {
        let owner = |(api_version, kind, name, uid): &(&str, &str, &str, &Arc<str>)| {
            let owner = Owner {
                api_version: (*api_version).into(),
                kind: (*kind).into(),
                name: (*name).into(),
                uid: Arc::clone(uid),
                controller: true,
            };
            (Arc::clone(uid), (Arc::from("default"), owner))
        };
        let mut workloads = self
            .workloads
            .resolve(owners.iter().map(owner).collect())
            .await;
        let workloads = owners.iter().map(|(_, _, _, uid)| workloads.remove(*uid));
        workloads
            .map(|workload| workload.unwrap_or(Workload::Unresolved))
            .collect()
    }
}

fn resolved(replicas: i64, controllers: &[&Arc<str>]) -> Workload {
    Workload::Known {
        replicas,
        controllers: controllers.iter().map(|uid| Arc::clone(uid)).collect(),
        deleting: false,
    }
}

fn apps(plural: &str) -> String {
    format!("/apis/apps/v1/namespaces/default/{plural}")
}

fn workload(name: &str, owner: Option<(&str, &Arc<str>)>) -> Value {
    let owners: Vec<_> = owner
        .map(|(name, uid)| json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid, "controller": true}))
        .into_iter()
        .collect();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({"metadata": {"name": name, "ownerReferences": owners},
        "spec": {"replicas": 3, "serviceName": name, "selector": {"matchLabels": {"a": "b"}}, "template": template}})
}

/// Upstream's three cases, and the other kinds.
#[tokio::test(start_paused = true)]
async fn replicas_of_known_kinds_are_resolved() {
    let cluster = ScaleCluster::start().await;
    let deployment = cluster
        .put(&apps("deployments"), &plain(workload("d", None)))
        .await;
    let owner_ref = Some(("d", &deployment));
    let old = cluster
        .put(&apps("replicasets"), &plain(workload("d-1", owner_ref)))
        .await;
    let new = cluster
        .put(&apps("replicasets"), &plain(workload("d-2", owner_ref)))
        .await;
    let lone = cluster
        .put(&apps("replicasets"), &plain(workload("lone", None)))
        .await;
    let set = cluster
        .put(&apps("statefulsets"), &workload("s", None))
        .await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"metadata": {"name": "j"}, "spec": {"parallelism": 5, "template": template}});
    let job = cluster
        .put("/apis/batch/v1/namespaces/default/jobs", &job)
        .await;
    let clones = "/apis/apps.kruise.io/v1alpha1/namespaces/default/clonesets";
    let crd = definition("apps.kruise.io", "v1alpha1", "CloneSet", "clonesets", false);
    let advanced = definition(
        "apps.kruise.io",
        "v1beta1",
        "StatefulSet",
        "statefulsets",
        false,
    );
    cluster
        .server
        .install_crds(vec![crd, advanced])
        .await
        .unwrap();
    let clone = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"name": "c"}, "spec": {"replicas": 4}});
    let clone = cluster.put(clones, &clone).await;
    let workloads = cluster
        .resolve(&[
            ("apps/v1", "ReplicaSet", "d-1", &old),
            ("apps/v1", "ReplicaSet", "lone", &lone),
            // The version is ignored.
            ("apps/v1beta9", "Deployment", "d", &deployment),
            ("apps/v1", "StatefulSet", "s", &set),
            ("batch/v1", "Job", "j", &job),
            ("apps.kruise.io/v1beta1", "CloneSet", "c", &clone),
            (
                "apps.kruise.io/v1beta1",
                "StatefulSet",
                "c",
                &Arc::from("none"),
            ),
            ("v1", "ReplicationController", "r", &Arc::from("gone")),
            // Another object of this name.
            ("apps/v1", "ReplicaSet", "lone", &Arc::from("other")),
            ("apps/v1", "DaemonSet", "x", &Arc::from("daemon")),
        ])
        .await;
    let mut workloads = workloads.into_iter();
    let Some(Workload::Known {
        replicas: 3,
        mut controllers,
        ..
    }) = workloads.next()
    else {
        panic!("the Deployment's");
    };
    controllers.sort();
    let mut set_uids = vec![old.clone(), new];
    set_uids.sort();
    assert_eq!(controllers, set_uids, "pods of all its ReplicaSets");
    let remaining: Vec<_> = workloads.collect();
    let none = || Workload::Unresolved;
    let expected = [
        resolved(3, &[&lone]),
        resolved(3, &[&deployment]),
        resolved(3, &[&set]),
        resolved(5, &[&job]),
        resolved(4, &[&clone]),
        none(),
        none(),
        none(),
        none(),
    ];
    assert_eq!(remaining, expected);
}

/// Removes what only StatefulSets have.
fn plain(mut value: Value) -> Value {
    if let Some(spec) = value["spec"].as_object_mut() {
        spec.remove("serviceName");
    }
    value
}

#[tokio::test(start_paused = true)]
async fn scale_of_other_kinds_is_cached() {
    let cluster = ScaleCluster::start().await;
    let scaled = definition("x.io", "v1", "Rollout", "rollouts", true);
    let fixed = definition("x.io", "v1", "Fixed", "fixeds", false);
    cluster
        .server
        .install_crds(vec![scaled, fixed])
        .await
        .unwrap();
    let object_of_kind = |kind: &str, name: &str| json!({"apiVersion": "x.io/v1", "kind": kind, "metadata": {"name": name}, "spec": {"replicas": 7}});
    let rollouts = "/apis/x.io/v1/namespaces/default/rollouts";
    let rollout = cluster.put(rollouts, &object_of_kind("Rollout", "r")).await;
    let fixed = cluster
        .put(
            "/apis/x.io/v1/namespaces/default/fixeds",
            &object_of_kind("Fixed", "f"),
        )
        .await;
    let missing: Arc<str> = Arc::from("missing");
    let owners = [
        ("x.io/v1", "Rollout", "r", &rollout),
        ("x.io/v1", "Fixed", "f", &fixed),
        ("y.io/v1", "Nothing", "n", &missing),
    ];
    let expected = |replicas: i64| {
        [
            resolved(replicas, &[&rollout]),
            Workload::Unresolved,
            Workload::Unresolved,
        ]
    };
    assert_eq!(cluster.resolve(&owners).await, expected(7));
    // Kinds without a scale are not requested.
    assert_eq!(cluster.asked.load(Ordering::SeqCst), 1);
    let resource = koord_kube::kube_core::ApiResource {
        group: "x.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "x.io/v1".to_owned(),
        kind: "Rollout".to_owned(),
        plural: "rollouts".to_owned(),
    };
    let api = koord_kube::Api::<DynamicObject>::namespaced_with(
        cluster.client.clone(),
        "default",
        &resource,
    );
    let mut object = api.get("r").await.unwrap();
    object.data["spec"]["replicas"] = json!(9);
    api.replace("r", &PostParams::default(), &object)
        .await
        .unwrap();
    assert_eq!(
        cluster.resolve(&owners).await,
        expected(7),
        "a scale is cached for a while"
    );
    tokio::time::sleep(LIFE).await;
    assert_eq!(cluster.resolve(&owners).await, expected(9));
}
