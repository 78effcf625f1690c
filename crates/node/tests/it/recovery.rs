use crate::support::{World, container};
use koord_host::procfs::ProcessStat;

async fn crash(confined: bool) {
    let world = World::new().await;
    let mut options = world.options();
    options.unconfined = !confined;
    let node = world.start_with(options.clone()).await;
    // The grandchild survives the death of its parent's parent: the kernel signals children only.
    world
        .script("svc", "Always", "setsid sleep 1000 & echo $!; wait")
        .await;
    world
        .script("once", "Never", "echo started; exec sleep 1000")
        .await;
    let before = world.wait_for_phase("svc", "Running").await;
    world.wait_for_phase("once", "Running").await;
    let grandchild: u32 = world
        .until("log", || async {
            world.log("svc").await.trim().parse().ok()
        })
        .await;
    let alive = || {
        let stat = ProcessStat::read(&world.root, grandchild).unwrap();
        stat.is_some_and(|stat| stat.state != 'Z' && stat.comm == "sleep")
    };
    world
        .until("the grandchild runs", || async { alive().then_some(()) })
        .await;
    let old_id = container(&before)["containerID"].clone();
    let group = world.group(&before);
    node.crash(world.dir.path()).await;
    assert_eq!(group.exists(), confined, "a crash cleans nothing up");

    let node = world.start_with(options).await;
    let ended = || async { (!alive()).then_some(()) };
    world
        .until("the next start ends what was left", ended)
        .await;
    let after = world
        .pod_when("svc", |pod| {
            container(pod)["restartCount"] == 1 && container(pod)["state"]["running"].is_object()
        })
        .await;
    assert_ne!(container(&after)["containerID"], old_id);
    assert_eq!(
        container(&after)["lastState"]["terminated"]["exitCode"],
        137
    );
    let once = world.wait_for_phase("once", "Failed").await;
    let message = container(&once)["state"]["terminated"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.contains("restarted"), "{message}");
    node.stop().await;
    if confined {
        assert!(!world.root.cgroup(&world.parent).exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_is_cleaned_up_at_the_next_start() {
    if World::new().await.can_confine() {
        crash(true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_without_groups() {
    crash(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_leaves_nothing_and_resumes() {
    let world = World::new().await;
    let node = world.start().await;
    world.script("svc", "Always", "exec sleep 1000").await;
    let pod = world.wait_for_phase("svc", "Running").await;
    let group = world.group(&pod);
    node.stop().await;
    assert!(!group.exists() && !world.root.cgroup(&world.parent).exists());
    let node = world.start().await;
    world
        .pod_when("svc", |pod| container(pod)["restartCount"] == 1)
        .await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_being_deleted_does_not_hold_up_the_end() {
    let world = World::new().await;
    let node = world.start().await;
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    world.script("stubborn", "Always", script).await;
    world.wait_for_phase("stubborn", "Running").await;
    world.delete("stubborn").await;
    world.event("Killing").await;
    let end = tokio::time::timeout(std::time::Duration::from_secs(15), node.stop());
    assert!(end.await.is_ok(), "its grace of 30 s is cut short");
    assert!(!world.root.cgroup(&world.parent).exists());
    // The next start completes the unfinished work.
    let node = world.start().await;
    world.wait_for_removal("stubborn").await;
    node.stop().await;
}
