//! Replies.

use super::accept::Encoding;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use koord_kinds::status::ApiError;
use serde_json::Value;

/// How a reply body is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) encoding: Encoding,
    pub(super) pretty: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            encoding: Encoding::Json,
            pretty: false,
        }
    }
}

/// A reply with a body of the given type.
pub(super) fn with_body(code: u16, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

/// A reply of JSON bytes, re-written when the client wants it pretty or as YAML.
pub(super) fn bytes(code: u16, bytes: Bytes, style: Style) -> Response {
    match style {
        Style {
            encoding: Encoding::Json,
            pretty: false,
        } => with_body(code, "application/json", Body::from(bytes)),
        _ => match serde_json::from_slice::<Value>(&bytes) {
            Ok(v) => value(code, &v, style),
            Err(_) => with_body(code, "application/json", Body::from(bytes)),
        },
    }
}

/// A reply of a JSON value.
pub(super) fn value(code: u16, value: &Value, style: Style) -> Response {
    match style {
        Style {
            encoding: Encoding::Yaml,
            ..
        } => match serde_saphyr::to_string(value) {
            Ok(text) => with_body(code, "application/yaml", Body::from(text)),
            Err(e) => error(&ApiError::internal(format!("writing YAML: {e}"))),
        },
        Style { pretty: true, .. } => {
            let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
            text.push('\n');
            with_body(code, "application/json", Body::from(text))
        }
        _ => with_body(code, "application/json", Body::from(value.to_string())),
    }
}

/// A failure as a Status.
pub(super) fn error(error: &ApiError) -> Response {
    let mut response = with_body(
        error.code,
        "application/json",
        Body::from(error.to_value().to_string()),
    );
    if let Some(seconds) = error.retry_after_seconds() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Plain text.
pub(super) fn text(code: u16, text: impl Into<Body>) -> Response {
    with_body(code, "text/plain; charset=utf-8", text.into())
}

/// Adds `Warning` headers.
pub(super) fn warn(response: &mut Response, warnings: &[String]) {
    for warning in warnings {
        let clean: String = warning
            .chars()
            .filter(|c| !c.is_control())
            .flat_map(|c| match c {
                '"' | '\\' => vec!['\\', c],
                c => vec![c],
            })
            .collect();
        if let Ok(v) = HeaderValue::from_bytes(format!("299 - \"{clean}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, v);
        }
    }
}

/// `Status` of a success.
pub(super) fn success(details: Value) -> Value {
    serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}
