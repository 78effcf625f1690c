//! LeverClaim: holds a lever for one service and releases it step by step.
//!
//! A claim starts with an experiment that helped. The improvement may have been chance: so after a first hold
//! the lever is released, and only harm that returns *confirms* the claim. From then on a graded lever is
//! raised by small steps to just below the level that harmed, and a switch stays on; both are tried again
//! after a hold time that doubles with each try that harms.

use super::Config;
use super::signal::{Lever, Signal};

/// Step by which a graded level rises, and its distance below a level that harmed, in percent.
const STEP: i64 = 5;

/// State of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimState {
    /// The lever is held.
    HeldLever,
    /// A graded lever is tried at a level that harmed before.
    Trying,
    /// The lever is released, to see whether harm returns.
    Released,
}

/// Result of one step of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// No change.
    None,
    /// The level changed without a finding.
    Moved,
    /// The release harmed: batch work is the cause.
    Confirmed,
    /// The level harmed again.
    Hurt,
    /// Harm did not return and never has: the improvement was chance.
    Chance,
    /// Harm does not return any more.
    Over,
}

/// Hold of one lever for one service.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeverClaim {
    pub(super) signal: Signal,
    pub(super) lever: Lever,
    /// Level in percent; 100 restricts nothing.
    pub(super) level: i64,
    /// Lowest allowed level, in percent.
    pub(super) floor: i64,
    /// Level that is known to help, in percent.
    good: i64,
    /// Lowest level that harmed recently, in percent.
    pub(super) bad: Option<i64>,
    pub(super) confirmed: bool,
    pub(super) hold_ms: u64,
    state: ClaimState,
    since_ms: u64,
    pub(super) began_ms: u64,
    pub(super) origin: ClaimOrigin,
}

/// Result of the experiment that started a claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimOrigin {
    /// Harm before the experiment, absolute and in multiples of the margin.
    pub(super) before: f64,
    pub(super) excess: f64,
    /// Time that the experiment took from the budget for costly experiments, in milliseconds.
    pub(super) paid_ms: u64,
}

impl LeverClaim {
    /// Creates a claim after an experiment that helped. `floor` is the lowest allowed level and `level` the
    /// first level of a graded lever, both in percent; `is_known` is true if this lever was confirmed for this
    /// service before; `origin` is the result of the experiment.
    pub(super) fn new(
        (signal, lever): (Signal, Lever),
        (floor, level): (i64, i64),
        is_known: bool,
        origin: ClaimOrigin,
        config: &Config,
        clock_ms: u64,
    ) -> Self {
        let level = match lever.is_graded() {
            true => level.clamp(floor, 100),
            false => 0,
        };
        Self {
            signal,
            lever,
            level,
            floor,
            good: level,
            bad: None,
            confirmed: is_known,
            hold_ms: first_hold(lever, is_known, config),
            state: ClaimState::HeldLever,
            since_ms: clock_ms,
            began_ms: clock_ms,
            origin,
        }
    }

    /// Returns true if the lever is released now.
    pub(super) fn is_released(&self) -> bool {
        self.state == ClaimState::Released
    }

    /// Returns the time until the next try in milliseconds, by the clock of batch work.
    pub(super) fn next_try_in(&self, clock_ms: u64) -> u64 {
        let passed = clock_ms.saturating_sub(self.since_ms);
        self.hold_ms.saturating_sub(passed)
    }

    /// Advances the claim. `hurt` is true if the service showed harm at the current level.
    pub(super) fn step(&mut self, clock_ms: u64, hurt: bool, config: &Config) -> Change {
        let passed = clock_ms.saturating_sub(self.since_ms);
        match self.state {
            ClaimState::Released if hurt => {
                let first = !self.confirmed;
                self.record_harm(100, clock_ms, config);
                if first {
                    Change::Confirmed
                } else {
                    Change::Hurt
                }
            }
            ClaimState::Released if passed >= config.watch_ms => match self.confirmed {
                true => Change::Over,
                false => Change::Chance,
            },
            ClaimState::Released => Change::None,
            ClaimState::HeldLever | ClaimState::Trying if !self.lever.is_graded() => {
                if passed < self.hold_ms {
                    return Change::None;
                }
                self.move_to(ClaimState::Released, 100, clock_ms);
                Change::Moved
            }
            ClaimState::HeldLever | ClaimState::Trying => {
                self.graded(clock_ms, passed, hurt, config)
            }
        }
    }

    /// Advances a lever with levels: lowers the level after harm, raises it after quiet time.
    fn graded(&mut self, clock_ms: u64, passed: u64, hurt: bool, config: &Config) -> Change {
        if hurt {
            // At the lowest level nothing more can be done: the harm is independent of the level.
            if self.level <= self.floor {
                return Change::None;
            }
            let first = !self.confirmed;
            self.record_harm(self.level, clock_ms, config);
            return if first {
                Change::Confirmed
            } else {
                Change::Hurt
            };
        }
        if !self.confirmed {
            if passed < self.hold_ms {
                return Change::None;
            }
            self.move_to(ClaimState::Released, 100, clock_ms);
            return Change::Moved;
        }
        if passed < config.raise_ms {
            return Change::None;
        }
        self.good = self.good.max(self.level);
        let limit = match (self.state, self.bad) {
            (ClaimState::Trying, _) | (_, None) => {
                // The level that harmed does not any more.
                (self.bad, self.state) = (None, ClaimState::HeldLever);
                100
            }
            (_, Some(bad)) => (bad - STEP).max(self.floor),
        };
        if self.level < limit {
            let next = (self.level + STEP).min(limit);
            let state = if next >= 100 {
                ClaimState::Released
            } else {
                ClaimState::HeldLever
            };
            self.move_to(state, next, clock_ms);
            return Change::Moved;
        }
        if passed < self.hold_ms {
            return Change::None;
        }
        let next = self.bad.unwrap_or(100).min(self.level + 2 * STEP);
        let state = if next >= 100 {
            ClaimState::Released
        } else {
            ClaimState::Trying
        };
        self.move_to(state, next, clock_ms);
        Change::Moved
    }

    /// Handles harm at `level`. A try is reverted and the next one comes later; without an earlier finding
    /// the level falls by a quarter.
    fn record_harm(&mut self, level: i64, clock_ms: u64, config: &Config) {
        let first = !self.confirmed;
        self.confirmed = true;
        let longest = longest_hold(self.lever, config);
        let tried = self.state != ClaimState::HeldLever;
        if first {
            self.hold_ms = first_hold(self.lever, true, config);
        } else if tried {
            self.hold_ms = self.hold_ms.saturating_mul(2).min(longest);
        }
        let next = if !self.lever.is_graded() {
            0
        } else if tried {
            self.good.min(level - STEP).max(self.floor)
        } else if self.good < level {
            // Harm at the level that used to help shows that it does not any more.
            std::mem::replace(&mut self.good, self.floor).max(self.floor)
        } else {
            self.good = self.floor;
            (level * 3 / 4).max(self.floor)
        };
        self.bad = self.lever.is_graded().then_some(level);
        self.move_to(ClaimState::HeldLever, next, clock_ms);
    }

    fn move_to(&mut self, state: ClaimState, level: i64, clock_ms: u64) {
        (self.state, self.level, self.since_ms) = (state, level, clock_ms);
    }
}

fn first_hold(lever: Lever, confirmed: bool, config: &Config) -> u64 {
    match (lever.is_costly(), confirmed) {
        (false, _) => config.free_hold_ms,
        (true, false) => config.first_hold_ms,
        (true, true) => config.hold_ms,
    }
}

fn longest_hold(lever: Lever, config: &Config) -> u64 {
    match lever.is_costly() {
        true => config.max_hold_ms,
        false => config.max_hold_ms.saturating_mul(2),
    }
}
