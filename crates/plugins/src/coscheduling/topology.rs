//! Network topology: the tree of the ClusterNetworkTopology `default`, its status, and the plan of the gang
//! group that is being tried.

use jiff::{SignedDuration, Timestamp};
use koord_api::annotations;
use koord_api::scheduling::{ClusterNetworkTopology, NetworkTopologyDetail};
use koord_model::gang::{Blocked, Gathering, PlacedGroup};
use koord_model::network::{self, BadLayers, LayerDomains, Layers, PlacementRequest, TopologyTree};
use koord_scheduler::framework::{Offer, Verb, View, Write};
use koord_scheduler::state::{NodeIndex, NodeInfo, PodInfo};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the only ClusterNetworkTopology that is used.
pub(super) const DEFAULT: &str = "default";
/// Minimum time between two writes of the status.
const STATUS_INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// Layers and reported status of the ClusterNetworkTopology.
#[derive(Debug)]
struct TopologyObject {
    uid: String,
    layers: Option<Layers>,
    reported: Vec<NetworkTopologyDetail>,
}

/// Network topology tree with the placement of gang members and related pods.
#[derive(Debug, Default)]
pub(super) struct Topology {
    object: Option<TopologyObject>,
    /// Path of each node in the tree, by name; nodes outside the tree are missing.
    paths: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Name of each node in `paths` by row: a removed node has no name in the view any more.
    rows: FxHashMap<usize, Arc<str>>,
    tree: Option<TopologyTree>,
    /// True if `tree` does not match `paths` yet.
    stale: bool,
    /// Earliest time to compare the status with the tree; `None` if not needed.
    due: Option<Timestamp>,
    /// Time of the last status write.
    written: Option<Timestamp>,
    related_counts: SelectorCounts,
    /// Row of each gang member that has a node, by uid.
    members: FxHashMap<Arc<str>, usize>,
}

/// Pods that a pod should be close to: nodes in the topology with the number of such pods.
#[derive(Debug, Default)]
pub(super) struct RelatedPods(Vec<(Arc<str>, usize)>);

/// Number of pods by topology selector and row, without zero entries.
#[derive(Debug, Default)]
struct SelectorCounts(FxHashMap<Arc<str>, FxHashMap<usize, usize>>);

impl SelectorCounts {
    fn add(&mut self, pod: &PodInfo, node: NodeIndex) {
        if let Some(text) = counted_selector(pod) {
            let rows = self.0.entry(text.into()).or_default();
            *rows.entry(node.row()).or_default() += 1;
        }
    }

    fn remove(&mut self, pod: &PodInfo, node: NodeIndex) {
        let Some(text) = counted_selector(pod) else {
            return;
        };
        let Some(rows) = self.0.get_mut(text) else {
            return;
        };
        if let Some(pods) = rows.get_mut(&node.row()) {
            *pods -= 1;
            if *pods == 0 {
                rows.remove(&node.row());
            }
        }
        if rows.is_empty() {
            self.0.remove(text);
        }
    }

    fn rows(&self, selector: &str) -> Option<&FxHashMap<usize, usize>> {
        self.0.get(selector)
    }

    /// Returns true if the counts match the pods on the nodes.
    #[cfg(test)]
    fn is_consistent(&self, view: View<'_>) -> bool {
        let mut all = Self::default();
        for node in view.nodes.indices() {
            for pod in view.nodes.pods(node) {
                all.add(pod, node);
            }
        }
        all.0 == self.0
    }
}

/// Returns the selector under which a pod is counted. Reservations only hold resources and have no traffic,
/// so they do not count.
fn counted_selector(pod: &PodInfo) -> Option<&str> {
    selector(pod).filter(|_| !pod.is_holder())
}

/// Planned nodes of the members of a gang group, by uid.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) group: Arc<str>,
    pub(super) nodes: FxHashMap<Arc<str>, Arc<str>>,
}

impl Topology {
    /// Updates the tree after the object was added or changed.
    pub(super) fn apply_object(
        &mut self,
        object: &ClusterNetworkTopology,
        view: View<'_>,
    ) -> Result<(), BadLayers> {
        let layers = Layers::from_spec(&object.spec.network_topology_spec);
        let status = object.status.clone().unwrap_or_default();
        let before = self.object.take().and_then(|object| object.layers);
        let now_layers = layers.as_ref().ok();
        let changed = before.as_ref() != now_layers;
        self.object = Some(TopologyObject {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            layers: now_layers.cloned(),
            reported: status.detail_status,
        });
        if changed {
            self.paths.clear();
            self.rows.clear();
            self.stale = true;
            for node in view.nodes.indices() {
                self.update_node(node, view);
            }
        }
        self.schedule_check(view.now);
        layers.map(drop)
    }

    /// Removes the object and its tree; placements stay.
    pub(super) fn remove_object(&mut self) {
        *self = Self {
            related_counts: std::mem::take(&mut self.related_counts),
            members: std::mem::take(&mut self.members),
            ..Self::default()
        };
    }

    /// Records a pod that was placed on a node; `member` if it belongs to a gang.
    pub(super) fn pod_added(&mut self, pod: &PodInfo, node: NodeIndex, member: bool) {
        self.related_counts.add(pod, node);
        if member {
            self.members.insert(pod.uid.clone(), node.row());
        }
    }

    /// Removes a pod from its node.
    pub(super) fn pod_removed(&mut self, pod: &PodInfo, node: NodeIndex) {
        self.related_counts.remove(pod, node);
        self.members.remove(&pod.uid);
    }

    /// Updates a node that was added, changed or removed.
    pub(super) fn update_node(&mut self, node: NodeIndex, view: View<'_>) {
        let layers = self
            .object
            .as_ref()
            .and_then(|object| object.layers.as_ref());
        let Some(layers) = layers else { return };
        let info = view.nodes.info(node);
        let path = info.and_then(|info: &Arc<NodeInfo>| {
            let path = layers.path(&info.name, |key| info.label(key)).ok()?;
            Some((info.name.clone(), path))
        });
        let before = self.rows.get(&node.row());
        if before.and_then(|name| self.paths.get_key_value(name))
            == path.as_ref().map(|(name, path)| (name, path))
        {
            return;
        }
        if let Some(before) = self.rows.remove(&node.row()) {
            self.paths.remove(&before);
        }
        if let Some((name, path)) = path {
            self.rows.insert(node.row(), name.clone());
            self.paths.insert(name, path);
        }
        self.stale = true;
        self.schedule_check(view.now);
    }

    /// Schedules a comparison of the status with the tree, at least [`STATUS_INTERVAL`] after the last write.
    fn schedule_check(&mut self, now: Timestamp) {
        let earliest = self
            .written
            .and_then(|at| at.checked_add(STATUS_INTERVAL).ok());
        self.due = Some(earliest.map_or(now, |at| at.max(now)));
    }

    /// Returns the time of the next comparison of the status.
    pub(super) fn next_check(&self) -> Option<Timestamp> {
        self.due
    }

    /// Rebuilds a stale tree, and writes the status if a comparison is due.
    pub(super) fn sync(&mut self, now: Timestamp, writes: &mut Vec<Write>) {
        let Some(object) = &self.object else { return };
        if std::mem::take(&mut self.stale) {
            let paths = self.paths.values().map(Vec::as_slice);
            self.tree = object
                .layers
                .clone()
                .map(|layers| TopologyTree::new(layers, paths));
        }
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let Some(status) = self.tree.as_ref().map(TopologyTree::status) else {
            return;
        };
        if status == object.reported {
            return;
        }
        let mut body = json!({"status": {"detailStatus": status}});
        if !object.uid.is_empty() {
            body["metadata"] = json!({"uid": object.uid});
        }
        writes.push(Write {
            group: "scheduling.koordinator.sh",
            version: "v1alpha1",
            plural: "clusternetworktopologies",
            namespace: String::new(),
            name: DEFAULT.to_owned(),
            verb: Verb::PatchStatus(body),
            timed: None,
        });
        self.written = Some(now);
        // A write whose effect is not observed is sent again.
        self.schedule_check(now);
    }

    /// Returns the tree, if there is a topology.
    pub(super) fn tree(&self) -> Option<&TopologyTree> {
        self.tree.as_ref()
    }

    /// Returns why there is no tree.
    pub(super) fn missing_reason(&self) -> String {
        let reason = Blocked::NoTopology;
        match &self.object {
            Some(object) if object.layers.is_none() => {
                format!("{reason}: the layers of ClusterNetworkTopology {DEFAULT} are invalid")
            }
            _ => reason.to_string(),
        }
    }

    /// Returns the nodes of the placed gang members of a late member.
    fn member_nodes<'a>(
        &'a self,
        placed_members: &'a PlacedGroup,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        let rows = placed_members
            .mates
            .iter()
            .filter_map(|uid| self.members.get(uid));
        rows.filter_map(|row| self.rows.get(row))
    }

    /// Returns the part of the tree to which a late member is restricted.
    fn home(&self, placed_members: &PlacedGroup) -> Option<(LayerDomains, &TopologyTree)> {
        let tree = self.tree.as_ref()?;
        let nodes = self.member_nodes(placed_members).map(|node| &**node);
        Some((
            LayerDomains::for_nodes(&placed_members.spec, nodes, tree)?,
            tree,
        ))
    }

    /// Returns the nodes to which a late member is restricted; `None` if any node will do.
    pub(super) fn home_nodes(&self, placed_members: &PlacedGroup) -> Option<Vec<NodeIndex>> {
        let (home, tree) = self.home(placed_members)?;
        let matching = self.rows.iter().filter(|(_, name)| home.has(name, tree));
        let rows = matching.filter_map(|(row, _)| u32::try_from(*row).ok());
        Some(rows.map(NodeIndex).collect())
    }

    /// Returns the pods that `pod` should be close to, if any: those with its selector, or placed members of
    /// its gang.
    pub(super) fn related_pods(
        &self,
        pod: &PodInfo,
        placed_members: Option<PlacedGroup>,
    ) -> Option<RelatedPods> {
        self.tree.as_ref()?;
        let Some(selector) = selector(pod) else {
            let placed_members = placed_members?;
            let nodes = self.member_nodes(&placed_members);
            return Some(RelatedPods(nodes.map(|node| (node.clone(), 1)).collect()));
        };
        let rows = self.related_counts.rows(selector).into_iter().flatten();
        let nodes = rows.filter_map(|(row, pods)| Some((self.rows.get(row)?.clone(), *pods)));
        Some(RelatedPods(nodes.collect()))
    }

    /// Returns, for each of `nodes`, the number of nodes that are closer to the related pods `related`.
    pub(super) fn ranks(
        &self,
        related: &RelatedPods,
        nodes: &[NodeIndex],
        view: View<'_>,
    ) -> Vec<usize> {
        #[cfg(test)]
        assert!(self.related_counts.is_consistent(view));
        let Some(tree) = &self.tree else {
            return Vec::new();
        };
        let nodes = nodes.iter().map(|node| &**view.nodes.name(*node));
        tree.ranks(nodes, related.0.iter().map(|(node, pods)| (&**node, *pods)))
    }

    /// Returns the node of each of `members`, in this order; `placed_members` is the placed part of their group.
    pub(super) fn plan(
        &self,
        gathering: &Gathering,
        placed_members: Option<PlacedGroup>,
        members: &[Arc<PodInfo>],
        offers: &[Offer],
        fit: &str,
        view: View<'_>,
    ) -> Result<Vec<Arc<str>>, String> {
        let Some(tree) = &self.tree else {
            return Err(self.missing_reason());
        };
        #[cfg(test)]
        assert!(self.related_counts.is_consistent(view));
        let request = PlacementRequest::new(&gathering.spec, members.len(), tree.layers());
        let home = placed_members
            .as_ref()
            .and_then(|placed_members| self.home(placed_members));
        let related = members
            .first()
            .and_then(|pod| self.related_pods(pod, placed_members));
        let mut existing: FxHashMap<Arc<str>, usize> = FxHashMap::default();
        for (node, pods) in related.unwrap_or_default().0 {
            *existing.entry(node).or_default() += pods;
        }
        let offers = offers.iter().map(|offer| {
            let node = view.nodes.name(offer.node);
            let open = home.as_ref().is_none_or(|(home, _)| home.has(node, tree));
            let offered = network::NodeOffer {
                slots: if open { offer.slots } else { 0 },
                existing: existing.get(node).copied().unwrap_or(0),
                score: offer.score,
            };
            (&**node, offered)
        });
        let placed = tree
            .place(&request, offers)
            .map_err(|none| none.message(fit))?;
        let placed = placed.into_iter();
        Ok(placed
            .flat_map(|(node, pods)| std::iter::repeat_n(node, pods))
            .collect())
    }
}

/// Returns the topology selector of a pod. Pods with equal selectors should be close to each other, whatever
/// their gang.
fn selector(pod: &PodInfo) -> Option<&str> {
    let text = pod.annotation(annotations::NETWORK_TOPOLOGY_SELECTOR);
    text.filter(|text| !text.is_empty())
}

/// Sorts pods in the order in which nodes are assigned to them: by index, those without an index last, then
/// by name.
pub(super) fn arrange(members: &mut [Arc<PodInfo>]) {
    members.sort_by_cached_key(|pod| {
        let text = pod.annotation(annotations::GANG_NETWORK_TOPOLOGY_INDEX);
        let index = text.and_then(|text| text.parse::<i64>().ok());
        let index = index.filter(|index| *index >= 0);
        (
            index.is_none(),
            index,
            pod.name.clone(),
            pod.namespace.clone(),
        )
    });
}
