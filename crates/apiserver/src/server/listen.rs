//! Accepts connections and serves HTTP on them until told to stop.

use super::activity::{Activity, Patient};
use super::auth::Peer;
use super::limits::Limits;
use axum::Router;
use axum::body::Body;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Streams a client may have open on one connection: Go clients put all their watches on one.
const MAX_STREAMS: u32 = 2000;
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests in progress may go on after the server was told to stop.
const DRAIN: Duration = Duration::from_secs(5);
/// The pause after accepting failed, for example because there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `shutdown`; then ends what is in progress and returns.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let connections = TaskTracker::new();
    let most = limits.max_connections.clamp(1, Semaphore::MAX_PERMITS);
    let places = Arc::new(Semaphore::new(most));
    loop {
        let place = tokio::select! {
            () = shutdown.cancelled() => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if !is_of_one_connection(&error) {
                        tracing::warn!(%error, "accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            },
        };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        let (limits, shutdown) = (limits.clone(), shutdown.clone());
        connections.spawn(async move {
            connection(stream, acceptor, router, &limits, shutdown).await;
            drop(place);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(open = connections.len(), "connections did not end in time");
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    limits: &Limits,
    shutdown: CancellationToken,
) {
    // Small answers must not wait for more data.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(
        HANDSHAKE,
        acceptor.accept(Patient::new(stream, limits.unread)),
    )
    .await
    {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake");
            return;
        }
        Err(_) => return,
    };
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first());
    let peer = certificate.and_then(|certificate| Peer::of(certificate));
    let activity = Activity::new();
    let requests = activity.clone();
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        let (router, in_progress) = (router.clone(), requests.begin());
        async move {
            let response = router.oneshot(request).await?;
            Ok::<_, Infallible>(in_progress.with(response))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .max_buf_size(256 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(256 * 1024)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_send_buf_size(1 << 20)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(30));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        why = overdue(&activity, limits) => {
            tracing::debug!(why, "a connection is closed");
            // Said first, so that a client does not take it for a failure.
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(DRAIN, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(DRAIN, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = result {
        // Clients go away all the time.
        tracing::debug!(%error, "connection");
    }
}

/// Resolves when the connection should end, with the reason.
async fn overdue(activity: &Activity, limits: &Limits) -> &'static str {
    loop {
        tokio::time::sleep(limits.idle.min(limits.unread) / 4).await;
        if let Some(why) = activity.overdue(limits) {
            return why;
        }
    }
}
