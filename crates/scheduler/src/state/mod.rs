//! What the engine knows: pods as compact values, nodes as columns.

mod node;
mod pod;
mod store;

pub use node::{NodeError, NodeInfo, NodeProblem};
pub use pod::{PodError, PodInfo};
pub use store::{NodeIndex, NodeStore};
