//! Events of koordlet and PodMigrationJobs: lists of a limited size, at most every few seconds.

use k8s_openapi::api::core::v1::Event;
use koord_api::scheduling::PodMigrationJob;
use koord_kube::api::ListParams;
use koord_kube::{Api, Client, Error};
use serde::Serialize;
use tokio::sync::Mutex;

/// Maximum number of objects of a list.
const LIST_LIMIT: u32 = 500;
/// Seconds for which a list is reused.
const REUSE_SECONDS: i64 = 15;

/// Newest events of koordlet: guard decisions, evictions, warnings.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct RecentEvents {
    /// Reason why the events cannot be listed; `None` if they are listed.
    error: Option<String>,
    /// True if the API server has more than were listed.
    truncated: bool,
    items: Vec<EventRow>,
}

/// Newest PodMigrationJobs.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct RecentMoves {
    /// Reason why the jobs cannot be listed; `None` if they are listed.
    error: Option<String>,
    /// True if the API server has more than were listed.
    truncated: bool,
    items: Vec<MoveRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct EventRow {
    /// Time of the last occurrence in Unix seconds.
    at: i64,
    severity: String,
    reason: String,
    /// Kind and name of the object.
    about: String,
    message: String,
    count: i32,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct MoveRow {
    /// Creation in Unix seconds.
    at: i64,
    job: String,
    pod: String,
    phase: String,
    /// The node that the pod moves to; empty if none is reserved.
    target: String,
    reason: String,
    message: String,
}

/// The lists, and when they were fetched.
pub(super) struct Remote {
    client: Client,
    lists: Mutex<Option<(i64, RecentEvents, RecentMoves)>>,
}

impl Remote {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            lists: Mutex::new(None),
        }
    }

    /// Returns the lists, fetched again if they are older than [`REUSE_SECONDS`]. Requests at the same time
    /// share one fetch.
    pub(super) async fn get(&self, now: i64) -> (RecentEvents, RecentMoves) {
        let mut lists = self.lists.lock().await;
        if let Some((at, events, moves)) = &*lists
            && (0..REUSE_SECONDS).contains(&now.saturating_sub(*at))
        {
            return (events.clone(), moves.clone());
        }
        let (events, moves) = tokio::join!(self.events(), self.moves());
        *lists = Some((now, events.clone(), moves.clone()));
        (events, moves)
    }

    async fn events(&self) -> RecentEvents {
        let events: Api<Event> = Api::all(self.client.clone());
        let params = ListParams::default()
            .fields("source=koordlet")
            .limit(LIST_LIMIT);
        match events.list(&params).await {
            Ok(list) => RecentEvents {
                error: None,
                truncated: list.metadata.continue_.is_some_and(|more| !more.is_empty()),
                items: newest(list.items.into_iter().map(event_row), |row| row.at),
            },
            Err(error) => RecentEvents {
                error: Some(problem(&error, "events")),
                ..RecentEvents::default()
            },
        }
    }

    async fn moves(&self) -> RecentMoves {
        let jobs: Api<PodMigrationJob> = Api::all(self.client.clone());
        let params = ListParams::default().limit(LIST_LIMIT);
        match jobs.list(&params).await {
            Ok(list) => RecentMoves {
                error: None,
                truncated: list.metadata.continue_.is_some_and(|more| !more.is_empty()),
                items: newest(list.items.into_iter().map(move_row), |row| row.at),
            },
            Err(error) => RecentMoves {
                error: Some(problem(&error, "podmigrationjobs")),
                ..RecentMoves::default()
            },
        }
    }
}

/// Returns the newest rows, newest first.
fn newest<T>(rows: impl Iterator<Item = T>, at: fn(&T) -> i64) -> Vec<T> {
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|row| std::cmp::Reverse(at(row)));
    rows.truncate(super::model::MAX_ROWS);
    rows
}

/// Returns a sentence for the page; the API server's own text may name users.
fn problem(error: &Error, resource: &str) -> String {
    match error {
        Error::Api(status) if status.code == 403 => {
            format!("missing permission: list {resource} (docs/dashboard.md)")
        }
        Error::Api(status) if status.code == 404 => format!("{resource} are not installed"),
        _ => format!("failed to list {resource}"),
    }
}

fn event_row(event: Event) -> EventRow {
    let micro = event.event_time.map(|time| time.0);
    let times = [
        event.last_timestamp.map(|time| time.0),
        event
            .series
            .as_ref()
            .and_then(|series| Some(series.last_observed_time.as_ref()?.0)),
        micro,
        event.metadata.creation_timestamp.map(|time| time.0),
    ];
    let at = times.into_iter().flatten().max();
    let about = event.involved_object;
    let text = Option::unwrap_or_default;
    let name = match about.namespace.filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{namespace}/{}", text(about.name)),
        None => text(about.name),
    };
    EventRow {
        at: at.map_or(0, |at| at.as_second()),
        severity: text(event.type_),
        reason: text(event.reason),
        about: format!("{} {name}", text(about.kind)),
        message: text(event.message),
        count: event
            .series
            .and_then(|series| series.count)
            .or(event.count)
            .unwrap_or(1),
    }
}

fn move_row(job: PodMigrationJob) -> MoveRow {
    let pod = job.spec.pod_ref;
    let status = job.status.unwrap_or_default();
    let created = job.metadata.creation_timestamp;
    let namespace = pod.namespace.unwrap_or_default();
    MoveRow {
        at: created.map_or(0, |time| time.0.as_second()),
        job: job.metadata.name.unwrap_or_default(),
        pod: format!("{namespace}/{}", pod.name.unwrap_or_default()),
        phase: status
            .phase
            .map_or_else(|| "Pending".to_owned(), |phase| phase.to_string()),
        target: status.node_name,
        reason: status.reason,
        message: status.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_and_jobs_become_rows() {
        let event: Event = serde_json::from_value(json!({
            "metadata": {"name": "e"}, "type": "Normal", "reason": "PressureGuardConfirmed",
            "involvedObject": {"kind": "Node", "name": "n"}, "message": "held",
            "firstTimestamp": "1970-01-01T00:00:01Z", "lastTimestamp": "1970-01-01T00:00:09Z", "count": 3,
        }))
        .unwrap();
        let row = event_row(event);
        assert_eq!((row.at, row.count, &*row.about), (9, 3, "Node n"));
        let job: PodMigrationJob = serde_json::from_value(json!({
            "metadata": {"name": "j", "creationTimestamp": "1970-01-01T00:00:05Z"},
            "spec": {"podRef": {"namespace": "a", "name": "p"}},
            "status": {"phase": "Succeeded", "nodeName": "n2"},
        }))
        .unwrap();
        let row = move_row(job);
        assert_eq!(
            (row.at, &*row.pod, &*row.phase, &*row.target),
            (5, "a/p", "Succeeded", "n2")
        );
    }

    #[test]
    fn refused_list_is_reported_without_the_servers_text() {
        use koord_kube::kube_core::Status;
        for (code, text) in [
            (403, "missing permission: list events (docs/dashboard.md)"),
            (404, "events are not installed"),
            (500, "failed to list events"),
        ] {
            let status = Status::failure("User \"a\" cannot", "").with_code(code);
            assert_eq!(problem(&Error::Api(status.boxed()), "events"), text);
        }
    }

    #[test]
    fn newest_rows_are_kept() {
        let rows = newest(0..1000, |at| *at);
        assert_eq!((rows.len(), rows[0]), (super::super::model::MAX_ROWS, 999));
    }
}
