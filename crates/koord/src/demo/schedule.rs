//! The order in which the phases of a scenario are measured, within a time budget. This module measures
//! nothing itself: the same windows give the same order.

use super::result::Phase;
use super::verdict::ENOUGH;
use std::collections::{BTreeMap, VecDeque};

/// Windows per visit under a time budget.
const WINDOWS: usize = 2;
/// Number of clean windows of each phase that a time budget aims at: as long as one has fewer, it is visited again.
const WANTED: usize = 3;
/// Attempts at one window if repeats are counted.
const ATTEMPTS: usize = 3;
/// Time to start and end batch pods, in seconds.
const PODS_S: f64 = 3.5;
/// Overhead of every visit and of every window beyond their load, in seconds.
const VISIT_S: f64 = 1.0;
const WINDOW_S: f64 = 0.4;

/// A phase that is set up, measured in some windows, and cleared away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Visit {
    /// The phase.
    pub phase: Phase,
    /// The round, from 1.
    pub round: usize,
    /// Clean windows it is for.
    pub windows: usize,
    /// Load before the first window that is not counted, in seconds; set when the visit begins.
    pub warmup_s: f64,
}

impl Visit {
    fn new(phase: Phase, round: usize, windows: usize) -> Self {
        Self {
            phase,
            round,
            windows,
            warmup_s: 0.0,
        }
    }
}

/// Extent of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A window of every phase per repeat, without a time limit.
    Repeats(usize),
    /// Short warm-ups and as many windows as fit into a time budget.
    Budget,
}

/// Order of the visits, and the rule by which a noisy window is measured again.
#[derive(Debug)]
pub struct Schedule {
    extent: Extent,
    window_s: f64,
    reads_file: bool,
    planned: VecDeque<Visit>,
    /// Clean windows of each phase.
    clean: BTreeMap<Phase, usize>,
    visited: Vec<Phase>,
    rounds: usize,
}

impl Schedule {
    /// Plans the visits of `phases`, with windows of `window_s` seconds. `reads_file`: the service has a file
    /// that batch work evicts from the page cache.
    #[must_use]
    pub fn new(phases: &[Phase], extent: Extent, window_s: f64, reads_file: bool) -> Self {
        let planned: VecDeque<Visit> = match extent {
            Extent::Repeats(repeats) => (1..=repeats)
                .flat_map(|round| {
                    let visit = move |phase| Visit::new(phase, round, 1);
                    order(phases, round).into_iter().map(visit)
                })
                .collect(),
            Extent::Budget => two_rounds(phases),
        };
        Self {
            extent,
            window_s,
            reads_file,
            rounds: planned.back().map_or(0, |visit| visit.round),
            planned,
            clean: phases.iter().map(|&phase| (phase, 0)).collect(),
            visited: Vec::new(),
        }
    }

    /// Returns the next visit; `None` when enough is measured, or nothing more fits into `left_s` seconds.
    pub fn next(&mut self, left_s: f64) -> Option<Visit> {
        let mut visit = loop {
            let Some(mut visit) = self.planned.pop_front() else {
                break self.plan_extra_visit(left_s)?;
            };
            if self.cost(visit) <= left_s || self.extent != Extent::Budget {
                break visit;
            }
            // The windows that a verdict needs are measured as far as time allows.
            let needed = self.clean(visit.phase) < ENOUGH;
            visit.windows = if needed { ENOUGH } else { 0 };
            if needed && self.cost(visit) <= left_s {
                break visit;
            }
        };
        visit.warmup_s = self.warmup_s(visit.phase);
        self.visited.push(visit.phase);
        Some(visit)
    }

    /// Plans one more visit of the phase with the fewest clean windows. Returns `None` if all phases have [`WANTED`], or
    /// if the visit takes longer than `left_s` seconds.
    fn plan_extra_visit(&mut self, left_s: f64) -> Option<Visit> {
        if self.extent != Extent::Budget {
            return None;
        }
        let (&phase, &clean) = self.clean.iter().min_by_key(|(_, clean)| **clean)?;
        let missing = WANTED.checked_sub(clean).filter(|missing| *missing > 0)?;
        let visit = Visit::new(phase, self.rounds + 1, missing);
        if self.cost(visit) > left_s {
            return None;
        }
        self.rounds += 1;
        Some(visit)
    }

    /// Counts a window of `visit`. `attempts` windows of the visit were measured, `left_s` seconds are left.
    /// Returns true if the visit continues with another window.
    pub fn measured(&mut self, visit: Visit, clean: bool, attempts: usize, left_s: f64) -> bool {
        if clean {
            *self.clean.entry(visit.phase).or_default() += 1;
        }
        match self.extent {
            Extent::Repeats(_) => !clean && attempts < ATTEMPTS,
            Extent::Budget => {
                let window = self.window_s + WINDOW_S;
                attempts < visit.windows
                    || (self.visit_has_noise(visit, attempts)
                        && self.first_visits_s() + window <= left_s)
            }
        }
    }

    /// Returns true if a visit may continue although its windows are measured: up to as many again, while
    /// clean windows of the phase are missing.
    fn visit_has_noise(&self, visit: Visit, attempts: usize) -> bool {
        attempts < 2 * visit.windows && self.clean(visit.phase) < visit.windows.min(WANTED)
    }

    /// Seconds of the planned visits of phases that were not measured yet.
    fn first_visits_s(&self) -> f64 {
        let first = |visit: &&Visit| !self.visited.contains(&visit.phase);
        let mut first: Vec<Visit> = self.planned.iter().filter(first).copied().collect();
        first.dedup_by_key(|visit| visit.phase);
        first.into_iter().map(|visit| self.cost(visit)).sum()
    }

    /// Returns the number of clean windows that the planned visits measure.
    #[must_use]
    pub fn planned_windows(&self) -> usize {
        self.planned.iter().map(|visit| visit.windows).sum()
    }

    fn clean(&self, phase: Phase) -> usize {
        self.clean.get(&phase).copied().unwrap_or(0)
    }

    fn warmup_s(&self, phase: Phase) -> f64 {
        let first = !self.visited.contains(&phase);
        match self.extent {
            Extent::Repeats(_) => warmup(phase, first, self.reads_file),
            Extent::Budget => brief_warmup(phase, first, self.reads_file),
        }
    }

    fn cost(&self, visit: Visit) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a count of windows")]
        let windows = visit.windows as f64 * (self.window_s + WINDOW_S);
        overhead_s(visit.phase) + self.warmup_s(visit.phase) + windows
    }
}

fn overhead_s(phase: Phase) -> f64 {
    match phase {
        Phase::Alone => VISIT_S,
        _ => VISIT_S + PODS_S,
    }
}

/// Returns the load before a window that is not counted, in seconds: until the phase is in its steady state.
/// Koordinator raises its cap by a tenth of the machine per second. Our guard starts at the threshold where
/// it cannot see memory bandwidth, and proves a cause before it acts: some seconds per lever. It keeps its
/// findings until the phase comes again. The service is not judged while it starts, and has run for a while
/// before batch work comes, as services do: `first` is set if the phase is new.
fn warmup(phase: Phase, first: bool, reads_file: bool) -> f64 {
    match (phase, first) {
        (Phase::Managed, true) => 30.0,
        (Phase::Managed, false) => 12.0,
        (Phase::Alone, true) => 15.0,
        // Memory fills, and data that batch work evicted from the page cache is read again.
        _ if reads_file => 6.0,
        (Phase::Alone, false) => 1.0,
        (Phase::BestEffort | Phase::Unmanaged, _) => 2.0,
        (Phase::Suppressed, _) => 4.0,
    }
}

/// Returns the warm-up under a time budget, in seconds. It is shorter than [`warmup`]: the pressure
/// guard may still experiment during the measured windows.
fn brief_warmup(phase: Phase, first: bool, reads_file: bool) -> f64 {
    match (phase, first) {
        (Phase::Managed, true) => 8.0,
        (Phase::Managed, false) => 5.0,
        _ if reads_file => 5.0,
        (Phase::Alone, true) => 5.0,
        (Phase::Alone, false) => 1.0,
        (Phase::BestEffort | Phase::Unmanaged, _) => 2.0,
        (Phase::Suppressed, _) => 4.0,
    }
}

/// Returns the phases in the order of a repeat: `alone` comes first; the others take turns, so that a drift
/// of the machine does not always hit the same phase.
fn order(phases: &[Phase], repeat: usize) -> Vec<Phase> {
    let (first, rest) = phases.split_at(phases.len().min(1));
    let mut rest = rest.to_vec();
    let turn = repeat.saturating_sub(1) % rest.len().max(1);
    rest.rotate_left(turn);
    [first, &rest].concat()
}

/// Returns two rounds, the second in reverse: a steady drift of the machine hits all phases alike, and the
/// last phase of the first round continues into the second.
fn two_rounds(phases: &[Phase]) -> VecDeque<Visit> {
    let forth = phases.iter().map(|&phase| Visit::new(phase, 1, WINDOWS));
    let mut visits: VecDeque<Visit> = forth.collect();
    if let Some(last) = visits.back_mut() {
        last.windows = 2 * WINDOWS;
    }
    let back = phases.iter().rev().skip(1);
    visits.extend(back.map(|&phase| Visit::new(phase, 2, WINDOWS)));
    visits
}

#[cfg(test)]
mod tests {
    use super::super::result::PHASES;
    use super::super::scenario;
    use super::*;

    const THREE: [Phase; 3] = [Phase::Alone, Phase::BestEffort, Phase::Managed];

    /// Plays a schedule on a simulated clock. `clean` returns whether window number n is clean. Returns the
    /// clean windows of each phase and the seconds used.
    fn play(
        mut schedule: Schedule,
        budget_s: f64,
        clean: impl Fn(usize) -> bool,
    ) -> (BTreeMap<Phase, usize>, f64) {
        let (mut used, mut number) = (0.0, 0);
        while let Some(visit) = schedule.next(budget_s - used) {
            used += overhead_s(visit.phase) + visit.warmup_s;
            let mut attempts = 0;
            loop {
                used += schedule.window_s + WINDOW_S;
                (attempts, number) = (attempts + 1, number + 1);
                if !schedule.measured(visit, clean(number), attempts, budget_s - used) {
                    break;
                }
            }
            assert!(number < 10_000, "it never ends");
        }
        (schedule.clean, used)
    }

    fn budget(window_s: f64, reads_file: bool) -> Schedule {
        Schedule::new(&THREE, Extent::Budget, window_s, reads_file)
    }

    #[test]
    fn a_quiet_machine_gives_four_windows_of_each_phase() {
        for (reads_file, seconds) in [(false, 60.0), (true, 70.0)] {
            let (clean, used) = play(budget(1.5, reads_file), seconds, |_| true);
            assert_eq!(clean.into_values().collect::<Vec<_>>(), [4, 4, 4]);
            assert!(used <= seconds, "{used}");
        }
    }

    #[test]
    fn no_noise_makes_a_demo_exceed_its_budget() {
        for seconds in [5.0, 20.0, 35.0, 60.0, 200.0] {
            for period in 1..9 {
                for file in [false, true] {
                    let noisy = |number: usize| number.is_multiple_of(period);
                    let (_, used) = play(budget(1.5, file), seconds, |number| !noisy(number));
                    // The windows of a visit that fits are measured to their end.
                    assert!(used <= seconds + 2.0, "{used} of {seconds}, {period}");
                }
            }
        }
    }

    #[test]
    fn noisy_windows_are_measured_again_while_time_is_left() {
        let noisy_once = |number: usize| !(3..=6).contains(&number);
        let (clean, used) = play(budget(1.5, false), 90.0, noisy_once);
        assert!(clean.values().all(|count| *count >= WANTED), "{clean:?}");
        assert!(used <= 90.0, "{used}");
    }

    #[test]
    fn short_budget_is_spent_on_windows_of_the_verdict() {
        let (clean, _) = play(budget(1.5, false), 38.0, |_| true);
        assert!(clean.values().all(|count| *count >= ENOUGH), "{clean:?}");
    }

    #[test]
    fn repeats_measure_every_phase_and_start_alone() {
        for scenario in scenario::ALL {
            for repeat in 1..7 {
                let mut phases = order(scenario.phases, repeat);
                assert_eq!(phases[0], Phase::Alone);
                phases.sort();
                assert_eq!(phases, scenario.phases);
            }
        }
        assert_ne!(order(&PHASES, 1), order(&PHASES, 2));
        let schedule = Schedule::new(&THREE, Extent::Repeats(5), 10.0, false);
        let (clean, _) = play(schedule, 0.0, |_| true);
        assert_eq!(clean.into_values().collect::<Vec<_>>(), [5, 5, 5]);
    }
}
