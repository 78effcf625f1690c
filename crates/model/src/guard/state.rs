//! State of the guard by service, for inspection.

use super::Guard;
use super::experiment::Experiment;
use super::signal::{Lever, Signal};

/// Assessment of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The vote is 0: its alarm is ignored.
    NoVote,
    /// No usable reading exists yet.
    Unknown,
    /// The readings match the expectation.
    Calm,
    /// The newest reading is too high, but there is no alarm yet.
    Uneasy,
    /// An alarm is raised, and its experiment waits for the budget.
    Waits,
    /// An experiment is running.
    Tested,
    /// Levers are held for the service.
    Protected,
    /// An alarm is muted: batch work is not the cause.
    Muted,
}

/// Lever that is held for a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLever {
    /// The lever.
    pub lever: Lever,
    /// Level in percent; 0 is fully applied, 100 released.
    pub level: i64,
    /// Level that harmed, in percent.
    pub hurt_at: Option<i64>,
    /// True if harm returned when the lever was released.
    pub confirmed: bool,
    /// Time until the next try in milliseconds, by the clock of batch work.
    pub tries_in_ms: u64,
}

/// State of one service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceState<K> {
    /// Key of the service.
    pub key: K,
    /// Vote, 0–1.
    pub vote: f64,
    /// Assessment.
    pub verdict: Verdict,
    /// Signal with the largest excess, its reading, its expectation and the margin.
    pub signal: Option<(Signal, f64, f64, f64)>,
    /// True if that expectation was learned without batch work, rather than a default.
    pub learned: bool,
    /// Levers held for the service.
    pub held: Vec<HeldLever>,
    /// End of the muting, in milliseconds of the monotonic clock; `None` if not muted.
    pub muted_until_ms: Option<u64>,
    /// Last experiment.
    pub last: Option<Experiment>,
}

impl<K: Ord + Copy> Guard<K> {
    /// Returns the state of every service with recent samples, in order of keys.
    pub fn services(&self) -> impl Iterator<Item = ServiceState<K>> + '_ {
        let now_ms = self.stepped_ms.unwrap_or_default();
        let clock_ms = self.clock_ms;
        let present = self
            .services
            .iter()
            .filter(move |(_, s)| now_ms.saturating_sub(s.seen_ms) <= self.config.gone_ms);
        present.map(move |(key, service)| {
            let signal = service
                .tracks
                .iter()
                .filter_map(|(signal, track)| {
                    let e = track.expected?;
                    let off = (track.value - e.mean) / e.margin;
                    Some((off, (*signal, track.value, e.mean, e.margin), e.seen))
                })
                .max_by(|a, b| a.0.total_cmp(&b.0));
            let tested = self.test.as_ref().is_some_and(|test| test.key == *key);
            let claims = service.claims.iter().map(|claim| HeldLever {
                lever: claim.lever,
                level: claim.level,
                hurt_at: claim.bad,
                confirmed: claim.confirmed,
                tries_in_ms: claim.next_try_in(clock_ms),
            });
            let muted = service.is_muted(now_ms);
            let verdict = match signal {
                _ if service.vote <= 0.0 => Verdict::NoVote,
                _ if tested => Verdict::Tested,
                _ if !service.claims.is_empty() => Verdict::Protected,
                _ if service.awaits_budget => Verdict::Waits,
                _ if muted => Verdict::Muted,
                None => Verdict::Unknown,
                Some((off, ..)) if off > 1.0 => Verdict::Uneasy,
                Some(_) => Verdict::Calm,
            };
            ServiceState {
                key: *key,
                vote: service.vote,
                verdict,
                signal: signal.map(|(_, reading, _)| reading),
                learned: signal.is_some_and(|(.., seen)| seen),
                held: claims.collect(),
                muted_until_ms: muted.then_some(service.mute.until_ms),
                last: service.last,
            }
        })
    }
}
