//! Assignment of nodes to topology domains, and the nodes that count.

use crate::common::node_selector::RequiredNodeAffinity;
use k8s_openapi::api::core::v1::Toleration;
use koord_model::nodes::untolerated;
use koord_scheduler::framework::Label;
use koord_scheduler::state::{NodeIndex, NodeInfo, NodeStore};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Marker for a node without a domain.
pub(crate) const NO_DOMAIN: u32 = u32::MAX;

/// Definition of domains: the label whose values are the domains, and the nodes that count.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DomainSpec {
    /// Key of the label.
    pub(crate) key: String,
    /// Labels that a node must have to count, in addition to `key`.
    pub(crate) needs: Vec<String>,
    /// Node selector and affinity that a node must match to count.
    pub(crate) affinity: Option<RequiredNodeAffinity>,
    /// Tolerations that must tolerate a node's taints for it to count.
    pub(crate) tolerations: Option<Vec<Toleration>>,
}

impl DomainSpec {
    /// Returns true if `node` counts.
    fn admits(&self, node: &NodeInfo) -> bool {
        self.needs.iter().all(|key| node.label(key).is_some())
            && self
                .affinity
                .as_ref()
                .is_none_or(|required_affinity| required_affinity.matches(node))
            && self
                .tolerations
                .as_ref()
                .is_none_or(|all| untolerated(all, node.taints()).is_none())
    }

    /// Returns true if all nodes with the label count.
    fn is_open(&self) -> bool {
        self.needs.is_empty() && self.affinity.is_none() && self.tolerations.is_none()
    }
}

/// Index of a domain definition in [`Domains`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DomainSpecId(pub(super) usize);

/// Values of one label: a number per value, and the number of each row.
#[derive(Debug, Default)]
struct Column {
    key: String,
    numbers: FxHashMap<String, u32>,
    /// Number of rows per value.
    rows_with: Vec<u32>,
    /// Number of values that several rows have.
    shared: usize,
    /// Number of rows that have a value.
    labelled: usize,
    free: Vec<u32>,
    /// Value of each row. Handed out by clone of the `Arc`, so a change copies the list and holders keep the
    /// old one.
    rows: Arc<Vec<u32>>,
}

impl Column {
    /// Sets or removes the value of a row.
    fn set(&mut self, row: usize, value: Option<&str>) {
        if self.rows.len() <= row {
            Arc::make_mut(&mut self.rows).resize(row + 1, NO_DOMAIN);
        }
        let old = self.rows[row];
        if old == NO_DOMAIN && value.is_none() {
            return;
        }
        if let Some(value) = value
            && self.numbers.get(value) == Some(&old)
        {
            return;
        }
        if old != NO_DOMAIN {
            let rows = &mut self.rows_with[old as usize];
            *rows -= 1;
            self.shared -= usize::from(*rows == 1);
            if *rows == 0 {
                self.numbers.retain(|_, number| *number != old);
                self.free.push(old);
            }
        }
        self.labelled -= usize::from(old != NO_DOMAIN);
        self.labelled += usize::from(value.is_some());
        let new = value.map_or(NO_DOMAIN, |value| self.number(value));
        Arc::make_mut(&mut self.rows)[row] = new;
        if let Some(rows) = self.rows_with.get_mut(new as usize) {
            *rows += 1;
            self.shared += usize::from(*rows == 2);
        }
    }

    /// Returns the number of a value; assigns one if it is new.
    fn number(&mut self, value: &str) -> u32 {
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.rows_with.push(0);
            u32::try_from(self.rows_with.len() - 1).unwrap_or(NO_DOMAIN)
        });
        self.numbers.insert(value.to_owned(), number);
        number
    }

    fn at(&self, row: usize) -> u32 {
        self.rows.get(row).copied().unwrap_or(NO_DOMAIN)
    }
}

/// A domain definition in use, with its counting nodes.
#[derive(Debug)]
struct DomainState {
    domain_spec: DomainSpec,
    column: usize,
    /// True for each row that counts; `None` if all rows with the label do.
    admitted: Option<Vec<bool>>,
    /// Number of counting rows per domain.
    nodes: Vec<u32>,
    present: usize,
    users: usize,
}

impl DomainState {
    /// Returns true if pods on this row count.
    fn counts(&self, row: usize) -> bool {
        self.admitted
            .as_ref()
            .is_none_or(|rows| rows.get(row).copied().unwrap_or(false))
    }

    fn add_node(&mut self, domain: u32) {
        if domain == NO_DOMAIN {
            return;
        }
        let at = domain as usize;
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, 0);
        }
        self.nodes[at] += 1;
        self.present += usize::from(self.nodes[at] == 1);
    }

    fn remove_node(&mut self, domain: u32) {
        if domain == NO_DOMAIN {
            return;
        }
        let nodes = &mut self.nodes[domain as usize];
        *nodes -= 1;
        self.present -= usize::from(*nodes == 0);
    }
}

/// Label columns in use, and the domain definitions over them.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    columns: Vec<Column>,
    domain_specs: Vec<Option<DomainState>>,
}

impl Domains {
    /// Returns the id of `domain_spec`; equal ones share one. Release it with [`Self::release`].
    pub(super) fn acquire(&mut self, domain_spec: DomainSpec, nodes: &NodeStore) -> DomainSpecId {
        let equal = |state: &Option<DomainState>| {
            state
                .as_ref()
                .is_some_and(|state| state.domain_spec == domain_spec)
        };
        if let Some(at) = self.domain_specs.iter().position(equal) {
            if let Some(existing) = &mut self.domain_specs[at] {
                existing.users += 1;
            }
            return DomainSpecId(at);
        }
        let column = self.find_or_add_column(&domain_spec.key, nodes);
        let mut domain_state = DomainState {
            admitted: (!domain_spec.is_open()).then(Vec::new),
            domain_spec,
            column,
            nodes: Vec::new(),
            present: 0,
            users: 1,
        };
        for row in 0..nodes.rows() {
            let index = NodeIndex(u32::try_from(row).unwrap_or(u32::MAX));
            let admits = nodes
                .info(index)
                .is_some_and(|n| domain_state.domain_spec.admits(n));
            if let Some(admitted) = &mut domain_state.admitted {
                admitted.push(admits);
            }
            if admits {
                domain_state.add_node(self.columns[column].at(row));
            }
        }
        let slot = self.domain_specs.iter().position(Option::is_none);
        let slot = slot.unwrap_or_else(|| {
            self.domain_specs.push(None);
            self.domain_specs.len() - 1
        });
        self.domain_specs[slot] = Some(domain_state);
        DomainSpecId(slot)
    }

    /// Releases a domain definition that [`Self::acquire`] returned.
    pub(super) fn release(&mut self, id: DomainSpecId) {
        if let Some(domain_state) = &mut self.domain_specs[id.0] {
            domain_state.users -= 1;
            if domain_state.users == 0 {
                self.domain_specs[id.0] = None;
            }
        }
    }

    fn find_or_add_column(&mut self, key: &str, nodes: &NodeStore) -> usize {
        if let Some(at) = self.columns.iter().position(|column| column.key == key) {
            return at;
        }
        let mut column = Column {
            key: key.to_owned(),
            ..Column::default()
        };
        for row in 0..nodes.rows() {
            let index = NodeIndex(u32::try_from(row).unwrap_or(u32::MAX));
            column.set(row, nodes.info(index).and_then(|node| node.label(key)));
        }
        self.columns.push(column);
        self.columns.len() - 1
    }

    /// Updates the labels of a node, and whether it counts.
    pub(super) fn set_node(&mut self, node: NodeIndex, info: Option<&NodeInfo>) {
        let row = node.row();
        for domain_state in self.domain_specs.iter_mut().flatten() {
            if domain_state.counts(row) {
                domain_state.remove_node(self.columns[domain_state.column].at(row));
            }
        }
        for column in &mut self.columns {
            let value = info.and_then(|info| info.label(&column.key));
            column.set(row, value);
        }
        for domain_state in self.domain_specs.iter_mut().flatten() {
            let admits = info.is_some_and(|info| domain_state.domain_spec.admits(info));
            if let Some(admitted) = &mut domain_state.admitted {
                if admitted.len() <= row {
                    admitted.resize(row + 1, false);
                }
                admitted[row] = admits;
            }
            if admits {
                domain_state.add_node(self.columns[domain_state.column].at(row));
            }
        }
    }

    /// Returns, by frame, the domain in which pods on `node` count.
    pub(super) fn domains_by_spec(&self, node: NodeIndex) -> Vec<u32> {
        (0..self.domain_specs.len())
            .map(|at| self.domain(DomainSpecId(at), node))
            .collect()
    }

    /// Returns the domain in which pods on `node` count, or [`NO_DOMAIN`].
    pub(super) fn domain(&self, id: DomainSpecId, node: NodeIndex) -> u32 {
        match &self.domain_specs[id.0] {
            Some(domain_state) if domain_state.counts(node.row()) => {
                self.columns[domain_state.column].at(node.row())
            }
            _ => NO_DOMAIN,
        }
    }

    pub(super) fn column(&self, id: DomainSpecId) -> &[u32] {
        let domain_state = self.domain_specs[id.0].as_ref();
        domain_state.map_or(&[], |domain_state| &self.columns[domain_state.column].rows)
    }

    /// Returns the label of frame `id` with the value of each row.
    pub(super) fn values(&self, id: DomainSpecId) -> Option<Label> {
        let column = &self.columns[self.domain_specs[id.0].as_ref()?.column];
        Some(Label {
            key: column.key.clone(),
            rows: column.rows.clone(),
        })
    }

    /// Returns the number of nodes with the label.
    pub(super) fn labelled(&self, id: DomainSpecId) -> usize {
        let domain_state = self.domain_specs[id.0].as_ref();
        domain_state.map_or(0, |domain_state| self.columns[domain_state.column].labelled)
    }

    pub(super) fn label(&self, id: DomainSpecId) -> &str {
        let domain_state = self.domain_specs[id.0].as_ref();
        domain_state.map_or("", |domain_state| &domain_state.domain_spec.key)
    }

    /// Returns the number of domains with a counting node.
    pub(super) fn present(&self, id: DomainSpecId) -> usize {
        self.domain_specs[id.0].as_ref().map_or(0, |f| f.present)
    }

    pub(super) fn is_present(&self, id: DomainSpecId, domain: u32) -> bool {
        let domain_state = self.domain_specs[id.0].as_ref();
        domain_state.is_some_and(|f| f.nodes.get(domain as usize).is_some_and(|n| *n > 0))
    }

    pub(super) fn is_plain(&self, id: DomainSpecId) -> bool {
        let domain_state = self.domain_specs[id.0].as_ref();
        domain_state.is_some_and(|f| f.admitted.is_none() && self.columns[f.column].shared == 0)
    }
}
