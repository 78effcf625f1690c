//! Collectors: one file per source, each of which samples open kernel files once per tick.

pub mod batch;
pub mod cold;
pub mod cpi;
pub mod ctx;
pub mod errors;
pub mod host_app;
pub mod machine;
pub mod needs;
pub mod node;
pub mod numa;
pub mod on_tick;
pub mod pod;
pub mod pressure;
pub mod psi;
pub mod resctrl;
pub mod slow;
pub mod storage;
pub mod table;
pub mod tracked_pods;
pub mod work;

/// Turns a growing counter into a rate.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rate {
    last: Option<(u64, u64)>,
}

impl Rate {
    /// Returns the growth of `counter` per unit of `now` since the previous sample; `None` for the first
    /// sample, if no time passed, and if the counter shrank (the cgroup was recreated).
    pub fn update(&mut self, now: u64, counter: u64) -> Option<f64> {
        let last = self.last.replace((now, counter));
        let (then, before) = last?;
        if now <= then || counter < before {
            return None;
        }
        Some((counter - before) as f64 / (now - then) as f64)
    }

    /// Drops the previous sample.
    pub fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_growing_samples() {
        let mut rate = Rate::default();
        assert_eq!(rate.update(10, 100), None);
        assert_eq!(rate.update(20, 150), Some(5.0));
        assert_eq!(rate.update(20, 160), None);
        assert_eq!(rate.update(30, 10), None, "the counter was reset");
        assert_eq!(rate.update(40, 30), Some(2.0));
    }
}
