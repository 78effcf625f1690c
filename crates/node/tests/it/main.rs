//! The node against the embedded API server, with real processes and, as root, real groups.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "test code")]

mod confined;
mod containerd;
mod exec;
mod pods;
mod recovery;
mod registration;
mod security;
mod support;
