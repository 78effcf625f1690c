//! Writes of a start before the components run. Until the data directory is writable, its old content is
//! served.

use super::Options;
use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Taint};
use koord_apiserver::ApiServer;
use koord_app::Clock;
use koord_cluster::objects::first_objects;
use koord_cluster::webhooks;
use koord_kube::api::{DeleteParams, ListParams};
use koord_kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Interval of retries to write to a read-only or full data directory.
const RETRY: Duration = Duration::from_secs(5);

/// The API server, and the inputs of its start.
pub(super) struct Startup<'a> {
    pub(super) server: &'a Arc<ApiServer>,
    pub(super) client: &'a Client,
    pub(super) clock: &'a Clock,
    pub(super) options: &'a Options,
}

impl Startup<'_> {
    /// Writes the first objects, then serves `listener` until `stop`. If the disk is full, it is served at once, and the
    /// objects are written when there is room.
    ///
    /// # Errors
    /// The objects are refused for another reason.
    pub(super) async fn run(
        &self,
        listener: TcpListener,
        stop: &CancellationToken,
    ) -> Result<(
        koord_manager::Options,
        JoinHandle<Result<(), koord_apiserver::Error>>,
    )> {
        let serve = |listener| {
            let (server, stop) = (self.server.clone(), stop.clone());
            tokio::spawn(async move { server.serve(listener, stop).await })
        };
        let error = match self.write().await {
            Ok(manager) => return Ok((manager, serve(listener))),
            Err(error) => error,
        };
        let Some(failure) = self.server.store().last_error() else {
            return Err(error);
        };
        let address = listener.local_addr()?;
        tracing::error!(
            %address, error = failure,
            "failed to write to the data directory: serving its old content, no component starts before a write succeeds"
        );
        let serving = serve(listener);
        loop {
            tokio::time::sleep(RETRY).await;
            match self.write().await {
                Ok(manager) => {
                    tracing::info!("writes to the data directory resumed");
                    return Ok((manager, serving));
                }
                Err(error) => {
                    tracing::debug!(error = %format!("{error:#}"), "failed to write the first objects")
                }
            }
        }
    }

    /// Writes CRDs, first objects and webhooks, and returns the options of the manager.
    async fn write(&self) -> Result<koord_manager::Options> {
        let Self {
            server,
            client,
            options,
            ..
        } = self;
        server.install_crds(koord_api::crd_values()).await?;
        let managed = options.components.enabled("manager");
        // The webhooks of another manager are left alone.
        if managed {
            webhooks::disconnect(client).await?;
        }
        first_objects(client, &options.slo_config).await?;
        let mut manager = koord_manager::Options::default();
        // Its webhook adds gpu.shared to pods that name koordinator.sh/gpu-core and the like; without the
        // gate no node offers any.
        let shared = options.device_files.is_some();
        manager.gates.set("EnableSyncGPUSharedResource", shared);
        if managed {
            manager.webhooks = webhooks::connect(server, client, &manager.gates).await?;
        }
        self.prepare_nodes().await?;
        Ok(manager)
    }

    /// Removes or resets nodes of an earlier start. They would look ready until their leases expire, and
    /// receive pods that never run: simulated nodes that are not started again are deleted, and all others
    /// are not ready until they report. This machine's node gets the taint of this start.
    async fn prepare_nodes(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let existing = nodes.list(&ListParams::default()).await?;
        let now = self.clock.now();
        for node in existing {
            let name = node.name_any();
            if koord_sim::is_surplus(&node, self.options.simulated_nodes) {
                nodes.delete(&name, &DeleteParams::default()).await?;
                tracing::info!(node = %name, "removed a node simulated by an earlier start");
            } else if !koord_sim::is_simulated(&node) {
                if let Some(taints) = changed_taints(&node, self.options.taints_host()) {
                    let change = json!({"spec": {"taints": taints}});
                    koord_kube::patch::merge(&nodes, &name, &change).await?;
                }
                let condition = json!({"status": {"conditions": [{
                    "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                    "message": "koord up was started again and has not heard of this node",
                    "lastTransitionTime": now,
                }]}});
                koord_kube::patch::strategic_status(&nodes, &name, &condition).await?;
            }
        }
        Ok(())
    }
}

/// Returns the taints of a host node with [`koord_node::host_taint`] added or removed, as `tainted` demands; `None`
/// if they are correct already, or the node is no host node.
fn changed_taints(node: &Node, tainted: bool) -> Option<Vec<Taint>> {
    if !node.labels().contains_key(koord_node::HOST_LABEL) {
        return None;
    }
    let taint = koord_node::host_taint();
    let spec = node.spec.as_ref();
    let mut taints = spec
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let is_host = |other: &Taint| other.key == taint.key && other.effect == taint.effect;
    if taints.iter().any(is_host) == tainted {
        return None;
    }
    if tainted {
        taints.push(taint);
    } else {
        taints.retain(|other| !is_host(other));
    }
    Some(taints)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn host_taint_follows_the_start_and_others_stay() {
        let node = |labels: Value, taints: &[Taint]| -> Node {
            let node = json!({"metadata": {"labels": labels}, "spec": {"taints": taints}});
            serde_json::from_value(node).unwrap()
        };
        let host = json!({koord_node::HOST_LABEL: "true"});
        let taint = koord_node::host_taint();
        let other = Taint {
            key: "k".to_owned(),
            ..taint.clone()
        };
        let all_taints = [other.clone(), taint];
        for (labels, taints, tainted, expected) in [
            (&host, &all_taints[..1], true, Some(all_taints.to_vec())),
            (&host, &all_taints, true, None),
            (&host, &all_taints, false, Some(vec![other])),
            (&host, &all_taints[..1], false, None),
            (&json!({}), &all_taints, false, None),
            (&json!({}), &[], true, None),
        ] {
            let changed = changed_taints(&node(labels.clone(), taints), tainted);
            assert_eq!(changed, expected, "{taints:?} {tainted}");
        }
    }
}
