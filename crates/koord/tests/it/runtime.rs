//! `koord up --runtime` on a real containerd, and on a proxy before one: a pod without co-location settings
//! becomes a batch pod, and its values are set when its process begins.

use crate::harness::{Up, shared};
use crate::kubectl::{self, Kubectl};
use koord_host::testing::{Containerd, eventually_blocking};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};

const PROFILE: &str = include_str!("../../../../docs/examples/profile.yaml");

/// A pod that requests memory only, if it is to be scheduled: a busy machine may have no reclaimed CPUs left.
/// A pod that is bound already is not checked.
const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: NAME
  labels: {koordinator.sh/enable-colocation: "true"}
spec:
  PLACE
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: koord.local/busybox:1
    command: ["/bin/sh", "-c"]
    args: ["for f in cpu/cpu.shares memory/memory.limit_in_bytes; do echo $f=$(cat /sys/fs/cgroup/$f); done; echo end; sleep 100000"]
    resources:
      limits: {memory: 32MiCPU}
      requests: {memory: 32MiCPU}
"#;

/// Lists the existing containers, including sandboxes.
fn containers(containerd: &Containerd) -> String {
    let list = containerd.ctr().args(["containers", "ls", "-q"]).output();
    String::from_utf8_lossy(&list.expect("ctr").stdout).into_owned()
}

/// A proxy before the containerd.
struct Proxy(Child);

impl Proxy {
    fn start(containerd: &Containerd) -> Self {
        // `koord up` recognizes the proxy by the name of its program.
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("koord-runtime-proxy");
        let _ = std::fs::remove_file(&program);
        std::fs::hard_link(env!("CARGO_BIN_EXE_koord"), &program).expect("a link");
        let child = Command::new(program)
            .arg("runtime-proxy")
            .arg("--koord-runtimeproxy-endpoint")
            .arg(containerd.path("proxy.sock"))
            .arg("--remote-runtime-service-endpoint")
            .arg(containerd.path("containerd.sock"))
            .arg("--runtime-hook-server-config-dir")
            .arg(containerd.path("hooks"))
            .spawn();
        let proxy = Self(child.expect("koord-runtime-proxy starts"));
        eventually_blocking("the proxy to listen", || {
            containerd.path("proxy.sock").exists().then_some(())
        });
        proxy
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns koordlet's answer to a GET.
fn koordlet(kubectl: &Kubectl<'_>, path: &str) -> Option<String> {
    let at = [
        "-n",
        "koordinator-system",
        "get",
        "configmap",
        "koord-up",
        "-o",
    ];
    let at = kubectl.ok(&[&at[..], &["jsonpath={.data.koordlet}"]].concat(), None);
    let token = std::fs::read_to_string(kubectl.0.kubeconfig.with_file_name("token")).ok()?;
    let host = at.strip_prefix("http://")?;
    let mut stream = TcpStream::connect(host).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.0\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Checks a cluster whose pods run at `socket`.
fn session(containerd: &Containerd, socket: &str, mode: &str) {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let endpoint = format!("unix://{}", containerd.path(socket).display());
    let hooks = containerd.path("hooks").display().to_string();
    let args = [
        "--runtime",
        &endpoint,
        "--runtime-hook-server-config-dir",
        &hooks,
    ];
    let mut up = Up::start(dir.path(), &args);
    let by = format!("values of hooks by {mode}");
    assert!(up.welcome.contains(&by), "{}", up.welcome);
    let kubectl = Kubectl(&up);
    let nodes = kubectl.ok(&["get", "nodes", "-o", "wide"], None);
    assert!(nodes.contains("containerd://"), "{nodes}");
    kubectl.ok(&["apply", "-f", "-"], Some(PROFILE));
    let label = "koordinator.sh/enable-colocation=true";
    kubectl.ok(&["label", "namespace", "default", label], None);
    eventually_blocking("koordlet to be asked", || match mode {
        "nri" => {
            let metrics = koordlet(&kubectl, "/metrics")?;
            let connected =
                |line: &str| line.starts_with("koordlet_nri_connected") && line.ends_with(" 1");
            metrics.lines().any(connected).then_some(())
        }
        _ => {
            let mut files = std::fs::read_dir(&hooks).ok()?.flatten();
            files
                .any(|file| file.path().extension().is_some_and(|e| e == "json"))
                .then_some(())
        }
    });
    let bound = format!("nodeName: {}", koord_node::host_name());
    for (name, place, cpu, shares) in [
        (
            "scheduled",
            "nodeSelector: {node.koordinator.sh/host: \"true\"}",
            "",
            "=2\n",
        ),
        ("bound", &*bound, ", cpu: 500m", "=512\n"),
    ] {
        let pod = POD
            .replace("NAME", name)
            .replace("PLACE", place)
            .replace("CPU", cpu);
        kubectl.ok(&["apply", "-f", "-"], Some(&pod));
        let log = eventually_blocking("the first words of its process", || {
            let output = kubectl.run(&["logs", name], None);
            let log = String::from_utf8_lossy(&output.stdout).into_owned();
            log.contains("end").then_some(log)
        });
        let shares = format!("cpu/cpu.shares{shares}");
        // Only a hook sets a batch pod's limit: for a kubelet it has none.
        let memory = "memory/memory.limit_in_bytes=33554432\n";
        assert!(
            log.contains(&shares) && log.contains(memory),
            "{name}: {log}"
        );
    }
    let output = kubectl.ok(&["exec", "bound", "--", "echo", "inside"], None);
    assert_eq!(output, "inside\n");
    assert!(!containers(containerd).is_empty());
    kubectl.ok(&["delete", "pod", "scheduled"], None);
    assert_eq!(up.interrupt(), Some(0), "Ctrl-C stops cleanly");
    assert_eq!(containers(containerd), "");
}

#[test]
fn containerd_batch_pods_are_adjusted_before_start() {
    if !kubectl::is_installed() {
        return;
    }
    let Some(containerd) = Containerd::for_test() else {
        return;
    };
    session(&containerd, "containerd.sock", "nri");
    let _proxy = Proxy::start(&containerd);
    session(&containerd, "proxy.sock", "proxy");
}
