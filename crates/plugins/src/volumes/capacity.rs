//! Storage capacity that CSI drivers report, by class and topology.

use super::Key;
use super::storage::{bytes, key};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use koord_scheduler::framework::Signature;
use koord_scheduler::state::NodeInfo;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Storage capacity in one CSIStorageCapacity object.
#[derive(Debug)]
struct StorageCapacity {
    object: Arc<CSIStorageCapacity>,
    /// Largest volume that fits, in bytes.
    limit: Option<i64>,
    /// Version of the object's class and topology; never repeats.
    version: u64,
}

/// Storage capacities of one class.
#[derive(Debug, Default)]
struct ClassCapacities {
    all: BTreeMap<Key, StorageCapacity>,
    /// Keys of objects whose nodes have a common label value, by label and value.
    by_label: BTreeMap<String, FxHashMap<String, BTreeSet<Key>>>,
    /// Keys of all other objects.
    unlabelled: BTreeSet<Key>,
}

/// Storage capacities of all classes.
#[derive(Debug, Default)]
pub(super) struct StorageCapacities {
    by_class: FxHashMap<String, ClassCapacities>,
    classes: FxHashMap<Key, String>,
    last_version: u64,
}

/// Returns a label that all nodes of the object have.
fn label(object: &CSIStorageCapacity) -> Option<(&String, &String)> {
    let topology = object.node_topology.as_ref()?;
    topology.match_labels.as_ref()?.iter().next()
}

impl ClassCapacities {
    /// Returns the index entry for `object`.
    fn keys(&mut self, object: &CSIStorageCapacity) -> &mut BTreeSet<Key> {
        match label(object) {
            Some((label, value)) => self
                .by_label
                .entry(label.clone())
                .or_default()
                .entry(value.clone())
                .or_default(),
            None => &mut self.unlabelled,
        }
    }

    fn remove(&mut self, name: &str) -> Option<StorageCapacity> {
        let capacity = self.all.remove(name)?;
        self.keys(&capacity.object).remove(name);
        if let Some((label, value)) = label(&capacity.object)
            && let Some(values) = self.by_label.get_mut(label)
        {
            if values.get(value).is_some_and(BTreeSet::is_empty) {
                values.remove(value);
            }
            if values.is_empty() {
                self.by_label.remove(label);
            }
        }
        Some(capacity)
    }
}

impl StorageCapacities {
    /// Adds or replaces an object.
    pub(super) fn put(&mut self, object: Arc<CSIStorageCapacity>) {
        let name = key(&object.metadata);
        let old = self.remove(&name);
        let unchanged = old.filter(|old| {
            old.object.node_topology == object.node_topology
                && old.object.storage_class_name == object.storage_class_name
        });
        let version = unchanged.map(|old| old.version).unwrap_or_else(|| {
            self.last_version += 1;
            self.last_version
        });
        let limit = object
            .maximum_volume_size
            .as_ref()
            .or(object.capacity.as_ref());
        let limit = limit.map(|limit| bytes(Some(limit)));
        let class = object.storage_class_name.clone();
        self.classes.insert(name.clone(), class.clone());
        let class_capacities = self.by_class.entry(class).or_default();
        class_capacities.keys(&object).insert(name.clone());
        let capacity = StorageCapacity {
            object,
            limit,
            version,
        };
        class_capacities.all.insert(name, capacity);
    }

    pub(super) fn remove_object(&mut self, object: &CSIStorageCapacity) {
        self.remove(&key(&object.metadata));
    }

    fn remove(&mut self, name: &str) -> Option<StorageCapacity> {
        let class = self.classes.remove(name)?;
        let class_capacities = self.by_class.get_mut(&class)?;
        let capacity = class_capacities.remove(name);
        if class_capacities.all.is_empty() {
            self.by_class.remove(&class);
        }
        capacity
    }

    /// Returns the first object, by name, with capacity for a volume of `size` bytes of the class that the
    /// node can reach.
    pub(super) fn find(
        &self,
        class: &str,
        size: i64,
        node: &NodeInfo,
    ) -> Option<&Arc<CSIStorageCapacity>> {
        let class_capacities = self.by_class.get(class)?;
        let labelled = class_capacities.by_label.iter();
        let lists = labelled
            .filter_map(|(label, values)| values.get(node.label(label)?))
            .chain([&class_capacities.unlabelled]);
        let fits = |name: &&Key| {
            let capacity = class_capacities.all.get(*name);
            capacity.is_some_and(|capacity| {
                capacity.limit.is_some_and(|limit| limit >= size)
                    && covers_node(&capacity.object, node)
            })
        };
        let first = lists.filter_map(|keys| keys.iter().find(fits)).min()?;
        Some(&class_capacities.all.get(first)?.object)
    }

    /// Writes which objects have capacity for `size` bytes to `signature`; with `amounts`, also how much.
    pub(super) fn sign(&self, class: &str, size: i64, amounts: bool, signature: &mut Signature) {
        let all = self.by_class.get(class).into_iter();
        for capacity in all.flat_map(|class_capacities| class_capacities.all.values()) {
            if capacity.limit.is_some_and(|limit| limit >= size) {
                signature.number(i64::try_from(capacity.version).unwrap_or(i64::MAX));
                if amounts {
                    signature.number(bytes(capacity.object.capacity.as_ref()));
                }
            }
        }
        signature.number(-1);
    }
}

/// Returns true if the object's topology includes `node`.
fn covers_node(object: &CSIStorageCapacity, node: &NodeInfo) -> bool {
    let nothing = BTreeMap::new();
    let labels = node.object.metadata.labels.as_ref().unwrap_or(&nothing);
    object
        .node_topology
        .as_ref()
        .is_some_and(|selector| koord_api::selector::matches(selector, labels).unwrap_or(false))
}
