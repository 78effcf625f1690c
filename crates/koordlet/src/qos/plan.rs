//! What a tick decides: writes, evictions, and what strategies tell the ones after them.

use super::guard::{LeverTargets, Note};
use crate::claims::{Claim, Classes, Level};
use crate::collect::errors::CollectError;
use crate::executor::{Intent, Subject};
use crate::health::{self, State};
use crate::hooks::Rules;
use crate::states::{ContainerInfo, Malformed, PodInfo};
use koord_api::qos::QosClass;
use koord_host::target::Sysctl;
use koord_host::{CgroupPath, Resource, Target};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A value that a strategy wants in the kernel.
#[derive(Debug, Clone)]
pub struct Write {
    /// What the target belongs to.
    pub level: Level,
    /// The class of the pod it is for.
    pub class: QosClass,
    /// Where.
    pub target: Target,
    /// The value, in v1 units.
    pub value: String,
    /// Whom the audit line names.
    pub subject: Subject,
    /// Why, as one word.
    pub reason: &'static str,
    /// Why, in numbers.
    pub because: String,
    /// Verbosity of the audit line.
    pub verbosity: u8,
    /// True if a value that was written lately need not be looked at.
    pub cacheable: bool,
    /// Of a reconcile of hooks' values: its level, as the metric of these names it.
    pub reconciles: Option<&'static str>,
}

impl Write {
    /// To the group of a class of the node `node`.
    #[must_use]
    pub fn class(group: &CgroupPath, class: QosClass, node: &str) -> Self {
        Self::at(Level::Qos, group, class).about(node)
    }

    /// To some group of a class that no list of pods names.
    #[must_use]
    pub fn at(level: Level, group: &CgroupPath, class: QosClass) -> Self {
        Self::to(level, Target::cgroup(group, Resource::CpuShares), class)
    }

    /// To anything.
    #[must_use]
    pub fn to(level: Level, target: Target, class: QosClass) -> Self {
        Self {
            level,
            class,
            target,
            value: String::new(),
            subject: Subject::default(),
            reason: "",
            because: String::new(),
            verbosity: 3,
            cacheable: true,
            reconciles: None,
        }
    }

    /// To a pod's own group.
    #[must_use]
    pub fn pod(pod: &PodInfo) -> Self {
        let mut write = Self::at(Level::Pod, &pod.cgroup, pod.qos);
        write.subject = Subject::Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
        };
        write
    }

    /// To a container's group; `None` while it has none.
    #[must_use]
    pub fn container(pod: &PodInfo, container: &ContainerInfo) -> Option<Self> {
        let mut write = Self::at(Level::Container, container.cgroup.as_ref()?, pod.qos);
        write.subject = Subject::Container {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            name: container.name.clone(),
        };
        Some(write)
    }

    fn about(mut self, node: &str) -> Self {
        self.subject = Subject::Node {
            name: node.to_owned(),
        };
        self
    }

    /// Counts as a reconcile of hooks' values at `level`: `kubeqos`, `pod`, `sandbox` or
    /// `container`.
    #[must_use]
    pub fn reconciles(mut self, level: &'static str) -> Self {
        self.reconciles = Some(level);
        self
    }

    /// This value in this file of the group.
    #[must_use]
    pub fn set(mut self, file: Resource, value: impl ToString) -> Self {
        if let Target::Cgroup { resource, .. } | Target::CgroupLine { resource, .. } =
            &mut self.target
        {
            *resource = file;
        }
        self.value(value)
    }

    /// This value.
    #[must_use]
    pub fn value(mut self, value: impl ToString) -> Self {
        self.value = value.to_string();
        self
    }

    /// Why, in numbers.
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
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The feature that asks, as `koordinator.sh/eviction-policy` names it.
    pub feature: &'static str,
    /// Why, for the event and the audit line.
    pub message: String,
}

/// How far a container may burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BurstAllowance {
    /// The quota it shall have, in microseconds per period.
    pub quota: i64,
    /// The highest it may have, in percent of its limit.
    pub quota_percent: i64,
    /// The kernel's burst buffer, in percent of its limit.
    pub buffer_percent: i64,
}

/// The decisions of one tick. Each strategy in turn adds its own, and sees what those before it
/// left for it.
#[derive(Debug, Default)]
pub struct Plan {
    /// Writes by the strategy that wants them.
    writes: Vec<(&'static str, Write)>,
    /// Pods to evict.
    evictions: Vec<Eviction>,
    /// Who writes now, and what it may.
    current: (&'static str, &'static [Claim]),
    /// True if the files of this turn are looked at although they were written lately.
    verify: bool,
    /// What the strategies say of themselves.
    strategy_states: Vec<(&'static str, State, String)>,
    /// What cannot be used of what the cluster asks, by the object that it is filed under.
    malformed: Vec<(String, Vec<Malformed>)>,
    /// Writes that were not claimed.
    unclaimed: Vec<String>,
    /// What each strategy that runs could not read of the kernel.
    pub rounds: Vec<(&'static str, Result<(), CollectError>)>,
    /// Batch pods have no quotas of their own: the class is limited by one.
    pub batch_quotas_lifted: bool,
    /// The rules of hooks in force, for whoever else asks hooks.
    pub rules: Option<Arc<Rules>>,
    /// Switches of the machine that hooks need, in this order; SystemConfig writes them.
    pub switches: Vec<(Sysctl, bool)>,
    /// What the pressure guard wants of those who write.
    pub guard: LeverTargets,
    /// What the pressure guard did, for the audit log and the node's events.
    pub notes: Vec<Note>,
    /// What the pressure guard shows of itself, when there is something new; nothing while it rests.
    pub guard_status: Option<Option<health::Guard>>,
    /// By container: how far it may burst.
    pub bursts: FxHashMap<u64, BurstAllowance>,
}

impl Plan {
    /// It is the turn of `strategy`.
    pub(super) fn begin_strategy(&mut self, strategy: &'static str, claims: &'static [Claim]) {
        self.current = (strategy, claims);
        self.verify = false;
    }

    /// From now on in this turn: whether files are looked at although they were written lately.
    pub fn verify(&mut self, verify: bool) {
        self.verify = verify;
    }

    /// Wants a value in a file. What the strategy did not claim is refused: the file may be
    /// another's.
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

    /// Wants a pod to go.
    pub fn evict(&mut self, eviction: Eviction) {
        if self.evictions.iter().all(|other| other.uid != eviction.uid) {
            self.evictions.push(eviction);
        }
    }

    /// What is to be done: writes, in the order in which they were wanted, and evictions.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Intent>, Vec<Eviction>) {
        let intents = self.writes.into_iter().map(|(_, write)| write.into());
        (intents.collect(), self.evictions)
    }

    /// Says for the status page what this strategy does now, and by which means, or why it does
    /// nothing. It stands until the strategy says another thing.
    pub fn report_state(&mut self, state: State, text: impl Into<String>) {
        self.strategy_states
            .push((self.current.0, state, text.into()));
    }

    /// What the strategies said of themselves in this tick.
    pub fn take_strategy_states(&mut self) -> Vec<(&'static str, State, String)> {
        std::mem::take(&mut self.strategy_states)
    }

    /// Says what of an object's settings cannot be used on this node; nothing takes back what was
    /// said before. The object has a name of its own, such as `blkio beClass`.
    pub fn report_malformed(&mut self, object: impl Into<String>, malformed: Vec<Malformed>) {
        self.malformed.push((object.into(), malformed));
    }

    /// What was said of settings in this tick.
    pub fn take_malformed(&mut self) -> Vec<(String, Vec<Malformed>)> {
        std::mem::take(&mut self.malformed)
    }

    /// What was refused: faults of the program, each worth a line.
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
