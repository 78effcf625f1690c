//! Forwards bytes between kubelet and runtime unchanged.

use crate::grpc::{self, Code};
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio_util::sync::WaitForCancellationFutureOwned;

/// Timeout of a connect to the runtime; upstream's dial timeout.
pub(crate) const DIAL: Duration = Duration::from_secs(5);

/// Flow control window in bytes, per call and per connection.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;

/// Maximum size of a call's headers in bytes: the limit of gRPC in Go.
pub(crate) const HEADERS: u32 = 16 << 20;

/// Maximum size in bytes of a captured response, which only contains an id.
const MAX_CAPTURED: usize = 64 << 10;

/// Message of the status that ends an endless response on a restart.
pub(crate) const RESTARTS: &str = "the proxy restarts";

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Connection to the runtime for one kubelet connection, established again after the runtime closes it. Calls
/// of different connections never wait for each other's windows.
#[derive(Debug)]
pub(crate) struct Backend {
    path: Arc<Path>,
    sender: Mutex<Option<SendRequest<RequestBody>>>,
    /// Held while connecting, so that only one connection is made.
    dial: tokio::sync::Mutex<()>,
}

impl Backend {
    pub(crate) fn new(path: Arc<Path>) -> Self {
        Self {
            path,
            sender: Mutex::default(),
            dial: tokio::sync::Mutex::default(),
        }
    }

    /// Forwards a call. An error resets the call with the runtime's reset reason; an unreachable runtime
    /// results in the status UNAVAILABLE.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = local(path);
        // With HTTP/2 all versions are equal.
        *request.version_mut() = http::Version::HTTP_2;
        let mut may_retry = true;
        loop {
            let mut sender = self
                .sender()
                .await
                .map_err(|error| SendError::Unavailable {
                    path: self.path.to_path_buf(),
                    error,
                })?;
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            self.sender.lock().take_if(|sender| sender.is_closed());
            match error.take_message() {
                // It was not sent, because the connection had just ended.
                Some(unsent) if std::mem::take(&mut may_retry) => request = unsent,
                _ => return Err(SendError::from_hyper(&self.path, error.into_error())),
            }
        }
    }

    fn connected(&self) -> Option<SendRequest<RequestBody>> {
        let sender = self.sender.lock();
        sender
            .as_ref()
            .filter(|sender| !sender.is_closed())
            .cloned()
    }

    /// Returns the connection to the runtime, opening one if there is none.
    async fn sender(&self) -> Result<SendRequest<RequestBody>, ConnectError> {
        if let Some(sender) = self.connected() {
            return Ok(sender);
        }
        let _alone = self.dial.lock().await;
        if let Some(sender) = self.connected() {
            return Ok(sender);
        }
        let dial = UnixStream::connect(&*self.path);
        let dialled = tokio::time::timeout(DIAL, dial).await;
        let stream = dialled.map_err(|_| ConnectError::Slow)??;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS)
            .handshake(TokioIo::new(stream))
            .await?;
        let path = self.path.clone();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(socket = %path.display(), %error, "connection to the runtime ended");
            }
        });
        *self.sender.lock() = Some(sender.clone());
        Ok(sender)
    }
}

/// Returns the URI of a gRPC call over a socket; the host is ignored.
fn local(path: Option<PathAndQuery>) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = Some(http::uri::Authority::from_static("localhost"));
    parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    Uri::from_parts(parts).unwrap_or_default()
}

/// Reason why a connection cannot be made, or broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("connect timed out after {DIAL:?}")]
    Slow,
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Reason why the runtime did not respond.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// Connecting failed, or the connection broke.
    #[error("failed to reach the runtime at {}: {error}", path.display())]
    Unavailable { path: PathBuf, error: ConnectError },
    /// The runtime reset only this call.
    #[error("call reset by the runtime: {0}")]
    Reset(#[source] hyper::Error),
    /// The kubelet aborted this call.
    #[error("request aborted by the client: {0}")]
    Request(#[source] hyper::Error),
}

impl SendError {
    fn from_hyper(path: &Path, error: hyper::Error) -> Self {
        if was_reset(&error) {
            return Self::Reset(error);
        }
        Self::Unavailable {
            path: path.to_owned(),
            error: error.into(),
        }
    }
}

/// Returns true if the peer reset one call, and not the whole connection.
fn was_reset(error: &hyper::Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.is_reset();
        }
        source = error.source();
    }
    false
}

/// Request body for the runtime: a stream or one message. Neither adds a content length that the kubelet did
/// not send.
pub(crate) enum RequestBody {
    Passing(Incoming),
    Whole(Option<Bytes>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Passing(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passing(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_none(),
        }
    }
}

/// Runs after a successful call, before the kubelet gets the result. The argument is the framed response, if
/// it is small.
pub(crate) type OnSuccess = Box<dyn FnOnce(Option<Bytes>) -> BoxFuture<'static, ()> + Send>;

/// Response body for the kubelet.
pub(crate) enum ResponseBody {
    /// Headers only.
    Empty,
    /// The runtime's response as a stream.
    Passing {
        from: Incoming,
        /// Cuts off a response that never ends by itself.
        until: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    },
    /// The runtime's response as a stream, of which a copy is kept for [`OnSuccess`].
    Captured(Box<CapturedBody>),
    /// Ended by a status of the proxy.
    Over,
}

pub(crate) struct CapturedBody {
    from: Incoming,
    captured: Option<BytesMut>,
    done: Option<OnSuccess>,
    /// Trailers that are held back until `OnSuccess` has completed.
    last: Option<(http::HeaderMap, BoxFuture<'static, ()>)>,
}

impl ResponseBody {
    pub(crate) fn watched(from: Incoming, done: OnSuccess) -> Self {
        Self::Captured(Box::new(CapturedBody {
            from,
            captured: Some(BytesMut::new()),
            done: Some(done),
            last: None,
        }))
    }

    pub(crate) fn refusal(code: Code, message: &str) -> Response<Self> {
        let mut response = Response::new(Self::Empty);
        *response.status_mut() = StatusCode::OK;
        *response.headers_mut() = grpc::refusal(code, message);
        response
    }
}

impl CapturedBody {
    /// Polls the next frame; holds trailers of a successful call back until `OnSuccess` has completed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            if let Some((_, doing)) = &mut self.last {
                ready!(doing.as_mut().poll(cx));
                let trailers = self.last.take().map(|(trailers, _)| trailers);
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            }
            let frame = match ready!(Pin::new(&mut self.from).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            if let Some(data) = frame.data_ref() {
                match &mut self.captured {
                    Some(captured) if captured.len() + data.len() <= MAX_CAPTURED => {
                        captured.extend_from_slice(data)
                    }
                    captured => *captured = None,
                }
            }
            let trailers = match frame.into_trailers() {
                Ok(trailers) => trailers,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            };
            match self.done.take().filter(|_| grpc::is_ok(&trailers)) {
                Some(done) => {
                    let captured = self.captured.take().map(BytesMut::freeze);
                    self.last = Some((trailers, done(captured)));
                }
                None => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let answer = self.get_mut();
        let frame = match answer {
            Self::Empty | Self::Over => None,
            Self::Passing { from, until } => match Pin::new(from).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    if let Some(until) = until {
                        ready!(until.as_mut().poll(cx));
                        *answer = Self::Over;
                        let status = grpc::status(Code::Unavailable, RESTARTS);
                        return Poll::Ready(Some(Ok(Frame::trailers(status))));
                    }
                    return Poll::Pending;
                }
            },
            Self::Captured(body) => ready!(body.poll(cx)),
        };
        Poll::Ready(match frame {
            // A broken connection is reported as gRPC clients report it for their own connections.
            Some(Err(error)) if !was_reset(&error) => {
                *answer = Self::Over;
                let text = format!("response aborted by the runtime: {error}");
                Some(Ok(Frame::trailers(grpc::status(Code::Unavailable, &text))))
            }
            frame => frame.map(|frame| frame.map_err(Into::into)),
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty | Self::Over => true,
            Self::Passing { from, .. } => from.is_end_stream(),
            Self::Captured(body) => body.last.is_none() && body.from.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
