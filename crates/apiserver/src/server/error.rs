//! Errors of the server.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// An error of the server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server failed to listen on the address.
    #[error("cannot listen on {address}: {source}{}", hint(.source))]
    Listen {
        /// Configured address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The address is not loopback, and remote access was not allowed.
    #[error(
        "refusing to listen on {address}: it is reachable from other machines; allow it explicitly if that is wanted"
    )]
    NotLoopback {
        /// Configured address.
        address: SocketAddr,
    },
    /// A file of the server could not be read or written.
    #[error("failed to {action} {path}: {source}")]
    File {
        /// Failed operation, such as `read`.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A key or certificate is invalid.
    #[error("failed to set up {what}: {reason}")]
    Certificate {
        /// Name or path of the key or certificate.
        what: String,
        /// Cause.
        reason: String,
    },
    /// A metric with the same name is already registered.
    #[error("failed to register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The kubeconfig needs the port, and the server does not listen yet.
    #[error(
        "no address to write into a kubeconfig: the server does not listen yet and its port is 0"
    )]
    NoAddress,
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => " (another server uses this port; choose another one)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges)",
        _ => "",
    }
}

impl ServeError {
    pub(super) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Returns the error of an invalid token signing key.
    pub(crate) fn token_key(dir: Option<&Path>, reason: String) -> Self {
        let path = dir.map(|dir| dir.join("sa.key"));
        let path = path.unwrap_or_else(|| PathBuf::from("token key"));
        Self::certificate(path.display().to_string(), reason)
    }

    pub(super) fn certificate(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Certificate {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}
