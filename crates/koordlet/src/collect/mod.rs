//! Collectors: one file per source, each turning open kernel files into numbers once per tick.

pub mod batch;
pub mod cold;
pub mod cpi;
pub mod follow;
pub mod host_app;
pub mod machine;
pub mod node;
pub mod numa;
pub mod pod;
pub mod pressure;
pub mod psi;
pub mod resctrl;
pub mod slow;
pub mod storage;
pub mod table;
pub mod work;

use std::fmt;

/// Turns a growing counter into a rate.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rate {
    last: Option<(u64, u64)>,
}

impl Rate {
    /// The growth of `counter` per unit of `now` since the sample before; `None` for the first
    /// sample, when no time passed, and when the counter shrank (the group was made anew).
    pub fn update(&mut self, now: u64, counter: u64) -> Option<f64> {
        let last = self.last.replace((now, counter));
        let (then, before) = last?;
        if now <= then || counter < before {
            return None;
        }
        Some((counter - before) as f64 / (now - then) as f64)
    }

    /// Forgets the sample before.
    pub fn reset(&mut self) {
        self.last = None;
    }
}

/// Logs a failure once until it changes or is over.
#[derive(Debug, Default)]
pub struct Complaint(Option<String>);

impl Complaint {
    /// Says `error` unless it was said already.
    pub fn say(&mut self, what: &'static str, error: &dyn fmt::Display) {
        let text = error.to_string();
        if self.0.as_deref() != Some(&text) {
            tracing::warn!(part = what, error = %text, "failed");
            self.0 = Some(text);
        }
    }

    /// What was said last, while it stands.
    #[must_use]
    pub fn standing(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// All is well again.
    pub fn clear(&mut self) {
        self.0 = None;
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
        assert_eq!(rate.update(30, 10), None, "the counter began anew");
        assert_eq!(rate.update(40, 30), Some(2.0));
    }
}
