//! Container logs, as the node that runs the pods provides them.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// Options of a `pods/log` request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Keep the stream open and send new output as the container writes it.
    pub follow: bool,
    /// Number of last lines to send; `None`: all.
    pub tail_lines: Option<u64>,
    /// Age limit of lines, in seconds.
    pub since_seconds: Option<i64>,
    /// Send only lines written at or after this time (RFC 3339).
    pub since_time: Option<jiff::Timestamp>,
    /// Number of bytes after which to stop.
    pub limit_bytes: Option<u64>,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// Read the log of the previous, terminated instance of the container.
    pub previous: bool,
}

/// A stream of log chunks; it ends when the container does.
pub type LogStream = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// Source of container logs for `kubectl logs`.
pub trait PodLogs: Send + Sync {
    /// Opens the log of one container.
    ///
    /// # Errors
    /// A sentence for the user.
    fn logs<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        options: LogOptions,
    ) -> BoxFuture<'a, Result<LogStream, String>>;
}
