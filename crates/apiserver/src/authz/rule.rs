//! Rules of roles.

use super::{Attributes, ResourceTarget, Target};
use koord_kinds::status::quoted;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;

/// A rule of a role (`rbac.authorization.k8s.io/v1 PolicyRule`). `*` matches everything in all lists but
/// `names`; empty `names` match every name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Verbs.
    pub verbs: Vec<String>,
    /// API groups of the resources.
    pub groups: Vec<String>,
    /// Resources and `resource/subresource`; `*/sub` is that subresource of every resource.
    pub resources: Vec<String>,
    /// Names of the objects; empty: every name.
    pub names: Vec<String>,
    /// Paths; a `*` at the end matches every continuation.
    pub paths: Vec<String>,
}

/// Fields of a rule in JSON and in messages, in the order of messages.
const FIELDS: [(&str, &str); 5] = [
    ("apiGroups", "APIGroups"),
    ("resources", "Resources"),
    ("nonResourceURLs", "NonResourceURLs"),
    ("resourceNames", "ResourceNames"),
    ("verbs", "Verbs"),
];

impl Rule {
    /// Parses the `rules` of a role. List items that are not text are ignored, which only reduces
    /// permissions.
    #[must_use]
    pub fn parse_list(rules: Option<&Value>) -> Vec<Self> {
        let rules = rules.and_then(Value::as_array).into_iter().flatten();
        rules.map(Self::read).collect()
    }

    fn read(rule: &Value) -> Self {
        let list = |field: &str| -> Vec<String> {
            let items = rule.get(field).and_then(Value::as_array);
            let texts = items.into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            paths: list("nonResourceURLs"),
        }
    }

    /// Returns the rule that allows every verb on every resource.
    #[must_use]
    pub fn everything() -> Self {
        let all = || vec!["*".to_owned()];
        Self {
            verbs: all(),
            groups: all(),
            resources: all(),
            ..Self::default()
        }
    }

    /// Returns the rule that allows every verb on every path.
    #[must_use]
    pub fn every_path() -> Self {
        Self {
            verbs: vec!["*".to_owned()],
            paths: vec!["*".to_owned()],
            ..Self::default()
        }
    }

    fn lists(&self) -> [&Vec<String>; 5] {
        [
            &self.groups,
            &self.resources,
            &self.paths,
            &self.names,
            &self.verbs,
        ]
    }

    /// Returns the rule as a `PolicyRule`.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut map = serde_json::Map::new();
        for ((field, _), list) in FIELDS.iter().zip(self.lists()) {
            if !list.is_empty() {
                map.insert((*field).to_owned(), list.clone().into());
            }
        }
        Value::Object(map)
    }

    /// Returns true if the rule allows the request.
    #[must_use]
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !matches(&self.verbs, attributes.verb) {
            return false;
        }
        match &attributes.target {
            Target::Path(path) => self.paths.iter().any(|own| path_matches(own, path)),
            Target::Resource(target) => {
                matches(&self.groups, target.group)
                    && self
                        .resources
                        .iter()
                        .any(|own| resource_matches(own, target))
                    && (self.names.is_empty() || self.names.iter().any(|own| own == target.name))
            }
        }
    }

    /// Returns the number of texts in all lists.
    fn size(&self) -> usize {
        self.lists().iter().map(|list| list.len()).sum()
    }

    /// Returns the number of its [`Rule::parts`].
    fn count_parts(&self) -> usize {
        let product = [
            self.resources.len(),
            self.groups.len(),
            self.names.len().max(1),
        ]
        .into_iter()
        .fold(self.verbs.len(), usize::saturating_mul);
        product.saturating_add(self.verbs.len().saturating_mul(self.paths.len()))
    }

    /// Returns true if the rule allows everything that any rule of the same kinds, for resources or paths,
    /// can allow.
    fn is_everything_of(&self, rule: &Self) -> bool {
        let all = |list: &[String]| list.iter().any(|own| own == "*");
        all(&self.verbs)
            && (rule.resources.is_empty()
                || (all(&self.groups) && all(&self.resources) && self.names.is_empty()))
            && (rule.paths.is_empty() || all(&self.paths))
    }

    /// Splits the rule into parts: one verb each, on one resource in one group (with one name), or on one
    /// path.
    fn parts(&self) -> impl Iterator<Item = Self> {
        let single = |text: &String| vec![text.clone()];
        let names: Vec<Vec<String>> = match self.names.as_slice() {
            [] => vec![Vec::new()],
            names => names.iter().map(single).collect(),
        };
        let mut parts = Vec::new();
        for verb in &self.verbs {
            for group in &self.groups {
                for resource in &self.resources {
                    parts.extend(names.iter().map(|names| Self {
                        verbs: single(verb),
                        groups: single(group),
                        resources: single(resource),
                        names: names.clone(),
                        paths: Vec::new(),
                    }));
                }
            }
            parts.extend(self.paths.iter().map(|path| Self {
                verbs: single(verb),
                paths: single(path),
                ..Self::default()
            }));
        }
        parts.into_iter()
    }

    /// Returns true if the rule allows all that `part`, from [`Rule::parts`], allows. A `*` in a part is
    /// covered only by `*`.
    fn covers(&self, part: &Self) -> bool {
        let within =
            |own: &[String], requested: &[String]| requested.iter().all(|w| matches(own, w));
        let resources = |requested: &String| {
            let (resource, subresource) = match requested.split_once('/') {
                Some((resource, sub)) => (resource, sub),
                None => (requested.as_str(), ""),
            };
            let target = ResourceTarget {
                resource,
                subresource,
                ..ResourceTarget::default()
            };
            self.resources
                .iter()
                .any(|own| own == requested || resource_matches(own, &target))
        };
        let names = self.names.is_empty()
            || !part.names.is_empty() && part.names.iter().all(|name| self.names.contains(name));
        let paths = |requested: &String| {
            self.paths
                .iter()
                .any(|own| own == requested || path_matches(own, requested))
        };
        within(&self.verbs, &part.verbs)
            && within(&self.groups, &part.groups)
            && part.resources.iter().all(resources)
            && (part.resources.is_empty() || names)
            && part.paths.iter().all(paths)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = FIELDS.iter().zip(self.lists());
        let parts = lists.filter(|(_, list)| !list.is_empty());
        let parts = parts.map(|((_, name), list)| {
            let items: Vec<String> = list.iter().map(|item| quoted(item)).collect();
            format!("{name}:[{}]", items.join(" "))
        });
        write!(f, "{{{}}}", parts.collect::<Vec<_>>().join(", "))
    }
}

/// Most text comparisons that a check of rules may cost.
const MAX_COMPARISONS: usize = 50_000_000;

/// Returns the parts of `requested` that no single rule of `owned` allows; parts that differ only in their verbs
/// are joined. The parts of a rule are the product of its lists; a rule with too many of them to compare
/// counts as not held.
#[must_use]
pub fn uncovered(owned: &[Rule], requested: &[Rule]) -> Vec<Rule> {
    let held_size = owned.iter().map(Rule::size).fold(1, usize::saturating_add);
    let mut budget = MAX_COMPARISONS / held_size;
    let mut missing: Vec<Rule> = Vec::new();
    let mut places: HashMap<[Vec<String>; 4], usize> = HashMap::new();
    for rule in requested {
        if owned.iter().any(|owned| owned.is_everything_of(rule)) {
            continue;
        }
        let count = rule.count_parts();
        if count > budget {
            missing.push(rule.clone());
            continue;
        }
        budget -= count;
        for part in rule.parts() {
            if owned.iter().any(|rule| rule.covers(&part)) {
                continue;
            }
            let Rule {
                verbs,
                groups,
                resources,
                names,
                paths,
            } = part;
            let place = [groups, resources, names, paths];
            if let Some(rule) = places.get(&place).and_then(|at| missing.get_mut(*at)) {
                rule.verbs.extend(verbs);
                continue;
            }
            places.insert(place.clone(), missing.len());
            let [groups, resources, names, paths] = place;
            missing.push(Rule {
                verbs,
                groups,
                resources,
                names,
                paths,
            });
        }
    }
    missing
}

/// Returns true if `list` contains `value` or `*`.
fn matches(list: &[String], value: &str) -> bool {
    list.iter().any(|own| own == "*" || own == value)
}

fn resource_matches(own: &str, target: &ResourceTarget<'_>) -> bool {
    if own == "*" {
        return true;
    }
    // Most rules are about other resources, which a comparison of lengths shows: the resource before the
    // slash is compared only if the subresource matches.
    let resource = match target.subresource {
        "" => Some(own).filter(|own| *own == target.resource),
        sub => own
            .strip_suffix(sub)
            .and_then(|own| own.strip_suffix('/'))
            .filter(|resource| *resource == "*" || *resource == target.resource),
    };
    resource.is_some_and(|resource| !resource.contains('/'))
}

fn path_matches(own: &str, path: &str) -> bool {
    own == path
        || own
            .strip_suffix('*')
            .is_some_and(|start| path.starts_with(start.trim_end_matches('*')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(value: &Value) -> Rule {
        Rule::read(value)
    }

    fn resource<'a>(what: &'a str, name: &'a str) -> Target<'a> {
        let (group, rest) = what.split_once(':').unwrap_or(("", what));
        let (resource, subresource) = rest.split_once('/').unwrap_or((rest, ""));
        Target::Resource(ResourceTarget {
            group,
            resource,
            subresource,
            namespace: "",
            name,
            node: "",
        })
    }

    /// Verb, resource (`group:plural/sub`) and name, and whether the rule allows it.
    type Case = (&'static str, &'static str, &'static str, bool);

    /// The rows follow Kubernetes' documentation of RBAC.
    #[test]
    fn rule_allows_matching_requests() {
        let table: Vec<(Value, &[Case])> = vec![
            (
                json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}),
                &[
                    ("get", "pods", "a", true),
                    ("list", "pods", "", true),
                    ("watch", "pods", "", false),
                    ("get", "pods/log", "a", false),
                    ("get", "apps:pods", "a", false),
                    ("get", "secrets", "a", false),
                ],
            ),
            (
                json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
                &[
                    ("impersonate", "users", "x", true),
                    ("delete", "apps:deployments/scale", "x", true),
                ],
            ),
            (
                json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["*/scale", "pods/"]}),
                &[
                    ("get", "apps:deployments/scale", "x", true),
                    ("get", "apps:deployments/status", "x", false),
                    ("get", "apps:deployments", "x", false),
                    ("get", "apps:pods", "x", false),
                ],
            ),
            (
                json!({"verbs": ["get", "create"], "apiGroups": [""], "resources": ["configmaps"],
                       "resourceNames": ["a", "*"]}),
                &[
                    ("get", "configmaps", "a", true),
                    ("get", "configmaps", "b", false),
                    ("create", "configmaps", "", false),
                ],
            ),
            (
                json!({"verbs": ["get"], "apiGroups": [], "resources": ["pods"]}),
                &[("get", "pods", "a", false)],
            ),
            (
                json!({"verbs": ["get"], "nonResourceURLs": ["*"]}),
                &[("get", "pods", "a", false)],
            ),
            (json!({"verbs": [7, "get"]}), &[("get", "pods", "a", false)]),
        ];
        for (value, cases) in &table {
            for (verb, what, name, allowed) in *cases {
                let attributes = Attributes {
                    verb,
                    target: resource(what, name),
                };
                assert_eq!(
                    rule(value).allows(&attributes),
                    *allowed,
                    "{value}: {verb} {what} {name}"
                );
            }
        }
    }

    #[test]
    fn paths() {
        let of = |path: &str| rule(&json!({"verbs": ["get"], "nonResourceURLs": [path]}));
        for (own, path, allowed) in [
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/ping", false),
            ("/healthz/*", "/healthz/ping", true),
            ("/healthz/*", "/healthz", false),
            ("*", "/anything", true),
            ("/a*b", "/axb", false),
        ] {
            let attributes = Attributes {
                verb: "get",
                target: Target::Path(path),
            };
            assert_eq!(of(own).allows(&attributes), allowed, "{own} {path}");
            let attributes = Attributes {
                verb: "post",
                ..attributes
            };
            assert!(!of(own).allows(&attributes));
        }
        let everything = rule(&json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        let attributes = Attributes {
            verb: "get",
            target: Target::Path("/version"),
        };
        assert!(!everything.allows(&attributes));
    }

    fn missing(held: &Value, wanted: &Value) -> Vec<String> {
        let missing = uncovered(
            &Rule::parse_list(Some(held)),
            &Rule::parse_list(Some(wanted)),
        );
        missing.iter().map(Rule::to_string).collect()
    }

    #[test]
    fn uncovered_rules_are_listed() {
        let pods = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]);
        assert!(missing(&pods, &pods).is_empty());
        // Two rules together cover it.
        let apart = json!([
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["list"], "apiGroups": [""], "resources": ["pods", "nodes"]},
        ]);
        assert!(missing(&apart, &pods).is_empty());
        assert_eq!(
            missing(&pods, &apart),
            [r#"{APIGroups:[""], Resources:["nodes"], Verbs:["list"]}"#]
        );
        let missing_rights = json!([{"verbs": ["get", "delete", "watch"], "apiGroups": [""],
                           "resources": ["pods"]}]);
        assert_eq!(
            missing(&pods, &missing_rights),
            [r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete" "watch"]}"#]
        );
        // `*` covers more than any list of names.
        let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
        assert_eq!(missing(&pods, &all).len(), 1);
        assert!(missing(&all, &pods).is_empty());
        assert!(missing(&all, &all).is_empty());
    }

    #[test]
    fn names_and_subresources_are_granted_exactly() {
        let rules = |resource: &str, names: &[&str]| {
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": [resource],
                    "resourceNames": names}])
        };
        let holds = |held: &Value, wanted: &Value| missing(held, wanted).is_empty();
        assert!(holds(&rules("pods", &[]), &rules("pods", &["a"])));
        assert!(!holds(&rules("pods", &["a"]), &rules("pods", &[])));
        assert!(holds(&rules("pods", &["a", "b"]), &rules("pods", &["b"])));
        assert!(holds(&rules("*/log", &[]), &rules("pods/log", &[])));
        assert!(!holds(&rules("pods/log", &[]), &rules("*/log", &[])));
        assert!(holds(&rules("*/log", &[]), &rules("*/log", &[])));
        assert!(!holds(&rules("pods", &[]), &rules("pods/log", &[])));
        assert!(holds(&rules("*", &[]), &rules("pods/log", &[])));
        let path = |path: &str| json!([{"verbs": ["get"], "nonResourceURLs": [path]}]);
        assert!(holds(&path("/a/*"), &path("/a/b")));
        assert!(holds(&path("/a/*"), &path("/a/b/*")));
        assert!(!holds(&path("/a/b"), &path("/a/*")));
        assert!(!holds(&rules("*", &[]), &path("/a")));
    }

    #[test]
    fn rules_with_too_many_parts_are_not_granted() {
        let texts: Vec<String> = (0..20_000).map(|i| format!("t{i}")).collect();
        let huge = rule(
            &json!({"verbs": texts, "apiGroups": texts, "resources": texts, "resourceNames": texts}),
        );
        let small = rule(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}));
        let requested = [huge.clone(), small.clone()];
        assert_eq!(uncovered(std::slice::from_ref(&small), &requested), [huge]);
        assert_eq!(uncovered(&[Rule::everything()], &requested), []);
        // Each of the parts is covered by another rule.
        let owned: Vec<Rule> = ["get", "list"]
            .map(|verb| {
                rule(&json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods", "nodes"]}))
            })
            .to_vec();
        let pair = rule(
            &json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["nodes", "pods"]}),
        );
        assert_eq!(uncovered(&owned, &[pair]), []);
    }
}
