//! The proxy between a client, a runtime and a hook server: fakes on sockets, or a real containerd.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall panic")]

mod asking;
mod containerd;
mod deploy;
mod docker;
mod events;
mod passing;
mod versions;
mod world;
