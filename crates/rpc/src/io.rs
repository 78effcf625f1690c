//! Reading a stream into a buffer, piece by piece.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Room that is made for each read, in bytes.
const ROOM: usize = 64 << 10;

/// Reads what has come, at least a byte; `false` at the end of the stream.
pub(crate) async fn more(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> std::io::Result<bool> {
    buffer.reserve(ROOM);
    Ok(from.read_buf(buffer).await? > 0)
}
