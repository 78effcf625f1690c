//! A token bucket, to limit the rate of outgoing requests.

use std::time::Duration;

/// A bucket that is full with `burst` tokens and gets one back per `interval`, up to `burst`.
///
/// Time is a parameter: a duration since any fixed moment. When it goes backwards, existing tokens stay, and
/// the next ones come as if the clock had stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// Time at which the bucket is full again.
    full_at: Duration,
    latest: Duration,
}

impl TokenBucket {
    /// Maximum interval, about 30 years: `burst` of them still fit a duration.
    const MAX_INTERVAL: Duration = Duration::from_secs(1 << 30);

    /// Returns a full bucket.
    #[must_use]
    pub fn new(interval: Duration, burst: u32) -> Self {
        Self {
            interval: interval.min(Self::MAX_INTERVAL),
            burst,
            full_at: Duration::ZERO,
            latest: Duration::ZERO,
        }
    }

    /// Returns the time from `now` until there is a token: zero when there is one.
    #[must_use]
    pub fn wait(&self, now: Duration) -> Duration {
        let now = now.max(self.latest);
        let missing = self.full_at.saturating_sub(now);
        missing
            .saturating_add(self.interval)
            .saturating_sub(self.interval.saturating_mul(self.burst))
    }

    /// Takes a token; false when there is none.
    pub fn take(&mut self, now: Duration) -> bool {
        self.follow(now);
        let has_token = self.wait(now).is_zero();
        if has_token {
            self.reserve(now);
        }
        has_token
    }

    /// Takes a token, a future one when there is none, and returns the time from `now` until it is there.
    pub fn reserve(&mut self, now: Duration) -> Duration {
        self.follow(now);
        let wait = self.wait(now);
        self.full_at = self.full_at.max(self.latest).saturating_add(self.interval);
        wait
    }

    /// Sets the latest time to `now`. For an earlier time the missing tokens stay missing.
    fn follow(&mut self, now: Duration) {
        if now < self.latest {
            let missing = self.full_at.saturating_sub(self.latest);
            self.full_at = now.saturating_add(missing);
        }
        self.latest = now;
    }

    /// Returns a token to the bucket, unless that is full.
    pub fn give_back(&mut self) {
        self.full_at = self.full_at.saturating_sub(self.interval);
    }

    /// Changes the interval from `now` on; existing tokens stay.
    pub fn set_interval(&mut self, interval: Duration, now: Duration) {
        let interval = interval.min(Self::MAX_INTERVAL);
        self.follow(now);
        if interval == self.interval {
            return;
        }
        let missing = self.full_at.saturating_sub(self.latest);
        let missing = if self.interval.is_zero() {
            Duration::ZERO
        } else {
            let tokens = missing.div_duration_f64(self.interval);
            Duration::try_from_secs_f64(interval.as_secs_f64() * tokens).unwrap_or(Duration::MAX)
        };
        self.full_at = self.latest.saturating_add(missing);
        self.interval = interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn measure_waits(bucket: &mut TokenBucket, now: Duration, count: usize) -> Vec<u128> {
        let wait = |_| bucket.reserve(now).as_millis();
        (0..count).map(wait).collect()
    }

    #[test]
    fn bucket_refills_evenly_up_to_its_burst() {
        let mut bucket = TokenBucket::new(ms(100), 2);
        let start = ms(1000);
        assert_eq!([0; 3].map(|_| bucket.take(start)), [true, true, false]);
        assert!(!bucket.take(start + ms(99)));
        assert_eq!(bucket.wait(start + ms(99)), ms(1));
        assert!(bucket.take(start + ms(100)) && !bucket.take(start + ms(110)));
        let later = start + ms(10_000);
        assert_eq!([0; 3].map(|_| bucket.take(later)), [true, true, false]);
        let none = TokenBucket::new(ms(100), 0);
        assert_eq!(none.wait(later), ms(100));
        assert_eq!(TokenBucket::new(Duration::ZERO, 1).wait(later), ms(0));
    }

    #[test]
    fn reservations_wait_for_future_tokens() {
        let mut bucket = TokenBucket::new(ms(200), 2);
        assert_eq!(measure_waits(&mut bucket, ms(0), 4), [0, 0, 200, 400]);
        // The next token is reserved already.
        assert_eq!(measure_waits(&mut bucket, ms(200), 2), [400, 600]);
        assert_eq!(measure_waits(&mut bucket, ms(60_000), 3), [0, 0, 200]);
    }

    #[test]
    fn clock_that_goes_back_changes_no_tokens() {
        let mut bucket = TokenBucket::new(ms(100), 1);
        assert!(bucket.take(ms(10_000)));
        assert!(!bucket.take(ms(500)) && !bucket.take(ms(599)));
        assert!(
            bucket.take(ms(600)),
            "the next token comes after an interval"
        );
    }

    #[test]
    fn token_given_back_can_be_taken_again() {
        let mut bucket = TokenBucket::new(ms(100), 1);
        bucket.give_back();
        assert!(bucket.take(ms(1000)));
        bucket.give_back();
        assert!(bucket.take(ms(1000)) && !bucket.take(ms(1000)));
    }

    #[test]
    fn changed_interval_keeps_the_tokens() {
        let mut bucket = TokenBucket::new(ms(100), 4);
        assert_eq!(measure_waits(&mut bucket, ms(0), 3), [0, 0, 0]);
        bucket.set_interval(ms(1000), ms(50));
        // One token and a half are there.
        assert_eq!(measure_waits(&mut bucket, ms(50), 2), [0, 500]);
        let mut never = TokenBucket::new(Duration::MAX, u32::MAX);
        never.set_interval(Duration::MAX, ms(1));
        assert!(never.take(ms(1)));
        never.set_interval(Duration::ZERO, ms(2));
        never.set_interval(ms(1), ms(3));
        assert!(never.take(ms(3)));
    }
}
