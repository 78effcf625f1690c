//! Answers in protobuf, for clients that read nothing else. They are rewritten when they leave, so
//! that no handler needs to know.

use super::{accept, respond};
use axum::body::Body;
use axum::response::Response;
use bytes::{Buf as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderValue, header};
use koord_kinds::proto::{self, ProtoError};
use koord_kinds::status::ApiError;
use serde_json::Value;

/// The media type of the events of a watch.
const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// Mark of a response that is a watch: one event of JSON per line.
#[derive(Debug, Clone, Copy)]
struct Lines;

/// The answer to a watch.
pub(super) fn lines(events: Body) -> Response {
    let mut response = respond::with_body(200, "application/json", events);
    response.extensions_mut().insert(Lines);
    response
}

/// The client reads protobuf and no text.
pub(crate) fn wanted(headers: &HeaderMap) -> bool {
    accept::only_protobuf(headers)
}

/// The same answer in protobuf. What is no object (logs, discovery) stays what it is.
pub(crate) async fn rewrite(response: Response) -> Response {
    let json = HeaderValue::from_static("application/json");
    if response.headers().get(header::CONTENT_TYPE) != Some(&json) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let (media, body) = if parts.extensions.get::<Lines>().is_some() {
        (STREAM, Body::from_stream(frames(body)))
    } else {
        let bytes = match axum::body::to_bytes(body, usize::MAX).await {
            Ok(bytes) => bytes,
            Err(e) => return respond::error(&ApiError::internal(e.to_string())),
        };
        match message(&bytes) {
            Ok(body) => (accept::PROTOBUF, Body::from(body)),
            Err(ProtoError::UnknownKind { .. }) => ("application/json", Body::from(bytes)),
            Err(e) => return respond::error(&ApiError::internal(e.to_string())),
        }
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

/// The frames of a watch. One that cannot be written ends it.
fn frames(body: Body) -> impl Stream<Item = Result<Bytes, axum::BoxError>> {
    let state = (body.into_data_stream(), BytesMut::new());
    futures::stream::try_unfold(state, |(mut body, mut rest)| async move {
        let Some(chunk) = body.next().await else {
            return Ok(None);
        };
        rest.extend_from_slice(&chunk?);
        let mut out = Vec::new();
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let line = rest.split_to(end);
            rest.advance(1);
            let event = parse(&line)?;
            let kind = event.get("type").and_then(Value::as_str).unwrap_or("");
            let object = event.get("object").unwrap_or(&Value::Null);
            out.append(&mut proto::encode_event(kind, object)?);
        }
        Ok(Some((Bytes::from(out), (body, rest))))
    })
}
