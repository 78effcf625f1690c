//! A Device as informers keep it: what it says of the node's devices, read where it is decoded.

use koord_api::{labels, scheduling};
use koord_model::device::Inventory;
use koord_scheduler::Mirrored;
use std::sync::Arc;

/// See the module documentation.
#[derive(Debug, PartialEq)]
pub(crate) struct SeenDevice {
    /// The node's.
    pub(super) name: Arc<str>,
    pub(super) uid: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    pub(super) inventory: Arc<Inventory>,
    /// What was ignored.
    pub(super) problems: Vec<String>,
    /// It says that the devices that belong to a GPU are not always there.
    pub(super) badly_planned: bool,
}

impl From<scheduling::Device> for SeenDevice {
    fn from(object: scheduling::Device) -> Self {
        let (inventory, problems) = Inventory::new(&object);
        let meta = object.metadata;
        let said = meta.labels.as_ref();
        let planned = said.and_then(|all| all.get(labels::SECONDARY_DEVICE_WELL_PLANNED));
        Self {
            name: meta.name.unwrap_or_default().into(),
            uid: meta.uid.map(Box::from),
            resource_version: meta.resource_version.map(Box::from),
            inventory: Arc::new(inventory),
            problems,
            badly_planned: planned.is_some_and(|planned| planned == "false"),
        }
    }
}

impl Mirrored for SeenDevice {
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
