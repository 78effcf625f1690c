//! Restricts which users may bind pods to nodes: while one scheduler replaces another, the old one must not
//! place pods that the new one is responsible for.
//!
//! Source: Koordinator `pkg/webhook/pod/validating/binding_admission.go`. Upstream allows users whose name
//! contains a listed text; as an access rule, koord requires the name to be equal.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_app::flags;
use std::collections::BTreeSet;

/// Policy of the flags `--binding-admission-*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingPolicy {
    /// Users that may bind pods; if empty, the check is off.
    pub users: BTreeSet<String>,
    /// Namespaces in which bindings are checked.
    pub namespaces: Namespaces,
    /// Namespaces in which bindings are never checked.
    pub exempt_namespaces: BTreeSet<String>,
    /// Label keys of pods that any user may bind.
    pub bypass_labels: BTreeSet<String>,
    /// Annotation keys of pods that any user may bind.
    pub bypass_annotations: BTreeSet<String>,
    /// Counts bindings that would be denied, and allows them.
    pub dry_run: bool,
}

/// A set of namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    /// Every namespace.
    All,
    /// The listed namespaces, possibly none.
    Only(BTreeSet<String>),
}

impl Default for BindingPolicy {
    fn default() -> Self {
        Self {
            users: BTreeSet::new(),
            namespaces: Namespaces::Only(BTreeSet::new()),
            exempt_namespaces: set("kube-system"),
            bypass_labels: set(koord_api::labels::BINDING_ADMISSION_BYPASS),
            bypass_annotations: BTreeSet::new(),
            dry_run: false,
        }
    }
}

/// Returns the entries of a comma-separated list.
pub(crate) fn set(text: &str) -> BTreeSet<String> {
    flags::list(text).into_iter().collect()
}

/// Returns the users of a comma-separated list. A bare name stands for the user of that name and for the
/// service account in Koordinator's namespace: upstream treats an entry as part of a name, and its manifests
/// list `koord-scheduler`.
pub(crate) fn users(text: &str) -> BTreeSet<String> {
    let mut users = set(text);
    let bare = users.iter().filter(|name| !name.contains(':'));
    let accounts: Vec<_> = bare
        .map(|name| format!("system:serviceaccount:koordinator-system:{name}"))
        .collect();
    users.extend(accounts);
    users
}

impl Namespaces {
    /// Parses a flag: `*`, or a comma-separated list.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text == "*" {
            Self::All
        } else {
            Self::Only(set(text))
        }
    }
}

/// Decision about a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The check does not apply to this request, or is off.
    Unchecked,
    AllowedUser,
    ExemptNamespace,
    OutOfScope,
    BypassLabel,
    BypassAnnotation,
    DryRun,
    Denied,
}

impl Decision {
    /// Returns upstream's value of the metric label `decision`; `None` for requests that are not counted.
    pub(crate) fn metric(self) -> Option<&'static str> {
        Some(match self {
            Self::Unchecked => return None,
            Self::AllowedUser => "allowed_username",
            Self::ExemptNamespace => "excluded_ns",
            Self::OutOfScope => "out_of_scope",
            Self::BypassLabel => "bypass_label",
            Self::BypassAnnotation => "bypass_annotation",
            Self::DryRun => "dry_run",
            Self::Denied => "denied",
        })
    }
}

impl BindingPolicy {
    /// Decides without the pod if possible; `None` requires [`BindingPolicy::decide_by_metadata`].
    pub(crate) fn decide(&self, user: &str, namespace: &str) -> Option<Decision> {
        if self.users.is_empty() {
            return Some(Decision::Unchecked);
        }
        if self.users.contains(user) {
            return Some(Decision::AllowedUser);
        }
        if self.exempt_namespaces.contains(namespace) {
            return Some(Decision::ExemptNamespace);
        }
        match &self.namespaces {
            Namespaces::Only(none) if none.is_empty() => Some(Decision::Unchecked),
            Namespaces::Only(some) if !some.contains(namespace) => Some(Decision::OutOfScope),
            _ => None,
        }
    }

    /// Returns the decision about a binding by a user who is not in [`Self::users`], from the pod's metadata.
    /// Without metadata the binding is allowed: this check must not stop a cluster.
    pub(crate) fn decide_by_metadata(&self, metadata: Option<&ObjectMeta>) -> Decision {
        let Some(metadata) = metadata else {
            return Decision::Unchecked;
        };
        let contains_any =
            |keys: &BTreeSet<String>, map: &Option<std::collections::BTreeMap<_, _>>| {
                map.iter()
                    .flat_map(|map| map.keys())
                    .any(|key: &String| keys.contains(key))
            };
        if contains_any(&self.bypass_labels, &metadata.labels) {
            Decision::BypassLabel
        } else if contains_any(&self.bypass_annotations, &metadata.annotations) {
            Decision::BypassAnnotation
        } else if self.dry_run {
            Decision::DryRun
        } else {
            Decision::Denied
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Upstream's `TestBindingAdmissionHandler_Handle`, without the rows that only concern the handler (other
    /// requests, the gate): users, scope, exempt, user, namespace, decision.
    #[test]
    fn users_and_namespaces() {
        for (users, scope, exempt, user, namespace, want) in [
            (
                "",
                "*",
                "",
                "kube-scheduler",
                "default",
                Some(Decision::Unchecked),
            ),
            (
                "koord",
                "*",
                "",
                "koord",
                "default",
                Some(Decision::AllowedUser),
            ),
            (
                "a, koord",
                "*",
                "",
                "koord",
                "default",
                Some(Decision::AllowedUser),
            ),
            // Upstream allows these: the listed text is part of the name.
            ("koord", "*", "", "system:koord", "default", None),
            ("koord", "*", "", "koord-evil", "default", None),
            ("koord", "*", "", "kube-scheduler", "default", None),
            (
                "koord",
                "*",
                "kube-system",
                "kube-scheduler",
                "kube-system",
                Some(Decision::ExemptNamespace),
            ),
            (
                "koord",
                "test",
                "",
                "kube-scheduler",
                "production",
                Some(Decision::OutOfScope),
            ),
            ("koord", "test", "", "kube-scheduler", "test", None),
            (
                "koord",
                "",
                "",
                "kube-scheduler",
                "default",
                Some(Decision::Unchecked),
            ),
        ] {
            let policy = BindingPolicy {
                users: set(users),
                namespaces: Namespaces::parse(scope),
                exempt_namespaces: set(exempt),
                ..BindingPolicy::default()
            };
            assert_eq!(
                policy.decide(user, namespace),
                want,
                "{users} {scope} {user} {namespace}"
            );
        }
    }

    #[test]
    fn bare_name_is_the_service_accounts_too() {
        let policy = BindingPolicy {
            users: users("koord-scheduler,system:kube-scheduler"),
            namespaces: Namespaces::All,
            ..BindingPolicy::default()
        };
        for (user, may) in [
            ("koord-scheduler", true),
            (
                "system:serviceaccount:koordinator-system:koord-scheduler",
                true,
            ),
            ("system:kube-scheduler", true),
            // A tenant's own account with that name.
            ("system:serviceaccount:default:koord-scheduler", false),
            (
                "system:serviceaccount:koordinator-system:system:kube-scheduler",
                false,
            ),
        ] {
            let decision = policy.decide(user, "default");
            assert_eq!(decision == Some(Decision::AllowedUser), may, "{user}");
        }
    }

    /// Upstream's `TestBindingAdmissionHandler_BypassLabelAndAnnotation` and `_FailOpen`.
    #[test]
    fn bypass_labels_and_annotations() {
        let default = "koordinator.sh/binding-admission-bypass";
        let label = |key: &str| json!({"labels": {key: "anything"}});
        let annotation = |key: &str| json!({"annotations": {key: "vk"}});
        for (labels, annotations, metadata, want) in [
            (default, "", label(default), Decision::BypassLabel),
            (default, "", label("app"), Decision::Denied),
            (
                "example.io/own",
                "",
                label("example.io/own"),
                Decision::BypassLabel,
            ),
            (
                "a,example.io/own",
                "",
                label("example.io/own"),
                Decision::BypassLabel,
            ),
            ("a,example.io/own", "", label("app"), Decision::Denied),
            (
                "",
                "example.io/own",
                annotation("example.io/own"),
                Decision::BypassAnnotation,
            ),
            ("", "example.io/own", annotation("other"), Decision::Denied),
            (
                "a",
                "example.io/own",
                annotation("example.io/own"),
                Decision::BypassAnnotation,
            ),
            ("a", "a", json!({}), Decision::Denied),
            ("a", "a", Value::Null, Decision::Unchecked),
        ] {
            let mut policy = BindingPolicy {
                bypass_labels: set(labels),
                bypass_annotations: set(annotations),
                ..BindingPolicy::default()
            };
            let metadata: Option<ObjectMeta> = serde_json::from_value(metadata).unwrap();
            assert_eq!(
                policy.decide_by_metadata(metadata.as_ref()),
                want,
                "{labels} {annotations} {metadata:?}"
            );
            policy.dry_run = true;
            let dry = if want == Decision::Denied {
                Decision::DryRun
            } else {
                want
            };
            assert_eq!(policy.decide_by_metadata(metadata.as_ref()), dry);
        }
    }
}
