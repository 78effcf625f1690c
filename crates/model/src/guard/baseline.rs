//! Expected signals of a service without batch work, by its own load.

use super::signal::Signal;
use std::collections::BTreeMap;

/// Number of clean samples from which an expectation is fully trusted.
const TRUSTED: u32 = 5;
/// Age in milliseconds from which a value is learned again.
const STALE_MS: u64 = 1_800_000;
/// Minimum learning rate.
const SLOWEST: f64 = 1.0 / 30.0;
/// Maximum distance, in load steps, from which an expectation is borrowed.
const BORROW: u32 = 2;

/// Expected value of a signal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Expected {
    pub(super) mean: f64,
    pub(super) margin: f64,
    /// True if it was observed without batch work.
    pub(super) seen: bool,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    mean: f64,
    /// Mean absolute deviation.
    deviation: f64,
    samples: u32,
    at_ms: u64,
}

/// Statistics of clean samples of one service, by signal and load step.
#[derive(Debug, Clone, Default)]
pub(super) struct Baseline(BTreeMap<(Signal, u32), Cell>);

/// Returns the load step: each is twice the one before, in milli-cores.
fn step(load: i64) -> u32 {
    load.max(16).ilog2()
}

impl Baseline {
    /// Adds a sample of an interval in which no batch work ran.
    pub(super) fn learn(&mut self, signal: Signal, load: i64, value: f64, now_ms: u64) {
        let cell = self.0.entry((signal, step(load))).or_insert(Cell {
            mean: value,
            deviation: 0.0,
            samples: 0,
            at_ms: now_ms,
        });
        if now_ms.saturating_sub(cell.at_ms) > STALE_MS {
            cell.samples = cell.samples.min(2);
        }
        cell.samples = cell.samples.saturating_add(1);
        cell.at_ms = now_ms;
        let rate = (1.0 / f64::from(cell.samples)).max(SLOWEST);
        let off = value - cell.mean;
        cell.mean += rate * off;
        cell.deviation += rate * (off.abs() - cell.deviation);
    }

    /// Returns true if more clean samples at this load would improve the expectation.
    pub(super) fn needs_samples(&self, signal: Signal, load: i64, now_ms: u64) -> bool {
        self.0.get(&(signal, step(load))).is_none_or(|cell| {
            cell.samples < TRUSTED || now_ms.saturating_sub(cell.at_ms) > STALE_MS
        })
    }

    /// Returns the expectation at `load`, borrowed from the nearest load if this one is new.
    pub(super) fn expect(&self, signal: Signal, load: i64) -> Option<Expected> {
        let rule = signal.margin();
        let load_step = step(load);
        let cells = self.0.range((signal, 0)..=(signal, u32::MAX));
        let nearest = cells
            .map(|((_, step), cell)| (step.abs_diff(load_step), *step < load_step, cell))
            .filter(|(far, ..)| *far <= BORROW)
            .min_by_key(|(far, below, _)| (*far, *below));
        let (mean, deviation, doubt, seen) = match nearest {
            Some((far, _, cell)) => {
                let inexperience =
                    f64::from(TRUSTED.saturating_sub(cell.samples)) / f64::from(TRUSTED);
                (
                    cell.mean,
                    cell.deviation,
                    inexperience + f64::from(far),
                    true,
                )
            }
            None => (rule.prior?, 0.0, 0.0, false),
        };
        let margin = rule.floor.max(rule.factor * mean).max(4.0 * deviation) * (1.0 + doubt);
        // A share cannot exceed one: if the expectation is high already, half of the rest counts.
        let limit = match signal.is_share() {
            true => ((1.0 - mean) / 2.0).max(0.001),
            false => f64::INFINITY,
        };
        Some(Expected {
            mean,
            margin: margin.max(1e-9).min(limit),
            seen,
        })
    }
}
