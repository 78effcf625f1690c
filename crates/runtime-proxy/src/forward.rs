//! Bytes from the kubelet to the runtime and back, as they come.

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

/// How long a connection to the runtime may take: upstream's dial timeout.
pub(crate) const DIAL: Duration = Duration::from_secs(5);

/// How much may be on its way in one call, in bytes, and in all calls of a connection.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;

/// Headers of one call are at most so large, in bytes: gRPC's own limit in Go.
pub(crate) const HEADERS: u32 = 16 << 20;

/// Of an answer that is looked at, so much is kept, in bytes: it has an id.
const MAX_CAPTURED: usize = 64 << 10;

/// Why an answer that never ends by itself ends all the same.
pub(crate) const RESTARTS: &str = "the proxy restarts";

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// One kubelet connection's way to the runtime: a connection of its own, made again after the runtime
/// closed it. Calls of different connections never wait for each other's windows.
#[derive(Debug)]
pub(crate) struct Backend {
    path: Arc<Path>,
    sender: Mutex<Option<SendRequest<Outgoing>>>,
    /// Held while a connection is made, so that only one is.
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

    /// Sends a call on. An error resets the call, for the same reason as the runtime reset it; a runtime
    /// that cannot be reached is an answer, UNAVAILABLE.
    pub(crate) async fn send(
        &self,
        mut request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, SendError> {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = local(path);
        // Over HTTP/2 all versions are the same.
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
                // It was not sent: the connection had ended, perhaps just now.
                Some(unsent) if std::mem::take(&mut may_retry) => request = unsent,
                _ => return Err(SendError::from_hyper(&self.path, error.into_error())),
            }
        }
    }

    fn connected(&self) -> Option<SendRequest<Outgoing>> {
        let sender = self.sender.lock();
        sender
            .as_ref()
            .filter(|sender| !sender.is_closed())
            .cloned()
    }

    async fn sender(&self) -> Result<SendRequest<Outgoing>, ConnectError> {
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

/// Where gRPC over a socket calls: the host is never looked at.
fn local(path: Option<PathAndQuery>) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = Some(http::uri::Authority::from_static("localhost"));
    parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    Uri::from_parts(parts).unwrap_or_default()
}

/// Why there is no connection, or none any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("it does not accept a connection within {DIAL:?}")]
    Slow,
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Why there is no answer of the runtime.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// There is no connection, or it broke.
    #[error("the runtime at {} cannot be reached: {error}", path.display())]
    Unavailable { path: PathBuf, error: ConnectError },
    /// The runtime ended this call alone.
    #[error("the runtime reset the call: {0}")]
    Reset(#[source] hyper::Error),
    /// The kubelet ended this call.
    #[error("the request broke off: {0}")]
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

/// Whether the peer ended one call, and not the whole connection.
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

/// What goes to the runtime: as it comes, or one message. Neither says a length that the kubelet did not.
pub(crate) enum Outgoing {
    Passing(Incoming),
    Whole(Option<Bytes>),
}

impl Body for Outgoing {
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

/// What is done when a call went well, with the framed answer if it is small, before the kubelet hears so.
pub(crate) type OnSuccess = Box<dyn FnOnce(Option<Bytes>) -> BoxFuture<'static, ()> + Send>;

/// What goes back to the kubelet.
pub(crate) enum Answer {
    /// Nothing but headers.
    Empty,
    /// The runtime's answer as it comes.
    Passing {
        from: Incoming,
        /// When it is cut off: of answers that never end by themselves.
        until: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    },
    /// The same, with an eye on it.
    Watched(Box<Watched>),
    /// What ended the call in the runtime's place was said.
    Over,
}

pub(crate) struct Watched {
    from: Incoming,
    captured: Option<BytesMut>,
    done: Option<OnSuccess>,
    /// Trailers that wait for what is done.
    last: Option<(http::HeaderMap, BoxFuture<'static, ()>)>,
}

impl Answer {
    pub(crate) fn watched(from: Incoming, done: OnSuccess) -> Self {
        Self::Watched(Box::new(Watched {
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

impl Watched {
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

impl Body for Answer {
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
            Self::Watched(watched) => ready!(watched.poll(cx)),
        };
        Poll::Ready(match frame {
            // A connection that broke is said as gRPC clients say it, had they been connected themselves.
            Some(Err(error)) if !was_reset(&error) => {
                *answer = Self::Over;
                let text = format!("the runtime broke off its answer: {error}");
                Some(Ok(Frame::trailers(grpc::status(Code::Unavailable, &text))))
            }
            frame => frame.map(|frame| frame.map_err(Into::into)),
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty | Self::Over => true,
            Self::Passing { from, .. } => from.is_end_stream(),
            Self::Watched(watched) => watched.last.is_none() && watched.from.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}
