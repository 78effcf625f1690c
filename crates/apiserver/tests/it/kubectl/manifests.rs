//! The manifests in `deploy/`, installed as its README describes: in an empty cluster, and in place of Koordinator's.

use super::*;
use std::path::Path;

/// Fields of Koordinator's DaemonSet that the one in `deploy/koordlet` does not have.
const KOORDINATORS: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: koordlet, namespace: koordinator-system, labels: {koord-app: koordlet}}
spec:
  selector: {matchLabels: {koord-app: koordlet}}
  template:
    metadata: {labels: {koord-app: koordlet}}
    spec:
      containers:
      - name: koordlet
        image: koordlet:v1
        resources: {limits: {cpu: 500m, memory: 256Mi}, requests: {cpu: '0', memory: '0'}}
        volumeMounts: [{name: host-dev, mountPath: /dev}]
      volumes: [{name: host-dev, hostPath: {path: /dev}}]
";
/// Settings, and a certificate that a manager made.
const SETTINGS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data: {colocation-config: '{\"enable\": false}'}
---
apiVersion: v1
kind: Secret
metadata: {name: koordinator-webhook-certs, namespace: koordinator-system}
stringData: {tls.crt: text}
";

fn deploy(file: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy")).join(file)
}

/// Returns the path of a component's manifest.
fn manifest(component: &str) -> String {
    let path = deploy(component).join(format!("{component}.yaml"));
    path.to_str().unwrap().to_owned()
}

/// Runs `put FILE` with the function of the README. Returns the output.
async fn put(k: &Kubectl, file: &str) -> String {
    let readme = std::fs::read_to_string(deploy("README.md")).unwrap();
    let (_, function) = readme.split_once("\nput() {").unwrap();
    let (function, _) = function.split_once("\n}\n").unwrap();
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("put() {{{function}\n}}\nput \"$1\""))
        .args(["sh", file])
        .env("KUBECONFIG", k.dir.path().join("kubeconfig"))
        .env("HOME", k.dir.path())
        .kill_on_drop(true)
        .output();
    let output = output.await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    // The status is that of the last command, which replaces.
    assert!(output.status.success(), "{file}:\n{text}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_install_and_change_nothing_again() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    let path = deploy("install.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let install = ["apply", "--server-side", "-f", path.to_str().unwrap()];
    let first = k.ok(&install).await;
    let applied = first.matches(" serverside-applied\n").count();
    assert_eq!(applied, text.split("\n---\n").count(), "{first}");
    let names = [
        "get",
        "deployment",
        "-n",
        "koordinator-system",
        "-o",
        "name",
    ];
    has(
        &k.ok(&names).await,
        &["koord-manager", "koord-scheduler", "koord-descheduler"],
    );
    k.ok(&install).await;
    for component in ["manager", "scheduler", "descheduler", "koordlet"] {
        let file = manifest(component);
        // Fails if an object differs from that of the whole.
        k.ok(&["diff", "--server-side", "-f", &file]).await;
        k.ok(&["apply", "--server-side", "-f", &file]).await;
    }
    let other = std::fs::read_to_string(manifest("scheduler")).unwrap();
    let other = other.replace("replicas: 2", "replicas: 3");
    k.fails(&["diff", "--server-side", "-f", "-"], &other).await;
    k.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_replace_koordinator_objects() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    // The server may contain the namespace.
    k.run(&["create", "namespace", "koordinator-system"], "")
        .await;
    k.ok_with(&["apply", "-f", "-"], KOORDINATORS).await;
    k.ok_with(&["create", "-f", "-"], SETTINGS).await;
    let spec = [
        "-n",
        "koordinator-system",
        "get",
        "daemonset",
        "koordlet",
        "-o",
        "jsonpath={.spec.template.spec.containers[0].resources.limits} {.spec.template.spec.volumes}",
    ];
    // Without kubectl's annotation, as Helm leaves objects, apply only adds.
    let annotation = "kubectl.kubernetes.io/last-applied-configuration-";
    k.ok(&[
        "-n",
        "koordinator-system",
        "annotate",
        "daemonset",
        "koordlet",
        annotation,
    ])
    .await;
    k.ok(&["apply", "-f", &manifest("koordlet")]).await;
    has(&k.ok(&spec).await, &["\"cpu\":\"500m\"", "/dev"]);
    has(
        &put(&k, &manifest("koordlet")).await,
        &["AlreadyExists", "daemonset.apps/koordlet replaced"],
    );
    let text = k.ok(&spec).await;
    assert!(
        !text.contains("500m") && !text.contains("\"/dev\""),
        "{text}"
    );
    has(&text, &["\"memory\":\"256Mi\"", "/sys/fs/cgroup/"]);

    for component in ["topology-exporter", "scheduler", "descheduler", "manager"] {
        put(&k, &manifest(component)).await;
        put(&k, &manifest(component)).await;
    }
    // A user's settings stay, and the certificate.
    for (resource, path, text) in [
        (
            "configmap/slo-controller-config",
            "{.data}",
            "\\\"enable\\\": false",
        ),
        ("secret/koordinator-webhook-certs", "{.data}", "tls.crt"),
    ] {
        let path = format!("jsonpath={path}");
        let get = ["-n", "koordinator-system", "get", resource, "-o", &path];
        has(&k.ok(&get).await, &[text]);
    }
    k.end().await;
}
