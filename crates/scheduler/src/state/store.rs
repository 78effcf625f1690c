//! Nodes as rows of dense columns, with a log of which rows changed.

use super::{NodeInfo, PodInfo};
use koord_model::resources::{Amounts, PODS, ResourceId};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// A node's row. Stable while the node or a pod on it exists; reused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(pub u32);

impl NodeIndex {
    /// The row as an index into a column.
    #[must_use]
    pub fn row(self) -> usize {
        self.0 as usize
    }
}

/// One resource on all nodes.
#[derive(Debug, Clone, Copy)]
pub struct ResourceColumn<'a> {
    allocatable: &'a [i64],
    requested: &'a [i64],
}

impl ResourceColumn<'_> {
    /// What there is on `node`.
    #[inline]
    #[must_use]
    pub fn allocatable(&self, node: NodeIndex) -> i64 {
        self.allocatable.get(node.row()).copied().unwrap_or(0)
    }

    /// What the pods on `node` request. For `pods`, their number.
    #[inline]
    #[must_use]
    pub fn requested(&self, node: NodeIndex) -> i64 {
        self.requested.get(node.row()).copied().unwrap_or(0)
    }
}

#[derive(Debug, Default)]
struct Row {
    name: Arc<str>,
    /// None for a shell: pods were seen on a node that does not exist (yet, or any more).
    info: Option<Arc<NodeInfo>>,
    pods: FxHashMap<Arc<str>, Arc<PodInfo>>,
    /// As the row's version, when only what preemption reads of its pods changed.
    ranked: u64,
}

/// What whole clusters of nodes have in common, so that it is asked before any node is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Marks {
    present: bool,
    unschedulable: bool,
    tainted: bool,
}

/// All nodes, and what is booked on them.
#[derive(Debug, Default)]
pub struct NodeStore {
    rows: Vec<Row>,
    by_name: FxHashMap<Arc<str>, NodeIndex>,
    free: Vec<NodeIndex>,
    /// `allocatable[resource][row]`.
    allocatable: Vec<Vec<i64>>,
    /// `requested[resource][row]`.
    requested: Vec<Vec<i64>>,
    /// By row: CPU and memory requested, with defaults for containers without requests.
    scoring: Vec<[i64; 2]>,
    marks: Vec<Marks>,
    /// By row: changes whenever anything about it does.
    row_versions: Vec<u64>,
    present: usize,
    log: VecDeque<NodeIndex>,
    /// Sequence number of the first entry of `log`.
    log_start: u64,
    versions: u64,
}

impl NodeStore {
    /// How many nodes exist.
    #[must_use]
    pub fn len(&self) -> usize {
        self.present
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// How many rows there are, used or not: every index is below this.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The rows of existing nodes, in order of index.
    pub fn indices(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        (0..self.rows.len())
            .filter(|row| self.rows[*row].info.is_some())
            .map(index)
    }

    /// The row of node `name`, shells included.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        self.by_name.get(name).copied()
    }

    /// The node in row `node`, unless the row is free or a shell.
    #[must_use]
    pub fn info(&self, node: NodeIndex) -> Option<&Arc<NodeInfo>> {
        self.rows.get(node.row()).and_then(|row| row.info.as_ref())
    }

    /// The name of row `node`.
    #[must_use]
    pub fn name(&self, node: NodeIndex) -> &Arc<str> {
        &self.rows[node.row()].name
    }

    /// The pods on `node`, assumed ones included, in no particular order. Without holders.
    pub fn pods(&self, node: NodeIndex) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.booked(node).filter(|pod| !pod.is_holder())
    }

    /// What is booked on `node` under this uid, a pod or a holder.
    #[must_use]
    pub fn pod(&self, node: NodeIndex, uid: &str) -> Option<&Arc<PodInfo>> {
        self.rows.get(node.row())?.pods.get(uid)
    }

    /// All that takes room on `node`: pods and holders, assumed ones included, in no particular
    /// order.
    pub fn booked(&self, node: NodeIndex) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.rows
            .get(node.row())
            .into_iter()
            .flat_map(|row| row.pods.values())
    }

    /// How many pods and holders are on `node`.
    #[must_use]
    pub fn pod_count(&self, node: NodeIndex) -> usize {
        self.rows.get(node.row()).map_or(0, |row| row.pods.len())
    }

    /// What there is, and what is requested, of one resource on all nodes.
    #[must_use]
    pub fn column(&self, resource: ResourceId) -> ResourceColumn<'_> {
        ResourceColumn {
            allocatable: all(&self.allocatable, resource),
            requested: all(&self.requested, resource),
        }
    }

    /// Allocatable of one resource on `node`.
    #[inline]
    #[must_use]
    pub fn allocatable(&self, node: NodeIndex, resource: ResourceId) -> i64 {
        cell(&self.allocatable, node, resource)
    }

    /// What the pods on `node` request of one resource. For `pods`, their number.
    #[inline]
    #[must_use]
    pub fn requested(&self, node: NodeIndex, resource: ResourceId) -> i64 {
        cell(&self.requested, node, resource)
    }

    /// CPU (milli) and memory requested on `node`, with defaults for containers without requests.
    #[inline]
    #[must_use]
    pub fn requested_for_scoring(&self, node: NodeIndex) -> [i64; 2] {
        self.scoring[node.row()]
    }

    /// Whether there is a node in row `node`, which is neither free nor a shell.
    #[inline]
    #[must_use]
    pub fn is_present(&self, node: NodeIndex) -> bool {
        self.marks(node).present
    }

    /// Whether the node says `spec.unschedulable`.
    #[inline]
    #[must_use]
    pub fn is_unschedulable(&self, node: NodeIndex) -> bool {
        self.marks(node).unschedulable
    }

    /// Whether the node has any taint.
    #[inline]
    #[must_use]
    pub fn is_tainted(&self, node: NodeIndex) -> bool {
        self.marks(node).tainted
    }

    #[inline]
    fn marks(&self, node: NodeIndex) -> Marks {
        self.marks.get(node.row()).copied().unwrap_or_default()
    }

    /// Changes whenever anything about the row does; never repeats.
    #[inline]
    #[must_use]
    pub fn version(&self, node: NodeIndex) -> u64 {
        self.row_versions[node.row()]
    }

    /// As [`Self::version`]; changes also with what only the search for victims reads of the pods.
    pub(crate) fn victims_version(&self, node: NodeIndex) -> u64 {
        self.version(node).max(self.rows[node.row()].ranked)
    }

    /// Adds or replaces a node.
    pub(crate) fn set_node(&mut self, info: Arc<NodeInfo>) -> NodeIndex {
        let node = self.row_for(&info.name);
        let old = self.rows[node.row()].info.take();
        self.present += usize::from(old.is_none());
        for (id, _) in old.iter().flat_map(|old| old.allocatable.iter()) {
            self.write_allocatable(node, id, 0);
        }
        for (id, amount) in info.allocatable.iter() {
            self.write_allocatable(node, id, amount);
        }
        self.marks[node.row()] = Marks {
            present: true,
            unschedulable: info.unschedulable,
            tainted: !info.taints().is_empty(),
        };
        self.rows[node.row()].info = Some(info);
        self.touch(node);
        node
    }

    /// Takes a newer object of a node that differs in nothing that anybody judges by.
    pub(crate) fn replace_object(&mut self, info: Arc<NodeInfo>) {
        let known = self.find(&info.name);
        if let Some(known) = known.and_then(|node| self.rows[node.row()].info.as_mut()) {
            *known = info;
        }
    }

    /// Removes a node. Its row stays, as a shell, while pods are on it.
    pub(crate) fn remove_node(&mut self, name: &str) -> Option<NodeIndex> {
        let node = self.find(name)?;
        let old = self.rows[node.row()].info.take()?;
        self.present -= 1;
        self.marks[node.row()] = Marks::default();
        for (id, _) in old.allocatable.iter() {
            self.write_allocatable(node, id, 0);
        }
        self.touch(node);
        self.release(node);
        Some(node)
    }

    /// Books `pod` on node `name`, which may be unknown so far.
    pub(crate) fn add_pod(&mut self, name: &str, pod: Arc<PodInfo>) -> NodeIndex {
        let node = self.row_for(name);
        self.book(node, &pod, 1);
        self.rows[node.row()].pods.insert(pod.uid.clone(), pod);
        self.touch(node);
        node
    }

    /// Undoes [`Self::add_pod`].
    pub(crate) fn remove_pod(&mut self, node: NodeIndex, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.rows.get_mut(node.row())?.pods.remove(uid)?;
        self.book(node, &pod, -1);
        self.touch(node);
        self.release(node);
        Some(pod)
    }

    /// Replaces a pod's record; touches the row only if what it takes differs.
    pub(crate) fn update_pod(&mut self, node: NodeIndex, pod: Arc<PodInfo>) {
        let Some(old) = self.rows[node.row()].pods.get(&pod.uid).cloned() else {
            return;
        };
        if old.requests != pod.requests || old.scoring != pod.scoring {
            self.book(node, &old, -1);
            self.book(node, &pod, 1);
            self.touch(node);
        } else if old.object.labels != pod.object.labels || old.deleting != pod.deleting {
            self.touch(node);
        } else if ranks_differently(&old, &pod) {
            self.versions += 1;
            self.rows[node.row()].ranked = self.versions;
        }
        self.rows[node.row()].pods.insert(pod.uid.clone(), pod);
    }

    /// Records that verdicts or scores of `node` may have changed.
    pub(crate) fn touch(&mut self, node: NodeIndex) {
        self.versions += 1;
        self.row_versions[node.row()] = self.versions;
        self.log.push_back(node);
        // Whoever lags this far behind is better off evaluating every row.
        while self.log.len() > self.rows.len().max(64) {
            self.log.pop_front();
            self.log_start += 1;
        }
    }

    /// Where the log of changed rows ends now.
    pub(crate) fn position(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// The rows changed since `position`, each once, in order; `None` when that is too long ago.
    pub(crate) fn changed_since(&self, position: u64) -> Option<Vec<NodeIndex>> {
        let skip = usize::try_from(position.checked_sub(self.log_start)?).ok()?;
        let mut changed: Vec<NodeIndex> = self
            .log
            .range(skip.min(self.log.len())..)
            .copied()
            .collect();
        if changed.len() < self.rows.len() / 64 {
            changed.sort_unstable();
            changed.dedup();
            return Some(changed);
        }
        // Of many, sorting would take as long as looking at them.
        let mut words = vec![0_u64; self.rows.len().div_ceil(64)];
        for node in &changed {
            words[node.row() / 64] |= 1 << (node.row() % 64);
        }
        changed.clear();
        for (at, mut word) in (0_u32..).zip(words) {
            while word != 0 {
                changed.push(NodeIndex(64 * at + word.trailing_zeros()));
                word &= word - 1;
            }
        }
        Some(changed)
    }

    fn row_for(&mut self, name: &str) -> NodeIndex {
        if let Some(node) = self.by_name.get(name) {
            return *node;
        }
        let name: Arc<str> = name.into();
        let node = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row::default());
            for column in self.allocatable.iter_mut().chain(&mut self.requested) {
                column.push(0);
            }
            self.scoring.push([0; 2]);
            self.marks.push(Marks::default());
            self.row_versions.push(0);
            index(self.rows.len() - 1)
        });
        self.rows[node.row()].name = name.clone();
        self.by_name.insert(name, node);
        node
    }

    fn release(&mut self, node: NodeIndex) {
        let row = &mut self.rows[node.row()];
        if row.info.is_none() && row.pods.is_empty() {
            self.by_name.remove(&row.name);
            row.name = Arc::default();
            self.free.push(node);
        }
    }

    fn write_allocatable(&mut self, node: NodeIndex, id: ResourceId, amount: i64) {
        column(&mut self.allocatable, id, self.rows.len())[node.row()] = amount;
    }

    /// Adds what `pod` takes, or takes it away. No sum of bounded amounts comes near the ends of `i64`; if one
    /// did, it would come back from there, which a saturated one does not.
    fn book(&mut self, node: NodeIndex, pod: &PodInfo, sign: i64) {
        let rows = self.rows.len();
        for (id, amount) in pod.requests.iter() {
            let cell = &mut column(&mut self.requested, id, rows)[node.row()];
            *cell = cell.wrapping_add(sign * amount);
        }
        column(&mut self.requested, PODS, rows)[node.row()] += sign;
        for (total, amount) in self.scoring[node.row()].iter_mut().zip(pod.scoring) {
            *total = total.wrapping_add(sign * amount);
        }
    }

    /// What is booked per row must equal the sum over its pods; for tests and debug assertions.
    #[must_use]
    pub fn books_balance(&self) -> bool {
        (0..self.rows.len()).map(index).all(|node| {
            let mut sum = Amounts::new();
            for pod in self.booked(node) {
                sum.add_all(&pod.requests);
                sum.add(PODS, 1);
            }
            (0..self.requested.len())
                .filter_map(|id| u16::try_from(id).ok().map(ResourceId))
                .all(|id| self.requested(node, id) == sum.get(id))
        })
    }
}

/// Whether the search for victims may see the pod in another light.
fn ranks_differently(old: &PodInfo, new: &PodInfo) -> bool {
    old.priority != new.priority
        || old.object.annotations != new.object.annotations
        || old.started != new.started
}

fn index(row: usize) -> NodeIndex {
    NodeIndex(u32::try_from(row).unwrap_or(u32::MAX))
}

#[inline]
fn cell(columns: &[Vec<i64>], node: NodeIndex, resource: ResourceId) -> i64 {
    columns
        .get(resource.index())
        .and_then(|c| c.get(node.row()))
        .copied()
        .unwrap_or(0)
}

fn all(columns: &[Vec<i64>], resource: ResourceId) -> &[i64] {
    let column = columns.get(resource.index());
    column.map(Vec::as_slice).unwrap_or_default()
}

fn column(columns: &mut Vec<Vec<i64>>, id: ResourceId, rows: usize) -> &mut Vec<i64> {
    while columns.len() <= id.index() {
        columns.push(vec![0; rows]);
    }
    &mut columns[id.index()]
}

#[cfg(test)]
mod tests;
