//! kubectl with the written kubeconfig does what the README promises.

use crate::harness::{Up, eventually, exclusive};
use koord_host::testing::skip;
use std::io::Write;
use std::process::{Command, Output, Stdio};

struct Kubectl<'a>(&'a Up);

impl Kubectl<'_> {
    fn run(&self, args: &[&str], input: Option<&str>) -> Output {
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

    fn ok(&self, args: &[&str], input: Option<&str>) -> String {
        let output = self.run(args, input);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {args:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn fails(&self, args: &[&str], input: &str) -> String {
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
  priorityClassName: koord-batch
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: job
    image: koord.local/host
    command: [\"/bin/sh\", \"-c\", \"echo started; while :; do :; done\"]
    resources:
      requests:
        kubernetes.io/batch-cpu: \"100\"
        kubernetes.io/batch-memory: 16Mi
";

#[test]
fn a_newcomers_session() {
    if Command::new("kubectl")
        .arg("version")
        .arg("--client")
        .output()
        .is_err()
    {
        skip("kubectl", "not on PATH");
        return;
    }
    let _machine = exclusive();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut up = Up::start(dir.path(), &["--nodes", "2"]);
    let kubectl = Kubectl(&up);

    let nodes = eventually("three ready nodes", || {
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

    // koordlet has measured, the manager has published: 0 on a machine that others keep busy.
    let described = eventually("batch-cpu on the node", || {
        let described = kubectl.ok(&["describe", "node", &this], None);
        let published = described.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some("kubernetes.io/batch-cpu:")
                && words
                    .next()
                    .is_some_and(|value| value.parse::<i64>().is_ok())
        });
        published.then_some(described)
    });
    assert!(
        described.contains("kubernetes.io/batch-memory:"),
        "{described}"
    );

    let metric = eventually("a NodeMetric with usage", || {
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

    let applied = kubectl.ok(&["apply", "-f", "-"], Some(BE_POD));
    assert_eq!(applied.trim(), "pod/crunch created");
    eventually("the BE pod to run", || {
        let wide = kubectl.ok(&["get", "pods", "-A", "-o", "wide"], None);
        let row = wide.lines().find(|row| row.contains("crunch"))?;
        (row.contains("Running") && row.contains("1/1")).then_some(())
    });
    eventually("the pod's log", || {
        let here = kubectl.ok(
            &["get", "pod", "crunch", "-o", "jsonpath={.spec.nodeName}"],
            None,
        );
        if here != this {
            // A simulated node has no log to show.
            return Some(());
        }
        kubectl
            .ok(&["logs", "crunch"], None)
            .contains("started")
            .then_some(())
    });
    assert!(
        kubectl
            .ok(&["apply", "-f", "-"], Some(BE_POD))
            .contains("unchanged")
    );
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

/// Errors name the field and the value, in kubectl's usual form.
fn bad_input(kubectl: &Kubectl<'_>) {
    let bad = BE_POD.replace("\"100\"", "\"many\"");
    let error = kubectl.fails(&["apply", "-f", "-"], &bad);
    assert!(
        error.contains("batch-cpu") || error.contains("quantities must match"),
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
