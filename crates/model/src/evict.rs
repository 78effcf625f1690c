//! Whom eviction takes, and how much has to go.
//!
//! [`config`] checks the limits and says how much each asks for, [`plan`] orders the candidates and
//! keeps the books of all features together. Sources: Koordinator
//! `pkg/koordlet/qosmanager/plugins/{cpuevict,memoryevict,util}`.

pub mod config;
pub mod plan;
#[cfg(test)]
mod tables;
