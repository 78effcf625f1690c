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
struct Room {
    object: Arc<CSIStorageCapacity>,
    /// Largest volume that fits, in bytes.
    limit: Option<i64>,
    /// Version of the object's class and topology; never repeats.
    place: u64,
}

/// Storage capacities of one class.
#[derive(Debug, Default)]
struct OfClass {
    all: BTreeMap<Key, Room>,
    /// Keys of objects whose nodes have a common label value, by label and value.
    by_label: BTreeMap<String, FxHashMap<String, BTreeSet<Key>>>,
    /// Keys of all other objects.
    rest: BTreeSet<Key>,
}

/// Storage capacities of all classes.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    by_class: FxHashMap<String, OfClass>,
    classes: FxHashMap<Key, String>,
    places: u64,
}

/// Returns a label that all nodes of the object have.
fn label(object: &CSIStorageCapacity) -> Option<(&String, &String)> {
    let topology = object.node_topology.as_ref()?;
    topology.match_labels.as_ref()?.iter().next()
}

impl OfClass {
    fn keys(&mut self, object: &CSIStorageCapacity) -> &mut BTreeSet<Key> {
        match label(object) {
            Some((label, value)) => self
                .by_label
                .entry(label.clone())
                .or_default()
                .entry(value.clone())
                .or_default(),
            None => &mut self.rest,
        }
    }

    fn remove(&mut self, name: &str) -> Option<Room> {
        let room = self.all.remove(name)?;
        self.keys(&room.object).remove(name);
        if let Some((label, value)) = label(&room.object)
            && let Some(values) = self.by_label.get_mut(label)
        {
            if values.get(value).is_some_and(BTreeSet::is_empty) {
                values.remove(value);
            }
            if values.is_empty() {
                self.by_label.remove(label);
            }
        }
        Some(room)
    }
}

impl Rooms {
    pub(super) fn put(&mut self, object: Arc<CSIStorageCapacity>) {
        let name = key(&object.metadata);
        let old = self.remove(&name);
        let same = old.filter(|old| {
            old.object.node_topology == object.node_topology
                && old.object.storage_class_name == object.storage_class_name
        });
        let place = same.map(|old| old.place).unwrap_or_else(|| {
            self.places += 1;
            self.places
        });
        let limit = object
            .maximum_volume_size
            .as_ref()
            .or(object.capacity.as_ref());
        let limit = limit.map(|limit| bytes(Some(limit)));
        let class = object.storage_class_name.clone();
        self.classes.insert(name.clone(), class.clone());
        let of_class = self.by_class.entry(class).or_default();
        of_class.keys(&object).insert(name.clone());
        let room = Room {
            object,
            limit,
            place,
        };
        of_class.all.insert(name, room);
    }

    pub(super) fn remove_object(&mut self, object: &CSIStorageCapacity) {
        self.remove(&key(&object.metadata));
    }

    fn remove(&mut self, name: &str) -> Option<Room> {
        let class = self.classes.remove(name)?;
        let of_class = self.by_class.get_mut(&class)?;
        let room = of_class.remove(name);
        if of_class.all.is_empty() {
            self.by_class.remove(&class);
        }
        room
    }

    /// Returns the first object, by name, with capacity for a volume of `size` bytes of the class that the
    /// node can reach.
    pub(super) fn find(
        &self,
        class: &str,
        size: i64,
        node: &NodeInfo,
    ) -> Option<&Arc<CSIStorageCapacity>> {
        let of_class = self.by_class.get(class)?;
        let labelled = of_class.by_label.iter();
        let lists = labelled
            .filter_map(|(label, values)| values.get(node.label(label)?))
            .chain([&of_class.rest]);
        let has_room = |name: &&Key| {
            let room = of_class.all.get(*name);
            room.is_some_and(|room| {
                room.limit.is_some_and(|limit| limit >= size) && is_about(&room.object, node)
            })
        };
        let found = lists.filter_map(|keys| keys.iter().find(has_room)).min()?;
        Some(&of_class.all.get(found)?.object)
    }

    /// Writes which objects have capacity for `size` bytes to `signature`; with `amounts`, also how much.
    pub(super) fn sign(&self, class: &str, size: i64, amounts: bool, signature: &mut Signature) {
        let all = self.by_class.get(class).into_iter();
        for room in all.flat_map(|of_class| of_class.all.values()) {
            if room.limit.is_some_and(|limit| limit >= size) {
                signature.number(i64::try_from(room.place).unwrap_or(i64::MAX));
                if amounts {
                    signature.number(bytes(room.object.capacity.as_ref()));
                }
            }
        }
        signature.number(-1);
    }
}

fn is_about(object: &CSIStorageCapacity, node: &NodeInfo) -> bool {
    let nothing = BTreeMap::new();
    let labels = node.object.metadata.labels.as_ref().unwrap_or(&nothing);
    object
        .node_topology
        .as_ref()
        .is_some_and(|selector| koord_api::selector::matches(selector, labels).unwrap_or(false))
}
