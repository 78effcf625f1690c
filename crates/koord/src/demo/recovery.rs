//! Time until the service's p99 recovers after a step of its load.

use super::result::{Phase, PhaseResult, median};

/// Returns the time from a step of the load until p99 has recovered, in milliseconds: the begin of the first
/// three slots in a row whose p99 is at most `limit_us`. `None` when there are none within the first `slots`
/// of `p99_us`.
#[must_use]
pub fn recovery_ms(p99_us: &[f64], slot_ms: u64, slots: usize, limit_us: f64) -> Option<f64> {
    let peak = &p99_us[..slots.min(p99_us.len())];
    let calm = |three: &[f64]| three.iter().all(|p99| *p99 <= limit_us);
    let back = peak.windows(3).position(calm)?;
    #[allow(clippy::cast_precision_loss, reason = "milliseconds of a cycle")]
    Some((back as u64 * slot_ms) as f64)
}

/// Sets the recovery time of every phase. A p99 has recovered when it is at most 1.5 times that of `alone` in
/// the second half of the peak; one that never does counts as the whole peak. The p99 of a slot is the median
/// over the runs: a slot has a few hundred requests, and one hiccup of the machine in a run means nothing for
/// the phase.
pub fn recoveries(phases: &mut [PhaseResult], slot_ms: u64, peak_ms: u64) {
    let slots = usize::try_from(peak_ms / slot_ms.max(1)).unwrap_or(0);
    let cycle = |result: &PhaseResult| -> Vec<f64> {
        let runs: Vec<&[f64]> = result
            .counted_runs()
            .map(|run| run.ls.cycle_p99_us.as_slice())
            .collect();
        let of_slot = |at| median(runs.iter().filter_map(|p99| p99.get(at).copied()));
        let shortest = runs.iter().map(|p99| p99.len()).min().unwrap_or(0);
        (0..shortest).map(of_slot).collect()
    };
    let Some(alone) = phases
        .iter()
        .find(|result| result.name == Phase::Alone && result.counted > 0)
    else {
        return;
    };
    let alone = cycle(alone);
    let steady = alone.get(slots / 2..slots.min(alone.len()));
    let limit = 1.5 * median(steady.unwrap_or_default().iter().copied());
    for result in phases {
        let p99 = cycle(result);
        if p99.is_empty() || result.counted == 0 {
            continue;
        }
        #[allow(clippy::cast_precision_loss, reason = "milliseconds of a cycle")]
        let never = peak_ms as f64;
        result.recovery_ms = Some(recovery_ms(&p99, slot_ms, slots, limit).unwrap_or(never));
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::run;
    use super::*;

    #[test]
    fn recovery_is_where_three_calm_slots_begin() {
        let p99 = [9.0, 2.0, 9.0, 2.0, 1.0, 2.0, 9.0, 1.0];
        assert_eq!(recovery_ms(&p99, 20, 8, 2.0), Some(60.0));
        assert_eq!(recovery_ms(&p99, 20, 5, 2.0), None);
        assert_eq!(recovery_ms(&[], 20, 5, 2.0), None);
    }

    #[test]
    fn recovery_is_measured_against_the_peak_of_alone() {
        let phase = |name, p99: [f64; 8]| {
            let mut run = run(1.0, 1.0, false);
            run.ls.cycle_p99_us = p99.to_vec();
            PhaseResult::from_runs(name, vec![run])
        };
        let mut phases = [
            phase(Phase::Alone, [5.0, 1.0, 2.0, 2.0, 2.0, 2.0, 0.1, 0.1]),
            phase(Phase::Managed, [9.0, 9.0, 3.0, 3.0, 3.0, 2.0, 0.1, 0.1]),
            phase(Phase::BestEffort, [9.0, 9.0, 9.0, 9.0, 3.0, 2.0, 0.1, 0.1]),
        ];
        recoveries(&mut phases, 10, 60);
        let of = phases.map(|result| result.recovery_ms.unwrap());
        // p99 does not recover within the peak: the result is the whole peak.
        assert_eq!(of, [10.0, 20.0, 60.0]);
    }

    #[test]
    fn a_hiccup_in_one_run_is_no_recovery_time() {
        let runs = |name, slots: [[f64; 6]; 3]| {
            let runs = slots.map(|p99| {
                let mut run = run(1.0, 1.0, false);
                run.ls.cycle_p99_us = p99.to_vec();
                run
            });
            PhaseResult::from_runs(name, runs.to_vec())
        };
        let calm = [3.0, 2.0, 2.0, 2.0, 2.0, 2.0];
        let hiccups = [
            [3.0, 2.0, 9.0, 2.0, 2.0, 2.0],
            [3.0, 9.0, 2.0, 2.0, 2.0, 2.0],
            [9.0, 2.0, 2.0, 2.0, 9.0, 2.0],
        ];
        let mut phases = [runs(Phase::Alone, [calm; 3]), runs(Phase::Managed, hiccups)];
        recoveries(&mut phases, 20, 120);
        assert_eq!(phases[1].recovery_ms, Some(0.0));
    }
}
