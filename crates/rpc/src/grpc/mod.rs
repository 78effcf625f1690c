//! gRPC over unix sockets: the kubelet's, the runtime's and our own services on a node.

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

/// Bytes of the largest message, either way: what the kubelet allows. gRPC's own default is 4 MiB, and
/// clients and servers have to be told: `max_decoding_message_size`.
pub const MESSAGE_LIMIT: usize = 16 << 20;

/// How long a socket may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A channel to the server behind the socket `path`. It connects with the first call, and again
/// after the connection was lost; a call while nobody listens fails with `UNAVAILABLE`.
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
    // The address is what goes into `:authority`; a path would not be one.
    Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT)
        .connect_with_connector_lazy(dial)
}

/// Listens at `path`, in place of a socket that an earlier process left there; its directory is made
/// when missing.
///
/// # Errors
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

/// The connections that come, for [`tonic::transport::Server::serve_with_incoming`], each of them
/// [tolerant](Tolerant). A connection that cannot be accepted is logged and left out.
pub fn incoming(
    listener: UnixListener,
) -> impl Stream<Item = Result<Tolerant<UnixStream>, Infallible>> {
    futures::stream::unfold(listener, |listener| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((Ok(Tolerant::new(stream)), listener)),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Out of files, as a rule: others have to close some.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    })
}
