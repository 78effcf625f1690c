//! The manifests of the demo.

use super::result::Phase;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::path::Path;

/// Namespace of everything the demo creates.
pub const NAMESPACE: &str = "default";
/// Name of the service's pod.
pub const SERVICE: &str = "web";
/// Label that marks the batch pods.
pub const BATCH_LABEL: &str = "app=batch";

/// What every demo pod has: it runs on this host under koord's scheduler.
fn pod(name: &str, labels: &Value, container: &Value, extra: &[(&str, Value)]) -> Pod {
    let mut spec = json!({
        "schedulerName": "koord-scheduler",
        "hostNetwork": true,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    });
    for (field, value) in extra {
        spec[field] = value.clone();
    }
    let manifest = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": spec,
    });
    // The literal above is a valid pod; a mistake in it fails the test below.
    serde_json::from_value(manifest).unwrap_or_default()
}

/// The latency-sensitive service: `steps` of CPU work per request.
#[must_use]
pub fn service(executable: &Path, steps: u64, ready_file: &Path, cpus: usize) -> Pod {
    pod(
        SERVICE,
        &json!({"app": "web", koord_api::labels::POD_QOS: "LS"}),
        &json!({
            "name": "server",
            "image": "koord.local/workload",
            "command": [executable, "workload", "serve"],
            "args": ["--steps", steps.to_string(), "--ready-file", ready_file,
                     "--workers", cpus.to_string()],
            "resources": {"requests": {"cpu": format!("{}m", 450 * cpus), "memory": "64Mi"}},
        }),
        &[
            ("priorityClassName", json!("koord-prod")),
            ("restartPolicy", json!("Always")),
        ],
    )
}

/// Batch pod `number` for `phase`: best-effort in `besteffort`, burstable with as much as the service
/// requests in `unmanaged`, BE with batch resources otherwise.
#[must_use]
pub fn batch(
    phase: Phase,
    number: usize,
    generation: usize,
    executable: &Path,
    counters: &Path,
) -> Pod {
    let name = format!("batch-{}-{generation}-{number}", phase.name());
    let counter = counters.join(&name);
    let managed = matches!(phase, Phase::Suppressed | Phase::Managed);
    let requests = match phase {
        Phase::Suppressed | Phase::Managed => {
            json!({"kubernetes.io/batch-cpu": "100", "kubernetes.io/batch-memory": "64Mi"})
        }
        Phase::BestEffort => json!({}),
        Phase::Alone | Phase::Unmanaged => json!({"cpu": "450m", "memory": "64Mi"}),
    };
    let mut labels = json!({"app": "batch"});
    let mut extra = Vec::new();
    if managed {
        labels[koord_api::labels::POD_QOS] = json!("BE");
        extra.push(("priorityClassName", json!("koord-batch")));
    } else {
        extra.push(("schedulerName", json!("default-scheduler")));
    }
    pod(
        &name,
        &labels,
        &json!({
            "name": "job",
            "image": "koord.local/workload",
            "command": [executable, "workload", "hog"],
            "args": ["--threads", "2", "--counter", counter],
            "resources": {"requests": requests},
        }),
        &extra,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_plain_burstable_or_asks_for_batch_resources() {
        let requests = |phase| {
            let pod = batch(phase, 0, 1, Path::new("/bin/koord"), Path::new("/tmp"));
            let spec = pod.spec.expect("a pod with a spec");
            let keys: Vec<String> = spec.containers[0]
                .resources
                .as_ref()
                .and_then(|resources| resources.requests.as_ref())
                .map(|requests| requests.keys().cloned().collect())
                .unwrap_or_default();
            (
                keys,
                pod.metadata
                    .labels
                    .unwrap_or_default()
                    .get(koord_api::labels::POD_QOS)
                    .cloned(),
            )
        };
        assert_eq!(requests(Phase::BestEffort), (vec![], None));
        assert_eq!(
            requests(Phase::Unmanaged),
            (vec!["cpu".into(), "memory".into()], None)
        );
        assert_eq!(
            requests(Phase::Managed),
            (
                vec![
                    "kubernetes.io/batch-cpu".into(),
                    "kubernetes.io/batch-memory".into()
                ],
                Some("BE".into())
            )
        );
    }

    #[test]
    fn the_service_is_a_latency_sensitive_pod() {
        let pod = service(Path::new("/bin/koord"), 7, Path::new("/tmp/ready"), 2);
        let spec = pod.spec.expect("a pod with a spec");
        assert_eq!(spec.scheduler_name.as_deref(), Some("koord-scheduler"));
        assert_eq!(spec.priority_class_name.as_deref(), Some("koord-prod"));
        let command = spec.containers[0].command.clone().unwrap_or_default();
        assert_eq!(command, ["/bin/koord", "workload", "serve"]);
    }
}
