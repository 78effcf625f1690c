//! Outcomes of moves, read from their jobs.

use super::memory::{Described, owned_by, report, thresholds, world};
use super::*;
use crate::framework::{EvictionRequest, Evictor, Intent};
use crate::migration::Migrations;
use crate::migration::args::MigrationControllerArgs;
use crate::move_history::retained_until;
use crate::testing::moved;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::scheduling::PodMigrationJob;
use koord_api::scheduling::pod_migration_job_reasons as reasons;
use std::sync::Arc;

/// An evictor that creates jobs.
#[derive(Debug)]
struct Jobs(Migrations);

impl Evictor for Jobs {
    fn name(&self) -> &'static str {
        "Jobs"
    }
    fn evict(
        &mut self,
        snapshot: &Snapshot,
        request: &EvictionRequest<'_>,
    ) -> Result<Intent, SkipReason> {
        Ok(Intent::Job(Box::new(self.0.job(snapshot, request))))
    }
}

/// Returns the job as an API server stores it.
pub(super) fn made(job: &PodMigrationJob, now: jiff::Timestamp) -> PodMigrationJob {
    let mut job = job.clone();
    let name = job.metadata.name.clone().unwrap();
    // Times in objects have whole seconds.
    let now = jiff::Timestamp::from_second(now.as_second()).unwrap();
    job.metadata.creation_timestamp = Some(Time(now));
    job.metadata.uid = Some(format!("uid-{name}"));
    job
}

/// A descheduler and its cluster.
pub(super) struct TestDescheduler {
    pub(super) world: TestCluster,
    framework: Framework,
}

pub(super) fn framework_with_jobs(args: Value) -> Framework {
    let mut framework = framework(args);
    let migrations = Migrations::new(
        "test",
        "one",
        MigrationControllerArgs::default().completed(),
    );
    framework.profiles[0].evictor = Box::new(Jobs(migrations));
    framework
}

impl TestDescheduler {
    pub(super) fn new(nodes: &[Described<'_>]) -> Self {
        Self {
            world: world(nodes),
            framework: framework_with_jobs(thresholds()),
        }
    }

    /// Replaces the leader by another process.
    pub(super) fn take_over(&mut self) {
        self.framework = framework_with_jobs(thresholds());
    }

    /// Runs a cycle and creates its jobs.
    pub(super) fn cycle(&mut self) -> Plan {
        let plan = self.framework.run(&self.world.snapshot());
        for planned in plan.moves() {
            let Some(Intent::Job(job)) = &planned.intent else {
                panic!("{planned:?}")
            };
            let job = made(job, self.world.now);
            let mut existing = self.world.jobs.iter();
            assert!(existing.all(|existing_job| existing_job.metadata.name != job.metadata.name));
            self.world.jobs.push(Arc::new(job));
        }
        plan
    }

    /// Runs a cycle and returns the names of the moved pods.
    pub(super) fn moves(&mut self) -> Vec<String> {
        moved(&self.cycle())
    }

    /// Sets the status of the newest job.
    pub(super) fn set_status(&mut self, status: Value) {
        let job = self.world.jobs.last_mut().unwrap();
        let mut changed = PodMigrationJob::clone(job);
        changed.status = Some(serde_json::from_value(status).unwrap());
        *job = Arc::new(changed);
    }

    /// Fails the newest job, with its pod unchanged.
    pub(super) fn fail_job(&mut self) {
        self.set_status(
            json!({"phase": "Failed", "reason": reasons::FORBIDDEN_MIGRATE_POD,
            "message": "Reservation is already bound by another Pod"}),
        );
    }

    /// Sets the move record of the newest job.
    fn set_record(&mut self, text: &str) {
        let job = self.world.jobs.last_mut().unwrap();
        let mut changed = PodMigrationJob::clone(job);
        let annotations = changed.metadata.annotations.as_mut().unwrap();
        let previous =
            annotations.insert("descheduler.koordinator.sh/load-move".into(), text.into());
        assert!(previous.is_some());
        *job = Arc::new(changed);
    }

    pub(super) fn wait(&mut self, seconds: i64) {
        self.world.now += SignedDuration::from_secs(seconds);
    }
}

const HOT: &[Described<'_>] = &[("a", 1800, &[("p1", 1000)]), ("b", 100, &[])];

#[test]
fn failed_job_pauses_its_pod_with_backoff() {
    let mut descheduler = TestDescheduler::new(HOT);
    assert_eq!(descheduler.moves(), ["p1"]);
    let mut pauses = Vec::new();
    while pauses.len() < 8 {
        descheduler.fail_job();
        let begun = descheduler.world.now;
        loop {
            report(&mut descheduler.world, HOT);
            let plan = descheduler.cycle();
            if !moved(&plan).is_empty() {
                break;
            }
            assert_eq!(skip_rules(&plan, "p1"), ["MoveFailed"]);
            descheduler.wait(1);
        }
        pauses.push(descheduler.world.now.duration_since(begun).as_secs());
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn job_that_was_not_created_counts_as_failed() {
    let mut descheduler = TestDescheduler::new(HOT);
    for pause in [10, 20] {
        assert_eq!(descheduler.moves(), ["p1"]);
        descheduler.world.jobs.clear();
        descheduler.wait(pause - 1);
        let plan = descheduler.cycle();
        assert_eq!(skip_rules(&plan, "p1"), ["MoveFailed"]);
        descheduler.wait(1);
    }
    assert_eq!(descheduler.moves(), ["p1"]);
}

#[test]
fn failed_job_pauses_only_its_workload() {
    let nodes: &[Described<'_>] = &[("a", 1800, &[("p1", 1000)]), ("b", 100, &[])];
    let mut descheduler = TestDescheduler::new(nodes);
    assert_eq!(descheduler.moves(), ["p1"]);
    descheduler.fail_job();
    let old = "2026-01-01T00:00:00Z";
    descheduler.world.pod("p2", "a", owned_by("rs-p1", old));
    descheduler.world.pod("q", "a", owned_by("rs-q", old));
    let all: &[Described<'_>] = &[
        ("a", 800, &[("p1", 1000), ("p2", 1000), ("q", 400)]),
        ("b", 100, &[]),
    ];
    report(&mut descheduler.world, all);
    let plan = descheduler.cycle();
    assert_eq!(moved(&plan), ["q"]);
    assert_eq!(skip_rules(&plan, "p1"), ["MoveFailed"]);
    assert_eq!(skip_rules(&plan, "p2"), ["MoveFailed"]);
}

#[test]
fn failed_job_ends_the_expected_usage() {
    // With p1 node b is full.
    let nodes: &[Described<'_>] = &[
        ("a", 1000, &[("p1", 1700)]),
        ("b", 900, &[]),
        ("c", 1000, &[("q1", 1650)]),
    ];
    let mut descheduler = TestDescheduler::new(nodes);
    assert_eq!(descheduler.moves(), ["p1"]);
    let of_a = |plan: &Plan| notes(plan, "a");
    let plan = descheduler.cycle();
    assert!(
        moved(&plan).is_empty() && of_a(&plan).is_empty(),
        "{plan:?}"
    );
    descheduler.fail_job();
    let plan = descheduler.cycle();
    assert_eq!(of_a(&plan)[0], "hot: cpu usage 67.50% > threshold 65.00%");
    assert_eq!(moved(&plan), ["q1"], "b takes it");
}

#[test]
fn job_that_ends_after_eviction_counts_as_moved() {
    let timeout = |evicted: &str, reason: &str| {
        json!({"phase": "Failed", "reason": reasons::TIMEOUT, "conditions": [
            {"type": "Eviction", "status": evicted, "reason": reason, "lastTransitionTime": "2026-01-01T12:04:00Z"}]})
    };
    let turned: &[Described<'_>] = &[("a", 100, &[]), ("b", 1800, &[("p2", 1000)])];
    for (evicted, reason) in [
        ("True", reasons::EVICT_COMPLETE),
        ("False", reasons::EVICTING),
    ] {
        let mut descheduler = TestDescheduler::new(HOT);
        assert_eq!(descheduler.moves(), ["p1"]);
        descheduler.set_status(timeout(evicted, reason));
        descheduler.world.pods.clear();
        descheduler.wait(300);
        let created = descheduler.world.now.to_string();
        descheduler
            .world
            .pod("p2", "b", owned_by("rs-p1", &created));
        report(&mut descheduler.world, turned);
        assert_eq!(
            skip_rules(&descheduler.cycle(), "p2"),
            ["MovedLately"],
            "{reason}"
        );
        // An hour from the eviction, which was 240 s after the request.
        for (wait, is_evicted) in [(3539, false), (1, true)] {
            descheduler.wait(wait);
            report(&mut descheduler.world, turned);
            assert_eq!(!descheduler.moves().is_empty(), is_evicted, "{reason}");
        }
    }
    // A pod that was not evicted and left by itself is no move.
    let mut descheduler = TestDescheduler::new(HOT);
    assert_eq!(descheduler.moves(), ["p1"]);
    descheduler.set_status(timeout("False", reasons::FAILED_EVICT));
    descheduler.world.pods.clear();
    descheduler.wait(900);
    let created = descheduler.world.now.to_string();
    descheduler
        .world
        .pod("p2", "b", owned_by("rs-p1", &created));
    report(&mut descheduler.world, turned);
    assert_eq!(descheduler.moves(), ["p2"]);
}

#[test]
fn successful_move_resets_the_failure_count() {
    let nodes: &[Described<'_>] = &[("a", 800, &[("p1", 1000), ("p2", 1000)]), ("b", 100, &[])];
    let mut descheduler = TestDescheduler::new(nodes);
    descheduler.world.pods.clear();
    for pod in ["p1", "p2"] {
        let owner = owned_by("rs", "2026-01-01T00:00:00Z");
        descheduler.world.pod(pod, "a", owner);
    }
    for pause in [10, 20, 40] {
        assert_eq!(descheduler.moves().len(), 1);
        descheduler.fail_job();
        descheduler.wait(pause);
    }
    assert_eq!(descheduler.moves(), ["p2"]);
    descheduler.set_status(json!({"phase": "Succeeded"}));
    descheduler.world.pods.retain(|pod| &*pod.name != "p2");
    let without_p1: &[Described<'_>] = &[("a", 1800, &[("p1", 1000)]), ("b", 100, &[])];
    report(&mut descheduler.world, without_p1);
    assert_eq!(descheduler.moves(), ["p1"]);
    descheduler.fail_job();
    descheduler.wait(9);
    assert_eq!(skip_rules(&descheduler.cycle(), "p1"), ["MoveFailed"]);
    descheduler.wait(1);
    assert_eq!(descheduler.moves(), ["p1"]);
}

#[test]
fn as_long_as_a_job_runs_its_pod_moves() {
    let mut descheduler = TestDescheduler::new(HOT);
    assert_eq!(descheduler.moves(), ["p1"]);
    descheduler.set_status(json!({"phase": "Running"}));
    descheduler.wait(600);
    let hotter: &[Described<'_>] = &[("a", 2700, &[("p1", 1000)]), ("b", 100, &[])];
    report(&mut descheduler.world, hotter);
    assert_eq!(skip_rules(&descheduler.cycle(), "p1"), ["MovesAlready"]);
}

/// Moves p1 from a to b, where p2 runs as its replacement, and makes b hot.
fn turned(descheduler: &mut TestDescheduler) {
    descheduler.world.pods.clear();
    let created = descheduler.world.now.to_string();
    descheduler
        .world
        .pod("p2", "b", owned_by("rs-p1", &created));
    report_turned(descheduler);
}

fn report_turned(descheduler: &mut TestDescheduler) {
    let turned: &[Described<'_>] = &[("a", 100, &[]), ("b", 1800, &[("p2", 1000)])];
    report(&mut descheduler.world, turned);
}

#[test]
fn next_leader_reads_moves_of_the_last() {
    let mut descheduler = TestDescheduler::new(HOT);
    assert_eq!(descheduler.moves(), ["p1"]);
    descheduler.take_over();
    assert_eq!(
        skip_rules(&descheduler.cycle(), "p1"),
        Vec::<&str>::new(),
        "a is not hot without it"
    );
    descheduler.set_status(json!({"phase": "Succeeded", "nodeName": "b"}));
    descheduler.wait(600);
    turned(&mut descheduler);
    descheduler.take_over();
    assert_eq!(skip_rules(&descheduler.cycle(), "p2"), ["MovedLately"]);
    // The hour is not restarted.
    descheduler.wait(2999);
    report_turned(&mut descheduler);
    descheduler.take_over();
    assert_eq!(skip_rules(&descheduler.cycle(), "p2"), ["MovedLately"]);
    descheduler.wait(1);
    report_turned(&mut descheduler);
    descheduler.take_over();
    assert_eq!(descheduler.moves(), ["p2"]);
}

#[test]
fn next_leader_expects_pods_on_their_targets() {
    // With p1 node b is full, and c is hot.
    let nodes: &[Described<'_>] = &[
        ("a", 1000, &[("p1", 1700)]),
        ("b", 900, &[]),
        ("c", 1000, &[("q1", 1650)]),
        ("d", 2000, &[]),
    ];
    let mut descheduler = TestDescheduler::new(nodes);
    assert_eq!(descheduler.moves(), ["p1"]);
    descheduler.take_over();
    let plan = descheduler.cycle();
    assert!(
        moved(&plan).is_empty() && notes(&plan, "a").is_empty(),
        "{plan:?}"
    );
    // The scheduler has placed its reservation on another node.
    descheduler.set_status(json!({"phase": "Running", "nodeName": "d"}));
    descheduler.take_over();
    assert_eq!(descheduler.moves(), ["q1"], "to b");
}

#[test]
fn next_leader_keeps_the_failure_count() {
    let mut descheduler = TestDescheduler::new(HOT);
    for pause in [10, 20, 40, 80] {
        assert_eq!(descheduler.moves(), ["p1"]);
        descheduler.fail_job();
        descheduler.wait(pause - 1);
        report(&mut descheduler.world, HOT);
        descheduler.take_over();
        assert_eq!(skip_rules(&descheduler.cycle(), "p1"), ["MoveFailed"]);
        descheduler.wait(1);
    }
    // Earlier jobs are swept; the newest one records the number of failures.
    descheduler.moves();
    descheduler.fail_job();
    descheduler
        .world
        .jobs
        .drain(..descheduler.world.jobs.len() - 1);
    descheduler.take_over();
    descheduler.wait(159);
    assert_eq!(skip_rules(&descheduler.cycle(), "p1"), ["MoveFailed"]);
    descheduler.wait(1);
    report(&mut descheduler.world, HOT);
    assert_eq!(descheduler.moves(), ["p1"]);
}

#[test]
fn invalid_move_records_are_ignored() {
    for text in [
        "",
        "{}",
        "[]",
        r#"{"workload":"rs-p1","node":"a","usage":{"cpu":"-9"},"attempt":-1}"#,
        r#"{"workload":"rs-p1","node":"a","usage":{"cpu":"much"}}"#,
        r#"{"workload":"rs-p1","node":"a","usage":{"cpu":"-9","memory":"1e30","none":"1"},"attempt":4294967295}"#,
    ] {
        let mut descheduler = TestDescheduler::new(HOT);
        descheduler.moves();
        descheduler.fail_job();
        descheduler.set_record(text);
        descheduler.take_over();
        descheduler.wait(300);
        report(&mut descheduler.world, HOT);
        assert_eq!(descheduler.moves(), ["p1"], "{text}");
    }
}

#[test]
fn usage_is_never_negative() {
    let mut descheduler = TestDescheduler::new(HOT);
    descheduler.moves();
    descheduler.set_record(r#"{"workload":"rs-p1","node":"a","target":"b","usage":{"cpu":"-9"}}"#);
    // The job has ended, and its outcome counts.
    descheduler.set_status(json!({"phase": "Succeeded"}));
    descheduler.take_over();
    let plan = descheduler.cycle();
    let text = &notes(&plan, "a")[0];
    assert!(text.contains(" 70.00%"), "{text}");
}

#[test]
fn jobs_are_kept_as_long_as_their_pods_rest() {
    let mut descheduler = TestDescheduler::new(HOT);
    descheduler.moves();
    let mut until = |status: Value| {
        descheduler.set_status(status);
        retained_until(
            descheduler.world.jobs.last().unwrap(),
            descheduler.world.now,
        )
        .map(|until| until.to_string())
    };
    let at_four = |status: &str, reason: &str| json!([{"type": "Eviction", "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T12:04:00Z"}]);
    let until_succeeded = until(json!({"phase": "Succeeded"}));
    assert_eq!(until_succeeded.as_deref(), Some("2026-01-01T13:00:00Z"));
    for (phase, status, reason) in [
        ("Succeeded", "True", reasons::EVICT_COMPLETE),
        ("Failed", "True", reasons::EVICT_COMPLETE),
        ("Failed", "False", reasons::EVICTING),
    ] {
        let until_ended = until(json!({"phase": phase, "conditions": at_four(status, reason)}));
        assert_eq!(
            until_ended.as_deref(),
            Some("2026-01-01T13:04:00Z"),
            "{phase}"
        );
    }
    let refused = at_four("False", reasons::FAILED_EVICT);
    assert_eq!(
        until(json!({"phase": "Failed", "conditions": refused})),
        None
    );
    assert_eq!(until(json!({"phase": "Running"})), None);
}

/// The clock of the job's leader was years ahead: its times count as that of the job's creation, so that the
/// workload does not pause for as long.
#[test]
fn times_of_a_wrong_clock_count_as_creation() {
    const AHEAD: &str = "2035-01-01T00:00:00Z";
    let eviction = |status: &str, reason: &str| json!([{"type": "Eviction", "status": status, "reason": reason, "lastTransitionTime": AHEAD}]);
    for (phase, conditions) in [
        ("Succeeded", eviction("True", reasons::EVICT_COMPLETE)),
        ("Failed", eviction("False", reasons::EVICTING)),
    ] {
        let mut descheduler = TestDescheduler::new(HOT);
        assert_eq!(descheduler.moves(), ["p1"]);
        descheduler.set_status(json!({"phase": phase, "conditions": conditions}));
        let now = descheduler.world.now;
        let job = descheduler.world.jobs.last().unwrap();
        let until = retained_until(job, now).map(|until| until.to_string());
        assert_eq!(until.as_deref(), Some("2026-01-01T13:00:00Z"));
        let went = crate::migration::evict::evicted_at(job, false, now).unwrap();
        assert!(went <= now, "{went}");
    }

    // A move that failed in the year 2035 pauses its workload for ten seconds from its creation.
    let mut descheduler = TestDescheduler::new(HOT);
    assert_eq!(descheduler.moves(), ["p1"]);
    descheduler.set_status(json!({
        "phase": "Failed", "reason": reasons::FORBIDDEN_MIGRATE_POD,
        "conditions": [{"type": "ReservationScheduled", "status": "False", "lastTransitionTime": AHEAD}],
    }));
    descheduler.wait(10);
    report(&mut descheduler.world, HOT);
    assert_eq!(descheduler.moves(), ["p1"]);
}
