//! Polling in tests for conditions that send no event.

use std::time::{Duration, Instant};

/// Timeout after which a test fails: a machine that builds and tests is busy.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Returns the delay before the next check after a wait of `waited`: a sixteenth of it, from 2 ms to 500 ms.
/// Checks then take little CPU, and a wait ends soon after its condition is true.
fn pause(waited: Duration) -> Duration {
    (waited / 16).clamp(Duration::from_millis(2), Duration::from_millis(500))
}

/// Looks again and again until `check` returns a value, for at most [`PATIENCE`].
///
/// It is for what a test cannot watch: another process, a file of the kernel. Objects of an API server have
/// informers, parts of the program under test have channels and `Notify`.
///
/// # Panics
/// When `what` is not there in time.
pub async fn eventually<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, check).await
}

/// Looks again and again as [`eventually`] does, for at most `patience` of tokio's time, which may be paused.
///
/// # Panics
/// When `what` is not there in time.
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

/// Looks again and again as [`eventually`] does, without an end: the caller has a deadline of its own.
pub async fn poll_until<T>(mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let start = tokio::time::Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        tokio::time::sleep(pause(start.elapsed())).await;
    }
}

/// Looks again and again as [`eventually`] does, in tests without a runtime.
///
/// # Panics
/// When `what` is not there in time.
#[track_caller]
pub fn eventually_blocking<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        let waited = start.elapsed();
        assert!(waited < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::park_timeout(pause(waited));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_with_the_wait_within_bounds() {
        let millis = |waited| pause(Duration::from_millis(waited)).as_millis();
        assert_eq!([0, 80, 1600, 60_000].map(millis), [2, 5, 100, 500]);
    }

    #[tokio::test(start_paused = true)]
    async fn eventually_returns_what_the_check_finds() {
        let mut looks = 0;
        let found = eventually("third look", async || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found.await, 3);
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
