//! Several quota trees, each with its own total.

use super::{ChargeKind, Options, Quota, QuotaSpec, QuotaTree, Sums, is_built_in};
use crate::resources::Amounts;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Quota trees by id. The main tree, with the empty id, always exists and alone has the built-in quotas.
/// Names of quotas are unique over all trees.
#[derive(Debug, Clone)]
pub struct QuotaForest {
    options: Options,
    main: QuotaTree,
    others: BTreeMap<Arc<str>, QuotaTree>,
    /// Quota to the id of its tree, for quotas that are not in the main tree.
    homes: HashMap<Arc<str>, Arc<str>>,
}

impl QuotaForest {
    /// Creates the main tree with the built-in quotas.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            main: QuotaTree::new(options),
            others: BTreeMap::new(),
            homes: HashMap::new(),
        }
    }

    /// Adds a quota to the tree `id`, moves it there, or changes its limits. Charged pods stay. Built-in
    /// quotas are not moved.
    pub fn set(&mut self, name: &str, id: &str, spec: QuotaSpec) {
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
            self.others
                .entry(id)
                .or_insert_with(|| QuotaTree::new(options))
        };
        tree.set(name, spec);
        if let Some(own) = own {
            tree.give(name, own);
        }
    }

    /// Removes a quota and its charged pods; see [`QuotaTree::remove`].
    pub fn remove(&mut self, name: &str) {
        self.take(name);
    }

    /// Like [`Self::remove`], and returns the sums charged to the quota. A tree without quotas is removed
    /// with its total.
    fn take(&mut self, name: &str) -> Option<Sums> {
        let own = self.home_mut(name).take(name);
        if let Some(id) = self.homes.remove(name)
            && !self.homes.values().any(|home| *home == id)
        {
            self.others.remove(&id);
        }
        own
    }

    fn home(&self, name: &str) -> &QuotaTree {
        let other = self.homes.get(name).and_then(|id| self.others.get(id));
        other.unwrap_or(&self.main)
    }

    fn home_mut(&mut self, name: &str) -> &mut QuotaTree {
        let id = self.homes.get(name);
        match id.and_then(|id| self.others.get_mut(id)) {
            Some(tree) => tree,
            None => &mut self.main,
        }
    }

    /// Returns the id of the tree that quota `name` is in; empty for the main tree, and if there is no such
    /// quota.
    #[must_use]
    pub fn tree_of(&self, name: &str) -> &str {
        self.homes.get(name).map_or("", |id| id)
    }

    /// Sets the total amounts of the tree `id`. Has no effect for a tree without quotas.
    pub fn set_total(&mut self, id: &str, total: Amounts) {
        if id.is_empty() {
            self.main.set_total(total);
        } else if let Some(tree) = self.others.get_mut(id) {
            tree.set_total(total);
        }
    }

    /// Returns the shared name of a quota; `None` if there is no such quota.
    #[must_use]
    pub fn interned(&self, name: &str) -> Option<Arc<str>> {
        self.home(name).interned(name)
    }

    /// Returns the names of all quotas, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names = self.main.names();
        names.extend(self.homes.keys().cloned());
        names.sort_unstable();
        names
    }

    /// Charges a pod; see [`QuotaTree::charge`].
    pub fn charge(
        &mut self,
        name: &str,
        side: ChargeKind,
        amounts: &Amounts,
        non_preemptible: bool,
        back: bool,
    ) {
        let tree = self.home_mut(name);
        tree.charge(name, side, amounts, non_preemptible, back);
    }

    /// Returns a quota; see [`QuotaTree::quota`].
    #[must_use]
    pub fn quota(&self, name: &str) -> Option<&Quota> {
        self.home(name).quota(name)
    }

    /// Rebuilds all trees if needed; see [`QuotaTree::rebuild`].
    pub fn rebuild(&mut self) {
        self.main.rebuild();
        for tree in self.others.values_mut() {
            tree.rebuild();
        }
    }

    /// Updates the runtime quota; see [`QuotaTree::refresh`].
    pub fn refresh(&mut self, name: &str) {
        self.home_mut(name).refresh(name);
    }

    /// Returns an updated quota; see [`QuotaTree::fresh`].
    pub fn fresh(&mut self, name: &str) -> Option<&Quota> {
        self.home_mut(name).fresh(name)
    }

    /// Returns true if the runtime quota is up to date; see [`QuotaTree::is_fresh`].
    #[must_use]
    pub fn is_fresh(&self, name: &str) -> bool {
        self.home(name).is_fresh(name)
    }

    /// Returns true if the quota is connected to the root; see [`QuotaTree::is_connected`].
    #[must_use]
    pub fn is_connected(&self, name: &str) -> bool {
        self.home(name).is_connected(name)
    }

    /// Returns the parent, which is in the same tree; see [`QuotaTree::parent`].
    #[must_use]
    pub fn parent(&self, name: &str) -> Option<&Quota> {
        self.home(name).parent(name)
    }
}
