//! The agent as a plugin of a real containerd: the values in place when a process starts.

use crate::agent::{NODE, cluster, typed};
use koord_api::hookserver::{FAIL, HookServer, IGNORE, KOORDLET};
use koord_app::{Clock, Context};
use koord_host::root::Controller;
use koord_host::testing::{Containerd, Groups, IMAGE, eventually};
use koord_host::{Cgroup, Dirs, Root};
use koord_kube::api::PostParams;
use koord_kube::{Api, Client};
use koord_rpc::cri;
use koord_rpc::cri::runtime_service_client::RuntimeServiceClient;
use koord_rpc::grpc;
use koordlet::gates::Gate;
use koordlet::runtime::{self, Mode};
use koordlet::states::{Driver, Layout};
use koordlet::{Options, Settings};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

const MIB: i64 = 1 << 20;

/// A containerd of the test, and groups for its pods.
pub(crate) struct ContainerdFixture {
    pub(crate) containerd: Containerd,
    pub(crate) groups: Groups,
    pub(crate) cri: RuntimeServiceClient<Channel>,
}

impl ContainerdFixture {
    /// Starts containerd. Returns `None` and prints a message if it is not installed.
    #[track_caller]
    pub(crate) fn start() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let containerd = Containerd::for_test()?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let top = format!("koord-test-runtime-{}-{count}", std::process::id());
        let cri = RuntimeServiceClient::new(grpc::connect(containerd.socket()));
        Some(Self {
            containerd,
            groups: Groups::new(&top).unwrap(),
            cri,
        })
    }

    /// Starts another containerd at the same place; running containers continue.
    pub(crate) fn restart(&self) {
        self.containerd.kill();
        self.containerd.start_again();
    }

    pub(crate) fn options(&self, library: &Path, mode: Mode) -> Options {
        let mut settings = Settings {
            layout: Layout::new(Driver::Cgroupfs, self.groups.path().clone()),
            hami_library: library.display().to_string(),
            ..Settings::default()
        };
        settings.gates.set(Gate::GPUEnvInject, true);
        settings.gates.set(Gate::OOMScoreAdj, true);
        settings.gates.set(Gate::RDMADeviceInject, true);
        let mut runtime = runtime::Config {
            mode,
            ..runtime::Config::default()
        };
        runtime.nri.socket = self.containerd.path("nri.sock");
        runtime.nri.backoff = Duration::from_millis(50);
        runtime.server.directory = self.containerd.path("hookserver.d");
        runtime.server.socket = self.containerd.path("koordlet.sock");
        runtime.server.endpoint = runtime.server.socket.display().to_string();
        Options {
            node_name: NODE.to_owned(),
            detect_layout: None,
            settings,
            root: Some(self.with_adapter()),
            report: false,
            runtime,
            ..Options::default()
        }
    }

    /// Returns the root of this machine with an RDMA adapter at 0000:3b:00.0 whose device files are those of
    /// `/dev/zero` and `/dev/full`.
    fn with_adapter(&self) -> Root {
        let sys = self.containerd.path("sys");
        for (file, numbers) in [
            ("class/misc/rdma_cm/dev", "1:5"),
            (
                "bus/pci/devices/0000:3b:00.0/infiniband_verbs/uverbs0/dev",
                "1:7",
            ),
        ] {
            let file = sys.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, numbers).unwrap();
        }
        for other in ["devices", "module", "kernel", "block"] {
            let link = sys.join(other);
            if !link.exists() {
                std::os::unix::fs::symlink(Path::new("/sys").join(other), link).unwrap();
            }
        }
        let mut dirs = Dirs::below(Path::new("/"));
        dirs.sys = sys;
        Root::with_dirs(dirs).unwrap()
    }

    /// Returns a pod's sandbox and creates its group as the kubelet would.
    pub(crate) async fn pod(
        &mut self,
        uid: &str,
        class: &str,
        notes: &[(&str, &str)],
        labels: &[(&str, &str)],
    ) -> Pod {
        let group = self
            .groups
            .path()
            .join(&format!("kubepods/{class}/pod{uid}"))
            .unwrap();
        let group = self.groups.root().cgroup(&group);
        group.create(&Controller::ALL).unwrap();
        let texts = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let host = cri::NamespaceOption {
            network: cri::NamespaceMode::Node as i32,
            ..cri::NamespaceOption::default()
        };
        let config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: uid.to_owned(),
                uid: uid.to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: self.containerd.path("logs").join(uid).display().to_string(),
            labels: texts(labels),
            annotations: texts(notes),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}", group.path().as_str()),
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    namespace_options: Some(host),
                    ..cri::LinuxSandboxSecurityContext::default()
                }),
                ..cri::LinuxPodSandboxConfig::default()
            }),
            ..cri::PodSandboxConfig::default()
        };
        let request = cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: String::new(),
        };
        let answer = self.cri.run_pod_sandbox(request).await.unwrap();
        Pod {
            id: answer.into_inner().pod_sandbox_id,
            config,
            group,
        }
    }

    /// Returns the options of a proxy in front of this containerd, at the socket `name`.
    pub(crate) fn proxy_options(
        &self,
        name: &str,
        directory: &Path,
        within: Duration,
    ) -> koord_runtime_proxy::Options {
        koord_runtime_proxy::Options {
            listen: self.containerd.path(name),
            runtime: self.containerd.socket(),
            mode: koord_runtime_proxy::Mode::Containerd,
            hooks: directory.to_owned(),
            hook_timeout: within,
            drain_timeout: Duration::from_secs(30),
            skip: koord_runtime_proxy::SkipLabel {
                key: "skip".to_owned(),
                value: "true".to_owned(),
            },
            metrics_address: None,
        }
    }

    /// Starts a proxy in front of this containerd, which calls the hook servers registered in `directory`.
    async fn proxy(&self, name: &str, directory: &Path, within: Duration) -> Proxy {
        let options = self.proxy_options(name, directory, within);
        let listen = options.listen.clone();
        let ctx = Context::with_clock(Clock::system());
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let run = koord_runtime_proxy::run(options, ctx.clone(), move || ready.send(()).unwrap());
        let task = tokio::spawn(async move { run.await.unwrap() });
        is_ready.await.unwrap();
        Proxy { listen, ctx, task }
    }

    /// Returns a started container with the first output of its process: its limits, environment and mounts.
    pub(crate) async fn container(&mut self, pod: &Pod, name: &str) -> StartedContainer {
        self.try_container(pod, name).await.unwrap()
    }

    /// Starts a container like [`Self::container`], or returns the creation error.
    pub(crate) async fn try_container(
        &mut self,
        pod: &Pod,
        name: &str,
    ) -> Result<StartedContainer, tonic::Status> {
        let print_file = |file: &str| format!("echo {file}=$(cat /sys/fs/cgroup/{file}); ");
        let files = [
            "cpu/cpu.shares",
            "cpu/cpu.cfs_quota_us",
            "cpuset/cpuset.cpus",
            "memory/memory.limit_in_bytes",
        ];
        let text: String = files.into_iter().map(print_file).collect();
        let text = format!(
            "{text} echo score=$(cat /proc/self/oom_score_adj); env; cat /proc/mounts; \
             for file in /dev/infiniband/*; do echo $file=$(stat -c '%t:%T %a' $file); done; \
             echo zeros=$(head -c 3 /dev/infiniband/rdma_cm | wc -c); \
             echo full=$(echo 2>&1 > /dev/infiniband/uverbs0); echo said; sleep 1000000"
        );
        let config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(cri::ImageSpec {
                image: IMAGE.to_owned(),
                ..cri::ImageSpec::default()
            }),
            command: ["sh", "-c", &text].map(str::to_owned).to_vec(),
            log_path: format!("{name}.log"),
            linux: Some(cri::LinuxContainerConfig {
                resources: Some(cri::LinuxContainerResources {
                    cpu_shares: 2,
                    ..cri::LinuxContainerResources::default()
                }),
                ..cri::LinuxContainerConfig::default()
            }),
            ..cri::ContainerConfig::default()
        };
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let id = self.cri.create_container(request).await?;
        let id = id.into_inner().container_id;
        let request = cri::StartContainerRequest {
            container_id: id.clone(),
        };
        self.cri.start_container(request).await?;
        let log = Path::new(&pod.config.log_directory).join(format!("{name}.log"));
        let output = eventually("log of the container", async || {
            let output = std::fs::read_to_string(&log).ok()?;
            let is_whole = output.lines().any(|line| line.ends_with(" said"));
            is_whole.then_some(output)
        })
        .await;
        let group = pod.group.path().join(&id).unwrap();
        Ok(StartedContainer {
            group: pod.group.root().cgroup(&group),
            id,
            output,
        })
    }
}

/// A running proxy.
struct Proxy {
    listen: PathBuf,
    ctx: Context,
    task: JoinHandle<()>,
}

impl Proxy {
    fn client(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(grpc::connect(&self.listen))
    }

    async fn stop(self) {
        self.ctx.shutdown.cancel();
        self.task.await.unwrap();
    }
}

pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) config: cri::PodSandboxConfig,
    pub(crate) group: Cgroup,
}

pub(crate) struct StartedContainer {
    pub(crate) id: String,
    pub(crate) group: Cgroup,
    output: String,
}

impl StartedContainer {
    pub(crate) fn output_value(&self, key: &str) -> &str {
        let begin = format!(" {key}=");
        let mut values = self
            .output
            .lines()
            .filter_map(|line| line.split_once(&begin));
        values.next().map_or("", |(_, value)| value)
    }

    /// Returns the current shares, quota and memory limit.
    pub(crate) fn now(&self) -> (Option<i64>, Option<i64>, Option<i64>) {
        let group = &self.group;
        let number = |value: koord_host::Result<Option<i64>>| value.unwrap();
        (
            number(group.cpu_shares()),
            number(group.cfs_quota()),
            number(group.memory_limit()),
        )
    }
}

/// A running agent.
pub(crate) struct TestAgent {
    pub(crate) ctx: Context,
    task: JoinHandle<()>,
}

impl TestAgent {
    pub(crate) fn start(options: Options, client: &Client, clock: &Clock) -> Self {
        let ctx = Context::with_clock(clock.clone());
        let run = koordlet::run(options, client.clone(), ctx.clone());
        let task = tokio::spawn(async move { run.await.unwrap() });
        Self { ctx, task }
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let families = self.ctx.metrics.gather();
        let family_row = families.iter().find(|family| family.name() == name);
        let metric = family_row.and_then(|family| family.get_metric().first());
        metric.map_or(0.0, |metric| {
            metric.get_gauge().get_value() + metric.get_counter().get_value()
        })
    }

    pub(crate) async fn connected(&self, lost: f64) {
        eventually("connection", async || {
            let reconnected = self.metric("koordlet_nri_connections_lost_total") >= lost;
            (reconnected && self.metric("koordlet_nri_connected") > 0.0).then_some(())
        })
        .await;
    }

    pub(crate) async fn stop(self) {
        self.ctx.shutdown.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_in_place_when_processes_begin() {
    let Some(mut machine) = ContainerdFixture::start() else {
        return;
    };
    let clock = Clock::system();
    let (_server, client) = cluster(&clock).await;
    let library = machine.containerd.path("libvgpu.so");
    std::fs::write(&library, "").unwrap();
    std::fs::create_dir_all("/tmp/vgpulock").unwrap();
    let agent = TestAgent::start(machine.options(&library, Mode::Nri), &client, &clock);
    agent.connected(0.0).await;

    let list = json!({"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"});
    let resources = json!({"limits": list, "requests": list});
    let extended =
        json!({"containers": {"a": resources, "b": resources, "c": resources, "d": resources}})
            .to_string();
    let notes = [
        (
            "node.koordinator.sh/extended-resource-spec",
            extended.as_str(),
        ),
        ("koordinator.sh/oom-score-adj", "777"),
    ];
    let batch = machine
        .pod(
            "be",
            "besteffort",
            &notes,
            &[("koordinator.sh/qosClass", "BE")],
        )
        .await;
    assert_eq!(
        batch.group.cpu_shares().unwrap(),
        Some(2048),
        "the pod's own group"
    );
    let want = (Some(512), Some(50_000), Some(64 * MIB));
    let first = machine.container(&batch, "a").await;
    assert_eq!(
        first.output_value("cpu/cpu.shares"),
        "512",
        "{}",
        first.output
    );
    assert_eq!(first.output_value("cpu/cpu.cfs_quota_us"), "50000");
    assert_eq!(
        first.output_value("memory/memory.limit_in_bytes"),
        (64 * MIB).to_string()
    );
    assert_eq!(first.output_value("score"), "777");

    // The kubelet resizes it.
    let request = cri::UpdateContainerResourcesRequest {
        container_id: first.id.clone(),
        linux: Some(cri::LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: 30_000,
            cpu_shares: 100,
            memory_limit_in_bytes: 96 * MIB,
            ..cri::LinuxContainerResources::default()
        }),
        ..cri::UpdateContainerResourcesRequest::default()
    };
    machine
        .cri
        .update_container_resources(request)
        .await
        .unwrap();
    assert_eq!(first.now(), want);

    let status = json!({"cpuset": "0"}).to_string();
    let gpu = json!({"gpu": [{"minor": 1, "resources": {"koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory": "4Gi", "koordinator.sh/gpu-memory-ratio": "50"}}],
        "rdma": [{"minor": 0, "id": "0000:3b:00.0", "resources": {"koordinator.sh/rdma": "1"}}]});
    let gpu = gpu.to_string();
    let notes = [
        ("scheduling.koordinator.sh/resource-status", status.as_str()),
        ("scheduling.koordinator.sh/device-allocated", gpu.as_str()),
    ];
    let labels = [
        ("koordinator.sh/qosClass", "LSR"),
        ("koordinator.sh/gpu-isolation-provider", "HAMi-core"),
    ];
    // Only pods that are known to request devices get them.
    let resources = json!({"cpu": "1", "koordinator.sh/rdma": "1"});
    let limit = json!({"koordinator.sh/rdma": "1"});
    let object = json!({
        "metadata": {"name": "lsr", "labels": BTreeMap::from(labels),
            "annotations": BTreeMap::from(notes)},
        "spec": {"nodeName": NODE, "containers": [{"name": "s", "image": "x",
            "resources": {"requests": resources, "limits": limit}}]}});
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), "default");
    let created = pods.create(&PostParams::default(), &typed(object)).await;
    let uid = created.unwrap().metadata.uid.unwrap();
    let pinned = machine.pod(&uid, "burstable", &notes, &labels).await;
    let service = machine.container(&pinned, "s").await;
    assert_eq!(service.output_value("cpuset/cpuset.cpus"), "0");
    assert_eq!(service.output_value("cpu/cpu.cfs_quota_us"), "-1");
    assert_eq!(service.output_value("NVIDIA_VISIBLE_DEVICES"), "1");
    assert_eq!(service.output_value("CUDA_DEVICE_SM_LIMIT"), "50");
    for mounted in [library.to_str().unwrap(), "/tmp/vgpulock"] {
        assert!(
            service.output.contains(&format!(" {mounted} ")),
            "{mounted}: {}",
            service.output
        );
    }

    // Device files are there, and the group lets the container's processes use them.
    assert_eq!(service.output_value("/dev/infiniband/rdma_cm"), "1:5 666");
    assert_eq!(service.output_value("/dev/infiniband/uverbs0"), "1:7 666");
    assert_eq!(service.output_value("zeros"), "3");
    assert!(service.output_value("full").contains("No space left"));

    // Without an agent, containers get their requested values; later those of the hooks.
    agent.stop().await;
    let missed = machine.container(&batch, "b").await;
    assert_eq!(missed.output_value("cpu/cpu.shares"), "2");
    let agent = TestAgent::start(machine.options(&library, Mode::Nri), &client, &clock);
    agent.connected(0.0).await;
    eventually("values of a container that was missed", async || {
        (missed.now() == want).then_some(())
    })
    .await;
    let next = machine.container(&batch, "c").await;
    assert_eq!(next.output_value("cpu/cpu.shares"), "512");

    machine.restart();
    agent.connected(1.0).await;
    let last = machine.container(&batch, "d").await;
    assert_eq!(last.output_value("cpu/cpu.shares"), "512");
    assert_eq!(
        last.output_value("memory/memory.limit_in_bytes"),
        (64 * MIB).to_string()
    );
    assert_eq!(first.now(), want, "what was there");
    agent.stop().await;
}

/// Writes a registration with koordlet's name into its own directory.
fn registered(directory: &Path, endpoint: &Path, policy: &str) {
    std::fs::create_dir_all(directory).unwrap();
    let server = HookServer {
        remote_endpoint: endpoint.display().to_string(),
        failure_policy: policy.to_owned(),
        runtime_hooks: vec!["PreCreateContainer".to_owned()],
    };
    std::fs::write(directory.join(KOORDLET), server.to_json().unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_sets_values_and_applies_policies_without_the_agent() {
    let Some(mut machine) = ContainerdFixture::start() else {
        return;
    };
    let clock = Clock::system();
    let (_server, client) = cluster(&clock).await;
    let library = machine.containerd.path("libvgpu.so");
    let options = machine.options(&library, Mode::Proxy);
    let directory = options.runtime.server.directory.clone();
    let socket = options.runtime.server.socket.clone();
    let agent = TestAgent::start(options, &client, &clock);
    let registration = directory.join(KOORDLET);
    eventually("registration", async || registration.exists().then_some(())).await;
    let long = Duration::from_secs(60);
    let proxy = machine.proxy("proxy.sock", &directory, long).await;
    machine.cri = proxy.client();

    let list = json!({"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"});
    let resources = json!({"limits": list, "requests": list});
    let extended = json!({"containers": {"a": resources, "c": resources, "gone": resources, "hangs": resources}});
    let extended = extended.to_string();
    let gpu = json!({"gpu": [{"minor": 1}]}).to_string();
    let notes = [
        (
            "node.koordinator.sh/extended-resource-spec",
            extended.as_str(),
        ),
        ("koordinator.sh/oom-score-adj", "777"),
        ("scheduling.koordinator.sh/device-allocated", gpu.as_str()),
    ];
    let labels = [("koordinator.sh/qosClass", "BE")];
    let batch = machine.pod("be", "besteffort", &notes, &labels).await;
    assert_eq!(
        batch.group.cpu_shares().unwrap(),
        Some(2048),
        "the pod's own group"
    );
    let first = machine.container(&batch, "a").await;
    assert_eq!(
        first.output_value("cpu/cpu.shares"),
        "512",
        "{}",
        first.output
    );
    assert_eq!(first.output_value("cpu/cpu.cfs_quota_us"), "50000");
    assert_eq!(
        first.output_value("memory/memory.limit_in_bytes"),
        (64 * MIB).to_string()
    );
    assert_eq!(first.output_value("score"), "777");
    assert_eq!(first.output_value("NVIDIA_VISIBLE_DEVICES"), "1");

    agent.stop().await;
    proxy.stop().await;
    eventually("end of the hook server", async || {
        std::os::unix::net::UnixStream::connect(&socket).err()
    })
    .await;

    // No server listens, or one accepts and never responds.
    let hangs = machine.containerd.path("hangs.sock");
    let _hangs = std::os::unix::net::UnixListener::bind(&hangs).unwrap();
    let short = Duration::from_secs(1);
    for (name, endpoint, within) in [("gone", &socket, long), ("hangs", &hangs, short)] {
        let directory = machine.containerd.path(name);
        registered(&directory, endpoint, FAIL);
        let proxy = machine
            .proxy(&format!("{name}-fail.sock"), &directory, within)
            .await;
        machine.cri = proxy.client();
        let refused = machine.try_container(&batch, "c").await;
        assert!(refused.is_err(), "{name}");
        proxy.stop().await;
        registered(&directory, endpoint, IGNORE);
        let proxy = machine
            .proxy(&format!("{name}-ignore.sock"), &directory, within)
            .await;
        machine.cri = proxy.client();
        let created = machine.container(&batch, name).await;
        assert_eq!(created.output_value("cpu/cpu.shares"), "2", "{name}");
        proxy.stop().await;
    }
}
