//! Resources for batch and mid pods: capacity that services do not use, minus a safety margin.
//!
//! All functions take a [`NodeView`] of one node and a policy, and return amounts. The formulas and their
//! rounding are Koordinator's (`pkg/slo-controller/noderesource/plugins`): whole percents are applied in
//! floating point and truncated, so `100000 × 0.29` is `28999`.

mod batch;
mod mid;
mod request;
mod terms;

pub use batch::{
    Batch, BatchPolicy, CpuPolicy, MemoryPolicy, NumaZone, batch, batch_by_zone, explain,
};
pub use mid::{Mid, MidMode, MidPolicy, mid};
pub use request::pod_request;
pub use terms::{Sum, Term, TermSetting, charged, mebibytes, mid_sums, millicores, sums};

use koord_api::priority::PriorityClass;
use koord_api::qos::QosClass;
use koord_api::quantity::Quantity;
use std::ops::{Add, AddAssign, Sub};

/// CPU in cores and memory in bytes, exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// CPU in cores.
    pub cpu: Quantity,
    /// Memory in bytes.
    pub memory: Quantity,
}

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self {
        cpu: Quantity::ZERO,
        memory: Quantity::ZERO,
    };

    /// Creates an amount of `cpu` cores and `memory` bytes.
    #[must_use]
    pub const fn new(cpu: Quantity, memory: Quantity) -> Self {
        Self { cpu, memory }
    }

    /// Returns the larger of each resource.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
        }
    }

    /// Returns the smaller of each resource.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.min(other.cpu),
            memory: self.memory.min(other.memory),
        }
    }

    /// Replaces negative amounts by zero.
    #[must_use]
    pub fn clamp(self) -> Self {
        let keep = |quantity: Quantity| {
            if quantity.signum() < 0 {
                Quantity::ZERO
            } else {
                quantity
            }
        };
        Self {
            cpu: keep(self.cpu),
            memory: keep(self.memory),
        }
    }

    /// Returns an equal share for each of `parts`, rounded up to a thousandth. 0 parts leave the amount
    /// unchanged.
    #[must_use]
    pub fn share(self, parts: usize) -> Self {
        Self {
            cpu: divide(self.cpu, parts),
            memory: divide(self.memory, parts),
        }
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            memory: self.memory + other.memory,
        }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            cpu: self.cpu - other.cpu,
            memory: self.memory - other.memory,
        }
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the published rounding goes through f64"
)]
fn to_f64(value: i64) -> f64 {
    value as f64
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "cutting off is the published rounding"
)]
fn cut_off(value: f64) -> i64 {
    value as i64
}

/// Returns `quantity` times `ratio` in thousandths, truncated.
#[must_use]
pub fn scale_milli(quantity: Quantity, ratio: f64) -> Quantity {
    Quantity::from_milli(cut_off(to_f64(quantity.milli_value()) * ratio))
        .with_format(quantity.format())
}

/// Returns `quantity` times `ratio` in whole units, truncated.
#[must_use]
pub fn scale(quantity: Quantity, ratio: f64) -> Quantity {
    Quantity::from_value(cut_off(to_f64(quantity.value()) * ratio)).with_format(quantity.format())
}

/// Converts `percent` to a factor.
fn ratio(percent: i64) -> f64 {
    to_f64(percent) / 100.0
}

fn divide(quantity: Quantity, parts: usize) -> Quantity {
    match i64::try_from(parts) {
        Ok(0) | Err(_) => quantity,
        Ok(parts) => {
            let milli = (to_f64(quantity.milli_value()) / to_f64(parts)).ceil();
            Quantity::from_milli(cut_off(milli)).with_format(quantity.format())
        }
    }
}

/// Running or pending pod of the node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodView {
    /// Priority class, with default.
    pub priority: PriorityClass,
    /// QoS class, with default.
    pub qos: QosClass,
    /// Requests.
    pub request: Amount,
    /// Usage; `None` if it was not measured.
    pub usage: Option<Amount>,
    /// NUMA nodes the pod is bound to; empty if it is not bound.
    pub numa_nodes: Vec<usize>,
}

/// Usage that belongs to no known pod: a host application, or a pod that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClassUsage {
    /// Priority class, as reported.
    pub priority: PriorityClass,
    /// Usage.
    pub usage: Amount,
}

/// Properties of a node for the computation of reclaimed resources.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeView {
    /// `status.capacity`.
    pub capacity: Amount,
    /// `status.allocatable`.
    pub allocatable: Amount,
    /// Amounts reserved by the reservation annotation.
    pub reserved_by_annotation: Amount,
    /// Usage outside of pods and host applications.
    pub system_usage: Amount,
    /// Usage of the whole node; `None` if cpu or memory is missing in the report.
    pub node_usage: Option<Amount>,
    /// Predicted amount that prod pods request and will not use.
    pub prod_reclaimable: Amount,
    /// Running and pending pods.
    pub pods: Vec<PodView>,
    /// Usage of measured pods that are not in `pods`.
    pub dangling: Vec<ClassUsage>,
    /// Host applications: services outside Kubernetes.
    pub host_apps: Vec<ClassUsage>,
}

impl NodeView {
    /// Returns the amounts that the kubelet reserves: capacity − allocatable.
    #[must_use]
    pub fn reserved_by_kubelet(&self) -> Amount {
        (self.capacity - self.allocatable).clamp()
    }

    /// Returns the larger of both reservations.
    #[must_use]
    pub fn reserved(&self) -> Amount {
        self.reserved_by_annotation.max(self.reserved_by_kubelet())
    }

    /// Returns the usage of host applications with a priority above `priority`.
    fn apps_above(&self, priority: i32) -> Amount {
        let apps = self
            .host_apps
            .iter()
            .filter(|app| app.priority.default_value() > priority);
        apps.fold(Amount::ZERO, |sum, app| sum + app.usage)
    }
}

/// Returns true if `class` is batch or lower, so that its pods are not charged against batch resources.
#[must_use]
pub fn is_low(class: PriorityClass) -> bool {
    matches!(class, PriorityClass::Batch | PriorityClass::Free)
}

/// Returns true if a report updated at `updated` has expired at `now` (both in seconds), or was never made.
#[must_use]
pub fn is_stale(updated: Option<i64>, now: i64, degrade_time_minutes: i64) -> bool {
    updated
        .is_none_or(|updated| now > updated.saturating_add(degrade_time_minutes.saturating_mul(60)))
}

/// Returns true if an amount changed by more than the share `threshold` of the old one. An added or removed
/// amount always counts as changed.
#[must_use]
pub fn differs(old: Option<Quantity>, new: Option<Quantity>, threshold: f64) -> bool {
    match (old, new) {
        (None, None) => false,
        (Some(old), Some(new)) => {
            let (old, new) = (old.milli_value(), new.milli_value());
            to_f64(new.abs_diff(old).try_into().unwrap_or(i64::MAX)) > to_f64(old) * threshold
        }
        _ => true,
    }
}

/// Returns the published batch amount after allocations of third-party schedulers are subtracted.
#[must_use]
pub fn after_third_parties(original: Quantity, allocated: Quantity) -> Quantity {
    (original - allocated).max(Quantity::ZERO.with_format(original.format()))
}

#[cfg(test)]
mod tests;
