//! The profile of Koordinator's documentation: a pod without co-location settings becomes a batch pod, is
//! placed, runs, and its cgroups have the expected values. Webhooks run in process, and over HTTPS.

use crate::harness::{Up, shared};
use crate::kubectl::{self, Kubectl};
use koord_host::testing::eventually_blocking;
use serde_json::Value;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const PROFILE: &str = include_str!("../../../../docs/examples/profile.yaml");
/// The documentation's pod; whether it fits depends on how busy the machine is.
const EXAMPLE: &str = include_str!("../../../../docs/examples/profile-pod.yaml");

/// Runs on this machine. It requests memory only: a busy machine may have no reclaimed CPUs left.
const HERE: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: here
  labels: {koordinator.sh/enable-colocation: "true"}
spec:
  nodeSelector: {node.koordinator.sh/host: "true"}
  tolerations: [{key: node.koordinator.sh/host, operator: Exists}]
  hostNetwork: true
  containers:
  - name: app
    image: koord.local/host
    command: ["/bin/sh", "-c", "cat /proc/self/cgroup; echo end; while :; do sleep 1; done"]
    resources:
      limits: {memory: 32Mi}
      requests: {memory: 32Mi}
"#;

/// Runs on a simulated node, which also has reclaimed CPUs left.
const SIMULATED: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: simulated
  labels: {koordinator.sh/enable-colocation: "true"}
spec:
  nodeSelector: {sim.koordinator.sh/node: "true"}
  containers:
  - name: app
    image: i
    resources:
      limits: {cpu: 500m, memory: 64Mi}
      requests: {cpu: 500m, memory: 64Mi}
"#;

fn get(kubectl: &Kubectl<'_>, what: &[&str]) -> Value {
    let text = kubectl.ok(&[&["get"], what, &["-o", "json"]].concat(), None);
    serde_json::from_str(&text).expect("JSON")
}

/// Applies both pods without labels, and checks the results.
fn session(kubectl: &Kubectl<'_>) {
    for pod in [HERE, SIMULATED] {
        kubectl.ok(&["apply", "-f", "-"], Some(pod));
    }
    let amounts = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    for (name, list) in [
        ("here", amounts(r#"{"kubernetes.io/batch-memory": "32Mi"}"#)),
        (
            "simulated",
            amounts(r#"{"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}"#),
        ),
    ] {
        let pod = get(kubectl, &["pod", name]);
        let (meta, spec) = (&pod["metadata"], &pod["spec"]);
        assert_eq!(meta["labels"]["koordinator.sh/qosClass"], "BE");
        assert_eq!(meta["labels"]["koordinator.sh/priority"], "1000");
        assert_eq!(meta["labels"]["koordinator.sh/mutated"], "true");
        assert_eq!(meta["annotations"]["koordinator.sh/intercepted"], "true");
        assert_eq!(spec["priorityClassName"], "koord-batch");
        assert_eq!(spec["schedulerName"], "koord-scheduler");
        assert_eq!(spec["terminationGracePeriodSeconds"], 30);
        let resources = &spec["containers"][0]["resources"];
        assert_eq!(resources["limits"], list, "{name}");
        assert_eq!(resources["requests"], list, "{name}");
        let annotation = &meta["annotations"]["node.koordinator.sh/extended-resource-spec"];
        assert_eq!(
            amounts(annotation.as_str().expect("text"))["containers"]["app"]["limits"],
            list
        );
        eventually_blocking(&format!("pod {name} to run"), || {
            let pod = get(kubectl, &["pod", name]);
            (pod["status"]["phase"] == "Running").then_some(())
        });
    }
    let log = eventually_blocking("where the pod runs", || {
        let log = kubectl.ok(&["logs", "here"], None);
        log.contains("end").then_some(log)
    });
    let group = memory_group(&log);
    assert!(group.to_string_lossy().contains("besteffort"), "{group:?}");
    eventually_blocking("the memory limit in the container's group", || {
        let of = |name: &str| std::fs::read_to_string(group.join(name)).ok();
        let limit = of("memory.limit_in_bytes").or_else(|| of("memory.max"))?;
        (limit.trim() == (32_u64 << 20).to_string()).then_some(())
    });

    // Labels that were set at creation are immutable, and invalid combinations are refused.
    let relabel = [
        "label",
        "pod",
        "here",
        "koordinator.sh/qosClass=LS",
        "--overwrite",
    ];
    let error = kubectl.fails(&relabel, "");
    for part in [
        "vpod.koordinator.sh",
        "labels.koordinator.sh/qosClass",
        "\"LS\"",
        "immutable",
    ] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let other = HERE.replace("name: here", "name: other").replace(
        "koordinator.sh/enable-colocation: \"true\"",
        "koordinator.sh/qosClass: LSR",
    );
    let error = kubectl.fails(&["apply", "-f", "-"], &other);
    assert!(
        error.contains("Pod: Forbidden: koordinator.sh/qosClass=LSR"),
        "{error}"
    );
    kubectl.ok(&["delete", "pod", "here", "simulated"], None);

    kubectl.ok(&["apply", "-f", "-"], Some(EXAMPLE));
    let limits = "jsonpath={.spec.containers[0].resources.limits}";
    assert_eq!(
        kubectl.ok(&["get", "pod", "test-pod", "-o", limits], None),
        r#"{"kubernetes.io/batch-cpu":"100","kubernetes.io/batch-memory":"256Mi"}"#
    );
    kubectl.ok(&["delete", "pod", "test-pod"], None);
}

/// Returns the cgroup of the memory controller in `/proc/self/cgroup`.
fn memory_group(text: &str) -> PathBuf {
    let mut lines = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        Some((parts.next()?, parts.next()?, parts.next()?))
    });
    let of = |tree: &str, path: &str| PathBuf::from(format!("/sys/fs/cgroup{tree}{path}"));
    let controller = lines
        .clone()
        .find(|(_, names, _)| names.split(',').any(|n| n == "memory"));
    match controller {
        Some((_, _, path)) => of("/memory", path),
        None => {
            let unified = lines.find(|(id, ..)| *id == "0").expect("a group");
            of("", unified.2)
        }
    }
}

/// Removes the webhooks of `koord up` and serves the same ones from a separate koord-manager.
struct OverHttps(Child);

impl OverHttps {
    /// Starts a koord-manager that serves the webhooks of `up` over HTTPS.
    fn start(up: &Up, kubectl: &Kubectl<'_>, dir: &std::path::Path) -> Self {
        let mut environment = Vec::new();
        for (kind, variable) in [
            ("mutatingwebhookconfiguration", "MUTATING_WEBHOOK_NAME"),
            ("validatingwebhookconfiguration", "VALIDATING_WEBHOOK_NAME"),
        ] {
            let mut list = get(kubectl, &[kind]);
            let [configuration] = list["items"].as_array_mut().expect("a list").as_mut_slice()
            else {
                panic!("one configuration, not {list}");
            };
            let old = configuration["metadata"]["name"]
                .as_str()
                .expect("a name")
                .to_owned();
            let name = format!("https-{old}");
            configuration["metadata"] = serde_json::json!({ "name": name });
            kubectl.ok(&["delete", kind, &old], None);
            kubectl.ok(&["create", "-f", "-"], Some(&configuration.to_string()));
            environment.push((variable, name));
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .expect("a port")
            .local_addr()
            .expect("it");
        let child = Command::new(env!("CARGO_BIN_EXE_koord"))
            .args([
                "manager",
                "--enable-leader-election=false",
                "--controllers=colocationprofile",
            ])
            .args(["--metrics-addr=0", "--health-probe-addr=0", "--kubeconfig"])
            .arg(&up.kubeconfig)
            .envs(environment)
            .env("WEBHOOK_HOST", "127.0.0.1")
            .env("WEBHOOK_PORT", port.port().to_string())
            .env("WEBHOOK_CERT_WRITER", "fs")
            .env("WEBHOOK_CERT_DIR", dir.join("webhook-certs"))
            .stdin(Stdio::null())
            .spawn()
            .expect("koord-manager starts");
        let started = Self(child);
        eventually_blocking("the configurations to name the server", || {
            let all = get(
                kubectl,
                &["mutatingwebhookconfigurations,validatingwebhookconfigurations"],
            );
            let mut hooks = all["items"]
                .as_array()?
                .iter()
                .flat_map(|c| c["webhooks"].as_array());
            let served = |hook: &Value| hook["clientConfig"]["url"].is_string();
            hooks
                .all(|hooks| !hooks.is_empty() && hooks.iter().all(served))
                .then_some(())
        });
        started
    }
}

impl Drop for OverHttps {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_profile_makes_batch_pods() {
    if !kubectl::is_installed() {
        return;
    }
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut up = Up::start(dir.path(), &["--nodes", "1"]);
    let kubectl = Kubectl(&up);
    kubectl.ok(&["apply", "-f", "-"], Some(PROFILE));
    let label = [
        "label",
        "namespace",
        "default",
        "koordinator.sh/enable-colocation=true",
    ];
    kubectl.ok(&label, None);
    session(&kubectl);
    let server = OverHttps::start(&up, &kubectl, dir.path());
    session(&kubectl);
    drop(server);
    assert_eq!(up.interrupt(), Some(0));
}
