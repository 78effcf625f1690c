//! Polling in tests for conditions that send no event.

use std::time::{Duration, Instant};

/// Timeout after which a test fails: a machine that builds and tests is busy.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Returns the delay before the next check, after `waited`: 2 ms at first, and a sixteenth of the wait later, so
/// that checks cost little and a wait ends soon after the condition holds.
fn next_delay(waited: Duration) -> Duration {
    (waited / 16).clamp(Duration::from_millis(2), Duration::from_millis(500))
}

/// Polls until `check` returns a value, for at most [`PATIENCE`].
///
/// For conditions that a test cannot watch: another process, a file of the kernel. Objects of an API server
/// have informers, parts of the program under test have channels and `Notify`.
///
/// # Panics
/// When `what` does not happen in time.
pub async fn eventually<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, check).await
}

/// Polls like [`eventually`], for at most `patience` of tokio's time, which may be paused.
///
/// # Panics
/// When `what` does not happen in time.
pub async fn eventually_within<T>(
    patience: Duration,
    what: &str,
    check: impl AsyncFnMut() -> Option<T>,
) -> T {
    match tokio::time::timeout(patience, poll_until(check)).await {
        Ok(found) => found,
        Err(_) => panic!("waited {patience:?} for {what}"),
    }
}

/// Polls like [`eventually`], without a limit: the caller has a deadline of its own.
pub async fn poll_until<T>(mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let start = tokio::time::Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        tokio::time::sleep(next_delay(start.elapsed())).await;
    }
}

/// Polls like [`eventually`], in tests without a runtime.
///
/// # Panics
/// When `what` does not happen in time.
#[track_caller]
pub fn eventually_blocking<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        let waited = start.elapsed();
        assert!(waited < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::park_timeout(next_delay(waited));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_with_the_wait_within_bounds() {
        let millis = |waited| next_delay(Duration::from_millis(waited)).as_millis();
        assert_eq!([0, 80, 1600, 60_000].map(millis), [2, 5, 100, 500]);
    }

    #[tokio::test(start_paused = true)]
    async fn eventually_returns_what_the_check_finds() {
        let mut looks = 0;
        let third_check = eventually("third look", async || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third_check.await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn eventually_within_panics_when_time_is_up() {
        let patience = Duration::from_secs(20);
        let never = eventually_within(patience, "the end", async || None::<()>);
        let hangs = async || std::future::pending::<Option<()>>().await;
        let hangs = eventually_within(patience, "an answer", hangs);
        let ends = [tokio::spawn(never).await, tokio::spawn(hangs).await];
        let panics = ends.map(|end| end.unwrap_err().into_panic().downcast::<String>());
        let texts = panics.map(|panic| *panic.unwrap());
        assert_eq!(
            texts,
            ["waited 20s for the end", "waited 20s for an answer"]
        );
    }
}
