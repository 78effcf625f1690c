//! The manifests in `deploy/`, installed as their READMEs describe: `create`, then `replace`.

use super::*;

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

/// Returns a manifest with an image, so that `envsubst` is not needed.
fn manifest(dir: &str, file: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    let text = std::fs::read_to_string(format!("{root}/{dir}/{file}")).unwrap();
    text.replace("${", "").replace("_IMAGE}", ":v2")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_replace_koordinator_objects() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    let rights = manifest("manager", "rbac.yaml");
    // The manifest may contain the namespace.
    k.run(&["create", "-f", "-"], &rights).await;
    k.ok_with(&["replace", "-f", "-"], &rights).await;
    k.ok_with(&["apply", "-f", "-"], KOORDINATORS).await;
    let actual = manifest("koordlet", "daemonset.yaml");
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
    k.ok_with(&["apply", "-f", "-"], &actual).await;
    has(&k.ok(&spec).await, &["\"cpu\":\"500m\"", "/dev"]);
    has(
        &k.fails(&["create", "-f", "-"], &actual).await,
        &["AlreadyExists"],
    );
    k.ok_with(&["replace", "-f", "-"], &actual).await;
    let text = k.ok(&spec).await;
    assert!(
        !text.contains("500m") && !text.contains("\"/dev\""),
        "{text}"
    );
    has(&text, &["\"memory\":\"256Mi\"", "/sys/fs/cgroup/"]);

    for (dir, files) in [
        ("koordlet", &["rbac.yaml"][..]),
        ("topology-exporter", &["rbac.yaml", "daemonset.yaml"]),
        (
            "scheduler",
            &["rbac.yaml", "config.yaml", "deployment.yaml"],
        ),
        (
            "descheduler",
            &[
                "rbac.yaml",
                "targets.yaml",
                "config.yaml",
                "deployment.yaml",
            ],
        ),
        ("manager", &["rbac.yaml", "config.yaml", "deployment.yaml"]),
    ] {
        for file in files {
            install(&k, &manifest(dir, file)).await;
        }
    }
    // A user's settings stay.
    let settings = manifest("manager", "config.yaml");
    has(
        &k.fails(&["create", "-f", "-"], &settings).await,
        &["AlreadyExists"],
    );
    // Webhooks last: nothing serves them here.
    install(&k, &manifest("manager", "webhooks.yaml")).await;
    k.end().await;
}

/// Installs a manifest as the READMEs describe: in an empty cluster, then over its own objects.
async fn install(k: &Kubectl, text: &str) {
    k.run(&["create", "-f", "-"], text).await;
    k.ok_with(&["replace", "-f", "-"], text).await;
    k.ok_with(&["replace", "-f", "-"], text).await;
}
