//! What spoils a window: others on the machine, the hypervisor, late wake-ups.

use super::sampler::Window;
use crate::load;

/// When the hypervisor took more than this part: from here on p99 shows the host, not the service.
const STEAL: f64 = 0.005;
/// When the generator woke later than this, in microseconds (99th percentile).
const SEND_LAG_US: f64 = 150.0;

/// Waits for a third of a second in which the machine wakes sleepers in time, `patience` times at most. What
/// disturbs it (a compiler, other virtual machines on the host) comes and goes in bursts.
pub async fn wait_for_quiet(patience: usize) {
    for _ in 0..patience {
        let probe = tokio::task::spawn_blocking(|| load::wake_lag_us(80));
        if probe.await.is_ok_and(|lag| lag < SEND_LAG_US) {
            return;
        }
    }
}

/// Why noise spoilt a window, if it did. `strangers` is the part of the machine that others may use.
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
