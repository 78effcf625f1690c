//! The predictor: forecasts the peak usage of pods from decaying histograms of their usage.
//!
//! There is one model per pod, per priority class and for the node and its system part. Each training step
//! adds the 90th percentile of the last interval. Models survive a restart in checkpoint files.
//!
//! *Clocks.* Samples age by a clock that never jumps: [`Predictor::time`] starts at the wall clock and
//! continues with the monotonic one. So setting the wall clock neither devalues later samples nor keeps a
//! model forever. Files contain wall-clock times as of their writing; one from the future is treated as
//! written now.

mod checkpoint;
pub mod reclaimable;

pub use checkpoint::CheckpointError;
#[cfg(fuzzing)]
pub use checkpoint::fuzzed;
pub use reclaimable::{Estimate, PodForecast, Reclaimable};

use koord_api::PriorityClass;
use koord_model::histogram::{DecayingHistogram, Layout, UnixMillis};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::PathBuf;

/// UID of the model of the whole node.
pub const NODE: &str = "__node__";
/// UID of the model of usage outside pods.
pub const SYSTEM: &str = "__node-sys__";

/// Returns the UID of the model of all pods of a class.
#[must_use]
pub fn class_uid(class: PriorityClass) -> String {
    format!("__node-{}__", class.as_str())
}

/// Settings of the predictor.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory of checkpoints; `None` keeps models in memory only.
    pub dir: Option<PathBuf>,
    /// Minimum age of a pod for its forecast to be used; younger pods count with their request. In
    /// milliseconds.
    pub cold_start_ms: i64,
    /// Margin added to every forecast, in percent.
    pub safety_margin_percent: i64,
    /// Half-life of memory samples, in milliseconds.
    pub memory_half_life_ms: i64,
    /// Half-life of CPU samples, in milliseconds.
    pub cpu_half_life_ms: i64,
    /// Time without training after which a model is dropped, in milliseconds.
    pub expiration_ms: i64,
    /// Interval between two saves of a model, in milliseconds.
    pub checkpoint_interval_ms: i64,
    /// Maximum number of models saved at once.
    pub checkpoints_per_step: usize,
}

impl Default for Config {
    fn default() -> Self {
        const HOUR: i64 = 3_600_000;
        Self {
            dir: None,
            cold_start_ms: 24 * HOUR,
            safety_margin_percent: 10,
            memory_half_life_ms: 24 * HOUR,
            cpu_half_life_ms: 12 * HOUR,
            expiration_ms: HOUR / 2,
            checkpoint_interval_ms: HOUR / 6,
            checkpoints_per_step: 12,
        }
    }
}

/// CPU and memory histograms of one model.
#[derive(Debug, Clone)]
struct Model {
    cpu: DecayingHistogram,
    memory: DecayingHistogram,
    trained: UnixMillis,
    saved: UnixMillis,
}

/// A forecast of peak usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forecast {
    /// 95th percentile of CPU usage, in milli-cores.
    pub cpu_p95: i64,
    /// 98th percentile of memory usage, in bytes.
    pub memory_p98: i64,
}

/// Models of the pods and classes of this node.
#[derive(Debug)]
pub struct Predictor {
    config: Config,
    models: FxHashMap<String, Model>,
    /// Wall clock and monotonic clock at the first call of [`Self::time`], in milliseconds.
    began: Option<(UnixMillis, u64)>,
    /// Milliseconds by which the wall clock is ahead of the models' time.
    ahead_ms: i64,
    /// Names of files whose pods are not listed (yet).
    orphans: FxHashSet<String>,
    /// Time at which the directory was first read.
    restored: Option<UnixMillis>,
}

impl Predictor {
    /// Creates a predictor without models.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            models: FxHashMap::default(),
            began: None,
            ahead_ms: 0,
            orphans: FxHashSet::default(),
            restored: None,
        }
    }

    /// Returns the models' time at `wall` (milliseconds since 1970) and `steady_ms` of the monotonic clock.
    /// All other times passed to the predictor are on this clock.
    pub fn time(&mut self, wall: UnixMillis, steady_ms: u64) -> UnixMillis {
        let (began, steady) = *self.began.get_or_insert((wall, steady_ms));
        let since = i64::try_from(steady_ms.saturating_sub(steady)).unwrap_or(i64::MAX);
        let time = began.saturating_add(since);
        self.ahead_ms = wall.saturating_sub(time);
        time
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the number of models.
    #[must_use]
    pub fn len(&self) -> usize {
        self.models.len()
    }

    /// Returns whether there is no model.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// Adds a sample (cores, bytes) to the model `uid`.
    pub fn train(&mut self, uid: &str, cores: f64, bytes: f64, now: UnixMillis) {
        if !self.models.contains_key(uid) {
            let model = self
                .take_saved(uid, now)
                .unwrap_or_else(|| self.new_model(now));
            self.models.insert(uid.to_owned(), model);
        }
        if let Some(model) = self.models.get_mut(uid) {
            model.cpu.add(cores, 1.0, now);
            model.memory.add(bytes, 1.0, now);
            model.trained = now;
        }
    }

    /// Returns the peak that the model `uid` forecasts, without margin; `None` without a model.
    #[must_use]
    pub fn forecast(&self, uid: &str) -> Option<Forecast> {
        let model = self.models.get(uid)?;
        Some(Forecast {
            cpu_p95: (model.cpu.percentile(0.95) * 1000.0) as i64,
            memory_p98: model.memory.percentile(0.98) as i64,
        })
    }

    fn new_model(&self, now: UnixMillis) -> Model {
        Model {
            cpu: DecayingHistogram::new(Layout::cpu(), self.config.cpu_half_life_ms),
            memory: DecayingHistogram::new(Layout::memory(), self.config.memory_half_life_ms),
            trained: now,
            saved: UnixMillis::MIN,
        }
    }
}

#[cfg(test)]
mod tests;
