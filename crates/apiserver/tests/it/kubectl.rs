//! The real kubectl over HTTPS.

mod manifests;

use koord_apiserver::{ApiServer, Config, LogOptions, LogStream, PodLogs};
use koord_app::Clock;
use serde_json::json;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// Logs whose text identifies the container.
struct Echo;

impl PodLogs for Echo {
    fn logs<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        options: LogOptions,
    ) -> futures::future::BoxFuture<'a, Result<LogStream, String>> {
        Box::pin(async move {
            let text = format!(
                "log of {namespace}/{pod}/{container} tail={:?}\n",
                options.tail_lines
            );
            let stream: LogStream = Box::pin(futures::stream::once(async move {
                Ok(bytes::Bytes::from(text))
            }));
            Ok(stream)
        })
    }
}

struct Kubectl {
    server: Arc<ApiServer>,
    stop: CancellationToken,
    dir: tempfile::TempDir,
}

impl Kubectl {
    /// Starts a server and a kubectl for it; without kubectl prints a line and returns `None`.
    async fn start() -> Option<Self> {
        let matches = Command::new("kubectl")
            .args(["version", "--client"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await;
        if !matches.is_ok_and(|s| s.success()) {
            koord_host::testing::skip("kubectl", "not on PATH");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::memory(Clock::system());
        config.bind = "127.0.0.1:0".parse().unwrap();
        config.pod_logs = Some(Arc::new(Echo));
        let server = ApiServer::open(config).await.unwrap();
        let listener = server.listen().await.unwrap();
        let stop = CancellationToken::new();
        tokio::spawn({
            let (server, stop) = (server.clone(), stop.clone());
            async move { server.serve(listener, stop).await.unwrap() }
        });
        server
            .write_kubeconfig(&dir.path().join("kubeconfig"))
            .unwrap();
        Some(Self { server, stop, dir })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .env("KUBECONFIG", self.dir.path().join("kubeconfig"))
            .env("HOME", self.dir.path())
            .arg("--cache-dir")
            .arg(self.dir.path().join("cache"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, args: &[&str], stdin: &str) -> (bool, String) {
        let mut child = self.command(args).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(stdin.as_bytes()).await.unwrap();
        drop(input);
        let out = child.wait_with_output().await.unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        (out.status.success(), text)
    }

    /// Runs a command that must succeed.
    async fn ok(&self, args: &[&str]) -> String {
        self.ok_with(args, "").await
    }

    async fn ok_with(&self, args: &[&str], stdin: &str) -> String {
        let (ok, text) = self.run(args, stdin).await;
        assert!(ok, "kubectl {args:?}:\n{text}");
        text
    }

    /// Runs a command that must fail.
    async fn fails(&self, args: &[&str], stdin: &str) -> String {
        let (ok, text) = self.run(args, stdin).await;
        assert!(!ok, "kubectl {args:?} should fail:\n{text}");
        text
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    async fn end(self) {
        self.stop.cancel();
        self.server.close().await;
    }
}

const POD: &str = r"
apiVersion: v1
kind: Pod
metadata:
  name: be
  labels: {app: batch, koordinator.sh/qosClass: BE}
spec:
  containers:
  - name: main
    image: busybox:1
    command: [sleep, '60']
    resources:
      requests: {kubernetes.io/batch-cpu: '500', kubernetes.io/batch-memory: 64Mi}
";

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everyday_commands() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    let client = kube::Client::new(k.server.service(), "default");
    has(
        &k.ok(&["get", "namespaces"]).await,
        &["NAME", "STATUS", "AGE", "kube-system", "Active"],
    );
    has(
        &k.ok(&["get", "pods"]).await,
        &["No resources found in default namespace."],
    );
    has(
        &k.ok(&["api-resources"]).await,
        &["pods", "deployments", "customresourcedefinitions"],
    );
    has(&k.ok(&["api-versions"]).await, &["apps/v1", "v1"]);
    has(&k.ok(&["version"]).await, &["Server Version: v1.3"]);
    has(&k.ok(&["get", "--raw", "/readyz"]).await, &["ok"]);

    // apply: create, unchanged, configured.
    has(
        &k.ok_with(&["apply", "-f", "-"], POD).await,
        &["pod/be created"],
    );
    has(
        &k.ok_with(&["apply", "-f", "-"], POD).await,
        &["pod/be unchanged"],
    );
    let changed = POD.replace("app: batch", "app: other");
    has(
        &k.ok_with(&["apply", "-f", "-"], &changed).await,
        &["pod/be configured"],
    );
    has(
        &k.ok(&["get", "pods", "--show-labels"]).await,
        &["be", "Pending", "app=other"],
    );
    has(
        &k.ok(&["get", "pods", "-A", "-o", "wide"]).await,
        &["NAMESPACE", "NODE", "<none>"],
    );
    has(
        &k.ok(&["get", "pod", "be", "-o", "yaml"]).await,
        &["kind: Pod", "kubernetes.io/batch-cpu: \"500\""],
    );
    has(
        &k.ok(&["get", "pods", "-l", "app=other", "-o", "name"])
            .await,
        &["pod/be"],
    );
    has(
        &k.ok(&["get", "all"]).await,
        &["pod/be", "service/kubernetes"],
    );

    has(
        &k.ok(&["label", "pod", "be", "tier=x"]).await,
        &["pod/be labeled"],
    );
    has(
        &k.ok(&["annotate", "pod", "be", "note=y"]).await,
        &["pod/be annotated"],
    );
    has(
        &k.ok(&[
            "patch",
            "pod",
            "be",
            "--type=json",
            "-p",
            r#"[{"op":"remove","path":"/metadata/labels/tier"}]"#,
        ])
        .await,
        &["pod/be patched"],
    );
    has(
        &k.ok(&["describe", "pod", "be"]).await,
        &[
            "Name:",
            "be",
            "batch-cpu:",
            "QoS Class:",
            "BestEffort",
            "Events:",
        ],
    );

    // A node, its status, `describe` with batch resources.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110", "kubernetes.io/batch-cpu": "3000"},
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", "kubernetes.io/batch-cpu": "3000"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.35.0-koord"}}});
    let request = http::Request::post("/api/v1/nodes")
        .header("content-type", "application/json")
        .body(node.to_string().into_bytes())
        .unwrap();
    client.request_text(request).await.unwrap();
    has(
        &k.ok(&["get", "nodes"]).await,
        &["n1", "Ready", "v1.35.0-koord"],
    );
    has(
        &k.ok(&["describe", "node", "n1"]).await,
        &["kubernetes.io/batch-cpu:", "3k", "Non-terminated Pods"],
    );
    has(
        &k.ok(&["taint", "nodes", "n1", "a=b:NoSchedule"]).await,
        &["node/n1 tainted"],
    );
    has(&k.ok(&["cordon", "n1"]).await, &["node/n1 cordoned"]);
    has(&k.ok(&["uncordon", "n1"]).await, &["node/n1 uncordoned"]);

    // logs
    let binding = json!({"metadata": {"name": "be"}, "target": {"kind": "Node", "name": "n1"}});
    let request = http::Request::post("/api/v1/namespaces/default/pods/be/binding")
        .header("content-type", "application/json")
        .body(binding.to_string().into_bytes())
        .unwrap();
    client.request_text(request).await.unwrap();
    has(
        &k.ok(&["logs", "be", "--tail=5"]).await,
        &["log of default/be/main tail=Some(5)"],
    );

    // Drain evicts through the subresource in the legacy discovery document.
    let drained = k.ok(&["drain", "n1", "--force", "--grace-period=0"]).await;
    has(&drained, &["evicting pod default/be", "node/n1 drained"]);
    has(&k.ok(&["uncordon", "n1"]).await, &["node/n1 uncordoned"]);
    k.ok_with(&["apply", "-f", "-"], POD).await;

    has(
        &k.ok(&["delete", "pod", "be", "--force", "--grace-period=0"])
            .await,
        &["pod \"be\" force deleted"],
    );
    has(
        &k.fails(&["get", "pod", "be"], "").await,
        &["Error from server (NotFound): pods \"be\" not found"],
    );
    k.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_in_protobuf_and_explains() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    has(
        &k.ok(&["create", "namespace", "team"]).await,
        &["namespace/team created"],
    );
    has(
        &k.ok(&["create", "configmap", "c", "--from-literal=a=b"])
            .await,
        &["configmap/c created"],
    );
    has(
        &k.ok(&["get", "configmap", "c", "-o", "jsonpath={.data.a}"])
            .await,
        &["b"],
    );
    has(
        &k.ok(&[
            "create",
            "deployment",
            "web",
            "--image=busybox:1",
            "--replicas=2",
        ])
        .await,
        &["deployment.apps/web created"],
    );
    has(&k.ok(&["get", "deploy", "web"]).await, &["READY", "0/2"]);
    has(
        &k.ok(&["scale", "deploy", "web", "--replicas=3"]).await,
        &["deployment.apps/web scaled"],
    );
    has(
        &k.ok(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas}"])
            .await,
        &["3"],
    );
    has(
        &k.ok(&["create", "priorityclass", "koord-batch", "--value=5000"])
            .await,
        &["created"],
    );
    has(&k.ok(&["auth", "can-i", "create", "pods"]).await, &["yes"]);
    has(&k.ok(&["auth", "whoami"]).await, &["kubernetes-admin"]);
    assert!(
        !k.ok(&["create", "token", "default"])
            .await
            .trim()
            .is_empty()
    );
    has(
        &k.ok(&["run", "one", "--image=busybox:1"]).await,
        &["pod/one created"],
    );
    has(
        &k.ok(&["explain", "pod.spec.containers"]).await,
        &["KIND:", "Pod", "FIELDS", "image"],
    );
    has(
        &k.ok(&["rollout", "history", "deploy/web"]).await,
        &["REVISION"],
    );
    has(
        &k.ok(&["rollout", "restart", "deploy/web"]).await,
        &["deployment.apps/web restarted"],
    );
    has(
        &k.ok(&["get", "rs,pods"]).await,
        &["replicaset.apps/web-", "pod/web-"],
    );
    has(
        &k.ok(&["expose", "deploy", "web", "--port=80"]).await,
        &["service/web exposed"],
    );
    has(
        &k.ok(&["get", "svc", "web"]).await,
        &["ClusterIP", "80/TCP"],
    );
    has(
        &k.ok(&["create", "job", "j", "--image=busybox:1"]).await,
        &["job.batch/j created"],
    );
    // The controllers write asynchronously.
    let mut events = String::new();
    for _ in 0..100 {
        events = k.ok(&["events"]).await;
        if events.contains("ScalingReplicaSet") && events.contains("SuccessfulCreate") {
            break;
        }
    }
    has(
        &events,
        &["ScalingReplicaSet", "Deployment/web", "Created pod: "],
    );
    has(
        &k.ok(&["cluster-info"]).await,
        &["Kubernetes control plane", "is running at"],
    );
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: changed}\n";
    has(
        &k.fails(&["diff", "-f", "-"], config).await,
        &["+  a: changed"],
    );
    has(
        &k.ok_with(&["replace", "-f", "-"], config).await,
        &["configmap/c replaced"],
    );
    has(
        &k.ok_with(&["apply", "--dry-run=server", "-f", "-"], config)
            .await,
        &["(server dry run)"],
    );
    k.ok(&[
        "wait",
        "--for=jsonpath={.data.a}=changed",
        "configmap/c",
        "--timeout=10s",
    ])
    .await;
    has(
        &k.ok(&["delete", "deploy", "web"]).await,
        &["deployment.apps \"web\" deleted"],
    );
    has(
        &k.ok(&["delete", "namespace", "team"]).await,
        &["namespace \"team\" deleted"],
    );
    has(
        &k.fails(&["get", "ns", "team"], "").await,
        &["(NotFound): namespaces \"team\" not found"],
    );
    k.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_are_shown_as_a_real_server_shows_them() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    let typo = POD.replace("image: busybox:1", "image: busybox:1\n    imgae: x");
    has(
        &k.fails(&["apply", "-f", "-"], &typo).await,
        &[
            "Error from server (BadRequest): error when creating \"STDIN\": Pod in version \"v1\" cannot \
           be handled as a Pod: strict decoding error: unknown field \"spec.containers[0].imgae\"",
        ],
    );
    let invalid = POD.replace("name: be", "name: Not_Valid");
    has(
        &k.fails(&["create", "-f", "-"], &invalid).await,
        &["The Pod \"Not_Valid\" is invalid: metadata.name: Invalid value: \"Not_Valid\""],
    );
    has(
        &k.fails(&["get", "foos"], "").await,
        &["the server doesn't have a resource type \"foos\""],
    );
    has(
        &k.fails(&["create", "configmap", "c", "-n", "nowhere"], "")
            .await,
        &["namespaces \"nowhere\" not found"],
    );
    k.ok_with(&["create", "-f", "-"], POD).await;
    has(
        &k.fails(&["create", "-f", "-"], POD).await,
        &["(AlreadyExists)", "pods \"be\" already exists"],
    );
    has(
        &k.fails(&["get", "pods", "--field-selector=spec.foo=1"], "")
            .await,
        &["field label not supported: spec.foo"],
    );
    has(
        &k.fails(&["delete", "namespace", "default"], "").await,
        &["this namespace may not be deleted"],
    );
    k.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_and_watching() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    let definition = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, description: how big it is}
";
    let file = k.file("crd.yaml", definition);
    has(
        &k.ok(&["apply", "-f", file.to_str().unwrap()]).await,
        &["widgets.example.com created"],
    );
    k.ok(&[
        "wait",
        "--for=condition=Established",
        "crd/widgets.example.com",
        "--timeout=10s",
    ])
    .await;
    let widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: 3}\n";

    let mut watching = k
        .command(&["get", "namespaces", "-w", "-o", "name"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut observed = Vec::new();
    while observed.len() < 5 {
        observed.push(lines.next_line().await.unwrap().unwrap());
    }

    // A cold cache: kubectl may have cached the groups.
    std::fs::remove_dir_all(k.dir.path().join("cache")).ok();
    has(
        &k.ok_with(&["apply", "-f", "-"], widget).await,
        &["widget.example.com/w created"],
    );
    has(
        &k.ok_with(&["apply", "-f", "-"], &widget.replace('3', "4"))
            .await,
        &["configured"],
    );
    has(&k.ok(&["get", "wd"]).await, &["NAME", "SIZE", "w", "4"]);
    has(
        &k.ok(&["explain", "widget.spec.size"]).await,
        &["how big it is"],
    );
    has(
        &k.fails(&["apply", "-f", "-"], &widget.replace('3', "big"))
            .await,
        &["is invalid"],
    );
    has(&k.ok(&["describe", "widget", "w"]).await, &["Size:", "4"]);
    has(
        &k.ok_with(
            &["apply", "--server-side", "-f", "-", "--force-conflicts"],
            &widget.replace('3', "5"),
        )
        .await,
        &["serverside-applied"],
    );

    k.ok(&["create", "ns", "new-one"]).await;
    let line = tokio::time::timeout(std::time::Duration::from_secs(20), lines.next_line()).await;
    assert_eq!(line.unwrap().unwrap().unwrap(), "namespace/new-one");
    watching.kill().await.unwrap();

    has(
        &k.ok(&["delete", "crd", "widgets.example.com"]).await,
        &["deleted"],
    );
    k.end().await;
}
