//! Frames of ttrpc: where a stream is cut does not matter, and what was read is what stood there.

#![no_main]

use bytes::BytesMut;
use koord_rpc::ttrpc::frame::{Decoder, Frame};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 300;

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Frame> {
    let (mut decoder, mut buffer) = (Decoder::new(LIMIT), BytesMut::new());
    let mut frames = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while let Some(frame) = decoder.next(&mut buffer) {
            frames.push(frame);
        }
        assert!(buffer.len() < LIMIT + 10);
    }
    frames
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, stream)) = data.split_first() else {
        return;
    };
    let whole = decode(std::iter::once(stream));
    assert_eq!(decode(stream.chunks(usize::from(*cut).max(1))), whole);
    let mut at = 0;
    for frame in whole {
        let (header, message) = match &frame {
            Frame::Message(header, message) => (header, Some(message)),
            Frame::Oversized(header) => (header, None),
        };
        assert_eq!(stream[at..at + 10], header.encode());
        at += 10;
        let end = at + header.length as usize;
        assert!(message.is_none_or(|message| stream[at..end] == message[..]));
        at = end;
    }
});
