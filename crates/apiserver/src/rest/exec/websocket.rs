//! WebSocket (RFC 6455) for streaming subresources: the handshake, which is part of this server's requests,
//! and the library's socket after it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, header};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

/// Value that a server appends to the client's key (RFC 6455, 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Largest message of a client in bytes. kubectl sends 32 KiB at a time.
const MAX_MESSAGE: usize = 1 << 20;

/// Returns true if the client requests a WebSocket.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, &header::CONNECTION, "upgrade")
        && has_token(headers, &header::UPGRADE, "websocket")
}

/// Returns true if a comma-separated header has `token`, in any case.
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

/// Headers of the response to a handshake.
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

/// Returns the socket on an upgraded connection. The size of client messages is limited.
pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> WebSocketStream<S> {
    let bounds = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(stream, Role::Server, Some(bounds)).await
}

/// Builds a message of `channel` (its first byte), as the protocols of Kubernetes define it.
pub(super) fn data(channel: u8, payload: &[u8]) -> Message {
    Message::Binary([&[channel], payload].concat().into())
}

/// Builds the message of a normal close.
pub(super) fn close() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::default(),
    }))
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
    fn handshake_matches_rfc_example() {
        // RFC 6455, 1.3.
        let good = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "other, v5.channel.k8s.io"),
        ];
        let actual = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
        assert!(is_upgrade(&headers(&good)));
        assert!(!is_upgrade(&headers(&good[..1])));
        let answer = handshake(&headers(&good), &actual).unwrap();
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
            let error = handshake(&headers(&bad), &actual).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
