//! Which signals this node has.

use koord_model::guard::{Readings, Signal};
use rustc_hash::FxHashMap;

/// What was ever read of the services that are there, and of those that were lately. One that pauses
/// does not make the node blind: its next reading is judged as the last one was.
#[derive(Debug, Default)]
pub(super) struct SignalCoverage {
    /// By the pod's number: when it was there last, and one bit per signal.
    services: FxHashMap<u64, (u64, u32)>,
}

impl SignalCoverage {
    /// Takes in the services that are there; those that were not for more than `forget_ms` are
    /// forgotten.
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

    /// Returns the signals.
    pub(super) fn signals(&self) -> impl Iterator<Item = Signal> + '_ {
        let all = self.services.values().fold(0, |all, (_, bits)| all | bits);
        let is_present = move |signal: &Signal| all & bit(*signal) != 0;
        Signal::ALL.into_iter().filter(is_present)
    }

    /// Returns whether harm through memory bandwidth and caches would be seen.
    pub(super) fn sees_bandwidth(&self) -> bool {
        self.signals().any(Signal::sees_bandwidth)
    }
}

fn bit(signal: Signal) -> u32 {
    1 << signal as u32
}
