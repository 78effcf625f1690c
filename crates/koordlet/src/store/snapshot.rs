//! Saves the samples of the last half hour over a restart, in one small file.
//!
//! Long series are saved as they are, those in two resolutions as their averages, short ones not at all. The
//! file contains ages, so that the monotonic clock of the next process can start anywhere; samples that are
//! older than the longest window, and files that are incomplete or from the future, are not used.
//!
//! Format, little-endian: the magic, the wall clock in milliseconds (u64), then per series the name of its
//! owner and of its metric (u16 length and UTF-8 each), the number of samples (u32) and per sample, oldest
//! first, its age (u32 milliseconds) and value (f64); last the FNV-1a hash (u64) of all of it.

use super::{BEFORE_MS, Metric, SeriesSubject, Store};
use rustc_hash::FxHashMap;
use std::io;
use std::path::Path;

const MAGIC: &[u8; 8] = b"KOORDTS1";
/// Maximum age, which is that of the longest window, in milliseconds.
const MAX_AGE_MS: u64 = 1_800_000;
/// Maximum file size; this agent never writes more.
const MAX_BYTES: u64 = 64 << 20;

/// Error of a snapshot that is not used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is no snapshot, or incomplete.
    #[error("{0}")]
    Format(&'static str),
    /// The snapshot is older than `MAX_AGE_MS`.
    #[error("metric snapshot is {age} s old, maximum is {} s", MAX_AGE_MS / 1000, age = .0)]
    Old(u64),
    /// The wall clock was set back since the snapshot.
    #[error("metric snapshot is from the future")]
    Future,
}

/// Ages at the time of loading, in milliseconds, and values; oldest first.
type AgedSamples = Vec<(u32, f64)>;

/// Samples of an earlier run, by the names of their owners.
#[derive(Debug, Default)]
pub struct Snapshot {
    series: FxHashMap<String, Vec<(Metric, AgedSamples)>>,
    loaded_ms: u64,
}

impl Snapshot {
    /// Reads the file `path` at `wall_ms` since 1970 and `now_ms` of the monotonic clock; `None` if there is
    /// no such file.
    ///
    /// # Errors
    /// When the file cannot be read or used.
    pub fn load(path: &Path, wall_ms: u64, now_ms: u64) -> Result<Option<Self>, SnapshotError> {
        match std::fs::metadata(path) {
            Ok(meta) if meta.len() > MAX_BYTES => {
                return Err(SnapshotError::Format("metric snapshot is too large"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            _ => {}
        }
        let bytes = std::fs::read(path)?;
        let mut snapshot = Self::parse(&bytes, wall_ms)?;
        snapshot.loaded_ms = now_ms;
        Ok(Some(snapshot))
    }

    /// Parses the content of a snapshot file. Fails if it is incomplete or too old.
    fn parse(bytes: &[u8], wall_ms: u64) -> Result<Self, SnapshotError> {
        const CUT: SnapshotError = SnapshotError::Format("metric snapshot is incomplete");
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(CUT)?;
        let mut remaining = body
            .strip_prefix(MAGIC.as_slice())
            .ok_or(SnapshotError::Format("file is no metric snapshot"))?;
        if u64::from_le_bytes(*sum) != hash(body) {
            return Err(CUT);
        }
        let written = u64::from_le_bytes(*take(&mut remaining).ok_or(CUT)?);
        let age = wall_ms.checked_sub(written).ok_or(SnapshotError::Future)?;
        if age > MAX_AGE_MS {
            return Err(SnapshotError::Old(age / 1000));
        }
        let mut series: FxHashMap<String, Vec<_>> = FxHashMap::default();
        while !remaining.is_empty() {
            let owner = name(&mut remaining).ok_or(CUT)?;
            let metric = name(&mut remaining).ok_or(CUT)?;
            let count = u32::from_le_bytes(*take(&mut remaining).ok_or(CUT)?);
            let mut samples = Vec::new();
            for _ in 0..count {
                let before = u32::from_le_bytes(*take(&mut remaining).ok_or(CUT)?);
                let value = f64::from_le_bytes(*take(&mut remaining).ok_or(CUT)?);
                let age = age.saturating_add(u64::from(before));
                if let Ok(age) = u32::try_from(age)
                    && u64::from(age) <= MAX_AGE_MS
                {
                    samples.push((age, value));
                }
            }
            // A metric of another version is skipped.
            if let Some(metric) = Metric::from_name(metric) {
                series
                    .entry(owner.to_owned())
                    .or_default()
                    .push((metric, samples));
            }
        }
        Ok(Self {
            series,
            loaded_ms: 0,
        })
    }

    /// Moves the samples of `owner` to the series of `subject`, which must be new to the store. Works once
    /// per owner.
    pub fn restore(&mut self, owner: &str, subject: SeriesSubject, store: &mut Store) {
        for (metric, samples) in self.series.remove(owner).unwrap_or_default() {
            for (age, value) in samples {
                let time = (self.loaded_ms + BEFORE_MS).saturating_sub(u64::from(age));
                store.push_at((subject, metric), time, value);
            }
        }
    }

    /// Returns the number of owners whose samples were not restored yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Returns whether all samples were restored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }
}

impl Store {
    /// Returns a snapshot at `wall_ms` since 1970 and `now_ms` of the monotonic clock, of the subjects for
    /// which `owner` returns a name.
    #[must_use]
    pub fn snapshot(
        &self,
        wall_ms: u64,
        now_ms: u64,
        owner: impl Fn(SeriesSubject) -> Option<String>,
    ) -> Vec<u8> {
        let now = now_ms.saturating_add(BEFORE_MS);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(wall_ms.to_le_bytes());
        for (subject, metrics) in &self.subjects {
            let Some(owner) = owner(*subject) else {
                continue;
            };
            for (metric, samples) in metrics {
                let cells: Vec<_> = samples.persistent().collect();
                if cells.is_empty() {
                    continue;
                }
                for text in [owner.as_str(), metric.name()] {
                    let len = u16::try_from(text.len()).unwrap_or(0);
                    bytes.extend(len.to_le_bytes());
                    bytes.extend(text.as_bytes().iter().take(len.into()));
                }
                bytes.extend(u32::try_from(cells.len()).unwrap_or(0).to_le_bytes());
                for (value, at) in cells {
                    let age = u32::try_from(now.saturating_sub(at)).unwrap_or(u32::MAX);
                    bytes.extend(age.to_le_bytes());
                    bytes.extend(value.to_le_bytes());
                }
            }
        }
        let sum = hash(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }
}

/// Replaces the file `path` with `bytes` atomically.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let temporary = path.with_extension("tmp");
    let written =
        std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

fn name<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let len = usize::from(u16::from_le_bytes(*take(rest)?));
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    std::str::from_utf8(head).ok()
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree as _;

    const WALL: u64 = 1_748_000_000_000;
    const CPU: Metric = Metric::CpuUsage;

    fn filled() -> Store {
        let mut store = Store::new();
        for second in 0..1800_u64 {
            store.push((SeriesSubject::Node, CPU), second * 1000, second as f64);
            store.push((SeriesSubject::Pod(7), CPU), second * 1000, second as f64);
            store.push((SeriesSubject::Container(8), CPU), second * 1000, 1.0);
        }
        store
    }

    fn owner(subject: SeriesSubject) -> Option<String> {
        match subject {
            SeriesSubject::Node => Some("node".to_owned()),
            SeriesSubject::Pod(id) => Some(format!("pod/{id}")),
            SeriesSubject::Container(_) => Some("container".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn windows_go_on_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics/store");
        assert!(Snapshot::load(&path, WALL, 0).unwrap().is_none());
        let store = filled();
        let now = 1_799_000;
        write(&path, &store.snapshot(WALL, now, owner)).unwrap();
        // The next process begins ten seconds later, at zero.
        let mut loaded = Snapshot::load(&path, WALL + 10_000, 0).unwrap().unwrap();
        assert_eq!(loaded.len(), 2, "short series are not kept");
        let mut next = Store::new();
        loaded.restore("node", SeriesSubject::Node, &mut next);
        loaded.restore("pod/7", SeriesSubject::Pod(1), &mut next);
        loaded.restore("pod/9", SeriesSubject::Pod(2), &mut next);
        assert!(loaded.is_empty());
        let (node, pod) = ((SeriesSubject::Node, CPU), (SeriesSubject::Pod(1), CPU));
        assert_eq!(next.last(node, 0, 9_999), None);
        assert_eq!(next.last(node, 0, 10_000), Some(1799.0));
        // What was the last ten minutes then.
        assert_eq!(
            next.average(node, 0, 610_000),
            store.average(node, now, 600_000)
        );
        let mut out = Vec::new();
        assert_eq!(next.collect(node, 0, 1_800_000, &mut out), 1_790_000);
        let mean = next.average(pod, 0, 1_800_000).unwrap();
        assert!((mean - 904.5).abs() < 6.0, "{mean}");
        // And new samples follow.
        next.push(node, 1000, 5.0);
        assert_eq!(next.last(node, 1000, 0), Some(5.0));
    }

    #[test]
    fn invalid_snapshot_is_rejected() {
        let bytes = filled().snapshot(WALL, 1_799_000, owner);
        let error = |bytes: &[u8], wall: u64| Snapshot::parse(bytes, wall).unwrap_err().to_string();
        assert!(Snapshot::parse(&bytes, WALL + MAX_AGE_MS).unwrap().len() == 2);
        assert_eq!(
            error(&bytes, WALL + MAX_AGE_MS + 1),
            "metric snapshot is 1800 s old, maximum is 1800 s"
        );
        assert_eq!(
            error(&bytes, WALL - 1),
            "metric snapshot is from the future"
        );
        assert_eq!(
            error(&bytes[..bytes.len() - 1], WALL),
            "metric snapshot is incomplete"
        );
        assert_eq!(error(b"", WALL), "metric snapshot is incomplete");
        assert_eq!(error(b"something else", WALL), "file is no metric snapshot");
        let mut turned = bytes.clone();
        turned[1000] ^= 1;
        assert_eq!(error(&turned, WALL), "metric snapshot is incomplete");
    }

    /// A snapshot with any content and a valid hash is read or rejected.
    #[test]
    fn any_content_is_handled() {
        let snapshot_bytes = filled().snapshot(WALL, 1_799_000, owner);
        let body = &snapshot_bytes[..snapshot_bytes.len() - hash(&[]).to_le_bytes().len()];
        let spot = (any::<prop::sample::Index>(), any::<u8>());
        let damage = (
            prop::collection::vec(spot, 1..4),
            any::<prop::sample::Index>(),
        );
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let (mut read, mut refused) = (0, 0);
        for turn in 0..2000 {
            let (spots, end) = damage.new_tree(&mut runner).unwrap().current();
            let mut bytes = body.to_vec();
            for (at, byte) in spots {
                // Most of the file is samples; their names and counts come first.
                let reach = if turn % 2 == 0 { 200 } else { bytes.len() };
                bytes[at.index(reach)] = byte;
            }
            if turn % 5 == 0 {
                bytes.truncate(end.index(bytes.len()));
            }
            bytes.extend(hash(&bytes).to_le_bytes());
            match Snapshot::parse(&bytes, WALL) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(
            read > 100 && refused > 100,
            "{read} read, {refused} refused"
        );
    }
}
