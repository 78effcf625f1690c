//! Client whose process can be killed: from one of its writes on, no request gets through. It can also lose
//! its lease, be slow, or have stalled watches.

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Selects requests by method and path.
pub(super) type Which = fn(&Method, &str) -> bool;

/// Selects all writes except those of leader election and events.
pub(super) fn any_write(method: &Method, path: &str) -> bool {
    method != Method::GET && !path.contains("/leases") && !path.contains("/events")
}

/// Selects bindings of members of gang `a` or `b`.
pub(super) fn gang_binding(method: &Method, path: &str) -> bool {
    any_write(method, path) && path.contains("/pods/gang") && path.ends_with("/binding")
}

/// Selects bindings of members of the two gangs of which only one fits.
pub(super) fn rival_binding(method: &Method, path: &str) -> bool {
    any_write(method, path) && path.contains("/pods/rival") && path.ends_with("/binding")
}

/// Selects writes to a reservation or its status, or to a pod that owns one.
pub(super) fn reservation_write(method: &Method, path: &str) -> bool {
    any_write(method, path) && (path.contains("/reservations/") || path.contains("/pods/web-"))
}

/// Selects the deletion of a victim.
pub(super) fn eviction(method: &Method, path: &str) -> bool {
    method == Method::DELETE && path.contains("/pods/")
}

/// Way in which a request fails.
#[derive(Clone, Copy)]
pub(super) enum Lost {
    /// The connection is reset.
    Reset,
    /// No answer ever arrives.
    Silence,
}

/// Fault injection for requests; from a certain request on, all of them fail.
pub(super) struct Fuse {
    at: i64,
    counted: Which,
    used: AtomicI64,
    /// True if the last write reaches the server; its answer is lost.
    arrives: bool,
    blown: CancellationToken,
    /// True if requests about leases fail.
    pub(super) leaseless: AtomicBool,
    /// Delays before requests reach the server.
    delays: Vec<(Which, Duration)>,
    /// End of the path of objects whose first watch never delivers anything.
    stalls: Mutex<Option<&'static str>>,
    /// Failures of the lists of those objects after that, the last first.
    lists: Mutex<(&'static str, Vec<Lost>)>,
    /// Times at which the first and the last write reached the server.
    written: Mutex<Option<[Instant; 2]>>,
}

impl Fuse {
    /// Creates a fuse that blows with request number `at` of those that `counted` selects.
    pub(super) fn new(at: i64, counted: Which, arrives: bool) -> Arc<Self> {
        Arc::new(Self::plain(at, counted, arrives))
    }

    fn plain(at: i64, counted: Which, arrives: bool) -> Self {
        Self {
            at,
            counted,
            used: AtomicI64::new(0),
            arrives,
            blown: CancellationToken::new(),
            leaseless: AtomicBool::new(false),
            delays: Vec::new(),
            stalls: Mutex::default(),
            lists: Mutex::default(),
            written: Mutex::default(),
        }
    }

    pub(super) fn endless() -> Arc<Self> {
        Self::new(i64::MAX, any_write, true)
    }

    /// Creates a fuse that never blows; the first of `delays` that selects a request applies.
    pub(super) fn slow(delays: Vec<(Which, Duration)>) -> Arc<Self> {
        Arc::new(Self {
            delays,
            ..Self::plain(i64::MAX, any_write, true)
        })
    }

    /// Creates a fuse that never blows; the first watch of the objects whose path ends in `plural` delivers
    /// nothing, like a half-open connection, and their next lists fail as in `lists`.
    pub(super) fn stalled(plural: &'static str, lists: &[Lost]) -> Arc<Self> {
        Arc::new(Self {
            stalls: Mutex::new(Some(plural)),
            lists: Mutex::new((plural, lists.iter().rev().copied().collect())),
            ..Self::plain(i64::MAX, any_write, true)
        })
    }

    /// Returns true if the first watch was requested.
    pub(super) fn has_stalled(&self) -> bool {
        self.stalls.lock().unwrap().is_none()
    }

    fn stalls(&self, path: &str, query: &str) -> bool {
        let mut stalls = self.stalls.lock().unwrap();
        let meant = |plural: &mut &str| query.contains("watch=true") && path.ends_with(*plural);
        stalls.take_if(meant).is_some()
    }

    /// Returns how a list of the objects with the stalled watch fails, if it does.
    fn loses(&self, path: &str, query: &str) -> Option<Lost> {
        let (plural, lists) = &mut *self.lists.lock().unwrap();
        let meant = !query.contains("watch=true") && path.ends_with(*plural);
        if meant && self.has_stalled() {
            return lists.pop();
        }
        None
    }

    /// Returns true if all lists that were to fail have failed.
    pub(super) fn has_lost_all(&self) -> bool {
        self.lists.lock().unwrap().1.is_empty()
    }

    pub(super) async fn blown(&self) {
        self.blown.cancelled().await;
    }

    pub(super) fn blow(&self) {
        self.blown.cancel();
    }

    /// Returns the number of counted requests.
    pub(super) fn used(&self) -> i64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Returns the times at which the first and the last write reached the server.
    pub(super) fn written(&self) -> Option<[Instant; 2]> {
        *self.written.lock().unwrap()
    }

    /// Returns whether a request gets through, and whether its answer does.
    fn pass(&self, method: &Method, path: &str) -> (bool, bool) {
        let refused = self.leaseless.load(Ordering::SeqCst) && path.contains("/leases");
        if self.blown.is_cancelled() || refused {
            return (false, false);
        }
        let counts = (self.counted)(method, path);
        if counts && self.used.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            self.blow();
            return (self.arrives, false);
        }
        (true, true)
    }

    fn delay(&self, method: &Method, path: &str) -> Option<Duration> {
        let delay = self.delays.iter().find(|(which, _)| which(method, path));
        delay.map(|(_, delay)| *delay)
    }

    fn note(&self, method: &Method, path: &str) {
        if any_write(method, path) {
            let now = Instant::now();
            let mut written = self.written.lock().unwrap();
            *written = Some(written.map_or([now, now], |[first, _]| [first, now]));
        }
    }
}

/// Service behind a fuse.
#[derive(Clone)]
pub(super) struct Wire<S> {
    pub(super) inner: S,
    pub(super) fuse: Arc<Fuse>,
}

impl<S, B> tower::Service<Request<B>> for Wire<S>
where
    S: tower::Service<Request<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    S::Response: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let dead = || BoxError::from("the process is dead");
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let (sent, answered) = self.fuse.pass(&method, &path);
        if !sent {
            return async move { Err(dead()) }.boxed();
        }
        let (mut inner, fuse) = (self.inner.clone(), self.fuse.clone());
        let query = request.uri().query().unwrap_or_default();
        let stalls = fuse.stalls(&path, query);
        let lost = fuse.loses(&path, query);
        async move {
            match lost {
                Some(Lost::Reset) => return Err(dead()),
                Some(Lost::Silence) => std::future::pending::<()>().await,
                None => {}
            }
            if stalls {
                std::future::pending::<()>().await;
            }
            if let Some(delay) = fuse.delay(&method, &path) {
                tokio::time::sleep(delay).await;
            }
            fuse.note(&method, &path);
            poll_fn(|context| inner.poll_ready(context))
                .await
                .map_err(Into::into)?;
            let answer = inner.call(request).await.map_err(Into::into)?;
            if answered { Ok(answer) } else { Err(dead()) }
        }
        .boxed()
    }
}
