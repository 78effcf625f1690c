//! The channels of a connection: where a stream is cut does not matter, and nothing is made up.

#![no_main]

use bytes::BytesMut;
use koord_rpc::mux::frame::{ChannelDecoder, HEADER};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

/// What each channel got, and whether the stream came to nothing.
fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (BTreeMap<u32, Vec<u8>>, bool) {
    let (mut decoder, mut buffer) = (ChannelDecoder::default(), BytesMut::new());
    let mut channels: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some((channel, bytes))) => {
                    assert!(!bytes.is_empty());
                    channels.entry(channel).or_default().extend(bytes);
                }
                Ok(None) => break,
                Err(_) => return (channels, true),
            }
        }
        assert!(buffer.len() < HEADER);
    }
    (channels, false)
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, stream)) = data.split_first() else {
        return;
    };
    let whole = decode(std::iter::once(stream));
    let got: usize = whole.0.values().map(Vec::len).sum();
    assert!(got <= stream.len());
    assert_eq!(decode(stream.chunks(usize::from(*cut).max(1))), whole);
});
