//! Requests of one connection, answered within the runtime's timeout. Both forms of events end in the same
//! functions of the [`Handler`].

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::stub::{Handler, Reply, RequestOutcome, StubEvent};
use super::{
    ConfigureRequest, ConfigureResponse, Container, CreateContainerRequest,
    CreateContainerResponse, Empty, Event, Plugin, PodSandbox, PostCreateContainerRequest,
    PostCreateContainerResponse, PostStartContainerRequest, PostStartContainerResponse,
    PostUpdateContainerRequest, PostUpdateContainerResponse, PostUpdatePodSandboxRequest,
    PostUpdatePodSandboxResponse, RemoveContainerRequest, RemoveContainerResponse,
    RemovePodSandboxRequest, RemovePodSandboxResponse, RunPodSandboxRequest, RunPodSandboxResponse,
    StartContainerRequest, StartContainerResponse, StateChangeEvent, StopContainerRequest,
    StopContainerResponse, StopPodSandboxRequest, StopPodSandboxResponse, SynchronizeRequest,
    SynchronizeResponse, UpdateContainerRequest, UpdateContainerResponse, UpdatePodSandboxRequest,
    UpdatePodSandboxResponse, events,
};
use crate::ttrpc::{Code, Context, Status};

/// Default timeout of a runtime that does not send one.
const REQUEST: Duration = Duration::from_secs(2);

/// Maximum pods and containers in all parts of a synchronization: far more than a node runs, so that endless
/// parts do not exhaust the memory.
const PARTS: usize = 100_000;

/// State of one connection.
pub(super) struct Session<H> {
    handler: Arc<H>,
    busy: Arc<Semaphore>,
    subscribed: Vec<Event>,
    /// The runtime's timeout, which it sends with the configuration.
    limit: Mutex<Duration>,
    /// Parts of the synchronization received so far.
    parts: Mutex<(Vec<PodSandbox>, Vec<Container>)>,
    synchronized: CancellationToken,
}

impl<H: Handler> Session<H> {
    pub(super) fn new(handler: Arc<H>, busy: Arc<Semaphore>, subscribed: Vec<Event>) -> Session<H> {
        Session {
            handler,
            busy,
            subscribed,
            limit: Mutex::new(REQUEST),
            parts: Mutex::default(),
            synchronized: CancellationToken::new(),
        }
    }

    /// Waits until the synchronization has been answered.
    pub(super) async fn synchronized(&self) {
        self.synchronized.cancelled().await;
    }

    /// Runs `work` within the timeout and returns its result; `None` if it takes longer or panics, so that
    /// the runtime continues without this plugin instead of dropping it.
    async fn run_handler<T: Send + 'static>(
        &self,
        event: Option<Event>,
        context: &Context,
        work: impl FnOnce(&H) -> Result<T, String> + Send + 'static,
    ) -> Result<Option<T>, Status> {
        let begun = Instant::now();
        let limit = context.timeout.unwrap_or(*self.limit.lock()).mul_f64(0.8);
        let answer = match Arc::clone(&self.busy).try_acquire_owned() {
            // All threads are blocked.
            Err(_) => Err(RequestOutcome::Late),
            Ok(permit) => {
                let handler = Arc::clone(&self.handler);
                let task = tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    work(&handler)
                });
                match tokio::time::timeout(limit, task).await {
                    Ok(Ok(answer)) => Ok(answer),
                    Ok(Err(_)) => Err(RequestOutcome::Panicked),
                    Err(_) => Err(RequestOutcome::Late),
                }
            }
        };
        let outcome = match &answer {
            Ok(Ok(_)) => RequestOutcome::Done,
            Ok(Err(_)) => RequestOutcome::Refused,
            Err(outcome) => *outcome,
        };
        let stub_event = StubEvent::Answered(event, begun.elapsed(), outcome);
        self.handler.observe(&stub_event);
        match answer {
            Ok(answer) => answer
                .map(Some)
                .map_err(|message| Status::new(Code::Unknown, message)),
            Err(_) => Ok(None),
        }
    }

    async fn event(
        &self,
        event: Event,
        pod: Option<PodSandbox>,
        container: Option<Container>,
        context: &Context,
    ) -> Result<(), Status> {
        let work =
            move |handler: &H| handler.event(event, &pod.unwrap_or_default(), container.as_ref());
        self.run_handler(Some(event), context, work).await.map(drop)
    }
}

/// Implements the calls that only notify, each as its event.
macro_rules! forward_events {
    ($($function:ident($request:ty) -> $response:ident: $event:ident $(, $container:ident)?;)*) => {$(
        async fn $function(&self, request: $request, context: Context) -> Result<$response, Status> {
            #[allow(unused_mut, unused_assignments, reason = "events of pods have no container")]
            let mut container = None;
            $(container = request.$container;)?
            self.event(Event::$event, request.pod, container, &context).await?;
            Ok($response::default())
        }
    )*};
}

impl<H: Handler> Plugin for Session<H> {
    async fn configure(
        &self,
        request: ConfigureRequest,
        _: Context,
    ) -> Result<ConfigureResponse, Status> {
        if let Ok(limit @ 1..) = u64::try_from(request.request_timeout) {
            *self.limit.lock() = Duration::from_millis(limit);
        }
        let requested = self
            .handler
            .configure(&request.config, self.subscribed.clone());
        let requested = requested.map_err(|message| Status::new(Code::InvalidArgument, message))?;
        let events = events::mask(&requested) & events::supported(&request);
        if events == 0 {
            // A mask of zero would subscribe to all events.
            let message = format!("none of the events {requested:?} is known to this runtime");
            return Err(Status::new(Code::FailedPrecondition, message));
        }
        Ok(ConfigureResponse {
            events,
            failure_policy: None,
        })
    }

    async fn synchronize(
        &self,
        request: SynchronizeRequest,
        context: Context,
    ) -> Result<SynchronizeResponse, Status> {
        let (pods, containers) = {
            let mut parts = self.parts.lock();
            parts.0.extend(request.pods);
            parts.1.extend(request.containers);
            if parts.0.len() + parts.1.len() > PARTS {
                *parts = Default::default();
                let message = format!("more than {PARTS} pods and containers in a synchronization");
                return Err(Status::new(Code::ResourceExhausted, message));
            }
            if request.more {
                // With any other response the runtime assumes that the plugin does not support parts.
                return Ok(SynchronizeResponse {
                    update: Vec::new(),
                    more: true,
                });
            }
            std::mem::take(&mut *parts)
        };
        let work = move |handler: &H| Ok(handler.synchronize(&pods, &containers));
        let update = self.run_handler(None, &context, work).await?;
        self.synchronized.cancel();
        Ok(SynchronizeResponse {
            update: update.unwrap_or_default(),
            more: false,
        })
    }

    async fn shutdown(&self, _: Empty, _: Context) -> Result<Empty, Status> {
        Ok(Empty {})
    }

    async fn create_container(
        &self,
        request: CreateContainerRequest,
        context: Context,
    ) -> Result<CreateContainerResponse, Status> {
        let work = move |handler: &H| {
            let (pod, container) = (request.pod.unwrap_or_default(), request.container);
            handler.create(&pod, &container.unwrap_or_default())
        };
        let reply = self
            .run_handler(Some(Event::CreateContainer), &context, work)
            .await?;
        let Reply {
            adjust,
            update,
            evict,
        } = reply.unwrap_or_default();
        Ok(CreateContainerResponse {
            adjust,
            update,
            evict,
        })
    }

    async fn update_container(
        &self,
        request: UpdateContainerRequest,
        context: Context,
    ) -> Result<UpdateContainerResponse, Status> {
        let work = move |handler: &H| {
            let (pod, container) = (request.pod.unwrap_or_default(), request.container);
            let (container, resources) = (container.unwrap_or_default(), request.linux_resources);
            let mut updates = handler.update(&pod, &container, &resources.unwrap_or_default())?;
            for update in &mut updates {
                // A runtime ignores an update without an id.
                if update.container_id.is_empty() {
                    update.container_id.clone_from(&container.id);
                }
            }
            Ok(updates)
        };
        let update = self
            .run_handler(Some(Event::UpdateContainer), &context, work)
            .await?;
        Ok(UpdateContainerResponse {
            update: update.unwrap_or_default(),
            evict: Vec::new(),
        })
    }

    async fn state_change(
        &self,
        request: StateChangeEvent,
        context: Context,
    ) -> Result<Empty, Status> {
        match Event::try_from(request.event) {
            Ok(event) if event != Event::Unknown && event != Event::Last => {
                self.event(event, request.pod, request.container, &context)
                    .await?;
            }
            // Of a later version, and not subscribed to.
            _ => tracing::debug!(event = request.event, "ignoring unknown NRI event"),
        }
        Ok(Empty {})
    }

    forward_events! {
        run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse: RunPodSandbox;
        update_pod_sandbox(UpdatePodSandboxRequest) -> UpdatePodSandboxResponse: UpdatePodSandbox;
        post_update_pod_sandbox(PostUpdatePodSandboxRequest) -> PostUpdatePodSandboxResponse: PostUpdatePodSandbox;
        stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse: StopPodSandbox;
        remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse: RemovePodSandbox;
        post_create_container(PostCreateContainerRequest) -> PostCreateContainerResponse: PostCreateContainer, container;
        start_container(StartContainerRequest) -> StartContainerResponse: StartContainer, container;
        post_start_container(PostStartContainerRequest) -> PostStartContainerResponse: PostStartContainer, container;
        post_update_container(PostUpdateContainerRequest) -> PostUpdateContainerResponse: PostUpdateContainer, container;
        stop_container(StopContainerRequest) -> StopContainerResponse: StopContainer, container;
        remove_container(RemoveContainerRequest) -> RemoveContainerResponse: RemoveContainer, container;
    }
}
