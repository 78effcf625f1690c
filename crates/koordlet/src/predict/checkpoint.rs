//! Saving and restoring models: one JSON file per model, replaced atomically.

use super::{Model, Predictor};
use jiff::Timestamp;
use koord_model::histogram::{Checkpoint, HistogramError, UnixMillis, ZERO_TIME};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Suffix of unfinished files.
const TEMPORARY: &str = ".tmp";
/// A year after time zero: earlier reference times mean that there are no samples.
const EMPTY: UnixMillis = ZERO_TIME + 365 * 86_400_000;

/// Maximum size in bytes of a checkpoint that is read: two histograms with a number in every bucket take less
/// than a twentieth of it.
pub(super) const LIMIT: u64 = 256 << 10;

/// Error of reading or writing a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file or directory cannot be accessed.
    #[error("checkpoint {}: {source}", path.display())]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file is no checkpoint.
    #[error("checkpoint {}: {source}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: serde_json::Error,
    },
    /// The file is too large to be a checkpoint.
    #[error("checkpoint {}: {size} bytes, of {LIMIT} at most", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size in bytes.
        size: u64,
    },
    /// The histogram in the file is invalid.
    #[error("checkpoint {}: {source}", path.display())]
    Histogram {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: HistogramError,
    },
}

#[derive(Serialize, Deserialize)]
struct SavedModel {
    #[serde(rename = "UID")]
    uid: String,
    #[serde(rename = "CPU")]
    cpu: SavedHistogram,
    #[serde(rename = "Memory")]
    memory: SavedHistogram,
    #[serde(rename = "LastUpdated")]
    last_updated: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedHistogram {
    reference_timestamp: Timestamp,
    #[serde(default)]
    bucket_weights: BTreeMap<i64, u32>,
    #[serde(default)]
    total_weight: f64,
}

impl From<Checkpoint> for SavedHistogram {
    fn from(saved: Checkpoint) -> Self {
        Self {
            reference_timestamp: at(saved.reference),
            bucket_weights: saved.weights,
            total_weight: saved.total,
        }
    }
}

impl From<SavedHistogram> for Checkpoint {
    fn from(saved: SavedHistogram) -> Self {
        Self {
            reference: saved.reference_timestamp.as_millisecond(),
            weights: saved.bucket_weights,
            total: saved.total_weight,
        }
    }
}

fn at(millis: UnixMillis) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MIN)
}

impl Predictor {
    /// Drops models that were not trained for long, and saves some of those that are due.
    ///
    /// # Errors
    /// Returns the first failure to write; the other models are saved nonetheless.
    pub fn maintain(&mut self, now: UnixMillis) -> Result<(), CheckpointError> {
        let expiration = self.config.expiration_ms;
        let mut dropped = Vec::new();
        self.models.retain(|uid, model| {
            let keep = now.saturating_sub(model.trained) <= expiration;
            if !keep {
                dropped.push(uid.clone());
            }
            keep
        });
        let Some(dir) = self.config.dir.clone() else {
            return Ok(());
        };
        // Pods that have not been listed by now no longer exist.
        if self
            .restored
            .is_some_and(|saved_at| now.saturating_sub(saved_at) > expiration)
        {
            dropped.extend(self.orphans.drain());
        }
        for uid in dropped {
            remove(&dir.join(uid));
        }
        let (interval, ahead) = (self.config.checkpoint_interval_ms, self.ahead_ms);
        let mut due: Vec<(UnixMillis, String)> = self
            .models
            .iter()
            .filter(|(_, model)| now.saturating_sub(model.saved) >= interval)
            .map(|(uid, model)| (model.saved, uid.clone()))
            .collect();
        due.sort_unstable();
        let mut first_error = None;
        for (_, uid) in due.into_iter().take(self.config.checkpoints_per_step) {
            let Some(model) = self.models.get_mut(&uid) else {
                continue;
            };
            match save(&dir, &uid, model, ahead) {
                Ok(()) => model.saved = now,
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Loads the models whose name is in `uids`, and deletes unfinished writes and invalid files. Files with
    /// other names are kept for as long as a model lives without samples, because the first list of pods may
    /// be partial. Returns the number of loaded models.
    ///
    /// # Errors
    /// When the directory cannot be created or listed.
    pub fn restore(
        &mut self,
        uids: &BTreeSet<String>,
        now: UnixMillis,
    ) -> Result<usize, CheckpointError> {
        let Some(dir) = self.config.dir.clone() else {
            return Ok(0);
        };
        let io = |source| CheckpointError::Io {
            path: dir.clone(),
            source,
        };
        self.restored = Some(now);
        fs::create_dir_all(&dir).map_err(io)?;
        let mut restored = 0;
        for entry in fs::read_dir(&dir).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.is_dir() {
                continue;
            }
            let uid = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            let Some(uid) = uid else { continue };
            if uid.ends_with(TEMPORARY) {
                remove(&path);
                continue;
            }
            self.orphans.insert(uid);
        }
        for uid in uids {
            if let Some(model) = self.take_saved(uid, now) {
                self.models.insert(uid.clone(), model);
                restored += 1;
            }
        }
        Ok(restored)
    }

    /// Returns the model in the file `uid`, if there is one that was not loaded yet.
    pub(super) fn take_saved(&mut self, uid: &str, now: UnixMillis) -> Option<Model> {
        if !self.orphans.remove(uid) {
            return None;
        }
        let path = self.config.dir.as_ref()?.join(uid);
        match self.load(&path, now) {
            Ok(model) => Some(model),
            Err(error) => {
                tracing::warn!(%error, "failed to load predictor checkpoint, deleting it");
                remove(&path);
                None
            }
        }
    }

    pub(super) fn load(&self, path: &Path, now: UnixMillis) -> Result<Model, CheckpointError> {
        let saved = read(path)?;
        // A file from the future was written by a clock that was ahead.
        let written = saved.last_updated.as_millisecond();
        let shift = written
            .min(now.saturating_add(self.ahead_ms))
            .saturating_sub(written)
            .saturating_sub(self.ahead_ms);
        let mut model = self.new_model(now);
        let bad = |source| CheckpointError::Histogram {
            path: path.to_owned(),
            source,
        };
        model
            .cpu
            .load(&moved(saved.cpu.into(), shift))
            .map_err(bad)?;
        model
            .memory
            .load(&moved(saved.memory.into(), shift))
            .map_err(bad)?;
        model.saved = now;
        Ok(model)
    }
}

fn read(path: &Path) -> Result<SavedModel, CheckpointError> {
    let path_buf = || path.to_owned();
    let io = |source| CheckpointError::Io {
        path: path_buf(),
        source,
    };
    let file = fs::File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut bytes = Vec::new();
    // The file may grow meanwhile.
    let read = file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(io)?;
    let size = size.max(u64::try_from(read).unwrap_or(u64::MAX));
    if size > LIMIT {
        let path = path_buf();
        return Err(CheckpointError::TooLarge { path, size });
    }
    serde_json::from_slice(&bytes).map_err(|source| CheckpointError::Format {
        path: path_buf(),
        source,
    })
}

/// Shifts the reference time of a checkpoint. Only the distances between times matter.
fn moved(mut saved: Checkpoint, by_ms: i64) -> Checkpoint {
    // Time zero stands for "no sample yet".
    if saved.reference > EMPTY {
        saved.reference = saved.reference.saturating_add(by_ms);
    }
    saved
}

/// Writes the checkpoint of `model`. `ahead_ms` is how far the wall clock is ahead of the model's time.
fn save(dir: &Path, uid: &str, model: &Model, ahead_ms: i64) -> Result<(), CheckpointError> {
    let path = dir.join(uid);
    let saved = SavedModel {
        uid: uid.to_owned(),
        cpu: moved(model.cpu.save(), ahead_ms).into(),
        memory: moved(model.memory.save(), ahead_ms).into(),
        last_updated: at(model.trained.saturating_add(ahead_ms)),
    };
    let bytes = serde_json::to_vec(&saved).map_err(|source| CheckpointError::Format {
        path: path.clone(),
        source,
    })?;
    let temporary = dir.join(format!("{uid}{TEMPORARY}"));
    let written = fs::create_dir_all(dir)
        .and_then(|()| fs::write(&temporary, bytes))
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        // On a full disk even half a file takes space. The old checkpoint is kept.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(|source| CheckpointError::Io { path, source })
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "failed to delete stale checkpoint");
        }
        _ => {}
    }
}

/// Entry points of the fuzz target.
#[cfg(fuzzing)]
pub mod fuzzed {
    use super::{Predictor, UnixMillis, save};
    use std::path::Path;

    /// Returns whether the file `uid` of the predictor's directory is a valid checkpoint. A valid one gets a
    /// sample and is written and loaded again.
    ///
    /// # Panics
    /// When the rewritten file is not a valid checkpoint.
    pub fn load_and_save(predictor: &Predictor, dir: &Path, uid: &str, now: UnixMillis) -> bool {
        let Ok(mut model) = predictor.load(&dir.join(uid), now) else {
            return false;
        };
        model.cpu.add(1.5, 1.0, now);
        model.memory.add(1e9, 1.0, now);
        for part in [0.0, 0.5, 0.95, 1.0] {
            assert!(model.cpu.percentile(part) >= 0.0);
            assert!(model.memory.percentile(part) >= 0.0);
        }
        save(dir, "again", &model, 0).expect("a file");
        let reloaded = predictor.load(&dir.join("again"), now);
        assert!(reloaded.is_ok(), "{:?}", reloaded.err());
        true
    }
}
