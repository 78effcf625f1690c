//! Authorization of requests.
//!
//! The [`Guard`] keeps an index of the rules that follows the store: before each decision it applies the
//! changes of the four tables since the last one. A binding therefore counts from the moment its creation was
//! acknowledged, and a decision needs no scan.

use super::core::Core;
use super::path::ResourcePath;
use super::query::Query;
use crate::authz::bootstrap::{GROUP, node_rules};
use crate::authz::{
    Attributes, Binding, GRAPH, Graph, Index, MASTERS, ResourceTarget, Role, RoleKind, Rule,
    RuleDenial, Target, User, node_of,
};
use crate::store::{Entry, Event, EventKind, Revision, Store, StoreError, TableId, Watcher};
use http::Method;
use koord_kinds::selector::FieldSelector;
use koord_kinds::status::ApiError;
use parking_lot::{Mutex, RwLock};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Authorization mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Authorization {
    /// Roles and bindings decide; `system:masters` may do everything.
    #[default]
    Rbac,
    /// Every authenticated user may do everything.
    AlwaysAllow,
}

/// Tables of roles and bindings.
const TABLES: [&str; 4] = [
    "clusterroles",
    "roles",
    "clusterrolebindings",
    "rolebindings",
];

/// Authorizes requests by roles, bindings and the node authorizer.
#[derive(Debug)]
pub struct Guard {
    store: Store,
    mode: Authorization,
    index: RwLock<Index>,
    /// Revision up to which the index is complete.
    indexed: AtomicU64,
    /// Watchers of the tables; `None` before the first decision and after falling behind.
    feed: Mutex<Option<Vec<Watcher>>>,
    /// Graph of the objects of each node; built at the first request of a node.
    nodes: Mutex<Option<(Graph, Vec<Watcher>)>>,
}

impl Guard {
    /// Returns a guard over the roles and bindings of `core`.
    pub(super) fn new(core: &Core, mode: Authorization) -> Self {
        Self {
            store: core.store().clone(),
            mode,
            index: RwLock::default(),
            indexed: AtomicU64::new(0),
            feed: Mutex::default(),
            nodes: Mutex::default(),
        }
    }

    /// Returns the index as of now.
    fn index(&self) -> parking_lot::RwLockReadGuard<'_, Index> {
        let now = self.store.revision();
        if self.indexed.load(Ordering::Acquire) < now {
            self.catch_up(now);
        }
        self.index.read()
    }

    fn catch_up(&self, now: Revision) {
        let mut feed = self.feed.lock();
        if self.indexed.load(Ordering::Acquire) >= now {
            return;
        }
        let up_to_date = feed
            .as_mut()
            .is_some_and(|watchers| watchers.iter_mut().all(|watcher| self.drain(watcher)));
        if !up_to_date {
            match self.read_all() {
                Ok(watchers) => *feed = Some(watchers),
                Err(error) => {
                    // The old index stays in use; the next decision tries again.
                    tracing::error!(%error, "failed to read roles and bindings, keeping the previous ones");
                    *feed = None;
                    return;
                }
            }
        }
        self.indexed.store(now, Ordering::Release);
    }

    /// Applies the changes of a table; false if some are lost.
    fn drain(&self, watcher: &mut Watcher) -> bool {
        loop {
            match watcher.try_next() {
                Ok(Some(event)) => apply(&mut self.index.write(), &event),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Checks a request of `node` by the node authorizer.
    fn check_node(&self, node: &str, attributes: &Attributes<'_>) -> Result<(), String> {
        static RULES: LazyLock<Vec<Rule>> = LazyLock::new(node_rules);
        let mut nodes = self.nodes.lock();
        let up_to_date = nodes.as_mut().is_some_and(|(graph, watchers)| {
            watchers
                .iter_mut()
                .all(|watcher| drain_graph(graph, watcher))
        });
        if !up_to_date {
            *nodes = None;
            let fresh = read_graph(&self.store).map_err(|error| error.to_string())?;
            *nodes = Some(fresh);
        }
        match &*nodes {
            Some((graph, _)) => graph.check(node, attributes, &RULES),
            None => Err(String::new()),
        }
    }

    fn read_all(&self) -> Result<Vec<Watcher>, StoreError> {
        let mut fresh = Index::default();
        let mut watchers = Vec::with_capacity(TABLES.len());
        for plural in TABLES {
            let table = TableId::new(GROUP, plural);
            let (entries, mut watcher) = self.store.follow(&table)?;
            for entry in &entries {
                put(&mut fresh, entry);
            }
            while let Ok(Some(event)) = watcher.try_next() {
                apply(&mut fresh, &event);
            }
            watchers.push(watcher);
        }
        *self.index.write() = fresh;
        Ok(watchers)
    }

    /// Returns the authorization mode.
    pub(crate) fn authorization(&self) -> Authorization {
        self.mode
    }

    /// Returns true if `user` may do everything regardless of roles.
    pub(super) fn unbounded(&self, user: &User) -> bool {
        self.authorization() == Authorization::AlwaysAllow || user.is_in(MASTERS)
    }

    /// Authorizes a request of `user`.
    ///
    /// # Errors
    /// 403 with the user, the verb and the target.
    pub fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        if self.unbounded(user) {
            return Ok(());
        }
        let requested = self.evaluate(user, attributes, |index| index.check(user, attributes));
        requested.map_err(|reason| {
            let mut why = attributes.refusal(&user.name);
            if !reason.is_empty() {
                why = format!("{why}: {reason}");
            }
            match &attributes.target {
                Target::Resource(target) => {
                    ApiError::forbidden(target.group, target.resource, target.name, &why)
                }
                Target::Path(_) => ApiError::forbidden("", "", "", &why),
            }
        })
    }

    /// Returns whether `user` may do this, and the reason.
    pub(super) fn decide(&self, user: &User, attributes: &Attributes<'_>) -> (bool, String) {
        if self.unbounded(user) {
            return (true, String::new());
        }
        match self.evaluate(user, attributes, |index| index.explain(user, attributes)) {
            Ok(reason) => (true, reason),
            Err(reason) => (false, reason),
        }
    }

    /// Checks the node authorizer and then, by `roles`, roles and bindings.
    ///
    /// # Errors
    /// Why it is not allowed, or an empty text.
    fn evaluate<T: Default>(
        &self,
        user: &User,
        attributes: &Attributes<'_>,
        roles: impl FnOnce(&Index) -> Result<T, RuleDenial>,
    ) -> Result<T, String> {
        let mut reasons = Vec::new();
        if let Some(node) = node_of(user) {
            match self.check_node(node, attributes) {
                Ok(()) => return Ok(T::default()),
                Err(why) => reasons.push(why),
            }
        }
        let denied = match roles(&self.index()) {
            Ok(answer) => return Ok(answer),
            Err(denied) => denied,
        };
        reasons.push(denied.reason());
        reasons.retain(|reason| !reason.is_empty());
        Err(reasons.join(", "))
    }

    /// Returns the rules of a role that a binding in `namespace` refers to.
    pub(super) fn role_rules(
        &self,
        kind: RoleKind,
        namespace: &str,
        name: &str,
    ) -> Option<Vec<Rule>> {
        let index = self.index();
        index.role(kind, namespace, name).map(<[Rule]>::to_vec)
    }

    /// Returns all rules of `user` in `namespace`, and why some could not be resolved.
    pub(super) fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, String) {
        if self.authorization() == Authorization::AlwaysAllow {
            return (vec![Rule::everything(), Rule::every_path()], String::new());
        }
        let index = self.index();
        let (mut rules, denied) = index.rules_for(user, namespace);
        if node_of(user).is_some() {
            let problem = "node authorizer does not support user rule resolution";
            return (rules, problem.to_owned());
        }
        if user.is_in(MASTERS) && rules.is_empty() {
            rules = vec![Rule::everything(), Rule::every_path()];
        }
        (rules, denied.reason())
    }
}

fn read_graph(store: &Store) -> Result<(Graph, Vec<Watcher>), StoreError> {
    let mut graph = Graph::default();
    let mut watchers = Vec::with_capacity(GRAPH.len());
    for (group, plural) in GRAPH {
        let table = TableId::new(group, plural);
        let (entries, watcher) = store.follow(&table)?;
        for entry in &entries {
            let (namespace, name) = (&*entry.key.namespace, &*entry.key.name);
            graph.put(plural, namespace, name, &entry.value());
        }
        watchers.push(watcher);
    }
    Ok((graph, watchers))
}

/// Applies the changes of a table; false if some are lost.
fn drain_graph(graph: &mut Graph, watcher: &mut Watcher) -> bool {
    loop {
        let Ok(event) = watcher.try_next() else {
            return false;
        };
        let Some(Event { kind, new, .. }) = event else {
            return true;
        };
        let (plural, key) = (new.table.plural(), &new.key);
        match kind {
            EventKind::Put => graph.put(plural, &key.namespace, &key.name, &new.value()),
            EventKind::Delete => graph.remove(plural, &key.namespace, &key.name),
        }
    }
}

fn apply(index: &mut Index, event: &Event) {
    match event.kind {
        EventKind::Put => put(index, &event.new),
        EventKind::Delete => remove(index, &event.new),
    }
}

fn put(index: &mut Index, entry: &Entry) {
    let (namespace, name) = (&*entry.key.namespace, &*entry.key.name);
    let value = entry.value();
    if entry.table.plural().ends_with("roles") {
        index.put_role(namespace, name, Role::read(&value));
    } else if let Some(binding) = Binding::read(namespace, name, &value) {
        index.put_binding(binding);
    } else {
        index.remove_binding(namespace, name);
    }
}

fn remove(index: &mut Index, entry: &Entry) {
    let (namespace, name) = (&*entry.key.namespace, &*entry.key.name);
    if entry.table.plural().ends_with("roles") {
        index.remove_role(namespace, name);
    } else {
        index.remove_binding(namespace, name);
    }
}

/// Returns the verb of a resource request; `""` for a method without a verb.
pub(super) fn verb(method: &Method, path: &ResourcePath, query: &Query) -> &'static str {
    let named = path.name.is_some();
    let watch = || path.watch || query.flag("watch").unwrap_or(false);
    match method.as_str() {
        "GET" | "HEAD" if path.subresource.is_some() => "get",
        "GET" | "HEAD" if watch() => "watch",
        "GET" | "HEAD" if named => "get",
        "GET" | "HEAD" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if named => "delete",
        "DELETE" => "deletecollection",
        _ => "",
    }
}

/// Authorizes a request for a resource.
///
/// # Errors
/// 403.
pub(super) fn check_resource(
    guard: &Guard,
    user: &User,
    verb: &str,
    path: &ResourcePath,
    query: &Query,
) -> Result<(), ApiError> {
    // A selector for one name makes the request one for that object.
    let selected = query
        .get("fieldSelector")
        .filter(|_| path.name.is_none() && verb != "create")
        .and_then(|fields| FieldSelector::parse(fields).ok());
    let required = |field| {
        selected
            .as_ref()
            .and_then(|s| s.required(field))
            .unwrap_or("")
    };
    let subresource = path.subresource.as_deref().unwrap_or("");
    let own_name = path.name.as_deref();
    // A namespace counts as being in itself.
    let of_namespace = path.plural == "namespaces" && path.namespace.is_none();
    let namespace = path.namespace.as_deref();
    let namespace = namespace.or(own_name.filter(|_| of_namespace));
    let target = ResourceTarget {
        group: &path.group,
        resource: &path.plural,
        subresource: subresource.split('/').next().unwrap_or(""),
        namespace: namespace.unwrap_or(""),
        name: own_name.unwrap_or_else(|| required("metadata.name")),
        node: required("spec.nodeName"),
    };
    let target = Target::Resource(target);
    guard.authorize(user, &Attributes { verb, target })
}

/// Authorizes a request for a path that is not a resource.
///
/// # Errors
/// 403.
pub(crate) fn check_path(
    guard: &Guard,
    user: &User,
    method: &Method,
    path: &str,
) -> Result<(), ApiError> {
    let verb = method.as_str().to_ascii_lowercase();
    let attributes = Attributes {
        verb: &verb,
        target: Target::Path(path),
    };
    guard.authorize(user, &attributes)
}
