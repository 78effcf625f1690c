//! The cluster around the agent: an API server with the objects of one node, and its kubelet.

use super::fixture::MachineSize;
use super::{kubelet, objects};
use crate::local_server::LocalServer;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;

/// API group version of the node's Koordinator objects.
const SLO_API: &str = "/apis/slo.koordinator.sh/v1alpha1";

/// A running cluster.
pub(crate) struct World {
    local: LocalServer,
}

impl World {
    /// Starts it, and writes its kubeconfig into `directory`.
    ///
    /// # Errors
    /// When a server does not start or an object is refused.
    pub(crate) async fn start(directory: &Path, pods: Vec<Value>, node_slo: Value) -> Result<Self> {
        let world = Self {
            local: LocalServer::start(directory).await?,
        };
        world.fill(directory, pods, node_slo).await?;
        Ok(world)
    }

    /// Creates the node's objects, and starts the kubelet.
    async fn fill(&self, directory: &Path, pods: Vec<Value>, node_slo: Value) -> Result<()> {
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods});
        let kubelet = self.local.stop.child_token();
        let port = kubelet::serve(
            &list,
            &objects::configz(),
            &directory.join(kubelet::DIRECTORY),
            kubelet,
        )
        .await?;
        let node = objects::node(pods.len(), MachineSize::this(), port);
        self.local.create("/api/v1/nodes", node).await?;
        self.local
            .create(&format!("{SLO_API}/nodeslos"), node_slo)
            .await?;
        let metric = objects::node_metric();
        self.local
            .create(&format!("{SLO_API}/nodemetrics"), metric)
            .await?;
        let namespace = json!({"metadata": {"name": objects::NAMESPACE}});
        self.local.create("/api/v1/namespaces", namespace).await?;
        for class in objects::priority_classes() {
            self.local
                .create("/apis/scheduling.k8s.io/v1/priorityclasses", class)
                .await?;
        }
        let path = format!("/api/v1/namespaces/{}/pods", objects::NAMESPACE);
        for pod in pods {
            let pod = objects::without_server_fields(pod);
            self.local.create(&path, pod).await?;
        }
        Ok(())
    }

    /// Changes the NodeSLO by a merge patch of its `spec`.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn patch_node_slo(&self, spec: Value) -> Result<()> {
        let path = format!("{SLO_API}/nodeslos/{}", objects::NODE);
        self.local.patch(&path, &json!({"spec": spec})).await
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.local.kubeconfig
    }

    /// Returns the number of pods in the NodeMetric; `None` when none was reported.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) async fn pods_reported(&self) -> Result<Option<usize>> {
        let path = format!("{SLO_API}/nodemetrics/{}", objects::NODE);
        let get = http::Request::get(path).body(Vec::new())?;
        let metric: Value = self.local.client.request(get).await?;
        let reported = metric["status"]["updateTime"].is_string();
        let pods = metric["status"]["podsMetric"].as_array();
        Ok(reported.then(|| pods.map_or(0, Vec::len)))
    }

    pub(crate) async fn stop(self) {
        self.local.stop().await;
    }
}
