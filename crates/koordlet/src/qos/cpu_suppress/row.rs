//! CPUSuppress as a row of the table: converts the tick's view to the input of the rule.

use super::pools::{self, PoolManager};
use super::{CLAIMS, Class, CpuSuppress, Input, NAME};
use crate::claims::Level;
use crate::gates::Gate;
use crate::health::State;
use crate::metrics::Metrics;
use crate::qos::{Facts, Plan, Planner, StrategySpec, View};
use crate::states::node::SUPPRESS_MODE_ANNOTATION;
use crate::states::slo::{SuppressMode, SuppressPolicy};
use koord_api::qos::QosClass;
use koord_host::{CgroupPath, Controller, CpuSet, Resource};
use std::collections::BTreeSet;

/// Ticks between two readings of the class's CPU set.
const CPUSET_EVERY: u64 = 5;

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[Gate::BECPUSuppress, Gate::BECPUManager],
    every: |settings| settings.cpu_suppress_interval_ms,
    claims: CLAIMS,
    make: |_, metrics| {
        Box::new(SuppressPlanner {
            rule: CpuSuppress::default(),
            metrics: metrics.clone(),
            cpuset: None,
            pools: PoolManager::default(),
            logged: None,
            bad_mode: None,
            blind: false,
        })
    },
};

#[derive(Debug)]
struct SuppressPlanner {
    rule: CpuSuppress,
    metrics: Metrics,
    /// Last reading of the class's CPU set.
    cpuset: Option<CpuSet>,
    /// CPU sets by NUMA node, with gate BECPUManager.
    pools: PoolManager,
    /// Mode and enablement that were logged last.
    logged: Option<(SuppressMode, bool)>,
    bad_mode: Option<String>,
    blind: bool,
}

/// Returns the mode, from the node's annotation, else the NodeSLO, else the flag; and the annotation's error,
/// if it is invalid. On a kernel without any signal of pressure it is always the upstream mode, because
/// suffering services would not be noticed.
pub(crate) fn mode(facts: &Facts<'_>) -> (SuppressMode, Option<String>) {
    let annotation = facts.node.and_then(|node| node.suppress_mode.as_deref());
    let (by_annotation, error) = match annotation.map(str::parse::<SuppressMode>) {
        Some(Ok(mode)) => (Some(mode), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, None),
    };
    let requested = by_annotation
        .or(facts.slo.extension.mode)
        .unwrap_or(facts.settings.suppress_mode);
    let blind = !facts.machine.psi && !facts.machine.schedstat;
    let mode = if blind {
        SuppressMode::Upstream
    } else {
        requested
    };
    (mode, error)
}

impl Planner for SuppressPlanner {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let gates = &view.facts.settings.gates;
        let by_pools = gates.is_on(Gate::BECPUManager);
        if by_pools {
            self.pools.plan(view, plan);
            plan.verify(false);
        }
        if !gates.is_on(Gate::BECPUSuppress) {
            plan.report_state(State::Active, pools::DESCRIPTION);
            return;
        }
        let mode = self.mode(&view.facts);
        let slo = view.facts.slo;
        let policy = if by_pools {
            SuppressPolicy::CfsQuota
        } else {
            slo.policy
        };
        let quota = view.kernel.number(view.batch, Resource::CfsQuota);
        let by_cpuset =
            slo.enabled && mode == SuppressMode::Upstream && policy == SuppressPolicy::Cpuset;
        let recovering = slo.known && !self.rule.ignores_cpusets();
        let partition = slo.enabled && plan.guard.partition.is_some();
        let needs_cpusets = by_cpuset || partition || recovering;
        let cpusets = !by_pools && quota.is_some() && needs_cpusets;
        if quota.is_some() && (cpusets || view.tick % CPUSET_EVERY == 1) {
            self.cpuset = view.kernel.cpus(view.batch);
        }
        let batch = view.batch_cpu.unwrap_or(0);
        let capacity = view.facts.cpu_capacity();
        let groups = if cpusets { groups(view) } else { Vec::new() };
        let usage = view.usage();
        let outcome = self.rule.plan(&Input {
            now_ms: view.now.ms(),
            node: view.facts.node_name(),
            slo,
            mode,
            policy,
            capacity,
            reserved: view.facts.node.map_or(0, |node| node.reserved_cpu),
            usage,
            guard: &plan.guard,
            class: quota.map(|quota| Class {
                group: view.batch,
                quota,
                cpuset: self.cpuset.as_ref().filter(|_| !by_pools),
            }),
            processors: &view.facts.machine.processors,
            excluded: &excluded(view),
            kubelet_static: view.facts.topology.is_some_and(|t| t.is_static()),
            lsr: &cpus_of(view, QosClass::Lsr),
            groups: &groups,
        });
        plan.batch_quotas_lifted = self.rule.limits_by_quota()
            || (slo.enabled
                && mode == SuppressMode::Upstream
                && policy == SuppressPolicy::CfsQuota);
        let services = usage.map_or(0, |usage| usage.pods_not_be);
        self.metrics
            .suppression(outcome.by, outcome.limit, outcome.cap, services, batch);
        let limiter = match outcome.by {
            SuppressPolicy::Cpuset => "CPU set",
            SuppressPolicy::CfsQuota => "CFS quota",
        };
        let also = if by_pools {
            format!("; {}", pools::DESCRIPTION)
        } else {
            String::new()
        };
        match (slo.enabled, quota, outcome.cap) {
            (false, ..) if by_pools => plan.report_state(State::Active, pools::DESCRIPTION),
            (false, ..) => plan.report_state(State::Idle, "the NodeSLO does not enable it"),
            (_, None, _) => plan.report_state(State::Idle, "there is no group of batch pods yet"),
            (_, _, Some(cap)) => {
                plan.report_state(
                    State::Active,
                    format!("{limiter} at {cap} % of the node, {mode} mode{also}"),
                );
            }
            (_, _, None) => {
                plan.report_state(State::Active, format!("lowest weight, no cap{also}"));
            }
        }
        for write in outcome.writes {
            plan.write(write);
        }
    }
}

impl SuppressPlanner {
    /// Returns the mode in force, and logs changes and errors once.
    fn mode(&mut self, facts: &Facts<'_>) -> SuppressMode {
        let (mode, error) = mode(facts);
        if let Some(error) = &error
            && self.bad_mode.as_ref() != Some(error)
        {
            tracing::warn!(
                annotation = SUPPRESS_MODE_ANNOTATION,
                error,
                "ignoring invalid suppression mode"
            );
        }
        self.bad_mode = error;
        let blind = !facts.machine.psi && !facts.machine.schedstat;
        if blind && !std::mem::replace(&mut self.blind, true) {
            tracing::warn!(
                "kernel has no pressure signal (neither PSI nor schedstat), \
                 suppressing batch work by the configured policy instead"
            );
        }
        let enabled = facts.slo.enabled;
        if self.logged != Some((mode, enabled)) {
            // Disabled at first may only mean that no NodeSLO was received yet.
            if enabled || self.logged.is_some_and(|(_, enabled)| enabled) {
                tracing::info!(%mode, enabled, "suppression mode changed");
            }
            self.logged = Some((mode, enabled));
        }
        mode
    }
}

/// Returns the CPUs that batch work must not use: those of LSE pods, those reserved by the node or by the
/// kubelet, and those of SYSTEM pods if they are exclusive.
pub(crate) fn excluded(view: &View<'_>) -> BTreeSet<u32> {
    let mut cpus = cpus_of(view, QosClass::Lse);
    if let Some(node) = view.facts.node {
        cpus.extend(node.reservation.cpus.iter());
        let system = node.system_qos.iter().filter(|system| system.exclusive);
        cpus.extend(system.flat_map(|system| system.cpus.iter()));
    }
    if let Some(topology) = view.facts.topology {
        cpus.extend(topology.excluded_cpus().iter());
    }
    cpus
}

/// Returns the exclusive CPUs of the active pods of a class.
pub(crate) fn cpus_of(view: &View<'_>, qos: QosClass) -> BTreeSet<u32> {
    view.pods()
        .filter(|pod| pod.info.qos == qos && pod.info.is_active())
        .filter_map(|pod| pod.info.cpus.as_ref())
        .flat_map(|cpus| cpus.iter())
        .collect()
}

/// Returns every cgroup in the BE class, whichever program created it: on v1 the class cannot get fewer CPUs
/// than any of them has, and sandboxes and init containers are in no pod list.
fn groups(view: &View<'_>) -> Vec<(Level, CgroupPath)> {
    let below = |group: &CgroupPath| view.kernel.children(group, Controller::Cpuset);
    let mut groups = Vec::new();
    for pod in below(view.batch) {
        let containers = below(&pod);
        groups.push((Level::Pod, pod));
        let containers = containers.into_iter();
        groups.extend(containers.map(|group| (Level::Container, group)));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::MachineFacts;
    use crate::settings::Settings;
    use crate::states::{NodeInfo, Slo};

    #[test]
    fn without_any_signal_the_configured_policy_holds() {
        let (settings, slo) = (Settings::default(), Slo::default());
        let check = |machine: &MachineFacts, node: Option<&NodeInfo>| {
            mode(&Facts {
                settings: &settings,
                slo: &slo,
                node,
                machine,
                topology: None,
                layout: &settings.layout,
            })
        };
        let mut machine = MachineFacts::default();
        assert_eq!(check(&machine, None).0, SuppressMode::Upstream);
        machine.schedstat = true;
        assert_eq!(check(&machine, None), (SuppressMode::Pressure, None));
        let node = NodeInfo {
            suppress_mode: Some("magic".to_owned()),
            ..NodeInfo::default()
        };
        let (mode, error) = check(&machine, Some(&node));
        assert_eq!(mode, SuppressMode::Pressure);
        assert!(error.unwrap().contains("magic"));
    }
}
