//! Default roles and bindings of every cluster, as far as they apply to this server.
//!
//! Names, rules and subjects are those of Kubernetes 1.35; resources of groups that are not served
//! and roles of parts that do not exist here (kube-dns, volume provisioners, the signers of
//! certificates, the cluster's own controllers, which write in process) are left out.

use super::Rule;
use serde_json::{Value, json};

/// Annotation of objects that are completed at every start unless it is `false`.
pub const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Roles and bindings in a compact text format.
const TABLE: &str = include_str!("bootstrap.txt");
/// Role with the rules of nodes, which the node authorizer restricts further.
const NODE: &str = "system:node";

/// Aggregated ClusterRoles, the smallest first, each with the role that includes it (`None` for the largest).
/// A role has the rules of all roles with its label `rbac.authorization.k8s.io/aggregate-to-NAME`.
pub const AGGREGATED: [(&str, Option<&str>); 3] = [
    ("view", Some("edit")),
    ("edit", Some("admin")),
    ("admin", None),
];

/// Namespace of the roles and role bindings.
const NAMESPACE: &str = "kube-system";

/// One object: plural, namespace (`""` for cluster-scoped ones), and the object itself.
pub type BootstrapObject = (&'static str, &'static str, Value);

/// Returns the default roles and bindings; aggregated roles have only their labels and aggregation rule.
#[must_use]
pub fn objects() -> Vec<BootstrapObject> {
    let mut all: Vec<BootstrapObject> = Vec::new();
    for line in TABLE.lines() {
        if let Some(line) = line.strip_prefix("  ") {
            let role = all.last_mut().map(|(_, _, role)| &mut role["rules"]);
            if let (Some(Value::Array(rules)), Some(rule)) = (role, rule(line)) {
                rules.push(rule.to_value());
            }
        } else if let Some(object) = object(line) {
            all.push(object);
        }
    }
    for (name, part_of) in AGGREGATED {
        let selector = json!({"matchLabels": {label(name): "true"}});
        let mut role = json!({
            "metadata": metadata(name),
            "aggregationRule": {"clusterRoleSelectors": [selector]},
            "rules": [],
        });
        if let Some(of) = part_of {
            role["metadata"]["labels"][label(of)] = "true".into();
        }
        all.push(("clusterroles", "", role));
    }
    all
}

/// Returns the rules that bound what nodes may do.
#[must_use]
pub fn node_rules() -> Vec<Rule> {
    let lines = TABLE.lines();
    let mut lines = lines.skip_while(|line| line.strip_prefix("clusterrole ") != Some(NODE));
    lines.next();
    lines
        .map_while(|line| line.strip_prefix("  "))
        .filter_map(rule)
        .collect()
}

/// Parses the object that begins with this line of [`TABLE`]: a role without rules yet, or a binding.
fn object(line: &str) -> Option<BootstrapObject> {
    let (what, rest) = line.split_once(' ')?;
    let fields: Vec<&str> = rest.split('|').map(str::trim).collect();
    let role = |name: &str| json!({"metadata": metadata(name), "rules": []});
    Some(match (what, fields.as_slice()) {
        ("clusterrole", [name]) => {
            let mut role = role(name);
            if let Some(of) = name.strip_prefix("system:aggregate-to-") {
                role["metadata"]["labels"][label(of)] = "true".into();
            }
            ("clusterroles", "", role)
        }
        ("clusterrolebinding", [name, kind, subjects]) => {
            let binding = binding(name, ("ClusterRole", name), kind, subjects);
            ("clusterrolebindings", "", binding)
        }
        ("role", [name]) => ("roles", NAMESPACE, role(name)),
        ("rolebinding", [name, role, kind, subjects]) => {
            let binding = binding(name, ("Role", role), kind, subjects);
            ("rolebindings", NAMESPACE, binding)
        }
        _ => return None,
    })
}

/// Parses a rule of [`TABLE`].
fn rule(line: &str) -> Option<Rule> {
    let tokens = |text: &str| -> Vec<String> {
        let tokens = text.split_whitespace().map(|token| match token {
            "READ" => "get list watch",
            "READ_UPDATE" => "get list watch update patch",
            "WRITE" => "create update patch delete deletecollection",
            "READ_WRITE" => "get list watch create update patch delete deletecollection",
            "core" => "",
            token => token,
        });
        tokens
            .flat_map(|token| token.split(' '))
            .map(str::to_owned)
            .collect()
    };
    let fields: Vec<Vec<String>> = line.split('|').map(tokens).collect();
    let mut fields = fields.into_iter();
    let mut next = || fields.next();
    let (verbs, second, third) = (next()?, next()?, next());
    Some(match third {
        None => Rule {
            verbs,
            paths: second,
            ..Rule::default()
        },
        Some(resources) => Rule {
            verbs,
            groups: second,
            resources,
            names: next().unwrap_or_default(),
            ..Rule::default()
        },
    })
}

fn label(of: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{of}")
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {AUTO_UPDATE: "true"},
    })
}

fn binding(name: &str, (of, role): (&str, &str), kind: &str, subjects: &str) -> Value {
    let subjects = subjects.split_whitespace();
    let subjects = subjects.map(|name| json!({"kind": kind, "apiGroup": GROUP, "name": name}));
    let mut binding = json!({
        "metadata": metadata(name),
        "roleRef": {"apiGroup": GROUP, "kind": of, "name": role},
    });
    let subjects: Vec<Value> = subjects.collect();
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    binding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::{
        ANONYMOUS, AUTHENTICATED, Attributes, Binding, Index, NODES, ResourceTarget, Role, Target,
        UNAUTHENTICATED, User,
    };

    /// Builds the index over all default objects, with the aggregated roles left empty.
    fn index() -> Index {
        let mut index = Index::default();
        for (plural, namespace, object) in objects() {
            let name = object["metadata"]["name"].as_str().unwrap();
            if plural.ends_with("roles") {
                index.put_role(namespace, name, Role::read(&object));
            } else {
                index.put_binding(Binding::read(namespace, name, &object).unwrap());
            }
        }
        index
    }

    /// The rows follow the table of default roles in Kubernetes' documentation.
    #[test]
    fn default_roles_grant_expected_permissions() {
        let index = index();
        let someone = User::new("ann", [AUTHENTICATED]);
        let scheduler = User::new("system:kube-scheduler", [AUTHENTICATED]);
        let node = User::new("system:node:n1", [NODES, AUTHENTICATED]);
        let path = |path| Target::Path(path);
        let of = |group, resource, subresource, namespace| {
            Target::Resource(ResourceTarget {
                group,
                resource,
                subresource,
                namespace,
                name: "",
                node: "",
            })
        };
        let table = [
            (&someone, "get", path("/api/v1"), true),
            (&someone, "get", path("/metrics"), false),
            (&someone, "post", path("/api"), false),
            (&User::anonymous(), "get", path("/version"), true),
            (&User::anonymous(), "get", path("/api"), false),
            (
                &someone,
                "create",
                of("authorization.k8s.io", "selfsubjectaccessreviews", "", ""),
                true,
            ),
            (
                &someone,
                "create",
                of("authorization.k8s.io", "subjectaccessreviews", "", ""),
                false,
            ),
            (&someone, "list", of("", "pods", "", "default"), false),
            (&scheduler, "create", of("", "pods", "binding", "x"), true),
            (&scheduler, "update", of("", "nodes", "", ""), false),
            (
                &scheduler,
                "create",
                of("coordination.k8s.io", "leases", "", "kube-system"),
                true,
            ),
            (
                &scheduler,
                "update",
                of("coordination.k8s.io", "leases", "", "default"),
                false,
            ),
            // Nodes have their permissions from the node authorizer, not from a binding.
            (&node, "list", of("", "secrets", "", ""), false),
        ];
        for (user, verb, target, allowed) in table {
            let attributes = Attributes { verb, target };
            let matches = index.check(user, &attributes).is_ok();
            assert_eq!(matches, allowed, "{}: {attributes:?}", user.name);
        }
    }

    #[test]
    fn every_line_of_the_table_is_read() {
        let lines = |start: fn(&str) -> bool| TABLE.lines().filter(|line| start(line)).count();
        let comments = lines(|line| line.is_empty() || line.starts_with('#'));
        let rules = lines(|line| line.starts_with("  "));
        let all = objects();
        let matches = all
            .iter()
            .filter_map(|(_, _, object)| object["rules"].as_array());
        assert_eq!(matches.map(Vec::len).sum::<usize>(), rules);
        let read = all.len() - AGGREGATED.len() + rules + comments;
        assert_eq!(read, TABLE.lines().count());
        assert_eq!(node_rules().len(), 24);
    }

    #[test]
    fn every_binding_refers_to_a_role() {
        let all = objects();
        for (plural, namespace, object) in &all {
            if !plural.ends_with("bindings") {
                continue;
            }
            let of = &object["roleRef"];
            let (kind, namespace) = match of["kind"].as_str() {
                Some("Role") => ("roles", *namespace),
                _ => ("clusterroles", ""),
            };
            assert!(
                all.iter().any(|(plural, own, role)| {
                    (*plural, *own) == (kind, namespace) && role["metadata"]["name"] == of["name"]
                }),
                "{object}"
            );
        }
        // Unauthenticated users are bound only to public information.
        let public = all.iter().filter(|(_, _, object)| {
            let text = object.to_string();
            text.contains(UNAUTHENTICATED) || text.contains(ANONYMOUS)
        });
        let public: Vec<_> = public.map(|(_, _, o)| &o["metadata"]["name"]).collect();
        assert_eq!(public, ["system:public-info-viewer"]);
    }
}
