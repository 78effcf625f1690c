//! Job controller: runs pods until enough of them have completed.

use super::adoption;
use super::job_rules::{self, FailureEffect};
use super::pods;
use super::queue::RequeueAfter;
use super::recorder::EventSubject;
use super::replicaset::remove_condition;
use super::workload::Workload;
use crate::rest::{Api, DeleteOptions, Propagation, meta};
use crate::store::Key;
use futures::FutureExt as _;
use jiff::Timestamp;
use koord_kinds::status::ApiError;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Annotation and label with the index of a pod of an Indexed job.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation with the number of earlier failures of the pod's index.
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Delay before the first replacement of a failed pod, in seconds; doubles up to [`MAX_BACKOFF`].
const BACKOFF: i64 = 10;
/// Longest delay before a replacement, in seconds.
const MAX_BACKOFF: i64 = 600;
/// Pods created in one reconcile, so that a large job does not delay the others.
const BURST: usize = 500;

/// The Job controller.
pub(super) const JOBS: Workload = Workload {
    name: "job-controller",
    group: "batch",
    plural: "jobs",
    kind: "Job",
    owns: ("", "pods"),
    adopts: true,
    also: || None,
    sync: |subject, key| sync(subject, key).boxed(),
};

/// Counts and indexes of a job's pods by their state.
#[derive(Debug, Default)]
struct PodCounts {
    active: usize,
    ready: usize,
    succeeded: i64,
    failed: i64,
    /// Indexes that succeeded, and those with an active pod.
    done: BTreeSet<i64>,
    running: BTreeSet<i64>,
    last_failure: Option<Timestamp>,
    /// Pods that are being deleted and have not ended.
    terminating: usize,
    /// Number of failures of each index, and the time of the last one.
    failures: BTreeMap<i64, (i64, Timestamp)>,
    /// Indexes that have failed for good.
    lost: BTreeSet<i64>,
    /// Reason why a pod failure fails the whole job; `None` if none does.
    fatal: Option<String>,
}

impl PodCounts {
    /// Counts the pods of a job by phase and index; recorded indexes of deleted pods are included.
    fn new(job: &Value, pods: &[Value], now: Timestamp) -> Self {
        let mut out = Self::default();
        if indexed(job) {
            // Pods that were deleted after they ended still count.
            let limit = number_at(job, "completions").unwrap_or(0);
            let existing = |key: &str| job_rules::indexes(meta::text(job, &["status", key]), limit);
            out.done = existing("completedIndexes");
            out.lost = existing("failedIndexes");
        }
        for pod in pods {
            let index: Option<i64> = meta::text(pod, &["metadata", "annotations", INDEX])
                .parse()
                .ok();
            match meta::text(pod, &["status", "phase"]) {
                "Succeeded" => {
                    out.succeeded += 1;
                    out.done.extend(index);
                }
                "Failed" => {
                    let at = ended_at(pod).unwrap_or(now);
                    match job_rules::verdict(job, pod) {
                        FailureEffect::Ignore => continue,
                        FailureEffect::Count => {}
                        FailureEffect::FailIndex => out.lost.extend(index),
                        FailureEffect::FailJob(reason) => out.fatal = Some(reason),
                    }
                    out.failed += 1;
                    out.last_failure = Some(out.last_failure.map_or(at, |t| t.max(at)));
                    if let Some(index) = index {
                        let (n, last) = out.failures.entry(index).or_insert((0, at));
                        *n += 1;
                        *last = at.max(*last);
                    }
                }
                _ if meta::deleting(pod) => out.terminating += 1,
                _ => {
                    out.active += 1;
                    out.ready += usize::from(pods::ready(pod));
                    out.running.extend(index);
                }
            }
        }
        if let Some(limit) = number_at(job, "backoffLimitPerIndex") {
            let beyond = out.failures.iter().filter(|(_, (n, _))| *n > limit);
            out.lost.extend(beyond.map(|(index, _)| *index));
        }
        out.lost.retain(|index| !out.done.contains(index));
        out
    }
}

/// Returns when the last container of a pod ended.
fn ended_at(pod: &Value) -> Option<Timestamp> {
    meta::at(pod, &["status", "containerStatuses"])?
        .as_array()?
        .iter()
        .filter_map(|c| {
            let state = meta::text(c, &["state", "terminated", "finishedAt"]);
            state.parse::<Timestamp>().ok()
        })
        .max()
}

fn number_at(job: &Value, key: &str) -> Option<i64> {
    meta::int_at(job, &["spec", key])
}

/// The outcome of a finished job.
#[derive(Debug, Clone, PartialEq, Eq)]
enum JobOutcome {
    Complete,
    /// Succeeded by the rule with this index of its success policy.
    Success(usize),
    Failed(&'static str, String),
}

/// Returns true if the job has completed or failed, by its conditions.
pub(super) fn has_finished(job: &Value) -> bool {
    let is_true = |condition: &Value| meta::text(condition, &["status"]) == "True";
    let mut ends = ["Complete", "Failed"].iter();
    ends.any(|it| meta::condition(job, it).is_some_and(is_true))
}

/// Returns the outcome of the job if it is finished.
fn job_outcome(job: &Value, counts: &PodCounts, now: Timestamp) -> Option<JobOutcome> {
    if let Some(reason) = &counts.fatal {
        return Some(JobOutcome::Failed("PodFailurePolicy", reason.clone()));
    }
    let limit = number_at(job, "backoffLimit").unwrap_or(6);
    if counts.failed > limit {
        return Some(JobOutcome::Failed(
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit".to_owned(),
        ));
    }
    let started: Option<Timestamp> = meta::text(job, &["status", "startTime"]).parse().ok();
    if let (Some(seconds), Some(started)) = (number_at(job, "activeDeadlineSeconds"), started)
        && now.duration_since(started).as_secs() >= seconds
    {
        return Some(JobOutcome::Failed(
            "DeadlineExceeded",
            "Job was active longer than specified deadline".to_owned(),
        ));
    }
    let count = |indexes: &BTreeSet<i64>| i64::try_from(indexes.len()).unwrap_or(i64::MAX);
    if number_at(job, "maxFailedIndexes").is_some_and(|limit| count(&counts.lost) > limit) {
        return Some(JobOutcome::Failed(
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes".to_owned(),
        ));
    }
    if let Some(rule) = job_rules::success(job, &counts.done) {
        return Some(JobOutcome::Success(rule));
    }
    let succeeded = if indexed(job) {
        count(&counts.done)
    } else {
        counts.succeeded
    };
    let completions = number_at(job, "completions");
    let tried = succeeded.saturating_add(count(&counts.lost));
    if !counts.lost.is_empty() && completions.is_some_and(|n| tried >= n) {
        let reason = "Job has failed indexes".to_owned();
        return Some(JobOutcome::Failed("FailedIndexes", reason));
    }
    match number_at(job, "completions") {
        Some(n) => (succeeded >= n).then_some(JobOutcome::Complete),
        // Without `completions`, the job completes when one pod has succeeded and the others have ended.
        None => (succeeded > 0 && counts.active == 0).then_some(JobOutcome::Complete),
    }
}

fn indexed(job: &Value) -> bool {
    meta::text(job, &["spec", "completionMode"]) == "Indexed"
}

/// Returns how many pods should be active now.
fn desired_active(job: &Value, counts: &PodCounts) -> usize {
    let parallel = number_at(job, "parallelism").unwrap_or(1).max(0);
    let parallel_limit = match number_at(job, "completions") {
        Some(n) => {
            let completed = if indexed(job) {
                i64::try_from(counts.done.len() + counts.lost.len()).unwrap_or(i64::MAX)
            } else {
                counts.succeeded
            };
            parallel.min((n - completed).max(0))
        }
        None if counts.succeeded > 0 => i64::try_from(counts.active).unwrap_or(0).min(parallel),
        None => parallel,
    };
    usize::try_from(parallel_limit).unwrap_or(0)
}

/// Returns the seconds until a failed pod may be replaced. With a backoff limit per index it is 0: each index
/// has its own delay.
fn backoff_left(job: &Value, counts: &PodCounts, now: Timestamp) -> i64 {
    match counts.last_failure {
        Some(last) if number_at(job, "backoffLimitPerIndex").is_none() => {
            pause_left(counts.failed, last, now)
        }
        _ => 0,
    }
}

/// Returns the remaining seconds of the backoff after `failures` failures, the last of them at `last`.
fn pause_left(failures: i64, last: Timestamp, now: Timestamp) -> i64 {
    let exponent = u32::try_from((failures - 1).clamp(0, 16)).unwrap_or(16);
    let pause = BACKOFF.saturating_mul(1 << exponent).min(MAX_BACKOFF);
    (pause - now.duration_since(last).as_secs()).max(0)
}

/// Reconciles a Job: starts and deletes pods, and ends it when it completes or fails.
async fn sync(subject: EventSubject<'_>, key: &Key) -> Result<RequeueAfter, ApiError> {
    let (api, jobs, job) = (subject.api, subject.resource, subject.object);
    let pods_resource = api.builtin("", "v1", "pods")?;
    // A job that another controller manages is left to it.
    let manager = meta::text(job, &["spec", "managedBy"]);
    if meta::deleting(job) || !matches!(manager, "" | "kubernetes.io/job-controller") {
        return Ok(None);
    }
    let now = api.clock().now();
    let finished = has_finished(job);
    let uid = meta::uid(job).to_owned();
    adoption::claim(api, jobs, job, &pods_resource, &|_| true).await?;
    let mut owned = pods::owned(api, &pods_resource, &key.namespace, &uid);
    let values: Vec<Value> = owned.iter().map(|(_, v)| v.clone()).collect();
    let mut counts = PodCounts::new(job, &values, now);
    if finished {
        return expire(api, key, jobs, job, &uid, now).await;
    }
    let suspended = meta::is_true(job, &["spec", "suspend"]);
    // The start time of the job is that of its first reconcile.
    let mut job_with_start = job.clone();
    if meta::text(job, &["status", "startTime"]).is_empty() && !suspended {
        meta::section(&mut job_with_start, "status")
            .insert("startTime".to_owned(), meta::time(now).into());
    }
    let end = job_outcome(&job_with_start, &counts, now);
    let target = if end.is_some() || suspended {
        0
    } else {
        desired_active(job, &counts)
    };
    // With the policy `Failed`, a replacement waits until the pod that is being deleted has ended.
    let overdue = meta::text(job, &["spec", "podReplacementPolicy"]) == "Failed";
    let capacity = target.saturating_sub(if overdue { counts.terminating } else { 0 });
    let mut requeue = None;
    if counts.active > target {
        owned.retain(|(_, v)| pods::is_active(v));
        owned.sort_by_cached_key(|(_, v)| pods::deletion_order(v));
        for (entry, _) in owned.iter().take(counts.active - target) {
            pods::delete_recorded(&subject, &pods_resource, entry).await?;
        }
        counts.active = target;
    }
    let mut failure = None;
    if counts.active < capacity {
        let pause = backoff_left(job, &counts, now);
        if pause > 0 {
            requeue = Some(Duration::from_secs(pause.unsigned_abs()));
        } else {
            let first = capacity.min(counts.active + BURST);
            match start(&subject, &pods_resource, &mut counts, first, now).await {
                Ok(remaining) => {
                    requeue =
                        remaining.map(|remaining| Duration::from_secs(remaining.unsigned_abs()))
                }
                Err(e) => failure = Some(e),
            }
            if first < capacity {
                requeue = Some(Duration::ZERO);
            }
        }
    }
    if end.is_none()
        && let Some(seconds) = number_at(job, "activeDeadlineSeconds")
    {
        let remaining = Duration::from_secs(seconds.max(1).unsigned_abs());
        requeue = Some(requeue.map_or(remaining, |a: Duration| a.min(remaining)));
    }
    pods::write_status(api, jobs, key, &uid, |status| {
        write(status, job, &counts, end.as_ref(), suspended, now);
    })
    .await?;
    if end.is_some() && number_at(job, "ttlSecondsAfterFinished").is_some() {
        requeue = Some(Duration::from_secs(1));
    }
    match failure {
        Some(e) => Err(e),
        None => Ok(requeue),
    }
}

/// Creates the missing pods. Returns in how many seconds another may be created, if an index is in backoff.
async fn start(
    subject: &EventSubject<'_>,
    pods_resource: &std::sync::Arc<koord_kinds::Resource>,
    counts: &mut PodCounts,
    target: usize,
    now: Timestamp,
) -> Result<Option<i64>, ApiError> {
    let job = subject.object;
    let template = meta::at(job, &["spec", "template"])
        .cloned()
        .unwrap_or_default();
    let completions = number_at(job, "completions").unwrap_or(i64::MAX);
    let alone = number_at(job, "backoffLimitPerIndex").is_some();
    let mut waits: Option<i64> = None;
    while counts.active < target {
        let mut pod = pods::from_template(&template, subject.resource, job);
        if indexed(job) {
            let taken_indexes = [&counts.done, &counts.running, &counts.lost];
            let free = |i: &i64| !taken_indexes.iter().any(|set| set.contains(i));
            let mut open = (0..completions).filter(free);
            let ready = open.find(|i| match counts.failures.get(i).filter(|_| alone) {
                None => true,
                Some((n, last)) => {
                    let remaining = pause_left(*n, *last, now);
                    if remaining > 0 {
                        waits = Some(waits.map_or(remaining, |w| w.min(remaining)));
                    }
                    remaining == 0
                }
            });
            let Some(index) = ready else {
                return Ok(waits);
            };
            mark_index(&mut pod, meta::name(job), index);
            if alone {
                let failures = counts.failures.get(&index).map_or(0, |(n, _)| *n);
                let metadata = meta::section(&mut pod, "metadata");
                let map = meta::as_object(metadata.entry("annotations").or_insert(json!({})));
                map.insert(FAILURES.to_owned(), failures.to_string().into());
            }
            counts.running.insert(index);
        }
        pods::create_recorded(subject, pods_resource, pod).await?;
        counts.active += 1;
    }
    Ok(waits)
}

/// Sets the index of a pod of an Indexed job: label, annotation, name, host name, environment.
fn mark_index(pod: &mut Value, job: &str, index: i64) {
    let text = index.to_string();
    let metadata = meta::section(pod, "metadata");
    metadata.insert("generateName".to_owned(), format!("{job}-{index}-").into());
    for part in ["labels", "annotations"] {
        let map = meta::as_object(metadata.entry(part).or_insert(json!({})));
        map.insert(INDEX.to_owned(), text.as_str().into());
    }
    let spec = meta::section(pod, "spec");
    spec.insert("hostname".to_owned(), format!("{job}-{index}").into());
    let containers = spec.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        let env = meta::as_object(container).entry("env").or_insert(json!([]));
        if let Some(list) = env.as_array_mut()
            && !list
                .iter()
                .any(|e| meta::text(e, &["name"]) == "JOB_COMPLETION_INDEX")
        {
            list.push(json!({ "name": "JOB_COMPLETION_INDEX", "value": text }));
        }
    }
}

/// Writes the counts and conditions of a job into its status.
fn write(
    status: &mut Map<String, Value>,
    job: &Value,
    counts: &PodCounts,
    end: Option<&JobOutcome>,
    suspended: bool,
    now: Timestamp,
) {
    // Pods that were deleted after they ended still count.
    let retained = |status: &Map<String, Value>, key: &str, n: i64| {
        n.max(status.get(key).and_then(Value::as_i64).unwrap_or(0))
    };
    let (succeeded, failed) = (
        retained(status, "succeeded", counts.succeeded),
        retained(status, "failed", counts.failed),
    );
    let active = i64::try_from(counts.active).unwrap_or(0);
    for (key, n) in [
        ("active", active),
        ("succeeded", succeeded),
        ("failed", failed),
    ] {
        if n == 0 {
            status.remove(key);
        } else {
            status.insert(key.to_owned(), n.into());
        }
    }
    status.insert(
        "ready".to_owned(),
        json!(if end.is_some() { 0 } else { counts.ready }),
    );
    status.insert("terminating".to_owned(), json!(counts.terminating));
    if indexed(job) {
        let alone = number_at(job, "backoffLimitPerIndex").is_some();
        for (key, set, always) in [
            ("completedIndexes", &counts.done, false),
            ("failedIndexes", &counts.lost, alone),
        ] {
            if always || !set.is_empty() {
                status.insert(key.to_owned(), job_rules::text(set).into());
            } else {
                status.remove(key);
            }
        }
    }
    status.insert("uncountedTerminatedPods".to_owned(), json!({}));
    if !suspended && !status.contains_key("startTime") {
        status.insert("startTime".to_owned(), meta::time(now).into());
    }
    if suspended {
        meta::set_condition(
            status,
            "Suspended",
            "True",
            "JobSuspended",
            "Job suspended",
            now,
        );
    } else {
        remove_condition(status, "Suspended");
    }
    match end {
        Some(JobOutcome::Complete | JobOutcome::Success(_)) => {
            let (reason, message) = match end {
                Some(JobOutcome::Success(rule)) => {
                    ("SuccessPolicy", format!("Matched rules at index {rule}"))
                }
                _ => {
                    let message = "Reached expected number of succeeded pods".to_owned();
                    ("CompletionsReached", message)
                }
            };
            for kind in ["SuccessCriteriaMet", "Complete"] {
                meta::set_condition(status, kind, "True", reason, &message, now);
            }
            status
                .entry("completionTime")
                .or_insert_with(|| meta::time(now).into());
        }
        Some(JobOutcome::Failed(reason, message)) => {
            meta::set_condition(status, "FailureTarget", "True", reason, message, now);
            meta::set_condition(status, "Failed", "True", reason, message, now);
        }
        None => {}
    }
    if let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        for c in list {
            let at = meta::text(c, &["lastTransitionTime"]).to_owned();
            meta::as_object(c)
                .entry("lastProbeTime")
                .or_insert_with(|| at.into());
        }
    }
}

/// Deletes a finished job when its time to live is over.
async fn expire(
    api: &Api,
    key: &Key,
    jobs: &std::sync::Arc<koord_kinds::Resource>,
    job: &Value,
    uid: &str,
    now: Timestamp,
) -> Result<RequeueAfter, ApiError> {
    let Some(ttl) = number_at(job, "ttlSecondsAfterFinished") else {
        return Ok(None);
    };
    let finished: Timestamp = ["Complete", "Failed"]
        .iter()
        .filter_map(|c| meta::condition(job, c))
        .filter_map(|c| meta::text(c, &["lastTransitionTime"]).parse().ok())
        .max()
        .unwrap_or(now);
    let remaining = ttl - now.duration_since(finished).as_secs();
    if remaining > 0 {
        return Ok(Some(Duration::from_secs(remaining.unsigned_abs())));
    }
    let options = DeleteOptions {
        uid: Some(uid.to_owned()),
        propagation: Some(Propagation::Background),
        ..DeleteOptions::default()
    };
    match api.delete_object(jobs, key, &options).await {
        Err(e) if e.code != 404 && e.code != 409 => Err(e),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: &str) -> Value {
        json!({"metadata": {"name": "p"}, "status": {"phase": phase}})
    }

    #[test]
    fn job_runs_remaining_completions_in_parallel() {
        let now = Timestamp::UNIX_EPOCH;
        let job = json!({"spec": {"parallelism": 2, "completions": 3}});
        let counts = PodCounts::new(&job, &[pod("Succeeded"), pod("Succeeded")], now);
        assert_eq!(desired_active(&job, &counts), 1);
        assert_eq!(job_outcome(&job, &counts, now), None);
        let counts = PodCounts::new(
            &job,
            &[pod("Succeeded"), pod("Succeeded"), pod("Succeeded")],
            now,
        );
        assert_eq!(desired_active(&job, &counts), 0);
        assert_eq!(job_outcome(&job, &counts, now), Some(JobOutcome::Complete));
    }

    #[test]
    fn failures_end_a_job_at_its_limit() {
        let now = Timestamp::UNIX_EPOCH;
        let job = json!({"spec": {"completions": 1, "backoffLimit": 1}});
        let counts = PodCounts::new(&job, &[pod("Failed")], now);
        assert_eq!(job_outcome(&job, &counts, now), None);
        assert_eq!(backoff_left(&job, &counts, now), 10);
        let counts = PodCounts::new(&job, &[pod("Failed"), pod("Failed")], now);
        assert!(matches!(
            job_outcome(&job, &counts, now),
            Some(JobOutcome::Failed("BackoffLimitExceeded", _))
        ));
        let job = json!({"spec": {"activeDeadlineSeconds": 5},
            "status": {"startTime": "1969-12-31T23:59:50Z"}});
        let end = job_outcome(&job, &PodCounts::default(), now);
        assert!(matches!(
            end,
            Some(JobOutcome::Failed("DeadlineExceeded", _))
        ));
    }
}
