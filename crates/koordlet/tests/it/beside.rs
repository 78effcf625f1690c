//! The agent as a plugin of a real containerd, with a second plugin that sets the same values, and pods that
//! end while the runtime is down.

use crate::agent::{NODE, typed};
use crate::containerd::{ContainerdFixture, Pod, TestAgent};
use k8s_openapi::api::core::v1::Event as NodeEvent;
use koord_app::Clock;
use koord_host::testing::eventually;
use koord_kube::api::{DeleteParams, ListParams, PostParams};
use koord_kube::{Api, Client, patch};
use koord_rpc::cri;
use koord_rpc::nri::{
    Container, ContainerAdjustment, ContainerUpdate, Event, Handler, LinuxContainerAdjustment,
    LinuxContainerUpdate, LinuxCpu, LinuxResources, OptionalUInt64, PodSandbox, Reply, Settings,
    Socket, Stub, StubEvent,
};
use koordlet::Options;
use koordlet::runtime::Mode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_util::sync::CancellationToken;

/// Shares that the other plugin sets.
const ITS_SHARES: u64 = 77;

/// A plugin that sets the same shares on every container.
#[derive(Default)]
struct OtherPlugin {
    connected: AtomicBool,
}

fn its_resources() -> LinuxResources {
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value: ITS_SHARES }),
            ..LinuxCpu::default()
        }),
        ..LinuxResources::default()
    }
}

impl Handler for OtherPlugin {
    fn synchronize(&self, _: &[PodSandbox], _: &[Container]) -> Vec<ContainerUpdate> {
        Vec::new()
    }

    fn create(&self, _: &PodSandbox, _: &Container) -> Result<Reply, String> {
        let linux = LinuxContainerAdjustment {
            resources: Some(its_resources()),
            ..LinuxContainerAdjustment::default()
        };
        let adjust = ContainerAdjustment {
            linux: Some(linux),
            ..ContainerAdjustment::default()
        };
        Ok(Reply {
            adjust: Some(adjust),
            ..Reply::default()
        })
    }

    fn update(
        &self,
        _: &PodSandbox,
        container: &Container,
        _: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        Ok(vec![ContainerUpdate {
            container_id: container.id.clone(),
            linux: Some(LinuxContainerUpdate {
                resources: Some(its_resources()),
            }),
            ignore_failure: false,
        }])
    }

    fn event(&self, _: Event, _: &PodSandbox, _: Option<&Container>) -> Result<(), String> {
        Ok(())
    }

    fn observe(&self, seen: &StubEvent) {
        match seen {
            StubEvent::Connected => self.connected.store(true, Ordering::Release),
            StubEvent::Lost(..) => self.connected.store(false, Ordering::Release),
            StubEvent::Answered(..) => {}
        }
    }
}

/// Polls until the condition is true.
async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    eventually(what, async || is().await.then_some(())).await;
}

fn options(machine: &ContainerdFixture) -> Options {
    let mut options = machine.options(&machine.containerd.path("libvgpu.so"), Mode::Nri);
    options.settings.reconcile_interval_ms = 100;
    options
}

/// Returns the number of comparisons with the kernel's values so far.
fn compared(agent: &TestAgent) -> u64 {
    let name = "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds";
    let families = agent.ctx.metrics.gather();
    let family = families.iter().find(|family| family.name() == name);
    let all = family.into_iter().flat_map(|family| family.get_metric());
    all.map(|metric| metric.get_histogram().get_sample_count())
        .sum()
}

/// Waits until the agent would have done its pending work.
async fn rounds(agent: &TestAgent) {
    let before = compared(agent);
    until("the agent goes on", async || compared(agent) > before + 50).await;
}

/// Returns whether the agent has a pod's requests among its metrics.
fn is_known(agent: &TestAgent, uid: &str) -> bool {
    let families = agent.ctx.metrics.gather();
    let all = families.iter().flat_map(|family| family.get_metric());
    let mut labels = all.flat_map(|metric| metric.get_label());
    labels.any(|label| label.name() == "pod_uid" && label.value() == uid)
}

/// Pods of the API server and their sandboxes.
struct PodFixture<'a> {
    api: Api<k8s_openapi::api::core::v1::Pod>,
    machine: &'a mut ContainerdFixture,
}

impl PodFixture<'_> {
    /// Returns a batch pod with half a core, or a plain one, and its sandbox.
    async fn add(&mut self, name: &str, batch: bool) -> (String, Pod) {
        let list = json!({"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"});
        let (labels, resources) = match batch {
            true => (
                json!({"koordinator.sh/qosClass": "BE"}),
                json!({"limits": list, "requests": list}),
            ),
            false => (json!({}), json!({})),
        };
        let pod = typed(json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": NODE, "containers":
                [{"name": "web", "image": "x", "resources": resources}]}}));
        let created = self.api.create(&PostParams::default(), &pod).await.unwrap();
        let uid = created.metadata.uid.unwrap();
        let labels = [("koordinator.sh/qosClass", "BE")];
        let labels = if batch { &labels[..] } else { &[] };
        let sandbox = self.machine.pod(&uid, "besteffort", &[], labels).await;
        (uid, sandbox)
    }

    /// Sets the container's state as the kubelet does.
    async fn set_state(&self, name: &str, id: &str, state: Value) {
        let status = json!({"status": {"phase": "Running", "containerStatuses": [{
            "name": "web", "containerID": format!("containerd://{id}"), "image": "x",
            "imageID": "", "ready": false, "restartCount": 0, "state": state}]}});
        patch::merge_status(&self.api, name, &status).await.unwrap();
    }

    async fn runs(&self, name: &str, id: &str) {
        self.set_state(name, id, json!({"running": {"startedAt": null}}))
            .await;
    }

    /// Tries to create the container as the kubelet does, and sets the reason of the failure.
    async fn is_refused(&mut self, name: &str, pod: &Pod) {
        let refused = self.machine.try_container(pod, "web").await;
        let message = refused.err().unwrap().message().to_owned();
        assert!(message.contains("both tried to set"), "{message}");
        let why = json!({"reason": "CreateContainerError", "message": message});
        self.set_state(name, "", json!({"waiting": why})).await;
    }
}

fn pods<'a>(client: &Client, machine: &'a mut ContainerdFixture) -> PodFixture<'a> {
    let api = Api::namespaced(client.clone(), "default");
    PodFixture { api, machine }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_plugin_is_reported_once_and_values_are_not_contested() {
    let Some(mut machine) = ContainerdFixture::start() else {
        return;
    };
    let clock = Clock::system();
    let (_server, client) = crate::agent::cluster(&clock).await;
    let agent = TestAgent::start(options(&machine), &client, &clock);
    agent.connected(0.0).await;
    let socket = machine.containerd.nri_socket();
    let mut pods = pods(&client, &mut machine);
    let (_, first) = pods.add("first", true).await;
    let (_, second) = pods.add("second", true).await;
    let (_, third) = pods.add("third", true).await;
    let (_, plain) = pods.add("plain", false).await;
    let existing = pods.machine.container(&third, "web").await;
    assert_eq!(existing.output_value("cpu/cpu.shares"), "512");

    let wanted = vec![Event::CreateContainer, Event::UpdateContainer];
    let mut settings = Settings::new("other", "10", wanted);
    settings.socket = Socket::Path(socket);
    let other = Arc::new(OtherPlugin::default());
    let stop = CancellationToken::new();
    let stub = Stub::new(settings, other.clone()).unwrap();
    let until_then = stop.clone();
    let running = tokio::spawn(async move { stub.run(until_then).await });
    until("it is connected", async || {
        other.connected.load(Ordering::Acquire)
    })
    .await;

    // The kubelet retries, with several pods.
    pods.is_refused("first", &first).await;
    until("one is known", async || {
        agent.metric("koordlet_nri_contested_containers") == 1.0
    })
    .await;
    pods.is_refused("second", &second).await;
    until("both are known", async || {
        agent.metric("koordlet_nri_contested_containers") == 2.0
    })
    .await;
    pods.set_state(
        "first",
        "",
        json!({"waiting": {"reason": "CrashLoopBackOff"}}),
    )
    .await;
    until("one attempt is over", async || {
        agent.metric("koordlet_nri_contested_containers") == 1.0
    })
    .await;
    pods.is_refused("first", &first).await;
    until("both are known again", async || {
        agent.metric("koordlet_nri_contested_containers") == 2.0
    })
    .await;
    let events: Api<NodeEvent> = Api::all(client.clone());
    let conflict_events = async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let mut all = all.into_iter();
        all.find(|event| event.reason.as_deref() == Some("RuntimePluginConflict"))
    };
    until("the conflict event", async || {
        conflict_events().await.is_some()
    })
    .await;
    rounds(&agent).await;
    let event = conflict_events().await.unwrap();
    assert_eq!(event.count, Some(1));
    let object = event.involved_object;
    let object = (object.kind.as_deref(), object.name.as_deref());
    assert_eq!(object, (Some("Node"), Some(NODE)));
    let message = event.message.unwrap();
    for part in ["10-other", "00-koordlet_nri", "web of default/first"] {
        assert!(message.contains(part), "{message}");
    }

    // Values that koordlet does not set stay as the other plugin set them.
    let container = pods.machine.container(&plain, "web").await;
    pods.runs("plain", &container.id).await;
    rounds(&agent).await;
    let shares = Some(i64::try_from(ITS_SHARES).unwrap());
    assert_eq!(container.group.cpu_shares().unwrap(), shares);
    // A change that both plugins set is refused, and nothing is changed.
    let resize = |id: &str| cri::UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(cri::LinuxContainerResources {
            cpu_shares: 2,
            ..cri::LinuxContainerResources::default()
        }),
        ..cri::UpdateContainerResourcesRequest::default()
    };
    let refused = pods
        .machine
        .cri
        .update_container_resources(resize(&existing.id));
    let refused = refused.await.unwrap_err();
    let message = refused.message();
    assert!(message.contains("both tried to set"), "{message}");
    assert_eq!(existing.group.cpu_shares().unwrap(), Some(512));

    // After the plugin has ended, koordlet's values are applied.
    stop.cancel();
    running.await.unwrap();
    let mut created = None;
    until("the runtime has noticed", async || {
        created = pods.machine.try_container(&first, "web").await.ok();
        created.is_some()
    })
    .await;
    let container = created.unwrap();
    assert_eq!(container.output_value("cpu/cpu.shares"), "512");
    pods.runs("first", &container.id).await;
    until("the first is over", async || {
        agent.metric("koordlet_nri_contested_containers") == 1.0
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_end_during_runtime_outage_are_removed() {
    let Some(mut machine) = ContainerdFixture::start() else {
        return;
    };
    let clock = Clock::system();
    let (_server, client) = crate::agent::cluster(&clock).await;
    let agent = TestAgent::start(options(&machine), &client, &clock);
    agent.connected(0.0).await;
    let mut pods = pods(&client, &mut machine);
    let (stays_uid, stays) = pods.add("stays", true).await;
    let (ends_uid, ends) = pods.add("ends", true).await;
    let mut containers = Vec::new();
    for (name, pod) in [("stays", &stays), ("ends", &ends)] {
        let container = pods.machine.container(pod, "web").await;
        assert_eq!(container.output_value("cpu/cpu.shares"), "512");
        pods.runs(name, &container.id).await;
        containers.push(container);
    }
    let [stayed, ended] = containers.try_into().ok().unwrap();
    until("both are known", async || {
        is_known(&agent, &stays_uid) && is_known(&agent, &ends_uid)
    })
    .await;

    // The pod ends with the runtime, and the plugin gets no notification.
    pods.machine.containerd.kill();
    until("it is noticed", async || {
        agent.metric("koordlet_nri_connected") == 0.0
    })
    .await;
    ends.group.kill().unwrap();
    until("nothing runs in it", async || {
        ends.group.kill().unwrap();
        ends.group.remove().is_ok()
    })
    .await;
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    pods.api.delete("ends", &params).await.unwrap();
    pods.machine.containerd.start_again();
    agent.connected(1.0).await;

    // The kubelet removes the runtime's remainder of the pod.
    let request = cri::RemovePodSandboxRequest {
        pod_sandbox_id: ends.id.clone(),
    };
    pods.machine.cri.remove_pod_sandbox(request).await.unwrap();
    until("it is forgotten", async || !is_known(&agent, &ends_uid)).await;
    rounds(&agent).await;
    assert!(!is_known(&agent, &ends_uid));
    assert!(is_known(&agent, &stays_uid));
    for group in [&ends.group, &ended.group] {
        assert!(!group.exists(), "{}", group.path());
    }
    assert_eq!(agent.metric("koordlet_failures_total"), 0.0);
    let values = (Some(512), Some(50_000), Some(64 << 20));
    assert_eq!(stayed.now(), values, "what went on");

    // Another pod of this name is a new one.
    let (uid, again) = pods.add("ends", true).await;
    assert_ne!(uid, ends_uid);
    let container = pods.machine.container(&again, "web").await;
    assert_eq!(container.output_value("cpu/cpu.shares"), "512");
    assert_eq!(container.output_value("cpu/cpu.cfs_quota_us"), "50000");
    pods.runs("ends", &container.id).await;
    until("it is known", async || is_known(&agent, &uid)).await;
    agent.stop().await;
}
