//! Allocations of a node's devices.

use super::allocate::Allocation;
use super::units::{DeviceType, PerMinor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Devices allocated to one pod or reserved by one reservation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceHolding {
    /// The devices.
    pub devices: Allocation,
    /// True for a reservation: amounts that pods allocated from it are not counted twice.
    pub reserves: bool,
    /// UID of the reservation that the devices were allocated from.
    pub from: Option<Arc<str>>,
}

/// Allocated amounts of each device and the virtual functions in use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Used {
    /// Amounts by type and minor.
    pub units: [PerMinor; 3],
    /// Virtual functions by type, as sorted pairs of minor and bus id.
    pub functions: [Vec<(u8, String)>; 3],
}

/// Device allocations on one node by UID of the holder.
#[derive(Debug, Clone, Default)]
pub struct DeviceLedger {
    holdings: BTreeMap<Arc<str>, DeviceHolding>,
    used: Used,
}

impl DeviceLedger {
    /// Records `holding` for `uid`, replacing an earlier one.
    pub fn put(&mut self, uid: Arc<str>, holding: DeviceHolding) {
        self.holdings.insert(uid, holding);
        self.used = self.without(|_| false);
    }

    /// Removes and returns the allocation of `uid`.
    pub fn remove(&mut self, uid: &str) -> Option<DeviceHolding> {
        let holding = self.holdings.remove(uid)?;
        self.used = self.without(|_| false);
        Some(holding)
    }

    /// Returns the allocation of `uid`.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&DeviceHolding> {
        self.holdings.get(uid)
    }

    /// Returns all holders with their allocations, in order of UID.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &DeviceHolding)> {
        self.holdings.iter()
    }

    /// Returns true if nothing is allocated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holdings.is_empty()
    }

    /// Returns the total of all allocations.
    #[must_use]
    pub fn used(&self) -> &Used {
        &self.used
    }

    /// Returns the total of all allocations without the holders for which `is_removed` returns true. A reservation
    /// counts only with the part that pods did not allocate from it, so that a removed pod returns its
    /// devices to its reservation.
    #[must_use]
    pub fn without(&self, is_removed: impl Fn(&str) -> bool) -> Used {
        let mut used = Used::default();
        let mut add = |devices: &Allocation| {
            for kind in DeviceType::ALL {
                for grant in devices.grants(kind) {
                    used.units[kind.index()].add(grant.minor, &grant.units);
                    for function in &grant.functions {
                        let entry = (grant.minor, function.bus_id.clone());
                        used.functions[kind.index()].push(entry);
                    }
                }
            }
        };
        for (uid, holding) in self.holdings.iter().filter(|(uid, _)| !is_removed(uid)) {
            if holding.reserves {
                add(&self.remaining(uid, holding, &is_removed));
            } else {
                add(&holding.devices);
            }
        }
        for functions in &mut used.functions {
            functions.sort_unstable();
            functions.dedup();
        }
        used
    }

    /// Returns the unallocated part of the reservation `uid` without the pods for which `is_removed` returns true.
    #[must_use]
    pub fn unallocated_of(&self, uid: &str, is_removed: impl Fn(&str) -> bool) -> Allocation {
        let Some(holding) = self.get(uid) else {
            return Allocation::default();
        };
        self.remaining(uid, holding, &is_removed)
    }

    fn remaining(
        &self,
        uid: &str,
        holding: &DeviceHolding,
        is_removed: &impl Fn(&str) -> bool,
    ) -> Allocation {
        let mut remaining = holding.devices.clone();
        let owners = self.holdings.iter().filter(|(owner, own)| {
            !own.reserves && own.from.as_deref() == Some(uid) && !is_removed(owner)
        });
        for (_, owner) in owners {
            remaining.take(&owner.devices);
        }
        remaining
    }
}
