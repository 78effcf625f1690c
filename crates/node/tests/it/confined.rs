use crate::support::{World, container};
use koord_host::{Controller, Version};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_in_kubelet_shaped_groups() {
    let world = World::new().await;
    if !world.can_confine() {
        return;
    }
    let node = world.start().await;
    let sleep = json!(["/bin/sleep", "1000"]);
    let batch = json!({"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"});
    world
        .create(
            "batch",
            json!({"containers": [
            {"name": "c", "image": "none", "command": sleep, "resources": {"requests": batch}}]}),
        )
        .await;
    let limits = json!({"cpu": "500m", "memory": "64Mi"});
    world
        .create(
            "service",
            json!({"containers": [
            {"name": "c", "image": "none", "command": sleep,
             "resources": {"requests": {"cpu": "250m"}, "limits": limits}}]}),
        )
        .await;
    let batch = world.wait_for_phase("batch", "Running").await;
    let group = world.group(&batch);
    assert!(group.path().as_str().contains("kubepods/besteffort/pod"));
    assert_eq!(group.cpu_shares().unwrap(), Some(2));
    assert_eq!(group.cfs_quota().unwrap(), Some(-1));
    let id = container(&batch)["containerID"]
        .as_str()
        .unwrap()
        .replace("koord://", "");
    let inner = world.root.cgroup(&group.path().join(&id).unwrap());
    let procs = inner.procs().unwrap();
    assert_eq!(procs.len(), 1);
    let place = koord_host::procfs::process::cgroup_of(&world.root, procs[0], None).unwrap();
    if world.root.unified_mount().is_some() {
        assert_eq!(place.as_deref(), Some(inner.path().as_str()));
    }
    if world.root.v1_mount(Controller::Memory).is_some() {
        let memory = Some(Controller::Memory);
        let place = koord_host::procfs::process::cgroup_of(&world.root, procs[0], memory).unwrap();
        assert_eq!(place.as_deref(), Some(inner.path().as_str()));
    }

    let service = world.wait_for_phase("service", "Running").await;
    let group = world.group(&service);
    // A quarter of a core is the weight 10 of cgroup v2, which reads as 237 shares.
    let quarter = match world.root.version() {
        Version::V1 => 256,
        Version::V2 => 237,
    };
    assert_eq!(group.cpu_shares().unwrap(), Some(quarter));
    assert_eq!(group.cfs_quota().unwrap(), Some(50_000));
    assert_eq!(group.memory_limit().unwrap(), Some(64 << 20));
    let burstable = world.root.cgroup(&group.path().parent().unwrap());
    assert_eq!(burstable.cpu_shares().unwrap(), Some(quarter));

    world.delete("batch").await;
    world.wait_for_removal("batch").await;
    assert!(!inner.exists() && !world.group(&batch).exists());
    world.delete("service").await;
    world.wait_for_removal("service").await;
    node.stop().await;
    assert!(
        !world.root.cgroup(&world.parent).exists(),
        "everything that was made is removed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_over_its_memory_limit_is_reported_as_such() {
    let world = World::new().await;
    if !world.can_confine() {
        return;
    }
    let node = world.start().await;
    let script = "x=xxxxxxxx; while :; do x=$x$x; done";
    world
        .create(
            "greedy",
            json!({"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "none", "command": ["/bin/sh", "-c", script],
             "resources": {"limits": {"memory": "16Mi"}}}]}),
        )
        .await;
    let pod = world.wait_for_phase("greedy", "Failed").await;
    let state = container(&pod)["state"]["terminated"].clone();
    assert_eq!(
        (&state["reason"], &state["exitCode"]),
        (&json!("OOMKilled"), &json!(137))
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlives_its_container() {
    let world = World::new().await;
    if !world.can_confine() {
        return;
    }
    let node = world.start().await;
    let script = "setsid sleep 1000 & echo $!; exit 0";
    world.script("parent", "Never", script).await;
    world.wait_for_phase("parent", "Succeeded").await;
    let pid: u32 = world.log("parent").await.trim().parse().unwrap();
    let stat = koord_host::procfs::ProcessStat::read(&world.root, pid).unwrap();
    assert!(
        stat.is_none_or(|stat| stat.state == 'Z'),
        "its process is still there"
    );
    node.stop().await;
}
