//! Scoring of devices and nodes for a request.

use super::units::{DeviceResource, PerMinor, Units};

/// Scorer by the share that would be allocated, 0 to 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scorer {
    /// True if a larger allocated share scores higher, false if a smaller one does.
    pub most: bool,
    /// Resources that are scored, with their weights.
    pub weights: Vec<(DeviceResource, i64)>,
}

impl Scorer {
    /// Returns the score of a device with capacity `total`, of which `free` is free.
    #[must_use]
    pub fn device(&self, request: &Units, total: &Units, free: &Units) -> i64 {
        let (mut score, mut weights) = (0_i64, 0_i64);
        for (resource, weight) in &self.weights {
            let capacity = total.get(*resource);
            if capacity == 0 {
                continue;
            }
            let free = free.get(*resource);
            let requested = if capacity >= free {
                let used = capacity.saturating_sub(free);
                used.saturating_add(request.get(*resource))
            } else {
                capacity
            };
            let share = if self.most {
                percent(requested.min(capacity), capacity)
            } else if requested > capacity {
                0
            } else {
                percent(capacity - requested, capacity)
            };
            score = score.saturating_add(share.saturating_mul(*weight));
            weights = weights.saturating_add(*weight);
        }
        if weights == 0 { 0 } else { score / weights }
    }

    /// Returns the score of several devices, added up.
    #[must_use]
    pub fn devices(&self, request: &Units, total: &PerMinor, free: &PerMinor) -> i64 {
        self.device(request, &total.sum(), &free.sum())
    }
}

fn percent(part: i64, whole: i64) -> i64 {
    i64::try_from(i128::from(part) * 100 / i128::from(whole)).unwrap_or(0)
}
