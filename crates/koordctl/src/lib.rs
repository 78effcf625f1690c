//! The `koordctl` command: queries to a cluster and to a node. `koord` passes the subcommands of these names
//! on to this crate.
//!
//! Invariant: it works with any cluster, and needs nothing of the one that `koord up` runs.

pub mod audit;
pub mod check;
pub mod cli;
pub mod cluster_args;
pub mod cluster_files;
mod crds;
mod dashboard;
pub mod explain;
mod fetch;
pub mod http_get;
pub mod install;
pub mod node;
pub mod recommend;
pub mod running;
pub mod status;
pub mod support_bundle;
pub mod top;
pub mod validate;
