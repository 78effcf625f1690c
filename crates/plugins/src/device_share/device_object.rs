//! The Device object as the informer stores it: the node's devices, parsed when the object is decoded.

use koord_api::{labels, scheduling};
use koord_model::device::Inventory;
use koord_scheduler::Cacheable;
use std::sync::Arc;

/// A Device object, reduced to the node's devices.
#[derive(Debug, PartialEq)]
pub(crate) struct DeviceObject {
    /// The node's name, which is also the object's.
    pub(super) name: Arc<str>,
    pub(super) uid: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    pub(super) inventory: Arc<Inventory>,
    /// Messages about parts of the object that were ignored.
    pub(super) problems: Vec<String>,
    /// True if the object's label reports that its secondary devices are not well planned.
    pub(super) not_well_planned: bool,
}

impl From<scheduling::Device> for DeviceObject {
    fn from(object: scheduling::Device) -> Self {
        let (inventory, problems) = Inventory::new(&object);
        let meta = object.metadata;
        let labels = meta.labels.as_ref();
        let planned = labels.and_then(|all| all.get(labels::SECONDARY_DEVICE_WELL_PLANNED));
        Self {
            name: meta.name.unwrap_or_default().into(),
            uid: meta.uid.map(Box::from),
            resource_version: meta.resource_version.map(Box::from),
            inventory: Arc::new(inventory),
            problems,
            not_well_planned: planned.is_some_and(|planned| planned == "false"),
        }
    }
}

impl Cacheable for DeviceObject {
    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}
