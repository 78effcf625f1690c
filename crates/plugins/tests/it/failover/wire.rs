//! A client whose process can die: from one of its writes on, nothing gets through.

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use tokio_util::sync::CancellationToken;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Blows with a certain write.
pub(super) struct Fuse {
    at: i64,
    used: AtomicI64,
    /// Whether the last write reaches the server; its answer never comes.
    arrives: bool,
    blown: CancellationToken,
}

impl Fuse {
    pub(super) fn new(at: i64, arrives: bool) -> Arc<Self> {
        Arc::new(Self {
            at,
            used: AtomicI64::new(0),
            arrives,
            blown: CancellationToken::new(),
        })
    }

    pub(super) fn endless() -> Arc<Self> {
        Self::new(i64::MAX, true)
    }

    pub(super) async fn blown(&self) {
        self.blown.cancelled().await;
    }

    pub(super) fn blow(&self) {
        self.blown.cancel();
    }

    /// How many writes there were.
    pub(super) fn used(&self) -> i64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Whether a request gets through, and whether its answer does.
    fn pass(&self, method: &Method, path: &str) -> (bool, bool) {
        if self.blown.is_cancelled() {
            return (false, false);
        }
        // Elections and events are not what the run is about.
        let counts =
            method != Method::GET && !path.contains("/leases") && !path.contains("/events");
        if counts && self.used.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            self.blow();
            return (self.arrives, false);
        }
        (true, true)
    }
}

/// A service behind a fuse.
#[derive(Clone)]
pub(super) struct Wire<S> {
    pub(super) inner: S,
    pub(super) fuse: Arc<Fuse>,
}

impl<S, B> tower::Service<Request<B>> for Wire<S>
where
    S: tower::Service<Request<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let dead = || BoxError::from("the process is dead");
        let (sent, answered) = self.fuse.pass(request.method(), request.uri().path());
        if !sent {
            return async move { Err(dead()) }.boxed();
        }
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await.map_err(Into::into)?;
            if answered { Ok(answer) } else { Err(dead()) }
        }
        .boxed()
    }
}
