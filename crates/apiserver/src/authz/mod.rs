//! Who may do what: role-based access control as functions of values.
//!
//! [`Rule`] says what one rule of a role allows, [`Index`] which rules a user has: it is kept from
//! the changes of roles and bindings, so that a question looks only at the bindings of the user and
//! of his groups. Nothing here does I/O or knows the store; `rest` feeds and asks it.

pub mod bootstrap;
mod index;
mod node;
mod rule;

pub use index::{Binding, Denied, Index, Role, RoleKind, Subject};
pub use node::{GRAPH, Graph, LEASES};
pub use rule::{Rule, uncovered};

/// The group whose members may do everything, whatever the roles say.
pub const MASTERS: &str = "system:masters";
/// The group of everybody who has proven who he is.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of everybody who has not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of all nodes.
pub const NODES: &str = "system:nodes";
/// Who sends a request without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of all service accounts; with `:` and a namespace, of those in it.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// What the name of a service account's user starts with; `namespace:name` follows.
pub const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Who sends a request. The server puts it into the request's extensions after it has
/// authenticated the connection; without it the caller is the in-process administrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User name, for example `kubernetes-admin`.
    pub name: String,
    /// The user's unique id, often empty.
    pub uid: String,
    /// Groups, for example `system:masters`.
    pub groups: Vec<String>,
    /// What else was proven of him, for example the pod that a token is bound to; by key.
    pub extra: Vec<(String, Vec<String>)>,
}

impl Default for User {
    fn default() -> Self {
        Self::new("kubernetes-admin", [MASTERS, AUTHENTICATED])
    }
}

impl User {
    /// A user of this name in these groups.
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

    /// The sender of a request without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, [UNAUTHENTICATED])
    }

    /// A service account, with the groups it always has.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let mut groups = account_groups(namespace);
        groups.push(AUTHENTICATED.to_owned());
        Self::new(format!("{SERVICE_ACCOUNT}{namespace}:{name}"), groups)
    }

    /// Whether the user is in `group`.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// The groups of a service account of `namespace`.
#[must_use]
pub fn account_groups(namespace: &str) -> Vec<String> {
    vec![
        SERVICE_ACCOUNTS.to_owned(),
        format!("{SERVICE_ACCOUNTS}:{namespace}"),
    ]
}

/// Namespace and name of the service account whose user name this is.
#[must_use]
pub fn account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// What the user name of a node starts with.
const NODE: &str = "system:node:";

/// The node whose identity this is.
#[must_use]
pub fn node_of(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix(NODE)?;
    (!name.is_empty() && user.is_in(NODES)).then_some(name)
}

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `create`, ...; of a path the method in lower case.
    pub verb: &'a str,
    /// To what.
    pub target: Target<'a>,
}

/// What an action is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// A resource.
    Resource(ResourceTarget<'a>),
    /// A path that is no resource, such as `/version`.
    Path(&'a str),
}

/// The resource of an action. What does not apply is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceTarget<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// The plural name.
    pub resource: &'a str,
    /// The sub-resource.
    pub subresource: &'a str,
    /// The namespace; empty: all of them, or a resource without.
    pub namespace: &'a str,
    /// The name of the object; empty: all of them, or one that has none yet.
    pub name: &'a str,
    /// The node whose pods only are meant: what a field selector says of `spec.nodeName`.
    pub node: &'a str,
}

impl Attributes<'_> {
    /// The namespace, empty without one.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match &self.target {
            Target::Resource(resource) => resource.namespace,
            Target::Path(_) => "",
        }
    }

    /// The sentence of a refusal: `User "x" cannot list resource "pods" in API group "" in the
    /// namespace "y"`.
    #[must_use]
    pub fn refusal(&self, user: &str) -> String {
        use koord_kinds::status::quoted;
        let (user, verb) = (quoted(user), self.verb);
        let text = match &self.target {
            Target::Path(path) => format!("User {user} cannot {verb} path {}", quoted(path)),
            Target::Resource(target) => {
                let what = match target.subresource {
                    "" => quoted(target.resource),
                    sub => quoted(&format!("{}/{sub}", target.resource)),
                };
                let place = match target.namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {}", quoted(namespace)),
                };
                let group = quoted(target.group);
                format!("User {user} cannot {verb} resource {what} in API group {group} {place}")
            }
        };
        // As upstream: a browser must not take it for markup.
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_who_what_and_where() {
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
