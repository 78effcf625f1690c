//! A client that can die with a certain write, and whose evictions are looked at.

use axum::http::{Method, Request, Response, StatusCode};
use futures::FutureExt;
use futures::future::BoxFuture;
use koord_api::scheduling::{PodMigrationJob, Reservation, ReservationPhase};
use koord_kube::api::ListParams;
use koord_kube::{Api, Client};
use kube::client::Body;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio_util::sync::CancellationToken;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An eviction that was asked for.
#[derive(Debug, Clone)]
pub(super) struct Eviction {
    /// Its name.
    pub(super) pod: String,
    /// Whether only the answer mattered.
    pub(super) dry: bool,
    /// Whether a reservation held room for the pod's replacement at that moment.
    pub(super) reserved: bool,
}

/// What all clients of a test share.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) evictions: Mutex<Vec<Eviction>>,
    /// Whether a webhook denies evictions.
    pub(super) denies: AtomicBool,
}

/// Blows with a write.
pub(super) struct Fuse {
    at: usize,
    used: AtomicUsize,
    /// Whether the last write reaches the server; its answer never comes.
    arrives: bool,
    last: Mutex<String>,
    blown: CancellationToken,
}

impl Fuse {
    pub(super) fn new(at: usize, arrives: bool) -> Arc<Self> {
        Arc::new(Self {
            at,
            used: AtomicUsize::new(0),
            arrives,
            last: Mutex::default(),
            blown: CancellationToken::new(),
        })
    }

    pub(super) fn endless() -> Arc<Self> {
        Self::new(usize::MAX, true)
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    /// The write with which it blew.
    pub(super) fn last(&self) -> String {
        self.last.lock().clone()
    }

    pub(super) fn blow(&self) {
        self.blown.cancel();
    }

    pub(super) async fn blown(&self) {
        self.blown.cancelled().await;
    }

    /// Whether a request gets through, and whether its answer does.
    fn pass(&self, method: &Method, path: &str) -> (bool, bool) {
        if self.blown.is_cancelled() {
            return (false, false);
        }
        // Elections and events are not what the runs are about.
        let counts =
            method != Method::GET && !path.contains("/leases") && !path.contains("/events");
        if counts && self.used.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            *self.last.lock() = format!("{method} {path}");
            self.blow();
            return (self.arrives, false);
        }
        (true, true)
    }
}

/// The API server behind a fuse.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) inner: axum::Router,
    pub(super) fuse: Arc<Fuse>,
    pub(super) seen: Arc<Seen>,
    /// Looks past the fuse.
    pub(super) client: Client,
}

impl Wire {
    /// Whether a reservation that nobody has used holds room for what replaces `pod`.
    async fn is_reserved(&self, name: &str) -> bool {
        let all = ListParams::default();
        let jobs = Api::<PodMigrationJob>::all(self.client.clone());
        let jobs = jobs.list(&all).await.unwrap().items;
        let held = Api::<Reservation>::all(self.client.clone());
        let held = held.list(&all).await.unwrap().items;
        let of = |job: &&PodMigrationJob| {
            let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
            job.spec.pod_ref.name.as_deref() == Some(name)
                && phase.is_some_and(|phase| phase.as_str() == "Running")
        };
        let mut named = jobs.iter().filter(of).filter_map(|job| {
            let options = job.spec.reservation_options.as_ref()?;
            options.reservation_ref.as_ref()?.uid.clone()
        });
        named.any(|uid| {
            held.iter().any(|one| {
                let status = one.status.clone().unwrap_or_default();
                one.metadata.uid.as_ref() == Some(&uid)
                    && status.phase == Some(ReservationPhase::Available)
                    && !status.node_name.is_empty()
                    && status.current_owners.is_empty()
            })
        })
    }
}

impl tower::Service<Request<Body>> for Wire {
    type Response = Response<axum::body::Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let wire = self.clone();
        async move {
            let dead = || BoxError::from("the process is dead");
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let (sent, answered) = wire.fuse.pass(&method, &path);
            if !sent {
                return Err(dead());
            }
            let (head, body) = request.into_parts();
            let bytes = body.collect_bytes().await?;
            if let Some(pod) = path.strip_suffix("/eviction") {
                let name = pod.rsplit('/').next().unwrap_or_default().to_owned();
                let dry = String::from_utf8_lossy(&bytes).contains("dryRun");
                let reserved = wire.is_reserved(&name).await;
                let pod = name;
                wire.seen.evictions.lock().push(Eviction { pod, dry, reserved });
                if wire.seen.denies.load(Ordering::SeqCst) {
                    let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                        "reason": "Forbidden", "message": "admission webhook \"guard\" denied the request: not today"});
                    let answer = Response::builder().status(StatusCode::FORBIDDEN);
                    return Ok(answer.body(axum::body::Body::from(serde_json::to_vec(&status)?))?);
                }
            }
            let mut inner = wire.inner.clone();
            let service: &mut axum::Router = &mut inner;
            poll_fn(|context| tower::Service::<Request<axum::body::Body>>::poll_ready(service, context)).await?;
            let request = Request::from_parts(head, axum::body::Body::from(bytes));
            let answer = tower::Service::call(service, request).await?;
            if !answered {
                return Err(dead());
            }
            Ok(answer)
        }
        .boxed()
    }
}
