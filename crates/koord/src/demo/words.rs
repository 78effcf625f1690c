//! What the figures of a scenario say, in words: what koord adds to plain Kubernetes and to
//! Koordinator's policy, and what it does not.

use super::result::{Phase, PhaseResult, Verdict};

/// A latency for people: `0.57 ms`, `12 ms`.
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
        .find(|result| result.name == name && !result.repeats.is_empty())
}

/// Batch work of one phase over that of another, which may have got none done.
fn over(one: &PhaseResult, other: &PhaseResult) -> Option<f64> {
    let work = other.be.ops_per_s;
    (work > 0.0).then(|| one.be.ops_per_s / work)
}

/// The sentences, most important first; none without the phases they compare.
#[must_use]
pub fn of(phases: &[PhaseResult]) -> Vec<String> {
    let mut words = Vec::new();
    let (Some(alone), Some(managed)) = (phase(phases, Phase::Alone), phase(phases, Phase::Managed))
    else {
        return words;
    };
    let p99 = |result: &PhaseResult| latency(result.ls.p99_us);
    if let Some(plain) = phase(phases, Phase::BestEffort) {
        words.push(protection(alone, plain, managed));
        if let Some(times) = over(managed, plain) {
            words.push(match managed.work_against(plain) {
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
        words.push(format!(
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
        words.push(format!(
            "A p99 below alone ({}) is that and no merit of anybody's; why was not isolated.",
            below.join(", ")
        ));
    }
    words
}

/// What koord does for the service that plain Kubernetes does not.
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
            let rest = managed.p99_against(alone) == Verdict::Higher;
            format!(
                "koord protects the service where plain Kubernetes does not: {figures}{}.",
                if rest { "; some harm is left" } else { "" }
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
    use super::super::result::tests::phase_of;
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
            of(&phases).remove(0)
        };
        let says = |plain: &[f64], managed: &[f64], text: &str| {
            let said = first(plain, managed);
            assert!(said.contains(text), "{said}");
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
    fn no_work_is_no_divisor() {
        let mut idle = phase_of(Phase::BestEffort, &[500.0, 520.0]);
        idle.be.ops_per_s = 0.0;
        let phases = [
            phase_of(Phase::Alone, &[500.0, 520.0]),
            idle,
            phase_of(Phase::Managed, &[500.0, 520.0]),
        ];
        let said = of(&phases).join(" ");
        assert!(
            !said.contains("inf") && !said.contains("Batch work"),
            "{said}"
        );
    }

    #[test]
    fn a_p99_below_alone_is_said_to_be_that() {
        let phases = [
            phase_of(Phase::Alone, &[500.0, 520.0]),
            phase_of(Phase::Managed, &[400.0, 420.0]),
        ];
        let said = of(&phases).join(" ");
        assert!(said.contains("below alone (managed)"), "{said}");
    }
}
