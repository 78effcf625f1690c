//! Pods of nodes that no longer exist are deleted: no kubelet will ever do it.

use super::queue::{Again, Reconcile, Source};
use crate::rest::{Api, DeleteOptions};
use crate::store::{Entry, Key, TableId};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use koord_kinds::status::ApiError;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Deletes orphaned pods.
#[derive(Default)]
pub(super) struct PodGc(Mutex<State>);

#[derive(Default)]
struct State {
    /// Since when nodes that pods are on are known to be missing.
    missing: FxHashMap<Arc<str>, Timestamp>,
    /// No look at all pods before.
    rest: Option<Instant>,
}

/// How long a node must be gone: it may be about to register again.
const QUARANTINE: Duration = Duration::from_secs(40);
/// A look at all pods is followed by so many times as long without one.
const REST: u32 = 50;

/// All nodes in one: thousands of missing ones are found in one look at all pods, not in one each.
fn all() -> Key {
    Key::cluster("nodes")
}

fn nodes() -> TableId {
    TableId::new("", "nodes")
}

impl Reconcile for PodGc {
    fn name(&self) -> &'static str {
        "pod-garbage-collector-controller"
    }

    fn sources(&self) -> Vec<Source> {
        vec![
            Source {
                table: nodes(),
                // One that came may have been missing, one that went has left its pods.
                keys: |api, node| {
                    let came = node.created == node.revision;
                    let concerns = came || api.store().get(&nodes(), &node.key).is_none();
                    Vec::from_iter(concerns.then(all))
                },
            },
            Source {
                table: TableId::new("", "pods"),
                keys: |api, pod| {
                    let lost = node_of(pod).is_some_and(|node| !exists(api, node));
                    Vec::from_iter(lost.then(all))
                },
            },
        ]
    }

    fn reconcile<'a>(&'a self, api: &'a Api, _: &'a Key) -> BoxFuture<'a, Result<Again, ApiError>> {
        async move {
            let began = Instant::now();
            if let Some(rest) = self.0.lock().rest.filter(|rest| *rest > began) {
                return Ok(Some(rest - began));
            }
            let pods = api.builtin("", "v1", "pods")?;
            let found = orphans(api, &pods.table);
            let (due, next) = {
                let mut state = self.0.lock();
                state.rest = Some(Instant::now() + began.elapsed() * REST);
                state.wait(found, api.clock().now())
            };
            for pod in due {
                if node_of(&pod).is_some_and(|node| exists(api, node)) {
                    continue;
                }
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

impl State {
    /// Of the pods of missing nodes those that have waited long enough, and when to look at the others.
    fn wait(
        &mut self,
        found: FxHashMap<Arc<str>, Vec<Arc<Entry>>>,
        now: Timestamp,
    ) -> (Vec<Arc<Entry>>, Again) {
        self.missing.retain(|node, _| found.contains_key(node));
        let (mut due, mut next) = (Vec::new(), None);
        for (node, pods) in found {
            let since = *self.missing.entry(node).or_insert(now);
            let left = QUARANTINE.saturating_sub(now.duration_since(since).unsigned_abs());
            if left.is_zero() {
                due.extend(pods);
            } else {
                next = Some(next.map_or(left, |next: Duration| next.min(left)));
            }
        }
        (due, next)
    }
}

fn exists(api: &Api, node: &Arc<str>) -> bool {
    let key = Key::cluster(Arc::clone(node));
    api.store().get(&nodes(), &key).is_some()
}

fn node_of(pod: &Entry) -> Option<&Arc<str>> {
    let fields = &pod.index.fields;
    let (_, node) = fields.iter().find(|(path, _)| &**path == "spec.nodeName")?;
    Some(node).filter(|node| !node.is_empty())
}

/// The pods of nodes that do not exist, by node.
fn orphans(api: &Api, pods: &TableId) -> FxHashMap<Arc<str>, Vec<Arc<Entry>>> {
    let known = api
        .store()
        .list(&nodes(), None, None, None, None, &|_| true);
    let known = known.map(|page| page.items).unwrap_or_default();
    let known: FxHashSet<&str> = known.iter().map(|node| &*node.key.name).collect();
    let lost = |pod: &Entry| node_of(pod).is_some_and(|node| !known.contains(&**node));
    let page = api.store().list(pods, None, None, None, None, &lost);
    let mut found: FxHashMap<Arc<str>, Vec<Arc<Entry>>> = FxHashMap::default();
    for pod in page.map(|page| page.items).unwrap_or_default() {
        if let Some(node) = node_of(&pod).cloned() {
            found.entry(node).or_default().push(pod);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::store::{Key, TableId};
    use crate::{ApiServer, Config};
    use axum::body::Body;
    use http::Request;
    use koord_app::Clock;
    use serde_json::{Value, json};
    use std::time::Duration;
    use tower::ServiceExt as _;

    #[tokio::test(start_paused = true)]
    async fn pods_go_when_their_node_was_gone_for_a_while() {
        let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
        let mut config = Config::memory(clock);
        config.controllers =
            koord_app::flags::selection("pod-garbage-collector-controller").unwrap();
        let server = ApiServer::open(config).await.unwrap();
        let send = async |method: &str, path: &str, body: Value| {
            let request = Request::builder()
                .method(method)
                .uri(format!("/api/v1/{path}"))
                .header("content-type", "application/json")
                .body(Body::from(body.to_string()))
                .unwrap();
            let code = server.service().oneshot(request).await.unwrap().status();
            assert!(code.is_success(), "{method} {path}: {code}");
        };
        let node = async |name: &str| {
            send("POST", "nodes", json!({"metadata": {"name": name}})).await;
        };
        let left = || -> Vec<String> {
            let there = |name: &str| {
                let key = Key::new("default", name);
                server
                    .store()
                    .get(&TableId::new("", "pods"), &key)
                    .is_some()
            };
            let names = ["stays", "free", "lost", "returns"];
            names
                .into_iter()
                .filter(|n| there(n))
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
        // It was there again: its time counts from now.
        send("DELETE", "nodes/c", json!({})).await;
        wait(19).await;
        assert_eq!(left(), ["stays", "free", "lost", "returns"]);
        wait(2).await;
        assert_eq!(left(), ["stays", "free", "returns"]);
        wait(18).await;
        assert_eq!(left(), ["stays", "free", "returns"]);
        wait(2).await;
        assert_eq!(left(), ["stays", "free"]);
    }
}
