//! Free volumes of a class, indexed by the hosts that can reach them.

use super::trimmed::TrimmedVolume;
use crate::common::hostname_index::HOSTNAME;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Free volumes of one class, by name.
#[derive(Debug, Default)]
pub(super) struct VolumePool {
    /// Volumes whose node selector terms all name hosts, by host.
    by_host: FxHashMap<String, BTreeSet<String>>,
    /// Names of all other volumes.
    shared: BTreeSet<String>,
    /// Version of `shared`; never repeats.
    version: u64,
}

/// Returns the only hosts that can reach the volume, or `None` if it does not name them.
pub(super) fn hosts_of(volume: &TrimmedVolume) -> Option<Vec<&str>> {
    let terms = volume.reachable.as_deref()?;
    let mut out = Vec::new();
    for term in terms {
        let mut rules = term.match_expressions.iter().flatten();
        let rule = rules.find(|rule| rule.operator == "In" && rule.key == HOSTNAME)?;
        out.extend(rule.values.iter().flatten().map(String::as_str));
    }
    Some(out)
}

impl VolumePool {
    /// Adds a volume; `hosts` are the only ones that can reach it, `None` if others can.
    pub(super) fn put(&mut self, name: &str, hosts: Option<&[&str]>, version: u64) {
        let Some(hosts) = hosts else {
            self.shared.insert(name.to_owned());
            self.version = version;
            return;
        };
        for host in hosts {
            let names = self.by_host.entry((*host).to_owned()).or_default();
            names.insert(name.to_owned());
        }
    }

    /// Removes a volume that was added with the same `hosts`.
    pub(super) fn take(&mut self, name: &str, hosts: Option<&[&str]>, version: u64) {
        let Some(hosts) = hosts else {
            self.shared.remove(name);
            self.version = version;
            return;
        };
        for host in hosts {
            if let Some(names) = self.by_host.get_mut(*host) {
                names.remove(name);
                if names.is_empty() {
                    self.by_host.remove(*host);
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_host.is_empty() && self.shared.is_empty()
    }

    /// Returns the version of the volumes without specific hosts, or `None` if there are none.
    pub(super) fn shared_version(&self) -> Option<u64> {
        (!self.shared.is_empty()).then_some(self.version)
    }

    /// Returns the volumes that nodes with this hostname may reach.
    pub(super) fn reachable_from(&self, host: Option<&str>) -> impl Iterator<Item = &String> {
        let own = host.and_then(|host| self.by_host.get(host));
        own.into_iter().flatten().chain(&self.shared)
    }
}
