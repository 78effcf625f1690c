//! Group identity (`cpu.bvt_warp_ns`, from −1, lowest priority, to 2, highest) of QoS class cgroups, pods and
//! host applications.
//!
//! Source: Koordinator `pkg/koordlet/runtimehooks/hooks/groupidentity`.

use koord_api::qos::{KubeQos, QosClass};
use koord_api::slo::{CPUQOSCfg, CPUQOSPolicy, ResourceQOS, ResourceQOSStrategy};

/// The neutral value.
const NONE: i64 = 0;

/// Values of the classes; `None` for a class that is not enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupIdentity {
    lsr: Option<i64>,
    ls: Option<i64>,
    be: Option<i64>,
}

impl GroupIdentity {
    /// Creates the values from the effective strategy of a node. Every class is disabled if the CPU policy is
    /// another one.
    #[must_use]
    pub fn from_strategy(strategy: &ResourceQOSStrategy) -> Self {
        let policy = strategy
            .policies
            .as_ref()
            .and_then(|p| p.cpu_policy.as_ref());
        let applies =
            policy.is_none_or(|p| *p == CPUQOSPolicy::GroupIdentity || p.as_str().is_empty());
        let value = |class: &Option<ResourceQOS>| {
            let cfg = class.as_ref()?.cpu_qos.as_ref()?;
            (applies && cfg.enable == Some(true)).then(|| cfg.group_identity.unwrap_or(NONE))
        };
        Self {
            lsr: value(&strategy.lsr_class),
            ls: value(&strategy.ls_class),
            be: value(&strategy.be_class),
        }
    }

    /// Returns true if any class is enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.lsr.or(self.ls).or(self.be).is_some()
    }

    /// Returns the value of the cgroup of a Kubernetes QoS class. That of the Guaranteed class contains all
    /// pods and stays neutral.
    #[must_use]
    pub fn class_dir(&self, class: KubeQos) -> i64 {
        match class {
            KubeQos::Guaranteed => NONE,
            KubeQos::Burstable => self.ls.unwrap_or(NONE),
            KubeQos::BestEffort => self.be.unwrap_or(NONE),
        }
    }

    /// Returns the value of a pod with the label's class `qos` and the Kubernetes class `kube`. `own` is the
    /// pod's annotation; it only affects LS pods, and makes them neutral without `enable: true`.
    #[must_use]
    pub fn pod(&self, qos: QosClass, kube: KubeQos, own: Option<&CPUQOSCfg>) -> i64 {
        let of_class = match qos {
            QosClass::Lse | QosClass::Lsr => self.lsr,
            QosClass::Ls => self.ls,
            QosClass::Be => self.be,
            QosClass::System | QosClass::None => match kube {
                KubeQos::Guaranteed => self.lsr.or(self.ls),
                KubeQos::Burstable => self.ls,
                KubeQos::BestEffort => self.be,
            },
        };
        let value = of_class.unwrap_or(NONE);
        match own.filter(|_| qos == QosClass::Ls) {
            None => value,
            Some(own) if own.enable == Some(true) => own.group_identity.unwrap_or(value),
            Some(_) => NONE,
        }
    }

    /// Returns the group identity (`cpu.bvt_warp_ns`) of a host application.
    #[must_use]
    pub fn host_app(&self, qos: QosClass) -> i64 {
        match qos {
            QosClass::Lse | QosClass::Lsr => self.lsr,
            QosClass::Ls => self.ls,
            QosClass::Be => self.be,
            QosClass::System | QosClass::None => None,
        }
        .unwrap_or(NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(policy: Option<&str>, classes: [(bool, i64); 3]) -> GroupIdentity {
        let class = |(enable, identity): (bool, i64)| json!({"cpuQOS": {"enable": enable, "groupIdentity": identity}});
        let [lsr, ls, be] = classes.map(class);
        let mut strategy = json!({"lsrClass": lsr, "lsClass": ls, "beClass": be});
        if let Some(policy) = policy {
            strategy["policies"] = json!({"cpuPolicy": policy});
        }
        GroupIdentity::from_strategy(&serde_json::from_value(strategy).unwrap())
    }

    /// LSE, LSR, LS, BE labels; the three directories; unlabelled pods of the three kubelet classes.
    type IdentityRow = ([i64; 4], [i64; 3], [i64; 3]);

    fn row(rule: &GroupIdentity) -> IdentityRow {
        use KubeQos::{BestEffort, Burstable, Guaranteed};
        let pod = |qos, kube| rule.pod(qos, kube, None);
        (
            [QosClass::Lse, QosClass::Lsr, QosClass::Ls, QosClass::Be]
                .map(|qos| pod(qos, Guaranteed)),
            [Guaranteed, Burstable, BestEffort].map(|kube| rule.class_dir(kube)),
            [Guaranteed, Burstable, BestEffort].map(|kube| pod(QosClass::None, kube)),
        )
    }

    #[test]
    fn rule_table() {
        let on = [(true, 2), (true, 2), (true, -1)];
        let off = [(false, 0), (false, 0), (false, 0)];
        let all: IdentityRow = ([2, 2, 2, -1], [0, 2, -1], [2, 2, -1]);
        let nothing: IdentityRow = ([0; 4], [0; 3], [0; 3]);
        let be_only: IdentityRow = ([0, 0, 0, -1], [0, 0, -1], [0, 0, -1]);
        for (policy, classes, want, enabled) in [
            (Some("groupIdentity"), on, all, true),
            (None, on, all, true),
            (Some(""), on, all, true),
            (
                Some("groupIdentity"),
                [(false, 0), (true, 2), (true, -1)],
                ([0, 0, 2, -1], [0, 2, -1], [2, 2, -1]),
                true,
            ),
            (
                Some("groupIdentity"),
                [(false, 0), (false, 0), (true, -1)],
                be_only,
                true,
            ),
            // A disabled class's own figures do not count.
            (
                Some("groupIdentity"),
                [(false, 2), (false, 2), (true, -1)],
                be_only,
                true,
            ),
            (Some("groupIdentity"), off, nothing, false),
            (Some("coreSched"), on, nothing, false),
        ] {
            let rule = rule(policy, classes);
            assert_eq!(row(&rule), want, "{policy:?} {classes:?}");
            assert_eq!(rule.is_enabled(), enabled, "{policy:?} {classes:?}");
        }
    }

    #[test]
    fn annotation_table() {
        let rule = rule(None, [(true, 2), (true, 2), (true, -1)]);
        for (qos, own, want) in [
            (
                QosClass::Ls,
                json!({"enable": true, "groupIdentity": -1}),
                -1,
            ),
            (QosClass::Ls, json!({"enable": true}), 2),
            (QosClass::Ls, json!({"enable": false}), 0),
            (QosClass::Ls, json!({"groupIdentity": 1}), 0),
            (
                QosClass::Be,
                json!({"enable": true, "groupIdentity": 2}),
                -1,
            ),
            (QosClass::Lsr, json!({"enable": false}), 2),
            (QosClass::None, json!({"enable": false}), 2),
        ] {
            let cfg: CPUQOSCfg = serde_json::from_value(own.clone()).unwrap();
            let got = rule.pod(qos, KubeQos::Guaranteed, Some(&cfg));
            assert_eq!(got, want, "{qos} {own}");
        }
    }

    #[test]
    fn host_applications_and_system_pods() {
        let rule = rule(None, [(true, 1), (true, 2), (true, -1)]);
        assert_eq!(rule.host_app(QosClass::Ls), 2);
        assert_eq!(rule.host_app(QosClass::Be), -1);
        assert_eq!(rule.host_app(QosClass::None), 0);
        assert_eq!(rule.host_app(QosClass::System), 0);
        assert_eq!(rule.pod(QosClass::System, KubeQos::Burstable, None), 2);
    }
}
