//! Limits of the server on concurrent requests, connections and slow clients.

use super::metrics::RequestLabels;
use crate::authz::User;
use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Group without limits: administrators must be able to help an overloaded server.
const PRIVILEGED: &str = "system:masters";

/// Limits on what clients can use of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Read-only requests in progress, without watches and logs; further ones get 429. 0: no limit. Default
    /// 400, as kube-apiserver's.
    pub max_requests_inflight: usize,
    /// Mutating requests in progress; further ones get 429. 0: no limit. Default 200, as kube-apiserver's.
    pub max_mutating_requests_inflight: usize,
    /// Open connections; a further one displaces the one that has waited longest without an authenticated
    /// user or a request. At most half of the files that this process may open. Default 8192.
    pub max_connections: usize,
    /// Additional connections for members of `system:masters`. Default 64.
    pub reserved_connections: usize,
    /// TLS handshakes in progress, in addition to the connections; a further one displaces the oldest.
    /// Default 512.
    pub max_handshakes: usize,
    /// Requests in progress on one HTTP/2 connection. Default 100, as kube-apiserver's; for members of
    /// `system:masters` at least 2000.
    pub max_streams: u32,
    /// Open watches, followed logs and other long requests per user; further ones get 429. 0: no limit. Not
    /// applied to members of `system:masters`, like the two limits below. Default 1000.
    pub max_watches_per_user: usize,
    /// Unread response bytes per user on all connections, including objects and changes that watches have yet
    /// to send. Above it new watches get 429, and open ones pause until the client has read something. 0: no
    /// limit. Default 256 MiB.
    pub unread_bytes_per_user: usize,
    /// Unread response bytes per connection, with the same effects as [`Self::unread_bytes_per_user`].
    /// Default 64 MiB.
    pub unread_bytes_per_connection: usize,
    /// Time that a connection may stay open without requests. Default 90 s.
    pub idle: Duration,
    /// Time that a client may leave sent data unread before its connection is closed, with all its watches.
    /// Default 60 s.
    pub unread: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_requests_inflight: 400,
            max_mutating_requests_inflight: 200,
            max_connections: 8192,
            reserved_connections: 64,
            max_handshakes: 512,
            max_streams: 100,
            max_watches_per_user: 1000,
            unread_bytes_per_user: 256 << 20,
            unread_bytes_per_connection: 64 << 20,
            idle: Duration::from_secs(90),
            unread: Duration::from_secs(60),
        }
    }
}

/// Limits the requests in progress.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    reading: Option<Arc<Semaphore>>,
    changing: Option<Arc<Semaphore>>,
}

impl Gate {
    pub(super) fn new(limits: &Limits) -> Self {
        let permits =
            |n: usize| (n > 0).then(|| Arc::new(Semaphore::new(n.min(Semaphore::MAX_PERMITS))));
        Self {
            reading: permits(limits.max_requests_inflight),
            changing: permits(limits.max_mutating_requests_inflight),
        }
    }

    /// Admits a request; its place is free again when the result is dropped. `None` without a limit.
    ///
    /// # Errors
    /// The response if there are too many.
    pub(super) fn enter(
        &self,
        labels: &RequestLabels,
        user: &User,
    ) -> Result<Option<OwnedSemaphorePermit>, Box<Response>> {
        let places = if labels.reading() {
            &self.reading
        } else {
            &self.changing
        };
        let Some(places) = places.as_ref().filter(|_| !labels.long_running()) else {
            return Ok(None);
        };
        match Arc::clone(places).try_acquire_owned() {
            Ok(place) => Ok(Some(place)),
            Err(_) if user.groups.iter().any(|g| g == PRIVILEGED) => Ok(None),
            Err(_) => Err(Box::new(too_many())),
        }
    }
}

/// Returns 429 as kube-apiserver does: clients look at the header, not at the text.
fn too_many() -> Response {
    let text = "Too many requests, please try again later.\n";
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}
