//! Checks of a document by its kind.

use super::document::{FaultPlace, PlaceTarget, SourceDocument, lookup};
use super::fault::{Fault, Severity, suggest};
use super::{component_config, metadata, pod, quota, settings, values};
use koord_api::config::ClusterColocationProfile;
use koord_api::lenient::{self, ReadError};
use koord_api::priority::PriorityClass;
use koord_api::qos::QosClass;
use koord_api::scheduling::Reservation;
use koord_manager::webhook::offline;
use koord_object::FieldError;
use koord_object::meta::split_api_version;
use koord_object::schema::types;
use koord_object::schema::{self, Schema};
use koord_object::status::FieldErrorKind;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Schemas of the custom resources by kind and API version.
static SCHEMAS: LazyLock<BTreeMap<(String, String), Schema>> = LazyLock::new(|| {
    let mut schemas = BTreeMap::new();
    for crd in koord_api::crd_values() {
        let spec = &crd["spec"];
        let group = spec["group"].as_str().unwrap_or_default();
        let kind = spec["names"]["kind"].as_str().unwrap_or_default();
        for version in spec["versions"].as_array().into_iter().flatten() {
            let name = version["name"].as_str().unwrap_or_default();
            if let Ok(schema) = schema::parse(&version["schema"]["openAPIV3Schema"], "") {
                schemas.insert((kind.to_owned(), format!("{group}/{name}")), schema);
            }
        }
    }
    schemas
});

/// API versions of built-in kinds that are often given another one.
const BUILT_IN: [(&str, &str); 10] = [
    ("ConfigMap", "v1"),
    ("CronJob", "batch/v1"),
    ("DaemonSet", "apps/v1"),
    ("Deployment", "apps/v1"),
    ("Job", "batch/v1"),
    ("Namespace", "v1"),
    ("Node", "v1"),
    ("Pod", "v1"),
    ("ReplicaSet", "apps/v1"),
    ("StatefulSet", "apps/v1"),
];

/// Returns the faults of a document; `None` if its kind has no checks.
pub(super) fn faults(document: &SourceDocument) -> Option<Vec<Fault>> {
    let value = &document.value;
    if value["apiVersion"].is_null() && value["kind"].is_null() && values::is_likely(value) {
        return Some(values::faults(value));
    }
    of_object(value, document)
}

/// Returns the faults of an object, or of the objects in a list.
fn of_object(object: &Value, document: &SourceDocument) -> Option<Vec<Fault>> {
    let (version, kind) = match identity(object) {
        Ok(identity) => identity,
        Err(fault) => return Some(vec![fault]),
    };
    let is_list = kind == "List" && version == "v1";
    if let (true, Some(items)) = (is_list, object["items"].as_array()) {
        let mut faults = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let of_item = of_object(item, document).unwrap_or_default();
            let prefix = format!("items[{at}]");
            faults.extend(of_item.into_iter().map(|it| it.below(&prefix)));
        }
        return Some(faults);
    }
    if let Some(faults) = component_config::faults(object, kind) {
        return Some(faults);
    }
    let mut faults = metadata::faults(object);
    let (group, _) = split_api_version(version);
    let key = (kind.to_owned(), version.to_owned());
    if let Some(schema) = SCHEMAS.get(&key) {
        faults.extend(metadata::name_fault(object));
        let of_schema = schema_faults(schema, object);
        let read_error = custom_faults(object, kind, &mut faults);
        // Most errors of reading are those of the schema and of the types.
        let is_error = |fault: &Fault| fault.severity == Severity::Error;
        let is_valid = !of_schema.iter().chain(&faults).any(is_error);
        faults.extend(read_error.filter(|_| is_valid));
        faults.extend(of_schema);
    } else if let Some(of_type) = built_in(version, kind) {
        faults.extend(metadata::name_fault(object));
        faults.extend(type_faults(&of_type.schema, object));
        match kind {
            "ConfigMap" => faults.extend(config_map_faults(object, document)),
            "Node" => faults.extend(metadata::node_faults(object)),
            _ => {}
        }
        if let Some(path) = pod::template_path(kind) {
            faults.extend(pod::faults(object, path));
        }
    } else if let Some(fault) = wrong_version(group, version, kind) {
        faults.push(fault);
    } else if faults.is_empty() {
        return None;
    }
    Some(faults)
}

/// Returns `apiVersion` and `kind` of an object.
fn identity(object: &Value) -> Result<(&str, &str), Fault> {
    if !object.is_object() {
        let place = FaultPlace::value("");
        return Err(Fault::error(
            place,
            "not an object: apiVersion and kind are missing",
        ));
    }
    let text = |field: &str| match &object[field] {
        Value::String(text) if !text.is_empty() => Ok(text.as_str()),
        Value::Null => {
            let hint = "values of the chart begin with names such as koordlet or scheduler";
            Err(
                Fault::error(FaultPlace::value(field), format!("{field} is missing"))
                    .with_hint(hint),
            )
        }
        other => {
            let message = format!("{field}: invalid value {other}: expected a text");
            Err(Fault::error(FaultPlace::value(field), message))
        }
    };
    Ok((text("apiVersion")?, text("kind")?))
}

/// Returns the built-in type with this version and kind.
fn built_in(version: &str, kind: &str) -> Option<&'static types::BuiltinType> {
    let (group, version) = split_api_version(version);
    // The types are named by the first part of their group.
    let group = match group {
        "" => "core",
        group => group.split('.').next().unwrap_or(group),
    };
    types::find(&format!("{group}/{version}.{kind}"))
}

/// Returns the fault of a kind that exists, but not in this version, or of one that is close to an existing one.
fn wrong_version(group: &str, version: &str, kind: &str) -> Option<Fault> {
    let mut known = SCHEMAS.keys().map(|(kind, version)| (&**kind, &**version));
    if let Some((_, right)) = known.find(|(name, _)| *name == kind).or_else(|| {
        let mut built_in = BUILT_IN.into_iter();
        built_in.find(|(name, _)| *name == kind)
    }) {
        // Other projects have kinds of these names.
        let is_own = split_api_version(right).0 == group || is_near(group);
        if is_own {
            let message =
                format!("apiVersion: invalid value {version:?} for {kind}: expected {right:?}");
            return Some(Fault::error(FaultPlace::value("apiVersion"), message));
        }
        return None;
    }
    let names = SCHEMAS.keys().map(|(kind, _)| kind.as_str());
    let mut names = names.chain(BUILT_IN.into_iter().map(|(kind, _)| kind));
    if let Some(name) = names.find(|name| name.eq_ignore_ascii_case(kind))
        && is_near(group)
    {
        let message = format!("kind: {version} has no kind {kind:?}");
        let fault = Fault::error(FaultPlace::value("kind"), message);
        return Some(fault.with_hint(format!("did you mean {name}?")));
    }
    let in_group = || {
        SCHEMAS
            .keys()
            .filter(|(_, version)| split_api_version(version).0 == group)
    };
    in_group().next()?;
    let message = format!("kind: {version} has no kind {kind:?}");
    let mut fault = Fault::error(FaultPlace::value("kind"), message);
    let names = in_group().map(|(kind, _)| kind.as_str());
    fault.hint = suggest(kind, names).map(|it| format!("did you mean {it}?"));
    Some(fault)
}

/// Returns true for groups of Kubernetes and Koordinator.
fn is_near(group: &str) -> bool {
    let own = ["", "apps", "batch", "extensions", "scheduling.sigs.k8s.io"];
    own.contains(&group) || group.ends_with("koordinator.sh")
}

/// Returns the faults of an object by the schema of its custom resource.
fn schema_faults(schema: &Schema, object: &Value) -> Vec<Fault> {
    let mut errors = Vec::new();
    schema.validate(object, "", &mut errors);
    let mut faults: Vec<Fault> = errors.into_iter().map(field_fault).collect();
    let mut unknown = Vec::new();
    schema.unknown_fields(object, &mut unknown);
    // Those of the metadata are reported with it.
    unknown.retain(|path| !path.starts_with("metadata."));
    faults.extend(unknown.iter().map(|path| unknown_fault(schema, path)));
    faults
}

fn field_fault(error: FieldError) -> Fault {
    if error.kind != FieldErrorKind::TypeInvalid {
        let message = error.to_string();
        return Fault::error(FaultPlace::value(error.field), message);
    }
    // The detail repeats the path and the type of the value.
    let expected = error.detail.rsplit_once("must be of type ");
    let expected = expected.map_or(&*error.detail, |(_, it)| it);
    let expected = expected.split(':').next().unwrap_or_default();
    let actual = text_of(&error.value);
    let message = format!("{}: expected {expected}, not {actual}", error.field);
    let fault = Fault::error(FaultPlace::value(error.field), message);
    match (expected, &*actual) {
        ("string", "boolean" | "integer" | "number") => fault.with_hint("quote the value"),
        ("boolean" | "integer" | "number", "string") => fault.with_hint("remove the quotes"),
        _ => fault,
    }
}

fn text_of(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn unknown_fault(schema: &Schema, path: &str) -> Fault {
    let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
    let mut schema = schema;
    for name in parent.split(['.', '[']).filter(|it| !it.is_empty()) {
        schema = match name.ends_with(']') {
            true => schema.element(),
            false => schema.member(name),
        };
    }
    let named = schema
        .named()
        .into_iter()
        .flat_map(|it| it.fields.keys().copied());
    let own = schema.properties().keys().map(String::as_str);
    Fault::unknown_field(path, named.chain(own))
}

/// Returns the faults of an object by its built-in type.
pub(super) fn type_faults(schema: &Schema, object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    add_type_faults(schema, object, String::new(), &mut faults);
    let mut unknown = Vec::new();
    schema.unknown_fields(object, &mut unknown);
    // An object in place of a text has no fields.
    unknown.retain(|path| {
        let is_above = |fault: &Fault| match &fault.place.target {
            PlaceTarget::Paths(paths) => paths.iter().any(|it| {
                path.strip_prefix(it.as_str())
                    .is_some_and(|rest| rest.starts_with('.'))
            }),
            _ => false,
        };
        !faults.iter().any(is_above)
    });
    faults.extend(unknown.iter().map(|path| unknown_fault(schema, path)));
    faults
}

/// Adds a fault for each of the smallest parts of `value` that do not fit `schema`.
fn add_type_faults(schema: &Schema, value: &Value, path: String, faults: &mut Vec<Fault>) {
    let Err(message) = schema.check_types(value) else {
        return;
    };
    let before = faults.len();
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let dot = if path.is_empty() { "" } else { "." };
                add_type_faults(
                    schema.member(name),
                    value,
                    format!("{path}{dot}{name}"),
                    faults,
                );
            }
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                add_type_faults(schema.element(), value, format!("{path}[{at}]"), faults);
            }
        }
        _ => {}
    }
    if faults.len() > before {
        return;
    }
    let (expected, hint) = match message.rsplit_once(" of type ") {
        Some((_, "string")) => ("a text", format!("quote it: \"{}\"", text_of(value))),
        Some((_, "bool")) => ("true or false", String::new()),
        Some((_, "int32" | "int64")) => ("a whole number", String::new()),
        Some((_, name)) if name.starts_with("[]") => ("a list", String::new()),
        Some((_, name)) if name.starts_with("map[") => ("an object", String::new()),
        _ if message.starts_with("quantities") => ("an amount such as 500m or 1Gi", String::new()),
        _ if message.starts_with("parsing time") => {
            ("a time such as 2006-01-02T15:04:05Z", String::new())
        }
        _ => ("an object", String::new()),
    };
    let shown = match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        value => value.to_string(),
    };
    let message = format!("{path}: invalid value {shown}: expected {expected}");
    let mut fault = Fault::error(FaultPlace::value(path), message);
    fault.hint = Some(hint).filter(|hint| !hint.is_empty() && !value.is_null());
    if value == "..." {
        fault.hint = Some(super::DOTS_HINT.to_owned());
    }
    faults.push(fault);
}

/// Adds the faults of a custom resource that its schema does not find. Returns why it cannot be read.
fn custom_faults(object: &Value, kind: &str, faults: &mut Vec<Fault>) -> Option<Fault> {
    let error = match kind {
        "ClusterColocationProfile" => profile_faults(object, faults).err(),
        "ElasticQuota" => quota::add_faults(object, faults).err(),
        "Reservation" => reservation_faults(object, faults).err(),
        "PodGroup" => {
            faults.extend(metadata::gang_faults(object));
            None
        }
        _ => None,
    };
    match error? {
        ReadError::Field { path, message } => {
            let message = format!("{path}: {message}");
            Some(Fault::error(FaultPlace::value(path), message))
        }
        ReadError::Syntax(_) => None,
    }
}

fn profile_faults(object: &Value, faults: &mut Vec<Fault>) -> Result<(), ReadError> {
    let spec = &object["spec"];
    faults.extend(metadata::label_faults(&spec["labels"], "spec.labels"));
    faults.extend(metadata::annotation_faults(
        &spec["annotations"],
        "spec.annotations",
    ));
    let profile = lenient::from_value::<ClusterColocationProfile>(object)?;
    for (field, problem) in offline::profile_problems(&profile) {
        faults.push(Fault::error(
            FaultPlace::value(field),
            format!("{field}: {problem}"),
        ));
    }
    let spec = profile.spec;
    let class = PriorityClass::from_name(&spec.priority_class_name);
    let is_refused = match spec.qos_class {
        QosClass::Be => class == PriorityClass::Prod,
        QosClass::Lsr => !matches!(class, PriorityClass::Prod | PriorityClass::None),
        _ => false,
    };
    if is_refused {
        let message = format!(
            "spec.qosClass: {} does not go with priorityClassName {class}: the pods would be refused",
            spec.qos_class
        );
        faults.push(Fault::error(FaultPlace::value("spec.qosClass"), message));
    }
    Ok(())
}

fn reservation_faults(object: &Value, faults: &mut Vec<Fault>) -> Result<(), ReadError> {
    // The schema of the definition leaves the template open.
    let template = &object["spec"]["template"];
    if let (true, Some(of_type)) = (template.is_object(), types::find("core/v1.PodTemplateSpec")) {
        let of_template = type_faults(&of_type.schema, template);
        faults.extend(of_template.into_iter().map(|it| {
            // The API server stores any field here.
            let is_unknown = matches!(it.place.target, PlaceTarget::Name(_));
            let severity = if is_unknown {
                Severity::Warning
            } else {
                it.severity
            };
            let message = format!("spec.template.{}", it.message);
            let fault = Fault {
                severity,
                message,
                ..it
            };
            fault.below("spec.template")
        }));
        faults.extend(pod::faults(object, "spec.template"));
    }
    let spec = lenient::from_value::<Reservation>(object)?.spec;
    for (at, owner) in spec.owners.iter().enumerate() {
        let path = format!("spec.owners[{at}].labelSelector");
        faults.extend(metadata::selector_fault(
            owner.label_selector.as_ref(),
            path,
        ));
    }
    if spec.expires.is_some() && spec.ttl.is_some() {
        let message = "spec.ttl has no effect: spec.expires is set";
        faults.push(Fault::warning(FaultPlace::name("spec.ttl"), message));
    }
    Ok(())
}

/// Returns the faults of the settings and configurations in a ConfigMap.
fn config_map_faults(object: &Value, document: &SourceDocument) -> Vec<Fault> {
    if settings::is_likely(object) {
        return settings::faults(object);
    }
    let mut faults = Vec::new();
    for (key, value) in object["data"].as_object().into_iter().flatten() {
        let Some(content) = value.as_str().filter(|it| it.contains("Configuration")) else {
            continue;
        };
        let path = format!("data.{key}");
        let nested = match document.nested(&path, content).map(SourceDocument::parse) {
            Some(Ok(Some(nested))) => nested,
            Some(Err(error)) if is_configuration(content) => {
                let place = FaultPlace::from(PlaceTarget::Position(error.local));
                faults.push(Fault::error(place, error.message).inside(&path));
                continue;
            }
            _ => continue,
        };
        let kind = lookup(&nested.value, "kind").and_then(Value::as_str);
        let of_text = component_config::faults(&nested.value, kind.unwrap_or_default());
        let of_text = of_text.unwrap_or_default().into_iter();
        faults.extend(of_text.map(|it| it.inside(&path)));
    }
    faults
}

/// Returns true if a text that cannot be parsed is a configuration of a component.
fn is_configuration(text: &str) -> bool {
    ["KubeSchedulerConfiguration", "DeschedulerConfiguration"]
        .iter()
        .any(|kind| text.contains(&format!("kind: {kind}")))
}
