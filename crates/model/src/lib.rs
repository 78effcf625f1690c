//! Decisions as functions of values: no I/O, no clock, no global state.

pub mod blkio;
pub mod burst;
pub mod core_sched;
pub mod cpu_limit;
pub mod cpuset;
pub mod cpuset_rule;
pub mod device;
pub mod estimate;
pub mod evict;
pub mod field;
pub mod gang;
pub mod gpu_env;
pub mod group_identity;
pub mod guard;
pub mod histogram;
pub mod memory_qos;
pub mod normalization;
pub mod numa;
pub mod percentile;
pub mod quota;
pub mod reclaim;
pub mod resctrl;
pub mod reservation;
pub mod resources;
pub mod suppress;
pub mod system_config;
