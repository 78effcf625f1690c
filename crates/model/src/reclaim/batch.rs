//! Batch resources: the capacity of a node minus services, the system and a safety margin.

use super::{Amount, NodeView, PodView, is_low, ratio, scale, scale_milli};
use koord_api::priority::PriorityClass;
use koord_api::qos::QosClass;
use koord_api::quantity::Quantity;

/// Policy for the amount of CPU that services are charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuPolicy {
    /// Charges their usage.
    #[default]
    Usage,
    /// Charges the larger of usage and request.
    MaxUsageRequest,
}

/// Policy for the amount of memory that services are charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryPolicy {
    /// Charges their usage.
    #[default]
    Usage,
    /// Charges their request.
    Request,
    /// Charges the larger of usage and request.
    MaxUsageRequest,
}

/// Policy of the computation of batch resources. Percents are whole percents of the capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPolicy {
    /// CPU usage up to which the node is filled; the rest is the safety margin. Above 100 the margin is
    /// negative; batch resources still never exceed the capacity.
    pub cpu_reclaim_percent: i64,
    /// Memory usage up to which the node is filled.
    pub memory_reclaim_percent: i64,
    /// Policy for the charged CPU.
    pub cpu: CpuPolicy,
    /// Policy for the charged memory.
    pub memory: MemoryPolicy,
    /// Upper bound of batch CPU; `None` means no bound.
    pub cpu_limit_percent: Option<i64>,
    /// Upper bound of batch memory; `None` means no bound.
    pub memory_limit_percent: Option<i64>,
    /// True if a pod without measurement counts with its request under `MaxUsageRequest`. Upstream ignores it
    /// there on node level, so that a pod is not counted until it is measured.
    pub charge_unmeasured: bool,
}

impl Default for BatchPolicy {
    fn default() -> Self {
        Self {
            cpu_reclaim_percent: 60,
            memory_reclaim_percent: 65,
            cpu: CpuPolicy::Usage,
            memory: MemoryPolicy::Usage,
            cpu_limit_percent: None,
            memory_limit_percent: None,
            charge_unmeasured: true,
        }
    }
}

/// Batch resources and the inputs of their computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Batch {
    /// CPU in cores; published as `batch-cpu` in milli-cores.
    pub cpu: Quantity,
    /// Memory in bytes.
    pub memory: Quantity,
    pub(super) capacity: Amount,
    pub(super) safety: Amount,
    pub(super) held: SystemDemand,
    pub(super) services: Services,
}

/// Usage and reservations outside of services and batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SystemDemand {
    /// Usage outside of pods.
    pub(super) system: Amount,
    /// Usage of host applications that count as system.
    pub(super) apps: Amount,
    pub(super) by_annotation: Amount,
    pub(super) by_kubelet: Amount,
}

impl SystemDemand {
    fn from_node(node: &NodeView) -> Self {
        Self {
            system: node.system_usage,
            // Prod and mid host applications count as system, batch and free ones do not.
            apps: node.apps_above(PriorityClass::Batch.default_value()),
            by_annotation: node.reserved_by_annotation,
            by_kubelet: node.reserved_by_kubelet(),
        }
    }

    /// Returns an equal share for each of `parts`.
    fn share(self, parts: usize) -> Self {
        // The usage is rounded once, not twice.
        let system = self.system.share(parts);
        Self {
            system,
            apps: self.used().share(parts) - system,
            by_annotation: self.by_annotation.share(parts),
            by_kubelet: self.by_kubelet.share(parts),
        }
    }

    pub(super) fn used(&self) -> Amount {
        self.system + self.apps
    }

    /// Returns the larger of both reservations.
    pub(super) fn reserved(&self) -> Amount {
        self.by_annotation.max(self.by_kubelet)
    }

    /// Returns the larger of usage and reservation.
    fn larger(&self) -> Amount {
        self.used().max(self.reserved())
    }
}

impl Batch {
    /// Returns `batch-cpu`: milli-cores as a whole number.
    #[must_use]
    pub fn milli_cpu(&self) -> Quantity {
        Quantity::from_value(self.cpu.milli_value())
    }
}

/// Amounts that services are charged under each policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Services {
    used: Amount,
    requested: Amount,
    max: Amount,
}

impl Services {
    /// Returns the CPU that services are charged under `policy`.
    pub(super) fn cpu(&self, policy: CpuPolicy) -> Quantity {
        match policy {
            CpuPolicy::Usage => self.used.cpu,
            CpuPolicy::MaxUsageRequest => self.max.cpu,
        }
    }

    /// Returns the memory that services are charged under `policy`.
    pub(super) fn memory(&self, policy: MemoryPolicy) -> Quantity {
        match policy {
            MemoryPolicy::Usage => self.used.memory,
            MemoryPolicy::Request => self.requested.memory,
            MemoryPolicy::MaxUsageRequest => self.max.memory,
        }
    }

    pub(super) fn charge(&mut self, pod: &PodView, charge_unmeasured: bool) {
        let request = pod.request;
        self.requested += request;
        match pod.usage {
            None => {
                self.used += request;
                if charge_unmeasured {
                    self.max += request;
                }
            }
            Some(usage) => {
                self.used += used(pod, usage);
                self.max += request.max(usage);
            }
        }
    }

    fn charge_dangling(&mut self, usage: Amount) {
        self.used += usage;
        self.max += usage;
    }
}

/// Returns the usage to charge. Exclusive CPUs of LSE pods count as used even while they are idle.
fn used(pod: &PodView, usage: Amount) -> Amount {
    match pod.qos {
        QosClass::Lse => Amount {
            cpu: pod.request.cpu,
            memory: usage.memory,
        },
        _ => usage,
    }
}

/// Computes the batch resources of a node.
#[must_use]
pub fn batch(node: &NodeView, policy: &BatchPolicy) -> Batch {
    let mut services = Services::default();
    for pod in node.pods.iter().filter(|pod| !is_low(pod.priority)) {
        services.charge(pod, policy.charge_unmeasured);
    }
    for dangling in node
        .dangling
        .iter()
        .filter(|metric| !is_low(metric.priority))
    {
        services.charge_dangling(dangling.usage);
    }
    reclaimable(
        node.capacity,
        SystemDemand::from_node(node),
        services,
        policy,
    )
}

/// NUMA node and its allocatable amount.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumaZone {
    /// Number in the zone name `node-<n>`.
    pub index: usize,
    /// Allocatable amount of the zone.
    pub allocatable: Amount,
}

/// Computes batch resources by NUMA node, in the order of `zones`. Amounts that belong to no NUMA node are
/// split equally.
#[must_use]
pub fn batch_by_zone(node: &NodeView, zones: &[NumaZone], policy: &BatchPolicy) -> Vec<Batch> {
    let mut services = vec![Services::default(); zones.len()];
    for pod in node.pods.iter().filter(|pod| !is_low(pod.priority)) {
        let bound = |zone: &NumaZone| pod.numa_nodes.contains(&zone.index);
        let count = zones.iter().filter(|zone| bound(zone)).count();
        let parts = if count == 0 { zones.len() } else { count };
        let part = PodView {
            request: pod.request.share(parts),
            usage: pod.usage.map(|usage| usage.share(parts)),
            ..pod.clone()
        };
        for (zone, services) in zones.iter().zip(&mut services) {
            if count == 0 || bound(zone) {
                services.charge(&part, true);
            }
        }
    }
    for dangling in node
        .dangling
        .iter()
        .filter(|metric| !is_low(metric.priority))
    {
        for services in &mut services {
            services.charge_dangling(dangling.usage.share(zones.len()));
        }
    }
    let demand = SystemDemand::from_node(node).share(zones.len());
    let zones = zones.iter().zip(services);
    zones
        .map(|(zone, services)| reclaimable(zone.allocatable, demand, services, policy))
        .collect()
}

/// Subtracts the safety margin, the system and services from `capacity`, under the limits of `policy`.
fn reclaimable(
    capacity: Amount,
    held: SystemDemand,
    services: Services,
    policy: &BatchPolicy,
) -> Batch {
    // Negative above 100 %: services and batch together may be granted more than the capacity.
    let safety = Amount {
        cpu: scale_milli(capacity.cpu, ratio(100 - policy.cpu_reclaim_percent)),
        memory: scale(capacity.memory, ratio(100 - policy.memory_reclaim_percent)),
    };
    let larger = held.larger();
    let by_usage = (capacity - safety - larger - services.used).clamp();
    let by_request = (capacity - safety - held.reserved() - services.requested).clamp();
    let by_max = (capacity - safety - larger - services.max).clamp();
    let mut cpu = match policy.cpu {
        CpuPolicy::Usage => by_usage.cpu,
        CpuPolicy::MaxUsageRequest => by_max.cpu,
    };
    let mut memory = match policy.memory {
        MemoryPolicy::Usage => by_usage.memory,
        MemoryPolicy::Request => by_request.memory,
        MemoryPolicy::MaxUsageRequest => by_max.memory,
    };
    if let Some(percent) = policy.cpu_limit_percent {
        cpu = cpu.min(scale_milli(capacity.cpu, ratio(percent)));
    }
    if let Some(percent) = policy.memory_limit_percent {
        memory = memory.min(scale(capacity.memory, ratio(percent)));
    }
    // A negative margin must not grant more than the capacity.
    Batch {
        cpu: cpu.min(capacity.cpu),
        memory: memory.min(capacity.memory),
        capacity,
        safety,
        held,
        services,
    }
}

/// Describes the computation of `batch` for operators: one line for CPU, one for memory.
#[must_use]
pub fn explain(batch: &Batch, policy: &BatchPolicy) -> (String, String) {
    let Batch {
        capacity,
        safety,
        held: parts,
        services,
        ..
    } = batch;
    let held = parts.larger();
    let milli = |quantity: Quantity| quantity.milli_value();
    let charged = match policy.cpu {
        CpuPolicy::Usage => format!("podHPUsed:{}", milli(services.used.cpu)),
        CpuPolicy::MaxUsageRequest => format!("podHPMaxUsedRequest:{}", milli(services.max.cpu)),
    };
    let cpu = format!(
        "batchAllocatable[CPU(Milli-Core)]:{} = nodeCapacity:{} - nodeSafetyMargin:{} \
         - systemUsageOrNodeReserved:{} - {charged}",
        milli(batch.cpu),
        milli(capacity.cpu),
        milli(safety.cpu),
        milli(held.cpu),
    );
    let (what, held, charged) = match policy.memory {
        MemoryPolicy::Usage => (
            "systemUsageOrNodeReserved",
            held,
            format!("podHPUsed:{}", giga(services.used.memory)),
        ),
        MemoryPolicy::Request => (
            "nodeReserved",
            parts.reserved(),
            format!("podHPRequest:{}", giga(services.requested.memory)),
        ),
        MemoryPolicy::MaxUsageRequest => (
            "systemUsageOrNodeReserved",
            held,
            format!("podHPMaxUsedRequest:{}", giga(services.max.memory)),
        ),
    };
    let memory = format!(
        "batchAllocatable[Mem(GB)]:{} = nodeCapacity:{} - nodeSafetyMargin:{} - {what}:{} - {charged}",
        giga(batch.memory),
        giga(capacity.memory),
        giga(safety.memory),
        giga(held.memory),
    );
    (cpu, memory)
}

/// Returns whole gigabytes (10⁹ bytes), rounded up.
fn giga(quantity: Quantity) -> i64 {
    let bytes = quantity.value();
    bytes.div_euclid(1_000_000_000) + i64::from(bytes.rem_euclid(1_000_000_000) > 0)
}
