//! What one server does at once and how long it waits for a client.

use super::metrics::Labels;
use crate::authz::User;
use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Members always get an answer: they are who can help an overloaded server.
const PRIVILEGED: &str = "system:masters";

/// Bounds of what clients can take of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Reading requests in progress, watches and logs aside; more are answered 429. 0: no limit.
    /// Default 400, as kube-apiserver's.
    pub max_requests_inflight: usize,
    /// Changing requests in progress; more are answered 429. 0: no limit. Default 200, as
    /// kube-apiserver's.
    pub max_mutating_requests_inflight: usize,
    /// Open connections; a further one takes the place of the one that has waited longest without an
    /// identity or a request. At most half of the files that this process may open. Default 8192.
    pub max_connections: usize,
    /// Connections of members of `system:masters` beyond these. Default 64.
    pub reserved_connections: usize,
    /// TLS handshakes in progress, on top of the connections; a further one takes the place of the
    /// oldest. Default 512.
    pub max_handshakes: usize,
    /// Requests in progress on one HTTP/2 connection. Default 100, as kube-apiserver's; 2000 for members
    /// of `system:masters`, unless this is more.
    pub max_streams: u32,
    /// Watches, followed logs and the like that one user has open; more are answered 429. 0: no limit.
    /// Not for members of `system:masters`, as the two limits below. Default 1000.
    pub max_watches_per_user: usize,
    /// Bytes of answers that one user has not read, on all connections, objects and changes included that
    /// his watches have yet to send. Beyond it further watches are answered 429, and those that are open
    /// get no more until something is read. 0: no limit. Default 256 MiB.
    pub unread_bytes_per_user: usize,
    /// The same of one connection. Default 64 MiB.
    pub unread_bytes_per_connection: usize,
    /// How long a connection may be open with nothing asked for. Default 90 s.
    pub idle: Duration,
    /// How long a client may leave unread what it is sent before its connection is closed, watches
    /// that do not keep up with it. Default 60 s.
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

/// Counts the requests in progress.
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

    /// Lets a request in; the place is free again when what is returned is dropped.
    ///
    /// # Errors
    /// The answer, when there are too many.
    pub(super) fn enter(
        &self,
        labels: &Labels,
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

/// 429 as kube-apiserver answers it: clients look at the header, not at the text.
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
