//! The socket that the kubelet connects to, and its hand-over from one process to the next.
//!
//! The listening socket outlives the process if possible: systemd holds it and passes it as standard input,
//! and on SIGHUP a process starts its replacement with it. Clients that connect in the meantime wait in the
//! socket's queue and are not refused; calls in progress are completed by their process.

use crate::call::{Call, Decider, PostCall};
use crate::docker::Docker;
use crate::forward::{
    Backend, CONNECTION_WINDOW, HEADERS, RESTARTS, RequestBody, ResponseBody, STREAM_WINDOW,
    SendError,
};
use crate::grpc::{self, Code};
use crate::metrics::{self, CallMeter, CallResult, MeteredBody, ProxyMetrics};
use bytes::{Bytes, BytesMut};
use http::{Request, Response, header};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use koord_rpc::grpc::Tolerant;
use std::convert::Infallible;
use std::future::poll_fn;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The call whose response never ends by itself; a kubelet repeats it when it is cut off.
const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";

/// Time that a connection without a call is kept open after accepting ends: its first call is probably on the
/// way, and a client whose connection closes first may treat it as failed.
const FIRST_CALL: Duration = Duration::from_secs(2);

/// The listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    /// The socket file that this process created; `None` if the socket was inherited.
    created: Option<CreatedSocket>,
}

#[derive(Debug)]
struct CreatedSocket {
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Uses standard input if it is a listening socket; otherwise creates the socket, replacing an existing
    /// one.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        if let Some(socket) = inherited() {
            tracing::info!(socket = %path.display(), "listening on the inherited socket");
            return Ok(Self {
                socket,
                created: None,
            });
        }
        let dir = path.parent().unwrap_or(Path::new("/"));
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)?;
        // Created under another name and renamed, so that a socket without a listener never exists.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = dir.join(format!(".{name}.{}", std::process::id()));
        let _ = std::fs::remove_file(&aside);
        let socket = UnixListener::bind(&aside)?;
        // Any client of this socket controls the node.
        std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o660))?;
        let inode = std::fs::metadata(&aside)?.ino();
        std::fs::rename(&aside, path)?;
        let created = CreatedSocket {
            path: path.to_owned(),
            inode,
        };
        Ok(Self {
            socket,
            created: Some(created),
        })
    }

    /// Removes the socket file if it still is this socket's.
    fn unlink(&self) {
        if let Some(created) = &self.created
            && std::fs::metadata(&created.path).is_ok_and(|now| now.ino() == created.inode)
        {
            let _ = std::fs::remove_file(&created.path);
        }
    }
}

/// Returns standard input if it is a named socket without a peer. The name itself is not compared: systemd
/// writes `/run` for `/var/run`, and a previous process renamed its socket.
fn inherited() -> Option<UnixListener> {
    let fd = std::io::stdin().as_fd().try_clone_to_owned().ok()?;
    let socket = std::os::unix::net::UnixStream::from(fd);
    socket.local_addr().ok()?.as_pathname()?;
    if socket.peer_addr().is_ok() {
        return None;
    }
    let socket = std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket));
    socket.set_nonblocking(true).ok()?;
    UnixListener::from_std(socket).ok()
}

/// Protocol on the socket and with the runtime.
#[derive(Debug)]
pub(crate) enum Protocol {
    Cri {
        runtime: Arc<Path>,
        decider: Arc<Decider>,
    },
    Docker(Arc<Docker>),
}

impl Protocol {
    pub(crate) fn cri(runtime: &Path, decider: Decider) -> Self {
        Self::Cri {
            runtime: runtime.into(),
            decider: Arc::new(decider),
        }
    }

    pub(crate) fn docker(docker: Docker) -> Self {
        Self::Docker(Arc::new(docker))
    }
}

/// Serves connections until `finish` is called, and then until the calls in progress are done.
#[derive(Debug)]
pub(crate) struct Server {
    protocol: Protocol,
    metrics: ProxyMetrics,
    /// Cancelled when connections must not accept new calls.
    drain: CancellationToken,
    connections: TaskTracker,
}

impl Server {
    pub(crate) fn new(protocol: Protocol, metrics: ProxyMetrics) -> Self {
        Self {
            protocol,
            metrics,
            drain: CancellationToken::new(),
            connections: TaskTracker::new(),
        }
    }

    pub(crate) async fn accept(&self, listener: &Listener) {
        loop {
            match listener.socket.accept().await {
                Ok((stream, _)) => self.serve(stream),
                Err(error) => {
                    // Probably out of file descriptors: other connections will close.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Stops listening. Clients that already connected to this process' own socket are served, since no other
    /// process will.
    pub(crate) async fn stop_listening(&self, listener: Listener) {
        if listener.created.is_some() {
            listener.unlink();
            while let Some(Ok((stream, _))) =
                futures::FutureExt::now_or_never(listener.socket.accept())
            {
                self.serve(stream);
            }
        }
    }

    /// Waits until all calls are done.
    pub(crate) async fn finish(&self) {
        self.drain.cancel();
        self.connections.close();
        self.connections.wait().await;
        if let Protocol::Docker(docker) = &self.protocol {
            docker.finish().await;
        }
    }

    fn serve(&self, stream: UnixStream) {
        match &self.protocol {
            Protocol::Cri { runtime, decider } => self.serve_cri(stream, runtime, decider),
            Protocol::Docker(docker) => self.serve_docker(stream, docker.clone()),
        }
    }

    /// Serves a connection to the Docker API.
    fn serve_docker(&self, stream: UnixStream, docker: Arc<Docker>) {
        let called = CancellationToken::new();
        let end = wait_for_shutdown(self.drain.clone(), called.clone());
        let metrics = self.metrics.clone();
        self.connections.spawn(async move {
            let service = service_fn(move |request| {
                let (docker, metrics) = (docker.clone(), metrics.clone());
                called.cancel();
                async move { Ok::<_, Infallible>(docker.call(request, &metrics).await) }
            });
            let mut builder = http1::Builder::new();
            // A client that closed its sending side still expects the response.
            builder.half_close(true).auto_date_header(false);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let mut connection = pin!(connection.with_upgrades());
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = end => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "connection failed");
            }
        });
    }

    /// Serves a connection to the CRI.
    fn serve_cri(&self, stream: UnixStream, runtime: &Arc<Path>, decider: &Arc<Decider>) {
        let handler = Connection {
            backend: Backend::new(runtime.clone()),
            decider: decider.clone(),
            metrics: self.metrics.clone(),
            drain: self.drain.clone(),
            called: CancellationToken::new(),
        };
        let end = wait_for_shutdown(self.drain.clone(), handler.called.clone());
        // Accepts any authority that the client sends.
        let stream = TokioIo::new(Tolerant::new(stream));
        self.connections.spawn(async move {
            let handler = Arc::new(handler);
            let service = service_fn(move |request| {
                let handler = handler.clone();
                async move { handler.call(request).await }
            });
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .auto_date_header(false)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_concurrent_streams(None)
                .max_pending_accept_reset_streams(1024)
                .max_header_list_size(HEADERS);
            let mut connection = pin!(builder.serve_connection(stream, service));
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = end => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "connection failed");
            }
        });
    }
}

/// Completes when a connection is to be shut down: when draining starts, but not before its first call or
/// before [`FIRST_CALL`] has passed.
async fn wait_for_shutdown(drain: CancellationToken, called: CancellationToken) {
    drain.cancelled().await;
    let _ = tokio::time::timeout(FIRST_CALL, called.cancelled()).await;
}

/// A connection of a kubelet.
#[derive(Debug)]
struct Connection {
    backend: Backend,
    decider: Arc<Decider>,
    metrics: ProxyMetrics,
    drain: CancellationToken,
    /// Cancelled by the first call.
    called: CancellationToken,
}

impl Connection {
    /// Handles a call and counts its result; an error resets it.
    async fn call(&self, request: Request<Incoming>) -> Result<Response<MeteredBody>, SendError> {
        self.called.cancel();
        let method = metrics::method_of(request.uri().path());
        let mut meter = self.metrics.begin_call(method);
        let response = self.answer(request, &mut meter).await?;
        Ok(MeteredBody::wrap(response, meter))
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        meter: &mut CallMeter,
    ) -> Result<Response<ResponseBody>, SendError> {
        let path = request.uri().path();
        if let Some(call) = Call::from_path(path) {
            return Box::pin(self.intercept(call, request, meter)).await;
        }
        let until = (path == EVENTS).then(|| self.drain.clone());
        let request = request.map(RequestBody::Passing);
        let Some(until) = until else {
            let answer = |from| ResponseBody::Passing { from, until: None };
            return self.forward(request, meter, answer).await;
        };
        let cancelled = Some(Box::pin(until.clone().cancelled_owned()));
        tokio::select! {
            // The runtime responds with the first event, which may take long.
            () = until.cancelled() => {
                Ok(ResponseBody::refusal(Code::Unavailable, RESTARTS))
            }
            answer = self.forward(request, meter, |from| ResponseBody::Passing { from, until: cancelled }) => answer,
        }
    }

    async fn forward(
        &self,
        request: Request<RequestBody>,
        meter: &mut CallMeter,
        answer: impl FnOnce(Incoming) -> ResponseBody,
    ) -> Result<Response<ResponseBody>, SendError> {
        match self.backend.send(request).await {
            Ok(response) => Ok(response.map(answer)),
            Err(error @ SendError::Unavailable { .. }) => {
                meter.result = CallResult::Unavailable;
                Ok(ResponseBody::refusal(Code::Unavailable, &error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Handles a call with hooks: decodes it, decides, and forwards the result.
    async fn intercept(
        &self,
        call: Call,
        request: Request<Incoming>,
        meter: &mut CallMeter,
    ) -> Result<Response<ResponseBody>, SendError> {
        let (mut head, body) = request.into_parts();
        let Some(body) = read_request(body).await.map_err(SendError::Request)? else {
            let text = format!(
                "{call:?}: the request is larger than {} bytes",
                grpc::MESSAGE
            );
            meter.result = CallResult::Refused;
            return Ok(ResponseBody::refusal(Code::ResourceExhausted, &text));
        };
        let decision = match grpc::unframe(&body) {
            Ok(message) => {
                let decision = self.decider.decide(call, message.clone()).await;
                decision.map(|decision| {
                    if decision.message == message {
                        return (body, decision.post_call);
                    }
                    // The header is optional, and the length has changed.
                    head.headers.remove(header::CONTENT_LENGTH);
                    (grpc::frame(&decision.message), decision.post_call)
                })
            }
            Err(error) => match call.pre_hook() {
                Some(hook) => self
                    .decider
                    .hooks
                    .skip_or_refuse::<()>(hook, error.to_string()),
                None => Ok(None),
            }
            .map(|_| (body, PostCall::Nothing)),
        };
        let (body, post_call) = match decision {
            Ok(decision) => decision,
            Err(refusal) => {
                meter.result = CallResult::Refused;
                return Ok(ResponseBody::refusal(Code::Unknown, &refusal.to_string()));
            }
        };
        let decider = self.decider.clone();
        let on_response = move |answer: Option<Bytes>| {
            let doing = async move {
                let message = answer.and_then(|answer| grpc::unframe(&answer).ok());
                decider.after(post_call, message).await;
            };
            Box::pin(doing) as futures::future::BoxFuture<'static, ()>
        };
        let request = Request::from_parts(head, RequestBody::Whole(Some(body)));
        self.forward(request, meter, |from| {
            ResponseBody::watched(from, Box::new(on_response))
        })
        .await
    }
}

/// Reads the whole request; returns `None` if it exceeds the message limit.
async fn read_request(mut body: Incoming) -> Result<Option<Bytes>, hyper::Error> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            if bytes.len() + data.len() > grpc::MESSAGE + grpc::PREFIX {
                return Ok(None);
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(Some(bytes.freeze()))
}
