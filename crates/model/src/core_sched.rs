//! Core scheduling: groups of pods that share a cookie, so that only tasks of one group run on the two
//! hyper-threads of a core at a time.
//!
//! [`CoreSched`] assigns pods to groups, [`Cookies`] plans how their tasks get the kernel's cookies. Source:
//! Koordinator `pkg/koordlet/runtimehooks/hooks/coresched`.

mod cookies;

pub use cookies::{Action, CookieMembers, Cookies, Task};

use koord_api::qos::{KubeQos, QosClass};
use koord_api::slo::{CPUQOSPolicy, ResourceQOS, ResourceQOSStrategy};

/// Suffix of the names of groups that also keep tasks of other classes off their cores.
const EXPELLER_SUFFIX: &str = "-expeller";

/// Settings of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ClassSettings {
    enabled: bool,
    expeller: bool,
    idle: bool,
}

/// Settings of all classes; all off unless the CPU policy is core scheduling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CoreSched {
    lsr: ClassSettings,
    ls: ClassSettings,
    be: ClassSettings,
}

/// Desired cookie of a pod's tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CookieTarget {
    /// Tasks may have any cookie.
    Untouched,
    /// Tasks must not have a cookie that koordlet created.
    Neutral,
    /// Tasks have the cookie of the named group; the empty name is a valid group.
    Group(String),
}

/// Policy of a pod's label `koordinator.sh/core-sched-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodPolicy {
    /// The cookie of the pod's group: no label, or any other value.
    #[default]
    Group,
    /// No cookie: `none`.
    None,
    /// A separate cookie: `exclusive`.
    Exclusive,
}

/// Properties of a pod that determine its group.
#[derive(Debug, Clone, Copy)]
pub struct CoreSchedPod<'a> {
    /// QoS class of the pod's label.
    pub qos: QosClass,
    /// Kubernetes QoS class.
    pub kube: KubeQos,
    /// The label `koordinator.sh/core-sched-group-id`.
    pub group: &'a str,
    /// The label `koordinator.sh/core-sched-policy`.
    pub policy: PodPolicy,
    /// The pod's UID.
    pub uid: &'a str,
}

impl CoreSched {
    /// Creates the settings from the effective strategy of a node.
    #[must_use]
    pub fn from_strategy(strategy: &ResourceQOSStrategy) -> Self {
        let policy = strategy
            .policies
            .as_ref()
            .and_then(|p| p.cpu_policy.as_ref());
        if policy != Some(&CPUQOSPolicy::CoreSched) {
            return Self::default();
        }
        let class = |class: &Option<ResourceQOS>| {
            let cfg = class.as_ref().and_then(|class| class.cpu_qos.as_ref());
            cfg.map_or_else(ClassSettings::default, |cfg| ClassSettings {
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

    /// Returns true if any class is enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.lsr.enabled || self.ls.enabled || self.be.enabled
    }

    /// Returns true if pods with the label's class `qos` and the Kubernetes class `kube` are to be
    /// `cpu.idle`.
    #[must_use]
    pub fn is_idle(&self, qos: QosClass, kube: KubeQos) -> bool {
        qos != QosClass::System && self.class(qos, kube).idle
    }

    /// Returns the desired cookie of a pod.
    #[must_use]
    pub fn desired_cookie(&self, ask: CoreSchedPod<'_>) -> CookieTarget {
        if ask.qos == QosClass::System {
            return CookieTarget::Untouched;
        }
        let class = self.class(ask.qos, ask.kube);
        if !class.enabled || ask.policy == PodPolicy::None {
            return CookieTarget::Neutral;
        }
        let name = match ask.policy {
            PodPolicy::Exclusive => ask.uid,
            PodPolicy::Group | PodPolicy::None => ask.group,
        };
        let suffix = if class.expeller { EXPELLER_SUFFIX } else { "" };
        CookieTarget::Group(format!("{name}{suffix}"))
    }

    fn class(&self, qos: QosClass, kube: KubeQos) -> ClassSettings {
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
