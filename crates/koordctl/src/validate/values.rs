//! Checks of values of the Helm chart, by its schema.

use super::document::FaultPlace;
use super::fault::{Fault, suggest};
use crate::install;
use serde_json::Value;

/// Returns true if most names of a document without `apiVersion` and `kind` are those of the chart's values.
pub(super) fn is_likely(document: &Value) -> bool {
    let names = install::value_names();
    let members = document.as_object().into_iter().flatten();
    let (own, others): (Vec<_>, Vec<_>) = members.partition(|(name, _)| names.contains(name));
    own.len() > others.len()
}

/// Returns the faults of values.
pub(super) fn faults(values: &Value) -> Vec<Fault> {
    let faults = match install::value_faults(values) {
        Ok(faults) => faults,
        Err(error) => return vec![Fault::error(FaultPlace::value(""), format!("{error:#}"))],
    };
    let faults = faults.into_iter().map(|text| {
        let (pointer, message) = text
            .strip_prefix("at '")
            .and_then(|text| text.split_once("': "))
            .unwrap_or(("", &text));
        let path = path_of(pointer);
        if message == "no such value" {
            let parent = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
            let names = install::value_names_at(parent);
            let name = pointer.rsplit('/').next().unwrap_or_default();
            let close = suggest(name, names.iter().map(String::as_str));
            let mut fault = Fault::error(FaultPlace::name(&*path), format!("{path}: {message}"));
            fault.hint = close.map(|it| format!("did you mean {it}?"));
            return fault;
        }
        Fault::error(FaultPlace::value(&*path), format!("{path}: {message}"))
    });
    faults.collect()
}

/// Returns the path of a pointer such as `/koordlet/log/0`.
fn path_of(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').filter(|it| !it.is_empty()) {
        match part.parse::<usize>() {
            Ok(index) => path.push_str(&format!("[{index}]")),
            Err(_) => path = super::document::join(&path, part),
        }
    }
    path
}
