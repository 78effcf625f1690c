//! gRPC over unix sockets: the services of kubelet, container runtime and koord on a node.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::Stream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::{Channel, Endpoint};

mod authority;
mod raw;

pub use authority::{Filter, Tolerant};
pub use raw::Raw;

/// Bytes of the largest message in either direction: the kubelet's limit. gRPC's default is 4 MiB, so clients
/// and servers must set `max_decoding_message_size`.
pub const MESSAGE_LIMIT: usize = 16 << 20;

/// Timeout of connecting to a socket.
const CONNECT: Duration = Duration::from_secs(5);

/// Returns a channel to the server behind the socket `path`. It connects with the first call, and again after
/// the connection was lost; a call without a server fails with `UNAVAILABLE`.
pub fn connect(path: impl Into<PathBuf>) -> Channel {
    let path = path.into();
    let dial = tower::service_fn(move |_| {
        let path = path.clone();
        async move {
            let stream = UnixStream::connect(&path).await;
            let stream =
                stream.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    // The address is sent as `:authority`; a path would be invalid.
    Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT)
        .connect_with_connector_lazy(dial)
}

/// Listens at `path`, replacing the socket that an earlier process left there. Its directory is created if it
/// is missing.
///
/// # Errors
/// Returns an error that names the path if it is not a socket or cannot be created.
///
/// When something else than a socket is there, or it cannot be made; they name the path.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(named)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path).map_err(named)?,
        Ok(_) => {
            let text = "there is something that is not a socket";
            return Err(named(io::Error::new(io::ErrorKind::AlreadyExists, text)));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(named(error)),
    }
    UnixListener::bind(path).map_err(named)
}

/// Returns the stream of accepted connections for [`tonic::transport::Server::serve_with_incoming`], each of
/// them [tolerant](Tolerant). A failed accept is logged and retried.
pub fn incoming(
    listener: UnixListener,
) -> impl Stream<Item = Result<Tolerant<UnixStream>, Infallible>> {
    futures::stream::unfold(listener, |listener| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((Ok(Tolerant::new(stream)), listener)),
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection, retrying");
                    // Usually out of file descriptors: other connections have to close first.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    })
}
