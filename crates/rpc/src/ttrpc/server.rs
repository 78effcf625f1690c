//! Server of ttrpc calls.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::frame::{Decoder, Frame, FrameKind, Header};
use super::{Code, Error, MESSAGE_LIMIT, Status, send, wire};
use crate::io::more;

/// Maximum concurrent calls of one connection; at the limit no more are read.
const MAX_CONCURRENT_CALLS: usize = 128;

/// Future response of a service before it is framed.
pub type Answer = BoxFuture<'static, Result<Vec<u8>, Status>>;

/// Metadata of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// Timeout of the caller; a later response is replaced by `DEADLINE_EXCEEDED`.
    pub timeout: Option<Duration>,
    /// Keys and values, in the caller's order.
    pub metadata: Vec<(String, String)>,
}

/// A call as passed to a service.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// Name of the method.
    pub method: String,
    /// Encoded request.
    pub payload: Bytes,
    /// Metadata of the request.
    pub context: Context,
}

/// A service with its methods.
pub trait Service: Send + Sync + 'static {
    /// Returns the name of the service with its package.
    fn name(&self) -> &'static str;
    /// Answers a call; with `UNIMPLEMENTED` for an unknown method.
    fn call(&self, call: Incoming) -> Answer;
}

/// A server of services, for one connection after the other.
#[derive(Clone)]
pub struct Server {
    services: BTreeMap<&'static str, Arc<dyn Service>>,
    limit: usize,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let services: Vec<_> = self.services.keys().collect();
        f.debug_struct("Server")
            .field("services", &services)
            .field("limit", &self.limit)
            .finish()
    }
}

impl Default for Server {
    fn default() -> Server {
        Server {
            services: BTreeMap::new(),
            limit: MESSAGE_LIMIT,
        }
    }
}

impl Server {
    /// Adds a service.
    #[must_use]
    pub fn with(mut self, service: impl Service) -> Server {
        self.services.insert(service.name(), Arc::new(service));
        self
    }

    /// Accepts requests of up to `limit` bytes instead of [`MESSAGE_LIMIT`]. A larger one is answered with
    /// `RESOURCE_EXHAUSTED`, and the connection stays open.
    #[must_use]
    pub fn accepting(mut self, limit: usize) -> Server {
        self.limit = limit;
        self
    }

    /// Serves calls over `io` until its end; calls in flight are then dropped, and also when this future is
    /// dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection breaks; its regular end is no error.
    pub async fn serve(
        &self,
        io: impl AsyncRead + AsyncWrite + Send + 'static,
    ) -> Result<(), Error> {
        let (read, mut write) = tokio::io::split(io);
        let (answers, mut answered) = mpsc::channel::<(u32, Vec<u8>)>(MAX_CONCURRENT_CALLS);
        let writing = async move {
            while let Some((stream, answer)) = answered.recv().await {
                if let Err(error) = send(&mut write, stream, FrameKind::Response, &answer).await {
                    return Err(Error::closed(error));
                }
            }
            // Wait until the reader has seen the end.
            std::future::pending().await
        };
        tokio::select! {
            result = self.read(read, answers) => result,
            result = writing => result,
        }
    }

    /// Reads requests and starts their handlers until the end of the stream.
    async fn read(
        &self,
        mut from: impl AsyncRead + Unpin,
        answers: mpsc::Sender<(u32, Vec<u8>)>,
    ) -> Result<(), Error> {
        let mut decoder = Decoder::new(self.limit);
        let mut buffer = BytesMut::new();
        let slots = Arc::new(Semaphore::new(MAX_CONCURRENT_CALLS));
        let mut calls = JoinSet::new();
        let mut last = 0;
        loop {
            while let Some(frame) = decoder.next(&mut buffer) {
                let (stream, answer) = match self.admit(frame, &mut last) {
                    Admission::Call(stream, answer) => (stream, answer),
                    Admission::Refused(stream, status) => {
                        let answer = async { Err(status) };
                        (stream, answer.boxed())
                    }
                    Admission::Ignored => continue,
                };
                while calls.try_join_next().is_some() {}
                let Ok(permit) = Arc::clone(&slots).acquire_owned().await else {
                    return Err(Error::closed("no room"));
                };
                let answers = answers.clone();
                calls.spawn(async move {
                    // The writer outlives the reader.
                    let _ = answers.send((stream, finish(answer.await))).await;
                    drop(permit);
                });
            }
            if !more(&mut from, &mut buffer).await.map_err(Error::closed)? {
                return Ok(());
            }
        }
    }

    /// Checks a frame. Returns the call that it starts, or the error to send.
    fn admit(&self, frame: Frame, last: &mut u32) -> Admission {
        let refused = |header: Header, code, message: String| {
            Admission::Refused(header.stream, Status::new(code, message))
        };
        let (header, message) = match frame {
            Frame::Message(header, message) => (header, message),
            Frame::Oversized(header) => {
                let message = format!(
                    "{} bytes are above the limit of {}",
                    header.length, self.limit
                );
                return refused(header, Code::ResourceExhausted, message);
            }
        };
        if header.stream % 2 == 0 {
            let message = format!("stream {} of a client is not odd", header.stream);
            return refused(header, Code::InvalidArgument, message);
        }
        match header.kind {
            FrameKind::Request => {}
            FrameKind::Data => {
                let message = "streaming calls are not served".to_owned();
                return refused(header, Code::InvalidArgument, message);
            }
            // Ignored for compatibility with later versions.
            FrameKind::Response | FrameKind::Other(_) => return Admission::Ignored,
        }
        if header.stream <= *last {
            let message = format!("stream {} comes after {last}", header.stream);
            return refused(header, Code::InvalidArgument, message);
        }
        *last = header.stream;
        let request = match wire::Request::decode(message) {
            Ok(request) => request,
            Err(error) => {
                let message = format!("undecodable request: {error}");
                return refused(header, Code::InvalidArgument, message);
            }
        };
        let Some(service) = self.services.get(request.service.as_str()) else {
            let message = format!("no service {}", request.service);
            return refused(header, Code::Unimplemented, message);
        };
        let timeout = u64::try_from(request.timeout_nano).unwrap_or(0);
        let timeout = (timeout > 0).then(|| Duration::from_nanos(timeout));
        let metadata = request.metadata.into_iter();
        let call = Incoming {
            method: request.method,
            payload: request.payload.into(),
            context: Context {
                timeout,
                metadata: metadata.map(|pair| (pair.key, pair.value)).collect(),
            },
        };
        let service = Arc::clone(service);
        Admission::Call(header.stream, bounded(service, call, timeout).boxed())
    }
}

enum Admission {
    Call(u32, Answer),
    Refused(u32, Status),
    Ignored,
}

/// Calls the service with the timeout and handles a panic, so that the caller always gets a response.
async fn bounded(
    service: Arc<dyn Service>,
    call: Incoming,
    timeout: Option<Duration>,
) -> Result<Vec<u8>, Status> {
    let method = format!("{}/{}", service.name(), call.method);
    let answer = AssertUnwindSafe(async move { service.call(call).await }).catch_unwind();
    let answer = match timeout {
        None => answer.await,
        Some(limit) => match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                let message = format!("{method} took longer than {limit:?}");
                return Err(Status::new(Code::DeadlineExceeded, message));
            }
        },
    };
    answer.unwrap_or_else(|_| {
        tracing::error!(method, "ttrpc handler panicked");
        Err(Status::new(Code::Internal, format!("{method} panicked")))
    })
}

/// Encodes a response.
fn finish(answer: Result<Vec<u8>, Status>) -> Vec<u8> {
    let error_response = |status: Status| wire::Response {
        status: Some(wire::Status {
            code: status.code as i32,
            message: status.message,
        }),
        payload: Vec::new(),
    };
    let response = match answer {
        Ok(payload) => wire::Response {
            status: None,
            payload,
        },
        Err(status) => error_response(status),
    };
    let length = response.encoded_len();
    if length <= MESSAGE_LIMIT {
        return response.encode_to_vec();
    }
    let message = format!("an answer of {length} bytes is above the limit of {MESSAGE_LIMIT}");
    error_response(Status::new(Code::ResourceExhausted, message)).encode_to_vec()
}
