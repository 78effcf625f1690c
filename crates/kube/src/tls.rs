//! Serving over TLS, within limits.

use crate::guard::Peer;
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

/// What clients may take of a server, who need not be anybody to connect to it.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// At a time; for one more, the oldest that waits for no answer has to go, or the oldest of all. Thus
    /// nobody who merely holds connections keeps a probe out, or takes an answer away.
    pub clients: usize,
    /// To agree on TLS.
    pub handshake: Duration,
    /// To send the head of a request.
    pub head: Duration,
    /// Between two requests over HTTP/2.
    pub idle: Duration,
    /// To take the last answers, after that.
    pub grace: Duration,
}

/// For servers of a few clients, such as an API server or who watches health and metrics.
pub const LIMITS: Limits = Limits {
    clients: 256,
    handshake: Duration::from_secs(10),
    head: Duration::from_secs(30),
    idle: Duration::from_secs(180),
    grace: Duration::from_secs(10),
};
/// For webhooks. API servers keep a connection for each question that they have asked at the same time, and
/// open more while an answer is late; who loses one then has not created its pod.
pub const ASKED_BY_SERVERS: Limits = Limits {
    clients: 768,
    ..LIMITS
};
/// Before another attempt to accept, when there is for example no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Chooses the crypto provider, which rustls refuses to guess; the first caller chooses, and only one is compiled in.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Serves `routes` to whoever connects, with the configuration that is in force at that time, until
/// `shutdown`. Requests carry their connection's [`Peer`] in their extensions.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    configs: watch::Receiver<Arc<ServerConfig>>,
    shutdown: CancellationToken,
    limits: Limits,
) {
    let mut clients: VecDeque<Served> = VecDeque::new();
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a TLS client was not accepted");
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
            let idle = clients.iter().position(Served::is_idle).unwrap_or(0);
            if let Some(oldest) = clients.remove(idle) {
                oldest.task.abort();
            }
        }
        let acceptor = TlsAcceptor::from(configs.borrow().clone());
        let routes = routes.clone();
        let stop = shutdown.clone();
        let questions = Questions::default();
        let asked = questions.clone();
        let client = tokio::spawn(async move {
            stop.run_until_cancelled(talk(stream, acceptor, routes, limits, asked))
                .await;
        });
        clients.push_back(Served {
            task: client.abort_handle(),
            questions,
        });
    }
}

/// A client, as long as it is connected.
struct Served {
    task: AbortHandle,
    questions: Questions,
}

impl Served {
    fn is_idle(&self) -> bool {
        self.questions.0.load(Ordering::Relaxed) == 0
    }
}

/// How many requests of a client have no answer yet.
#[derive(Clone, Default)]
struct Questions(Arc<AtomicUsize>);

impl Questions {
    fn ask(&self) -> Asked {
        self.0.fetch_add(1, Ordering::Relaxed);
        Asked(self.clone())
    }
}

/// A request without an answer.
struct Asked(Questions);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn talk(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    routes: Router,
    limits: Limits,
    questions: Questions,
) {
    let stream = match tokio::time::timeout(limits.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake");
            return;
        }
        Err(_) => return,
    };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let peer = Peer::of(certificate.map(|certificate| certificate.as_ref()));
    let begun = Arc::new(Notify::new());
    let begins = begun.clone();
    let routes =
        routes
            .layer(Extension(peer))
            .layer(from_fn(move |request: Request, next: Next| {
                begins.notify_one();
                let asked = questions.ask();
                async move {
                    let answer = next.run(request).await;
                    drop(asked);
                    answer
                }
            }));
    // The version is agreed upon: waiting for bytes that tell it would be under no time limit.
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
    let mut patience = limits.head;
    // A client that answers pings may be idle all the same.
    let ended = loop {
        tokio::select! {
            ended = served.as_mut() => break Some(ended),
            () = begun.notified() => patience = limits.idle,
            () = tokio::time::sleep(patience) => break None,
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
        tracing::debug!(%error, "TLS client");
    }
}
