//! Names, types, defaults and formats of everything that crosses a process boundary.
//!
//! | module | holds |
//! |---|---|
//! | [`quantity`], [`duration`] | Kubernetes quantities and Go durations |
//! | [`domains`], [`labels`], [`annotations`], [`resources`] | keys and resource names |
//! | [`extension`] | the JSON behind annotations |
//! | [`qos`], [`priority`] | the classes of a pod |
//! | [`hookserver`] | how hook servers register with the runtime proxy |
//! | [`requests`] | how the requests of containers add up to those of a pod |
//! | [`slo`], [`scheduling`], [`config`], [`quota`], [`analysis`], [`topology`] | custom resources by API group |
//! | [`configmap`] | the ConfigMap `slo-controller-config` |
//! | [`simulation`] | keys on the nodes of `koord up` |
//! | [`merge`] | merging one partial setting over another |
//! | [`uid`], [`texts`] | compact UIDs, labels and annotations |
//!
//! [`crds`] returns the definitions of all custom resources.
//!
//! Invariant: no async, no HTTP, no clock, no policy. Every function maps a value to a value.

pub mod analysis;
pub mod annotations;
pub mod config;
pub mod configmap;
mod crds;
mod delegate;
#[cfg(feature = "schema")]
pub mod derived;
pub mod domains;
pub mod duration;
pub mod extension;
pub mod field;
pub mod hookserver;
pub mod labels;
pub mod lenient;
pub mod merge;
pub mod priority;
pub mod qos;
pub mod quantity;
pub mod quota;
pub mod requests;
pub mod resources;
pub mod scheduling;
#[cfg(feature = "schema")]
pub mod schema;
pub mod selector;
mod serde_util;
pub mod simulation;
pub mod slo;
pub mod texts;
pub mod topology;
pub mod uid;

pub use crds::{OWN_CRDS, crd_values, crds, priority_class_values};
pub use duration::GoDuration;
#[doc(hidden)]
pub use kube_core;
pub use priority::PriorityClass;
pub use qos::QosClass;
pub use quantity::{Quantity, ResourceList};
pub use uid::Uid;
