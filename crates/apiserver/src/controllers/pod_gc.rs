//! Pod garbage collector: deletes pods of nodes that no longer exist, which no kubelet will ever delete, and
//! the pods that have ended beyond a limit.

use super::queue::{Reconcile, ReconcileFuture, RequeueAfter, Source};
use super::{job, pods};
use crate::rest::{Api, DeleteOptions, meta};
use crate::store::{Entry, Key, TableId};
use futures::FutureExt as _;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The pod garbage collector. Keeps `keep` pods that have ended; 0 keeps all of them.
pub(super) struct PodGc {
    keep: usize,
    state: Mutex<PodGcState>,
}

#[derive(Default)]
struct PodGcState {
    /// Time since which each node that still has pods is missing.
    missing: FxHashMap<Arc<str>, Timestamp>,
    /// Earliest time of the next scan of all pods.
    rest: Option<Instant>,
}

/// Time that a node must be missing before its pods are deleted: it may be about to register again.
const QUARANTINE: Duration = Duration::from_secs(40);
/// Pause after a scan of all pods, in multiples of the scan's duration.
const REST: u32 = 50;

/// Returns the one key for all nodes: thousands of missing nodes are found in one scan, not in one scan each.
fn all_nodes_key() -> Key {
    Key::cluster("nodes")
}

fn nodes() -> TableId {
    TableId::new("", "nodes")
}

impl PodGc {
    pub(super) fn new(keep: usize) -> Self {
        Self {
            keep,
            state: Mutex::default(),
        }
    }

    /// Returns the ended pods beyond the limit: evicted ones first, then the oldest. Pods of a Job that has not
    /// finished stay, because its controller counts failures by them.
    fn excess_pods(&self, api: &Api, pods: &TableId) -> Vec<Arc<Entry>> {
        let mut matches = api.store().all(pods, None, &has_ended);
        let surplus = matches.len().saturating_sub(self.keep);
        if self.keep == 0 || surplus == 0 {
            return Vec::new();
        }
        let evicted = |pod: &Entry| meta::text(&pod.value(), &["status", "reason"]) == "Evicted";
        matches.sort_by_cached_key(|pod| (!evicted(pod), pod.created));
        // A Job can have thousands of pods.
        let mut unfinished = FxHashMap::default();
        let mut is_counted = |pod: &Arc<Entry>| {
            let jobs = pods::controller_key(pod, "Job");
            jobs.into_iter().any(|key| {
                let entry = unfinished.entry(key);
                *entry.or_insert_with_key(|key| is_unfinished_job(api, key))
            })
        };
        let excess = matches.into_iter().filter(|pod| !is_counted(pod));
        excess.take(surplus).collect()
    }
}

impl Reconcile for PodGc {
    fn name(&self) -> &'static str {
        "pod-garbage-collector-controller"
    }

    fn sources(&self) -> Vec<Source> {
        vec![
            Source::new("", "nodes", |api, node| {
                // A new node may have been missing; a removed one leaves its pods behind.
                let created = node.created == node.revision;
                let concerns = created || api.store().get(&nodes(), &node.key).is_none();
                Vec::from_iter(concerns.then(all_nodes_key))
            }),
            Source::new("", "pods", |api, pod| {
                let lost = node_of(pod).is_some_and(|node| !exists(api, node));
                Vec::from_iter((lost || has_ended(pod)).then(all_nodes_key))
            }),
        ]
    }

    fn reconcile<'a>(&'a self, api: &'a Api, _: &'a Key) -> ReconcileFuture<'a> {
        async move {
            let began = Instant::now();
            if let Some(tail) = self.state.lock().rest.filter(|tail| *tail > began) {
                return Ok(Some(tail - began));
            }
            let pods = api.builtin("", "v1", "pods")?;
            let matches = orphans(api, &pods.table);
            let surplus = self.excess_pods(api, &pods.table);
            let (due, next) = {
                let mut state = self.state.lock();
                state.rest = Some(Instant::now() + began.elapsed() * REST);
                state.wait(matches, api.clock().now())
            };
            let returned = |pod: &Entry| node_of(pod).is_some_and(|node| exists(api, node));
            let due = due.into_iter().filter(|pod| !returned(pod));
            for pod in due.chain(surplus) {
                match api
                    .delete_object(&pods, &pod.key, &DeleteOptions::now(&pod.index.uid))
                    .await
                {
                    Ok(_) => {}
                    Err(e) if e.code == 404 || e.code == 409 => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(next)
        }
        .boxed()
    }
}

impl PodGcState {
    /// Returns the pods whose nodes have been missing for long enough, and when to check the others.
    fn wait(
        &mut self,
        pods_by_node: FxHashMap<Arc<str>, Vec<Arc<Entry>>>,
        now: Timestamp,
    ) -> (Vec<Arc<Entry>>, RequeueAfter) {
        self.missing
            .retain(|node, _| pods_by_node.contains_key(node));
        let (mut due, mut next) = (Vec::new(), None);
        for (node, pods) in pods_by_node {
            let since = *self.missing.entry(node).or_insert(now);
            let remaining = QUARANTINE.saturating_sub(now.duration_since(since).unsigned_abs());
            if remaining.is_zero() {
                due.extend(pods);
            } else {
                next = Some(next.map_or(remaining, |next: Duration| next.min(remaining)));
            }
        }
        (due, next)
    }
}

/// Returns true if there is a Job with this key, and it has not finished.
fn is_unfinished_job(api: &Api, key: &Key) -> bool {
    let job = api.store().get(&TableId::new("batch", "jobs"), key);
    job.is_some_and(|job| !job::has_finished(&job.value()))
}

fn exists(api: &Api, node: &Arc<str>) -> bool {
    let key = Key::cluster(Arc::clone(node));
    api.store().get(&nodes(), &key).is_some()
}

fn has_ended(pod: &Entry) -> bool {
    matches!(
        pod.index.field("status.phase"),
        Some("Succeeded" | "Failed")
    )
}

fn node_of(pod: &Entry) -> Option<&Arc<str>> {
    let fields = &pod.index.fields;
    let (_, node) = fields.iter().find(|(path, _)| &**path == "spec.nodeName")?;
    Some(node).filter(|node| !node.is_empty())
}

/// Returns the pods of nodes that do not exist, by node.
fn orphans(api: &Api, pods: &TableId) -> FxHashMap<Arc<str>, Vec<Arc<Entry>>> {
    let existing = api.store().all(&nodes(), None, &|_| true);
    let existing: FxHashSet<&str> = existing.iter().map(|node| &*node.key.name).collect();
    let lost = |pod: &Entry| node_of(pod).is_some_and(|node| !existing.contains(&**node));
    let mut pods_by_node: FxHashMap<Arc<str>, Vec<Arc<Entry>>> = FxHashMap::default();
    for pod in api.store().all(pods, None, &lost) {
        if let Some(node) = node_of(&pod).cloned() {
            pods_by_node.entry(node).or_default().push(pod);
        }
    }
    pods_by_node
}

#[cfg(test)]
mod tests {
    use crate::store::{Key, TableId};
    use crate::{ApiServer, Config};
    use axum::body::Body;
    use http::Request;
    use koord_app::Clock;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::time::Duration;
    use tower::ServiceExt as _;

    /// Opens a server with this controller only, which keeps `keep` pods that have ended.
    async fn open(keep: usize) -> Arc<ApiServer> {
        let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
        let mut config = Config::memory(clock);
        config.controllers =
            koord_app::flags::selection("pod-garbage-collector-controller").unwrap();
        config.terminated_pod_gc_threshold = keep;
        ApiServer::open(config).await.unwrap()
    }

    /// Sends a request that must succeed, and returns the answer.
    async fn answer(server: &ApiServer, method: &str, path: &str, body: Value) -> Value {
        let patch = if method == "PATCH" {
            "merge-patch+"
        } else {
            ""
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", format!("application/{patch}json"))
            .body(Body::from(body.to_string()));
        let response = server.service().oneshot(request.unwrap()).await.unwrap();
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert!(status.is_success(), "{method} {path}: {answer}");
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn surplus_deletes_evicted_then_oldest_pods() {
        let server = open(2).await;
        let send = async |method: &str, path: &str, body: Value| {
            answer(
                &server,
                method,
                &format!("/api/v1/namespaces/default/pods{path}"),
                body,
            )
            .await
        };
        let names = ["runs", "first", "second", "third", "evicted"];
        for name in names {
            let spec = json!({"containers": [{"name": "c", "image": "i"}]});
            send(
                "POST",
                "",
                json!({"metadata": {"name": name}, "spec": spec}),
            )
            .await;
        }
        let remaining = async || {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let pods = TableId::new("", "pods");
            let present = |name: &&str| {
                let key = Key::new("default", *name);
                server.store().get(&pods, &key).is_some()
            };
            names.into_iter().filter(present).collect::<Vec<_>>()
        };
        let end = async |name: &str, status: Value| {
            send(
                "PATCH",
                &format!("/{name}/status"),
                json!({"status": status}),
            )
            .await;
        };
        end("third", json!({"phase": "Succeeded"})).await;
        end("first", json!({"phase": "Failed"})).await;
        assert_eq!(remaining().await, names);
        end("evicted", json!({"phase": "Failed", "reason": "Evicted"})).await;
        assert_eq!(remaining().await, ["runs", "first", "second", "third"]);
        end("second", json!({"phase": "Succeeded"})).await;
        assert_eq!(remaining().await, ["runs", "second", "third"]);
    }

    #[tokio::test(start_paused = true)]
    async fn surplus_keeps_pods_of_unfinished_jobs() {
        let server = open(1).await;
        let send =
            async |method: &str, path: &str, body: Value| answer(&server, method, path, body).await;
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        let template =
            json!({"spec": {"containers": spec["containers"], "restartPolicy": "Never"}});
        let job = json!({"metadata": {"name": "job"}, "spec": {"template": template}});
        let jobs = "/apis/batch/v1/namespaces/default/jobs";
        let job = send("POST", jobs, job).await;
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "job",
            "uid": job["metadata"]["uid"], "controller": true});
        let pods = "/api/v1/namespaces/default/pods";
        for (name, owners) in [
            ("counted", json!([owner])),
            ("other", json!([])),
            ("last", json!([])),
        ] {
            let metadata = json!({"name": name, "ownerReferences": owners});
            send("POST", pods, json!({"metadata": metadata, "spec": spec})).await;
        }
        let end = async |name: &str| {
            let status = json!({"status": {"phase": "Failed"}});
            send("PATCH", &format!("{pods}/{name}/status"), status).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            let exists = |name: &&str| {
                let key = Key::new("default", *name);
                server
                    .store()
                    .get(&TableId::new("", "pods"), &key)
                    .is_some()
            };
            ["counted", "other", "last"]
                .into_iter()
                .filter(exists)
                .collect::<Vec<_>>()
        };
        assert_eq!(end("counted").await, ["counted", "other", "last"]);
        assert_eq!(end("other").await, ["counted", "last"]);
        send(
            "DELETE",
            &format!("{jobs}/job?propagationPolicy=Background"),
            json!({}),
        )
        .await;
        assert_eq!(end("last").await, ["last"]);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_of_missing_node_are_deleted_after_delay() {
        let server = open(12_500).await;
        let send = async |method: &str, path: &str, body: Value| {
            answer(&server, method, &format!("/api/v1/{path}"), body).await
        };
        let node = async |name: &str| {
            send("POST", "nodes", json!({"metadata": {"name": name}})).await;
        };
        let remaining = || -> Vec<String> {
            let present = |name: &str| {
                let key = Key::new("default", name);
                server
                    .store()
                    .get(&TableId::new("", "pods"), &key)
                    .is_some()
            };
            let names = ["stays", "free", "lost", "returns"];
            names
                .into_iter()
                .filter(|n| present(n))
                .map(str::to_owned)
                .collect()
        };
        let wait = async |seconds: u64| tokio::time::sleep(Duration::from_secs(seconds)).await;
        node("a").await;
        for (name, on) in [
            ("stays", "a"),
            ("free", ""),
            ("lost", "b"),
            ("returns", "c"),
        ] {
            let spec = json!({"nodeName": on, "containers": [{"name": "c", "image": "i"}]});
            let pod = json!({"metadata": {"name": name}, "spec": spec});
            send("POST", "namespaces/default/pods", pod).await;
        }
        wait(10).await;
        node("c").await;
        wait(10).await;
        // The node existed in between: the time starts again.
        send("DELETE", "nodes/c", json!({})).await;
        wait(19).await;
        assert_eq!(remaining(), ["stays", "free", "lost", "returns"]);
        wait(2).await;
        assert_eq!(remaining(), ["stays", "free", "returns"]);
        wait(18).await;
        assert_eq!(remaining(), ["stays", "free", "returns"]);
        wait(2).await;
        assert_eq!(remaining(), ["stays", "free"]);
    }
}
