//! BECPUManager: CPU sets of batch pods by NUMA node.
//!
//! With the gate open, the CPU sets of the BE class are not used for suppression. The class, its pods and
//! containers have every CPU that batch work may use; containers of a pod that the scheduler assigned CPUs or
//! NUMA nodes have these CPUs, or the pools of these nodes. Suppression limits by quota.

use super::row::excluded;
use crate::claims::Level;
use crate::gates::Gate;
use crate::hooks;
use crate::qos::reconcile::{Reconcile, ReconcileReason};
use crate::qos::{Plan, View, Write};
use crate::states::PodInfo;
use koord_api::qos::QosClass;
use koord_host::{CgroupPath, Controller, CpuSet, Resource};
use koord_model::cpuset_rule::{CpusetRequest, Pools, container_cpus};
use rustc_hash::FxHashMap;

/// Audit reason.
const REASON: &str = "BECPUManager";

/// Means of enforcement, for the status page.
pub(super) const DESCRIPTION: &str = "CPU sets by pools of NUMA nodes";

/// Plans the CPU sets by pools, at reconcile intervals.
#[derive(Debug, Default)]
pub(super) struct PoolManager(Reconcile);

impl PoolManager {
    /// Plans the CPU sets of batch work. Nothing is written before the NodeResourceTopology, which has the
    /// pools, was received.
    pub(super) fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let every = view.facts.settings.reconcile_interval_ms;
        let (Some(topology), Some(_)) = (view.facts.topology, view.pods) else {
            return;
        };
        let Some(round) = self.0.due(view, every) else {
            return;
        };
        let excluded = excluded(view);
        let processors = view.facts.machine.processors.iter().map(|p| p.cpu);
        let full: CpuSet = processors.filter(|cpu| !excluded.contains(cpu)).collect();
        if full.is_empty() {
            return;
        }
        plan.verify(round == ReconcileReason::Periodic);
        let pools = hooks::rules::pools(topology);
        let mut pods: FxHashMap<&CgroupPath, &PodInfo> = FxHashMap::default();
        for pod in view.pods().map(|pod| pod.info) {
            pods.insert(&pod.cgroup, pod);
        }
        let below = |group: &CgroupPath| view.kernel.children(group, Controller::Cpuset);
        let class = Write::class(view.batch, QosClass::Be, view.facts.node_name());
        let mut push = |level, group: &CgroupPath, cpus: &CpuSet, because: &str| {
            let mut write = Write::at(level, group, QosClass::Be).because(because);
            write.subject = class.subject.clone();
            if let Some(pod) = pods.get(group).or_else(|| pods.get(&group.parent()?)) {
                write.subject = Write::pod(pod).subject;
            }
            write.reason = REASON;
            plan.write(write.set(Resource::CpusetCpus, cpus));
        };
        let mut containers = |group: &CgroupPath, pod: Option<&&PodInfo>, others: bool| {
            let assigned = pod.and_then(|pod| assigned_cpus(view, pod, &pools));
            if assigned.is_some() && pod.is_some_and(|pod| pod.qos != QosClass::Be) {
                return; // The strategy RuntimeHooks writes these.
            }
            // Assigned CPUs may be exclusive to another pod by now; at least one CPU must remain.
            let allowed = assigned.map(|assigned| assigned.intersection(&full));
            let allowed = allowed.filter(|cpus| !cpus.is_empty());
            for container in below(group) {
                match &allowed {
                    Some(cpus) => {
                        push(Level::Container, &container, cpus, "given by the scheduler")
                    }
                    None if others => push(Level::Container, &container, &full, ""),
                    None => {}
                }
            }
        };
        let in_class = below(view.batch);
        for group in &in_class {
            containers(group, pods.get(group), true);
        }
        // Batch pods that also have native resources are in the cgroup of another class.
        for pod in view.pods().map(|pod| pod.info) {
            if pod.qos == QosClass::Be && pod.is_active() && !in_class.contains(&pod.cgroup) {
                containers(&pod.cgroup, Some(&pod), false);
            }
        }
        push(Level::Qos, view.batch, &full, "");
        for group in &in_class {
            push(Level::Pod, group, &full, "");
        }
    }
}

/// Returns the CPUs that the scheduler assigned to the pod; `None` for a pod that shares all CPUs of batch
/// work.
fn assigned_cpus(view: &View<'_>, pod: &PodInfo, pools: &Pools) -> Option<CpuSet> {
    if !view.facts.settings.gates.is_on(Gate::CPUSetAllocator) {
        return None;
    }
    let own = pod.cpus.as_ref().map(ToString::to_string);
    let ask = CpusetRequest {
        qos: pod.qos,
        kube: pod.kube_qos,
        own: own.as_deref(),
        numa: &pod.settings().numa,
        batch_by_pool: true,
    };
    let cpus = container_cpus(ask, Some(pools))?;
    // An empty list means that the pod shares all CPUs.
    let cpus = cpus.parse::<CpuSet>().ok()?;
    (!cpus.is_empty()).then_some(cpus)
}
