//! Sentences about the figures of a scenario: the effects of koord compared with plain Kubernetes and
//! Koordinator's policy.

use super::result::{Phase, PhaseResult, ScenarioResult, Verdict};
use super::verdict::ScenarioOutcome;

/// Formats a latency: `0.57 ms`, `12 ms`.
#[must_use]
pub fn latency(us: f64) -> String {
    let ms = us / 1000.0;
    let digits = match ms {
        ms if ms < 0.0995 => 3,
        ms if ms < 9.95 => 2,
        ms if ms < 99.5 => 1,
        _ => 0,
    };
    format!("{ms:.digits$}\u{a0}ms")
}

fn phase(phases: &[PhaseResult], name: Phase) -> Option<&PhaseResult> {
    phases
        .iter()
        .find(|result| result.name == name && result.counted > 0)
}

/// Returns the batch work of one phase over that of another; `None` if the other has none.
fn over(one: &PhaseResult, other: &PhaseResult) -> Option<f64> {
    let work = other.be.ops_per_s;
    (work > 0.0).then(|| one.be.ops_per_s / work)
}

/// Formats a multiple in three digits or so; `≈` where the windows overlap.
fn times(value: f64, against: Verdict) -> String {
    let about = match against {
        Verdict::Indistinguishable => "≈ ",
        _ => "",
    };
    match value {
        value if value < 9.95 => format!("{about}{value:.2}"),
        value if value < 99.5 => format!("{about}{value:.1}"),
        value => format!("{about}{value:.0}"),
    }
}

/// Returns the outcome of a scenario in one line of plain words.
#[must_use]
pub fn headline(scenario: &ScenarioResult) -> String {
    let name = &scenario.name;
    let reason = scenario.verdict.reason.as_deref().unwrap_or("no reason");
    let phases = &scenario.phases;
    let find = |name| phase(phases, name);
    let figures = (
        find(Phase::Alone),
        find(Phase::BestEffort),
        find(Phase::Managed),
    );
    let (outcome, (Some(alone), Some(plain), Some(managed))) = (scenario.verdict.outcome, figures)
    else {
        return match scenario.verdict.outcome {
            ScenarioOutcome::NotMeasured => format!("{name}: not measured: {reason}."),
            _ => format!("{name}: NOT CONCLUSIVE: {reason}."),
        };
    };
    let over_alone = |result: &PhaseResult| {
        let value = result.ls.p99_us / alone.ls.p99_us.max(f64::MIN_POSITIVE);
        format!("{} times", times(value, result.p99_against(alone)))
    };
    let work = over(managed, plain).map(|value| {
        let value = times(value, managed.work_against(plain));
        format!(", with {value} times the batch work of plain Kubernetes")
    });
    let work = work.unwrap_or_default();
    let (bad, ours) = (over_alone(plain), over_alone(managed));
    match outcome {
        ScenarioOutcome::Won => format!(
            "{name}: won. Plain Kubernetes makes the service's p99 {bad} as long as alone; with koord it is \
             {ours} as long{work}."
        ),
        ScenarioOutcome::Harmless => format!(
            "{name}: harmless. The service's p99 is {bad} as long as alone under plain Kubernetes, {ours} \
             with koord{work}."
        ),
        ScenarioOutcome::Lost => format!(
            "{name}: LOST. The service's p99 is {bad} as long as alone under plain Kubernetes, and koord does \
             not make it clearly less: {ours}{work}."
        ),
        ScenarioOutcome::NotConclusive => format!("{name}: NOT CONCLUSIVE: {reason}."),
        ScenarioOutcome::NotMeasured => format!("{name}: not measured: {reason}."),
    }
}

/// Returns the sentences, most important first; none without the phases they compare.
#[must_use]
pub fn sentences(phases: &[PhaseResult]) -> Vec<String> {
    let mut sentences = Vec::new();
    let (Some(alone), Some(managed)) = (phase(phases, Phase::Alone), phase(phases, Phase::Managed))
    else {
        return sentences;
    };
    let p99 = |result: &PhaseResult| latency(result.ls.p99_us);
    if let Some(plain) = phase(phases, Phase::BestEffort) {
        sentences.push(protection(alone, plain, managed));
        if let Some(times) = over(managed, plain) {
            sentences.push(match managed.work_against(plain) {
                Verdict::Lower => format!(
                    "It costs {:.0} % of the batch work that plain Kubernetes gets done.",
                    (1.0 - times) * 100.0
                ),
                Verdict::Higher => "Batch work is more than under plain Kubernetes.".to_owned(),
                Verdict::Indistinguishable => {
                    "Batch work is indistinguishable from plain Kubernetes'.".to_owned()
                }
                Verdict::Single => format!(
                    "Batch work is {times:.2} of plain Kubernetes' (too few clean runs to tell)."
                ),
            });
        }
    }
    if let Some(fixed) = phase(phases, Phase::Suppressed)
        && let Some(times) = over(managed, fixed)
    {
        let latency = match managed.p99_against(fixed) {
            Verdict::Lower => "at a lower p99",
            Verdict::Higher => "at a higher p99",
            Verdict::Indistinguishable => "at an indistinguishable p99",
            Verdict::Single => "with too few clean runs to compare p99",
        };
        sentences.push(format!(
            "Against Koordinator's fixed cap: {times:.2} times the batch work {latency} ({} and {}).",
            p99(managed),
            p99(fixed)
        ));
    }
    let below = |result: &&PhaseResult| result.p99_against(alone) == Verdict::Lower;
    let below: Vec<&str> = phases
        .iter()
        .filter(below)
        .map(|result| result.name.name())
        .collect();
    if !below.is_empty() {
        sentences.push(format!(
            "Why p99 is below alone ({}) was not isolated.",
            below.join(", ")
        ));
    }
    sentences
}

/// Returns the sentence on how koord protects the service compared with plain Kubernetes.
fn protection(alone: &PhaseResult, plain: &PhaseResult, managed: &PhaseResult) -> String {
    let p99 = |result: &PhaseResult| latency(result.ls.p99_us);
    let figures = format!(
        "p99 alone {}, plain Kubernetes {}, koord {}",
        p99(alone),
        p99(plain),
        p99(managed)
    );
    match (plain.p99_against(alone), managed.p99_against(plain)) {
        (_, Verdict::Lower) => {
            let some_harm = managed.p99_against(alone) == Verdict::Higher;
            format!(
                "koord protects the service where plain Kubernetes does not: {figures}{}.",
                if some_harm { "; some harm is left" } else { "" }
            )
        }
        (_, Verdict::Higher) => {
            format!("koord does worse than plain Kubernetes here: {figures}.")
        }
        (Verdict::Higher, Verdict::Indistinguishable) => format!(
            "Batch work hurts the service, and koord does not distinguishably help: {figures}."
        ),
        (_, Verdict::Indistinguishable) => format!(
            "koord adds no protection that shows here: it and plain Kubernetes are indistinguishable, and \
             plain Kubernetes does no harm beyond noise ({figures})."
        ),
        (_, Verdict::Single) => {
            format!("Too few clean runs to tell: {figures}.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::{noisy, phase_of};
    use super::super::verdict::tests::{judged, scenario_of};
    use super::*;

    #[test]
    fn latencies_have_three_digits_at_every_magnitude() {
        let shown: Vec<String> = [57.04, 573.0, 5_730.0, 57_300.0, 573_000.0]
            .map(latency)
            .map(|text| text.replace('\u{a0}', " "))
            .into();
        assert_eq!(
            shown,
            ["0.057 ms", "0.57 ms", "5.73 ms", "57.3 ms", "573 ms"]
        );
    }

    #[test]
    fn help_is_claimed_only_where_no_runs_overlap() {
        let first = |plain: &[f64], managed: &[f64]| {
            let phases = [
                phase_of(Phase::Alone, &[500.0, 520.0]),
                phase_of(Phase::BestEffort, plain),
                phase_of(Phase::Managed, managed),
            ];
            sentences(&phases).remove(0)
        };
        let says = |plain: &[f64], managed: &[f64], text: &str| {
            let sentence = first(plain, managed);
            assert!(sentence.contains(text), "{sentence}");
        };
        says(&[2000.0, 2600.0], &[510.0, 560.0], "koord protects");
        says(&[2000.0, 2600.0], &[600.0, 660.0], "some harm is left");
        says(&[510.0, 560.0], &[505.0, 550.0], "adds no protection");
        says(
            &[900.0, 2600.0],
            &[600.0, 1000.0],
            "not distinguishably help",
        );
        says(&[510.0, 560.0], &[800.0, 900.0], "does worse");
        says(&[510.0], &[800.0], "Too few clean runs");
    }

    #[test]
    fn headline_describes_each_outcome() {
        let says = |plain: &[f64], managed: &[f64], text: &str| {
            let line = headline(&scenario_of("x", &[500.0, 520.0], plain, managed));
            assert!(line.starts_with(text), "{line}");
        };
        says(
            &[3000.0, 3400.0],
            &[430.0, 440.0],
            "x: won. Plain Kubernetes makes the service's p99 6.27 times as long as alone; with koord it is 0.85 \
             times as long, with ≈ 1.00 times the batch work",
        );
        says(
            &[505.0, 515.0],
            &[505.0, 525.0],
            "x: harmless. The service's p99 is ≈ 1.00 times",
        );
        says(&[905.0, 915.0], &[905.0, 925.0], "x: LOST.");
        says(&[905.0, 915.0], &[905.0], "x: NOT CONCLUSIVE: koord");
        let mut missing = ScenarioResult::default();
        missing.verdict.reason = Some("needs root".to_owned());
        assert_eq!(headline(&missing), ": not measured: needs root.");
    }

    #[test]
    fn headline_of_noise_has_no_ratio() {
        let mut scenario = scenario_of("x", &[500.0, 520.0], &[505.0, 525.0], &[510.0, 520.0]);
        scenario.phases[1] = noisy(Phase::BestEffort, &[562_000.0, 562_000.0]);
        let line = headline(&judged(scenario));
        assert_eq!(
            line,
            "x: NOT CONCLUSIVE: every window of plain Kubernetes was noisy (noise)."
        );
    }

    #[test]
    fn no_work_is_no_divisor() {
        let mut idle = phase_of(Phase::BestEffort, &[500.0, 520.0]);
        idle.be.ops_per_s = 0.0;
        let phases = [
            phase_of(Phase::Alone, &[500.0, 520.0]),
            idle,
            phase_of(Phase::Managed, &[500.0, 520.0]),
        ];
        let joined = sentences(&phases).join(" ");
        assert!(
            !joined.contains("inf") && !joined.contains("Batch work"),
            "{joined}"
        );
    }

    #[test]
    fn p99_below_alone_is_mentioned() {
        let phases = [
            phase_of(Phase::Alone, &[500.0, 520.0]),
            phase_of(Phase::Managed, &[400.0, 420.0]),
        ];
        let joined = sentences(&phases).join(" ");
        assert!(joined.contains("below alone (managed)"), "{joined}");
    }
}
