//! What a client of gRPC sends, on its way through the filter for `:authority`: where it is cut does not
//! matter, and what was filtered once is not changed again.

#![no_main]

use bytes::BytesMut;
use koord_rpc::grpc::Filter;
use libfuzzer_sys::fuzz_target;

fn filtered<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> BytesMut {
    let (mut filter, mut came, mut out) = (Filter::default(), BytesMut::new(), BytesMut::new());
    for piece in pieces {
        came.extend_from_slice(piece);
        filter.pass(&mut came, &mut out);
    }
    filter.end(&mut came, &mut out);
    out
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, rest)) = data.split_first() else {
        return;
    };
    let stream = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", rest].concat();
    let whole = filtered(std::iter::once(&stream[..]));
    assert_eq!(filtered(stream.chunks(usize::from(*cut).max(1))), whole);
    assert_eq!(filtered(std::iter::once(&whole[..])), whole);
});
