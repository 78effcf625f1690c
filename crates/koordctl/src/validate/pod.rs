//! Checks of pods and of templates of pods, by the rules of the manager's webhook.

use super::document::{FaultPlace, PlaceTarget, join, lookup};
use super::fault::Fault;
use super::metadata;
use k8s_openapi::api::core::v1::Pod;
use koord_api::priority::{self, PriorityClass};
use koord_api::{labels, lenient};
use koord_manager::webhook::offline;
use koord_object::quantity;
use serde_json::{Value, json};

/// Returns the path of the pod or of its template in an object of `kind`; `None` if it has none.
pub(super) fn template_path(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some(""),
        "CronJob" => Some("spec.jobTemplate.spec.template"),
        "DaemonSet"
        | "Deployment"
        | "Job"
        | "ReplicaSet"
        | "ReplicationController"
        | "StatefulSet" => Some("spec.template"),
        "PodTemplate" => Some("template"),
        _ => None,
    }
}

/// Returns the faults of the pod or template at `path` of an object. Its types are checked with the object.
pub(super) fn faults(object: &Value, path: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let Some(template) = lookup(object, path).filter(|it| it.is_object()) else {
        return faults;
    };
    if !path.is_empty() {
        // Those of the object itself were checked with its metadata.
        let of_labels = metadata::label_faults(&template["metadata"]["labels"], "metadata.labels");
        let annotations = &template["metadata"]["annotations"];
        let of_annotations = metadata::annotation_faults(annotations, "metadata.annotations");
        let all = of_labels.into_iter().chain(of_annotations);
        faults.extend(all.map(|it| it.below(path)));
    }
    faults.extend(
        resource_faults(template)
            .into_iter()
            .map(|it| it.below(path)),
    );
    let part = json!({ "metadata": template["metadata"], "spec": template["spec"] });
    let Ok(mut pod) = lenient::from_value::<Pod>(&part) else {
        return faults;
    };
    faults.extend(metadata::pod_gang_fault(&pod, path));
    if let Err(error) = priority::pod_sub_priority(&pod) {
        let place = format!("metadata.labels.{}", labels::POD_PRIORITY);
        faults.push(Fault::error(FaultPlace::value(place), error.to_string()).below(path));
    }
    let class = resolve_priority(&mut pod);
    for problem in offline::pod_problems(&pod) {
        if let Some(fault) = rule_fault(&problem, &class, template) {
            faults.push(fault.below(path));
        }
    }
    faults
}

/// Priority class of a pod that is not created yet.
enum Class {
    /// Set by the pod.
    Set,
    /// The pod names a class whose value is in the cluster only.
    Other,
    /// A profile may set it.
    Unset,
}

/// Sets the priority of a pod that names one of Koordinator's classes, as the API server does.
fn resolve_priority(pod: &mut Pod) -> Class {
    let is_labeled = pod.metadata.labels.as_ref();
    let is_labeled = is_labeled.is_some_and(|all| all.contains_key(labels::POD_PRIORITY_CLASS));
    let Some(spec) = &mut pod.spec else {
        return Class::Unset;
    };
    if spec.priority.is_some() || is_labeled {
        return Class::Set;
    }
    match spec.priority_class_name.as_deref().unwrap_or_default() {
        "" => Class::Unset,
        name => match PriorityClass::from_name(name) {
            PriorityClass::None => Class::Other,
            class => {
                spec.priority = Some(class.default_value());
                Class::Set
            }
        },
    }
}

/// Returns the fault of a violated rule of the webhook, whose message begins with the field.
fn rule_fault(problem: &str, class: &Class, template: &Value) -> Option<Fault> {
    let (field, _) = problem.split_once(": ").unwrap_or((problem, ""));
    let qos = format!("metadata.labels.{}", labels::POD_QOS);
    let requests = "spec.containers[0].resources.requests".to_owned();
    if field == "Pod" {
        let paths = vec!["spec.priorityClassName".to_owned(), qos];
        let place = FaultPlace::from(PlaceTarget::Paths(paths));
        let hint = "set spec.priorityClassName; a ClusterColocationProfile can set it, too";
        return match class {
            Class::Set => Some(Fault::error(place, problem)),
            Class::Unset => Some(Fault::warning(place, problem).with_hint(hint)),
            Class::Other => None,
        };
    }
    let path = match field.strip_prefix("pod.").unwrap_or(field) {
        field if field.starts_with("spec.containers[*]") => requests,
        field if field.starts_with("labels.") || field.starts_with("annotations.") => {
            join("metadata", field)
        }
        field => field.to_owned(),
    };
    let is_set = !template["metadata"]["labels"][labels::POD_QOS].is_null();
    let place = FaultPlace::from(PlaceTarget::Paths(vec![path.clone()]));
    Some(match path == qos && !is_set {
        // The label of a profile is set before the pod is validated.
        true => Fault::warning(FaultPlace::value("spec.containers[0].resources"), problem)
            .with_hint("set the label; a ClusterColocationProfile can set it, too"),
        false => Fault::error(place, problem),
    })
}

/// Returns the faults of requests and limits: a limit is at least the request, and that of an extended resource equal.
fn resource_faults(template: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    for list in ["containers", "initContainers"] {
        let containers = template["spec"][list].as_array().into_iter().flatten();
        for (at, container) in containers.enumerate() {
            let path = format!("spec.{list}[{at}].resources");
            let side = |side: &str| container["resources"][side].as_object();
            let limits = side("limits");
            for (name, amount) in side("requests").into_iter().flatten() {
                // Names of kubernetes.io count as native.
                let is_extended = name.contains('/') && !name.contains("kubernetes.io/");
                let limit = limits.and_then(|limits| limits.get(name));
                // Amounts that are none are reported with the types.
                let amounts = limit.map(|limit| (quantity::parse(amount), quantity::parse(limit)));
                let rule = match amounts {
                    None if is_extended => "an extended resource needs a limit",
                    Some((Some(request), Some(limit))) if is_extended && request != limit => {
                        "the limit of an extended resource must be equal to the request"
                    }
                    Some((Some(request), Some(limit))) if request > limit => {
                        "the request is above the limit"
                    }
                    _ => continue,
                };
                let field = format!("{path}.requests.{name}");
                let message = format!("{field}: {rule}");
                faults.push(Fault::error(FaultPlace::value(field), message));
            }
        }
    }
    faults
}
