//! Verdict on a scenario: whether its neighbor harms the service under plain Kubernetes, and whether koord
//! prevents that harm.

use super::result::{DemoSetup, Phase, PhaseResult, ScenarioResult, Suite, Verdict};
use super::table::span;
use serde::{Deserialize, Serialize};

/// Least clean windows of each phase in a comparison: a single one has no range.
pub const ENOUGH: usize = 2;
/// Multiple up to which a p99 counts as the same although no windows overlap.
const SAME: f64 = 1.15;
/// Ratio of two p99 medians above which the comparison is open although the ranges of their windows overlap.
const APART: f64 = 1.5;

/// Outcome of a scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScenarioOutcome {
    /// Plain Kubernetes lets the neighbor harm the service clearly; with koord the harm is clearly less.
    Won,
    /// The neighbor does no clear harm, with or without koord.
    Harmless,
    /// The neighbor does clear harm that koord does not clearly lessen, or koord does harm of its own.
    Lost,
    /// The result is open because of noise, or too few windows.
    NotConclusive,
    /// A phase is missing.
    #[default]
    NotMeasured,
}

/// The outcome of a scenario, and the reason where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScenarioVerdict {
    /// The outcome.
    pub outcome: ScenarioOutcome,
    /// Reason why it is not conclusive, or not measured.
    pub reason: Option<String>,
}

/// The outcome of all scenarios.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overall {
    /// Every scenario is won or harmless.
    Conclusive,
    /// At least one scenario is lost.
    Lost,
    /// At least one scenario is open.
    NotConclusive,
    /// At least one scenario was not measured.
    #[default]
    NotMeasured,
}

/// The verdict over all scenarios, and the number of scenarios with each outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuiteVerdict {
    /// The verdict.
    pub overall: Overall,
    /// Scenarios that koord won.
    pub won: usize,
    /// Scenarios without harm.
    pub harmless: usize,
    /// Scenarios that koord lost.
    pub lost: usize,
    /// Scenarios that are open.
    pub not_conclusive: usize,
    /// Scenarios that were not measured to their end.
    pub not_measured: usize,
}

impl Overall {
    /// Returns the exit code of the demo.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Overall::Conclusive => 0,
            Overall::NotMeasured => 3,
            Overall::NotConclusive => 4,
            Overall::Lost => 5,
        }
    }
}

/// Returns the verdict on a scenario. Without enforced cgroups the phases differ by name only.
#[must_use]
pub fn judge_scenario(scenario: &ScenarioResult, setup: &DemoSetup) -> ScenarioVerdict {
    let open = |outcome, reason: String| ScenarioVerdict {
        outcome,
        reason: Some(reason),
    };
    if let Some(why) = &scenario.why {
        return open(ScenarioOutcome::NotMeasured, why.clone());
    }
    let find = |phase| {
        let of_phase = |result: &&PhaseResult| result.name == phase && !result.repeats.is_empty();
        scenario.phases.iter().find(of_phase)
    };
    let (Some(alone), Some(plain), Some(managed)) = (
        find(Phase::Alone),
        find(Phase::BestEffort),
        find(Phase::Managed),
    ) else {
        return open(
            ScenarioOutcome::NotMeasured,
            "a phase is missing".to_owned(),
        );
    };
    if !setup.enforced {
        let why = setup.unenforced.as_deref();
        let why = why.unwrap_or("control groups were not enforced");
        return open(
            ScenarioOutcome::NotConclusive,
            format!("nothing was protected: {why}"),
        );
    }
    match compare(alone, plain, managed) {
        Ok(outcome) => ScenarioVerdict {
            outcome,
            reason: None,
        },
        Err(reason) => open(ScenarioOutcome::NotConclusive, reason),
    }
}

/// Returns the outcome of three phases, or the reason why they leave it open.
fn compare(
    alone: &PhaseResult,
    plain: &PhaseResult,
    managed: &PhaseResult,
) -> Result<ScenarioOutcome, String> {
    let weak: Vec<String> = [alone, plain, managed]
        .into_iter()
        .filter_map(weakness)
        .collect();
    if !weak.is_empty() {
        return Err(weak.join("; "));
    }
    let overlap = |a: &PhaseResult, b: &PhaseResult| {
        format!(
            "the windows of {} ({} ms) and {} ({} ms) overlap, although their medians are far apart",
            a.name.label(),
            span(a.ls.p99_range_us),
            b.name.label(),
            span(b.ls.p99_range_us)
        )
    };
    if clearly_above(plain, alone) {
        return if clearly_above(plain, managed) {
            Ok(ScenarioOutcome::Won)
        } else if overlap_far_apart(plain, managed) {
            Err(overlap(plain, managed))
        } else {
            Ok(ScenarioOutcome::Lost)
        };
    }
    if clearly_above(managed, alone) && clearly_above(managed, plain) {
        return Ok(ScenarioOutcome::Lost);
    }
    for result in [plain, managed] {
        if overlap_far_apart(result, alone) {
            return Err(overlap(alone, result));
        }
    }
    Ok(ScenarioOutcome::Harmless)
}

/// Returns the reason why a phase cannot be compared, if so.
fn weakness(result: &PhaseResult) -> Option<String> {
    let label = result.name.label();
    let all = result.repeats.len();
    let noise = result
        .repeats
        .iter()
        .rev()
        .find_map(|run| run.rejected.as_deref());
    match (result.counted, noise) {
        (0, noise) => Some(format!(
            "every window of {label} was noisy ({})",
            noise.unwrap_or("none was measured")
        )),
        (counted, Some(noise)) if counted < ENOUGH => Some(format!(
            "only {counted} of {all} windows of {label} was clean ({noise})"
        )),
        (counted, None) if counted < ENOUGH => {
            Some(format!("{label} was measured in one window only"))
        }
        _ if result.ls.p99_us <= 0.0 => Some(format!("no request of {label} was answered")),
        _ => None,
    }
}

/// Returns true if every window of `a` is above every one of `b`, and the medians are apart.
fn clearly_above(a: &PhaseResult, b: &PhaseResult) -> bool {
    a.p99_against(b) == Verdict::Higher && a.ls.p99_us >= SAME * b.ls.p99_us
}

fn overlap_far_apart(a: &PhaseResult, b: &PhaseResult) -> bool {
    let (a_us, b_us) = (a.ls.p99_us, b.ls.p99_us);
    a.p99_against(b) == Verdict::Indistinguishable && (a_us > APART * b_us || b_us > APART * a_us)
}

/// Returns the verdict on all scenarios.
#[must_use]
pub fn judge_suite(scenarios: &[ScenarioResult]) -> SuiteVerdict {
    let count = |outcome| {
        let has = |scenario: &&ScenarioResult| scenario.verdict.outcome == outcome;
        scenarios.iter().filter(has).count()
    };
    let mut verdict = SuiteVerdict {
        overall: Overall::Conclusive,
        won: count(ScenarioOutcome::Won),
        harmless: count(ScenarioOutcome::Harmless),
        lost: count(ScenarioOutcome::Lost),
        not_conclusive: count(ScenarioOutcome::NotConclusive),
        not_measured: count(ScenarioOutcome::NotMeasured),
    };
    verdict.overall = match verdict {
        _ if verdict.not_measured > 0 || scenarios.is_empty() => Overall::NotMeasured,
        _ if verdict.lost > 0 => Overall::Lost,
        _ if verdict.not_conclusive > 0 => Overall::NotConclusive,
        _ => Overall::Conclusive,
    };
    verdict
}

/// Returns the first line of the output if some scenarios are open or were not measured.
#[must_use]
pub fn first_line(suite: &Suite) -> Option<String> {
    let of = |outcome| {
        let of_outcome = suite
            .scenarios
            .iter()
            .filter(|scenario| scenario.verdict.outcome == outcome);
        let reasons: Vec<String> = of_outcome
            .map(|scenario| {
                let reason = scenario.verdict.reason.as_deref().unwrap_or("no reason");
                format!("{}: {reason}", scenario.name)
            })
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    };
    let open = of(ScenarioOutcome::NotConclusive).map(|why| format!("NOT CONCLUSIVE: {why}."));
    let missing = of(ScenarioOutcome::NotMeasured).map(|why| format!("NOT MEASURED: {why}."));
    let parts: Vec<String> = [open, missing].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Returns the last line: how many neighbors have which outcome.
#[must_use]
pub fn last_line(suite: &Suite) -> String {
    let names = |outcome| {
        let of_outcome = suite
            .scenarios
            .iter()
            .filter(|scenario| scenario.verdict.outcome == outcome);
        let names: Vec<&str> = of_outcome.map(|scenario| scenario.name.as_str()).collect();
        match names.is_empty() {
            true => "0".to_owned(),
            false => format!("{} ({})", names.len(), names.join(", ")),
        }
    };
    let all = suite.scenarios.len();
    let mut line = format!(
        "Of {all} neighbor{}, koord won {}; harmless: {}; lost: {}",
        if all == 1 { "" } else { "s" },
        names(ScenarioOutcome::Won),
        names(ScenarioOutcome::Harmless),
        names(ScenarioOutcome::Lost)
    );
    for (outcome, title) in [
        (ScenarioOutcome::NotConclusive, "not conclusive"),
        (ScenarioOutcome::NotMeasured, "not measured"),
    ] {
        let names = names(outcome);
        if names != "0" {
            line += &format!("; {title}: {names}");
        }
    }
    line + "."
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::result::tests::{noisy, phase_of};
    use super::*;

    /// Returns a scenario with these windows of `alone`, plain Kubernetes and koord.
    pub(in super::super) fn scenario_of(
        name: &str,
        alone: &[f64],
        plain: &[f64],
        managed: &[f64],
    ) -> ScenarioResult {
        let phases = vec![
            phase_of(Phase::Alone, alone),
            phase_of(Phase::BestEffort, plain),
            phase_of(Phase::Managed, managed),
        ];
        judged(ScenarioResult {
            name: name.to_owned(),
            title: format!("<{name}>"),
            ran: true,
            ratios: super::super::result::Ratios::from_phases(&phases, &DemoSetup::default()),
            phases,
            ..ScenarioResult::default()
        })
    }

    pub(in super::super) fn judged(mut scenario: ScenarioResult) -> ScenarioResult {
        scenario.verdict = judge_scenario(&scenario, &enforced());
        scenario
    }

    pub(in super::super) fn enforced() -> DemoSetup {
        DemoSetup {
            enforced: true,
            psi: true,
            ..DemoSetup::default()
        }
    }

    #[test]
    fn outcomes_follow_from_the_windows() {
        use ScenarioOutcome::{Harmless, Lost, NotConclusive, Won};
        for (alone, plain, managed, outcome) in [
            ([500.0, 520.0], [3000.0, 3300.0], [450.0, 480.0], Won),
            ([500.0, 520.0], [3000.0, 3300.0], [700.0, 750.0], Won),
            ([500.0, 520.0], [510.0, 530.0], [505.0, 540.0], Harmless),
            // Apart, but too close to count as harm.
            ([500.0, 510.0], [530.0, 540.0], [515.0, 525.0], Harmless),
            ([500.0, 520.0], [900.0, 950.0], [880.0, 930.0], Lost),
            ([500.0, 520.0], [900.0, 950.0], [1900.0, 1950.0], Lost),
            ([500.0, 520.0], [510.0, 530.0], [900.0, 950.0], Lost),
            // One window of koord as bad as plain Kubernetes.
            (
                [500.0, 520.0],
                [3000.0, 3300.0],
                [500.0, 3100.0],
                NotConclusive,
            ),
            (
                [500.0, 9000.0],
                [700.0, 800.0],
                [700.0, 800.0],
                NotConclusive,
            ),
        ] {
            let scenario = scenario_of("x", &alone, &plain, &managed);
            let got = &scenario.verdict;
            assert_eq!(got.outcome, outcome, "{alone:?} {plain:?} {managed:?}");
            assert_eq!(got.reason.is_some(), outcome == NotConclusive, "{got:?}");
        }
    }

    /// Numbers that look random and are the same in every run.
    fn numbers() -> impl FnMut(usize) -> usize {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap_or(0)
        }
    }

    #[test]
    #[allow(clippy::cast_precision_loss, reason = "made-up latencies")]
    fn a_verdict_needs_two_clean_windows_of_each_phase() {
        let mut number = numbers();
        for _ in 0..3000 {
            let mut phases = Vec::new();
            for phase in [Phase::Alone, Phase::BestEffort, Phase::Managed] {
                let base = [400, 500, 3000][number(3)];
                let runs: Vec<f64> = (0..=number(4))
                    .map(|_| (base + number(200)) as f64)
                    .collect();
                let mut result = phase_of(phase, &runs);
                for run in &mut result.repeats {
                    if number(3) == 0 {
                        run.rejected = Some("the hypervisor took 3 %".to_owned());
                    }
                }
                phases.push(PhaseResult::from_runs(phase, result.repeats));
            }
            let scenario = judged(ScenarioResult {
                ran: true,
                phases,
                ..ScenarioResult::default()
            });
            let [alone, plain, managed] = scenario.phases.as_slice() else {
                panic!("three phases")
            };
            let outcome = scenario.verdict.outcome;
            let clean = |result: &PhaseResult| {
                let clean = result.repeats.iter().filter(|run| run.rejected.is_none());
                clean.map(|run| run.ls.p99_us).collect::<Vec<_>>()
            };
            let all = [alone, plain, managed].map(clean);
            if all.iter().any(|runs| runs.len() < 2) {
                assert_eq!(outcome, ScenarioOutcome::NotConclusive);
            } else if outcome == ScenarioOutcome::Won {
                let least = all[1].iter().copied().fold(f64::INFINITY, f64::min);
                assert!(all[0].iter().chain(&all[2]).all(|run| *run < least));
            }
        }
    }

    #[test]
    fn noise_in_every_window_is_named_first() {
        let phases = vec![
            phase_of(Phase::Alone, &[1400.0, 1500.0]),
            noisy(Phase::BestEffort, &[562_000.0, 563_000.0]),
            phase_of(Phase::Managed, &[500.0, 560.0]),
        ];
        let scenario = judged(ScenarioResult {
            name: "memory".to_owned(),
            ran: true,
            phases,
            ..ScenarioResult::default()
        });
        let mut suite = Suite {
            scenarios: vec![
                scenario_of("a", &[500.0, 510.0], &[900.0, 990.0], &[505.0, 515.0]),
                scenario,
            ],
            ..Suite::default()
        };
        suite.verdict = judge_suite(&suite.scenarios);
        assert_eq!(
            first_line(&suite).as_deref(),
            Some("NOT CONCLUSIVE: memory: every window of plain Kubernetes was noisy (noise).")
        );
        assert_eq!(
            last_line(&suite),
            "Of 2 neighbors, koord won 1 (a); harmless: 0; lost: 0; not conclusive: 1 (memory)."
        );
        assert_eq!(suite.verdict.overall.exit_code(), 4);
    }

    #[test]
    fn exit_codes_tell_the_outcomes_apart() {
        let won = || scenario_of("w", &[500.0, 510.0], &[900.0, 990.0], &[505.0, 515.0]);
        let lost = || scenario_of("l", &[500.0, 510.0], &[900.0, 990.0], &[905.0, 985.0]);
        let open = || scenario_of("o", &[500.0], &[900.0, 990.0], &[905.0, 985.0]);
        let missing = || ScenarioResult::default();
        let code = |scenarios: &[ScenarioResult]| judge_suite(scenarios).overall.exit_code();
        assert_eq!(code(&[won(), won()]), 0);
        assert_eq!(code(&[won(), open()]), 4);
        assert_eq!(code(&[lost(), open()]), 5);
        assert_eq!(code(&[lost(), missing(), open()]), 3);
        assert_eq!(code(&[]), 3);
    }

    #[test]
    fn phases_without_cgroups_prove_nothing() {
        let scenario = scenario_of("w", &[500.0, 510.0], &[900.0, 990.0], &[505.0, 515.0]);
        let verdict = judge_scenario(&scenario, &DemoSetup::default());
        assert_eq!(verdict.outcome, ScenarioOutcome::NotConclusive);
    }
}
