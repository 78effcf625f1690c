//! koord-descheduler in a whole cluster: it moves pods off a hot node, each after its new place is reserved;
//! and the program as manifests start it.

mod deaths;

use crate::harness::{BackgroundCluster, Up, shared};
use crate::watched::WatchedObjects;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::annotations::RESERVATION_ALLOCATED;
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobPhase, Reservation, ReservationPhase};
use koord_descheduler::report::Report;
use koord_host::testing::{PATIENCE, eventually};
use koord_kube::api::PostParams;
use koord_kube::{Api, Client, ResourceExt, patch};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

fn run(binary: &str, args: &[&str]) -> Output {
    Command::new(binary)
        .args(args)
        .env("RUST_LOG", "warn")
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .output()
        .expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(dir: &Path, name: &str, config: &Value) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, config.to_string()).expect("a file");
    path
}

/// Returns a configuration of LowNodeLoad on simulated nodes. Four pods of seven CPUs are 89 % of a node of
/// 32; with two of them it is below 65 %.
fn balancing() -> Value {
    let simulated = json!({"matchLabels": {"sim.koordinator.sh/node": "true"}});
    json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "2s",
        "profiles": [{
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
            "pluginConfig": [
                {"name": "MigrationController", "args": {
                    "defaultJobMode": "ReservationFirst",
                    "maxMigratingPerWorkload": "50%",
                    "maxUnavailablePerWorkload": "50%",
                    "objectLimiters": {"workload": {"duration": "1s"}},
                }},
                {"name": "LowNodeLoad", "args": {
                    "nodeSelector": simulated,
                    "lowThresholds": {"cpu": 45, "memory": 80},
                    "highThresholds": {"cpu": 65, "memory": 90},
                    "anomalyCondition": {"timeout": "1m", "consecutiveAbnormalities": 2, "consecutiveNormalities": 1},
                }},
            ],
        }],
    })
}

async fn close(client: &Client, node: &str, closed: bool) {
    let change = json!({"spec": {"unschedulable": closed}});
    patch::merge_node(client, node, &change)
        .await
        .expect("a node");
}

type Pods = BTreeMap<String, Arc<Pod>>;

fn all_run(pods: &Pods) -> bool {
    let runs = |pod: &Arc<Pod>| {
        let status = pod.status.as_ref();
        pod.metadata.deletion_timestamp.is_none()
            && status.and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    pods.len() == 4 && pods.values().all(runs)
}

fn phase(job: &PodMigrationJob) -> Option<&PodMigrationJobPhase> {
    job.status.as_ref()?.phase.as_ref()
}

fn node_of(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

#[test]
fn pods_leave_a_hot_node_to_places_that_were_reserved_for_them() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let config = write(dir.path(), "descheduler.json", &balancing());
    let config = config.to_str().expect("a path");
    let data = dir.path().join("data");
    let mut up = Up::start(
        &data,
        &["--memory", "--nodes", "3", "--descheduler-config", config],
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = up.client().await;
        let stop = CancellationToken::new();
        let mut nodes = WatchedObjects::<Node>::start(&client, &stop);
        let mut pods = WatchedObjects::<Pod>::start(&client, &stop);
        nodes.until("simulated nodes", |all| all.len() == 4).await;
        for node in ["sim-1", "sim-2"] {
            close(&client, node, true).await;
        }
        let labels = json!({"app": "busy"});
        let deployment = json!({
            "metadata": {"name": "busy"},
            "spec": {"replicas": 4, "selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels, "annotations": {"kwok.x-k8s.io/usage-cpu": "7"}},
                "spec": {
                    "schedulerName": "koord-scheduler",
                    "nodeSelector": {"sim.koordinator.sh/node": "true"},
                    "containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": "1"}}}],
                },
            }},
        });
        let deployment = serde_json::from_value(deployment).expect("a Deployment");
        let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
        deployments
            .create(&PostParams::default(), &deployment)
            .await
            .expect("created");
        pods.until("the pods", all_run).await;
        let first = pods.all.clone();
        assert!(first.values().all(|pod| node_of(pod) == "sim-0"));
        for node in ["sim-1", "sim-2"] {
            close(&client, node, false).await;
        }
        let mut jobs = WatchedObjects::<PodMigrationJob>::start(&client, &stop);
        jobs.until("two moves", |jobs| {
            let failed = [PodMigrationJobPhase::Failed, PodMigrationJobPhase::Aborted];
            for job in jobs.values() {
                assert!(phase(job).is_none_or(|phase| !failed.contains(phase)), "{job:?}");
            }
            let succeeded = |job: &&Arc<_>| phase(job) == Some(&PodMigrationJobPhase::Succeeded);
            jobs.values().filter(succeeded).count() == 2
        })
        .await;
        // The watched pods may be older than the watched jobs.
        let new: Vec<_> = jobs
            .all
            .values()
            .filter(|job| phase(job) == Some(&PodMigrationJobPhase::Succeeded))
            .filter_map(|job| job.status.as_ref()?.pod_ref.as_ref()?.name.clone())
            .collect();
        let arrived = |pods: &Pods| all_run(pods) && new.iter().all(|name| pods.contains_key(name));
        pods.until("the new pods", arrived).await;
        let last = &pods.all;
        let stayed = last.values().filter(|pod| node_of(pod) == "sim-0").count();
        assert_eq!(stayed, 2, "65 % are reached, and no further pod moves");
        let before: BTreeSet<_> = first.values().filter_map(|pod| pod.uid()).collect();
        let reservations: Api<Reservation> = Api::all(client.clone());
        let succeeded = jobs.all.values();
        for job in succeeded.filter(|job| phase(job) == Some(&PodMigrationJobPhase::Succeeded)) {
            let status = job.status.as_ref().expect("a status");
            let moved = status.pod_ref.as_ref().and_then(|pod| pod.name.clone());
            let moved = moved.expect("the new pod");
            let pod = last.get(&moved).expect("it is there");
            assert!(!before.contains(&pod.uid().expect("a UID")));
            assert_ne!(node_of(pod), "sim-0");
            assert_eq!(node_of(pod), status.node_name);
            // It took the place that was reserved before the old pod was evicted.
            let named = job
                .spec
                .reservation_options
                .as_ref()
                .and_then(|options| options.reservation_ref.as_ref())
                .and_then(|reservation| reservation.name.clone());
            let named = named.expect("a reservation");
            let allocated = &pod.annotations()[RESERVATION_ALLOCATED];
            assert!(allocated.contains(&named), "{allocated}");
            let reservation = reservations.get(&named).await.expect("it is kept");
            let status = reservation.status.expect("a status");
            assert_eq!(status.phase, Some(ReservationPhase::Succeeded));
            assert_eq!(status.current_owners[0].name, Some(moved));
        }
        stop.cancel();
    });
    // `koord explain` needs nothing but a kubeconfig.
    let kubeconfig = up.kubeconfig.to_str().expect("a path");
    let koord = env!("CARGO_BIN_EXE_koord");
    let explain = |what: &[&str]| {
        let args = [&["explain"], what, &["--kubeconfig", kubeconfig]].concat();
        let output = run(koord, &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let all = explain(&["descheduler"]);
    assert!(all.starts_with("cycle of "), "{all}");
    assert!(all.contains("nodes are not hot"), "{all}");
    let json = explain(&["descheduler", "sim-0", "-o", "json"]);
    let report: Report = serde_json::from_str(&json).expect("a report");
    assert_eq!(report.nodes.keys().collect::<Vec<_>>(), ["sim-0"]);
    let args = ["explain", "descheduler", "gone", "--kubeconfig", kubeconfig];
    let output = run(koord, &args);
    assert!(text(&output.stderr).contains("no node \"gone\""));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(up.interrupt(), Some(0));
}

/// The replacement of a pod without requests uses the job's reservation, although that holds nothing.
#[test]
fn job_moves_a_pod_without_requests() {
    let _machine = shared();
    let dir = tempfile::tempdir().expect("a directory");
    let mut up = Up::start(dir.path(), &["--memory", "--nodes", "2"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = up.client().await;
        let stop = CancellationToken::new();
        let labels = json!({"app": "idle"});
        let deployment = json!({
            "metadata": {"name": "idle"},
            "spec": {"replicas": 4, "selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "schedulerName": "koord-scheduler",
                    "nodeSelector": {"sim.koordinator.sh/node": "true"},
                    "containers": [{"name": "c", "image": "c"}],
                },
            }},
        });
        let deployment = serde_json::from_value(deployment).expect("a Deployment");
        let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
        let created = deployments
            .create(&PostParams::default(), &deployment)
            .await;
        created.expect("created");
        let mut pods = WatchedObjects::<Pod>::start(&client, &stop);
        pods.until("the pods", all_run).await;
        let pod = pods.all.values().next().expect("a pod").clone();
        let job = json!({
            "metadata": {"name": "move"},
            "spec": {"mode": "ReservationFirst", "ttl": "5m",
                "podRef": {"namespace": "default", "name": pod.name_any()}},
        });
        let job = serde_json::from_value(job).expect("a job");
        let jobs: Api<PodMigrationJob> = Api::all(client.clone());
        let created = jobs.create(&PostParams::default(), &job).await;
        created.expect("created");
        let mut jobs = WatchedObjects::<PodMigrationJob>::start(&client, &stop);
        let succeeded = |job: &Arc<_>| phase(job) == Some(&PodMigrationJobPhase::Succeeded);
        jobs.until("the move", |all| all.values().any(succeeded))
            .await;
        stop.cancel();
    });
    assert_eq!(up.interrupt(), Some(0));
}

#[test]
fn invalid_descheduler_config_fails_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = balancing();
    config["profiles"][0]["plugins"]["balance"]["enabled"][0]["name"] = json!("HighNodeLoad");
    let config = write(dir.path(), "descheduler.json", &config);
    let data = dir.path().join("data");
    let _background = BackgroundCluster(&data);
    let (config, data) = (config.to_str().unwrap(), data.to_str().unwrap());
    let args = ["up", "--data-dir", data, "--descheduler-config", config];
    for args in [&args[..], &[&args[..], &["--detach"]].concat()] {
        let output = run(env!("CARGO_BIN_EXE_koord"), args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for part in [
            config,
            "profiles[0].plugins.balance.enabled[0].name",
            "HighNodeLoad",
        ] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
    }
}

/// Returns a port on which no process listens.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_serves_stands_for_election_and_ends_well() {
    let server = koord_apiserver::ApiServer::open(koord_apiserver::Config::memory(
        koord_app::Clock::system(),
    ))
    .await
    .expect("an API server");
    let dir = tempfile::tempdir().expect("a directory");
    koord_kube::tls::install_crypto_provider();
    let listener = server.listen().await.expect("a port");
    let kubeconfig = dir.path().join("kubeconfig");
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move { server.serve(listener, stop).await }
    });
    server.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    server
        .install_crds(koord_api::crd_values())
        .await
        .expect("custom resources");
    let (plain, secure) = (free_port(), free_port());
    let mut config = balancing();
    config["healthzBindAddress"] = json!(format!("127.0.0.1:{plain}"));
    config["metricsBindAddress"] = json!(format!("127.0.0.1:{plain}"));
    config["leaderElection"] = json!({"resourceNamespace": "default"});
    let config = write(dir.path(), "config.yaml", &config);
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_koord"))
        .arg("descheduler")
        .arg(format!("--config={}", config.display()))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--secure-port={secure}"))
        .arg("--bind-address=127.0.0.1")
        .arg("--leader-elect-resource-name=mine")
        .arg("--v=2")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let at = format!("http://127.0.0.1:{plain}");
    let get = async |path: &str| koordctl::http_get::get(&at, "it", path).await;
    let page = async |path: &str| {
        let answers = async || matches!(get(path).await, Ok((200, _))).then_some(());
        eventually(path, answers).await;
    };
    let client = koord_kube::client::in_process(server.service());
    let mut leases = WatchedObjects::<Lease>::start(&client, &stop);
    leases
        .until("a lease", |all| all.contains_key("mine"))
        .await;
    let holder = |lease: &Lease| lease.spec.as_ref()?.holder_identity.clone();
    let holder = holder(&leases.all["mine"]).expect("a holder");
    let (host, unique) = holder.split_once('_').expect("host_uuid");
    assert!(!host.is_empty() && unique.len() == 36, "{holder}");
    page("/healthz").await;
    page("/readyz").await;
    let (_, body) = get("/configz").await.expect("a page");
    let shown: Value = serde_json::from_str(&body).expect("JSON");
    let shown = &shown["componentconfig"];
    assert_eq!(shown["LeaderElection"]["ResourceName"], "mine");
    assert_eq!(shown["DeschedulingInterval"], "2s");
    let (_, body) = get("/metrics").await.expect("a page");
    assert!(body.contains("koord_descheduler_cycle_seconds"), "{body}");
    page("/debug/descheduler").await;
    // Over TLS, health needs no permission, and all other paths do.
    let tls = async |path: &str| {
        let peer = koord_kube::client::Peer {
            url: format!("https://127.0.0.1:{secure}"),
            token_file: None,
            authority: None,
            insecure: true,
        };
        let client = koord_kube::client::to_peer(&peer).await.expect("a client");
        let request = hyper::Request::get(path)
            .body(Vec::new())
            .expect("a request");
        client.request_text(request).await
    };
    assert_eq!(tls("/healthz").await.expect("health"), "ok");
    let refused = tls("/debug/descheduler").await.expect_err("refused");
    assert!(patch::is_status(&refused, 403), "{refused}");
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid
        .and_then(rustix::process::Pid::from_raw)
        .expect("it runs");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
    let ended = ended.expect("it ends").expect("a status");
    assert_eq!(ended.code(), Some(0));
    let leases: Api<Lease> = Api::default_namespaced(client);
    let lease = leases.get("mine").await.expect("the lease");
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(holder.unwrap_or_default(), "", "it was given back");
    stop.cancel();
    let _ = serving.await;
}

#[test]
fn the_program_writes_its_configuration_and_names_mistakes() {
    let run = |args: &[&str]| {
        let args = [&["descheduler"], args].concat();
        run(env!("CARGO_BIN_EXE_koord"), &args)
    };
    let dir = tempfile::tempdir().expect("a directory");
    let written = dir.path().join("written.yaml");
    let config = write(dir.path(), "config.yaml", &balancing());
    let shown = (written.display().to_string(), config.display().to_string());
    let output = run(&[
        "--config",
        &shown.1,
        "--write-config-to",
        &shown.0,
        "--leader-elect=false",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let first = std::fs::read_to_string(&written).expect("it was written");
    for part in [
        "MigrationController",
        "LowNodeLoad",
        "leaderElect: false",
        "deschedulingInterval:",
    ] {
        assert!(first.contains(part), "{part}: {first}");
    }
    // The written configuration gives the same output again.
    let rewritten = dir.path().join("again.yaml").display().to_string();
    let output = run(&["--config", &shown.0, "--write-config-to", &rewritten]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(
        std::fs::read_to_string(&rewritten).expect("it was written"),
        first
    );
    let output = run(&["--version"]);
    assert!(text(&output.stdout).starts_with("koord-descheduler "));
    let mut wrong = balancing();
    wrong["profiles"][0]["pluginConfig"][1]["args"]["highThreshold"] = json!({"cpu": 1});
    let wrong = write(dir.path(), "wrong.yaml", &wrong)
        .display()
        .to_string();
    for (args, code, says) in [
        (
            vec!["--config", &wrong],
            1,
            "profiles[0].pluginConfig[1].args",
        ),
        (vec!["--config", "/nowhere/at/all"], 1, "/nowhere/at/all"),
        (vec!["--address=here"], 1, "--address: \"here\""),
        (vec!["--nothing"], 2, "--nothing"),
        (vec!["now"], 2, "now"),
    ] {
        let output = run(&args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
}

/// Objects of a file of the chart.
fn manifest(file: &str) -> Vec<Value> {
    let path = format!(
        "{}/../../charts/koord/files/descheduler/{file}",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).expect("a manifest");
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).expect("YAML"))
        .collect()
}

/// Creates the objects of a manifest, such as the roles of the descheduler's account.
async fn apply(client: &Client, file: &str) {
    use koord_kube::api::{ApiResource, DynamicObject};
    for object in manifest(file) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let types = object.types.clone().expect("a kind");
        let gvk = koord_kube::kube_core::GroupVersionKind::try_from(&types).expect("a version");
        let resource = ApiResource::from_gvk(&gvk);
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let created = api.create(&PostParams::default(), &object).await;
        created.expect("created");
    }
}

/// `--find-targets` needs exactly the rights that `targets.yaml` adds.
#[tokio::test]
async fn target_search_has_minimal_rights() {
    let clock = koord_app::Clock::system();
    let server = koord_apiserver::ApiServer::open(koord_apiserver::Config::memory(clock))
        .await
        .expect("an API server");
    server
        .install_crds(koord_api::crd_values())
        .await
        .expect("custom resources");
    let client = koord_kube::client::in_process(server.service());
    let namespace = json!({"metadata": {"name": "koordinator-system"}});
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(namespace).expect("a namespace");
    // The server may bring it along.
    let _ = namespaces.create(&PostParams::default(), &namespace).await;
    apply(&client, "rbac.yaml").await;
    apply(&client, "targets.yaml").await;
    let (sender, mut receiver) = watch::channel([BTreeSet::new(), BTreeSet::new()]);
    let user =
        koord_apiserver::authz::User::service_account("koordinator-system", "koord-descheduler");
    let limited = server.service_as(user, move |right: &str, allowed: bool| {
        sender.send_modify(|rights| {
            rights[usize::from(allowed)].insert(right.to_owned());
        });
    });
    let limited = koord_kube::client::in_process(limited);
    let context = koord_app::Context::new();
    // The follower does not validate a disabled election, like the scheduler.
    let off = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
        leaderElection: {leaderElect: false, leaseDuration: 1s}\n";
    let off = koord_scheduler::config::Configuration::parse(off).expect("a configuration");
    let follow = koord_placement::Targets::follow;
    let mut options = koord_scheduler::Options::new(koord_placement::registry());
    options.config = Some(off);
    drop(follow(options, &client, &context).expect("targets of that configuration"));
    // The scheduler of the chart also uses the network topology.
    let mut registry = koord_placement::registry();
    koord_plugins::apply_chart_defaults(&mut registry);
    let options = koord_scheduler::Options::new(registry);
    let targets = follow(options, &limited, &context).expect("targets");
    tokio::time::timeout(PATIENCE, targets.settled())
        .await
        .expect("the cluster is read");
    let rights = |file: &str| {
        let roles = manifest(file);
        let rules = roles.iter().filter(|role| role["rules"].is_array());
        let rights = rules.flat_map(|role| koord_apiserver::granted_rights(&role["rules"]));
        rights.collect::<BTreeSet<_>>()
    };
    let granted = rights("targets.yaml");
    // After [`PATIENCE`], the assertion below names missing rights.
    let all = receiver.wait_for(|[refused, used]| {
        assert_eq!(
            *refused,
            BTreeSet::new(),
            "requested, and no rule allows it"
        );
        granted.is_subset(used)
    });
    drop(tokio::time::timeout(PATIENCE, all).await);
    let [_, every] = receiver.borrow().clone();
    let unused: Vec<_> = granted.difference(&every).map(String::as_str).collect();
    assert_eq!(unused, [""; 0], "granted, and nothing uses it");
    let besides: BTreeSet<_> = granted.union(&rights("rbac.yaml")).cloned().collect();
    assert!(every.is_subset(&besides));
    context.shutdown.cancel();
}
