//! Table rows of workload kinds.

use jiff::Timestamp;
use serde_json::Value;

use super::{Printer, age, created, human_duration, int_at, labels_text, list_at, selector_text};
use crate::meta::{self, str_at};

fn join(object: &Value, path: &[&str], key: &str) -> Value {
    let texts: Vec<&str> = list_at(object, path)
        .iter()
        .map(|c| str_at(c, &[key]))
        .collect();
    texts.join(",").into()
}

const CONTAINERS: &[&str] = &["spec", "template", "spec", "containers"];

/// Returns containers, images and selector: the wide columns of most workloads.
fn wide(object: &Value) -> [Value; 3] {
    [
        join(object, CONTAINERS, "name"),
        join(object, CONTAINERS, "image"),
        selector_text(meta::at(object, &["spec", "selector"])).into(),
    ]
}

fn desired(object: &Value) -> i64 {
    meta::int_at(object, &["spec", "replicas"]).unwrap_or(1)
}

pub(super) const DEPLOYMENT: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Up-to-date", "string", 0),
        ("Available", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        let [containers, images, selector] = wide(o);
        vec![
            meta::name(o).into(),
            format!("{}/{}", int_at(o, &["status", "readyReplicas"]), desired(o)).into(),
            int_at(o, &["status", "updatedReplicas"]).into(),
            int_at(o, &["status", "availableReplicas"]).into(),
            created(o, now),
            containers,
            images,
            selector,
        ]
    },
};

pub(super) const REPLICA_SET: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Desired", "integer", 0),
        ("Current", "integer", 0),
        ("Ready", "integer", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: replica_cells,
};

fn replica_cells(o: &Value, now: Timestamp) -> Vec<Value> {
    let [containers, images, selector] = wide(o);
    vec![
        meta::name(o).into(),
        desired(o).into(),
        int_at(o, &["status", "replicas"]).into(),
        int_at(o, &["status", "readyReplicas"]).into(),
        created(o, now),
        containers,
        images,
        selector,
    ]
}

pub(super) const REPLICATION_CONTROLLER: Printer = Printer {
    heads: REPLICA_SET.heads,
    cells: |o, now| {
        let mut cells = replica_cells(o, now);
        cells.pop();
        cells.push(labels_text(meta::at(o, &["spec", "selector"])).into());
        cells
    },
};

pub(super) const STATEFUL_SET: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
    ],
    cells: |o, now| {
        let [containers, images, _] = wide(o);
        vec![
            meta::name(o).into(),
            format!("{}/{}", int_at(o, &["status", "readyReplicas"]), desired(o)).into(),
            created(o, now),
            containers,
            images,
        ]
    },
};

pub(super) const DAEMON_SET: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Desired", "integer", 0),
        ("Current", "integer", 0),
        ("Ready", "integer", 0),
        ("Up-to-date", "integer", 0),
        ("Available", "integer", 0),
        ("Node Selector", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        let [containers, images, selector] = wide(o);
        vec![
            meta::name(o).into(),
            int_at(o, &["status", "desiredNumberScheduled"]).into(),
            int_at(o, &["status", "currentNumberScheduled"]).into(),
            int_at(o, &["status", "numberReady"]).into(),
            int_at(o, &["status", "updatedNumberScheduled"]).into(),
            int_at(o, &["status", "numberAvailable"]).into(),
            labels_text(meta::at(o, &["spec", "template", "spec", "nodeSelector"])).into(),
            created(o, now),
            containers,
            images,
            selector,
        ]
    },
};

pub(super) const JOB: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Status", "string", 0),
        ("Completions", "string", 0),
        ("Duration", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        let [containers, images, selector] = wide(o);
        vec![
            meta::name(o).into(),
            job_status(o).into(),
            completions(o).into(),
            job_duration(o, now).into(),
            created(o, now),
            containers,
            images,
            selector,
        ]
    },
};

fn job_status(o: &Value) -> &'static str {
    let has = |kind: &str| {
        list_at(o, &["status", "conditions"])
            .iter()
            .any(|c| str_at(c, &["type"]) == kind && str_at(c, &["status"]) == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if meta::at(o, &["metadata", "deletionTimestamp"]).is_some() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(o: &Value) -> String {
    let succeeded = int_at(o, &["status", "succeeded"]);
    if let Some(n) = meta::int_at(o, &["spec", "completions"]) {
        return format!("{succeeded}/{n}");
    }
    match int_at(o, &["spec", "parallelism"]) {
        n if n > 1 => format!("{succeeded}/1 of {n}"),
        _ => format!("{succeeded}/1"),
    }
}

fn job_duration(o: &Value, now: Timestamp) -> String {
    let start = str_at(o, &["status", "startTime"]).parse::<Timestamp>();
    let end = str_at(o, &["status", "completionTime"]).parse::<Timestamp>();
    match (start, end) {
        (Err(_), _) => String::new(),
        (Ok(start), Ok(end)) => human_duration(end.as_second() - start.as_second()),
        (Ok(start), Err(_)) => human_duration(now.as_second() - start.as_second()),
    }
}

pub(super) const CRON_JOB: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Schedule", "string", 0),
        ("Timezone", "string", 0),
        ("Suspend", "boolean", 0),
        ("Active", "integer", 0),
        ("Last Schedule", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        const JOB: &[&str] = &[
            "spec",
            "jobTemplate",
            "spec",
            "template",
            "spec",
            "containers",
        ];
        let last = str_at(o, &["status", "lastScheduleTime"]);
        let suspended = meta::at(o, &["spec", "suspend"])
            .and_then(Value::as_bool)
            .unwrap_or(false);
        vec![
            meta::name(o).into(),
            str_at(o, &["spec", "schedule"]).into(),
            super::or_none(str_at(o, &["spec", "timeZone"])),
            if suspended { "True" } else { "False" }.into(),
            list_at(o, &["status", "active"]).len().into(),
            if last.is_empty() {
                "<none>".into()
            } else {
                age(last, now).into()
            },
            created(o, now),
            join(o, JOB, "name"),
            join(o, JOB, "image"),
            selector_text(meta::at(o, &["spec", "jobTemplate", "spec", "selector"])).into(),
        ]
    },
};
