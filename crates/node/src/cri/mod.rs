//! Runs pods through a container runtime that implements the CRI, or a proxy in front of it.
//!
//! A pod gets a sandbox in its group, with the kubelet's labels and the data directory of this node as its
//! owner; containers write their logs to the same paths as processes do. Pods use the host's network if the
//! runtime has none for them; there are no volumes, and images are pulled without secrets.
//!
//! Sandboxes that an earlier run left in the runtime are removed at the start, and all at the end.

mod image;
mod request;
mod run;

pub(crate) use run::{CriRunner, clear};
