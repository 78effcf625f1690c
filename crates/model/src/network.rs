//! The network topology of a cluster: which switches and blocks its nodes hang on, and where in it pods
//! that talk to each other go together.
//!
//! Source of the rules: Koordinator's proposal `20250611-networktopology-aware-scheduling` and the types of
//! `ClusterNetworkTopology`.

mod near;
mod place;
mod sums;
#[cfg(test)]
mod tests;

pub use place::{Dealt, Home, NoPlace, Offer, Wish};

use koord_api::scheduling::{
    CLUSTER_TOPOLOGY_LAYER, NODE_TOPOLOGY_LAYER, NetworkTopologyDetail, NetworkTopologyLayerSpec,
    TopologyInfo,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Layers that do not make a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLayers {
    /// A layer that another one hangs under is not listed, or there is none for nodes.
    #[error("topology layer {0:?} is not listed")]
    Missing(String),
    /// A layer is listed twice.
    #[error("topology layer {0:?} is listed twice")]
    Twice(String),
    /// A layer that the layers from the nodes upwards do not pass.
    #[error("no node hangs under topology layer {0:?}")]
    Apart(String),
    /// A layer hangs under itself.
    #[error("topology layer {0:?} hangs under itself")]
    Circle(String),
    /// More than [`MAX_LAYERS`].
    #[error("{0} topology layers are listed, at most {MAX_LAYERS} are possible")]
    TooMany(usize),
}

/// How many layers a topology may have. Each takes a place in every node's path; clusters have a handful.
pub const MAX_LAYERS: usize = 16;

/// The layers of a topology below the whole cluster, from the top down; the last is the nodes'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers(Vec<Layer>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Layer {
    name: Arc<str>,
    /// The first of these labels that a node has names its place.
    keys: Vec<String>,
}

impl Layers {
    /// The layers that `spec` lists, in whatever order: from the nodes' layer each names the one above,
    /// and the topmost none that is listed.
    ///
    /// # Errors
    /// They do not make one line, or are too many.
    pub fn of(spec: &[NetworkTopologyLayerSpec]) -> Result<Self, BadLayers> {
        if spec.len() > MAX_LAYERS {
            return Err(BadLayers::TooMany(spec.len()));
        }
        let mut by_name: FxHashMap<&str, &NetworkTopologyLayerSpec> = FxHashMap::default();
        for layer in spec {
            if by_name.insert(&layer.topology_layer, layer).is_some() {
                return Err(BadLayers::Twice(layer.topology_layer.clone()));
            }
        }
        let mut passed: FxHashSet<&str> = FxHashSet::default();
        let (mut layers, mut name) = (Vec::with_capacity(spec.len()), NODE_TOPOLOGY_LAYER);
        while layers.len() < spec.len().max(1) {
            // What is left over hangs beside the line, whatever it says.
            let top = name.is_empty() || name == CLUSTER_TOPOLOGY_LAYER;
            let Some(layer) = by_name.get(name).filter(|_| !name.is_empty()) else {
                let apart = spec.iter().find(|l| !passed.contains(&*l.topology_layer));
                return Err(match apart {
                    Some(layer) if top => BadLayers::Apart(layer.topology_layer.clone()),
                    _ => BadLayers::Missing(name.to_owned()),
                });
            };
            if !passed.insert(name) {
                return Err(BadLayers::Circle(name.to_owned()));
            }
            layers.push(Layer {
                name: name.into(),
                keys: layer.label_key.clone(),
            });
            name = &layer.parent_topology_layer;
        }
        if passed.contains(name) {
            return Err(BadLayers::Circle(name.to_owned()));
        }
        layers.reverse();
        Ok(Self(layers))
    }

    /// How deep a layer is: 0 for the whole cluster, and one more for each layer down.
    #[must_use]
    pub fn depth(&self, name: &str) -> Option<usize> {
        if name == CLUSTER_TOPOLOGY_LAYER {
            return Some(0);
        }
        let at = self.0.iter().position(|layer| *layer.name == *name)?;
        Some(at + 1)
    }

    fn name(&self, depth: usize) -> &str {
        match depth {
            0 => CLUSTER_TOPOLOGY_LAYER,
            _ => self.0.get(depth - 1).map_or("", |layer| &layer.name),
        }
    }

    /// The places of a node from the top down, the last being the node. A node that lacks no label but
    /// that of the layer just above nodes has a place of its own there.
    ///
    /// # Errors
    /// The layer whose label it lacks: it has no place in the topology.
    pub fn path<'a>(
        &self,
        node: &str,
        label: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Vec<Arc<str>>, Arc<str>> {
        let last = self.0.len() - 1;
        let mut path = Vec::with_capacity(self.0.len());
        for (at, layer) in self.0.iter().enumerate() {
            let values = layer.keys.iter().filter_map(|key| label(key));
            let named = values.into_iter().find(|value| !value.is_empty());
            match named {
                _ if at == last => path.push(node.into()),
                Some(value) => path.push(value.into()),
                None if at + 1 == last => path.push(node.into()),
                None => return Err(layer.name.clone()),
            }
        }
        Ok(path)
    }
}

/// A switch, a block, a node: whatever a layer consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Spot {
    name: Arc<str>,
    depth: usize,
    parent: Option<usize>,
    /// In order of name.
    children: Vec<usize>,
}

/// A topology with its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    layers: Layers,
    /// Parents before children; the first is the cluster.
    spots: Vec<Spot>,
    /// The spot of each node.
    leaves: FxHashMap<Arc<str>, usize>,
    /// By spot of a node, how many nodes come before it by name.
    by_name: Vec<usize>,
}

impl Tree {
    /// The tree of nodes with these paths ([`Layers::path`]). A place is known by layer and name: where
    /// nodes disagree about what it hangs under, the first in order counts.
    #[must_use]
    pub fn new<'a>(layers: Layers, paths: impl IntoIterator<Item = &'a [Arc<str>]>) -> Self {
        let root = Spot {
            name: "".into(),
            depth: 0,
            parent: None,
            children: Vec::new(),
        };
        let mut spots = vec![root];
        let mut known: FxHashMap<(usize, Arc<str>), usize> = FxHashMap::default();
        let mut leaves = FxHashMap::default();
        let nodes = layers.0.len();
        for path in paths {
            let mut parent = 0;
            for (at, name) in path.iter().enumerate() {
                let depth = at + 1;
                parent = *known.entry((depth, name.clone())).or_insert_with(|| {
                    let spot = spots.len();
                    spots.push(Spot {
                        name: name.clone(),
                        depth,
                        parent: Some(parent),
                        children: Vec::new(),
                    });
                    spots[parent].children.push(spot);
                    spot
                });
                if depth == nodes {
                    leaves.insert(name.clone(), parent);
                }
            }
        }
        for at in 0..spots.len() {
            let mut children = std::mem::take(&mut spots[at].children);
            children.sort_by(|a, b| spots[*a].name.cmp(&spots[*b].name));
            spots[at].children = children;
        }
        let mut named: Vec<(&Arc<str>, usize)> = leaves.iter().map(|(n, at)| (n, *at)).collect();
        named.sort_unstable();
        let mut by_name = vec![0; spots.len()];
        for (rank, (_, at)) in named.into_iter().enumerate() {
            by_name[at] = rank;
        }
        Self {
            layers,
            spots,
            leaves,
            by_name,
        }
    }

    /// Its layers.
    #[must_use]
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// What `status.detailStatus` of the object shows: each place above nodes, parents before children
    /// and these by name, with how many nodes it has. Nodes are not named.
    #[must_use]
    pub fn status(&self) -> Vec<NetworkTopologyDetail> {
        let mut nodes = vec![0i32; self.spots.len()];
        let deepest = self.layers.0.len();
        for (at, spot) in self.spots.iter().enumerate().rev() {
            nodes[at] += i32::from(spot.depth == deepest);
            if let Some(parent) = spot.parent {
                nodes[parent] += nodes[at];
            }
        }
        let mut out = Vec::new();
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            let spot = &self.spots[at];
            if spot.depth == deepest {
                continue;
            }
            open.extend(spot.children.iter().rev());
            let names = spot.children.iter().map(|at| self.spots[*at].name.as_ref());
            let above_nodes = spot.depth + 1 == deepest;
            let below = match spot.children.is_empty() {
                true => "",
                false => self.layers.name(spot.depth + 1),
            };
            out.push(NetworkTopologyDetail {
                topology_info: self.info(at),
                parent_topology_info: spot.parent.map(|parent| self.info(parent)),
                child_topology_layer: below.to_owned(),
                child_topology_names: names.filter(|_| !above_nodes).map(str::to_owned).collect(),
                node_num: nodes[at],
            });
        }
        out
    }

    fn info(&self, at: usize) -> TopologyInfo {
        let spot = &self.spots[at];
        TopologyInfo {
            topology_layer: self.layers.name(spot.depth).to_owned(),
            topology_name: spot.name.to_string(),
        }
    }
}
