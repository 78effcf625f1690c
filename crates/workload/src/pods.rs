//! Manifests of the pods that the demo creates.

use super::phase::Phase;
use super::scenario::{self, Neighbour, Scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Namespace of everything the demo creates.
pub const NAMESPACE: &str = "default";
/// Name of the pod of the service that is measured.
pub const SERVICE: &str = "web";
/// Name of the same service without a limit, where the scenario's has one.
pub const UNLIMITED: &str = "web-unlimited";
/// Label that marks the batch pods.
pub const BATCH_LABEL: &str = "app=batch";
/// Label that marks the services.
pub const SERVICE_LABEL: &str = "app=web";

/// Reclaimed memory that a batch pod gets, in MiB.
const BATCH_MEMORY_MIB: u32 = 64;

/// Returns a demo pod with the common fields: it runs on this host.
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

/// A latency-sensitive service.
#[derive(Debug, Clone)]
pub struct Service<'a> {
    /// Name of the pod.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Milli-CPUs it requests.
    pub request: u64,
    /// Milli-CPUs it may use at most.
    pub limit: Option<u64>,
    /// File to which the service writes its address once it listens; nginx gets its address in its configuration.
    pub ready_file: Option<&'a Path>,
}

/// Returns the pod of a latency-sensitive service, which answers requests.
#[must_use]
pub fn service(service: &Service<'_>) -> Pod {
    let mut resources = json!({
        "requests": {"cpu": format!("{}m", service.request), "memory": "64Mi"},
    });
    if let Some(limit) = service.limit {
        resources["limits"] = json!({"cpu": format!("{limit}m")});
    }
    let (args, security) = match service.ready_file {
        Some(file) => (json!(["--ready-file", file]), json!({})),
        // nginx's workers set their user and groups.
        None => {
            let add = json!({"capabilities": {"add": ["SETGID", "SETUID"]}});
            (json!([]), add)
        }
    };
    pod(
        &service.name,
        &json!({"app": "web", koord_api::labels::POD_QOS: "LS"}),
        &json!({
            "name": "server",
            "image": "koord.local/workload",
            "command": service.command,
            "args": args,
            "resources": resources,
            "securityContext": security,
        }),
        &[("priorityClassName", json!("koord-prod"))],
    )
}

/// Program and directories of the batch pods of one phase.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    /// Path of this program.
    pub executable: &'a Path,
    /// Directory of the counters.
    pub counters: PathBuf,
    /// Directory for files that come and go.
    pub scratch: PathBuf,
    /// Number that distinguishes the pods of one phase from those of the last.
    pub generation: usize,
}

/// Returns the command line of a batch pod.
fn command(neighbour: Neighbour, batch: &Batch<'_>, counter: &Path) -> Vec<String> {
    match workload(neighbour, &batch.scratch, counter) {
        Some(args) => [batch.executable.display().to_string(), "workload".into()]
            .into_iter()
            .chain(args)
            .collect(),
        None => ffmpeg(counter),
    }
}

/// Returns the arguments of `koord workload` for a batch pod; `None` if the neighbor is another program.
#[must_use]
pub fn workload(neighbour: Neighbour, scratch: &Path, counter: &Path) -> Option<Vec<String>> {
    let path = |path: &Path| path.display().to_string();
    let args: Vec<String> = match neighbour {
        Neighbour::Ffmpeg => return None,
        Neighbour::Compute(threads) => vec!["hog".into(), "--threads".into(), threads.to_string()],
        Neighbour::Spawn => vec!["spawn".into()],
        Neighbour::Sync => vec!["sync".into(), "--dir".into(), path(scratch)],
        Neighbour::Grow(mib) => vec!["grow".into(), "--mib".into(), mib.to_string()],
        Neighbour::Stream => vec!["stream".into()],
    };
    let counter = ["--counter".into(), path(counter)];
    Some(args.into_iter().chain(counter).collect())
}

/// Returns a command line of ffmpeg that encodes a test picture without end, with its progress in a file next
/// to the counters.
fn ffmpeg(counter: &Path) -> Vec<String> {
    let program = scenario::program("ffmpeg").unwrap_or_else(|| "ffmpeg".into());
    let encode = "-nostdin -loglevel error -f lavfi -i testsrc2=size=1280x720:rate=30 -c:v libx264 \
                  -preset medium -threads 4 -stats_period 0.1 -progress";
    let progress = counter.with_extension("progress");
    [program.display().to_string()]
        .into_iter()
        .chain(encode.split_whitespace().map(str::to_owned))
        .chain([progress.display().to_string()])
        .chain(["-f", "null", "-"].map(str::to_owned))
        .collect()
}

/// Returns batch pod `number` for `phase`: best-effort in `besteffort`, burstable with as much as the service
/// requests in `unmanaged`, BE with batch resources otherwise.
#[must_use]
pub fn batch(scenario: &Scenario, phase: Phase, number: usize, batch: &Batch<'_>) -> Pod {
    let name = format!("batch-{}-{}-{number}", phase.name(), batch.generation);
    let counter = batch.counters.join(&name);
    let memory = format!("{BATCH_MEMORY_MIB}Mi");
    let managed = matches!(phase, Phase::Suppressed | Phase::Managed);
    let resources = match phase {
        Phase::Suppressed | Phase::Managed => {
            let mut resources = json!({
                "requests": {"kubernetes.io/batch-cpu": "100", "kubernetes.io/batch-memory": memory},
            });
            if matches!(scenario.neighbour, Neighbour::Grow(_)) {
                resources["limits"] = json!({"kubernetes.io/batch-memory": memory});
            }
            resources
        }
        Phase::BestEffort => json!({}),
        Phase::Alone | Phase::Unmanaged => json!({"requests": {"cpu": "450m", "memory": memory}}),
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
            "command": command(scenario.neighbour, batch, &counter),
            "resources": resources,
        }),
        &extra,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch_of(phase: Phase, scenario: &str) -> Pod {
        let scenarios = scenario::select(&[scenario.to_owned()]).unwrap();
        let place = Batch {
            executable: Path::new("/bin/koord"),
            counters: "/tmp/c".into(),
            scratch: "/tmp/s".into(),
            generation: 1,
        };
        batch(scenarios[0], phase, 0, &place)
    }

    #[test]
    fn batch_is_plain_burstable_or_asks_for_batch_resources() {
        let requests = |phase| {
            let pod = batch_of(phase, "cpu");
            let spec = pod.spec.expect("a pod with a spec");
            let keys: Vec<String> = spec.containers[0]
                .resources
                .as_ref()
                .and_then(|resources| resources.requests.as_ref())
                .map(|requests| requests.keys().cloned().collect())
                .unwrap_or_default();
            let labels = pod.metadata.labels.unwrap_or_default();
            (keys, labels.get(koord_api::labels::POD_QOS).cloned())
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
    fn batch_memory_limit_needs_koord_and_a_memory_neighbour() {
        let limited = |phase, scenario| {
            let spec = batch_of(phase, scenario).spec.expect("a spec");
            let resources = spec.containers[0].resources.clone();
            resources.is_some_and(|resources| resources.limits.is_some())
        };
        assert!(limited(Phase::Managed, "memory") && limited(Phase::Suppressed, "memory"));
        assert!(!limited(Phase::BestEffort, "memory") && !limited(Phase::Managed, "io"));
    }

    #[test]
    fn the_service_is_a_latency_sensitive_pod() {
        let pod = service(&Service {
            name: SERVICE.to_owned(),
            command: ["/bin/koord", "workload", "serve"]
                .map(str::to_owned)
                .into(),
            request: 900,
            limit: Some(600),
            ready_file: Some(Path::new("/tmp/ready")),
        });
        let spec = pod.spec.expect("a pod with a spec");
        assert_eq!(spec.scheduler_name.as_deref(), Some("koord-scheduler"));
        assert_eq!(spec.priority_class_name.as_deref(), Some("koord-prod"));
        let limits = spec.containers[0]
            .resources
            .clone()
            .and_then(|all| all.limits);
        assert_eq!(limits.expect("limits")["cpu"].0, "600m");
    }
}
