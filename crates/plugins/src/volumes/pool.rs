//! Volumes that are nobody's yet, by where they can be reached.

use super::seen::SeenVolume;
use crate::common::hosts::HOSTNAME;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// The free volumes of one class, by name.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Those of which every node selector term names the hosts, by host.
    by_host: FxHashMap<String, BTreeSet<String>>,
    /// All others.
    elsewhere: BTreeSet<String>,
    /// Changes whenever `elsewhere` does; never repeats.
    version: u64,
}

/// The hosts that alone can reach the volume, where it says so.
pub(super) fn hosts_of(volume: &SeenVolume) -> Option<Vec<&str>> {
    let terms = volume.reachable.as_deref()?;
    let mut out = Vec::new();
    for term in terms {
        let mut rules = term.match_expressions.iter().flatten();
        let rule = rules.find(|rule| rule.operator == "In" && rule.key == HOSTNAME)?;
        out.extend(rule.values.iter().flatten().map(String::as_str));
    }
    Some(out)
}

impl Pool {
    pub(super) fn put(&mut self, name: &str, hosts: Option<&[&str]>, version: u64) {
        let Some(hosts) = hosts else {
            self.elsewhere.insert(name.to_owned());
            self.version = version;
            return;
        };
        for host in hosts {
            let names = self.by_host.entry((*host).to_owned()).or_default();
            names.insert(name.to_owned());
        }
    }

    pub(super) fn take(&mut self, name: &str, hosts: Option<&[&str]>, version: u64) {
        let Some(hosts) = hosts else {
            self.elsewhere.remove(name);
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
        self.by_host.is_empty() && self.elsewhere.is_empty()
    }

    /// The version of what is not of single hosts, if there is any.
    pub(super) fn elsewhere(&self) -> Option<u64> {
        (!self.elsewhere.is_empty()).then_some(self.version)
    }

    /// The volumes that nodes of this host may reach.
    pub(super) fn near(&self, host: Option<&str>) -> impl Iterator<Item = &String> {
        let own = host.and_then(|host| self.by_host.get(host));
        own.into_iter().flatten().chain(&self.elsewhere)
    }
}
