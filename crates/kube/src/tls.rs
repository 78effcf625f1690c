//! A TLS server that limits its clients.

use crate::guard::ClientIdentity;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Limits for the clients of a server, which need no credentials to connect.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of connections. For one more, the oldest one without a pending response is closed, else
    /// the oldest of all. So a client that only holds connections open can neither block a probe nor
    /// interrupt a response.
    pub clients: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time to send the head of a request.
    pub head: Duration,
    /// Time between two requests over HTTP/2.
    pub idle: Duration,
    /// Time to receive the last responses when the connection is shut down.
    pub grace: Duration,
}

/// Limits for servers with few clients, such as an API server, or health and metrics endpoints.
pub const LIMITS: Limits = Limits {
    clients: 256,
    handshake: Duration::from_secs(10),
    head: Duration::from_secs(30),
    idle: Duration::from_secs(180),
    grace: Duration::from_secs(10),
};
/// Limits for webhook servers. An API server keeps a connection for each concurrent review, and opens more
/// while a response is late; if such a connection is closed, the request that needed the review fails.
pub const WEBHOOK_LIMITS: Limits = Limits {
    clients: 768,
    ..LIMITS
};
/// Delay before the next attempt to accept a connection, for example when no file descriptors are left.
const PAUSE: Duration = Duration::from_millis(100);

/// Installs the crypto provider, which rustls does not choose itself. The first call has an effect, and only
/// one provider is compiled in.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Serves `routes` to all clients until `shutdown`, with the latest configuration at the time of the
/// connection. Requests have their connection's [`ClientIdentity`] in their extensions.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    configs: watch::Receiver<Arc<ServerConfig>>,
    shutdown: CancellationToken,
    limits: Limits,
) {
    let mut clients: VecDeque<TlsConnection> = VecDeque::new();
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "failed to accept a TLS client");
                shutdown
                    .run_until_cancelled(tokio::time::sleep(PAUSE))
                    .await;
                continue;
            }
        };
        if clients.len() >= limits.clients {
            clients.retain(|client| !client.task.is_finished());
        }
        if clients.len() >= limits.clients {
            let idle = clients.iter().position(TlsConnection::is_idle).unwrap_or(0);
            if let Some(oldest) = clients.remove(idle) {
                oldest.task.abort();
            }
        }
        let acceptor = TlsAcceptor::from(configs.borrow().clone());
        let routes = routes.clone();
        let stop = shutdown.clone();
        let in_flight = InFlight::default();
        let counter = in_flight.clone();
        let client = tokio::spawn(async move {
            stop.run_until_cancelled(serve_client(stream, acceptor, routes, limits, counter))
                .await;
        });
        clients.push_back(TlsConnection {
            task: client.abort_handle(),
            in_flight,
        });
    }
}

/// A connected client.
struct TlsConnection {
    task: AbortHandle,
    in_flight: InFlight,
}

impl TlsConnection {
    fn is_idle(&self) -> bool {
        self.in_flight.0.load(Ordering::Relaxed) == 0
    }
}

/// Number of pending requests of a client.
#[derive(Clone, Default)]
struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    fn begin(&self) -> PendingRequest {
        self.0.fetch_add(1, Ordering::Relaxed);
        PendingRequest(self.clone())
    }
}

/// A pending request; counted until it is dropped.
struct PendingRequest(InFlight);

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Performs the TLS handshake with a client and serves its requests until the connection ends.
async fn serve_client(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    routes: Router,
    limits: Limits,
    in_flight: InFlight,
) {
    let stream = match tokio::time::timeout(limits.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let peer =
        ClientIdentity::from_certificate(certificate.map(|certificate| certificate.as_ref()));
    let begun = Arc::new(Notify::new());
    let begins = begun.clone();
    let routes =
        routes
            .layer(Extension(peer))
            .layer(from_fn(move |request: Request, next: Next| {
                begins.notify_one();
                let pending = in_flight.begin();
                async move {
                    let answer = next.run(request).await;
                    drop(pending);
                    answer
                }
            }));
    // The version is negotiated by ALPN: waiting for bytes to detect it would have no time limit.
    let builder = Builder::new(TokioExecutor::new());
    let mut builder = if session.alpn_protocol() == Some(b"h2") {
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.head)
        .keep_alive_timeout(limits.head);
    let service = TowerToHyperService::new(routes);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut timeout = limits.head;
    // A client that answers pings may be idle too.
    let ended = loop {
        tokio::select! {
            ended = served.as_mut() => break Some(ended),
            () = begun.notified() => timeout = limits.idle,
            () = tokio::time::sleep(timeout) => break None,
        }
    };
    let ended = match ended {
        Some(ended) => Some(ended),
        None => {
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(limits.grace, served).await.ok()
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, "TLS connection failed");
    }
}
