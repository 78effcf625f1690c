//! Pods from the kubelet's `/pods`, polled.

mod config;

pub use config::Config;

use super::{Layout, States};
use crate::options::Kubelet;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_kube::Client;
use koord_kube::endpoint;
use std::path::Path;
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// Where a pod finds its credentials.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Why the kubelet cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// No client can be made for it.
    #[error("kubelet: {0}")]
    Endpoint(#[from] endpoint::EndpointError),
    /// The Node object cannot be read.
    #[error("kubelet: node {node}: {source}")]
    Node {
        /// The node.
        node: String,
        /// What the API server said.
        source: Box<koord_kube::Error>,
    },
    /// The Node object names no address of the wanted type.
    #[error("node {node} has no address of type {address_type}")]
    Address {
        /// The node.
        node: String,
        /// The wanted type.
        address_type: String,
    },
    /// The request failed.
    #[error("kubelet {url}: {problem}")]
    Request {
        /// Which kubelet.
        url: String,
        /// What happened.
        problem: String,
    },
}

/// Polls the kubelet and publishes what it says.
pub(crate) struct Poll {
    options: Kubelet,
    layout: Layout,
    states: Arc<States>,
    client: Client,
    node: String,
}

impl Poll {
    pub(crate) fn new(
        options: Kubelet,
        layout: Layout,
        states: Arc<States>,
        client: Client,
        node: String,
    ) -> Self {
        Self {
            options,
            layout,
            states,
            client,
            node,
        }
    }

    /// Polls until `shutdown`. A failure, or an empty list (a kubelet that has just started), keeps
    /// the last known pods.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        if self.options.interval.is_zero() {
            tracing::warn!(field = "kubelet-sync-interval", "is 0: pods are not read");
            return;
        }
        let work = async {
            let mut timer = interval(self.options.interval);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut kubelet = None;
            let mut last_error = String::new();
            loop {
                timer.tick().await;
                match self.poll(&mut kubelet).await {
                    Ok(()) => last_error.clear(),
                    Err(error) => {
                        kubelet = None;
                        let text = error.to_string();
                        if text != last_error {
                            tracing::warn!(error = %text, "pods could not be read");
                            last_error = text;
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
    }

    async fn poll(&self, kubelet: &mut Option<(String, Client)>) -> Result<(), KubeletError> {
        if kubelet.is_none() {
            let url = match &self.options.url {
                Some(url) => url.clone(),
                None => self.url_of_node().await?,
            };
            let token = Some(Path::new(TOKEN)).filter(|path| path.exists());
            let client = endpoint::connect(&url, token, self.options.timeout)?;
            *kubelet = Some((url, client));
        }
        let Some((url, client)) = kubelet.as_ref() else {
            return Ok(());
        };
        let failed = |problem: String| KubeletError::Request {
            url: url.clone(),
            problem,
        };
        let request = http::Request::get("/pods")
            .body(Vec::new())
            .map_err(|e| failed(e.to_string()))?;
        let list = timeout(self.options.timeout, client.request::<List<Pod>>(request))
            .await
            .map_err(|_| failed(format!("no answer within {:?}", self.options.timeout)))?
            .map_err(|error| failed(error.to_string()))?;
        if !list.items.is_empty() {
            let layout = self.states.layout_or(&self.layout);
            self.states
                .publish_pods(list.items.iter(), &layout, |_| false);
        }
        Ok(())
    }

    async fn url_of_node(&self) -> Result<String, KubeletError> {
        let api: koord_kube::Api<Node> = koord_kube::Api::all(self.client.clone());
        let node = api
            .get(&self.node)
            .await
            .map_err(|source| KubeletError::Node {
                node: self.node.clone(),
                source: Box::new(source),
            })?;
        let status = node.status.unwrap_or_default();
        let wanted = match self.options.address_type.as_str() {
            known @ ("Hostname" | "InternalDNS" | "ExternalDNS" | "ExternalIP") => known,
            _ => "InternalIP",
        };
        let address = status
            .addresses
            .iter()
            .flatten()
            .find(|address| address.type_ == wanted)
            .map(|address| address.address.clone())
            .ok_or_else(|| KubeletError::Address {
                node: self.node.clone(),
                address_type: wanted.to_owned(),
            })?;
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address
        };
        if self.options.insecure {
            return Ok(format!("http://{host}:{}", self.options.read_only_port));
        }
        let port = status
            .daemon_endpoints
            .and_then(|endpoints| endpoints.kubelet_endpoint)
            .map_or(10250, |endpoint| endpoint.port);
        Ok(format!("https://{host}:{port}"))
    }
}
