//! Integration tests of the API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod access;
mod bystander;
mod collecting;
mod counted;
mod definitions;
mod full_disk;
mod hooks;
mod hostile;
mod kubectl;
mod lifecycle;
mod objects;
mod overload;
mod ownership;
mod owning;
mod protobuf;
mod quotas;
mod refusals;
mod rights;
mod selection;
mod serving;
mod store_crash;
mod support;
mod upstream;
mod usage;
mod watching;
mod webhooks;
mod workloads;
