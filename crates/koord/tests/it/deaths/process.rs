//! A scheduler that is a process, and the socket on which it can be watched and shot.

use super::aim::{Aim, Last, Moment, gang_of, object_of, writes};
use super::world::{World, name_of, node_of};
use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use koord_kube::{Api, Client};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tower::ServiceExt;

/// What is known of a leader that was killed.
#[derive(Debug)]
pub(super) struct Death {
    /// The write that was under way; none for [`Moment::AnyTime`].
    pub(super) last: Option<Last>,
    status: ExitStatus,
    /// Who led, and who it was that died.
    holder: Option<String>,
    identity: Option<String>,
    /// Pods that were bound.
    pub(super) bound: usize,
}

struct Tap {
    server: Router,
    client: Client,
    aim: Aim,
    /// Nobody shall die any more.
    spared: Arc<AtomicBool>,
    /// Nor this one.
    kept: AtomicBool,
    /// Writes reach the server one after the other: what is there when the process dies is known.
    turn: tokio::sync::Mutex<()>,
    /// How many pods will have a place.
    places: usize,
    counted: AtomicU64,
    wrote: Notify,
    dead: AtomicBool,
    /// By what it wrote into the lease.
    identity: Mutex<Option<String>>,
    child: Mutex<Option<Child>>,
    death: Mutex<Option<oneshot::Sender<Death>>>,
}

pub(super) struct Process {
    tap: Arc<Tap>,
    died: oneshot::Receiver<Death>,
    _serving: tokio_util::sync::DropGuard,
}

impl Tap {
    async fn pass(self: Arc<Self>, request: Request<Body>) -> Response {
        if self.dead.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if path.contains("/leases") && method != Method::GET {
            return self.elected(request).await;
        }
        if !writes(&method, &path) {
            return self.serve(request).await;
        }
        let turn = self.turn.lock().await;
        if self.dead.load(Ordering::SeqCst) {
            drop(turn);
            return std::future::pending().await;
        }
        self.wrote.notify_one();
        if !self.is_last(&method, &path).await {
            return self.serve(request).await;
        }
        self.dead.store(true, Ordering::SeqCst);
        drop(turn);
        // This call ends with the connection, and the connection with the process.
        tokio::spawn(self.clone().shoot(request));
        std::future::pending().await
    }

    fn spared(&self) -> bool {
        self.spared.load(Ordering::SeqCst) || self.kept.load(Ordering::SeqCst)
    }

    async fn serve(&self, request: Request<Body>) -> Response {
        let answer = self.server.clone().oneshot(request).await;
        answer.unwrap_or_else(|never| match never {})
    }

    /// Reads from a write of the lease who the process is.
    async fn elected(&self, request: Request<Body>) -> Response {
        let (parts, body) = request.into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let lease: Value = serde_json::from_slice(&bytes).unwrap();
        // Who leaves writes nobody.
        if let Some(holder) = lease["spec"]["holderIdentity"].as_str()
            && !holder.is_empty()
        {
            *self.identity.lock().unwrap() = Some(holder.to_owned());
        }
        self.serve(Request::from_parts(parts, Body::from(bytes)))
            .await
    }

    /// Whether the process shall die with this write.
    async fn is_last(&self, method: &Method, path: &str) -> bool {
        if !self.aim.moment.is(method, path) || self.spared() {
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

    /// Kills the process with `request` on its way.
    async fn shoot(self: Arc<Self>, request: Request<Body>) {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let before = self.object(&path).await;
        let answered: Option<StatusCode> = match self.aim.arrives {
            true => Some(self.serve(request).await.status()),
            false => None,
        };
        let status = self.kill();
        let last = Last {
            object: [before, self.object(&path).await],
            members: members(&self.pods().await, &path),
            method,
            path,
            answered,
        };
        self.tell(status, Some(last)).await;
    }

    /// Kills the process some time after its first write, if something is left to do then.
    async fn shoot_later(self: Arc<Self>) {
        self.wrote.notified().await;
        tokio::time::sleep(self.aim.after).await;
        let _turn = self.turn.lock().await;
        if self.spared() || bound(&self.pods().await) >= self.places {
            return;
        }
        self.dead.store(true, Ordering::SeqCst);
        // It may have ended by itself meanwhile.
        if self.child.lock().unwrap().is_some() {
            let status = self.kill();
            self.tell(status, None).await;
        }
    }

    fn kill(&self) -> ExitStatus {
        let child = self.child.lock().unwrap().take();
        let mut child = child.expect("it was alive: it wrote");
        child.kill().unwrap();
        child.wait().unwrap()
    }

    async fn tell(&self, status: ExitStatus, last: Option<Last>) {
        // Nobody else leads yet: the lease has not run out.
        let identity = self.identity.lock().unwrap().clone();
        let death = Death {
            last,
            status,
            holder: holder(&self.client).await,
            identity,
            bound: bound(&self.pods().await),
        };
        let teller = self.death.lock().unwrap().take();
        if let Some(teller) = teller {
            // Nobody may listen any more.
            drop(teller.send(death));
        }
    }

    /// The object that a path is about, as the server has it.
    async fn object(&self, path: &str) -> Value {
        let request = Request::get(object_of(path)).body(Body::empty()).unwrap();
        let answer = self.serve(request).await;
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

fn bound(pods: &[Pod]) -> usize {
    pods.iter().filter(|pod| node_of(pod).is_some()).count()
}

/// How many members of the gang that `path` is about are bound.
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
    /// The leader led, was alive, and died at the moment that was meant.
    pub(super) fn fell_where_intended(&self, leader: &Process) {
        let aim = leader.aim();
        let what = format!("{self:?} for {aim:?}");
        assert_eq!(self.status.signal(), Some(9), "{what}");
        assert!(
            self.identity.is_some() && self.identity == self.holder,
            "{what}: it did not lead"
        );
        match &self.last {
            Some(last) => last.check(aim),
            None => {
                assert_eq!(aim.moment, Moment::AnyTime, "{what}");
                assert!(
                    self.bound < leader.tap.places,
                    "{what}: it had done everything"
                );
            }
        }
    }
}

impl Process {
    /// Starts a scheduler that has a socket of its own.
    pub(super) async fn start(
        world: &World,
        dir: &Path,
        aim: Aim,
        places: usize,
        spared: Arc<AtomicBool>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let kubeconfig = dir.join(format!("{port}.yaml"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let (death, died) = oneshot::channel();
        let tap = Arc::new(Tap {
            server: world.server().service(),
            client: world.client(),
            aim,
            spared,
            kept: AtomicBool::new(false),
            turn: tokio::sync::Mutex::new(()),
            places,
            counted: AtomicU64::new(0),
            wrote: Notify::new(),
            dead: AtomicBool::new(false),
            identity: Mutex::new(None),
            child: Mutex::new(None),
            death: Mutex::new(Some(death)),
        });
        let stop = tokio_util::sync::CancellationToken::new();
        let serving = stop.clone().drop_guard();
        let pass = tap.clone();
        let router =
            Router::new().fallback(move |request: Request<Body>| pass.clone().pass(request));
        let ended = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                ended = axum::serve(listener, router) => ended.unwrap(),
            }
        });
        let child = Command::new(env!("CARGO_BIN_EXE_koord-scheduler"))
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["--port=0", "--secure-port=0", "--leader-elect=true"])
            .args([
                "--leader-elect-lease-duration=3s",
                "--leader-elect-renew-deadline=2500ms",
                "--leader-elect-retry-period=200ms",
            ])
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        *tap.child.lock().unwrap() = Some(child);
        if aim.moment == Moment::AnyTime {
            let later = tap.clone().shoot_later();
            tokio::spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = later => {}
                }
            });
        }
        Self {
            tap,
            died,
            _serving: serving,
        }
    }

    pub(super) fn aim(&self) -> Aim {
        self.tap.aim
    }

    /// It shall live.
    pub(super) fn spare(&self) {
        self.tap.kept.store(true, Ordering::SeqCst);
    }

    /// Waits for its death. A leader whose lease runs out on a busy machine ends by itself: `None`.
    pub(super) async fn died(&mut self) -> Option<Death> {
        loop {
            let pause = tokio::time::sleep(Duration::from_millis(200));
            tokio::select! {
                death = &mut self.died => return Some(death.unwrap()),
                () = pause => {}
            }
            let mut child = self.tap.child.lock().unwrap();
            let ended = child.as_mut().map(|child| child.try_wait().unwrap());
            if let Some(Some(status)) = ended {
                assert_eq!(status.code(), Some(1), "it left because it lost its lease");
                *child = None;
                return None;
            }
        }
    }

    /// Asks it to leave, and it leaves in order.
    pub(super) async fn stop(self) {
        let child = self.tap.child.lock().unwrap().take();
        let mut child = child.expect("it is alive");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = tokio::task::spawn_blocking(move || child.wait().unwrap());
        let status = status.await.unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.tap.child.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
