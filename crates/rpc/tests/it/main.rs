//! Messages and transports, tested from outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's helpers fail the test"
)]

mod containerd;
mod frames;
#[path = "../../examples/generate.rs"]
mod generate;
mod grpc;
mod messages;
mod mux;
mod nri;
mod ttrpc;
mod wire;
