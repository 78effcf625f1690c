//! koord-scheduler: the scheduling engine and the daemon around it.
//!
//! | module | holds |
//! |---|---|
//! | [`framework`] | the extension points, the registry, profiles |
//! | [`state`] | pods as compact values, nodes as columns |
//! | [`engine`] | queue, equivalence classes, cycle, diagnosis: synchronous and without I/O |
//! | [`config`] | `KubeSchedulerConfiguration` |
//! | [`run`] | the daemon: informers in, bindings, conditions and events out |
//!
//! Invariants: this crate names no plugin; one task owns the engine; all state is rebuilt from the API before
//! the first decision; a node chosen from a shared evaluation passes the pod's own full filter chain again
//! before anything is reserved. A shared *refusal* is not checked again: it is as good as the plugins'
//! signatures, which the differential test of koord-plugins proves complete.

pub mod args;
pub mod config;
mod debug;
pub mod engine;
pub mod framework;
mod gates;
mod guard;
mod metrics;
pub mod program;
mod queue;
mod runtime;
pub mod state;

pub use args::Args;
pub use debug::{
    DebugHandle, Explanation, ShadowDifference, ShadowReport, ShadowResult, inspection,
};
pub use framework::{Trim, Watch};
pub use koord_kube::Cacheable;
pub use runtime::{Error, Follower, Options, run, trim_pod_spec};
