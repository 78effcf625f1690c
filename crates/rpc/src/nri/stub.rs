//! A plugin's end of NRI, without what the plugin decides: one connection to the runtime, made again
//! whenever it is lost, and every answer in time.

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

/// Bytes of the largest request accepted. Runtimes up to NRI 0.6.1 send all pods and containers of a node
/// in one, of up to 16 MiB.
const REQUEST_LIMIT: usize = 32 << 20;

/// Handlers at work at a time. They come one by one; more are only those that were given up.
const AT_A_TIME: usize = 16;

/// What a plugin decides. Functions are called on threads that may block, with events in the runtime's
/// order, and must be done in 80 % of the runtime's time for a request (2 s as a rule); afterwards the
/// runtime is forward_events that there is nothing to change.
///
/// An error from [`create`](Handler::create), [`update`](Handler::update) or
/// [`event`](Handler::event) fails what the kubelet asked of the runtime; a panic does not.
pub trait Handler: Send + Sync + 'static {
    /// The events wanted, from the configuration that the runtime has for a plugin that it launches,
    /// empty for others. The default is what [`Settings::events`] says.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration; the runtime then drops the plugin.
    fn configure(&self, configuration: &str, wanted: Vec<Event>) -> Result<Vec<Event>, String> {
        let _ = configuration;
        Ok(wanted)
    }

    /// All pods and containers there are, after each connection; the answer changes containers.
    fn synchronize(&self, pods: &[PodSandbox], containers: &[Container]) -> Vec<ContainerUpdate>;

    /// A container is about to be created.
    ///
    /// # Errors
    ///
    /// Why it must not be.
    fn create(&self, pod: &PodSandbox, container: &Container) -> Result<Reply, String>;

    /// A container is about to get these resources instead of those it has. An update without an id is
    /// for this container.
    ///
    /// # Errors
    ///
    /// Why it must not.
    fn update(
        &self,
        pod: &PodSandbox,
        container: &Container,
        requested: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String>;

    /// Any other event.
    ///
    /// # Errors
    ///
    /// Why it must not happen.
    fn event(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), String>;

    /// What happens to the connection and with each answer, for metrics and events. It must not block.
    fn seen(&self, seen: &Seen) {
        let _ = seen;
    }
}

/// The answer to the creation of a container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// What is changed about it.
    pub adjust: Option<ContainerAdjustment>,
    /// What is changed about others.
    pub update: Vec<ContainerUpdate>,
    /// Which others are ended.
    pub evict: Vec<ContainerEviction>,
}

/// How a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// By the handler.
    Done,
    /// By the handler, with an error.
    Refused,
    /// With nothing, because the handler took too long.
    Late,
    /// With nothing, because the handler panicked.
    Panicked,
}

/// What a [`Handler`] is forward_events about the stub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Registered, configured and synchronized.
    Connected,
    /// The connection was lost, or could not be made; why, and when the next attempt is.
    Lost(String, Duration),
    /// A request was answered; which (`None`: Synchronize), how long it took, and how.
    Answered(Option<Event>, Duration, Outcome),
}

/// Who the plugin is, where the runtime is, and how patient to be.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Letters, digits and `-_.+`.
    pub name: String,
    /// Two digits: the place among the runtime's plugins.
    pub index: String,
    /// Where the runtime is.
    pub socket: Socket,
    /// The events wanted; not none, which would mean all.
    pub events: Vec<Event>,
    /// How long the runtime may take to answer the registration.
    pub registration: Duration,
    /// How long it may take from there to the end of the synchronization.
    pub synchronization: Duration,
    /// The wait before the second attempt to connect; doubled for each one more.
    pub retry: Duration,
    /// The longest wait.
    pub retry_limit: Duration,
}

/// Where the runtime is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Socket {
    /// Behind the socket of this path, which need not be there yet.
    Path(PathBuf),
    /// Behind a connection that this process inherited, under this descriptor.
    Inherited(i32),
}

impl Settings {
    /// Settings for a plugin of this name and index at the usual socket.
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

    /// These settings, with what a runtime tells a plugin that it launches, in `NRI_PLUGIN_NAME`,
    /// `NRI_PLUGIN_IDX` and `NRI_PLUGIN_SOCKET`, instead of what they say.
    ///
    /// # Errors
    ///
    /// A descriptor that is no number.
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
                .ok_or_else(|| format!("NRI_PLUGIN_SOCKET: {socket:?} is no descriptor"))?;
            self.socket = Socket::Inherited(descriptor);
        }
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        if self.name.is_empty() || !self.name.chars().all(plain) {
            return Err(format!("name {:?}: letters, digits and -_.+", self.name));
        }
        if self.index.len() != 2 || !self.index.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("index {:?}: two digits", self.index));
        }
        if events::mask(&self.events) == 0 {
            return Err("events: at least one".to_owned());
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

/// What became of one connection.
enum Ended {
    /// It had been synchronized.
    Up(String),
    /// It never was.
    Down(String),
}

impl<H: Handler> Stub<H> {
    /// A stub that is not connected yet.
    ///
    /// # Errors
    ///
    /// The setting that a runtime would refuse.
    pub fn new(settings: Settings, handler: Arc<H>) -> Result<Stub<H>, String> {
        settings.check()?;
        Ok(Stub {
            settings,
            handler,
            busy: Arc::new(Semaphore::new(AT_A_TIME)),
            runtime: watch::Sender::new(None),
        })
    }

    /// The runtime while it is connected and synchronized, to change containers outside of any event.
    /// Never from within a handler: the runtime would wait for the handler.
    pub fn runtime(&self) -> watch::Receiver<Option<RuntimeClient>> {
        self.runtime.subscribe()
    }

    /// Connects, and again after each loss, until `stop`; an inherited connection is the only one. There
    /// are never two: the next is dialled when nothing of the last is left.
    pub async fn run(&self, stop: CancellationToken) {
        let mut delay = self.settings.retry;
        loop {
            let ended = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    self.runtime.send_replace(None);
                    return;
                }
                ended = Box::pin(self.once()) => ended,
            };
            self.runtime.send_replace(None);
            let why = match ended {
                Ended::Up(why) => {
                    delay = self.settings.retry;
                    why
                }
                Ended::Down(why) => why,
            };
            // So that the plugins of a restarted runtime do not come all at once.
            let wait = delay.mul_f64(1.0 + fastrand::f64() / 10.0);
            self.handler.seen(&Seen::Lost(why, wait));
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

    async fn once(&self) -> Ended {
        let stream = match self.dial().await {
            Ok(stream) => stream,
            Err(error) => return Ended::Down(error.to_string()),
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
        let why = tokio::select! {
            why = mux.closed() => why.unwrap_or_else(|| "the runtime closed the connection".to_owned()),
            result = server.serve(plugin) => match result {
                Ok(()) => "the runtime closed the connection".to_owned(),
                Err(error) => error.to_string(),
            },
            why = self.talk(&runtime, &session, &up) => why,
        };
        self.runtime.send_replace(None);
        drop((server, session, runtime));
        mux.close().await;
        if up.into_inner() {
            Ended::Up(why)
        } else {
            Ended::Down(why)
        }
    }

    /// What is asked of the runtime; returns when it does not do its part.
    async fn talk(
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
            // The version of the definitions.
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
        self.handler.seen(&Seen::Connected);
        self.runtime.send_replace(Some(runtime.clone()));
        std::future::pending().await
    }
}

/// A copy of an inherited descriptor. The descriptor itself stays open as long as the process, so the
/// connection ends by `shutdown`, which ends all copies.
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
