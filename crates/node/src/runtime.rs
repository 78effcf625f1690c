//! Connection to a container runtime, and calls to it.

use futures::FutureExt;
use futures::future::BoxFuture;
use koord_rpc::cri;
use koord_rpc::cri::image_service_client::ImageServiceClient;
use koord_rpc::cri::runtime_service_client::RuntimeServiceClient;
use koord_rpc::grpc::{self, MESSAGE_LIMIT};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Timeout of a request to the runtime, as in the kubelet.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of the requests at connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An error that prevents the use of a container runtime.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The endpoint is invalid.
    #[error("runtime endpoint {0:?} is not unix:// and the absolute path of a socket")]
    Endpoint(String),
    /// The socket has no listener.
    #[error("runtime endpoint {endpoint}: {source}")]
    Socket {
        /// The given endpoint.
        endpoint: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The server at the endpoint is not a container runtime.
    #[error("{endpoint} does not answer as a container runtime (CRI v1): {reason}")]
    NotCri {
        /// The given endpoint.
        endpoint: String,
        /// The runtime's error.
        reason: String,
    },
    /// The runtime uses another cgroup driver.
    #[error("the runtime at {0} uses the cgroup driver systemd; only cgroupfs is supported here")]
    Driver(String),
}

/// A container runtime that implements the CRI.
#[derive(Debug, Clone)]
pub struct Runtime {
    endpoint: String,
    name: String,
    version: String,
    listener: Option<PathBuf>,
    network: bool,
    channel: Channel,
}

impl Runtime {
    /// Connects to the runtime at `endpoint`, `unix:///path/of/socket`.
    ///
    /// # Errors
    /// When no server listens there, or it is not a container runtime.
    pub async fn connect(endpoint: &str) -> Result<Self, RuntimeError> {
        let path = socket(endpoint)?;
        let failed = |source| RuntimeError::Socket {
            endpoint: endpoint.to_owned(),
            source,
        };
        let stream = tokio::net::UnixStream::connect(&path)
            .await
            .map_err(failed)?;
        let listener = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let listener = listener.and_then(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok());
        drop(stream);
        let mut runtime = Self {
            endpoint: endpoint.to_owned(),
            name: String::new(),
            version: String::new(),
            listener,
            network: false,
            channel: grpc::connect(path),
        };
        let mut client = runtime.runtime();
        let request = cri::VersionRequest::default();
        let version = call_with_timeout(CONNECT_TIMEOUT, client.version(request)).await;
        let version = version.map_err(|status| runtime.not_cri(&status))?;
        if version.runtime_name.is_empty() {
            return Err(runtime.not_cri(&Status::unknown("it has no name")));
        }
        (runtime.name, runtime.version) = (version.runtime_name, version.runtime_version);
        let status = call_with_timeout(
            CONNECT_TIMEOUT,
            client.status(cri::StatusRequest::default()),
        )
        .await;
        let status = status.map_err(|status| runtime.not_cri(&status))?;
        let conditions = status.status.map(|status| status.conditions);
        let mut conditions = conditions.into_iter().flatten();
        runtime.network =
            conditions.any(|condition| condition.r#type == "NetworkReady" && condition.status);
        // Runtimes older than this request return an error.
        let config = call_with_timeout(
            CONNECT_TIMEOUT,
            client.runtime_config(cri::RuntimeConfigRequest::default()),
        )
        .await;
        let linux = config.ok().and_then(|config| config.linux);
        if linux.is_some_and(|linux| linux.cgroup_driver() == cri::CgroupDriver::Systemd) {
            return Err(RuntimeError::Driver(runtime.endpoint));
        }
        Ok(runtime)
    }

    fn not_cri(&self, status: &Status) -> RuntimeError {
        RuntimeError::NotCri {
            endpoint: self.endpoint.clone(),
            reason: status_text(status),
        }
    }

    /// Returns the endpoint as given to [`Runtime::connect`].
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the path of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        let path = self.endpoint.strip_prefix("unix://");
        Path::new(path.unwrap_or(&self.endpoint))
    }

    /// Returns its name, `containerd` for example.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns name and version in the format of a Node's `containerRuntimeVersion`.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{}://{}", self.name, self.version)
    }

    /// Returns the path of the program that created the socket: the runtime, or a proxy in front of it.
    /// `None` if it no longer runs.
    #[must_use]
    pub fn listener(&self) -> Option<&Path> {
        self.listener.as_deref()
    }

    /// Returns whether the runtime has a network for pods.
    #[must_use]
    pub fn has_network(&self) -> bool {
        self.network
    }

    pub(crate) fn runtime(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT)
    }

    pub(crate) fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }
}

fn socket(endpoint: &str) -> Result<PathBuf, RuntimeError> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if !path.starts_with('/') {
        return Err(RuntimeError::Endpoint(endpoint.to_owned()));
    }
    Ok(path.into())
}

/// Runs a call with a timeout.
pub(crate) fn call_with_timeout<'a, T: 'a>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>> + Send + 'a,
) -> BoxFuture<'a, Result<T, Status>> {
    async move {
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => {
                let text = format!("no answer within {} s", limit.as_secs());
                Err(Status::deadline_exceeded(text))
            }
        }
    }
    .boxed()
}

/// Returns the text of a status for users: its message, or the meaning of its code.
pub(crate) fn status_text(status: &Status) -> String {
    let source = std::error::Error::source(status).map(ToString::to_string);
    match (status.message(), source) {
        ("", None) => status.code().description().to_owned(),
        ("", Some(source)) => source,
        (text, _) => text.to_owned(),
    }
}

/// Returns whether the status means that the object does not exist.
pub(crate) fn is_gone(status: &Status) -> bool {
    status.code() == Code::NotFound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connect_to_invalid_endpoint_fails() {
        let fails =
            async |endpoint: &str| Runtime::connect(endpoint).await.unwrap_err().to_string();
        assert!(
            fails("tcp://x")
                .await
                .contains("\"tcp://x\" is not unix://")
        );
        let error = fails("unix:///no/such.sock").await;
        assert!(
            error.contains("unix:///no/such.sock: No such file"),
            "{error}"
        );
        // A server that hangs up, like one that speaks another protocol.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let deaf = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let endpoint = format!("unix://{}", path.display());
        let error = fails(&endpoint).await;
        assert!(
            error.contains("does not answer as a container runtime"),
            "{error}"
        );
        deaf.abort();
    }
}
