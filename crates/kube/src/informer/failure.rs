//! Back-off and log lines of failed lists and watches.

use crate::client::{MissingRule, Unreachable};
use crate::failure_log::{FailureLog, causes};
use kube::runtime::watcher;
use std::time::Duration;
use tokio::time::Instant;

/// Reasons why a list or watch failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchFailure {
    /// The server no longer has the resourceVersion of the watch: a new list is required, a delay is not.
    Expired,
    /// The server does not serve the kind.
    Absent,
    /// The permission to list or watch is missing.
    Denied,
    /// The server did not respond; the client logs this, for all kinds at once.
    Unreachable,
    /// The stream of a watch was interrupted, for example because the server stopped.
    Interrupted,
    /// Any other error.
    Other,
}

impl WatchFailure {
    pub(super) fn classify(error: &watcher::Error) -> Self {
        use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
        let (code, lists) = match error {
            InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error)
                if Unreachable::is(error) =>
            {
                return Self::Unreachable;
            }
            InitialListFailed(kube::Error::Api(status)) => (status.code, true),
            WatchStartFailed(kube::Error::Api(status)) | WatchFailed(kube::Error::Api(status)) => {
                (status.code, false)
            }
            WatchError(status) if status.code == 410 => (410, false),
            WatchFailed(
                kube::Error::ReadEvents(_) | kube::Error::HyperError(_) | kube::Error::Service(_),
            ) => return Self::Interrupted,
            _ => return Self::Other,
        };
        match code {
            410 if !lists => Self::Expired,
            404 => Self::Absent,
            403 => Self::Denied,
            _ => Self::Other,
        }
    }
}

/// Delays before a failed watch is retried. A scheduler without a watch places no pods, so it retries more
/// often than client-go, and lists at once if only the resourceVersion has expired.
#[derive(Debug, Default)]
pub(super) struct Retry {
    failures: u32,
    expired: bool,
    last: Option<Instant>,
}

impl Retry {
    pub(super) const FIRST: Duration = Duration::from_millis(500);
    pub(super) const LONGEST: Duration = Duration::from_secs(6);
    /// Longest delay while a permission is missing, which only an administrator can change.
    pub(super) const LONGEST_DENIED: Duration = Duration::from_secs(60);
    /// Time without a failure after which the delays start from the shortest.
    pub(super) const RESET_AFTER: Duration = Duration::from_secs(120);

    pub(super) fn delay(&mut self, failure: WatchFailure) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last > Self::RESET_AFTER) {
            *self = Self::default();
        }
        self.last = Some(now);
        let expired = failure == WatchFailure::Expired;
        let was_expired = std::mem::replace(&mut self.expired, expired);
        if expired && !was_expired {
            self.failures = 0;
            return Duration::ZERO;
        }
        let longest = match failure {
            WatchFailure::Denied => Self::LONGEST_DENIED,
            _ => Self::LONGEST,
        };
        let doubled = Self::FIRST.saturating_mul(1 << self.failures.min(10));
        self.failures += 1;
        doubled.min(longest).mul_f64(1.0 + fastrand::f64() / 3.0)
    }
}

/// Logs the failures of one kind's list and watch.
#[derive(Debug, Default)]
pub(super) struct FailureReporter {
    log: FailureLog,
    is_denied: bool,
    is_interrupted: bool,
}

impl FailureReporter {
    /// Logs a failure of `kind` (`plural.group/version`), unless it was logged before.
    pub(super) fn report(&mut self, kind: &str, failure: WatchFailure, error: &watcher::Error) {
        match failure {
            // The callers that hold the state log these.
            WatchFailure::Absent | WatchFailure::Unreachable => {}
            WatchFailure::Expired => {
                tracing::info!(kind, %error, "watch expired, listing again");
            }
            WatchFailure::Denied => {
                if !std::mem::replace(&mut self.is_denied, true) {
                    let rule = missing_rule(kind);
                    let error = causes(error);
                    tracing::warn!(kind, %rule, error, "access denied: a role lacks a rule; retrying the watch");
                }
            }
            // A server that stops interrupts the watches of all kinds; the next attempt shows whether it is
            // running again.
            WatchFailure::Interrupted if !std::mem::replace(&mut self.is_interrupted, true) => {
                tracing::debug!(kind, %error, "watch interrupted, retrying");
            }
            WatchFailure::Interrupted | WatchFailure::Other => {
                let error = causes(error);
                if self.log.record(&error) {
                    tracing::warn!(kind, error, "watch failed, retrying");
                }
            }
        }
    }

    /// Ends the failure: the server sent an object or a complete list.
    pub(super) fn clear(&mut self, kind: &str) {
        self.log.clear();
        self.is_interrupted = false;
        if std::mem::take(&mut self.is_denied) {
            tracing::info!(kind, "access granted");
        }
    }
}

/// Returns the rule that allows to list and watch `kind` (`plural.group/version`).
fn missing_rule(kind: &str) -> MissingRule {
    let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
    let group = group.rsplit_once('/').map_or(group, |(group, _)| group);
    MissingRule::list_and_watch(group, plural)
}
