//! A koord-descheduler in a separate process, which is killed at a certain write.

use super::{PER_NODE, PER_WORKLOAD, holder, unfinished};
use crate::wire::{self, Wire, elects, writes};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::Response;
use http::request::Parts;
use http::{Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::{PodMigrationJob, Reservation, ReservationPhase};
use koord_descheduler::migration::{JobStage, PASSED, stage};
use koord_kube::api::ListParams;
use koord_kube::{Api, Client};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::DropGuard;
use tower::ServiceExt;

/// Time of a leader's death: after so many writes while a job is unfinished.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aim {
    at: u64,
    end: End,
}

/// Fate of the last write. The leader never receives a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The write is done.
    Arrives,
    /// The write is lost.
    Vanishes,
    /// The write is done once the next leader has made the same one.
    Late,
}

/// A write that has not reached the server yet.
pub(super) struct Write {
    about: String,
    head: Parts,
    body: Bytes,
}

/// Returns a key that is equal for two leaders' writes with the same effect on the same object, regardless of
/// generated names.
fn about(head: &Parts, written: &Value) -> String {
    let name = match &written["spec"]["podRef"]["uid"] {
        Value::Null => &written["metadata"]["name"],
        pod => pod,
    };
    format!("{} {} {name}", head.method, head.uri.path())
}

impl Aim {
    pub(super) fn draw(random: &mut fastrand::Rng) -> Self {
        Self {
            at: random.u64(1..=12),
            end: [End::Arrives, End::Vanishes, End::Late][random.usize(0..3)],
        }
    }
}

/// An eviction that the API server accepted, except dry runs.
#[derive(Debug, Clone)]
pub(super) struct Eviction {
    pub(super) uid: String,
    /// True if capacity was reserved for the pod's replacement and unused.
    pub(super) reserved: bool,
}

/// State shared by all descheduler processes of a cluster.
pub(super) struct Shared {
    pub(super) server: Router,
    pub(super) client: Client,
    /// True if no further process is killed.
    pub(super) spared: Arc<AtomicBool>,
    pub(super) evictions: Mutex<Vec<Eviction>>,
    /// Limits that were exceeded.
    pub(super) exceeded: Mutex<Vec<String>>,
    /// Number of writes of the lease by leaders.
    pub(super) renewals: watch::Sender<u64>,
    /// Write of a dead leader that has not arrived yet.
    pub(super) late: Mutex<Option<Write>>,
    /// Late writes that arrived, and the responses to them.
    pub(super) came: Mutex<Vec<(String, StatusCode)>>,
}

/// Returns the server for a scheduler that delays writes of reservations: the leader renews its lease
/// meanwhile, and could evict a pod too early.
pub(super) fn unhurried(shared: &Arc<Shared>) -> Router {
    let shared = shared.clone();
    let created = Arc::<Mutex<BTreeSet<String>>>::default();
    Router::new().fallback(move |request: Request<Body>| {
        let (shared, created) = (shared.clone(), created.clone());
        async move {
            let path = request.uri().path();
            let is_new = writes(request.method(), path)
                && path.contains("/reservations/")
                && created.lock().unwrap().insert(path.to_owned());
            if is_new {
                let mut renewals = shared.renewals.subscribe();
                let enough = *renewals.borrow() + 3;
                let renewed = renewals.wait_for(|now| *now >= enough).await;
                drop(renewed.unwrap());
            }
            let answer = shared.server.clone().oneshot(request).await;
            answer.unwrap_or_else(|never| match never {})
        }
    })
}

/// State at the death of a leader that was killed.
#[derive(Debug)]
pub(super) struct Death {
    status: ExitStatus,
    /// Holder of the lease at the time; `identity` is that of the killed process.
    holder: Option<String>,
    identity: Option<String>,
    /// Jobs that had not ended.
    pub(super) unfinished: usize,
    /// Last write of the process: kind and sub-resource.
    pub(super) last: String,
}

impl Death {
    /// Checks that the process held the lease, and died in the middle of a migration.
    pub(super) fn fell_where_intended(&self) {
        assert_eq!(self.status.signal(), Some(9), "{self:?}");
        assert!(
            self.identity.is_some() && self.identity == self.holder,
            "it did not lead: {self:?}"
        );
        assert!(self.unfinished > 0, "no job was in flight: {self:?}");
    }
}

struct Tap {
    wire: Wire,
    shared: Arc<Shared>,
    aim: Aim,
    counted: AtomicU64,
    death: Mutex<Option<oneshot::Sender<Death>>>,
}

impl Tap {
    /// Passes a request to the server, and kills the process with the intended write.
    async fn pass(self: Arc<Self>, request: Request<Body>) -> Response {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if self.wire.is_cut() {
            return std::future::pending().await;
        }
        if elects(&method, &path) {
            self.shared.renewals.send_modify(|all| *all += 1);
            return self.wire.elected(request).await;
        }
        if !writes(&method, &path) {
            return self.wire.serve(request).await;
        }
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let turn = self.wire.turn.lock().await;
        if self.wire.is_cut() {
            drop(turn);
            return std::future::pending().await;
        }
        let written: Value = serde_json::from_slice(&body).unwrap_or_default();
        if !written["metadata"]["annotations"][PASSED].is_null()
            && path.contains("/podmigrationjobs/")
        {
            self.begins(&written).await;
        }
        let last = self.is_last(&written).await;
        let about = about(&head, &written);
        let write = Write { about, head, body };
        if last {
            self.wire.cut();
            drop(turn);
            // The connection ends with the process, and this call with the connection.
            tokio::spawn(self.clone().shoot(write));
            return std::future::pending().await;
        }
        let is_same = |late: &mut Write| late.about == write.about;
        let late = self.shared.late.lock().unwrap().take_if(is_same);
        let answer = self.arrive(write).await;
        if let Some(late) = late {
            let about = late.about.clone();
            let status = self.arrive(late).await.status();
            self.shared.came.lock().unwrap().push((about, status));
        }
        answer
    }

    /// Sends the write to the server.
    async fn arrive(&self, write: Write) -> Response {
        let eviction = match write.head.uri.path().ends_with("/eviction") {
            true => self.see(&write.body).await,
            false => None,
        };
        let request = Request::from_parts(write.head, Body::from(write.body));
        let answer = self.wire.serve(request).await;
        if answer.status().is_success() {
            self.shared.evictions.lock().unwrap().extend(eviction);
        }
        answer
    }

    /// Checks the limits when a job may begin, against pods that are being moved and still exist.
    async fn begins(&self, written: &Value) {
        let pods: Api<Pod> = Api::default_namespaced(self.shared.client.clone());
        let pods = pods.list(&ListParams::default()).await.unwrap().items;
        let jobs = jobs(&self.shared.client).await;
        let begun = jobs.iter().filter(|job| stage(job) == JobStage::Begun);
        let uids = begun.filter_map(|job| job.spec.pod_ref.uid.as_deref());
        let mut uids: BTreeSet<_> = uids.collect();
        uids.extend(written["spec"]["podRef"]["uid"].as_str());
        let (mut nodes, mut workloads) = (BTreeMap::new(), BTreeMap::new());
        for pod in pods {
            if !uids.contains(pod.metadata.uid.as_deref().unwrap_or_default()) {
                continue;
            }
            let workload = pod.metadata.labels.unwrap_or_default().remove("app");
            let node = pod.spec.and_then(|spec| spec.node_name);
            *workloads.entry(workload).or_insert(0) += 1;
            *nodes.entry(node).or_insert(0) += 1;
        }
        let within = nodes.values().all(|all| *all <= PER_NODE)
            && workloads.values().all(|all| *all <= PER_WORKLOAD);
        if !within {
            let counts = format!("{nodes:?} {workloads:?}");
            self.shared.exceeded.lock().unwrap().push(counts);
        }
    }

    /// Parses an eviction request, and checks its reservation; `None` for a dry run.
    async fn see(&self, body: &[u8]) -> Option<Eviction> {
        let written: Value = serde_json::from_slice(body).unwrap();
        if !written["deleteOptions"]["dryRun"].is_null() {
            return None;
        }
        let uid = written["deleteOptions"]["preconditions"]["uid"].as_str();
        let uid = uid.expect("the pod that is meant and no other").to_owned();
        let jobs = jobs(&self.shared.client).await;
        let reservations: Api<Reservation> = Api::all(self.shared.client.clone());
        let reservations = reservations
            .list(&ListParams::default())
            .await
            .unwrap()
            .items;
        let of = jobs
            .iter()
            .filter(|job| job.spec.pod_ref.uid.as_deref() == Some(&uid));
        let mut named = of.filter_map(|job| {
            let options = job.spec.reservation_options.as_ref()?;
            options.reservation_ref.as_ref()?.uid.clone()
        });
        let is_free = |reservation: &Reservation| {
            let status = reservation.status.clone().unwrap_or_default();
            status.phase == Some(ReservationPhase::Available)
                && !status.node_name.is_empty()
                && status.current_owners.is_empty()
        };
        let reserved = named.any(|uid| {
            let mut all = reservations.iter();
            all.any(|reservation| {
                reservation.metadata.uid.as_ref() == Some(&uid) && is_free(reservation)
            })
        });
        Some(Eviction { uid, reserved })
    }

    /// Returns true if the process is to be killed with this write: a job is unfinished, and stays so.
    async fn is_last(&self, written: &Value) -> bool {
        if self.shared.spared.load(Ordering::SeqCst) {
            return false;
        }
        let open_jobs = unfinished(&jobs(&self.shared.client).await);
        let ends = matches!(
            written["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        let open_jobs =
            open_jobs - usize::from(open_jobs > 0 && ends && self.aim.end == End::Arrives);
        open_jobs > 0 && self.counted.fetch_add(1, Ordering::SeqCst) + 1 == self.aim.at
    }

    /// Kills the process with `write` on its way.
    async fn shoot(self: Arc<Self>, write: Write) {
        let path = write.head.uri.path().to_owned();
        let method = write.head.method.clone();
        match self.aim.end {
            End::Arrives => drop(self.arrive(write).await),
            End::Vanishes => {}
            End::Late => *self.shared.late.lock().unwrap() = Some(write),
        }
        let status = self.wire.kill();
        let kinds = ["podmigrationjobs", "reservations", "pods"];
        let kind = kinds.into_iter().find(|kind| path.contains(kind));
        let part = ["/status", "/eviction"];
        let part = part.into_iter().find(|part| path.ends_with(part));
        let death = Death {
            status,
            // No other leader exists yet: the lease has not run out.
            holder: holder(&self.shared.client).await,
            identity: self.wire.identity(),
            unfinished: unfinished(&jobs(&self.shared.client).await),
            last: format!(
                "{method} {}{}",
                kind.unwrap_or(&path),
                part.unwrap_or_default()
            ),
        };
        if let Some(teller) = self.death.lock().unwrap().take() {
            // The receiver may have been dropped.
            drop(teller.send(death));
        }
    }
}

pub(super) async fn jobs(client: &Client) -> Vec<PodMigrationJob> {
    let jobs: Api<PodMigrationJob> = Api::all(client.clone());
    jobs.list(&ListParams::default()).await.unwrap().items
}

pub(super) struct Process {
    tap: Arc<Tap>,
    died: oneshot::Receiver<Death>,
    _serving: DropGuard,
}

impl Process {
    /// Starts a descheduler with a separate socket.
    pub(super) async fn start(shared: &Arc<Shared>, dir: &Path, aim: Aim) -> Self {
        let (death, died) = oneshot::channel();
        let tap = Arc::new(Tap {
            wire: Wire::new(shared.server.clone()),
            shared: shared.clone(),
            aim,
            counted: AtomicU64::new(0),
            death: Mutex::new(Some(death)),
        });
        let pass = tap.clone();
        let router =
            Router::new().fallback(move |request: Request<Body>| pass.clone().pass(request));
        let (kubeconfig, serving) = wire::listen(dir, router).await;
        let mut command = wire::daemon("descheduler", &kubeconfig);
        let command = command.arg("--config").arg(dir.join("descheduler.json"));
        let command = command.arg("--scheduler-config");
        let command = command.arg(dir.join("scheduler.json"));
        let command = command.args(["--find-targets", "--secure-port=0"]);
        tap.wire.start(command.args([
            "--leader-elect-lease-duration=2s",
            "--leader-elect-renew-deadline=1600ms",
            "--leader-elect-retry-period=100ms",
        ]));
        Self {
            tap,
            died,
            _serving: serving,
        }
    }

    /// Waits for its death. A leader whose lease runs out on a busy machine ends by itself: `None`.
    pub(super) async fn died(&mut self) -> Option<Death> {
        self.tap.wire.died(&mut self.died).await
    }

    pub(super) async fn stop(self) {
        self.tap.wire.stop().await;
    }
}
