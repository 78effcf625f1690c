//! Accepts connections and serves HTTP on them until shutdown.

use super::activity::{Activity, TimeoutStream};
use super::auth::Peer;
use super::connections::{Connections, OpenConnection};
use super::limits::Limits;
use crate::authz::MASTERS;
use crate::store::SendQueue;
use axum::Router;
use axum::body::Body;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::process::{Resource, getrlimit};
use rustls::ServerConfig;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Requests in progress on a connection of a member of `system:masters`: a client without a connection pool
/// has all its watches on one.
const PRIVILEGED_STREAMS: u32 = 2000;
/// Timeout of TLS handshakes.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Timeout of closing a connection that is displaced by another.
const GOODBYE: Duration = Duration::from_secs(1);
/// Time that requests in progress may continue after shutdown begins.
const DRAIN: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `shutdown`; then ends requests in progress and returns.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let tasks = TaskTracker::new();
    let connections = Connections::new(&limits, getrlimit(Resource::Nofile).current);
    loop {
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if !is_of_one_connection(&error) {
                        tracing::warn!(%error, "failed to accept a connection");
                        connections.make_room();
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            },
        };
        let place = connections.accept();
        let (acceptor, router) = (acceptor.clone(), router.clone());
        let (limits, shutdown) = (limits.clone(), shutdown.clone());
        tasks.spawn(async move {
            connection(stream, place, acceptor, router, &limits, shutdown).await;
        });
    }
    drop(listener);
    tasks.close();
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!(
            open = tasks.len(),
            "connections did not close within the drain timeout"
        );
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

/// Serves one connection until it ends, is evicted, or the server shuts down.
async fn connection(
    stream: TcpStream,
    place: OpenConnection,
    acceptor: TlsAcceptor,
    router: Router,
    limits: &Limits,
    shutdown: CancellationToken,
) {
    // Small responses must not wait for more data.
    let _ = stream.set_nodelay(true);
    let handshake = acceptor.accept(TimeoutStream::new(stream, limits.unread));
    let handshake = tokio::select! {
        handshake = tokio::time::timeout(HANDSHAKE, handshake) => handshake,
        () = place.ended() => return,
    };
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first());
    let peer = certificate.and_then(|certificate| Peer::from_certificate(certificate));
    let user = peer.as_ref().map(|Peer(user)| user);
    let privileged = user.is_some_and(|user| user.is_in(MASTERS));
    if !place.establish(user) {
        tracing::debug!("refusing connection, all places are in use");
        return;
    }
    let streams = if privileged {
        limits.max_streams.max(PRIVILEGED_STREAMS)
    } else {
        limits.max_streams
    };
    let queue = Arc::new(SendQueue::new(limits.unread_bytes_per_connection));
    let activity = Activity::new(Some(place.clone()));
    let of_requests = place.clone();
    let requests = activity.clone();
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        let extensions = request.extensions_mut();
        if let Some(peer) = &peer {
            extensions.insert(peer.clone());
        }
        extensions.insert(of_requests.clone());
        extensions.insert(Arc::clone(&queue));
        let (router, in_progress) = (router.clone(), requests.begin());
        async move {
            let response = router.oneshot(request).await?;
            Ok::<_, Infallible>(in_progress.attach_to(response))
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
        .max_concurrent_streams(streams)
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
            tracing::debug!(why, "closing connection");
            // Announced first, so that the client does not see a failure.
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(DRAIN, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
        () = place.ended() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GOODBYE, connection).await {
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
        // Clients disconnect at any time.
        tracing::debug!(%error, "connection failed");
    }
}

/// Completes when the connection should be closed, with the reason.
async fn overdue(activity: &Activity, limits: &Limits) -> &'static str {
    loop {
        tokio::time::sleep(limits.idle.min(limits.unread) / 4).await;
        if let Some(reason) = activity.overdue(limits) {
            return reason;
        }
    }
}
