//! The `koord` command as users run it: processes, kubectl, kill -9.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod binaries;
mod crash;
mod deaths;
mod demo;
mod descheduler;
mod full_disk;
mod gates;
mod harness;
mod koordinator;
mod kubectl;
mod profile;
mod runtime;
mod script;
mod topology;
mod up;
mod watched;
mod wire;
