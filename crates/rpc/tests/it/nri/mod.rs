//! A plugin from its registration on, against a runtime that behaves like containerd.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use koord_rpc::nri::{
    self, Container, ContainerUpdate, Event, Handler, LinuxResources, PodSandbox, Reply,
    RequestOutcome, Settings, Socket, Stub, StubEvent,
};
use koord_rpc::ttrpc::{Code, Options};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod peer;

use peer::Peer;

/// A handler that records its calls. A container's name selects the behavior: `refuse`, `panic`, `hang`, or
/// else it gets 1,024 shares.
struct Recorder {
    calls: mpsc::UnboundedSender<String>,
    stub_events: mpsc::UnboundedSender<StubEvent>,
    /// Ends hanging handlers once the other end is dropped.
    release: Mutex<std::sync::mpsc::Receiver<()>>,
}

fn shares(shares: u64) -> LinuxResources {
    LinuxResources {
        cpu: Some(nri::LinuxCpu {
            shares: Some(nri::OptionalUInt64 { value: shares }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn update_of(id: &str, resources: LinuxResources) -> ContainerUpdate {
    ContainerUpdate {
        container_id: id.into(),
        linux: Some(nri::LinuxContainerUpdate {
            resources: Some(resources),
        }),
        ignore_failure: false,
    }
}

impl Handler for Recorder {
    fn configure(&self, configuration: &str, wanted: Vec<Event>) -> Result<Vec<Event>, String> {
        match configuration {
            "" => Ok(wanted),
            names => nri::events_named([names]),
        }
    }

    fn synchronize(&self, pods: &[PodSandbox], containers: &[Container]) -> Vec<ContainerUpdate> {
        let text = format!("synchronize {} {}", pods.len(), containers.len());
        self.calls.send(text).unwrap();
        let first = containers.first();
        first
            .map(|first| update_of(&first.id, shares(2)))
            .into_iter()
            .collect()
    }

    fn create(&self, pod: &PodSandbox, container: &Container) -> Result<Reply, String> {
        self.calls
            .send(format!("create {} {}", pod.id, container.name))
            .unwrap();
        match container.name.as_str() {
            "refuse" => Err("not here".to_owned()),
            "panic" => panic!("on purpose"),
            "hang" => {
                let _ = self.release.lock().recv();
                Ok(Reply::default())
            }
            _ => Ok(Reply {
                adjust: Some(nri::ContainerAdjustment {
                    linux: Some(nri::LinuxContainerAdjustment {
                        resources: Some(shares(1024)),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
        }
    }

    fn update(
        &self,
        _: &PodSandbox,
        container: &Container,
        requested: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        self.calls.send(format!("update {}", container.id)).unwrap();
        Ok(vec![update_of("", requested.clone())])
    }

    fn event(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), String> {
        let container = container.map_or("-", |container| &container.id);
        self.calls
            .send(format!("{event:?} {} {container}", pod.id))
            .unwrap();
        Ok(())
    }

    fn observe(&self, event: &StubEvent) {
        let _ = self.stub_events.send(event.clone());
    }
}

/// A running stub and the recorded calls of its handler.
struct Fixture {
    _directory: tempfile::TempDir,
    socket: PathBuf,
    calls: mpsc::UnboundedReceiver<String>,
    stub_events: mpsc::UnboundedReceiver<StubEvent>,
    stub: Arc<Stub<Recorder>>,
    stop: CancellationToken,
    running: JoinHandle<()>,
    _release: std::sync::mpsc::Sender<()>,
}

fn settings() -> Settings {
    let events = ["RunPodSandbox,RemovePodSandbox,CreateContainer,UpdateContainer"];
    Settings::new("koordlet_nri", "00", nri::events_named(events).unwrap())
}

fn run(change: impl FnOnce(&mut Settings)) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let mut settings = settings();
    settings.socket = Socket::Path(socket.clone());
    change(&mut settings);
    let ((call_sender, calls), (event_sender, stub_events)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let (release, released) = std::sync::mpsc::channel();
    let handler = Recorder {
        calls: call_sender,
        stub_events: event_sender,
        release: Mutex::new(released),
    };
    let stub = Arc::new(Stub::new(settings, Arc::new(handler)).unwrap());
    let (running, stop) = (Arc::clone(&stub), CancellationToken::new());
    let until = stop.clone();
    Fixture {
        _directory: directory,
        socket,
        calls,
        stub_events,
        stub,
        stop,
        running: tokio::spawn(async move { running.run(until).await }),
        _release: release,
    }
}

impl Fixture {
    /// Returns the next message about the connection, skipping requests.
    async fn link(&mut self) -> StubEvent {
        loop {
            match self.stub_events.recv().await.unwrap() {
                StubEvent::Answered(..) => {}
                link => return link,
            }
        }
    }

    async fn lost(&mut self) -> (String, Duration) {
        match self.link().await {
            StubEvent::Lost(reason, wait) => (reason, wait),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the outcome of the last request.
    async fn outcome(&mut self) -> RequestOutcome {
        self.answered().await.1
    }

    /// Returns duration and outcome of the next answered event.
    async fn answered(&mut self) -> (Duration, RequestOutcome) {
        loop {
            if let StubEvent::Answered(Some(_), took, outcome) =
                self.stub_events.recv().await.unwrap()
            {
                return (took, outcome);
            }
        }
    }
}

/// Returns a runtime to which the stub has connected, before its first event.
async fn started(change: impl FnOnce(&mut Settings)) -> (Fixture, Peer) {
    let mut listener = None;
    let mut fixture = run(|settings| {
        change(settings);
        if let Socket::Path(path) = &settings.socket {
            listener = Some(UnixListener::bind(path).unwrap());
        }
    });
    let mut peer = Peer::new(listener.unwrap().accept().await.unwrap().0);
    peer.starts().await;
    assert_eq!(fixture.calls.recv().await.unwrap(), "synchronize 0 0");
    assert_eq!(fixture.link().await, StubEvent::Connected);
    (fixture, peer)
}

fn pod(id: &str) -> PodSandbox {
    PodSandbox {
        id: id.into(),
        ..Default::default()
    }
}

fn container(id: &str, name: &str) -> Container {
    Container {
        id: id.into(),
        name: name.into(),
        ..Default::default()
    }
}

async fn create(peer: &mut Peer, name: &str) -> Result<nri::CreateContainerResponse, Code> {
    let request = nri::CreateContainerRequest {
        pod: Some(pod("p")),
        container: Some(container("c", name)),
    };
    let answer = peer.call("CreateContainer", &request).await;
    answer.map_err(|status| Code::from_i32(status.code))
}

fn shares_of(answer: &nri::CreateContainerResponse) -> Option<u64> {
    let linux = answer.adjust.as_ref()?.linux.as_ref()?;
    Some(linux.resources.as_ref()?.cpu.as_ref()?.shares?.value)
}

#[tokio::test]
async fn from_registration_to_an_adjusted_container() {
    let mut fixture = run(|_| {});
    let listener = UnixListener::bind(&fixture.socket).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let mut peer = Peer::new(stream);
    let registered = peer.registers().await;
    assert_eq!(
        (&*registered.plugin_name, &*registered.plugin_idx),
        ("koordlet_nri", "00")
    );
    assert_eq!(peer.configures().await.unwrap(), 141);

    // In parts; the updates are in the response to the last one.
    let part = |pods: usize, containers: usize, more| nri::SynchronizeRequest {
        pods: vec![pod("p"); pods],
        containers: vec![container("first", "x"); containers],
        more,
    };
    for (pods, containers) in [(2, 3), (1, 0)] {
        let answer = peer
            .call("Synchronize", &part(pods, containers, true))
            .await
            .unwrap();
        let expected = nri::SynchronizeResponse {
            update: Vec::new(),
            more: true,
        };
        assert_eq!(expected, answer);
    }
    assert!(
        fixture.stub.runtime().borrow().is_none(),
        "not before it is synchronized"
    );
    let answer = peer.call("Synchronize", &part(0, 2, false)).await.unwrap();
    let expected = nri::SynchronizeResponse {
        update: vec![update_of("first", shares(2))],
        more: false,
    };
    assert_eq!(expected, answer);
    assert_eq!(fixture.calls.recv().await.unwrap(), "synchronize 3 5");
    assert_eq!(fixture.link().await, StubEvent::Connected);

    let answer = create(&mut peer, "web").await.unwrap();
    assert_eq!(shares_of(&answer), Some(1024));
    assert_eq!(fixture.calls.recv().await.unwrap(), "create p web");
    assert_eq!(fixture.outcome().await, RequestOutcome::Done);

    // An update without an id is for the container of the request; a runtime would ignore it otherwise.
    let request = nri::UpdateContainerRequest {
        pod: Some(pod("p")),
        container: Some(container("c", "web")),
        linux_resources: Some(shares(77)),
    };
    let answer = peer.call("UpdateContainer", &request).await.unwrap();
    let expected = nri::UpdateContainerResponse {
        update: vec![update_of("c", shares(77))],
        evict: Vec::new(),
    };
    assert_eq!(expected, answer);
}

#[tokio::test]
async fn both_forms_of_an_event_are_one() {
    let (mut fixture, mut peer) = started(|_| {}).await;
    assert!(fixture.calls.is_empty());
    macro_rules! both {
        ($($name:literal, $event:ident, $request:ident $(, $container:ident)?;)*) => {$({
            let change = nri::StateChangeEvent {
                event: Event::$event as i32,
                pod: Some(pod("p")),
                container: None$(.or(Some(container("c", stringify!($container)))))?,
            };
            peer.call::<nri::Empty>("StateChange", &change).await.unwrap();
            let old = fixture.calls.recv().await.unwrap();
            let request = nri::$request {
                pod: Some(pod("p")),
                $($container: Some(container("c", "x")),)?
                ..Default::default()
            };
            peer.call::<nri::Empty>($name, &request).await.unwrap();
            assert_eq!(fixture.calls.recv().await.unwrap(), old);
            let container = if change.container.is_some() { "c" } else { "-" };
            assert_eq!(old, format!("{:?} p {container}", Event::$event));
        })*};
    }
    #[allow(
        clippy::needless_update,
        reason = "some of the requests have more fields"
    )]
    {
        both! {
            "RunPodSandbox", RunPodSandbox, RunPodSandboxRequest;
            "StopPodSandbox", StopPodSandbox, StopPodSandboxRequest;
            "RemovePodSandbox", RemovePodSandbox, RemovePodSandboxRequest;
            "UpdatePodSandbox", UpdatePodSandbox, UpdatePodSandboxRequest;
            "PostUpdatePodSandbox", PostUpdatePodSandbox, PostUpdatePodSandboxRequest;
            "PostCreateContainer", PostCreateContainer, PostCreateContainerRequest, container;
            "StartContainer", StartContainer, StartContainerRequest, container;
            "PostStartContainer", PostStartContainer, PostStartContainerRequest, container;
            "PostUpdateContainer", PostUpdateContainer, PostUpdateContainerRequest, container;
            "StopContainer", StopContainer, StopContainerRequest, container;
            "RemoveContainer", RemoveContainer, RemoveContainerRequest, container;
        }
    }
    // An event of a later version.
    let later = nri::StateChangeEvent {
        event: 40,
        ..Default::default()
    };
    peer.call::<nri::Empty>("StateChange", &later)
        .await
        .unwrap();
    assert!(fixture.calls.is_empty());
    let unknown = peer.call::<nri::Empty>("Later", &later).await.unwrap_err();
    assert_eq!(unknown.code, Code::Unimplemented as i32);
}

#[tokio::test]
async fn a_large_node_is_synchronized_in_one_message() {
    let mut fixture = run(|_| {});
    let listener = UnixListener::bind(&fixture.socket).unwrap();
    let mut peer = Peer::new(listener.accept().await.unwrap().0);
    peer.registers().await;
    peer.configures().await.unwrap();
    // Up to NRI 0.6.1 in one frame, of 15 MiB.
    let large = nri::SynchronizeRequest {
        containers: vec![container("c", &"x".repeat(1 << 20)); 15],
        ..Default::default()
    };
    let answer: nri::SynchronizeResponse = peer.call("Synchronize", &large).await.unwrap();
    assert_eq!(answer.update.len(), 1);
    assert_eq!(fixture.calls.recv().await.unwrap(), "synchronize 0 15");
}

#[tokio::test]
async fn endless_synchronization_is_refused() {
    let mut fixture = run(|_| {});
    let listener = UnixListener::bind(&fixture.socket).unwrap();
    let mut peer = Peer::new(listener.accept().await.unwrap().0);
    peer.registers().await;
    peer.configures().await.unwrap();
    let part = |more| nri::SynchronizeRequest {
        containers: vec![Container::default(); 60_000],
        more,
        ..Default::default()
    };
    let first: nri::SynchronizeResponse = peer.call("Synchronize", &part(true)).await.unwrap();
    assert!(first.more);
    let refused = peer
        .call::<nri::SynchronizeResponse>("Synchronize", &part(true))
        .await
        .unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted as i32);
    // It restarts from the beginning.
    let response: nri::SynchronizeResponse = peer.call("Synchronize", &part(false)).await.unwrap();
    assert!(!response.more);
    assert_eq!(fixture.calls.recv().await.unwrap(), "synchronize 0 60000");
}

#[tokio::test(start_paused = true)]
async fn hanging_or_panicking_handler_keeps_the_connection() {
    let (mut fixture, mut peer) = started(|_| {}).await;
    let begun = Instant::now();
    let answer = async { create(&mut peer, "hang").await };
    let clock = async {
        assert_eq!(fixture.calls.recv().await.unwrap(), "create p hang");
        // 80 % of the two seconds, and no earlier.
        tokio::time::advance(Duration::from_millis(1599)).await;
        // Woken tasks run first.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    };
    let (answer, ()) = tokio::join!(answer, clock);
    assert_eq!(answer.unwrap(), nri::CreateContainerResponse::default());
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "containerd would have dropped us"
    );
    let (took, outcome) = fixture.answered().await;
    assert_eq!(outcome, RequestOutcome::Late);
    assert_eq!(took, Duration::from_millis(1600));

    let answer = create(&mut peer, "panic").await.unwrap();
    assert_eq!(answer, nri::CreateContainerResponse::default());
    assert_eq!(fixture.outcome().await, RequestOutcome::Panicked);

    // An error of the handler is an error of the request.
    assert_eq!(
        create(&mut peer, "refuse").await.unwrap_err(),
        Code::Unknown
    );
    assert_eq!(fixture.outcome().await, RequestOutcome::Refused);
    assert_eq!(
        shares_of(&create(&mut peer, "web").await.unwrap()),
        Some(1024)
    );
}

#[tokio::test]
async fn containers_are_updated_outside_of_events() {
    let (fixture, mut peer) = started(|_| {}).await;
    let runtime = fixture.stub.runtime().borrow().clone().unwrap();
    let request = nri::UpdateContainersRequest {
        update: vec![update_of("c", shares(5))],
        evict: Vec::new(),
    };
    let failed = nri::UpdateContainersResponse {
        failed: request.update.clone(),
    };
    let options = Options::within(Duration::from_secs(60));
    let call = runtime.update_containers(&request, &options);
    let (answer, heard) = tokio::join!(call, peer.serve("UpdateContainers", &failed));
    assert_eq!(answer.unwrap(), failed);
    assert_eq!(request, heard);
}

#[tokio::test(start_paused = true)]
async fn lost_connection_is_replaced_by_exactly_one() {
    let mut fixture = run(|settings| settings.retry_limit = Duration::from_secs(6));
    // There is no runtime at first.
    let (reason, wait) = fixture.lost().await;
    assert!(reason.contains("nri.sock"), "{reason}");
    assert_between(wait, 1.0);
    let listener = UnixListener::bind(&fixture.socket).unwrap();
    let mut peer = Peer::new(listener.accept().await.unwrap().0);
    peer.starts().await;
    assert_eq!(fixture.link().await, StubEvent::Connected);
    let runtime = fixture.stub.runtime();
    assert!(runtime.borrow().is_some());

    // The runtime stops: the delay restarts. Then it closes immediately, does not answer the registration,
    // does not synchronize, closes only its sending side, and sends invalid data.
    drop(peer);
    let (_, wait) = fixture.lost().await;
    assert_between(wait, 1.0);
    assert!(runtime.borrow().is_none());
    let steps: [(&str, f64); 5] = [
        ("closed", 2.0),
        ("registration: ", 4.0),
        ("not synchronized within 30s", 6.0),
        ("closed", 6.0),
        ("exceeds the limit", 6.0),
    ];
    for (at, (expected, seconds)) in steps.into_iter().enumerate() {
        let (stream, _) = listener.accept().await.unwrap();
        let mut peer = Peer::new(stream);
        match at {
            0 => drop(peer.io.shutdown().await),
            1 => {}
            2 => drop(peer.registers().await),
            3 => {
                peer.registers().await;
                peer.io.shutdown().await.unwrap();
            }
            _ => peer.io.write_all(&[0xff; 100]).await.unwrap(),
        }
        // The plugin has disconnected before it reports that, and so before it reconnects.
        let (reason, wait) = fixture.lost().await;
        assert!(reason.contains(expected), "{at}: {reason}");
        assert_between(wait, seconds);
        while peer.io.try_read(&mut [0; 4096]).unwrap_or(0) > 0 {}
        peer.ends().await;
    }
    let mut peer = Peer::new(listener.accept().await.unwrap().0);
    peer.starts().await;
    assert_eq!(fixture.link().await, StubEvent::Connected);
    drop(peer);
    let (_, wait) = fixture.lost().await;
    assert_between(wait, 1.0);
}

/// Checks that `wait` is `seconds`, or up to a tenth more, so that plugins do not all reconnect at once.
fn assert_between(wait: Duration, seconds: f64) {
    let wait = wait.as_secs_f64();
    assert!(
        (seconds..=seconds * 1.1).contains(&wait),
        "{wait} instead of {seconds}"
    );
}

#[tokio::test]
async fn stop_closes_the_connection() {
    let (fixture, mut peer) = started(|_| {}).await;
    fixture.stop.cancel();
    fixture.running.await.unwrap();
    peer.ends().await;
    assert!(fixture.stub.runtime().borrow().is_none());
}

#[tokio::test]
async fn a_launched_plugin_has_one_connection() {
    let (far, near) = std::os::unix::net::UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let inherited = near.as_raw_fd().to_string();
    let environment = |name: &str| match name {
        "NRI_PLUGIN_NAME" => Some("other".to_owned()),
        "NRI_PLUGIN_IDX" => Some("42".to_owned()),
        "NRI_PLUGIN_SOCKET" => Some(inherited.clone()),
        _ => None,
    };
    let mut fixture = run(|settings| *settings = settings.clone().launched(environment).unwrap());
    let mut peer = Peer::new(UnixStream::from_std(far).unwrap());
    let registered = peer.registers().await;
    assert_eq!(
        (&*registered.plugin_name, &*registered.plugin_idx),
        ("other", "42")
    );
    // Its configuration is sent with it.
    let request = nri::ConfigureRequest {
        config: "runpodsandbox,validatecontaineradjustment".into(),
        runtime_name: "containerd".into(),
        runtime_version: "v1.7.24".into(),
        ..Default::default()
    };
    let answer: nri::ConfigureResponse = peer.call("Configure", &request).await.unwrap();
    assert_eq!(
        answer.events, 1,
        "what the runtime does not know is not asked for"
    );
    let bad = nri::ConfigureRequest {
        config: "runpod".into(),
        ..request.clone()
    };
    let error = peer
        .call::<nri::ConfigureResponse>("Configure", &bad)
        .await
        .unwrap_err();
    assert_eq!(error.message, "there is no event \"runpod\"");
    let none = nri::ConfigureRequest {
        config: "validatecontaineradjustment".into(),
        ..request
    };
    let error = peer
        .call::<nri::ConfigureResponse>("Configure", &none)
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::FailedPrecondition as i32);
    drop(peer);
    fixture.lost().await;
    fixture.running.await.unwrap();
    // The process still has the connection.
    drop(near);
}

#[test]
fn invalid_settings_are_refused() {
    let refused = |change: fn(&mut Settings)| {
        let mut settings = settings();
        change(&mut settings);
        let ((calls, _), (stub_events, _)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let release = Mutex::new(std::sync::mpsc::channel().1);
        let handler = Recorder {
            calls,
            stub_events,
            release,
        };
        Stub::new(settings, Arc::new(handler))
            .map(drop)
            .unwrap_err()
    };
    assert!(refused(|settings| settings.name = String::new()).starts_with("name \"\""));
    assert!(refused(|settings| settings.name = "a/b".into()).starts_with("name \"a/b\""));
    assert!(refused(|settings| settings.index = "7".into()).starts_with("index \"7\""));
    assert!(refused(|settings| settings.index = "a0".into()).starts_with("index"));
    assert!(refused(|settings| settings.events.clear()).starts_with("events"));
    let environment = |name: &str| (name == "NRI_PLUGIN_SOCKET").then(|| "three".to_owned());
    let error = settings().launched(environment).unwrap_err();
    assert_eq!(
        error,
        "NRI_PLUGIN_SOCKET: \"three\" is not a file descriptor"
    );
}
