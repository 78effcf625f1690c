//! Integration tests of koord-scheduler with its plugins: against an exhaustive engine, and against an API
//! server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod api;
mod config;
mod controllers;
mod deploy;
mod devices;
mod differential;
mod extender;
mod failover;
mod field_reports;
mod gang;
mod inspection;
mod invalid;
mod kubelets;
mod metrics;
mod nonsense;
mod numa;
mod one_write;
mod oracle;
mod preemption;
mod profile;
mod quota;
mod reservation;
mod shadow;
mod small;
mod spread;
mod two_profiles;
mod volumes;
mod volumes_api;
mod waking;
