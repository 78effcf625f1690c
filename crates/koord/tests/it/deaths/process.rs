//! A scheduler in a separate process, and the socket on which its requests are watched and it is killed.

use super::aim::{Aim, Last, Moment, gang_of, object_of};
use super::world::{FailoverWorld, name_of, node_of};
use crate::wire::{self, Wire, elects, writes};
use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use koord_kube::{Api, Client};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, oneshot};
use tokio_util::task::AbortOnDropHandle;

/// State at the death of a leader that was killed.
#[derive(Debug)]
pub(super) struct Death {
    /// The write that was in flight; `None` for [`Moment::AnyTime`].
    pub(super) last: Option<Last>,
    status: ExitStatus,
    /// Holder of the lease at the time; `identity` is that of the killed process.
    holder: Option<String>,
    identity: Option<String>,
    /// Pods that were bound.
    pub(super) bound: usize,
}

struct Tap {
    wire: Wire,
    client: Client,
    aim: Aim,
    /// True if no further process is killed.
    spared: Arc<AtomicBool>,
    /// True if this process is not killed.
    kept: AtomicBool,
    /// Number of pods that can be placed.
    places: usize,
    counted: AtomicU64,
    wrote: Notify,
    death: Mutex<Option<oneshot::Sender<Death>>>,
}

pub(super) struct Process {
    tap: Arc<Tap>,
    died: oneshot::Receiver<Death>,
    _later: Option<AbortOnDropHandle<()>>,
    _serving: tokio_util::sync::DropGuard,
}

impl Tap {
    /// Passes a request to the server, and kills the process with the intended write.
    async fn pass(self: Arc<Self>, request: Request<Body>) -> Response {
        if self.wire.is_cut() {
            return std::future::pending().await;
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if elects(&method, &path) {
            return self.wire.elected(request).await;
        }
        if !writes(&method, &path) {
            return self.wire.serve(request).await;
        }
        let turn = self.wire.turn.lock().await;
        if self.wire.is_cut() {
            drop(turn);
            return std::future::pending().await;
        }
        self.wrote.notify_one();
        let (request, body) = opened(request).await;
        if !self.is_last(&method, &path, &body).await {
            return self.wire.serve(request).await;
        }
        self.wire.cut();
        drop(turn);
        // The connection ends with the process, and this call with the connection.
        tokio::spawn(self.clone().shoot(request, body));
        std::future::pending().await
    }

    fn spared(&self) -> bool {
        self.spared.load(Ordering::SeqCst) || self.kept.load(Ordering::SeqCst)
    }

    /// Returns true if the process is to be killed with this write.
    async fn is_last(&self, method: &Method, path: &str, body: &str) -> bool {
        if !self.aim.moment.is(method, path, body) || self.spared() {
            return false;
        }
        if self.aim.moment == Moment::InsideGang {
            let bound = members(&self.pods().await, path).unwrap();
            let after = bound + usize::from(self.aim.arrives);
            let (_, size) = gang_of(path).unwrap();
            if !(1..size).contains(&after) {
                return false;
            }
        }
        self.counted.fetch_add(1, Ordering::SeqCst) + 1 == self.aim.at
    }

    /// Kills the process while `request`, whose body is `body`, is in flight.
    async fn shoot(self: Arc<Self>, request: Request<Body>, body: String) {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let before = self.object(&path).await;
        let answered: Option<StatusCode> = match self.aim.arrives {
            true => Some(self.wire.serve(request).await.status()),
            false => None,
        };
        let status = self.wire.kill();
        let last = Last {
            object: [before, self.object(&path).await],
            members: members(&self.pods().await, &path),
            method,
            path,
            body,
            answered,
        };
        self.tell(status, Some(last)).await;
    }

    /// Kills the process some time after its first write, if something is left to do then.
    async fn shoot_later(self: Arc<Self>) {
        self.wrote.notified().await;
        tokio::time::sleep(self.aim.after).await;
        let _turn = self.wire.turn.lock().await;
        if self.spared() || bound(&self.pods().await) >= self.places {
            return;
        }
        self.wire.cut();
        // It may have ended by itself meanwhile.
        if self.wire.is_there() {
            let status = self.wire.kill();
            self.tell(status, None).await;
        }
    }

    async fn tell(&self, status: ExitStatus, last: Option<Last>) {
        // No other leader exists yet: the lease has not run out.
        let identity = self.wire.identity();
        let death = Death {
            last,
            status,
            holder: holder(&self.client).await,
            identity,
            bound: bound(&self.pods().await),
        };
        let teller = self.death.lock().unwrap().take();
        if let Some(teller) = teller {
            // The receiver may have been dropped.
            drop(teller.send(death));
        }
    }

    /// Reads the object of a path from the server.
    async fn object(&self, path: &str) -> Value {
        let request = Request::get(object_of(path)).body(Body::empty()).unwrap();
        let answer = self.wire.serve(request).await;
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await;
        serde_json::from_slice(&bytes.unwrap()).unwrap()
    }

    async fn pods(&self) -> Vec<Pod> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        api.list(&koord_kube::api::ListParams::default())
            .await
            .unwrap()
            .items
    }
}

/// Returns the request and its body as text.
async fn opened(request: Request<Body>) -> (Request<Body>, String) {
    let (head, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (Request::from_parts(head, Body::from(bytes)), text)
}

fn bound(pods: &[Pod]) -> usize {
    pods.iter().filter(|pod| node_of(pod).is_some()).count()
}

/// Counts the bound members of the gang in `path`; `None` if there is no gang.
fn members(pods: &[Pod], path: &str) -> Option<usize> {
    let (gang, _) = gang_of(path)?;
    let of = |pod: &&Pod| name_of(pod).split('-').next() == Some(gang) && node_of(pod).is_some();
    Some(pods.iter().filter(of).count())
}

async fn holder(client: &Client) -> Option<String> {
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
        Api::namespaced(client.clone(), "kube-system");
    let lease = leases.get_opt("koord-scheduler").await.unwrap();
    lease?.spec?.holder_identity
}

impl Death {
    /// Checks that the leader held the lease, was alive, and died at the intended moment.
    pub(super) fn fell_where_intended(&self, leader: &Process) {
        let aim = leader.aim();
        let context = format!("{self:?} for {aim:?}");
        assert_eq!(self.status.signal(), Some(9), "{context}");
        assert!(
            self.identity.is_some() && self.identity == self.holder,
            "{context}: it did not lead"
        );
        match &self.last {
            Some(last) => last.check(aim),
            None => {
                assert_eq!(aim.moment, Moment::AnyTime, "{context}");
                assert!(
                    self.bound < leader.tap.places,
                    "{context}: it had done everything"
                );
            }
        }
    }
}

impl Process {
    /// Starts a scheduler with a separate socket.
    pub(super) async fn start(
        world: &FailoverWorld,
        dir: &Path,
        aim: Aim,
        places: usize,
        spared: Arc<AtomicBool>,
    ) -> Self {
        let (death, died) = oneshot::channel();
        let tap = Arc::new(Tap {
            wire: Wire::new(world.server().service()),
            client: world.client(),
            aim,
            spared,
            kept: AtomicBool::new(false),
            places,
            counted: AtomicU64::new(0),
            wrote: Notify::new(),
            death: Mutex::new(Some(death)),
        });
        let pass = tap.clone();
        let router =
            Router::new().fallback(move |request: Request<Body>| pass.clone().pass(request));
        let (kubeconfig, serving) = wire::listen(dir, router).await;
        let mut command = wire::daemon("scheduler", &kubeconfig);
        let command = command.args(["--port=0", "--secure-port=0", "--leader-elect=true"]);
        tap.wire.start(command.args([
            "--leader-elect-lease-duration=3s",
            "--leader-elect-renew-deadline=2500ms",
            "--leader-elect-retry-period=200ms",
        ]));
        let later = (aim.moment == Moment::AnyTime)
            .then(|| AbortOnDropHandle::new(tokio::spawn(tap.clone().shoot_later())));
        Self {
            tap,
            died,
            _later: later,
            _serving: serving,
        }
    }

    pub(super) fn aim(&self) -> Aim {
        self.tap.aim
    }

    /// Excludes the process from being killed.
    pub(super) fn spare(&self) {
        self.tap.kept.store(true, Ordering::SeqCst);
    }

    /// Waits for its death. A leader whose lease runs out on a busy machine ends by itself: `None`.
    pub(super) async fn died(&mut self) -> Option<Death> {
        self.tap.wire.died(&mut self.died).await
    }

    /// Stops it, and waits for an orderly end.
    pub(super) async fn stop(self) {
        self.tap.wire.stop().await;
    }
}
