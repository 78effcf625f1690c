//! Why the server could not start or serve.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// An error of the server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not free.
    #[error("cannot listen on {address}: {source}{}", hint(.source))]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// A non-loopback address without explicit permission.
    #[error(
        "refusing to listen on {address}: it is reachable from other machines; allow it explicitly if that is wanted"
    )]
    NotLoopback {
        /// The address asked for.
        address: SocketAddr,
    },
    /// A file of the server could not be read or written.
    #[error("{action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A key or certificate is unusable.
    #[error("{what}: {reason}")]
    Certificate {
        /// Which one.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// A metric of the same name is registered already.
    #[error("register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The kubeconfig needs to know the port, and none is open yet.
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

    /// The key that signs tokens is unusable.
    pub(crate) fn token_key(dir: Option<&Path>, why: String) -> Self {
        let path = dir.map(|dir| dir.join("sa.key"));
        let path = path.unwrap_or_else(|| PathBuf::from("token key"));
        Self::certificate(path.display().to_string(), why)
    }

    pub(super) fn certificate(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Certificate {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}
