//! Rings of samples that are sized by time.

use super::key::Retention;
use std::collections::VecDeque;

/// A number type that a ring can store.
pub(super) trait Value: Copy {
    /// Converts a sample to this type.
    fn narrow(value: f64) -> Self;
    /// Converts the value back to a sample.
    fn wide(self) -> f64;
}

impl Value for f64 {
    fn narrow(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }
}

impl Value for f32 {
    fn narrow(value: f64) -> Self {
        value as f32
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

/// Number of cells by which a ring grows.
const GROWTH: usize = 32;

/// Ring of cells, each with one sample or the mean of several that came close to each other.
#[derive(Debug, Clone)]
pub(super) struct Ring<V> {
    /// Samples closer than this to a cell's start are merged into it.
    merge_ms: u32,
    /// Age at which cells are dropped.
    keep_ms: u32,
    /// Low half of the start time of each cell, oldest first. Cells span `keep_ms` at most, so the distance
    /// to `newest_ms` is exact.
    stamps: VecDeque<u32>,
    values: VecDeque<V>,
    /// Start of the newest cell.
    newest_ms: u64,
    /// Sum and number of the newest cell's samples.
    sum: f64,
    count: u32,
    /// True if a cell was ever dropped.
    dropped: bool,
}

impl<V: Value> Ring<V> {
    pub(super) fn new(merge_ms: u32, keep_ms: u32) -> Self {
        Self {
            merge_ms,
            keep_ms,
            stamps: VecDeque::new(),
            values: VecDeque::new(),
            newest_ms: 0,
            sum: 0.0,
            count: 0,
            dropped: false,
        }
    }

    /// Adds a sample that is not older than the previous one.
    pub(super) fn push(&mut self, now_ms: u64, value: f64) {
        let since = now_ms.saturating_sub(self.newest_ms);
        if let Some(newest) = self.values.back_mut()
            && since < u64::from(self.merge_ms)
        {
            self.sum += value;
            self.count += 1;
            *newest = V::narrow(self.sum / f64::from(self.count));
            return;
        }
        self.expire(now_ms);
        if self.values.len() == self.values.capacity() {
            self.values.reserve_exact(GROWTH);
            self.stamps.reserve_exact(GROWTH);
        }
        self.stamps.push_back(now_ms as u32);
        self.values.push_back(V::narrow(value));
        (self.newest_ms, self.sum, self.count) = (now_ms, value, 1);
    }

    fn expire(&mut self, now_ms: u64) {
        let since = now_ms.saturating_sub(self.newest_ms);
        while let Some(stamp) = self.stamps.front() {
            if since + self.before_newest(*stamp) <= u64::from(self.keep_ms) {
                break;
            }
            self.stamps.pop_front();
            self.values.pop_front();
            self.dropped = true;
        }
    }

    fn before_newest(&self, stamp: u32) -> u64 {
        u64::from((self.newest_ms as u32).wrapping_sub(stamp))
    }

    /// Returns whether no cell of the last `window_ms` was dropped.
    pub(super) fn covers(&self, window_ms: u64) -> bool {
        !self.dropped || window_ms <= u64::from(self.keep_ms)
    }

    /// Returns the cells that start in `now_ms - window_ms ..= now_ms`, newest first.
    pub(super) fn window(
        &self,
        now_ms: u64,
        window_ms: u64,
    ) -> impl Iterator<Item = (f64, u64)> + '_ {
        let from = now_ms.saturating_sub(window_ms);
        self.stamps
            .iter()
            .zip(&self.values)
            .rev()
            .map(|(stamp, value)| {
                let time = self.newest_ms.saturating_sub(self.before_newest(*stamp));
                (value.wide(), time)
            })
            .skip_while(move |(_, time)| *time > now_ms)
            .take_while(move |(_, time)| *time >= from)
    }

    /// Returns all cells, oldest first, with their times.
    pub(super) fn cells(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let time = |stamp: &u32| self.newest_ms.saturating_sub(self.before_newest(*stamp));
        let values = self.values.iter().map(|value| value.wide());
        values.zip(self.stamps.iter().map(time))
    }

    pub(super) fn bytes(&self) -> usize {
        let cells = self.values.capacity() * size_of::<V>();
        size_of::<Self>() + cells + self.stamps.capacity() * size_of::<u32>()
    }
}

/// Samples of a series in the resolution of its retention.
#[derive(Debug, Clone)]
pub(super) struct Series {
    /// The newest sample and its time.
    pub(super) last: (f64, u64),
    rings: Rings,
}

#[derive(Debug, Clone)]
enum Rings {
    Wide(Box<Ring<f64>>),
    Narrow(Box<Ring<f32>>),
    Layered {
        fine: Box<Ring<f32>>,
        coarse: Box<Ring<f32>>,
    },
    /// Holds the newest sample only.
    None,
}

/// Half a minute more than the longest window, so that a late query still covers all of it.
const LONG_MS: u32 = 1_830_000;
const FINE_MS: u32 = 300_000;
const SHORT_MS: u32 = 75_000;
/// A second, less the jitter of a timer.
const FINE_MERGE_MS: u32 = 750;
/// Ten seconds, less the jitter of a timer.
const COARSE_MERGE_MS: u32 = 9_500;

impl Series {
    pub(super) fn new(retention: Retention) -> Self {
        let rings = match retention {
            Retention::Long => Rings::Wide(Box::new(Ring::new(FINE_MERGE_MS, LONG_MS))),
            Retention::Short => Rings::Narrow(Box::new(Ring::new(FINE_MERGE_MS, SHORT_MS))),
            Retention::Layered => Rings::Layered {
                fine: Box::new(Ring::new(FINE_MERGE_MS, FINE_MS)),
                coarse: Box::new(Ring::new(COARSE_MERGE_MS, LONG_MS)),
            },
            Retention::Newest => Rings::None,
        };
        Self {
            last: (0.0, 0),
            rings,
        }
    }

    pub(super) fn push(&mut self, now_ms: u64, value: f64) {
        // Late results of a worker must not reorder samples.
        if !value.is_finite() || now_ms < self.last.1 {
            return;
        }
        self.last = (value, now_ms);
        match &mut self.rings {
            Rings::Wide(ring) => ring.push(now_ms, value),
            Rings::Narrow(ring) => ring.push(now_ms, value),
            Rings::Layered { fine, coarse } => {
                fine.push(now_ms, value);
                coarse.push(now_ms, value);
            }
            Rings::None => {}
        }
    }

    /// Calls `each` with the values and times of a window, newest first.
    pub(super) fn window(&self, now_ms: u64, window_ms: u64, mut each: impl FnMut((f64, u64))) {
        match &self.rings {
            Rings::Wide(ring) => ring.window(now_ms, window_ms).for_each(each),
            Rings::Narrow(ring) => ring.window(now_ms, window_ms).for_each(each),
            Rings::Layered { fine, .. } if fine.covers(window_ms) => {
                fine.window(now_ms, window_ms).for_each(each);
            }
            Rings::Layered { coarse, .. } => coarse.window(now_ms, window_ms).for_each(each),
            Rings::None => {
                let (value, at) = self.last;
                if (now_ms.saturating_sub(window_ms)..=now_ms).contains(&at) {
                    each((value, at));
                }
            }
        }
    }

    /// Returns the samples to save over a restart, oldest first, with times.
    pub(super) fn persistent(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let (wide, coarse) = match &self.rings {
            Rings::Wide(ring) => (Some(ring.cells()), None),
            Rings::Layered { coarse, .. } => (None, Some(coarse.cells())),
            Rings::Narrow(_) | Rings::None => (None, None),
        };
        let coarse = coarse.into_iter().flatten();
        wide.into_iter().flatten().chain(coarse)
    }

    pub(super) fn bytes(&self) -> usize {
        let rings = match &self.rings {
            Rings::Wide(ring) => ring.bytes(),
            Rings::Narrow(ring) => ring.bytes(),
            Rings::Layered { fine, coarse } => fine.bytes() + coarse.bytes(),
            Rings::None => 0,
        };
        size_of::<Self>() + rings
    }
}
