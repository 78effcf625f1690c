//! Responses to the container runtime or its proxy.

use super::request::{self, ContainerRequest, PodRequest, RequestError, ResolvedPod};
use super::{HookContext, Policy};
use crate::gates::{Gate, Gates};
use crate::hooks::{Adjustment, HOOKS, HookStage, HookValue, Rules, desired, desired_around};
use crate::states::{ContainerInfo, PodInfo, is_config_hash};
use futures::FutureExt as _;
use koord_api::qos::{KubeQos, QosClass};
use koord_host::rdma::{self, CharDevice};
use koord_host::target::Attribute;
use koord_host::{HostError, Resource, Target};
use koord_model::rdma_devices::RdmaFile;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Share of the caller's timeout that is used here.
const TIMEOUT_SHARE: f64 = 0.8;

/// Timeout of a runtime that does not specify one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of polling for the first rules or for a pod.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time for a pod with devices to be listed, once the list was requested: half of our share of a runtime's
/// timeout.
const LISTING_TIMEOUT: Duration = Duration::from_millis(800);

/// A runtime request at which hooks run, with upstream's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HookPoint {
    RunPodSandbox,
    RemovePodSandbox,
    CreateContainer,
    UpdateContainer,
}

impl HookPoint {
    const ALL: [(Self, HookStage, &'static str); 4] = [
        (
            Self::RunPodSandbox,
            HookStage::RunPodSandbox,
            "PreRunPodSandbox",
        ),
        (
            Self::CreateContainer,
            HookStage::CreateContainer,
            "PreCreateContainer",
        ),
        (
            Self::UpdateContainer,
            HookStage::UpdateContainer,
            "PreUpdateContainerResources",
        ),
        (
            Self::RemovePodSandbox,
            HookStage::RemovePodSandbox,
            "PreRemoveRunPodSandbox",
        ),
    ];

    /// Returns the stage of the hooks that run, and upstream's name of it.
    fn stage(self) -> Option<(HookStage, &'static str)> {
        let mut all = Self::ALL.into_iter();
        let row = all.find(|(point, _, _)| *point == self);
        row.map(|(_, stage, name)| (stage, name))
    }
}

/// Upstream's names of all stages.
pub(crate) const STAGES: [&str; 8] = [
    "PreRunPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PreUpdateContainerResources",
    "PostStopContainer",
    "PostStopPodSandbox",
    "PreRemoveRunPodSandbox",
];

/// The stages at which an active hook runs and that are not disabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ActiveStages {
    served: Vec<HookPoint>,
    /// True if `oom_score_adj` of processes is set.
    oom_score: bool,
}

impl ActiveStages {
    pub(super) fn new(disabled: &[String], gates: &Gates) -> Self {
        let is_active = |stage: HookStage| {
            let is_active =
                |hook: &&crate::hooks::Hook| hook.gates.iter().any(|gate| gates.is_on(*gate));
            HOOKS
                .iter()
                .filter(is_active)
                .any(|hook| hook.stages.contains(&stage))
        };
        let served = HookPoint::ALL.into_iter().filter(|(_, stage, name)| {
            is_active(*stage) && !disabled.iter().any(|disabled| disabled == name)
        });
        let served: Vec<HookPoint> = served.map(|(point, _, _)| point).collect();
        Self {
            oom_score: gates.is_on(Gate::OOMScoreAdj)
                && served.contains(&HookPoint::CreateContainer),
            served,
        }
    }

    pub(super) fn has(&self, point: HookPoint) -> bool {
        self.served.contains(&point)
    }

    /// Returns true if responses set `oom_score_adj` of new containers.
    pub(super) fn sets_oom_score(&self) -> bool {
        self.oom_score
    }

    /// Returns upstream's names of the stages.
    pub(super) fn names(&self) -> Vec<String> {
        let served = HookPoint::ALL
            .into_iter()
            .filter(|(point, _, _)| self.has(*point));
        served.map(|(_, _, name)| name.to_owned()).collect()
    }
}

/// Error of a response.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error(transparent)]
    HookPoint(#[from] RequestError),
    #[error("{hook}: {error}")]
    Hook { hook: &'static str, error: String },
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("{path}: {error}")]
    Directory { path: String, error: std::io::Error },
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("hook task panicked")]
    Panicked,
}

/// Values of a new container.
#[derive(Debug, Default)]
pub(super) struct NewContainer {
    pub(super) adjustment: Adjustment,
    /// The desired device files, with their device numbers on this machine.
    pub(super) devices: Vec<CharDevice>,
}

/// Responds to requests of the runtime and of its proxy.
#[derive(Debug)]
pub(super) struct HookResponder {
    policy: Policy,
    pub(super) stages: ActiveStages,
    pub(super) ctx: HookContext,
}

impl HookResponder {
    pub(super) fn new(policy: Policy, stages: ActiveStages, ctx: HookContext) -> Self {
        Self {
            policy,
            stages,
            ctx,
        }
    }

    /// Returns the policy for requests whose hook fails.
    pub(super) fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the rules in force; `None` before the agent's first tick.
    pub(super) fn rules(&self) -> Option<Arc<Rules>> {
        self.ctx.rules.load_full()
    }

    /// Waits for the agent's first tick: an earlier response would be empty, and the caller would take it as
    /// final. Returns false on shutdown.
    pub(super) async fn ready(&self, shutdown: &CancellationToken) -> bool {
        while self.rules().is_none() {
            tokio::select! {
                () = shutdown.cancelled() => return false,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
        true
    }

    fn resolve(&self, request: &PodRequest) -> Result<ResolvedPod, RequestError> {
        let states = &self.ctx.states;
        let layout = states.layout_or(&self.ctx.settings.layout);
        request::resolve_pod(request, states.pods.load_full(), &layout)
    }

    /// Returns the desired values of a container that is about to be created, with its device files.
    pub(super) fn create(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
    ) -> Result<NewContainer, HookError> {
        let adjustment = self.new_container(pod, container)?;
        let adjustment = self.check_devices(pod, container, adjustment)?;
        let devices = self.prepare_files(pod, &adjustment)?;
        Ok(NewContainer {
            adjustment,
            devices,
        })
    }

    /// Returns whether the pod's requests are known, which its device files depend on: the pod is listed, or
    /// it is a static pod. The latter may have any device: its UID is not from an API server.
    fn is_listed(&self, pod: &PodRequest) -> Result<bool, RequestError> {
        let resolved = self.resolve(pod)?;
        Ok(matches!(resolved, ResolvedPod::Listed(..)) || is_config_hash(&pod.uid))
    }

    /// Removes device files from `adjustment` unless the pod is listed, because only the list shows whether
    /// the pod requests them. Blocks the thread until the pod is listed, at most [`LISTING_TIMEOUT`]: a
    /// container gets device files only when it is created.
    #[expect(
        clippy::disallowed_methods,
        reason = "plugin responses are computed on threads that may block, without tokio's clock"
    )]
    fn check_devices(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
        mut adjustment: Adjustment,
    ) -> Result<Adjustment, HookError> {
        let Some(by) = adjustment.devices.first().map(|it| it.by) else {
            return Ok(adjustment);
        };
        if self.is_listed(pod)? {
            return Ok(adjustment);
        }
        self.ctx.states.resync_pods();
        let requested = Instant::now();
        while requested.elapsed() < LISTING_TIMEOUT {
            std::thread::sleep(POLL_INTERVAL);
            if self.is_listed(pod)? {
                return self.container(None, pod, container, |_, _| {});
            }
        }
        adjustment.devices.clear();
        let value =
            "the pod is not listed: whether it asks for device files is not known".to_owned();
        self.report_problems(pod, &mut vec![HookValue { value, by }])?;
        Ok(adjustment)
    }

    /// Returns the desired values of a container that is about to be created. Reads and writes no file.
    pub(super) fn new_container(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
    ) -> Result<Adjustment, HookError> {
        self.container(Some(HookPoint::CreateContainer), pod, container, |_, _| {})
    }

    /// Looks up the desired device files, and creates the directory.
    pub(super) fn prepare_files(
        &self,
        pod: &PodRequest,
        adjustment: &Adjustment,
    ) -> Result<Vec<CharDevice>, HookError> {
        let devices = self.devices(pod, adjustment)?;
        if self.ctx.dry_run.is_some() {
            return Ok(devices);
        }
        if let Some(directory) = &adjustment.fresh_directory {
            recreate_directory(&directory.value).map_err(|error| HookError::Directory {
                path: directory.value.clone(),
                error,
            })?;
        }
        Ok(devices)
    }

    /// Returns the desired device files: all of them or, if one is missing, none.
    fn devices(
        &self,
        pod: &PodRequest,
        adjustment: &Adjustment,
    ) -> Result<Vec<CharDevice>, HookError> {
        let root = &self.ctx.root;
        let mut devices = Vec::new();
        for file in &adjustment.devices {
            let device = match &file.value {
                RdmaFile::ConnectionManager => rdma::connection_manager(root),
                RdmaFile::Verbs(address) => rdma::verbs(root, address),
            };
            match device {
                Ok(device) => devices.push(device),
                Err(error) => {
                    let (value, by) = (error.to_string(), file.by);
                    self.report_problems(pod, &mut vec![HookValue { value, by }])?;
                    return Ok(Vec::new());
                }
            }
        }
        Ok(devices)
    }

    /// Reports mounts and device files, which cannot be set through the runtime's proxy, as problems.
    pub(super) fn report_lost_files(
        &self,
        pod: &PodRequest,
        adjustment: &Adjustment,
    ) -> Result<(), HookError> {
        let mounts = adjustment.mounts.first().map(|it| (it.by, "mounts"));
        let devices = adjustment.devices.first().map(|it| (it.by, "device files"));
        let lost = mounts.into_iter().chain(devices);
        let problem = |(by, what)| HookValue {
            value: format!("{what} reach a container with --runtime-hooks-mode=nri only"),
            by,
        };
        self.report_problems(pod, &mut lost.map(problem).collect())
    }

    /// Returns the desired values of a container whose resources are about to change, without CPU lists of
    /// batch pods.
    pub(super) fn updated(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
    ) -> Result<Adjustment, HookError> {
        self.running_at(Some(HookPoint::UpdateContainer), pod, container)
    }

    /// Returns the adjustment of an existing container without a request, like [`Self::updated`].
    pub(super) fn running(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
    ) -> Result<Adjustment, HookError> {
        self.running_at(None, pod, container)
    }

    fn running_at(
        &self,
        at: Option<HookPoint>,
        pod: &PodRequest,
        container: &ContainerRequest,
    ) -> Result<Adjustment, HookError> {
        self.container(at, pod, container, |pod, adjustment| {
            if pod.kube_qos == KubeQos::BestEffort || pod.qos == QosClass::Be {
                adjustment.cpus = None;
            }
        })
    }

    /// Runs the hooks and records the duration of those that belong to the stage of `at`.
    fn run_hooks(
        &self,
        at: Option<HookPoint>,
        pod: &PodInfo,
        container: Option<&ContainerInfo>,
        rules: &Rules,
    ) -> Adjustment {
        let Some((stage, name)) = at.and_then(HookPoint::stage) else {
            return desired(pod, container, rules);
        };
        desired_around(pod, container, rules, |hook, adjustment, run| {
            let (begun, problems) = (Instant::now(), adjustment.problems.len());
            run(adjustment);
            if hook.stages.contains(&stage) {
                let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
                let ok = adjustment.problems.len() == problems;
                let metrics = &self.ctx.metrics;
                metrics.hook_invoked(hook.upstream_name(), name, ok, milliseconds);
            }
        })
    }

    fn container(
        &self,
        at: Option<HookPoint>,
        request: &PodRequest,
        container: &ContainerRequest,
        then: impl FnOnce(&PodInfo, &mut Adjustment),
    ) -> Result<Adjustment, HookError> {
        let (Some(rules), resolved) = (self.rules(), self.resolve(request)?) else {
            return Ok(Adjustment::default());
        };
        let Some(pod) = resolved.pod() else {
            return Ok(Adjustment::default());
        };
        let container: ContainerInfo = request::resolve_container(container, pod)?;
        let mut adjustment = self.run_hooks(at, pod, Some(&container), &rules);
        self.report_problems(request, &mut adjustment.problems)?;
        then(pod, &mut adjustment);
        Ok(adjustment)
    }

    /// Returns the desired values of a pod's cgroup. They are also written, because a response cannot carry
    /// them.
    pub(super) fn run_pod(&self, request: &PodRequest) -> Result<Adjustment, HookError> {
        let (Some(rules), resolved) = (self.rules(), self.resolve(request)?) else {
            return Ok(Adjustment::default());
        };
        let Some(pod) = resolved.pod() else {
            return Ok(Adjustment::default());
        };
        let mut adjustment = self.run_hooks(Some(HookPoint::RunPodSandbox), pod, None, &rules);
        self.report_problems(request, &mut adjustment.problems)?;
        let number = |hook_value: &Option<HookValue<i64>>| {
            hook_value.as_ref().map(|it| it.value.to_string())
        };
        let idle = adjustment.cpu_idle.as_ref();
        let values = [
            (Resource::CpuShares, number(&adjustment.cpu_shares)),
            (Resource::CfsQuota, number(&adjustment.cfs_quota)),
            (Resource::MemoryLimit, number(&adjustment.memory_limit)),
            (Resource::CpuBvtWarp, number(&adjustment.bvt)),
            (
                Resource::CpuIdle,
                idle.map(|it| i32::from(it.value).to_string()),
            ),
        ];
        let mut failed = None;
        for (resource, value) in values {
            let Some(value) = value else { continue };
            if self.ctx.dry_run.is_some() {
                // The reconciler records these values, once it finds them missing.
                break;
            }
            let target = Target::cgroup(&pod.cgroup, resource);
            match self.ctx.root.write_target(&target, &value) {
                Ok(_) => {}
                // The pod was removed meanwhile, or this kernel has no such file.
                Err(error) if error.is_gone() || error.is_unsupported() => {}
                Err(error) => {
                    tracing::warn!(pod = request.name, %error, "failed to set value of the pod cgroup");
                    failed.get_or_insert(error);
                }
            }
        }
        if matches!(resolved, ResolvedPod::FromRequest(_)) {
            // The agent's next tick needs the pod.
            self.ctx.states.resync_pods();
        }
        match failed {
            Some(error) if self.policy == Policy::Fail => Err(error.into()),
            _ => Ok(adjustment),
        }
    }

    /// Sets `oom_score_adj` of a created container whose processes wait to be started, for runtimes that
    /// cannot set it.
    pub(super) fn container_started(
        &self,
        request: &PodRequest,
        container: &ContainerRequest,
        group: &str,
    ) -> Result<(), HookError> {
        let adjustment = self.container(None, request, container, |_, _| {})?;
        let Some(score) = adjustment
            .oom_score_adj
            .filter(|_| self.ctx.dry_run.is_none())
        else {
            return Ok(());
        };
        let states = &self.ctx.states;
        let layout = states.layout_or(&self.ctx.settings.layout);
        let Some(group) = request::container_cgroup(group, &layout) else {
            return Ok(());
        };
        let processes = self.ctx.root.cgroup(&group).processes()?;
        for pid in processes {
            let attribute = Attribute::OomScoreAdj;
            let target = Target::Process { pid, attribute };
            match self
                .ctx
                .root
                .write_target(&target, &score.value.to_string())
            {
                Err(error) if !error.is_gone() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Logs problems, or fails the request, depending on the policy.
    fn report_problems(
        &self,
        pod: &PodRequest,
        problems: &mut Vec<HookValue<String>>,
    ) -> Result<(), HookError> {
        for problem in problems.drain(..) {
            let (hook, error) = (problem.by, problem.value);
            if self.policy == Policy::Fail {
                return Err(HookError::Hook { hook, error });
            }
            tracing::warn!(hook, pod = pod.name, error, "failed to compute hook value");
        }
        Ok(())
    }

    /// Returns the result of `work`. An error or a panic is logged, and gives the default result unless the
    /// policy fails the request.
    pub(super) async fn respond<T: Default>(
        &self,
        event: &'static str,
        work: impl Future<Output = Result<T, HookError>>,
    ) -> Result<T, HookError> {
        let begun = Instant::now();
        let answer = AssertUnwindSafe(work).catch_unwind().await;
        let answer = answer.unwrap_or(Err(HookError::Panicked));
        let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
        let metrics = &self.ctx.metrics;
        metrics.runtime_request(event, answer.is_ok(), milliseconds);
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let policy = self.policy.name();
                tracing::warn!(event, %error, policy, "failed to adjust runtime request");
                match (self.policy, error) {
                    // The request fails, and with it the connection.
                    (Policy::Fail, error) => Err(error),
                    (Policy::Ignore, _) => Ok(T::default()),
                }
            }
        }
    }

    /// Runs work with files on a blocking thread, limited to our share of the timeout.
    pub(super) async fn run_blocking<T, F>(self: &Arc<Self>, work: F) -> Result<T, HookError>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, HookError> + Send + 'static,
    {
        let limit = DEFAULT_TIMEOUT.mul_f64(TIMEOUT_SHARE);
        let own = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || work(&own));
        match tokio::time::timeout(limit, work).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(HookError::Panicked),
            Err(_) => Err(HookError::Late(limit)),
        }
    }
}

/// Creates an empty directory that all users may write to, after removing an existing one.
fn recreate_directory(path: &str) -> std::io::Result<()> {
    let path = Path::new(path);
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o777))
}
