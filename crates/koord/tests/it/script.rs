//! kubectl commands of a day, with what each must print and its exit code. Roles are enforced.

use crate::harness::{Up, shared};
use crate::kubectl;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use http::header::ACCEPT;
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

/// A command and its expected result.
struct Step<'a> {
    command: &'a str,
    /// Standard input of the command.
    input: &'a str,
    code: i32,
    /// Part of the output of the command.
    says: String,
}

/// Parses the steps of `script.txt`, which documents their format.
fn steps() -> Vec<Step<'static>> {
    let lines = include_str!("script.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(step).collect()
}

fn step(line: &str) -> Step<'_> {
    let (code, rest) = line.split_once(' ').expect("a code and a command");
    let (rest, says) = rest.split_once(" => ").unwrap_or((rest, ""));
    let (command, input) = match rest.split_once(" < ") {
        Some((command, "WEB")) => (command, WEB),
        Some((command, "JOB")) => (command, JOB),
        Some((command, "MAP")) => (command, MAP),
        Some((command, "BAD")) => (command, BAD),
        _ => (rest, ""),
    };
    Step {
        command,
        input,
        code: code.parse().expect("an exit code"),
        says: says.replace("\\n", "\n"),
    }
}

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
    // A command that reads no input may have ended.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("kubectl ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a step and returns its failure, if any.
fn fault(kubeconfig: &Path, step: &Step<'_>, environment: &[(&str, &str)]) -> Option<String> {
    let Step {
        command,
        input,
        code,
        says,
    } = step;
    let output = run(kubeconfig, command, input, environment);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let printed = if *code == 0 { &stdout } else { &stderr };
    let fits = output.status.code() == Some(*code)
        && printed.contains(says)
        && (*code != 0 || !says.is_empty() || stdout.is_empty());
    (!fits).then(|| {
        let got = output.status.code();
        format!("kubectl {command}\n  wanted {code} and {says:?}, got {got:?}\n{stdout}{stderr}")
    })
}

/// Runs all steps and fails the test with those that failed.
fn script(what: &str, kubeconfig: &Path, environment: &[(&str, &str)]) {
    let steps = steps();
    assert!(steps.len() > 80, "{} steps", steps.len());
    let faults: Vec<String> = steps
        .iter()
        .filter_map(|step| fault(kubeconfig, step, environment))
        .collect();
    assert!(faults.is_empty(), "{what}\n{}", faults.join("\n"));
}

/// Sets the namespace of the following commands.
fn namespaced(kubeconfig: &Path) {
    let set = "config set-context --current --namespace=shop";
    let output = run(kubeconfig, set, "", &[]);
    assert!(output.status.success(), "{output:?}");
}

fn start(dir: &Path) -> Option<Up> {
    if !kubectl::is_installed() {
        return None;
    }
    let up = Up::start(dir, &["--memory", "--nodes", "2"]);
    namespaced(&up.kubeconfig);
    Some(up)
}

#[test]
fn a_day_of_kubectl() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut up) = start(dir.path()) else {
        return;
    };
    script("as it is", &up.kubeconfig, &[]);
    for wrong in [
        "1 get --raw /healthz",
        "0 get --raw /healthz => ill",
        "0 get --raw /healthz",
        "0 get nodes --as=jane",
    ] {
        let failure = fault(&up.kubeconfig, &step(wrong), &[]);
        assert!(failure.is_some(), "{wrong}");
    }
    token(&up, dir.path());
    assert_eq!(up.interrupt(), Some(0));
}

/// Checks that a service account with its token may do what its roles grant, and nothing else.
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
    let faults: Vec<String> = [
        &format!("0 auth whoami -o jsonpath={{.status.userInfo.username}} => {bot}"),
        "0 create configmap mine --from-literal=a=1 => created",
        "0 get configmaps -o name => configmap/mine\\n",
        "0 auth can-i create configmaps => yes",
        "1 auth can-i create configmaps -n shop",
        "1 get secrets => (Forbidden): secrets is forbidden",
        "1 delete configmap mine => (Forbidden)",
        "1 get nodes --as=kubernetes-admin => cannot impersonate",
    ]
    .into_iter()
    .filter_map(|line| fault(&kubeconfig, &step(line), &[]))
    .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_day_of_kubectl_with_watch_lists() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut up) = start(dir.path()) else {
        return;
    };
    let on = &[("KUBE_FEATURE_WatchListClient", "true")];
    script("watch lists", &up.kubeconfig, on);
    // kubectl respects the variable.
    let line = "wait --for=jsonpath={.status.phase}=Active namespace/default -v=7";
    let output = run(&up.kubeconfig, line, "", on);
    let log = text(&output.stderr);
    assert!(log.contains("sendInitialEvents=true"), "{log}");
    assert_eq!(up.interrupt(), Some(0));
}

/// A proxy to the server for clients that do not request aggregated discovery.
struct Legacy {
    client: Client,
    /// Requested documents of one group version.
    group_versions: AtomicU32,
}

/// Passes a request without support for aggregated discovery to the server.
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
    let _machine = shared();
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
    let requests = legacy.group_versions.load(Ordering::Relaxed);
    assert!(
        requests > 20,
        "kubectl asked for each group version: {requests}"
    );
    drop(runtime);
    assert_eq!(up.interrupt(), Some(0));
}
