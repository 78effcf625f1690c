//! Annotations that only schedulers and administrators may write.
//!
//! koordlet and its runtime hooks run as root and obey annotations of pods. The ones listed here decide about the
//! machine or about other pods, not only about the pod that carries them, so the right to write a pod must not be
//! enough to set, change or remove them. Upstream accepts them from every author.
//!
//! A new pod is checked before the profiles of the cluster are applied: what a ClusterColocationProfile adds was
//! written by an administrator. Pods that controllers create are checked like any other: the controller is not a
//! writer, so a workload's template cannot pass on what its author may not write.

use super::field;
use k8s_openapi::api::core::v1::Pod;
use koord_api::annotations;
use koord_kube::webhook::User;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Protected annotations by default, each with the effect that makes it one.
const PROTECTED: &[(&str, &str)] = &[
    (
        annotations::RESOURCE_STATUS,
        "koordlet pins the containers to these CPUs, as the scheduler allocated them",
    ),
    (
        annotations::DEVICE_ALLOCATED,
        "koordlet gives the containers these devices, as the scheduler allocated them",
    ),
    (
        annotations::RESERVATION_ALLOCATED,
        "the scheduler counts the pod against this reservation",
    ),
    (
        annotations::POD_OOM_SCORE_ADJ,
        "the kernel kills other processes of the node instead",
    ),
    (
        annotations::POD_OOM_SCORE_ADJ_SPEC,
        "the kernel kills other processes of the node instead",
    ),
    (
        annotations::POD_EVICTION_POLICY,
        "koordlet evicts other pods of the node instead",
    ),
    (
        annotations::POD_RESCTRL,
        "cache and memory bandwidth are taken from the whole node, and groups are few",
    ),
    (
        annotations::POD_CPU_QOS,
        "the pod leaves the CPU priority of its QoS class",
    ),
    (
        annotations::POD_EXTENDED_RESOURCE_SPEC,
        "koordlet sets the limits of batch and mid containers by it",
    ),
];

/// Default of `--protected-pod-annotations`: the keys of [`PROTECTED`].
pub(super) const KEYS: &str = "scheduling.koordinator.sh/resource-status,\
    scheduling.koordinator.sh/device-allocated,\
    scheduling.koordinator.sh/reservation-allocated,\
    koordinator.sh/oom-score-adj,\
    koordinator.sh/oom-score-adj-spec,\
    koordinator.sh/eviction-policy,\
    node.koordinator.sh/resctrl,\
    koordinator.sh/cpuQOS,\
    node.koordinator.sh/extended-resource-spec";

/// Default of `--protected-pod-annotations-users`.
pub(super) const USERS: &str = "system:kube-scheduler,\
    system:serviceaccount:koordinator-system:koord-scheduler,\
    system:serviceaccount:koordinator-system:koord-manager,\
    system:serviceaccount:koordinator-system:koord-descheduler,\
    system:serviceaccount:koordinator-system:koordlet";

/// Default of `--protected-pod-annotations-groups`: administrators, and kubelets for static pods.
pub(super) const GROUPS: &str = "system:masters,system:nodes";

/// Default of `--protected-pod-annotations-exclude-namespaces`: only administrators write there.
pub(super) const EXEMPT_NAMESPACES: &str = "kube-system,koordinator-system";

/// Which annotations are protected, and which users may write them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationPolicy {
    /// Keys of the protected annotations; empty as upstream, which accepts all of them.
    pub keys: BTreeSet<String>,
    /// Names of the users that may write them.
    pub users: BTreeSet<String>,
    /// Groups whose members may write them.
    pub groups: BTreeSet<String>,
    /// Namespaces where every author may write them.
    pub exempt_namespaces: BTreeSet<String>,
}

impl Default for AnnotationPolicy {
    fn default() -> Self {
        use super::binding::set;
        Self {
            keys: set(KEYS),
            users: set(USERS),
            groups: set(GROUPS),
            exempt_namespaces: set(EXEMPT_NAMESPACES),
        }
    }
}

type Annotations = BTreeMap<String, String>;

impl AnnotationPolicy {
    /// Returns true if `user` may write protected annotations in `namespace`.
    fn may_write(&self, user: &User, namespace: &str) -> bool {
        self.keys.is_empty()
            || self.exempt_namespaces.contains(namespace)
            || self.users.contains(&user.name)
            || user.groups.iter().any(|group| self.groups.contains(group))
    }

    /// Returns an error for each protected annotation that differs between `old` and `new`, unless `user` may write
    /// it. `is_computed` leaves out `extended-resource-spec`, which a webhook of the manager computes from the pod.
    pub(super) fn problems(
        &self,
        (user, namespace): (&User, &str),
        new: &Annotations,
        old: &Annotations,
        is_computed: bool,
    ) -> Vec<String> {
        if self.may_write(user, namespace) {
            return Vec::new();
        }
        let changed = self.keys.iter().filter(|key| {
            let is_computed = is_computed && *key == annotations::POD_EXTENDED_RESOURCE_SPEC;
            !is_computed && new.get(*key) != old.get(*key)
        });
        let problem = |key: &String| {
            let effect = PROTECTED.iter().find(|(name, _)| name == key);
            let effect = effect.map_or("the cluster protects it", |(_, effect)| effect);
            let reason = format!(
                "{effect}; user {:?} is none of those that --protected-pod-annotations-users and -groups list",
                user.name
            );
            field::forbidden(&format!("metadata.annotations[{key}]"), &reason)
        };
        changed.map(problem).collect()
    }
}

/// Returns the annotations of a pod.
pub(super) fn pod_annotations(pod: Option<&Pod>) -> Annotations {
    let annotations = pod.and_then(|pod| pod.metadata.annotations.clone());
    annotations.unwrap_or_default()
}

/// Returns the annotations of a JSON object; values that are not strings are omitted.
pub(super) fn object_annotations(object: Option<&Value>) -> Annotations {
    object
        .map(crate::webhook::json::annotations)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            uid: String::new(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            extra: BTreeMap::new(),
        }
    }

    fn annotation(key: &str, value: &str) -> Annotations {
        [(key.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn default_keys_are_those_with_a_reason() {
        let keys: BTreeSet<String> = PROTECTED.iter().map(|(key, _)| (*key).to_owned()).collect();
        assert_eq!(AnnotationPolicy::default().keys, keys);
    }

    #[test]
    fn tenants_may_not_set_change_or_remove_a_protected_key() {
        let policy = AnnotationPolicy::default();
        let none = Annotations::new();
        let tenant = user("jane", &["system:authenticated"]);
        for (key, _) in PROTECTED {
            let (one, other) = (annotation(key, "1"), annotation(key, "2"));
            for (new, old) in [(&one, &none), (&other, &one), (&none, &one)] {
                let problems = policy.problems((&tenant, "default"), new, old, false);
                assert_eq!(problems.len(), 1, "{key}");
                for part in [key, "Forbidden", "jane"] {
                    assert!(problems[0].contains(part), "{}", problems[0]);
                }
            }
            let findings = policy.problems((&tenant, "default"), &one, &one, false);
            assert_eq!(findings, [""; 0], "{key}");
        }
        // Settings of the pod itself that upstream documents for its users.
        for key in [
            annotations::POD_CPU_BURST,
            annotations::POD_MEMORY_QOS,
            annotations::RESOURCE_SPEC,
            annotations::EVICTION_COST,
        ] {
            let problems =
                policy.problems((&tenant, "default"), &annotation(key, "1"), &none, false);
            assert_eq!(problems, [""; 0], "{key}");
        }
    }

    #[test]
    fn writers_are_schedulers_kubelets_and_administrators() {
        let policy = AnnotationPolicy::default();
        let status = annotation(annotations::RESOURCE_STATUS, "{}");
        for (user, namespace, may) in [
            (
                user("kubernetes-admin", &["system:masters"]),
                "default",
                true,
            ),
            (user("system:kube-scheduler", &[]), "default", true),
            (user("system:node:n1", &["system:nodes"]), "default", true),
            (
                user(
                    "system:serviceaccount:koordinator-system:koord-scheduler",
                    &[],
                ),
                "default",
                true,
            ),
            // A tenant's own service account with the same name.
            (
                user("system:serviceaccount:default:koord-scheduler", &[]),
                "default",
                false,
            ),
            (
                user(
                    "system:serviceaccount:kube-system:replicaset-controller",
                    &[],
                ),
                "default",
                false,
            ),
            (
                user("system:kube-controller-manager", &[]),
                "default",
                false,
            ),
            (user("jane", &[]), "kube-system", true),
            (user("", &[]), "default", false),
        ] {
            let problems = policy.problems((&user, namespace), &status, &Annotations::new(), false);
            assert_eq!(problems.is_empty(), may, "{} {namespace}", user.name);
        }
    }

    #[test]
    fn empty_list_of_keys_accepts_as_upstream() {
        let policy = AnnotationPolicy {
            keys: BTreeSet::new(),
            ..AnnotationPolicy::default()
        };
        let status = annotation(annotations::RESOURCE_STATUS, "{}");
        let tenant = user("jane", &[]);
        let problems = policy.problems((&tenant, "default"), &status, &Annotations::new(), false);
        assert_eq!(problems, [""; 0]);
    }
}
