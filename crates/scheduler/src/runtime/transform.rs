//! Changes to pods before anything else reads them. They are never written back.

use k8s_openapi::api::core::v1::Pod;
use koord_api::{annotations, labels};
use koord_model::replace::replace_resources;
use std::collections::BTreeMap;

/// Returns the transformation of pods for these feature gates.
pub(super) fn pods(gates: &BTreeMap<String, bool>) -> fn(&mut Pod) {
    let on = |name: &str| gates.get(name).copied().unwrap_or(false);
    let priority = on("PriorityTransformer");
    let preemption = on("PreemptionPolicyTransformer");
    let replace = on("ReplaceResourcesTransformer");
    match (priority, preemption, replace) {
        (false, false, false) => transform::<false, false, false>,
        (false, false, true) => transform::<false, false, true>,
        (false, true, false) => transform::<false, true, false>,
        (false, true, true) => transform::<false, true, true>,
        (true, false, false) => transform::<true, false, false>,
        (true, false, true) => transform::<true, false, true>,
        (true, true, false) => transform::<true, true, false>,
        (true, true, true) => transform::<true, true, true>,
    }
}

fn transform<const PRIORITY: bool, const PREEMPTION: bool, const REPLACE: bool>(pod: &mut Pod) {
    if REPLACE {
        replace_resources(pod);
    }
    if PRIORITY {
        let value = koord_api::priority::pod_priority_value(pod);
        pod.spec.get_or_insert_default().priority = Some(value);
    }
    if PREEMPTION {
        let allowed = ["Never", "PreemptLowerPriority"];
        let label = label(pod, labels::PREEMPTION_POLICY);
        let policy = label.filter(|label| allowed.contains(&label.as_str()));
        let policy = policy.unwrap_or_else(|| "Never".to_owned());
        pod.spec.get_or_insert_default().preemption_policy = Some(policy);
    }
    if let Some(name) = label(pod, labels::SCHEDULER_NAME) {
        choose_scheduler(pod, name);
    }
}

fn label(pod: &Pod, key: &str) -> Option<String> {
    pod.metadata.labels.as_ref()?.get(key).cloned()
}

fn choose_scheduler(pod: &mut Pod, name: String) {
    let Some(spec) = &mut pod.spec else { return };
    let original = spec.scheduler_name.replace(name.clone());
    let original = original.unwrap_or_default();
    if original != name {
        let key = annotations::ORIGINAL_SCHEDULER_NAME.to_owned();
        let all = pod.metadata.annotations.get_or_insert_default();
        all.insert(key, original);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(gates: &[&str], pod: Value) -> Value {
        let gates = gates.iter().map(|name| ((*name).to_owned(), true));
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        pods(&gates.collect())(&mut pod);
        serde_json::to_value(pod).unwrap()
    }

    fn pod(metadata: Value, spec: Value) -> Value {
        json!({"metadata": metadata, "spec": spec})
    }

    #[test]
    fn a_label_chooses_the_scheduler() {
        const KEY: &str = "scheduling.koordinator.sh/scheduler-name";
        const ORIGINAL: &str = "internal.scheduling.koordinator.sh/original-scheduler-name";
        let rows = [
            (
                json!({KEY: "koord-scheduler"}),
                "koord-scheduler",
                json!("default-scheduler"),
            ),
            (json!({}), "default-scheduler", Value::Null),
            (
                json!({KEY: "default-scheduler"}),
                "default-scheduler",
                Value::Null,
            ),
        ];
        for (labels, name, original) in rows {
            let spec = json!({"schedulerName": "default-scheduler", "containers": []});
            let out = run(&[], pod(json!({"labels": labels}), spec));
            assert_eq!(out["spec"]["schedulerName"], name);
            assert_eq!(out["metadata"]["annotations"][ORIGINAL], original);
        }
    }

    #[test]
    fn priorities_and_policies_follow_the_gates() {
        let class = |class: &str| json!({"labels": {"koordinator.sh/priority-class": class}});
        let spec = json!({"containers": []});
        for (name, expected) in [
            ("koord-prod", 9500),
            ("koord-mid", 7500),
            ("koord-batch", 5500),
            ("koord-free", 3500),
        ] {
            let out = run(&["PriorityTransformer"], pod(class(name), spec.clone()));
            assert_eq!(out["spec"]["priority"], expected, "{name}");
        }
        let out = run(&[], pod(class("koord-prod"), spec.clone()));
        assert_eq!(out["spec"]["priority"], Value::Null);

        const KEY: &str = "scheduling.koordinator.sh/preemption-policy";
        for (label, expected) in [
            (json!({KEY: "PreemptLowerPriority"}), "PreemptLowerPriority"),
            (json!({KEY: "Perhaps"}), "Never"),
            (json!({}), "Never"),
        ] {
            let metadata = json!({"labels": label});
            let out = run(
                &["PreemptionPolicyTransformer"],
                pod(metadata, spec.clone()),
            );
            assert_eq!(out["spec"]["preemptionPolicy"], expected);
        }
    }

    #[test]
    fn resources_are_erased_and_replaced() {
        let metadata = json!({"annotations": {"pod.koordinator.sh/replace-resources":
            "ephemeral-storage:,memory:example.io/memory,cpu:kubernetes.io/batch-cpu"}});
        let resources = |cpu: &str| json!({"cpu": cpu, "memory": "4Gi", "ephemeral-storage": "1Gi", "example.io/gpu": "1"});
        let spec = json!({
            "containers": [{"name": "c", "resources":
                {"requests": resources("2"), "limits": resources("2500m")}}],
            "initContainers": [{"name": "i", "resources": {"requests": resources("1")}}],
            "overhead": {"cpu": "100m"},
        });
        let expected = |cpu: &str| json!({"kubernetes.io/batch-cpu": cpu, "example.io/memory": "4Gi", "example.io/gpu": "1"});
        let gate = ["ReplaceResourcesTransformer"];
        let out = run(&gate, pod(metadata.clone(), spec.clone()));
        let container = &out["spec"]["containers"][0]["resources"];
        assert_eq!(container["requests"], expected("2000"));
        assert_eq!(container["limits"], expected("2500"));
        let init = &out["spec"]["initContainers"][0]["resources"];
        assert_eq!(init["requests"], expected("1000"));
        assert_eq!(
            out["spec"]["overhead"],
            json!({"kubernetes.io/batch-cpu": "100"})
        );
        let off = run(&[], pod(metadata, spec));
        assert_eq!(
            off["spec"]["containers"][0]["resources"]["requests"],
            resources("2")
        );
    }
}
