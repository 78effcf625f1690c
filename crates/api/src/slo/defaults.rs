//! Defaults of unset NodeSLO fields.
//!
//! The manager writes the threshold, burst and system defaults into every NodeSLO. The class defaults of
//! [`resource_qos_strategy`] are never written; koordlet applies them when it parses a NodeSLO.

use super::{
    BlkIOQOSCfg, CPUBurstPolicy, CPUBurstStrategy, CPUEvictPolicy, CPUQOSCfg, CPUQOSPolicy,
    CPUSuppressPolicy, MemoryQOSCfg, NETQOSPolicy, NetworkQOSCfg, NodeSLOSpec, ResctrlQOSCfg,
    ResourceQOS, ResourceQOSPolicies, ResourceQOSStrategy, ResourceThresholdStrategy,
    SystemStrategy,
};
use crate::merge;
use crate::qos::QosClass;
use crate::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Distance between an eviction threshold and its lower bound if only the threshold is set, in percentage
/// points.
pub const EVICT_LOWER_DISTANCE_PERCENT: i64 = 2;
/// Usage of the BE limit below which CPU satisfaction does not cause eviction, in percent.
pub const CPU_EVICT_BE_USAGE_THRESHOLD_PERCENT: i64 = 90;

/// Returns the threshold defaults: suppression and eviction are off; 65 % CPU and 70 % memory once they are
/// on.
#[must_use]
pub fn resource_threshold_strategy() -> ResourceThresholdStrategy {
    ResourceThresholdStrategy {
        enable: Some(false),
        cpu_suppress_threshold_percent: Some(65),
        cpu_suppress_policy: Some(CPUSuppressPolicy::Cpuset),
        memory_evict_threshold_percent: Some(70),
        cpu_evict_policy: Some(CPUEvictPolicy::ByRealLimit),
        ..ResourceThresholdStrategy::default()
    }
}

/// Returns the burst defaults: off; once on, a burst buffer of 1000 % and quotas scaled up to 300 % without a
/// time limit.
#[must_use]
pub fn cpu_burst_strategy() -> CPUBurstStrategy {
    CPUBurstStrategy {
        policy: Some(CPUBurstPolicy::None),
        cpu_burst_percent: Some(1000),
        cfs_quota_burst_percent: Some(300),
        cfs_quota_burst_period_seconds: Some(-1),
        share_pool_threshold_percent: Some(50),
    }
}

/// Returns the system defaults: no kernel setting is changed; the bandwidth is unknown (0).
#[must_use]
pub fn system_strategy() -> SystemStrategy {
    SystemStrategy {
        total_network_bandwidth: Some(Quantity::ZERO),
        ..SystemStrategy::default()
    }
}

/// Returns the defaults of all classes, with every feature off.
#[must_use]
pub fn resource_qos_strategy() -> ResourceQOSStrategy {
    ResourceQOSStrategy {
        policies: Some(ResourceQOSPolicies {
            cpu_policy: Some(CPUQOSPolicy::GroupIdentity),
            net_qos_policy: Some(NETQOSPolicy::Tc),
        }),
        lsr_class: Some(resource_qos(QosClass::Lsr)),
        ls_class: Some(resource_qos(QosClass::Ls)),
        be_class: Some(resource_qos(QosClass::Be)),
        system_class: Some(resource_qos(QosClass::System)),
        cgroup_root: Some(ResourceQOS {
            blkio_qos: Some(BlkIOQOSCfg {
                enable: Some(false),
                blocks: Vec::new(),
            }),
            ..ResourceQOS::default()
        }),
    }
}

/// Returns the default settings of one class. [`QosClass::None`] gives the neutral values that replace a
/// feature's settings while it is disabled; LSE is treated as LSR.
#[must_use]
pub fn resource_qos(class: QosClass) -> ResourceQOS {
    ResourceQOS {
        cpu_qos: Some(cpu_qos(class)),
        memory_qos: Some(memory_qos(class)),
        blkio_qos: Some(BlkIOQOSCfg {
            enable: Some(false),
            blocks: Vec::new(),
        }),
        resctrl_qos: Some(resctrl_qos(class)),
        network_qos: Some(NetworkQOSCfg {
            enable: Some(false),
            ingress_request: Some(IntOrString::Int(0)),
            ingress_limit: Some(IntOrString::Int(0)),
            egress_request: Some(IntOrString::Int(0)),
            egress_limit: Some(IntOrString::Int(0)),
        }),
    }
}

/// Returns the default CPU settings of one class.
#[must_use]
pub fn cpu_qos(class: QosClass) -> CPUQOSCfg {
    let (identity, expeller) = match class {
        QosClass::Lse | QosClass::Lsr | QosClass::Ls => (2, true),
        QosClass::Be => (-1, false),
        QosClass::System | QosClass::None => (0, false),
    };
    CPUQOSCfg {
        enable: Some(false),
        group_identity: Some(identity),
        sched_idle: Some(0),
        core_expeller: Some(expeller),
    }
}

/// Returns the default memory settings of one class.
#[must_use]
pub fn memory_qos(class: QosClass) -> MemoryQOSCfg {
    let (ratio, scale, adjust) = match class {
        QosClass::Lse | QosClass::Lsr | QosClass::Ls => (95, 20, -25),
        QosClass::Be => (95, 20, 50),
        QosClass::System | QosClass::None => (0, 50, 0),
    };
    MemoryQOSCfg {
        enable: Some(false),
        min_limit_percent: Some(0),
        low_limit_percent: Some(0),
        throttling_percent: Some(0),
        wmark_ratio: Some(ratio),
        wmark_scale_permill: Some(scale),
        wmark_min_adj: Some(adjust),
        priority_enable: Some(0),
        priority: Some(0),
        oom_kill_group: Some(0),
        ..MemoryQOSCfg::default()
    }
}

/// Returns the default cache and memory-bandwidth settings of one class.
#[must_use]
pub fn resctrl_qos(class: QosClass) -> ResctrlQOSCfg {
    ResctrlQOSCfg {
        enable: Some(false),
        cat_range_start_percent: Some(0),
        cat_range_end_percent: Some(if class == QosClass::Be { 30 } else { 100 }),
        mba_percent: Some(100),
    }
}

/// Returns a NodeSLO spec with all defaults.
#[must_use]
pub fn node_slo_spec() -> NodeSLOSpec {
    NodeSLOSpec {
        resource_used_threshold_with_be: Some(resource_threshold_strategy()),
        resource_qos_strategy: Some(resource_qos_strategy()),
        cpu_burst_strategy: Some(cpu_burst_strategy()),
        system_strategy: Some(system_strategy()),
        extensions: None,
        host_applications: Vec::new(),
    }
}

/// Returns the settings that koordlet applies: `given` over the defaults. Disabled CPU, memory and cache
/// settings of LSR, LS and BE (not SYSTEM) are replaced by the defaults of [`QosClass::None`].
///
/// # Errors
/// The merged JSON does not fit the types; impossible for values of these types.
pub fn effective(given: &NodeSLOSpec) -> serde_json::Result<NodeSLOSpec> {
    let mut spec = merge::merged(&node_slo_spec(), given)?;
    if let Some(strategy) = &mut spec.resource_qos_strategy {
        let classes = [
            &mut strategy.lsr_class,
            &mut strategy.ls_class,
            &mut strategy.be_class,
        ];
        classes.into_iter().flatten().for_each(neutralize_disabled);
    }
    Ok(spec)
}

fn neutralize_disabled(class: &mut ResourceQOS) {
    if class
        .cpu_qos
        .as_ref()
        .is_some_and(|cfg| cfg.enable == Some(false))
    {
        class.cpu_qos = Some(cpu_qos(QosClass::None));
    }
    if class
        .memory_qos
        .as_ref()
        .is_some_and(|cfg| cfg.enable == Some(false))
    {
        class.memory_qos = Some(memory_qos(QosClass::None));
    }
    if class
        .resctrl_qos
        .as_ref()
        .is_some_and(|cfg| cfg.enable == Some(false))
    {
        class.resctrl_qos = Some(resctrl_qos(QosClass::None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn given_values_win_and_disabled_features_turn_neutral() {
        let partial: NodeSLOSpec = serde_json::from_value(json!({
            "resourceUsedThresholdWithBE": { "enable": true, "cpuSuppressPolicy": "cfsQuota" },
            "resourceQOSStrategy": {
                "beClass": { "cpuQOS": { "enable": true, "groupIdentity": -1, "schedIdle": 1 } },
                "lsClass": { "memoryQOS": { "enable": true, "wmarkRatio": 90 } },
            },
        }))
        .unwrap();
        let spec = effective(&partial).unwrap();
        let threshold = spec.resource_used_threshold_with_be.unwrap();
        assert_eq!(threshold.enable, Some(true));
        assert_eq!(threshold.cpu_suppress_threshold_percent, Some(65));
        assert_eq!(
            threshold.cpu_suppress_policy,
            Some(CPUSuppressPolicy::CfsQuota)
        );
        let qos = spec.resource_qos_strategy.unwrap();
        let be = qos.be_class.unwrap();
        assert_eq!(be.cpu_qos.unwrap().sched_idle, Some(1));
        assert_eq!(be.resctrl_qos.unwrap().cat_range_end_percent, Some(100));
        let ls = qos.ls_class.unwrap();
        assert_eq!(ls.cpu_qos.unwrap().group_identity, Some(0));
        let memory = ls.memory_qos.unwrap();
        assert_eq!(
            (memory.wmark_ratio, memory.wmark_min_adj),
            (Some(90), Some(-25))
        );
        assert_eq!(
            qos.system_class.unwrap().cpu_qos.unwrap().enable,
            Some(false)
        );
    }
}
