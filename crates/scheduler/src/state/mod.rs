//! The engine's state: pods as compact values, nodes as columns.

mod facets;
mod interning;
mod node;
mod object;
mod parsed;
mod pod;
mod signature;
mod store;

pub use interning::PodInterner;
pub use node::{NodeInfo, NodeProblem};
pub use object::{ContainerInfo, PodObject};
pub use parsed::ParsedPod;
pub(crate) use parsed::volume_matters;
pub use pod::{Booked, PodError, PodInfo};
pub use signature::{ShapeId, Signable, Signature};
pub use store::{NodeIndex, NodeStore, ResourceColumn};
