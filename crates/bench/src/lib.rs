//! Benchmarks.

pub mod apiserver;
pub mod engine;
pub mod usage;
