//! ttrpc: gRPC's unary calls over a plain stream, without HTTP/2. Client and server over any byte stream,
//! compatible with containerd/ttrpc 1.2.7; streaming calls, which NRI does not use, are rejected. Why there
//! is an own implementation: docs/adr/0007-own-ttrpc-and-mux.md.
//!
//! A frame ([`frame`]) is written in two writes, header and message, and each write to a channel of
//! [`crate::mux`] is one frame there: the peer in Go depends on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};

mod client;
pub mod frame;
mod server;
mod service;

pub use client::{Client, Options};
pub use server::{Answer, Context, Incoming, Server, Service};
pub(crate) use service::service;
pub use tonic::Code;

#[allow(
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod wire {
    include!("../generated/ttrpc.rs");
}

/// Bytes of the largest message that peers accept, and so the largest one sent.
pub const MESSAGE_LIMIT: usize = 4 << 20;

/// Error status of a call, as sent by the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct Status {
    /// gRPC status code.
    pub code: Code,
    /// Message for users.
    pub message: String,
}

impl Status {
    /// Returns a status with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status {
            code,
            message: message.into(),
        }
    }
}

/// Error of a call without a response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The connection is closed.
    #[error("connection closed: {0}")]
    Closed(Arc<str>),
    /// The timeout expired.
    #[error("{method} timed out after {limit:?}")]
    Timeout {
        /// Service and method.
        method: String,
        /// The timeout.
        limit: Duration,
    },
    /// The request or the response is too large; the connection stays open.
    #[error("{method}: message of {length} bytes exceeds the limit of {limit}")]
    Oversized {
        /// Service and method.
        method: String,
        /// Bytes of the message.
        length: usize,
        /// Maximum bytes.
        limit: usize,
    },
    /// The peer answered with an error status.
    #[error("{0}")]
    Status(#[from] Status),
    /// The response is invalid.
    #[error("{method}: invalid response: {fault}")]
    Malformed {
        /// Service and method.
        method: String,
        /// Description of the error.
        fault: String,
    },
}

impl Error {
    pub(crate) fn closed(reason: impl std::fmt::Display) -> Error {
        Error::Closed(reason.to_string().into())
    }
}

/// Writes a frame in two writes, header and message: peers in Go depend on it.
async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    stream: u32,
    kind: frame::FrameKind,
    message: &[u8],
) -> std::io::Result<()> {
    let length = u32::try_from(message.len())
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
    let header = frame::Header {
        length,
        stream,
        kind,
        flags: 0,
    };
    to.write_all(&header.encode()).await?;
    if !message.is_empty() {
        to.write_all(message).await?;
    }
    to.flush().await
}
