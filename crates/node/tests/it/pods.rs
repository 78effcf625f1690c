use crate::support::{World, container, phase_of};
use koord_node::Options;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_to_completion_and_leaves_its_log() {
    let world = World::new().await;
    let node = world.start().await;
    world
        .create("job", json!({
            "restartPolicy": "Never",
            "containers": [{
                "name": "c", "image": "none",
                "command": ["/bin/sh", "-c"], "args": ["echo hello $(WHO); echo oops >&2; pwd"],
                "workingDir": "/tmp",
                "env": [{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
            }]
        }))
        .await;
    let pod = world.wait_for_phase("job", "Succeeded").await;
    let state = container(&pod)["state"]["terminated"].clone();
    assert_eq!(
        (&state["exitCode"], &state["reason"]),
        (&json!(0), &json!("Completed"))
    );
    let id = state["containerID"].as_str().unwrap();
    assert_eq!(id.strip_prefix("koord://").unwrap().len(), 64);
    let log = world.log("job").await;
    for line in ["hello job\n", "oops\n", "/tmp\n"] {
        assert!(log.contains(line), "{log}");
    }
    world.delete("job").await;
    world.wait_for_removal("job").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_and_missing_programs_fail_the_pod() {
    let world = World::new().await;
    let node = world.start().await;
    world.script("three", "Never", "exit 3").await;
    world.script("signal", "Never", "kill -9 $$$$").await;
    let missing = json!({"restartPolicy": "Never", "containers": [
        {"name": "c", "image": "none", "command": ["/no/such/program"]}]});
    world.create("missing", missing).await;
    let state = |pod| container(&pod)["state"]["terminated"].clone();
    let three = state(world.wait_for_phase("three", "Failed").await);
    assert_eq!(
        (&three["exitCode"], &three["reason"]),
        (&json!(3), &json!("Error"))
    );
    let signal = state(world.wait_for_phase("signal", "Failed").await);
    assert_eq!(
        (&signal["exitCode"], &signal["signal"]),
        (&json!(137), &json!(9))
    );
    let missing = state(world.wait_for_phase("missing", "Failed").await);
    assert_eq!(missing["reason"], "StartError");
    assert!(
        missing["message"]
            .as_str()
            .unwrap()
            .contains("/no/such/program")
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_container_is_restarted_with_growing_pauses() {
    let world = World::new().await;
    let node = world.start().await;
    world.script("crash", "Always", "exit 1").await;
    let pod = world
        .pod_when("crash", |pod| {
            let status = pod
                .status
                .as_ref()
                .and_then(|s| s.container_statuses.as_ref());
            status.is_some_and(|status| status[0].restart_count >= 3)
                && container(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
    assert_eq!(container(&pod)["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(phase_of(&pod), "Running");
    world.event("BackOff").await;
    world.delete("crash").await;
    world.wait_for_removal("crash").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn container_without_command_is_rejected_with_reason() {
    let world = World::new().await;
    let node = world.start().await;
    world
        .create(
            "image",
            json!({"containers": [{"name": "c", "image": "nginx:1.27"}]}),
        )
        .await;
    let pod = world
        .pod_when("image", |pod| {
            let status = pod
                .status
                .as_ref()
                .and_then(|s| s.container_statuses.as_ref());
            status.is_some() && container(pod)["state"]["waiting"]["reason"] == "ErrImageNeverPull"
        })
        .await;
    let message = container(&pod)["state"]["waiting"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        message.contains("nginx:1.27") && message.contains("command"),
        "{message}"
    );
    assert_eq!(phase_of(&pod), "Pending");
    let event = world.event("ErrImageNeverPull").await;
    assert_eq!(event.involved_object.name.as_deref(), Some("image"));
    world.delete("image").await;
    world.wait_for_removal("image").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_gets_a_signal_and_its_grace() {
    let world = World::new().await;
    let node = world.start().await;
    let script = |trap: &str| format!("trap '{trap}' TERM; echo up; while :; do sleep 0.05; done");
    world
        .script("polite", "Always", &script("echo bye; exit 0"))
        .await;
    let stubborn = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": "none", "command": ["/bin/sh", "-c", script("")]}]
    });
    world.create("stubborn", stubborn).await;
    for name in ["polite", "stubborn"] {
        world
            .pod_when(name, |pod| {
                pod.status
                    .as_ref()
                    .and_then(|s| s.conditions.as_ref())
                    .is_some_and(|conditions| {
                        conditions
                            .iter()
                            .any(|c| c.type_ == "Ready" && c.status == "True")
                    })
            })
            .await;
        // The trap is set once the script has printed something.
        world
            .until("up", || async {
                let options = koord_node::LogOptions::default();
                use futures::StreamExt;
                let mut log = world.logs.open("default", name, "c", options).await.ok()?;
                log.next().await.map(|_| ())
            })
            .await;
    }
    let options = koord_node::LogOptions {
        follow: true,
        ..Default::default()
    };
    let log = world
        .logs
        .open("default", "polite", "c", options)
        .await
        .unwrap();
    world.delete("polite").await;
    world.delete("stubborn").await;
    world.wait_for_removal("polite").await;
    world.wait_for_removal("stubborn").await;
    use futures::StreamExt;
    let text: Vec<u8> = log
        .flat_map(|chunk| futures::stream::iter(chunk.unwrap()))
        .collect()
        .await;
    let text = String::from_utf8(text).unwrap();
    // The shell may also print that its `sleep` got the signal.
    assert!(
        text.starts_with("up\n") && text.lines().any(|line| line == "bye"),
        "{text}"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_run_first() {
    let world = World::new().await;
    let node = world.start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("order");
    let say = |word: &str| {
        json!([
            "/bin/sh",
            "-c",
            format!("echo {word} >> {}", file.display())
        ])
    };
    world
        .create(
            "ordered",
            json!({
                "restartPolicy": "Never",
                "initContainers": [
                    {"name": "one", "image": "none", "command": say("one")},
                    {"name": "two", "image": "none", "command": say("two")}
                ],
                "containers": [{"name": "c", "image": "none", "command": say("main")}]
            }),
        )
        .await;
    let pod = world.wait_for_phase("ordered", "Succeeded").await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\nmain\n");
    let status = pod.status.unwrap();
    assert_eq!(status.init_container_statuses.unwrap().len(), 2);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfined_node_runs_pods_and_is_annotated() {
    let world = World::new().await;
    let node = world
        .start_with(Options {
            unconfined: true,
            ..world.options()
        })
        .await;
    let nodes: koord_kube::Api<k8s_openapi::api::core::v1::Node> =
        koord_kube::Api::all(world.client.clone());
    let annotations = nodes
        .get(crate::support::NODE)
        .await
        .unwrap()
        .metadata
        .annotations
        .unwrap();
    let confinement = &annotations[koord_node::machine::CONFINEMENT_ANNOTATION];
    assert!(confinement.starts_with("unconfined"), "{confinement}");
    world
        .script("free", "Never", "echo ran; sleep 1000 & echo left")
        .await;
    world.wait_for_phase("free", "Succeeded").await;
    assert!(world.log("free").await.starts_with("ran\n"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_pods_than_allowed_are_refused() {
    let world = World::new().await;
    let node = world
        .start_with(Options {
            max_pods: 1,
            ..world.options()
        })
        .await;
    world.script("first", "Always", "sleep 1000").await;
    world.wait_for_phase("first", "Running").await;
    world.script("second", "Always", "sleep 1000").await;
    let pod = world.wait_for_phase("second", "Failed").await;
    assert_eq!(pod.status.unwrap().reason.as_deref(), Some("OutOfpods"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_and_logs_are_served() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::new().await;
    let node = world.start().await;
    world.script("served", "Never", "echo over http").await;
    world.wait_for_phase("served", "Succeeded").await;
    let nodes: koord_kube::Api<k8s_openapi::api::core::v1::Node> =
        koord_kube::Api::all(world.client.clone());
    let status = nodes
        .get(crate::support::NODE)
        .await
        .unwrap()
        .status
        .unwrap();
    let port = status
        .daemon_endpoints
        .unwrap()
        .kubelet_endpoint
        .unwrap()
        .port;
    let ask = async |path: &str, headers: &str| {
        let address = ("127.0.0.1", u16::try_from(port).unwrap());
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    let local = "Host: localhost\r\n";
    let code = async |path: &str, headers: &str| {
        let answer = ask(path, headers).await;
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    let (reader, other) = (world.token("reader").await, world.token("other").await);
    world.allow("reader", "nodes/proxy").await;
    let bearer = |token: &str| format!("{local}Authorization: Bearer {token}\r\n");
    for path in [
        "/pods",
        "/configz",
        "/containerLogs/default/served/c",
        "/none",
    ] {
        assert_eq!(code(path, local).await, "403", "{path}");
        assert_eq!(code(path, &bearer(&other)).await, "403", "{path}");
        assert_eq!(code(path, &bearer("made-up")).await, "401", "{path}");
        for foreign in [
            "Host: example.com\r\n",
            "Host: localhost\r\nOrigin: https://example.com\r\n",
        ] {
            let token = format!("{foreign}Authorization: Bearer {reader}\r\n");
            assert_eq!(code(path, &token).await, "421", "{path} {foreign}");
        }
    }
    let fine = world.token("fine").await;
    world.allow("fine", "nodes/pods").await;
    assert_eq!(code("/pods", &bearer(&fine)).await, "200");
    assert_eq!(code("/configz", &bearer(&fine)).await, "403");
    let get = async |path: &str| ask(path, &bearer(&reader)).await;
    assert!(ask("/healthz", local).await.ends_with("ok"));
    let pods = get("/pods").await;
    assert!(
        pods.contains("\"kind\":\"PodList\"") && pods.contains("koord://"),
        "{pods}"
    );
    assert!(
        get("/containerLogs/default/served/c?tailLines=1")
            .await
            .contains("over http")
    );
    assert!(
        get("/containerLogs/default/served/..")
            .await
            .starts_with("HTTP/1.1 400")
    );
    assert!(
        get("/containerLogs/default/served/d")
            .await
            .starts_with("HTTP/1.1 404")
    );
    assert!(
        get("/configz")
            .await
            .contains("\"cgroupDriver\":\"cgroupfs\"")
    );
    node.stop().await;
}

/// The PodResources service answers like a kubelet whose managers are off: it lists the pods, for example for
/// an exporter of NUMA nodes.
#[tokio::test(flavor = "multi_thread")]
async fn pod_resources_lists_the_pods_that_have_not_ended() {
    use koord_rpc::grpc;
    use koord_rpc::podresources::pod_resources_lister_client::PodResourcesListerClient;
    use koord_rpc::podresources::{
        AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
    };
    let world = World::new().await;
    let node = world.start().await;
    let sleeper =
        |name: &str| json!({"name": name, "image": "none", "command": ["/bin/sleep", "600"]});
    let with = |mut container: Value, policy: &str| {
        container["restartPolicy"] = json!(policy);
        container
    };
    let once = json!({"name": "once", "image": "none", "command": ["/bin/true"]});
    let spec = json!({"initContainers": [once, with(sleeper("side"), "Always")],
        "containers": [sleeper("a"), sleeper("b")]});
    world.create("runs", spec).await;
    world.script("over", "Never", "exit 0").await;
    world.wait_for_phase("runs", "Running").await;
    world.wait_for_phase("over", "Succeeded").await;
    let socket = world.dir.path().join("pod-resources/kubelet.sock");
    let mut kubelet = PodResourcesListerClient::new(grpc::connect(&socket));
    let text = |pod: &PodResources| {
        let containers = pod.containers.iter().map(|it| {
            let own = (it.cpu_ids.len(), it.memory.len(), it.devices.len());
            assert_eq!(own, (0, 0, 0), "{it:?}");
            it.name.as_str()
        });
        let containers: Vec<&str> = containers.collect();
        format!("{}/{}: {}", pod.namespace, pod.name, containers.join(" "))
    };
    let all = kubelet.list(ListPodResourcesRequest {}).await.unwrap();
    let all: Vec<String> = all.into_inner().pod_resources.iter().map(text).collect();
    assert_eq!(all, ["default/runs: side a b"]);
    let request = AllocatableResourcesRequest {};
    let response = kubelet.get_allocatable_resources(request).await.unwrap();
    assert_eq!(response.into_inner(), Default::default());
    let mut get = async |name: &str| {
        let (pod_name, pod_namespace) = (name.to_owned(), "default".to_owned());
        let request = GetPodResourcesRequest {
            pod_name,
            pod_namespace,
        };
        let answer = kubelet.get(request).await.map(tonic::Response::into_inner);
        answer.map(|answer| text(&answer.pod_resources.unwrap()))
    };
    assert_eq!(get("runs").await.unwrap(), "default/runs: side a b");
    let error = get("over").await.unwrap_err();
    assert_eq!(error.message(), "pod over in namespace default not found");
    node.stop().await;
    // A restarted node replaces the socket.
    let restarted = world.start().await;
    let list = || async {
        let mut kubelet = PodResourcesListerClient::new(grpc::connect(&socket));
        kubelet.list(ListPodResourcesRequest {}).await.ok()
    };
    world.until("PodResources again", list).await;
    restarted.stop().await;
}
