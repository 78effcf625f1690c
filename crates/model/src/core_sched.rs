//! Core scheduling: which pods share a cookie, so that only tasks of one group run on the two
//! hyper-threads of a core at a time.
//!
//! [`CoreSched`] says which group a pod belongs to, [`Cookies`] how the kernel's cookies get there.
//! Source: Koordinator `pkg/koordlet/runtimehooks/hooks/coresched`.

mod cookies;

pub use cookies::{Action, Cookies, Members, Task};

use koord_api::qos::{KubeQos, QosClass};
use koord_api::slo::{CPUQOSPolicy, ResourceQOS, ResourceQOSStrategy};

/// What the names of groups end in that also keep off the cores of other classes.
const EXPELLER_SUFFIX: &str = "-expeller";

/// The settings of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Class {
    enabled: bool,
    expeller: bool,
    idle: bool,
}

/// The settings of the classes; all off where the CPU policy is not core scheduling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CoreSched {
    lsr: Class,
    ls: Class,
    be: Class,
}

/// What becomes of the cookies of a pod's tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing: they may have any.
    Untouched,
    /// None that we gave.
    Neutral,
    /// That of a group; the empty name is a group like others.
    Group(String),
}

/// What a pod's label `koordinator.sh/core-sched-policy` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodPolicy {
    /// The cookie of its group: no label, or any other value.
    #[default]
    Group,
    /// No cookie: `none`.
    None,
    /// A cookie of its own: `exclusive`.
    Exclusive,
}

/// What counts of a pod.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The label.
    pub qos: QosClass,
    /// The kubelet's class.
    pub kube: KubeQos,
    /// The label `koordinator.sh/core-sched-group-id`.
    pub group: &'a str,
    /// The label `koordinator.sh/core-sched-policy`.
    pub policy: PodPolicy,
    /// The pod's UID.
    pub uid: &'a str,
}

impl CoreSched {
    /// Reads the effective strategy of a node.
    #[must_use]
    pub fn of(strategy: &ResourceQOSStrategy) -> Self {
        let policy = strategy
            .policies
            .as_ref()
            .and_then(|p| p.cpu_policy.as_ref());
        if policy != Some(&CPUQOSPolicy::CoreSched) {
            return Self::default();
        }
        let class = |class: &Option<ResourceQOS>| {
            let cfg = class.as_ref().and_then(|class| class.cpu_qos.as_ref());
            cfg.map_or_else(Class::default, |cfg| Class {
                enabled: cfg.enable == Some(true),
                expeller: cfg.core_expeller == Some(true),
                idle: cfg.sched_idle == Some(1),
            })
        };
        Self {
            lsr: class(&strategy.lsr_class),
            ls: class(&strategy.ls_class),
            be: class(&strategy.be_class),
        }
    }

    /// Whether any class is enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.lsr.enabled || self.ls.enabled || self.be.enabled
    }

    /// Whether pods with the label's class `qos` and the kubelet's class `kube` are to be `cpu.idle`.
    #[must_use]
    pub fn is_idle(&self, qos: QosClass, kube: KubeQos) -> bool {
        qos != QosClass::System && self.class(qos, kube).idle
    }

    /// Where a pod belongs.
    #[must_use]
    pub fn wanted(&self, ask: Ask<'_>) -> Wanted {
        if ask.qos == QosClass::System {
            return Wanted::Untouched;
        }
        let class = self.class(ask.qos, ask.kube);
        if !class.enabled || ask.policy == PodPolicy::None {
            return Wanted::Neutral;
        }
        let name = match ask.policy {
            PodPolicy::Exclusive => ask.uid,
            PodPolicy::Group | PodPolicy::None => ask.group,
        };
        let suffix = if class.expeller { EXPELLER_SUFFIX } else { "" };
        Wanted::Group(format!("{name}{suffix}"))
    }

    fn class(&self, qos: QosClass, kube: KubeQos) -> Class {
        match (qos, kube) {
            (QosClass::Lse | QosClass::Lsr, _) => self.lsr,
            (QosClass::Ls, _) => self.ls,
            (QosClass::Be, _) => self.be,
            (QosClass::System | QosClass::None, KubeQos::Guaranteed) if self.lsr.enabled => {
                self.lsr
            }
            (QosClass::System | QosClass::None, KubeQos::Guaranteed | KubeQos::Burstable) => {
                self.ls
            }
            (QosClass::System | QosClass::None, KubeQos::BestEffort) => self.be,
        }
    }
}

#[cfg(test)]
mod tests;
