//! Checks of the configurations of koord-scheduler and koord-descheduler, by their parsers.

use super::document::{FaultPlace, PlaceTarget, join, lookup};
use super::fault::{Fault, suggest};
use koord_descheduler::config as descheduler;
use koord_kube::component_config::ConfigError;
use koord_scheduler::config as scheduler;
use koord_scheduler::framework::{BuildContext, BuildError, ProfileError, Profiles};
use serde_json::Value;

/// Maximum number of faults of one configuration: each costs a parse.
const MAX_FAULTS: usize = 20;

/// Returns the faults of a configuration; `None` if `kind` is none.
pub(super) fn faults(object: &Value, kind: &str) -> Option<Vec<Fault>> {
    match kind {
        "KubeSchedulerConfiguration" => Some(scheduler_faults(object)),
        "DeschedulerConfiguration" => Some(descheduler_faults(object)),
        _ => None,
    }
}

/// Returns the faults that `parse` finds. It stops at the first, so each is removed before the next call.
fn all_faults<T>(
    object: &Value,
    parse: impl Fn(&Value) -> Result<T, ConfigError>,
) -> (Vec<Fault>, Option<T>) {
    let mut faults: Vec<Fault> = Vec::new();
    let mut rest = object.clone();
    loop {
        let error = match parse(&rest) {
            Ok(parsed) => return (faults, Some(parsed)),
            Err(error) => error,
        };
        let (path, fault) = config_fault(&rest, error);
        // The removal of a part can be a fault, too.
        let by_removal = fault.message.contains("missing field")
            || faults.iter().any(|it| it.place == fault.place);
        if by_removal && !faults.is_empty() {
            return (faults, None);
        }
        faults.push(fault);
        if faults.len() >= MAX_FAULTS || !remove(&mut rest, &path) {
            return (faults, None);
        }
    }
}

/// Returns the path of the part that an error is about, and its fault.
fn config_fault(value: &Value, error: ConfigError) -> (String, Fault) {
    let (path, message) = match error {
        ConfigError::Syntax(message) => (String::new(), message),
        ConfigError::Field { path, message } => (path, message),
    };
    field_fault(value, path, &message)
}

/// Returns the path of the part that an error at `path` is about, and its fault.
fn field_fault(value: &Value, path: String, message: &str) -> (String, Fault) {
    let Some((name, names)) = unknown_field(message) else {
        let shown = if path.is_empty() || path == "." {
            message.to_owned()
        } else {
            format!("{path}: {message}")
        };
        return (path.clone(), Fault::error(FaultPlace::value(path), shown));
    };
    let is_included = path == name || path.ends_with(&format!(".{name}"));
    let path = match is_included && lookup(value, &path).is_some() {
        true => path,
        false => join(&path, name).trim_start_matches('.').to_owned(),
    };
    let fault = Fault::unknown_field(&path, names.iter().copied());
    (path, fault)
}

/// Returns the name of the field, and the names that exist, in serde's message about an unknown field.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field `")?;
    let (name, expected) = rest.split_once('`')?;
    // Every second part is quoted.
    let names = expected.split('`').skip(1).step_by(2).collect();
    Some((name, names))
}

/// Removes the member at `path`; false if there is none. Items of lists stay, so that the places of others do.
fn remove(value: &mut Value, path: &str) -> bool {
    // The name may have dots.
    let ends = path.match_indices(['.', '[']).map(|(at, _)| at);
    let ends = std::iter::once(0).chain(ends).collect::<Vec<_>>();
    for end in ends.into_iter().rev() {
        let (parent, name) = path.split_at(end);
        let name = name.strip_prefix('.').unwrap_or(name);
        let pointer = pointer(value, parent);
        match pointer.and_then(|pointer| value.pointer_mut(&pointer)) {
            Some(Value::Object(members)) if members.contains_key(name) => {
                members.remove(name);
                return true;
            }
            _ => {}
        }
    }
    false
}

/// Returns the JSON pointer of a path; `None` if there is no value.
fn pointer(value: &Value, path: &str) -> Option<String> {
    lookup(value, path)?;
    let mut pointer = String::new();
    for part in path.split(['.', '[']).filter(|it| !it.is_empty()) {
        pointer.push('/');
        pointer.push_str(part.trim_end_matches(']'));
    }
    Some(pointer)
}

fn scheduler_faults(object: &Value) -> Vec<Fault> {
    let parse = |value: &Value| scheduler::Configuration::parse(&value.to_string());
    let (mut faults, config) = all_faults(object, parse);
    if let Some(version) = object["apiVersion"].as_str()
        && version.starts_with("kubescheduler.config.k8s.io/v1")
        && let Some(fault) = faults.iter_mut().find(|it| it.is_at("apiVersion"))
    {
        fault.hint = Some(format!(
            "{version} is gone from Kubernetes; write kubescheduler.config.k8s.io/v1"
        ));
    }
    let registry = koord_plugins::registry();
    let context = BuildContext {
        network_topology: true,
        ..BuildContext::default()
    };
    let mut is_complete = true;
    for (at, profile) in list(object, "profiles").iter().enumerate() {
        for (entry, config) in list(profile, "pluginConfig").iter().enumerate() {
            let path = format!("profiles[{at}].pluginConfig[{entry}]");
            let Some(name) = config["name"].as_str() else {
                continue;
            };
            let Some(factory) = registry.find(name) else {
                faults.push(no_plugin(
                    &path,
                    name,
                    registry.factories.iter().map(|it| it.name),
                ));
                is_complete = false;
                continue;
            };
            let build = |args: &Value| (factory.build)(Some(args), &context).map_err(args_error);
            let (of_args, _) = all_faults(&config["args"], build);
            is_complete &= of_args.is_empty();
            let path = format!("{path}.args");
            faults.extend(of_args.into_iter().map(|it| below_args(it, &path)));
        }
        for (point, set) in profile["plugins"].as_object().into_iter().flatten() {
            for (entry, plugin) in list(set, "enabled").iter().enumerate() {
                let name = plugin["name"].as_str().unwrap_or_default();
                if !name.is_empty() && registry.find(name).is_none() {
                    let path = format!("profiles[{at}].plugins.{point}.enabled[{entry}]");
                    let names = registry.factories.iter().map(|it| it.name);
                    faults.push(no_plugin(&path, name, names));
                    is_complete = false;
                }
            }
        }
    }
    let Some(config) = config.filter(|_| is_complete) else {
        return faults;
    };
    for note in config.notes() {
        let path = note.split_once('=').map_or("", |(path, _)| path);
        faults.push(Fault::warning(FaultPlace::value(path), note.clone()));
    }
    match Profiles::build(&config, &registry, &context, false) {
        Ok(profiles) => {
            for warning in profiles.warnings {
                faults.push(Fault::warning(profile_place(object, &warning), warning));
            }
        }
        Err(error) => {
            let place = match &error {
                ProfileError::WrongPoint {
                    profile,
                    plugin,
                    point,
                } => point_place(object, profile, plugin, Some(point)),
                ProfileError::Weight {
                    profile, plugin, ..
                } => point_place(object, profile, plugin, None),
                _ => profile_place(object, &error.to_string()),
            };
            faults.push(Fault::error(place, error.to_string()));
        }
    }
    faults
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the fault of a plugin that does not exist, in the entry at `path`.
fn no_plugin<'a>(path: &str, name: &str, names: impl Iterator<Item = &'a str>) -> Fault {
    let path = format!("{path}.name");
    let message = format!("{path}: there is no plugin {name:?}");
    let mut fault = Fault::error(FaultPlace::value(path), message);
    fault.hint = suggest(name, names).map(|it| format!("did you mean {it}?"));
    fault
}

/// Returns the error of a plugin with the path of the argument, which begins its message.
fn args_error(error: BuildError) -> ConfigError {
    let (path, message) = match error.message.split_once(": ") {
        Some((path, message)) if !path.contains(' ') => (path, message),
        _ => ("", error.message.as_str()),
    };
    let path = path.strip_prefix("args").unwrap_or(path);
    let path = path.strip_prefix('.').unwrap_or(path);
    ConfigError::Field {
        path: path.to_owned(),
        message: message.to_owned(),
    }
}

/// Returns the fault of arguments that are at `path`.
fn below_args(mut fault: Fault, path: &str) -> Fault {
    if !fault.message.starts_with("args") {
        let is_path = match &fault.place.target {
            PlaceTarget::Paths(paths) => paths.iter().any(|it| !it.is_empty()),
            _ => true,
        };
        let separator = if is_path { "." } else { ": " };
        fault.message = format!("{path}{separator}{}", fault.message);
    }
    fault.below(path)
}

/// Returns the place of the profile whose name is in a message.
fn profile_place(object: &Value, message: &str) -> FaultPlace {
    let mut profiles = list(object, "profiles").iter();
    let at = profiles.position(|profile| {
        let name = profile["schedulerName"].as_str();
        message.contains(&format!(
            "profile {:?}",
            name.unwrap_or("default-scheduler")
        ))
    });
    FaultPlace::value(at.map_or_else(String::new, |at| format!("profiles[{at}]")))
}

/// Returns the place where a profile enables a plugin, at `point` if it is named.
fn point_place(object: &Value, profile: &str, plugin: &str, point: Option<&str>) -> FaultPlace {
    for (at, config) in list(object, "profiles").iter().enumerate() {
        if config["schedulerName"]
            .as_str()
            .unwrap_or("default-scheduler")
            != profile
        {
            continue;
        }
        for (name, set) in config["plugins"].as_object().into_iter().flatten() {
            let is_point = point.is_none_or(|it| it == name);
            let mut enabled = list(set, "enabled").iter();
            let found = enabled.position(|it| it["name"] == plugin);
            if let (true, Some(entry)) = (is_point, found) {
                let path = format!("profiles[{at}].plugins.{name}.enabled[{entry}]");
                let (weight, name) = (format!("{path}.weight"), format!("{path}.name"));
                let paths = match point {
                    Some(_) => vec![name],
                    None if set["enabled"][entry]["weight"].is_null() => continue,
                    None => vec![weight],
                };
                return FaultPlace::from(PlaceTarget::Paths(paths));
            }
        }
    }
    profile_place(object, &format!("profile {profile:?}"))
}

fn descheduler_faults(object: &Value) -> Vec<Fault> {
    let registry = koord_descheduler::registry::Registry::in_tree();
    let parse = |value: &Value| {
        let config = descheduler::Configuration::parse(&value.to_string())?;
        let completed = registry.complete(config)?;
        let notes = completed.notes.clone();
        completed.build()?;
        Ok(notes)
    };
    let (mut faults, notes) = all_faults(object, parse);
    for fault in &mut faults {
        // A message lists all plugins that exist.
        if let Some((head, names)) = fault.message.split_once("; there are ")
            && let Some((_, name)) = head.split_once("there is no plugin ")
        {
            let name = name.trim_matches('"');
            fault.hint = suggest(name, names.split(", ")).map(|it| format!("did you mean {it}?"));
            fault.message = head.to_owned();
        }
    }
    for note in notes.into_iter().flatten() {
        let path = note.split_once(": ").map_or("", |(path, _)| path);
        faults.push(Fault::warning(FaultPlace::value(path), note.clone()));
    }
    faults
}
