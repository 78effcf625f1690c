//! The hook server over its socket, the plugin with a runtime of the test, and the responses of both.

mod dry_run;
mod invoked;
mod link;
mod news;
mod twice;

use super::nri::Plugin;
use super::*;
use crate::gates::Gate;
use crate::hooks::tests::Node;
use crate::states::{Driver, Layout};
use futures::FutureExt as _;
use koord_api::hookserver::HookServer;
use koord_host::fake::Tree;
use koord_host::testing::poll_until;
use koord_host::{CgroupPath, Resource};
use koord_kube::client::{Body, in_process};
use koord_kube::events::Recorder;
use koord_rpc::grpc;
use koord_rpc::hooks::runtime_hook_service_client::RuntimeHookServiceClient;
use koord_rpc::hooks::{
    ContainerMetadata, ContainerResourceHookRequest, LinuxContainerResources,
    PodSandboxHookRequest, PodSandboxMetadata,
};
use koord_rpc::nri::{
    Container, Handler, LinuxContainer, LinuxCpu, LinuxMemory, LinuxPodSandbox, LinuxResources,
    OptionalInt64, OptionalUInt64, PodSandbox,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

const MIB: i64 = 1 << 20;

/// A fake machine, and the inputs of hooks.
struct Rig {
    tree: Tree,
    ctx: HookContext,
    registry: prometheus::Registry,
    directory: tempfile::TempDir,
}

fn text(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Returns an annotation with half a core and 64 MiB of batch resources for the container `c`.
fn extended() -> String {
    let list = json!({"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"});
    json!({"containers": {"c": {"limits": list, "requests": list}}}).to_string()
}

impl Rig {
    fn new() -> Self {
        Self::on(Node::default())
    }

    fn on(node: Node) -> Self {
        let tree = Tree::hybrid("0-3").unwrap();
        let settings = Settings {
            gates: node.gates(),
            layout: Layout::new(Driver::Cgroupfs, CgroupPath::root()),
            ..Settings::default()
        };
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.record_start("n", 0);
        let root = tree.root().clone();
        Self {
            ctx: HookContext {
                states: Arc::default(),
                rules: Arc::new(Some(Arc::new(node.rules())).into()),
                settings,
                root,
                metrics,
                warnings: Arc::new(Warnings::new("n", Recorder::silent())),
                dry_run: None,
            },
            tree,
            registry,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn config(&self, mode: Mode) -> Config {
        let mut config = Config {
            mode,
            ..Config::default()
        };
        config.nri.socket = self.directory.path().join("nri.sock");
        config.server.socket = self.directory.path().join("koordlet.sock");
        config.server.endpoint = config.server.socket.display().to_string();
        config.server.directory = self.directory.path().join("hookserver.d");
        config
    }

    fn start(&self, config: &Config) -> tokio_util::sync::DropGuard {
        let stop = CancellationToken::new();
        let conflicts = start(config, self.ctx.clone(), stop.clone());
        assert_eq!(conflicts.is_some(), config.mode == Mode::Nri);
        stop.drop_guard()
    }

    /// Redirects the node's events and returns them.
    fn events(&mut self) -> mpsc::UnboundedReceiver<Value> {
        let (sender, events) = mpsc::unbounded_channel();
        let server = tower::service_fn(move |request: http::Request<Body>| {
            let sender = sender.clone();
            async move {
                let body = request.into_body().collect_bytes().await?;
                let _ = sender.send(serde_json::from_slice(&body)?);
                let answer = http::Response::builder().status(201);
                Ok::<_, tower::BoxError>(answer.body(Body::from(body.to_vec()))?)
            }
        });
        let clock = koord_app::Clock::system();
        let stop = CancellationToken::new();
        let recorder = Recorder::start(in_process(server), "koordlet", "n", clock, stop);
        self.ctx.warnings = Arc::new(Warnings::new("n", recorder));
        events
    }

    fn plugin(&self, policy: Policy) -> Plugin {
        let stages = responder::ActiveStages::new(&[], &self.ctx.settings.gates);
        Plugin::new(
            "nri.sock".to_owned(),
            self.directory.path().join("hookserver.d"),
            Arc::new(responder::HookResponder::new(
                policy,
                stages,
                self.ctx.clone(),
            )),
        )
    }

    fn listed(&self, pods: Value) {
        let pods: Vec<_> = serde_json::from_value::<Vec<Value>>(pods).unwrap();
        let pods = pods.into_iter().map(crate::hooks::tests::pod).collect();
        self.ctx.states.pods.store(Some(Arc::new(pods)));
    }
}

/// Returns a batch pod of the runtime, with the cgroup `kubepods/besteffort/podu`.
fn batch_pod() -> PodSandbox {
    PodSandbox {
        id: "sandbox".to_owned(),
        name: "p".to_owned(),
        namespace: "d".to_owned(),
        uid: "u".to_owned(),
        labels: text(&[("koordinator.sh/qosClass", "BE")]),
        annotations: text(&[("node.koordinator.sh/extended-resource-spec", &extended())]),
        linux: Some(LinuxPodSandbox {
            cgroup_parent: "/kubepods/besteffort/podu".to_owned(),
            ..LinuxPodSandbox::default()
        }),
        ..PodSandbox::default()
    }
}

fn nri_resources(shares: u64, quota: i64, memory: i64, cpus: &str) -> LinuxResources {
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value: shares }),
            quota: Some(OptionalInt64 { value: quota }),
            cpus: cpus.to_owned(),
            ..LinuxCpu::default()
        }),
        memory: Some(LinuxMemory {
            limit: Some(OptionalInt64 { value: memory }),
            ..LinuxMemory::default()
        }),
        ..LinuxResources::default()
    }
}

fn container(resources: LinuxResources) -> Container {
    Container {
        id: "c1".to_owned(),
        pod_sandbox_id: "sandbox".to_owned(),
        name: "c".to_owned(),
        state: 3,
        linux: Some(LinuxContainer {
            resources: Some(resources),
            ..LinuxContainer::default()
        }),
        ..Container::default()
    }
}

/// Returns shares, quota, memory limit and CPU list; 0 and empty if unset.
fn resource_values(resources: Option<&LinuxResources>) -> (u64, i64, i64, String) {
    let cpu = resources.and_then(|resources| resources.cpu.clone());
    let cpu = cpu.unwrap_or_default();
    let memory = resources.and_then(|resources| resources.memory);
    (
        cpu.shares.map_or(0, |shares| shares.value),
        cpu.quota.map_or(0, |quota| quota.value),
        memory
            .and_then(|memory| memory.limit)
            .map_or(0, |limit| limit.value),
        cpu.cpus,
    )
}

fn adjusted(reply: &koord_rpc::nri::Reply) -> (u64, i64, i64, String) {
    let linux = reply
        .adjust
        .as_ref()
        .and_then(|adjust| adjust.linux.as_ref());
    resource_values(linux.and_then(|linux| linux.resources.as_ref()))
}

async fn client(config: &Config) -> RuntimeHookServiceClient<tonic::transport::Channel> {
    // It is registered once it listens.
    let file = config.server.directory.join("koordlet.json");
    poll_until(async || file.exists().then_some(())).await;
    RuntimeHookServiceClient::new(grpc::connect(&config.server.socket))
}

fn meta() -> Option<PodSandboxMetadata> {
    Some(PodSandboxMetadata {
        name: "p".to_owned(),
        uid: "u".to_owned(),
        namespace: "d".to_owned(),
        attempt: 0,
    })
}

fn hook_request() -> ContainerResourceHookRequest {
    ContainerResourceHookRequest {
        pod_meta: meta(),
        container_meta: Some(ContainerMetadata {
            name: "c".to_owned(),
            ..ContainerMetadata::default()
        }),
        container_annotations: text(&[("kept", "1")]),
        container_resources: Some(LinuxContainerResources {
            cpu_shares: 2,
            oom_score_adj: 1000,
            ..LinuxContainerResources::default()
        }),
        pod_labels: batch_pod().labels,
        pod_annotations: batch_pod().annotations,
        pod_cgroup_parent: "/kubepods/besteffort/podu".to_owned(),
        container_envs: text(&[("A", "1")]),
        ..ContainerResourceHookRequest::default()
    }
}

#[tokio::test]
async fn the_hook_server_is_registered_and_answers() {
    let rig = Rig::new();
    let mut config = rig.config(Mode::Proxy);
    config.disabled = vec!["PreUpdateContainerResources".to_owned()];
    let _stop = rig.start(&config);
    let mut client = client(&config).await;
    let file = std::fs::read(config.server.directory.join("koordlet.json")).unwrap();
    let registered: HookServer = serde_json::from_slice(&file).unwrap();
    assert_eq!(registered.remote_endpoint, config.server.endpoint);
    assert_eq!(registered.failure_policy, "Ignore");
    assert_eq!(
        registered.runtime_hooks,
        ["PreRunPodSandbox", "PreCreateContainer"]
    );

    let request = hook_request();
    let answer = client.pre_create_container_hook(request.clone()).await;
    let answer = answer.unwrap().into_inner();
    assert_eq!(answer.container_annotations, request.container_annotations);
    assert_eq!(answer.pod_cgroup_parent, request.pod_cgroup_parent);
    assert_eq!(answer.container_envs, request.container_envs);
    let want = LinuxContainerResources {
        cpu_shares: 512,
        cpu_quota: 50_000,
        memory_limit_in_bytes: 64 * MIB,
        oom_score_adj: 1000,
        ..LinuxContainerResources::default()
    };
    assert_eq!(answer.container_resources, Some(want));
    // A disabled stage and stages without hooks return the request unchanged.
    for answer in [
        client
            .pre_update_container_resources_hook(request.clone())
            .await,
        client.pre_start_container_hook(request.clone()).await,
        client.post_start_container_hook(request.clone()).await,
        client.post_stop_container_hook(request.clone()).await,
    ] {
        let answer = answer.unwrap().into_inner();
        assert_eq!(answer.container_resources, request.container_resources);
    }

    let group = rig.tree.group("kubepods/besteffort/podu").unwrap();
    let request = PodSandboxHookRequest {
        pod_meta: meta(),
        labels: batch_pod().labels,
        annotations: batch_pod().annotations,
        cgroup_parent: "/kubepods/besteffort/podu".to_owned(),
        ..PodSandboxHookRequest::default()
    };
    let answer = client.pre_run_pod_sandbox_hook(request.clone()).await;
    let resources = answer.unwrap().into_inner().resources.unwrap();
    assert_eq!((resources.cpu_shares, resources.cpu_quota), (512, 50_000));
    let raw = |file| rig.tree.raw(&group, file).unwrap().trim().to_owned();
    assert_eq!(raw(Resource::CpuShares), "512");
    assert_eq!(raw(Resource::CfsQuota), "50000");
    assert_eq!(raw(Resource::MemoryLimit), (64 * MIB).to_string());
    let answer = client.post_stop_pod_sandbox_hook(request.clone()).await;
    assert_eq!(answer.unwrap().into_inner().labels, request.labels);
}

/// Without the wait a container would stay unadjusted, regardless of the proxy's failure policy.
#[tokio::test]
async fn server_waits_for_first_rules() {
    let rig = Rig::new();
    let rules = rig.ctx.rules.swap(None);
    let config = rig.config(Mode::Proxy);
    let _stop = rig.start(&config);
    // The server's task runs, and again after its pause.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!config.server.socket.exists());
    tokio::time::resume();
    rig.ctx.rules.store(rules);
    let mut client = client(&config).await;
    let answer = client.pre_create_container_hook(hook_request());
    let resources = answer.await.unwrap().into_inner().container_resources;
    assert_eq!(resources.unwrap().cpu_shares, 512);
}

#[tokio::test]
async fn invalid_request_follows_failure_policy() {
    for (policy, fails) in [(Policy::Ignore, false), (Policy::Fail, true)] {
        let rig = Rig::new();
        let mut config = rig.config(Mode::Proxy);
        config.policy = policy;
        let _stop = rig.start(&config);
        let mut client = client(&config).await;
        let mut request = hook_request();
        request.pod_meta = None;
        let answer = client.pre_create_container_hook(request.clone()).await;
        match answer {
            Ok(answer) => {
                assert!(!fails);
                let resources = answer.into_inner().container_resources;
                assert_eq!(resources, request.container_resources);
            }
            Err(status) => {
                assert!(fails);
                assert_eq!(status.message(), "request has no pod");
            }
        }
    }
}

#[tokio::test]
async fn the_other_modes_take_the_registration_back() {
    for mode in [Mode::Nri, Mode::Standalone] {
        let rig = Rig::new();
        let config = rig.config(mode);
        registration::write(&config.server.directory, &HookServer::default()).unwrap();
        let file = config.server.directory.join("koordlet.json");
        assert!(file.exists());
        let _stop = rig.start(&config);
        assert!(!file.exists(), "{mode:?}");
    }
}

#[test]
fn new_container_gets_hook_values() {
    let rig = Rig::new();
    let plugin = rig.plugin(Policy::Ignore);
    let request = container(nri_resources(2, 0, 0, ""));
    let want = (512, 50_000, 64 * MIB, String::new());
    let reply = plugin.create(&batch_pod(), &request).unwrap();
    assert_eq!(adjusted(&reply), want, "from the request");
    // The pod list has more, such as resources that an annotation of an older webhook omits.
    let list = json!({"kubernetes.io/batch-cpu": "1000"});
    rig.listed(json!([{
        "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": "BE"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": list, "limits": list}}]}}]));
    let reply = plugin.create(&batch_pod(), &request).unwrap();
    assert_eq!(adjusted(&reply), (1024, 100_000, -1, String::new()));
    // Hooks change nothing for a plain pod.
    let plain = PodSandbox {
        uid: "v".to_owned(),
        ..PodSandbox::default()
    };
    assert_eq!(plugin.create(&plain, &request).unwrap().adjust, None);
    rig.ctx.rules.store(None);
    assert_eq!(plugin.create(&batch_pod(), &request).unwrap().adjust, None);
}

/// The name is used in paths, such as the directory that HAMi's monitor reads.
#[test]
fn container_name_with_path_is_rejected() {
    let rig = Rig::new();
    let plugin = rig.plugin(Policy::Fail);
    for name in ["", "c/../../../../etc", "/", "c\0"] {
        let request = Container {
            name: name.to_owned(),
            ..container(LinuxResources::default())
        };
        let error = plugin.create(&batch_pod(), &request).unwrap_err();
        let want = format!("koordlet: invalid container name {name:?}");
        assert_eq!(error, want);
    }
    let request = container(LinuxResources::default());
    assert!(plugin.create(&batch_pod(), &request).is_ok());
}

#[test]
fn environment_mounts_and_scores_are_in_the_answer() {
    let node = Node::default();
    let rig = Rig::on(node.open(Gate::GPUEnvInject).open(Gate::OOMScoreAdj));
    let plugin = rig.plugin(Policy::Ignore);
    let gpu = json!({"gpu": [{"minor": 1, "resources": {
        "koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "4Gi",
        "koordinator.sh/gpu-memory-ratio": "50"}}]});
    let pod = PodSandbox {
        uid: "u".to_owned(),
        labels: text(&[("koordinator.sh/gpu-isolation-provider", "HAMi-core")]),
        annotations: text(&[
            (
                "scheduling.koordinator.sh/device-allocated",
                &gpu.to_string(),
            ),
            ("koordinator.sh/oom-score-adj", "-500"),
        ]),
        ..PodSandbox::default()
    };
    let request = container(LinuxResources::default());
    let adjust = plugin.create(&pod, &request).unwrap().adjust.unwrap();
    let env: BTreeMap<_, _> = adjust
        .env
        .into_iter()
        .map(|env| (env.key, env.value))
        .collect();
    assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], "1");
    assert_eq!(env["CUDA_DEVICE_SM_LIMIT"], "50");
    let mounts: Vec<_> = adjust
        .mounts
        .iter()
        .map(|mount| mount.destination.as_str())
        .collect();
    assert_eq!(mounts, ["/usr/local/vgpu/libvgpu.so", "/tmp/vgpulock"]);
    assert!(
        adjust
            .mounts
            .iter()
            .all(|mount| mount.r#type == "bind" && mount.options == ["rbind"])
    );
    let score = adjust.linux.unwrap().oom_score_adj.unwrap();
    assert_eq!(score.value, -500);
}

const ADAPTER: &str = r#"{"rdma":[{"minor":0,"id":"0000:3b:00.0","resources":{"koordinator.sh/rdma":"1"},
    "extension":{"vfs":[{"minor":2,"busID":"0000:3b:00.2"}]}}]}"#;

/// Returns a pod with one RDMA adapter, which it requests, on a machine that has it.
fn rdma(rig: &Rig) -> PodSandbox {
    rig.listed(json!([rdma_object()]));
    unlisted_rdma(rig)
}

/// Returns the pod list's object of the pod of [`rdma`].
fn rdma_object() -> Value {
    let rdma = json!({"koordinator.sh/rdma": "1"});
    json!({
        "metadata": {"uid": "r", "annotations": {
            "scheduling.koordinator.sh/device-allocated": ADAPTER}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": rdma, "limits": rdma}}]}})
}

/// Returns the pod of [`rdma`] before it is listed.
fn unlisted_rdma(rig: &Rig) -> PodSandbox {
    let put = |file: &str, numbers: &str| rig.tree.put(file, numbers).unwrap();
    put("sys/class/misc/rdma_cm/dev", "10:121\n");
    put(
        "sys/bus/pci/devices/0000:3b:00.2/infiniband_verbs/uverbs3/dev",
        "231:195\n",
    );
    PodSandbox {
        uid: "r".to_owned(),
        annotations: text(&[("scheduling.koordinator.sh/device-allocated", ADAPTER)]),
        ..PodSandbox::default()
    }
}

fn devices(reply: &koord_rpc::nri::Reply) -> Vec<&str> {
    let linux = reply
        .adjust
        .as_ref()
        .and_then(|adjust| adjust.linux.as_ref());
    let devices = linux.into_iter().flat_map(|linux| &linux.devices);
    devices.map(|device| device.path.as_str()).collect()
}

/// Any user can write the annotation; only the pod list shows whether the pod requests devices.
#[tokio::test]
async fn pod_gets_devices_only_after_it_is_listed() {
    const FILES: [&str; 2] = ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs3"];
    let rig = Rig::on(Node::default().open(Gate::RDMADeviceInject));
    let pod = PodSandbox {
        labels: batch_pod().labels,
        ..unlisted_rdma(&rig)
    };
    let key = "node.koordinator.sh/extended-resource-spec".to_owned();
    let pod = PodSandbox {
        annotations: pod
            .annotations
            .into_iter()
            .chain([(key, extended())])
            .collect(),
        ..pod
    };
    let request = container(LinuxResources::default());
    rig.listed(json!([]));
    let reply = rig.plugin(Policy::Ignore).create(&pod, &request).unwrap();
    assert_eq!(devices(&reply), Vec::<&str>::new());
    assert_eq!(adjusted(&reply).0, 512, "the rest is in place");
    let error = rig.plugin(Policy::Fail).create(&pod, &request).unwrap_err();
    let want = "koordlet: RDMADeviceInject: the pod is not listed: whether it asks for device files \
                is not known";
    assert_eq!(error, want);

    // It appears in the next list that is requested, as with a kubelet.
    let _ = rig.ctx.states.resync_requested().now_or_never();
    let plugin = rig.plugin(Policy::Fail);
    let (waits, here) = (pod.clone(), request.clone());
    let reply = tokio::task::spawn_blocking(move || plugin.create(&waits, &here));
    rig.ctx.states.resync_requested().await;
    rig.listed(json!([rdma_object()]));
    assert_eq!(devices(&reply.await.unwrap().unwrap()), FILES);

    // The pod is known from a file of the node.
    rig.listed(json!([]));
    let fixed = PodSandbox {
        uid: "0123456789abcdef0123456789abcdef".to_owned(),
        ..pod
    };
    let reply = rig.plugin(Policy::Fail).create(&fixed, &request).unwrap();
    assert_eq!(devices(&reply), FILES);
}

#[test]
fn devices_have_the_machines_numbers_and_come_all_or_not() {
    let rig = Rig::on(Node::default().open(Gate::RDMADeviceInject));
    let pod = rdma(&rig);
    let request = container(LinuxResources::default());
    let adjust = rig
        .plugin(Policy::Fail)
        .create(&pod, &request)
        .unwrap()
        .adjust;
    let devices = adjust.unwrap().linux.unwrap().devices;
    let devices: Vec<_> = devices
        .iter()
        .map(|device| (device.path.as_str(), device.major, device.minor))
        .collect();
    let want = [
        ("/dev/infiniband/rdma_cm", 10, 121),
        ("/dev/infiniband/uverbs3", 231, 195),
    ];
    assert_eq!(devices, want);
    // The function has no driver any more.
    let verbs = "bus/pci/devices/0000:3b:00.2/infiniband_verbs";
    std::fs::remove_dir_all(rig.tree.root().sys(verbs)).unwrap();
    let ignored = rig.plugin(Policy::Ignore).create(&pod, &request).unwrap();
    assert_eq!(ignored.adjust, None);
    let error = rig.plugin(Policy::Fail).create(&pod, &request).unwrap_err();
    assert!(
        error.contains("RDMADeviceInject") && error.contains("0000:3b:00.2"),
        "{error}"
    );
}

#[tokio::test]
async fn files_through_proxy_follow_failure_policy() {
    for (policy, fails) in [(Policy::Ignore, false), (Policy::Fail, true)] {
        let rig = Rig::on(Node::default().open(Gate::RDMADeviceInject));
        let pod = rdma(&rig);
        let mut config = rig.config(Mode::Proxy);
        config.policy = policy;
        let _stop = rig.start(&config);
        let mut client = client(&config).await;
        let request = ContainerResourceHookRequest {
            pod_meta: Some(PodSandboxMetadata {
                uid: pod.uid,
                ..PodSandboxMetadata::default()
            }),
            pod_annotations: pod.annotations,
            ..hook_request()
        };
        let answer = client.pre_create_container_hook(request).await;
        assert_eq!(answer.is_err(), fails);
        if let Err(status) = answer {
            let want = "RDMADeviceInject: device files reach a container with \
                        --runtime-hooks-mode=nri only";
            assert_eq!(status.message(), want);
        }
    }
}

#[test]
fn update_sets_only_requested_values() {
    let rig = Rig::new();
    let plugin = rig.plugin(Policy::Ignore);
    let had = container(nri_resources(512, 70_000, 64 * MIB, ""));
    let updated = |request: &LinuxResources| {
        let updates = plugin.update(&batch_pod(), &had, request).unwrap();
        assert!(updates.iter().all(|update| update.container_id == "c1"));
        let linux = updates.first().and_then(|update| update.linux.as_ref());
        linux.map(|linux| resource_values(linux.resources.as_ref()))
    };
    let all = nri_resources(2, 30_000, 96 * MIB, "");
    assert_eq!(updated(&all), Some((512, 50_000, 64 * MIB, String::new())));
    // A CPU manager's update contains CPUs only; a burst of the quota continues.
    assert_eq!(updated(&nri_resources(0, 0, 0, "0-1")), None);
    let shares = nri_resources(2, 0, 0, "");
    assert_eq!(updated(&shares), Some((512, 0, 0, String::new())));
}

#[test]
fn a_resize_counts_before_the_pods_spec_does() {
    let rig = Rig::on(Node::default().open(Gate::CPUNormalization).ratio("2.0"));
    rig.listed(json!([{
        "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": "LS"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}}]));
    let plugin = rig.plugin(Policy::Ignore);
    let had = container(nri_resources(1024, 50_000, 0, ""));
    let request = nri_resources(2048, 200_000, 0, "");
    let updates = plugin.update(&batch_pod(), &had, &request).unwrap();
    let linux = updates[0].linux.as_ref().unwrap();
    assert_eq!(
        resource_values(linux.resources.as_ref()),
        (0, 100_000, 0, String::new())
    );
}

#[test]
fn synchronize_sets_only_missing_values() {
    let rig = Rig::new();
    let plugin = rig.plugin(Policy::Ignore);
    let synchronized = |record: LinuxResources, state: i32| {
        let container = Container {
            state,
            ..container(record)
        };
        let updates = plugin.synchronize(&[batch_pod()], &[container]);
        let linux = updates.first().and_then(|update| update.linux.as_ref());
        linux.map(|linux| resource_values(linux.resources.as_ref()))
    };
    let all = Some((512, 50_000, 64 * MIB, String::new()));
    assert_eq!(synchronized(nri_resources(2, 0, 0, ""), 3), all);
    assert_eq!(
        synchronized(nri_resources(2, 0, 0, ""), 4),
        None,
        "it has stopped"
    );
    assert_eq!(
        synchronized(nri_resources(512, 50_000, 64 * MIB, ""), 3),
        None
    );
    let memory = Some((0, 0, 64 * MIB, String::new()));
    assert_eq!(synchronized(nri_resources(512, 50_000, 0, ""), 3), memory);
    let nobodys = Container {
        pod_sandbox_id: "gone".to_owned(),
        ..container(LinuxResources::default())
    };
    assert_eq!(plugin.synchronize(&[batch_pod()], &[nobodys]), []);
    // The request for a new pod list is pending now, because some pods may have ended.
    let resync = || rig.ctx.states.resync_requested().now_or_never();
    assert_eq!((resync(), resync()), (Some(()), None));
}

#[test]
fn groups_as_runtimes_name_them() {
    use koord_api::qos::KubeQos::{BestEffort, Burstable, Guaranteed};
    let cgroupfs = Layout::new(Driver::Cgroupfs, CgroupPath::root());
    let systemd = Layout::new(Driver::Systemd, CgroupPath::root());
    for (layout, parent, group, class) in [
        (
            &cgroupfs,
            "/kubepods/besteffort/podu",
            "kubepods/besteffort/podu",
            BestEffort,
        ),
        (&cgroupfs, "/kubepods/podu", "kubepods/podu", Guaranteed),
        (
            &systemd,
            "kubepods-burstable-podu.slice",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu.slice",
            Burstable,
        ),
        (
            &systemd,
            "/kubepods.slice/kubepods-podu.slice",
            "kubepods.slice/kubepods-podu.slice",
            Guaranteed,
        ),
        (
            &cgroupfs,
            "kubepods-besteffort-podu.slice",
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu.slice",
            BestEffort,
        ),
    ] {
        let (path, found) = request::pod_cgroup(parent, layout).unwrap();
        assert_eq!((path.as_str(), found), (group, class), "{parent}");
    }
    for nonsense in ["", "/", "../x"] {
        assert!(
            request::pod_cgroup(nonsense, &cgroupfs).is_none(),
            "{nonsense}"
        );
    }
    let path = "kubepods-burstable-podu.slice:cri-containerd:abc";
    let group = request::container_cgroup(path, &systemd).unwrap();
    assert!(
        group
            .as_str()
            .ends_with("-podu.slice/cri-containerd-abc.scope")
    );
}
