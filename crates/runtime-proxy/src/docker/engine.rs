//! Client of the Docker engine.

use super::{Body, full_body};
use crate::forward::DIAL;
use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// Headers that concern a connection and not the request.
const CONNECTION_HEADERS: [HeaderName; 6] = [
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    // hyper has handled it.
    header::EXPECT,
];

/// API version of the proxy's own requests: upstream's, which every engine supports since 2018.
const API: &str = "/v1.39";

/// Timeout of the proxy's own requests, and maximum size of their responses in bytes.
const DEADLINE: Duration = Duration::from_secs(5);
const MAX_RESPONSE: usize = 16 << 20;

/// Failure of a request to the engine.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    #[error("failed to connect to the Docker engine at {}: {error}", path.display())]
    Dial {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("connection to the Docker engine at {} failed: {error}", path.display())]
    Broken { path: PathBuf, error: hyper::Error },
    #[error("no response from the Docker engine to {0} within {DEADLINE:?}")]
    Slow(String),
    #[error("invalid response from the Docker engine to {path}: {problem}")]
    Answer { path: String, problem: String },
}

/// A container as the engine reports it; its configuration has the form of a creation request.
#[derive(Debug)]
pub(super) struct ContainerInspect {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) config: Map<String, Value>,
}

/// The fields of an inspect response that are used.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectResponse {
    id: String,
    name: String,
    #[serde(default)]
    config: Map<String, Value>,
    #[serde(default)]
    host_config: Value,
}

/// Client of the engine. Each request has its own connection, since it may be upgraded from HTTP.
#[derive(Debug)]
pub(super) struct Engine {
    socket: PathBuf,
}

impl Engine {
    pub(super) fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Forwards a request.
    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, EngineError> {
        let upgrade = request.headers().get(header::UPGRADE).cloned();
        for name in CONNECTION_HEADERS {
            request.headers_mut().remove(name);
        }
        if let Some(upgrade) = upgrade {
            let headers = request.headers_mut();
            headers.insert(header::UPGRADE, upgrade);
            let value = header::HeaderValue::from_static("Upgrade");
            headers.insert(header::CONNECTION, value);
        }
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
        *request.version_mut() = http::Version::HTTP_11;
        let dialled = tokio::time::timeout(DIAL, UnixStream::connect(&self.socket)).await;
        let dialled = dialled.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let stream = dialled.map_err(|error| EngineError::Dial {
            path: self.socket.clone(),
            error,
        })?;
        let broken = |error| EngineError::Broken {
            path: self.socket.clone(),
            error,
        };
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(broken)?;
        tokio::spawn(connection.with_upgrades());
        let mut response = sender.send_request(request).await.map_err(broken)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            for name in CONNECTION_HEADERS {
                response.headers_mut().remove(name);
            }
        }
        Ok(response)
    }

    /// Sends the proxy's own GET request; returns `None` if the object does not exist.
    async fn get(&self, path: &str) -> Result<Option<Bytes>, EngineError> {
        let exchange = async {
            let mut request = Request::new(full_body(Bytes::new()));
            let uri = Uri::try_from(format!("{API}{path}"));
            *request.uri_mut() = uri.map_err(|error| invalid_answer(path, error))?;
            let host = header::HeaderValue::from_static("docker");
            request.headers_mut().insert(header::HOST, host);
            let (head, body) = self.send(request).await?.into_parts();
            if head.status == StatusCode::NOT_FOUND {
                return Ok(None);
            }
            let body = Limited::new(body, MAX_RESPONSE).collect().await;
            let body = body
                .map_err(|error| invalid_answer(path, error))?
                .to_bytes();
            if !head.status.is_success() {
                return Err(invalid_answer(path, String::from_utf8_lossy(&body)));
            }
            Ok(Some(body))
        };
        let result = tokio::time::timeout(DEADLINE, exchange).await;
        result.unwrap_or_else(|_| Err(EngineError::Slow(path.to_owned())))
    }

    pub(super) async fn version(&self) -> Result<String, EngineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Version {
            version: String,
        }
        let path = "/version";
        let body = self.get(path).await?;
        let body = body.ok_or_else(|| invalid_answer(path, "not found"))?;
        let read: Version =
            serde_json::from_slice(&body).map_err(|error| invalid_answer(path, error))?;
        Ok(read.version)
    }

    /// Inspects the container with this id or name; returns `None` if it does not exist.
    pub(super) async fn inspect(&self, id: &str) -> Result<Option<ContainerInspect>, EngineError> {
        let path = format!("/containers/{id}/json");
        let Some(body) = self.get(&path).await? else {
            return Ok(None);
        };
        let read: InspectResponse =
            serde_json::from_slice(&body).map_err(|error| invalid_answer(&path, error))?;
        let mut config = read.config;
        config.insert(super::HOST_CONFIG.to_owned(), read.host_config);
        Ok(Some(ContainerInspect {
            id: read.id,
            name: read.name,
            config,
        }))
    }
}

fn invalid_answer(path: &str, problem: impl std::fmt::Display) -> EngineError {
    EngineError::Answer {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

/// Copies the bytes of an upgraded connection in both directions until both have ended.
pub(super) async fn tunnel(client: OnUpgrade, engine: OnUpgrade) {
    let ends = tokio::try_join!(client, engine);
    let (client, engine) = match ends {
        Ok(ends) => ends,
        Err(error) => {
            tracing::debug!(%error, "failed to upgrade connection");
            return;
        }
    };
    let (mut client, mut engine) = (TokioIo::new(client), TokioIo::new(engine));
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut engine).await {
        tracing::debug!(%error, "upgraded connection failed");
    }
}
