//! Jobs: pods that run to their end, so many times.

use super::pods;
use super::queue::{Again, Reconcile, Source};
use super::recorder::About;
use super::replicaset::remove_condition;
use crate::kinds::status::ApiError;
use crate::rest::{Api, DeleteOptions, Propagation, meta};
use crate::store::{Key, TableId};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Annotation and label with the index of a pod of an Indexed job.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Pause before the first replacement of a failed pod; doubles up to [`MAX_BACKOFF`].
const BACKOFF: i64 = 10;
/// Longest pause, seconds.
const MAX_BACKOFF: i64 = 600;
/// Pods made in one go: a job that wants very many must not keep the others waiting.
const BURST: usize = 500;

/// Runs Jobs.
pub(super) struct Jobs;

impl Reconcile for Jobs {
    fn name(&self) -> &'static str {
        "job-controller"
    }

    fn sources(&self) -> Vec<Source> {
        vec![
            Source::own("batch", "jobs"),
            Source {
                table: TableId::new("", "pods"),
                keys: |_, entry| pods::controller_key(entry, "Job"),
            },
        ]
    }

    fn reconcile<'a>(
        &'a self,
        api: &'a Api,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Again, ApiError>> {
        sync(api, key).boxed()
    }
}

/// What the pods of a job say.
#[derive(Debug, Default)]
struct Tally {
    active: usize,
    ready: usize,
    succeeded: i64,
    failed: i64,
    /// Indices that succeeded, and those that have an active pod.
    done: BTreeSet<i64>,
    running: BTreeSet<i64>,
    last_failure: Option<Timestamp>,
}

impl Tally {
    fn of(pods: &[Value], now: Timestamp) -> Self {
        let mut out = Self::default();
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
                    out.failed += 1;
                    let at = ended_at(pod).unwrap_or(now);
                    out.last_failure = Some(out.last_failure.map_or(at, |t| t.max(at)));
                }
                _ if meta::deleting(pod) => {}
                _ => {
                    out.active += 1;
                    out.ready += usize::from(pods::ready(pod));
                    out.running.extend(index);
                }
            }
        }
        out
    }
}

/// When the last container of a pod ended.
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

fn number(job: &Value, key: &str) -> Option<i64> {
    meta::at(job, &["spec", key]).and_then(Value::as_i64)
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Complete,
    Failed(&'static str, String),
}

/// Whether the job has ended, and how.
fn end_of(job: &Value, tally: &Tally, now: Timestamp) -> Option<End> {
    let limit = number(job, "backoffLimit").unwrap_or(6);
    if tally.failed > limit {
        return Some(End::Failed(
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit".to_owned(),
        ));
    }
    let started: Option<Timestamp> = meta::text(job, &["status", "startTime"]).parse().ok();
    if let (Some(seconds), Some(started)) = (number(job, "activeDeadlineSeconds"), started)
        && now.duration_since(started).as_secs() >= seconds
    {
        return Some(End::Failed(
            "DeadlineExceeded",
            "Job was active longer than specified deadline".to_owned(),
        ));
    }
    let succeeded = if indexed(job) {
        i64::try_from(tally.done.len()).unwrap_or(i64::MAX)
    } else {
        tally.succeeded
    };
    match number(job, "completions") {
        Some(n) => (succeeded >= n).then_some(End::Complete),
        // A work queue is empty when one pod says so and the others have ended.
        None => (succeeded > 0 && tally.active == 0).then_some(End::Complete),
    }
}

fn indexed(job: &Value) -> bool {
    meta::text(job, &["spec", "completionMode"]) == "Indexed"
}

/// How many pods shall be active now.
fn wanted(job: &Value, tally: &Tally) -> usize {
    let parallel = number(job, "parallelism").unwrap_or(1).max(0);
    let wanted = match number(job, "completions") {
        Some(n) => {
            let done = if indexed(job) {
                i64::try_from(tally.done.len()).unwrap_or(i64::MAX)
            } else {
                tally.succeeded
            };
            parallel.min((n - done).max(0))
        }
        None if tally.succeeded > 0 => i64::try_from(tally.active).unwrap_or(0).min(parallel),
        None => parallel,
    };
    usize::try_from(wanted).unwrap_or(0)
}

/// Seconds until a failed pod may be replaced.
fn backoff_left(tally: &Tally, now: Timestamp) -> i64 {
    let Some(last) = tally.last_failure else {
        return 0;
    };
    let exponent = u32::try_from((tally.failed - 1).clamp(0, 16)).unwrap_or(16);
    let pause = BACKOFF.saturating_mul(1 << exponent).min(MAX_BACKOFF);
    (pause - now.duration_since(last).as_secs()).max(0)
}

async fn sync(api: &Api, key: &Key) -> Result<Again, ApiError> {
    let jobs = api.builtin("batch", "v1", "jobs")?;
    let pods_resource = api.builtin("", "v1", "pods")?;
    let Some(entry) = api.store().get(&jobs.table, key) else {
        return Ok(None);
    };
    let job = entry.value();
    if meta::deleting(&job) {
        return Ok(None);
    }
    let now = api.clock().now();
    let finished = ["Complete", "Failed"]
        .iter()
        .any(|c| meta::condition(&job, c).is_some_and(|c| meta::text(c, &["status"]) == "True"));
    let uid = meta::uid(&job).to_owned();
    let mut owned = pods::owned(api, &pods_resource, &key.namespace, &uid);
    let values: Vec<Value> = owned.iter().map(|(_, v)| v.clone()).collect();
    let mut tally = Tally::of(&values, now);
    if finished {
        return expire(api, key, &jobs, &job, &uid, now).await;
    }
    let suspended = meta::at(&job, &["spec", "suspend"]).and_then(Value::as_bool) == Some(true);
    // The times of the job begin with its first sync.
    let mut job_with_start = job.clone();
    if meta::text(&job, &["status", "startTime"]).is_empty() && !suspended {
        meta::section(&mut job_with_start, "status")
            .insert("startTime".to_owned(), meta::time(now).into());
    }
    let end = end_of(&job_with_start, &tally, now);
    let target = if end.is_some() || suspended {
        0
    } else {
        wanted(&job, &tally)
    };
    let about = About {
        api,
        resource: &jobs,
        object: &job,
        component: "job-controller",
    };
    let mut again = None;
    if tally.active > target {
        owned.retain(|(_, v)| pods::active(v));
        owned.sort_by_cached_key(|(_, v)| pods::deletion_order(v));
        for (entry, _) in owned.iter().take(tally.active - target) {
            pods::delete_of(&about, &pods_resource, entry).await?;
        }
        tally.active = target;
    }
    let mut failure = None;
    if tally.active < target {
        let pause = backoff_left(&tally, now);
        if pause > 0 {
            again = Some(Duration::from_secs(pause.unsigned_abs()));
        } else {
            let first = target.min(tally.active + BURST);
            failure = start(&about, &pods_resource, &mut tally, first).await.err();
            if first < target {
                again = Some(Duration::ZERO);
            }
        }
    }
    if end.is_none()
        && let Some(seconds) = number(&job, "activeDeadlineSeconds")
    {
        let left = Duration::from_secs(seconds.max(1).unsigned_abs());
        again = Some(again.map_or(left, |a: Duration| a.min(left)));
    }
    pods::write_status(api, &jobs, key, &uid, |status| {
        write(status, &tally, end.as_ref(), suspended, now);
    })
    .await?;
    if end.is_some() && number(&job, "ttlSecondsAfterFinished").is_some() {
        again = Some(Duration::from_secs(1));
    }
    match failure {
        Some(e) => Err(e),
        None => Ok(again),
    }
}

/// Creates the missing pods.
async fn start(
    about: &About<'_>,
    pods_resource: &std::sync::Arc<crate::kinds::Resource>,
    tally: &mut Tally,
    target: usize,
) -> Result<(), ApiError> {
    let job = about.object;
    let template = meta::at(job, &["spec", "template"])
        .cloned()
        .unwrap_or_default();
    let completions = number(job, "completions").unwrap_or(i64::MAX);
    while tally.active < target {
        let mut pod = pods::from_template(&template, about.resource, job);
        if indexed(job) {
            let Some(index) =
                (0..completions).find(|i| !tally.done.contains(i) && !tally.running.contains(i))
            else {
                return Ok(());
            };
            mark_index(&mut pod, meta::name(job), index);
            tally.running.insert(index);
        }
        pods::create_of(about, pods_resource, pod).await?;
        tally.active += 1;
    }
    Ok(())
}

/// Tells a pod of an Indexed job its index: label, annotation, name, host name, environment.
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

fn write(
    status: &mut Map<String, Value>,
    tally: &Tally,
    end: Option<&End>,
    suspended: bool,
    now: Timestamp,
) {
    // Pods that somebody removed after they ended still count.
    let kept = |status: &Map<String, Value>, key: &str, n: i64| {
        n.max(status.get(key).and_then(Value::as_i64).unwrap_or(0))
    };
    let (succeeded, failed) = (
        kept(status, "succeeded", tally.succeeded),
        kept(status, "failed", tally.failed),
    );
    let active = i64::try_from(tally.active).unwrap_or(0);
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
        json!(if end.is_some() { 0 } else { tally.ready }),
    );
    status.insert("terminating".to_owned(), json!(0));
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
        Some(End::Complete) => {
            let message = "Reached expected number of succeeded pods";
            let reason = "CompletionsReached";
            meta::set_condition(status, "SuccessCriteriaMet", "True", reason, message, now);
            meta::set_condition(status, "Complete", "True", reason, message, now);
            status
                .entry("completionTime")
                .or_insert_with(|| meta::time(now).into());
        }
        Some(End::Failed(reason, message)) => {
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
    jobs: &std::sync::Arc<crate::kinds::Resource>,
    job: &Value,
    uid: &str,
    now: Timestamp,
) -> Result<Again, ApiError> {
    let Some(ttl) = number(job, "ttlSecondsAfterFinished") else {
        return Ok(None);
    };
    let finished: Timestamp = ["Complete", "Failed"]
        .iter()
        .filter_map(|c| meta::condition(job, c))
        .filter_map(|c| meta::text(c, &["lastTransitionTime"]).parse().ok())
        .max()
        .unwrap_or(now);
    let left = ttl - now.duration_since(finished).as_secs();
    if left > 0 {
        return Ok(Some(Duration::from_secs(left.unsigned_abs())));
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
    fn a_job_runs_what_is_left_in_parallel() {
        let now = Timestamp::UNIX_EPOCH;
        let job = json!({"spec": {"parallelism": 2, "completions": 3}});
        let tally = Tally::of(&[pod("Succeeded"), pod("Succeeded")], now);
        assert_eq!(wanted(&job, &tally), 1);
        assert_eq!(end_of(&job, &tally, now), None);
        let tally = Tally::of(&[pod("Succeeded"), pod("Succeeded"), pod("Succeeded")], now);
        assert_eq!(wanted(&job, &tally), 0);
        assert_eq!(end_of(&job, &tally, now), Some(End::Complete));
    }

    #[test]
    fn failures_end_a_job_at_its_limit() {
        let now = Timestamp::UNIX_EPOCH;
        let job = json!({"spec": {"completions": 1, "backoffLimit": 1}});
        let tally = Tally::of(&[pod("Failed")], now);
        assert_eq!(end_of(&job, &tally, now), None);
        assert_eq!(backoff_left(&tally, now), 10);
        let tally = Tally::of(&[pod("Failed"), pod("Failed")], now);
        assert!(matches!(
            end_of(&job, &tally, now),
            Some(End::Failed("BackoffLimitExceeded", _))
        ));
        let job = json!({"spec": {"activeDeadlineSeconds": 5},
            "status": {"startTime": "1969-12-31T23:59:50Z"}});
        let end = end_of(&job, &Tally::default(), now);
        assert!(matches!(end, Some(End::Failed("DeadlineExceeded", _))));
    }
}
