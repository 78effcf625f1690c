//! The network topology: the tree of the ClusterNetworkTopology `default`, its status, and the plan for the
//! gang group that is tried.

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

/// The only object that counts.
pub(super) const DEFAULT: &str = "default";
/// The least time between two writes of the status.
const PACE: SignedDuration = SignedDuration::from_secs(10);

#[derive(Debug)]
struct Known {
    uid: String,
    layers: Option<Layers>,
    shown: Vec<NetworkTopologyDetail>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Topology {
    known: Option<Known>,
    /// By node, where it hangs; nodes that hang nowhere are not in it.
    paths: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// The nodes in `paths` by row: one that went has no name any more.
    rows: FxHashMap<usize, Arc<str>>,
    tree: Option<Tree>,
    /// The tree is not that of `paths`.
    stale: bool,
    /// The status is to be compared with the tree, at the earliest then.
    due: Option<Timestamp>,
    /// When the status was last written.
    written: Option<Timestamp>,
    near: Near,
    /// The row of each member of a gang that has a node, by uid.
    members: FxHashMap<Arc<str>, usize>,
}

/// Pods that another one belongs near: nodes in the topology with how many are there.
#[derive(Debug, Default)]
pub(super) struct Drawn(Vec<(Arc<str>, usize)>);

/// How many pods with the same selector there are, by selector and row; none where there are none.
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

    /// Whether it says what is on the nodes.
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

/// What the pod is counted under: reservations keep room, and talk to nobody.
fn counted(pod: &PodInfo) -> Option<&str> {
    selector(pod).filter(|_| !pod.is_holder())
}

/// Where the members of a gang group go, by uid.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) group: Arc<str>,
    pub(super) nodes: FxHashMap<Arc<str>, Arc<str>>,
}

impl Topology {
    /// The object appeared or changed.
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

    /// A pod, perhaps a `member` of a gang, is on a node now.
    pub(super) fn joined(&mut self, pod: &PodInfo, node: NodeIndex, member: bool) {
        self.near.add(pod, node);
        if member {
            self.members.insert(pod.uid.clone(), node.row());
        }
    }

    /// A pod is on a node no more.
    pub(super) fn left(&mut self, pod: &PodInfo, node: NodeIndex) {
        self.near.remove(pod, node);
        self.members.remove(&pod.uid);
    }

    /// A node appeared, changed or went.
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

    /// Has the status compared with the tree, not too soon after the last write.
    fn look(&mut self, now: Timestamp) {
        let earliest = self.written.and_then(|at| at.checked_add(PACE).ok());
        self.due = Some(earliest.map_or(now, |at| at.max(now)));
    }

    /// When the status is to be looked at.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.due
    }

    /// Brings the tree up to date, and the status if that is due.
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
        // A write whose effect is not seen is sent again.
        self.look(now);
    }

    /// The tree, if there is a topology.
    pub(super) fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Where the mates of a late member are.
    fn mates<'a>(&'a self, settled: &'a Settled) -> impl Iterator<Item = &'a Arc<str>> {
        let rows = settled.mates.iter().filter_map(|uid| self.members.get(uid));
        rows.filter_map(|row| self.rows.get(row))
    }

    /// Where a late member has to go to be with them.
    fn home(&self, settled: &Settled) -> Option<(Home, &Tree)> {
        let tree = self.tree.as_ref()?;
        let mates = self.mates(settled).map(|node| &**node);
        Some((Home::of(&settled.spec, mates, tree)?, tree))
    }

    /// The nodes there; none where it may go anywhere.
    pub(super) fn home_nodes(&self, settled: &Settled) -> Option<Vec<NodeIndex>> {
        let (home, tree) = self.home(settled)?;
        let there = self.rows.iter().filter(|(_, name)| home.has(name, tree));
        let rows = there.filter_map(|(row, _)| u32::try_from(*row).ok());
        Some(rows.map(NodeIndex).collect())
    }

    /// Whom the pod belongs near, if anybody: those with its selector, else mates that have a node already.
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

    /// For each of `nodes` how many are better for a pod that belongs near others.
    pub(super) fn ranks(&self, drawn: &Drawn, nodes: &[NodeIndex], view: View<'_>) -> Vec<usize> {
        #[cfg(test)]
        assert!(self.near.balances(view));
        let Some(tree) = &self.tree else {
            return Vec::new();
        };
        let nodes = nodes.iter().map(|node| &**view.nodes.name(*node));
        tree.ranks(nodes, drawn.0.iter().map(|(node, pods)| (&**node, *pods)))
    }

    /// The node of each of `members`, in this order; `settled` is what of their group has one.
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

/// Pods with the same word belong near each other, whatever gangs they are of.
fn selector(pod: &PodInfo) -> Option<&str> {
    let said = pod.annotation(annotations::NETWORK_TOPOLOGY_SELECTOR);
    said.filter(|word| !word.is_empty())
}

/// Sorts pods as nodes are dealt to them: by their index, those without one last, then by name.
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
