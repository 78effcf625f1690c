//! Runtime hooks: what class, labels and annotations of a pod mean for its kernel settings.
//!
//! [`desired`] is a pure function of a pod, one of its containers and the [`Rules`] of the node. The
//! reconciler calls it, and so can whoever sits between the kubelet and the runtime. [`HOOKS`] is the
//! table of those that have a say; every value of a class has one owner there, so that the order of
//! the table decides nothing but the order in which problems are told.
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
use koord_model::core_sched::Wanted;
use koord_model::gpu_env::Mount;
use koord_model::rdma_devices::RdmaFile;

/// A value and the hook that wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookValue<T> {
    /// The value.
    pub value: T,
    /// The hook.
    pub by: &'static str,
}

/// What the hooks want of one group; what is `None` or empty stays as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Adjustment {
    /// `cpu.shares`.
    pub cpu_shares: Option<HookValue<i64>>,
    /// The CFS quota before bursts, microseconds per 100 ms; −1 is none.
    pub cfs_quota: Option<HookValue<i64>>,
    /// The CPU list; the empty one goes to the runtime and to no cgroup.
    pub cpus: Option<HookValue<String>>,
    /// Memory limit in bytes; −1 is none.
    pub memory_limit: Option<HookValue<i64>>,
    /// `cpu.bvt_warp_ns`, −1 to 2.
    pub bvt: Option<HookValue<i64>>,
    /// `cpu.idle`.
    pub cpu_idle: Option<HookValue<bool>>,
    /// `oom_score_adj` of every process, −1000 to 1000.
    pub oom_score_adj: Option<HookValue<i64>>,
    /// The core-scheduling cookie of every process.
    pub core_sched: Option<HookValue<Wanted>>,
    /// The resctrl group of every thread.
    pub resctrl: Option<HookValue<ResctrlAssignment>>,
    /// Environment variables.
    pub env: Vec<HookValue<(String, String)>>,
    /// Mounts.
    pub mounts: Vec<HookValue<Mount>>,
    /// Device files.
    pub devices: Vec<HookValue<RdmaFile>>,
    /// A directory on the host that must be there, empty and open to all, before the container starts.
    pub fresh_directory: Option<HookValue<String>>,
    /// Why hooks could not say what they should have.
    pub problems: Vec<HookValue<String>>,
}

/// A resctrl group of a pod's own.
#[derive(Debug, Clone, PartialEq)]
pub struct ResctrlAssignment {
    /// Its name.
    pub group: String,
    /// What it may use of caches and memory bandwidth.
    pub shares: Resctrl,
}

impl Adjustment {
    /// Returns whether nothing is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A value that hooks have a say in.
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

/// A hook's say in a value, at some levels, for pods of some classes. A pod that was given CPUs for
/// itself counts as LSR here, unless it is labelled BE.
#[derive(Debug, Clone, Copy)]
pub struct HookClaim {
    /// The value.
    pub resource: HookResource,
    /// Where.
    pub levels: &'static [Level],
    /// Whose.
    pub classes: Classes,
}

/// A moment at which a hook is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the runtime's requests")]
pub enum Stage {
    RunPodSandbox,
    CreateContainer,
    UpdateContainer,
    RemovePodSandbox,
    /// Again and again, while the pod runs.
    Reconcile,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Hook {
    /// Its name in logs, audit records and, but for those of `Hook::upstream_name`, metrics.
    pub name: &'static str,
    /// It is heard when one of these is open.
    pub gates: &'static [Gate],
    /// When it is heard.
    pub stages: &'static [Stage],
    /// What it has a say in.
    pub claims: &'static [HookClaim],
    run: fn(&HookTarget<'_>, &Rules, &mut Adjustment),
}

impl Hook {
    /// What upstream's `runtime_hook_invoked_duration_milliseconds` calls it.
    pub(crate) fn upstream_name(&self) -> &'static str {
        match self.name {
            gpu_env::NAME => "gpu env inject",
            rdma_device::NAME => "rdma device inject",
            name => name,
        }
    }
}

/// Every hook, by name: the order in which they are heard.
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

/// A part of a pod that has a group of its own.
#[derive(Debug, Clone, Copy)]
enum CgroupScope<'a> {
    Pod,
    Sandbox,
    Container(&'a ContainerInfo),
}

/// Of whom something is wanted.
#[derive(Debug, Clone, Copy)]
struct HookTarget<'a> {
    pod: &'a PodInfo,
    scope: CgroupScope<'a>,
}

impl<'a> HookTarget<'a> {
    /// Returns the class by which hooks share out values.
    fn class(&self) -> QosClass {
        class_of(self.pod)
    }

    /// Returns the container, when it is one that runs the pod's own program.
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

/// Returns the class by which hooks share out values: a pod with CPUs of its own counts as LSR, because that
/// is how the scheduler treated it.
pub(crate) fn class_of(pod: &PodInfo) -> QosClass {
    match pod.qos {
        QosClass::Ls | QosClass::None if pod.cpus.is_some() => QosClass::Lsr,
        class => class,
    }
}

fn hook_value<T>(value: T, by: &'static str) -> Option<HookValue<T>> {
    Some(HookValue { value, by })
}

/// What is wanted of a pod's own group, or of one of its containers.
#[must_use]
pub fn desired(pod: &PodInfo, container: Option<&ContainerInfo>, rules: &Rules) -> Adjustment {
    let scope = container.map_or(CgroupScope::Pod, CgroupScope::Container);
    run_hooks(&HookTarget { pod, scope }, rules)
}

/// What is wanted of the group in which a pod's sandbox runs.
#[must_use]
pub fn desired_sandbox(pod: &PodInfo, rules: &Rules) -> Adjustment {
    let scope = CgroupScope::Sandbox;
    run_hooks(&HookTarget { pod, scope }, rules)
}

/// Returns the same; `around` calls each hook that is heard.
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
    run_hooks_around(target, rules, |_, wanted, run| run(wanted))
}

fn run_hooks_around(
    target: &HookTarget<'_>,
    rules: &Rules,
    mut around: impl FnMut(&'static Hook, &mut Adjustment, &dyn Fn(&mut Adjustment)),
) -> Adjustment {
    let mut wanted = Adjustment::default();
    for hook in HOOKS.iter().filter(|hook| rules.is_active(hook)) {
        let run = |wanted: &mut Adjustment| (hook.run)(target, rules, wanted);
        around(hook, &mut wanted, &run);
    }
    wanted
}

/// What is wanted of the group of one of the kubelet's classes.
#[must_use]
pub fn desired_class(class: KubeQos, rules: &Rules) -> Adjustment {
    Adjustment {
        bvt: group_identity::class_value(class, rules),
        ..Adjustment::default()
    }
}

/// What is wanted of the group of a host application.
#[must_use]
pub fn desired_host_app(app: &HostApp, rules: &Rules) -> Adjustment {
    let mut wanted = Adjustment {
        bvt: group_identity::host_app_value(app.qos, rules),
        ..Adjustment::default()
    };
    cpuset::set_host_app_cpus(app, rules, &mut wanted);
    wanted
}

#[cfg(test)]
pub(crate) mod tests;
