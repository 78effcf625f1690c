//! The proxy between a client, a runtime and a hook server: fakes on sockets, or a real containerd.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

mod containerd;
mod deploy;
mod docker;
mod events;
mod hook_calls;
mod passthrough;
mod versions;
mod world;
