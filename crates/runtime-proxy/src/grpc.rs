//! The parts of gRPC that the proxy needs: message framing and call status.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};

/// Length of the prefix of a message: a flag and the message length.
pub(crate) const PREFIX: usize = 5;

/// Maximum size in bytes of a message that is decoded.
pub(crate) const MESSAGE: usize = koord_rpc::grpc::MESSAGE_LIMIT;

/// Status codes that the proxy returns, from <https://grpc.io/docs/guides/status-codes/>.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Unknown = 2,
    ResourceExhausted = 8,
    Unavailable = 14,
}

/// Reason why the body of a unary call is not a single message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("compressed messages are not supported")]
    Compressed,
    #[error("body of {0} bytes is not a single gRPC message")]
    Length(usize),
}

/// Returns the only message of a call.
pub(crate) fn unframe(body: &Bytes) -> Result<Bytes, FrameError> {
    let Some((&[flag, a, b, c, d], message)) = body.split_first_chunk::<PREFIX>() else {
        return Err(FrameError::Length(body.len()));
    };
    if u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return Err(FrameError::Length(body.len()));
    }
    match flag {
        0 => Ok(body.slice(PREFIX..)),
        _ => Err(FrameError::Compressed),
    }
}

pub(crate) fn frame(message: &Bytes) -> Bytes {
    let mut body = BytesMut::with_capacity(PREFIX + message.len());
    body.put_u8(0);
    // No message is near 4 GiB: requests and hook responses are limited.
    body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    body.put_slice(message);
    body.freeze()
}

/// Returns the status of a call, as headers or trailers. `message` is for users.
pub(crate) fn status(code: Code, message: &str) -> HeaderMap {
    let mut map = HeaderMap::new();
    map.insert(STATUS, HeaderValue::from(code as i32));
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    if let Ok(text) = HeaderValue::try_from(text) {
        map.insert("grpc-message", text);
    }
    map
}

/// Returns the headers of a call that ends without a response.
pub(crate) fn refusal(code: Code, message: &str) -> HeaderMap {
    let mut map = status(code, message);
    map.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    map
}

/// Returns true if headers or trailers have the status OK.
pub(crate) fn is_ok(map: &HeaderMap) -> bool {
    map.get(STATUS)
        .is_some_and(|status| status.as_bytes() == b"0")
}

/// Returns true if headers or trailers have a status.
pub(crate) fn has_status(map: &HeaderMap) -> bool {
    map.contains_key(STATUS)
}

const STATUS: &str = "grpc-status";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        for len in [0, 1, 70_000] {
            let message = Bytes::from(vec![7; len]);
            assert_eq!(unframe(&frame(&message)), Ok(message));
        }
    }

    #[test]
    fn bodies_that_are_no_message_are_refused() {
        let body = |bytes: &'static [u8]| unframe(&Bytes::from_static(bytes));
        assert_eq!(body(b""), Err(FrameError::Length(0)));
        assert_eq!(body(b"\0\0\0\0"), Err(FrameError::Length(4)));
        assert_eq!(body(b"\0\0\0\0\x02a"), Err(FrameError::Length(6)));
        assert_eq!(body(b"\0\0\0\0\0a"), Err(FrameError::Length(6)));
        assert_eq!(body(b"\x01\0\0\0\x01a"), Err(FrameError::Compressed));
    }

    #[test]
    fn messages_are_escaped_as_grpc_has_it() {
        let mut map = status(Code::Unknown, "50% of \u{e9}\n");
        assert_eq!(map["grpc-status"], "2");
        assert_eq!(map["grpc-message"], "50%25 of %C3%A9%0A");
        assert!(!is_ok(&map));
        map.insert(STATUS, HeaderValue::from_static("0"));
        assert!(is_ok(&map));
    }
}
