//! Saving and restoring models: one JSON file per model, replaced atomically.

use super::{Model, Predictor};
use jiff::Timestamp;
use koord_model::histogram::{Checkpoint, HistogramError, UnixMillis};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file or directory.
    #[error("checkpoint {}: {source}", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The file is no checkpoint.
    #[error("checkpoint {}: {source}", path.display())]
    Format {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The file has impossible numbers.
    #[error("checkpoint {}: {source}", path.display())]
    Histogram {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        source: HistogramError,
    },
}

#[derive(Serialize, Deserialize)]
struct Saved {
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
    /// The first failure to write; the other models are tried all the same.
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
        for uid in dropped {
            remove(&dir.join(uid));
        }
        let interval = self.config.checkpoint_interval_ms;
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
            match save(&dir, &uid, model) {
                Ok(()) => model.saved = now,
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Loads the models whose name is in `known` and deletes every other file: models of pods that
    /// are gone, unfinished writes, and files that cannot be understood.
    ///
    /// # Errors
    /// When the directory cannot be made or listed.
    pub fn restore(
        &mut self,
        known: &BTreeSet<String>,
        now: UnixMillis,
    ) -> Result<usize, CheckpointError> {
        let Some(dir) = self.config.dir.clone() else {
            return Ok(0);
        };
        let io = |source| CheckpointError::Io {
            path: dir.clone(),
            source,
        };
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
            if !known.contains(&uid) {
                remove(&path);
                continue;
            }
            match self.load(&path, now) {
                Ok(model) => {
                    self.models.insert(uid, model);
                    restored += 1;
                }
                Err(error) => {
                    tracing::warn!(%error, "dropped");
                    remove(&path);
                }
            }
        }
        Ok(restored)
    }

    fn load(&self, path: &Path, now: UnixMillis) -> Result<Model, CheckpointError> {
        let path_buf = || path.to_owned();
        let bytes = fs::read(path).map_err(|source| CheckpointError::Io {
            path: path_buf(),
            source,
        })?;
        let saved: Saved =
            serde_json::from_slice(&bytes).map_err(|source| CheckpointError::Format {
                path: path_buf(),
                source,
            })?;
        let mut model = self.fresh(now);
        let bad = |source| CheckpointError::Histogram {
            path: path.to_owned(),
            source,
        };
        model.cpu.load(&saved.cpu.into()).map_err(bad)?;
        model.memory.load(&saved.memory.into()).map_err(bad)?;
        model.saved = now;
        Ok(model)
    }
}

fn save(dir: &Path, uid: &str, model: &Model) -> Result<(), CheckpointError> {
    let path = dir.join(uid);
    let saved = Saved {
        uid: uid.to_owned(),
        cpu: model.cpu.save().into(),
        memory: model.memory.save().into(),
        last_updated: at(model.trained),
    };
    let bytes = serde_json::to_vec(&saved).map_err(|source| CheckpointError::Format {
        path: path.clone(),
        source,
    })?;
    let temporary = dir.join(format!("{uid}.tmp"));
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(&temporary, bytes))
        .and_then(|()| fs::rename(&temporary, &path))
        .map_err(|source| CheckpointError::Io { path, source })
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "stale checkpoint stays");
        }
        _ => {}
    }
}
