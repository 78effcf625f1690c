//! Eviction of pods by koordlet: the victims and the amounts to release.
//!
//! [`config`] validates the thresholds and computes the amounts to release, [`plan`] orders the candidates
//! and accounts for all features together. Sources: Koordinator
//! `pkg/koordlet/qosmanager/plugins/{cpuevict,memoryevict,util}`.

pub mod config;
pub mod plan;
#[cfg(test)]
mod tables;
