//! A client of an HTTP server other than the API server: one `POST` of JSON per call.

use crate::client::{Body, ClientError, transport};
use crate::failure_log::causes;
use bytes::Bytes;
use http::{Request, Uri, header};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

/// The address of a server, and its TLS settings.
#[derive(Debug, Clone, Default)]
pub struct Address {
    /// URL with `http` or `https`; the path of a request is appended to it.
    pub url: String,
    /// Name in the server's certificate, if it differs from the host of the URL.
    pub server_name: Option<String>,
    /// Whether any server certificate is accepted.
    pub insecure: bool,
    /// PEM file with the CA certificates that verify the server's certificate; `None` for the system's.
    pub ca_file: Option<String>,
    /// CA certificates in base64; used instead of the file.
    pub ca_data: Option<String>,
    /// PEM file with the client certificate.
    pub cert_file: Option<String>,
    /// Client certificate in base64; used instead of the file.
    pub cert_data: Option<String>,
    /// PEM file with the key of the client certificate.
    pub key_file: Option<String>,
    /// Key of the client certificate in base64; used instead of the file.
    pub key_data: Option<String>,
}

/// Reasons why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The timeout expired.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The status code of the response is not 200.
    #[error("answered with code {0}")]
    Code(u16),
    /// The body of the response is longer than this limit, in bytes.
    #[error("the answer is longer than {0} bytes")]
    Long(usize),
    /// The connection failed or broke.
    #[error("{0}")]
    Broken(String),
}

/// Modification time and length of a file, which change with its content. `None` if they cannot be read.
type Stamp = Option<(SystemTime, u64)>;

/// The HTTP client, and the stamps of the TLS files that it was created from.
struct LoadedClient {
    client: kube::Client,
    stamps: Vec<Stamp>,
}

/// A client of one server. When TLS files are renewed, the next call uses their new content: this often
/// happens while a program runs. New files that are not valid are ignored.
#[derive(Clone)]
pub struct Poster {
    address: Arc<Address>,
    loaded: Arc<RwLock<LoadedClient>>,
    url: String,
}

impl std::fmt::Debug for Poster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poster").field("url", &self.url).finish()
    }
}

impl Poster {
    /// Creates a client of the server at `address`. Reads the files, but does not connect yet.
    ///
    /// # Errors
    /// Fails if a file or its content is not valid.
    pub async fn new(address: &Address) -> Result<Self, ClientError> {
        // Read before the files, so that a file that changes meanwhile is read again.
        let stamps = address.stamps().await;
        let client = address.client().await?;
        Ok(Self {
            url: address.url.trim_end_matches('/').to_owned(),
            address: Arc::new(address.clone()),
            loaded: Arc::new(RwLock::new(LoadedClient { client, stamps })),
        })
    }

    /// Returns the HTTP client for the current content of the TLS files.
    async fn client(&self) -> kube::Client {
        let stamps = self.address.stamps().await;
        let unchanged = {
            let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
            (loaded.stamps == stamps).then(|| loaded.client.clone())
        };
        if let Some(client) = unchanged {
            return client;
        }
        let fresh = self.address.client().await;
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        // Also set for files that are not valid, so that they are read again only after the next change.
        loaded.stamps = stamps;
        match fresh {
            Ok(client) => loaded.client = client,
            Err(error) => {
                tracing::warn!(server = self.url, %error, "failed to load renewed TLS files, keeping the previous ones");
            }
        }
        loaded.client.clone()
    }
}

impl Address {
    async fn stamps(&self) -> Vec<Stamp> {
        let mut stamps = Vec::new();
        for (file, data) in [
            (&self.ca_file, &self.ca_data),
            (&self.cert_file, &self.cert_data),
            (&self.key_file, &self.key_data),
        ] {
            if let Some(file) = file.as_ref().filter(|_| data.is_none()) {
                let metadata = tokio::fs::metadata(file).await;
                let stamp =
                    |metadata: std::fs::Metadata| Some((metadata.modified().ok()?, metadata.len()));
                stamps.push(metadata.ok().and_then(stamp));
            }
        }
        stamps
    }

    /// Creates a client for this address.
    async fn client(&self) -> Result<kube::Client, ClientError> {
        let address = self;
        let url = address.url.trim_end_matches('/').to_owned();
        let wrong = |source| ClientError::Kubeconfig {
            path: PathBuf::from(&address.url),
            source,
        };
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "peer",
            "clusters": [{"name": "peer", "cluster": {
                "server": url,
                "certificate-authority": address.ca_file,
                "certificate-authority-data": address.ca_data,
                "insecure-skip-tls-verify": address.insecure,
                "tls-server-name": address.server_name,
            }}],
            "users": [{"name": "peer", "user": {
                "client-certificate": address.cert_file,
                "client-certificate-data": address.cert_data,
                "client-key": address.key_file,
                "client-key-data": address.key_data,
            }}],
            "contexts": [{"name": "peer", "context": {"cluster": "peer", "user": "peer"}}],
        });
        let file = Kubeconfig::from_yaml(&text.to_string()).map_err(wrong)?;
        let selection = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &selection).await;
        let mut config = config.map_err(wrong)?;
        // Proxy settings in the environment are not meant for this server, and proxies are not compiled in.
        config.proxy_url = None;
        transport::prepare(&mut config);
        let builder = ClientBuilder::try_from(config).map_err(|source| ClientError::Transport {
            server: address.url.clone(),
            source: Box::new(source),
        })?;
        Ok(builder.build())
    }
}

impl Poster {
    /// Posts `body` to `path` and returns the body of a response with code 200. Fails if that is longer than
    /// `longest` bytes, or if the whole exchange takes longer than `patience`.
    ///
    /// # Errors
    /// See [`PostError`].
    pub async fn post(
        &self,
        path: &str,
        body: Vec<u8>,
        longest: usize,
        patience: Duration,
    ) -> Result<Bytes, PostError> {
        let exchange = self.exchange(path, body, longest);
        match tokio::time::timeout(patience, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(PostError::Late(patience)),
        }
    }

    async fn exchange(
        &self,
        path: &str,
        body: Vec<u8>,
        longest: usize,
    ) -> Result<Bytes, PostError> {
        let target: Uri = format!("/{path}")
            .parse()
            .map_err(|error| PostError::Broken(format!("{path:?}: {error}")))?;
        let request = Request::post(target)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|error| PostError::Broken(error.to_string()))?;
        let response = self.client().await.send(request).await;
        let answer = response.map_err(|error| PostError::Broken(causes(&error)))?;
        if answer.status() != http::StatusCode::OK {
            return Err(PostError::Code(answer.status().as_u16()));
        }
        let limited = http_body_util::Limited::new(answer.into_body(), longest);
        let collected = http_body_util::BodyExt::collect(limited).await;
        collected.map(|all| all.to_bytes()).map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                PostError::Long(longest)
            } else {
                PostError::Broken(error.to_string())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::Artifacts;
    use crate::tls::{LIMITS, serve};
    use axum::routing::post;
    use koord_app::Clock;
    use tokio::net::TcpListener;
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    struct Server {
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    fn start(listener: TcpListener, of: &Artifacts) -> Server {
        let routes = axum::Router::new().route("/ask", post(|| async { "yes" }));
        let (_, configs) = watch::channel(of.server_config().unwrap());
        let stop = CancellationToken::new();
        let serving = serve(listener, routes, configs, stop.clone(), LIMITS);
        let task = tokio::spawn(serving);
        Server { stop, task }
    }

    #[tokio::test]
    async fn renewed_ca_file_is_used_by_the_next_call() {
        let new_artifacts =
            || Artifacts::generate(&Artifacts::default(), "localhost", Clock::system().now());
        let (old, new) = (new_artifacts().unwrap(), new_artifacts().unwrap());
        let directory = std::env::temp_dir().join(format!("koord-post-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("ca.pem");
        std::fs::write(&file, &old.ca_cert).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address_in_use = listener.local_addr().unwrap();
        let address = Address {
            url: format!("https://localhost:{}", address_in_use.port()),
            ca_file: Some(file.display().to_string()),
            ..Address::default()
        };
        let poster = Poster::new(&address).await.unwrap();
        let ask = || poster.post("ask", Vec::new(), 100, Duration::from_secs(60));
        let server = start(listener, &old);
        assert_eq!(ask().await.unwrap(), "yes");
        server.stop.cancel();
        server.task.await.unwrap();
        let server = start(TcpListener::bind(address_in_use).await.unwrap(), &new);
        let refused = ask().await.unwrap_err().to_string();
        assert!(refused.contains("certificate"), "{refused}");
        // Invalid files are ignored, and so are files that are missing for a moment.
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----").unwrap();
        assert!(ask().await.is_err());
        std::fs::remove_file(&file).unwrap();
        assert!(ask().await.is_err());
        std::fs::write(&file, &new.ca_cert).unwrap();
        assert_eq!(ask().await.unwrap(), "yes");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(ask().await.unwrap(), "yes");
        std::fs::remove_dir_all(&directory).unwrap();
        server.stop.cancel();
        server.task.await.unwrap();
    }
}
