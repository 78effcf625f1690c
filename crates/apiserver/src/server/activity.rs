//! Activity of a connection: whether requests are in progress, and whether the client reads its responses.

use super::connections::OpenConnection;
use super::limits::Limits;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Requests of one connection.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<Mutex<ActivityState>>);

#[derive(Debug)]
struct ActivityState {
    serial: u64,
    open: usize,
    /// End of the last request.
    idle_since: Instant,
    /// Updated when the first request begins and when the last one ends.
    connection: Option<OpenConnection>,
    /// Since when a part of a response waits to be sent, by request.
    unread: FxHashMap<u64, Instant>,
}

impl Activity {
    pub(super) fn new(connection: Option<OpenConnection>) -> Self {
        Self(Arc::new(Mutex::new(ActivityState {
            serial: 0,
            open: 0,
            idle_since: Instant::now(),
            connection,
            unread: FxHashMap::default(),
        })))
    }

    /// Counts a request until the result is dropped.
    pub(super) fn begin(&self) -> RequestInProgress {
        let mut state = self.0.lock();
        state.serial += 1;
        state.open += 1;
        if let Some(connection) = state.connection.as_ref().filter(|_| state.open == 1) {
            connection.set_busy(true);
        }
        RequestInProgress {
            id: state.serial,
            activity: self.clone(),
        }
    }

    /// Returns why the connection should be closed, if it should.
    pub(super) fn overdue(&self, limits: &Limits) -> Option<&'static str> {
        let state = self.0.lock();
        if state.open == 0 && state.idle_since.elapsed() >= limits.idle {
            return Some("idle for too long");
        }
        let slow = |since: &Instant| since.elapsed() >= limits.unread;
        state
            .unread
            .values()
            .any(slow)
            .then_some("response not read")
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct RequestInProgress {
    id: u64,
    activity: Activity,
}

impl RequestInProgress {
    fn set_unread(&self, since: Option<Instant>) {
        let mut state = self.activity.0.lock();
        match since {
            Some(since) => state.unread.insert(self.id, since),
            None => state.unread.remove(&self.id),
        };
    }

    /// Attaches the request to its response: it is in progress until the whole body is sent.
    pub(super) fn attach_to(self, response: Response) -> Response {
        response.map(|body| {
            Body::new(TrackedBody {
                body,
                request: self,
            })
        })
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.unread.remove(&self.id);
        state.open -= 1;
        if state.open == 0 {
            state.idle_since = Instant::now();
            if let Some(connection) = &state.connection {
                connection.set_busy(false);
            }
        }
    }
}

/// Body of a response. It is polled only when the connection can take more data.
struct TrackedBody {
    body: Body,
    request: RequestInProgress,
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let waits = matches!(&frame, Poll::Ready(Some(Ok(_)))).then(Instant::now);
        self.request.set_unread(waits);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Stream whose writes fail with a timeout when they are blocked for too long.
#[derive(Debug)]
pub(super) struct TimeoutStream<S> {
    stream: S,
    longest: Duration,
    /// Timeout of the blocked write.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> TimeoutStream<S> {
    pub(super) fn new(stream: S, longest: Duration) -> Self {
        Self {
            stream,
            longest,
            waiting: None,
        }
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let longest = self.longest;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        waiting
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_idle_or_unread() {
        let limits = Limits::default();
        let activity = Activity::new(None);
        tokio::time::advance(limits.idle / 2).await;
        assert_eq!(activity.overdue(&limits), None);
        let request = activity.begin();
        tokio::time::advance(limits.idle * 2).await;
        // An open watch without events is not idle.
        assert_eq!(activity.overdue(&limits), None);
        let body = Body::from("x");
        let mut answer = request.attach_to(Response::new(body)).into_body();
        assert!(answer.frame().await.is_some());
        tokio::time::advance(limits.unread).await;
        assert_eq!(activity.overdue(&limits), Some("response not read"));
        assert!(answer.frame().await.is_none());
        assert_eq!(activity.overdue(&limits), None);
        drop(answer);
        assert_eq!(activity.overdue(&limits), None);
        tokio::time::advance(limits.idle).await;
        assert_eq!(activity.overdue(&limits), Some("idle for too long"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_ends_the_write() {
        let (client, server) = tokio::io::duplex(16);
        let mut server = TimeoutStream::new(server, Duration::from_secs(60));
        server.write_all(&[0; 16]).await.unwrap();
        let error = server.write_all(&[0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);

        let (mut client, server) = tokio::io::duplex(16);
        let mut server = TimeoutStream::new(server, Duration::from_secs(60));
        let reader = tokio::spawn(async move {
            let mut read = Vec::new();
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                let mut part = [0; 16];
                client.read_exact(&mut part).await.unwrap();
                read.extend(part);
            }
            read.len()
        });
        server.write_all(&[0; 64]).await.unwrap();
        assert_eq!(reader.await.unwrap(), 64, "slow, but not too slow");
    }
}
