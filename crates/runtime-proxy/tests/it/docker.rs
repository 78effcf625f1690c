//! A Docker engine behind the proxy: a fake that answers as Docker 20.10.24 was recorded to.

use crate::hook_calls::{ALL, HookCall, Hooks};
use crate::world::{Proxy, TestEnv};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use koord_runtime_proxy::Mode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// A request without its API version.
type RecordedRequest = (Method, String, Value);

#[derive(Debug, Default)]
struct Engine {
    recorded: Mutex<Vec<RecordedRequest>>,
    /// Inspections by id.
    containers: Mutex<BTreeMap<String, Value>>,
}

fn response(status: u16, body: Value) -> Response<Full<Bytes>> {
    let body = if body.is_null() {
        String::new()
    } else {
        format!("{body}\n")
    };
    let response = Response::builder()
        .status(status)
        .header("Api-Version", "1.41")
        .header("Server", "Docker/20.10.24+dfsg1 (linux)")
        .header("Content-Type", "application/json");
    response.body(Full::new(body.into())).unwrap()
}

impl Engine {
    fn answer(&self, recorded: &RecordedRequest) -> Response<Full<Bytes>> {
        let (method, path, body) = recorded;
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let mut containers = self.containers.lock();
        let missing =
            |id: &str| response(404, json!({"message": format!("No such container: {id}")}));
        match (method.as_str(), parts.as_slice()) {
            ("GET", ["version"]) => {
                response(200, json!({"Version": "20.10.24", "ApiVersion": "1.41"}))
            }
            ("POST", ["containers", "create"]) => {
                let id = format!("{:064x}", containers.len() + 1);
                let mut config = body.clone();
                let host = config.as_object_mut().unwrap().remove("HostConfig");
                let name = query.strip_prefix("name=").unwrap_or("eager_hopper");
                let inspected = json!({"Id": id, "Name": format!("/{name}"), "Config": config,
                    "HostConfig": host, "State": {"Status": "created"}});
                containers.insert(id.clone(), inspected);
                response(201, json!({"Id": id, "Warnings": []}))
            }
            ("GET", ["containers", id, "json"]) => match containers.get(*id) {
                Some(inspected) => response(200, inspected.clone()),
                None => missing(id),
            },
            (_, ["containers", id, ..]) if !containers.contains_key(*id) => missing(id),
            ("POST", ["containers", _, "update"]) => response(200, json!({"Warnings": null})),
            ("POST", ["containers", _, "start" | "stop"]) => response(204, Value::Null),
            ("DELETE", ["containers", id]) => {
                containers.remove(*id);
                response(204, Value::Null)
            }
            _ => response(404, json!({"message": "page not found"})),
        }
    }

    async fn call(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path().ends_with("/attach") {
            assert_eq!(request.headers()["upgrade"], "tcp");
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgrade.await.unwrap());
                let mut input = Vec::new();
                // Reads until the client has closed its side.
                stream.read_to_end(&mut input).await.unwrap();
                input.reverse();
                stream.write_all(&input).await.unwrap();
                stream.shutdown().await.unwrap();
            });
            let response = Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("Content-Type", "application/vnd.docker.raw-stream")
                .header("Connection", "Upgrade")
                .header("Upgrade", "tcp");
            return response.body(Full::default()).unwrap();
        }
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = head.uri.to_string();
        let path = path.replace("/v1.41/", "/").replace("/v1.39/", "/");
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let recorded = (head.method, path, body);
        let answer = self.answer(&recorded);
        self.recorded.lock().push(recorded);
        answer
    }

    fn serve(self: &Arc<Self>, socket: &Path) -> JoinHandle<()> {
        let listener = UnixListener::bind(socket).unwrap();
        let engine = self.clone();
        tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let engine = engine.clone();
                let service = hyper::service::service_fn(move |request| {
                    let engine = engine.clone();
                    async move { Ok::<_, Infallible>(engine.call(request).await) }
                });
                connections.spawn(async move {
                    let _ = hyper::server::conn::http1::Builder::new()
                        .half_close(true)
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades()
                        .await;
                });
            }
        })
    }

    /// Returns the body of the last request with this method and path suffix.
    fn last(&self, method: &str, end: &str) -> Value {
        let recorded = self.recorded.lock();
        let mut recorded = recorded.iter().rev();
        let request = recorded.find(|(m, path, _)| m == method && path.ends_with(end));
        request.unwrap().2.clone()
    }
}

struct DockerFixture {
    world: TestEnv,
    engine: Arc<Engine>,
    hooks: Hooks,
    proxy: Proxy,
    _serving: [JoinHandle<()>; 2],
}

async fn start_fixture(hooks: Hooks, policy: &str) -> DockerFixture {
    let mut world = TestEnv::new();
    world.options.mode = Mode::Docker;
    world.options.hook_timeout = Duration::from_secs(5);
    let engine = Arc::new(Engine::default());
    let serving = engine.serve(&world.options.runtime);
    let socket = world.path("koordlet.sock");
    let hook_server = hooks.serve(&socket);
    world.register("koordlet.json", &socket, policy, &ALL);
    let proxy = world.proxy().await;
    DockerFixture {
        world,
        engine,
        hooks,
        proxy,
        _serving: [serving, hook_server],
    }
}

impl DockerFixture {
    async fn send(&self, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
        let stream = self.connect().await;
        Self::send_over(stream, method, path, body).await
    }

    async fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.world.options.listen).await;
        stream.unwrap()
    }

    async fn send_over(
        stream: UnixStream,
        method: &str,
        path: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("/v1.41{path}"))
            .header("Host", "docker")
            .header("Content-Type", "application/json");
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (
            head.status,
            serde_json::from_slice(&body).unwrap_or_default(),
        )
    }

    async fn create(&self, name: &str, config: Value) -> String {
        let path = format!("/containers/create?name={name}");
        let (status, answer) = self.send("POST", &path, config).await;
        assert_eq!(status, 201, "{answer}");
        answer["Id"].as_str().unwrap().to_owned()
    }

    /// Creates a pod with a container; returns their ids.
    async fn pod(&self) -> (String, String) {
        let sandbox = self.create("k8s_POD_web-0_shop_4d0a_1", sandbox()).await;
        let name = "k8s_main_web-0_shop_4d0a_0";
        let container = self.create(name, container(&sandbox)).await;
        (sandbox, container)
    }
}

fn sandbox() -> Value {
    json!({
        "Image": "pause", "Entrypoint": ["/pause"], "MacAddress": "",
        "Labels": {"io.kubernetes.docker.type": "podsandbox", "app": "web", "annotation.note": "n"},
        "HostConfig": {"NetworkMode": "host", "CgroupParent": "kubepods-besteffort-pod4d0a.slice",
            "CpuShares": 2, "OomScoreAdj": -998},
        "NetworkingConfig": {"EndpointsConfig": {}}})
}

fn container(sandbox: &str) -> Value {
    json!({
        "Image": "web", "Env": ["Z=26", "B=$(Z)"],
        "Labels": {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": sandbox,
            "annotation.io.kubernetes.container.hash": "f00"},
        "HostConfig": {"NetworkMode": format!("container:{sandbox}"), "ReadonlyRootfs": true,
            "CgroupParent": "kubepods-besteffort-pod4d0a.slice", "CpuShares": 1024, "CpuQuota": 20000,
            "CpuPeriod": 100_000, "Memory": 1 << 30, "OomScoreAdj": 937}})
}

#[tokio::test]
async fn a_pod_of_docker_is_adjusted() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    let (sandbox_id, _) = stage.pod().await;

    let mut expected = sandbox();
    // The values of the hook server's response, in Docker's form.
    expected["HostConfig"]["CgroupParent"] = "sub".into();
    assert_eq!(stage.engine.last("POST", "_4d0a_1"), expected);

    let mut expected = container(&sandbox_id);
    expected["Env"] = json!(["Z=26", "B=2", "AAA=new"]);
    let host = &mut expected["HostConfig"];
    host["CpuShares"] = 4096.into();
    host["CpuQuota"] = (-1).into();
    host["CpusetCpus"] = "0-1".into();
    assert_eq!(stage.engine.last("POST", "_4d0a_0"), expected);

    let calls = stage.hooks.all();
    let [(_, HookCall::Pod(pod)), (_, HookCall::Container(of))] = calls.as_slice() else {
        panic!("{calls:?}");
    };
    let meta = pod.pod_meta.clone().unwrap();
    assert_eq!(
        (&*meta.name, &*meta.namespace, &*meta.uid, meta.attempt),
        ("web-0", "shop", "4d0a", 1)
    );
    assert_eq!(pod.runtime_handler, "docker");
    assert_eq!(pod.annotations["note"], "n");
    assert_eq!(pod.labels["app"], "web");
    let group = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod4d0a.slice";
    assert_eq!(pod.cgroup_parent, group);
    assert_eq!(of.pod_meta, pod.pod_meta);
    assert_eq!(of.container_meta.as_ref().unwrap().name, "main");
    assert_eq!(of.pod_labels["hooked"], "pod");
    assert_eq!(
        of.container_annotations["io.kubernetes.container.hash"],
        "f00"
    );
    assert_eq!(of.container_resources.as_ref().unwrap().oom_score_adj, 937);
}

#[tokio::test]
async fn hooks_run_on_update_start_and_stop() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    let (sandbox_id, id) = stage.pod().await;
    let path = |id: &str, verb: &str| format!("/containers/{id}/{verb}");

    let (status, _) = stage.send("POST", &path(&id, "start"), Value::Null).await;
    assert_eq!(status, 204);
    let update = json!({"Memory": 2_i64 << 30, "CpuShares": 512, "RestartPolicy": {"Name": "no"}});
    let (status, answer) = stage.send("POST", &path(&id, "update"), update).await;
    assert_eq!(
        (status, answer),
        (StatusCode::OK, json!({"Warnings": null}))
    );
    let got = stage.engine.last("POST", "/update");
    assert_eq!(got["Memory"], json!(2_i64 << 30));
    assert_eq!(got["CpuShares"], 4096);
    assert_eq!(got["CpusetCpus"], "0-1");
    assert_eq!(got["RestartPolicy"], json!({"Name": "no"}));
    for id in [&id, &sandbox_id] {
        let (status, _) = stage
            .send("POST", &format!("{}?t=30", path(id, "stop")), Value::Null)
            .await;
        assert_eq!(status, 204);
        let (status, _) = stage
            .send("DELETE", &format!("/containers/{id}"), Value::Null)
            .await;
        assert_eq!(status, 204);
    }
    let names: Vec<_> = stage
        .hooks
        .all()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        names,
        [
            "PreRunPodSandbox",
            "PreCreateContainer",
            "PreStartContainer",
            "PostStartContainer",
            "PreUpdateContainerResources",
            "PostStopContainer",
            "PostStopPodSandbox"
        ]
    );
    // Requests for unknown containers are refused by the engine.
    let (status, answer) = stage.send("POST", &path(&id, "stop"), Value::Null).await;
    assert_eq!(status, 404);
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .starts_with("No such container")
    );
}

#[tokio::test]
async fn a_proxy_that_was_restarted_asks_the_engine() {
    let mut stage = start_fixture(Hooks::default(), "Fail").await;
    let (_, id) = stage.pod().await;
    stage.proxy.context.shutdown.cancel();
    stage.proxy.running.await.unwrap().unwrap();
    stage.proxy = stage.world.proxy().await;
    let path = format!("/containers/{id}/update");
    let (status, _) = stage.send("POST", &path, json!({"Memory": 1 << 29})).await;
    assert_eq!(status, 200);
    let calls = stage.hooks.all().pop().unwrap();
    let ("PreUpdateContainerResources", HookCall::Container(calls)) = calls else {
        panic!("{calls:?}");
    };
    assert_eq!(calls.pod_meta.unwrap().name, "web-0");
    assert_eq!(calls.pod_labels["app"], "web");
    let resources = calls.container_resources.unwrap();
    assert_eq!(resources.memory_limit_in_bytes, 1 << 29);
    assert_eq!(resources.oom_score_adj, 937);
    assert_eq!(calls.container_meta.unwrap().name, "main");
}

#[tokio::test(start_paused = true)]
async fn connected_client_is_served_once_during_shutdown() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    let stream = stage.connect().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.proxy.context.shutdown.cancel();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (status, _) = DockerFixture::send_over(stream, "GET", "/version", Value::Null).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn foreign_containers_pass_unchanged() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    let config = json!({"Image": "tool", "HostConfig": {"CpuShares": 7}});
    let id = stage.create("tool", config.clone()).await;
    assert_eq!(stage.engine.last("POST", "create?name=tool"), config);
    let (status, _) = stage
        .send("POST", &format!("/containers/{id}/start"), Value::Null)
        .await;
    assert_eq!(status, 204);
    let (status, answer) = stage
        .send("GET", "/containers/none/json", Value::Null)
        .await;
    assert_eq!(status, 404);
    assert_eq!(answer, json!({"message": "No such container: none"}));
    let mut exempt = sandbox();
    exempt["Labels"]["runtimeproxy.koordinator.sh/skip-hookserver"] = "true".into();
    stage
        .create("k8s_POD_web-1_shop_4d0b_0", exempt.clone())
        .await;
    assert_eq!(stage.engine.last("POST", "_4d0b_0"), exempt);
    assert!(stage.hooks.all().is_empty());
}

#[tokio::test]
async fn failure_policy_decides_on_hooks_and_bodies() {
    let malformed = || Bytes::from_static(b"{\"HostConfig\": ");
    for (policy, expected) in [("Ignore", 201), ("Fail", 500)] {
        let stage = start_fixture(Hooks::failing(), policy).await;
        let path = "/containers/create?name=k8s_POD_web-0_shop_4d0a_1";
        let (status, answer) = stage.send("POST", path, sandbox()).await;
        assert_eq!(status, expected);
        if policy == "Fail" {
            let message = answer["message"].as_str().unwrap();
            assert!(message.starts_with("hook server err: "), "{message}");
            assert!(stage.engine.containers.lock().is_empty());
        } else {
            assert_eq!(stage.engine.last("POST", "_4d0a_1"), sandbox());
        }
        let result = if policy == "Fail" {
            "refused"
        } else {
            "success"
        };
        let calls = format!(r#"calls_total{{method="create",result="{result}"}} 1"#);
        stage.proxy.assert_metrics(&[&calls]);
        let mut stream = UnixStream::connect(&stage.world.options.listen)
            .await
            .unwrap();
        let body = malformed();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        if policy == "Fail" {
            assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
            assert!(
                answer.contains("failed to decode the body of a create request"),
                "{answer}"
            );
        }
    }
}

#[tokio::test]
async fn an_attached_stream_goes_both_ways_until_both_have_ended() {
    let stage = start_fixture(Hooks::default(), "Fail").await;
    let mut stream = UnixStream::connect(&stage.world.options.listen)
        .await
        .unwrap();
    let head = "POST /v1.41/containers/ab/attach?stream=1 HTTP/1.1\r\nHost: docker\r\n\
                Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let input: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "));
    // A stopping proxy ends no stream.
    stage.proxy.context.shutdown.cancel();
    stream.write_all(&input).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut output = Vec::new();
    stream.read_to_end(&mut output).await.unwrap();
    output.reverse();
    assert_eq!(output, input);
    stage.proxy.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn missing_engine_fails_start_and_later_requests() {
    let mut world = TestEnv::new();
    world.options.mode = Mode::Docker;
    let error = world.proxy_with(world.options.clone()).await.unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("does not answer requests of the Docker API"),
        "{error}"
    );

    let stage = start_fixture(Hooks::default(), "Ignore").await;
    std::fs::remove_file(&stage.world.options.runtime).unwrap();
    let (status, answer) = stage.send("GET", "/_ping", Value::Null).await;
    assert_eq!(status, 502);
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .contains("failed to connect to the Docker engine")
    );
}
