//! ElasticQuota objects in parsed form, and the mapping from namespaces to quotas.

use super::totals::TreeRoot;
use koord_api::quantity::ResourceList;
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA};
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use koord_model::quota::{QuotaSpec, is_zero};
use koord_model::resources::{Amounts, ResourceTable, amount_of_many};
use koord_scheduler::framework::Problem;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Namespace and name of an ElasticQuota.
pub(super) type Key = (String, String);

/// Current values in the status annotations and the status of an object.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct QuotaStatus {
    /// Amounts in the order of [`STATUS_ANNOTATIONS`]; `None` if missing or invalid.
    pub annotations: [Option<Amounts>; STATUS_ANNOTATIONS.len()],
    pub used: Amounts,
}

/// Annotations that report the state of a quota.
pub(super) const STATUS_ANNOTATIONS: [&str; 7] = [
    annotations::QUOTA_RUNTIME,
    annotations::QUOTA_REQUEST,
    annotations::QUOTA_CHILD_REQUEST,
    annotations::QUOTA_GUARANTEED,
    annotations::QUOTA_ALLOCATED,
    annotations::QUOTA_NON_PREEMPTIBLE_REQUEST,
    annotations::QUOTA_NON_PREEMPTIBLE_USED,
];

/// Parsed ElasticQuota object.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub object: Arc<ElasticQuota>,
    pub spec: QuotaSpec,
    /// Id of its tree; empty if there is only one tree.
    pub tree: String,
    /// Total resources of its tree, if it is a root that sets them.
    pub root: Option<TreeRoot>,
    /// Namespaces whose pods belong to the quota unless they name another.
    pub namespaces: Vec<String>,
    pub status: QuotaStatus,
}

/// All ElasticQuota objects. Names should be unique across namespaces; where they are not, the oldest object
/// is the one in force.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// True if there are several quota trees.
    multi_tree: bool,
    all: BTreeMap<Key, Object>,
    /// Creation time and namespace of the objects with each name, oldest first.
    by_name: FxHashMap<String, BTreeSet<(i64, String)>>,
    /// Quotas that claim each namespace, ordered by quota name.
    claims: FxHashMap<String, BTreeSet<Key>>,
}

/// Returns the creation time in seconds; `i64::MAX` if missing.
fn created(object: &ElasticQuota) -> i64 {
    let time = object.metadata.creation_timestamp.as_ref();
    time.map_or(i64::MAX, |time| time.0.as_second())
}

impl Objects {
    pub(super) fn new(multi_tree: bool) -> Self {
        Self {
            multi_tree,
            ..Self::default()
        }
    }

    /// Stores a new version of an object. Returns its key and the namespaces that it claimed before or claims
    /// now.
    pub(super) fn apply(
        &mut self,
        object: &Arc<ElasticQuota>,
        table: &ResourceTable,
        problems: &mut Vec<Problem>,
    ) -> (Key, Vec<String>) {
        let key = key_of(object);
        let last = self.remove(&key);
        let mut object = parse(object, last.as_ref(), table);
        if self.multi_tree {
            parse_tree(&mut object, last.as_ref(), table);
        }
        let order = (created(&object.object), key.0.clone());
        let same_name = self.by_name.entry(key.1.clone()).or_default();
        same_name.insert(order);
        if let Some((_, first)) = same_name.first()
            && *first != key.0
            && last.is_none()
        {
            problems.push(problem(
                &object.object,
                format!(
                    "the quota has no effect: metadata.name {:?} is taken by the quota of namespace {first:?}",
                    key.1
                ),
            ));
        }
        let mut namespaces = object.namespaces.clone();
        for namespace in &namespaces {
            let claims = self.claims.entry(namespace.clone()).or_default();
            claims.insert((key.1.clone(), key.0.clone()));
        }
        self.all.insert(key.clone(), object);
        namespaces.extend(last.into_iter().flat_map(|last| last.namespaces));
        (key, namespaces)
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Object> {
        let last = self.all.remove(key)?;
        if let Some(same) = self.by_name.get_mut(&key.1) {
            same.remove(&(created(&last.object), key.0.clone()));
            if same.is_empty() {
                self.by_name.remove(&key.1);
            }
        }
        for namespace in &last.namespaces {
            if let Some(claims) = self.claims.get_mut(namespace) {
                claims.remove(&(key.1.clone(), key.0.clone()));
                if claims.is_empty() {
                    self.claims.remove(namespace);
                }
            }
        }
        Some(last)
    }

    /// Returns true if there are several quota trees.
    pub(super) fn has_trees(&self) -> bool {
        self.multi_tree
    }

    /// Returns the parent and the tree of an object.
    pub(super) fn parent_and_tree(&self, key: &Key) -> Option<(String, String)> {
        let object = self.all.get(key)?;
        Some((object.spec.parent.clone(), object.tree.clone()))
    }

    /// Returns the object in force for quota `name`.
    pub(super) fn get(&self, name: &str) -> Option<&Object> {
        let (_, namespace) = self.by_name.get(name)?.first()?;
        self.all.get(&(namespace.clone(), name.to_owned()))
    }

    /// Returns true if this object is the one in force for its name.
    pub(super) fn is_in_force(&self, key: &Key) -> bool {
        let first = self.by_name.get(&key.1).and_then(BTreeSet::first);
        first.is_some_and(|(_, namespace)| *namespace == key.0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Object)> {
        self.all.iter()
    }

    /// Returns the quota of pods in `namespace` that name none.
    pub(super) fn namespace_quota(&self, namespace: &str) -> &str {
        let own = (namespace.to_owned(), namespace.to_owned());
        if let Some((key, _)) = self.all.get_key_value(&own) {
            return &key.1;
        }
        let claims = self.claims.get(namespace).and_then(BTreeSet::first);
        claims.map_or(DEFAULT_QUOTA, |(name, _)| name)
    }
}

/// Returns the key of an object.
pub(super) fn key_of(object: &ElasticQuota) -> Key {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (
        text(&object.metadata.namespace),
        text(&object.metadata.name),
    )
}

/// Converts a resource list to amounts.
pub(super) fn amounts(list: &ResourceList, table: &ResourceTable) -> Amounts {
    list.iter()
        .map(|(name, quantity)| {
            let id = table.intern(name);
            (id, amount_of_many(id, quantity))
        })
        .collect()
}

/// Parses an object. For invalid values the last valid value is kept, see [`super::invalid`].
fn parse(object: &Arc<ElasticQuota>, last: Option<&Object>, table: &ResourceTable) -> Object {
    let meta = &object.metadata;
    let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
    let max = amounts(&object.spec.max, table);
    let mut weight = Amounts::new();
    let key = annotations::QUOTA_SHARED_WEIGHT;
    if let Some(text) = annotation(key) {
        match serde_json::from_str::<ResourceList>(text) {
            Ok(list) => weight = amounts(&list, table),
            Err(_) => {
                if let Some(last) = last {
                    weight = last.spec.weight.clone();
                }
            }
        }
    }
    if is_zero(&weight) {
        weight = max.clone();
    }
    let mut namespaces = Vec::new();
    let key = annotations::QUOTA_NAMESPACES;
    if let Some(text) = annotation(key).filter(|text| !text.is_empty()) {
        match serde_json::from_str(text) {
            Ok(list) => namespaces = list,
            Err(_) => {
                if let Some(last) = last {
                    namespaces.clone_from(&last.namespaces);
                }
            }
        }
    }
    let used = object.status.as_ref().map(|status| &status.used);
    Object {
        spec: QuotaSpec {
            parent: object.label(labels::QUOTA_PARENT).to_owned(),
            is_parent: object.is_parent(),
            lendable: object.is_lendable(),
            min: amounts(&object.spec.min, table),
            max,
            weight,
        },
        tree: String::new(),
        root: None,
        namespaces,
        status: QuotaStatus {
            annotations: STATUS_ANNOTATIONS.map(|key| {
                let list: ResourceList = serde_json::from_str(annotation(key)?).ok()?;
                Some(amounts(&list, table))
            }),
            used: used.map_or_else(Amounts::new, |used| amounts(used, table)),
        },
        object: object.clone(),
    }
}

/// Parses the tree of an object: its id, and the total resources if it is a root.
fn parse_tree(object: &mut Object, last: Option<&Object>, table: &ResourceTable) {
    let quota = object.object.clone();
    let name = quota.metadata.name.as_deref().unwrap_or_default();
    let tree = quota.label(labels::QUOTA_TREE_ID);
    if tree.is_empty() || [ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA].contains(&name) {
        return;
    }
    tree.clone_into(&mut object.tree);
    if quota.label(labels::QUOTA_IS_ROOT) != "true" {
        return;
    }
    let annotations = quota.metadata.annotations.as_ref();
    let key = annotations::QUOTA_TOTAL_RESOURCE;
    let text = annotations.and_then(|all| all.get(key));
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return;
    };
    let total = match serde_json::from_str::<ResourceList>(text) {
        // A negative total would give the other trees more than the nodes have.
        Ok(list) => amounts(&list, table)
            .iter()
            .map(|(id, amount)| (id, amount.max(0)))
            .collect(),
        Err(_) => match last.and_then(|last| last.root.as_ref()) {
            Some(root) => root.total.clone(),
            None => return,
        },
    };
    object.root = Some(TreeRoot {
        tree: tree.to_owned(),
        total,
        independent: quota.label(labels::QUOTA_IGNORE_DEFAULT_TREE) == "true",
    });
}

/// Builds a problem of an object.
pub(super) fn problem(object: &ElasticQuota, message: String) -> Problem {
    let (namespace, name) = key_of(object);
    Problem {
        kind: "ElasticQuota",
        namespace,
        name,
        uid: object.metadata.uid.clone().unwrap_or_default(),
        message,
    }
}
