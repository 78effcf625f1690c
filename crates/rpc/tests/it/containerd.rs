//! The stub and the clients against a real containerd, which `bench/containerd` provides.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use koord_host::testing::{Containerd, Groups, IMAGE, eventually, skip};
use koord_rpc::cri;
use koord_rpc::cri::runtime_service_client::RuntimeServiceClient;
use koord_rpc::grpc::{MESSAGE_LIMIT, connect};
use koord_rpc::nri::{
    Container, ContainerAdjustment, ContainerUpdate, Event, Handler, KeyValue,
    LinuxContainerAdjustment, LinuxContainerUpdate, LinuxCpu, LinuxMemory, LinuxResources,
    OptionalInt64, OptionalUInt64, PodSandbox, Reply, Settings, Socket, Stub, StubEvent,
    UpdateContainersRequest, events_named,
};
use koord_rpc::ttrpc::Options;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A handler that sets the current quota for every container and records its calls.
struct Quota {
    quota: AtomicI64,
    reports: mpsc::UnboundedSender<String>,
}

impl Quota {
    fn resources(&self) -> LinuxResources {
        LinuxResources {
            cpu: Some(LinuxCpu {
                quota: Some(OptionalInt64 {
                    value: self.quota.load(Ordering::SeqCst),
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn update(&self, id: &str) -> ContainerUpdate {
        ContainerUpdate {
            container_id: id.to_owned(),
            linux: Some(LinuxContainerUpdate {
                resources: Some(self.resources()),
            }),
            ignore_failure: false,
        }
    }

    fn record(&self, text: String) {
        let _ = self.reports.send(text);
    }
}

impl Handler for Quota {
    fn synchronize(&self, pods: &[PodSandbox], containers: &[Container]) -> Vec<ContainerUpdate> {
        self.record(format!("synchronize {} {}", pods.len(), containers.len()));
        containers
            .iter()
            .map(|container| self.update(&container.id))
            .collect()
    }

    fn create(&self, pod: &PodSandbox, container: &Container) -> Result<Reply, String> {
        self.record(format!("create {} {}", pod.name, container.name));
        let mut resources = self.resources();
        if let Some(cpu) = &mut resources.cpu {
            cpu.shares = Some(OptionalUInt64 { value: 1024 });
        }
        resources.memory = Some(LinuxMemory {
            limit: Some(OptionalInt64 { value: 64 << 20 }),
            ..Default::default()
        });
        Ok(Reply {
            adjust: Some(ContainerAdjustment {
                // Metadata that a peer with a small buffer could not read.
                env: vec![KeyValue {
                    key: "LONG".into(),
                    value: "x".repeat(60_000),
                }],
                linux: Some(LinuxContainerAdjustment {
                    resources: Some(resources),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    fn update(
        &self,
        _: &PodSandbox,
        _: &Container,
        requested: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        let requested_quota = requested.cpu.as_ref().and_then(|cpu| cpu.quota);
        self.record(format!(
            "update {:?}",
            requested_quota.map(|quota| quota.value)
        ));
        Ok(vec![self.update("")])
    }

    fn event(&self, event: Event, pod: &PodSandbox, _: Option<&Container>) -> Result<(), String> {
        self.record(format!("{event:?} {}", pod.name));
        Ok(())
    }

    fn observe(&self, event: &StubEvent) {
        match event {
            StubEvent::Connected => self.record("connected".to_owned()),
            StubEvent::Lost(..) => self.record("lost".to_owned()),
            StubEvent::Answered(..) => {}
        }
    }
}

fn file(group: &str, id: &str, controller: &str, name: &str) -> i64 {
    let path = format!("/sys/fs/cgroup/{controller}/{group}/{id}/{name}");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.trim().parse().unwrap()
}

/// Waits for this message; ignores earlier ones.
async fn until(reports: &mut mpsc::UnboundedReceiver<String>, expected: &str) {
    let waiting = async { while reports.recv().await.expect("the stub runs") != expected {} };
    let limit = Duration::from_secs(120);
    assert!(
        tokio::time::timeout(limit, waiting).await.is_ok(),
        "no {expected:?}"
    );
}

fn sandbox(group: &str) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: "web".into(),
            uid: group.into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: format!("/{group}"),
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(cri::NamespaceOption {
                    network: cri::NamespaceMode::Node as i32,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containerd_containers_are_adjusted_before_start() {
    if !Path::new("/sys/fs/cgroup/cpu").is_dir() {
        return skip(
            "cgroup-v1",
            "the files that are looked at are those of cgroup v1",
        );
    }
    // Removed when the processes in it have ended.
    let groups;
    let Some(containerd) = Containerd::for_test() else {
        return;
    };
    groups = Groups::new(&format!("koord-rpc-{}", std::process::id())).unwrap();
    let group = groups.path().as_str().to_owned();

    let (sender, mut reports) = mpsc::unbounded_channel();
    let handler = Arc::new(Quota {
        quota: AtomicI64::new(50_000),
        reports: sender,
    });
    let events = ["RunPodSandbox,CreateContainer,UpdateContainer"];
    let mut settings = Settings::new("koord-test", "00", events_named(events).unwrap());
    settings.socket = Socket::Path(containerd.nri_socket());
    let stub = Arc::new(Stub::new(settings, Arc::clone(&handler)).unwrap());
    let (stop, running) = (CancellationToken::new(), Arc::clone(&stub));
    let until_stop = stop.clone();
    let running = tokio::spawn(async move { running.run(until_stop).await });
    until(&mut reports, "connected").await;

    let mut runtime = RuntimeServiceClient::new(connect(containerd.socket()))
        .max_decoding_message_size(MESSAGE_LIMIT);
    let config = sandbox(&group);
    let request = cri::RunPodSandboxRequest {
        config: Some(config.clone()),
        ..Default::default()
    };
    let pod = runtime
        .run_pod_sandbox(request)
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    until(&mut reports, "RunPodSandbox web").await;
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: "main".into(),
                attempt: 0,
            }),
            image: Some(cri::ImageSpec {
                image: IMAGE.into(),
                ..Default::default()
            }),
            command: vec!["/bin/sleep".into(), "1000".into()],
            linux: Some(cri::LinuxContainerConfig {
                resources: Some(cri::LinuxContainerResources {
                    cpu_shares: 2,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        sandbox_config: Some(config),
    };
    let id = runtime
        .create_container(request)
        .await
        .unwrap()
        .into_inner()
        .container_id;
    until(&mut reports, "create web main").await;
    let request = cri::StartContainerRequest {
        container_id: id.clone(),
    };
    runtime.start_container(request).await.unwrap();
    let cpu = |name: &str| file(&group, &id, "cpu", name);
    assert_eq!(cpu("cpu.cfs_quota_us"), 50_000);
    assert_eq!(cpu("cpu.shares"), 1024);
    assert_eq!(
        file(&group, &id, "memory", "memory.limit_in_bytes"),
        64 << 20
    );
    let request = cri::ExecSyncRequest {
        container_id: id.clone(),
        cmd: vec!["/bin/sh".into(), "-c".into(), "echo ${#LONG}".into()],
        timeout: 60,
    };
    let output = runtime
        .exec_sync(request)
        .await
        .unwrap()
        .into_inner()
        .stdout;
    assert_eq!(output, b"60000\n");

    // The kubelet's value is replaced, for the right container.
    handler.quota.store(70_000, Ordering::SeqCst);
    let request = cri::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(cri::LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: 30_000,
            cpu_shares: 512,
            ..Default::default()
        }),
        ..Default::default()
    };
    runtime.update_container_resources(request).await.unwrap();
    until(&mut reports, "update Some(30000)").await;
    assert_eq!((cpu("cpu.cfs_quota_us"), cpu("cpu.shares")), (70_000, 512));

    // Outside of any event.
    handler.quota.store(90_000, Ordering::SeqCst);
    let plugin = stub.runtime().borrow().clone().unwrap();
    let request = UpdateContainersRequest {
        update: vec![handler.update(&id)],
        evict: Vec::new(),
    };
    let options = Options::within(Duration::from_secs(60));
    let answer = plugin.update_containers(&request, &options).await.unwrap();
    assert!(answer.failed.is_empty(), "{answer:?}");
    assert_eq!(cpu("cpu.cfs_quota_us"), 90_000);
    drop(plugin);

    // After a restart the plugin receives the running containers.
    handler.quota.store(40_000, Ordering::SeqCst);
    containerd.kill();
    until(&mut reports, "lost").await;
    containerd.start_again();
    until(&mut reports, "synchronize 1 1").await;
    until(&mut reports, "connected").await;
    // The runtime applies the response after receiving it, at an unknown time.
    let quota = format!("/sys/fs/cgroup/cpu/{group}/{id}/cpu.cfs_quota_us");
    eventually("quota in the container's group", async || {
        (std::fs::read_to_string(&quota).unwrap().trim() == "40000").then_some(())
    })
    .await;
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: pod,
    };
    runtime.stop_pod_sandbox(request).await.unwrap();
    stop.cancel();
    running.await.unwrap();
}
