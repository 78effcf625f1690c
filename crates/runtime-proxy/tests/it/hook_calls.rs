//! Tests of calls with hooks.

use crate::passthrough::UNKNOWN;
use crate::world::{GrpcClient, RecordedCall, ServerTask, TestEnv, frame, reply};
use bytes::Bytes;
use koord_rpc::cri;
use koord_rpc::hooks::runtime_hook_service_server::{RuntimeHookService, RuntimeHookServiceServer};
use koord_rpc::hooks::{
    ContainerResourceHookRequest as ContainerRequest,
    ContainerResourceHookResponse as ContainerResponse, LinuxContainerResources,
    PodSandboxHookRequest as PodRequest, PodSandboxHookResponse as PodResponse,
};
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// A hook server that responds as koordlet does, with all fields of the request and its own changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hooks {
    calls: Arc<Mutex<Vec<(&'static str, HookCall)>>>,
    /// True if it never responds.
    hangs: bool,
    /// True if all its responses are errors.
    fails: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum HookCall {
    Pod(PodRequest),
    Container(ContainerRequest),
}

impl Hooks {
    async fn wait(&self) -> Result<(), Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        match self.fails {
            true => Err(Status::internal("no 50%")),
            false => Ok(()),
        }
    }

    async fn pod(
        &self,
        hook: &'static str,
        request: Request<PodRequest>,
    ) -> Result<Response<PodResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .lock()
            .push((hook, HookCall::Pod(request.clone())));
        self.wait().await?;
        let mut labels = request.labels;
        labels.insert("hooked".to_owned(), "pod".to_owned());
        Ok(Response::new(PodResponse {
            labels,
            annotations: request.annotations,
            cgroup_parent: format!("{}/sub", request.cgroup_parent),
            resources: None,
        }))
    }

    async fn container(
        &self,
        hook: &'static str,
        request: Request<ContainerRequest>,
    ) -> Result<Response<ContainerResponse>, Status> {
        let request = request.into_inner();
        let call = HookCall::Container(request.clone());
        self.calls.lock().push((hook, call));
        self.wait().await?;
        let mut resources = request.container_resources.unwrap_or_default();
        resources.cpu_shares = 4096;
        resources.cpuset_cpus = "0-1".to_owned();
        resources.cpu_quota = -1;
        let mut envs = request.container_envs;
        envs.insert("B".to_owned(), "2".to_owned());
        envs.insert("AAA".to_owned(), "new".to_owned());
        let mut annotations = request.container_annotations;
        annotations.insert("hooked".to_owned(), "yes".to_owned());
        Ok(Response::new(ContainerResponse {
            container_annotations: annotations,
            container_resources: Some(resources),
            pod_cgroup_parent: request.pod_cgroup_parent,
            container_envs: envs,
        }))
    }

    pub(crate) fn serve(&self, socket: &Path) -> JoinHandle<()> {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let incoming = UnixListenerStream::new(listener);
        let mut service = RuntimeHookServiceServer::new(self.clone());
        tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            let mut incoming = incoming;
            while let Some(Ok(stream)) = incoming.next().await {
                let service = hyper_util::service::TowerToHyperService::new(service.clone());
                connections.spawn(async move {
                    let io = hyper_util::rt::TokioIo::new(stream);
                    let executor = hyper_util::rt::TokioExecutor::new();
                    let _ = hyper::server::conn::http2::Builder::new(executor)
                        .serve_connection(io, service)
                        .await;
                });
            }
            let _ = &mut service;
        })
    }

    /// Creates a server that fails every call.
    pub(crate) fn failing() -> Self {
        Self {
            fails: true,
            ..Self::default()
        }
    }

    /// Returns all calls in order.
    pub(crate) fn all(&self) -> Vec<(&'static str, HookCall)> {
        self.calls.lock().clone()
    }

    fn hooks(&self) -> Vec<&'static str> {
        self.calls.lock().iter().map(|(hook, _)| *hook).collect()
    }
}

macro_rules! service {
    ($($method:ident $hook:literal $kind:ident $request:ty => $response:ty),* $(,)?) => {
        #[tonic::async_trait]
        impl RuntimeHookService for Hooks {
            $(async fn $method(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                self.$kind($hook, request).await
            })*
        }
    };
}

service! {
    pre_run_pod_sandbox_hook "PreRunPodSandbox" pod PodRequest => PodResponse,
    post_stop_pod_sandbox_hook "PostStopPodSandbox" pod PodRequest => PodResponse,
    pre_create_container_hook "PreCreateContainer" container ContainerRequest => ContainerResponse,
    pre_start_container_hook "PreStartContainer" container ContainerRequest => ContainerResponse,
    post_start_container_hook "PostStartContainer" container ContainerRequest => ContainerResponse,
    post_stop_container_hook "PostStopContainer" container ContainerRequest => ContainerResponse,
    pre_update_container_resources_hook "PreUpdateContainerResources" container
        ContainerRequest => ContainerResponse,
}

pub(crate) const ALL: [&str; 7] = [
    "PreRunPodSandbox",
    "PostStopPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PreUpdateContainerResources",
    "PostStopContainer",
];

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let entries = entries.iter();
    entries
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn sandbox() -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: "web-0".to_owned(),
            uid: "4d0a".to_owned(),
            namespace: "shop".to_owned(),
            attempt: 1,
        }),
        labels: map(&[("app", "web")]),
        annotations: map(&[("note", "n")]),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: "/kubepods/pod4d0a".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn env(key: &str, value: &[u8]) -> cri::KeyValue {
    cri::KeyValue {
        key: key.to_owned(),
        value: value.to_vec(),
    }
}

fn create() -> cri::CreateContainerRequest {
    cri::CreateContainerRequest {
        pod_sandbox_id: "pod1".to_owned(),
        config: Some(cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: "main".to_owned(),
                attempt: 0,
            }),
            // The order counts, and so do doubles and bytes that are no text.
            envs: vec![
                env("Z", b"26"),
                env("B", b"$(Z)"),
                env("RAW", b"\xff\xfe"),
                env("Z", b"27"),
            ],
            linux: Some(cri::LinuxContainerConfig {
                resources: Some(cri::LinuxContainerResources {
                    cpu_shares: 1024,
                    cpu_quota: 20000,
                    cpu_period: 100_000,
                    memory_limit_in_bytes: 1 << 30,
                    oom_score_adj: 937,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        sandbox_config: Some(sandbox()),
    }
}

struct HookFixture {
    world: TestEnv,
    hooks: Hooks,
    _hook_server: JoinHandle<()>,
    _runtime: ServerTask,
    recorded: Arc<Mutex<Vec<RecordedCall>>>,
    client: GrpcClient,
    proxy: crate::world::Proxy,
}

/// Starts runtime, hook server with this policy, and proxy.
async fn start_fixture(hooks: Hooks, policy: &str) -> HookFixture {
    let mut world = TestEnv::new();
    if hooks.hangs {
        world.options.hook_timeout = Duration::from_millis(50);
    }
    let socket = world.path("koordlet.sock");
    let hook_server = hooks.serve(&socket);
    world.register("koordlet.json", &socket, policy, &ALL);
    let (runtime, recorded) = world.runtime(answer);
    let proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    HookFixture {
        world,
        hooks,
        _hook_server: hook_server,
        _runtime: runtime,
        recorded,
        client,
        proxy,
    }
}

/// Responds as a runtime that has one pod with one container, even if they were not created.
fn answer(path: &str, _: &Bytes) -> http::Response<crate::world::Body> {
    let message = match path.rsplit('/').next().unwrap() {
        "RunPodSandbox" => cri::RunPodSandboxResponse {
            pod_sandbox_id: "pod1".to_owned(),
        }
        .encode_to_vec(),
        "CreateContainer" => cri::CreateContainerResponse {
            container_id: "c1".to_owned(),
        }
        .encode_to_vec(),
        "ListContainers" => cri::ListContainersResponse {
            containers: vec![cri::Container {
                id: "c1".to_owned(),
                pod_sandbox_id: "pod1".to_owned(),
                ..Default::default()
            }],
        }
        .encode_to_vec(),
        "ContainerStatus" => cri::ContainerStatusResponse {
            status: Some(cri::ContainerStatus {
                id: "c1".to_owned(),
                metadata: create().config.unwrap().metadata,
                annotations: map(&[("hooked", "yes")]),
                resources: Some(cri::ContainerResources {
                    linux: Some(cri::LinuxContainerResources {
                        cpu_shares: 4096,
                        memory_limit_in_bytes: 1 << 30,
                        ..Default::default()
                    }),
                    windows: None,
                }),
                ..Default::default()
            }),
            info: map(&[(
                "info",
                r#"{"sandboxID":"pod1","config":{"envs":[{"key":"Z","value":"27"}]},
                    "runtimeSpec":{"process":{"env":["PATH=/bin","Z=27"]}}}"#,
            )]),
        }
        .encode_to_vec(),
        "PodSandboxStatus" => cri::PodSandboxStatusResponse {
            status: Some(cri::PodSandboxStatus {
                id: "pod1".to_owned(),
                metadata: sandbox().metadata,
                labels: map(&[("app", "web"), ("hooked", "pod")]),
                annotations: sandbox().annotations,
                ..Default::default()
            }),
            info: map(&[(
                "info",
                r#"{"config":{"linux":{"cgroup_parent":"/kubepods/pod4d0a/sub"}}}"#,
            )]),
            ..Default::default()
        }
        .encode_to_vec(),
        _ => Vec::new(),
    };
    reply(frame(&message), "0")
}

impl HookFixture {
    /// Returns the last request that the runtime got.
    fn last(&self) -> Bytes {
        self.recorded.lock().last().unwrap().body.slice(5..)
    }

    async fn run(&self) -> crate::world::ClientResponse {
        let request = cri::RunPodSandboxRequest {
            config: Some(sandbox()),
            runtime_handler: "runc".to_owned(),
        };
        self.client.cri("RunPodSandbox", &request).await
    }
}

#[tokio::test]
async fn a_pods_day() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    assert_eq!(stage.run().await.status().0, "0");
    let ran = cri::RunPodSandboxRequest::decode(stage.last()).unwrap();
    let mut expected = sandbox();
    expected.labels = map(&[("app", "web"), ("hooked", "pod")]);
    expected.linux.as_mut().unwrap().cgroup_parent = "/kubepods/pod4d0a/sub".to_owned();
    assert_eq!(ran.config.unwrap(), expected);

    stage.client.cri("CreateContainer", &create()).await;
    let created = cri::CreateContainerRequest::decode(stage.last()).unwrap();
    let mut expected = create();
    let config = expected.config.as_mut().unwrap();
    config.envs[1].value = b"2".to_vec();
    config.envs.push(env("AAA", b"new"));
    config.annotations = map(&[("hooked", "yes")]);
    let linux = config.linux.as_mut().unwrap();
    let resources = linux.resources.as_mut().unwrap();
    resources.cpu_shares = 4096;
    resources.cpu_quota = -1;
    resources.cpuset_cpus = "0-1".to_owned();
    assert_eq!(created, expected);

    let id = cri::StartContainerRequest {
        container_id: "c1".to_owned(),
    };
    stage.client.cri("StartContainer", &id).await;
    let update = cri::UpdateContainerResourcesRequest {
        container_id: "c1".to_owned(),
        linux: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: 2 << 30,
            cpu_quota: 40000,
            ..Default::default()
        }),
        ..Default::default()
    };
    stage.client.cri("UpdateContainerResources", &update).await;
    let updated = cri::UpdateContainerResourcesRequest::decode(stage.last()).unwrap();
    let linux = updated.linux.unwrap();
    assert_eq!(linux.memory_limit_in_bytes, 2 << 30);
    assert_eq!((linux.cpu_shares, linux.cpu_quota), (4096, -1));
    assert_eq!(
        linux.cpu_period, 100_000,
        "all that the container has, as upstream"
    );

    let id = cri::StopContainerRequest {
        container_id: "c1".to_owned(),
        timeout: 0,
    };
    stage.client.cri("StopContainer", &id).await;
    let id = cri::StopPodSandboxRequest {
        pod_sandbox_id: "pod1".to_owned(),
    };
    stage.client.cri("StopPodSandbox", &id).await;
    assert_eq!(
        stage.hooks.hooks(),
        [
            "PreRunPodSandbox",
            "PreCreateContainer",
            "PreStartContainer",
            "PostStartContainer",
            "PreUpdateContainerResources",
            "PostStopContainer",
            "PostStopPodSandbox",
        ]
    );
    let calls = stage.hooks.calls.lock();
    let HookCall::Container(create) = &calls[1].1 else {
        panic!()
    };
    assert_eq!(create.pod_labels["hooked"], "pod");
    assert_eq!(create.container_envs, map(&[("B", "$(Z)"), ("Z", "27")]));
    let HookCall::Container(update) = &calls[4].1 else {
        panic!()
    };
    assert_eq!(update.container_meta.as_ref().unwrap().id, "c1");
    assert_eq!(
        update.container_resources,
        Some(LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: 40000,
            cpu_shares: 4096,
            memory_limit_in_bytes: 2 << 30,
            oom_score_adj: 937,
            cpuset_cpus: "0-1".to_owned(),
            ..Default::default()
        })
    );
}

#[tokio::test]
async fn unknown_fields_survive_a_changed_request() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    // Unknown fields at every level on the way to what is changed.
    let nested = |number: u8, inner: &[u8]| {
        let inner = [inner, UNKNOWN].concat();
        [
            &[number << 3 | 2, u8::try_from(inner.len()).unwrap()],
            &*inner,
        ]
        .concat()
    };
    let resources = nested(1, &[0x18, 2]);
    let config = nested(2, &nested(15, &resources));
    let request = [b"\x0a\x04pod1".as_slice(), &config, UNKNOWN].concat();
    let path = "/runtime.v1.RuntimeService/CreateContainer";
    stage.client.call(path, frame(&request)).await;
    let recorded = stage.last();
    let occurrences = recorded
        .windows(UNKNOWN.len())
        .filter(|part| *part == UNKNOWN);
    assert_eq!(occurrences.count(), 4);
    let recorded = cri::CreateContainerRequest::decode(recorded).unwrap();
    let linux = recorded.config.unwrap().linux.unwrap();
    assert_eq!(linux.resources.unwrap().cpu_shares, 4096);
}

#[tokio::test]
async fn failure_policy_decides_on_failed_hooks() {
    let failing = |hangs, fails| Hooks {
        hangs,
        fails,
        ..Hooks::default()
    };
    for (hooks, says) in [
        (failing(false, true), "code = Internal desc = no 50%25"),
        (
            failing(true, false),
            "code = DeadlineExceeded desc = no answer within 50ms",
        ),
    ] {
        let ignoring = start_fixture(hooks.clone(), "Ignore").await;
        assert_eq!(ignoring.run().await.status().0, "0");
        let request = cri::RunPodSandboxRequest::decode(ignoring.last()).unwrap();
        assert_eq!(
            request.config.unwrap(),
            sandbox(),
            "as the kubelet wanted it"
        );
        ignoring.proxy.assert_metrics(&[
            "hook_servers 1",
            r#"calls_total{method="RunPodSandbox",result="success"} 1"#,
            r#"hook_failures_total{hook="PreRunPodSandbox",policy="Ignore"} 1"#,
            r#"hook_duration_seconds_count{hook="PreRunPodSandbox",result="failed"} 1"#,
        ]);

        let failing = start_fixture(hooks, "Fail").await;
        let (code, text) = failing.run().await.status();
        assert_eq!(code, "2");
        assert!(
            text.starts_with("hook server err: ") && text.contains(says),
            "{text}"
        );
        assert_eq!(
            failing.recorded.lock().len(),
            0,
            "the runtime hears nothing of it"
        );
        failing.proxy.assert_metrics(&[
            r#"calls_total{method="RunPodSandbox",result="refused"} 1"#,
            r#"hook_failures_total{hook="PreRunPodSandbox",policy="Fail"} 1"#,
        ]);
    }
}

#[tokio::test]
async fn failure_policy_decides_on_invalid_requests() {
    for (policy, recorded) in [("Ignore", 2), ("Fail", 0)] {
        let stage = start_fixture(Hooks::default(), policy).await;
        let path = "/runtime.v1.RuntimeService/CreateContainer";
        let mut compressed = frame(&create().encode_to_vec()).to_vec();
        compressed[0] = 1;
        for body in [frame(&[0x0a, 0x7f, 1]), compressed.into()] {
            let got = stage.client.call(path, body.clone()).await;
            let expected = if recorded == 0 { "2" } else { "0" };
            assert_eq!(got.status().0, expected, "{got:?}");
            if recorded > 0 {
                assert_eq!(stage.recorded.lock().last().unwrap().body, body);
            }
        }
        assert_eq!(stage.recorded.lock().len(), recorded);
        assert_eq!(stage.hooks.hooks(), [""; 0]);
        let failures =
            format!(r#"hook_failures_total{{hook="PreCreateContainer",policy="{policy}"}} 2"#);
        stage.proxy.assert_metrics(&[&failures]);
    }
}

/// Responses that are no messages, also to the proxy's own requests for pods and containers.
#[tokio::test]
async fn invalid_runtime_responses_are_passed_on() {
    const NONSENSE: &[u8] = b"\x0a\x7f\xffnonsense";
    for policy in ["Ignore", "Fail"] {
        let hooks = Hooks::default();
        let mut world = TestEnv::new();
        world.options.hook_timeout = Duration::from_secs(60);
        let socket = world.path("koordlet.sock");
        let _hook_server = hooks.serve(&socket);
        world.register("koordlet.json", &socket, policy, &ALL);
        let (_runtime, recorded) = world.runtime(|_, _| reply(frame(NONSENSE), "0"));
        let _proxy = world.proxy().await;
        let client = GrpcClient::connect(&world.options.listen).await;
        let run = cri::RunPodSandboxRequest {
            config: Some(sandbox()),
            runtime_handler: String::new(),
        };
        // The response is passed on: the kubelet checks it.
        let got = client.cri("RunPodSandbox", &run).await;
        assert_eq!(
            (got.status().0.as_str(), &got.body),
            ("0", &frame(NONSENSE))
        );
        let started = cri::StartContainerRequest {
            container_id: "c1".to_owned(),
        };
        let before = recorded.lock().len();
        let got = client.cri("StartContainer", &started).await;
        let reached = recorded.lock().split_off(before);
        let reached = reached
            .iter()
            .any(|call| call.path.ends_with("/StartContainer"));
        let (code, text) = got.status();
        if policy == "Ignore" {
            assert_eq!((code.as_str(), reached), ("0", true), "{text}");
            assert_eq!(got.body, frame(NONSENSE));
        } else {
            assert_eq!((code.as_str(), reached), ("2", false), "{text}");
            assert!(!text.is_empty());
        }
        // And the proxy goes on.
        assert_eq!(
            client
                .cri("Status", &cri::StatusRequest::default())
                .await
                .status()
                .0,
            "0"
        );
    }
}

#[tokio::test]
async fn exempt_pods_are_nobodys_business() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    let mut config = sandbox();
    let (key, value) = ("runtimeproxy.koordinator.sh/skip-hookserver", "true");
    config.labels.insert(key.to_owned(), value.to_owned());
    let request = cri::RunPodSandboxRequest {
        config: Some(config),
        runtime_handler: String::new(),
    };
    stage.client.cri("RunPodSandbox", &request).await;
    // Its containers are skipped, too, whatever labels the request has for the pod.
    stage.client.cri("CreateContainer", &create()).await;
    let created = cri::CreateContainerRequest::decode(stage.last()).unwrap();
    assert_eq!(created, create());
    let id = cri::StartContainerRequest {
        container_id: "c1".to_owned(),
    };
    stage.client.cri("StartContainer", &id).await;
    assert_eq!(stage.hooks.hooks(), [""; 0]);
}

#[tokio::test]
async fn restarted_proxy_looks_up_running_pods() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    let update = cri::UpdateContainerResourcesRequest {
        container_id: "c1".to_owned(),
        linux: Some(cri::LinuxContainerResources {
            cpu_quota: 40000,
            ..Default::default()
        }),
        ..Default::default()
    };
    stage.client.cri("UpdateContainerResources", &update).await;
    let updated = cri::UpdateContainerResourcesRequest::decode(stage.last()).unwrap();
    let linux = updated.linux.unwrap();
    assert_eq!(
        (linux.cpu_quota, linux.memory_limit_in_bytes),
        (-1, 1 << 30)
    );
    let calls = stage.hooks.calls.lock();
    let [(_, HookCall::Container(calls))] = calls.as_slice() else {
        panic!("{calls:?}")
    };
    let meta = calls.container_meta.as_ref().unwrap();
    assert_eq!((meta.name.as_str(), meta.id.as_str()), ("main", "c1"));
    assert_eq!(calls.pod_meta.as_ref().unwrap().namespace, "shop");
    assert_eq!(calls.pod_labels, map(&[("app", "web"), ("hooked", "pod")]));
    assert_eq!(calls.pod_cgroup_parent, "/kubepods/pod4d0a/sub");
    assert_eq!(calls.container_envs, map(&[("Z", "27")]));
    let resources = calls.container_resources.as_ref().unwrap();
    assert_eq!((resources.cpu_shares, resources.cpu_quota), (4096, 40000));
}

#[tokio::test]
async fn registrations_come_change_and_go_while_the_proxy_runs() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    let other = Hooks::default();
    let socket = stage.world.path("other.sock");
    let _server = other.serve(&socket);
    let file = stage.world.options.hooks.join("koordlet.json");
    // Runs pods until the change was read, which the number of calls of each server shows.
    let count = |hooks: &Hooks| hooks.calls.lock().len();
    async fn wait_until(stage: &HookFixture, seen: impl Fn() -> bool) {
        while !seen() {
            assert_eq!(stage.run().await.status().0, "0");
        }
    }
    wait_until(&stage, || count(&stage.hooks) == 1).await;
    // Half a file is invalid, so the previous registration stays.
    std::fs::write(&file, "{\"remote-endpoint\":").unwrap();
    wait_until(&stage, || count(&stage.hooks) == 5).await;
    // The first name counts.
    stage
        .world
        .register("a.json", &socket, "Fail", &["PreRunPodSandbox"]);
    wait_until(&stage, || count(&other) == 2).await;
    std::fs::remove_file(stage.world.options.hooks.join("a.json")).unwrap();
    let before = count(&stage.hooks);
    wait_until(&stage, || count(&stage.hooks) > before).await;
    stage
        .world
        .register("koordlet.json", &socket, "Fail", &["PreRunPodSandbox"]);
    let before = count(&other);
    wait_until(&stage, || count(&other) > before).await;
}
