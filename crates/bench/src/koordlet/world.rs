//! The cluster around the agent: an API server with the objects of one node, and its kubelet.

use super::fixture::Machine;
use super::{kubelet, objects};
use anyhow::{Context as _, Result};
use koord_kube::Client;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Where the manager keeps the node's objects of Koordinator.
const SLO_API: &str = "/apis/slo.koordinator.sh/v1alpha1";

const MERGE_PATCH: &str = "application/merge-patch+json";

/// A running cluster.
pub(crate) struct World {
    kubeconfig: PathBuf,
    client: Client,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    /// Starts it, and writes its kubeconfig into `directory`.
    ///
    /// # Errors
    /// When a server does not start or an object is refused.
    pub(crate) async fn start(directory: &Path, pods: Vec<Value>, node_slo: Value) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let kubeconfig = directory.join("kubeconfig");
        let stop = CancellationToken::new();
        let (server, serving) = crate::api_server(&kubeconfig, &stop).await?;
        let world = Self {
            kubeconfig,
            client: koord_kube::client::in_process(server.service()),
            stop,
            serving,
        };
        world.fill(directory, pods, node_slo).await?;
        Ok(world)
    }

    async fn fill(&self, directory: &Path, pods: Vec<Value>, node_slo: Value) -> Result<()> {
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods});
        let kubelet = self.stop.child_token();
        let port = kubelet::serve(
            &list,
            &objects::configz(),
            &directory.join(kubelet::DIRECTORY),
            kubelet,
        )
        .await?;
        let node = objects::node(pods.len(), Machine::this(), port);
        self.create("/api/v1/nodes", node).await?;
        self.create(&format!("{SLO_API}/nodeslos"), node_slo)
            .await?;
        let metric = objects::node_metric();
        self.create(&format!("{SLO_API}/nodemetrics"), metric)
            .await?;
        let namespace = json!({"metadata": {"name": objects::NAMESPACE}});
        self.create("/api/v1/namespaces", namespace).await?;
        for class in objects::priority_classes() {
            self.create("/apis/scheduling.k8s.io/v1/priorityclasses", class)
                .await?;
        }
        let path = format!("/api/v1/namespaces/{}/pods", objects::NAMESPACE);
        for mut pod in pods {
            // What the API server sets itself.
            for (part, name) in [
                ("spec", "priority"),
                ("spec", "preemptionPolicy"),
                ("metadata", "uid"),
                ("metadata", "resourceVersion"),
                ("metadata", "creationTimestamp"),
            ] {
                if let Some(object) = pod[part].as_object_mut() {
                    object.remove(name);
                }
            }
            self.create(&path, pod).await?;
        }
        Ok(())
    }

    /// Changes the NodeSLO by a merge patch of its `spec`.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn patch_node_slo(&self, spec: Value) -> Result<()> {
        let path = format!("{SLO_API}/nodeslos/{}", objects::NODE);
        let patch = http::Request::patch(path).header("content-type", MERGE_PATCH);
        let patch = patch.body(json!({"spec": spec}).to_string().into())?;
        let _: Value = self.client.request(patch).await.context("NodeSLO")?;
        Ok(())
    }

    /// Creates an object, and writes its status where it has one.
    async fn create(&self, path: &str, object: Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let post = http::Request::post(path).header("content-type", "application/json");
        let made: Result<Value, _> = self
            .client
            .request(post.body(object.to_string().into())?)
            .await;
        made.with_context(|| format!("creating {path}/{name}"))?;
        let Some(status) = object.get("status") else {
            return Ok(());
        };
        let patch = http::Request::patch(format!("{path}/{name}/status"))
            .header("content-type", MERGE_PATCH);
        let patch = patch.body(json!({"status": status}).to_string().into())?;
        let patched: Result<Value, _> = self.client.request(patch).await;
        patched.with_context(|| format!("writing the status of {path}/{name}"))?;
        Ok(())
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// How many pods the NodeMetric tells of; `None` when none was reported.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) async fn pods_reported(&self) -> Result<Option<usize>> {
        let path = format!("{SLO_API}/nodemetrics/{}", objects::NODE);
        let get = http::Request::get(path).body(Vec::new())?;
        let metric: Value = self.client.request(get).await?;
        let reported = metric["status"]["updateTime"].is_string();
        let pods = metric["status"]["podsMetric"].as_array();
        Ok(reported.then(|| pods.map_or(0, Vec::len)))
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        // A client that keeps its connection open is not waited for.
        let end = std::time::Duration::from_secs(2);
        let _ = tokio::time::timeout(end, &mut self.serving).await;
    }
}
