//! How ttrpc's messages stand in a stream of bytes: a header of ten bytes, then the message.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a header.
pub const HEADER: usize = 10;

/// What a frame carries, as its header's ninth byte says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call (1).
    Request,
    /// The answer to a call (2).
    Response,
    /// A part of a stream (3); unary calls have none.
    Data,
    /// What this version of the protocol does not know.
    Other(u8),
}

impl Kind {
    fn from_byte(byte: u8) -> Kind {
        match byte {
            1 => Kind::Request,
            2 => Kind::Response,
            3 => Kind::Data,
            other => Kind::Other(other),
        }
    }

    fn byte(self) -> u8 {
        match self {
            Kind::Request => 1,
            Kind::Response => 2,
            Kind::Data => 3,
            Kind::Other(byte) => byte,
        }
    }
}

/// A frame's header; on the wire its numbers are big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes that follow the header.
    pub length: u32,
    /// The call: odd, and growing with every call of a connection.
    pub stream: u32,
    /// What follows.
    pub kind: Kind,
    /// 1 remote closed, 2 remote open, 4 no data; 0 in unary calls.
    pub flags: u8,
}

impl Header {
    /// The header as it stands on the wire.
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.length.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        bytes[8] = self.kind.byte();
        bytes[9] = self.flags;
        bytes
    }
}

/// What a [`Decoder`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A whole message.
    Message(Header, Bytes),
    /// A message above the limit; its bytes are gone, what follows it is sound.
    Oversized(Header),
}

/// Takes frames out of a stream of bytes, wherever that is cut.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    /// A header whose message has not come whole.
    open: Option<Header>,
    /// Bytes of an oversized message still to come.
    discard: usize,
}

impl Decoder {
    /// A decoder for messages of up to `limit` bytes.
    pub fn new(limit: usize) -> Decoder {
        Decoder {
            limit,
            open: None,
            discard: 0,
        }
    }

    /// The next frame in `buffer`, whose bytes leave it; none when more must come first. Never holds
    /// more than one message and what came behind it, whatever a header says.
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
                    kind: Kind::from_byte(buffer.get_u8()),
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
            let gone = self.discard.min(buffer.len());
            buffer.advance(gone);
            self.discard -= gone;
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
