//! Role-based access control, as functions of values.
//!
//! A [`Rule`] is one rule of a role. An [`Index`] maps users to their rules: it is updated when roles and
//! bindings change, so that a check reads only the bindings of the user and its groups. This module does no
//! I/O and does not use the store; `rest` updates and queries it.

pub mod bootstrap;
mod index;
mod node;
mod rule;

pub use index::{Binding, Index, Role, RoleKind, RuleDenial, Subject};
pub use node::{GRAPH, Graph, LEASES};
pub use rule::{Rule, uncovered};

/// Group whose members may do everything, regardless of roles.
pub const MASTERS: &str = "system:masters";
/// Group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group of all unauthenticated users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group of all nodes.
pub const NODES: &str = "system:nodes";
/// User of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// Group of all service accounts; followed by `:` and a namespace, the group of those in it.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// Prefix of the user names of service accounts, before `namespace:name`.
pub const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// User of a request. The server puts it into the request's extensions after authentication; without it the
/// caller is the in-process administrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User name, for example `kubernetes-admin`.
    pub name: String,
    /// The user's unique id, often empty.
    pub uid: String,
    /// Groups, for example `system:masters`.
    pub groups: Vec<String>,
    /// Further authenticated attributes by key, for example the pod that a token is bound to.
    pub extra: Vec<(String, Vec<String>)>,
}

impl Default for User {
    fn default() -> Self {
        Self::new("kubernetes-admin", [MASTERS, AUTHENTICATED])
    }
}

impl User {
    /// Creates a user with this name in these groups.
    pub fn new<G: Into<String>>(
        name: impl Into<String>,
        groups: impl IntoIterator<Item = G>,
    ) -> Self {
        Self {
            name: name.into(),
            uid: String::new(),
            groups: groups.into_iter().map(Into::into).collect(),
            extra: Vec::new(),
        }
    }

    /// Returns the user of requests without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, [UNAUTHENTICATED])
    }

    /// Returns a service account with the groups it always has.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let mut groups = account_groups(namespace);
        groups.push(AUTHENTICATED.to_owned());
        Self::new(format!("{SERVICE_ACCOUNT}{namespace}:{name}"), groups)
    }

    /// Returns true if the user is in `group`.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// Returns the groups of a service account in `namespace`.
#[must_use]
pub fn account_groups(namespace: &str) -> Vec<String> {
    vec![
        SERVICE_ACCOUNTS.to_owned(),
        format!("{SERVICE_ACCOUNTS}:{namespace}"),
    ]
}

/// Returns namespace and name of the service account with this user name; `None` for other users.
#[must_use]
pub fn account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Prefix of the user names of nodes.
const NODE: &str = "system:node:";

/// Returns the name of the node that `user` is; `None` for other users.
#[must_use]
pub fn node_of(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix(NODE)?;
    (!name.is_empty() && user.is_in(NODES)).then_some(name)
}

/// A request to authorize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// Verb, such as `get`, `list` or `create`; for a path, the method in lower case.
    pub verb: &'a str,
    /// Object of the request.
    pub target: Target<'a>,
}

/// Target that a request accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// A resource.
    Resource(ResourceTarget<'a>),
    /// A path that is not a resource, such as `/version`.
    Path(&'a str),
}

/// A resource that a request accesses. Fields that do not apply are empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceTarget<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Subresource.
    pub subresource: &'a str,
    /// Namespace; empty: all of them, or a cluster-scoped resource.
    pub namespace: &'a str,
    /// Name of the object; empty: all of them, or not generated yet.
    pub name: &'a str,
    /// Node whose pods are requested by a field selector on `spec.nodeName`.
    pub node: &'a str,
}

impl Attributes<'_> {
    /// Returns the namespace, empty without one.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match &self.target {
            Target::Resource(resource) => resource.namespace,
            Target::Path(_) => "",
        }
    }

    /// Returns the message of a refusal: `User "x" cannot list resource "pods" in API group "" in the
    /// namespace "y"`.
    #[must_use]
    pub fn refusal(&self, user: &str) -> String {
        use koord_kinds::status::quoted;
        let (user, verb) = (quoted(user), self.verb);
        let text = match &self.target {
            Target::Path(path) => format!("User {user} cannot {verb} path {}", quoted(path)),
            Target::Resource(target) => {
                let description = match target.subresource {
                    "" => quoted(target.resource),
                    sub => quoted(&format!("{}/{sub}", target.resource)),
                };
                let place = match target.namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {}", quoted(namespace)),
                };
                let group = quoted(target.group);
                format!(
                    "User {user} cannot {verb} resource {description} in API group {group} {place}"
                )
            }
        };
        // Escaped as upstream does, so that a browser does not interpret it.
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_contains_user_verb_and_namespace() {
        let target = ResourceTarget {
            resource: "pods",
            namespace: "y",
            ..ResourceTarget::default()
        };
        let ask = |verb, target| Attributes { verb, target }.refusal("x");
        assert_eq!(
            ask("list", Target::Resource(target)),
            r#"User "x" cannot list resource "pods" in API group "" in the namespace "y""#
        );
        let target = ResourceTarget {
            group: "apps",
            resource: "deployments",
            subresource: "scale",
            ..ResourceTarget::default()
        };
        assert_eq!(
            ask("update", Target::Resource(target)),
            r#"User "x" cannot update resource "deployments/scale" in API group "apps" at the cluster scope"#
        );
        assert_eq!(
            ask("get", Target::Path("/<b>&")),
            r#"User "x" cannot get path "/&lt;b&gt;&amp;""#
        );
    }

    #[test]
    fn names_of_service_accounts() {
        assert_eq!(account_of("system:serviceaccount:a:b"), Some(("a", "b")));
        for other in [
            "a",
            "system:serviceaccount:a",
            "system:serviceaccount::b",
            "system:serviceaccount:a:",
            "system:serviceaccount:a:b:c",
        ] {
            assert_eq!(account_of(other), None, "{other}");
        }
        let user = User::service_account("a", "b");
        assert_eq!(account_of(&user.name), Some(("a", "b")));
        assert!(user.is_in("system:serviceaccounts:a") && !user.is_in("system:serviceaccounts:b"));
    }
}
