//! Task of a pod: starts its containers, watches them, reports to the API, and stops them.

use crate::container;
use crate::container_registry::{RunningContainer, registry_key};
use crate::context::Shared;
use crate::groups::GroupError;
use crate::lifecycle::{self, Ended, PodOutcome, Record, RestartPolicy, State};
use crate::pod::{self, GroupSettings, qos_of};
use crate::probe::{self, ProbeKind, ProbeResult};
use crate::publish::{Desired, Publisher};
use crate::runner::{ContainerSpec, Exited, Failure, Runner};
use crate::status::{self, Facts};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use koord_api::requests::is_sidecar;
use koord_host::CgroupPath;
use koord_kube::events::{Severity, reference};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A message from the agent to a pod's task.
#[derive(Debug)]
pub(crate) enum Command {
    /// The pod changed.
    Update(Arc<Pod>),
    /// The pod was removed from the API.
    Gone,
    /// The node stops.
    Stop,
}

/// Maximum grace period of containers when the node stops.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// Default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Maximum grace period: more would overflow the clock.
const MAX_GRACE: Duration = Duration::from_secs(366 * 24 * 3600);

type Exits = FuturesUnordered<futures::future::BoxFuture<'static, Exited>>;

/// A running container.
struct WorkerContainer {
    /// Index of its record.
    index: usize,
    live: Arc<dyn RunningContainer>,
    /// Stops its probes on drop.
    _probes: Option<AbortOnDrop>,
}

/// A task that is aborted on drop.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A pod on this node.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    runner: Arc<dyn Runner>,
    pod: Arc<Pod>,
    records: Vec<Record>,
    running: Vec<WorkerContainer>,
    exits: Exits,
    group: Option<CgroupPath>,
    outcome: Option<PodOutcome>,
    refused: Option<(String, String)>,
    /// The pod's address, when it is not the node's.
    ip: Option<String>,
    started: Timestamp,
    publisher: Publisher,
    /// Results of the containers' probes.
    probe_results: mpsc::UnboundedReceiver<(String, ProbeResult)>,
    probe_sender: mpsc::UnboundedSender<(String, ProbeResult)>,
    /// Containers that a probe ends, with the time at which they are killed.
    doomed: Vec<(Instant, String)>,
}

/// Reason for which the task goes from running to stopping.
enum StopReason {
    /// The pod has a deletion timestamp.
    Deleted,
    /// The pod was removed from the API.
    Gone,
    /// The node stops.
    Stop,
}

impl Worker {
    /// Creates the task of `pod`. `refused` holds reason and message for a pod that must not run here.
    pub(crate) fn new(
        shared: Arc<Shared>,
        runner: Arc<dyn Runner>,
        pod: Arc<Pod>,
        refused: Option<(String, String)>,
    ) -> Self {
        let now = shared.clock.now();
        let records = records_of(&pod, now);
        let outcome = match pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
        {
            Some("Succeeded") => Some(PodOutcome::Succeeded),
            Some("Failed") => Some(PodOutcome::Failed),
            _ => None,
        };
        let publisher = Publisher::start(&shared, &pod);
        let (probe_sender, probe_results) = mpsc::unbounded_channel();
        Self {
            shared,
            runner,
            pod,
            records,
            running: Vec::new(),
            exits: Exits::new(),
            group: None,
            outcome,
            refused,
            ip: None,
            started: now,
            publisher,
            probe_results,
            probe_sender,
            doomed: Vec::new(),
        }
    }

    /// Runs until the pod is gone or the node stops.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let reason = self.serve(&mut commands).await;
        match reason {
            StopReason::Stop => {
                // The status in the API stays "running": at the next start the containers run again.
                self.stop(STOP_GRACE.min(self.grace()), None).await;
            }
            StopReason::Gone => {
                self.stop(Duration::ZERO, None).await;
                self.remove_local_data();
            }
            StopReason::Deleted => {
                let mut removed = self.stop(self.grace(), Some(&mut commands)).await;
                if !removed {
                    self.settle();
                    self.publish(true);
                    removed = self.wait_until_removed(&mut commands).await;
                }
                if removed {
                    self.remove_local_data();
                }
            }
        }
        self.publisher.finish().await;
    }

    /// Runs the pod until it must be stopped, and returns the reason.
    async fn serve(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) -> StopReason {
        loop {
            if self.pod.metadata.deletion_timestamp.is_some() {
                return StopReason::Deleted;
            }
            let mut wake = None;
            if self.outcome.is_none() && self.refused.is_none() {
                let now = self.shared.clock.now();
                let policy = self.policy();
                let step = lifecycle::step(policy, &self.records, &self.shared.backoff, now);
                for (index, pause) in &step.backing_off {
                    self.back_off(*index, *pause);
                }
                let started = !step.start.is_empty();
                for index in step.start {
                    if let Some(reason) = self.start(index, commands).await {
                        return reason;
                    }
                }
                if started {
                    self.publish(false);
                    continue;
                }
                self.outcome = step.outcome;
                wake = step.wake_at.map(|at| {
                    let wait = at.duration_since(now);
                    Instant::now() + Duration::try_from(wait).unwrap_or(Duration::ZERO)
                });
                if self.outcome.is_some() {
                    // The only containers of a finished pod that still run are its sidecars.
                    self.stop(self.grace(), None).await;
                }
            }
            self.publish(false);
            let doom = self.doomed.iter().map(|(at, _)| *at).min();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Update(pod)) => self.pod = pod,
                    Some(Command::Gone) => return StopReason::Gone,
                    Some(Command::Stop) | None => return StopReason::Stop,
                },
                Some(exited) = self.exits.next() => self.record_exit(exited).await,
                Some((id, result)) = self.probe_results.recv() => self.handle_probe_result(&id, result),
                () = at(doom) => self.kill_doomed(),
                () = at(wake) => {}
            }
        }
    }

    fn policy(&self) -> RestartPolicy {
        let spec = self.pod.spec.as_ref();
        RestartPolicy::parse(spec.and_then(|spec| spec.restart_policy.as_deref()))
    }

    fn grace(&self) -> Duration {
        let seconds = self.pod.metadata.deletion_grace_period_seconds.or_else(|| {
            self.pod
                .spec
                .as_ref()
                .and_then(|spec| spec.termination_grace_period_seconds)
        });
        seconds.map_or(DEFAULT_GRACE, |seconds| {
            Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(MAX_GRACE)
        })
    }

    /// Returns the pod's address.
    fn ip(&self) -> &str {
        self.ip.as_deref().unwrap_or(&self.shared.host.ip)
    }

    /// Returns the specification of the container with the record at `index`; `None` if there is none.
    fn container(&self, index: usize) -> Option<Container> {
        let record = self.records.get(index)?;
        let spec = self.pod.spec.as_ref()?;
        let list = if record.init {
            spec.init_containers.as_deref().unwrap_or_default()
        } else {
            &spec.containers
        };
        list.iter()
            .find(|container| container.name == record.name)
            .cloned()
    }

    fn event(&self, severity: Severity, reason: &str, message: String) {
        self.shared
            .recorder
            .event(reference(&*self.pod), severity, reason, message);
    }

    /// Sets the waiting state of a container whose restart delay has not passed.
    fn back_off(&mut self, index: usize, pause: Duration) {
        let (name, namespace) = self.names();
        let uid = self.pod.metadata.uid.clone().unwrap_or_default();
        let Some(record) = self.records.get_mut(index) else {
            return;
        };
        if let State::Waiting { reason, message } = &mut record.state
            && reason == "ErrImagePull"
        {
            *reason = "ImagePullBackOff".into();
            *message = format!("Back-off pulling image: {message}");
        }
        if let State::Terminated(ended) = &record.state {
            let message = format!(
                "back-off {}s restarting failed container={} pod={name}_{namespace}({uid})",
                pause.as_secs(),
                record.name
            );
            record.last = Some(ended.clone());
            record.state = State::Waiting {
                reason: "CrashLoopBackOff".into(),
                message: message.clone(),
            };
            let text = format!("Back-off restarting failed container {}", record.name);
            tracing::debug!(pod = %name, message);
            self.event(Severity::Warning, "BackOff", text);
        }
    }

    fn names(&self) -> (String, String) {
        let meta = &self.pod.metadata;
        (
            meta.name.clone().unwrap_or_default(),
            meta.namespace.clone().unwrap_or_default(),
        )
    }

    /// Ensures that the image of a container is present. If the pod must stop meanwhile, the outer error is
    /// the reason.
    async fn image(
        &mut self,
        container: &Container,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Result<Result<String, Failure>, StopReason> {
        let (shared, runner) = (self.shared.clone(), self.runner.clone());
        let mut pod = self.pod.clone();
        let current = pod.clone();
        let mut image = runner.image(&shared, &current, container);
        loop {
            tokio::select! {
                biased;
                image = &mut image => {
                    self.pod = pod;
                    return Ok(image);
                }
                command = commands.recv() => match command {
                    Some(Command::Update(new)) => {
                        pod = new;
                        if pod.metadata.deletion_timestamp.is_some() {
                            self.pod = pod;
                            return Err(StopReason::Deleted);
                        }
                    }
                    Some(Command::Gone) => return Err(StopReason::Gone),
                    Some(Command::Stop) | None => return Err(StopReason::Stop),
                },
            }
        }
    }

    /// Starts a container. Failures are stored in its record. Returns the reason if the pod must stop
    /// meanwhile.
    async fn start(
        &mut self,
        index: usize,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Option<StopReason> {
        let container = self.container(index)?;
        if let Some(record) = self.records.get_mut(index)
            && let State::Terminated(ended) = &record.state
        {
            record.last = Some(ended.clone());
        }
        let image = match self.image(&container, commands).await {
            Ok(Ok(image)) => image,
            Ok(Err(failure)) => {
                self.start_failed(index, &container, failure);
                return None;
            }
            Err(reason) => return Some(reason),
        };
        let record = self.records.get_mut(index)?;
        let restarted = record.last.is_some();
        let attempt = record.restarts.saturating_add(u32::from(restarted));
        let settings = match pod::pod_settings(&self.pod) {
            Ok(settings) => settings,
            Err(error) => {
                self.fail_permanently(index, "CreateContainerConfigError", error.to_string());
                return None;
            }
        };
        if let Err(error) = self.ensure_group(&settings) {
            // The cause, such as a full disk or a removed tree, may go away: retried like any failed start.
            let (id, message) = (container::new_id(), error.to_string());
            self.start_failed(index, &container, Failure::Start { id, message });
            return None;
        }
        let spec = ContainerSpec {
            pod: &self.pod,
            container: &container,
            group: self.group.as_ref(),
            attempt,
            image: &image,
        };
        let key = registry_key(&spec.log_key());
        let begun = self.runner.start(&self.shared, spec).await;
        let now = self.shared.clock.now();
        if let Some(record) = self.records.get_mut(index)
            && !matches!(begun, Err(Failure::Later(..)))
        {
            record.restarts = attempt;
            record.dependency_retry = None;
        }
        match begun {
            Ok(started) => {
                let verb = if restarted {
                    "Started again"
                } else {
                    "Started"
                };
                self.event(
                    Severity::Normal,
                    "Started",
                    format!("{verb} container {}", container.name),
                );
                if let Some(record) = self.records.get_mut(index) {
                    record.state = State::Running {
                        started_at: now,
                        id: started.live.id().to_owned(),
                    };
                    record.image_id = Some(image).filter(|image| !image.is_empty());
                }
                self.ip = started.ip.or(self.ip.take());
                let live = started.live;
                self.shared.registry.put(key, &live);
                let probes = self.start_probes(index, &container, live.clone());
                self.running.push(WorkerContainer {
                    index,
                    live,
                    _probes: probes,
                });
                self.exits.push(started.exit);
            }
            Err(failure) => self.start_failed(index, &container, failure),
        }
        None
    }

    /// Starts the probes of a container that has just been started.
    fn start_probes(
        &mut self,
        index: usize,
        container: &Container,
        live: Arc<dyn RunningContainer>,
    ) -> Option<AbortOnDrop> {
        let (specs, refused) = probe::specs(container, self.ip());
        for error in refused {
            let text = format!("container {}: {error}", container.name);
            self.event(Severity::Warning, "ProbeNotRun", text);
        }
        let has = |kind| specs.iter().any(|spec| spec.kind == kind);
        if let Some(record) = self.records.get_mut(index) {
            record.started = !has(ProbeKind::Startup);
            record.ready = !has(ProbeKind::Readiness);
        }
        if specs.is_empty() {
            return None;
        }
        let watch = probe::watch(live, specs, self.probe_sender.clone());
        Some(AbortOnDrop(tokio::spawn(watch).abort_handle()))
    }

    /// Handles a probe result of the container `id`.
    fn handle_probe_result(&mut self, id: &str, result: ProbeResult) {
        let Some(running) = self.running.iter().find(|running| running.live.id() == id) else {
            return;
        };
        let live = running.live.clone();
        let Some(record) = self.records.get_mut(running.index) else {
            return;
        };
        match result {
            ProbeResult::Started => record.started = true,
            ProbeResult::Ready(ready) => record.ready = ready,
            ProbeResult::Unhealthy(kind, error) => {
                let kind = kind.to_string();
                let (first, rest) = kind.split_at(1);
                let text = format!("{}{rest} probe failed: {error}", first.to_uppercase());
                self.event(Severity::Warning, "Unhealthy", text);
            }
            ProbeResult::Dead(kind, grace) => {
                record.ready = false;
                let name = &record.name;
                let text = format!("Container {name} failed {kind} probe, will be restarted");
                self.event(Severity::Normal, "Killing", text);
                let grace = grace.unwrap_or_else(|| self.grace());
                live.terminate(grace);
                self.doomed.push((Instant::now() + grace, id.to_owned()));
            }
        }
    }

    /// Kills containers that have not ended in time after a probe failed.
    fn kill_doomed(&mut self) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.doomed)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.doomed = later;
        for (_, id) in due {
            if let Some(running) = self.running.iter().find(|running| running.live.id() == id) {
                running.live.kill();
            }
        }
    }

    /// Records that a container could not be started, and reports an Event.
    fn start_failed(&mut self, index: usize, container: &Container, failure: Failure) {
        let now = self.shared.clock.now();
        let (id, text) = match failure {
            Failure::Never(reason, text) => return self.fail_permanently(index, &reason, text),
            Failure::Later(reason, text) => {
                self.event(Severity::Warning, "Failed", text.clone());
                if let Some(record) = self.records.get_mut(index) {
                    record.record_missing_dependency(&reason, text, &self.shared.backoff, now);
                }
                return;
            }
            Failure::Start { id, message } => (id, message),
        };
        let message = format!("container {}: {text}", container.name);
        self.event(Severity::Warning, "Failed", message);
        if let Some(record) = self.records.get_mut(index) {
            record.failures = record.failures.saturating_add(1);
            record.state = State::Terminated(Ended {
                exit_code: 128,
                signal: None,
                reason: "StartError".into(),
                message: text,
                started_at: now,
                finished_at: now,
                id,
            });
        }
    }

    fn fail_permanently(&mut self, index: usize, reason: &str, message: String) {
        self.event(Severity::Warning, reason, message.clone());
        if let Some(record) = self.records.get_mut(index) {
            record.never_starts = true;
            record.state = State::Waiting {
                reason: reason.to_owned(),
                message,
            };
        }
    }

    /// Creates the pod's group on first use.
    fn ensure_group(&mut self, settings: &GroupSettings) -> Result<(), GroupError> {
        let Some(groups) = &self.shared.groups else {
            return Ok(());
        };
        if self.group.is_none() {
            let uid = self.pod.metadata.uid.as_deref().unwrap_or_default();
            self.group = Some(groups.make_pod(qos_of(&self.pod), uid, settings)?);
        }
        Ok(())
    }

    /// Records the end of a container.
    async fn record_exit(&mut self, exited: Exited) {
        let position = self
            .running
            .iter()
            .position(|running| running.live.id() == exited.id);
        let Some(running) = position.map(|position| self.running.swap_remove(position)) else {
            return;
        };
        self.shared.registry.remove(running.live.id());
        running.live.clean().await;
        let now = self.shared.clock.now();
        let Some(record) = self.records.get_mut(running.index) else {
            return;
        };
        let started_at = match &record.state {
            State::Running { started_at, .. } => *started_at,
            _ => now,
        };
        let ran = Duration::try_from(now.duration_since(started_at)).unwrap_or(Duration::ZERO);
        record.failures = self.shared.backoff.count(record.failures, ran);
        let ended = exited.into_ended(started_at, now);
        tracing::info!(pod = ?self.pod.metadata.name, container = %record.name,
            exit_code = ended.exit_code, reason = %ended.reason, "container ended");
        record.state = State::Terminated(ended);
    }

    /// Stops all containers: SIGTERM, then SIGKILL to all processes after `grace`. Further commands may
    /// shorten the grace period. Returns whether the pod was removed from the API meanwhile.
    async fn stop(
        &mut self,
        grace: Duration,
        mut commands: Option<&mut mpsc::UnboundedReceiver<Command>>,
    ) -> bool {
        let begun = Instant::now();
        let mut deadline = begun + grace;
        let mut removed = false;
        if !self.running.is_empty() {
            for running in &self.running {
                if let Some(record) = self.records.get(running.index) {
                    let text = format!("Stopping container {}", record.name);
                    self.event(Severity::Normal, "Killing", text);
                }
                running.live.terminate(grace);
            }
        }
        let shutdown = self.shared.shutdown.clone();
        let hurry = self.shared.options.hurry.clone();
        let (mut killed, mut hurried) = (false, false);
        while !self.running.is_empty() {
            let next = async {
                match commands.as_deref_mut() {
                    Some(commands) => commands.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(exited) = self.exits.next() => self.record_exit(exited).await,
                () = hurry.cancelled(), if deadline > Instant::now() => deadline = Instant::now(),
                () = tokio::time::sleep_until(deadline), if !killed => {
                    killed = true;
                    for running in &self.running {
                        running.live.kill();
                    }
                }
                command = next => match command {
                    Some(Command::Update(pod)) => {
                        self.pod = pod;
                        deadline = deadline.min(begun + self.grace());
                    }
                    Some(Command::Gone) => {
                        removed = true;
                        deadline = Instant::now();
                    }
                    // The end of the node is handled below.
                    Some(Command::Stop) | None => commands = None,
                },
                () = shutdown.cancelled(), if !hurried => {
                    hurried = true;
                    deadline = deadline.min(Instant::now() + STOP_GRACE);
                }
            }
        }
        self.runner.end_pod(&self.shared, &self.pod).await;
        if let (Some(groups), Some(group)) = (&self.shared.groups, self.group.take())
            && let Err(error) = groups.remove(&group).await
        {
            tracing::warn!(group = %group, %error, "failed to remove a control group");
        }
        let uid = self.pod.metadata.uid.clone().unwrap_or_default();
        self.shared.state.note(|state| {
            state.pods.remove(&uid);
        });
        removed
    }

    /// Sets the outcome of a stopped pod: succeeded only if all containers ended by themselves with success.
    fn settle(&mut self) {
        if self.outcome.is_none() {
            let mut main = self.records.iter().filter(|record| !record.init);
            let well = main.all(Record::succeeded);
            self.outcome = Some(if well {
                PodOutcome::Succeeded
            } else {
                PodOutcome::Failed
            });
        }
    }

    fn publish(&self, delete: bool) {
        let refused = self
            .refused
            .as_ref()
            .map(|(reason, text)| (reason.as_str(), text.as_str()));
        let facts = Facts {
            records: &self.records,
            outcome: self.outcome,
            refused,
            ip: &self.shared.host.ip,
            pod_ip: self.ip(),
            scheme: self.runner.scheme(),
            start_time: self.started,
            now: self.shared.clock.now(),
        };
        let status = status::pod_status(&self.pod, &facts);
        self.shared.table.put(&self.pod, &status);
        self.publisher.publish(Desired { status, delete });
    }

    /// Waits until the API has removed the pod; `false` when the node stops first.
    async fn wait_until_removed(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> bool {
        let shutdown = self.shared.shutdown.clone();
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Update(pod)) => self.pod = pod,
                    Some(Command::Gone) => return true,
                    Some(Command::Stop) | None => return false,
                },
                () = shutdown.cancelled() => return false,
            }
        }
    }

    fn remove_local_data(&self) {
        let (name, namespace) = self.names();
        let uid = self.pod.metadata.uid.as_deref().unwrap_or_default();
        self.shared.logs.remove(&namespace, &name, uid);
        self.shared.table.remove(uid);
    }
}

async fn at(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns the records of a pod's containers, restored from its status.
fn records_of(pod: &Pod, now: Timestamp) -> Vec<Record> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let init = spec.init_containers.iter().flatten();
    let init = init.map(|container| Record::new(&container.name, true, is_sidecar(container)));
    let main = spec.containers.iter();
    let main = main.map(|container| Record::new(&container.name, false, false));
    let mut records: Vec<Record> = init.chain(main).collect();
    let has_init = records.iter().any(|record| record.init);
    let statuses = pod.status.as_ref().map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    });
    let statuses: Vec<_> = statuses.into_iter().flatten().collect();
    for record in &mut records {
        if has_init && !record.init {
            record.state = State::Waiting {
                reason: "PodInitializing".into(),
                message: String::new(),
            };
        }
        if let Some(status) = statuses.iter().find(|status| status.name == record.name) {
            status::resume(record, status, now);
        }
    }
    records
}
