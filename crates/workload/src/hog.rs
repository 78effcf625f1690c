//! A batch job: threads that compute without pause and count their operations.

use super::counter::{self, Slot};
use anyhow::Result;
use std::path::PathBuf;

/// Options of the computing job.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Number of threads that compute.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Work per operation, in xorshift steps.
    #[arg(long, default_value_t = 1_000_000)]
    pub steps: u64,
    /// File that receives the number of finished operations: one little-endian u64 per thread.
    #[arg(long)]
    pub counter: PathBuf,
}

/// Computes until the process is killed.
///
/// # Errors
/// When the counter file cannot be created.
pub fn run(args: &Args) -> Result<()> {
    let file = counter::create(&args.counter)?;
    std::thread::scope(|scope| {
        for number in 0..args.threads.max(1) {
            let mut slot = Slot::new(&file, number);
            scope.spawn(move || {
                let mut state = 0x2545_f491_4f6c_dd1d ^ number as u64;
                loop {
                    state = super::spin(state, args.steps);
                    if !slot.count() {
                        return;
                    }
                }
            });
        }
    });
    Ok(())
}
