//! Signals that this node has.

use koord_model::guard::{Readings, Signal};
use rustc_hash::FxHashMap;

/// Signals that were ever read of the current services and of recently removed ones. A service that pauses
/// does not remove its signals: its next reading is judged as the last one was.
#[derive(Debug, Default)]
pub(super) struct SignalCoverage {
    /// Time in milliseconds at which a service was last present, and one bit per signal, by pod number.
    services: FxHashMap<u64, (u64, u32)>,
}

impl SignalCoverage {
    /// Adds the readings of the current services, and removes services that were absent for more than
    /// `forget_ms`.
    pub(super) fn update(
        &mut self,
        now_ms: u64,
        forget_ms: u64,
        services: impl Iterator<Item = (u64, Readings)>,
    ) {
        for (id, readings) in services {
            let has = |signal: &Signal| readings.get(*signal).is_some();
            let bits = Signal::ALL.into_iter().filter(has).map(bit);
            let (last_ms, bits_seen) = self.services.entry(id).or_default();
            (*last_ms, *bits_seen) = (now_ms, bits.fold(*bits_seen, |all, bit| all | bit));
        }
        self.services
            .retain(|_, (last_ms, _)| now_ms.saturating_sub(*last_ms) <= forget_ms);
    }

    /// Returns the signals that at least one service has.
    pub(super) fn signals(&self) -> impl Iterator<Item = Signal> + '_ {
        let all = self.services.values().fold(0, |all, (_, bits)| all | bits);
        let is_present = move |signal: &Signal| all & bit(*signal) != 0;
        Signal::ALL.into_iter().filter(is_present)
    }

    /// Returns whether a signal would show harm through memory bandwidth and caches.
    pub(super) fn sees_bandwidth(&self) -> bool {
        self.signals().any(Signal::sees_bandwidth)
    }
}

fn bit(signal: Signal) -> u32 {
    1 << signal as u32
}
