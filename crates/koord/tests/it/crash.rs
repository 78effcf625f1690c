//! `kill -9` of the whole cluster under write load.

use crate::harness::{Up, exclusive};
use crate::watched::WatchedObjects;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use koord_host::testing::eventually_blocking;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Number of clusters that are killed; `KOORD_CRASHES` overrides it.
const ROUNDS: usize = 20;
/// Number of concurrent writers.
const WRITERS: usize = 8;

fn revision(map: &ConfigMap) -> u64 {
    map.resource_version()
        .and_then(|text| text.parse().ok())
        .expect("a numeric resourceVersion")
}

fn config_map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.data = Some(BTreeMap::from([("key".to_owned(), "value".repeat(50))]));
    map
}

/// After every crash every acknowledged write is stored, and no resourceVersion that a client has seen is
/// used for another write.
#[test]
fn kills_lose_nothing_that_was_acknowledged() {
    let _machine = exclusive();
    // Cgroups of another program (a kubelet) are not expected to go away.
    let existing = kubepods();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut acknowledged: BTreeMap<String, u64> = BTreeMap::new();
    let mut highest = 0;
    let mut revisions = BTreeSet::new();
    let rounds = std::env::var("KOORD_CRASHES");
    let rounds = rounds.map_or(ROUNDS, |text| text.parse().expect("a number"));
    for round in 0..rounds {
        let mut up = Up::start(dir.path(), &[]);
        let written = runtime.block_on(async {
            let client = up.client().await;
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let stored: BTreeMap<String, u64> = maps
                .list(&ListParams::default())
                .await
                .expect("a list")
                .iter()
                .map(|map| (map.name_any(), revision(map)))
                .collect();
            for (name, revision) in &acknowledged {
                assert_eq!(stored.get(name), Some(revision), "round {round}: {name}");
            }
            write_until_killed(&maps, round, &mut up).await
        });
        let before = highest;
        for (name, revision) in written {
            assert!(
                revision > before && revisions.insert(revision),
                "round {round}: {revision} was used before ({before})"
            );
            highest = highest.max(revision);
            acknowledged.insert(name, revision);
        }
    }
    assert!(
        acknowledged.len() >= rounds,
        "the kills came too early to prove anything"
    );
    check_no_leftovers(dir.path(), &runtime, &existing);
}

/// Writes as fast as acknowledgements come; kills after a number of them that differs by round, while a
/// request of each writer is in flight, and returns the acknowledged writes.
async fn write_until_killed(
    maps: &Api<ConfigMap>,
    round: usize,
    up: &mut Up,
) -> Vec<(String, u64)> {
    let (sender, mut acknowledged) = mpsc::unbounded_channel();
    for writer in 0..WRITERS {
        let (maps, sender) = (maps.clone(), sender.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let map = config_map(&format!("load-{round}-{writer}-{number}"));
                let defaults = PostParams::default();
                let create = maps.create(&defaults, &map);
                // After the kill no server answers.
                let Ok(Ok(stored)) = tokio::time::timeout(Duration::from_secs(5), create).await
                else {
                    return;
                };
                if sender.send((stored.name_any(), revision(&stored))).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut written = Vec::new();
    for _ in 0..3 + round * 7 % 40 {
        written.push(acknowledged.recv().await.expect("the server is up"));
    }
    up.kill();
    while let Some(last) = acknowledged.recv().await {
        written.push(last);
    }
    written
}

/// Checks that a pod's processes end with the cluster, that the next start removes what the crash left, and
/// that a clean stop leaves nothing.
fn check_no_leftovers(dir: &Path, runtime: &tokio::runtime::Runtime, existing: &[PathBuf]) {
    let mut up = Up::start(dir, &[]);
    runtime.block_on(run_a_pod(&up, &["/bin/sleep", SECONDS]));
    assert_eq!(sleepers(), 1);
    up.kill();
    drop(up);
    let mut up = Up::start(dir, &[]);
    eventually_blocking("the pod to be started again, once", || {
        (sleepers() == 1).then_some(())
    });
    assert_eq!(up.interrupt(), Some(0));
    eventually_blocking("the pod's process to end", || {
        (sleepers() == 0).then_some(())
    });
    nothing_is_left(existing);
}

fn nothing_is_left(existing: &[PathBuf]) {
    for group in kubepods() {
        assert!(
            existing.contains(&group),
            "{} is left behind",
            group.display()
        );
    }
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_pods_and_leaves_nothing() {
    let _machine = exclusive();
    let existing = kubepods();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut up = Up::start(dir.path(), &["--memory"]);
    // It ignores SIGTERM.
    let script = format!("trap '' TERM; exec /bin/sleep {SECONDS}");
    runtime.block_on(run_a_pod(&up, &["/bin/sh", "-c", &script]));
    eventually_blocking("the pod's process", || (sleepers() == 1).then_some(()));
    up.send(rustix::process::Signal::INT);
    let file = dir.path().join("cluster.json");
    eventually_blocking("the cluster to be stopping", || {
        (!file.exists()).then_some(())
    });
    assert_eq!(up.interrupt(), Some(0));
    assert_eq!(sleepers(), 0);
    nothing_is_left(&existing);
}

/// Returns the `kubepods` cgroups of this machine.
fn kubepods() -> Vec<PathBuf> {
    let trees = ["cpu", "memory", "cpuset", "unified", ""];
    let groups = trees.map(|tree| Path::new("/sys/fs/cgroup").join(tree).join("kubepods"));
    groups.into_iter().filter(|group| group.exists()).collect()
}

/// An odd number of seconds by which the pod's process is found.
const SECONDS: &str = "98761.5";

/// Creates a pod with the command, and waits until it runs.
async fn run_a_pod(up: &Up, command: &[&str]) {
    let client = up.client().await;
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let mut watched = WatchedObjects::<Pod>::start(&client, &stop);
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = serde_json::from_value(serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "sleeper"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "image": "host", "command": command,
        }]},
    }))
    .expect("a pod");
    pods.create(&PostParams::default(), &pod)
        .await
        .expect("created");
    let is_running = |pod: &Pod| {
        pod.status
            .as_ref()?
            .phase
            .as_deref()
            .map(|it| it == "Running")
    };
    watched
        .until("the pod to run", |all| {
            all.get("sleeper").and_then(|pod| is_running(pod)) == Some(true)
        })
        .await;
}

/// Counts the processes of the pod.
fn sleepers() -> usize {
    let processes = std::fs::read_dir("/proc").expect("procfs").flatten();
    processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| {
            line.split(|byte| *byte == 0)
                .any(|argument| argument == SECONDS.as_bytes())
        })
        .count()
}
