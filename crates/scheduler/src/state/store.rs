//! Nodes as rows of dense columns, with a log of changed rows.

use super::{NodeInfo, PodInfo};
use koord_model::resources::{Amounts, PODS, ResourceId};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// The row of a node. Stable while the node or a pod on it exists; reused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(pub u32);

impl NodeIndex {
    /// Returns the row as an index into a column.
    #[must_use]
    pub fn row(self) -> usize {
        self.0 as usize
    }
}

/// The amounts of one resource on all nodes.
#[derive(Debug, Clone, Copy)]
pub struct ResourceColumn<'a> {
    allocatable: &'a [i64],
    requested: &'a [i64],
}

impl ResourceColumn<'_> {
    /// Returns the allocatable amount on `node`.
    #[inline]
    #[must_use]
    pub fn allocatable(&self, node: NodeIndex) -> i64 {
        self.allocatable.get(node.row()).copied().unwrap_or(0)
    }

    /// Returns the amount that the pods on `node` request. For `pods`, their number.
    #[inline]
    #[must_use]
    pub fn requested(&self, node: NodeIndex) -> i64 {
        self.requested.get(node.row()).copied().unwrap_or(0)
    }
}

#[derive(Debug, Default)]
struct Row {
    name: Arc<str>,
    /// The node; `None` for a shell: there are pods on a node that does not exist (yet, or any more).
    info: Option<Arc<NodeInfo>>,
    pods: FxHashMap<Arc<str>, Arc<PodInfo>>,
    /// The row's version counting only changes of what preemption reads of its pods.
    ranked: u64,
}

/// Properties of a node that are checked before its object is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct NodeMarks {
    present: bool,
    unschedulable: bool,
    tainted: bool,
}

/// All nodes, and the pods on them.
#[derive(Debug, Default)]
pub struct NodeStore {
    rows: Vec<Row>,
    by_name: FxHashMap<Arc<str>, NodeIndex>,
    free: Vec<NodeIndex>,
    /// `allocatable[resource][row]`.
    allocatable: Vec<Vec<i64>>,
    /// `requested[resource][row]`.
    requested: Vec<Vec<i64>>,
    /// CPU (millicores) and memory (bytes) requested by row, with defaults for containers without requests.
    scoring: Vec<[i64; 2]>,
    marks: Vec<NodeMarks>,
    /// The version of each row; changes whenever anything about the row does.
    row_versions: Vec<u64>,
    present: usize,
    log: VecDeque<NodeIndex>,
    /// The sequence number of the first entry of `log`.
    log_start: u64,
    versions: u64,
}

impl NodeStore {
    /// Returns the number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.present
    }

    /// Returns true if there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// Returns the number of rows, used or not; every index is below it.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Iterates over the rows of existing nodes, in order of index.
    pub fn indices(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        (0..self.rows.len())
            .filter(|row| self.rows[*row].info.is_some())
            .map(index)
    }

    /// Returns the row of node `name`, shells included.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        self.by_name.get(name).copied()
    }

    /// Returns the node in row `node`, unless the row is free or a shell.
    #[must_use]
    pub fn info(&self, node: NodeIndex) -> Option<&Arc<NodeInfo>> {
        self.rows.get(node.row()).and_then(|row| row.info.as_ref())
    }

    /// Returns the node name of row `node`.
    #[must_use]
    pub fn name(&self, node: NodeIndex) -> &Arc<str> {
        &self.rows[node.row()].name
    }

    /// Iterates over the pods on `node`, assumed ones included and holders excluded, in no particular order.
    pub fn pods(&self, node: NodeIndex) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.booked(node).filter(|pod| !pod.is_holder())
    }

    /// Returns the pod or holder on `node` with this uid.
    #[must_use]
    pub fn pod(&self, node: NodeIndex, uid: &str) -> Option<&Arc<PodInfo>> {
        self.rows.get(node.row())?.pods.get(uid)
    }

    /// Iterates over the pods and holders on `node`, assumed ones included, in no particular order.
    pub fn booked(&self, node: NodeIndex) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.rows
            .get(node.row())
            .into_iter()
            .flat_map(|row| row.pods.values())
    }

    /// Returns the number of pods and holders on `node`.
    #[must_use]
    pub fn pod_count(&self, node: NodeIndex) -> usize {
        self.rows.get(node.row()).map_or(0, |row| row.pods.len())
    }

    /// Returns the allocatable and requested amounts of one resource on all nodes.
    #[must_use]
    pub fn column(&self, resource: ResourceId) -> ResourceColumn<'_> {
        ResourceColumn {
            allocatable: all(&self.allocatable, resource),
            requested: all(&self.requested, resource),
        }
    }

    /// Returns the allocatable amount of one resource on `node`.
    #[inline]
    #[must_use]
    pub fn allocatable(&self, node: NodeIndex, resource: ResourceId) -> i64 {
        cell(&self.allocatable, node, resource)
    }

    /// Returns the amount of one resource that the pods on `node` request. For `pods`, their number.
    #[inline]
    #[must_use]
    pub fn requested(&self, node: NodeIndex, resource: ResourceId) -> i64 {
        cell(&self.requested, node, resource)
    }

    /// Returns CPU (millicores) and memory (bytes) requested on `node`, with defaults for containers without
    /// requests.
    #[inline]
    #[must_use]
    pub fn requested_for_scoring(&self, node: NodeIndex) -> [i64; 2] {
        self.scoring[node.row()]
    }

    /// Returns true if there is a node in row `node`, which is neither free nor a shell.
    #[inline]
    #[must_use]
    pub fn is_present(&self, node: NodeIndex) -> bool {
        self.marks(node).present
    }

    /// Returns true if the node is marked unschedulable (`spec.unschedulable`).
    #[inline]
    #[must_use]
    pub fn is_unschedulable(&self, node: NodeIndex) -> bool {
        self.marks(node).unschedulable
    }

    /// Returns true if the node has any taint.
    #[inline]
    #[must_use]
    pub fn is_tainted(&self, node: NodeIndex) -> bool {
        self.marks(node).tainted
    }

    #[inline]
    fn marks(&self, node: NodeIndex) -> NodeMarks {
        self.marks.get(node.row()).copied().unwrap_or_default()
    }

    /// Returns the row's version. It changes whenever anything about the row does, and never repeats.
    #[inline]
    #[must_use]
    pub fn version(&self, node: NodeIndex) -> u64 {
        self.row_versions[node.row()]
    }

    /// Returns the row's version, which also changes with what only victim searches read of the pods.
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
        self.marks[node.row()] = NodeMarks {
            present: true,
            unschedulable: info.unschedulable,
            tainted: !info.taints().is_empty(),
        };
        self.rows[node.row()].info = Some(info);
        self.touch(node);
        node
    }

    /// Replaces the object of a node by a newer one that differs in nothing that scheduling reads.
    pub(crate) fn replace_object(&mut self, info: Arc<NodeInfo>) {
        let row = self.find(&info.name);
        if let Some(row) = row.and_then(|node| self.rows[node.row()].info.as_mut()) {
            *row = info;
        }
    }

    /// Removes a node. Its row stays, as a shell, while pods are on it.
    pub(crate) fn remove_node(&mut self, name: &str) -> Option<NodeIndex> {
        let node = self.find(name)?;
        let old = self.rows[node.row()].info.take()?;
        self.present -= 1;
        self.marks[node.row()] = NodeMarks::default();
        for (id, _) in old.allocatable.iter() {
            self.write_allocatable(node, id, 0);
        }
        self.touch(node);
        self.release(node);
        Some(node)
    }

    /// Adds `pod` to node `name`, which need not exist yet.
    pub(crate) fn add_pod(&mut self, name: &str, pod: Arc<PodInfo>) -> NodeIndex {
        let node = self.row_for(name);
        self.book(node, &pod, 1);
        self.rows[node.row()].pods.insert(pod.uid.clone(), pod);
        self.touch(node);
        node
    }

    /// Removes a pod from a node.
    pub(crate) fn remove_pod(&mut self, node: NodeIndex, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.rows.get_mut(node.row())?.pods.remove(uid)?;
        self.book(node, &pod, -1);
        self.touch(node);
        self.release(node);
        Some(pod)
    }

    /// Replaces a pod's record; touches the row only if what matters to other pods differs.
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
        // For a reader that lags this far behind, evaluating every row is cheaper.
        while self.log.len() > self.rows.len().max(64) {
            self.log.pop_front();
            self.log_start += 1;
        }
    }

    /// Returns the current end of the log of changed rows.
    pub(crate) fn position(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// Returns the rows changed since `position`, each once, in order; `None` if that is too long ago.
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
        // Sorting many entries would take as long as reading them.
        let mut bitmap = vec![0_u64; self.rows.len().div_ceil(64)];
        for node in &changed {
            bitmap[node.row() / 64] |= 1 << (node.row() % 64);
        }
        changed.clear();
        for (at, mut word) in (0_u32..).zip(bitmap) {
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
            self.marks.push(NodeMarks::default());
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

    /// Adds (`sign` 1) or subtracts (-1) what `pod` requests. No sum of bounded amounts comes near the limits
    /// of `i64`; if one did, wrapping arithmetic would recover when pods are removed, unlike saturating
    /// arithmetic.
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

    /// Returns true if the sums per row equal those over its pods; for tests and debug assertions.
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

/// Returns true if a victim search may treat the two states of a pod differently.
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
