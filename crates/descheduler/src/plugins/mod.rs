//! Strategies, filters and evictors, one module each.

pub mod custom_priority;
pub mod fragmentation_aware;
pub mod migration_controller;
pub mod scale_down_bin_pack;
