//! A process that sleeps and occasionally works a little, like most containers of a node.

use rustix::process::getppid;
use std::time::Duration;

/// Options of the dozing workload.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Number of threads, one of which works.
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// Time between two pieces of work, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    pub every_ms: u64,
    /// Length of a piece of work, in xorshift steps.
    #[arg(long, default_value_t = 20_000)]
    pub steps: u64,
}

/// Computes for a moment at each interval and sleeps between, until it is killed or its parent process ends.
pub fn run(args: &Args) {
    for _ in 1..args.threads {
        // A thread that cannot be started makes the container smaller, and has no other effect.
        let idle = || {
            loop {
                std::thread::park();
            }
        };
        let _ = std::thread::Builder::new().stack_size(1 << 16).spawn(idle);
    }
    let parent = getppid();
    let mut state = u64::from(std::process::id());
    while getppid() == parent {
        state = super::spin(state, args.steps);
        std::thread::park_timeout(Duration::from_millis(args.every_ms.max(1)));
    }
}
