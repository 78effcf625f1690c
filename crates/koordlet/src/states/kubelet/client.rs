//! Talking to the kubelet.

use super::Config;
use crate::metrics::Metrics;
use crate::options::Kubelet as Options;
use crate::states::{Malformed, NodeInfo, States};
use k8s_openapi::api::core::v1::{Node, Pod, Volume};
use koord_api::lenient::ReadError;
use koord_kube::{Client, endpoint};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::time::{Instant, timeout};

/// Where a pod finds its credentials.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The object that complaints about its answers are filed under.
const OBJECT: &str = "kubelet";

/// The kubelet's port where the Node object names none.
const DEFAULT_PORT: u16 = 10250;

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
    #[error("kubelet {url}{path}: {problem}")]
    Request {
        /// Which kubelet.
        url: String,
        /// What it was asked for.
        path: &'static str,
        /// What happened.
        problem: String,
    },
    /// The answer is not what it should be.
    #[error("kubelet {url}{path}: {problem}")]
    Answer {
        /// Which kubelet.
        url: String,
        /// What it was asked for.
        path: &'static str,
        /// What is wrong with it.
        problem: ReadError,
    },
}

/// One kubelet, with the connection to it while it answers.
pub(super) struct Kubelet {
    options: Options,
    states: Arc<States>,
    /// For the Node object, where the informer does not have it yet.
    api: Client,
    node: String,
    token: PathBuf,
    connection: Option<Connection>,
    metrics: Metrics,
}

#[derive(Clone)]
struct Connection {
    url: String,
    client: Client,
}

impl Kubelet {
    pub(super) fn new(
        options: Options,
        states: Arc<States>,
        api: Client,
        node: String,
        metrics: Metrics,
    ) -> Self {
        Self {
            options,
            states,
            api,
            node,
            token: TOKEN.into(),
            connection: None,
            metrics,
        }
    }

    /// The same, with the token of another file.
    #[cfg(test)]
    pub(super) fn with_token(mut self, token: &std::path::Path) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// Whether the last request was answered.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// The pods it knows. One that cannot be read is left out and named in the complaints.
    pub(super) async fn pods(&mut self) -> Result<Vec<Pod>, KubeletError> {
        const PATH: &str = "/pods";
        let (url, text) = self.get(PATH).await?;
        let (pods, malformed) = read_pods(&text).map_err(|problem| KubeletError::Answer {
            url,
            path: PATH,
            problem,
        })?;
        self.states
            .complaints
            .replace(&format!("{OBJECT} {PATH}"), malformed);
        Ok(pods)
    }

    /// Its configuration.
    pub(super) async fn config(&mut self) -> Result<Config, KubeletError> {
        const PATH: &str = "/configz";
        let (url, text) = self.get(PATH).await?;
        let (config, malformed) = Config::read(&text).map_err(|problem| KubeletError::Answer {
            url,
            path: PATH,
            problem,
        })?;
        self.states
            .complaints
            .replace(&format!("{OBJECT} {PATH}"), malformed);
        Ok(config)
    }

    /// Its URL and its answer. Forgets the connection when there is none.
    async fn get(&mut self, path: &'static str) -> Result<(String, String), KubeletError> {
        let fresh = self.connection.is_none();
        match self.try_get(path).await {
            // A token that was replaced meanwhile: a new client reads the new one.
            Err((error, true)) if !fresh => {
                tracing::debug!(%error, "kubelet is asked again with a new token");
                self.connection = None;
                self.try_get(path).await
            }
            other => other,
        }
        .map_err(|(error, _)| {
            self.connection = None;
            error
        })
    }

    /// An error tells whether the kubelet did not accept the token.
    async fn try_get(
        &mut self,
        path: &'static str,
    ) -> Result<(String, String), (KubeletError, bool)> {
        let Connection { url, client } = match &self.connection {
            Some(connection) => connection.clone(),
            None => {
                let connection = self.connect().await.map_err(|error| (error, false))?;
                self.connection = Some(connection.clone());
                connection
            }
        };
        let failed = |problem: String| KubeletError::Request {
            url: url.clone(),
            path,
            problem,
        };
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(|error| (failed(error.to_string()), false))?;
        let limit = self.options.timeout;
        let began = Instant::now();
        let answer = timeout(limit, client.request_text(request)).await;
        let code = match &answer {
            Ok(Ok(_)) => 200,
            Ok(Err(koord_kube::Error::Api(status))) => status.code,
            _ => 0,
        };
        let seconds = began.elapsed().as_secs_f64();
        self.metrics.kubelet_request("get", path, code, seconds);
        match answer {
            Ok(Ok(text)) => Ok((url, text)),
            Ok(Err(error)) => Err((failed(error.to_string()), code == 401)),
            Err(_) => Err((failed(format!("no answer within {limit:?}")), false)),
        }
    }

    async fn connect(&self) -> Result<Connection, KubeletError> {
        let url = match &self.options.url {
            Some(url) => url.clone(),
            None => self.url_of_node().await?,
        };
        let token = Some(self.token.as_path()).filter(|path| path.exists());
        let client = endpoint::connect(&url, token, self.options.timeout)?;
        Ok(Connection { url, client })
    }

    async fn url_of_node(&self) -> Result<String, KubeletError> {
        let known = self.states.node.load_full();
        let known = known.filter(|node| !node.addresses.is_empty());
        let node = match known {
            Some(node) => node,
            None => {
                let api: koord_kube::Api<Node> = koord_kube::Api::all(self.api.clone());
                let node = api.get(&self.node).await;
                let node = node.map_err(|source| KubeletError::Node {
                    node: self.node.clone(),
                    source: Box::new(source),
                })?;
                Arc::new(NodeInfo::of(&node))
            }
        };
        url_of(&self.options, &node)
    }
}

/// Where the kubelet of `node` listens.
pub(super) fn url_of(options: &Options, node: &NodeInfo) -> Result<String, KubeletError> {
    let wanted = match options.address_type.as_str() {
        known @ ("Hostname" | "InternalDNS" | "ExternalDNS" | "ExternalIP") => known,
        _ => "InternalIP",
    };
    let address = node.addresses.iter().find(|(kind, _)| kind == wanted);
    let Some((_, address)) = address.filter(|(_, address)| !address.is_empty()) else {
        return Err(KubeletError::Address {
            node: node.name.clone(),
            address_type: wanted.to_owned(),
        });
    };
    let host = if address.contains(':') {
        format!("[{address}]")
    } else {
        address.clone()
    };
    if options.insecure {
        return Ok(format!("http://{host}:{}", options.read_only_port));
    }
    let port = node.kubelet_port.filter(|port| *port > 0);
    Ok(format!("https://{host}:{}", port.unwrap_or(DEFAULT_PORT)))
}

/// A pod without what [`PodInfo`](crate::states::PodInfo) does not look at and what makes most of its
/// size. Dropped pod by pod: a whole list of 250 pods takes several times the memory of the agent's
/// own state.
struct Lean(Pod);

impl<'de> serde::Deserialize<'de> for Lean {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut pod = Pod::deserialize(deserializer)?;
        pod.metadata.managed_fields = None;
        if let Some(spec) = &mut pod.spec {
            for volume in spec.volumes.iter_mut().flatten() {
                // What kind it is, not what is in it.
                *volume = Volume {
                    name: std::mem::take(&mut volume.name),
                    persistent_volume_claim: volume.persistent_volume_claim.take(),
                    ephemeral: volume.ephemeral.as_ref().map(|_| Default::default()),
                    csi: volume.csi.as_ref().map(|_| Default::default()),
                    ..Volume::default()
                };
            }
            spec.affinity = None;
            spec.tolerations = None;
            let init = spec.init_containers.iter_mut().flatten();
            for container in spec.containers.iter_mut().chain(init) {
                container.args = None;
                container.command = None;
                container.env = None;
                container.lifecycle = None;
                container.liveness_probe = None;
                container.readiness_probe = None;
                container.startup_probe = None;
                container.volume_mounts = None;
            }
        }
        if let Some(status) = &mut pod.status {
            status.conditions = None;
        }
        Ok(Self(pod))
    }
}

/// The pods of a list, and what is wrong with those that cannot be read.
pub(super) fn read_pods(text: &str) -> Result<(Vec<Pod>, Vec<Malformed>), ReadError> {
    #[derive(serde::Deserialize)]
    struct List<T> {
        #[serde(default = "Vec::new")]
        items: Vec<T>,
    }
    if let Ok(list) = serde_json::from_str::<List<Lean>>(text) {
        return Ok((
            list.items.into_iter().map(|lean| lean.0).collect(),
            Vec::new(),
        ));
    }
    // One by one, which costs more: something is wrong.
    let value: Value =
        serde_json::from_str(text).map_err(|error| ReadError::Syntax(error.to_string()))?;
    let field = |message: &str| ReadError::Field {
        path: "items".to_owned(),
        message: message.to_owned(),
    };
    let items = match value.get("items") {
        Some(Value::Array(items)) => items.as_slice(),
        Some(Value::Null) => &[],
        Some(_) => return Err(field("is no list")),
        None => return Err(field("is missing")),
    };
    let (mut pods, mut malformed) = (Vec::with_capacity(items.len()), Vec::new());
    for (at, item) in items.iter().enumerate() {
        match serde_json::from_value::<Pod>(item.clone()) {
            Ok(pod) => pods.push(pod),
            Err(error) => {
                let name = |key: &str| {
                    let name = item.pointer(&format!("/metadata/{key}"));
                    name.and_then(Value::as_str).unwrap_or_default()
                };
                let value = format!("{}/{}", name("namespace"), name("name"));
                malformed.push(Malformed::new(format!("items[{at}]"), value, &error));
            }
        }
    }
    Ok((pods, malformed))
}
