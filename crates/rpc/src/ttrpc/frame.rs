//! Framing of ttrpc: a header of ten bytes, then the message.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a header.
pub const HEADER: usize = 10;

/// Kind of a frame: the ninth byte of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A call (1).
    Request,
    /// The answer to a call (2).
    Response,
    /// A part of a stream (3); unary calls have none.
    Data,
    /// A kind that this version of the protocol does not define.
    Other(u8),
}

impl FrameKind {
    fn from_byte(byte: u8) -> FrameKind {
        match byte {
            1 => FrameKind::Request,
            2 => FrameKind::Response,
            3 => FrameKind::Data,
            other => FrameKind::Other(other),
        }
    }

    fn byte(self) -> u8 {
        match self {
            FrameKind::Request => 1,
            FrameKind::Response => 2,
            FrameKind::Data => 3,
            FrameKind::Other(byte) => byte,
        }
    }
}

/// Header of a frame; on the wire its numbers are big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes that follow the header.
    pub length: u32,
    /// Stream id of the call: odd, and increasing with every call of a connection.
    pub stream: u32,
    /// Kind of the frame.
    pub kind: FrameKind,
    /// 1 remote closed, 2 remote open, 4 no data; 0 in unary calls.
    pub flags: u8,
}

impl Header {
    /// Returns the header in wire format.
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.length.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        bytes[8] = self.kind.byte();
        bytes[9] = self.flags;
        bytes
    }
}

/// Result of a [`Decoder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A complete message.
    Message(Header, Bytes),
    /// A message above the limit; its bytes are discarded, and the stream stays usable.
    Oversized(Header),
}

/// Decodes frames from a byte stream, which may be split anywhere.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    /// Header of an incomplete message.
    open: Option<Header>,
    /// Remaining bytes of an oversized message.
    discard: usize,
}

impl Decoder {
    /// Returns a decoder for messages of up to `limit` bytes.
    pub fn new(limit: usize) -> Decoder {
        Decoder {
            limit,
            open: None,
            discard: 0,
        }
    }

    /// Removes and returns the next frame in `buffer`; `None` if more bytes are needed. Never buffers more
    /// than one message and the bytes behind it, whatever a header contains.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Option<Frame> {
        let header = match self.open {
            Some(header) => header,
            None => {
                if buffer.len() < HEADER {
                    return None;
                }
                let header = Header {
                    length: buffer.get_u32(),
                    stream: buffer.get_u32(),
                    kind: FrameKind::from_byte(buffer.get_u8()),
                    flags: buffer.get_u8(),
                };
                self.open = Some(header);
                if header.length as usize > self.limit {
                    self.discard = header.length as usize;
                }
                header
            }
        };
        if header.length as usize > self.limit {
            let discarded = self.discard.min(buffer.len());
            buffer.advance(discarded);
            self.discard -= discarded;
            if self.discard > 0 {
                return None;
            }
            self.open = None;
            return Some(Frame::Oversized(header));
        }
        if buffer.len() < header.length as usize {
            return None;
        }
        self.open = None;
        let message = buffer.split_to(header.length as usize).freeze();
        Some(Frame::Message(header, message))
    }
}
