//! The quotas of the cluster by name, including admitted writes that are not observed yet.
//!
//! It is updated by an informer on every replica and by every admitted request, so that the next request is
//! checked against the future state. An admitted write that never appears (another webhook denied it) is
//! dropped after two [`QuotaTopology::resync`]s.

use super::info::QuotaInfo;
use koord_api::quantity::ResourceList;
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The quota topology, as described in the module documentation.
#[derive(Debug, Default)]
pub(crate) struct QuotaTopology {
    quotas: BTreeMap<String, Arc<QuotaInfo>>,
    children: BTreeMap<String, BTreeSet<String>>,
    /// The quotas that claim each namespace.
    claims: BTreeMap<String, BTreeSet<String>>,
    /// The namespaces in which a quota of each name was observed.
    observed_namespaces: BTreeMap<String, BTreeSet<String>>,
    admitted: BTreeMap<String, Admitted>,
    round: u64,
}

/// An admitted write that is not observed yet.
#[derive(Debug)]
struct Admitted {
    round: u64,
    /// Resource version of the object before the write; 0 for a new one.
    base: u64,
    /// UID of the object; empty for a new one.
    uid: String,
    /// The quota after the write; `None` for a deletion.
    new_info: Option<Arc<QuotaInfo>>,
}

/// An admitted write of one quota.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum QuotaWrite {
    /// A new quota.
    Create(QuotaInfo),
    /// An update; its version is that of the replaced object.
    Update(QuotaInfo),
    /// A deletion.
    Delete(QuotaInfo),
}

impl QuotaTopology {
    /// Returns the quota of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&QuotaInfo> {
        self.quotas.get(name).map(AsRef::as_ref)
    }

    /// Returns the number of quotas.
    pub(crate) fn len(&self) -> usize {
        self.quotas.len()
    }

    /// Returns the children of a quota, sorted by name.
    pub(crate) fn children(&self, name: &str) -> impl Iterator<Item = &QuotaInfo> {
        let names = self.children.get(name).into_iter().flatten();
        names.filter_map(|name| self.get(name))
    }

    /// Returns the namespaces that have a quota of this name; normally at most one.
    pub(crate) fn observed_namespaces(&self, name: &str) -> Vec<&str> {
        let namespaces = self.observed_namespaces.get(name).into_iter().flatten();
        let namespaces: Vec<&str> = namespaces.map(String::as_str).collect();
        if namespaces.is_empty() {
            let admitted = self.get(name).map(|quota| quota.namespace.as_str());
            return admitted.into_iter().collect();
        }
        namespaces
    }

    /// Returns the first quota that claims a namespace by annotation.
    pub(crate) fn claimant(&self, namespace: &str) -> Option<&str> {
        let names = self.claims.get(namespace)?;
        names.first().map(String::as_str)
    }

    /// Returns a quota other than `name` that claims a namespace by annotation.
    pub(crate) fn other_claimant(&self, namespace: &str, name: &str) -> Option<&str> {
        let mut names = self.claims.get(namespace)?.iter();
        names.find(|other| *other != name).map(String::as_str)
    }

    /// Returns the quota of this name, otherwise the one that claims `namespace`.
    pub(crate) fn named_or_claiming(&self, name: &str, namespace: &str) -> Option<&QuotaInfo> {
        self.get(name)
            .or_else(|| self.get(self.claimant(namespace)?))
    }

    /// Returns the quota of a pod in `namespace` without a quota label: the quota in that namespace with its
    /// name, otherwise the first that claims it, otherwise the default quota.
    pub(crate) fn quota_of_namespace(&self, namespace: &str) -> &str {
        let quota = self.get(namespace);
        match quota.filter(|quota| quota.namespace == namespace) {
            Some(quota) => &quota.name,
            None => self.claimant(namespace).unwrap_or(DEFAULT_QUOTA),
        }
    }

    /// Applies an observed quota.
    pub(crate) fn observe(&mut self, quota: QuotaInfo) {
        self.record_namespace(&quota);
        if let Some(admitted) = self.admitted.get(&quota.name) {
            if !admitted.is_superseded_by(&quota) {
                return;
            }
            self.admitted.remove(&quota.name);
        }
        self.insert(Arc::new(quota));
    }

    /// Applies an observed deletion.
    pub(crate) fn observe_deleted(&mut self, quota: &QuotaInfo) {
        remove_from_set(&mut self.observed_namespaces, &quota.name, &quota.namespace);
        let existing = self.quotas.get(&quota.name);
        let Some(existing) = existing.filter(|existing| existing.namespace == quota.namespace)
        else {
            return;
        };
        // A new quota of the same name may have been admitted since.
        if existing.uid.is_empty() || quota.uid.is_empty() || existing.uid == quota.uid {
            let is_new = self
                .admitted
                .get(&quota.name)
                .is_some_and(|admitted| admitted.uid.is_empty() && admitted.new_info.is_some());
            if !is_new {
                self.admitted.remove(&quota.name);
                self.remove(&quota.name);
            }
        }
    }

    /// Applies an admitted write.
    pub(crate) fn admit(&mut self, write: QuotaWrite) {
        let round = self.round;
        let (base, info, stays) = match write {
            QuotaWrite::Create(info) => (0, info, true),
            QuotaWrite::Update(info) => (info.version, info, true),
            QuotaWrite::Delete(info) => (info.version, info, false),
        };
        let name = info.name.clone();
        let old = self.remove(&name);
        let new_info = stays.then(|| Arc::new(info));
        if let Some(info) = &new_info {
            self.insert(info.clone());
        }
        let admitted = Admitted {
            round,
            base,
            uid: old.map_or_else(String::new, |old| old.uid.clone()),
            new_info,
        };
        self.admitted.insert(name, admitted);
    }

    /// Rebuilds the topology from all observed quotas, keeping writes that were admitted since the last
    /// resync and are not observed yet.
    pub(crate) fn resync(&mut self, all: impl IntoIterator<Item = QuotaInfo>) {
        self.round += 1;
        let oldest = self.round.saturating_sub(1);
        self.quotas.clear();
        self.children.clear();
        self.claims.clear();
        self.observed_namespaces.clear();
        for quota in all {
            self.record_namespace(&quota);
            if let Some(admitted) = self.admitted.get(&quota.name)
                && admitted.is_superseded_by(&quota)
            {
                self.admitted.remove(&quota.name);
            }
            self.insert(Arc::new(quota));
        }
        self.admitted.retain(|_, admitted| admitted.round >= oldest);
        let pending: Vec<_> = self
            .admitted
            .iter()
            .map(|(name, admitted)| (name.clone(), admitted.new_info.clone()))
            .collect();
        for (name, new_info) in pending {
            self.remove(&name);
            if let Some(info) = new_info {
                self.insert(info);
            }
        }
    }

    fn record_namespace(&mut self, quota: &QuotaInfo) {
        let observed_namespaces = self
            .observed_namespaces
            .entry(quota.name.clone())
            .or_default();
        observed_namespaces.insert(quota.namespace.clone());
    }

    fn insert(&mut self, quota: Arc<QuotaInfo>) {
        if let Some(existing) = self.quotas.get(&quota.name) {
            let age = |quota: &QuotaInfo| (quota.created, quota.namespace.clone());
            if existing.namespace != quota.namespace && age(existing) < age(&quota) {
                return;
            }
            let name = quota.name.clone();
            self.remove(&name);
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

    fn remove(&mut self, name: &str) -> Option<Arc<QuotaInfo>> {
        let quota = self.quotas.remove(name)?;
        remove_from_set(&mut self.children, &quota.parent, name);
        for namespace in &quota.namespaces {
            remove_from_set(&mut self.claims, namespace, name);
        }
        Some(quota)
    }

    /// Returns the content of `/elasticQuota`.
    pub(crate) fn summary(&self) -> TopologySummary<'_> {
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
        TopologySummary {
            quota_info_map: quotas.collect(),
            quota_hierarchy_info: parents
                .into_iter()
                .map(|parent| (parent, children(&parent)))
                .collect(),
        }
    }
}

impl Admitted {
    /// Returns true if `quota` is newer than the admitted write: its result or a later write. A quota of
    /// another namespace is unrelated.
    fn is_superseded_by(&self, quota: &QuotaInfo) -> bool {
        match &self.new_info {
            Some(new_info) if new_info.namespace != quota.namespace => false,
            Some(_) => quota.version > self.base,
            // An object with finalizers is observed repeatedly while it still exists.
            None => quota.uid != self.uid || quota.version > self.base,
        }
    }
}

/// Removes `name` from the set under `key`, and the set if it becomes empty.
fn remove_from_set(sets: &mut BTreeMap<String, BTreeSet<String>>, key: &str, name: &str) {
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
pub(crate) struct TopologySummary<'a> {
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
