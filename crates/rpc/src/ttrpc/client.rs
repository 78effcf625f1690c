//! Client of ttrpc calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::frame::{Decoder, Frame, FrameKind, Header};
use super::{Error, MESSAGE_LIMIT, Status, send, wire};
use crate::io::more;

/// Maximum requests in the write queue before callers have to wait.
const QUEUE: usize = 64;

/// Timeout and metadata of a call.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Timeout, which is also sent to the server; `None` to wait as long as the connection lives.
    pub timeout: Option<Duration>,
    /// Metadata sent with the request.
    pub metadata: Vec<(String, String)>,
}

impl Options {
    /// Returns options with this timeout.
    pub fn within(timeout: Duration) -> Options {
        Options {
            timeout: Some(timeout),
            metadata: Vec::new(),
        }
    }
}

/// A client connection. Clones share it; it is closed with the last of them.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    _guard: Arc<DropGuard>,
}

#[derive(Debug)]
struct Shared {
    calls: Mutex<Calls>,
    queue: mpsc::Sender<(u32, Vec<u8>)>,
    closed: CancellationToken,
}

#[derive(Debug)]
struct Calls {
    /// Stream id of the next call; `None` when they are used up.
    next: Option<u32>,
    waiting: BTreeMap<u32, oneshot::Sender<CallResult>>,
    /// Error that ended the connection.
    ended: Option<Error>,
}

#[derive(Debug)]
enum CallResult {
    Answer(Bytes),
    Oversized(usize),
    UnexpectedKind(FrameKind),
    Closed(Error),
}

impl Client {
    /// Creates a client over `io`, with tasks in the current runtime.
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Client {
        let (queue, requests) = mpsc::channel(QUEUE);
        let closed = CancellationToken::new();
        let shared = Arc::new(Shared {
            calls: Mutex::new(Calls {
                next: Some(1),
                waiting: BTreeMap::new(),
                ended: None,
            }),
            queue,
            closed: closed.clone(),
        });
        let (read, write) = tokio::io::split(io);
        tokio::spawn(run(Arc::clone(&shared), read, write, requests));
        Client {
            shared,
            _guard: Arc::new(closed.drop_guard()),
        }
    }

    /// Calls `method` of `service` and waits for the response. A dropped call is not canceled on the server:
    /// ttrpc does not support that.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`]; all but [`Error::Closed`] leave the connection usable.
    pub async fn call<R: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &impl Message,
        options: &Options,
    ) -> Result<R, Error> {
        let full = || format!("{service}/{method}");
        let nanoseconds = |timeout: Duration| i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        let pair = |(key, value): &(String, String)| wire::KeyValue {
            key: key.clone(),
            value: value.clone(),
        };
        let request = wire::Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: request.encode_to_vec(),
            timeout_nano: options.timeout.map_or(0, nanoseconds),
            metadata: options.metadata.iter().map(pair).collect(),
        }
        .encode_to_vec();
        if request.len() > MESSAGE_LIMIT {
            return Err(Error::Oversized {
                method: full(),
                length: request.len(),
                limit: MESSAGE_LIMIT,
            });
        }
        let answer = self.exchange(request);
        let outcome = match options.timeout {
            None => answer.await?,
            Some(limit) => match tokio::time::timeout(limit, answer).await {
                Ok(outcome) => outcome?,
                Err(_) => {
                    return Err(Error::Timeout {
                        method: full(),
                        limit,
                    });
                }
            },
        };
        let malformed = |fault: String| Error::Malformed {
            method: full(),
            fault,
        };
        let message = match outcome {
            CallResult::Answer(message) => message,
            CallResult::UnexpectedKind(kind) => {
                return Err(malformed(format!("a frame of kind {kind:?}")));
            }
            CallResult::Closed(error) => return Err(error),
            CallResult::Oversized(length) => {
                return Err(Error::Oversized {
                    method: full(),
                    length,
                    limit: MESSAGE_LIMIT,
                });
            }
        };
        let response = wire::Response::decode(message).map_err(|e| malformed(e.to_string()))?;
        if let Some(status) = response.status.filter(|status| status.code != 0) {
            return Err(Status::new(status.code.into(), status.message).into());
        }
        R::decode(response.payload.as_slice()).map_err(|e| malformed(e.to_string()))
    }

    async fn exchange(&self, request: Vec<u8>) -> Result<CallResult, Error> {
        let shared = &self.shared;
        let permit = tokio::select! {
            permit = shared.queue.reserve() => permit.map_err(|_| shared.close_error())?,
            () = shared.closed.cancelled() => return Err(shared.close_error()),
        };
        let (sender, receiver) = oneshot::channel();
        let stream = {
            // One lock for both, so that stream ids increase on the wire.
            let mut calls = shared.calls.lock();
            if let Some(error) = &calls.ended {
                return Err(error.clone());
            }
            let Some(stream) = calls.next else {
                return Err(Error::closed("all streams of the connection are used up"));
            };
            calls.next = stream.checked_add(2);
            calls.waiting.insert(stream, sender);
            permit.send((stream, request));
            stream
        };
        let _guard = PendingCallGuard { shared, stream };
        receiver.await.map_err(|_| shared.close_error())
    }

    /// Waits until the connection is closed by either side.
    pub async fn closed(&self) -> Error {
        self.shared.closed.cancelled().await;
        self.shared.close_error()
    }

    /// Closes the connection; calls in flight fail.
    pub fn close(&self) {
        self.shared.end(Error::closed("by us"));
    }
}

/// Removes a call from the table when its caller stops waiting.
struct PendingCallGuard<'a> {
    shared: &'a Shared,
    stream: u32,
}

impl Drop for PendingCallGuard<'_> {
    fn drop(&mut self) {
        self.shared.calls.lock().waiting.remove(&self.stream);
    }
}

impl Shared {
    fn close_error(&self) -> Error {
        let ended = self.calls.lock().ended.clone();
        ended.unwrap_or_else(|| Error::closed("by us"))
    }

    /// Ends the connection. Only the first error is recorded.
    fn end(&self, error: Error) {
        let waiting = {
            let mut calls = self.calls.lock();
            calls.ended.get_or_insert_with(|| error.clone());
            std::mem::take(&mut calls.waiting)
        };
        for (_, sender) in waiting {
            let _ = sender.send(CallResult::Closed(error.clone()));
        }
        self.closed.cancel();
    }

    fn deliver(&self, header: Header, outcome: CallResult) {
        let waiting = self.calls.lock().waiting.remove(&header.stream);
        match waiting {
            // The caller may have given up in between.
            Some(sender) => drop(sender.send(outcome)),
            None => tracing::debug!(
                stream = header.stream,
                "dropping ttrpc response without a waiting caller"
            ),
        }
    }
}

/// Sends requests and delivers responses until the connection ends.
async fn run(
    shared: Arc<Shared>,
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    mut requests: mpsc::Receiver<(u32, Vec<u8>)>,
) {
    let writing = async {
        while let Some((stream, request)) = requests.recv().await {
            if let Err(error) = send(&mut write, stream, FrameKind::Request, &request).await {
                return Error::closed(error);
            }
        }
        Error::closed("by us")
    };
    let reading = async {
        let mut decoder = Decoder::new(MESSAGE_LIMIT);
        let mut buffer = BytesMut::new();
        loop {
            while let Some(frame) = decoder.next(&mut buffer) {
                match frame {
                    Frame::Message(header, message) if header.kind == FrameKind::Response => {
                        shared.deliver(header, CallResult::Answer(message));
                    }
                    Frame::Message(header, _) => {
                        shared.deliver(header, CallResult::UnexpectedKind(header.kind));
                    }
                    Frame::Oversized(header) => {
                        shared.deliver(header, CallResult::Oversized(header.length as usize));
                    }
                }
            }
            match more(&mut read, &mut buffer).await {
                Ok(true) => {}
                Ok(false) => return Error::closed("end of stream"),
                Err(error) => return Error::closed(error),
            }
        }
    };
    let error = tokio::select! {
        error = writing => error,
        error = reading => error,
        () = shared.closed.cancelled() => Error::closed("by us"),
    };
    shared.end(error);
}
