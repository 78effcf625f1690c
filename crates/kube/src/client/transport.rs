//! The transport of a client: headers, TLS and connections.

use bytes::Bytes;
use http::uri::Scheme;
use http::{Request, Response, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use rustls::pki_types::ServerName;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

/// The response of a server; its body may still be arriving.
pub(super) type HttpResponse = Response<UnsyncBoxBody<Bytes, kube::Error>>;
/// Sends one request once; clones share the connections.
pub(super) type Sender = BoxCloneSyncService<Request<Body>, HttpResponse, BoxError>;

/// Idle time after which the client pings the server, like client-go: otherwise each request on a dead
/// connection would wait for its deadline, and later requests would use the same connection.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Time to wait for the response to a ping before the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Prepares `config` for a transport. The system's root certificates are loaded only if they verify the
/// server: an image without CA certificates has none, and loading them fails there.
pub(crate) fn prepare(config: &mut kube::Config) {
    // kube's retry policy repeats every 429, evictions included, for minutes.
    config.default_retry = false;
    crate::tls::install_crypto_provider();
    let verifies =
        config.cluster_url.scheme() == Some(&Scheme::HTTPS) && !config.accept_invalid_certs;
    if config.root_cert.is_none() && !verifies {
        config.root_cert = Some(Vec::new());
    }
}

/// Returns the transport to the server of `config`, which [`prepare`] has prepared.
///
/// # Errors
/// Fails if certificates, credentials or headers cannot be used.
pub(super) fn connect(config: &kube::Config) -> Result<Sender, kube::Error> {
    let connections = Connections {
        short: connections(config, true)?,
        open: connections(config, false)?,
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections)
        .map_response(|response: Response<hyper::body::Incoming>| {
            response.map(|body| body.map_err(kube::Error::HyperError).boxed_unsync())
        });
    Ok(Sender::new(service))
}

type HttpClient = Client<TimeoutConnector<hyper_rustls::HttpsConnector<HttpConnector>>, Body>;

/// The connections of a client. Requests that end share one HTTP/2 connection if the server supports it,
/// which saves handshakes, system calls and TLS records. A request that stays open has its own connection: a
/// watch that is not read must not block other responses, and many watches must not use up all streams.
#[derive(Clone)]
struct Connections {
    short: HttpClient,
    open: HttpClient,
}

impl Service<Request<Body>> for Connections {
    type Response = Response<hyper::body::Incoming>;
    type Error = hyper_util::client::legacy::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if stays_open(&request) {
            self.open.request(request)
        } else {
            self.short.request(request)
        }
    }
}

/// Returns a sender over `client`, which has one queue for all requests.
pub(super) fn through(client: kube::Client) -> Sender {
    Sender::new(tower::service_fn(move |request| {
        let client = client.clone();
        async move {
            let answer = client.send(request).await.map_err(BoxError::from)?;
            Ok(answer.map(BodyExt::boxed_unsync))
        }
    }))
}

/// Returns whether the response to `request` lasts until one side ends it: watches, followed logs, and
/// protocol upgrades, which HTTP/2 does not support.
fn stays_open<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let is_set = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        matches!(key, "watch" | "follow") && !matches!(value, "false" | "0")
    };
    request.headers().contains_key(header::UPGRADE)
        || query.split('&').any(is_set)
        || request.uri().path().split('/').any(|part| part == "watch")
}

/// Creates a connection pool; with `http2`, connections may negotiate HTTP/2.
fn connections(config: &kube::Config, http2: bool) -> Result<HttpClient, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Small requests must not wait for more data.
    tcp.set_nodelay(true);
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone());
        let name = name.map_err(|error| kube::Error::Service(error.into()))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let tls = tls.enable_http1();
    let connector = if http2 {
        tls.enable_http2().wrap_connector(tcp)
    } else {
        tls.wrap_connector(tcp)
    };
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let client = Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(connector);
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::Artifacts;
    use crate::tls;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    /// Starts a TLS server that responds with the HTTP version of the request, and counts its connections in
    /// `accepted`.
    async fn versions(accepted: Arc<AtomicUsize>, stop: CancellationToken) -> String {
        let now = jiff::Timestamp::now();
        let artifacts = Artifacts::generate(&Artifacts::default(), "localhost", now).unwrap();
        let (configs, config) = watch::channel(artifacts.server_config().unwrap());
        let version = async |request: axum::extract::Request| format!("{:?}", request.version());
        let routes = axum::Router::new().fallback(version);
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let behind = server.local_addr().unwrap();
        tokio::spawn(async move {
            tls::serve(server, routes, config, stop, tls::LIMITS).await;
            drop(configs);
        });
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", front.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = front.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                let mut server = TcpStream::connect(behind).await.unwrap();
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        url
    }

    #[tokio::test]
    async fn short_requests_share_one_connection() {
        let accepted = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let url = versions(accepted.clone(), stop.clone()).await;
        let mut config = kube::Config::new(url.parse().unwrap());
        config.accept_invalid_certs = true;
        prepare(&mut config);
        let sender = connect(&config).unwrap();
        let version = |uri: &str| {
            let request = Request::get(uri).body(Body::empty()).unwrap();
            let answer = sender.clone().oneshot(request);
            async move { answer.await.unwrap().collect().await.unwrap().to_bytes() }
        };
        assert_eq!(version("/api/v1/pods").await, "HTTP/2.0");
        let requests = (0..50).map(|_| version("/api/v1/nodes"));
        let answers = futures::future::join_all(requests).await;
        assert!(answers.iter().all(|it| it == "HTTP/2.0"), "{answers:?}");
        assert_eq!(accepted.load(Ordering::SeqCst), 1);
        assert_eq!(version("/api/v1/pods?watch=true").await, "HTTP/1.1");
        assert_eq!(accepted.load(Ordering::SeqCst), 2);
        stop.cancel();
    }

    #[test]
    fn requests_that_stay_open_are_recognized() {
        let open = |uri: &str| stays_open(&Request::get(uri).body(()).unwrap());
        for uri in [
            "/api/v1/pods?&watch=true&timeoutSeconds=290",
            "/api/v1/pods?watch=1",
            "/api/v1/watch/pods",
            "/api/v1/namespaces/n/pods/p/log?follow=true",
        ] {
            assert!(open(uri), "{uri}");
        }
        for uri in [
            "/api/v1/pods?limit=500",
            "/api/v1/pods?watch=false",
            "/api/v1/namespaces/n/pods/p/log?&follow=0",
            "/api/v1/namespaces/n/pods",
        ] {
            assert!(!open(uri), "{uri}");
        }
        let upgrade = Request::get("/exec").header("Upgrade", "websocket");
        assert!(stays_open(&upgrade.body(()).unwrap()));
    }
}
