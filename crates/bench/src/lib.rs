//! Benchmarks.

pub mod engine;
pub mod usage;
