//! Counters of pods per topology domain (value of a node label), updated pod by pod.
//!
//! Spread and affinity rules need the number of pods that match some terms in the domain of a node. A
//! [`TopologyCounters`] holds one counter per distinct set of terms: a placement costs one addition per
//! counter that the pod matches, and a lookup needs no scan.

mod domains;
mod selector;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use domains::{DomainSpec, Domains, NO_DOMAIN};
pub(crate) use selector::{Labels, Namespaces, Selector, Term, sign_selector};

use domains::DomainSpecId;
use koord_scheduler::framework::{Groups, Label, ShapeId};
use koord_scheduler::state::{NodeIndex, NodeInfo, NodeStore, PodInfo};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Id of a counter. The id of a dropped counter is never valid again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CounterId {
    slot: usize,
    birth: u64,
}

/// Number of matching pods, or sum of their weights, per domain.
#[derive(Debug)]
pub(crate) struct Counter {
    key: ShapeId,
    /// Terms that a pod must match, all of them.
    terms: Vec<Term>,
    /// True if terminating pods do not count.
    live_only: bool,
    domain_spec: DomainSpecId,
    by_row: FxHashMap<u32, i32>,
    counts: Vec<i32>,
    /// Number of domains per count, without count 0.
    levels: BTreeMap<i32, usize>,
    birth: u64,
    used: u64,
}

/// Topology counters over one set of nodes.
#[derive(Debug, Default)]
pub(crate) struct TopologyCounters {
    domains: Domains,
    counters: Vec<Option<Counter>>,
    by_key: FxHashMap<ShapeId, usize>,
    /// Slots of counters by a label that a pod must have to match; counters without such a label are in
    /// `broad`.
    by_label: FxHashMap<String, FxHashMap<String, Vec<usize>>>,
    broad: Vec<usize>,
    /// Number of pods by label, value and row, for each label with which a counter was built.
    labelled: FxHashMap<String, FxHashMap<String, FxHashMap<u32, i32>>>,
    clock: u64,
}

/// Number of counters that are kept regardless of their size.
const MIN_COUNTERS: usize = 1024;
/// Size in bytes above which the least recently used counters beyond [`MIN_COUNTERS`] are dropped. Rebuilding a
/// counter visits every pod that has its label.
const MAX_BYTES: usize = 64 << 20;

impl TopologyCounters {
    /// Returns the counter with `key`, if it exists, and marks it as used.
    pub(crate) fn find(&mut self, key: ShapeId) -> Option<CounterId> {
        let slot = *self.by_key.get(&key)?;
        self.clock += 1;
        let counter = self.counters.get_mut(slot)?.as_mut()?;
        counter.used = self.clock;
        let birth = counter.birth;
        Some(CounterId { slot, birth })
    }

    /// Inserts an empty counter with `key` and returns its id.
    pub(crate) fn insert(
        &mut self,
        key: ShapeId,
        terms: Vec<Term>,
        live_only: bool,
        domain_spec: DomainSpec,
        nodes: &NodeStore,
    ) -> CounterId {
        self.clock += 1;
        let (domain_spec, birth) = (self.domains.acquire(domain_spec, nodes), self.clock);
        let slot = match self.counters.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                self.counters.push(None);
                self.counters.len() - 1
            }
        };
        match terms.iter().find_map(|term| term.selector.required_label()) {
            Some((label, values)) => {
                let by_value = self.by_label.entry(label.to_owned()).or_default();
                for value in values {
                    by_value.entry(value.clone()).or_default().push(slot);
                }
            }
            None => self.broad.push(slot),
        }
        self.by_key.insert(key, slot);
        self.counters[slot] = Some(Counter {
            key,
            terms,
            live_only,
            domain_spec,
            by_row: FxHashMap::default(),
            counts: Vec::new(),
            levels: BTreeMap::new(),
            birth,
            used: birth,
        });
        CounterId { slot, birth }
    }

    /// Creates a counter like [`Self::insert`] and counts all matching pods that are on nodes, assumed ones
    /// included. When there are many counters, the least recently used one is dropped first.
    pub(crate) fn insert_counted(
        &mut self,
        key: ShapeId,
        terms: Vec<Term>,
        live_only: bool,
        domain_spec: DomainSpec,
        nodes: &NodeStore,
        labels_of: &dyn Fn(&str) -> Option<Labels>,
    ) -> CounterId {
        if self.by_key.len() >= MIN_COUNTERS && self.bytes() > MAX_BYTES {
            let used = |counter: &Option<Counter>| counter.as_ref().map_or(u64::MAX, |c| c.used);
            let oldest = (0..self.counters.len()).min_by_key(|slot| used(&self.counters[*slot]));
            if let Some(slot) = oldest {
                self.drop_slot(slot);
            }
        }
        let rows = self.rows_with(&terms, nodes);
        let id = self.insert(key, terms, live_only, domain_spec, nodes);
        let Some(counter) = &self.counters[id.slot] else {
            return id;
        };
        let mut counts_by_row: Vec<(u32, i32)> = Vec::new();
        for row in rows {
            let pods = nodes.booked(NodeIndex(row));
            let matching = pods.filter(|pod| counter.matches(pod, labels_of)).count();
            if matching > 0 {
                counts_by_row.push((row, i32::try_from(matching).unwrap_or(i32::MAX)));
            }
        }
        for (row, matching) in counts_by_row {
            self.add(id, NodeIndex(row), matching);
        }
        id
    }

    /// Returns the rows that can have pods that match `terms`.
    fn rows_with(&mut self, terms: &[Term], nodes: &NodeStore) -> Vec<u32> {
        let all = 0..u32::try_from(nodes.rows()).unwrap_or(u32::MAX);
        let Some((label, values)) = terms.iter().find_map(|term| term.selector.required_label())
        else {
            return all.collect();
        };
        if !self.labelled.contains_key(label) {
            let mut by_value: FxHashMap<String, FxHashMap<u32, i32>> = FxHashMap::default();
            for row in all {
                for pod in nodes.booked(NodeIndex(row)) {
                    if let Some(value) = pod.label(label) {
                        *by_value
                            .entry(value.to_owned())
                            .or_default()
                            .entry(row)
                            .or_default() += 1;
                    }
                }
            }
            self.labelled.insert(label.to_owned(), by_value);
        }
        let by_value = self.labelled.get(label);
        let mut rows: Vec<u32> = values
            .iter()
            .filter_map(|value| by_value?.get(value))
            .flat_map(FxHashMap::keys)
            .copied()
            .collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Updates [`Self::labelled`] for a pod that was added to or removed from `node`.
    fn update_labelled(&mut self, pod: &PodInfo, node: NodeIndex, amount: i32) {
        for (label, by_value) in &mut self.labelled {
            let Some(value) = pod.label(label) else {
                continue;
            };
            if !by_value.contains_key(value) {
                by_value.insert(value.to_owned(), FxHashMap::default());
            }
            if let Some(rows) = by_value.get_mut(value) {
                let pods = rows.entry(node.0).or_default();
                *pods += amount;
                if *pods == 0 {
                    rows.remove(&node.0);
                }
                if rows.is_empty() {
                    by_value.remove(value);
                }
            }
        }
    }

    /// Returns the approximate size of all counters in bytes.
    fn bytes(&self) -> usize {
        let counters = self.counters.iter().flatten();
        counters.map(Counter::bytes).sum()
    }

    /// Returns the counters whose terms match `pod`.
    pub(crate) fn matching(
        &self,
        pod: &PodInfo,
        labels_of: &dyn Fn(&str) -> Option<Labels>,
    ) -> Vec<CounterId> {
        let mut out = Vec::new();
        let mut check = |slots: &[usize]| {
            for slot in slots {
                if let Some(Some(counter)) = self.counters.get(*slot)
                    && counter.matches(pod, labels_of)
                {
                    let (slot, birth) = (*slot, counter.birth);
                    out.push(CounterId { slot, birth });
                }
            }
        };
        check(&self.broad);
        if !self.by_label.is_empty() {
            for (label, value) in pod.labels().iter() {
                if let Some(slots) = self.by_label.get(label).and_then(|by| by.get(value)) {
                    check(slots);
                }
            }
        }
        out
    }

    /// Returns true if there is no counter.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Adds `amount` to a counter on the row of `node`.
    pub(crate) fn add(&mut self, id: CounterId, node: NodeIndex, amount: i32) {
        let Some(Some(counter)) = self.counters.get_mut(id.slot) else {
            return;
        };
        if counter.birth != id.birth {
            return;
        }
        let at_row = counter.by_row.entry(node.0).or_default();
        *at_row = at_row.saturating_add(amount);
        if *at_row == 0 {
            counter.by_row.remove(&node.0);
        }
        let domain = self.domains.domain(counter.domain_spec, node);
        counter.shift(domain, amount);
    }

    /// Adds `amount` to all counters whose terms match `pod`.
    pub(crate) fn add_pod(
        &mut self,
        pod: &PodInfo,
        node: NodeIndex,
        amount: i32,
        labels_of: &dyn Fn(&str) -> Option<Labels>,
    ) {
        self.update_labelled(pod, node, amount);
        if self.is_empty() {
            return;
        }
        for id in self.matching(pod, labels_of) {
            self.add(id, node, amount);
        }
    }

    /// Drops a counter if no row counts anything.
    pub(crate) fn drop_if_unused(&mut self, id: CounterId) {
        if self
            .get(id)
            .is_some_and(|counter| counter.by_row.is_empty())
        {
            self.drop_slot(id.slot);
        }
    }

    /// Drops counters whose terms depend on namespace labels.
    pub(crate) fn drop_by_namespace_labels(&mut self) {
        let reads = |counter: &Counter| counter.terms.iter().any(|term| term.namespaces.is_open());
        for slot in 0..self.counters.len() {
            if self.counters[slot].as_ref().is_some_and(reads) {
                self.drop_slot(slot);
            }
        }
    }

    /// Drops a counter with its index entries.
    fn drop_slot(&mut self, slot: usize) {
        let Some(counter) = self.counters[slot].take() else {
            return;
        };
        self.by_key.remove(&counter.key);
        self.domains.release(counter.domain_spec);
        match counter
            .terms
            .iter()
            .find_map(|term| term.selector.required_label())
        {
            Some((label, values)) => {
                if let Some(by_value) = self.by_label.get_mut(label) {
                    for value in values {
                        if let Some(slots) = by_value.get_mut(value) {
                            slots.retain(|other| *other != slot);
                            if slots.is_empty() {
                                by_value.remove(value);
                            }
                        }
                    }
                    if by_value.is_empty() {
                        self.by_label.remove(label);
                    }
                }
            }
            None => self.broad.retain(|other| *other != slot),
        }
    }

    /// Updates a node that was added, changed or removed, and moves its counts if its domain changed.
    pub(crate) fn node_changed(&mut self, node: NodeIndex, info: Option<&NodeInfo>) {
        let before: Vec<u32> = self.domains.domains_by_spec(node);
        self.domains.set_node(node, info);
        for counter in self.counters.iter_mut().flatten() {
            let Some(amount) = counter.by_row.get(&node.0).copied() else {
                continue;
            };
            let old = before
                .get(counter.domain_spec.0)
                .copied()
                .unwrap_or(NO_DOMAIN);
            let new = self.domains.domain(counter.domain_spec, node);
            if old != new {
                counter.shift(old, -amount);
                counter.shift(new, amount);
            }
        }
    }

    /// Returns a counter, or `None` if it was dropped.
    pub(crate) fn get(&self, id: CounterId) -> Option<&Counter> {
        let counter = self.counters.get(id.slot)?.as_ref()?;
        (counter.birth == id.birth).then_some(counter)
    }

    /// Returns the domain of each row by `counter`'s label, [`NO_DOMAIN`] for nodes without the label. Includes
    /// nodes that do not count.
    pub(crate) fn domains_of(&self, counter: &Counter) -> &[u32] {
        self.domains.column(counter.domain_spec)
    }

    /// Refines `groups` of equivalent nodes by the counts of `counter`. If each domain is one node,
    /// only nodes with a nonzero count are split off; nodes without the label count nothing.
    pub(crate) fn refine_groups(
        &self,
        counter: &Counter,
        groups: Groups,
        nodes: &NodeStore,
    ) -> Option<Groups> {
        if self.is_plain(counter) {
            return groups.with_apart(counter.nonzero_nodes(), nodes.rows());
        }
        groups.with_label(self.label(counter)?)
    }

    /// Returns the label that defines `counter`'s domains, with its values by row.
    pub(crate) fn label(&self, counter: &Counter) -> Option<Label> {
        self.domains.values(counter.domain_spec)
    }

    /// Returns true if every node has the label that defines `counter`'s domains.
    pub(crate) fn is_on_every_node(&self, counter: &Counter, nodes: &NodeStore) -> bool {
        self.domains.labelled(counter.domain_spec) == nodes.len()
    }

    /// Returns the domain in which pods on `node` count for `counter`, or [`NO_DOMAIN`] if they do not count.
    pub(crate) fn counted_in(&self, counter: &Counter, node: NodeIndex) -> u32 {
        self.domains.domain(counter.domain_spec, node)
    }

    /// Returns the key of the label that defines `counter`'s domains.
    pub(crate) fn label_of(&self, counter: &Counter) -> &str {
        self.domains.label(counter.domain_spec)
    }

    /// Returns the number of domains with at least one node that counts.
    pub(crate) fn domain_count(&self, counter: &Counter) -> usize {
        self.domains.present(counter.domain_spec)
    }

    /// Returns true if `domain` has at least one node that counts.
    pub(crate) fn is_counted(&self, counter: &Counter, domain: u32) -> bool {
        self.domains.is_present(counter.domain_spec, domain)
    }

    /// Returns true if each domain is one node and every node with the label counts.
    pub(crate) fn is_plain(&self, counter: &Counter) -> bool {
        self.domains.is_plain(counter.domain_spec)
    }

    /// Returns the smallest count of all domains other than `but`, or `None` if there is no other domain.
    pub(crate) fn min_except(&self, counter: &Counter, but: u32) -> Option<i32> {
        let mut domains = self.domains.present(counter.domain_spec);
        let own = counter.at(but);
        let counts = but != NO_DOMAIN && self.domains.is_present(counter.domain_spec, but);
        domains -= usize::from(counts);
        if domains == 0 {
            return None;
        }
        let positive: usize = counter.levels.values().sum();
        let positive = positive - usize::from(counts && own != 0);
        if positive < domains {
            return Some(0);
        }
        let mut levels = counter.levels.iter();
        levels
            .find(|(level, domains)| !(counts && **level == own && **domains == 1))
            .map(|(level, _)| *level)
    }
}

impl Counter {
    /// Returns the count of a domain.
    pub(crate) fn at(&self, domain: u32) -> i32 {
        self.counts.get(domain as usize).copied().unwrap_or(0)
    }

    /// Returns the counts by domain; domains beyond the end have count 0.
    pub(crate) fn counts(&self) -> &[i32] {
        &self.counts
    }

    /// Returns the count on one row, whether or not its node counts for domains.
    pub(crate) fn on(&self, node: NodeIndex) -> i32 {
        self.by_row.get(&node.0).copied().unwrap_or(0)
    }

    /// Returns the rows with a nonzero count, in no particular order.
    pub(crate) fn nonzero_nodes(&self) -> impl ExactSizeIterator<Item = NodeIndex> + '_ {
        self.by_row.keys().map(|row| NodeIndex(*row))
    }

    /// Returns true if the count of every domain is 0.
    pub(crate) fn is_zero(&self) -> bool {
        self.levels.is_empty()
    }

    /// Returns true if the counter counts `pod`.
    pub(crate) fn matches(
        &self,
        pod: &PodInfo,
        labels_of: &dyn Fn(&str) -> Option<Labels>,
    ) -> bool {
        !(self.live_only && pod.deleting)
            && self.terms.iter().all(|term| term.matches(pod, labels_of))
    }

    /// Returns the sum over all domains.
    pub(crate) fn total(&self) -> i32 {
        self.counts.iter().sum()
    }

    /// Returns true if `pod`'s labels match the selectors of all terms.
    pub(crate) fn selects(&self, pod: &PodInfo) -> bool {
        let labels = pod.labels();
        self.terms.iter().all(|term| term.selector.matches(labels))
    }

    /// Returns the approximate size of the counter in bytes.
    fn bytes(&self) -> usize {
        // 2048 bytes stand for the key, the terms and their index entries.
        2048 + 4 * self.counts.capacity() + 16 * self.by_row.capacity() + 32 * self.levels.len()
    }

    /// Adds `amount` to the count of `domain`.
    fn shift(&mut self, domain: u32, amount: i32) {
        if domain == NO_DOMAIN || amount == 0 {
            return;
        }
        let at = domain as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        let old = self.counts[at];
        let new = old.saturating_add(amount);
        self.counts[at] = new;
        if old != 0
            && let Some(domains) = self.levels.get_mut(&old)
        {
            *domains -= 1;
            if *domains == 0 {
                self.levels.remove(&old);
            }
        }
        if new != 0 {
            *self.levels.entry(new).or_default() += 1;
        }
    }
}
