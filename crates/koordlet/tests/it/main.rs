//! The agent against the embedded API server, in one process, on a fake machine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall panic")]

mod agent;
mod beside;
mod containerd;
mod deploy;
mod devices;
mod http;
mod kernel;
mod killed;
mod node_topology;
mod outage;
