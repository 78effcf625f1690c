//! Decisions as functions of values: no I/O, no clock, no global state.

pub mod estimate;
pub mod evict;
pub mod histogram;
pub mod percentile;
pub mod pressure;
pub mod reclaim;
pub mod resources;
pub mod suppress;
