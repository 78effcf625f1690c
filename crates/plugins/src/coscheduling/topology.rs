//! Network topology: the tree of the ClusterNetworkTopology `default`, its status, and the plan of the gang
//! group that is being tried.

use jiff::{SignedDuration, Timestamp};
use koord_api::annotations;
use koord_api::scheduling::{ClusterNetworkTopology, NetworkTopologyDetail};
use koord_model::gang::{Gathering, Settled};
use koord_model::network::{self, BadLayers, Home, Layers, Tree, Wish};
use koord_scheduler::framework::{Offer, Verb, View, Write};
use koord_scheduler::state::{NodeIndex, NodeInfo, PodInfo};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the only ClusterNetworkTopology that is used.
pub(super) const DEFAULT: &str = "default";
/// Minimum time between two writes of the status.
const PACE: SignedDuration = SignedDuration::from_secs(10);

#[derive(Debug)]
struct Known {
    uid: String,
    layers: Option<Layers>,
    shown: Vec<NetworkTopologyDetail>,
}

/// Network topology tree with the placement of gang members and related pods.
#[derive(Debug, Default)]
pub(super) struct Topology {
    known: Option<Known>,
    /// Path of each node in the tree, by name; nodes outside the tree are missing.
    paths: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Name of each node in `paths` by row: a removed node has no name in the view any more.
    rows: FxHashMap<usize, Arc<str>>,
    tree: Option<Tree>,
    /// True if `tree` does not match `paths` yet.
    stale: bool,
    /// Earliest time to compare the status with the tree; `None` if not needed.
    due: Option<Timestamp>,
    /// Time of the last status write.
    written: Option<Timestamp>,
    near: Near,
    /// Row of each gang member that has a node, by uid.
    members: FxHashMap<Arc<str>, usize>,
}

/// Pods that a pod should be close to: nodes in the topology with the number of such pods.
#[derive(Debug, Default)]
pub(super) struct Drawn(Vec<(Arc<str>, usize)>);

/// Number of pods by topology selector and row, without zero entries.
#[derive(Debug, Default)]
struct Near(FxHashMap<Arc<str>, FxHashMap<usize, usize>>);

impl Near {
    fn add(&mut self, pod: &PodInfo, node: NodeIndex) {
        if let Some(said) = counted(pod) {
            let rows = self.0.entry(said.into()).or_default();
            *rows.entry(node.row()).or_default() += 1;
        }
    }

    fn remove(&mut self, pod: &PodInfo, node: NodeIndex) {
        let Some(said) = counted(pod) else { return };
        let Some(rows) = self.0.get_mut(said) else {
            return;
        };
        if let Some(pods) = rows.get_mut(&node.row()) {
            *pods -= 1;
            if *pods == 0 {
                rows.remove(&node.row());
            }
        }
        if rows.is_empty() {
            self.0.remove(said);
        }
    }

    fn rows(&self, selector: &str) -> Option<&FxHashMap<usize, usize>> {
        self.0.get(selector)
    }

    /// Returns true if the counts match the pods on the nodes.
    #[cfg(test)]
    fn balances(&self, view: View<'_>) -> bool {
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
fn counted(pod: &PodInfo) -> Option<&str> {
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
    pub(super) fn applied(
        &mut self,
        object: &ClusterNetworkTopology,
        view: View<'_>,
    ) -> Result<(), BadLayers> {
        let layers = Layers::of(&object.spec.network_topology_spec);
        let status = object.status.clone().unwrap_or_default();
        let before = self.known.take().and_then(|known| known.layers);
        let now_layers = layers.as_ref().ok();
        let changed = before.as_ref() != now_layers;
        self.known = Some(Known {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            layers: now_layers.cloned(),
            shown: status.detail_status,
        });
        if changed {
            self.paths.clear();
            self.rows.clear();
            self.stale = true;
            for node in view.nodes.indices() {
                self.node(node, view);
            }
        }
        self.look(view.now);
        layers.map(drop)
    }

    pub(super) fn deleted(&mut self) {
        *self = Self {
            near: std::mem::take(&mut self.near),
            members: std::mem::take(&mut self.members),
            ..Self::default()
        };
    }

    /// Records a pod that was placed on a node; `member` if it belongs to a gang.
    pub(super) fn joined(&mut self, pod: &PodInfo, node: NodeIndex, member: bool) {
        self.near.add(pod, node);
        if member {
            self.members.insert(pod.uid.clone(), node.row());
        }
    }

    /// Removes a pod from its node.
    pub(super) fn left(&mut self, pod: &PodInfo, node: NodeIndex) {
        self.near.remove(pod, node);
        self.members.remove(&pod.uid);
    }

    /// Updates a node that was added, changed or removed.
    pub(super) fn node(&mut self, node: NodeIndex, view: View<'_>) {
        let layers = self.known.as_ref().and_then(|known| known.layers.as_ref());
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
        self.look(view.now);
    }

    /// Schedules a comparison of the status with the tree, at least [`PACE`] after the last write.
    fn look(&mut self, now: Timestamp) {
        let earliest = self.written.and_then(|at| at.checked_add(PACE).ok());
        self.due = Some(earliest.map_or(now, |at| at.max(now)));
    }

    /// Returns the time of the next comparison of the status.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.due
    }

    /// Rebuilds a stale tree, and writes the status if a comparison is due.
    pub(super) fn sync(&mut self, now: Timestamp, writes: &mut Vec<Write>) {
        let Some(known) = &self.known else { return };
        if std::mem::take(&mut self.stale) {
            let paths = self.paths.values().map(Vec::as_slice);
            self.tree = known.layers.clone().map(|layers| Tree::new(layers, paths));
        }
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let Some(status) = self.tree.as_ref().map(Tree::status) else {
            return;
        };
        if status == known.shown {
            return;
        }
        let mut body = json!({"status": {"detailStatus": status}});
        if !known.uid.is_empty() {
            body["metadata"] = json!({"uid": known.uid});
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
        self.look(now);
    }

    /// Returns the tree, if there is a topology.
    pub(super) fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Returns the nodes of the placed gang members of a late member.
    fn mates<'a>(&'a self, settled: &'a Settled) -> impl Iterator<Item = &'a Arc<str>> {
        let rows = settled.mates.iter().filter_map(|uid| self.members.get(uid));
        rows.filter_map(|row| self.rows.get(row))
    }

    /// Returns the part of the tree to which a late member is restricted.
    fn home(&self, settled: &Settled) -> Option<(Home, &Tree)> {
        let tree = self.tree.as_ref()?;
        let mates = self.mates(settled).map(|node| &**node);
        Some((Home::of(&settled.spec, mates, tree)?, tree))
    }

    /// Returns the nodes to which a late member is restricted; `None` if any node will do.
    pub(super) fn home_nodes(&self, settled: &Settled) -> Option<Vec<NodeIndex>> {
        let (home, tree) = self.home(settled)?;
        let there = self.rows.iter().filter(|(_, name)| home.has(name, tree));
        let rows = there.filter_map(|(row, _)| u32::try_from(*row).ok());
        Some(rows.map(NodeIndex).collect())
    }

    /// Returns the pods that `pod` should be close to, if any: those with its selector, or placed members of
    /// its gang.
    pub(super) fn drawn(&self, pod: &PodInfo, settled: Option<Settled>) -> Option<Drawn> {
        self.tree.as_ref()?;
        let Some(near) = selector(pod) else {
            let settled = settled?;
            let mates = self.mates(&settled);
            return Some(Drawn(mates.map(|node| (node.clone(), 1)).collect()));
        };
        let rows = self.near.rows(near).into_iter().flatten();
        let nodes = rows.filter_map(|(row, pods)| Some((self.rows.get(row)?.clone(), *pods)));
        Some(Drawn(nodes.collect()))
    }

    /// Returns, for each of `nodes`, the number of nodes that are closer to the related pods `drawn`.
    pub(super) fn ranks(&self, drawn: &Drawn, nodes: &[NodeIndex], view: View<'_>) -> Vec<usize> {
        #[cfg(test)]
        assert!(self.near.balances(view));
        let Some(tree) = &self.tree else {
            return Vec::new();
        };
        let nodes = nodes.iter().map(|node| &**view.nodes.name(*node));
        tree.ranks(nodes, drawn.0.iter().map(|(node, pods)| (&**node, *pods)))
    }

    /// Returns the node of each of `members`, in this order; `settled` is the placed part of their group.
    pub(super) fn plan(
        &self,
        gathering: &Gathering,
        settled: Option<Settled>,
        members: &[Arc<PodInfo>],
        offers: &[Offer],
        fit: &str,
        view: View<'_>,
    ) -> Result<Vec<Arc<str>>, String> {
        let Some(tree) = &self.tree else {
            return Err("no cluster network topology".to_owned());
        };
        #[cfg(test)]
        assert!(self.near.balances(view));
        let wish = Wish::new(&gathering.spec, members.len(), tree.layers());
        let home = settled.as_ref().and_then(|settled| self.home(settled));
        let drawn = members.first().and_then(|pod| self.drawn(pod, settled));
        let mut existing: FxHashMap<Arc<str>, usize> = FxHashMap::default();
        for (node, pods) in drawn.unwrap_or_default().0 {
            *existing.entry(node).or_default() += pods;
        }
        let offers = offers.iter().map(|offer| {
            let node = view.nodes.name(offer.node);
            let open = home.as_ref().is_none_or(|(home, _)| home.has(node, tree));
            let offered = network::Offer {
                slots: if open { offer.slots } else { 0 },
                existing: existing.get(node).copied().unwrap_or(0),
                score: offer.score,
            };
            (&**node, offered)
        });
        let dealt = tree
            .place(&wish, offers)
            .map_err(|none| none.message(fit))?;
        let dealt = dealt.into_iter();
        Ok(dealt
            .flat_map(|(node, pods)| std::iter::repeat_n(node, pods))
            .collect())
    }
}

/// Returns the topology selector of a pod. Pods with equal selectors should be close to each other, whatever
/// their gang.
fn selector(pod: &PodInfo) -> Option<&str> {
    let said = pod.annotation(annotations::NETWORK_TOPOLOGY_SELECTOR);
    said.filter(|word| !word.is_empty())
}

/// Sorts pods in the order in which nodes are assigned to them: by index, those without an index last, then
/// by name.
pub(super) fn arrange(members: &mut [Arc<PodInfo>]) {
    members.sort_by_cached_key(|pod| {
        let said = pod.annotation(annotations::GANG_NETWORK_TOPOLOGY_INDEX);
        let index = said.and_then(|text| text.parse::<i64>().ok());
        let index = index.filter(|index| *index >= 0);
        (
            index.is_none(),
            index,
            pod.name.clone(),
            pod.namespace.clone(),
        )
    });
}
