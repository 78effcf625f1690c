//! Recommended requests of containers, derived from their usage.
//!
//! | module | holds |
//! |---|---|
//! | [`settings`] | all constants, and the presets `peak` and `vpa` |
//! | [`container`] | the history of one container: two histograms, memory peaks, OOM kills |
//! | [`estimate()`] | the recommendation, its bounds and its confidence |
//! | [`checkpoint`] | the form that is stored over restarts |
//! | [`admission`] | the share of its request that a pod will use at its peak |
//!
//! The accounting follows the Vertical Pod Autoscaler's recommender; the percentiles were chosen by replaying
//! public traces. CPU amounts are cores in histograms and milli-cores in results, memory is in bytes.

pub mod admission;
pub mod checkpoint;
pub mod container;
pub mod estimate;
pub mod settings;

pub use checkpoint::{CheckpointError, ContainerCheckpoint, SavedInstance};
pub use container::ContainerModel;
pub use estimate::{Distribution, Percentiles, Recommended, estimate};
pub use settings::{Settings, SettingsError};

#[cfg(test)]
mod tests;
