//! What a runtime, or its proxy, is answered.

use super::asked::{self, AskedContainer, AskedError, AskedPod, Known};
use super::{Parts, Policy};
use crate::gates::{Gate, Gates};
use crate::hooks::{Adjustment, HOOKS, Rules, Said, Stage, desired, desired_around};
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

/// What part of the time of whoever asks is used.
const SHARE_OF_TIME: f64 = 0.8;

/// How long a runtime waits that does not say.
const USUAL_TIME: Duration = Duration::from_secs(2);

/// How often is looked whether there are rules yet, or a pod.
const LOOK: Duration = Duration::from_millis(50);

/// How long a pod with devices may take to be listed, once the list was asked for: half of what is ours
/// of a runtime's time.
const LISTED_WITHIN: Duration = Duration::from_millis(800);

/// A moment at which a runtime asks, with upstream's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    RunPodSandbox,
    RemovePodSandbox,
    CreateContainer,
    UpdateContainer,
}

impl Asked {
    const ALL: [(Self, Stage, &'static str); 4] = [
        (
            Self::RunPodSandbox,
            Stage::RunPodSandbox,
            "PreRunPodSandbox",
        ),
        (
            Self::CreateContainer,
            Stage::CreateContainer,
            "PreCreateContainer",
        ),
        (
            Self::UpdateContainer,
            Stage::UpdateContainer,
            "PreUpdateContainerResources",
        ),
        (
            Self::RemovePodSandbox,
            Stage::RemovePodSandbox,
            "PreRemoveRunPodSandbox",
        ),
    ];

    /// Returns the stage of the hooks that are heard, and upstream's name of it.
    fn stage(self) -> Option<(Stage, &'static str)> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|(asked, _, _)| *asked == self);
        found.map(|(_, stage, name)| (stage, name))
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

/// The stages at which a hook is heard and that are not disabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stages {
    served: Vec<Asked>,
    /// True if processes' scores are set.
    oom_score: bool,
}

impl Stages {
    pub(super) fn of(disabled: &[String], gates: &Gates) -> Self {
        let heard = |stage: Stage| {
            let heard =
                |hook: &&crate::hooks::Hook| hook.gates.iter().any(|gate| gates.is_on(*gate));
            HOOKS
                .iter()
                .filter(heard)
                .any(|hook| hook.stages.contains(&stage))
        };
        let served = Asked::ALL.into_iter().filter(|(_, stage, name)| {
            heard(*stage) && !disabled.iter().any(|disabled| disabled == name)
        });
        let served: Vec<Asked> = served.map(|(asked, _, _)| asked).collect();
        Self {
            oom_score: gates.is_on(Gate::OOMScoreAdj) && served.contains(&Asked::CreateContainer),
            served,
        }
    }

    pub(super) fn has(&self, asked: Asked) -> bool {
        self.served.contains(&asked)
    }

    /// Returns whether somebody wants `oom_score_adj` of new containers set.
    pub(super) fn oom_score(&self) -> bool {
        self.oom_score
    }

    /// Upstream's names of the stages.
    pub(super) fn names(&self) -> Vec<String> {
        let served = Asked::ALL
            .into_iter()
            .filter(|(asked, _, _)| self.has(*asked));
        served.map(|(_, _, name)| name.to_owned()).collect()
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error(transparent)]
    Asked(#[from] AskedError),
    #[error("{hook}: {error}")]
    Hook { hook: &'static str, error: String },
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("{path}: {error}")]
    Directory { path: String, error: std::io::Error },
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("the answer's task has died")]
    Died,
}

/// What a new container gets.
#[derive(Debug, Default)]
pub(super) struct Created {
    pub(super) wanted: Adjustment,
    /// The device files that are wanted, with the numbers that the machine has given them.
    pub(super) devices: Vec<CharDevice>,
}

/// The one who answers, whoever asks.
#[derive(Debug)]
pub(super) struct Answers {
    policy: Policy,
    pub(super) stages: Stages,
    pub(super) parts: Parts,
}

impl Answers {
    pub(super) fn new(policy: Policy, stages: Stages, parts: Parts) -> Self {
        Self {
            policy,
            stages,
            parts,
        }
    }

    /// What becomes of a request whose hook fails.
    pub(super) fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the rules in force; `None` before the agent's first round.
    pub(super) fn rules(&self) -> Option<Arc<Rules>> {
        self.parts.rules.load_full()
    }

    /// Waits for the agent's first round: who answers before has nothing to say, and whoever asked takes
    /// that for the answer. False when it will not come any more.
    pub(super) async fn ready(&self, shutdown: &CancellationToken) -> bool {
        while self.rules().is_none() {
            tokio::select! {
                () = shutdown.cancelled() => return false,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
        true
    }

    fn known(&self, asked: &AskedPod) -> Result<Known, AskedError> {
        let states = &self.parts.states;
        let layout = states.layout_or(&self.parts.settings.layout);
        asked::pod(asked, states.pods.load_full(), &layout)
    }

    /// What hooks want of a container that is about to be created, with its files.
    pub(super) fn create(
        &self,
        pod: &AskedPod,
        container: &AskedContainer,
    ) -> Result<Created, AnswerError> {
        let wanted = self.wanted(pod, container)?;
        let wanted = self.checked(pod, container, wanted)?;
        let devices = self.files(pod, &wanted)?;
        Ok(Created { wanted, devices })
    }

    /// Whether what the pod asks for is known: devices of pods that do not ask for them are left out
    /// when pods are listed. Pods of files on the node, whose UID no API server has given, may have what
    /// they like.
    fn is_listed(&self, pod: &AskedPod) -> Result<bool, AskedError> {
        let known = self.known(pod)?;
        Ok(matches!(known, Known::Listed(..)) || is_config_hash(&pod.uid))
    }

    /// What is wanted, with device files only where the pod is listed. One that has just come is waited
    /// for: it cannot get them later. On a thread that may block.
    #[expect(
        clippy::disallowed_methods,
        reason = "a plugin's answers are made on threads that may block, without tokio's time"
    )]
    fn checked(
        &self,
        pod: &AskedPod,
        container: &AskedContainer,
        mut wanted: Adjustment,
    ) -> Result<Adjustment, AnswerError> {
        let Some(by) = wanted.devices.first().map(|said| said.by) else {
            return Ok(wanted);
        };
        if self.is_listed(pod)? {
            return Ok(wanted);
        }
        self.parts.states.resync_pods();
        let asked = Instant::now();
        while asked.elapsed() < LISTED_WITHIN {
            std::thread::sleep(LOOK);
            if self.is_listed(pod)? {
                return self.container(None, pod, container, |_, _| {});
            }
        }
        wanted.devices.clear();
        let value =
            "the pod is not listed: whether it asks for device files is not known".to_owned();
        self.problems(pod, &mut vec![Said { value, by }])?;
        Ok(wanted)
    }

    /// What hooks want of a container that is about to be created. Nothing is read or written for it.
    pub(super) fn wanted(
        &self,
        pod: &AskedPod,
        container: &AskedContainer,
    ) -> Result<Adjustment, AnswerError> {
        self.container(Some(Asked::CreateContainer), pod, container, |_, _| {})
    }

    /// Looks at the device files that are wanted, and makes the directory.
    pub(super) fn files(
        &self,
        pod: &AskedPod,
        wanted: &Adjustment,
    ) -> Result<Vec<CharDevice>, AnswerError> {
        let devices = self.devices(pod, wanted)?;
        if let Some(directory) = &wanted.fresh_directory {
            fresh(&directory.value).map_err(|error| AnswerError::Directory {
                path: directory.value.clone(),
                error,
            })?;
        }
        Ok(devices)
    }

    /// Returns the device files that are wanted: all of them or, where one is not there, none.
    fn devices(&self, pod: &AskedPod, wanted: &Adjustment) -> Result<Vec<CharDevice>, AnswerError> {
        let root = &self.parts.root;
        let mut devices = Vec::new();
        for file in &wanted.devices {
            let found = match &file.value {
                RdmaFile::ConnectionManager => rdma::connection_manager(root),
                RdmaFile::Verbs(address) => rdma::verbs(root, address),
            };
            match found {
                Ok(device) => devices.push(device),
                Err(error) => {
                    let (value, by) = (error.to_string(), file.by);
                    self.problems(pod, &mut vec![Said { value, by }])?;
                    return Ok(Vec::new());
                }
            }
        }
        Ok(devices)
    }

    /// Mounts and device files cannot be given through the runtime's proxy: its hooks know neither.
    pub(super) fn without_files(
        &self,
        pod: &AskedPod,
        wanted: &Adjustment,
    ) -> Result<(), AnswerError> {
        let mounts = wanted.mounts.first().map(|said| (said.by, "mounts"));
        let devices = wanted.devices.first().map(|said| (said.by, "device files"));
        let lost = mounts.into_iter().chain(devices);
        let problem = |(by, what)| Said {
            value: format!("{what} reach a container with --runtime-hooks-mode=nri only"),
            by,
        };
        self.problems(pod, &mut lost.map(problem).collect())
    }

    /// What hooks want of a container whose resources are about to change: CPU lists of batch pods are
    /// not among it.
    pub(super) fn updated(
        &self,
        pod: &AskedPod,
        container: &AskedContainer,
    ) -> Result<Adjustment, AnswerError> {
        self.running_at(Some(Asked::UpdateContainer), pod, container)
    }

    /// Returns the same of a container that is there, and that nobody asks about.
    pub(super) fn running(
        &self,
        pod: &AskedPod,
        container: &AskedContainer,
    ) -> Result<Adjustment, AnswerError> {
        self.running_at(None, pod, container)
    }

    fn running_at(
        &self,
        at: Option<Asked>,
        pod: &AskedPod,
        container: &AskedContainer,
    ) -> Result<Adjustment, AnswerError> {
        self.container(at, pod, container, |pod, wanted| {
            if pod.kube_qos == KubeQos::BestEffort || pod.qos == QosClass::Be {
                wanted.cpus = None;
            }
        })
    }

    /// What hooks want; each that the stage of `at` is about is timed.
    fn invoked(
        &self,
        at: Option<Asked>,
        pod: &PodInfo,
        container: Option<&ContainerInfo>,
        rules: &Rules,
    ) -> Adjustment {
        let Some((stage, name)) = at.and_then(Asked::stage) else {
            return desired(pod, container, rules);
        };
        desired_around(pod, container, rules, |hook, wanted, run| {
            let (begun, problems) = (Instant::now(), wanted.problems.len());
            run(wanted);
            if hook.stages.contains(&stage) {
                let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
                let ok = wanted.problems.len() == problems;
                let metrics = &self.parts.metrics;
                metrics.hook_invoked(hook.upstream_name(), name, ok, milliseconds);
            }
        })
    }

    fn container(
        &self,
        at: Option<Asked>,
        asked: &AskedPod,
        container: &AskedContainer,
        then: impl FnOnce(&PodInfo, &mut Adjustment),
    ) -> Result<Adjustment, AnswerError> {
        let (Some(rules), known) = (self.rules(), self.known(asked)?) else {
            return Ok(Adjustment::default());
        };
        let Some(pod) = known.pod() else {
            return Ok(Adjustment::default());
        };
        let container: ContainerInfo = asked::container(container, pod)?;
        let mut wanted = self.invoked(at, pod, Some(&container), &rules);
        self.problems(asked, &mut wanted.problems)?;
        then(pod, &mut wanted);
        Ok(wanted)
    }

    /// What hooks want of a pod's group. It is written, because no answer can carry it.
    pub(super) fn run_pod(&self, asked: &AskedPod) -> Result<Adjustment, AnswerError> {
        let (Some(rules), known) = (self.rules(), self.known(asked)?) else {
            return Ok(Adjustment::default());
        };
        let Some(pod) = known.pod() else {
            return Ok(Adjustment::default());
        };
        let mut wanted = self.invoked(Some(Asked::RunPodSandbox), pod, None, &rules);
        self.problems(asked, &mut wanted.problems)?;
        let number = |said: &Option<Said<i64>>| said.as_ref().map(|said| said.value.to_string());
        let idle = wanted.cpu_idle.as_ref();
        let values = [
            (Resource::CpuShares, number(&wanted.cpu_shares)),
            (Resource::CfsQuota, number(&wanted.cfs_quota)),
            (Resource::MemoryLimit, number(&wanted.memory_limit)),
            (Resource::CpuBvtWarp, number(&wanted.bvt)),
            (
                Resource::CpuIdle,
                idle.map(|said| i32::from(said.value).to_string()),
            ),
        ];
        let mut failed = None;
        for (resource, value) in values {
            let Some(value) = value else { continue };
            let target = Target::cgroup(&pod.cgroup, resource);
            match self.parts.root.write_target(&target, &value) {
                Ok(_) => {}
                // The pod has gone meanwhile, or this kernel has no such file.
                Err(error) if error.is_gone() || error.is_unsupported() => {}
                Err(error) => {
                    tracing::warn!(pod = asked.name, %error, "not set");
                    failed.get_or_insert(error);
                }
            }
        }
        if matches!(known, Known::Told(_)) {
            // The agent's next round shall know it.
            self.parts.states.resync_pods();
        }
        match failed {
            Some(error) if self.policy == Policy::Fail => Err(error.into()),
            _ => Ok(wanted),
        }
    }

    /// Returns the kill order of a container whose processes wait to be started, where the runtime cannot set
    /// it.
    pub(super) fn start(
        &self,
        asked: &AskedPod,
        container: &AskedContainer,
        group: &str,
    ) -> Result<(), AnswerError> {
        let wanted = self.container(None, asked, container, |_, _| {})?;
        let Some(score) = wanted.oom_score_adj else {
            return Ok(());
        };
        let states = &self.parts.states;
        let layout = states.layout_or(&self.parts.settings.layout);
        let Some(group) = asked::container_group(group, &layout) else {
            return Ok(());
        };
        let processes = self.parts.root.cgroup(&group).processes()?;
        for pid in processes {
            let attribute = Attribute::OomScoreAdj;
            let target = Target::Process { pid, attribute };
            match self
                .parts
                .root
                .write_target(&target, &score.value.to_string())
            {
                Err(error) if !error.is_gone() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Problems are told, or fail the request, as the policy says.
    fn problems(
        &self,
        pod: &AskedPod,
        problems: &mut Vec<Said<String>>,
    ) -> Result<(), AnswerError> {
        for problem in problems.drain(..) {
            let (hook, error) = (problem.by, problem.value);
            if self.policy == Policy::Fail {
                return Err(AnswerError::Hook { hook, error });
            }
            tracing::warn!(hook, of = pod.name, error, "not set");
        }
        Ok(())
    }

    /// Returns the answer of `work`. An error, a panic too, is told, and is the default answer unless the policy
    /// says that the request fails.
    pub(super) async fn answered<T: Default>(
        &self,
        event: &'static str,
        work: impl Future<Output = Result<T, AnswerError>>,
    ) -> Result<T, AnswerError> {
        let begun = Instant::now();
        let answer = AssertUnwindSafe(work).catch_unwind().await;
        let answer = answer.unwrap_or(Err(AnswerError::Died));
        let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
        let metrics = &self.parts.metrics;
        metrics.runtime_asked(event, answer.is_ok(), milliseconds);
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let policy = self.policy.name();
                tracing::warn!(event, %error, policy, "the runtime's request is not adjusted");
                match (self.policy, error) {
                    // It would fail anyway, and with it the connection.
                    (Policy::Fail, error) => Err(error),
                    (Policy::Ignore, _) => Ok(T::default()),
                }
            }
        }
    }

    /// Work with files, on a thread that no other answer needs, in the part of the time that is ours.
    pub(super) async fn aside<T, F>(self: &Arc<Self>, work: F) -> Result<T, AnswerError>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, AnswerError> + Send + 'static,
    {
        let limit = USUAL_TIME.mul_f64(SHARE_OF_TIME);
        let own = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || work(&own));
        match tokio::time::timeout(limit, work).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(AnswerError::Died),
            Err(_) => Err(AnswerError::Late(limit)),
        }
    }
}

/// Returns an empty directory that everybody may write to.
fn fresh(path: &str) -> std::io::Result<()> {
    let path = Path::new(path);
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o777))
}
