//! Decides when the containers of a pod start, restart and are done. Pure: state and time in, actions out.

use jiff::Timestamp;
use std::time::Duration;

/// Restart policy of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Kubernetes' own names")]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Parses `spec.restartPolicy`; an unknown value is the default, `Always`.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }

    fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// The end of a container's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit code; 128 + signal when it was killed.
    pub exit_code: i32,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, `StartError` ...
    pub reason: String,
    /// Message for the user; may be empty.
    pub message: String,
    /// Start time.
    pub started_at: Timestamp,
    /// End time.
    pub finished_at: Timestamp,
    /// The container's id.
    pub id: String,
}

/// State of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Waiting for its first start or a restart.
    Waiting {
        /// `ContainerCreating`, `PodInitializing`, `CrashLoopBackOff`, `ErrImageNeverPull` ...
        reason: String,
        /// Message for the user; may be empty.
        message: String,
    },
    /// Running.
    Running {
        /// Start time.
        started_at: Timestamp,
        /// The container's id.
        id: String,
    },
    /// Ended; not started again, or not yet.
    Terminated(Ended),
}

/// The record of one container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Name of the container.
    pub name: String,
    /// True for an init container.
    pub init: bool,
    /// True for an init container that keeps running next to the main containers.
    pub sidecar: bool,
    /// Current state.
    pub state: State,
    /// End of the previous run; `None` if the container was not restarted.
    pub last: Option<Ended>,
    /// Number of restarts.
    pub restarts: u32,
    /// Number of consecutive failures, which lengthen the restart delay.
    pub failures: u32,
    /// Number of consecutive failures to get what the container needs, such as its image, and the time of the
    /// next attempt.
    pub dependency_retry: Option<(u32, Timestamp)>,
    /// The runtime's id of its image; `None` until it is resolved.
    pub image_id: Option<String>,
    /// True if the container can never run: its configuration is not supported by this node.
    pub never_starts: bool,
    /// True if its startup probe has succeeded in this run or it has none.
    pub started: bool,
    /// True if its readiness probe succeeds or it has none.
    pub ready: bool,
}

impl Record {
    /// Creates the record of a container that was never started.
    #[must_use]
    pub fn new(name: &str, init: bool, sidecar: bool) -> Self {
        Self {
            name: name.to_owned(),
            init,
            sidecar,
            state: State::Waiting {
                reason: "ContainerCreating".into(),
                message: String::new(),
            },
            last: None,
            restarts: 0,
            failures: 0,
            dependency_retry: None,
            image_id: None,
            never_starts: false,
            started: true,
            ready: true,
        }
    }

    /// Records that something the container needs was not available at `now`.
    pub fn record_missing_dependency(
        &mut self,
        reason: &str,
        message: String,
        backoff: &Backoff,
        now: Timestamp,
    ) {
        let times = self
            .dependency_retry
            .map_or(1, |(times, _)| times.saturating_add(1));
        let pause = backoff.pause(times.saturating_add(1));
        self.dependency_retry = Some((times, after(now, pause)));
        self.state = State::Waiting {
            reason: reason.to_owned(),
            message,
        };
    }

    /// Returns whether the container runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Returns whether the container runs and its startup probe, if it has one, has succeeded.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.is_running() && self.started
    }

    /// Returns whether the container has started and its readiness probe, if it has one, succeeds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_started() && self.ready
    }

    fn ended(&self) -> Option<&Ended> {
        match &self.state {
            State::Terminated(ended) => Some(ended),
            _ => None,
        }
    }

    /// Returns whether the container has ended with exit code 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.ended().is_some_and(|ended| ended.exit_code == 0)
    }
}

/// Restart delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Delay before the second restart in a row; the first is immediate.
    pub base: Duration,
    /// Maximum delay. A run of twice this length resets the delay.
    pub max: Duration,
}

impl Backoff {
    /// Returns the delay before the next start after `failures` consecutive ends: 0, base, 2·base, ... max.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        if failures <= 1 {
            return Duration::ZERO;
        }
        let factor = 1u32.checked_shl(failures - 2).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }

    /// Returns the number of consecutive ends after one more, of a run that took `ran`. A run of at least
    /// twice the maximum delay resets the count.
    #[must_use]
    pub fn count(&self, failures: u32, ran: Duration) -> u32 {
        if ran >= self.max.saturating_mul(2) {
            1
        } else {
            failures.saturating_add(1)
        }
    }
}

/// Actions that are due now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// Containers to start, by index.
    pub start: Vec<usize>,
    /// Containers whose restart delay has not passed: index and delay.
    pub backing_off: Vec<(usize, Duration)>,
    /// Time of the next decision if no event comes before.
    pub wake_at: Option<Timestamp>,
    /// The outcome, once nothing runs and nothing will be started.
    pub outcome: Option<PodOutcome>,
}

/// Final outcome of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the two terminal phases")]
pub enum PodOutcome {
    Succeeded,
    Failed,
}

/// Returns the actions for a pod that is not being stopped. Init containers run one after the other, then the
/// main ones together; sidecars keep running.
#[must_use]
pub fn step(policy: RestartPolicy, records: &[Record], backoff: &Backoff, now: Timestamp) -> Step {
    let mut step = Step::default();
    for (index, record) in records.iter().enumerate().filter(|(_, record)| record.init) {
        if record.sidecar {
            consider(
                &mut step,
                RestartPolicy::Always,
                index,
                record,
                backoff,
                now,
            );
            // The next one waits for its startup probe.
            if record.has_started() {
                continue;
            }
            return step;
        }
        if record.succeeded() {
            continue;
        }
        // An init container that fails is retried unless the pod must never restart.
        let retry = match policy {
            RestartPolicy::Never => RestartPolicy::Never,
            _ => RestartPolicy::OnFailure,
        };
        consider(&mut step, retry, index, record, backoff, now);
        if record
            .ended()
            .is_some_and(|ended| !retry.restarts(ended.exit_code))
        {
            step.outcome = Some(PodOutcome::Failed);
        }
        return step;
    }
    let main = || {
        records
            .iter()
            .enumerate()
            .filter(|(_, record)| !record.init)
    };
    for (index, record) in main() {
        consider(&mut step, policy, index, record, backoff, now);
    }
    let is_final = |record: &Record| {
        record
            .ended()
            .is_some_and(|ended| !policy.restarts(ended.exit_code))
    };
    if main().next().is_some() && main().all(|(_, record)| is_final(record)) {
        let well = main().all(|(_, record)| record.succeeded());
        step.outcome = Some(if well {
            PodOutcome::Succeeded
        } else {
            PodOutcome::Failed
        });
    }
    step
}

/// Adds to `step` the start of a container, or its wait, if it is to run.
fn consider(
    step: &mut Step,
    policy: RestartPolicy,
    index: usize,
    record: &Record,
    backoff: &Backoff,
    now: Timestamp,
) {
    if record.never_starts {
        return;
    }
    let last = match &record.state {
        State::Running { .. } => return,
        State::Terminated(ended) if !policy.restarts(ended.exit_code) => return,
        State::Terminated(ended) => Some(ended),
        State::Waiting { .. } => record.last.as_ref(),
    };
    let (due, pause) = match record.dependency_retry {
        Some((times, due)) => (due, backoff.pause(times.saturating_add(1))),
        None => {
            let pause = backoff.pause(record.failures);
            let due = last.map_or(now, |ended| after(ended.finished_at, pause));
            (due, pause)
        }
    };
    if due <= now {
        step.start.push(index);
    } else {
        step.backing_off.push((index, pause));
        step.wake_at = Some(step.wake_at.map_or(due, |earlier| earlier.min(due)));
    }
}

/// Returns the time `pause` after `time`.
fn after(time: Timestamp, pause: Duration) -> Timestamp {
    let pause = jiff::SignedDuration::try_from(pause).unwrap_or(jiff::SignedDuration::MAX);
    time.saturating_add(pause).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_secs(10),
        max: Duration::from_secs(300),
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000 + second).unwrap()
    }

    fn ended(exit_code: i32, second: i64) -> State {
        State::Terminated(Ended {
            exit_code,
            signal: None,
            reason: String::new(),
            message: String::new(),
            started_at: at(0),
            finished_at: at(second),
            id: "x".into(),
        })
    }

    fn running() -> State {
        State::Running {
            started_at: at(0),
            id: "x".into(),
        }
    }

    fn main_with(state: State, failures: u32) -> Record {
        Record {
            state,
            failures,
            ..Record::new("c", false, false)
        }
    }

    fn init_with(state: State, sidecar: bool) -> Record {
        Record {
            state,
            ..Record::new("i", true, sidecar)
        }
    }

    fn fresh() -> State {
        Record::new("", false, false).state
    }

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let pauses: Vec<u64> = (0..9).map(|n| BACKOFF.pause(n).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(BACKOFF.pause(u32::MAX).as_secs(), 300);
        assert_eq!(BACKOFF.count(5, Duration::from_secs(599)), 6);
        assert_eq!(BACKOFF.count(5, Duration::from_secs(600)), 1);
    }

    #[test]
    fn main_containers() {
        use RestartPolicy::{Always, Never, OnFailure};
        let start = |index| Step {
            start: vec![index],
            ..Step::default()
        };
        let over = |outcome| Step {
            outcome: Some(outcome),
            ..Step::default()
        };
        let cases = [
            (Always, fresh(), 0, start(0)),
            (Always, running(), 0, Step::default()),
            (Always, ended(0, 5), 1, start(0)),
            (OnFailure, ended(0, 5), 1, over(PodOutcome::Succeeded)),
            (OnFailure, ended(1, 5), 1, start(0)),
            (Never, ended(0, 5), 1, over(PodOutcome::Succeeded)),
            (Never, ended(137, 5), 1, over(PodOutcome::Failed)),
            (
                Always,
                ended(1, 5),
                2,
                Step {
                    backing_off: vec![(0, Duration::from_secs(10))],
                    wake_at: Some(at(15)),
                    ..Step::default()
                },
            ),
        ];
        for (policy, state, failures, expected) in cases {
            let records = [main_with(state.clone(), failures)];
            assert_eq!(
                step(policy, &records, &BACKOFF, at(6)),
                expected,
                "{policy:?} {state:?}"
            );
        }
        let records = [main_with(ended(1, 5), 2)];
        assert_eq!(step(Always, &records, &BACKOFF, at(15)), start(0));
    }

    #[test]
    fn a_pod_is_done_when_all_its_containers_are() {
        let records = [main_with(ended(0, 1), 1), main_with(running(), 0)];
        assert_eq!(
            step(RestartPolicy::Never, &records, &BACKOFF, at(2)),
            Step::default()
        );
        let records = [main_with(ended(0, 1), 1), main_with(ended(2, 1), 1)];
        let result = step(RestartPolicy::Never, &records, &BACKOFF, at(2));
        assert_eq!(result.outcome, Some(PodOutcome::Failed));
    }

    #[test]
    fn init_containers_go_first_and_one_by_one() {
        let main = main_with(fresh(), 0);
        let go = |records: &[Record], policy| step(policy, records, &BACKOFF, at(6));
        use RestartPolicy::{Always, Never};
        let records = [
            init_with(fresh(), false),
            init_with(fresh(), false),
            main.clone(),
        ];
        assert_eq!(go(&records, Always).start, [0]);
        let records = [
            init_with(ended(0, 1), false),
            init_with(running(), false),
            main.clone(),
        ];
        assert_eq!(go(&records, Always), Step::default());
        let records = [
            init_with(ended(0, 1), false),
            init_with(ended(0, 1), false),
            main.clone(),
        ];
        assert_eq!(go(&records, Always).start, [2]);
        let records = [init_with(ended(1, 1), false), main.clone()];
        assert_eq!(go(&records, Always).start, [0]);
        assert_eq!(go(&records, Never).outcome, Some(PodOutcome::Failed));
        let records = [init_with(running(), true), main.clone()];
        assert_eq!(go(&records, Always).start, [1]);
        let records = [init_with(fresh(), true), main];
        assert_eq!(go(&records, Never).start, [0]);
    }

    #[test]
    fn missing_image_is_retried_with_backoff() {
        let mut record = main_with(ended(1, 5), 1);
        let policy = RestartPolicy::Always;
        for (now, pause) in [(10, 10), (20, 20), (40, 40)] {
            record.record_missing_dependency("ErrImagePull", String::new(), &BACKOFF, at(now));
            let result = step(policy, &[record.clone()], &BACKOFF, at(now));
            assert_eq!(result.backing_off, [(0, Duration::from_secs(pause))]);
            let due = now + i64::try_from(pause).unwrap();
            assert_eq!(result.wake_at, Some(at(due)));
            assert_eq!(
                step(policy, &[record.clone()], &BACKOFF, at(due)).start,
                [0]
            );
        }
    }

    #[test]
    fn what_can_never_run_is_left_alone() {
        let record = Record {
            never_starts: true,
            ..Record::new("c", false, false)
        };
        assert_eq!(
            step(RestartPolicy::Always, &[record], &BACKOFF, at(0)),
            Step::default()
        );
    }
}
