//! Network topology of a cluster: the switches and blocks that nodes are connected to, and the placement of
//! communicating pods in it.
//!
//! Source of the rules: Koordinator's proposal `20250611-networktopology-aware-scheduling` and the types of
//! `ClusterNetworkTopology`.

mod near;
mod place;
mod sums;
#[cfg(test)]
mod tests;

pub use place::{LayerDomains, NoPlace, NodeOffer, Placement, PlacementRequest};

use koord_api::scheduling::{
    CLUSTER_TOPOLOGY_LAYER, NODE_TOPOLOGY_LAYER, NetworkTopologyDetail, NetworkTopologyLayerSpec,
    TopologyInfo,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Error for layers that do not form a chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLayers {
    /// A parent layer or the layer of nodes is not listed.
    #[error("topology layer {0:?} is not listed")]
    Missing(String),
    /// A layer is listed twice.
    #[error("topology layer {0:?} is listed twice")]
    Twice(String),
    /// A layer is not an ancestor of the nodes' layer.
    #[error("no node hangs under topology layer {0:?}")]
    Apart(String),
    /// A layer is its own ancestor.
    #[error("topology layer {0:?} hangs under itself")]
    Circle(String),
    /// More than [`MAX_LAYERS`] layers are listed.
    #[error("{0} topology layers are listed, at most {MAX_LAYERS} are possible")]
    TooMany(usize),
}

/// Maximum number of layers of a topology. Each takes an entry in every node's path; clusters have a handful.
pub const MAX_LAYERS: usize = 16;

/// Layers of a topology below the whole cluster, from the top down; the last is that of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers(Vec<Layer>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Layer {
    name: Arc<str>,
    /// Label keys; the first one that a node has names its domain.
    keys: Vec<String>,
}

impl Layers {
    /// Parses the layers of `spec`, in any order: each names its parent, starting from the nodes' layer; the
    /// topmost has no listed parent.
    ///
    /// # Errors
    /// The layers do not form one chain, or are too many.
    pub fn from_spec(spec: &[NetworkTopologyLayerSpec]) -> Result<Self, BadLayers> {
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
            // Layers that are left over are not part of the chain.
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

    /// Returns the depth of a layer: 0 for the whole cluster, and one more for each layer down. `None` for an
    /// unknown layer.
    #[must_use]
    pub fn depth(&self, name: &str) -> Option<usize> {
        if name == CLUSTER_TOPOLOGY_LAYER {
            return Some(0);
        }
        let index = self.0.iter().position(|layer| *layer.name == *name)?;
        Some(index + 1)
    }

    fn name(&self, depth: usize) -> &str {
        match depth {
            0 => CLUSTER_TOPOLOGY_LAYER,
            _ => self.0.get(depth - 1).map_or("", |layer| &layer.name),
        }
    }

    /// Returns the domains of a node from the top down, the last being the node itself. A node that lacks
    /// only the label of the layer just above nodes gets its own domain there.
    ///
    /// # Errors
    /// The layer whose label the node lacks: it has no position in the topology.
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

/// Domain of one layer: a switch, a block or a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Domain {
    name: Arc<str>,
    depth: usize,
    parent: Option<usize>,
    /// Indices of the children, by name.
    children: Vec<usize>,
}

/// Topology with its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyTree {
    layers: Layers,
    /// Domains, parents before children; the first is the cluster.
    domains: Vec<Domain>,
    /// Node name to the index of its domain.
    leaves: FxHashMap<Arc<str>, usize>,
    /// Index of a node's domain to the rank of its name.
    by_name: Vec<usize>,
}

impl TopologyTree {
    /// Builds the tree of nodes with these paths ([`Layers::path`]). A domain is identified by layer and
    /// name: if nodes disagree about its parent, the first in order decides.
    #[must_use]
    pub fn new<'a>(layers: Layers, paths: impl IntoIterator<Item = &'a [Arc<str>]>) -> Self {
        let root = Domain {
            name: "".into(),
            depth: 0,
            parent: None,
            children: Vec::new(),
        };
        let mut domains = vec![root];
        let mut indices: FxHashMap<(usize, Arc<str>), usize> = FxHashMap::default();
        let mut leaves = FxHashMap::default();
        let nodes = layers.0.len();
        for path in paths {
            let mut parent = 0;
            for (index, name) in path.iter().enumerate() {
                let depth = index + 1;
                parent = *indices.entry((depth, name.clone())).or_insert_with(|| {
                    let domain = domains.len();
                    domains.push(Domain {
                        name: name.clone(),
                        depth,
                        parent: Some(parent),
                        children: Vec::new(),
                    });
                    domains[parent].children.push(domain);
                    domain
                });
                if depth == nodes {
                    leaves.insert(name.clone(), parent);
                }
            }
        }
        for index in 0..domains.len() {
            let mut children = std::mem::take(&mut domains[index].children);
            children.sort_by(|a, b| domains[*a].name.cmp(&domains[*b].name));
            domains[index].children = children;
        }
        let mut named: Vec<(&Arc<str>, usize)> =
            leaves.iter().map(|(n, index)| (n, *index)).collect();
        named.sort_unstable();
        let mut by_name = vec![0; domains.len()];
        for (rank, (_, index)) in named.into_iter().enumerate() {
            by_name[index] = rank;
        }
        Self {
            layers,
            domains,
            leaves,
            by_name,
        }
    }

    /// Returns the layers.
    #[must_use]
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Returns `status.detailStatus` of the object: each domain above nodes, parents before children and
    /// siblings by name, with its number of nodes. Nodes are not named.
    #[must_use]
    pub fn status(&self) -> Vec<NetworkTopologyDetail> {
        let mut nodes = vec![0i32; self.domains.len()];
        let deepest = self.layers.0.len();
        for (at, domain) in self.domains.iter().enumerate().rev() {
            nodes[at] += i32::from(domain.depth == deepest);
            if let Some(parent) = domain.parent {
                nodes[parent] += nodes[at];
            }
        }
        let mut out = Vec::new();
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            let domain = &self.domains[at];
            if domain.depth == deepest {
                continue;
            }
            open.extend(domain.children.iter().rev());
            let names = domain
                .children
                .iter()
                .map(|at| self.domains[*at].name.as_ref());
            let above_nodes = domain.depth + 1 == deepest;
            let below = match domain.children.is_empty() {
                true => "",
                false => self.layers.name(domain.depth + 1),
            };
            out.push(NetworkTopologyDetail {
                topology_info: self.info(at),
                parent_topology_info: domain.parent.map(|parent| self.info(parent)),
                child_topology_layer: below.to_owned(),
                child_topology_names: names.filter(|_| !above_nodes).map(str::to_owned).collect(),
                node_num: nodes[at],
            });
        }
        out
    }

    fn info(&self, at: usize) -> TopologyInfo {
        let domain = &self.domains[at];
        TopologyInfo {
            topology_layer: self.layers.name(domain.depth).to_owned(),
            topology_name: domain.name.to_string(),
        }
    }
}
