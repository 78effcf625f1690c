//! Compares each decision of the index with a plain scan of all objects.

use super::*;
use crate::authz::{AUTHENTICATED, ResourceTarget, Target};
use proptest::prelude::*;
use serde_json::json;

fn reader(resources: &[&str]) -> Role {
    Role::read(&json!({"rules": [
        {"verbs": ["get"], "apiGroups": [""], "resources": resources},
    ]}))
}

fn bind(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Binding {
    let object = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1},
        "subjects": subjects,
    });
    Binding::read(namespace, name, &object).unwrap()
}

fn get<'a>(resource: &'a str, namespace: &'a str) -> Attributes<'a> {
    Attributes {
        verb: "get",
        target: Target::Resource(ResourceTarget {
            resource,
            namespace,
            ..ResourceTarget::default()
        }),
    }
}

fn user(name: &str, groups: &[&str]) -> User {
    User::new(name, groups.iter().copied())
}

#[test]
fn cluster_role_applies_where_bound() {
    let mut index = Index::default();
    index.put_role("", "reader", reader(&["pods", "nodes"]));
    let ann = json!([{"kind": "User", "name": "ann"}]);
    let team = json!([{"kind": "Group", "name": "team"}]);
    index.put_binding(bind("a", "ann", ("ClusterRole", "reader"), ann));
    index.put_binding(bind("", "team", ("ClusterRole", "reader"), team));
    let may = |who: &User, what: &Attributes<'_>| index.check(who, what).is_ok();
    let (ann, bob) = (user("ann", &[]), user("bob", &["team"]));
    assert!(may(&ann, &get("pods", "a")));
    assert!(!may(&ann, &get("pods", "b")));
    assert!(!may(&ann, &get("nodes", "")));
    assert!(may(&bob, &get("pods", "b")) && may(&bob, &get("nodes", "")));
    assert!(!may(&user("team", &["ann"]), &get("pods", "a")));
    assert_eq!(
        index.explain(&ann, &get("pods", "a")).unwrap(),
        r#"RBAC: allowed by RoleBinding "ann/a" of ClusterRole "reader" to User "ann""#
    );
    assert_eq!(
        index.explain(&bob, &get("pods", "a")).unwrap(),
        r#"RBAC: allowed by ClusterRoleBinding "team" of ClusterRole "reader" to Group "team""#
    );
}

#[test]
fn role_applies_in_its_namespace() {
    let mut index = Index::default();
    index.put_role("a", "reader", reader(&["pods"]));
    let everybody = json!([{"kind": "Group", "name": AUTHENTICATED}]);
    index.put_binding(bind("a", "x", ("Role", "reader"), everybody.clone()));
    index.put_binding(bind("b", "x", ("Role", "reader"), everybody));
    let ann = user("ann", &[AUTHENTICATED]);
    assert!(index.check(&ann, &get("pods", "a")).is_ok());
    let denied = index.check(&ann, &get("pods", "b")).unwrap_err();
    assert_eq!(
        denied.reason(),
        r#"RBAC: role.rbac.authorization.k8s.io "reader" not found"#
    );
    // A cluster-wide binding cannot refer to a role.
    let object = json!({"roleRef": {"kind": "Role", "name": "reader"}});
    assert_eq!(Binding::read("", "x", &object), None);
}

#[test]
fn service_account_namespace_defaults_to_bindings() {
    let mut index = Index::default();
    index.put_role("", "reader", reader(&["pods"]));
    let close_to = json!([{"kind": "ServiceAccount", "name": "robot"}]);
    let distant = json!([{"kind": "ServiceAccount", "name": "robot", "namespace": "far"}]);
    index.put_binding(bind(
        "a",
        "near",
        ("ClusterRole", "reader"),
        close_to.clone(),
    ));
    index.put_binding(bind("a", "far", ("ClusterRole", "reader"), distant));
    index.put_binding(bind("", "none", ("ClusterRole", "reader"), close_to));
    let may = |namespace: &str, what: &str| {
        let robot = User::service_account(namespace, "robot");
        index.check(&robot, &get("pods", what)).is_ok()
    };
    assert!(may("a", "a") && may("far", "a"));
    assert!(!may("b", "a") && !may("a", "b") && !may("far", "far"));
}

#[test]
fn removed_roles_and_bindings_lose_effect() {
    let mut index = Index::default();
    let ann = json!([{"kind": "User", "name": "ann"}, {"kind": "Group", "name": "team"}]);
    index.put_role("", "reader", reader(&["pods"]));
    index.put_binding(bind("a", "x", ("ClusterRole", "reader"), ann));
    let manager_index = user("ann", &["team"]);
    assert_eq!(
        index.rules_for(&manager_index, "a").0.len(),
        1,
        "once, by two subjects"
    );
    assert_eq!(index.rules_for(&manager_index, "").0.len(), 0);
    // Another subject instead of both.
    let bob = json!([{"kind": "User", "name": "bob"}]);
    index.put_binding(bind("a", "x", ("ClusterRole", "reader"), bob));
    assert!(index.check(&manager_index, &get("pods", "a")).is_err());
    let bob = user("bob", &[]);
    assert!(index.check(&bob, &get("pods", "a")).is_ok());
    index.remove_role("", "reader");
    assert!(index.check(&bob, &get("pods", "a")).is_err());
    index.put_role("", "reader", reader(&["pods"]));
    assert!(index.check(&bob, &get("pods", "a")).is_ok());
    index.remove_binding("a", "x");
    assert!(index.check(&bob, &get("pods", "a")).is_err());
    assert!(index.users.is_empty() && index.groups.is_empty() && index.bindings.is_empty());
}

/// Reference to a role (true for a cluster role), its number, and the subjects.
type BoundRole = (bool, u8, Vec<(u8, u8)>);

/// Changes of the index, with small numbers for names.
#[derive(Debug, Clone)]
enum IndexChange {
    Role(u8, u8, Option<u8>),
    Binding(u8, u8, Option<BoundRole>),
}

fn change() -> impl Strategy<Value = IndexChange> {
    let subjects = proptest::collection::vec((0..3u8, 0..2u8), 0..3);
    prop_oneof![
        (0..3u8, 0..2u8, proptest::option::of(0..2u8))
            .prop_map(|(n, r, w)| IndexChange::Role(n, r, w)),
        (
            0..3u8,
            0..3u8,
            proptest::option::of((any::<bool>(), 0..2u8, subjects))
        )
            .prop_map(|(n, b, w)| IndexChange::Binding(n, b, w)),
    ]
}

/// Namespace 0 stands for no namespace.
fn namespace(n: u8) -> String {
    if n == 0 {
        String::new()
    } else {
        format!("n{n}")
    }
}

fn subject((kind, n): (u8, u8)) -> Value {
    match kind {
        0 => json!({"kind": "User", "name": format!("u{n}")}),
        1 => json!({"kind": "Group", "name": format!("g{n}")}),
        _ => json!({"kind": "ServiceAccount", "name": format!("s{n}"), "namespace": "n1"}),
    }
}

proptest! {
    #[test]
    fn index_equals_reading_all_objects(
        changes in proptest::collection::vec(change(), 0..40)
    ) {
        let mut index = Index::default();
        let mut roles = std::collections::BTreeMap::new();
        let mut bindings = std::collections::BTreeMap::new();
        for change in changes {
            match change {
                IndexChange::Role(n, r, Some(what)) => {
                    let role = reader(&[["pods", "nodes"][usize::from(what)]]);
                    index.put_role(&namespace(n), &format!("r{r}"), role.clone());
                    roles.insert((namespace(n), format!("r{r}")), role);
                }
                IndexChange::Role(n, r, None) => {
                    index.remove_role(&namespace(n), &format!("r{r}"));
                    roles.remove(&(namespace(n), format!("r{r}")));
                }
                IndexChange::Binding(n, b, Some((cluster, r, subjects))) => {
                    let kind = if cluster || n == 0 { "ClusterRole" } else { "Role" };
                    let subjects: Vec<Value> = subjects.into_iter().map(subject).collect();
                    let name = format!("b{b}");
                    let role = format!("r{r}");
                    let binding = bind(&namespace(n), &name, (kind, &role), subjects.into());
                    index.put_binding(binding.clone());
                    bindings.insert((namespace(n), name), binding);
                }
                IndexChange::Binding(n, b, None) => {
                    index.remove_binding(&namespace(n), &format!("b{b}"));
                    bindings.remove(&(namespace(n), format!("b{b}")));
                }
            }
        }
        let users = [
            user("u0", &[]),
            user("u1", &["g0", "g1"]),
            User::service_account("n1", "s0"),
            User::service_account("n2", "s0"),
        ];
        for manager_index in &users {
            for place in ["", "n1", "n2"] {
                for resource in ["pods", "nodes"] {
                    let attributes = get(resource, place);
                    let plain = bindings.iter().any(|((of, _), binding)| {
                        let role_of = if binding.kind == RoleKind::Role { of.as_str() } else { "" };
                        (of.is_empty() || of == place)
                            && binding.subjects.iter().any(|subject| subject.is(manager_index))
                            && roles
                                .get(&(role_of.to_owned(), binding.role.to_string()))
                                .is_some_and(|role| {
                                    role.rules.iter().any(|rule| rule.allows(&attributes))
                                })
                    });
                    prop_assert_eq!(index.check(manager_index, &attributes).is_ok(), plain);
                }
            }
        }
    }
}
