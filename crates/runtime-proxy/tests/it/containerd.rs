//! A real containerd behind the proxy.

use crate::hook_calls::Hooks;
use crate::passthrough::methods;
use crate::world::{ClientResponse, GrpcClient, TestEnv, frame};
use koord_host::testing::{Containerd, Groups, IMAGE};
use koord_rpc::cri;
use prost::Message;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A containerd of this test's own, and the group of its pods.
pub(crate) struct ContainerdFixture {
    pub(crate) containerd: Containerd,
    groups: Groups,
}

impl ContainerdFixture {
    /// Returns `None`, with a message, if containerd is not installed.
    #[track_caller]
    pub(crate) fn start() -> Option<Self> {
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

    pub(crate) fn sandbox(&self, name: &str) -> cri::PodSandboxConfig {
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

    pub(crate) fn create(&self, pod: &str, id: &str, name: &str) -> cri::CreateContainerRequest {
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

fn id<M: Message + Default>(got: &ClientResponse, of: impl Fn(M) -> String) -> String {
    assert_eq!(got.status().0, "0", "{got:?}");
    of(M::decode(got.body.slice(5..)).unwrap())
}

async fn shares(client: &GrpcClient, id: &str) -> i64 {
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

/// Reads a kernel file, from the mount that has it.
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
    let Some(machine) = ContainerdFixture::start() else {
        return;
    };
    let mut world = TestEnv::new();
    world.options.runtime = machine.containerd.socket();
    let _proxy = world.proxy().await;
    let direct = GrpcClient::connect(&world.options.runtime).await;
    let through = GrpcClient::connect(&world.options.listen).await;
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
            let expected = direct.call(path, frame(message)).await;
            let got = through.call(path, frame(message)).await;
            assert_eq!(got, expected, "{path} {message:?}");
        }
    }
}

#[tokio::test]
async fn crictl_operations_work() {
    let Some(machine) = ContainerdFixture::start() else {
        return;
    };
    let mut world = TestEnv::new();
    world.options.runtime = machine.containerd.socket();
    let hooks = Hooks::default();
    let socket = world.path("koordlet.sock");
    let _hooks = hooks.serve(&socket);
    world.register("koordlet.json", &socket, "Fail", &crate::hook_calls::ALL);
    let _proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;

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
    let response = client.cri("ExecSync", &exec).await;
    let response = cri::ExecSyncResponse::decode(response.body.slice(5..)).unwrap();
    assert_eq!(response.stdout, b"new\n", "the hook's variable");
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
