//! Container logs, as the node that runs the pods hands them to us.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// What a `pods/log` request asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Keep the stream open and send what the container writes from now on.
    pub follow: bool,
    /// Only the last so many lines.
    pub tail_lines: Option<u64>,
    /// Only what was written in the last so many seconds.
    pub since_seconds: Option<i64>,
    /// Only what was written at or after this time (RFC 3339).
    pub since_time: Option<jiff::Timestamp>,
    /// Stop after so many bytes.
    pub limit_bytes: Option<u64>,
    /// Put the time before each line.
    pub timestamps: bool,
    /// The logs of the previous, terminated instance of the container.
    pub previous: bool,
}

/// A running log: chunks until the container ends or the reader goes away.
pub type LogStream = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// Where `kubectl logs` gets its text.
pub trait PodLogs: Send + Sync {
    /// The log of one container. The error is a sentence for the user.
    fn logs<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        options: LogOptions,
    ) -> BoxFuture<'a, Result<LogStream, String>>;
}
