//! Runs pods through a container runtime that implements the CRI, or a proxy in front of it.
//!
//! A pod gets a sandbox in its group, with the kubelet's labels and the data directory of this node as
//! its owner; containers write their logs where those of processes would be. Pods have the host's
//! network where the runtime has none for them; there are no volumes, and images are pulled without
//! secrets.
//!
//! What an earlier run left in the runtime is removed at the start, and everything at the end.

mod image;
mod request;
mod run;

pub(crate) use run::{Runtimed, clear};
