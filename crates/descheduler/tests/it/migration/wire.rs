//! A client that can die with a given write, and that records evictions.

use axum::body::Bytes;
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, StatusCode};
use futures::FutureExt;
use futures::future::BoxFuture;
use koord_api::scheduling::{PodMigrationJob, Reservation, ReservationPhase};
use koord_kube::api::ListParams;
use koord_kube::kube_core::Resource;
use koord_kube::{Api, Client, Readable};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An eviction that the API server accepted.
#[derive(Debug, Clone)]
pub(super) struct Eviction {
    /// Name of the pod.
    pub(super) pod: String,
    /// True for a dry run.
    pub(super) dry: bool,
    /// True if a reservation held capacity for the pod's replacement at that moment.
    pub(super) reserved: bool,
}

/// State shared by all clients of a test.
#[derive(Default)]
pub(super) struct WireLog {
    pub(super) evictions: Mutex<Vec<Eviction>>,
    /// Number of requested evictions, including refused ones.
    pub(super) eviction_requests: AtomicUsize,
    /// True if a webhook denies evictions.
    pub(super) denies: AtomicBool,
    /// Status code of the denial; 403 if this is 0.
    pub(super) code: AtomicU16,
    late: Mutex<Option<Late>>,
    /// Late writes that arrived, and their responses.
    pub(super) came: Mutex<Vec<(String, StatusCode)>>,
}

/// A write of a dead leader that has not reached the server yet.
struct Late {
    about: String,
    head: Parts,
    bytes: Bytes,
}

/// Returns a description of a write that is equal for leaders that do the same to the same object, regardless
/// of generated names.
fn about(head: &Parts, bytes: &[u8]) -> String {
    let written: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let name = match &written["spec"]["podRef"]["uid"] {
        Value::Null => &written["metadata"]["name"],
        pod => pod,
    };
    format!("{} {} {name}", head.method, head.uri.path())
}

/// Fate of the last write. Its response is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// The write is done.
    Arrives,
    /// The write is lost.
    Vanishes,
    /// The write is done after the next leader has done the same.
    Late,
}

/// A fuse that blows with a given write.
pub(super) struct Fuse {
    at: usize,
    used: AtomicUsize,
    end: Last,
    last: Mutex<String>,
    blown: CancellationToken,
    /// Number of requests to list jobs.
    lists: AtomicUsize,
    /// True if listing jobs fails.
    pub(super) hides: AtomicBool,
}

impl Fuse {
    pub(super) fn new(at: usize, end: Last) -> Arc<Self> {
        Arc::new(Self {
            at,
            used: AtomicUsize::new(0),
            end,
            last: Mutex::default(),
            blown: CancellationToken::new(),
            lists: AtomicUsize::new(0),
            hides: AtomicBool::new(false),
        })
    }

    pub(super) fn endless() -> Arc<Self> {
        Self::new(usize::MAX, Last::Arrives)
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    pub(super) fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }

    /// Returns true for a list of jobs that must fail.
    fn hidden(&self, head: &Parts) -> bool {
        let lists = head.method == Method::GET && head.uri.path().ends_with("/podmigrationjobs");
        if lists {
            self.lists.fetch_add(1, Ordering::SeqCst);
        }
        lists && self.hides.load(Ordering::SeqCst)
    }

    /// Returns the write with which the fuse blew.
    pub(super) fn last(&self) -> String {
        self.last.lock().clone()
    }

    pub(super) fn blow(&self) {
        self.blown.cancel();
    }

    pub(super) async fn blown(&self) {
        self.blown.cancelled().await;
    }

    /// Returns the fate of a request that is the last one or comes after it.
    fn pass(&self, method: &Method, path: &str) -> Option<Last> {
        if self.blown.is_cancelled() {
            return Some(Last::Vanishes);
        }
        // Leases and events are ignored.
        let counts =
            method != Method::GET && !path.contains("/leases") && !path.contains("/events");
        if counts && self.used.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            *self.last.lock() = format!("{method} {path}");
            self.blow();
            return Some(self.end);
        }
        None
    }
}

/// Returns all objects that can be decoded.
pub(super) async fn all<K>(client: &Client) -> Vec<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + koord_kube::Decode,
{
    let all = Api::<Readable<K>>::all(client.clone());
    let list = all.list(&ListParams::default()).await.unwrap();
    list.items
        .into_iter()
        .filter_map(|object| object.0.ok())
        .collect()
}

/// The API server behind a fuse.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) inner: axum::Router,
    pub(super) fuse: Arc<Fuse>,
    pub(super) log: Arc<WireLog>,
    /// Client that bypasses the fuse.
    pub(super) client: Client,
}

impl Wire {
    /// Returns true if an unused reservation holds capacity for the replacement of `pod`.
    async fn is_reserved(&self, name: &str) -> bool {
        let jobs = all::<PodMigrationJob>(&self.client).await;
        let reservations = all::<Reservation>(&self.client).await;
        let is_of_pod = |job: &&PodMigrationJob| {
            let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
            job.spec.pod_ref.name.as_deref() == Some(name)
                && phase.is_some_and(|phase| phase.as_str() == "Running")
        };
        let mut named = jobs.iter().filter(is_of_pod).filter_map(|job| {
            let options = job.spec.reservation_options.as_ref()?;
            options.reservation_ref.as_ref()?.uid.clone()
        });
        named.any(|uid| {
            reservations.iter().any(|reservation| {
                let status = reservation.status.clone().unwrap_or_default();
                reservation.metadata.uid.as_ref() == Some(&uid)
                    && status.phase == Some(ReservationPhase::Available)
                    && !status.node_name.is_empty()
                    && status.current_owners.is_empty()
            })
        })
    }

    /// Forwards the request.
    async fn arrive(
        &self,
        head: Parts,
        bytes: Bytes,
    ) -> Result<Response<axum::body::Body>, BoxError> {
        let pod = head.uri.path().strip_suffix("/eviction");
        let pod = pod.map(|path| path.rsplit('/').next().unwrap_or_default().to_owned());
        if pod.is_some() {
            self.log.eviction_requests.fetch_add(1, Ordering::SeqCst);
        }
        if pod.is_some() && self.log.denies.load(Ordering::SeqCst) {
            let code = Some(self.log.code.load(Ordering::SeqCst)).filter(|code| *code > 0);
            let code = StatusCode::from_u16(code.unwrap_or(403))?;
            let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
                "reason": "Forbidden", "message": "admission webhook \"guard\" denied the request: not today"});
            let answer = Response::builder().status(code);
            return Ok(answer.body(axum::body::Body::from(serde_json::to_vec(&status)?))?);
        }
        let dry = String::from_utf8_lossy(&bytes).contains("dryRun");
        let reserved = match &pod {
            Some(pod) => self.is_reserved(pod).await,
            None => false,
        };
        let request = Request::from_parts(head, axum::body::Body::from(bytes));
        let answer = self.inner.clone().oneshot(request).await?;
        if let (Some(pod), true) = (pod, answer.status().is_success()) {
            let eviction = Eviction { pod, dry, reserved };
            self.log.evictions.lock().push(eviction);
        }
        Ok(answer)
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
            let dead = || Err(BoxError::from("the process is dead"));
            let (head, body) = request.into_parts();
            let last = wire.fuse.pass(&head.method, head.uri.path());
            let bytes = body.collect_bytes().await?;
            if wire.fuse.hidden(&head) {
                return Err(BoxError::from("no response"));
            }
            let about = about(&head, &bytes);
            match last {
                Some(Last::Vanishes) => return dead(),
                Some(Last::Late) => {
                    *wire.log.late.lock() = Some(Late { about, head, bytes });
                    return dead();
                }
                Some(Last::Arrives) | None => {}
            }
            let answer = wire.arrive(head, bytes).await?;
            if last.is_some() {
                return dead();
            }
            let late_write = wire
                .log
                .late
                .lock()
                .take_if(|late_write| late_write.about == about);
            if let Some(late_write) = late_write {
                let status = wire
                    .arrive(late_write.head, late_write.bytes)
                    .await?
                    .status();
                wire.log.came.lock().push((about, status));
            }
            Ok(answer)
        }
        .boxed()
    }
}
