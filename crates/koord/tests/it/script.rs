//! kubectl commands of a day, with what each must print and its exit code. Roles are enforced.

use crate::harness::{Up, exclusive};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use http::header::ACCEPT;
use koord_host::testing::skip;
use koord_kube::Client;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A Deployment on simulated nodes, which need no image.
const WEB: &str = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
"spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
"metadata": {"labels": {"app": "web"}}, "spec": {
"nodeSelector": {"sim.koordinator.sh/node": "true"},
"containers": [{"name": "web", "image": "i"}]}}}}"#;

const JOB: &str = r#"{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
"spec": {"template": {"spec": {"restartPolicy": "Never",
"nodeSelector": {"sim.koordinator.sh/node": "true"},
"containers": [{"name": "once", "image": "i"}]}}}}"#;

const MAP: &str = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "side"},
"data": {"k": "v"}}"#;

const BAD: &str =
    r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Not_A_Name"}}"#;

/// One command: its words, its standard input, its exit code, and a part of what it prints.
type Step = (&'static str, &'static str, i32, &'static str);

/// `-n shop` where nothing else is said. What fails prints on standard error, all else on standard
/// output.
const STEPS: &[Step] = &[
    ("version", "", 0, "Server Version: v1.35"),
    ("cluster-info", "", 0, "is running at"),
    ("api-versions", "", 0, "slo.koordinator.sh/v1alpha1"),
    (
        "api-resources --api-group=slo.koordinator.sh -o name",
        "",
        0,
        "nodemetrics.slo.koordinator.sh",
    ),
    ("get --raw /healthz", "", 0, "ok"),
    ("get --raw /readyz", "", 0, "ok"),
    ("create namespace shop", "", 0, "namespace/shop created"),
    (
        "create namespace shop",
        "",
        1,
        "(AlreadyExists): namespaces \"shop\" already exists",
    ),
    (
        "get namespace shop -o jsonpath={.status.phase}",
        "",
        0,
        "Active",
    ),
    (
        "get namespaces -o name",
        "",
        0,
        "namespace/koordinator-system\n",
    ),
    // Who may what.
    (
        "auth whoami -o jsonpath={.status.userInfo.username}",
        "",
        0,
        "kubernetes-admin",
    ),
    ("auth can-i delete nodes", "", 0, "yes"),
    ("auth can-i delete nodes --as=nobody", "", 1, ""),
    (
        "get nodes --as=nobody",
        "",
        1,
        "(Forbidden): nodes is forbidden: User \"nobody\" cannot list",
    ),
    (
        "create serviceaccount bot",
        "",
        0,
        "serviceaccount/bot created",
    ),
    (
        "create role reader --verb=get,list --resource=pods",
        "",
        0,
        "reader created",
    ),
    (
        "create rolebinding bot --role=reader --serviceaccount=shop:bot",
        "",
        0,
        "bot created",
    ),
    (
        "auth can-i list pods --as=system:serviceaccount:shop:bot",
        "",
        0,
        "yes",
    ),
    (
        "auth can-i delete pods --as=system:serviceaccount:shop:bot",
        "",
        1,
        "",
    ),
    (
        "get pods -n default --as=system:serviceaccount:shop:bot",
        "",
        1,
        "(Forbidden)",
    ),
    ("create token bot", "", 0, "."),
    // Writing and reading one object.
    (
        "create configmap cm --from-literal=a=1",
        "",
        0,
        "configmap/cm created",
    ),
    ("get cm cm -o jsonpath={.data.a}", "", 0, "1"),
    (
        "patch cm cm -p {\"data\":{\"b\":\"2\"}}",
        "",
        0,
        "configmap/cm patched",
    ),
    (
        "patch cm cm -p {\"data\":{\"b\":\"2\"}}",
        "",
        0,
        "configmap/cm patched (no change)",
    ),
    (
        "patch cm cm --type=json -p [{\"op\":\"remove\",\"path\":\"/data/a\"}]",
        "",
        0,
        "patched",
    ),
    ("get cm cm -o jsonpath={.data}", "", 0, "{\"b\":\"2\"}"),
    ("label cm cm team=a", "", 0, "configmap/cm labeled"),
    ("label cm cm team=b", "", 1, "already has a value (a)"),
    ("label cm cm team=b --overwrite", "", 0, "labeled"),
    ("annotate cm cm note=x", "", 0, "configmap/cm annotated"),
    ("get cm -l team=b -o name", "", 0, "configmap/cm\n"),
    ("get cm -l team=a -o name", "", 0, ""),
    (
        "create configmap dry --from-literal=a=1 --dry-run=server -o name",
        "",
        0,
        "configmap/dry",
    ),
    (
        "get cm dry",
        "",
        1,
        "(NotFound): configmaps \"dry\" not found",
    ),
    ("apply -f -", MAP, 0, "configmap/side created"),
    ("apply -f -", MAP, 0, "configmap/side unchanged"),
    ("diff -f -", MAP, 0, ""),
    (
        "apply --server-side -f - --field-manager=other --force-conflicts",
        MAP,
        0,
        "serverside-applied",
    ),
    (
        "apply -f -",
        BAD,
        1,
        "metadata.name: Invalid value: \"Not_A_Name\"",
    ),
    (
        "create secret generic s --from-literal=p=q",
        "",
        0,
        "secret/s created",
    ),
    ("get secret s -o jsonpath={.data.p}", "", 0, "cQ=="),
    ("delete secret s", "", 0, "secret \"s\" deleted"),
    ("delete secret s", "", 1, "(NotFound)"),
    ("delete secret s --ignore-not-found", "", 0, ""),
    // Workloads.
    ("apply -f -", WEB, 0, "deployment.apps/web created"),
    (
        "rollout status deployment/web --timeout=90s",
        "",
        0,
        "successfully rolled out",
    ),
    (
        "scale deployment web --replicas=3",
        "",
        0,
        "deployment.apps/web scaled",
    ),
    (
        "wait --for=jsonpath={.status.readyReplicas}=3 deployment/web --timeout=90s",
        "",
        0,
        "condition met",
    ),
    ("get deployment web", "", 0, "3/3"),
    (
        "get pods -l app=web -o jsonpath={.items[*].spec.nodeName}",
        "",
        0,
        "sim-",
    ),
    ("get pods -l app=web -o wide", "", 0, "Running"),
    ("set image deployment/web web=j", "", 0, "image updated"),
    (
        "rollout status deployment/web --timeout=90s",
        "",
        0,
        "successfully rolled out",
    ),
    ("rollout history deployment/web", "", 0, "REVISION"),
    ("rollout undo deployment/web", "", 0, "rolled back"),
    (
        "rollout status deployment/web --timeout=90s",
        "",
        0,
        "successfully rolled out",
    ),
    (
        "get deployment web -o jsonpath={.spec.template.spec.containers[0].image}",
        "",
        0,
        "i",
    ),
    ("rollout restart deployment/web", "", 0, "restarted"),
    (
        "rollout status deployment/web --timeout=90s",
        "",
        0,
        "successfully rolled out",
    ),
    (
        "expose deployment web --port=80",
        "",
        0,
        "service/web exposed",
    ),
    (
        "get service web -o jsonpath={.spec.ports[0].port}",
        "",
        0,
        "80",
    ),
    (
        "create pdb web --selector=app=web --min-available=1",
        "",
        0,
        "web created",
    ),
    ("apply -f -", JOB, 0, "job.batch/once created"),
    (
        "wait --for=condition=Complete job/once --timeout=90s",
        "",
        0,
        "condition met",
    ),
    ("get job once -o jsonpath={.status.succeeded}", "", 0, "1"),
    (
        "logs deployment/web",
        "",
        1,
        "a simulated node: nothing runs there",
    ),
    ("get events", "", 0, "Simulated"),
    // Nodes.
    ("describe node sim-0", "", 0, "sim.koordinator.sh/node=true"),
    ("cordon sim-0", "", 0, "node/sim-0 cordoned"),
    ("get node sim-0", "", 0, "SchedulingDisabled"),
    ("uncordon sim-0", "", 0, "node/sim-0 uncordoned"),
    (
        "taint nodes sim-0 k=v:NoSchedule",
        "",
        0,
        "node/sim-0 tainted",
    ),
    ("taint nodes sim-0 k-", "", 0, "node/sim-0 untainted"),
    (
        "drain sim-1 --ignore-daemonsets --timeout=90s",
        "",
        0,
        "node/sim-1 drained",
    ),
    (
        "get priorityclass koord-batch -o jsonpath={.value}",
        "",
        0,
        "5999",
    ),
    ("explain pod.spec.nodeName", "", 0, "nodeName"),
    // The end, and what is not there.
    (
        "delete deployment web",
        "",
        0,
        "deployment.apps \"web\" deleted",
    ),
    (
        "get nosuch",
        "",
        1,
        "the server doesn't have a resource type \"nosuch\"",
    ),
    ("logs absent", "", 1, "pods \"absent\" not found"),
    ("uncordon sim-1", "", 0, "node/sim-1 uncordoned"),
    (
        "delete namespace shop --timeout=90s",
        "",
        0,
        "namespace \"shop\" deleted",
    ),
    (
        "get namespace shop",
        "",
        1,
        "(NotFound): namespaces \"shop\" not found",
    ),
];

/// Runs one command line with the kubeconfig and these variables.
fn run(kubeconfig: &Path, line: &str, input: &str, environment: &[(&str, &str)]) -> Output {
    let mut child = Command::new("kubectl")
        .args(line.split(' '))
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", kubeconfig.parent().expect("a directory"))
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A command that reads nothing may be gone.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("kubectl ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What goes wrong with a step.
fn fault(kubeconfig: &Path, step: &Step, environment: &[(&str, &str)]) -> Option<String> {
    let (line, input, code, says) = step;
    let output = run(kubeconfig, line, input, environment);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let told = if *code == 0 { &stdout } else { &stderr };
    let fits = output.status.code() == Some(*code)
        && told.contains(says)
        && (*code != 0 || !says.is_empty() || stdout.is_empty());
    (!fits).then(|| {
        let got = output.status.code();
        format!("kubectl {line}\n  wanted {code} and {says:?}, got {got:?}\n{stdout}{stderr}")
    })
}

/// All steps; what goes wrong ends the test.
fn script(what: &str, kubeconfig: &Path, environment: &[(&str, &str)]) {
    let faults: Vec<String> = STEPS
        .iter()
        .filter_map(|step| fault(kubeconfig, step, environment))
        .collect();
    assert!(faults.is_empty(), "{what}\n{}", faults.join("\n"));
}

/// The namespace of what follows.
fn namespaced(kubeconfig: &Path) {
    let set = "config set-context --current --namespace=shop";
    let output = run(kubeconfig, set, "", &[]);
    assert!(output.status.success(), "{output:?}");
}

fn start(dir: &Path) -> Option<Up> {
    let client = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    if client.is_err() {
        skip("kubectl", "not on PATH");
        return None;
    }
    let up = Up::start(dir, &["--memory", "--nodes", "2"]);
    namespaced(&up.kubeconfig);
    Some(up)
}

#[test]
fn a_day_of_kubectl() {
    let _machine = exclusive();
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut up) = start(dir.path()) else {
        return;
    };
    script("as it is", &up.kubeconfig, &[]);
    for wrong in [
        ("get --raw /healthz", "", 1, ""),
        ("get --raw /healthz", "", 0, "ill"),
        ("get --raw /healthz", "", 0, ""),
        ("get nodes --as=nobody", "", 0, ""),
    ] {
        assert!(fault(&up.kubeconfig, &wrong, &[]).is_some(), "{wrong:?}");
    }
    token(&up, dir.path());
    assert_eq!(up.interrupt(), Some(0));
}

/// A service account that shows its token may what its roles say, and nothing else.
fn token(up: &Up, dir: &Path) {
    let ok = |kubeconfig: &Path, line: &str| {
        let output = run(kubeconfig, line, "", &[]);
        assert!(output.status.success(), "{line}: {output:?}");
        text(&output.stdout).trim().to_owned()
    };
    let admin = &up.kubeconfig;
    for line in [
        "create serviceaccount bot -n default",
        "create role maps -n default --verb=get,list,watch,create --resource=configmaps",
        "create rolebinding maps -n default --role=maps --serviceaccount=default:bot",
    ] {
        ok(admin, line);
    }
    let token = ok(admin, "create token bot -n default");
    let server = "config view --minify -o jsonpath={.clusters[0].cluster.server}";
    let server = ok(admin, server);
    let ca = "config view --raw --minify -o \
              jsonpath={.clusters[0].cluster.certificate-authority-data}";
    let ca = ok(admin, ca);
    let kubeconfig = dir.join("bot");
    for line in [
        format!("config set-cluster c --server={server}"),
        format!("config set clusters.c.certificate-authority-data {ca}"),
        format!("config set-credentials bot --token={token}"),
        "config set-context c --cluster=c --user=bot --namespace=default".to_owned(),
        "config use-context c".to_owned(),
    ] {
        ok(&kubeconfig, &line);
    }
    let bot = "system:serviceaccount:default:bot";
    let steps: &[Step] = &[
        (
            "auth whoami -o jsonpath={.status.userInfo.username}",
            "",
            0,
            bot,
        ),
        ("create configmap mine --from-literal=a=1", "", 0, "created"),
        ("get configmaps -o name", "", 0, "configmap/mine\n"),
        ("auth can-i create configmaps", "", 0, "yes"),
        ("auth can-i create configmaps -n shop", "", 1, ""),
        ("get secrets", "", 1, "(Forbidden): secrets is forbidden"),
        ("delete configmap mine", "", 1, "(Forbidden)"),
        (
            "get nodes --as=kubernetes-admin",
            "",
            1,
            "cannot impersonate",
        ),
    ];
    let faults: Vec<String> = steps
        .iter()
        .filter_map(|step| fault(&kubeconfig, step, &[]))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_day_of_kubectl_with_watch_lists() {
    let _machine = exclusive();
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut up) = start(dir.path()) else {
        return;
    };
    let on = &[("KUBE_FEATURE_WatchListClient", "true")];
    script("watch lists", &up.kubeconfig, on);
    // kubectl honours the variable.
    let line = "wait --for=jsonpath={.status.phase}=Active namespace/default -v=7";
    let output = run(&up.kubeconfig, line, "", on);
    let log = text(&output.stderr);
    assert!(log.contains("sendInitialEvents=true"), "{log}");
    assert_eq!(up.interrupt(), Some(0));
}

/// A way to the server for clients that do not ask for aggregated discovery.
struct Legacy {
    client: Client,
    /// Documents of one group version that were asked for.
    group_versions: AtomicU32,
}

async fn pass(State(legacy): State<Arc<Legacy>>, mut request: Request) -> Response {
    let failed = |e: &dyn std::fmt::Display| {
        let mut response = Response::new(Body::from(e.to_string()));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    };
    let headers = request.headers_mut();
    // HTTP/2 has its own.
    headers.remove(http::header::HOST);
    if let Some(accept) = headers.get(ACCEPT).and_then(|v| v.to_str().ok()) {
        let clauses = accept.split(',');
        let plain: Vec<&str> = clauses
            .filter(|c| !c.contains("apidiscovery.k8s.io"))
            .collect();
        let plain = plain.join(",").parse().expect("part of a header");
        headers.insert(ACCEPT, plain);
    }
    let segments = request.uri().path().split('/').filter(|s| !s.is_empty());
    let segments: Vec<&str> = segments.collect();
    if matches!(segments.as_slice(), ["api", _] | ["apis", _, _]) {
        legacy.group_versions.fetch_add(1, Ordering::Relaxed);
    }
    let (parts, body) = request.into_parts();
    let body = match axum::body::to_bytes(body, 1 << 20).await {
        Ok(body) => body,
        Err(e) => return failed(&e),
    };
    let request = http::Request::from_parts(parts, body.to_vec().into());
    match legacy.client.send(request).await {
        Ok(response) => response.map(Body::new),
        Err(e) => failed(&e),
    }
}

#[test]
fn a_day_of_kubectl_without_aggregated_discovery() {
    let _machine = exclusive();
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut up) = start(dir.path()) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let legacy = Arc::new(Legacy {
        client: runtime.block_on(up.client()),
        group_versions: AtomicU32::new(0),
    });
    let router = axum::Router::new()
        .fallback(pass)
        .with_state(legacy.clone());
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("its address");
    runtime.spawn(async { axum::serve(listener, router).await });
    let kubeconfig: PathBuf = dir.path().join("legacy");
    for line in [
        format!("config set-cluster c --server=http://{address}"),
        "config set-context c --cluster=c".to_owned(),
        "config use-context c".to_owned(),
    ] {
        let output = run(&kubeconfig, &line, "", &[]);
        assert!(output.status.success(), "{output:?}");
    }
    namespaced(&kubeconfig);
    script("legacy discovery", &kubeconfig, &[]);
    let asked = legacy.group_versions.load(Ordering::Relaxed);
    assert!(asked > 20, "kubectl asked for each group version: {asked}");
    drop(runtime);
    assert_eq!(up.interrupt(), Some(0));
}
