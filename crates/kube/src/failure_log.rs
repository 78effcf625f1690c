//! Rate limit of log lines about a lasting failure: one when it begins or changes, then one per minute.

use std::time::Duration;
use tokio::time::Instant;

/// Decides which of many equal failures is logged.
#[derive(Debug, Default)]
pub struct FailureLog(Option<(Instant, String)>);

impl FailureLog {
    /// Time between two log lines about one failure.
    pub const INTERVAL: Duration = Duration::from_secs(60);

    /// Records a failure with the text `error`. Returns whether to log it: it is the first one, differs from
    /// the one before, or the last log line is a minute old.
    pub fn record(&mut self, error: &str) -> bool {
        let now = Instant::now();
        if let Some((at, text)) = &self.0
            && text == error
            && now.duration_since(*at) < Self::INTERVAL
        {
            return false;
        }
        self.0 = Some((now, error.to_owned()));
        true
    }

    /// Records that the operation succeeded; returns whether it had failed before.
    pub fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }
}

/// Returns the text of `error` followed by that of its causes. A cause that the text already contains is left
/// out, and so is the name that kube puts in front of the error of a transport.
#[must_use]
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    if let Some(inner) = text.strip_prefix("ServiceError: ") {
        text = inner.to_owned();
    }
    let mut next = error.source();
    while let Some(cause) = next {
        let quoted = cause.to_string();
        if !text.contains(&quoted) {
            text = format!("{text}: {quoted}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_named_once_without_the_name_of_a_wrapper() {
        let error = std::io::Error::other("refused");
        let error = kube::Error::Service(Box::new(error));
        assert_eq!(causes(&error), "refused");
    }

    #[tokio::test(start_paused = true)]
    async fn failure_that_lasts_is_logged_once_a_minute() {
        let mut log = FailureLog::default();
        assert!(!log.clear());
        let mut lines = 0;
        for _ in 0..120 {
            lines += u32::from(log.record("refused"));
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        assert_eq!(lines, 4, "in four minutes");
        assert!(log.record("timed out"), "another failure");
        assert!(log.clear() && log.record("timed out"), "a new failure");
    }
}
