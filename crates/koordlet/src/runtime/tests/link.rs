//! The plugin's connection, with a runtime of the test at the other end.

use super::*;
use koord_rpc::mux::{Channel, Mux};
use koord_rpc::nri::{
    ConfigureRequest, ContainerUpdate, CreateContainerRequest, CreateContainerResponse, Empty,
    Event, PLUGIN_CHANNEL, PluginClient, RUNTIME_CHANNEL, RegisterPluginRequest,
    RunPodSandboxRequest, Runtime, RuntimeServer, StateChangeEvent, SynchronizeRequest,
    SynchronizeResponse,
};
use koord_rpc::ttrpc;
use koord_rpc::ttrpc::frame::{FrameKind, Header};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The runtime's end, which sends each registration to a channel.
struct FakeRuntime(mpsc::Sender<RegisterPluginRequest>);

impl Runtime for FakeRuntime {
    async fn register_plugin(
        &self,
        request: RegisterPluginRequest,
        _: ttrpc::Context,
    ) -> Result<Empty, ttrpc::Status> {
        let _ = self.0.send(request).await;
        Ok(Empty {})
    }
}

/// A runtime with which the agent has registered, and the channel on which it is called.
pub(super) struct RegisteredRuntime {
    mux: Mux,
    serving: JoinHandle<()>,
}

impl RegisteredRuntime {
    async fn accept(listener: &UnixListener) -> (Self, Channel) {
        let (stream, _) = listener.accept().await.unwrap();
        let (mux, [plugin, runtime]) = Mux::open(stream, [PLUGIN_CHANNEL, RUNTIME_CHANNEL]);
        let (sender, mut registered) = mpsc::channel(1);
        let server = ttrpc::Server::default().with(RuntimeServer(Arc::new(FakeRuntime(sender))));
        let serving = tokio::spawn(async move { drop(server.serve(runtime).await) });
        let registered = registered.recv().await.unwrap();
        assert_eq!(registered.plugin_name, "koordlet_nri");
        assert_eq!(registered.plugin_idx, "00");
        (Self { mux, serving }, plugin)
    }

    /// Closes the runtime's end and waits until its tasks have ended.
    pub(super) async fn stop(self) {
        self.mux.close().await;
        self.serving.abort();
    }
}

/// Returns a client of a registered plugin, configured and called as by runtimes that set no timeouts.
pub(super) async fn client(
    listener: &UnixListener,
    patience: Duration,
) -> (RegisteredRuntime, PluginClient) {
    let (runtime, plugin) = RegisteredRuntime::accept(listener).await;
    let plugin = PluginClient(ttrpc::Client::new(plugin));
    let request = ConfigureRequest {
        request_timeout: i64::try_from(patience.as_millis()).unwrap(),
        ..ConfigureRequest::default()
    };
    plugin.configure(&request, &call_options()).await.unwrap();
    (runtime, plugin)
}

fn call_options() -> ttrpc::Options {
    ttrpc::Options::default()
}

fn create_request() -> CreateContainerRequest {
    CreateContainerRequest {
        pod: Some(batch_pod()),
        container: Some(container(nri_resources(2, 0, 0, ""))),
    }
}

/// Returns the values of batch pods' containers.
fn batch_values() -> (u64, i64, i64, String) {
    (512, 50_000, 64 * MIB, String::new())
}

fn adjusted(answer: &CreateContainerResponse) -> (u64, i64, i64, String) {
    let adjust = answer.adjust.as_ref();
    let linux = adjust.and_then(|adjust| adjust.linux.as_ref());
    resource_values(linux.and_then(|linux| linux.resources.as_ref()))
}

fn updated(update: &ContainerUpdate) -> (u64, i64, i64, String) {
    resource_values(
        update
            .linux
            .as_ref()
            .and_then(|linux| linux.resources.as_ref()),
    )
}

impl Rig {
    /// Returns the value of a gauge or counter, or the number of a histogram's samples, by its labels other
    /// than the node.
    pub(super) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.read(name, labels, |metric| {
            let fed = metric.get_histogram().get_sample_count();
            metric.get_gauge().get_value()
                + metric.get_counter().get_value()
                + f64::from(u32::try_from(fed).unwrap())
        })
    }

    /// Returns the total duration of all answers of one kind, in milliseconds.
    fn request_seconds(&self, labels: &[(&str, &str)]) -> f64 {
        let name = "koordlet_runtime_request_duration_milliseconds";
        let sum = |metric: &prometheus::proto::Metric| metric.get_histogram().get_sample_sum();
        self.read(name, labels, sum)
    }

    fn read(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        value: impl Fn(&prometheus::proto::Metric) -> f64,
    ) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let mut all = family.into_iter().flat_map(|family| family.get_metric());
        let metric_row = all.find(|metric| {
            labels.iter().all(|(name, value)| {
                let mut pairs = metric.get_label().iter();
                pairs.any(|pair| pair.name() == *name && pair.value() == *value)
            })
        });
        metric_row.map_or(0.0, value)
    }

    pub(super) fn connected(&self) -> f64 {
        self.metric("koordlet_nri_connected", &[])
    }

    pub(super) fn lost(&self) -> f64 {
        self.metric("koordlet_nri_connections_lost_total", &[])
    }
}

/// Waits until `what` is true because of other tasks.
pub(super) async fn until(what: impl Fn() -> bool) {
    poll_until(async || what().then_some(())).await;
}

#[tokio::test]
async fn plugin_answers_runtime_again_after_its_restart() {
    let rig = Rig::new();
    let group = rig.tree.group("kubepods/besteffort/podu").unwrap();
    let mut config = rig.config(Mode::Nri);
    config.nri.backoff = Duration::from_millis(5);
    let _stop = rig.start(&config);
    for dedicated in [false, true] {
        let listener = grpc::listen(&config.nri.socket).unwrap();
        let (runtime, plugin) = RegisteredRuntime::accept(&listener).await;
        let plugin = PluginClient(ttrpc::Client::new(plugin));
        let configured = plugin
            .configure(&ConfigureRequest::default(), &call_options())
            .await;
        // RunPodSandbox, CreateContainer and UpdateContainer; the fourth has no hook by default.
        assert_eq!(configured.unwrap().events, 0b1000_1001);
        let existing = SynchronizeRequest {
            pods: vec![batch_pod()],
            containers: vec![container(nri_resources(2, 0, 0, ""))],
            more: false,
        };
        let answer = plugin
            .synchronize(&existing, &call_options())
            .await
            .unwrap();
        assert_eq!(answer.update.len(), 1);
        until(|| rig.connected() > 0.0).await;
        let pod = Some(batch_pod());
        if dedicated {
            let run_request = RunPodSandboxRequest { pod };
            plugin
                .run_pod_sandbox(&run_request, &call_options())
                .await
                .unwrap();
        } else {
            let state_change = StateChangeEvent {
                event: Event::RunPodSandbox as i32,
                pod,
                container: None,
            };
            plugin
                .state_change(&state_change, &call_options())
                .await
                .unwrap();
        }
        let shares = rig.tree.raw(&group, Resource::CpuShares).unwrap();
        assert_eq!(shares.trim(), "512");
        rig.tree.feed(&group, Resource::CpuShares, "2\n").unwrap();
        let request = create_request();
        let answer = plugin
            .create_container(&request, &call_options())
            .await
            .unwrap();
        assert_eq!(adjusted(&answer), batch_values());
        drop(listener);
        let lost = rig.lost();
        runtime.stop().await;
        until(|| rig.connected() == 0.0 && rig.lost() > lost).await;
    }
}

/// Returns a pod with a container that was created without the agent, as a runtime lists them.
fn unadjusted_pod(number: usize) -> (PodSandbox, Container) {
    let pod = PodSandbox {
        id: format!("sandbox{number}"),
        uid: format!("u{number}"),
        ..batch_pod()
    };
    let container = Container {
        id: format!("c{number}"),
        pod_sandbox_id: pod.id.clone(),
        ..container(nri_resources(2, 0, 0, ""))
    };
    (pod, container)
}

/// A runtime splits lists by message size, so a container may come before its pod.
#[tokio::test]
async fn synchronize_in_parts_is_answered_with_the_last_part() {
    let rig = Rig::new();
    let config = rig.config(Mode::Nri);
    let listener = grpc::listen(&config.nri.socket).unwrap();
    let _stop = rig.start(&config);
    let (_runtime, plugin) = client(&listener, Duration::from_secs(60)).await;
    let (pods, containers): (Vec<_>, Vec<_>) = (0..200).map(unadjusted_pod).unzip();
    for (pods, containers) in [
        (vec![], containers[..120].to_vec()),
        (pods[..150].to_vec(), vec![]),
        (pods[150..].to_vec(), containers[120..150].to_vec()),
    ] {
        let part = SynchronizeRequest {
            pods,
            containers,
            more: true,
        };
        let answer = plugin.synchronize(&part, &call_options()).await.unwrap();
        // Otherwise a runtime assumes that the plugin does not support parts.
        assert_eq!((answer.update.len(), answer.more), (0, true));
        assert_eq!(rig.connected(), 0.0);
    }
    let last = SynchronizeRequest {
        pods: vec![],
        containers: containers[150..].to_vec(),
        more: false,
    };
    let answer = plugin.synchronize(&last, &call_options()).await.unwrap();
    assert!(!answer.more);
    let ids: Vec<_> = answer
        .update
        .iter()
        .map(|update| update.container_id.clone())
        .collect();
    let want: Vec<_> = (0..200).map(|number| format!("c{number}")).collect();
    assert_eq!(ids, want);
    for update in &answer.update {
        assert_eq!(updated(update), batch_values());
        assert!(update.ignore_failure, "it may have gone meanwhile");
    }
    until(|| rig.connected() > 0.0).await;
    // Parts from one runtime are not combined with those of the next one.
    let answer = plugin.synchronize(&last, &call_options()).await.unwrap();
    assert_eq!(answer.update, []);
}

#[derive(Message)]
struct Call {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
}

#[derive(Message)]
struct Answer {
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
}

/// Sends a call by hand: a client keeps to the limit of 4 MiB, which runtimes before NRI 0.7 do not.
async fn call<R: Message + Default>(
    channel: &mut Channel,
    stream: u32,
    method: &str,
    request: &impl Message,
) -> R {
    let call = Call {
        service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
        method: method.to_owned(),
        payload: request.encode_to_vec(),
    };
    let call = call.encode_to_vec();
    let header = Header {
        length: u32::try_from(call.len()).unwrap(),
        stream,
        kind: FrameKind::Request,
        flags: 0,
    };
    channel.write_all(&header.encode()).await.unwrap();
    channel.write_all(&call).await.unwrap();
    channel.flush().await.unwrap();
    let length = channel.read_u32().await.unwrap();
    let mut answer = vec![0; 6 + usize::try_from(length).unwrap()];
    channel.read_exact(&mut answer).await.unwrap();
    let answer = Answer::decode(&answer[6..]).unwrap();
    R::decode(answer.payload.as_slice()).unwrap()
}

#[tokio::test]
async fn synchronize_accepts_one_message_of_many_megabytes() {
    let rig = Rig::new();
    let config = rig.config(Mode::Nri);
    let listener = grpc::listen(&config.nri.socket).unwrap();
    let _stop = rig.start(&config);
    let (_runtime, mut plugin) = RegisteredRuntime::accept(&listener).await;
    let configure = ConfigureRequest::default();
    let _: koord_rpc::nri::ConfigureResponse = call(&mut plugin, 1, "Configure", &configure).await;
    let (pods, mut containers): (Vec<_>, Vec<_>) = (0..300).map(unadjusted_pod).unzip();
    for container in &mut containers {
        container.args = vec!["x".repeat(32 << 10)];
    }
    let all = SynchronizeRequest {
        pods,
        containers,
        more: false,
    };
    assert!(all.encoded_len() > 9 << 20);
    let answer: SynchronizeResponse = call(&mut plugin, 3, "Synchronize", &all).await;
    assert_eq!(answer.update.len(), 300);
    assert_eq!(updated(&answer.update[299]), batch_values());
    let request = create_request();
    let answer: CreateContainerResponse = call(&mut plugin, 5, "CreateContainer", &request).await;
    assert_eq!(adjusted(&answer), batch_values());
}

/// Returns whether the other end has closed the stream, after reading the data written before.
fn is_closed(stream: &UnixStream) -> bool {
    loop {
        match stream.try_read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Asserts the delay of an attempt: at most a tenth longer than `seconds`.
fn assert_about(took: Duration, seconds: f64) {
    let took = took.as_secs_f64();
    assert!(
        (seconds..seconds * 1.1 + 0.1).contains(&took),
        "{took} s instead of {seconds}"
    );
}

#[tokio::test(start_paused = true)]
async fn connection_to_silent_runtime_is_closed_and_retried() {
    let rig = Rig::new();
    let mut config = rig.config(Mode::Nri);
    config.nri.connect_within = Duration::from_secs(6);
    config.nri.backoff_cap = Duration::from_secs(3);
    let listener = grpc::listen(&config.nri.socket).unwrap();
    let _stop = rig.start(&config);
    let (mut last, _) = listener.accept().await.unwrap();
    let mut last_attempt = Instant::now();
    // The timeout, and the delay before the next attempt.
    for (attempt, wait) in [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 3.0)] {
        let (next, _) = listener.accept().await.unwrap();
        assert!(is_closed(&last), "one connection at a time");
        let took = last_attempt
            .elapsed()
            .saturating_sub(Duration::from_secs(6));
        assert_about(took, wait);
        assert_eq!((rig.connected(), rig.lost()), (0.0, attempt));
        (last, last_attempt) = (next, Instant::now());
    }
    // The runtime vanishes during the wait: noticed at once, not after the timeout.
    drop(last);
    let (runtime, plugin) = client(&listener, Duration::from_secs(60)).await;
    assert_about(last_attempt.elapsed(), 3.0);
    assert_eq!((rig.connected(), rig.lost()), (0.0, 5.0));
    let nothing = SynchronizeRequest::default();
    plugin.synchronize(&nothing, &call_options()).await.unwrap();
    until(|| rig.connected() > 0.0).await;
    // After a connection, the delay starts over.
    let last_attempt = Instant::now();
    runtime.stop().await;
    let (_runtime, plugin) = client(&listener, Duration::from_secs(60)).await;
    assert_about(last_attempt.elapsed(), 1.0);
    assert_eq!((rig.connected(), rig.lost()), (0.0, 6.0));
    let request = create_request();
    let answer = plugin
        .create_container(&request, &call_options())
        .await
        .unwrap();
    assert_eq!(adjusted(&answer), batch_values());
}

/// Creates a device file whose numbers are not written yet; readers wait until they are.
fn without_numbers(rig: &Rig) -> std::path::PathBuf {
    let file = rig.tree.root().sys("class/misc/rdma_cm/dev");
    std::fs::remove_file(&file).unwrap();
    let status = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(status.unwrap().success());
    file
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_no_adjustment_and_counted() {
    let mut rig = Rig::on(Node::default().open(Gate::RDMADeviceInject));
    let mut events = rig.events();
    let pod = rdma(&rig);
    let mut config = rig.config(Mode::Nri);
    config.nri.backoff = Duration::from_millis(5);
    let listener = grpc::listen(&config.nri.socket).unwrap();
    let _stop = rig.start(&config);
    let (runtime, plugin) = client(&listener, Duration::from_millis(200)).await;
    let nothing = SynchronizeRequest::default();
    plugin.synchronize(&nothing, &call_options()).await.unwrap();
    let request = CreateContainerRequest {
        pod: Some(pod),
        ..create_request()
    };
    let answered = |status| {
        let labels = [("event", "CREATE_CONTAINER"), ("status", status)];
        rig.metric("koordlet_runtime_request_duration_milliseconds", &labels)
    };
    let numbers = without_numbers(&rig);
    for seconds in [1.0, 2.0] {
        let answer = plugin
            .create_container(&request, &call_options())
            .await
            .unwrap();
        assert_eq!(answer, CreateContainerResponse::default());
        assert_eq!((answered("failed"), answered("succeeded")), (seconds, 0.0));
    }
    let took = rig.request_seconds(&[("event", "CREATE_CONTAINER"), ("status", "failed")]);

    // The connection stays open, and other requests are answered meanwhile.
    let other_request = create_request();
    let answer = plugin
        .create_container(&other_request, &call_options())
        .await
        .unwrap();
    assert_eq!(adjusted(&answer), batch_values());
    assert_eq!((answered("failed"), answered("succeeded")), (2.0, 1.0));
    assert_eq!(rig.lost(), 0.0);

    // A runtime that vanishes during the wait can be replaced at once, although a request still hangs.
    drop(plugin);
    runtime.stop().await;
    let (_runtime, plugin) = client(&listener, Duration::from_secs(60)).await;
    assert_eq!(rig.lost(), 1.0);
    // Both late answers are one event.
    for reason in ["RuntimeAnswerLate", "RuntimeDisconnected"] {
        let event = events.recv().await.unwrap();
        assert_eq!(event["reason"], reason, "{event}");
        assert_eq!(event["type"], "Warning");
    }
    // Both readers have it open; opening it for writing wakes both.
    std::fs::write(&numbers, "10:121\n").unwrap();
    std::fs::remove_file(&numbers).unwrap();
    std::fs::write(&numbers, "10:121\n").unwrap();
    // Four fifths of the runtime's timeout each.
    assert!(took >= 320.0, "{took} ms");
    let answer = plugin
        .create_container(&request, &call_options())
        .await
        .unwrap();
    let devices = answer.adjust.unwrap().linux.unwrap().devices;
    assert_eq!(devices.len(), 2);
}

/// The proxy sets no deadline: koordlet has its own, so that a kubelet does not wait.
#[tokio::test]
async fn slow_hook_server_answers_by_failure_policy() {
    let response = |policy: Policy| async move {
        let rig = Rig::on(Node::default().open(Gate::RDMADeviceInject));
        let pod = rdma(&rig);
        let numbers = without_numbers(&rig);
        let mut config = rig.config(Mode::Proxy);
        config.policy = policy;
        let _stop = rig.start(&config);
        let mut client = super::client(&config).await;
        let request = ContainerResourceHookRequest {
            pod_annotations: pod.annotations,
            ..hook_request()
        };
        let answer = client.pre_create_container_hook(request.clone()).await;
        let labels = [("event", "PreCreateContainer"), ("status", "failed")];
        let duration = rig.metric("koordlet_runtime_request_duration_milliseconds", &labels);
        assert_eq!(duration, 1.0);
        let took = rig.request_seconds(&labels);
        std::fs::write(&numbers, "10:121\n").unwrap();
        assert!(took >= 1600.0, "{took} ms");
        (request, answer)
    };
    let (ignored, failed) = tokio::join!(response(Policy::Ignore), response(Policy::Fail));
    let (request, answer) = ignored;
    let resources = answer.unwrap().into_inner().container_resources;
    assert_eq!(resources, request.container_resources);
    assert_eq!(failed.1.unwrap_err().message(), "no answer within 1.6s");
}
