//! Pods on a real containerd.

use crate::support::{RunningNode, World, container};
use k8s_openapi::api::core::v1::Pod;
use koord_host::testing::{Containerd, IMAGE};
use koord_node::{ExecOptions, Execs, Options, Runtime};
use koord_rpc::{cri, grpc};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

async fn options(containerd: &Containerd, world: &World) -> Options {
    let endpoint = format!("unix://{}", containerd.socket().display());
    Options {
        runtime: Some(Runtime::connect(&endpoint).await.unwrap()),
        ..world.options()
    }
}

async fn started(containerd: &Containerd, world: &World) -> RunningNode {
    world.start_with(options(containerd, world).await).await
}

/// Returns the numbers of sandboxes and containers.
async fn count_remaining(containerd: &Containerd) -> (usize, usize) {
    let channel = grpc::connect(containerd.socket());
    let mut client = cri::runtime_service_client::RuntimeServiceClient::new(channel);
    let sandboxes = client.list_pod_sandbox(cri::ListPodSandboxRequest::default());
    let sandboxes = sandboxes.await.unwrap().into_inner().items.len();
    let containers = client.list_containers(cri::ListContainersRequest::default());
    (
        sandboxes,
        containers.await.unwrap().into_inner().containers.len(),
    )
}

/// Returns the spec of a busybox pod that runs `script`.
fn spec(policy: &str, script: &str) -> Value {
    json!({
        "restartPolicy": policy, "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "c", "image": IMAGE, "command": ["/bin/sh", "-c", script]}]
    })
}

/// Returns the directories of groups, in any hierarchy, with this name below the hierarchy's root.
fn groups(world: &World) -> Vec<PathBuf> {
    let trees = Path::new("/sys/fs/cgroup").read_dir().unwrap().flatten();
    let groups = trees.map(|tree| world.parent.under(&tree.path()));
    groups.filter(|group| group.exists()).collect()
}

fn state(pod: &Pod) -> Value {
    container(pod)["state"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_in_a_runtime_and_leave_nothing() {
    let Some(containerd) = Containerd::for_test() else {
        return;
    };
    let world = World::new().await;
    let node = started(&containerd, &world).await;

    let script = "echo hello $WHO; cat /proc/self/oom_score_adj /proc/self/cgroup; \
                cat /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/cpu/cpu.cfs_quota_us; exit 3";
    let mut job = spec("Never", script);
    job["initContainers"] = json!([{"name": "i", "image": IMAGE, "command": ["true"]}]);
    job["containers"][0]["env"] = json!([{"name": "WHO",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    job["containers"][0]["resources"] = json!({"limits": {"cpu": "500m", "memory": "64Mi"},
        "requests": {"cpu": "250m", "memory": "32Mi"}});
    world.create("job", job).await;
    let pod = world.wait_for_phase("job", "Failed").await;
    let end = state(&pod)["terminated"].clone();
    assert_eq!(
        (&end["exitCode"], &end["reason"]),
        (&json!(3), &json!("Error"))
    );
    let id = end["containerID"].as_str().unwrap();
    let id = id.strip_prefix("containerd://").unwrap();
    let log = world.log("job").await;
    let uid = pod.metadata.uid.unwrap();
    let group = format!("{}/kubepods/burstable/pod{uid}/{id}\n", world.parent);
    for line in ["hello job\n", "\n256\n", "\n50000\n", "\n99", &group] {
        assert!(log.contains(line), "{line:?} is not in {log}");
    }
    // A finished pod keeps its log, and nothing in the runtime.
    assert_eq!(count_remaining(&containerd).await, (0, 0));
    world.delete("job").await;
    world.wait_for_removal("job").await;

    world.create("crash", spec("Always", "exit 1")).await;
    let has_restarted = |pod: &Pod| {
        let crash = container(pod);
        let waits = crash["state"]["waiting"]["reason"] == "CrashLoopBackOff";
        waits && crash["restartCount"].as_i64() >= Some(2)
    };
    world
        .pod_when("crash", |pod| {
            pod.status
                .as_ref()
                .is_some_and(|s| s.container_statuses.is_some())
                && has_restarted(pod)
        })
        .await;
    world.delete("crash").await;
    world.wait_for_removal("crash").await;

    // The container handles SIGTERM, and its output is in the log before the pod is removed.
    let polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    world.create("polite", spec("Always", polite)).await;
    world.wait_for_phase("polite", "Running").await;
    node.stop().await;
    assert_eq!(count_remaining(&containerd).await, (0, 0));
    assert_eq!(groups(&world), Vec::<PathBuf>::new());
    assert!(world.log("polite").await.contains("bye"));
}

#[tokio::test(flavor = "multi_thread")]
async fn image_pull_failure_is_reported() {
    let Some(containerd) = Containerd::for_test() else {
        return;
    };
    let world = World::new().await;
    let node = started(&containerd, &world).await;
    for (name, policy, reasons) in [
        ("never", "Never", &["ErrImageNeverPull"][..]),
        (
            "pulled",
            "IfNotPresent",
            &["ErrImagePull", "ImagePullBackOff"],
        ),
    ] {
        let mut pod = spec("Always", "true");
        pod["containers"][0]["image"] = json!("127.0.0.1:1/absent:1");
        pod["containers"][0]["imagePullPolicy"] = json!(policy);
        world.create(name, pod).await;
        let waits = |pod: &Pod| {
            let status = pod
                .status
                .as_ref()
                .and_then(|s| s.container_statuses.as_ref());
            let reason = status.map(|_| state(pod)["waiting"]["reason"].clone());
            let reason = reason.and_then(|reason| reason.as_str().map(str::to_owned));
            reason.is_some_and(|reason| reasons.contains(&&*reason))
        };
        let pod = world.pod_when(name, waits).await;
        let message = state(&pod)["waiting"]["message"].to_string();
        assert!(message.contains("127.0.0.1:1/absent:1"), "{message}");
        assert_eq!(container(&pod)["restartCount"], 0);
        world.delete(name).await;
        world.wait_for_removal(name).await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_outlive_a_restart_of_the_runtime_but_not_of_the_node() {
    let Some(containerd) = Containerd::for_test() else {
        return;
    };
    let world = World::new().await;
    let execs = Execs::default();
    let options = Options {
        execs: Some(execs.clone()),
        ..options(&containerd, &world).await
    };
    let node = world.start_with(options).await;
    let script = "while [ ! -e /go ]; do sleep 0.1; done; exit 7";
    world.create("stays", spec("Never", script)).await;
    world.create("also", spec("Always", "sleep 1000")).await;
    world.wait_for_phase("stays", "Running").await;
    world.wait_for_phase("also", "Running").await;
    containerd.kill();
    containerd.start_again();
    let command = |line: &str| ExecOptions {
        command: ["sh", "-c", line].map(str::to_owned).to_vec(),
        ..ExecOptions::default()
    };
    let echo = command("echo said; exit 4");
    let mut session = execs.start("default", "stays", "c", echo).await.unwrap();
    let (is_error, text) = session.output.recv().await.unwrap();
    assert_eq!((is_error, &text[..]), (false, &b"said\n"[..]));
    assert_eq!(session.exit.wait().await, Ok(4));
    // This command lets the container end, and may be killed with it before it has ended itself.
    let go = command("touch /go");
    let going = execs.start("default", "stays", "c", go).await.unwrap();
    let stays = world.wait_for_phase("stays", "Failed").await;
    assert_eq!(state(&stays)["terminated"]["exitCode"], 7);
    drop(going);

    // The next run finds what the last one left, although it has no runtime configured.
    node.crash(world.dir.path()).await;
    assert_eq!(count_remaining(&containerd).await, (1, 1));
    let node = world.start().await;
    let nothing = || async { (count_remaining(&containerd).await == (0, 0)).then_some(()) };
    world.until("nothing is left", nothing).await;
    node.stop().await;
    assert_eq!(groups(&world), Vec::<PathBuf>::new());
}
