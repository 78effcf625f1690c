//! Backoff of writes that the kernel refuses.

use koord_host::{HostError, Root, Target};

/// Delay before a refused value is written again, when the error is not one that passes soon.
const FIRST_DELAY_MS: u64 = 30_000;
/// Delay for errors that often pass within a round, such as `EBUSY`.
const FIRST_TRANSIENT_DELAY_MS: u64 = 10_000;
/// Upper bound of the delay, which doubles with each refusal.
const MAX_DELAY_MS: u64 = 600_000;
/// Number of refusals in a row after which another value for the same file waits, too.
const FREE_VALUES: u32 = 5;

/// State of a file that refused its last write.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The refused value.
    value: String,
    /// The error as it is reported, without the value.
    pub(super) cause: String,
    /// State of the file at the time of the refusal; a change ends the wait.
    state: Option<FileState>,
    /// Number of refusals since the last success.
    count: u32,
    /// Time of the monotonic clock before which the value is not written.
    until_ms: u64,
    /// Last time at which a value for the file was requested.
    pub(super) wanted_ms: u64,
}

/// Identity and content of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileState {
    inode: Option<u64>,
    content: Option<String>,
}

impl FileState {
    pub(super) fn read(root: &Root, target: &Target) -> Self {
        Self {
            inode: root.target_inode(target),
            content: root.read_target(target).ok().flatten(),
        }
    }
}

impl Refusal {
    /// Returns the state after `target` refused `value`; `last` is the state before.
    pub(super) fn new(
        last: Option<Self>,
        root: &Root,
        target: &Target,
        value: &str,
        error: &HostError,
        now_ms: u64,
    ) -> Self {
        let count = last.map_or(0, |last| last.count).saturating_add(1);
        let first = if error.is_transient() {
            FIRST_TRANSIENT_DELAY_MS
        } else {
            FIRST_DELAY_MS
        };
        let doubled = first.saturating_mul(1 << (count - 1).min(16));
        Self {
            value: value.to_owned(),
            cause: cause(error),
            // The content of a file that takes actions changes by itself.
            state: target.is_stable().then(|| FileState::read(root, target)),
            count,
            until_ms: now_ms.saturating_add(doubled.min(MAX_DELAY_MS)),
            wanted_ms: now_ms,
        }
    }

    /// Returns true if writing `value` has to wait. A file that changed, and at first another value,
    /// is tried at once.
    pub(super) fn holds_back(
        &mut self,
        root: &Root,
        target: &Target,
        value: &str,
        now_ms: u64,
    ) -> bool {
        self.wanted_ms = now_ms;
        let waits = now_ms < self.until_ms && (self.value == value || self.count >= FREE_VALUES);
        if !waits {
            return false;
        }
        let state = self.state.as_ref();
        if state.is_some_and(|state| *state != FileState::read(root, target)) {
            self.count = 0;
            return false;
        }
        true
    }

    /// Ends the wait, because a change may have removed the cause of the refusal.
    pub(super) fn expire(&mut self) {
        (self.count, self.until_ms) = (0, 0);
    }

    /// Returns the seconds from `now_ms` until the value is written again.
    pub(super) fn remaining_seconds(&self, now_ms: u64) -> u64 {
        self.until_ms.saturating_sub(now_ms) / 1000
    }
}

/// Returns the error without the value, so that a file whose value changes is reported once.
fn cause(error: &HostError) -> String {
    match error {
        HostError::Write { source, .. } | HostError::Io { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}
