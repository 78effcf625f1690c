//! Frames of the mux: a header of eight bytes, then a piece of the bytes of one channel.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a header.
pub const HEADER: usize = 8;

/// Bytes of the largest frame to read: runtimes up to NRI 0.6.1 put a whole message of up to 16 MiB into one.
/// A longer one means that the stream is invalid.
pub const READ_LIMIT: usize = (16 << 20) + 10;

/// Bytes of the largest frame to write, like newer runtimes: a message and its header.
pub const WRITE_LIMIT: usize = (4 << 20) + 10;

/// Returns the header of a frame of `length` bytes; on the wire both numbers are big-endian.
pub fn header(channel: u32, length: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&channel.to_be_bytes());
    bytes[4..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Error for a frame longer than any peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("frame of {length} bytes for channel {channel} exceeds the limit of {READ_LIMIT}")]
pub struct TooLong {
    /// Channel of the frame.
    pub channel: u32,
    /// Length in the header.
    pub length: u32,
}

/// Decodes the bytes of channels from a stream, which may be split anywhere.
#[derive(Debug, Default)]
pub struct ChannelDecoder {
    /// Channel of the current frame.
    channel: u32,
    left: usize,
}

impl ChannelDecoder {
    /// Removes and returns the next bytes of a channel in `buffer`: a frame, or the available part of one.
    /// Returns `None` if more bytes are needed. Empty frames are skipped.
    ///
    /// # Errors
    ///
    /// Returns an error for a frame that is too long; the stream is unusable from then on.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<(u32, Bytes)>, TooLong> {
        while self.left == 0 {
            if buffer.len() < HEADER {
                return Ok(None);
            }
            let (channel, length) = (buffer.get_u32(), buffer.get_u32());
            if length as usize > READ_LIMIT {
                return Err(TooLong { channel, length });
            }
            (self.channel, self.left) = (channel, length as usize);
        }
        if buffer.is_empty() {
            return Ok(None);
        }
        let piece = buffer.split_to(self.left.min(buffer.len())).freeze();
        self.left -= piece.len();
        Ok(Some((self.channel, piece)))
    }
}
