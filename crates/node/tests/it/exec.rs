//! Commands in containers, and probes.

use crate::support::{World, container};
use koord_node::{ExecOptions, Execs, Options, Session};
use serde_json::{Value, json};

async fn outcome(mut session: Session) -> (String, String, i32) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some((is_error, piece)) = session.output.recv().await {
        if is_error { &mut err } else { &mut out }.extend_from_slice(&piece);
    }
    let code = session.exit.wait().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(out), text(err), code)
}

fn shell(script: &str) -> ExecOptions {
    ExecOptions {
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        ..ExecOptions::default()
    }
}

#[tokio::test]
async fn commands_run_where_their_container_does() {
    let world = World::new().await;
    // Checked before the node creates its groups.
    let confined = world.can_confine();
    let execs = Execs::default();
    assert!(
        execs
            .check("default", "p", "c")
            .unwrap_err()
            .contains("does not run")
    );
    let node = world
        .start_with(Options {
            execs: Some(execs.clone()),
            ..world.options()
        })
        .await;
    let spec = json!({"terminationGracePeriodSeconds": 0, "containers": [{
        "name": "c", "image": "host", "command": ["/bin/sleep", "1000"],
        "workingDir": "/usr", "env": [{"name": "X", "value": "7"}],
    }]});
    world.create("p", spec).await;
    let pod = world.wait_for_phase("p", "Running").await;
    let run = async |options| execs.start("default", "p", "c", options).await;

    let script = "echo $X; pwd; cat /proc/self/cgroup; echo no >&2; exit 3";
    let (out, err, code) = outcome(run(shell(script)).await.unwrap()).await;
    assert!(out.starts_with("7\n/usr\n"), "{out}");
    assert_eq!((err.as_str(), code), ("no\n", 3));
    if confined {
        let id = container(&pod)["containerID"].clone();
        let id = id.as_str().unwrap().trim_start_matches("koord://");
        assert!(out.contains(id), "{out}");
    }

    let mut reads = shell("cat; exit 4");
    reads.stdin = true;
    let mut session = run(reads).await.unwrap();
    let stdin = session.stdin.take().unwrap();
    for piece in ["ab", "c"] {
        stdin.send(piece.into()).await.unwrap();
    }
    drop(stdin);
    assert_eq!(outcome(session).await, ("abc".to_owned(), String::new(), 4));

    let mut asks = shell("read x; stty size; tty; kill -9 $$");
    (asks.stdin, asks.tty) = (true, true);
    let session = run(asks).await.unwrap();
    session.terminal.as_ref().unwrap().resize(81, 23);
    session
        .stdin
        .as_ref()
        .unwrap()
        .send("go\n".into())
        .await
        .unwrap();
    let (out, _, code) = outcome(session).await;
    assert!(out.contains("23 81\r\n/dev/pts/"), "{out:?}");
    assert_eq!(code, 128 + 9);

    for (pod, container, says) in [("p", "d", "container d of pod p"), ("q", "c", "pod q")] {
        let error = execs.start("default", pod, container, shell("true")).await;
        let error = error.unwrap_err();
        assert!(
            error.contains(says) && error.contains("does not run here"),
            "{error}"
        );
    }
    let none = ExecOptions {
        command: vec!["/no/such".to_owned()],
        ..ExecOptions::default()
    };
    let error = run(none).await.unwrap_err();
    assert!(error.contains("/no/such"), "{error}");

    // A client that disconnects ends its command.
    let mut session = run(shell("echo $$; exec sleep 1000")).await.unwrap();
    let (_, pid) = session.output.recv().await.unwrap();
    let pid = std::str::from_utf8(&pid).unwrap().trim().to_owned();
    drop(session);
    world
        .until("the command to end", || async {
            let ended = !std::path::Path::new("/proc").join(&pid).exists();
            ended.then_some(())
        })
        .await;
    node.stop().await;
}

fn state(pod: &k8s_openapi::api::core::v1::Pod) -> (bool, bool, i64) {
    let status = container(pod);
    (
        status["started"] == Value::Bool(true),
        status["ready"] == Value::Bool(true),
        status["restartCount"].as_i64().unwrap_or_default(),
    )
}

fn condition(pod: &k8s_openapi::api::core::v1::Pod, kind: &str) -> bool {
    let all = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut all = all.into_iter().flatten();
    all.any(|condition| condition.type_ == kind && condition.status == "True")
}

#[tokio::test]
async fn container_is_ready_after_successful_probes() {
    let world = World::new().await;
    let node = world.start().await;
    // The node's own directory is hidden from its pods.
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let file_exists = |name: &str| {
        json!({"exec": {"command": ["/usr/bin/test", "-e", file(name)]}, "periodSeconds": 1,
            "failureThreshold": 1})
    };
    let mut startup = file_exists("started");
    startup["failureThreshold"] = json!(1000);
    let spec = json!({"terminationGracePeriodSeconds": 0, "containers": [{
        "name": "c", "image": "host", "command": ["/bin/sleep", "1000"],
        "startupProbe": startup, "readinessProbe": file_exists("ready"),
    }]});
    std::fs::write(file("ready"), "").unwrap();
    world.create("p", spec).await;
    let pod = world.wait_for_phase("p", "Running").await;
    assert_eq!(state(&pod), (false, false, 0), "it has not started");
    assert!(!condition(&pod, "Ready"));
    let event = world.event("Unhealthy").await;
    assert_eq!(event.message.unwrap(), "Startup probe failed: exit code 1");

    std::fs::write(file("started"), "").unwrap();
    let pod = world
        .pod_when("p", |pod| state(pod) == (true, true, 0))
        .await;
    assert!(condition(&pod, "Ready") && condition(&pod, "ContainersReady"));
    std::fs::remove_file(file("ready")).unwrap();
    let pod = world
        .pod_when("p", |pod| state(pod) == (true, false, 0))
        .await;
    assert!(!condition(&pod, "Ready"));
    node.stop().await;
}

#[tokio::test]
async fn a_container_that_fails_its_liveness_probe_is_started_again() {
    let world = World::new().await;
    let node = world.start().await;
    // It ignores SIGTERM, so the grace period of the probe has to pass.
    let script = "trap '' TERM; while :; do sleep 1; done";
    let spec = json!({"terminationGracePeriodSeconds": 1000, "containers": [{
        "name": "c", "image": "host", "command": ["/bin/sh", "-c", script],
        "livenessProbe": {"exec": {"command": ["/bin/sh", "-c", "echo sick; exit 1"]},
            "periodSeconds": 1, "failureThreshold": 2, "terminationGracePeriodSeconds": 1},
    }]});
    world.create("p", spec).await;
    world.wait_for_phase("p", "Running").await;
    let pod = world.pod_when("p", |pod| state(pod).2 == 1).await;
    assert_eq!(container(&pod)["lastState"]["terminated"]["exitCode"], 137);
    let event = world.event("Unhealthy").await;
    assert_eq!(event.message.unwrap(), "Liveness probe failed: sick");
    let event = world.event("Killing").await;
    let message = "Container c failed liveness probe, will be restarted";
    assert_eq!(event.message.unwrap(), message);
    node.stop().await;
}

#[tokio::test]
async fn unsupported_probe_is_reported_and_succeeds() {
    let world = World::new().await;
    let node = world.start().await;
    let spec = json!({"terminationGracePeriodSeconds": 0, "containers": [{
        "name": "c", "image": "host", "command": ["/bin/sleep", "1000"],
        "readinessProbe": {"grpc": {"port": 1}},
    }]});
    world.create("p", spec).await;
    world.wait_for_phase("p", "Running").await;
    world
        .pod_when("p", |pod| state(pod) == (true, true, 0))
        .await;
    let event = world.event("ProbeNotRun").await;
    let message = "container c: readiness probe is not run: grpc is not supported here";
    assert_eq!(event.message.unwrap(), message);
    node.stop().await;
}
