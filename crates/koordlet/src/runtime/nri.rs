//! Plugin of the container runtime (NRI). Connection and deadlines are handled by [`koord_rpc::nri::Stub`].

use super::request::{ContainerRequest, PodRequest};
use super::responder::{HookError, HookPoint, HookResponder, NewContainer};
use super::{Nri, Policy, registration};
use crate::hooks::{Adjustment, HookValue};
use koord_kube::events::Severity;
use koord_rpc::nri::{
    Container, ContainerAdjustment, ContainerState, ContainerUpdate, Event, Handler, KeyValue,
    LinuxContainerAdjustment, LinuxContainerUpdate, LinuxCpu, LinuxDevice, LinuxMemory,
    LinuxResources, Mount, OptionalFileMode, OptionalInt, OptionalInt64, OptionalString,
    OptionalUInt64, PodSandbox, Reply, RequestOutcome, Settings, Stub, StubEvent, events_named,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Minimum timeout of responses: the one that runtimes give plugins.
const MIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between two node events about late responses. Each is logged and counted.
const LATE_EVENT_INTERVAL: Duration = Duration::from_secs(600);

/// Runs as a plugin of the runtime until `shutdown`, whenever there is a runtime. `registrations` is the
/// directory of the hook servers that are registered for the proxy.
pub(super) async fn run(
    config: Nri,
    registrations: PathBuf,
    responder: Arc<HookResponder>,
    shutdown: CancellationToken,
) {
    if !responder.ready(&shutdown).await {
        return;
    }
    let mut settings = Settings::new(config.name, config.index, events(&responder));
    settings.socket = koord_rpc::nri::Socket::Path(config.socket.clone());
    settings.registration = config.connect_within.max(MIN_TIMEOUT);
    settings.retry = config.backoff;
    settings.retry_limit = config.backoff_cap.max(config.backoff);
    if settings.events.is_empty() {
        tracing::info!("all stages are disabled, not connecting to the container runtime (NRI)");
        return;
    }
    let socket = config.socket.display().to_string();
    let plugin = Arc::new(Plugin::new(socket, registrations, responder));
    plugin.responder.ctx.metrics.nri_connected(false);
    match Stub::new(settings, plugin) {
        Ok(stub) => stub.run(shutdown).await,
        Err(error) => tracing::error!(
            error,
            "failed to create the plugin of the container runtime (NRI)"
        ),
    }
}

/// Returns the events to subscribe to.
fn events(responder: &HookResponder) -> Vec<Event> {
    let stages = &responder.stages;
    let all = [
        (Event::RunPodSandbox, stages.has(HookPoint::RunPodSandbox)),
        (
            Event::RemovePodSandbox,
            stages.has(HookPoint::RemovePodSandbox),
        ),
        (
            Event::CreateContainer,
            stages.has(HookPoint::CreateContainer),
        ),
        (
            Event::UpdateContainer,
            stages.has(HookPoint::UpdateContainer),
        ),
        // Older runtimes do not support a score in the response to CreateContainer.
        (Event::StartContainer, stages.sets_oom_score()),
    ];
    let enabled_events = all.into_iter().filter(|(_, is_enabled)| *is_enabled);
    enabled_events.map(|(event, _)| event).collect()
}

/// Configuration of the plugin in the runtime's files.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Configuration {
    events: Vec<String>,
}

/// The NRI plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    socket: String,
    registrations: PathBuf,
    responder: Arc<HookResponder>,
    logged: parking_lot::Mutex<LogState>,
}

/// State of repeated log lines and events.
#[derive(Debug, Default)]
struct LogState {
    /// Reason of the lost connection; `None` while connected.
    lost: Option<String>,
    /// Time of the last event about a late response.
    late: Option<Instant>,
    /// True if koordlet's hook server was registered, too, at the last check.
    proxied: bool,
}

fn pod_request(pod: &PodSandbox) -> PodRequest {
    let linux = pod.linux.as_ref();
    PodRequest {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        labels: pod.labels.clone(),
        annotations: pod.annotations.clone(),
        cgroup_parent: linux
            .map(|linux| linux.cgroup_parent.clone())
            .unwrap_or_default(),
    }
}

fn container_request(
    container: &Container,
    resources: Option<&LinuxResources>,
) -> ContainerRequest {
    let resources = RuntimeResources::from_resources(resources);
    ContainerRequest {
        name: container.name.clone(),
        quota: resources.quota,
        period: resources.period,
    }
}

/// Resources as a runtime specifies them; 0 and empty are unset.
#[derive(Debug, Clone, Copy, Default)]
struct RuntimeResources<'a> {
    shares: i64,
    quota: i64,
    period: i64,
    memory: i64,
    cpus: &'a str,
}

impl<'a> RuntimeResources<'a> {
    fn from_resources(resources: Option<&'a LinuxResources>) -> Self {
        let unsigned = |value: &Option<OptionalUInt64>| {
            let value = value.as_ref().map_or(0, |value| value.value);
            i64::try_from(value).unwrap_or(i64::MAX)
        };
        let signed = |value: &Option<OptionalInt64>| value.as_ref().map_or(0, |value| value.value);
        let cpu = resources.and_then(|resources| resources.cpu.as_ref());
        let memory = resources.and_then(|resources| resources.memory.as_ref());
        Self {
            shares: cpu.map_or(0, |cpu| unsigned(&cpu.shares)),
            quota: cpu.map_or(0, |cpu| signed(&cpu.quota)),
            period: cpu.map_or(0, |cpu| unsigned(&cpu.period)),
            memory: memory.map_or(0, |memory| signed(&memory.limit)),
            cpus: cpu.map_or("", |cpu| cpu.cpus.as_str()),
        }
    }
}

/// Returns the resources that hooks set; `None` if they set none. An empty CPU list cannot be expressed.
fn resources(adjustment: &Adjustment) -> Option<LinuxResources> {
    let value = |hook_value: &Option<HookValue<i64>>| hook_value.as_ref().map(|it| it.value);
    let shares = value(&adjustment.cpu_shares).and_then(|shares| u64::try_from(shares).ok());
    let cpu = LinuxCpu {
        shares: shares.map(|value| OptionalUInt64 { value }),
        quota: value(&adjustment.cfs_quota).map(|value| OptionalInt64 { value }),
        cpus: adjustment
            .cpus
            .as_ref()
            .map(|it| it.value.clone())
            .unwrap_or_default(),
        ..LinuxCpu::default()
    };
    let limit = value(&adjustment.memory_limit).map(|value| OptionalInt64 { value });
    let resources = LinuxResources {
        cpu: (cpu != LinuxCpu::default()).then_some(cpu),
        memory: limit.map(|limit| LinuxMemory {
            limit: Some(limit),
            ..LinuxMemory::default()
        }),
        ..LinuxResources::default()
    };
    (resources != LinuxResources::default()).then_some(resources)
}

/// Returns the values of a new container in addition to the requested ones; `None` if there are none.
fn adjustment(created: NewContainer) -> Option<ContainerAdjustment> {
    let NewContainer {
        adjustment: values,
        devices,
    } = created;
    let mut resources = resources(&values);
    if let Some(group) = &values.resctrl {
        resources.get_or_insert_default().rdt_class = Some(OptionalString {
            value: group.value.group.clone(),
        });
    }
    let score = values.oom_score_adj.as_ref();
    let devices = devices.into_iter().map(|device| LinuxDevice {
        path: device.path,
        r#type: "c".to_owned(),
        major: device.major.into(),
        minor: device.minor.into(),
        // For any user that the container's processes run as.
        file_mode: Some(OptionalFileMode { value: 0o666 }),
        ..LinuxDevice::default()
    });
    let linux = LinuxContainerAdjustment {
        devices: devices.collect(),
        resources,
        oom_score_adj: score.map(|it| OptionalInt { value: it.value }),
        ..LinuxContainerAdjustment::default()
    };
    let env = values.env.into_iter().map(|it| KeyValue {
        key: it.value.0,
        value: it.value.1,
    });
    let mounts = values.mounts.into_iter().map(|it| Mount {
        destination: it.value.destination,
        source: it.value.source,
        r#type: "bind".to_owned(),
        options: vec!["rbind".to_owned()],
    });
    let adjustment = ContainerAdjustment {
        env: env.collect(),
        mounts: mounts.collect(),
        linux: (linux != LinuxContainerAdjustment::default()).then_some(linux),
        ..ContainerAdjustment::default()
    };
    (adjustment != ContainerAdjustment::default()).then_some(adjustment)
}

fn update(id: &str, adjustment: &Adjustment) -> Vec<ContainerUpdate> {
    let update = |resources| ContainerUpdate {
        container_id: id.to_owned(),
        linux: Some(LinuxContainerUpdate {
            resources: Some(resources),
        }),
        // The container may have been removed meanwhile.
        ignore_failure: true,
    };
    resources(adjustment).map(update).into_iter().collect()
}

/// Keeps only the values that a request is about to change; the others stay as their owners left them.
fn only_requested(adjustment: &mut Adjustment, requested: RuntimeResources<'_>) {
    let keep = |hook_value: &mut Option<HookValue<i64>>, requested: i64| {
        if requested == 0 {
            *hook_value = None;
        }
    };
    keep(&mut adjustment.cpu_shares, requested.shares);
    keep(&mut adjustment.cfs_quota, requested.quota);
    keep(&mut adjustment.memory_limit, requested.memory);
    if requested.cpus.is_empty() {
        adjustment.cpus = None;
    }
}

/// Keeps only the values that differ from the runtime's record: recorded values were in place when the
/// container was created, and other programs may have changed them since.
fn only_missing(adjustment: &mut Adjustment, recorded: RuntimeResources<'_>) {
    let drop = |hook_value: &mut Option<HookValue<i64>>, recorded: i64| {
        // An unset value is no limit.
        let matches_recorded = |value: i64| value == recorded || (value < 0 && recorded <= 0);
        if hook_value
            .as_ref()
            .is_some_and(|it| matches_recorded(it.value))
        {
            *hook_value = None;
        }
    };
    drop(&mut adjustment.cpu_shares, recorded.shares);
    drop(&mut adjustment.cfs_quota, recorded.quota);
    drop(&mut adjustment.memory_limit, recorded.memory);
    if adjustment
        .cpus
        .as_ref()
        .is_some_and(|it| it.value == recorded.cpus)
    {
        adjustment.cpus = None;
    }
}

impl Plugin {
    /// Creates the plugin of the runtime behind `socket`.
    pub(super) fn new(
        socket: String,
        registrations: PathBuf,
        responder: Arc<HookResponder>,
    ) -> Self {
        Self {
            socket,
            registrations,
            responder,
            logged: parking_lot::Mutex::default(),
        }
    }

    fn warn(&self, reason: &str, message: &str) {
        let warnings = &self.responder.ctx.warnings;
        warnings.record(Severity::Warning, reason, message);
    }

    /// Returns whether a hook server of koordlet's name is registered for the runtime's proxy, too, although
    /// this agent has removed its registration: another program has written it again. Then requests may
    /// contain values that the hook server changed, and a quota must not be scaled twice.
    fn is_proxied(&self) -> bool {
        let proxied = registration::is_there(&self.registrations);
        let before = std::mem::replace(&mut self.logged.lock().proxied, proxied);
        if proxied && !before {
            let directory = self.registrations.display();
            tracing::warn!(
                %directory,
                "hook server of koordlet's name registered by another program, \
                 ignoring quotas of requests"
            );
            let message = format!(
                "koordlet is a plugin of the container runtime, and in {directory} somebody else \
                 has registered a hook server of its name: one of them is to be switched off"
            );
            self.warn("RuntimeHooksTwice", &message);
        }
        proxied
    }

    /// Records what would have been set in a dry run; false if this is none.
    fn record_dry_run(
        &self,
        event: &'static str,
        pod: &PodSandbox,
        container: &Container,
        adjustment: &Adjustment,
    ) -> bool {
        let Some(audit) = &self.responder.ctx.dry_run else {
            return false;
        };
        audit.record(event, &pod_request(pod), &container.name, adjustment);
        true
    }

    /// Returns the result. An error is logged and, depending on the policy, fails the request or gives the
    /// default result.
    fn apply_policy<T: Default>(
        &self,
        event: &str,
        object: &str,
        answer: Result<T, HookError>,
    ) -> Result<T, String> {
        answer.or_else(|error| {
            let policy = self.responder.policy();
            tracing::warn!(event, object, %error, policy = policy.name(), "failed to adjust object");
            match policy {
                Policy::Fail => Err(format!("koordlet: {error}")),
                Policy::Ignore => Ok(T::default()),
            }
        })
    }
}

impl Handler for Plugin {
    fn configure(&self, configuration: &str, subscribed: Vec<Event>) -> Result<Vec<Event>, String> {
        if configuration.trim().is_empty() {
            return Ok(subscribed);
        }
        let read: Configuration = serde_saphyr::from_str(configuration)
            .map_err(|error| format!("configuration of the plugin: {error}"))?;
        if read.events.is_empty() {
            return Ok(subscribed);
        }
        events_named(read.events.iter().map(String::as_str))
    }

    fn synchronize(&self, pods: &[PodSandbox], containers: &[Container]) -> Vec<ContainerUpdate> {
        let pods: BTreeMap<&str, &PodSandbox> =
            pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
        let mut updates = Vec::new();
        for container in containers {
            let lives = [
                ContainerState::ContainerCreated,
                ContainerState::ContainerPaused,
                ContainerState::ContainerRunning,
            ];
            let lives = lives.iter().any(|state| *state as i32 == container.state);
            let Some(pod) = pods
                .get(container.pod_sandbox_id.as_str())
                .filter(|_| lives)
            else {
                continue;
            };
            let linux = container.linux.as_ref();
            let record = linux.and_then(|linux| linux.resources.as_ref());
            // The recorded quota is that of hooks, not the one that the pod requested.
            let request = container_request(container, None);
            let adjustment = self.responder.running(&pod_request(pod), &request);
            let adjustment = self.apply_policy("Synchronize", &container.name, adjustment);
            let Ok(mut adjustment) = adjustment else {
                continue;
            };
            only_missing(&mut adjustment, RuntimeResources::from_resources(record));
            if self.record_dry_run("Synchronize", pod, container, &adjustment) {
                continue;
            }
            updates.extend(update(&container.id, &adjustment));
        }
        tracing::info!(
            pods = pods.len(),
            containers = containers.len(),
            updated = updates.len(),
            "synchronized with the container runtime"
        );
        // Pods may have been added and removed without a notification.
        self.responder.ctx.states.resync_pods();
        updates
    }

    fn create(&self, pod: &PodSandbox, container: &Container) -> Result<Reply, String> {
        let linux = container.linux.as_ref();
        let request = linux.and_then(|linux| linux.resources.as_ref());
        let request = container_request(container, request.filter(|_| !self.is_proxied()));
        let created = self.responder.create(&pod_request(pod), &request);
        let created = self.apply_policy("CreateContainer", &container.name, created)?;
        if self.record_dry_run("CreateContainer", pod, container, &created.adjustment) {
            return Ok(Reply::default());
        }
        Ok(Reply {
            adjust: adjustment(created),
            ..Reply::default()
        })
    }

    fn update(
        &self,
        pod: &PodSandbox,
        container: &Container,
        requested: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        let request = container_request(container, Some(requested));
        let adjustment = self.responder.updated(&pod_request(pod), &request);
        let mut adjustment = self.apply_policy("UpdateContainer", &container.name, adjustment)?;
        if self.is_proxied() {
            adjustment.cfs_quota = None;
        }
        only_requested(
            &mut adjustment,
            RuntimeResources::from_resources(Some(requested)),
        );
        if self.record_dry_run("UpdateContainer", pod, container, &adjustment) {
            return Ok(Vec::new());
        }
        Ok(update(&container.id, &adjustment))
    }

    fn event(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), String> {
        match (event, container) {
            (Event::RunPodSandbox, _) => {
                let result = self.responder.run_pod(&pod_request(pod)).map(drop);
                self.apply_policy("RunPodSandbox", &pod.name, result)
            }
            (Event::RemovePodSandbox, _) => {
                // The pod's own objects are removed in the next tick.
                self.responder.ctx.states.resync_pods();
                Ok(())
            }
            (Event::StartContainer, Some(container)) => {
                let linux = container.linux.as_ref();
                let group = linux.map_or("", |linux| linux.cgroups_path.as_str());
                let request = container_request(container, None);
                let result = self
                    .responder
                    .container_started(&pod_request(pod), &request, group);
                self.apply_policy("StartContainer", &container.name, result)
            }
            _ => Ok(()),
        }
    }

    fn observe(&self, seen: &StubEvent) {
        let metrics = &self.responder.ctx.metrics;
        match seen {
            StubEvent::Connected => {
                metrics.nri_connected(true);
                let socket = &self.socket;
                tracing::info!(socket, "connected to the container runtime (NRI)");
                if self.logged.lock().lost.take().is_some() {
                    let message = format!("koordlet is a plugin of the runtime at {socket} again");
                    let warnings = &self.responder.ctx.warnings;
                    warnings.record(Severity::Normal, "RuntimeConnected", &message);
                }
            }
            StubEvent::Lost(why, wait) => {
                metrics.nri_connected(false);
                metrics.nri_lost();
                // Repeated while there is no runtime: logged once, and when the reason changes.
                let before = self.logged.lock().lost.replace(why.clone());
                let socket = &self.socket;
                if before.as_ref() != Some(why) {
                    tracing::warn!(socket, error = why, retry_in = ?wait, "waiting for a connection to the container runtime (NRI)");
                }
                if before.is_none() {
                    let message = format!(
                        "koordlet is no plugin of the container runtime at {socket}: {why}; until \
                         it is, containers get what hooks want after they have started"
                    );
                    self.warn("RuntimeDisconnected", &message);
                }
            }
            StubEvent::Answered(event, took, outcome) => {
                let name = event.map_or("Synchronize", |event| event.as_str_name());
                let milliseconds = took.as_secs_f64() * 1000.0;
                metrics.runtime_request(name, *outcome == RequestOutcome::Done, milliseconds);
                if matches!(outcome, RequestOutcome::Late | RequestOutcome::Panicked) {
                    tracing::warn!(
                        event = name,
                        ?took,
                        ?outcome,
                        "response to the container runtime late or failed, container not adjusted"
                    );
                    let now = Instant::now();
                    let mut logged = self.logged.lock();
                    if logged
                        .late
                        .is_none_or(|last| now - last >= LATE_EVENT_INTERVAL)
                    {
                        logged.late = Some(now);
                        drop(logged);
                        let message = format!(
                            "koordlet did not answer the container runtime ({name}) within {took:?}: \
                             what hooks want of the container comes after its start"
                        );
                        self.warn("RuntimeAnswerLate", &message);
                    }
                }
            }
        }
    }
}
