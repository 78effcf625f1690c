//! What the guard tells of itself, by service.

use super::Guard;
use super::signal::{Lever, Signal};
use super::test::Experiment;

/// What the guard thinks of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its alarm is not listened to.
    NoVote,
    /// It has no readings that say anything yet.
    Unknown,
    /// As expected.
    Calm,
    /// The newest reading is too high; no alarm yet.
    Uneasy,
    /// It suffers, and an experiment must wait until the budget allows it.
    Waits,
    /// An experiment runs for it.
    Tested,
    /// Levers are held for it.
    Protected,
    /// It suffers, batch work is not the cause.
    Muted,
}

/// A lever that is held for a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The lever.
    pub lever: Lever,
    /// Its level in percent; 0 is fully on, 100 let go.
    pub level: i64,
    /// The level that hurt.
    pub hurt_at: Option<i64>,
    /// Whether harm came back when it was let go.
    pub confirmed: bool,
    /// Milliseconds until the next try, of batch work's time.
    pub tries_in_ms: u64,
}

/// All about one service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceState<K> {
    /// Which.
    pub key: K,
    /// Its vote, 0–1.
    pub vote: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// The signal that is farthest off, its reading, what is expected and the margin.
    pub signal: Option<(Signal, f64, f64, f64)>,
    /// Whether that expectation was learned without batch work.
    pub learned: bool,
    /// What is held for it.
    pub held: Vec<Held>,
    /// Until when its alarm is muted, in milliseconds of the steady clock.
    pub muted_until_ms: Option<u64>,
    /// The last experiment.
    pub last: Option<Experiment>,
}

impl<K: Ord + Copy> Guard<K> {
    /// Every service that was seen lately, in order.
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
            let held = service.claims.iter().map(|claim| Held {
                lever: claim.lever,
                level: claim.level,
                hurt_at: claim.bad,
                confirmed: claim.confirmed,
                tries_in_ms: claim.tries_in(clock_ms),
            });
            let muted = service.is_muted(now_ms);
            let verdict = match signal {
                _ if service.vote <= 0.0 => Verdict::NoVote,
                _ if tested => Verdict::Tested,
                _ if !service.claims.is_empty() => Verdict::Protected,
                _ if service.waits => Verdict::Waits,
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
                held: held.collect(),
                muted_until_ms: muted.then_some(service.mute.until_ms),
                last: service.last,
            }
        })
    }
}
