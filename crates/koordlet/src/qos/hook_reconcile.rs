//! RuntimeHooks: reconciles the cgroups and processes of running pods with the values of hooks.
//!
//! New pods and new rules have their values at once; a foreign write is corrected at the reconcile interval.
//! CFS quotas are not written here, because CPULimits combines them with values of other strategies. Nor are
//! resctrl groups, which RdtResctrl writes, nor machine-wide switches, which hooks leave in the plan for
//! SystemConfig.

mod cookies;

use crate::claims::{Claim, Classes, Level};
use crate::gates::Gate;
use crate::health::State;
use crate::hooks::{
    self, Adjustment, HOOKS, HookValue, Rules, Sources, desired, desired_class, desired_host_app,
    desired_sandbox,
};
use crate::metrics::{self, Metrics};
use crate::qos::cpu_suppress;
use crate::qos::reconcile::{Reconcile, ReconcileReason};
use crate::qos::{Plan, Planner, StrategySpec, View, Write};
use crate::states::slo::SuppressMode;
use crate::states::{ContainerInfo, PodInfo};
use cookies::CookieKeeper;
use koord_api::qos::{KubeQos, QosClass};
use koord_host::target::{Attribute, Sysctl};
use koord_host::{CgroupPath, Controller, Resource, Target, TargetKind};
use koord_model::group_identity::GroupIdentity;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The strategy's name.
pub const NAME: &str = "RuntimeHooks";

const NOT_SYSTEM: Classes = Classes::except(&[QosClass::System]);
/// Classes without BE: CPUSuppress writes the CPU sets of batch pods.
const NOT_BATCH: Classes = Classes::except(&[QosClass::Be]);

/// Claims of the strategy.
pub const CLAIMS: &[Claim] = &[
    file(Level::Pod, Resource::CpuShares, Classes::BE),
    file(Level::Container, Resource::CpuShares, Classes::BE),
    file(Level::Pod, Resource::MemoryLimit, Classes::BE),
    file(Level::Container, Resource::MemoryLimit, Classes::BE),
    file(Level::Pod, Resource::CpuIdle, NOT_SYSTEM),
    file(Level::Container, Resource::CpusetCpus, NOT_BATCH),
    file(Level::Host, Resource::CpusetCpus, Classes::ALL),
    file(Level::Qos, Resource::CpuBvtWarp, Classes::ALL),
    file(Level::Pod, Resource::CpuBvtWarp, Classes::ALL),
    file(Level::Container, Resource::CpuBvtWarp, Classes::ALL),
    file(Level::Host, Resource::CpuBvtWarp, Classes::ALL),
    process(Attribute::OomScoreAdj, Classes::ALL),
    process(Attribute::CoreSchedCookie, NOT_SYSTEM),
];

const fn file(level: Level, file: Resource, classes: Classes) -> Claim {
    Claim {
        file: TargetKind::Cgroup(file),
        level,
        classes,
    }
}

const fn process(attribute: Attribute, classes: Classes) -> Claim {
    Claim {
        file: TargetKind::Process(attribute),
        level: Level::Container,
        classes,
    }
}

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[
        Gate::BatchResource,
        Gate::CPUSetAllocator,
        Gate::CoreSched,
        Gate::GroupIdentity,
        Gate::OOMScoreAdj,
    ],
    every: |settings| settings.interval_ms,
    claims: CLAIMS,
    make: |_, metrics| Box::new(RuntimeHooks::new(metrics.clone())),
};

/// State of the strategy.
#[derive(Debug)]
struct RuntimeHooks {
    metrics: Metrics,
    rules: Option<Arc<Rules>>,
    reconcile: Reconcile,
    cookies: CookieKeeper,
    /// Problems that were logged: object and text.
    logged: FxHashSet<(String, String)>,
}

impl Planner for RuntimeHooks {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let (rules, changed) = self.rules(view, plan);
        plan.switches = switches(view, &rules);
        plan.rules = Some(rules.clone());
        let every = view.facts.settings.reconcile_interval_ms;
        let round = self.reconcile.due(view, every);
        if round.is_none() && !changed {
            return;
        }
        plan.verify(round == Some(ReconcileReason::Periodic));
        plan.report_state(State::Active, active_hooks(&rules).join(", "));
        let mut logged = FxHashSet::default();
        for class in [KubeQos::Guaranteed, KubeQos::Burstable, KubeQos::BestEffort] {
            class_writes(view, class, &rules, plan);
        }
        self.cookies.begin(&rules);
        for pod in view
            .pods()
            .map(|pod| pod.info)
            .filter(|pod| pod.is_active())
        {
            let problems = self.pod_writes(view, pod, &rules, plan);
            self.log_problems(&pod.name, problems, &mut logged);
        }
        self.cookies.end(&self.metrics, plan);
        for app in view.facts.slo.host_apps.iter() {
            let adjustment = desired_host_app(app, &rules);
            if adjustment.is_empty() {
                continue;
            }
            let group = view.facts.layout.host_app(app);
            if let Ok(group) = &group {
                push(
                    &Write::at(Level::Host, group, app.qos),
                    &adjustment,
                    true,
                    plan,
                );
            }
            let lost = group.err().map(|error| HookValue {
                value: error.to_string(),
                by: NAME,
            });
            let problems = adjustment.problems.into_iter().chain(lost).collect();
            self.log_problems(&app.name, problems, &mut logged);
        }
        self.logged = logged;
    }
}

impl RuntimeHooks {
    fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            rules: None,
            reconcile: Reconcile::default(),
            cookies: CookieKeeper::default(),
            logged: FxHashSet::default(),
        }
    }

    /// Returns the rules in force, and whether they are new.
    fn rules(&mut self, view: &View<'_>, plan: &Plan) -> (Arc<Rules>, bool) {
        let facts = &view.facts;
        let idle = facts.slo.extension.be_cpu_idle;
        let by_weight = facts.slo.enabled && cpu_suppress::mode(facts).0 == SuppressMode::Pressure;
        let sources = Sources {
            slo: facts.slo,
            node: facts.node,
            topology: facts.topology,
            settings: facts.settings,
            batch_quotas_lifted: plan.batch_quotas_lifted,
            batch_idle: by_weight
                && (plan.guard.idle || idle.unwrap_or(facts.settings.be_cpu_idle)),
            group_identity: group_identity(view),
            cpu_idle: facts.machine.has(Resource::CpuIdle),
        };
        let rules = Rules::from_sources(sources, self.rules.as_deref());
        if let Some(same) = self.rules.as_ref().filter(|last| ***last == rules) {
            return (same.clone(), false);
        }
        let active_hooks = active_hooks(&rules);
        tracing::debug!(
            ?active_hooks,
            ratio = rules.batch_ratio(),
            "rules of hooks changed"
        );
        let rules = Arc::new(rules);
        self.rules = Some(rules.clone());
        (rules, true)
    }

    /// Logs each problem once while it lasts.
    fn log_problems(
        &self,
        object: &str,
        problems: Vec<HookValue<String>>,
        logged: &mut FxHashSet<(String, String)>,
    ) {
        for problem in problems {
            let key = (object.to_owned(), problem.value);
            if !self.logged.contains(&key) && !logged.contains(&key) {
                tracing::warn!(
                    hook = problem.by,
                    of = object,
                    error = key.1,
                    "failed to set hook value"
                );
            }
            logged.insert(key);
        }
    }

    /// Plans all writes of one pod. Returns the problems of its hooks.
    fn pod_writes(
        &mut self,
        view: &View<'_>,
        pod: &PodInfo,
        rules: &Rules,
        plan: &mut Plan,
    ) -> Vec<HookValue<String>> {
        let adjustment = desired(pod, None, rules);
        push(&Write::pod(pod).reconciles("pod"), &adjustment, false, plan);
        let mut problems = adjustment.problems;
        // The cgroup of a container in a virtual machine is in another kernel.
        if pod.runtime_class.as_deref() == Some("kata") {
            return problems;
        }
        // Batch pods, and other pods in their class, run on the CPUs that suppression leaves.
        let sets_cpus = pod.kube_qos != KubeQos::BestEffort && pod.qos != QosClass::Be;
        for container in pod.all_containers() {
            let Some(write) = Write::container(pod, container) else {
                continue;
            };
            let write = write.reconciles("container");
            let adjustment = desired(pod, Some(container), rules);
            push(&write, &adjustment, sets_cpus, plan);
            self.oom_score(view, pod, container, &write, &adjustment, plan);
            self.cookies
                .container(view, pod, Some(container), &write, &adjustment);
            problems.extend(adjustment.problems);
        }
        let adjustment = desired_sandbox(pod, rules);
        let has_cpus = adjustment
            .cpus
            .as_ref()
            .is_some_and(|cpus| !cpus.value.is_empty());
        let needs_sandbox =
            adjustment.bvt.is_some() || (sets_cpus && has_cpus) || self.cookies.reads_processes();
        if needs_sandbox && let Some(group) = sandbox(view, pod) {
            let mut write = Write::pod(pod).reconciles("sandbox");
            write.level = Level::Container;
            write.target = Target::cgroup(&group, Resource::CpusetCpus);
            push(&write, &adjustment, sets_cpus, plan);
            self.cookies.container(view, pod, None, &write, &adjustment);
        }
        problems
    }

    /// Plans `oom_score_adj` of the container's processes.
    fn oom_score(
        &self,
        view: &View<'_>,
        pod: &PodInfo,
        container: &ContainerInfo,
        at: &Write,
        adjustment: &Adjustment,
        plan: &mut Plan,
    ) {
        let (Some(hook_value), Some(group)) = (&adjustment.oom_score_adj, at.target.group()) else {
            return;
        };
        let processes = view.kernel.processes(group);
        if !processes.is_empty() {
            (self.metrics).oom_score_adj(&labels(pod, Some(container)), hook_value.value);
        }
        for pid in processes {
            let mut write = at.clone();
            write.target = Target::Process {
                pid,
                attribute: Attribute::OomScoreAdj,
            };
            write.reason = hook_value.by;
            plan.write(write.value(hook_value.value));
        }
    }
}

/// Returns the names of the hooks that are active.
fn active_hooks(rules: &Rules) -> Vec<&'static str> {
    let active_hooks = HOOKS.iter().filter(|hook| rules.is_active(hook));
    active_hooks.map(|hook| hook.name).collect()
}

/// Returns the labels of a container in metrics; the sandbox has no name.
fn labels(pod: &PodInfo, container: Option<&ContainerInfo>) -> metrics::Container {
    metrics::Container {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        id: container
            .and_then(|container| container.id.as_deref())
            .unwrap_or_default()
            .to_owned(),
        name: container
            .map(|container| container.name.clone())
            .unwrap_or_default(),
    }
}

/// Returns whether group identity must be written: this kernel has it, and a class needs it or an earlier
/// value may be in force. Some kernels have a switch for all of it; without one it is always on.
fn group_identity(view: &View<'_>) -> bool {
    if !view.facts.machine.has(Resource::CpuBvtWarp) {
        return false;
    }
    let strategy = view.facts.slo.spec.resource_qos_strategy.as_ref();
    let requested =
        strategy.is_some_and(|strategy| GroupIdentity::from_strategy(strategy).is_enabled());
    let switch = Target::Sysctl(Sysctl::GroupIdentityEnabled);
    requested || view.kernel.target(&switch).as_deref() != Some("0")
}

/// Returns the machine-wide switches to write. Group identity and core scheduling exclude each other, so the
/// unused one is switched off first.
fn switches(view: &View<'_>, rules: &Rules) -> Vec<(Sysctl, bool)> {
    let identity = rules.is_active(&hooks::group_identity::HOOK)
        && (rules.group_identity).is_some_and(|identity| identity.is_enabled());
    let cookies = rules.is_active(&hooks::core_sched::HOOK) && rules.core_sched().is_enabled();
    let switches = match (identity, cookies) {
        (true, _) => [
            (Sysctl::SchedCore, false),
            (Sysctl::GroupIdentityEnabled, true),
        ],
        (false, true) => [
            (Sysctl::GroupIdentityEnabled, false),
            (Sysctl::SchedCore, true),
        ],
        (false, false) => return Vec::new(),
    };
    let switches = switches.into_iter();
    switches
        .filter(|(switch, _)| view.kernel.has_sysctl(*switch))
        .collect()
}

/// Plans the writes of a class's cgroup, and of child cgroups that belong to no listed pod: they have the
/// values of their class.
fn class_writes(view: &View<'_>, class: KubeQos, rules: &Rules, plan: &mut Plan) {
    let adjustment = desired_class(class, rules);
    let layout = view.facts.layout;
    let Ok(group) = layout.qos(class) else { return };
    if adjustment.is_empty() {
        return;
    }
    let label = koord_api::qos::default_for_kube_qos(class);
    push(
        &Write::class(&group, label, view.facts.node_name()).reconciles("kubeqos"),
        &adjustment,
        false,
        plan,
    );
    let classes = [KubeQos::Burstable, KubeQos::BestEffort].map(|class| layout.qos(class).ok());
    let is_listed = |group: &CgroupPath| {
        classes.iter().flatten().any(|class| class == group)
            || view.pods().any(|pod| pod.info.cgroup == *group)
    };
    let children = |group: &CgroupPath| view.kernel.children(group, Controller::Cpu);
    for unlisted in children(&group)
        .into_iter()
        .filter(|unlisted| !is_listed(unlisted))
    {
        push(
            &Write::at(Level::Pod, &unlisted, label),
            &adjustment,
            false,
            plan,
        );
        for child in children(&unlisted) {
            push(
                &Write::at(Level::Container, &child, label),
                &adjustment,
                false,
                plan,
            );
        }
    }
}

/// Returns the one cgroup of a pod that belongs to none of its containers; `None` if there is none or more
/// than one.
fn sandbox(view: &View<'_>, pod: &PodInfo) -> Option<CgroupPath> {
    let is_container = |group: &CgroupPath| {
        pod.all_containers()
            .any(|container| container.cgroup.as_ref() == Some(group))
    };
    let children = view.kernel.children(&pod.cgroup, Controller::Cpuset);
    // The monitor process of a container of CRI-O or podman is not part of the pod.
    let is_monitor = |group: &CgroupPath| group.name().contains("-conmon-");
    let mut sandboxes = children
        .into_iter()
        .filter(|group| !is_container(group) && !is_monitor(group));
    let sandbox = sandboxes.next()?;
    // With two, a container is not listed yet; the next list distinguishes them.
    sandboxes.next().is_none().then_some(sandbox)
}

/// Plans the writes of one cgroup; its CPU list only if `cpus`.
/// Adds the values of `adjustment` to `plan`, as writes to the cgroup of `at`; its CPUs only if `sets_cpus`.
fn push(at: &Write, adjustment: &Adjustment, sets_cpus: bool, plan: &mut Plan) {
    let mut write = |file: Resource, value: String, by: &'static str| {
        let mut write = at.clone().set(file, value);
        write.reason = by;
        plan.write(write);
    };
    let numbers = [
        (Resource::CpuShares, &adjustment.cpu_shares),
        (Resource::MemoryLimit, &adjustment.memory_limit),
        (Resource::CpuBvtWarp, &adjustment.bvt),
    ];
    for (file, hook_value) in numbers {
        if let Some(hook_value) = hook_value {
            write(file, hook_value.value.to_string(), hook_value.by);
        }
    }
    if let Some(hook_value) = &adjustment.cpu_idle {
        write(
            Resource::CpuIdle,
            i32::from(hook_value.value).to_string(),
            hook_value.by,
        );
    }
    if let Some(hook_value) = adjustment
        .cpus
        .as_ref()
        .filter(|hook_value| sets_cpus && !hook_value.value.is_empty())
    {
        write(
            Resource::CpusetCpus,
            hook_value.value.clone(),
            hook_value.by,
        );
    }
}
