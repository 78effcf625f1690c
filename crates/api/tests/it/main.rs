//! Behaviour of the API types as other programs see them.

#![allow(clippy::unwrap_used, reason = "a broken assumption must fail the test")]

mod crds;
mod generated;
mod reference;
mod samples;
mod summary;
