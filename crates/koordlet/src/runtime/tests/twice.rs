//! Two components that set the same containers' values: two agents of a machine, or the plugin behind a proxy
//! that also calls a hook server.

use super::link::client as runtime;
use super::*;
use koord_rpc::nri::SynchronizeRequest;
use tokio::time::timeout;

/// Long enough for any wrong action to happen.
const LONG: Duration = Duration::from_secs(120);

/// Returns another agent of the same machine.
fn second(rig: &Rig, mode: Mode) -> (Rig, Config) {
    let mut config = rig.config(mode);
    config.server.socket = rig.directory.path().join("second.sock");
    config.server.endpoint = config.server.socket.display().to_string();
    (Rig::new(), config)
}

fn registered(config: &Config) -> Option<HookServer> {
    let file = std::fs::read(config.server.directory.join("koordlet.json")).ok()?;
    Some(serde_json::from_slice(&file).unwrap())
}

#[tokio::test(start_paused = true)]
async fn of_two_plugins_of_one_name_one_is_connected() {
    let first = Rig::new();
    let config = first.config(Mode::Nri);
    let listener = grpc::listen(&config.nri.socket).unwrap();
    let stop = first.start(&config);
    let (_of_first, plugin) = runtime(&listener, LONG).await;
    let options = koord_rpc::ttrpc::Options::default();
    let nothing = SynchronizeRequest::default();
    plugin.synchronize(&nothing, &options).await.unwrap();

    let (mut rig, config) = second(&first, Mode::Nri);
    let mut events = rig.events();
    let _stop = rig.start(&config);
    assert!(timeout(LONG, listener.accept()).await.is_err());
    assert_eq!((first.connected(), rig.connected()), (1.0, 0.0));
    let event = events.recv().await.unwrap();
    assert_eq!(event["reason"], "RuntimeHooksElsewhere");
    assert!(events.is_empty(), "once");
    drop(stop);
    let (_of_second, plugin) = runtime(&listener, LONG).await;
    plugin.synchronize(&nothing, &options).await.unwrap();
    super::link::until(|| rig.connected() > 0.0).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_waits_for_the_hook_server_of_another_agent() {
    let first = Rig::new();
    let hooks = first.config(Mode::Proxy);
    let stop = first.start(&hooks);
    drop(client(&hooks).await);
    let (rig, config) = second(&first, Mode::Nri);
    let listener = grpc::listen(&config.nri.socket).unwrap();
    let _stop = rig.start(&config);
    assert!(timeout(LONG, listener.accept()).await.is_err());
    let registration = registered(&config).unwrap();
    assert_eq!(registration.remote_endpoint, hooks.server.endpoint);
    // The registration is removed with the lock, so that the proxy does not call a missing server.
    drop(stop);
    let _runtime = runtime(&listener, LONG).await;
    assert_eq!(registered(&config), None);
}

#[tokio::test(start_paused = true)]
async fn a_hook_server_waits_for_the_plugin_of_another_agent() {
    let first = Rig::new();
    let config = first.config(Mode::Nri);
    let listener = grpc::listen(&config.nri.socket).unwrap();
    let stop = first.start(&config);
    let _runtime = runtime(&listener, LONG).await;
    let (rig, hooks) = second(&first, Mode::Proxy);
    let _stop = rig.start(&hooks);
    tokio::time::sleep(LONG).await;
    assert!(!hooks.server.socket.exists() && registered(&hooks).is_none());
    drop(stop);
    drop(client(&hooks).await);
    assert!(registered(&hooks).is_some());
}

#[tokio::test(start_paused = true)]
async fn two_hook_servers_do_not_take_each_others_socket() {
    let first = Rig::new();
    let config = first.config(Mode::Proxy);
    let stop = first.start(&config);
    let mut hook_client = client(&config).await;
    // With the same socket, as with two agents of one configuration.
    let rig = Rig::new();
    let _stop = rig.start(&config);
    tokio::time::sleep(LONG).await;
    let answer = hook_client.pre_create_container_hook(hook_request()).await;
    assert_eq!(
        answer
            .unwrap()
            .into_inner()
            .container_resources
            .unwrap()
            .cpu_shares,
        512
    );
    let answered = |rig: &Rig| {
        let labels = [("event", "PreCreateContainer")];
        rig.metric("koordlet_runtime_request_duration_milliseconds", &labels)
    };
    let mut fresh = client(&config).await;
    fresh
        .pre_create_container_hook(hook_request())
        .await
        .unwrap();
    assert_eq!((answered(&first), answered(&rig)), (2.0, 0.0));
    // It takes over when the first agent has ended.
    drop((stop, hook_client, fresh));
    while answered(&rig) == 0.0 {
        let mut fresh = client(&config).await;
        let _ = fresh.pre_create_container_hook(hook_request()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn standalone_agent_keeps_registration_of_another_agent() {
    let first = Rig::new();
    let hooks = first.config(Mode::Proxy);
    let _first = first.start(&hooks);
    drop(client(&hooks).await);
    let (rig, config) = second(&first, Mode::Standalone);
    let _stop = rig.start(&config);
    assert!(registered(&config).is_some());
}

/// Returns a pod of the class LS on a node with a CPU normalization ratio of 2.
fn normalized() -> (Rig, PodSandbox) {
    let rig = Rig::on(Node::default().open(Gate::CPUNormalization).ratio("2.0"));
    let pod = PodSandbox {
        labels: text(&[("koordinator.sh/qosClass", "LS")]),
        annotations: BTreeMap::new(),
        ..batch_pod()
    };
    (rig, pod)
}

/// Returns the quota that a hook server sets for a request.
async fn quota_with_hook(rig: &Rig, config: &Config, pod: &PodSandbox, quota: i64) -> i64 {
    let request = ContainerResourceHookRequest {
        pod_labels: pod.labels.clone(),
        pod_annotations: pod.annotations.clone(),
        container_resources: Some(LinuxContainerResources {
            cpu_quota: quota,
            cpu_period: 100_000,
            ..LinuxContainerResources::default()
        }),
        ..hook_request()
    };
    let _stop = rig.start(config);
    let mut client = client(config).await;
    let answer = client.pre_create_container_hook(request).await.unwrap();
    answer.into_inner().container_resources.unwrap().cpu_quota
}

#[tokio::test]
async fn behind_a_proxy_that_asks_too_a_quota_is_scaled_once() {
    let (mut rig, pod) = normalized();
    let mut events = rig.events();
    let hooks = rig.config(Mode::Proxy);
    let scaled = quota_with_hook(&rig, &hooks, &pod, 200_000).await;
    assert_eq!(scaled, 100_000);
    assert!(registered(&hooks).is_some(), "as one of another server");
    let plugin = rig.plugin(Policy::Ignore);
    let request = container(nri_resources(2, scaled, 0, ""));
    for _ in 0..2 {
        let reply = plugin.create(&pod, &request).unwrap();
        assert_eq!(adjusted(&reply).1, 0, "left as the proxy passed it");
        let requested = nri_resources(2, scaled, 0, "");
        assert_eq!(plugin.update(&pod, &request, &requested).unwrap(), []);
    }
    // If the pod is listed, its own limit counts.
    rig.listed(json!([{
        "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": "LS"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}}]));
    let reply = plugin.create(&pod, &request).unwrap();
    assert_eq!(adjusted(&reply).1, 100_000);
    let event = events.recv().await.unwrap();
    assert_eq!(event["reason"], "RuntimeHooksTwice", "{event}");
    assert!(events.is_empty(), "once");
    // The hook server is not called first, so the request is the kubelet's own.
    std::fs::remove_file(hooks.server.directory.join("koordlet.json")).unwrap();
    rig.listed(json!([]));
    let request = container(nri_resources(2, 200_000, 0, ""));
    assert_eq!(adjusted(&plugin.create(&pod, &request).unwrap()).1, 100_000);
}

/// Values that depend only on the pod are the same from both.
#[tokio::test]
async fn batch_values_are_the_same_from_both() {
    let rig = Rig::new();
    let config = rig.config(Mode::Proxy);
    let _stop = rig.start(&config);
    let mut client = client(&config).await;
    let answer = client
        .pre_create_container_hook(hook_request())
        .await
        .unwrap();
    let resources = answer.into_inner().container_resources.unwrap();
    let request = nri_resources(
        resources.cpu_shares.try_into().unwrap(),
        resources.cpu_quota,
        resources.memory_limit_in_bytes,
        &resources.cpuset_cpus,
    );
    let want = resource_values(Some(&request));
    let plugin = rig.plugin(Policy::Ignore);
    let reply = plugin
        .create(&batch_pod(), &container(request.clone()))
        .unwrap();
    assert_eq!(adjusted(&reply), want);
    let updates = plugin.update(&batch_pod(), &container(request.clone()), &request);
    let linux = updates.unwrap().remove(0).linux.unwrap();
    // The quota is the hook server's.
    let (shares, _, memory, cpus) = want;
    let want = (shares, 0, memory, cpus);
    assert_eq!(resource_values(linux.resources.as_ref()), want);
}
