//! `--bind-annotations-with-binding`: what is decided about a pod arrives with its binding.

use crate::api::{Cluster, room};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request};
use k8s_openapi::api::core::v1::Pod;
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_kube::Api;
use koord_kube::api::PostParams;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Notes the writes to pods, and loses the first bindings.
#[derive(Debug, Default)]
struct Notes {
    writes: Vec<String>,
    lose: usize,
}

#[derive(Clone)]
struct Noted<S> {
    inner: S,
    notes: Arc<Mutex<Notes>>,
}

impl<S, B> tower::Service<Request<B>> for Noted<S>
where
    S: tower::Service<Request<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        if request.method() != Method::GET && path.contains("/pods/") && !path.ends_with("/status")
        {
            let mut notes = self.notes.lock().unwrap();
            let name = path.rsplit("/pods/").next().unwrap_or_default();
            notes.writes.push(format!("{} {name}", request.method()));
            if path.ends_with("/binding") && notes.lose > 0 {
                notes.lose -= 1;
                return async { Err("lost".into()) }.boxed();
            }
        }
        let answer = self.inner.call(request);
        async move { answer.await.map_err(Into::into) }.boxed()
    }
}

/// A node of four CPUs that pods are bound to, a scheduler, and what it writes.
struct Run {
    cluster: Cluster,
    notes: Arc<Mutex<Notes>>,
    scheduler: crate::api::Scheduler,
}

impl Run {
    async fn start(together: bool, lose: usize) -> Self {
        let cluster = Cluster::start().await;
        cluster.node("n", room("4"), json!([])).await;
        let cpu = |id: u32| json!({"id": id, "core": id / 2, "socket": 0, "node": 0});
        let detail: Vec<Value> = (0..4).map(cpu).collect();
        let object: NodeResourceTopology = serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
            "metadata": {"name": "n", "annotations": {
                "node.koordinator.sh/cpu-topology": json!({"detail": detail}).to_string()}},
            "topologyPolicies": ["None"], "zones": [{"name": "node-0", "type": "Node", "resources": [
                {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}]}]
        }))
        .unwrap();
        let api: Api<NodeResourceTopology> = Api::all(cluster.client.clone());
        api.create(&PostParams::default(), &object).await.unwrap();
        let notes = Arc::new(Mutex::new(Notes {
            lose,
            ..Notes::default()
        }));
        let inner = cluster.server.service();
        let wire = Noted {
            inner,
            notes: notes.clone(),
        };
        let client = koord_kube::client::in_process(wire);
        let scheduler = cluster.schedule_through(client, |options| {
            options.bind_annotations_with_binding = together;
        });
        Self {
            cluster,
            notes,
            scheduler,
        }
    }

    /// A pod that is bound to CPUs.
    async fn create(&self, name: &str, cpu: &str, more: Value) {
        let mut labels = json!({"koordinator.sh/qosClass": "LSR",
            "koordinator.sh/priority-class": "koord-prod"});
        for (key, value) in more.as_object().into_iter().flatten() {
            labels[key] = value.clone();
        }
        let resources = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {"schedulerName": "koord-scheduler", "containers":
                [{"name": "c", "image": "i", "resources": resources}]}
        }))
        .unwrap();
        let created = self
            .cluster
            .pods()
            .create(&PostParams::default(), &pod)
            .await;
        created.unwrap();
    }

    /// The annotations of the pod the first time that it is seen bound.
    async fn bound(&self, name: &str) -> std::collections::BTreeMap<String, String> {
        let pod = self.cluster.until(name, |pod: &Pod| {
            let bound = pod.spec.as_ref()?.node_name.is_some();
            (bound && pod.metadata.name.as_deref() == Some(name)).then(|| pod.clone())
        });
        pod.await.metadata.annotations.unwrap_or_default()
    }

    fn writes(&self) -> Vec<String> {
        self.notes.lock().unwrap().writes.clone()
    }
}

const STATUS: &str = "scheduling.koordinator.sh/resource-status";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_come_with_the_binding_or_before_it() {
    for (together, expected) in [
        (true, &["POST a/binding"][..]),
        (false, &["PATCH a", "POST a/binding"]),
    ] {
        let run = Run::start(together, 0).await;
        run.create("a", "2", json!({})).await;
        let annotations = run.bound("a").await;
        assert_eq!(annotations[STATUS], r#"{"cpuset":"0-1"}"#);
        assert_eq!(run.writes(), expected, "together: {together}");
        run.scheduler.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_that_is_lost_gives_back_what_it_held_and_leaves_no_annotation() {
    let run = Run::start(true, 1).await;
    // All CPUs: the second attempt finds them only if the first gave them back.
    run.create("a", "4", json!({})).await;
    let annotations = run.bound("a").await;
    assert_eq!(annotations[STATUS], r#"{"cpuset":"0-3"}"#);
    assert_eq!(run.writes(), ["POST a/binding", "POST a/binding"]);
    run.scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_gang_are_bound_with_its_annotations() {
    let run = Run::start(true, 0).await;
    let group: koord_api::scheduling::PodGroup = serde_json::from_value(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2}
    }))
    .unwrap();
    let api = Api::namespaced(run.cluster.client.clone(), "default");
    api.create(&PostParams::default(), &group).await.unwrap();
    let member = json!({"pod-group.scheduling.sigs.k8s.io": "g"});
    for name in ["a", "b"] {
        run.create(name, "2", member.clone()).await;
    }
    let mut cpus = Vec::new();
    for name in ["a", "b"] {
        let annotations = run.bound(name).await;
        let count = "internal.scheduling.koordinator.sh/bind-gang-member-count";
        assert_eq!(annotations[count], "2");
        cpus.push(annotations[STATUS].clone());
    }
    cpus.sort();
    assert_eq!(cpus, [r#"{"cpuset":"0-1"}"#, r#"{"cpuset":"2-3"}"#]);
    let mut writes = run.writes();
    writes.sort();
    assert_eq!(writes, ["POST a/binding", "POST b/binding"]);
    run.scheduler.stop().await;
}
