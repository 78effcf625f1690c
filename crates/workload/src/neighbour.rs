//! Batch jobs that are bad neighbors, each in one way: they start processes without end, write and sync
//! files, fill memory, or stream through it. Each is bounded by construction: a fixed number of processes or
//! bytes.

use super::counter::{self, Slot};
use anyhow::{Context, Result};
use std::hint::black_box;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;
/// Rate at which memory is filled.
const MIB_PER_S: u64 = 48;

/// Starts processes and waits for them, without end.
#[derive(Debug, Clone, clap::Args)]
pub struct SpawnArgs {
    /// Number of threads, each with `--children` processes at a time.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Number of concurrent processes per thread.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub children: u8,
    /// Counter file: one operation per process.
    #[arg(long)]
    pub counter: PathBuf,
}

/// Writes a file, syncs it and replaces the previous one with it, without end.
#[derive(Debug, Clone, clap::Args)]
pub struct SyncArgs {
    /// Number of threads, each with a file of its own.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Size of a file, in KiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub kib: u32,
    /// Directory of the files.
    #[arg(long)]
    pub dir: PathBuf,
    /// Counter file: one operation per file.
    #[arg(long)]
    pub counter: PathBuf,
}

/// Fills memory up to its limit and computes on it, without end.
#[derive(Debug, Clone, clap::Args)]
pub struct GrowArgs {
    /// Memory to fill if no limit is set, in MiB.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub mib: u32,
    /// Counter file: one operation per MiB read or written.
    #[arg(long)]
    pub counter: PathBuf,
}

/// Copies buffers that no cache holds, without end.
#[derive(Debug, Clone, clap::Args)]
pub struct StreamArgs {
    /// Number of threads, each with two buffers of its own.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Size of a buffer, in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub mib: u32,
    /// Counter file: one operation per MiB copied.
    #[arg(long)]
    pub counter: PathBuf,
}

/// Runs `work` in each of `threads` threads, with the thread's number and its slot of the counter file.
///
/// # Errors
/// When the counter file cannot be created, or `work` fails in a thread.
fn run_threads(
    threads: usize,
    counter: &Path,
    work: impl Fn(usize, &mut Slot<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let file = counter::create(counter)?;
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1))
            .map(|number| {
                let (file, work) = (&file, &work);
                scope.spawn(move || work(number, &mut Slot::new(file, number)))
            })
            .collect();
        for handle in handles {
            handle
                .join()
                .map_err(|_| anyhow::anyhow!("a worker failed"))??;
        }
        Ok(())
    })
}

/// Starts batches of short processes and waits for them, until it is killed.
///
/// # Errors
/// When a process cannot be started.
pub fn spawn(args: &SpawnArgs) -> Result<()> {
    // The smallest program available; this one where it is missing.
    let own = std::env::current_exe().context("path of this program")?;
    let small = Path::new("/bin/true");
    run_threads(args.threads, &args.counter, |_, slot| {
        loop {
            let mut children = Vec::new();
            for _ in 0..args.children {
                let mut command = if small.exists() {
                    Command::new(small)
                } else {
                    let mut command = Command::new(&own);
                    command.arg("--version");
                    command
                };
                let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
                children.push(child.context("cannot start a process")?);
            }
            for mut child in children {
                child.wait().context("cannot wait for a process")?;
                if !slot.count() {
                    return Ok(());
                }
            }
        }
    })
}

/// Writes, syncs and replaces a file per thread, until it is killed.
///
/// # Errors
/// When a file cannot be written.
pub fn sync(args: &SyncArgs) -> Result<()> {
    std::fs::create_dir_all(&args.dir)
        .with_context(|| format!("cannot create {}", args.dir.display()))?;
    let bytes = vec![0x5a_u8; args.kib as usize * 1024];
    run_threads(args.threads, &args.counter, |number, slot| {
        let name = format!("{}-{number}", std::process::id());
        let (path, partial) = (args.dir.join(&name), args.dir.join(name + ".partial"));
        loop {
            let write = || -> std::io::Result<()> {
                let mut file = std::fs::File::create(&partial)?;
                file.write_all(&bytes)?;
                file.sync_all()?;
                std::fs::rename(&partial, &path)
            };
            write().with_context(|| format!("cannot write {}", path.display()))?;
            if !slot.count() {
                return Ok(());
            }
        }
    })
}

/// Fills memory and computes on it, until it is killed. Like a runtime that sizes its heap by its container, it
/// uses three quarters of the memory limit of its own cgroup, or `--mib` if that is less.
///
/// # Errors
/// When the counter file cannot be created.
pub fn grow(args: &GrowArgs) -> Result<()> {
    run_threads(1, &args.counter, |_, slot| {
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        let mut turn = 0_usize;
        let begun = super::monotonic_ns();
        loop {
            // Read repeatedly: the limit may be set after the start, and the kernel refuses a limit below the
            // current usage.
            let block_count = own_limit_mib().map_or(usize::MAX, |limit| limit * 3 / 4);
            let grown = super::monotonic_ns().saturating_sub(begun) * MIB_PER_S / 1_000_000_000;
            let grown = usize::try_from(grown).unwrap_or(usize::MAX);
            let block_count = block_count.min(args.mib as usize).min(grown).max(1);
            blocks.truncate(block_count);
            if blocks.len() < block_count {
                blocks.push(vec![1; MIB]);
            }
            // Ten blocks are read for one that is added, so that growth is not its only work.
            for _ in 0..10 {
                turn = (turn + 1) % blocks.len();
                let block = &mut blocks[turn];
                for at in (0..MIB).step_by(64) {
                    block[at] = block[at].wrapping_mul(31).wrapping_add(7);
                }
                black_box(&block);
                if !slot.count() {
                    return Ok(());
                }
            }
        }
    })
}

/// Returns the memory limit of the control group of this process, in MiB; `None` where there is none.
fn own_limit_mib() -> Option<usize> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        let has_memory = controllers.split(',').any(|name| name == "memory");
        has_memory.then(|| format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"))
    });
    let path = path.or_else(|| {
        let unified = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        Some(format!("/sys/fs/cgroup{unified}/memory.max"))
    })?;
    let limit: usize = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    // Version 1 reports "no limit" as a number near 2^63.
    (limit < 1 << 60).then_some(limit / MIB)
}

/// Copies between two buffers per thread, until it is killed.
///
/// # Errors
/// When the counter file cannot be created.
pub fn stream(args: &StreamArgs) -> Result<()> {
    run_threads(args.threads, &args.counter, |number, slot| {
        let size = args.mib as usize * MIB;
        let mut from = vec![number.to_le_bytes()[0]; size];
        let mut to = vec![0_u8; size];
        loop {
            for (from, to) in from.chunks(MIB).zip(to.chunks_mut(MIB)) {
                to.copy_from_slice(from);
                black_box(&to);
                if !slot.count() {
                    return Ok(());
                }
            }
            std::mem::swap(&mut from, &mut to);
        }
    })
}
