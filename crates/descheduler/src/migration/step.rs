//! State machine of a PodMigrationJob.
//!
//! ```text
//! Pending ──arbitration──► Running ──► Reservation made ──► scheduled ──► Evicting ──► evicted ──► bound ──► ready ──► Succeeded
//!                             └─────────── EvictDirectly ───────────────────┘            └── EvictDirectly ──────────────┘
//! ```
//!
//! [`step`] returns at most one write. After it, the caller reads the objects again and calls [`step`] again.
//!
//! Source: Koordinator `pkg/descheduler/controllers/migration/controller.go`.

mod evicting;

pub use evicting::{has_begun_to_evict, is_eviction_requested};

use super::evict::Policy;
use super::reservation as making;
use super::status::{self, State};
use super::{CONTROLLER, JobStage, annotation, args, stage};
use crate::rules::SkipReason;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use koord_api::duration::GoDuration;
use koord_api::labels;
use koord_api::scheduling::pod_migration_job_conditions as conditions;
use koord_api::scheduling::pod_migration_job_reasons as reasons;
use koord_api::scheduling::{
    PodMigrationJob, PodMigrationJobMode, PodMigrationJobPhase, PodMigrationJobStatus,
    RESERVATION_CONDITION_READY, RESERVATION_CONDITION_SCHEDULED, RESERVATION_REASON_EXPIRED,
    RESERVATION_REASON_SCHEDULED, RESERVATION_REASON_UNSCHEDULABLE, Reservation,
    ReservationCondition, ReservationPhase,
};
use std::time::Duration;

/// Reason when `podRef` names no pod.
const INVALID_POD_REF: &str = "InvalidPodRef";
/// `status.status` of a job that succeeded.
const COMPLETE: &str = "Complete";
/// Interval after which a waiting job is checked again without a change.
pub const POLL: Duration = Duration::from_secs(3);

/// Settings that are equal for all jobs of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// True if a job without a mode creates a reservation first.
    pub reserves: bool,
    /// True if jobs have to pass the arbitration.
    pub arbitrates: bool,
    /// Default eviction policy.
    pub policy: Policy,
    /// True if reservations omit PersistentVolumeClaims.
    pub without_claims: bool,
    /// Time to live of a job that sets none; zero for unlimited.
    pub ttl: GoDuration,
}

impl Settings {
    /// Reads the settings from `args`.
    #[must_use]
    pub fn new(args: &args::MigrationControllerArgs, without_claims: bool) -> Self {
        Self {
            reserves: args.default_job_mode != args::EVICT_DIRECTLY,
            arbitrates: args.arbitration_args.enabled,
            policy: Policy::named(&args.eviction_policy).unwrap_or(Policy::Eviction),
            without_claims,
            ttl: args.default_job_ttl,
        }
    }
}

/// A job and the current state of the objects that it refers to.
#[derive(Debug, Clone, Copy)]
pub struct JobView<'a> {
    /// Current time.
    pub now: Timestamp,
    /// The job.
    pub job: &'a PodMigrationJob,
    /// The pod with the name in `spec.podRef`.
    pub pod: Option<&'a Pod>,
    /// The reservation named [`making::name`].
    pub reservation: Option<&'a Reservation>,
    /// The pod that uses the reservation, see [`bound`].
    pub bound: Option<&'a Pod>,
    /// Limit that keeps the pod from being evicted now.
    pub limited: Option<&'a SkipReason>,
    /// Error of the last attempt, or what the job waits for.
    pub problem: Option<&'a str>,
    /// Settings of the profile.
    pub settings: &'a Settings,
}

/// A write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Update the job without its status.
    Job(Box<PodMigrationJob>),
    /// Update the status of the job.
    Status(Box<PodMigrationJobStatus>),
    /// Create a reservation. An existing one of this name is used.
    Reserve(Box<Reservation>),
    /// Set the order label of the reservation.
    Order {
        /// Value of `scheduling.koordinator.sh/reservation-order`.
        value: String,
    },
    /// Delete the reservation.
    Unreserve,
    /// Evict the pod.
    Evict(Policy),
    /// Remove the annotation that requests the eviction of the pod.
    Spare,
}

/// Event to record once the write is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingEvent {
    /// True for a warning.
    pub warning: bool,
    /// Reason of the event.
    pub reason: &'static str,
    /// Message for users.
    pub message: String,
}

/// Time at which to process the job again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeue {
    /// Immediately.
    Now,
    /// Process it when one of the objects changes, or after this time.
    Wait(Duration),
    /// Process it only when the job changes.
    Done,
}

/// Next step of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Write to be done.
    pub act: Option<Operation>,
    /// Event to record after the write.
    pub event: Option<PendingEvent>,
    /// Time at which to continue after the write.
    pub next: Requeue,
}

impl Step {
    fn done() -> Self {
        Self {
            act: None,
            event: None,
            next: Requeue::Done,
        }
    }

    fn wait() -> Self {
        Self {
            next: Requeue::Wait(POLL),
            ..Self::done()
        }
    }

    fn act(act: Operation) -> Self {
        Self {
            act: Some(act),
            event: None,
            next: Requeue::Now,
        }
    }

    fn with_event(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        self.event = Some(PendingEvent {
            warning: false,
            reason,
            message: message.into(),
        });
        self
    }

    fn warning(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        self = self.with_event(reason, message);
        if let Some(event) = &mut self.event {
            event.warning = true;
        }
        self
    }
}

/// Returns the pod that uses `reservation`, or else the one that the status of `job` records.
#[must_use]
pub fn bound<'a>(
    job: &'a PodMigrationJob,
    reservation: Option<&'a Reservation>,
) -> Option<&'a ObjectReference> {
    let status = reservation.and_then(|reservation| reservation.status.as_ref());
    let owner = status.and_then(|status| status.current_owners.first());
    let recorded = || {
        let status = job.status.as_ref()?;
        let bound = status::condition(status, conditions::RESERVATION_BOUND)?;
        (bound.status == "True").then_some(status.pod_ref.as_ref())?
    };
    owner.or_else(recorded)
}

/// Returns the status of `job` after its eviction was refused because of `why`; `None` if unchanged.
#[must_use]
pub fn refused(
    job: &PodMigrationJob,
    cause: &str,
    now: Timestamp,
) -> Option<PodMigrationJobStatus> {
    let mut status = job.status.clone().unwrap_or_default();
    let state = State {
        kind: conditions::EVICTION,
        holds: false,
        reason: reasons::FAILED_EVICT,
        message: cause,
    };
    status::report(&mut status, &state, now).then_some(status)
}

/// Returns the status of `job` after its reservation could not be created because of `why`; `None` if
/// unchanged.
#[must_use]
pub fn unreserved(
    job: &PodMigrationJob,
    cause: &str,
    now: Timestamp,
) -> Option<PodMigrationJobStatus> {
    let mut status = job.status.clone().unwrap_or_default();
    let state = State {
        kind: conditions::RESERVATION_CREATED,
        holds: false,
        reason: reasons::FAILED_CREATE_RESERVATION,
        message: &format!("Failed to create Reservation caused by {cause}"),
    };
    status::report(&mut status, &state, now).then_some(status)
}

/// Returns the status of `job` that fails because the rule `why` forbids it.
#[must_use]
pub fn forbidden(job: &PodMigrationJob, reason: &SkipReason) -> PodMigrationJobStatus {
    let mut status = job.status.clone().unwrap_or_default();
    status.phase = Some(PodMigrationJobPhase::Failed);
    reasons::FORBIDDEN_MIGRATE_POD.clone_into(&mut status.reason);
    let pod = &job.spec.pod_ref;
    let (namespace, name) = (text(&pod.namespace), text(&pod.name));
    status.message = format!(
        "Pod \"{namespace}/{name}\" is forbidden to migrate because it does not meet the requirements: {reason}"
    );
    status
}

/// Returns the status of `job` that fails because its pod does not exist.
#[must_use]
pub fn missing(job: &PodMigrationJob) -> PodMigrationJobStatus {
    let mut status = job.status.clone().unwrap_or_default();
    status.phase = Some(PodMigrationJobPhase::Failed);
    reasons::MISSING_POD.clone_into(&mut status.reason);
    let pod = &job.spec.pod_ref;
    let (namespace, name) = (text(&pod.namespace), text(&pod.name));
    status.message = format!("Abort job caused by missing Pod \"{namespace}/{name}\"");
    status
}

/// Returns when `job` times out, with `by_default` if it has no time to live; `None` if that is zero.
#[must_use]
pub fn deadline(job: &PodMigrationJob, by_default: GoDuration) -> Option<Timestamp> {
    let ttl = job.spec.ttl.unwrap_or(by_default);
    let ttl = Some(ttl).filter(|ttl| *ttl > GoDuration::ZERO)?;
    let created = job.metadata.creation_timestamp.as_ref()?.0;
    created
        .checked_add(SignedDuration::from_nanos(ttl.as_nanos()))
        .ok()
}

/// Returns the next step of the job in `view`.
#[must_use]
pub fn step(view: &JobView<'_>) -> Step {
    let job = view.job;
    if job.metadata.deletion_timestamp.is_some() {
        return Step::done();
    }
    let is_failed = view.status().phase == Some(PodMigrationJobPhase::Failed);
    if is_failed {
        return view.release_reservation();
    }
    if job.spec.paused == Some(true) || stage(job) == JobStage::Ended {
        return Step::done();
    }
    let due = deadline(job, view.settings.ttl);
    if due.is_some_and(|due| view.now >= due) {
        return view.timed_out();
    }
    let mut step = match view.pending().and_then(|()| view.running()) {
        Ok(step) | Err(step) => step,
    };
    if let (Requeue::Wait(longest), Some(due)) = (&mut step.next, due) {
        let remaining = Duration::try_from(due.duration_since(view.now)).unwrap_or_default();
        *longest = (*longest).min(remaining);
    }
    step
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

impl<'a> JobView<'a> {
    fn status(&self) -> PodMigrationJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    /// Returns the pod's name as upstream formats it.
    fn pod_name(&self) -> String {
        let pod = &self.job.spec.pod_ref;
        format!("\"{}/{}\"", text(&pod.namespace), text(&pod.name))
    }

    /// Returns the pod of the job; `None` if it is gone, or if another pod has its name.
    fn target(&self) -> Option<&'a Pod> {
        let uid = text(&self.job.spec.pod_ref.uid);
        let meant = |pod: &&Pod| uid.is_empty() || pod.metadata.uid.as_deref() == Some(uid);
        self.pod.filter(meant)
    }

    fn failed(&self, reason: &'static str, message: impl Into<String>) -> Step {
        let message = message.into();
        let mut status = self.status();
        status.phase = Some(PodMigrationJobPhase::Failed);
        reason.clone_into(&mut status.reason);
        status.message.clone_from(&message);
        Step::act(Operation::Status(Box::new(status))).warning(reason, message)
    }

    fn missing_pod(&self) -> Step {
        let message = missing(self.job).message;
        self.failed(reasons::MISSING_POD, message)
    }

    /// Returns the step that writes condition `state`; `None` if it is set already.
    fn report_condition(&self, state: &State<'_>) -> Option<Step> {
        let mut status = self.status();
        let changed = status::report(&mut status, state, self.now);
        changed.then(|| Step::act(Operation::Status(Box::new(status))))
    }

    fn succeeded(&self, message: String, state: &State<'_>) -> Step {
        let mut status = self.status();
        status::set_condition(&mut status, state, self.now);
        status.phase = Some(PodMigrationJobPhase::Succeeded);
        COMPLETE.clone_into(&mut status.status);
        status.reason.clear();
        status.message.clone_from(&message);
        Step::act(Operation::Status(Box::new(status))).with_event(COMPLETE, message)
    }

    /// Releases the reservation of a failed job.
    fn release_reservation(&self) -> Step {
        let named = self.job.spec.reservation_options.as_ref();
        let named = named.and_then(|options| options.reservation_ref.as_ref());
        let Some((reservation, named)) = self.reservation.zip(named) else {
            return Step::done();
        };
        let uid = text(&named.uid);
        let is_same = uid.is_empty() || reservation.metadata.uid.as_deref() == Some(uid);
        let timed_out = self.status().reason == reasons::TIMEOUT;
        if !is_same || making::is_spent(reservation) || !(timed_out || making::is_ours(reservation))
        {
            return Step::done();
        }
        let going = reservation.metadata.deletion_timestamp.is_some();
        Step {
            act: (!going).then_some(Operation::Unreserve),
            ..Step::done()
        }
    }

    fn timed_out(&self) -> Step {
        // No component must evict the pod any more.
        if self.target().is_some_and(is_eviction_requested) && self.has_requested_eviction() {
            return Step::act(Operation::Spare);
        }
        let status = self.status();
        let last = [
            reasons::FAILED_EVICT,
            reasons::FAILED_CREATE_RESERVATION,
            reasons::UNSCHEDULABLE,
            reasons::WAIT_FOR_POD_BIND_RESERVATION,
            reasons::WAIT_FOR_BOUND_POD_READY,
            reasons::EVICTING,
        ];
        let mut message = "Abort job caused by timeout".to_owned();
        if let Some(problem) = self.problem {
            message = format!("{message}: {problem}");
        } else if last.contains(&status.reason.as_str()) {
            message = format!("{message}: {}: {}", status.reason, status.message);
        }
        self.failed(reasons::TIMEOUT, message.trim_end_matches(": "))
    }

    /// Checks that the job is in phase Running.
    ///
    /// # Errors
    /// The next step towards that phase: wait for the arbitrator, complete the job, set the phase, or fail.
    fn pending(&self) -> Result<(), Step> {
        let job = self.job;
        if self.status().phase == Some(PodMigrationJobPhase::Running) {
            return Ok(());
        }
        let named = &job.spec.pod_ref;
        if text(&named.namespace).is_empty() || text(&named.name).is_empty() {
            let message = "Abort job caused by invalid PodRef";
            return Err(self.failed(INVALID_POD_REF, message));
        }
        if self.settings.arbitrates && stage(job) == JobStage::Waiting {
            // The arbitrator wakes the job.
            let next = Requeue::Wait(Duration::from_secs(3600));
            return Err(Step {
                next,
                ..Step::done()
            });
        }
        let Some(pod) = self.target() else {
            return Err(self.missing_pod());
        };
        let owners = pod.metadata.owner_references.iter().flatten();
        let owner = owners
            .into_iter()
            .find(|owner_ref| owner_ref.controller == Some(true));
        let owner = owner.filter(|_| annotation(job, CONTROLLER).is_none());
        if text(&named.uid).is_empty() || owner.is_some() {
            let mut job = job.clone();
            job.spec.pod_ref.uid.clone_from(&pod.metadata.uid);
            if let Some(owner) = owner {
                let annotations = job.metadata.annotations.get_or_insert_default();
                annotations.insert(CONTROLLER.to_owned(), owner.uid.clone());
            }
            return Err(Step::act(Operation::Job(Box::new(job))));
        }
        let mut status = self.status();
        status.phase = Some(PodMigrationJobPhase::Running);
        Err(Step::act(Operation::Status(Box::new(status))))
    }

    fn running(&self) -> Result<Step, Step> {
        if let (Some(cause), false) = (self.limited, has_begun_to_evict(self.job)) {
            return Err(self.wait_limited(cause));
        }
        let reserves = match &self.job.spec.mode {
            Some(PodMigrationJobMode::EvictDirectly) => false,
            Some(PodMigrationJobMode::Other(mode)) if mode.is_empty() => self.settings.reserves,
            Some(_) => true,
            None => self.settings.reserves,
        };
        if reserves {
            self.reserved()
        } else {
            self.evicted(None)?;
            let message = format!("Pod {} has been evicted", self.pod_name());
            let state = State {
                kind: conditions::EVICTION,
                holds: true,
                reason: reasons::EVICT_COMPLETE,
                message: "",
            };
            Ok(self.succeeded(message, &state))
        }
    }

    /// Waits because of limit `why`. The status records it once, unless it holds another reason.
    fn wait_limited(&self, reason: &SkipReason) -> Step {
        let mut status = self.status();
        let message = reason.to_string();
        let is_free = status.reason.is_empty() || status.reason == reason.rule;
        if !is_free || status.message == message {
            return Step::wait();
        }
        reason.rule.clone_into(&mut status.reason);
        status.message.clone_from(&message);
        Step::act(Operation::Status(Box::new(status))).with_event(reason.rule, message)
    }

    /// Advances a job that has a reservation: waits until it is scheduled, evicts the pod, and waits for the
    /// new pod.
    fn reserved(&self) -> Result<Step, Step> {
        if let Some(bound) = self.recorded_bound() {
            // The reservation may be gone by now.
            return self.bound(bound, self.reservation_name());
        }
        let reservation = self.reservation()?;
        self.check_scheduled(reservation)?;
        if making::is_for_pending(&reservation.spec) {
            return self.pending_scheduled(reservation);
        }
        self.evicted(Some(reservation))?;
        let status = reservation.status.as_ref();
        let Some(owner) = status.and_then(|status| status.current_owners.first()) else {
            let state = State {
                kind: conditions::POD_BOUND_RESERVATION,
                holds: false,
                reason: reasons::WAIT_FOR_POD_BIND_RESERVATION,
                message: "",
            };
            let reason = reasons::WAIT_FOR_POD_BIND_RESERVATION;
            let step = self.report_condition(&state).unwrap_or_else(Step::wait);
            return Err(match step.act {
                Some(_) => step.with_event(reason, "Waiting for Pod bind Reservation"),
                None => step,
            });
        };
        let mut status = self.status();
        let state = State {
            kind: conditions::RESERVATION_BOUND,
            holds: true,
            ..State::default()
        };
        if status::set_condition(&mut status, &state, self.now) || status.pod_ref.is_none() {
            status.pod_ref = Some(owner.clone());
            let (namespace, name) = (text(&owner.namespace), text(&owner.name));
            let message = format!("Reservation bound by pod \"{namespace}/{name}\"");
            let step = Step::act(Operation::Status(Box::new(status)));
            return Err(step.with_event(conditions::POD_BOUND_RESERVATION, message));
        }
        self.bound(owner, self.reservation_name())
    }

    fn reservation_name(&self) -> String {
        making::name(self.job)
    }

    /// Returns the pod that uses the reservation, if the status records it.
    fn recorded_bound(&self) -> Option<&'a ObjectReference> {
        let status = self.job.status.as_ref()?;
        let bound = status::condition(status, conditions::RESERVATION_BOUND)?;
        (bound.status == "True").then_some(status.pod_ref.as_ref())?
    }

    /// Returns the reservation that the job refers to, which is created first.
    fn reservation(&self) -> Result<&'a Reservation, Step> {
        let options = self.job.spec.reservation_options.as_ref();
        let named = options.and_then(|options| options.reservation_ref.as_ref());
        let Some(named) = named else {
            return Err(self.reserve());
        };
        let uid = text(&named.uid);
        let is_same = |it: &&Reservation| uid.is_empty() || it.metadata.uid.as_deref() == Some(uid);
        let Some(reservation) = self.reservation.filter(is_same) else {
            let name = text(&named.name);
            let message = format!("Abort job caused by missing Reservation \"{name}\"");
            return Err(self.failed(reasons::MISSING_RESERVATION, message));
        };
        if making::label(reservation, labels::RESERVATION_ORDER).is_none() {
            let value = making::order(self.now);
            return Err(Step::act(Operation::Order { value }));
        }
        let state = State {
            kind: conditions::RESERVATION_CREATED,
            holds: true,
            ..State::default()
        };
        match self.report_condition(&state) {
            Some(step) => Err(step),
            None => Ok(reservation),
        }
    }

    fn reserve(&self) -> Step {
        let Some(pod) = self.target() else {
            return self.missing_pod();
        };
        let without_claims = self.settings.without_claims;
        let mut options = making::options(self.job, pod, without_claims, self.now);
        let Some(reservation) = self.reservation else {
            return Step::act(Operation::Reserve(Box::new(making::object(&options))));
        };
        options.reservation_ref = Some(making::reference(reservation));
        let mut job = self.job.clone();
        job.spec.reservation_options = Some(options);
        let name = text(&reservation.metadata.name);
        let message = format!("Successfully create Reservation \"{name}\"");
        Step::act(Operation::Job(Box::new(job)))
            .with_event(conditions::RESERVATION_CREATED, message)
    }

    /// Checks that the reservation is assigned to a node other than the pod's.
    ///
    /// # Errors
    /// The step to do otherwise: wait, report a condition, or fail the job.
    fn check_scheduled(&self, reservation: &Reservation) -> Result<(), Step> {
        let state = reservation.status.clone().unwrap_or_default();
        let find = |kind: &str, reason: &str| {
            let mut all = state.conditions.iter();
            all.find(|candidate| candidate.type_ == kind && candidate.reason == reason)
        };
        let unschedulable = find(
            RESERVATION_CONDITION_SCHEDULED,
            RESERVATION_REASON_UNSCHEDULABLE,
        );
        let status = self.status();
        let recorded = status::condition(&status, conditions::RESERVATION_SCHEDULED);
        let is_scheduled = recorded.is_some_and(|recorded| recorded.status == "True");
        if let (false, Some(cause)) = (is_scheduled, unschedulable) {
            let state = State {
                kind: conditions::RESERVATION_SCHEDULED,
                holds: false,
                reason: reasons::UNSCHEDULABLE,
                message: &cause.message,
            };
            if let Some(step) = self.report_condition(&state) {
                return Err(step.warning(reasons::UNSCHEDULABLE, cause.message.clone()));
            }
        }
        let phase = state.phase.as_ref();
        if phase.is_none_or(|phase| matches!(phase.as_str(), "" | "Pending")) {
            return Err(Step::wait());
        }
        let expired = find(RESERVATION_CONDITION_READY, RESERVATION_REASON_EXPIRED);
        if phase == Some(&ReservationPhase::Failed) && expired.is_some() {
            return Err(self.failed(reasons::RESERVATION_EXPIRED, "Reservation expired"));
        }
        let holds = |candidate: &ReservationCondition| candidate.status == "True";
        let scheduled_condition = find(
            RESERVATION_CONDITION_SCHEDULED,
            RESERVATION_REASON_SCHEDULED,
        );
        if state.node_name.is_empty() || !scheduled_condition.is_some_and(holds) {
            let cause = unschedulable.map(|cause| cause.message.clone());
            return Err(self.failed(reasons::UNSCHEDULABLE, cause.unwrap_or_default()));
        }
        if !status.node_name.is_empty() || is_scheduled {
            return Ok(());
        }
        let node = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
        let name = self.reservation_name();
        if self.target().and_then(node).as_deref() == Some(&state.node_name) {
            let message = format!(
                "Scheduler assignes the Reservation \"{name}\" on the same node as the Pod"
            );
            return Err(self.failed(reasons::FORBIDDEN_MIGRATE_POD, message));
        }
        let mut status = status;
        status.node_name.clone_from(&state.node_name);
        let scheduled = State {
            kind: conditions::RESERVATION_SCHEDULED,
            holds: true,
            ..State::default()
        };
        status::report(&mut status, &scheduled, self.now);
        let message = format!(
            "Assigned Reservation \"{name}\" to node \"{}\"",
            state.node_name
        );
        let step = Step::act(Operation::Status(Box::new(status)));
        Err(step.with_event(conditions::RESERVATION_SCHEDULED, message))
    }

    /// Completes the job of a pending pod once the pod has a node.
    fn pending_scheduled(&self, reservation: &Reservation) -> Result<Step, Step> {
        let Some(pod) = self.target() else {
            return Err(self.missing_pod());
        };
        let all = pod.status.iter().flat_map(|status| &status.conditions);
        let mut all = all.flatten();
        let scheduled = all.find(|condition| condition.type_ == "PodScheduled");
        if scheduled.is_none_or(|scheduled| scheduled.status == "False") {
            let status = reservation.status.clone().unwrap_or_default();
            let mut owners = status.current_owners.iter();
            let is_own = owners
                .next()
                .is_some_and(|owner| owner.uid == pod.metadata.uid);
            if status.phase == Some(ReservationPhase::Succeeded) && !is_own {
                return Err(self.taken());
            }
            let message = scheduled.and_then(|scheduled| scheduled.message.clone());
            let state = State {
                kind: conditions::POD_SCHEDULED,
                holds: false,
                reason: reasons::UNSCHEDULABLE,
                message: message.as_deref().unwrap_or_default(),
            };
            return Err(self.report_condition(&state).unwrap_or_else(Step::wait));
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let (name, node) = (self.pod_name(), node.unwrap_or_default());
        let state = State {
            kind: conditions::POD_SCHEDULED,
            holds: true,
            ..State::default()
        };
        Ok(self.succeeded(format!("Assign Pod {name} to node \"{node}\""), &state))
    }

    /// Fails the job because another pod uses the reservation.
    fn taken(&self) -> Step {
        let message = "Reservation is already bound by another Pod";
        self.failed(reasons::FORBIDDEN_MIGRATE_POD, message)
    }

    /// Completes the job once the pod that uses the reservation is ready.
    fn bound(&self, owner: &ObjectReference, reservation: String) -> Result<Step, Step> {
        let name = format!("{}/{}", text(&owner.namespace), text(&owner.name));
        let status = self.status();
        let recorded = status::condition(&status, conditions::BOUND_POD_READY);
        if recorded.is_none_or(|recorded| recorded.status != "True") {
            // Like in upstream, a pod that is gone again counts as ready.
            if self.bound.is_some_and(|pod| !evicting::is_ready(pod)) {
                let state = State {
                    kind: conditions::BOUND_POD_READY,
                    holds: false,
                    reason: reasons::WAIT_FOR_BOUND_POD_READY,
                    message: "",
                };
                let message = format!("Waiting for Bound Pod {name} Ready");
                let next_step = self.report_condition(&state);
                let next_step = next_step
                    .map(|step| step.with_event(reasons::WAIT_FOR_BOUND_POD_READY, message));
                return Err(next_step.unwrap_or_else(Step::wait));
            }
            let state = State {
                kind: conditions::BOUND_POD_READY,
                holds: true,
                ..State::default()
            };
            if let Some(step) = self.report_condition(&state) {
                let message = format!("Bind pod \"{name}\" is ready");
                return Err(step.with_event(conditions::BOUND_POD_READY, message));
            }
        }
        let message = format!("Bind Pod \"{name}\" in Reservation \"{reservation}\"");
        let state = State {
            kind: conditions::POD_BOUND_RESERVATION,
            holds: true,
            reason: "",
            message: &message,
        };
        Ok(self.succeeded(message.clone(), &state))
    }
}
