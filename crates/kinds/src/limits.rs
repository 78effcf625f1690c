//! LimitRange: default requests and limits of containers, and bounds for containers, pods and claims.

use super::meta;
use super::quota::{list, total};
use super::resource::Resource;
use super::status::FieldError;
use koord_api::quantity::{Quantity, ResourceList};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Annotation that lists the applied defaults.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

fn items(range: &Value) -> impl Iterator<Item = &Value> {
    let list = meta::at(range, &["spec", "limits"]).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn kind(item: &Value) -> &str {
    meta::str_at(item, &["type"])
}

/// Returns the object at `key`, an empty one if it is missing or null. `None` if the member is of another type.
fn member_object<'a>(
    object: &'a mut Map<String, Value>,
    key: &str,
) -> Option<&'a mut Map<String, Value>> {
    let slot = object.entry(key).or_insert_with(|| json!({}));
    if slot.is_null() {
        *slot = json!({});
    }
    slot.as_object_mut()
}

/// Most violations that are listed: many containers and a LimitRange with many resources would have the
/// product of both.
const MAX_ERRORS: usize = 100;
/// Most bytes of defaults for one pod; a pod with more would exceed the size limit of objects.
const MAX_FILLED: usize = 4 * 1024 * 1024;

/// Applies the default requests and limits of one LimitRange to the containers of a new pod, up to
/// `MAX_FILLED` bytes.
pub fn fill(range: &Value, pod: &mut Value) {
    let mut applied: Vec<String> = Vec::new();
    let mut filled = 0;
    let mut defaults = [Map::new(), Map::new()];
    for item in items(range).filter(|i| kind(i) == "Container") {
        for (to, key) in defaults.iter_mut().zip(["defaultRequest", "default"]) {
            let from = item.get(key).and_then(Value::as_object);
            to.extend(
                from.into_iter()
                    .flatten()
                    .map(|(k, v)| (k.clone(), v.clone())),
            );
        }
    }
    for (key, what) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        let containers = pod.get_mut("spec").and_then(|s| s.get_mut(key));
        for container in containers
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let name = meta::str_at(container, &["name"]).to_owned();
            let Some(container) = container.as_object_mut() else {
                continue;
            };
            for (defaults, (part, word)) in defaults
                .iter()
                .zip([("requests", "request"), ("limits", "limit")])
            {
                if defaults.is_empty() {
                    continue;
                }
                let Some(have) =
                    member_object(container, "resources").and_then(|r| member_object(r, part))
                else {
                    continue;
                };
                let mut set = Vec::new();
                for (resource, amount) in defaults {
                    if filled > MAX_FILLED {
                        break;
                    }
                    if !have.contains_key(resource) {
                        filled += resource.len() + amount.as_str().map_or(8, str::len);
                        have.insert(resource.clone(), amount.clone());
                        set.push(resource.as_str());
                    }
                }
                if !set.is_empty() {
                    applied.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if let Some(annotations) = (!applied.is_empty())
        .then(|| meta::metadata_mut(pod).and_then(|m| member_object(m, "annotations")))
        .flatten()
    {
        let text = format!("LimitRanger plugin set: {}", applied.join("; "));
        annotations.insert(ANNOTATION.to_owned(), text.into());
    }
}

/// Checks an object against one LimitRange.
///
/// # Errors
/// All violations in one text, with upstream's wording, up to 100.
pub fn check(range: &Value, resource: &Resource, object: &Value) -> Result<(), String> {
    let (mut all_errors, mut seen) = (Vec::new(), HashSet::new());
    let mut keep = |errors: Vec<String>| {
        let new = errors
            .into_iter()
            .filter(|error| seen.insert(error.clone()));
        all_errors.extend(new);
        all_errors.len() >= MAX_ERRORS
    };
    for item in items(range) {
        let mut errors = Vec::new();
        match (kind(item), &*resource.plural) {
            ("Container", "pods") => {
                for key in ["containers", "initContainers"] {
                    let all = meta::at(object, &["spec", key]).and_then(Value::as_array);
                    for container in all.into_iter().flatten() {
                        let part = |part| list(meta::at(container, &["resources", part]));
                        check_bounds(item, &part("requests"), &part("limits"), &mut errors);
                        if keep(std::mem::take(&mut errors)) {
                            break;
                        }
                    }
                }
            }
            ("Pod", "pods") => check_bounds(
                item,
                &total(object, "requests"),
                &total(object, "limits"),
                &mut errors,
            ),
            ("PersistentVolumeClaim", "persistentvolumeclaims") => {
                let requests = list(meta::at(object, &["spec", "resources", "requests"]));
                for (name, least) in list(item.get("min")) {
                    check_minimum(
                        kind(item),
                        &name,
                        least,
                        &requests,
                        &ResourceList::new(),
                        &mut errors,
                    );
                }
                for (name, most) in list(item.get("max")) {
                    let rule = format!("maximum {name} usage per {} is {most}", kind(item));
                    match requests.get(&name) {
                        None => errors.push(format!("{rule}.  No request is specified")),
                        Some(r) if *r > most => errors.push(format!("{rule}, but request is {r}")),
                        Some(_) => {}
                    }
                }
            }
            _ => {}
        }
        if keep(errors) {
            break;
        }
    }
    all_errors.truncate(MAX_ERRORS);
    match all_errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        all => Err(format!("[{}]", all.join(", "))),
    }
}

/// Checks one resource against `min` of a LimitRange item of type `kind`: the request must be set and
/// reach `least`, and so must the limit if there is one.
fn check_minimum(
    kind: &str,
    name: &str,
    least: Quantity,
    requests: &ResourceList,
    limits: &ResourceList,
    errors: &mut Vec<String>,
) {
    let rule = format!("minimum {name} usage per {kind} is {least}");
    match (requests.get(name), limits.get(name)) {
        (None, _) => errors.push(format!("{rule}.  No request is specified")),
        (Some(r), _) if *r < least => errors.push(format!("{rule}, but request is {r}")),
        (_, Some(l)) if *l < least => errors.push(format!("{rule}, but limit is {l}")),
        _ => {}
    }
}

/// Checks requests and limits against the bounds of one LimitRange item.
/// Checks requests and limits against `min`, `max` and `maxLimitRequestRatio` of a LimitRange item.
fn check_bounds(
    item: &Value,
    requests: &ResourceList,
    limits: &ResourceList,
    errors: &mut Vec<String>,
) {
    let kind = kind(item);
    for (name, least) in list(item.get("min")) {
        check_minimum(kind, &name, least, requests, limits, errors);
    }
    for (name, most) in list(item.get("max")) {
        let rule = format!("maximum {name} usage per {kind} is {most}");
        match (requests.get(&name), limits.get(&name)) {
            (_, None) => errors.push(format!("{rule}.  No limit is specified")),
            (_, Some(l)) if *l > most => errors.push(format!("{rule}, but limit is {l}")),
            (Some(r), _) if *r > most => errors.push(format!("{rule}, but request is {r}")),
            _ => {}
        }
    }
    for (name, most) in list(item.get("maxLimitRequestRatio")) {
        let rule = format!("{name} max limit to request ratio per {kind} is {most}");
        let positive = |list: &ResourceList| list.get(&name).copied().filter(|q| !q.is_zero());
        let Some(request) = positive(requests) else {
            errors.push(format!(
                "{rule}, but no request is specified or request is 0"
            ));
            continue;
        };
        let Some(limit) = positive(limits) else {
            errors.push(format!("{rule}, but no limit is specified or limit is 0"));
            continue;
        };
        let ratio = limit.to_f64() / request.to_f64();
        if ratio > most.to_f64() {
            errors.push(format!("{rule}, but provided ratio is {ratio:.6}"));
        }
    }
}

/// Validates the bounds of a LimitRange against each other.
pub(super) fn validate(range: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut kinds: HashSet<&str> = HashSet::new();
    for (i, item) in items(range).enumerate() {
        let path = format!("spec.limits[{i}]");
        let kind = kind(item);
        if kind.is_empty() {
            errors.push(FieldError::required(format!("{path}.type"), ""));
        } else if kinds.contains(kind) {
            errors.push(FieldError::duplicate(format!("{path}.type"), kind));
        }
        kinds.insert(kind);
        for key in ["default", "defaultRequest"] {
            if kind == "Pod" && item.get(key).is_some_and(|v| !v.is_null()) {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(format!("{path}.{key}"), detail));
            }
        }
        let [least, most, default, request, ratio] = [
            "min",
            "max",
            "default",
            "defaultRequest",
            "maxLimitRequestRatio",
        ]
        .map(|key| list(item.get(key)));
        if kind == "PersistentVolumeClaim"
            && !least.contains_key("storage")
            && !most.contains_key("storage")
        {
            errors.push(FieldError::required(
                format!("{path}.limits"),
                "either minimum or maximum storage value is required, but neither was provided",
            ));
        }
        // Each pair in the order of upstream: `a` may not be above `b`.
        let mut order =
            |field: &str, shown: &str, (what_a, a): Named<'_>, (what_b, b): Named<'_>| {
                for (name, a) in a {
                    if let Some(b) = b.get(name).filter(|b| a > *b) {
                        let value = if shown == "a" { a } else { b };
                        errors.push(FieldError::invalid(
                            format!("{path}.{field}[{name}]"),
                            value.to_string(),
                            format!("{what_a} value {a} is greater than {what_b} value {b}"),
                        ));
                    }
                }
            };
        let (min, max) = (("min", &least), ("max", &most));
        let (limit, requested) = (("default limit", &default), ("default request", &request));
        order("min", "a", min, max);
        order("defaultRequest", "b", min, requested);
        order("defaultRequest", "a", requested, max);
        order("defaultRequest", "a", requested, limit);
        order("default", "a", min, ("default", &default));
        order("default", "b", ("default", &default), max);
        for (name, ratio) in &ratio {
            let at = format!("{path}.maxLimitRequestRatio[{name}]");
            if *ratio < Quantity::from_value(1) {
                let detail = format!("ratio {ratio} is less than 1");
                errors.push(FieldError::invalid(at, ratio.to_string(), detail));
                continue;
            }
            let bounds = least.get(name).filter(|q| !q.is_zero()).zip(most.get(name));
            if let Some(widest) = bounds.map(|(min, max)| max.to_f64() / min.to_f64())
                && ratio.to_f64() > widest
            {
                let detail = format!("ratio {ratio} is greater than max/min = {widest:.6}");
                errors.push(FieldError::invalid(at, ratio.to_string(), detail));
            }
        }
    }
    errors
}

/// A list of amounts with its name in messages.
type Named<'a> = (&'a str, &'a ResourceList);

/// Applies the API defaults of a LimitRange: the limits and requests that follow from bounds.
pub(super) fn default_range(range: &mut Map<String, Value>) {
    let items = range
        .get_mut("spec")
        .and_then(|s| s.get_mut("limits"))
        .and_then(Value::as_array_mut);
    for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
        if item.get("type").and_then(Value::as_str) != Some("Container") {
            continue;
        }
        for (from, to) in [
            ("max", "default"),
            ("default", "defaultRequest"),
            ("min", "defaultRequest"),
        ] {
            let Some(given) = item.get(from).and_then(Value::as_object).cloned() else {
                continue;
            };
            if let Some(have) = member_object(item, to) {
                for (name, amount) in given {
                    have.entry(name).or_insert(amount);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    fn pods() -> std::sync::Arc<Resource> {
        Registry::builtin().find("", "v1", "pods").unwrap()
    }

    fn pod(resources: Value) -> Value {
        json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "c", "resources": resources}],
            "initContainers": [{"name": "i"}]}})
    }

    #[test]
    fn bounds_become_defaults_and_defaults_are_filled_in() {
        let mut range = json!({"spec": {"limits": [{"type": "Container",
            "max": {"cpu": "500m", "memory": "1Gi"}, "min": {"cpu": "100m", "x/y": "1"},
            "default": {"memory": "512Mi"}}, {"type": "Pod", "max": {"cpu": "1"}}]}});
        default_range(range.as_object_mut().unwrap());
        let item = &range["spec"]["limits"][0];
        assert_eq!(item["default"], json!({"cpu": "500m", "memory": "512Mi"}));
        assert_eq!(
            item["defaultRequest"],
            json!({"cpu": "500m", "memory": "512Mi", "x/y": "1"})
        );
        assert!(range["spec"]["limits"][1].get("default").is_none());
        let range = json!({"spec": {"limits": [{"type": "Container",
            "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "1"}}]}});
        let mut filled = pod(json!({"limits": {"cpu": "4"}}));
        fill(&range, &mut filled);
        assert_eq!(
            filled["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"cpu": "1"}})
        );
        assert_eq!(
            filled["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container c; memory limit for container c; \
             cpu request for init container i; cpu, memory limit for init container i"
        );
    }

    #[test]
    fn limit_violations_have_upstream_texts() {
        // Responses of kube-apiserver 1.35, with the resources of a bound in the order of their names.
        let range = json!({"spec": {"limits": [{"type": "Container",
            "max": {"cpu": "500m", "memory": "1Gi"}, "min": {"cpu": "100m"},
            "maxLimitRequestRatio": {"cpu": "2"}}, {"type": "Pod", "max": {"memory": "1Gi"}}]}});
        let asks = |resources: Value| {
            let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
            check(&range, &pods(), &pod).unwrap_err()
        };
        assert_eq!(
            asks(json!({"requests": {"cpu": "10m", "memory": "1Gi"},
                "limits": {"cpu": "500m", "memory": "1Gi"}})),
            "[minimum cpu usage per Container is 100m, but request is 10m, cpu max limit to request \
             ratio per Container is 2, but provided ratio is 50.000000]"
        );
        assert_eq!(
            asks(json!({"requests": {"cpu": "200m", "memory": "1Gi"},
                "limits": {"cpu": "900m", "memory": "2Gi"}})),
            "[maximum cpu usage per Container is 500m, but limit is 900m, maximum memory usage per \
             Container is 1Gi, but limit is 2Gi, cpu max limit to request ratio per Container is 2, \
             but provided ratio is 4.500000, maximum memory usage per Pod is 1Gi, but limit is 2Gi]"
        );
        let requested = asks(json!({}));
        assert!(
            requested.contains("minimum cpu usage per Container is 100m.  No request is specified")
        );
        let fits = json!({"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "1Gi"}});
        let fits = json!({"spec": {"containers": [{"name": "c", "resources": fits}]}});
        assert_eq!(check(&range, &pods(), &fits), Ok(()));
    }

    #[test]
    fn bounds_that_contradict_each_other_are_refused() {
        let range = json!({"spec": {"limits": [
            {"type": "Container", "max": {"cpu": "500m"}, "min": {"cpu": "1"},
                "default": {"cpu": "2"}, "defaultRequest": {"cpu": "3"},
                "maxLimitRequestRatio": {"cpu": "500m"}},
            {"type": "Pod", "default": {"cpu": "2"}},
            {"type": "Container"},
            {"type": "PersistentVolumeClaim"}]}});
        let messages: Vec<String> = validate(&range).iter().map(ToString::to_string).collect();
        // The text of kube-apiserver 1.35.
        assert_eq!(
            messages,
            [
                "spec.limits[0].min[cpu]: Invalid value: \"1\": min value 1 is greater than max value \
                 500m",
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"3\": default request value 3 is \
                 greater than max value 500m",
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"3\": default request value 3 is \
                 greater than default limit value 2",
                "spec.limits[0].default[cpu]: Invalid value: \"500m\": default value 2 is greater than \
                 max value 500m",
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less \
                 than 1",
                "spec.limits[1].default: Forbidden: may not be specified when `type` is 'Pod'",
                "spec.limits[2].type: Duplicate value: \"Container\"",
                "spec.limits[3].limits: Required value: either minimum or maximum storage value is \
                 required, but neither was provided"
            ]
        );
        let sound = json!({"spec": {"limits": [{"type": "Container", "min": {"cpu": "1"},
            "max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "4"}}]}});
        assert_eq!(validate(&sound).len(), 0);
    }
}
