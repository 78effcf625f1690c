//! Conversion of responses to protobuf, for clients that accept nothing else. Responses are converted when
//! they leave, so that handlers need not handle protobuf.

use super::work_slots::{LIGHT, run_in_place};
use super::{accept, respond};
use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};
use koord_kinds::proto::{self, ProtoError};
use koord_kinds::status::ApiError;
use serde_json::Value;

/// Returns true if the client accepts protobuf and no text.
pub(crate) fn is_only_accepted(headers: &HeaderMap) -> bool {
    accept::only_protobuf(headers)
}

/// Converts a response to protobuf. Responses that are not objects (logs, discovery) stay as they are, and so
/// do watches, which write protobuf themselves.
pub(crate) async fn rewrite(response: Response) -> Response {
    let json = HeaderValue::from_static("application/json");
    if response.headers().get(header::CONTENT_TYPE) != Some(&json) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let bytes = match axum::body::to_bytes(body, usize::MAX).await {
        Ok(bytes) => bytes,
        Err(e) => return respond::error(&ApiError::internal(e.to_string())),
    };
    let message = if bytes.len() > LIGHT {
        run_in_place(|| message(&bytes))
    } else {
        message(&bytes)
    };
    let (media, body) = match message {
        Ok(body) => (accept::PROTOBUF, Body::from(body)),
        Err(ProtoError::UnknownKind { .. }) => ("application/json", Body::from(bytes)),
        Err(e) => return respond::error(&ApiError::internal(e.to_string())),
    };
    let media = HeaderValue::from_static(media);
    parts.headers.insert(header::CONTENT_TYPE, media);
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body)
}

fn message(bytes: &[u8]) -> Result<Vec<u8>, ProtoError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    proto::encode(&parse(bytes)?)
}

fn parse(bytes: &[u8]) -> Result<Value, ProtoError> {
    serde_json::from_slice(bytes).map_err(|e| ProtoError::Malformed(e.to_string()))
}
