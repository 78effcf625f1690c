//! NRI's multiplexing of several byte streams, the channels, over one connection, like containerd/nri's
//! `pkg/net/multiplex`. There is no flow control, and channels are neither opened nor closed; both ends use
//! fixed channels.
//!
//! The peer in Go reads a channel through a buffer of 4,096 bytes and fails if a frame does not fit into the
//! size it requests; it buffers up to 256 unread frames. So each write to a [`Channel`] becomes one frame (up
//! to [`frame::WRITE_LIMIT`]), and the writer controls the frames: ttrpc writes its header and then the
//! message, which fits.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard, PollSender};

use crate::io::more;

pub mod frame;

/// Maximum unread bytes of a channel before the connection is closed. A slow channel must not block the
/// other, and the state of a node is sent in messages of several MiB.
pub const UNREAD_LIMIT: usize = 64 << 20;

/// Maximum frames in the write queue before writers have to wait.
const QUEUE: usize = 16;

/// A connection with channels. It is closed when this value is dropped.
#[derive(Debug)]
pub struct Mux {
    end: Arc<ConnectionState>,
    task: Option<JoinHandle<()>>,
    _guard: DropGuard,
}

#[derive(Debug)]
struct ConnectionState {
    /// Error that ended the connection; `None` before the end, and after a regular end.
    fault: Mutex<Option<String>>,
    closed: CancellationToken,
}

impl ConnectionState {
    fn set_fault(&self, fault: impl std::fmt::Display) {
        self.fault.lock().get_or_insert_with(|| fault.to_string());
    }

    fn error(&self) -> Option<io::Error> {
        let fault = self.fault.lock().clone();
        fault.map(|fault| io::Error::new(io::ErrorKind::ConnectionAborted, fault))
    }
}

/// A byte stream of the connection. It ends with the connection.
#[derive(Debug)]
pub struct Channel {
    id: u32,
    end: Arc<ConnectionState>,
    received: mpsc::UnboundedReceiver<Bytes>,
    /// Unread rest of the last piece.
    rest: Bytes,
    /// Number of bytes in `received`.
    unread: Arc<AtomicUsize>,
    queue: PollSender<(u32, Bytes)>,
}

struct Inbox {
    id: u32,
    queue: mpsc::UnboundedSender<Bytes>,
    unread: Arc<AtomicUsize>,
}

impl Mux {
    /// Opens channels with these ids over `trunk`, in a task of the current runtime. Bytes for other ids are
    /// dropped.
    pub fn open<const N: usize>(
        trunk: impl AsyncRead + AsyncWrite + Send + 'static,
        ids: [u32; N],
    ) -> (Mux, [Channel; N]) {
        let closed = CancellationToken::new();
        let end = Arc::new(ConnectionState {
            fault: Mutex::new(None),
            closed: closed.clone(),
        });
        let (frames, queue) = mpsc::channel(QUEUE);
        let mut inboxes = Vec::with_capacity(N);
        let channels = ids.map(|id| {
            let (sender, received) = mpsc::unbounded_channel();
            let unread = Arc::new(AtomicUsize::new(0));
            inboxes.push(Inbox {
                id,
                queue: sender,
                unread: Arc::clone(&unread),
            });
            Channel {
                id,
                end: Arc::clone(&end),
                received,
                rest: Bytes::new(),
                unread,
                queue: PollSender::new(frames.clone()),
            }
        });
        let task = tokio::spawn(run(trunk, Arc::clone(&end), inboxes, queue));
        let mux = Mux {
            end,
            task: Some(task),
            _guard: closed.drop_guard(),
        };
        (mux, channels)
    }

    /// Waits until the connection has ended: returns `None` after a regular end by either side, or else the
    /// error.
    pub async fn closed(&self) -> Option<String> {
        self.end.closed.cancelled().await;
        self.end.fault.lock().clone()
    }

    /// Closes the connection and waits until its task has ended.
    pub async fn close(mut self) {
        self.end.closed.cancel();
        if let Some(task) = self.task.take() {
            // The task neither panics nor is aborted.
            let _ = task.await;
        }
    }
}

/// Reads and writes the trunk until either fails, and records the error in `end`.
async fn run(
    trunk: impl AsyncRead + AsyncWrite,
    end: Arc<ConnectionState>,
    inboxes: Vec<Inbox>,
    mut queue: mpsc::Receiver<(u32, Bytes)>,
) {
    let (mut read, mut write) = tokio::io::split(trunk);
    let reading = async {
        let mut decoder = frame::ChannelDecoder::default();
        let mut buffer = BytesMut::new();
        loop {
            while let Some((id, piece)) = decoder.next(&mut buffer).map_err(|e| e.to_string())? {
                let Some(inbox) = inboxes.iter().find(|inbox| inbox.id == id) else {
                    continue;
                };
                let unread = inbox.unread.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
                if unread > UNREAD_LIMIT {
                    return Err(format!("{unread} bytes of channel {id} were not read"));
                }
                // The channel was dropped: the piece is discarded, as for an unknown id.
                if inbox.queue.send(piece).is_err() {
                    inbox.unread.store(0, Ordering::Relaxed);
                }
            }
            if !more(&mut read, &mut buffer)
                .await
                .map_err(|e| e.to_string())?
            {
                return Ok(());
            }
        }
    };
    let writing = async {
        while let Some((id, bytes)) = queue.recv().await {
            let length = u32::try_from(bytes.len()).map_err(|e| e.to_string())?;
            let header = frame::header(id, length);
            let written = async {
                write.write_all(&header).await?;
                write.write_all(&bytes).await?;
                write.flush().await
            };
            written.await.map_err(|e: io::Error| e.to_string())?;
        }
        // All channels are dropped; reading continues until the end.
        std::future::pending::<Result<(), String>>().await
    };
    let result = tokio::select! {
        result = reading => result,
        result = writing => result,
        () = end.closed.cancelled() => Ok(()),
    };
    if let Err(fault) = result {
        end.set_fault(fault);
    }
    // The peer must see the end even if a copy of the socket is open elsewhere.
    let _ = write.shutdown().await;
    end.closed.cancel();
}

impl AsyncRead for Channel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.rest.is_empty() {
            match ready!(this.received.poll_recv(cx)) {
                Some(piece) => this.rest = piece,
                None => return Poll::Ready(this.end.error().map_or(Ok(()), Err)),
            }
        }
        let length = this.rest.len().min(buffer.remaining());
        buffer.put_slice(&this.rest[..length]);
        this.rest.advance(length);
        this.unread.fetch_sub(length, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let broken = |end: &ConnectionState| {
            end.error()
                .unwrap_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
        };
        if ready!(this.queue.poll_reserve(cx)).is_err() {
            return Poll::Ready(Err(broken(&this.end)));
        }
        let length = bytes.len().min(frame::WRITE_LIMIT);
        let frame = (this.id, Bytes::copy_from_slice(&bytes[..length]));
        match this.queue.send_item(frame) {
            Ok(()) => Poll::Ready(Ok(length)),
            Err(_) => Poll::Ready(Err(broken(&this.end))),
        }
    }

    /// Does nothing: frames are written in order as they arrive.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Does nothing: channels are not closed individually.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
