//! A node whose proxy, agent and container runtime are killed at random while calls are made.

use crate::agent::cluster;
use crate::containerd::{ContainerdFixture, Pod};
use koord_api::hookserver::{KOORDLET, Policy};
use koord_app::{Clock, Context};
use koord_host::testing::IMAGE;
use koord_rpc::cri;
use koord_rpc::cri::runtime_service_client::RuntimeServiceClient;
use koord_rpc::grpc;
use koordlet::Thread;
use koordlet::runtime::Mode;
use serde_json::json;
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

/// Number of calls that change something.
const CALLS: usize = 500;

/// Shares that hooks give each container: half a core.
const SHARES: i64 = 512;

/// A process of the node, as a thread with its own runtime. Dropping it ends all its work at once.
struct Process {
    killed: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Process {
    /// Starts the process, and returns when it listens at `socket`.
    fn start(socket: &Path, run: impl Future<Output = ()> + Send + 'static) -> Self {
        let _ = std::fs::remove_file(socket);
        let killed = CancellationToken::new();
        let until = killed.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = until.cancelled() => {}
                    () = run => {}
                }
            });
        });
        let process = Self {
            killed,
            thread: Some(thread),
        };
        while UnixStream::connect(socket).is_err() {
            let thread = process.thread.as_ref().unwrap();
            assert!(!thread.is_finished(), "{} never served", socket.display());
            std::thread::yield_now();
        }
        process
    }
}

impl Process {
    fn kill(&mut self) {
        self.killed.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Calls of a kubelet to the proxy.
#[derive(Clone)]
enum Call {
    Create(Box<cri::CreateContainerRequest>),
    Update(String),
    Remove(String),
}

impl Call {
    /// Sends the call. Returns the id of the container that it created.
    async fn on(&self, client: &mut RuntimeServiceClient<Channel>) -> Result<String, Status> {
        match self.clone() {
            Self::Create(request) => {
                let answer = client.create_container(*request).await?;
                Ok(answer.into_inner().container_id)
            }
            Self::Update(container_id) => {
                let request = cri::UpdateContainerResourcesRequest {
                    container_id,
                    linux: Some(cri::LinuxContainerResources {
                        cpu_shares: 2,
                        cpu_period: 100_000,
                        ..cri::LinuxContainerResources::default()
                    }),
                    ..cri::UpdateContainerResourcesRequest::default()
                };
                client.update_container_resources(request).await?;
                Ok(String::new())
            }
            Self::Remove(container_id) => {
                let request = cri::RemoveContainerRequest { container_id };
                client.remove_container(request).await?;
                Ok(String::new())
            }
        }
    }
}

fn create(pod: &Pod, name: &str) -> Call {
    let config = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(cri::ImageSpec {
            image: IMAGE.to_owned(),
            ..cri::ImageSpec::default()
        }),
        command: vec!["true".to_owned()],
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources {
                cpu_shares: 2,
                ..cri::LinuxContainerResources::default()
            }),
            ..cri::LinuxContainerConfig::default()
        }),
        ..cri::ContainerConfig::default()
    };
    Call::Create(Box::new(cri::CreateContainerRequest {
        pod_sandbox_id: pod.id.clone(),
        config: Some(config),
        sandbox_config: Some(pod.config.clone()),
    }))
}

/// Returns the shares that the runtime has recorded for a container.
async fn shares(client: &mut RuntimeServiceClient<Channel>, id: &str) -> i64 {
    let request = cri::ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose: false,
    };
    let answer = client.container_status(request).await.unwrap().into_inner();
    let resources = answer.status.unwrap().resources.unwrap();
    resources.linux.unwrap().cpu_shares
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_lost_or_unadjusted_when_processes_are_killed() {
    let Some(mut machine) = ContainerdFixture::start() else {
        return;
    };
    let clock = Clock::system();
    let (_server, api) = cluster(&clock).await;
    let list = json!({"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"});
    let resources = json!({"limits": list, "requests": list});
    let names = (0..CALLS).map(|index| (format!("c{index}"), resources.clone()));
    let extended = json!({"containers": names.collect::<serde_json::Map<_, _>>()}).to_string();
    let notes = [(
        "node.koordinator.sh/extended-resource-spec",
        extended.as_str(),
    )];
    let labels = [("koordinator.sh/qosClass", "BE")];
    let pod = machine.pod("many", "besteffort", &notes, &labels).await;

    let options = || {
        let library = machine.containerd.path("libvgpu.so");
        let mut options = machine.options(&library, Mode::Proxy);
        // Killed with everything else.
        options.thread = Thread::Shared;
        options.runtime.server.policy = Policy::Fail;
        options
    };
    let server = options().runtime.server;
    let start_agent = || {
        let run = koordlet::run(options(), api.clone(), Context::with_clock(clock.clone()));
        Process::start(&server.socket, async move { run.await.unwrap() })
    };
    let behind = machine.proxy_options("proxy.sock", &server.directory, Duration::from_secs(60));
    let start_proxy = || {
        let context = Context::with_clock(clock.clone());
        let run = koord_runtime_proxy::run(behind.clone(), context, || {});
        Process::start(&behind.listen, async move { run.await.unwrap() })
    };
    let mut agent = tokio::task::block_in_place(start_agent);
    // No hook server is called before.
    while !server.directory.join(KOORDLET).exists() {
        tokio::task::yield_now().await;
    }
    let mut proxy = tokio::task::block_in_place(start_proxy);

    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = RuntimeServiceClient::new(grpc::connect(&behind.listen));
    let (mut live, mut kills) = (Vec::<String>::new(), [0; 3]);
    for index in 0..CALLS {
        let call = match random.usize(..10) {
            0..6 if live.len() < 20 => create(&pod, &format!("c{index}")),
            6..8 if live.len() > 5 => Call::Remove(live.swap_remove(random.usize(..live.len()))),
            _ if live.is_empty() => create(&pod, &format!("c{index}")),
            _ => Call::Update(live[random.usize(..live.len())].clone()),
        };
        // A process is killed during this call and restarted. containerd takes the longest.
        let victim = [0, 0, 1, 1, 2][random.usize(..5)];
        let victim = (random.usize(..20) == 0).then_some(victim);
        // Before the first hook call as often as later.
        let delay = [0, random.usize(..3000)][random.usize(..2)];
        let killer = async {
            let Some(victim) = victim else { return };
            for _ in 0..delay {
                tokio::task::yield_now().await;
            }
            kills[victim] += 1;
            tokio::task::block_in_place(|| match victim {
                0 => {
                    proxy.kill();
                    proxy = start_proxy();
                }
                1 => {
                    agent.kill();
                    agent = start_agent();
                }
                _ => {
                    machine.containerd.kill();
                    machine.containerd.start_again();
                }
            });
        };
        let (mut answer, ()) = tokio::join!(call.on(&mut client), killer);
        // Retries as a kubelet does, until the call is confirmed.
        let mut tries = 0;
        let created = loop {
            match answer {
                Ok(id) => break id,
                // The call was accepted, but its response was lost: the container exists.
                Err(status) if status.message().contains("reserved for") => {
                    let id = status.message().rsplit("reserved for ").next();
                    let id = id.unwrap_or_default();
                    break id.trim_matches(|c: char| !c.is_ascii_hexdigit()).to_owned();
                }
                Err(status) => {
                    tries += 1;
                    assert!(tries < 1000, "{status}");
                }
            }
            answer = call.on(&mut client).await;
        };
        match call {
            Call::Create(_) => {
                assert_eq!(shares(&mut client, &created).await, SHARES, "{created}");
                live.push(created);
            }
            Call::Update(id) => assert_eq!(shares(&mut client, &id).await, SHARES, "{id}"),
            Call::Remove(_) => {}
        }
    }
    println!("killed proxy, agent, containerd: {kills:?}");
    let listed = client.list_containers(cri::ListContainersRequest::default());
    let listed = listed.await.unwrap().into_inner().containers;
    let listed: BTreeSet<String> = listed.into_iter().map(|container| container.id).collect();
    assert_eq!(
        listed,
        live.iter().cloned().collect(),
        "every call that was accepted, and no other"
    );
    for id in live {
        assert_eq!(shares(&mut client, &id).await, SHARES, "{id}");
    }
}
