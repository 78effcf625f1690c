//! Registry of the served resources.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::resource::Resource;
use super::status::FieldError;
use super::{builtin, crd};
use crate::TableId;

/// Registry of all resources of the server: built-in ones and those of installed custom resource definitions.
/// Clones share one set; readers never block.
#[derive(Debug, Clone)]
pub struct Registry {
    state: Arc<ArcSwap<State>>,
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Resources in discovery order: core first, then groups; installed definitions last.
    all: Vec<Arc<Resource>>,
    by_plural: FxHashMap<Arc<str>, Vec<Arc<Resource>>>,
    /// Resources of each installed definition, by its name.
    custom: FxHashMap<Arc<str>, crd::DefinedResources>,
    generation: u64,
}

impl State {
    /// Returns the resources in whose version objects are stored.
    fn stored(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let hidden = self
            .custom
            .values()
            .filter_map(|definition| definition.hidden.as_ref());
        self.all
            .iter()
            .filter(|r| r.stored && r.storage_version)
            .chain(hidden)
    }

    fn reindex(&mut self) {
        self.by_plural.clear();
        for r in &self.all {
            self.by_plural
                .entry(r.plural.clone())
                .or_default()
                .push(r.clone());
        }
        self.generation += 1;
    }
}

impl Registry {
    /// Creates a registry of the built-in kinds.
    #[must_use]
    pub fn builtin() -> Self {
        let mut state = State {
            all: builtin::resources(),
            ..State::default()
        };
        state.reindex();
        Self {
            state: Arc::new(ArcSwap::from_pointee(state)),
        }
    }

    /// Returns the resource at `/apis/{group}/{version}/{plural}` (group empty: `/api/{version}/{plural}`).
    #[must_use]
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let state = self.state.load();
        let candidates = state.by_plural.get(plural)?;
        candidates
            .iter()
            .find(|r| &*r.group == group && &*r.version == version)
            .cloned()
    }

    /// Returns the resource whose objects have this kind.
    #[must_use]
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<Arc<Resource>> {
        let state = self.state.load();
        state
            .all
            .iter()
            .find(|r| &*r.kind == kind && &*r.group == group && &*r.version == version)
            .cloned()
    }

    /// Returns the resource in whose version a table's objects are stored.
    #[must_use]
    pub fn storage(&self, table: &TableId) -> Option<Arc<Resource>> {
        let state = self.state.load();
        state.stored().find(|r| r.table == *table).cloned()
    }

    /// Returns the resources that [`Registry::storage`] finds, one for each table: those in whose version
    /// objects are stored, whether it is served or not.
    #[must_use]
    pub fn tables(&self) -> Vec<Arc<Resource>> {
        self.state.load().stored().cloned().collect()
    }

    /// Returns the versions of `resource` in discovery order: all resources that share its objects.
    #[must_use]
    pub fn versions_of(&self, resource: &Resource) -> Vec<Arc<Resource>> {
        let state = self.state.load();
        let alike = state.by_plural.get(&*resource.plural);
        let alike = alike.into_iter().flatten();
        alike
            .filter(|r| r.table == resource.table)
            .cloned()
            .collect()
    }

    /// Returns all resources in discovery order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Resource>> {
        self.state.load().all.clone()
    }

    /// Returns true if any resource of this group (and version, if given) is served.
    #[must_use]
    pub fn has_group(&self, group: &str, version: Option<&str>) -> bool {
        let state = self.state.load();
        state
            .all
            .iter()
            .any(|r| &*r.group == group && version.is_none_or(|v| &*r.version == v))
    }

    /// Returns a counter of changes; documents derived from the registry may be cached by it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.state.load().generation
    }

    /// Returns the served resources of an installed definition, empty if it is not installed.
    #[must_use]
    pub fn crd_resources(&self, name: &str) -> Vec<Arc<Resource>> {
        self.state
            .load()
            .custom
            .get(name)
            .map(|definition| definition.served.clone())
            .unwrap_or_default()
    }

    /// Serves the versions of a CustomResourceDefinition object, replacing those of an earlier state of the
    /// same definition.
    ///
    /// # Errors
    /// The definition's validation failures; nothing changes then.
    pub fn install_crd(&self, definition: &Value) -> Result<(), Vec<FieldError>> {
        let mut definition = definition.clone();
        crd::default_definition(&mut definition);
        let errors = crd::validate_definition(&definition);
        if !errors.is_empty() {
            return Err(errors);
        }
        let resources = crd::resources(&definition)?;
        self.state.rcu(|old| {
            let mut state = State::clone(old);
            replace(&mut state, &resources.name, Some(resources.clone()));
            state
        });
        Ok(())
    }

    /// Stops serving a definition. Unknown names are ignored.
    pub fn remove_crd(&self, name: &str) {
        self.state.rcu(|old| {
            let mut state = State::clone(old);
            replace(&mut state, name, None);
            state
        });
    }
}

fn replace(state: &mut State, name: &str, new: Option<crd::DefinedResources>) {
    if let Some(old) = state.custom.remove(name) {
        state
            .all
            .retain(|r| !old.served.iter().any(|o| Arc::ptr_eq(o, r)));
    }
    if let Some(new) = new {
        state.all.extend(new.served.iter().cloned());
        state.custom.insert(name.into(), new);
    }
    state.reindex();
}
