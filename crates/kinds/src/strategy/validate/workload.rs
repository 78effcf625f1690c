//! Validation of kinds that create pods from a template.

use serde_json::Value;

use super::metadata::validate_labels;
use super::{Errors, pod};
use crate::meta::{self, str_at};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::status::FieldError;

/// Validates that the number `spec.<key>` is not negative.
fn check_not_negative(object: &Value, key: &str, errors: &mut Errors) {
    if let Some(n) = meta::int_at(object, &["spec", key])
        && n < 0
    {
        errors.push(FieldError::invalid(
            format!("spec.{key}"),
            n,
            "must be greater than or equal to 0",
        ));
    }
}

fn template(template: Option<&Value>, path: &str, errors: &mut Errors) {
    let Some(template) = template.filter(|t| t.is_object()) else {
        errors.push(FieldError::required(path, ""));
        return;
    };
    if let Some(labels) = meta::at(template, &["metadata", "labels"]) {
        validate_labels(labels, &format!("{path}.metadata.labels"), errors);
    }
    pod::spec(template, &format!("{path}.spec"), errors);
}

/// Checks that the selector exists, is not empty and matches the template.
fn selector(object: &Value, plain: bool, errors: &mut Errors) {
    let raw = meta::at(object, &["spec", "selector"]);
    let empty = raw.and_then(Value::as_object).is_none_or(|m| m.is_empty());
    if empty {
        errors.push(FieldError::required("spec.selector", ""));
        return;
    }
    let parsed = if plain {
        Ok(LabelSelector::from_map(raw.unwrap_or(&Value::Null)))
    } else {
        LabelSelector::from_json(raw)
    };
    let template = meta::at(object, &["spec", "template"]).unwrap_or(&Value::Null);
    match parsed {
        Err(e) => errors.push(FieldError::invalid(
            "spec.selector",
            raw.cloned().unwrap_or_default(),
            e.0,
        )),
        Ok(s) if !s.matches_object(template) => errors.push(FieldError::invalid(
            "spec.template.metadata.labels",
            meta::at(template, &["metadata", "labels"])
                .cloned()
                .unwrap_or_default(),
            "`selector` does not match template `labels`",
        )),
        Ok(_) => {}
    }
}

fn immutable(new: &Value, old: &Value, key: &str, errors: &mut Errors) {
    let path = ["spec", key];
    let (before, after) = (meta::at(old, &path), meta::at(new, &path));
    if before != after {
        errors.push(FieldError::invalid(
            format!("spec.{key}"),
            after.cloned().unwrap_or_default(),
            "field is immutable",
        ));
    }
}

/// Validates Deployments, ReplicaSets, StatefulSets, DaemonSets, ReplicationControllers.
pub(super) fn replicated(
    resource: &Resource,
    object: &Value,
    old: Option<&Value>,
    errors: &mut Errors,
) {
    let controller = resource.is("", "replicationcontrollers");
    for key in [
        "replicas",
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
    ] {
        check_not_negative(object, key, errors);
    }
    selector(object, controller, errors);
    template(
        meta::at(object, &["spec", "template"]),
        "spec.template",
        errors,
    );
    let policy = str_at(object, &["spec", "template", "spec", "restartPolicy"]);
    if !matches!(policy, "" | "Always") {
        errors.push(FieldError::not_supported(
            "spec.template.spec.restartPolicy",
            policy,
            &["Always"],
        ));
    }
    if let Some(old) = old
        && !controller
    {
        immutable(object, old, "selector", errors);
    }
}

/// Validates the spec of a Job.
fn job_spec(spec: &Value, path: &str, errors: &mut Errors) {
    for key in [
        "parallelism",
        "completions",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ] {
        if let Some(n) = spec.get(key).and_then(Value::as_i64)
            && n < 0
        {
            errors.push(FieldError::invalid(
                format!("{path}.{key}"),
                n,
                "must be greater than or equal to 0",
            ));
        }
    }
    template(spec.get("template"), &format!("{path}.template"), errors);
    let policy = str_at(spec, &["template", "spec", "restartPolicy"]);
    let at = format!("{path}.template.spec.restartPolicy");
    match policy {
        "OnFailure" | "Never" => {}
        "" | "Always" => {
            errors.push(FieldError::required(
                at,
                "valid values: \"OnFailure\", \"Never\"",
            ));
        }
        other => {
            errors.push(FieldError::not_supported(
                at,
                other,
                &["OnFailure", "Never"],
            ));
        }
    }
    if str_at(spec, &["completionMode"]) == "Indexed" && spec.get("completions").is_none() {
        errors.push(FieldError::required(
            format!("{path}.completions"),
            "when completion mode is Indexed",
        ));
    }
}

/// Validates a Job, and with `old` that an update leaves its immutable fields unchanged.
pub(super) fn job(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let Some(spec) = object.get("spec") else {
        errors.push(FieldError::required("spec", ""));
        return;
    };
    job_spec(spec, "spec", errors);
    if let Some(old) = old {
        for key in ["selector", "completionMode"] {
            immutable(object, old, key, errors);
        }
        let suspended = meta::at(old, &["spec", "suspend"])
            .and_then(Value::as_bool)
            .unwrap_or(false);
        if !suspended {
            immutable(object, old, "template", errors);
        }
        if str_at(object, &["spec", "completionMode"]) != "Indexed" {
            immutable(object, old, "completions", errors);
        }
    }
}

/// Validates a CronJob.
pub(super) fn cron_job(object: &Value, errors: &mut Errors) {
    let schedule = str_at(object, &["spec", "schedule"]);
    if schedule.is_empty() {
        errors.push(FieldError::required("spec.schedule", ""));
    } else if !schedule.starts_with('@') && schedule.split_whitespace().count() != 5 {
        errors.push(FieldError::invalid(
            "spec.schedule",
            schedule,
            format!(
                "expected exactly 5 fields, found {}",
                schedule.split_whitespace().count()
            ),
        ));
    }
    if let Some(zone) = meta::at(object, &["spec", "timeZone"]).and_then(Value::as_str) {
        let detail = match zone {
            "" => Some("timeZone must be nil or non-empty string".to_owned()),
            _ if jiff::tz::TimeZone::get(zone).is_err() => {
                Some(format!("unknown time zone {zone}"))
            }
            _ => None,
        };
        if let Some(detail) = detail {
            errors.push(FieldError::invalid("spec.timeZone", zone, detail));
        }
    }
    let policy = str_at(object, &["spec", "concurrencyPolicy"]);
    if !matches!(policy, "Allow" | "Forbid" | "Replace") {
        errors.push(FieldError::not_supported(
            "spec.concurrencyPolicy",
            policy,
            &["Allow", "Forbid", "Replace"],
        ));
    }
    let empty = Value::Null;
    let spec = meta::at(object, &["spec", "jobTemplate", "spec"]).unwrap_or(&empty);
    job_spec(spec, "spec.jobTemplate.spec", errors);
}
