//! Stored form of a container's history.

use super::container::{ContainerModel, Instance};
use super::settings::Settings;
use crate::histogram::{Checkpoint, HistogramError, UnixMillis};

/// Version of the format; no other one is accepted.
pub const VERSION: &str = "v1";

/// Maximum number of pods with an open window in a checkpoint: those with the newest samples. The peaks of
/// the others are in the histogram, and count again if the pod continues in the same window.
const MOST_INSTANCES: usize = 64;

/// Stored form of a [`ContainerModel`].
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerCheckpoint {
    /// [`VERSION`].
    pub version: String,
    /// Histogram of CPU samples.
    pub cpu: Checkpoint,
    /// Histogram of memory peaks.
    pub memory: Checkpoint,
    /// Half-life of the CPU histogram, in milliseconds.
    pub cpu_half_life_ms: i64,
    /// Half-life of the memory histogram, in milliseconds.
    pub memory_half_life_ms: i64,
    /// Time of the first sample.
    pub first: Option<UnixMillis>,
    /// Time of the newest sample.
    pub last: Option<UnixMillis>,
    /// Number of samples.
    pub count: u64,
    /// Open memory windows, one per pod.
    pub instances: Vec<SavedInstance>,
}

/// Open memory window of one pod. Its peak is in the histogram already.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedInstance {
    /// `metadata.uid` of the pod.
    pub pod: String,
    /// Time of the newest sample.
    pub last: Option<UnixMillis>,
    /// End of the window.
    pub window_end: UnixMillis,
    /// Highest usage of the window, in bytes.
    pub peak: f64,
    /// Memory that an OOM kill indicates as needed, in bytes; 0 without one.
    pub oom_peak: f64,
    /// Time of the newest OOM kill that is included.
    pub last_oom: Option<UnixMillis>,
}

/// Reason why a checkpoint is rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckpointError {
    /// The version is another one.
    #[error("version must be {VERSION:?}, got {0:?}")]
    Version(String),
    /// The CPU histogram is invalid.
    #[error("cpuHistogram: {0}")]
    Cpu(HistogramError),
    /// The memory histogram is invalid.
    #[error("memoryHistogram: {0}")]
    Memory(HistogramError),
    /// The newest sample is in the future, or before the first.
    #[error("lastSampleStart must be from firstSampleStart to now, got {last} after {first}")]
    Order {
        /// Time of the first sample.
        first: UnixMillis,
        /// Time of the newest sample.
        last: UnixMillis,
    },
    /// A half-life is not positive.
    #[error("{field} must be positive, got {value} ms")]
    HalfLife {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: i64,
    },
    /// An open window has invalid numbers.
    #[error("memoryPeaks of pod {pod}: {field} must be finite and not negative, got {value}")]
    Peak {
        /// UID of the pod.
        pod: String,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: f64,
    },
}

/// Converts a histogram with the half-life `was` for use with the half-life `is` from the newest sample on:
/// weights are relative to the reference time, which may be a hundred half-lives back.
fn rebased(saved: &Checkpoint, was: i64, is: i64, newest: Option<UnixMillis>) -> Checkpoint {
    let mut saved = saved.clone();
    if let Some(newest) = newest.filter(|_| was != is && !saved.weights.is_empty()) {
        let age = newest.saturating_sub(saved.reference) as f64 / was as f64;
        saved.total *= (-age).exp2();
        saved.reference = newest;
    }
    saved
}

fn unless_min(time: UnixMillis) -> Option<UnixMillis> {
    (time != UnixMillis::MIN).then_some(time)
}

impl ContainerModel {
    /// Returns the stored form.
    #[must_use]
    pub fn save(&self) -> ContainerCheckpoint {
        let mut newest: Vec<&Instance> = self.instances.iter().collect();
        newest.sort_by_key(|instance| std::cmp::Reverse(instance.last));
        newest.truncate(MOST_INSTANCES);
        newest.sort_by(|a, b| a.pod.cmp(&b.pod));
        let saved = |instance: &Instance| SavedInstance {
            pod: instance.pod.to_string(),
            last: unless_min(instance.last),
            window_end: instance.window_end,
            peak: instance.peak,
            oom_peak: instance.oom_peak,
            last_oom: unless_min(instance.last_oom),
        };
        ContainerCheckpoint {
            version: VERSION.to_owned(),
            cpu: self.cpu.save(),
            memory: self.memory.save(),
            cpu_half_life_ms: self.cpu.half_life_ms(),
            memory_half_life_ms: self.memory.half_life_ms(),
            first: self.first,
            last: self.last,
            count: self.count,
            instances: newest.into_iter().map(saved).collect(),
        }
    }

    /// Restores the history of a checkpoint, as of `now`.
    ///
    /// # Errors
    /// The invalid field with its value.
    pub fn load(
        settings: &Settings,
        saved: &ContainerCheckpoint,
        now: UnixMillis,
    ) -> Result<Self, CheckpointError> {
        if saved.version != VERSION {
            return Err(CheckpointError::Version(saved.version.clone()));
        }
        // A wall clock that was ahead for a while would make all later samples count as old.
        let soon = now.saturating_add(settings.memory_window_ms);
        if let (Some(first), Some(last)) = (saved.first, saved.last)
            && (last < first || last > soon)
        {
            return Err(CheckpointError::Order { first, last });
        }
        let mut model = Self::new(settings);
        model.instances.reserve_exact(saved.instances.len());
        for (field, value) in [
            ("cpuHalfLife", saved.cpu_half_life_ms),
            ("memoryHalfLife", saved.memory_half_life_ms),
        ] {
            if value <= 0 {
                return Err(CheckpointError::HalfLife { field, value });
            }
        }
        let last = saved.last;
        let (was, is) = (saved.cpu_half_life_ms, settings.cpu_half_life_ms);
        let cpu = model.cpu.load(&rebased(&saved.cpu, was, is, last));
        cpu.map_err(CheckpointError::Cpu)?;
        let (was, is) = (saved.memory_half_life_ms, settings.memory_half_life_ms);
        let memory = model.memory.load(&rebased(&saved.memory, was, is, last));
        memory.map_err(CheckpointError::Memory)?;
        (model.first, model.last, model.count) = (saved.first, saved.last, saved.count);
        for instance in &saved.instances {
            for (field, value) in [("peak", instance.peak), ("oomPeak", instance.oom_peak)] {
                if !(value.is_finite() && value >= 0.0) {
                    return Err(CheckpointError::Peak {
                        pod: instance.pod.clone(),
                        field,
                        value,
                    });
                }
            }
            model.instances.push(Instance {
                pod: instance.pod.as_str().into(),
                last: instance.last.unwrap_or(UnixMillis::MIN),
                window_end: instance.window_end.min(soon),
                peak: instance.peak,
                oom_peak: instance.oom_peak,
                last_oom: instance.last_oom.unwrap_or(UnixMillis::MIN),
            });
        }
        model.instances.sort_by(|a, b| a.pod.cmp(&b.pod));
        model.instances.dedup_by(|a, b| a.pod == b.pod);
        Ok(model)
    }
}
