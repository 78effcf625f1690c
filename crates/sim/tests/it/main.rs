//! Simulated nodes against the embedded API server, in this process and on paused time.

#![allow(clippy::unwrap_used, reason = "a broken assumption must fail the test")]

mod cluster;
mod nodes;
mod numa;
mod pods;
