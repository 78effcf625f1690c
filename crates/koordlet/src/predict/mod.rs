//! The predictor: what pods will use at their peak, from decaying histograms of what they used.
//!
//! One model per pod, per priority class and for the node and its system part. Each training step
//! adds the 90th percentile of the last interval. Models survive a restart in checkpoint files.
//!
//! *Clocks.* Samples age by a clock that never jumps: [`Predictor::time`] begins at the wall clock
//! and goes on with the steady one. A wall clock that is set does not make all later samples weigh
//! nothing, nor a model live for ever. Files hold wall-clock times as of when they are written; one
//! from the future is taken as written now.

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

/// The node as a whole.
pub const NODE: &str = "__node__";
/// What no pod accounts for.
pub const SYSTEM: &str = "__node-sys__";

/// Returns the model of all pods of a class.
#[must_use]
pub fn class_uid(class: PriorityClass) -> String {
    format!("__node-{}__", class.as_str())
}

/// The predictor's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where checkpoints are; `None` keeps models in memory only.
    pub dir: Option<PathBuf>,
    /// Pods younger than this count with their request.
    pub cold_start_ms: i64,
    /// Added to every forecast, in percent.
    pub safety_margin_percent: i64,
    /// Half-life of memory samples.
    pub memory_half_life_ms: i64,
    /// Half-life of CPU samples.
    pub cpu_half_life_ms: i64,
    /// Models not trained for this long are dropped.
    pub expiration_ms: i64,
    /// Models are saved this often.
    pub checkpoint_interval_ms: i64,
    /// How many models are saved at once.
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

/// One model.
#[derive(Debug, Clone)]
struct Model {
    cpu: DecayingHistogram,
    memory: DecayingHistogram,
    trained: UnixMillis,
    saved: UnixMillis,
}

/// A forecast at one percentile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forecast {
    /// p95 of the CPU, in milli-cores.
    pub cpu_p95: i64,
    /// p98 of the memory, in bytes.
    pub memory_p98: i64,
}

/// All models of this node.
#[derive(Debug)]
pub struct Predictor {
    config: Config,
    models: FxHashMap<String, Model>,
    /// The wall clock when it was first asked for and the steady clock then, in milliseconds.
    began: Option<(UnixMillis, u64)>,
    /// How far the wall clock is ahead of the models' time.
    ahead_ms: i64,
    /// Names of files whose pods are not known (yet).
    orphans: FxHashSet<String>,
    /// When the files were first looked through.
    restored: Option<UnixMillis>,
}

impl Predictor {
    /// Returns a predictor without models.
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

    /// Returns the models' time at `wall` (milliseconds since 1970) and `steady_ms` of the steady clock.
    /// Every other time that is handed to the predictor is one of these.
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

    /// Returns how many models there are.
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

    /// Returns the peak that the model `uid` expects, without margin.
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
