//! The agent against the embedded API server, in one process, on a fake machine.

#![allow(clippy::unwrap_used, reason = "a failed setup panics")]

mod agent;
mod beside;
mod containerd;
mod deploy;
mod devices;
mod dry_run;
mod http;
mod kernel;
mod killed;
mod node_topology;
mod outage;
