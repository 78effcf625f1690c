//! Conversion of HorizontalPodAutoscaler between v1 and v2. v1 has a field for CPU utilization only; all else
//! is kept in annotations, so that a write of v1 loses nothing.

use serde_json::{Map, Value, json};

/// Fields of v2 that v1 keeps in annotations: section, field, annotation.
const KEPT: [(&str, &str, &str); 4] = [
    ("spec", "metrics", "autoscaling.alpha.kubernetes.io/metrics"),
    (
        "spec",
        "behavior",
        "autoscaling.alpha.kubernetes.io/behavior",
    ),
    (
        "status",
        "currentMetrics",
        "autoscaling.alpha.kubernetes.io/current-metrics",
    ),
    (
        "status",
        "conditions",
        "autoscaling.alpha.kubernetes.io/conditions",
    ),
];

/// Returns the utilization in `part` of a CPU metric.
fn cpu(metric: &Value, part: &str) -> Option<i64> {
    let resource = metric
        .get("resource")
        .filter(|_| metric["type"] == "Resource")?;
    if resource["name"] != "cpu" {
        return None;
    }
    resource.get(part)?.get("averageUtilization")?.as_i64()
}

fn section<'a>(object: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(key)?.as_object_mut()
}

/// Converts from the v2 form.
pub(super) fn to_v1(object: &mut Value) {
    for (part, from, inner, to) in [
        (
            "spec",
            "metrics",
            "target",
            "targetCPUUtilizationPercentage",
        ),
        (
            "status",
            "currentMetrics",
            "current",
            "currentCPUUtilizationPercentage",
        ),
    ] {
        let Some(map) = section(object, part) else {
            continue;
        };
        let Some(list) = map.get_mut(from).and_then(Value::as_array_mut) else {
            continue;
        };
        let matches = list.iter().position(|metric| cpu(metric, inner).is_some());
        if let Some(at) = matches {
            let metric = list.remove(at);
            map.insert(to.to_owned(), json!(cpu(&metric, inner)));
        }
    }
    for (part, field, annotation) in KEPT {
        let removed = section(object, part).and_then(|map| map.remove(field));
        let retained = removed.filter(|v| !v.is_null() && *v != json!([]));
        if let Some(retained) = retained
            && let Some(metadata) = section(object, "metadata")
        {
            let all = metadata.entry("annotations").or_insert_with(|| json!({}));
            if let Some(all) = all.as_object_mut() {
                all.insert(annotation.to_owned(), retained.to_string().into());
            }
        }
    }
}

/// Converts to the v2 form. An annotation with an invalid value is kept.
pub(super) fn to_v2(object: &mut Value) {
    for (part, field, annotation) in KEPT {
        let Some(metadata) = section(object, "metadata") else {
            return;
        };
        let annotations = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut);
        let Some(annotations) = annotations else {
            break;
        };
        let text = annotations.get(annotation).and_then(Value::as_str);
        let read = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
        let fits = |v: &Value| v.is_array() || (field == "behavior" && v.is_object());
        if let Some(value) = read.filter(fits) {
            annotations.remove(annotation);
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
            if let Some(root) = object.as_object_mut() {
                let map = root.entry(part).or_insert_with(|| json!({}));
                if let Some(map) = map.as_object_mut() {
                    map.insert(field.to_owned(), value);
                }
            }
        }
    }
    for (part, from, to) in [
        ("spec", "targetCPUUtilizationPercentage", "metrics"),
        (
            "status",
            "currentCPUUtilizationPercentage",
            "currentMetrics",
        ),
    ] {
        let Some(map) = section(object, part) else {
            continue;
        };
        let Some(percent) = map.remove(from).filter(|v| !v.is_null()) else {
            continue;
        };
        let resource = match part {
            "spec" => json!({"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": percent}}),
            _ => json!({"name": "cpu", "current": {"averageUtilization": percent}}),
        };
        let list = map.entry(to).or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut() {
            list.insert(0, json!({"type": "Resource", "resource": resource}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autoscaler_v1_keeps_other_metrics_in_annotations() {
        let v2 = json!({"metadata": {"name": "h", "annotations": {"a": "b"}},
            "spec": {"maxReplicas": 3, "behavior": {"scaleDown": {"selectPolicy": "Max"}}, "metrics": [
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80}}},
                {"type": "Resource", "resource": {"name": "memory",
                    "target": {"type": "Utilization", "averageUtilization": 70}}}]},
            "status": {"currentReplicas": 1, "conditions": [{"type": "AbleToScale", "status": "True"}],
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": 50}}}]}});
        let mut v1 = v2.clone();
        to_v1(&mut v1);
        assert_eq!(
            v1["spec"],
            json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 80})
        );
        assert_eq!(
            v1["status"],
            json!({"currentReplicas": 1, "currentCPUUtilizationPercentage": 50})
        );
        assert_eq!(v1["metadata"]["annotations"].as_object().unwrap().len(), 4);
        let mut back = v1;
        to_v2(&mut back);
        assert_eq!(back, v2);
    }

    #[test]
    fn annotations_of_another_form_stay() {
        let key = "autoscaling.alpha.kubernetes.io/metrics";
        let object = json!({"metadata": {"annotations": {key: "[oh"}}, "spec": {"maxReplicas": 1}});
        let mut v2 = object.clone();
        to_v2(&mut v2);
        assert_eq!(v2, object);
        let mut bare = json!({"spec": {"maxReplicas": 1}});
        to_v2(&mut bare);
        assert_eq!(bare, json!({"spec": {"maxReplicas": 1}}));
    }
}
