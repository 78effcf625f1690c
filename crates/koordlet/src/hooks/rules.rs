//! Inputs of desired values other than the pod itself.

use super::{HOOKS, Hook};
use crate::gates::Gate;
use crate::settings::Settings;
use crate::states::NodeInfo;
use crate::states::slo::Slo;
use crate::states::topology::{Pool, TopologyInfo};
use arc_swap::ArcSwapOption;
use koord_api::extension::CpuSharedPool;
use koord_model::core_sched::CoreSched;
use koord_model::cpuset_rule::Pools;
use koord_model::group_identity::GroupIdentity;
use koord_model::normalization::stable_ratio;
use std::sync::Arc;

/// Sources of [`Rules`].
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// The settings of the cluster.
    pub slo: &'a Slo,
    /// The Node object; `None` until it was received.
    pub node: Option<&'a NodeInfo>,
    /// The NodeResourceTopology; `None` if there is none.
    pub topology: Option<&'a TopologyInfo>,
    /// Settings of the agent.
    pub settings: &'a Settings,
    /// True if batch pods must have no quotas of their own, because their class is limited by one.
    pub batch_quotas_lifted: bool,
    /// True if cgroups of batch pods are idle.
    pub batch_idle: bool,
    /// True if this kernel has group identity, and it is in use or must be set.
    pub group_identity: bool,
    /// True if cgroups of this kernel can be idle.
    pub cpu_idle: bool,
}

/// Immutable snapshot of the inputs of desired values. A new one is created when a source changes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules {
    /// Bit i is set if the i-th row of [`HOOKS`] is active.
    active: u32,
    /// True if batch pods have quotas of their own.
    pub(super) batch_quotas: bool,
    /// True if cgroups of batch pods are idle.
    pub(super) batch_idle: bool,
    /// True if cgroups can be idle.
    pub(super) cpu_idle: bool,
    /// Divisor of quotas of pods on shared CPUs (CPUNormalization); `None` if not normalized.
    pub(super) ratio: Option<f64>,
    /// Divisor of quotas of batch pods, which follow the node whatever that gate's state; `None` if not
    /// normalized.
    pub(super) batch_ratio: Option<f64>,
    /// CPU pools; `None` without a NodeResourceTopology.
    pub(super) pools: Option<Pools>,
    /// True if batch pods are restricted to their pools.
    pub(super) batch_by_pool: bool,
    /// True if pods with exclusive CPUs lose their quotas.
    pub(super) unset_quota: bool,
    /// Values of group identity; `None` if it must not be changed.
    pub(crate) group_identity: Option<GroupIdentity>,
    /// Settings of core scheduling.
    pub(super) core_sched: CoreSched,
    /// Path of HAMi-core's library on the host.
    pub(super) hami_library: String,
    /// True if HAMi-core exports metrics to a monitor.
    pub(super) hami_monitor: bool,
}

/// The newest [`Rules`]; `None` before the first tick. Clones share them.
pub type RuleStore = Arc<ArcSwapOption<Rules>>;

impl Rules {
    /// Creates the rules from their sources. A change of the CPU normalization ratio that is too small to act
    /// on keeps the ratio of `last`.
    #[must_use]
    pub fn from_sources(from: Sources<'_>, last: Option<&Self>) -> Self {
        let gates = &from.settings.gates;
        let on = |hook: &Hook| hook.gates.iter().any(|gate| gates.is_on(*gate));
        let active = HOOKS.iter().enumerate().filter(|(_, hook)| on(hook));
        let ratio = from.node.and_then(|node| node.normalization_ratio);
        let ratio = stable_ratio(last.and_then(|last| last.batch_ratio), ratio);
        let strategy = from.slo.spec.resource_qos_strategy.as_ref();
        Self {
            active: active.fold(0, |bits, (at, _)| bits | 1 << at),
            batch_quotas: !from.batch_quotas_lifted,
            batch_idle: from.batch_idle,
            cpu_idle: from.cpu_idle,
            ratio: ratio.filter(|_| gates.is_on(Gate::CPUNormalization)),
            batch_ratio: ratio,
            pools: from.topology.map(pools),
            batch_by_pool: gates.is_on(Gate::BECPUManager),
            unset_quota: from.settings.unset_cpu_quota,
            group_identity: strategy
                .filter(|_| from.group_identity)
                .map(GroupIdentity::from_strategy),
            core_sched: strategy.map(CoreSched::from_strategy).unwrap_or_default(),
            hami_library: from.settings.hami_library.clone(),
            hami_monitor: gates.is_on(Gate::HamiCoreVGPUMonitor),
        }
    }

    /// Returns whether `hook` is active.
    pub(crate) fn is_active(&self, hook: &Hook) -> bool {
        let index = HOOKS.iter().position(|row| row.name == hook.name);
        index.is_some_and(|index| self.active & 1 << index != 0)
    }

    /// Returns the divisor of batch quotas; `None` if they are not normalized.
    #[must_use]
    pub fn batch_ratio(&self) -> Option<f64> {
        self.batch_ratio
    }

    /// Returns the settings of core scheduling.
    #[must_use]
    pub fn core_sched(&self) -> &CoreSched {
        &self.core_sched
    }
}

/// Returns the CPU pools of the machine as input of the rule of CPU sets.
pub(crate) fn pools(topology: &TopologyInfo) -> Pools {
    let list = |pools: &[Pool]| {
        let pool = |pool: &Pool| CpuSharedPool {
            socket: pool.socket,
            node: pool.node,
            cpuset: pool.cpuset.clone(),
        };
        pools.iter().map(pool).collect()
    };
    Pools {
        shared: list(&topology.shared_pools),
        batch: list(&topology.be_shared_pools),
        system: topology
            .system_qos
            .as_ref()
            .map(|system| system.cpus.to_string())
            .unwrap_or_default(),
        kubelet_static: topology.is_static(),
    }
}
