//! A plugin's end of NRI without its decisions: one connection to the runtime, re-established whenever it is
//! lost, with all requests answered in time.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, Event, LinuxResources,
    PLUGIN_CHANNEL, PluginServer, PodSandbox, RUNTIME_CHANNEL, RegisterPluginRequest,
    RuntimeClient, SOCKET, events, session::Session,
};
use crate::mux::Mux;
use crate::ttrpc::{Client, Options, Server};

/// Bytes of the largest request accepted. Runtimes up to NRI 0.6.1 send all pods and containers of a node in
/// one request of up to 16 MiB.
const REQUEST_LIMIT: usize = 32 << 20;

/// Maximum number of concurrent handler calls. The runtime sends one call at a time, so several run only after
/// timeouts.
const MAX_CONCURRENT_CALLS: usize = 16;

/// Decisions of a plugin. Functions are called on threads that may block, in the order of the runtime's
/// events, and must return within 80 % of the runtime's request timeout (2 s by default); otherwise the
/// runtime gets a response without changes.
///
/// An error from [`create`](Handler::create), [`update`](Handler::update) or
/// [`event`](Handler::event) fails the kubelet's request to the runtime; a panic does not.
pub trait Handler: Send + Sync + 'static {
    /// Returns the events to subscribe to. `configuration` is what the runtime has for a plugin that it
    /// launches, empty for others. By default the events of [`Settings::events`].
    ///
    /// # Errors
    ///
    /// Returns an error for an invalid configuration; the runtime then drops the plugin.
    fn configure(&self, configuration: &str, events: Vec<Event>) -> Result<Vec<Event>, String> {
        let _ = configuration;
        Ok(events)
    }

    /// Receives all existing pods and containers after each connection; the result updates containers.
    fn synchronize(&self, pods: &[PodSandbox], containers: &[Container]) -> Vec<ContainerUpdate>;

    /// Handles a container that is about to be created.
    ///
    /// # Errors
    ///
    /// The reason why it must not be created.
    fn create(&self, pod: &PodSandbox, container: &Container) -> Result<Reply, String>;

    /// Handles a container whose resources are about to change to `requested`. An update without an id is for
    /// this container.
    ///
    /// # Errors
    ///
    /// The reason why they must not change.
    fn update(
        &self,
        pod: &PodSandbox,
        container: &Container,
        requested: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String>;

    /// Handles any other event.
    ///
    /// # Errors
    ///
    /// The reason why it must not happen.
    fn event(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), String>;

    /// Receives changes of the connection and the result of each request, for metrics and events. Must not
    /// block.
    fn observe(&self, event: &StubEvent) {
        let _ = event;
    }
}

/// Response to the creation of a container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// Adjustment of the container.
    pub adjust: Option<ContainerAdjustment>,
    /// Updates of other containers.
    pub update: Vec<ContainerUpdate>,
    /// Evictions of other containers.
    pub evict: Vec<ContainerEviction>,
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The handler responded.
    Done,
    /// The handler returned an error.
    Refused,
    /// The response was empty because the handler took too long.
    Late,
    /// The response was empty because the handler panicked.
    Panicked,
}

/// An event of a stub, which its [`Handler`] receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StubEvent {
    /// Registered, configured and synchronized.
    Connected,
    /// The connection was lost or failed: the error, and the delay until the next attempt.
    Lost(String, Duration),
    /// A request was answered: its event (`None` for Synchronize), duration, and result.
    Answered(Option<Event>, Duration, RequestOutcome),
}

/// Identity of the plugin, address of the runtime, and timeouts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the plugin: letters, digits and `-_.+`.
    pub name: String,
    /// Two digits: the position among the runtime's plugins.
    pub index: String,
    /// Address of the runtime.
    pub socket: Socket,
    /// Events to subscribe to; at least one, as none would mean all.
    pub events: Vec<Event>,
    /// Timeout of the registration.
    pub registration: Duration,
    /// Timeout from the registration to the end of the synchronization.
    pub synchronization: Duration,
    /// Delay before the second attempt to connect; doubles with each further attempt.
    pub retry: Duration,
    /// Maximum delay.
    pub retry_limit: Duration,
}

/// Address of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Socket {
    /// A socket path, which need not exist yet.
    Path(PathBuf),
    /// An inherited connection with this file descriptor.
    Inherited(i32),
}

impl Settings {
    /// Returns settings for a plugin of this name and index at the default socket.
    pub fn new(name: impl Into<String>, index: impl Into<String>, events: Vec<Event>) -> Settings {
        Settings {
            name: name.into(),
            index: index.into(),
            socket: Socket::Path(SOCKET.into()),
            events,
            registration: Duration::from_secs(5),
            synchronization: Duration::from_secs(30),
            retry: Duration::from_secs(1),
            retry_limit: Duration::from_secs(30),
        }
    }

    /// Applies the variables `NRI_PLUGIN_NAME`, `NRI_PLUGIN_IDX` and `NRI_PLUGIN_SOCKET`, which a runtime
    /// sets for a plugin that it launches.
    ///
    /// # Errors
    ///
    /// Returns an error if the file descriptor is not a number.
    pub fn launched(
        mut self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, String> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        if let Some(name) = variable("NRI_PLUGIN_NAME") {
            self.name = name;
        }
        if let Some(index) = variable("NRI_PLUGIN_IDX") {
            self.index = index;
        }
        if let Some(socket) = variable("NRI_PLUGIN_SOCKET") {
            let descriptor = socket.parse().ok().filter(|number: &i32| *number >= 0);
            let descriptor = descriptor
                .ok_or_else(|| format!("NRI_PLUGIN_SOCKET: {socket:?} is not a file descriptor"))?;
            self.socket = Socket::Inherited(descriptor);
        }
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        if self.name.is_empty() || !self.name.chars().all(plain) {
            return Err(format!(
                "name {:?}: expected letters, digits and -_.+",
                self.name
            ));
        }
        if self.index.len() != 2 || !self.index.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("index {:?}: expected two digits", self.index));
        }
        if events::mask(&self.events) == 0 {
            return Err("events: expected at least one".to_owned());
        }
        Ok(())
    }
}

/// A plugin's end of NRI.
#[derive(Debug)]
pub struct Stub<H> {
    settings: Settings,
    handler: Arc<H>,
    busy: Arc<Semaphore>,
    runtime: watch::Sender<Option<RuntimeClient>>,
}

/// End of a connection, with the reason.
enum ConnectionEnd {
    /// The connection had been synchronized.
    Up(String),
    /// The connection was never synchronized.
    Down(String),
}

impl<H: Handler> Stub<H> {
    /// Creates a stub that is not connected yet.
    ///
    /// # Errors
    ///
    /// Returns an error for a setting that a runtime would reject.
    pub fn new(settings: Settings, handler: Arc<H>) -> Result<Stub<H>, String> {
        settings.check()?;
        Ok(Stub {
            settings,
            handler,
            busy: Arc::new(Semaphore::new(MAX_CONCURRENT_CALLS)),
            runtime: watch::Sender::new(None),
        })
    }

    /// Returns the runtime's client while it is connected and synchronized, to update containers outside of
    /// any event. Must not be used from within a handler: the runtime would wait for the handler.
    pub fn runtime(&self) -> watch::Receiver<Option<RuntimeClient>> {
        self.runtime.subscribe()
    }

    /// Connects, and reconnects after each loss, until `stop`; an inherited connection is used only once.
    /// There are never two connections: the next one is dialed when the last one is closed completely.
    pub async fn run(&self, stop: CancellationToken) {
        let mut delay = self.settings.retry;
        loop {
            let ended = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    self.runtime.send_replace(None);
                    return;
                }
                ended = Box::pin(self.run_connection()) => ended,
            };
            self.runtime.send_replace(None);
            let reason = match ended {
                ConnectionEnd::Up(reason) => {
                    delay = self.settings.retry;
                    reason
                }
                ConnectionEnd::Down(reason) => reason,
            };
            // Random jitter, so that the plugins of a restarted runtime do not all reconnect at once.
            let wait = delay.mul_f64(1.0 + fastrand::f64() / 10.0);
            self.handler.observe(&StubEvent::Lost(reason, wait));
            if matches!(self.settings.socket, Socket::Inherited(_)) {
                return;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            delay = (delay * 2).min(self.settings.retry_limit);
        }
    }

    async fn dial(&self) -> io::Result<UnixStream> {
        match &self.settings.socket {
            Socket::Path(path) => {
                let named =
                    |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
                UnixStream::connect(path).await.map_err(named)
            }
            Socket::Inherited(descriptor) => inherited(*descriptor),
        }
    }

    /// Runs one connection until it is lost.
    async fn run_connection(&self) -> ConnectionEnd {
        let stream = match self.dial().await {
            Ok(stream) => stream,
            Err(error) => return ConnectionEnd::Down(error.to_string()),
        };
        let (mux, [plugin, runtime]) = Mux::open(stream, [PLUGIN_CHANNEL, RUNTIME_CHANNEL]);
        let runtime = RuntimeClient(Client::new(runtime));
        let session = Arc::new(Session::new(
            Arc::clone(&self.handler),
            Arc::clone(&self.busy),
            self.settings.events.clone(),
        ));
        let server = Server::default()
            .accepting(REQUEST_LIMIT)
            .with(PluginServer(Arc::clone(&session)));
        let up = Mutex::new(false);
        let reason = tokio::select! {
            reason = mux.closed() => reason.unwrap_or_else(|| "the runtime closed the connection".to_owned()),
            result = server.serve(plugin) => match result {
                Ok(()) => "the runtime closed the connection".to_owned(),
                Err(error) => error.to_string(),
            },
            reason = self.register(&runtime, &session, &up) => reason,
        };
        self.runtime.send_replace(None);
        drop((server, session, runtime));
        mux.close().await;
        if up.into_inner() {
            ConnectionEnd::Up(reason)
        } else {
            ConnectionEnd::Down(reason)
        }
    }

    /// Registers and waits for the synchronization; returns the error if the runtime fails to complete
    /// either.
    async fn register(
        &self,
        runtime: &RuntimeClient,
        session: &Session<H>,
        up: &Mutex<bool>,
    ) -> String {
        let Settings {
            name,
            index,
            registration,
            synchronization,
            ..
        } = &self.settings;
        let request = RegisterPluginRequest {
            plugin_name: name.clone(),
            plugin_idx: index.clone(),
            // Version of the protocol definitions.
            nri_version: "v0.12.5".to_owned(),
        };
        let options = Options::within(*registration);
        if let Err(error) = runtime.register_plugin(&request, &options).await {
            return format!("registration: {error}");
        }
        if tokio::time::timeout(*synchronization, session.synchronized())
            .await
            .is_err()
        {
            return format!("not synchronized within {synchronization:?}");
        }
        *up.lock() = true;
        self.handler.observe(&StubEvent::Connected);
        self.runtime.send_replace(Some(runtime.clone()));
        std::future::pending().await
    }
}

/// Returns a copy of an inherited file descriptor. The original stays open as long as the process, so the
/// connection ends by `shutdown`, which affects all copies.
fn inherited(descriptor: i32) -> io::Result<UnixStream> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let named = |e: rustix::io::Errno| {
        let error = io::Error::from(e);
        io::Error::new(
            error.kind(),
            format!("inherited descriptor {descriptor}: {error}"),
        )
    };
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(named)?;
    let socket = pidfd_getfd(own, descriptor, PidfdGetfdFlags::empty()).map_err(named)?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
