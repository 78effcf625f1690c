//! CronJob controller: creates a Job at each scheduled time.

use super::cron::Schedule;
use super::queue::RequeueAfter;
use super::recorder::EventSubject;
use super::workload::Workload;
use super::{objects, pods};
use crate::rest::{Api, meta};
use crate::store::{Entry, Key};
use futures::FutureExt as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Annotation of a Job with its scheduled time.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The CronJob controller.
pub(super) const CRON_JOBS: Workload = Workload {
    name: "cronjob-controller",
    group: "batch",
    plural: "cronjobs",
    kind: "CronJob",
    owns: ("batch", "jobs"),
    adopts: false,
    also: || None,
    sync: |subject, key| sync(subject, key).boxed(),
};

type OwnedJob = (Arc<Entry>, Value);

/// Returns the type of the condition that reports the end of a Job, or `None` while it runs.
fn ended(job: &Value) -> Option<&'static str> {
    ["Complete", "Failed"].into_iter().find(|kind| {
        meta::condition(job, kind).is_some_and(|c| meta::text(c, &["status"]) == "True")
    })
}

/// Reconciles a CronJob: records ended jobs, starts a due one, and requeues until the next schedule.
async fn sync(subject: EventSubject<'_>, key: &Key) -> Result<RequeueAfter, ApiError> {
    let (api, resource, cron) = (subject.api, subject.resource, subject.object);
    let jobs = api.builtin("batch", "v1", "jobs")?;
    if meta::deleting(cron) {
        return Ok(None);
    }
    let owned = pods::owned(api, &jobs, &key.namespace, meta::uid(cron));
    record_ended(&subject, &owned).await;
    clean_up(api, cron, &jobs, &owned).await?;
    let mut active: Vec<OwnedJob> = owned;
    active.retain(|(_, job)| ended(job).is_none());
    let due = due(&subject).await;
    let mut started = None;
    if let Some((time, _)) = due.filter(|(_, late)| !late) {
        started = start(&subject, &jobs, &mut active, time).await?;
    }
    let references: Vec<Value> = active.iter().map(|(_, job)| job_reference(job)).collect();
    let last_success = meta::at(cron, &["status", "lastSuccessfulTime"]).cloned();
    let success = last_completion(api, cron, &jobs).or(last_success);
    pods::write_status(api, resource, key, meta::uid(cron), |status| {
        if references.is_empty() {
            status.remove("active");
        } else {
            status.insert("active".to_owned(), json!(references));
        }
        if let Some(time) = started {
            status.insert("lastScheduleTime".to_owned(), meta::time(time).into());
        }
        if let Some(time) = &success {
            status.insert("lastSuccessfulTime".to_owned(), time.clone());
        }
    })
    .await?;
    Ok(next(cron, api.clock().now()))
}

/// Parses the schedule and its time zone. `Err` is the reason and the message of an event.
fn schedule(cron: &Value) -> Result<(Schedule, TimeZone), (&'static str, String)> {
    let text = meta::text(cron, &["spec", "schedule"]);
    let schedule = Schedule::parse(text).ok_or_else(|| {
        let reason = format!("unparseable schedule: {text:?}");
        ("UnparseableSchedule", reason)
    })?;
    let zone = match meta::text(cron, &["spec", "timeZone"]) {
        "" => TimeZone::UTC,
        name => TimeZone::get(name).map_err(|e| {
            (
                "UnknownTimeZone",
                format!("invalid timeZone: {name:?}: {e}"),
            )
        })?,
    };
    Ok((schedule, zone))
}

/// Returns when to reconcile again: shortly after the next scheduled time. `None` if suspended or invalid.
fn next(cron: &Value, now: Timestamp) -> RequeueAfter {
    if suspended(cron) {
        return None;
    }
    let (schedule, zone) = schedule(cron).ok()?;
    let remaining = schedule.next(now, &zone)?.duration_since(now);
    // A little late rather than a little early: an early reconcile would delay the Job by a minute.
    Some(Duration::try_from(remaining).ok()? + Duration::from_millis(100))
}

fn suspended(cron: &Value) -> bool {
    meta::is_true(cron, &["spec", "suspend"])
}

/// Returns the latest scheduled time for which no Job was started yet, and whether its starting deadline has
/// passed.
async fn due(subject: &EventSubject<'_>) -> Option<(Timestamp, bool)> {
    let cron = subject.object;
    let (schedule, zone) = match schedule(cron) {
        Ok(read) => read,
        Err((reason, why)) => {
            subject.warning(reason, &why).await;
            return None;
        }
    };
    if suspended(cron) {
        return None;
    }
    let now = subject.api.clock().now();
    let time = |path: &[&str]| meta::text(cron, path).parse::<Timestamp>().ok();
    let since = time(&["status", "lastScheduleTime"])
        .or_else(|| time(&["metadata", "creationTimestamp"]))?;
    let due = schedule.last(now, &zone).filter(|due| *due > since)?;
    let deadline = meta::int_at(cron, &["spec", "startingDeadlineSeconds"]);
    let overdue = deadline.is_some_and(|limit| now.duration_since(due).as_secs() > limit);
    if overdue {
        let why = format!("Missed scheduled time to start a job: {}", meta::time(due));
        subject.warning("MissSchedule", &why).await;
    }
    Some((due, overdue))
}

/// Starts the Job of a scheduled time unless the concurrency policy forbids it. Returns the time if the Job
/// exists now.
async fn start(
    subject: &EventSubject<'_>,
    jobs: &Arc<Resource>,
    active: &mut Vec<OwnedJob>,
    time: Timestamp,
) -> Result<Option<Timestamp>, ApiError> {
    let cron = subject.object;
    match meta::text(cron, &["spec", "concurrencyPolicy"]) {
        "Forbid" if !active.is_empty() => {
            let reason = "Not starting job because prior execution is running and concurrency \
                       policy is Forbid";
            subject.normal("JobAlreadyActive", reason).await;
            return Ok(None);
        }
        "Replace" => {
            for (entry, _) in active.drain(..) {
                pods::delete(subject.api, jobs, &entry).await?;
                let description = format!("Deleted job {}", entry.key.name);
                subject.normal("SuccessfulDelete", &description).await;
            }
        }
        _ => {}
    }
    let job = build_job(subject.resource, cron, time);
    let namespace = meta::namespace(cron);
    match objects::create(subject.api, jobs, namespace, job).await {
        Ok(job) => {
            let description = format!("Created job {}", meta::name(&job));
            subject.normal("SuccessfulCreate", &description).await;
            let key = Key::new(namespace, meta::name(&job));
            if let Some(entry) = subject.api.store().get(&jobs.table, &key) {
                active.push((entry, job));
            }
            Ok(Some(time))
        }
        // An earlier reconcile created it but did not get to write the status.
        Err(e) if e.code == 409 => Ok(Some(time)),
        Err(e) => {
            let reason = format!("Error creating job: {e}");
            subject.warning("FailedCreate", &reason).await;
            Err(e)
        }
    }
}

/// Builds the Job of a CronJob for a scheduled time.
fn build_job(resource: &Resource, cron: &Value, time: Timestamp) -> Value {
    let template = meta::at(cron, &["spec", "jobTemplate"]);
    let template = template.cloned().unwrap_or_default();
    let mut metadata = Map::new();
    for part in ["labels", "annotations"] {
        if let Some(map) = meta::at(&template, &["metadata", part]).filter(|v| v.is_object()) {
            metadata.insert(part.to_owned(), map.clone());
        }
    }
    let annotations = metadata.entry("annotations").or_insert(json!({}));
    let zone = match schedule(cron) {
        Ok((_, zone)) => zone,
        Err(_) => TimeZone::UTC,
    };
    let shown = time
        .to_zoned(zone)
        .strftime("%Y-%m-%dT%H:%M:%S%:z")
        .to_string();
    meta::as_object(annotations).insert(SCHEDULED.to_owned(), shown.replace("+00:00", "Z").into());
    let name = format!("{}-{}", meta::name(cron), time.as_second() / 60);
    metadata.insert("name".to_owned(), name.into());
    let owner = pods::controller_reference(resource, cron);
    metadata.insert("ownerReferences".to_owned(), json!([owner]));
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": template.get("spec").cloned().unwrap_or_default(),
    })
}

fn job_reference(job: &Value) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "namespace": meta::namespace(job),
        "name": meta::name(job),
        "uid": meta::uid(job),
        "resourceVersion": meta::resource_version(job),
    })
}

/// Records events about Jobs in the active list that have ended or are missing.
async fn record_ended(subject: &EventSubject<'_>, owned: &[OwnedJob]) {
    let existing = meta::at(subject.object, &["status", "active"]).and_then(Value::as_array);
    for active in existing.into_iter().flatten() {
        let (name, uid) = (meta::text(active, &["name"]), meta::text(active, &["uid"]));
        match owned.iter().find(|(_, job)| meta::uid(job) == uid) {
            None => {
                let description = format!("Active job went missing: {name}");
                subject.normal("MissingJob", &description).await;
            }
            Some((_, job)) => {
                if let Some(how) = ended(job) {
                    let description = format!("Saw completed job: {name}, condition: {how}");
                    subject.normal("SawCompletedJob", &description).await;
                }
            }
        }
    }
}

/// Returns when the last Job completed.
fn last_completion(api: &Api, cron: &Value, jobs: &Resource) -> Option<Value> {
    let owned = pods::owned(api, jobs, meta::namespace(cron), meta::uid(cron));
    let times = owned.iter().filter_map(|(_, job)| {
        let time = meta::text(job, &["status", "completionTime"]);
        (!time.is_empty()).then(|| time.to_owned())
    });
    times.max().map(Value::from)
}

/// Deletes the oldest finished Jobs beyond the history limits.
async fn clean_up(
    api: &Api,
    cron: &Value,
    jobs: &Arc<Resource>,
    owned: &[OwnedJob],
) -> Result<(), ApiError> {
    for (how, limit, default) in [
        ("Complete", "successfulJobsHistoryLimit", 3),
        ("Failed", "failedJobsHistoryLimit", 1),
    ] {
        let limit = meta::at(cron, &["spec", limit])
            .and_then(Value::as_u64)
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default);
        let mut finished: Vec<&OwnedJob> = owned
            .iter()
            .filter(|(_, job)| ended(job) == Some(how))
            .collect();
        finished.sort_by_key(|(_, job)| meta::text(job, &["status", "startTime"]).to_owned());
        let surplus = finished.len().saturating_sub(limit);
        for (entry, _) in &finished[..surplus] {
            pods::delete(api, jobs, entry).await?;
        }
    }
    Ok(())
}
