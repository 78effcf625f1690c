//! Writes that place a pod or a reservation: one write or two, never to an object that is being deleted or to
//! a new one of the same name.

use crate::api::{TestCluster, allocatable};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::Reservation;
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_kube::Api;
use koord_kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::sync::Semaphore;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Records the writes to pods and reservations, drops the first bindings, and can hold back a write.
#[derive(Debug, Default)]
struct WriteRecorder {
    writes: Vec<String>,
    lose: usize,
    hold: Option<Hold>,
}

/// Write that is held back.
#[derive(Debug, Clone)]
struct Hold {
    arrived: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

#[derive(Clone)]
struct RecordedService<S> {
    inner: S,
    notes: Arc<Mutex<WriteRecorder>>,
}

impl<S, B> tower::Service<Request<B>> for RecordedService<S>
where
    S: tower::Service<Request<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    S::Response: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        let name = path
            .split_once("/pods/")
            .filter(|_| !path.ends_with("/status"));
        let name = name.or_else(|| path.split_once("/reservations/"));
        let mut hold = None;
        if let Some((_, name)) = name.filter(|_| request.method() != Method::GET) {
            let mut notes = self.notes.lock().unwrap();
            notes.writes.push(format!("{} {name}", request.method()));
            if path.ends_with("/binding") && notes.lose > 0 {
                notes.lose -= 1;
                return async { Err("lost".into()) }.boxed();
            }
            hold = notes.hold.take();
        }
        let mut inner = self.inner.clone();
        async move {
            if let Some(hold) = hold {
                hold.arrived.add_permits(1);
                hold.go.acquire().await.unwrap().forget();
            }
            inner.call(request).await.map_err(Into::into)
        }
        .boxed()
    }
}

/// Node of four CPUs for bound pods, a scheduler, and its writes.
struct BindingCluster {
    cluster: TestCluster,
    notes: Arc<Mutex<WriteRecorder>>,
    scheduler: crate::api::Scheduler,
}

impl BindingCluster {
    async fn start(together: bool, lose: usize) -> Self {
        let cluster = TestCluster::start().await;
        cluster.node("n", allocatable("4"), json!([])).await;
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
        let notes = Arc::new(Mutex::new(WriteRecorder {
            lose,
            ..WriteRecorder::default()
        }));
        let inner = cluster.server.service();
        let wire = RecordedService {
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

    /// Creates a pod that is bound to CPUs.
    async fn create(&self, name: &str, cpu: &str, more: Value) {
        let pod = pod(name, cpu, more);
        let params = PostParams::default();
        let created = self.cluster.pods().create(&params, &pod).await;
        created.unwrap();
    }

    /// Returns the annotations of the pod when it is first seen bound.
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

/// Builds a pod that is bound to CPUs.
fn pod(name: &str, cpu: &str, more: Value) -> Pod {
    let mut labels = json!({"koordinator.sh/qosClass": "LSR",
        "koordinator.sh/priority-class": "koord-prod"});
    for (key, value) in more.as_object().into_iter().flatten() {
        labels[key] = value.clone();
    }
    let resources = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"schedulerName": "koord-scheduler", "containers":
            [{"name": "c", "image": "i", "resources": resources}]}
    }))
    .unwrap()
}

const STATUS: &str = "scheduling.koordinator.sh/resource-status";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_come_with_the_binding_or_before_it() {
    for (together, expected) in [
        (true, &["POST a/binding"][..]),
        (false, &["PATCH a", "POST a/binding"]),
    ] {
        let run = BindingCluster::start(together, 0).await;
        run.create("a", "2", json!({})).await;
        let annotations = run.bound("a").await;
        assert_eq!(annotations[STATUS], r#"{"cpuset":"0-1"}"#);
        assert_eq!(run.writes(), expected, "together: {together}");
        run.scheduler.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_binding_releases_cpus_and_annotations() {
    let run = BindingCluster::start(true, 1).await;
    // It needs all CPUs: the second attempt fits only if the first released them.
    run.create("a", "4", json!({})).await;
    let annotations = run.bound("a").await;
    assert_eq!(annotations[STATUS], r#"{"cpuset":"0-3"}"#);
    assert_eq!(run.writes(), ["POST a/binding", "POST a/binding"]);
    run.scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_gang_are_bound_with_its_annotations() {
    let run = BindingCluster::start(true, 0).await;
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

/// Holds back the next write.
fn hold(run: &BindingCluster) -> Hold {
    let hold = Hold {
        arrived: Arc::new(Semaphore::new(0)),
        go: Arc::new(Semaphore::new(0)),
    };
    run.notes.lock().unwrap().hold = Some(hold.clone());
    hold
}

impl Hold {
    async fn arrives(&self) {
        let soon = std::time::Duration::from_secs(30);
        let arrived = tokio::time::timeout(soon, self.arrived.acquire()).await;
        arrived.expect("a write in time").unwrap().forget();
    }
}

const KEPT: &str = "test.koordinator.sh/kept";

/// Upstream's `DefaultPreBind` and `DynamicSchedulerCheck`: a pod that is being deleted, and one of the same
/// name for another scheduler. Nothing that was reserved for the first may stay reserved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_deleted_or_recreated_late_is_not_bound() {
    let rows = [
        ("going, before its annotations", true, false, "4"),
        (
            "going, with nothing to write but its binding",
            false,
            false,
            "4",
        ),
        ("another one, before its annotations", true, true, "4"),
        (
            "another one, with nothing to write but its binding",
            false,
            true,
            "4",
        ),
    ];
    for (name, annotated, recreate, cpu) in rows {
        let run = BindingCluster::start(false, 0).await;
        let held_write = hold(&run);
        let labels = |more: Value| {
            if annotated {
                more
            } else {
                json!({"koordinator.sh/qosClass": "LS"})
            }
        };
        run.create("p", cpu, labels(json!({}))).await;
        held_write.arrives().await;
        let first = if annotated {
            "PATCH p"
        } else {
            "POST p/binding"
        };
        assert_eq!(run.writes(), [first], "{name}");
        let pods = run.cluster.pods();
        let at_once = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        if recreate {
            pods.delete("p", &at_once).await.unwrap();
            let mut other = pod("p", cpu, json!({}));
            other.spec.as_mut().unwrap().scheduler_name = Some("other".to_owned());
            pods.create(&PostParams::default(), &other).await.unwrap();
        } else {
            let finalizers = json!({"metadata": {"finalizers": [KEPT]}});
            let params = PatchParams::default();
            pods.patch("p", &params, &Patch::Merge(&finalizers))
                .await
                .unwrap();
            pods.delete("p", &at_once).await.unwrap();
        }
        held_write.go.add_permits(1);
        // All CPUs are free again.
        run.create("next", cpu, json!({})).await;
        assert!(run.bound("next").await.contains_key(STATUS), "{name}");
        let remaining = pods.get("p").await.unwrap();
        assert_eq!(remaining.spec.unwrap().node_name, None, "{name}");
        assert_eq!(
            remaining.metadata.deletion_timestamp.is_some(),
            !recreate,
            "{name}"
        );
        let notes = remaining.metadata.annotations.unwrap_or_default();
        assert!(
            !recreate || !notes.contains_key(STATUS),
            "{name}: {notes:?}"
        );
        run.scheduler.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_deleted_or_recreated_late_is_not_placed() {
    for recreate in [false, true] {
        let run = BindingCluster::start(false, 0).await;
        let reservation = |scheduler: &str, finalizers: &[&str]| -> Reservation {
            let resources = json!({"requests": {"cpu": "4"}, "limits": {"cpu": "4"}});
            let template = json!({"spec": {"schedulerName": scheduler,
                "containers": [{"name": "c", "image": "i", "resources": resources}]}});
            serde_json::from_value(json!({
                "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
                "metadata": {"name": "r", "finalizers": finalizers},
                "spec": {"owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                    "template": template}
            }))
            .unwrap()
        };
        let api: Api<Reservation> = Api::all(run.cluster.client.clone());
        let params = PostParams::default();
        let finalizers: &[&str] = if recreate { &[] } else { &[KEPT] };
        let held_write = hold(&run);
        api.create(&params, &reservation("koord-scheduler", finalizers))
            .await
            .unwrap();
        held_write.arrives().await;
        assert_eq!(run.writes(), ["PATCH r/status"]);
        api.delete("r", &DeleteParams::default()).await.unwrap();
        if recreate {
            api.create(&params, &reservation("other", &[]))
                .await
                .unwrap();
        }
        held_write.go.add_permits(1);
        run.create("next", "4", json!({})).await;
        assert!(
            run.bound("next").await.contains_key(STATUS),
            "again: {recreate}"
        );
        let remaining = api.get("r").await.unwrap();
        let node = remaining
            .status
            .map(|status| status.node_name)
            .unwrap_or_default();
        assert_eq!(node, "", "again: {recreate}");
        run.scheduler.stop().await;
    }
}
