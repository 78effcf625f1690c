//! Starts that fail, clusters next to each other, and clusters in the background.

use crate::harness::{BackgroundCluster, Up, exclusive, shared};
use crate::watched::WatchedObjects;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Event, Node, Pod, ServiceAccount, Taint};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_host::testing::{eventually, eventually_blocking, skip};
use koord_kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use koord_kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tokio_util::sync::CancellationToken;

fn koord(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_koord"))
        .args(args)
        .args([Path::new("--data-dir"), dir])
        .env("RUST_LOG", "warn")
        .stdin(Stdio::null())
        .output()
        .expect("koord starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

/// Checks that the command fails with one sentence, before it prints anything to standard output.
fn refused(output: &Output, says: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(text(&output.stdout), "", "{stderr}");
    for part in says {
        assert!(stderr.contains(part), "{part:?}: {stderr}");
    }
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_start_that_fails_leaves_the_running_cluster_alone() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let mut up = Up::start(dir.path(), &["--memory"]);
    let _background = BackgroundCluster(dir.path());
    let kubeconfig = std::fs::read(&up.kubeconfig).expect("a kubeconfig");
    for more in [
        &["up", "--port", "0"][..],
        &["up", "--port", "0", "--memory"],
    ] {
        refused(&koord(dir.path(), more), &["runs in", "already", "process"]);
        assert_eq!(std::fs::read(&up.kubeconfig).expect("it stays"), kubeconfig);
    }
    refused(&koord(dir.path(), &["up", "--detach"]), &["already"]);

    // A taken port is detected before anything is written, too.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener
        .local_addr()
        .expect("its number")
        .port()
        .to_string();
    let other = tempfile::tempdir().expect("a directory");
    refused(&koord(other.path(), &["up", "--port", &port]), &[&port]);
    assert!(!other.path().join("kubeconfig").exists());

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let nodes = runtime.block_on(async {
        let nodes: Api<Node> = Api::all(up.client().await);
        nodes.list(&ListParams::default()).await
    });
    assert_eq!(nodes.expect("the first one still answers").items.len(), 1);
    assert_eq!(up.interrupt(), Some(0));
}

#[test]
fn healthy_start_logs_no_warning() {
    let _machine = exclusive();
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let file = std::fs::File::create(&log).expect("a file");
    let mut up = Up::start_logging(&dir.path().join("data"), &["--nodes", "2"], file.into());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let nodes: Api<Node> = Api::all(runtime.block_on(up.client()));
    // By then koordlet and the simulated nodes have reported and the manager has calculated.
    eventually_blocking("batch resources on all nodes", || {
        let nodes = runtime.block_on(nodes.list(&ListParams::default())).ok()?;
        let published = |node: &Node| {
            let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
            allocatable.get("kubernetes.io/batch-cpu").map(drop)
        };
        (nodes.items.len() == 3 && nodes.iter().all(|node| published(node).is_some())).then_some(())
    });
    assert_eq!(up.interrupt(), Some(0));
    let log = std::fs::read_to_string(&log).expect("a log");
    assert_eq!(log, "");
}

#[test]
fn concurrent_clusters_have_separate_cgroups_and_a_notice() {
    if !koord_host::is_root() {
        skip("root", "two clusters have control groups of their own");
        return;
    }
    let _machine = exclusive();
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let first = Up::start(dirs[0].path(), &["--memory"]);
    let second = Up::start(dirs[1].path(), &["--memory"]);
    assert!(second.welcome.contains("NOT ALONE"), "{}", second.welcome);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let groups = [first, second].map(|up| {
        let group = runtime.block_on(group_of_a_pod(&up));
        (up, group)
    });
    let [(_, one), (_, two)] = &groups;
    assert_ne!(one, two, "each has its own kubepods");
    for (mut up, _) in groups {
        assert_eq!(up.interrupt(), Some(0));
    }
}

/// Returns the parent of `kubepods` in the cgroup path of a running pod.
async fn group_of_a_pod(up: &Up) -> String {
    let pods: koord_kube::api::Api<Pod> =
        koord_kube::api::Api::default_namespaced(up.client().await);
    let pod = json!({
        "metadata": {"name": "who"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": "host",
            "command": ["/bin/sh", "-c", "grep memory /proc/self/cgroup || cat /proc/self/cgroup; exec sleep 9876"],
        }]},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    pods.create(&PostParams::default(), &pod)
        .await
        .expect("created");
    eventually("log with the group", async || {
        let log = pods.logs("who", &LogParams::default()).await.ok()?;
        Some(log.split_once("kubepods")?.0.to_owned())
    })
    .await
}

/// Returns the taints that leave pods to simulated nodes. A node may also be tainted as unreachable.
fn with_host_key(node: &Node) -> Vec<Taint> {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    let host = taints.filter(|taint| taint.key == koord_node::HOST_LABEL);
    host.cloned().collect()
}

async fn host_taints(client: &Client) -> Vec<Taint> {
    let nodes: Api<Node> = Api::all(client.clone());
    let name = koord_node::host_name();
    let node = nodes.get(&name).await.expect("this machine's node");
    with_host_key(&node)
}

#[test]
fn simulated_nodes_are_marked_and_removed_by_next_start() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut up = Up::start(dir.path(), &["--nodes", "2"]);
    let kubeconfig = up.kubeconfig.clone();
    let taint = "tolerate its taint node.koordinator.sh/host";
    assert!(up.welcome.contains(taint), "{}", up.welcome);
    runtime.block_on(async {
        let client = up.client().await;
        assert_eq!(host_taints(&client).await, [koord_node::host_taint()]);
        let pods: koord_kube::api::Api<Pod> =
            koord_kube::api::Api::default_namespaced(client.clone());
        let pod = json!({
            "metadata": {"name": "nowhere"},
            "spec": {
                "nodeSelector": {"sim.koordinator.sh/node": "true"},
                "containers": [{"name": "main", "image": "i", "command": ["/bin/true"]}],
            },
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        pods.create(&PostParams::default(), &pod)
            .await
            .expect("created");
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let mut events = WatchedObjects::<Event>::start(&client, &stop);
        let is_simulated = |event: &Event| event.reason.as_deref() == Some("Simulated");
        events
            .until("the event", |all| {
                all.values().any(|event| is_simulated(event))
            })
            .await;
        let error = pods
            .logs("nowhere", &LogParams::default())
            .await
            .unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("a simulated node: nothing runs there"),
            "{error}"
        );
    });
    assert_eq!(up.interrupt(), Some(0));
    assert!(kubeconfig.exists());

    // A start without simulated nodes removes those of the last start, and the host taint, before the node
    // agent reports.
    let mut up = Up::start(dir.path(), &[]);
    let nodes = runtime.block_on(async {
        let nodes: Api<Node> = Api::all(up.client().await);
        nodes.list(&ListParams::default()).await.expect("nodes")
    });
    let names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let labels = nodes.items[0].labels();
    assert_eq!(labels["node.koordinator.sh/host"], "true");
    assert_eq!(with_host_key(&nodes.items[0]), []);
    assert_eq!(up.interrupt(), Some(0));

    // The taint is back with simulated nodes, unless a flag disables it.
    for (args, taints) in [
        (&["--nodes", "1"][..], vec![koord_node::host_taint()]),
        (&["--nodes", "1", "--no-host-taint"], vec![]),
    ] {
        let mut up = Up::start(dir.path(), args);
        let current = runtime.block_on(async { host_taints(&up.client().await).await });
        assert_eq!(current, taints, "{args:?}");
        assert_eq!(up.welcome.contains(taint), !taints.is_empty());
        assert_eq!(up.interrupt(), Some(0));
    }
}

#[test]
fn a_cluster_in_the_background_is_shown_and_stopped() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    refused(&koord(dir.path(), &["status"]), &["no cluster runs in"]);
    refused(&koord(dir.path(), &["down"]), &["no cluster runs in"]);
    let _background = BackgroundCluster(dir.path());
    let up = koord(dir.path(), &["up", "--memory", "--port", "0", "--detach"]);
    let stdout = text(&up.stdout);
    assert!(up.status.success(), "{}", text(&up.stderr));
    assert!(
        stdout.contains("koord is up: https://127.0.0.1:"),
        "{stdout}"
    );
    assert!(stdout.contains("koord down --data-dir"), "{stdout}");
    let status = koord(dir.path(), &["status"]);
    assert!(text(&status.stdout).starts_with("up: https://127.0.0.1:"));
    let check = Command::new(env!("CARGO_BIN_EXE_koord"))
        .args(["check", "--output", "short", "--kubeconfig"])
        .arg(dir.path().join("kubeconfig"))
        .output()
        .expect("koord starts");
    let shown = text(&check.stdout);
    assert!(check.status.success(), "{shown}{}", text(&check.stderr));
    assert!(!shown.contains("failed "), "{shown}");
    let down = koord(dir.path(), &["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    refused(&koord(dir.path(), &["status"]), &["no cluster runs in"]);

    // A start that fails prints the reason, not that the cluster is up.
    std::fs::write(dir.path().join("node"), "in the way")
        .or_else(|_| {
            std::fs::remove_dir_all(dir.path().join("node"))?;
            std::fs::write(dir.path().join("node"), "in the way")
        })
        .expect("a file where a directory is needed");
    let up = koord(dir.path(), &["up", "--memory", "--port", "0", "--detach"]);
    refused(&up, &["node", "its log is"]);
}

#[test]
fn panic_of_a_test_stops_its_background_cluster() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let failing = std::panic::catch_unwind(|| {
        let _background = BackgroundCluster(dir.path());
        let up = koord(dir.path(), &["up", "--memory", "--port", "0", "--detach"]);
        assert!(!up.status.success(), "the cluster is up");
    });
    let message = failing.unwrap_err();
    let message = message.downcast_ref::<&str>().copied();
    assert_eq!(message, Some("the cluster is up"));
    let holder = koordctl::cluster_files::holder(dir.path());
    assert_eq!(holder.expect("a lock file"), None);
}

#[test]
fn a_cluster_in_memory_is_shown_without_flags() {
    let _machine = shared();
    let home = tempfile::tempdir().expect("a directory");
    let koord = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_koord"));
        command.args(args).env("XDG_STATE_HOME", home.path());
        let output = command
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .output();
        output.expect("koord starts")
    };
    let data = home.path().join("koord-memory");
    let _background = BackgroundCluster(&data);
    let up = koord(&["up", "--memory", "--port", "0", "--detach"]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    let kubeconfig = data.join("kubeconfig");
    let export = format!("export KUBECONFIG={}", kubeconfig.display());
    let shown = |output: &Output| text(&output.stdout).contains(&export);
    let status = koord(&["status"]);
    let down = koord(&["down"]);
    let stopped = koord(&["down", "--memory"]);
    assert!(
        shown(&status),
        "{}{}",
        text(&status.stdout),
        text(&status.stderr)
    );
    refused(
        &down,
        &["no cluster runs in", "koord down --memory stops it"],
    );
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    // Clusters of other tests may still run.
    assert!(!shown(&koord(&["status"])));
}

#[test]
fn a_closed_terminal_stops_as_ctrl_c_does() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let mut up = Up::start(dir.path(), &["--memory"]);
    let code = up.signal(rustix::process::Signal::HUP);
    assert_eq!(code, Some(0));
    eventually_blocking("its file to be gone", || {
        (!dir.path().join("cluster.json").exists()).then_some(())
    });
}

fn explain(up: &Up, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_koord"))
        .arg("explain")
        .args(args)
        .env("KUBECONFIG", &up.kubeconfig)
        .stdin(Stdio::null())
        .output()
        .expect("koord starts")
}

#[test]
fn explain_queries_the_cluster_of_the_kubeconfig() {
    let _machine = exclusive();
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    // The usual ports belong to a cluster without these pods.
    let mut other = Up::start(dirs[0].path(), &["--memory"]);
    let mut up = Up::start(dirs[1].path(), &["--memory"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let pods: Api<Pod> = Api::namespaced(up.client().await, "default");
        for (name, spec) in [
            ("nowhere", json!({"nodeSelector": {"zone": "moon"}})),
            ("unserved", json!({"schedulerName": "kord-scheduler"})),
        ] {
            let mut pod = json!({"metadata": {"name": name}, "spec": spec});
            pod["spec"]["containers"] = json!([{"name": "c", "image": "i", "command": ["true"]}]);
            let pod = serde_json::from_value(pod).expect("a pod");
            let created = pods.create(&PostParams::default(), &pod).await;
            created.expect("created");
        }
    });
    let answer = eventually_blocking("the scheduler to have tried", || {
        let output = explain(&up, &["pod/nowhere", "-n", "default"]);
        let text = text(&output.stdout).to_owned();
        text.contains("refused by").then_some(text)
    });
    assert!(
        answer.contains("no node has label zone=moon, which nodeSelector requires"),
        "{answer}"
    );
    let output = explain(&up, &["pod", "unserved"]);
    let answer = text(&output.stdout);
    let hint = "no scheduler serves schedulerName \"kord-scheduler\"; served are koord-scheduler";
    assert!(answer.contains(hint), "{answer}");
    let output = explain(&up, &["po/unserved", "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let hint = answer["hints"][0].as_str().unwrap_or_default();
    assert!(hint.starts_with("no scheduler serves"), "{answer}");
    let output = explain(&other, &["pod/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("there is no pod default/nowhere"),
        "{stderr}"
    );
    for up in [&mut other, &mut up] {
        assert_eq!(up.interrupt(), Some(0));
    }
}

/// Kubelets of simulated nodes that align, an exporter, and the scheduler that uses its reports: a pod that
/// fits no NUMA node waits, and no pod fails.
#[test]
fn simulated_nodes_with_numa_nodes_refuse_no_pod() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let mut up = Up::start(
        dir.path(),
        &["--memory", "--nodes", "1", "--topology", "2x8"],
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(up.client());
    let reports: Api<NodeResourceTopology> = Api::all(client.clone());
    let free = |want: [i64; 2]| {
        eventually_blocking(&format!("{want:?} free CPUs"), || {
            let reports = runtime
                .block_on(reports.list(&ListParams::default()))
                .ok()?;
            let zones = |report: &NodeResourceTopology| {
                let zones = report.spec.zones.iter();
                let cpus =
                    zones.filter_map(|zone| zone.resources.iter().find(|it| it.name == "cpu"));
                let mut free: Vec<i64> = cpus.map(|it| it.available.value()).collect();
                free.sort_unstable();
                free == want
            };
            reports.iter().any(zones).then_some(())
        });
    };
    free([8, 8]);
    let amounts = json!({"cpu": "5", "memory": "1Gi"});
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"nodeSelector": {"sim.koordinator.sh/node": "true"}, "containers": [
                {"name": "c", "image": "c", "resources": {"requests": amounts, "limits": amounts}}]},
        }},
    });
    let deployment = serde_json::from_value(deployment).expect("a Deployment");
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let created = runtime.block_on(deployments.create(&PostParams::default(), &deployment));
    created.expect("created");
    free([3, 3]);
    let pods: Api<Pod> = Api::default_namespaced(client);
    let all = || runtime.block_on(pods.list(&ListParams::default())).ok();
    let phase = |pod: &Pod| {
        pod.status
            .clone()
            .unwrap_or_default()
            .phase
            .unwrap_or_default()
    };
    let waits = eventually_blocking("two pods that run and one that waits", || {
        let pods = all()?.items;
        let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
        let waits = pods.iter().find(|pod| {
            let conditions = pod
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref());
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|it| it.reason.as_deref() == Some("Unschedulable"))
        });
        (run == 2).then(|| waits.map(|pod| pod.name_any()))?
    });
    let lacks = "cpu in one NUMA node: needs 5, free 3 in node-0 and 3 in node-1";
    eventually_blocking(lacks, || {
        let output = explain(&up, &["pod", &waits]);
        text(&output.stdout).contains(lacks).then_some(())
    });
    let names: Vec<String> = all()
        .expect("pods")
        .iter()
        .map(|pod| pod.name_any())
        .collect();
    assert_eq!(
        names.len(),
        3,
        "one that failed would be there still: {names:?}"
    );
    assert_eq!(up.interrupt(), Some(0));
}

/// A process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates a service account that may read the configuration of nodes, and returns its token.
async fn token_for_configz(client: &Client) -> String {
    let name = "exporter";
    let metadata = json!({"name": name});
    let account = serde_json::from_value(json!({"metadata": metadata})).expect("an account");
    let accounts: koord_kube::api::Api<ServiceAccount> =
        koord_kube::api::Api::default_namespaced(client.clone());
    let params = PostParams::default();
    accounts.create(&params, &account).await.expect("created");
    let role = json!({"metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["nodes/configz"], "verbs": ["get"]}]});
    let role = serde_json::from_value(role).expect("a role");
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.create(&params, &role).await.expect("created");
    let binding = json!({"metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]});
    let binding = serde_json::from_value(binding).expect("a binding");
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.create(&params, &binding).await.expect("created");
    let request = TokenRequest::default();
    let issued = accounts.create_token_request(name, &params, &request).await;
    issued.expect("a token").status.expect("a status").token
}

/// Runs the exporter on a node that runs pods: it reads the machine and the kubelet's configuration, and lists
/// what the node runs.
#[test]
fn the_exporter_follows_the_pods_of_a_real_node() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let mut up = Up::start(dir.path(), &["--memory"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(up.client());
    let nodes: Api<Node> = Api::all(client.clone());
    let node = runtime.block_on(nodes.list(&ListParams::default()));
    let node = node.expect("nodes").items.remove(0);
    let status = node.status.clone().expect("a status");
    let port = status.daemon_endpoints.expect("endpoints");
    let port = port.kubelet_endpoint.expect("the kubelet's").port;
    let socket = dir.path().join("node/pod-resources/kubelet.sock");
    let path_flag = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    // The node serves its configuration like a kubelet, to authorized users.
    let token = dir.path().join("exporter-token");
    std::fs::write(&token, runtime.block_on(token_for_configz(&client))).expect("a file");
    let exporter = Command::new(env!("CARGO_BIN_EXE_koord"))
        .arg("topology-exporter")
        .arg(format!("--node-name={}", node.name_any()))
        .arg(path_flag("kubeconfig", &up.kubeconfig))
        .arg(path_flag("podresources-socket", &socket))
        .arg(format!(
            "--kubelet-config-uri=http://127.0.0.1:{port}/configz"
        ))
        .arg(path_flag("api-auth-token-file", &token))
        // This kubelet's managers are off: it has no state file of theirs to watch.
        .args(["--kubelet-state-dir=", "--sleep-interval=1s", "--port=0"])
        .spawn()
        .expect("the exporter starts");
    let exporter = Killed(exporter);

    let reports: Api<NodeResourceTopology> = Api::all(client.clone());
    let reported = || {
        let report = runtime.block_on(reports.get(&node.name_any())).ok()?;
        let of = |name: &str| {
            let mut all = report.spec.attributes.iter();
            all.find(|it| it.name == name).map(|it| it.value.clone())
        };
        let policy = of("topologyManagerPolicy")?;
        Some((
            policy,
            of("nodeTopologyPodsFingerprint")?,
            report.spec.zones,
        ))
    };
    let (policy, empty, zones) = eventually_blocking("a report", reported);
    assert_eq!(policy, "none");
    let numa = std::fs::read_dir("/sys/devices/system/node").expect("NUMA nodes");
    let mut numa: Vec<String> = numa
        .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
        .filter_map(|name| Some(format!("node-{}", name.strip_prefix("node")?)))
        .collect();
    numa.sort_unstable();
    let mut names: Vec<&str> = zones.iter().map(|zone| &*zone.name).collect();
    names.sort_unstable();
    assert_eq!(names, numa);
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = json!({"metadata": {"name": "sleeper"}, "spec": {
        "nodeName": node.name_any(), "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "c", "command": ["sleep", "600"]}]}});
    let pod = serde_json::from_value(pod).expect("a Pod");
    let created = runtime.block_on(pods.create(&PostParams::default(), &pod));
    created.expect("created");
    let with_pod = eventually_blocking("another fingerprint", || {
        let (_, fingerprint, _) = reported()?;
        (fingerprint != empty).then_some(fingerprint)
    });
    let topology = Command::new(env!("CARGO_BIN_EXE_koord"))
        .args(["node", "topology", "--json"])
        .arg(path_flag("socket", &socket))
        .output()
        .expect("koord starts");
    let listed: serde_json::Value = serde_json::from_slice(&topology.stdout).expect("JSON");
    assert_eq!(
        (&listed["pods"], &listed["fingerprint"]),
        (&json!(1), &json!(with_pod))
    );
    let deleted = runtime.block_on(pods.delete("sleeper", &DeleteParams::default()));
    deleted.expect("deleted");
    eventually_blocking("the fingerprint of no pod", || {
        (reported()?.1 == empty).then_some(())
    });
    drop(exporter);
    assert_eq!(up.interrupt(), Some(0));
}

/// Pods get accelerators that the file of a vendor's tool describes, by koordlet, manager and scheduler. The
/// machine has none of them.
#[test]
fn accelerators_of_files_are_allocated_to_pods() {
    if !koord_host::is_root() {
        skip("root", "control groups");
        return;
    }
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let files = tempfile::tempdir().expect("a directory");
    let card = |minor: u8, healthy: bool| {
        json!({"vendor": "metax", "model": "MXC500 VB", "uuid": format!("MX-{minor}"),
            "minor": minor.to_string(), "resources": {"gpu-core": "100", "gpu-memory": "64Gi"},
            "topology": {"nodeID": "0", "pcieID": "pci0000:00", "busID": format!("0000:0{minor}:00.0")},
            "status": {"healthy": healthy, "errCode": if healthy { "" } else { "ECC error" }}})
    };
    let cards = json!([card(0, false), card(1, true)]);
    std::fs::write(files.path().join("metax"), cards.to_string()).expect("a file");
    let path = files.path().to_str().expect("utf-8");
    let mut up = Up::start(dir.path(), &["--memory", "--device-files", path]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(up.client());

    let nodes: Api<Node> = Api::all(client.clone());
    let node = eventually_blocking("the node's resources", || {
        let nodes = runtime.block_on(nodes.list(&ListParams::default())).ok()?;
        let node = nodes.items.into_iter().next()?;
        let offered = node.status.as_ref()?.allocatable.as_ref()?;
        let cores = offered.get("koordinator.sh/gpu-core")?;
        (cores.0 == "100").then_some(node)
    });
    assert_eq!(node.labels()["node.koordinator.sh/gpu-vendor"], "metax");
    assert_eq!(node.labels()["node.koordinator.sh/gpu-model"], "MXC500-VB");

    let running = std::fs::read(dir.path().join("cluster.json")).expect("a file");
    let running: serde_json::Value = serde_json::from_slice(&running).expect("JSON");
    let address = running["koordlet"].as_str().expect("an address");
    let shown = Command::new(env!("CARGO_BIN_EXE_koord"))
        .args(["node", "status", "--address", address, "--json"])
        .output()
        .expect("koord starts");
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let health: Vec<&str> = shown["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .filter(|device| device["kind"] == "gpu")
        .map(|device| device["health"].as_str().expect("text"))
        .collect();
    assert_eq!(health.len(), 2, "{shown}");
    assert!(health[0].contains("ECC error"), "{health:?}");
    assert_eq!(health[1], "healthy");

    let pods: Api<Pod> = Api::default_namespaced(client);
    let half = json!({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"});
    let pod = |name: &str| {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "host",
                "command": ["/bin/sleep", "9876"], "resources": {"requests": half, "limits": half}}]},
        });
        serde_json::from_value(pod).expect("a pod")
    };
    for name in ["one", "two", "three"] {
        let (params, pod) = (PostParams::default(), pod(name));
        let created = runtime.block_on(pods.create(&params, &pod));
        created.expect("created");
    }
    let allocated_devices = |name: &str| {
        let pod = runtime.block_on(pods.get(name)).ok()?;
        let annotation = pod
            .annotations()
            .get("scheduling.koordinator.sh/device-allocated")?;
        serde_json::from_str::<serde_json::Value>(annotation).ok()
    };
    let mut placed = 0;
    eventually_blocking("two pods with devices, and one without", || {
        let all = ["one", "two", "three"].map(allocated_devices);
        let all: Vec<_> = all.into_iter().flatten().collect();
        for devices in &all {
            assert_eq!(
                devices["gpu"][0]["minor"], 1,
                "the other is not well: {devices}"
            );
            assert_eq!(devices["gpu"][0]["id"], "MX-1");
        }
        placed = all.len();
        let list = runtime.block_on(pods.list(&ListParams::default())).ok()?;
        let waits = list.items.iter().filter(|pod| {
            let status = pod.status.as_ref();
            let conditions = status.and_then(|status| status.conditions.as_ref());
            conditions
                .into_iter()
                .flatten()
                .any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
        });
        (placed == 2 && waits.count() == 1).then_some(())
    });
    assert_eq!(placed, 2, "one card is two halves");
    assert_eq!(up.interrupt(), Some(0));
}

/// Files and directories below `dir`, itself included, that another user may use.
fn open_to_others(dir: &Path, found: &mut Vec<String>) {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = std::fs::symlink_metadata(dir).expect("metadata");
    if !metadata.is_symlink() && metadata.permissions().mode() & 0o077 != 0 {
        found.push(dir.display().to_string());
    }
    if metadata.is_dir() {
        for entry in std::fs::read_dir(dir).expect("a directory") {
            open_to_others(&entry.expect("an entry").path(), found);
        }
    }
}

#[test]
fn directory_and_ports_are_for_their_owner() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&data, readable).expect("permissions");
    let up = Up::start(&data, &[]);
    assert!(up.welcome.contains("  Rights: "), "{}", up.welcome);
    let mut open_files = Vec::new();
    open_to_others(&data, &mut open_files);
    assert_eq!(open_files, Vec::<String>::new());

    let running = std::fs::read(data.join("cluster.json")).expect("its file");
    let running: serde_json::Value = serde_json::from_slice(&running).expect("JSON");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let get = |port: &str, path: &str| {
        let at = running[port].as_str().expect("an address").to_owned();
        runtime.block_on(koordctl::http_get::get_as(Some("none"), &at, "it", path))
    };
    for (port, path) in [
        ("scheduler", "/metrics"),
        ("descheduler", "/metrics"),
        ("koordlet", "/debug/status"),
        ("koordlet", "/events"),
    ] {
        let (code, body) = get(port, path).expect("an answer");
        assert_eq!(code, 401, "{port} {path}: {body}");
        assert_eq!(get(port, "/healthz").expect("an answer").0, 401);
    }

    let koordlet = running["koordlet"].as_str().expect("an address");
    let command = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_koord"))
            .args(args)
            .args(["--address", koordlet])
            .output();
        output.expect("koord starts")
    };
    let status = command(&["node", "status"]);
    assert!(status.status.success(), "{}", text(&status.stderr));
    let nothing = command(&["audit", "--pod", "nonsense"]);
    assert_eq!(nothing.status.code(), Some(1));
    let stderr = text(&nothing.stderr);
    assert!(stderr.contains("no record of pod \"nonsense\""), "{stderr}");
}
