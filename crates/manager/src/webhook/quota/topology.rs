//! The quotas of the cluster by name, with what has been admitted but is not seen yet.
//!
//! An informer on every replica feeds it, and a request that is admitted changes it at once, so that
//! the next request is judged by what will be. An admission that comes to nothing (another webhook
//! denied it) is taken back after two [`Topology::resync`]s.

use super::info::Info;
use koord_api::quantity::ResourceList;
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    quotas: BTreeMap<String, Arc<Info>>,
    children: BTreeMap<String, BTreeSet<String>>,
    /// The quotas that claim each namespace.
    claims: BTreeMap<String, BTreeSet<String>>,
    /// The namespaces in which a watch has shown a quota of each name.
    homes: BTreeMap<String, BTreeSet<String>>,
    admitted: BTreeMap<String, Admitted>,
    round: u64,
}

/// A change that was admitted and that no watch has shown yet.
#[derive(Debug)]
struct Admitted {
    round: u64,
    /// The version of the object that it changes; 0 for a new one.
    base: u64,
    /// The uid of the object that it changes; empty for a new one.
    uid: String,
    /// What it makes of it; `None` for a deletion.
    becomes: Option<Arc<Info>>,
}

/// A change of one quota.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    /// A new quota.
    Create(Info),
    /// What a quota becomes; the version is that of what it replaces.
    Update(Info),
    /// A quota goes.
    Delete(Info),
}

impl Topology {
    /// The quota of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Info> {
        self.quotas.get(name).map(AsRef::as_ref)
    }

    /// How many quotas there are.
    pub(crate) fn len(&self) -> usize {
        self.quotas.len()
    }

    /// The children of a quota, by name.
    pub(crate) fn children(&self, name: &str) -> impl Iterator<Item = &Info> {
        let names = self.children.get(name).into_iter().flatten();
        names.filter_map(|name| self.get(name))
    }

    /// The namespaces that have a quota of this name. There should be one at most.
    pub(crate) fn homes(&self, name: &str) -> Vec<&str> {
        let seen = self.homes.get(name).into_iter().flatten();
        let seen: Vec<&str> = seen.map(String::as_str).collect();
        if seen.is_empty() {
            let admitted = self.get(name).map(|quota| quota.namespace.as_str());
            return admitted.into_iter().collect();
        }
        seen
    }

    /// The first quota that claims a namespace by annotation.
    pub(crate) fn claimant(&self, namespace: &str) -> Option<&str> {
        let names = self.claims.get(namespace)?;
        names.first().map(String::as_str)
    }

    /// A quota other than `name` that claims a namespace by annotation.
    pub(crate) fn other_claimant(&self, namespace: &str, name: &str) -> Option<&str> {
        let mut names = self.claims.get(namespace)?.iter();
        names.find(|other| *other != name).map(String::as_str)
    }

    /// The quota of this name, else the one that claims `namespace`.
    pub(crate) fn named_or_claiming(&self, name: &str, namespace: &str) -> Option<&Info> {
        self.get(name)
            .or_else(|| self.get(self.claimant(namespace)?))
    }

    /// The quota of a pod in `namespace` that names none: the one named like the namespace in it,
    /// else the first that claims it, else the default quota.
    pub(crate) fn of_namespace(&self, namespace: &str) -> &str {
        let own = self.get(namespace);
        match own.filter(|quota| quota.namespace == namespace) {
            Some(own) => &own.name,
            None => self.claimant(namespace).unwrap_or(DEFAULT_QUOTA),
        }
    }

    /// Takes in what a watch shows.
    pub(crate) fn observe(&mut self, quota: Info) {
        self.sight(&quota);
        if let Some(admitted) = self.admitted.get(&quota.name) {
            if !admitted.is_overtaken_by(&quota) {
                return;
            }
            self.admitted.remove(&quota.name);
        }
        self.put(Arc::new(quota));
    }

    /// Takes in that a watch shows the end of an object.
    pub(crate) fn observe_deleted(&mut self, quota: &Info) {
        forget(&mut self.homes, &quota.name, &quota.namespace);
        let known = self.quotas.get(&quota.name);
        let Some(known) = known.filter(|known| known.namespace == quota.namespace) else {
            return;
        };
        // A quota of the same name may have been admitted since.
        if known.uid.is_empty() || quota.uid.is_empty() || known.uid == quota.uid {
            let is_new = self
                .admitted
                .get(&quota.name)
                .is_some_and(|admitted| admitted.uid.is_empty() && admitted.becomes.is_some());
            if !is_new {
                self.admitted.remove(&quota.name);
                self.take(&quota.name);
            }
        }
    }

    /// Takes in a request that was admitted.
    pub(crate) fn admit(&mut self, write: Write) {
        let round = self.round;
        let (base, info, stays) = match write {
            Write::Create(info) => (0, info, true),
            Write::Update(info) => (info.version, info, true),
            Write::Delete(info) => (info.version, info, false),
        };
        let name = info.name.clone();
        let old = self.take(&name);
        let becomes = stays.then(|| Arc::new(info));
        if let Some(info) = &becomes {
            self.put(info.clone());
        }
        let admitted = Admitted {
            round,
            base,
            uid: old.map_or_else(String::new, |old| old.uid.clone()),
            becomes,
        };
        self.admitted.insert(name, admitted);
    }

    /// Starts anew from everything there is, keeping what was admitted since the last time and is
    /// not seen yet.
    pub(crate) fn resync(&mut self, all: impl IntoIterator<Item = Info>) {
        self.round += 1;
        let oldest = self.round.saturating_sub(1);
        self.quotas.clear();
        self.children.clear();
        self.claims.clear();
        self.homes.clear();
        for quota in all {
            self.sight(&quota);
            if let Some(admitted) = self.admitted.get(&quota.name)
                && admitted.is_overtaken_by(&quota)
            {
                self.admitted.remove(&quota.name);
            }
            self.put(Arc::new(quota));
        }
        self.admitted.retain(|_, admitted| admitted.round >= oldest);
        let pending: Vec<_> = self
            .admitted
            .iter()
            .map(|(name, admitted)| (name.clone(), admitted.becomes.clone()))
            .collect();
        for (name, becomes) in pending {
            self.take(&name);
            if let Some(info) = becomes {
                self.put(info);
            }
        }
    }

    fn sight(&mut self, quota: &Info) {
        let homes = self.homes.entry(quota.name.clone()).or_default();
        homes.insert(quota.namespace.clone());
    }

    fn put(&mut self, quota: Arc<Info>) {
        if let Some(known) = self.quotas.get(&quota.name) {
            let age = |quota: &Info| (quota.created, quota.namespace.clone());
            if known.namespace != quota.namespace && age(known) < age(&quota) {
                return;
            }
            let name = quota.name.clone();
            self.take(&name);
        }
        let name = &quota.name;
        if *name != ROOT_QUOTA {
            let siblings = self.children.entry(quota.parent.clone()).or_default();
            siblings.insert(name.clone());
        }
        for namespace in &quota.namespaces {
            let claims = self.claims.entry(namespace.clone()).or_default();
            claims.insert(name.clone());
        }
        self.quotas.insert(name.clone(), quota);
    }

    fn take(&mut self, name: &str) -> Option<Arc<Info>> {
        let quota = self.quotas.remove(name)?;
        forget(&mut self.children, &quota.parent, name);
        for namespace in &quota.namespaces {
            forget(&mut self.claims, namespace, name);
        }
        Some(quota)
    }

    /// What `/elasticQuota` shows.
    pub(crate) fn summary(&self) -> Summary<'_> {
        let quotas = self.quotas.values().map(|quota| {
            let shown = QuotaSummary {
                name: &quota.name,
                parent_name: &quota.parent,
                is_parent: quota.is_parent,
                allow_lent_resource: quota.lendable,
                max: &quota.max,
                min: &quota.min,
            };
            (quota.name.as_str(), shown)
        });
        let names = self.quotas.keys().chain(self.children.keys());
        let parents: BTreeSet<&str> = names.map(String::as_str).chain([ROOT_QUOTA]).collect();
        let children = |parent: &&'_ str| {
            let names = self.children.get(*parent).into_iter().flatten();
            names.map(String::as_str).collect()
        };
        Summary {
            quota_info_map: quotas.collect(),
            quota_hierarchy_info: parents
                .into_iter()
                .map(|parent| (parent, children(&parent)))
                .collect(),
        }
    }
}

impl Admitted {
    /// Whether `quota` is newer than what was admitted: this, or another write after it. A quota of
    /// another namespace has nothing to do with it.
    fn is_overtaken_by(&self, quota: &Info) -> bool {
        match &self.becomes {
            Some(becomes) if becomes.namespace != quota.namespace => false,
            Some(_) => quota.version > self.base,
            // An object that waits for its finalizers is shown again and again: it is still there.
            None => quota.uid != self.uid || quota.version > self.base,
        }
    }
}

/// Takes `name` out of the set under `key`, and the set if that empties it.
fn forget(sets: &mut BTreeMap<String, BTreeSet<String>>, key: &str, name: &str) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(name);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

/// The JSON document of `/elasticQuota`, with upstream's field names.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary<'a> {
    quota_info_map: BTreeMap<&'a str, QuotaSummary<'a>>,
    quota_hierarchy_info: BTreeMap<&'a str, Vec<&'a str>>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct QuotaSummary<'a> {
    name: &'a str,
    parent_name: &'a str,
    is_parent: bool,
    allow_lent_resource: bool,
    max: &'a ResourceList,
    min: &'a ResourceList,
}

#[cfg(test)]
mod tests;
