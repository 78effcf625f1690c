//! Decisions as functions of values: no I/O, no clock, no global state.

pub mod cpuset;
pub mod device;
pub mod estimate;
pub mod evict;
pub mod gang;
pub mod histogram;
pub mod numa;
pub mod percentile;
pub mod pressure;
pub mod quota;
pub mod reclaim;
pub mod reservation;
pub mod resources;
pub mod suppress;
