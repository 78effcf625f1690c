//! What of a container's history survives a restart.

use super::container::{ContainerModel, Instance};
use super::settings::Settings;
use crate::histogram::{Checkpoint, HistogramError, UnixMillis};

/// The format that is written, and the only one that is read.
pub const VERSION: &str = "v1";

/// Pods whose window is still open that a checkpoint holds: those seen last. The peaks of the others
/// are in the histogram, and count once more should the pod go on in the same window.
const MOST_INSTANCES: usize = 64;

/// The saved form of a [`ContainerModel`].
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerCheckpoint {
    /// [`VERSION`].
    pub version: String,
    /// CPU samples.
    pub cpu: Checkpoint,
    /// Memory peaks.
    pub memory: Checkpoint,
    /// With which half-life the CPU samples were weighed, in milliseconds.
    pub cpu_half_life_ms: i64,
    /// With which half-life the memory peaks were weighed, in milliseconds.
    pub memory_half_life_ms: i64,
    /// Time of the first sample.
    pub first: Option<UnixMillis>,
    /// Time of the newest sample.
    pub last: Option<UnixMillis>,
    /// How many samples there were.
    pub count: u64,
    /// Open windows.
    pub instances: Vec<SavedInstance>,
}

/// The open window of one pod. Its peak is in the histogram already.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedInstance {
    /// `metadata.uid` of the pod.
    pub pod: String,
    /// The newest sample.
    pub last: Option<UnixMillis>,
    /// When the window ends.
    pub window_end: UnixMillis,
    /// Bytes.
    pub peak: f64,
    /// Bytes that an OOM kill called for; 0 without one.
    pub oom_peak: f64,
    /// The newest OOM kill that was learned from.
    pub last_oom: Option<UnixMillis>,
}

/// Why a checkpoint is not taken over.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckpointError {
    /// Another format.
    #[error("version must be {VERSION:?}, got {0:?}")]
    Version(String),
    /// The CPU histogram.
    #[error("cpuHistogram: {0}")]
    Cpu(HistogramError),
    /// The memory histogram.
    #[error("memoryHistogram: {0}")]
    Memory(HistogramError),
    /// The newest sample lies in the future, or before the first.
    #[error("lastSampleStart must be from firstSampleStart to now, got {last} after {first}")]
    Order {
        /// The first sample.
        first: UnixMillis,
        /// The newest one.
        last: UnixMillis,
    },
    /// A half-life that is none.
    #[error("{field} must be positive, got {value} ms")]
    HalfLife {
        /// Which one.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// An open window with impossible numbers.
    #[error("memoryPeaks of pod {pod}: {field} must be finite and not negative, got {value}")]
    Peak {
        /// The pod's uid.
        pod: String,
        /// Which number.
        field: &'static str,
        /// The number.
        value: f64,
    },
}

/// A histogram that weighed with the half-life `was`, for one that goes on with another from the
/// newest sample: weights are relative to the reference time, which may lie a hundred half-lives
/// back.
fn rebased(saved: &Checkpoint, was: i64, is: i64, newest: Option<UnixMillis>) -> Checkpoint {
    let mut saved = saved.clone();
    if let Some(newest) = newest.filter(|_| was != is && !saved.weights.is_empty()) {
        let age = newest.saturating_sub(saved.reference) as f64 / was as f64;
        saved.total *= (-age).exp2();
        saved.reference = newest;
    }
    saved
}

fn known(time: UnixMillis) -> Option<UnixMillis> {
    (time != UnixMillis::MIN).then_some(time)
}

impl ContainerModel {
    /// The saved form.
    #[must_use]
    pub fn save(&self) -> ContainerCheckpoint {
        let mut newest: Vec<&Instance> = self.instances.iter().collect();
        newest.sort_by_key(|instance| std::cmp::Reverse(instance.last));
        newest.truncate(MOST_INSTANCES);
        newest.sort_by(|a, b| a.pod.cmp(&b.pod));
        let saved = |instance: &Instance| SavedInstance {
            pod: instance.pod.to_string(),
            last: known(instance.last),
            window_end: instance.window_end,
            peak: instance.peak,
            oom_peak: instance.oom_peak,
            last_oom: known(instance.last_oom),
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

    /// The history in a checkpoint, as of `now`.
    ///
    /// # Errors
    /// Which field is impossible, with its value.
    pub fn load(
        settings: &Settings,
        saved: &ContainerCheckpoint,
        now: UnixMillis,
    ) -> Result<Self, CheckpointError> {
        if saved.version != VERSION {
            return Err(CheckpointError::Version(saved.version.clone()));
        }
        // A wall clock that was ahead for a while would keep all later samples out.
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
