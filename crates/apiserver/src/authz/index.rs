//! Index of roles and bindings by user and group.

use super::{Attributes, Rule, SERVICE_ACCOUNT, User};
use rustc_hash::FxHashMap;
use serde_json::Value;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Values by namespace and name; cluster-scoped ones are under `""`.
type ByName<T> = FxHashMap<Arc<str>, FxHashMap<Arc<str>, T>>;
/// Names of the bindings of one subject, by namespace.
type BindingNames = FxHashMap<Arc<str>, BTreeSet<Arc<str>>>;

/// A `Role` or, without a namespace, a `ClusterRole`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Role {
    rules: Arc<[Rule]>,
}

impl Role {
    /// Parses the object.
    #[must_use]
    pub fn read(role: &Value) -> Self {
        Self {
            rules: Rule::parse_list(role.get("rules")).into(),
        }
    }
}

/// Kind of role that a binding refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleKind {
    /// A role of the binding's namespace.
    Role,
    /// A cluster role.
    ClusterRole,
}

impl RoleKind {
    /// Returns the kind as it is in references.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Role => "Role",
            Self::ClusterRole => "ClusterRole",
        }
    }
}

/// Subject of a binding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The user with this name.
    User(Arc<str>),
    /// The members of this group.
    Group(Arc<str>),
    /// A service account by namespace and name.
    ServiceAccount(Arc<str>, Arc<str>),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "User {name:?}"),
            Self::Group(name) => write!(f, "Group {name:?}"),
            Self::ServiceAccount(namespace, name) => {
                write!(f, "ServiceAccount \"{name}/{namespace}\"")
            }
        }
    }
}

impl Subject {
    /// Parses a subject of a binding in `namespace`. `None` if no user can match it.
    fn read(subject: &Value, namespace: &str) -> Option<Self> {
        let text = |field: &str| subject.get(field).and_then(Value::as_str).unwrap_or("");
        let name: Arc<str> = text("name").into();
        match text("kind") {
            "User" => Some(Self::User(name)),
            "Group" => Some(Self::Group(name)),
            "ServiceAccount" => {
                let own = Some(text("namespace")).filter(|own| !own.is_empty());
                let namespace = own.unwrap_or(namespace);
                (!namespace.is_empty()).then(|| Self::ServiceAccount(namespace.into(), name))
            }
            _ => None,
        }
    }

    fn is(&self, user: &User) -> bool {
        match self {
            Self::User(name) => **name == user.name,
            Self::Group(name) => user.is_in(name),
            Self::ServiceAccount(namespace, name) => {
                super::account_of(&user.name) == Some((namespace, name))
            }
        }
    }
}

/// A `RoleBinding` or, without a namespace, a `ClusterRoleBinding`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    namespace: Arc<str>,
    name: Arc<str>,
    kind: RoleKind,
    role: Arc<str>,
    subjects: Vec<Subject>,
}

impl Binding {
    /// Parses the object. `None` if its reference cannot be a role: then it has no effect.
    #[must_use]
    pub fn read(namespace: &str, name: &str, binding: &Value) -> Option<Self> {
        let reference = binding.get("roleRef")?;
        let kind = match (reference.get("kind")?.as_str()?, namespace) {
            ("ClusterRole", _) => RoleKind::ClusterRole,
            ("Role", namespace) if !namespace.is_empty() => RoleKind::Role,
            _ => return None,
        };
        let subjects = binding.get("subjects").and_then(Value::as_array);
        let subjects = subjects.into_iter().flatten();
        Some(Self {
            namespace: namespace.into(),
            name: name.into(),
            kind,
            role: reference.get("name")?.as_str()?.into(),
            subjects: subjects
                .filter_map(|subject| Subject::read(subject, namespace))
                .collect(),
        })
    }

    /// Returns the namespace of the role, or `""`.
    fn role_namespace(&self) -> &str {
        match self.kind {
            RoleKind::Role => &self.namespace,
            RoleKind::ClusterRole => "",
        }
    }

    /// Describes how this binding gives its role to `user`, with the text of upstream's reviews.
    fn source(&self, user: &User) -> String {
        let (kind, own) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.name.to_string())
        } else {
            ("RoleBinding", format!("{}/{}", self.name, self.namespace))
        };
        let subject = self.subjects.iter().find(|subject| subject.is(user));
        let subject = subject.map(Subject::to_string).unwrap_or_default();
        format!(
            "{kind} {own:?} of {} {:?} to {subject}",
            self.kind.name(),
            &*self.role
        )
    }
}

/// Denial of a request because no rule allows it, with the reasons why rules may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleDenial {
    /// Roles that do not exist although bindings of the user refer to them.
    pub missing: Vec<String>,
}

impl RuleDenial {
    /// Returns the reason with upstream's text; empty if there is none.
    #[must_use]
    pub fn reason(&self) -> String {
        match self.missing.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        }
    }
}

/// Index of all roles and bindings.
#[derive(Debug, Default)]
pub struct Index {
    roles: ByName<Role>,
    bindings: ByName<Binding>,
    /// Bindings by user name; service accounts are users.
    users: FxHashMap<Arc<str>, BindingNames>,
    groups: FxHashMap<Arc<str>, BindingNames>,
}

impl Index {
    /// Adds or replaces a role; without a namespace, a cluster role.
    pub fn put_role(&mut self, namespace: &str, name: &str, role: Role) {
        let of_namespace = self.roles.entry(namespace.into()).or_default();
        of_namespace.insert(name.into(), role);
    }

    /// Removes a role.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        remove(&mut self.roles, namespace, name);
    }

    /// Adds or replaces a binding. If an updated binding parses as `None`, remove it instead.
    pub fn put_binding(&mut self, binding: Binding) {
        self.remove_binding(&binding.namespace, &binding.name);
        for subject in &binding.subjects {
            let (map, key) = self.bound_of(subject);
            let bound = map.entry(key).or_default();
            let names = bound.entry(Arc::clone(&binding.namespace)).or_default();
            names.insert(Arc::clone(&binding.name));
        }
        let of_namespace = self
            .bindings
            .entry(Arc::clone(&binding.namespace))
            .or_default();
        of_namespace.insert(Arc::clone(&binding.name), binding);
    }

    /// Removes a binding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let Some(binding) = remove(&mut self.bindings, namespace, name) else {
            return;
        };
        for subject in &binding.subjects {
            let (map, key) = self.bound_of(subject);
            let Some(bound) = map.get_mut(&key) else {
                continue;
            };
            if let Some(names) = bound.get_mut(namespace) {
                names.remove(name);
                if names.is_empty() {
                    bound.remove(namespace);
                }
            }
            if bound.is_empty() {
                map.remove(&key);
            }
        }
    }

    fn bound_of(
        &mut self,
        subject: &Subject,
    ) -> (&mut FxHashMap<Arc<str>, BindingNames>, Arc<str>) {
        match subject {
            Subject::User(name) => (&mut self.users, Arc::clone(name)),
            Subject::Group(name) => (&mut self.groups, Arc::clone(name)),
            Subject::ServiceAccount(namespace, name) => {
                let user = format!("{SERVICE_ACCOUNT}{namespace}:{name}");
                (&mut self.users, user.into())
            }
        }
    }

    /// Checks whether a rule allows a request of `user`.
    ///
    /// # Errors
    /// If none does.
    pub fn check(&self, user: &User, attributes: &Attributes<'_>) -> Result<(), RuleDenial> {
        self.find_allowing(user, attributes).map(drop)
    }

    /// Returns which binding allows a request of `user`, with upstream's text.
    ///
    /// # Errors
    /// If none does.
    pub fn explain(&self, user: &User, attributes: &Attributes<'_>) -> Result<String, RuleDenial> {
        let binding = self.find_allowing(user, attributes)?;
        Ok(format!("RBAC: allowed by {}", binding.source(user)))
    }

    /// Returns the first binding whose rules allow a request of `user`.
    ///
    /// # Errors
    /// If none does; with the roles that bindings of the user name and that do not exist.
    fn find_allowing(
        &self,
        user: &User,
        attributes: &Attributes<'_>,
    ) -> Result<&Binding, RuleDenial> {
        let mut denied = RuleDenial::default();
        let matches = self.visit(user, attributes.namespace(), |binding, rules| {
            let Some(rules) = rules else {
                let missing = missing_role_reason(binding);
                if !denied.missing.contains(&missing) {
                    denied.missing.push(missing);
                }
                return ControlFlow::Continue(());
            };
            if rules.iter().any(|rule| rule.allows(attributes)) {
                ControlFlow::Break(binding)
            } else {
                ControlFlow::Continue(())
            }
        });
        matches.ok_or(denied)
    }

    /// Returns all rules of `user`, cluster-wide ones and those in a non-empty `namespace`, and the roles
    /// that do not exist.
    #[must_use]
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, RuleDenial) {
        let (mut all, mut denied) = (Vec::new(), RuleDenial::default());
        let mut observed = BTreeSet::new();
        let _: Option<()> = self.visit(user, namespace, |binding, rules| {
            // Several subjects of a binding may match the user.
            if observed.insert((Arc::clone(&binding.namespace), Arc::clone(&binding.name))) {
                match rules {
                    Some(rules) => all.extend(rules.iter().cloned()),
                    None => denied.missing.push(missing_role_reason(binding)),
                }
            }
            ControlFlow::Continue(())
        });
        (all, denied)
    }

    /// Returns the rules of a role that a binding in `namespace` refers to.
    #[must_use]
    pub fn role(&self, kind: RoleKind, namespace: &str, name: &str) -> Option<&[Rule]> {
        let namespace = match kind {
            RoleKind::Role => namespace,
            RoleKind::ClusterRole => "",
        };
        Some(&self.roles.get(namespace)?.get(name)?.rules)
    }

    /// Calls `look` for each binding of `user` with its role's rules until it breaks: first cluster-wide
    /// bindings, then those in `namespace`.
    fn visit<'a, B>(
        &'a self,
        user: &User,
        namespace: &str,
        mut look: impl FnMut(&'a Binding, Option<&'a [Rule]>) -> ControlFlow<B>,
    ) -> Option<B> {
        let scopes = std::iter::once("").chain((!namespace.is_empty()).then_some(namespace));
        let own = self.users.get(user.name.as_str());
        let of_groups = user
            .groups
            .iter()
            .filter_map(|group| self.groups.get(group.as_str()));
        let bound: SmallVec<[&BindingNames; 8]> = own.into_iter().chain(of_groups).collect();
        for scope in scopes {
            let Some(bindings) = self.bindings.get(scope) else {
                continue;
            };
            let names = bound.iter().filter_map(|bound| bound.get(scope));
            for name in names.flatten() {
                let Some(binding) = bindings.get(name) else {
                    continue;
                };
                let role = self.roles.get(binding.role_namespace());
                let role = role.and_then(|roles| roles.get(&binding.role));
                if let ControlFlow::Break(found) = look(binding, role.map(|role| &*role.rules)) {
                    return Some(found);
                }
            }
        }
        None
    }
}

fn missing_role_reason(binding: &Binding) -> String {
    let plural = match binding.kind {
        RoleKind::Role => "role",
        RoleKind::ClusterRole => "clusterrole",
    };
    format!(
        "{plural}.rbac.authorization.k8s.io {:?} not found",
        &*binding.role
    )
}

fn remove<T>(map: &mut ByName<T>, namespace: &str, name: &str) -> Option<T> {
    let of_namespace = map.get_mut(namespace)?;
    let removed = of_namespace.remove(name);
    if of_namespace.is_empty() {
        map.remove(namespace);
    }
    removed
}

#[cfg(test)]
mod tests;
