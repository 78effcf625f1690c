//! A real containerd behind the proxy.

use crate::asking::Hooks;
use crate::passing::methods;
use crate::world::{Client, Got, World, frame};
use koord_app::Context;
use koord_host::testing::{Containerd, Groups, IMAGE};
use koord_rpc::cri;
use prost::Message;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Runtime;

/// A containerd of this test's own, and the group of its pods.
struct Machine {
    containerd: Containerd,
    groups: Groups,
}

impl Machine {
    /// `None`, and said so, where there is none.
    #[track_caller]
    fn start() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let containerd = Containerd::for_test()?;
        // Of each its own, since tests run at once.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let group = format!("koord-proxy-{}-{count}", std::process::id());
        Some(Self {
            containerd,
            groups: Groups::new(&group).unwrap(),
        })
    }

    fn parent(&self) -> String {
        format!("/{}", self.groups.path().as_str())
    }

    fn sandbox(&self, name: &str) -> cri::PodSandboxConfig {
        let host = cri::NamespaceOption {
            network: cri::NamespaceMode::Node as i32,
            ..Default::default()
        };
        cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: self.parent(),
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    namespace_options: Some(host),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn create(&self, pod: &str, id: &str, name: &str) -> cri::CreateContainerRequest {
        cri::CreateContainerRequest {
            pod_sandbox_id: id.to_owned(),
            config: Some(cri::ContainerConfig {
                metadata: Some(cri::ContainerMetadata {
                    name: name.to_owned(),
                    attempt: 0,
                }),
                image: Some(cri::ImageSpec {
                    image: IMAGE.to_owned(),
                    ..Default::default()
                }),
                command: vec!["sleep".to_owned(), "1000".to_owned()],
                linux: Some(cri::LinuxContainerConfig {
                    resources: Some(cri::LinuxContainerResources {
                        cpu_shares: 2,
                        cpu_period: 100_000,
                        cpu_quota: 20_000,
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            sandbox_config: Some(self.sandbox(pod)),
        }
    }
}

fn id<M: Message + Default>(got: &Got, of: impl Fn(M) -> String) -> String {
    assert_eq!(got.status().0, "0", "{got:?}");
    of(M::decode(got.body.slice(5..)).unwrap())
}

async fn shares(client: &Client, id: &str) -> i64 {
    let request = cri::ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose: false,
    };
    let got = client.cri("ContainerStatus", &request).await;
    assert_eq!(got.status().0, "0", "{got:?}");
    let answer = cri::ContainerStatusResponse::decode(got.body.slice(5..)).unwrap();
    let resources = answer.status.unwrap().resources.unwrap();
    resources.linux.unwrap().cpu_shares
}

/// The file of the kernel, below whichever mount has it.
fn kernel(parent: &str, id: &str) -> Option<String> {
    let below = format!("{parent}/{id}");
    let v1 = format!("/sys/fs/cgroup/cpu{below}/cpu.shares");
    let v2 = format!("/sys/fs/cgroup{below}/cpu.weight");
    let read = |path| std::fs::read_to_string(path).ok();
    read(v1)
        .or_else(|| read(v2))
        .map(|text| text.trim().to_owned())
}

#[tokio::test]
async fn every_method_answers_as_containerd_itself() {
    let Some(machine) = Machine::start() else {
        return;
    };
    let mut world = World::new();
    world.options.runtime = machine.containerd.socket();
    let _proxy = world.proxy().await;
    let direct = Client::connect(&world.options.runtime).await;
    let through = Client::connect(&world.options.listen).await;
    let mut paths = methods();
    paths.push("/runtime.v1.RuntimeService/FromTheFuture".to_owned());
    paths.push("/containerd.services.version.v1.Version/Version".to_owned());
    for path in &paths {
        // Streams never end, stats and disks are never twice the same.
        if ["GetContainerEvents", "ImageFsInfo", "Stats", "Metrics"]
            .iter()
            .any(|part| path.contains(part))
        {
            continue;
        }
        for message in [&b""[..], b"\x0a\x04none", b"\x0a\x7f"] {
            let wanted = direct.call(path, frame(message)).await;
            let got = through.call(path, frame(message)).await;
            assert_eq!(got, wanted, "{path} {message:?}");
        }
    }
}

#[tokio::test]
async fn what_crictl_does() {
    let Some(machine) = Machine::start() else {
        return;
    };
    let mut world = World::new();
    world.options.runtime = machine.containerd.socket();
    let hooks = Hooks::default();
    let socket = world.path("koordlet.sock");
    let _hooks = hooks.serve(&socket);
    world.register("koordlet.json", &socket, "Fail", &crate::asking::ALL);
    let _proxy = world.proxy().await;
    let client = Client::connect(&world.options.listen).await;

    let run = cri::RunPodSandboxRequest {
        config: Some(machine.sandbox("one")),
        runtime_handler: String::new(),
    };
    let pod = client.cri("RunPodSandbox", &run).await;
    let pod = id(&pod, |answer: cri::RunPodSandboxResponse| {
        answer.pod_sandbox_id
    });
    let mut create = machine.create("one", &pod, "main");
    let container = client.cri("CreateContainer", &create).await;
    let container = id(&container, |answer: cri::CreateContainerResponse| {
        answer.container_id
    });
    let start = cri::StartContainerRequest {
        container_id: container.clone(),
    };
    assert_eq!(client.cri("StartContainer", &start).await.status().0, "0");
    assert_eq!(shares(&client, &container).await, 4096);
    let in_kernel = kernel(&machine.parent(), &container);
    assert!(
        matches!(in_kernel.as_deref(), Some("4096" | "157")),
        "{in_kernel:?}"
    );
    let exec = cri::ExecSyncRequest {
        container_id: container.clone(),
        cmd: ["sh", "-c", "echo $AAA"].map(str::to_owned).into(),
        timeout: 10,
    };
    let said = client.cri("ExecSync", &exec).await;
    let said = cri::ExecSyncResponse::decode(said.body.slice(5..)).unwrap();
    assert_eq!(said.stdout, b"new\n", "the hook's variable");
    let update = cri::UpdateContainerResourcesRequest {
        container_id: container.clone(),
        linux: Some(cri::LinuxContainerResources {
            cpu_shares: 2,
            ..Default::default()
        }),
        ..Default::default()
    };
    let updated = client.cri("UpdateContainerResources", &update).await;
    assert_eq!(updated.status().0, "0", "{updated:?}");
    assert_eq!(shares(&client, &container).await, 4096);
    // The name is taken: an error of the runtime's own, word by word.
    create
        .config
        .as_mut()
        .unwrap()
        .metadata
        .as_mut()
        .unwrap()
        .attempt = 0;
    let (code, text) = client.cri("CreateContainer", &create).await.status();
    assert_eq!(code, "2");
    assert!(
        text.contains("reserved") && text.contains(&container),
        "{text}"
    );
    let stop = cri::StopContainerRequest {
        container_id: container.clone(),
        timeout: 0,
    };
    assert_eq!(client.cri("StopContainer", &stop).await.status().0, "0");
    let remove = cri::RemoveContainerRequest {
        container_id: container,
    };
    assert_eq!(client.cri("RemoveContainer", &remove).await.status().0, "0");
    let stop = cri::StopPodSandboxRequest {
        pod_sandbox_id: pod.clone(),
    };
    assert_eq!(client.cri("StopPodSandbox", &stop).await.status().0, "0");
    let remove = cri::RemovePodSandboxRequest {
        pod_sandbox_id: pod,
    };
    assert_eq!(
        client.cri("RemovePodSandbox", &remove).await.status().0,
        "0"
    );
}

/// A proxy that can be killed with all its connections.
struct Killable(Option<Runtime>);

impl Killable {
    fn start(world: &World) -> Self {
        let runtime = Runtime::new().unwrap();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let run = koord_runtime_proxy::run(world.options.clone(), Context::new(), move || {
            ready.send(()).unwrap();
        });
        runtime.spawn(run);
        is_ready.recv().unwrap();
        Self(Some(runtime))
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// 500 calls while proxy, hook server and containerd are killed at random.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_unadjusted_when_anybody_is_killed() {
    let Some(machine) = Machine::start() else {
        return;
    };
    let mut world = World::new();
    world.options.runtime = machine.containerd.socket();
    let hooks = Hooks::default();
    let socket = world.path("koordlet.sock");
    let mut serving = hooks.serve(&socket);
    world.register("koordlet.json", &socket, "Fail", &crate::asking::ALL);
    let mut proxy = tokio::task::block_in_place(|| Killable::start(&world));
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut client = Client::connect(&world.options.listen).await;
    let run = cri::RunPodSandboxRequest {
        config: Some(machine.sandbox("many")),
        runtime_handler: String::new(),
    };
    let pod = client.cri("RunPodSandbox", &run).await;
    let pod = id(&pod, |answer: cri::RunPodSandboxResponse| {
        answer.pod_sandbox_id
    });
    let (mut live, mut kills) = (Vec::<String>::new(), [0; 3]);
    for op in 0..500 {
        let (method, message) = match random(10) {
            0..6 if live.len() < 20 => {
                let request = machine.create("many", &pod, &format!("c{op}"));
                ("CreateContainer", request.encode_to_vec())
            }
            6..8 if live.len() > 5 => {
                let at = usize::try_from(random(live.len() as u64)).unwrap();
                let request = cri::RemoveContainerRequest {
                    container_id: live.swap_remove(at),
                };
                ("RemoveContainer", request.encode_to_vec())
            }
            _ if live.is_empty() => ("Status", Vec::new()),
            _ => {
                let at = usize::try_from(random(live.len() as u64)).unwrap();
                let request = cri::UpdateContainerResourcesRequest {
                    container_id: live[at].clone(),
                    linux: Some(cri::LinuxContainerResources {
                        cpu_shares: 2,
                        cpu_period: 100_000,
                        ..Default::default()
                    }),
                    ..Default::default()
                };
                ("UpdateContainerResources", request.encode_to_vec())
            }
        };
        // Somebody is killed in the midst of this call, and comes back.
        let who = if random(3) == 0 { 3 } else { 2 };
        let who = random(who);
        let victim = (random(20) == 0).then_some(who);
        let delay = random(3000);
        let path = format!("/runtime.v1.RuntimeService/{method}");
        let call = client.try_call(&path, frame(&message));
        let killer = async {
            let Some(victim) = victim else { return };
            for _ in 0..delay {
                tokio::task::yield_now().await;
            }
            kills[usize::try_from(victim).unwrap()] += 1;
            match victim {
                0 => tokio::task::block_in_place(|| {
                    drop(std::mem::replace(&mut proxy, Killable(None)));
                    proxy = Killable::start(&world);
                }),
                1 => {
                    serving.abort();
                    tokio::task::yield_now().await;
                    serving = hooks.serve(&socket);
                }
                _ => tokio::task::block_in_place(|| {
                    machine.containerd.kill();
                    machine.containerd.start_again();
                }),
            }
        };
        let (first, ()) = tokio::join!(call, killer);
        // As a kubelet does: again, until it is said that it is done.
        let mut got = first;
        let mut tries = 0;
        let answer = loop {
            match &got {
                Ok(got) if got.status().0 == "0" => break Some(got.clone()),
                Ok(got) if got.status().1.contains("reserved for") => break None,
                _ => {}
            }
            tries += 1;
            assert!(tries < 1000, "{method} {got:?}");
            client = Client::connect(&world.options.listen).await;
            got = client.try_call(&path, frame(&message)).await;
        };
        if method == "CreateContainer" {
            let id = match answer {
                Some(got) => id(&got, |answer: cri::CreateContainerResponse| {
                    answer.container_id
                }),
                // It was accepted, though the answer was lost: it is there.
                None => {
                    let (_, text) = got.unwrap().status();
                    let id = text.rsplit("reserved for ").next().unwrap();
                    id.trim_matches(|c: char| !c.is_ascii_hexdigit()).to_owned()
                }
            };
            live.push(id);
        }
    }
    println!("killed proxy, hook server, containerd: {kills:?}");
    let listed = client
        .cri("ListContainers", &cri::ListContainersRequest::default())
        .await;
    let listed = cri::ListContainersResponse::decode(listed.body.slice(5..)).unwrap();
    let mut listed: Vec<String> = listed.containers.into_iter().map(|one| one.id).collect();
    listed.sort();
    live.sort();
    assert_eq!(listed, live, "every call that was accepted, and no other");
    for id in &live {
        assert_eq!(shares(&client, id).await, 4096, "{id} is unadjusted");
    }
}
