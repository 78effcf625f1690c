//! What the agent knows about its node, its pods and its settings: compact, immutable snapshots.

pub mod kubelet;
pub mod layout;
pub mod node;
pub mod pod;
pub mod slo;

pub use layout::{Driver, Layout};
pub use node::NodeInfo;
pub use pod::{ContainerInfo, Phase, PodInfo};
pub use slo::Slo;

use arc_swap::{ArcSwap, ArcSwapOption};

/// The newest snapshots. Informers replace them; the agent loop looks at them once per tick.
#[derive(Debug, Default)]
pub struct States {
    /// The pods bound to this node; `None` until a first list arrived.
    pub pods: ArcSwapOption<Vec<PodInfo>>,
    /// The Node object.
    pub node: ArcSwapOption<NodeInfo>,
    /// The settings; defaults until a NodeSLO arrives.
    pub slo: ArcSwap<Slo>,
}
