//! The batch job: threads that compute without pause and count what they finish.

use anyhow::{Context, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How the job runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Threads that compute.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Work per operation, in xorshift steps.
    #[arg(long, default_value_t = 1_000_000)]
    pub steps: u64,
    /// File of one little-endian u64 per thread: operations finished so far.
    #[arg(long)]
    pub counter: PathBuf,
}

/// Computes until the process is killed.
///
/// # Errors
/// When the counter file cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let file = std::fs::File::create(&args.counter)
        .with_context(|| format!("cannot create {}", args.counter.display()))?;
    std::thread::scope(|scope| {
        for number in 0..args.threads.max(1) {
            let file = &file;
            scope.spawn(move || count(file, number as u64 * 8, args.steps));
        }
    });
    Ok(())
}

fn count(file: &std::fs::File, offset: u64, steps: u64) {
    let mut state = 0x2545_f491_4f6c_dd1d ^ offset;
    let mut done: u64 = 0;
    let mut flushed = super::monotonic_ns();
    loop {
        state = super::spin(state, steps);
        done += 1;
        let now = super::monotonic_ns();
        // One write per 5 ms keeps the count fresh at a cost far below one per cent.
        if now - flushed >= 5_000_000 {
            flushed = now;
            if file.write_at(&done.to_le_bytes(), offset).is_err() {
                return;
            }
        }
    }
}

/// Sum of all counters in the files of `directory`; 0 when there are none.
#[must_use]
pub fn total(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path()).ok())
        .flat_map(|bytes| {
            bytes
                .chunks_exact(8)
                .map(|slot| slot.try_into().map_or(0, u64::from_le_bytes))
                .collect::<Vec<_>>()
        })
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
        assert_eq!(total(&dir.path().join("absent")), 0);
    }
}
