//! Files in which batch jobs count their operations, and which the demo reads.

use anyhow::{Context, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The count of one worker: a slot of eight little-endian bytes in a file.
#[derive(Debug)]
pub struct Slot<'a> {
    file: &'a std::fs::File,
    offset: u64,
    done: u64,
    flushed_ns: u64,
}

/// Creates the file of a job.
///
/// # Errors
/// When it cannot be created.
pub fn create(path: &Path) -> Result<std::fs::File> {
    std::fs::File::create(path).with_context(|| format!("cannot create {}", path.display()))
}

impl<'a> Slot<'a> {
    /// Returns the counter of worker `number`.
    #[must_use]
    pub fn new(file: &'a std::fs::File, number: usize) -> Self {
        Self {
            file,
            offset: number as u64 * 8,
            done: 0,
            flushed_ns: super::monotonic_ns(),
        }
    }

    /// Counts one operation. Returns false if the count can no longer be written.
    #[must_use]
    pub fn count(&mut self) -> bool {
        self.done += 1;
        let now = super::monotonic_ns();
        // One write per 5 ms keeps the count fresh at a cost far below one per cent.
        if now - self.flushed_ns < 5_000_000 {
            return true;
        }
        self.flushed_ns = now;
        let bytes = self.done.to_le_bytes();
        self.file.write_at(&bytes, self.offset).is_ok()
    }
}

/// Returns the sum of all counters in the files of `directory`; 0 when there are none. Files named
/// `*.progress` are those of ffmpeg's `-progress`: their frames count.
#[must_use]
pub fn total(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    let count = |path: &Path| -> Option<u64> {
        let bytes = std::fs::read(path).ok()?;
        if path.extension().is_some_and(|end| end == "progress") {
            let text = String::from_utf8_lossy(&bytes);
            let frames = text
                .lines()
                .rev()
                .find_map(|line| line.strip_prefix("frame="));
            return frames?.trim().parse().ok();
        }
        let slots = bytes.chunks_exact(8);
        Some(
            slots
                .map(|slot| slot.try_into().map_or(0, u64::from_le_bytes))
                .sum(),
        )
    };
    entries
        .flatten()
        .filter_map(|entry| count(&entry.path()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_threads_and_jobs_add_up() {
        let dir = tempfile::tempdir().unwrap();
        let slots = |values: &[u64]| -> Vec<u8> {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        std::fs::write(dir.path().join("a"), slots(&[3, 4])).unwrap();
        std::fs::write(dir.path().join("b"), slots(&[5])).unwrap();
        assert_eq!(total(dir.path()), 12);
        let progress = "frame=9\nfps=1\nprogress=continue\nframe=30\nfps=2\nprogress=continue\nfra";
        std::fs::write(dir.path().join("c.progress"), progress).unwrap();
        assert_eq!(total(dir.path()), 42);
        assert_eq!(total(&dir.path().join("absent")), 0);
    }
}
