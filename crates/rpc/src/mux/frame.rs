//! How the channels of a connection stand in its stream: a header of eight bytes, then a piece of
//! one channel's bytes.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a header.
pub const HEADER: usize = 8;

/// Bytes of the largest frame read: runtimes up to NRI 0.6.1 put a whole message in one, of up to
/// 16 MiB. A longer one means that the stream is not what it should be.
pub const READ_LIMIT: usize = (16 << 20) + 10;

/// Bytes of the largest frame written, as newer runtimes write it: a message and its header.
pub const WRITE_LIMIT: usize = (4 << 20) + 10;

/// The header of a frame of `length` bytes; on the wire both numbers are big-endian.
pub fn header(channel: u32, length: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&channel.to_be_bytes());
    bytes[4..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// A frame longer than any peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes for channel {channel} is above the limit of {READ_LIMIT}")]
pub struct TooLong {
    /// The channel it is for.
    pub channel: u32,
    /// Its bytes, as the header says.
    pub length: u32,
}

/// Takes the channels' bytes out of a stream, wherever that is cut.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The frame that has begun, and its bytes still to come.
    channel: u32,
    left: usize,
}

impl Decoder {
    /// The next bytes of a channel in `buffer`, which leave it: a frame, or what there is of one. None
    /// when more must come first. A frame without bytes is none.
    ///
    /// # Errors
    ///
    /// A frame that is too long; the stream is of no use from there on.
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
