//! Status of the pressure guard for the status page.

use super::{GuardPlanner, LeverTargets};
use crate::health::{Guard, GuardExperiment, GuardHeld, GuardService, MissingFeature};
use crate::qos::View;
use koord_model::guard::{Lever, ServiceState, Verdict};

/// Returns the start mode of batch work, with the reason.
pub(super) fn start_level(sees_bandwidth: bool) -> &'static str {
    match sees_bandwidth {
        true => "free: harm through memory bandwidth and caches would be seen",
        false => "at the threshold, raised in steps: no signal shows harm through memory bandwidth",
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NoVote => "no vote",
        Verdict::Unknown => "unknown",
        Verdict::Calm => "calm",
        Verdict::Uneasy => "uneasy",
        Verdict::Waits => "waits",
        Verdict::Tested => "tested",
        Verdict::Protected => "protected",
        Verdict::Muted => "muted",
    }
}

impl GuardPlanner {
    /// Returns the status of the guard.
    pub(super) fn status(
        &self,
        view: &View<'_>,
        levers: &[Lever],
        sees_bandwidth: bool,
        targets: &LeverTargets,
    ) -> Guard {
        let now_ms = view.now.ms();
        let (paused, ran) = self.guard.paused();
        Guard {
            start: start_level(sees_bandwidth).to_owned(),
            signals: self.coverage.signals().map(|s| s.to_string()).collect(),
            levers: levers.iter().map(ToString::to_string).collect(),
            absent: self
                .missing_levers(view)
                .into_iter()
                .map(|(lever, why)| MissingFeature {
                    mechanism: lever.to_string(),
                    consequence: why.to_owned(),
                })
                .collect(),
            cap_percent: targets.cap,
            idle: targets.idle,
            reclaim: targets.reclaim,
            bandwidth_percent: targets.bandwidth,
            batch_cpus: targets.partition.as_ref().map(ToString::to_string),
            batch_seconds: ran / 1000,
            paused_seconds: paused / 1000,
            budget_seconds: (self.guard.budget_ms() / 100.0).round() / 10.0,
            services: self
                .guard
                .services()
                .map(|state| self.service(&state, now_ms))
                .collect(),
        }
    }

    /// Returns the status of a service.
    fn service(&self, state: &ServiceState<u64>, now_ms: u64) -> GuardService {
        let (signal, value, expected, margin) = match state.signal {
            Some((signal, value, expected, margin)) => {
                (signal.to_string(), value, expected, margin)
            }
            None => Default::default(),
        };
        GuardService {
            pod: self.name_of(state.key).to_owned(),
            vote: state.vote,
            verdict: verdict(state.verdict).to_owned(),
            signal,
            value: thousandth(value),
            expected: thousandth(expected),
            margin: thousandth(margin),
            learned: state.learned,
            held: state
                .held
                .iter()
                .map(|lever| GuardHeld {
                    lever: lever.lever.to_string(),
                    level: lever.level,
                    hurt_at: lever.hurt_at,
                    confirmed: lever.confirmed,
                    tries_in_seconds: lever.tries_in_ms / 1000,
                })
                .collect(),
            muted_seconds: state
                .muted_until_ms
                .map(|until| until.saturating_sub(now_ms) / 1000),
            last: state.last.map(|last| GuardExperiment {
                lever: last.lever.to_string(),
                signal: last.signal.to_string(),
                before: thousandth(last.before),
                after: thousandth(last.after),
                helped: last.helped,
                ago_seconds: now_ms.saturating_sub(last.at_ms) / 1000,
            }),
        }
    }
}

fn thousandth(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
