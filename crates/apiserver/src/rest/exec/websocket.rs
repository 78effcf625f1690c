//! The part of WebSocket (RFC 6455) that a streaming subresource needs: the handshake of a server
//! and frames, without extensions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, header};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// What a server appends to the client's key (RFC 6455, 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Largest message of a client. kubectl sends 32 KiB at a time.
const MAX_MESSAGE: usize = 1 << 20;
/// Largest payload of a control frame (RFC 6455, 5.5).
const MAX_CONTROL: usize = 125;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Whether the client asks for a WebSocket at all.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    has_token(headers, &header::CONNECTION, "upgrade")
        && has_token(headers, &header::UPGRADE, "websocket")
}

/// Whether a comma-separated header has `token`, in any case.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|one| one.eq_ignore_ascii_case(token))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// What a server answers a handshake with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Handshake {
    /// `Sec-WebSocket-Accept`.
    pub(super) accept: String,
    /// `Sec-WebSocket-Protocol`.
    pub(super) protocol: &'static str,
}

/// Checks a handshake and chooses the first of `protocols` that the client offers.
pub(super) fn handshake(
    headers: &HeaderMap,
    protocols: &[&'static str],
) -> Result<Handshake, String> {
    if !has_token(headers, &header::SEC_WEBSOCKET_VERSION, "13") {
        return Err("Sec-WebSocket-Version: must be 13".to_owned());
    }
    let key = tokens(headers, &header::SEC_WEBSOCKET_KEY)
        .next()
        .filter(|key| STANDARD.decode(key).is_ok_and(|key| key.len() == 16))
        .ok_or("Sec-WebSocket-Key: must be 16 bytes in base64")?;
    let offered = |wanted: &str| has_token(headers, &header::SEC_WEBSOCKET_PROTOCOL, wanted);
    let protocol = protocols
        .iter()
        .find(|protocol| offered(protocol))
        .ok_or_else(|| {
            format!(
                "Sec-WebSocket-Protocol: must offer one of {}",
                protocols.join(", ")
            )
        })?;
    let text = format!("{key}{GUID}");
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    Ok(Handshake {
        accept: STANDARD.encode(digest),
        protocol,
    })
}

/// What a client sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A whole message; text counts as its bytes.
    Data(Bytes),
    /// To be answered with [`pong`].
    Ping(Bytes),
    /// The last one.
    Close,
}

/// Reads a client's messages.
#[derive(Debug)]
pub(super) struct Reader<R> {
    stream: R,
    /// The frames of an unfinished message.
    partial: Option<BytesMut>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(stream: R) -> Self {
        Self {
            stream,
            partial: None,
        }
    }

    /// The next message. Must not be dropped half-way. An end without a closing frame is an error,
    /// as is anything that a client must not send.
    pub(super) async fn next(&mut self) -> io::Result<Message> {
        loop {
            let (last, opcode, payload) = self.frame().await?;
            match opcode {
                CLOSE => return Ok(Message::Close),
                PING => return Ok(Message::Ping(payload.freeze())),
                PONG => {}
                TEXT | BINARY if self.partial.is_none() => self.partial = Some(payload),
                CONTINUATION => match &mut self.partial {
                    Some(partial) if partial.len() + payload.len() <= MAX_MESSAGE => {
                        partial.extend_from_slice(&payload);
                    }
                    Some(_) => return Err(wrong("a message is too long")),
                    None => return Err(wrong("a continuation of nothing")),
                },
                _ => return Err(wrong("an unexpected frame")),
            }
            if last
                && opcode != PONG
                && let Some(whole) = self.partial.take()
            {
                return Ok(Message::Data(whole.freeze()));
            }
        }
    }

    async fn frame(&mut self) -> io::Result<(bool, u8, BytesMut)> {
        let [first, second] = [self.stream.read_u8().await?, self.stream.read_u8().await?];
        let (last, opcode) = (first & 0x80 != 0, first & 0x0f);
        if first & 0x70 != 0 {
            return Err(wrong("reserved bits are set"));
        }
        if second & 0x80 == 0 {
            return Err(wrong("a client's frame is not masked"));
        }
        let length = match second & 0x7f {
            126 => u64::from(self.stream.read_u16().await?),
            127 => self.stream.read_u64().await?,
            short => u64::from(short),
        };
        let most = if opcode >= CLOSE {
            MAX_CONTROL
        } else {
            MAX_MESSAGE
        };
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= most)
            .ok_or_else(|| wrong("a frame is too long"))?;
        if opcode >= CLOSE && !last {
            return Err(wrong("a control frame in parts"));
        }
        let mut mask = [0; 4];
        self.stream.read_exact(&mut mask).await?;
        let mut payload = BytesMut::zeroed(length);
        self.stream.read_exact(&mut payload).await?;
        for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        Ok((last, opcode, payload))
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A message of `channel` (its first byte), as the protocols of Kubernetes have them.
pub(super) fn data(channel: u8, payload: &[u8]) -> Bytes {
    frame(BINARY, &[&[channel], payload])
}

/// The answer to a ping.
pub(super) fn pong(payload: &[u8]) -> Bytes {
    frame(PONG, &[payload])
}

/// The normal end (code 1000).
pub(super) fn close() -> Bytes {
    frame(CLOSE, &[&1000_u16.to_be_bytes()])
}

fn frame(opcode: u8, parts: &[&[u8]]) -> Bytes {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = BytesMut::with_capacity(length + 10);
    out.put_u8(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => out.put_u8(short),
        (_, Ok(medium)) => {
            out.put_u8(126);
            out.put_u16(medium);
        }
        _ => {
            out.put_u8(127);
            out.put_u64(length as u64);
        }
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, http::HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn the_handshake_is_that_of_the_rfc() {
        // RFC 6455, 1.3.
        let good = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "other, v5.channel.k8s.io"),
        ];
        let ours = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
        assert!(is_wanted(&headers(&good)));
        assert!(!is_wanted(&headers(&good[..1])));
        let answer = handshake(&headers(&good), &ours).unwrap();
        assert_eq!(answer.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer.protocol, "v5.channel.k8s.io");
        for (at, wrong, says) in [
            (2, ("sec-websocket-version", "8"), "Version"),
            (3, ("sec-websocket-key", "short"), "Key"),
            (
                4,
                ("sec-websocket-protocol", "other"),
                "must offer one of v5",
            ),
        ] {
            let mut bad = good;
            bad[at] = wrong;
            let error = handshake(&headers(&bad), &ours).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut out = vec![first, 0x80 | u8::try_from(payload.len()).unwrap()];
        out.extend(mask);
        out.extend(payload.iter().zip(mask.iter().cycle()).map(|(a, b)| a ^ b));
        out
    }

    async fn messages(bytes: &[u8]) -> (Vec<Message>, io::Error) {
        let mut reader = Reader::new(bytes);
        let mut all = Vec::new();
        loop {
            match reader.next().await {
                Ok(message) => all.push(message),
                Err(error) => return (all, error),
            }
        }
    }

    #[tokio::test]
    async fn messages_come_whole_though_sent_in_parts() {
        let sent = [
            masked(BINARY, b"ab"),
            masked(0x80 | PING, b"hi"),
            masked(CONTINUATION, b"c"),
            masked(0x80 | PONG, b""),
            masked(0x80 | CONTINUATION, b"d"),
            masked(0x80 | TEXT, b""),
            masked(0x80 | CLOSE, &[3, 232]),
        ];
        let (all, end) = messages(&sent.concat()).await;
        let data = |text: &'static str| Message::Data(Bytes::from_static(text.as_bytes()));
        let ping = Message::Ping(Bytes::from_static(b"hi"));
        assert_eq!(all, [ping, data("abcd"), data(""), Message::Close]);
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn what_a_client_must_not_send_is_refused() {
        let long = [0x82, 0xff, 0, 0, 0, 0, 0, 16, 0, 1];
        for (bytes, says) in [
            (vec![0x82, 0x01, b'x'], "not masked"),
            (masked(0xc2, b"x"), "reserved"),
            (masked(0x80, b"x"), "continuation of nothing"),
            (masked(0x83, b"x"), "unexpected"),
            (masked(PING, b"x"), "in parts"),
            (long.to_vec(), "too long"),
            (vec![0x89, 0xfe, 0, 126], "too long"),
            (
                [masked(BINARY, b"a"), masked(BINARY, b"b")].concat(),
                "unexpected",
            ),
        ] {
            let (all, error) = messages(&bytes).await;
            assert_eq!(all, []);
            assert!(error.to_string().contains(says), "{says}: {error}");
        }
    }

    #[test]
    fn frames_have_the_shortest_length() {
        assert_eq!(&data(1, b"ab")[..], [0x82, 3, 1, b'a', b'b']);
        assert_eq!(&close()[..], [0x88, 2, 3, 232]);
        assert_eq!(&pong(b"")[..], [0x8a, 0]);
        assert_eq!(&data(1, &[0; 200])[..4], [0x82, 126, 0, 201]);
        assert_eq!(
            &data(1, &[0; 70_000])[..10],
            [0x82, 127, 0, 0, 0, 0, 0, 1, 0x11, 0x71]
        );
    }
}
