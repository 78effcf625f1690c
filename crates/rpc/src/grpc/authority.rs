//! Support for clients that dial a bare socket path.
//!
//! grpc-go sends the path of the socket as `:authority` unless its target begins with `unix:`, and `h2`,
//! which our servers use, resets such a stream, because a path is not a valid authority. The value has no
//! meaning on a unix socket, so it is replaced before `h2` parses it.
//!
//! The header block of HTTP/2 is compressed (RFC 7541), with a table that both ends keep. It does not have
//! to be decompressed: where a block has `:authority` as a literal (entry 1 of the static table, which all
//! encoders use for the name), its value is replaced by a shorter one, and everything else is unchanged.
//! The receiver's table then has the same entries at the same indexes. As it has more space left, it may
//! keep old entries for longer, which the sender never refers to.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Replacement for any authority: as short as possible.
const AUTHORITY: &[u8] = b"u";

/// Bytes of the connection preface of an HTTP/2 client.
const PREFACE: usize = 24;

/// Bytes of a frame header.
const HEADER: usize = 9;

/// Bytes of the largest frame that every receiver accepts.
const FRAME: usize = 16 << 10;

/// Maximum bytes of a header block to buffer; a longer one is passed on unchanged.
const BLOCK: usize = 1 << 20;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Replaces `:authority` in the frames that a client sends. Invalid input is passed on, so that the HTTP/2
/// implementation rejects it.
#[derive(Debug, Default)]
pub struct Filter {
    /// Bytes to pass on unchanged.
    pass: usize,
    begun: bool,
    /// Frames whose header block is not complete.
    open: Option<HeaderBlock>,
    /// True once all further bytes are passed on unchanged.
    passthrough: bool,
}

#[derive(Debug)]
struct HeaderBlock {
    flags: u8,
    stream: u32,
    block: BytesMut,
    /// The original frames.
    frames: BytesMut,
}

impl Filter {
    /// Moves bytes from `received` to `out` and replaces each `:authority`. Incomplete header frames are held
    /// back until the rest of them arrives.
    pub fn pass(&mut self, received: &mut BytesMut, out: &mut BytesMut) {
        if !self.begun {
            self.begun = true;
            self.pass = PREFACE;
        }
        loop {
            if self.passthrough {
                self.pass = received.len();
            }
            if self.pass > 0 {
                let length = self.pass.min(received.len());
                out.put(received.split_to(length));
                self.pass -= length;
                if self.pass > 0 || received.is_empty() {
                    return;
                }
            }
            let Some(header) = received.first_chunk::<HEADER>() else {
                return;
            };
            let length =
                usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
            let (kind, flags) = (header[3], header[4]);
            let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            let expected = match &self.open {
                None => kind == HEADERS,
                Some(open) => kind == CONTINUATION && stream == open.stream,
            };
            let buffered = self.open.as_ref().map_or(0, |open| open.frames.len());
            if !expected || buffered + length > BLOCK {
                if let Some(open) = self.open.take() {
                    out.put(open.frames);
                    self.passthrough = true;
                }
                self.pass = HEADER + length;
                continue;
            }
            if received.len() < HEADER + length {
                return;
            }
            let frame = received.split_to(HEADER + length);
            let open = self.open.get_or_insert_with(|| HeaderBlock {
                flags,
                stream,
                block: BytesMut::new(),
                frames: BytesMut::new(),
            });
            open.frames.extend_from_slice(&frame);
            let part = match kind {
                HEADERS => fragment(&frame[HEADER..], flags),
                _ => Some(&frame[HEADER..]),
            };
            let Some(part) = part else {
                // The padding is longer than the frame.
                self.passthrough = true;
                out.put(std::mem::take(&mut open.frames));
                self.open = None;
                continue;
            };
            open.block.extend_from_slice(part);
            if flags & END_HEADERS != 0
                && let Some(open) = self.open.take()
            {
                match replace_authority(&open.block) {
                    Some(block) => write(&open, &block, out),
                    None => out.put(open.frames),
                }
            }
        }
    }

    /// Ends the stream: passes on what is buffered.
    pub fn end(&mut self, received: &mut BytesMut, out: &mut BytesMut) {
        if let Some(open) = self.open.take() {
            out.put(open.frames);
        }
        out.put(received.split());
    }
}

/// Returns the header block fragment of a HEADERS frame, without padding and priority.
fn fragment(payload: &[u8], flags: u8) -> Option<&[u8]> {
    let mut part = payload;
    let mut padding = 0;
    if flags & PADDED != 0 {
        let (length, rest) = part.split_first()?;
        (padding, part) = (usize::from(*length), rest);
    }
    if flags & PRIORITY != 0 {
        part = part.get(5..)?;
    }
    part.get(..part.len().checked_sub(padding)?)
}

/// Writes the header block as a HEADERS frame and CONTINUATION frames of at most 16 KiB, which every receiver
/// accepts.
fn write(open: &HeaderBlock, block: &[u8], out: &mut BytesMut) {
    let mut parts = block.chunks(FRAME).peekable();
    let mut kind = HEADERS;
    // The block is not empty: it has an authority.
    while let Some(part) = parts.next() {
        let mut flags = match kind {
            HEADERS => open.flags & !(PADDED | PRIORITY | END_HEADERS),
            _ => 0,
        };
        if parts.peek().is_none() {
            flags |= END_HEADERS;
        }
        out.put_uint(part.len() as u64, 3);
        out.put_u8(kind);
        out.put_u8(flags);
        out.put_u32(open.stream);
        out.put_slice(part);
        kind = CONTINUATION;
    }
}

/// Returns the HPACK header block with the value of `:authority` replaced by [`AUTHORITY`]; `None` if the block
/// has no literal authority, or is invalid.
fn replace_authority(block: &[u8]) -> Option<BytesMut> {
    let mut out: Option<BytesMut> = None;
    let (mut rest, mut copied) = (block, 0);
    while let Some(first) = rest.first().copied() {
        // The representation, which determines the number of prefix bits.
        let (bits, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = integer(&mut rest, bits)?;
        if !literal {
            continue;
        }
        if index == 0 {
            string(&mut rest)?;
        }
        let value = block.len() - rest.len();
        let length = string(&mut rest)?;
        if index == 1 && length > 0 {
            let out = out.get_or_insert_with(BytesMut::new);
            out.put_slice(block.get(copied..value)?);
            // The length, and the bytes without Huffman coding.
            out.put_u8(AUTHORITY.len() as u8);
            out.put_slice(AUTHORITY);
            copied = block.len() - rest.len();
        }
    }
    if let Some(out) = &mut out {
        out.put_slice(block.get(copied..)?);
    }
    out
}

/// Decodes an integer with a prefix of `bits` bits (RFC 7541, 5.1).
fn integer(from: &mut &[u8], bits: u32) -> Option<usize> {
    let full = (1usize << bits) - 1;
    let (first, mut rest) = from.split_first()?;
    let mut value = usize::from(*first) & full;
    if value == full {
        for shift in (0..28).step_by(7) {
            let (byte, after) = rest.split_first()?;
            rest = after;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                *from = rest;
                return Some(value);
            }
        }
        return None;
    }
    *from = rest;
    Some(value)
}

/// Skips a string literal and returns its encoded length (RFC 7541, 5.2).
fn string(from: &mut &[u8]) -> Option<usize> {
    let length = integer(from, 7)?;
    *from = from.get(length..)?;
    Some(length)
}

/// A server connection that accepts any `:authority` from its client.
#[derive(Debug)]
pub struct Tolerant<S> {
    inner: S,
    filter: Filter,
    received: BytesMut,
    ready: BytesMut,
    ended: bool,
}

impl<S> Tolerant<S> {
    /// Wraps a client's connection from which no byte has been read yet.
    pub fn new(inner: S) -> Tolerant<S> {
        Tolerant {
            inner,
            filter: Filter::default(),
            received: BytesMut::new(),
            ready: BytesMut::new(),
            ended: false,
        }
    }
}

impl<S: Connected> Connected for Tolerant<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.inner.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tolerant<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() && !this.ended {
            this.received.reserve(FRAME);
            let inner = Pin::new(&mut this.inner);
            let length = ready!(tokio_util::io::poll_read_buf(inner, cx, &mut this.received))?;
            if length > 0 {
                this.filter.pass(&mut this.received, &mut this.ready);
            } else {
                this.ended = true;
                this.filter.end(&mut this.received, &mut this.ready);
            }
        }
        let length = this.ready.len().min(buffer.remaining());
        buffer.put_slice(&this.ready[..length]);
        this.ready.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tolerant<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
