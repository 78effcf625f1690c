//! Decisions of a tick: writes, evictions, and values that strategies pass to later ones.

use super::guard::{GuardAction, LeverTargets};
use crate::claims::{Claim, Classes, Level};
use crate::collect::errors::CollectError;
use crate::executor::{Intent, WriteSubject};
use crate::health::{self, State};
use crate::hooks::Rules;
use crate::states::{ContainerInfo, Malformed, PodInfo};
use koord_api::qos::QosClass;
use koord_host::target::Sysctl;
use koord_host::{CgroupPath, Resource, Target};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// An intended write of a kernel value.
#[derive(Debug, Clone)]
pub struct Write {
    /// Level of the target.
    pub level: Level,
    /// QoS class of the pod that the value is for.
    pub class: QosClass,
    /// File to write.
    pub target: Target,
    /// Value in cgroup v1 units.
    pub value: String,
    /// Object named in the audit record.
    pub subject: WriteSubject,
    /// Reason as one word.
    pub reason: &'static str,
    /// Reason in numbers.
    pub because: String,
    /// Verbosity of the audit record.
    pub verbosity: u8,
    /// True if the file need not be read when the same value was written recently.
    pub cacheable: bool,
    /// Level label for the metric of hook reconciles; `None` for other writes.
    pub reconciles: Option<&'static str>,
}

impl Write {
    /// Creates a write to the cgroup of a QoS class on the node `node`.
    #[must_use]
    pub fn class(group: &CgroupPath, class: QosClass, node: &str) -> Self {
        Self::at(Level::Qos, group, class).about(node)
    }

    /// Creates a write to a cgroup of a class that is in no pod list.
    #[must_use]
    pub fn at(level: Level, group: &CgroupPath, class: QosClass) -> Self {
        Self::to(level, Target::cgroup(group, Resource::CpuShares), class)
    }

    /// Creates a write to any target.
    #[must_use]
    pub fn to(level: Level, target: Target, class: QosClass) -> Self {
        Self {
            level,
            class,
            target,
            value: String::new(),
            subject: WriteSubject::default(),
            reason: "",
            because: String::new(),
            verbosity: 3,
            cacheable: true,
            reconciles: None,
        }
    }

    /// Creates a write to a pod's own cgroup.
    #[must_use]
    pub fn pod(pod: &PodInfo) -> Self {
        let mut write = Self::at(Level::Pod, &pod.cgroup, pod.qos);
        write.subject = WriteSubject::Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
        };
        write
    }

    /// Creates a write to a container's cgroup; `None` if it has none.
    #[must_use]
    pub fn container(pod: &PodInfo, container: &ContainerInfo) -> Option<Self> {
        let mut write = Self::at(Level::Container, container.cgroup.as_ref()?, pod.qos);
        write.subject = WriteSubject::Container {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            name: container.name.clone(),
        };
        Some(write)
    }

    fn about(mut self, node: &str) -> Self {
        self.subject = WriteSubject::Node {
            name: node.to_owned(),
        };
        self
    }

    /// Marks the write as a reconcile of hook values at `level`: `kubeqos`, `pod`, `sandbox` or `container`.
    #[must_use]
    pub fn reconciles(mut self, level: &'static str) -> Self {
        self.reconciles = Some(level);
        self
    }

    /// Sets the file of the cgroup, and the value.
    #[must_use]
    pub fn set(mut self, file: Resource, value: impl ToString) -> Self {
        if let Target::Cgroup { resource, .. } | Target::CgroupLine { resource, .. } =
            &mut self.target
        {
            *resource = file;
        }
        self.value(value)
    }

    /// Sets the value.
    #[must_use]
    pub fn value(mut self, value: impl ToString) -> Self {
        self.value = value.to_string();
        self
    }

    /// Sets the reason in numbers.
    #[must_use]
    pub fn because(mut self, because: impl Into<String>) -> Self {
        self.because = because.into();
        self
    }
}

impl From<Write> for Intent {
    fn from(write: Write) -> Self {
        Self {
            target: write.target,
            value: write.value,
            subject: write.subject,
            reason: write.reason,
            because: write.because,
            verbosity: write.verbosity,
            cacheable: write.cacheable,
            reconciles: write.reconciles,
        }
    }
}

/// A pod to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Feature that requests the eviction, as named in `koordinator.sh/eviction-policy`.
    pub feature: &'static str,
    /// Reason, for the event and the audit record.
    pub message: String,
}

/// Burst allowance of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BurstAllowance {
    /// CFS quota to set, in microseconds per period.
    pub quota: i64,
    /// Maximum quota, in percent of the container's limit.
    pub quota_percent: i64,
    /// Kernel burst buffer, in percent of the container's limit.
    pub buffer_percent: i64,
}

/// Decisions of one tick. Each strategy in turn adds its own, and reads the contributions of earlier ones.
#[derive(Debug, Default)]
pub struct Plan {
    /// Writes, with the strategy that requested each.
    writes: Vec<(&'static str, Write)>,
    /// Pods to evict.
    evictions: Vec<Eviction>,
    /// The running strategy and its claims.
    current: (&'static str, &'static [Claim]),
    /// True if files are read even when they were written recently.
    verify: bool,
    /// States that the strategies reported.
    strategy_states: Vec<(&'static str, State, String)>,
    /// Invalid settings of the cluster, by object.
    malformed: Vec<(String, Vec<Malformed>)>,
    /// Descriptions of writes that were not claimed.
    unclaimed: Vec<String>,
    /// Kernel errors of each enabled strategy.
    pub rounds: Vec<(&'static str, Result<(), CollectError>)>,
    /// True if batch pods must have no quotas of their own, because the class is limited by one.
    pub batch_quotas_lifted: bool,
    /// Current rules of hooks, for other users of hooks.
    pub rules: Option<Arc<Rules>>,
    /// Machine-wide switches that hooks need, in the order in which SystemConfig writes them.
    pub switches: Vec<(Sysctl, bool)>,
    /// Lever targets of the pressure guard, for the strategies that apply them.
    pub guard: LeverTargets,
    /// Actions of the pressure guard, for the audit log and the node's events.
    pub guard_actions: Vec<GuardAction>,
    /// Status of the pressure guard when it changed: `None` without a change, `Some(None)` while the guard is
    /// inactive.
    pub guard_status: Option<Option<health::Guard>>,
    /// Burst allowances, by container number.
    pub bursts: FxHashMap<u64, BurstAllowance>,
}

impl Plan {
    /// Begins the run of `strategy`.
    pub(super) fn begin_strategy(&mut self, strategy: &'static str, claims: &'static [Claim]) {
        self.current = (strategy, claims);
        self.verify = false;
    }

    /// Sets whether the following writes of this strategy read files that were written recently.
    pub fn verify(&mut self, verify: bool) {
        self.verify = verify;
    }

    /// Adds a write. A write that the strategy did not claim is rejected, because another strategy may own
    /// the file.
    pub fn write(&mut self, mut write: Write) {
        let (strategy, claims) = self.current;
        let claimed = claims
            .iter()
            .any(|claim| claim.covers(write.target.kind(), write.level, write.class));
        if !claimed {
            let claim = Claim {
                file: write.target.kind(),
                level: write.level,
                classes: Classes::only(&[write.class]),
            };
            self.unclaimed
                .push(format!("{strategy} did not claim {claim}"));
            return;
        }
        if write.reason.is_empty() {
            write.reason = strategy;
        }
        write.cacheable &= !self.verify;
        self.writes.push((strategy, write));
    }

    /// Adds a pod to evict, unless it was added before.
    pub fn evict(&mut self, eviction: Eviction) {
        if self.evictions.iter().all(|other| other.uid != eviction.uid) {
            self.evictions.push(eviction);
        }
    }

    /// Returns the writes, in the order in which they were added, and the evictions.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Intent>, Vec<Eviction>) {
        let intents = self.writes.into_iter().map(|(_, write)| write.into());
        (intents.collect(), self.evictions)
    }

    /// Reports the state of the running strategy for the status page: its current means of enforcement, or
    /// why it does nothing. The state holds until the next report.
    pub fn report_state(&mut self, state: State, text: impl Into<String>) {
        self.strategy_states
            .push((self.current.0, state, text.into()));
    }

    /// Returns the states that strategies reported in this tick.
    pub fn take_strategy_states(&mut self) -> Vec<(&'static str, State, String)> {
        std::mem::take(&mut self.strategy_states)
    }

    /// Reports which settings of an object cannot be used on this node, and replaces its previous report.
    /// `object` is a name of its own, such as `blkio beClass`.
    pub fn report_malformed(&mut self, object: impl Into<String>, malformed: Vec<Malformed>) {
        self.malformed.push((object.into(), malformed));
    }

    /// Returns the invalid settings that were reported in this tick.
    pub fn take_malformed(&mut self) -> Vec<(String, Vec<Malformed>)> {
        std::mem::take(&mut self.malformed)
    }

    /// Returns the rejected writes. Each is a bug.
    #[must_use]
    pub fn unclaimed(&self) -> &[String] {
        &self.unclaimed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::TargetKind;

    #[test]
    fn unclaimed_write_is_rejected() {
        const CLAIMS: &[Claim] = &[Claim {
            file: TargetKind::Cgroup(Resource::CpuShares),
            level: Level::Qos,
            classes: Classes::BE,
        }];
        let mut plan = Plan::default();
        plan.begin_strategy("S", CLAIMS);
        let group = CgroupPath::new("kubepods/besteffort").unwrap();
        let write = |class| Write::class(&group, class, "n");
        plan.write(write(QosClass::Be).set(Resource::CpuShares, 2));
        plan.write(write(QosClass::Ls).set(Resource::CpuShares, 2));
        plan.write(write(QosClass::Be).set(Resource::CfsQuota, -1));
        assert_eq!(plan.writes.len(), 1);
        assert_eq!(
            plan.writes[0].1.reason, "S",
            "the reason is the strategy where it gives none"
        );
        assert_eq!(
            plan.unclaimed(),
            [
                "S did not claim cpu.shares at level Qos of LS",
                "S did not claim cpu.cfs_quota_us at level Qos of BE"
            ]
        );
    }
}
