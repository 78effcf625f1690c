//! Checks of the ConfigMap `slo-controller-config`, by the parser and the webhook of the manager.

use super::document::{FaultPlace, PlaceTarget, join, lookup};
use super::fault::{Fault, Severity, suggest};
use super::metadata::read_fault;
use koord_api::configmap::{
    ConfigError, ConfigProblem, FieldError, NAME, SloControllerConfig, field_names, keys,
};
use koord_api::labels;
use koord_manager::webhook::offline;
use serde_json::Value;
use std::collections::BTreeMap;

/// Lists of overrides in sections.
const OVERRIDES: [&str; 2] = ["nodeConfigs", "nodeStrategies"];

/// Returns true if a ConfigMap holds these settings: by its name, its label or its keys.
pub(super) fn is_likely(object: &Value) -> bool {
    let metadata = &object["metadata"];
    // Koordinator's manifests without Helm put a prefix in front of the name.
    let name = metadata["name"].as_str().unwrap_or_default();
    let has_key = |key: &&str| !object["data"][*key].is_null();
    name.ends_with(NAME)
        || metadata["labels"][labels::CONFIGMAP_TYPE] == labels::CONFIGMAP_TYPE_SLO_CONTROLLER
        || keys::ALL.iter().any(has_key)
}

/// Returns the faults of the settings.
pub(super) fn faults(object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let data = super::metadata::texts(&object["data"]);
    for key in data.keys().filter(|key| !keys::ALL.contains(&key.as_str())) {
        if let Some(close) = suggest(key, keys::ALL.into_iter()) {
            let path = format!("data.{key}");
            let message = format!("{path}: there is no such key; it has no effect");
            let fault = Fault::error(FaultPlace::name(path), message);
            faults.push(fault.with_hint(format!("did you mean {close}?")));
        }
    }
    let (_, report) = SloControllerConfig::parse(&data);
    let errors = [
        (Severity::Error, report.errors),
        (Severity::Error, report.warnings),
        (Severity::Error, report.left_out),
        (Severity::Warning, report.doubts),
        (Severity::Warning, report.remarks),
    ];
    for (severity, errors) in errors {
        for error in errors {
            faults.push(config_fault(&data, severity, &error));
        }
    }
    for (key, problem, is_refused) in offline::settings_problems(&data) {
        let path = format!("data.{key}");
        let text = data.get(key).map(String::as_str).unwrap_or_default();
        let section: Value = serde_json::from_str(text).unwrap_or_default();
        // Most name an override.
        let name = problem
            .split_once("override \"")
            .and_then(|(_, it)| it.split_once('"'));
        let item = name.map(|(name, _)| override_path(&section, name));
        let place = FaultPlace::value(item.unwrap_or_default()).inside(path);
        let message = format!("data.{problem}");
        faults.push(match is_refused {
            true => Fault::error(place, message),
            false => Fault::warning(place, message),
        });
    }
    faults
}

fn config_fault(data: &BTreeMap<String, String>, severity: Severity, error: &ConfigError) -> Fault {
    let key = error.key;
    let text = data.get(key).map(String::as_str).unwrap_or_default();
    let path = format!("data.{key}");
    let section: Value = serde_json::from_str(text).unwrap_or_default();
    let fault = match &error.problem {
        ConfigProblem::Read(error) => read_fault(error, &path),
        ConfigProblem::Field(field) if field.reason.starts_with("there is no such field") => {
            let parent = field.field.rsplit_once('.').map_or("", |it| it.0);
            let names = field_names(key, parent);
            let mut fault = Fault::unknown_field(&field.field, names.iter().map(String::as_str));
            fault.message = format!("{path}: {}; it has no effect", fault.message);
            return fault.inside(&path);
        }
        ConfigProblem::Field(field) => {
            let place = field_place(&section, &["", "clusterStrategy"], field);
            Fault::error(place, format!("data.{error}")).inside(&path)
        }
        ConfigProblem::NodeField { name, error: field } => {
            let item = override_path(&section, name);
            let place = field_place(&section, &[&item, "clusterStrategy", ""], field);
            Fault::error(place, format!("data.{error}")).inside(&path)
        }
        ConfigProblem::Selector { name, .. } => {
            let item = override_path(&section, name);
            let place = FaultPlace::value(join(&item, "nodeSelector"));
            Fault::error(place, format!("data.{error}")).inside(&path)
        }
    };
    Fault { severity, ..fault }
}

/// Returns the place of a field, which may be below any of `prefixes`.
fn field_place(section: &Value, prefixes: &[&str], field: &FieldError) -> FaultPlace {
    let mut paths: Vec<String> = prefixes.iter().map(|it| join(it, &field.field)).collect();
    // A default is in the section's beginning, and one of an override in the override.
    if !paths.iter().any(|path| lookup(section, path).is_some()) {
        paths = vec![prefixes.first().copied().unwrap_or_default().to_owned()];
    }
    FaultPlace::from(PlaceTarget::Paths(paths))
}

/// Returns the path of the override with this name, or with this number as `#2`.
fn override_path(section: &Value, name: &str) -> String {
    for list in OVERRIDES {
        let Some(items) = section[list].as_array() else {
            continue;
        };
        let by_name = items.iter().position(|item| item["name"] == name);
        let by_number = || name.strip_prefix('#')?.parse::<usize>().ok();
        if let Some(at) = by_name.or_else(by_number) {
            return format!("{list}[{at}]");
        }
    }
    String::new()
}
