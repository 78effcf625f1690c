//! The engine's state: pods as compact values, nodes as columns.

mod alike;
mod facets;
mod node;
mod object;
mod pod;
mod seen;
mod signature;
mod store;

pub use alike::Alike;
pub use node::{NodeInfo, NodeProblem};
pub use object::{ContainerInfo, PodObject};
pub use pod::{Booked, PodError, PodInfo};
pub use seen::SeenPod;
pub(crate) use seen::volume_matters;
pub use signature::{ShapeId, Signable, Signature};
pub use store::{NodeIndex, NodeStore, ResourceColumn};
