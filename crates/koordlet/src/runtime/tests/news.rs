//! Events about the connection to the runtime, each recorded once.

use super::link::{client, until};
use super::*;
use koord_rpc::nri::SynchronizeRequest;

/// Expects an event with this reason whose message contains `ctx`. Identical events are merged with a higher
/// count and have no further content.
async fn expect_event(events: &mut mpsc::UnboundedReceiver<Value>, reason: &str, ctx: &[&str]) {
    let event = events.recv().await.unwrap();
    if event["involvedObject"].is_null() {
        assert!(event["count"].as_u64() > Some(1), "{event}");
    } else {
        assert_eq!(event["reason"], reason, "{event}");
        assert_eq!(event["involvedObject"]["kind"], "Node");
        assert_eq!(event["involvedObject"]["name"], "n");
        let severity = if reason == "RuntimeConnected" {
            "Normal"
        } else {
            "Warning"
        };
        assert_eq!(event["type"], severity, "{event}");
    }
    let message = event["message"].as_str().unwrap();
    for part in ctx {
        assert!(message.contains(part), "{message:?} without {part:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_runtime_and_its_return_are_each_one_event() {
    let mut rig = Rig::new();
    let mut events = rig.events();
    let config = rig.config(Mode::Nri);
    let _stop = rig.start(&config);
    let socket = config.nri.socket.display().to_string();
    for outage in [1.0, 2.0] {
        // Independent of the number and the reasons of failed attempts.
        let lost = rig.lost();
        until(|| rig.lost() >= lost + 4.0).await;
        let listener = grpc::listen(&config.nri.socket).unwrap();
        drop(listener.accept().await.unwrap());
        until(|| rig.lost() >= lost + 5.0).await;
        let (runtime, plugin) = client(&listener, Duration::from_secs(60)).await;
        let nothing = SynchronizeRequest::default();
        let options = koord_rpc::ttrpc::Options::default();
        plugin.synchronize(&nothing, &options).await.unwrap();
        until(|| rig.connected() > 0.0).await;
        let why = if outage == 1.0 {
            "No such file"
        } else {
            "closed"
        };
        expect_event(&mut events, "RuntimeDisconnected", &[&socket, why]).await;
        expect_event(&mut events, "RuntimeConnected", &[&socket]).await;
        assert!(events.is_empty());
        drop(listener);
        std::fs::remove_file(&config.nri.socket).unwrap();
        runtime.stop().await;
        until(|| rig.connected() == 0.0).await;
    }
}

/// Returns a pod whose container waits for this reason, as given by a kubelet.
fn waiting(name: &str, message: &str) -> Value {
    json!({"metadata": {"uid": name, "name": name, "namespace": "shop"},
        "spec": {"containers": [{"name": "web"}]},
        "status": {"phase": "Pending", "containerStatuses": [
            {"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"waiting": {"reason": "CreateContainerError", "message": message}}}]}})
}

fn conflict_message(one: &str, other: &str, field: &str) -> String {
    format!("failed to generate spec: plugins {one:?} and {other:?} both tried to set {field}")
}

#[tokio::test(start_paused = true)]
async fn plugin_conflict_is_reported_once() {
    const OWN: &str = "00-koordlet_nri";
    let mut rig = Rig::new();
    let mut events = rig.events();
    let ctx = &rig.ctx;
    let mut conflicts = plugin_conflicts::PluginConflicts::new(
        OWN.to_owned(),
        ctx.warnings.clone(),
        ctx.metrics.clone(),
    );
    let mut look = |pods: Vec<Value>| {
        let pods: Vec<_> = pods.into_iter().map(crate::hooks::tests::pod).collect();
        conflicts.update(&pods);
        rig.metric("koordlet_nri_contested_containers", &[])
    };
    let shares = |name| waiting(name, &conflict_message(OWN, "10-other", "CPU shares"));
    assert_eq!(look(vec![waiting("a", "back-off pulling image")]), 0.0);
    assert_eq!(look(vec![shares("a")]), 1.0);
    let ctx = [OWN, "10-other", "CPU shares", "web of shop/a"];
    expect_event(&mut events, "RuntimePluginConflict", &ctx).await;
    // The kubelet retries, also with other pods; and there is a list without conflicts.
    assert_eq!(look(vec![shares("a"), shares("b")]), 2.0);
    assert_eq!(look(vec![]), 0.0);
    assert_eq!(look(vec![shares("b")]), 1.0);
    // Something else, from the other side, and another agent of this name.
    let memory = waiting("c", &conflict_message("00-a", OWN, "memory limit"));
    let own = waiting("d", &conflict_message(OWN, OWN, "CPU shares"));
    // Conflicts between other plugins are ignored.
    let other_conflict = waiting("e", &conflict_message("00-a", "10-other", "CPU shares"));
    assert_eq!(look(vec![shares("b"), memory, own, other_conflict]), 3.0);
    let ctx = ["00-a", "memory limit", "web of shop/c"];
    expect_event(&mut events, "RuntimePluginConflict", &ctx).await;
    let ctx = ["two plugins with the name", OWN, "web of shop/d"];
    expect_event(&mut events, "RuntimePluginConflict", &ctx).await;
    // Another value that the same plugin sets.
    let memory = waiting("f", &conflict_message(OWN, "10-other", "memory limit"));
    assert_eq!(look(vec![shares("b"), memory]), 2.0);
    let ctx = ["10-other", "memory limit", "web of shop/f"];
    expect_event(&mut events, "RuntimePluginConflict", &ctx).await;
    // After a long time without the conflict, it is reported again.
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(look(vec![]), 0.0);
    assert_eq!(look(vec![shares("a")]), 1.0);
    expect_event(&mut events, "RuntimePluginConflict", &["10-other"]).await;
    assert!(events.is_empty());
}
