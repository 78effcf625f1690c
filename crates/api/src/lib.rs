//! Every name, type, default and format that crosses a process boundary.
//!
//! | module | holds |
//! |---|---|
//! | [`quantity`], [`duration`] | the two text formats Kubernetes objects are full of |
//! | [`domains`], [`labels`], [`annotations`], [`resources`] | keys and resource names |
//! | [`extension`] | the JSON behind annotations |
//! | [`qos`], [`priority`] | the classes of a pod |
//! | [`slo`], [`scheduling`] | custom resources by API group |
//!
//! Invariant: no async, no HTTP, no clock, no decision. A value in, a value out.

pub mod annotations;
pub mod domains;
pub mod duration;
pub mod labels;
pub mod priority;
pub mod qos;
pub mod quantity;
pub mod resources;
pub mod scheduling;
pub mod schema;
mod serde_util;
pub mod slo;

pub use duration::GoDuration;
pub use priority::PriorityClass;
pub use qos::QosClass;
pub use quantity::{Quantity, ResourceList};
