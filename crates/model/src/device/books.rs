//! Who holds what of a node's devices.

use super::allocate::Allocation;
use super::units::{DeviceType, PerMinor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What one pod, or one reservation, holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Holding {
    /// The devices.
    pub devices: Allocation,
    /// Held for others: what pods took from it is not counted twice.
    pub reserves: bool,
    /// The reservation (by uid) it took from.
    pub from: Option<Arc<str>>,
}

/// What is taken of each device, and the virtual functions in use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Used {
    /// By type and minor.
    pub units: [PerMinor; 3],
    /// By type: minor and bus id, sorted.
    pub functions: [Vec<(u8, String)>; 3],
}

/// What is held on one node, by uid.
#[derive(Debug, Clone, Default)]
pub struct Books {
    holdings: BTreeMap<Arc<str>, Holding>,
    used: Used,
}

impl Books {
    /// Books `holding` for `uid`, in place of what was booked for it.
    pub fn put(&mut self, uid: Arc<str>, holding: Holding) {
        self.holdings.insert(uid, holding);
        self.used = self.without(|_| false);
    }

    /// Takes back what is booked for `uid`.
    pub fn remove(&mut self, uid: &str) -> Option<Holding> {
        let holding = self.holdings.remove(uid)?;
        self.used = self.without(|_| false);
        Some(holding)
    }

    /// What `uid` holds.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Holding> {
        self.holdings.get(uid)
    }

    /// All holders with what they hold, in order of uid.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Holding)> {
        self.holdings.iter()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holdings.is_empty()
    }

    /// What is taken.
    #[must_use]
    pub fn used(&self) -> &Used {
        &self.used
    }

    /// What would be taken if the holders that `gone` names were not there. A reservation holds
    /// only what pods did not take from it, so a pod that leaves gives back to its reservation.
    #[must_use]
    pub fn without(&self, gone: impl Fn(&str) -> bool) -> Used {
        let mut used = Used::default();
        let mut add = |devices: &Allocation| {
            for kind in DeviceType::ALL {
                for grant in devices.of(kind) {
                    used.units[kind.index()].add(grant.minor, &grant.units);
                    for function in &grant.functions {
                        let entry = (grant.minor, function.bus_id.clone());
                        used.functions[kind.index()].push(entry);
                    }
                }
            }
        };
        for (uid, holding) in self.holdings.iter().filter(|(uid, _)| !gone(uid)) {
            if holding.reserves {
                add(&self.remaining(uid, holding, &gone));
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

    /// What is left of the reservation `uid`, when the pods that `gone` names are not there.
    #[must_use]
    pub fn left_of(&self, uid: &str, gone: impl Fn(&str) -> bool) -> Allocation {
        let Some(holding) = self.get(uid) else {
            return Allocation::default();
        };
        self.remaining(uid, holding, &gone)
    }

    fn remaining(&self, uid: &str, holding: &Holding, gone: &impl Fn(&str) -> bool) -> Allocation {
        let mut left = holding.devices.clone();
        let owners = self.holdings.iter().filter(|(owner, own)| {
            !own.reserves && own.from.as_deref() == Some(uid) && !gone(owner)
        });
        for (_, owner) in owners {
            left.take(&owner.devices);
        }
        left
    }
}
