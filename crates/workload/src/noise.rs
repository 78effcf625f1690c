//! Noise that spoils a window: other processes on the machine, the hypervisor, late wake-ups.

use super::sampler::Window;
use crate::load;

/// Maximum fraction of CPU time taken by the hypervisor: above it p99 shows the host, not the service.
const STEAL: f64 = 0.005;
/// Maximum send delay of the generator, in microseconds (99th percentile).
const SEND_LAG_US: f64 = 150.0;

/// Waits for a third of a second in which the machine wakes sleepers in time, `patience` times at most.
/// Disturbances (a compiler, other virtual machines on the host) come and go in bursts.
pub async fn wait_for_quiet(patience: usize) {
    for _ in 0..patience {
        let probe = tokio::task::spawn_blocking(|| load::wake_lag_us(80));
        if probe.await.is_ok_and(|lag| lag < SEND_LAG_US) {
            return;
        }
    }
}

/// Returns why noise makes a window unusable; `None` if it is usable. `strangers` is the fraction of the
/// machine (0–1) that unknown processes may use.
#[must_use]
pub fn rejection(window: &Window, ls: &load::Outcome, strangers: f64) -> Option<String> {
    if window.strangers > strangers {
        return Some(format!(
            "other processes used {:.1} %",
            window.strangers * 100.0
        ));
    }
    if window.steal > STEAL {
        return Some(format!("the hypervisor took {:.1} %", window.steal * 100.0));
    }
    (ls.realtime && ls.send_lag_p99_us > SEND_LAG_US)
        .then(|| format!("the generator woke {:.0} µs late", ls.send_lag_p99_us))
}
