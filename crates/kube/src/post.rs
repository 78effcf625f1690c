//! Asking a server that is no API server: one `POST` of JSON, one answer.

use crate::client::{Body, ClientError, transport};
use crate::failure_log::causes;
use bytes::Bytes;
use http::{Request, Uri, header};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

/// Where a server is and how TLS is spoken with it.
#[derive(Debug, Clone, Default)]
pub struct Address {
    /// An `http` or `https` URL; what is posted to is appended to it.
    pub url: String,
    /// The name that the server's certificate is for, if not that of the URL.
    pub server_name: Option<String>,
    /// Whether any certificate will do.
    pub insecure: bool,
    /// A file with the authorities that the server's certificate may be from, in PEM; without one,
    /// the system's.
    pub ca_file: Option<String>,
    /// The same in base64; goes before the file.
    pub ca_data: Option<String>,
    /// The certificate to show, as `ca_file` and `ca_data`.
    pub cert_file: Option<String>,
    /// See `cert_file`.
    pub cert_data: Option<String>,
    /// Its key.
    pub key_file: Option<String>,
    /// See `key_file`.
    pub key_data: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// It took too long.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The server said no.
    #[error("answered with code {0}")]
    Code(u16),
    /// More was sent than was allowed.
    #[error("the answer is longer than {0} bytes")]
    Long(usize),
    /// No connection, or it broke.
    #[error("{0}")]
    Broken(String),
}

/// What tells one content of a file from another: when it was written, how long it is. None of a file
/// that cannot be looked at.
type Stamp = Option<(SystemTime, u64)>;

/// The way to the server, and the files that it was made from.
struct Way {
    client: kube::Client,
    stamps: Vec<Stamp>,
}

/// A server that questions are posted to. Where files are named for TLS, what they say now counts: those
/// who renew certificates do so while programs run. Files that cannot be used change nothing.
#[derive(Clone)]
pub struct Poster {
    address: Arc<Address>,
    way: Arc<RwLock<Way>>,
    url: String,
}

impl std::fmt::Debug for Poster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poster").field("url", &self.url).finish()
    }
}

impl Poster {
    /// The way to the server at `address`. Files are read now; nothing is connected yet.
    ///
    /// # Errors
    /// When a file or its content cannot be used.
    pub async fn new(address: &Address) -> Result<Self, ClientError> {
        // Before they are read: what is written meanwhile is read again.
        let stamps = address.stamps().await;
        let client = address.client().await?;
        Ok(Self {
            url: address.url.trim_end_matches('/').to_owned(),
            address: Arc::new(address.clone()),
            way: Arc::new(RwLock::new(Way { client, stamps })),
        })
    }

    /// The way by what the files say now.
    async fn client(&self) -> kube::Client {
        let stamps = self.address.stamps().await;
        let known = {
            let way = self.way.read().unwrap_or_else(PoisonError::into_inner);
            (way.stamps == stamps).then(|| way.client.clone())
        };
        if let Some(client) = known {
            return client;
        }
        let fresh = self.address.client().await;
        let mut way = self.way.write().unwrap_or_else(PoisonError::into_inner);
        // Also of files that cannot be used: they are looked at again when they change again.
        way.stamps = stamps;
        match fresh {
            Ok(client) => way.client = client,
            Err(error) => {
                tracing::warn!(server = self.url, %error, "new TLS files are not used");
            }
        }
        way.client.clone()
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
                let seen = tokio::fs::metadata(file).await;
                let stamp = |seen: std::fs::Metadata| Some((seen.modified().ok()?, seen.len()));
                stamps.push(seen.ok().and_then(stamp));
            }
        }
        stamps
    }

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
        // What the environment says of proxies is not for peers, and none is compiled in.
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
    /// Posts `body` to `path` and returns what a server that answers 200 says, up to `longest`
    /// bytes. From the first byte sent to the last one read it takes at most `patience`.
    ///
    /// # Errors
    /// Whatever kept the answer away.
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
        let sent = self.client().await.send(request).await;
        let answer = sent.map_err(|error| PostError::Broken(causes(&error)))?;
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
    async fn authorities_that_are_renewed_count_at_once() {
        let made =
            || Artifacts::generate(&Artifacts::default(), "localhost", Clock::system().now());
        let (old, new) = (made().unwrap(), made().unwrap());
        let directory = std::env::temp_dir().join(format!("koord-post-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("ca.pem");
        std::fs::write(&file, &old.ca_cert).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let address = Address {
            url: format!("https://localhost:{}", at.port()),
            ca_file: Some(file.display().to_string()),
            ..Address::default()
        };
        let poster = Poster::new(&address).await.unwrap();
        let ask = || poster.post("ask", Vec::new(), 100, Duration::from_secs(60));
        let server = start(listener, &old);
        assert_eq!(ask().await.unwrap(), "yes");
        server.stop.cancel();
        server.task.await.unwrap();
        let server = start(TcpListener::bind(at).await.unwrap(), &new);
        let refused = ask().await.unwrap_err().to_string();
        assert!(refused.contains("certificate"), "{refused}");
        // What cannot be used is passed over, and so is a file that is away for a moment.
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
