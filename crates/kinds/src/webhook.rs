//! Webhook configurations: matching of rules and selectors.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::meta::{self, str_at};
use super::resource::Resource;
use super::selector::LabelSelector;
use crate::Index;

/// API group of webhook configurations.
pub const GROUP: &str = "admissionregistration.k8s.io";
/// Default timeout of a call, in seconds.
const TIMEOUT_SECONDS: u64 = 10;
/// Kinds that webhooks are never called for: one could make itself unremovable.
const EXEMPT: [&str; 6] = [
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

/// Returns true if no webhook is called for objects of `resource`.
#[must_use]
pub fn is_exempt(resource: &Resource) -> bool {
    &*resource.group == GROUP && EXEMPT.contains(&&*resource.kind)
}

/// Address of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A URL.
    Url(String),
    /// A Service.
    Service {
        /// Namespace of the Service.
        namespace: String,
        /// Name of the Service.
        name: String,
        /// Path of the request, with its leading slash.
        path: String,
        /// Port of the Service.
        port: u16,
    },
}

impl Endpoint {
    /// Returns the URL; for a Service, the one that its certificate must be valid for.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Url(url) => url.clone(),
            Self::Service {
                namespace,
                name,
                path,
                port,
            } => format!("https://{name}.{namespace}.svc:{port}{path}"),
        }
    }
}

/// Version of the reviews that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewVersion {
    /// `admission.k8s.io/v1`.
    V1,
    /// `admission.k8s.io/v1beta1`.
    V1Beta1,
}

impl ReviewVersion {
    /// Returns the `apiVersion`, `admission.k8s.io/...`.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1Beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

#[derive(Debug, Clone)]
struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: String,
}

/// A webhook of a configuration.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// Name of the webhook.
    pub name: String,
    /// Address to call.
    pub endpoint: Endpoint,
    /// PEM certificates that its server's certificate is verified with.
    pub ca_bundle: Vec<u8>,
    /// True if a failed call refuses the request (failure policy `Fail`).
    pub fail: bool,
    /// True if requests for other versions of a resource match, too.
    equivalent: bool,
    /// True if it may be called for a dry run.
    pub dry_run: bool,
    /// Timeout of a call.
    pub timeout: Duration,
    /// True if it is called again when a later step changed the object.
    pub reinvoke: bool,
    /// First entry of `admissionReviewVersions` that this server supports; `None` if it supports none.
    pub review: Option<ReviewVersion>,
    rules: Vec<Rule>,
    namespace_selector: LabelSelector,
    object_selector: LabelSelector,
}

/// Labels that a namespace selector is matched against.
#[derive(Debug, Clone, Copy)]
pub enum NamespaceLabels<'a> {
    /// The object is cluster-scoped and not a namespace: every selector matches.
    None,
    /// The written object is the namespace.
    Object(&'a Value),
    /// The namespace is stored.
    Stored(&'a Index),
    /// The namespace does not exist: no labels.
    Missing,
}

/// A write to match webhooks against.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: &'a str,
    /// Resource of the request.
    pub resource: &'a Arc<Resource>,
    /// Subresource of the request, `""` for the object itself.
    pub subresource: &'a str,
    /// Namespace of the request; that of a namespace is its own name.
    pub namespace: &'a str,
    /// Labels of that namespace.
    pub namespace_labels: NamespaceLabels<'a>,
    /// The new object.
    pub object: Option<&'a Value>,
    /// The stored object.
    pub old: Option<&'a Value>,
    /// All versions of the resource that have the subresource.
    pub equivalents: &'a [Arc<Resource>],
}

fn strings(value: &Value, key: &str) -> Vec<String> {
    value
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_str().map(str::to_owned))
        .collect()
}

/// Returns the selector at `key`; an absent one selects everything.
fn selector(hook: &Value, key: &str) -> Result<LabelSelector, String> {
    match hook.get(key) {
        None | Some(Value::Null) => Ok(LabelSelector::everything()),
        given => LabelSelector::from_json(given).map_err(|e| format!("{key}: {e}")),
    }
}

impl Webhook {
    /// Parses an element of `webhooks` of a configuration.
    ///
    /// # Errors
    /// The invalid field, and why.
    pub fn parse(hook: &Value) -> Result<Self, String> {
        use base64::Engine as _;
        let config = hook.get("clientConfig").unwrap_or(&Value::Null);
        let endpoint = match (str_at(config, &["url"]), config.get("service")) {
            ("", Some(service)) if service.is_object() => {
                let port = service.get("port").map_or(Some(443), Value::as_u64);
                Endpoint::Service {
                    namespace: str_at(service, &["namespace"]).to_owned(),
                    name: str_at(service, &["name"]).to_owned(),
                    path: match str_at(service, &["path"]) {
                        "" => "/".to_owned(),
                        path => path.to_owned(),
                    },
                    port: port
                        .and_then(|p| u16::try_from(p).ok())
                        .ok_or("clientConfig.service.port: not a port")?,
                }
            }
            ("", _) => return Err("clientConfig: neither url nor service".to_owned()),
            (url, _) => Endpoint::Url(url.to_owned()),
        };
        let ca_bundle = base64::engine::general_purpose::STANDARD
            .decode(str_at(config, &["caBundle"]))
            .map_err(|e| format!("clientConfig.caBundle: {e}"))?;
        let rules = hook
            .get("rules")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|rule| Rule {
                operations: strings(rule, "operations"),
                groups: strings(rule, "apiGroups"),
                versions: strings(rule, "apiVersions"),
                resources: strings(rule, "resources"),
                scope: str_at(rule, &["scope"]).to_owned(),
            })
            .collect();
        let review = strings(hook, "admissionReviewVersions")
            .iter()
            .find_map(|version| match version.as_str() {
                "v1" => Some(ReviewVersion::V1),
                "v1beta1" => Some(ReviewVersion::V1Beta1),
                _ => None,
            });
        let seconds = hook.get("timeoutSeconds").and_then(Value::as_u64);
        Ok(Self {
            name: str_at(hook, &["name"]).to_owned(),
            endpoint,
            ca_bundle,
            fail: str_at(hook, &["failurePolicy"]) != "Ignore",
            equivalent: str_at(hook, &["matchPolicy"]) != "Exact",
            dry_run: matches!(str_at(hook, &["sideEffects"]), "None" | "NoneOnDryRun"),
            timeout: Duration::from_secs(seconds.unwrap_or(TIMEOUT_SECONDS)),
            reinvoke: str_at(hook, &["reinvocationPolicy"]) == "IfNeeded",
            review,
            rules,
            namespace_selector: selector(hook, "namespaceSelector")?,
            object_selector: selector(hook, "objectSelector")?,
        })
    }

    /// Returns the version of the resource in which the webhook is called for a write, or `None` if it does
    /// not match: the version of the request if a rule matches it, else, unless only exact matches count, the
    /// first one that a rule matches.
    #[must_use]
    pub fn matches(&self, c: &Candidate<'_>) -> Option<Arc<Resource>> {
        let direct = self.rules.iter().any(|rule| rule.matches(c, c.resource));
        let resource = if direct {
            c.resource
        } else if self.equivalent {
            self.rules.iter().find_map(|rule| {
                let mut equivalents = c.equivalents.iter();
                equivalents.find(|r| !Arc::ptr_eq(r, c.resource) && rule.matches(c, r))
            })?
        } else {
            return None;
        };
        (self.namespace_matches(c.namespace_labels) && self.object_matches(c))
            .then(|| resource.clone())
    }

    fn namespace_matches(&self, labels: NamespaceLabels<'_>) -> bool {
        let selector = &self.namespace_selector;
        match labels {
            NamespaceLabels::None => true,
            NamespaceLabels::Object(namespace) => selector.matches_object(namespace),
            NamespaceLabels::Stored(index) => selector.matches(index),
            NamespaceLabels::Missing => selector.matches_object(&Value::Null),
        }
    }

    /// Matches the new object or the old one, so that a change of a label does not avoid the webhook.
    fn object_matches(&self, c: &Candidate<'_>) -> bool {
        self.object_selector.is_everything()
            || [c.object, c.old]
                .into_iter()
                .flatten()
                .filter(|object| meta::at(object, &["metadata"]).is_some())
                .any(|object| self.object_selector.matches_object(object))
    }
}

/// Returns true if an element is `*` or equals `wanted`.
fn names(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    fn matches(&self, c: &Candidate<'_>, resource: &Resource) -> bool {
        let namespaced = !c.namespace.is_empty() && !resource.is("", "namespaces");
        let scope = match self.scope.as_str() {
            "" | "*" => true,
            "Namespaced" => namespaced,
            "Cluster" => !namespaced,
            _ => false,
        };
        scope
            && names(&self.operations, c.operation)
            && names(&self.groups, &resource.group)
            && names(&self.versions, &resource.version)
            && self.resources.iter().any(|named| {
                let (plural, sub) = named.split_once('/').unwrap_or((named, ""));
                (plural == "*" || plural == &*resource.plural)
                    && (sub == "*" || sub == c.subresource)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;
    use serde_json::json;

    fn hook(change: Value) -> Webhook {
        let mut hook = json!({
            "name": "a.example.com",
            "clientConfig": {"url": "https://localhost/x"},
            "admissionReviewVersions": ["v2", "v1beta1", "v1"],
            "sideEffects": "None",
            "rules": [rule("*", "*", "*", &["*/*"], "*")],
        });
        for (key, value) in change.as_object().unwrap() {
            hook[key] = value.clone();
        }
        Webhook::parse(&hook).unwrap()
    }

    fn rule(operation: &str, group: &str, version: &str, resources: &[&str], scope: &str) -> Value {
        json!({"operations": [operation], "apiGroups": [group], "apiVersions": [version],
            "resources": resources, "scope": scope})
    }

    struct Write {
        resource: Arc<Resource>,
        subresource: &'static str,
        namespace: &'static str,
    }

    impl Write {
        fn new(group: &str, plural: &str, subresource: &'static str) -> Self {
            let registry = Registry::builtin();
            let resource = registry.find(group, "v1", plural).unwrap();
            let namespace = match (resource.namespaced, plural) {
                (_, "namespaces") => "x",
                (true, _) => "default",
                (false, _) => "",
            };
            Self {
                resource,
                subresource,
                namespace,
            }
        }

        fn candidate(&self) -> Candidate<'_> {
            Candidate {
                operation: "UPDATE",
                resource: &self.resource,
                subresource: self.subresource,
                namespace: self.namespace,
                namespace_labels: NamespaceLabels::None,
                object: None,
                old: None,
                equivalents: &[],
            }
        }
    }

    #[test]
    fn rules() {
        let pods = Write::new("", "pods", "");
        let status = Write::new("", "pods", "status");
        let binding = Write::new("", "pods", "binding");
        let nodes = Write::new("", "nodes", "");
        let namespaces = Write::new("", "namespaces", "");
        let deployments = Write::new("apps", "deployments", "");
        #[rustfmt::skip]
        let rows: Vec<(&str, Value, &Write, bool)> = vec![
            ("all", rule("*", "*", "*", &["*/*"], "*"), &pods, true),
            ("all, sub-resources too", rule("*", "*", "*", &["*/*"], "*"), &status, true),
            ("operation", rule("UPDATE", "", "v1", &["pods"], "*"), &pods, true),
            ("another operation", rule("CREATE", "", "v1", &["pods"], "*"), &pods, false),
            ("the core group is the empty text", rule("*", "", "v1", &["pods"], "*"), &pods, true),
            ("another group", rule("*", "apps", "v1", &["*"], "*"), &pods, false),
            ("a group by name", rule("*", "apps", "v1", &["*"], "*"), &deployments, true),
            ("another version", rule("*", "", "v2", &["pods"], "*"), &pods, false),
            ("a star is no sub-resource", rule("*", "*", "*", &["*"], "*"), &status, false),
            ("a plural is no sub-resource", rule("*", "*", "*", &["pods"], "*"), &status, false),
            ("a sub-resource by name", rule("*", "*", "*", &["pods/status"], "*"), &status, true),
            ("a sub-resource is not the object", rule("*", "*", "*", &["pods/status"], "*"), &pods, false),
            ("another sub-resource", rule("*", "*", "*", &["pods/status"], "*"), &binding, false),
            ("all sub-resources, and the object", rule("*", "*", "*", &["pods/*"], "*"), &pods, true),
            ("all sub-resources", rule("*", "*", "*", &["pods/*"], "*"), &binding, true),
            ("a sub-resource of all", rule("*", "*", "*", &["*/binding"], "*"), &binding, true),
            ("one of several", rule("*", "*", "*", &["nodes", "pods"], "*"), &pods, true),
            ("namespaced", rule("*", "*", "*", &["*/*"], "Namespaced"), &pods, true),
            ("not namespaced", rule("*", "*", "*", &["*/*"], "Namespaced"), &nodes, false),
            ("a namespace is not namespaced", rule("*", "*", "*", &["*/*"], "Namespaced"), &namespaces, false),
            ("cluster", rule("*", "*", "*", &["*/*"], "Cluster"), &nodes, true),
            ("a namespace is of the cluster", rule("*", "*", "*", &["*/*"], "Cluster"), &namespaces, true),
            ("not of the cluster", rule("*", "*", "*", &["*/*"], "Cluster"), &pods, false),
        ];
        for (what, rule, write, expected) in rows {
            let hook = hook(json!({"rules": [rule]}));
            assert_eq!(
                hook.matches(&write.candidate()).is_some(),
                expected,
                "{what}"
            );
        }
    }

    #[test]
    fn other_versions_match_unless_the_policy_is_exact() {
        let registry = Registry::builtin();
        let core = registry.find("", "v1", "events").unwrap();
        let group = registry.find("events.k8s.io", "v1", "events").unwrap();
        let equivalents = [core.clone(), group.clone()];
        let write = Write::new("", "events", "");
        let candidate = Candidate {
            resource: &core,
            equivalents: &equivalents,
            ..write.candidate()
        };
        let rules = json!([rule("*", "events.k8s.io", "v1", &["events"], "*")]);
        let seen_as = hook(json!({"rules": rules})).matches(&candidate).unwrap();
        assert_eq!(&*seen_as.group, "events.k8s.io");
        let exact = hook(json!({"rules": rules, "matchPolicy": "Exact"}));
        assert!(exact.matches(&candidate).is_none());
        let pair = json!([rules[0], rule("*", "", "v1", &["events"], "*")]);
        let seen_as = hook(json!({"rules": pair})).matches(&candidate).unwrap();
        assert_eq!(
            &*seen_as.group, "",
            "the version of the request comes first"
        );
    }

    #[test]
    fn namespace_selectors() {
        let chosen = json!({"matchLabels": {"a": "b"}});
        let not = json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]});
        let with = json!({"metadata": {"labels": {"a": "b"}}});
        let without = json!({"metadata": {}});
        let write = Write::new("", "pods", "");
        for (selector, labels, expected) in [
            (&chosen, NamespaceLabels::Object(&with), true),
            (&chosen, NamespaceLabels::Object(&without), false),
            (&chosen, NamespaceLabels::None, true),
            (&chosen, NamespaceLabels::Missing, false),
            (&not, NamespaceLabels::Object(&with), false),
            (&not, NamespaceLabels::Missing, true),
            (&Value::Null, NamespaceLabels::Object(&without), true),
        ] {
            let hook = hook(json!({"namespaceSelector": selector}));
            let candidate = Candidate {
                namespace_labels: labels,
                ..write.candidate()
            };
            let got = hook.matches(&candidate).is_some();
            assert_eq!(got, expected, "{selector} {labels:?}");
        }
    }

    #[test]
    fn object_selectors_look_at_the_new_and_the_old_object() {
        let with = json!({"metadata": {"labels": {"a": "b"}}});
        let without = json!({"metadata": {}});
        let bare = json!({"spec": {}});
        let write = Write::new("", "pods", "");
        let chosen = hook(json!({"objectSelector": {"matchLabels": {"a": "b"}}}));
        let absent = hook(json!({"objectSelector":
            {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}));
        let all = hook(json!({"objectSelector": {}}));
        #[rustfmt::skip]
        let rows = [
            (&chosen, Some(&with), None, true),
            (&chosen, Some(&without), None, false),
            (&chosen, Some(&without), Some(&with), true),
            (&chosen, None, Some(&with), true),
            (&chosen, None, None, false),
            (&absent, Some(&without), None, true),
            // An object without metadata has no labels.
            (&absent, Some(&bare), None, false),
            (&all, None, None, true),
        ];
        for (i, (hook, object, old, expected)) in rows.into_iter().enumerate() {
            let candidate = Candidate {
                object,
                old,
                ..write.candidate()
            };
            assert_eq!(hook.matches(&candidate).is_some(), expected, "row {i}");
        }
    }

    #[test]
    fn parsed_with_defaults() {
        let parsed = hook(json!({}));
        assert!(parsed.fail && parsed.dry_run && !parsed.reinvoke);
        assert_eq!(parsed.timeout, Duration::from_secs(10));
        assert_eq!(
            parsed.review,
            Some(ReviewVersion::V1Beta1),
            "the first known"
        );
        let service = json!({"service": {"namespace": "n", "name": "s", "path": "/p"}});
        let parsed = hook(json!({"clientConfig": service, "sideEffects": "Some",
            "failurePolicy": "Ignore", "reinvocationPolicy": "IfNeeded", "timeoutSeconds": 3,
            "admissionReviewVersions": ["v7"]}));
        assert_eq!(parsed.endpoint.url(), "https://s.n.svc:443/p");
        assert!(!parsed.fail && !parsed.dry_run && parsed.reinvoke);
        assert_eq!(parsed.timeout, Duration::from_secs(3));
        assert_eq!(parsed.review, None);
        for (broken, why) in [
            (json!({"clientConfig": {}}), "clientConfig"),
            (
                json!({"clientConfig": {"url": "x", "caBundle": "%"}}),
                "caBundle",
            ),
            (
                json!({"clientConfig": {"url": "x"}, "objectSelector":
                    {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
                "objectSelector",
            ),
        ] {
            let e = Webhook::parse(&broken).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
    }
}
