//! Several trees of quotas side by side, each with something of its own to divide.

use super::{Options, Quota, Side, Spec, Sums, Tree, is_built_in};
use crate::resources::Amounts;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Trees by id. The one without an id is always there, and alone has the built-in quotas. A name is
/// that of one quota, whichever tree it is in.
#[derive(Debug, Clone)]
pub struct Forest {
    options: Options,
    main: Tree,
    others: BTreeMap<Arc<str>, Tree>,
    /// Per quota that is not in the tree without an id, its tree's.
    homes: HashMap<Arc<str>, Arc<str>>,
}

impl Forest {
    /// The tree without an id, with the built-in quotas.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            main: Tree::new(options),
            others: BTreeMap::new(),
            homes: HashMap::new(),
        }
    }

    /// Adds a quota to the tree `id`, moves it there, or changes what it may have. Its pods stay.
    /// Built-in quotas do not move.
    pub fn set(&mut self, name: &str, id: &str, spec: Spec) {
        let id = if is_built_in(name) { "" } else { id };
        if self.tree_of(name) == id {
            self.home_mut(name).set(name, spec);
            return;
        }
        let own = self.take(name);
        let tree = if id.is_empty() {
            &mut self.main
        } else {
            let id: Arc<str> = id.into();
            self.homes.insert(name.into(), id.clone());
            let options = self.options;
            self.others.entry(id).or_insert_with(|| Tree::new(options))
        };
        tree.set(name, spec);
        if let Some(own) = own {
            tree.give(name, own);
        }
    }

    /// Takes a quota out, with what is charged to it; see [`Tree::remove`].
    pub fn remove(&mut self, name: &str) {
        self.take(name);
    }

    /// The same; returns what was charged to it. A tree without quotas is gone, and its total with it.
    fn take(&mut self, name: &str) -> Option<Sums> {
        let own = self.home_mut(name).take(name);
        if let Some(id) = self.homes.remove(name)
            && !self.homes.values().any(|home| *home == id)
        {
            self.others.remove(&id);
        }
        own
    }

    fn home(&self, name: &str) -> &Tree {
        let other = self.homes.get(name).and_then(|id| self.others.get(id));
        other.unwrap_or(&self.main)
    }

    fn home_mut(&mut self, name: &str) -> &mut Tree {
        let id = self.homes.get(name);
        match id.and_then(|id| self.others.get_mut(id)) {
            Some(tree) => tree,
            None => &mut self.main,
        }
    }

    /// The id of the tree that quota `name` is in; empty for the tree without an id, and where there
    /// is no such quota.
    #[must_use]
    pub fn tree_of(&self, name: &str) -> &str {
        self.homes.get(name).map_or("", |id| id)
    }

    /// Sets what the tree `id` has. A tree without quotas remembers nothing.
    pub fn set_total(&mut self, id: &str, total: Amounts) {
        if id.is_empty() {
            self.main.set_total(total);
        } else if let Some(tree) = self.others.get_mut(id) {
            tree.set_total(total);
        }
    }

    /// The name of a quota, shared; `None` when there is no such quota.
    #[must_use]
    pub fn interned(&self, name: &str) -> Option<Arc<str>> {
        self.home(name).interned(name)
    }

    /// The names of all quotas, in order.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names = self.main.names();
        names.extend(self.homes.keys().cloned());
        names.sort_unstable();
        names
    }

    /// See [`Tree::charge`].
    pub fn charge(
        &mut self,
        name: &str,
        side: Side,
        amounts: &Amounts,
        non_preemptible: bool,
        back: bool,
    ) {
        let tree = self.home_mut(name);
        tree.charge(name, side, amounts, non_preemptible, back);
    }

    /// See [`Tree::quota`].
    #[must_use]
    pub fn quota(&self, name: &str) -> Option<&Quota> {
        self.home(name).quota(name)
    }

    /// See [`Tree::settle`].
    pub fn settle(&mut self) {
        self.main.settle();
        for tree in self.others.values_mut() {
            tree.settle();
        }
    }

    /// See [`Tree::refresh`].
    pub fn refresh(&mut self, name: &str) {
        self.home_mut(name).refresh(name);
    }

    /// See [`Tree::fresh`].
    pub fn fresh(&mut self, name: &str) -> Option<&Quota> {
        self.home_mut(name).fresh(name)
    }

    /// See [`Tree::is_fresh`].
    #[must_use]
    pub fn is_fresh(&self, name: &str) -> bool {
        self.home(name).is_fresh(name)
    }

    /// See [`Tree::hangs`].
    #[must_use]
    pub fn hangs(&self, name: &str) -> bool {
        self.home(name).hangs(name)
    }

    /// See [`Tree::parent`]: a quota's parent is in its own tree.
    #[must_use]
    pub fn parent(&self, name: &str) -> Option<&Quota> {
        self.home(name).parent(name)
    }
}
