//! Device inventory and allocations of one node.

use koord_model::device::{
    DeviceHolding, DeviceLedger, DeviceResource, DeviceType, Inventory, PerMinor,
};
use koord_scheduler::state::PodInfo;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value, json};
use std::sync::{Arc, LazyLock};

static NO_DEVICES: LazyLock<Inventory> = LazyLock::new(Inventory::default);

/// The last known state of a Device object.
#[derive(Debug)]
pub(super) struct DeviceRecord {
    pub(super) inventory: Arc<Inventory>,
    /// Messages about parts of the object that were ignored.
    pub(super) problems: Vec<String>,
    /// True if the object was deleted.
    pub(super) deleted: bool,
    /// True if the object's label reports that its secondary devices are not well planned.
    pub(super) not_well_planned: bool,
}

/// Devices and allocations of one node.
#[derive(Debug, Default)]
pub(super) struct NodeDevices {
    pub(super) name: Arc<str>,
    pub(super) inventory: Option<Arc<Inventory>>,
    pub(super) allocations: DeviceLedger,
    /// Pods (by uid) that hold devices which cannot be identified.
    pub(super) unknown: FxHashSet<Arc<str>>,
    /// Pods that hold devices as `namespace/name`, by uid.
    names: FxHashMap<Arc<str>, String>,
}

impl NodeDevices {
    /// Creates the state of a node without allocations.
    pub(super) fn new(name: Arc<str>, inventory: Option<Arc<Inventory>>) -> Self {
        Self {
            name,
            inventory,
            ..Self::default()
        }
    }

    /// Returns the node's devices; `None` if no device of it is known, so that they are left to the kubelet.
    pub(super) fn managed_devices(&self) -> Option<&Inventory> {
        match &self.inventory {
            Some(inventory) => Some(inventory),
            // A Device object existed once, and pods still hold its devices.
            None if !self.allocations.is_empty() || !self.unknown.is_empty() => Some(&NO_DEVICES),
            None => None,
        }
    }

    /// Records a pod's allocation, replacing an earlier one.
    pub(super) fn put(&mut self, pod: &PodInfo, holding: DeviceHolding) {
        self.names.insert(pod.uid.clone(), pod.to_string());
        self.allocations.put(pod.uid.clone(), holding);
    }

    /// Removes a pod and its allocation.
    pub(super) fn remove(&mut self, uid: &str) {
        self.names.remove(uid);
        self.unknown.remove(uid);
        self.allocations.remove(uid);
    }

    /// Returns the node's devices in the form of upstream's inspection API.
    pub(super) fn summary(&self) -> Value {
        let mut total = [
            PerMinor::default(),
            PerMinor::default(),
            PerMinor::default(),
        ];
        let mut free = total.clone();
        let used = &self.allocations.used().units;
        for kind in DeviceType::ALL {
            let index = kind.index();
            let devices = self.inventory.iter().flat_map(|all| all.devices(kind));
            for device in devices {
                let used_units = used[index].get(device.minor).copied().unwrap_or_default();
                total[index].set(device.minor, device.total);
                free[index].set(device.minor, device.total.minus(&used_units));
            }
        }
        let mut holders: [Map<String, Value>; 3] = Default::default();
        for (uid, holding) in self.allocations.iter() {
            let name = self.names.get(uid).cloned().unwrap_or_default();
            for kind in DeviceType::ALL {
                if !holding.devices.grants(kind).is_empty() {
                    let units = detail(&holding.devices.units(kind));
                    holders[kind.index()].insert(name.clone(), units);
                }
            }
        }
        let mut allocated = Map::new();
        for (kind, holders) in DeviceType::ALL.into_iter().zip(holders) {
            if !holders.is_empty() {
                allocated.insert(kind.name().to_owned(), Value::Object(holders));
            }
        }
        json!({
            "deviceTotal": sums(&total), "deviceFree": sums(&free), "deviceUsed": sums(used),
            "deviceTotalDetail": details(&total), "deviceFreeDetail": details(&free),
            "deviceUsedDetail": details(used), "allocateSet": allocated,
        })
    }
}

fn sums(units: &[PerMinor; 3]) -> Value {
    let mut out = Map::new();
    for kind in units {
        for (resource, amount) in kind.sum().iter() {
            out.insert(resource.name().to_owned(), quantity(resource, amount));
        }
    }
    Value::Object(out)
}

fn details(units: &[PerMinor; 3]) -> Value {
    let kinds = DeviceType::ALL.into_iter().zip(units);
    let listed = kinds.filter(|(_, units)| !units.is_empty());
    listed
        .map(|(kind, units)| (kind.name().to_owned(), detail(units)))
        .collect()
}

fn detail(units: &PerMinor) -> Value {
    let device = |units: &koord_model::device::Units| -> Value {
        let amounts = units.iter();
        amounts
            .map(|(resource, amount)| (resource.name().to_owned(), quantity(resource, amount)))
            .collect()
    };
    let devices = units.iter();
    devices
        .map(|(minor, units)| (minor.to_string(), device(units)))
        .collect()
}

fn quantity(resource: DeviceResource, amount: i64) -> Value {
    Value::String(resource.quantity(amount).to_string())
}
