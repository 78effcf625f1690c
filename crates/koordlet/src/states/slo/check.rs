//! Validation of a NodeSLO: types, bounds, names.
//!
//! A NodeSLO is validated as JSON, so that an invalid field costs only that field.

use super::super::malformed::Malformed;
use super::{SuppressExtension, host_app, suppress_extension};
use koord_api::configmap::{
    FieldError, burst_violations, qos_violations, system_violations, threshold_violations,
};
use koord_api::lenient::{self, ReadError};
use koord_api::slo::{NodeSLOSpec, ResourceQOSStrategy};
use koord_model::blkio;
use serde_json::{Map, Value};

/// Maximum number of fields that are replaced one by one before the whole section is dropped.
const MOST_REPAIRS: usize = 64;

/// A validated spec.
pub(super) struct CheckedSpec {
    /// The valid part.
    pub(super) spec: NodeSLOSpec,
    /// The valid part as JSON.
    pub(super) good: Value,
    pub(super) malformed: Vec<Malformed>,
}

/// Sections of a NodeSLO, each validated on its own.
const SECTIONS: [&str; 6] = [
    "resourceUsedThresholdWithBE",
    "resourceQOSStrategy",
    "cpuBurstStrategy",
    "systemStrategy",
    "extensions",
    "hostApplications",
];

/// Returns the valid values of `given`, with those of `last` in place of invalid ones.
pub(super) fn check(given: &Value, last: &Value) -> CheckedSpec {
    let mut malformed = Vec::new();
    let mut good = Map::new();
    let nothing = Map::new();
    let sections = given.as_object().unwrap_or_else(|| {
        if !given.is_null() {
            malformed.push(Malformed::new("spec", given.to_string(), "is no object"));
        }
        &nothing
    });
    for name in SECTIONS {
        let Some(section) = sections.get(name).filter(|section| !section.is_null()) else {
            continue;
        };
        let mut repair = SectionRepair {
            section: Value::Object(Map::from_iter([(name.to_owned(), section.clone())])),
            last,
            malformed: &mut malformed,
        };
        repair.run(name);
        if let Value::Object(section) = repair.section {
            good.extend(section);
        }
    }
    let good = Value::Object(good);
    CheckedSpec {
        spec: lenient::from_value(&good).unwrap_or_default(),
        good,
        malformed,
    }
}

/// Replaces the invalid values of one section.
struct SectionRepair<'a> {
    /// An object whose only member is the section.
    section: Value,
    last: &'a Value,
    malformed: &'a mut Vec<Malformed>,
}

impl SectionRepair<'_> {
    fn run(&mut self, name: &str) {
        for _ in 0..MOST_REPAIRS {
            let spec: NodeSLOSpec = match lenient::from_value(&self.section) {
                Ok(spec) => spec,
                Err(ReadError::Field { path, message }) => {
                    self.replace(&path, &message);
                    continue;
                }
                Err(ReadError::Syntax(message)) => {
                    self.replace(name, &message);
                    continue;
                }
            };
            let violations = violations(&spec);
            if violations.is_empty() {
                return;
            }
            for FieldError { field, reason, .. } in violations {
                self.replace(&field, &reason);
            }
        }
        self.section = Value::Null;
    }

    /// Reports the value at `path` and replaces it with the last valid one, or removes it.
    fn replace(&mut self, path: &str, error: &str) {
        let mut steps = steps(path);
        // If the value itself cannot be found, its parent is replaced.
        while steps.len() > 1 && descend(&self.section, &steps).is_none() {
            steps.pop();
        }
        let Some(found) = descend(&self.section, &steps).cloned() else {
            self.section = Value::Null;
            return;
        };
        let shown = match &found {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let report = Malformed::new(path, shown, error);
        if !self.malformed.contains(&report) {
            self.malformed.push(report);
        }
        // An incomplete application would be searched in the wrong cgroup.
        let element = matches!(steps[..], [_, PathSegment::Element(_), ..]).then_some(2);
        steps.truncate(element.unwrap_or(steps.len()));
        let before = match descend(&self.section, &steps).filter(|_| element.is_some()) {
            Some(element) => {
                let name = lenient::member(element, "name");
                let list = lenient::member(self.last, "hostApplications");
                let list = list.and_then(Value::as_array).into_iter().flatten();
                list.filter(|before| *before != element)
                    .find(|before| lenient::member(before, "name") == name)
            }
            None => descend(self.last, &steps).filter(|before| {
                **before != found && same_elements(&self.section, self.last, &steps)
            }),
        };
        let before = before.cloned();
        put(&mut self.section, &steps, before);
    }
}

/// Returns the violations of the rules of all sections. Paths start at the spec.
fn violations(spec: &NodeSLOSpec) -> Vec<FieldError> {
    let mut all = Vec::new();
    let mut add = |section: &str, errors: Vec<FieldError>| {
        all.extend(errors.into_iter().map(|mut error| {
            error.field = format!("{section}.{}", error.field);
            error
        }));
    };
    if let Some(strategy) = &spec.resource_used_threshold_with_be {
        let mut errors = threshold_violations(strategy);
        if let Some(policy) = &strategy.cpu_suppress_policy {
            let name = Name(policy.as_str(), policy.is_known());
            name.check("cpuSuppressPolicy", "cpuset, cfsQuota", &mut errors);
        }
        if let Some(policy) = &strategy.cpu_evict_policy {
            let name = Name(policy.as_str(), policy.is_known());
            name.check(
                "cpuEvictPolicy",
                "evictByRealLimit, evictByAllocatable",
                &mut errors,
            );
        }
        add("resourceUsedThresholdWithBE", errors);
    }
    if let Some(strategy) = &spec.resource_qos_strategy {
        let mut errors = qos_violations(strategy);
        let policies = strategy.policies.as_ref();
        if let Some(policy) = policies.and_then(|p| p.cpu_policy.as_ref()) {
            let name = Name(policy.as_str(), policy.is_known());
            name.check(
                "policies.cpuPolicy",
                "groupIdentity, coreSched",
                &mut errors,
            );
        }
        if let Some(policy) = policies.and_then(|p| p.net_qos_policy.as_ref()) {
            let name = Name(policy.as_str(), policy.is_known());
            name.check("policies.netQOSPolicy", "tc, terway-qos", &mut errors);
        }
        errors.extend(block_violations(strategy));
        add("resourceQOSStrategy", errors);
    }
    if let Some(strategy) = &spec.cpu_burst_strategy {
        let mut errors = burst_violations(strategy);
        if let Some(policy) = &strategy.policy {
            let name = Name(policy.as_str(), policy.is_known());
            name.check(
                "policy",
                "none, cpuBurstOnly, cfsQuotaBurstOnly, auto",
                &mut errors,
            );
        }
        add("cpuBurstStrategy", errors);
    }
    if let Some(strategy) = &spec.system_strategy {
        add("systemStrategy", system_violations(strategy));
    }
    if let Some((place, value)) = suppress_extension(spec)
        && let Err(error) = lenient::from_value::<SuppressExtension>(value)
    {
        let (path, reason) = match error {
            ReadError::Field { path, message } if path != "." => (format!(".{path}"), message),
            error => (String::new(), error.to_string()),
        };
        let error = FieldError {
            field: format!("{place}{path}"),
            value: value.to_string(),
            reason,
        };
        add("extensions", vec![error]);
    }
    all.extend(host_app::violation(&spec.host_applications));
    all
}

/// Returns the amounts of block I/O that are out of range.
fn block_violations(strategy: &ResourceQOSStrategy) -> Vec<FieldError> {
    let classes = [
        ("lsrClass", &strategy.lsr_class),
        ("lsClass", &strategy.ls_class),
        ("beClass", &strategy.be_class),
        ("systemClass", &strategy.system_class),
        ("cgroupRoot", &strategy.cgroup_root),
    ];
    let mut all = Vec::new();
    for (class, settings) in classes {
        let blkio = settings.as_ref().and_then(|class| class.blkio_qos.as_ref());
        let blocks = blkio.into_iter().flat_map(|blkio| &blkio.blocks);
        for (at, block) in blocks.enumerate() {
            let violations = block.io_cfg.iter().flat_map(blkio::violations);
            all.extend(violations.map(|error| FieldError {
                field: format!("{class}.blkioQOS.blocks[{at}].ioCfg.{}", error.field),
                reason: format!("must be {}", error.want),
                value: error.value,
            }));
        }
    }
    all
}

/// A name of an enumeration, and whether it is known. An empty name counts as unset.
struct Name<'a>(&'a str, bool);

impl Name<'_> {
    fn check(self, field: &str, known: &str, errors: &mut Vec<FieldError>) {
        let Self(name, is_known) = self;
        if !is_known && !name.is_empty() {
            errors.push(FieldError {
                field: field.to_owned(),
                value: format!("{name:?}"),
                reason: format!("must be one of {known}"),
            });
        }
    }
}

/// A step of a path: a member or an element.
#[derive(Clone, Copy)]
enum PathSegment<'a> {
    Member(&'a str),
    Element(usize),
}

/// Returns the steps of a path such as `hostApplications[0].cgroupPath.base`.
fn steps(path: &str) -> Vec<PathSegment<'_>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let mut parts = part.split('[');
        if let Some(name) = parts.next().filter(|name| !name.is_empty()) {
            steps.push(PathSegment::Member(name));
        }
        for index in parts {
            if let Ok(index) = index.trim_end_matches(']').parse() {
                steps.push(PathSegment::Element(index));
            }
        }
    }
    steps
}

fn descend<'a>(value: &'a Value, steps: &[PathSegment<'_>]) -> Option<&'a Value> {
    steps.iter().try_fold(value, |value, step| match step {
        PathSegment::Member(name) => lenient::member(value, name),
        PathSegment::Element(index) => value.get(index),
    })
}

/// Returns whether the elements along the path have the same names in both values; otherwise they describe
/// different objects.
fn same_elements(a: &Value, b: &Value, steps: &[PathSegment<'_>]) -> bool {
    let name = |value: &Value, at: usize| {
        let element = steps.get(..=at).and_then(|steps| descend(value, steps));
        element
            .and_then(|element| lenient::member(element, "name"))
            .cloned()
    };
    let mut elements = steps.iter().enumerate();
    elements.all(|(at, step)| matches!(step, PathSegment::Member(_)) || name(a, at) == name(b, at))
}

/// Replaces the value at the end of `steps` with `new`, or removes it.
fn put(value: &mut Value, steps: &[PathSegment<'_>], new: Option<Value>) {
    match (steps, value) {
        ([PathSegment::Member(name)], Value::Object(object)) => {
            // Keep the spelling of the input.
            let name = object
                .keys()
                .find(|key| *key == name)
                .or_else(|| object.keys().find(|key| key.eq_ignore_ascii_case(name)))
                .cloned();
            if let Some(name) = name {
                match new {
                    Some(new) => drop(object.insert(name, new)),
                    None => drop(object.remove(&name)),
                }
            }
        }
        ([PathSegment::Element(index)], Value::Array(list)) if *index < list.len() => match new {
            Some(new) => {
                if let Some(slot) = list.get_mut(*index) {
                    *slot = new;
                }
            }
            None => drop(list.remove(*index)),
        },
        ([PathSegment::Member(name), rest @ ..], Value::Object(object)) => {
            let key = object
                .keys()
                .find(|key| *key == name)
                .or_else(|| object.keys().find(|key| key.eq_ignore_ascii_case(name)))
                .cloned();
            if let Some(next) = key.and_then(|key| object.get_mut(&key)) {
                put(next, rest, new);
            }
        }
        ([PathSegment::Element(index), rest @ ..], Value::Array(list)) => {
            if let Some(next) = list.get_mut(*index) {
                put(next, rest, new);
            }
        }
        _ => {}
    }
}
