//! What containers should request, learned from what they used.
//!
//! | module | holds |
//! |---|---|
//! | [`settings`] | every number of the rule, and the presets `peak` and `vpa` |
//! | [`container`] | what is learned of one container: two histograms, memory peaks, OOM kills |
//! | [`estimate()`] | the recommendation, its bounds and how sure it is |
//! | [`checkpoint`] | what survives a restart |
//! | [`admission`] | how much of its request a pod will use at its peak |
//!
//! The bookkeeping follows the Vertical Pod Autoscaler's recommender; the percentiles were
//! chosen by replaying public traces. CPU amounts are cores inside and milli-cores in results, memory
//! is bytes.

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
