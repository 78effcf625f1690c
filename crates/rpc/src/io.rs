//! Reading from a stream into a buffer.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes reserved for each read.
const ROOM: usize = 64 << 10;

/// Reads the available bytes, at least one; returns `false` at the end of the stream.
pub(crate) async fn more(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> std::io::Result<bool> {
    buffer.reserve(ROOM);
    Ok(from.read_buf(buffer).await? > 0)
}
