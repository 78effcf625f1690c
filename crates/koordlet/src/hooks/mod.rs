//! Runtime hooks: kernel settings that follow from the class, labels and annotations of a pod.
//!
//! [`desired`] is a pure function of a pod, one of its containers and the [`Rules`] of the node. The
//! reconciler calls it, and so do the integrations with the container runtime. [`HOOKS`] is the table of
//! hooks; every value of a class has one owner there, so that the order of the table affects only the order
//! in which problems are reported.
//!
//! Source: Koordinator `pkg/koordlet/runtimehooks`.

mod batch_resource;
pub(crate) mod core_sched;
mod cpu_idle;
mod cpuset;
mod gpu_env;
pub(crate) mod group_identity;
mod normalization;
mod oom_score_adj;
mod rdma_device;
mod resctrl;
pub(crate) mod rules;

pub use rules::{RuleStore, Rules, Sources};

use crate::claims::{Classes, Level};
use crate::gates::Gate;
use crate::states::slo::HostApp;
use crate::states::{ContainerInfo, PodInfo};
use koord_api::extension::Resctrl;
use koord_api::qos::{KubeQos, QosClass};
use koord_model::core_sched::CookieTarget;
use koord_model::gpu_env::Mount;
use koord_model::rdma_devices::RdmaFile;

/// A value and the hook that sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookValue<T> {
    /// The value.
    pub value: T,
    /// Name of the hook.
    pub by: &'static str,
}

/// Values that the hooks set for one cgroup. Values that are `None` or empty stay unchanged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Adjustment {
    /// `cpu.shares`.
    pub cpu_shares: Option<HookValue<i64>>,
    /// CFS quota before bursts, in microseconds per 100 ms; −1 is unlimited.
    pub cfs_quota: Option<HookValue<i64>>,
    /// CPU list. An empty list is passed to the runtime, but not written to cgroups.
    pub cpus: Option<HookValue<String>>,
    /// Memory limit in bytes; −1 is unlimited.
    pub memory_limit: Option<HookValue<i64>>,
    /// `cpu.bvt_warp_ns`, −1 to 2.
    pub bvt: Option<HookValue<i64>>,
    /// `cpu.idle`.
    pub cpu_idle: Option<HookValue<bool>>,
    /// `oom_score_adj` of every process, −1000 to 1000.
    pub oom_score_adj: Option<HookValue<i64>>,
    /// The core-scheduling cookie of every process.
    pub core_sched: Option<HookValue<CookieTarget>>,
    /// The resctrl group of every thread.
    pub resctrl: Option<HookValue<ResctrlAssignment>>,
    /// Environment variables.
    pub env: Vec<HookValue<(String, String)>>,
    /// Mounts.
    pub mounts: Vec<HookValue<Mount>>,
    /// Device files.
    pub devices: Vec<HookValue<RdmaFile>>,
    /// Directory on the host that must be empty and writable by all before the container starts.
    pub fresh_directory: Option<HookValue<String>>,
    /// Reasons why hooks could not set their values.
    pub problems: Vec<HookValue<String>>,
}

/// The resctrl group of a single pod.
#[derive(Debug, Clone, PartialEq)]
pub struct ResctrlAssignment {
    /// Name of the group.
    pub group: String,
    /// Share of caches and memory bandwidth.
    pub shares: Resctrl,
}

impl Adjustment {
    /// Returns whether no value is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A value that hooks can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of Adjustment")]
pub enum HookResource {
    CpuShares,
    CfsQuota,
    Cpus,
    MemoryLimit,
    Bvt,
    CpuIdle,
    OomScoreAdj,
    CoreSched,
    Resctrl,
    Env,
    Devices,
}

/// Declares that a hook sets a value at some cgroup levels, for pods of some classes. A pod with exclusive
/// CPUs counts as LSR here, unless it is labeled BE.
#[derive(Debug, Clone, Copy)]
pub struct HookClaim {
    /// The value.
    pub resource: HookResource,
    /// Cgroup levels.
    pub levels: &'static [Level],
    /// QoS classes of the pods.
    pub classes: Classes,
}

/// A point at which hooks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the runtime's requests")]
pub enum HookStage {
    RunPodSandbox,
    CreateContainer,
    UpdateContainer,
    RemovePodSandbox,
    /// Periodically, while the pod runs.
    Reconcile,
}

/// A row of the table of hooks.
#[derive(Debug, Clone, Copy)]
pub struct Hook {
    /// Name in logs, audit records and, except for those of `Hook::upstream_name`, metrics.
    pub name: &'static str,
    /// Feature gates of which at least one must be open.
    pub gates: &'static [Gate],
    /// Stages at which the hook runs.
    pub stages: &'static [HookStage],
    /// Values that the hook sets.
    pub claims: &'static [HookClaim],
    run: fn(&HookTarget<'_>, &Rules, &mut Adjustment),
}

impl Hook {
    /// Returns the name in upstream's `runtime_hook_invoked_duration_milliseconds`.
    pub(crate) fn upstream_name(&self) -> &'static str {
        match self.name {
            gpu_env::NAME => "gpu env inject",
            rdma_device::NAME => "rdma device inject",
            name => name,
        }
    }
}

/// Every hook, sorted by name, in the order in which they run.
pub const HOOKS: &[Hook] = &[
    batch_resource::HOOK,
    normalization::HOOK,
    cpuset::HOOK,
    core_sched::HOOK,
    cpu_idle::HOOK,
    gpu_env::HOOK,
    group_identity::HOOK,
    oom_score_adj::HOOK,
    rdma_device::HOOK,
    resctrl::HOOK,
];

/// The scope of a cgroup within a pod.
#[derive(Debug, Clone, Copy)]
enum CgroupScope<'a> {
    Pod,
    Sandbox,
    Container(&'a ContainerInfo),
}

/// Pod, sandbox or container that hook values apply to.
#[derive(Debug, Clone, Copy)]
struct HookTarget<'a> {
    pod: &'a PodInfo,
    scope: CgroupScope<'a>,
}

impl<'a> HookTarget<'a> {
    /// Returns the QoS class that hooks use.
    fn class(&self) -> QosClass {
        class_of(self.pod)
    }

    /// Returns the container; `None` for the pod itself and its sandbox.
    fn container(&self) -> Option<&'a ContainerInfo> {
        match self.scope {
            CgroupScope::Container(container) => Some(container),
            CgroupScope::Pod | CgroupScope::Sandbox => None,
        }
    }

    fn is_pod(&self) -> bool {
        matches!(self.scope, CgroupScope::Pod)
    }
}

/// Returns the QoS class that hooks use: a pod with exclusive CPUs counts as LSR, because the scheduler
/// treated it so.
pub(crate) fn class_of(pod: &PodInfo) -> QosClass {
    match pod.qos {
        QosClass::Ls | QosClass::None if pod.cpus.is_some() => QosClass::Lsr,
        class => class,
    }
}

fn hook_value<T>(value: T, by: &'static str) -> Option<HookValue<T>> {
    Some(HookValue { value, by })
}

/// Returns the desired values of a pod's own cgroup, or of one of its containers.
#[must_use]
pub fn desired(pod: &PodInfo, container: Option<&ContainerInfo>, rules: &Rules) -> Adjustment {
    let scope = container.map_or(CgroupScope::Pod, CgroupScope::Container);
    run_hooks(&HookTarget { pod, scope }, rules)
}

/// Returns the desired values of the cgroup of a pod's sandbox.
#[must_use]
pub fn desired_sandbox(pod: &PodInfo, rules: &Rules) -> Adjustment {
    let scope = CgroupScope::Sandbox;
    run_hooks(&HookTarget { pod, scope }, rules)
}

/// Returns the values of [`desired`]. Calls `around` for each active hook, instead of the hook: `around` must call its
/// last argument, which runs the hook.
pub(crate) fn desired_around(
    pod: &PodInfo,
    container: Option<&ContainerInfo>,
    rules: &Rules,
    around: impl FnMut(&'static Hook, &mut Adjustment, &dyn Fn(&mut Adjustment)),
) -> Adjustment {
    let scope = container.map_or(CgroupScope::Pod, CgroupScope::Container);
    run_hooks_around(&HookTarget { pod, scope }, rules, around)
}

fn run_hooks(target: &HookTarget<'_>, rules: &Rules) -> Adjustment {
    run_hooks_around(target, rules, |_, adjustment, run| run(adjustment))
}

fn run_hooks_around(
    target: &HookTarget<'_>,
    rules: &Rules,
    mut around: impl FnMut(&'static Hook, &mut Adjustment, &dyn Fn(&mut Adjustment)),
) -> Adjustment {
    let mut adjustment = Adjustment::default();
    for hook in HOOKS.iter().filter(|hook| rules.is_active(hook)) {
        let run = |adjustment: &mut Adjustment| (hook.run)(target, rules, adjustment);
        around(hook, &mut adjustment, &run);
    }
    adjustment
}

/// Returns the desired values of the cgroup of a kubelet QoS class.
#[must_use]
pub fn desired_class(class: KubeQos, rules: &Rules) -> Adjustment {
    Adjustment {
        bvt: group_identity::class_value(class, rules),
        ..Adjustment::default()
    }
}

/// Returns the desired values of the cgroup of a host application.
#[must_use]
pub fn desired_host_app(app: &HostApp, rules: &Rules) -> Adjustment {
    let mut adjustment = Adjustment {
        bvt: group_identity::host_app_value(app.qos, rules),
        ..Adjustment::default()
    };
    cpuset::set_host_app_cpus(app, rules, &mut adjustment);
    adjustment
}

#[cfg(test)]
pub(crate) mod tests;
