//! kubectl with the written kubeconfig does what the README promises.

use crate::harness::{Up, shared};
use koord_host::testing::{eventually_blocking, skip};
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Returns whether kubectl is on PATH; without it, the test counts as skipped.
#[track_caller]
pub(crate) fn is_installed() -> bool {
    let output = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    if output.is_err() {
        skip("kubectl", "not on PATH");
    }
    output.is_ok()
}

pub(crate) struct Kubectl<'a>(pub(crate) &'a Up);

impl Kubectl<'_> {
    pub(crate) fn run(&self, args: &[&str], input: Option<&str>) -> Output {
        let mut child = Command::new("kubectl")
            .args(args)
            .env("KUBECONFIG", &self.0.kubeconfig)
            .env("HOME", self.0.kubeconfig.parent().expect("a directory"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin
            .write_all(input.unwrap_or_default().as_bytes())
            .expect("kubectl reads");
        drop(stdin);
        child.wait_with_output().expect("kubectl ends")
    }

    pub(crate) fn ok(&self, args: &[&str], input: Option<&str>) -> String {
        let output = self.run(args, input);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {args:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn fails(&self, args: &[&str], input: &str) -> String {
        let output = self.run(args, Some(input));
        assert!(!output.status.success(), "kubectl {args:?} should fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

const BE_POD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: crunch
  labels:
    koordinator.sh/qosClass: BE
spec:
  schedulerName: koord-scheduler
  nodeSelector: {node.koordinator.sh/host: \"true\"}
  tolerations: [{key: node.koordinator.sh/host, operator: Exists}]
  priorityClassName: koord-batch
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: job
    image: koord.local/host
    command: [\"/bin/sh\", \"-c\", \"echo started; while :; do :; done\"]
    resources:
      requests:
        kubernetes.io/batch-memory: 16Mi
";

#[test]
fn a_newcomers_session() {
    if !is_installed() {
        return;
    }
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut up = Up::start(dir.path(), &["--nodes", "2"]);
    let kubectl = Kubectl(&up);

    let nodes = eventually_blocking("three ready nodes", || {
        let nodes = kubectl.ok(&["get", "nodes"], None);
        (nodes.matches(" Ready ").count() == 3).then_some(nodes)
    });
    let mut rows = nodes.lines();
    let header: Vec<&str> = rows.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]);
    let this = rows
        .filter_map(|row| row.split_whitespace().next())
        .find(|name| !name.starts_with("sim-"))
        .expect("this machine is a node")
        .to_owned();

    deployment_avoids_host(&kubectl, &this);

    // koordlet has measured, the manager has published. There are no batch resources only if other processes
    // keep the CPUs busy.
    eventually_blocking("batch resources on the node", || {
        let get = |args: &[&str]| {
            let text = kubectl.ok(args, None);
            serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
        };
        let node = get(&["get", "node", &this, "-o", "json"]);
        let metric = get(&["get", "nodemetric", &this, "-o", "json"]);
        let amount = |value: &serde_json::Value| {
            let quantity: koord_api::quantity::Quantity = value.as_str()?.parse().ok()?;
            Some(quantity.to_f64())
        };
        let allocatable = &node["status"]["allocatable"];
        let batch_cpu = amount(&allocatable["kubernetes.io/batch-cpu"])?;
        let batch_memory = amount(&allocatable["kubernetes.io/batch-memory"])?;
        let cpus = amount(&node["status"]["capacity"]["cpu"])?;
        let memory = amount(&node["status"]["capacity"]["memory"])?;
        assert!(batch_cpu <= 1000.0 * cpus && batch_memory < memory);
        let used = amount(&metric["status"]["nodeMetric"]["nodeUsage"]["resources"]["cpu"])?;
        let offers_cpu = batch_cpu > 0.0 || used > 0.4 * cpus;
        (offers_cpu && batch_memory > f64::from(16 << 20)).then_some(())
    });
    let described = kubectl.ok(&["describe", "node", &this], None);
    assert!(
        described.contains("kubernetes.io/batch-memory:"),
        "{described}"
    );

    let metric = eventually_blocking("a NodeMetric with usage", || {
        let metric = kubectl.ok(&["get", "nodemetrics", &this, "-o", "yaml"], None);
        metric.contains("p95:").then_some(metric)
    });
    for part in [
        "apiVersion: slo.koordinator.sh/v1alpha1",
        "nodeUsage:",
        "p95:",
        "updateTime:",
    ] {
        assert!(metric.contains(part), "{part} is missing in\n{metric}");
    }

    let top = |args: &[&str]| {
        let all = [&["top"], args, &["--no-headers"]].concat();
        let output = kubectl.run(&all, None);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually_blocking("what the nodes use", || {
        let nodes = top(&["nodes"]);
        let reported = nodes.lines().filter(|row| row.contains('%')).count() == 3;
        (reported && nodes.contains(&this)).then_some(())
    });

    let applied = kubectl.ok(&["apply", "-f", "-"], Some(BE_POD));
    assert_eq!(applied.trim(), "pod/crunch created");
    eventually_blocking("the BE pod to run", || {
        let wide = kubectl.ok(&["get", "pods", "-A", "-o", "wide"], None);
        let row = wide.lines().find(|row| row.contains("crunch"))?;
        (row.contains("Running") && row.contains("1/1")).then_some(())
    });
    let on = &["get", "pod", "crunch", "-o", "jsonpath={.spec.nodeName}"];
    assert_eq!(kubectl.ok(on, None), this, "it runs on this machine");
    eventually_blocking("the pod's log", || {
        let log = kubectl.ok(&["logs", "crunch"], None);
        (log == "started\n").then_some(())
    });
    eventually_blocking("what the pod uses", || {
        let row = top(&["pods", "--containers"]);
        let columns: Vec<&str> = row.split_whitespace().collect();
        // The process spins, and others may be faster.
        let [pod, container, cpu, memory] = columns[..] else {
            return None;
        };
        assert_eq!((pod, container), ("crunch", "job"));
        let cpu: u64 = cpu.strip_suffix('m')?.parse().ok()?;
        (cpu > 0 && memory.ends_with("Mi")).then_some(())
    });
    // Containers do not see the data directory.
    let files = tempfile::tempdir().expect("a temporary directory");
    commands_in_containers(&kubectl, files.path());
    // The list of tolerations is sent again, as admission has added others.
    let applied = kubectl.ok(&["apply", "-f", "-"], Some(BE_POD));
    assert_eq!(applied.trim(), "pod/crunch configured");
    kubectl.ok(&["label", "pod", "crunch", "team=a"], None);
    assert!(
        kubectl
            .ok(&["get", "pods", "-l", "team=a"], None)
            .contains("crunch")
    );
    let events = kubectl.ok(&["describe", "pod", "crunch"], None);
    assert!(
        events.contains("Successfully assigned default/crunch to"),
        "{events}"
    );
    kubectl.ok(&["delete", "pod", "crunch"], None);
    assert!(!kubectl.ok(&["get", "pods"], None).contains("crunch"));

    bad_input(&kubectl);
    assert_eq!(up.interrupt(), Some(0), "Ctrl-C stops cleanly");
}

/// The pods of a plain Deployment become ready, and none of them runs on this machine, where its image does
/// not exist.
fn deployment_avoids_host(kubectl: &Kubectl<'_>, host: &str) {
    let create = "create deployment web --image=nginx --replicas=50";
    kubectl.ok(&create.split(' ').collect::<Vec<_>>(), None);
    let ready = "wait --for=jsonpath={.status.readyReplicas}=50 deployment/web --timeout=90s";
    kubectl.ok(&ready.split(' ').collect::<Vec<_>>(), None);
    let nodes = "get pods -l app=web -o jsonpath={.items[*].spec.nodeName}";
    let nodes = kubectl.ok(&nodes.split(' ').collect::<Vec<_>>(), None);
    assert_eq!(nodes.split(' ').count(), 50, "{nodes}");
    assert!(nodes.split(' ').all(|node| node != host), "{nodes}");
    kubectl.ok(&["delete", "deployment", "web"], None);
}

/// Checks exec and cp; unsupported requests are refused at once, with the reason.
fn commands_in_containers(kubectl: &Kubectl<'_>, dir: &std::path::Path) {
    let exec = |args: &[&str], input| {
        let all = [&["exec", "-i", "crunch", "--"], args].concat();
        let output = kubectl.run(&all, Some(input));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            text(&output.stdout),
            text(&output.stderr),
            output.status.code(),
        )
    };
    let long = "0123456789abcdef".repeat(10_000);
    assert_eq!(
        exec(&["cat"], &long),
        (long.clone(), String::new(), Some(0))
    );
    let (out, err, code) = exec(&["/bin/sh", "-c", "echo a; echo b >&2; exit 3"], "");
    assert_eq!((out.as_str(), code), ("a\n", Some(3)));
    assert_eq!(err, "b\ncommand terminated with exit code 3\n");
    let (_, err, code) = exec(&["/no/such"], "");
    assert!(err.contains("/no/such") && code == Some(1), "{err}");

    let [from, there, back] = ["from", "there", "back"].map(|name| dir.join(name));
    std::fs::write(&from, &long).expect("a file");
    let remote = format!("crunch:{}", there.display());
    kubectl.ok(&["cp", &from.display().to_string(), &remote], None);
    kubectl.ok(&["cp", &remote, &back.display().to_string()], None);
    assert_eq!(std::fs::read_to_string(&back).expect("the copy"), long);

    let debug_node = format!("node/{}", koord_node::host_name());
    for (args, says) in [
        (
            &["port-forward", "crunch", "0:80"][..],
            "portforward is not served by koord",
        ),
        (&["attach", "crunch"], "attach is not served by koord"),
        (
            &["debug", "crunch", "--image=i"],
            "kubectl debug is not served by koord",
        ),
        (
            &["debug", &debug_node, "--image=i", "--", "true"],
            "kubectl debug is not served by koord",
        ),
        (
            &["exec", "absent", "--", "true"],
            "pods \"absent\" not found",
        ),
        (
            &["exec", "crunch", "-c", "x", "--", "true"],
            "container x is not valid for pod crunch",
        ),
    ] {
        let error = kubectl.fails(args, "");
        assert!(error.contains(says), "{args:?}: {error}");
    }
    assert!(
        !kubectl
            .ok(&["get", "pods", "-o", "name"], None)
            .contains("debugger")
    );
}

/// Errors name the field and the value, in kubectl's usual form.
fn bad_input(kubectl: &Kubectl<'_>) {
    let bad = BE_POD.replace("16Mi", "many");
    let error = kubectl.fails(&["apply", "-f", "-"], &bad);
    assert!(
        error.contains("batch-memory") || error.contains("quantities must match"),
        "{error}"
    );
    let unknown = BE_POD.replace("hostNetwork:", "hostNetwrok:");
    let error = kubectl.fails(&["apply", "-f", "-"], &unknown);
    assert!(
        error.contains("unknown field \"spec.hostNetwrok\""),
        "{error}"
    );
    let error = kubectl.fails(&["get", "pod", "absent"], "");
    assert_eq!(
        error.trim(),
        "Error from server (NotFound): pods \"absent\" not found"
    );
}
