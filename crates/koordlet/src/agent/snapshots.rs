//! Saves samples to a file and restores them after a restart.

use crate::collect::tracked_pods::TrackedPods;
use crate::store::{SeriesSubject, Snapshot, Store, snapshot};
use crate::time::TickTime;
use rustc_hash::FxHashMap;
use std::path::PathBuf;

/// Milliseconds between two saves.
const EVERY_MS: u64 = 300_000;
/// Milliseconds after which restored samples of pods that are not listed are dropped.
const KEEP_MS: u64 = 600_000;

/// The file of samples, and what was restored from it.
#[derive(Debug)]
pub(super) struct Snapshots {
    path: Option<PathBuf>,
    /// Samples of the previous run. `None` before the file was read.
    previous: Option<Snapshot>,
    began_ms: u64,
    saved_ms: u64,
}

impl Snapshots {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            previous: None,
            began_ms: 0,
            saved_ms: 0,
        }
    }

    /// Loads the file, once, and restores the samples of the node.
    pub(super) fn load(&mut self, now: TickTime, store: &mut Store) {
        if let Some(previous) = &mut self.previous {
            if !previous.is_empty() && now.ms().saturating_sub(self.began_ms) > KEEP_MS {
                *previous = Snapshot::default();
            }
            return;
        }
        (self.began_ms, self.saved_ms) = (now.ms(), now.ms());
        let loaded = match &self.path {
            Some(path) => Snapshot::load(path, wall_ms(now), now.ms()),
            None => Ok(None),
        };
        let previous = self.previous.insert(match loaded {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                let path = self.path.as_deref().unwrap_or_else(|| "".as_ref());
                tracing::warn!(path = %path.display(), %error, "failed to load samples of the last run, dropping them");
                Snapshot::default()
            }
        });
        let fixed = [
            SeriesSubject::Node,
            SeriesSubject::System,
            SeriesSubject::Batch,
        ];
        let numa = (0..1024).flat_map(|n| [SeriesSubject::Numa(n), SeriesSubject::NumaSystem(n)]);
        for subject in fixed.into_iter().chain(numa) {
            if let Some(owner) = owner(subject) {
                previous.restore(&owner, subject, store);
            }
        }
    }

    /// Restores the samples of new pods.
    pub(super) fn give(&mut self, pods: &TrackedPods, store: &mut Store) {
        let Some(previous) = self
            .previous
            .as_mut()
            .filter(|previous| !previous.is_empty())
        else {
            return;
        };
        for (info, pod) in pods.iter() {
            previous.restore(&info.uid, SeriesSubject::Pod(pod.id), store);
        }
    }

    /// Returns the content to save, when a save is due.
    pub(super) fn due(
        &mut self,
        now: TickTime,
        pods: &TrackedPods,
        store: &Store,
    ) -> Option<Vec<u8>> {
        self.path.as_ref()?;
        if now.ms().saturating_sub(self.saved_ms) < EVERY_MS {
            return None;
        }
        self.saved_ms = now.ms();
        Some(bytes(now, pods, store))
    }

    /// Writes the snapshot file now, without regard to its interval; nothing if snapshots are off.
    pub(super) fn save(
        &self,
        now: TickTime,
        pods: &TrackedPods,
        store: &Store,
    ) -> std::io::Result<()> {
        match &self.path {
            Some(path) => snapshot::write(path, &bytes(now, pods, store)),
            None => Ok(()),
        }
    }
}

fn bytes(now: TickTime, pods: &TrackedPods, store: &Store) -> Vec<u8> {
    let uids: FxHashMap<u64, &str> = pods
        .iter()
        .map(|(info, pod)| (pod.id, info.uid.as_str()))
        .collect();
    store.snapshot(wall_ms(now), now.ms(), |subject| match subject {
        SeriesSubject::Pod(id) => uids.get(&id).map(|uid| (*uid).to_owned()),
        other => owner(other),
    })
}

/// Returns the owner's name in the file for subjects other than pods. No pod UID contains a blank.
fn owner(subject: SeriesSubject) -> Option<String> {
    match subject {
        SeriesSubject::Node => Some("the node".to_owned()),
        SeriesSubject::System => Some("the system".to_owned()),
        SeriesSubject::Batch => Some("the class".to_owned()),
        SeriesSubject::Numa(n) => Some(format!("numa {n}")),
        SeriesSubject::NumaSystem(n) => Some(format!("numa system {n}")),
        _ => None,
    }
}

fn wall_ms(now: TickTime) -> u64 {
    u64::try_from(now.wall.as_millisecond()).unwrap_or(0)
}
