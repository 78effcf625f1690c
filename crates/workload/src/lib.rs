//! Programs that the co-location demo runs as pods: a request server, batch jobs that are bad neighbors, and
//! the load generator that measures the server. And one that does nearly nothing, for benchmarks. Also the
//! parts that demo and benchmarks share to measure them: the scenarios and their pods, the sampler of the
//! machine, and the check of windows for noise.
//!
//! They are ordinary processes, independent of koord. Work is counted in xorshift steps, which neither touch
//! memory nor can be optimized away.

pub mod counter;
pub mod doze;
pub mod hog;
pub mod load;
pub mod neighbour;
pub mod noise;
pub mod phase;
pub mod pods;
pub mod sampler;
pub mod scenario;
pub mod serve;
pub mod statistics;

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, comparable between processes of one machine.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Burns CPU for `steps` xorshift steps and returns the final state.
#[must_use]
pub fn spin(mut state: u64, steps: u64) -> u64 {
    state |= 1;
    for _ in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state)
}

/// Returns the number of steps that this CPU makes in a microsecond without disturbance: the best of several
/// short runs, since a disturbance can only make a run slower.
#[must_use]
pub fn steps_per_us() -> f64 {
    const STEPS: u64 = 1_000_000;
    let mut best = u64::MAX;
    let mut state = 88_172_645_463_325_252;
    for _ in 0..20 {
        let start = monotonic_ns();
        state = spin(state, STEPS);
        best = best.min(monotonic_ns().saturating_sub(start));
    }
    #[allow(clippy::cast_precision_loss, reason = "a calibration of three digits")]
    let per_us = STEPS as f64 * 1000.0 / best.max(1) as f64;
    per_us.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_depends_on_every_step() {
        assert_ne!(spin(7, 10), spin(7, 11));
        assert_eq!(spin(7, 1000), spin(7, 1000));
    }

    #[test]
    fn calibration_is_positive() {
        assert!(steps_per_us() >= 1.0);
    }
}
