//! Client of the kubelet's API.

use super::Config;
use super::metrics::KubeletMetrics;
use super::options::Kubelet as Options;
use super::split::Splitter;
use crate::states::{Malformed, NodeInfo, States};
use futures::AsyncBufReadExt as _;
use k8s_openapi::api::core::v1::Node;
use koord_api::lenient::ReadError;
use koord_kube::failure_log::causes;
use koord_kube::{Client, endpoint};
use serde_json::Value;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::{Instant, timeout};

/// Path of a pod's service account token.
pub(crate) const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Object under which malformed responses are reported.
const OBJECT: &str = "kubelet";

/// Port of the kubelet if the Node object has none.
const DEFAULT_PORT: u16 = 10250;

/// Error of a request to the kubelet.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A client cannot be created.
    #[error("kubelet: {0}")]
    Endpoint(#[from] endpoint::EndpointError),
    /// The Node object cannot be read.
    #[error("kubelet: node {node}: {source}")]
    Node {
        /// The node.
        node: String,
        /// Error of the API server.
        source: Box<koord_kube::Error>,
    },
    /// The Node object has no address of the requested type.
    #[error("node {node} has no address of type {address_type}")]
    Address {
        /// The node.
        node: String,
        /// Requested address type.
        address_type: String,
    },
    /// The request failed.
    #[error("kubelet {url}{path}: {problem}")]
    Request {
        /// URL of the kubelet.
        url: String,
        /// Path of the request.
        path: &'static str,
        /// Cause.
        problem: String,
    },
    /// The response is invalid.
    #[error("kubelet {url}{path}: {problem}")]
    Answer {
        /// URL of the kubelet.
        url: String,
        /// Path of the request.
        path: &'static str,
        /// Cause.
        problem: ReadError,
    },
}

/// Client of one kubelet, with the connection while requests succeed.
pub(super) struct KubeletClient {
    options: Options,
    states: Arc<States>,
    /// Client for the Node object if the informer has not received it yet.
    api: Client,
    node: String,
    token: PathBuf,
    connection: Option<Connection>,
    metrics: KubeletMetrics,
}

#[derive(Clone)]
struct Connection {
    url: String,
    client: Client,
}

impl KubeletClient {
    pub(super) fn new(
        options: Options,
        states: Arc<States>,
        api: Client,
        node: String,
        metrics: KubeletMetrics,
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

    /// Returns the client with the token of another file.
    #[cfg(test)]
    pub(super) fn with_token(mut self, token: &std::path::Path) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// Returns whether the last request succeeded.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Passes each pod of the kubelet to `read`, as JSON, while the list arrives. A pod that cannot be parsed
    /// is skipped and reported as malformed input.
    pub(super) async fn pods(
        &mut self,
        mut read: impl FnMut(&[u8]) -> serde_json::Result<()>,
    ) -> Result<(), KubeletError> {
        const PATH: &str = "/pods";
        let mut splitter = Splitter::default();
        let (mut count, mut malformed, mut broken) = (0, Vec::new(), None);
        let mut read_item = |text: &[u8]| {
            if let Err(error) = read(text) {
                if error.is_data() {
                    malformed.push(unreadable(count, text, &error));
                } else {
                    broken.get_or_insert(ReadError::Syntax(error.to_string()));
                }
            }
            count += 1;
        };
        let mut problem = None;
        let url = self
            .get(PATH, |part| {
                if problem.is_none() {
                    problem = splitter.feed(part, &mut read_item).err();
                }
            })
            .await?;
        let problem = problem.or(broken).or_else(|| splitter.finish().err());
        if let Some(problem) = problem {
            return Err(KubeletError::Answer {
                url,
                path: PATH,
                problem,
            });
        }
        self.states
            .malformed_inputs
            .replace(&format!("{OBJECT} {PATH}"), malformed);
        Ok(())
    }

    /// Returns the kubelet's configuration.
    pub(super) async fn config(&mut self) -> Result<Config, KubeletError> {
        const PATH: &str = "/configz";
        let mut text = Vec::new();
        let url = self.get(PATH, |part| text.extend(part)).await?;
        let text = String::from_utf8_lossy(&text);
        let (config, malformed) = Config::read(&text).map_err(|problem| KubeletError::Answer {
            url,
            path: PATH,
            problem,
        })?;
        self.states
            .malformed_inputs
            .replace(&format!("{OBJECT} {PATH}"), malformed);
        Ok(config)
    }

    /// Passes the parts of the response body to `each`, and returns the kubelet's URL. Drops the connection
    /// after a failure.
    async fn get(
        &mut self,
        path: &'static str,
        mut each: impl FnMut(&[u8]),
    ) -> Result<String, KubeletError> {
        let fresh = self.connection.is_none();
        match self.try_get(path, &mut each).await {
            // The token was replaced meanwhile: a new client reads the new one. This error comes before
            // any content, so `each` was not called.
            Err((error, true)) if !fresh => {
                tracing::debug!(%error, "retrying kubelet request with a new token");
                self.connection = None;
                self.try_get(path, &mut each).await
            }
            other => other,
        }
        .map_err(|(error, _)| {
            self.connection = None;
            error
        })
    }

    /// Sends one request. The flag in the error is true if the kubelet did not accept the token.
    async fn try_get(
        &mut self,
        path: &'static str,
        each: &mut impl FnMut(&[u8]),
    ) -> Result<String, (KubeletError, bool)> {
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
        let mut code = 0;
        let answer = async {
            let body = client.request_stream(request).await;
            let mut body = pin!(body.map_err(|error| {
                if let koord_kube::Error::Api(status) = &error {
                    code = status.code;
                }
                causes(&error)
            })?);
            loop {
                let part = body.fill_buf().await.map_err(|error| causes(&error))?;
                if part.is_empty() {
                    code = 200;
                    return Ok(());
                }
                let length = part.len();
                each(part);
                body.consume_unpin(length);
            }
        };
        let answer = timeout(limit, answer).await;
        let seconds = began.elapsed().as_secs_f64();
        self.metrics.record("get", path, code, seconds);
        match answer {
            Ok(Ok(())) => Ok(url),
            Ok(Err(error)) if code == 403 => {
                let resource = path.trim_start_matches('/');
                let rule =
                    format!("{{apiGroups: [\"\"], resources: [nodes/{resource}], verbs: [get]}}");
                let problem = format!(
                    "{error}; a role lacks the rule {rule} (before Kubernetes 1.33: nodes/proxy)"
                );
                Err((failed(problem), false))
            }
            Ok(Err(error)) => Err((failed(error), code == 401)),
            Err(_) => Err((failed(format!("no answer within {limit:?}")), false)),
        }
    }

    async fn connect(&self) -> Result<Connection, KubeletError> {
        let url = match &self.options.url {
            Some(url) => url.clone(),
            None => self.url_of_node().await?,
        };
        let token = Some(self.token.as_path()).filter(|path| path.exists());
        let client = endpoint::connect(&url, &self.options.trust, token, self.options.timeout)?;
        Ok(Connection { url, client })
    }

    /// Returns the URL of the kubelet, from the node of the informer or, if that has no addresses, of the API server.
    async fn url_of_node(&self) -> Result<String, KubeletError> {
        let listed = self.states.node.load_full();
        let listed = listed.filter(|node| !node.addresses.is_empty());
        let node = match listed {
            Some(node) => node,
            None => {
                let api: koord_kube::Api<Node> = koord_kube::Api::all(self.api.clone());
                let node = api.get(&self.node).await;
                let node = node.map_err(|source| KubeletError::Node {
                    node: self.node.clone(),
                    source: Box::new(source),
                })?;
                Arc::new(NodeInfo::from_node(&node))
            }
        };
        url_of(&self.options, &node)
    }
}

/// Returns the URL of the kubelet of `node`.
pub(crate) fn url_of(options: &Options, node: &NodeInfo) -> Result<String, KubeletError> {
    let address_type = match options.address_type.as_str() {
        known @ ("Hostname" | "InternalDNS" | "ExternalDNS" | "ExternalIP") => known,
        _ => "InternalIP",
    };
    let address = node.addresses.iter().find(|(kind, _)| kind == address_type);
    let Some((_, address)) = address.filter(|(_, address)| !address.is_empty()) else {
        return Err(KubeletError::Address {
            node: node.name.clone(),
            address_type: address_type.to_owned(),
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

/// Returns the report of the malformed pod at index `at` of a list.
fn unreadable(at: usize, text: &[u8], error: &serde_json::Error) -> Malformed {
    let item: Value = serde_json::from_slice(text).unwrap_or_default();
    let name = |key: &str| {
        let name = item.pointer(&format!("/metadata/{key}"));
        name.and_then(Value::as_str).unwrap_or_default()
    };
    let value = format!("{}/{}", name("namespace"), name("name"));
    Malformed::new(format!("items[{at}]"), value, error)
}
