//! Building of responses.

use super::accept::Encoding;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use koord_kinds::status::ApiError;
use serde_json::Value;
use std::collections::HashSet;

/// Format of a response body.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResponseFormat {
    pub(super) encoding: Encoding,
    pub(super) pretty: bool,
}

impl Default for ResponseFormat {
    fn default() -> Self {
        Self {
            encoding: Encoding::Json,
            pretty: false,
        }
    }
}

/// Builds a response with a body of the given type.
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

/// Builds a response of JSON bytes, reformatted if the client requests pretty output or YAML.
pub(super) fn bytes(code: u16, bytes: Bytes, style: ResponseFormat) -> Response {
    match style {
        ResponseFormat {
            encoding: Encoding::Json,
            pretty: false,
        } => with_body(code, "application/json", Body::from(bytes)),
        _ => match serde_json::from_slice::<Value>(&bytes) {
            Ok(v) => value(code, &v, style),
            Err(_) => with_body(code, "application/json", Body::from(bytes)),
        },
    }
}

/// Builds a response of a JSON value.
pub(super) fn value(code: u16, value: &Value, style: ResponseFormat) -> Response {
    match style {
        ResponseFormat {
            encoding: Encoding::Yaml,
            ..
        } => match serde_saphyr::to_string(value) {
            Ok(text) => with_body(code, "application/yaml", Body::from(text)),
            Err(e) => error(&ApiError::internal(format!("writing YAML: {e}"))),
        },
        ResponseFormat { pretty: true, .. } => {
            let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
            text.push('\n');
            with_body(code, "application/json", Body::from(text))
        }
        _ => with_body(code, "application/json", Body::from(value.to_string())),
    }
}

/// Builds the response to a failed request, a Status.
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

/// Builds a response of plain text.
pub(super) fn text(code: u16, text: impl Into<Body>) -> Response {
    with_body(code, "text/plain; charset=utf-8", text.into())
}

/// Characters of all warnings of a response above which each warning is truncated, as in kube-apiserver.
const MAX_WARNINGS: usize = 4 * 1024;
/// Length of truncated warnings, in characters.
const MAX_CUT_WARNING: usize = 256;

/// Warnings of a response so far, so that later ones can be added.
#[derive(Debug, Clone, Default)]
struct Warnings(Vec<String>);

/// Adds `Warning` headers, each text once. If all have more than [`MAX_WARNINGS`] characters, they are
/// truncated, and those that do not fit are dropped.
pub(super) fn warn(response: &mut Response, warnings: &[String]) {
    if warnings.is_empty() {
        return;
    }
    let Warnings(mut all) = response.extensions_mut().remove().unwrap_or_default();
    let mut unique: HashSet<String> = all.iter().cloned().collect();
    for warning in warnings.iter().filter(|warning| !warning.is_empty()) {
        // More warnings would not fit even if each were a single character.
        if all.len() > MAX_WARNINGS {
            break;
        }
        if unique.insert(warning.clone()) {
            all.push(warning.clone());
        }
    }
    // The first warning that exceeds the limit is the last that is written, however short the others become.
    let mut total = 0;
    let excess = all.iter().position(|warning| {
        total += warning.chars().count();
        total > MAX_WARNINGS
    });
    let cut = excess.map_or(usize::MAX, |_| MAX_CUT_WARNING);
    let headers = response.headers_mut();
    headers.remove(header::WARNING);
    let mut written = 0;
    for (at, warning) in all.iter().enumerate() {
        if written >= MAX_WARNINGS && excess.is_some_and(|excess| at > excess) {
            break;
        }
        let mut clean = String::from("299 - \"");
        for c in warning.chars().take(cut) {
            written += 1;
            match c {
                c if c.is_control() => {}
                '"' | '\\' => clean.extend(['\\', c]),
                c => clean.push(c),
            }
        }
        clean.push('"');
        if let Ok(value) = HeaderValue::from_bytes(clean.as_bytes()) {
            headers.append(header::WARNING, value);
        }
    }
    response.extensions_mut().insert(Warnings(all));
}

/// Builds the `Status` of a success.
pub(super) fn success(details: Value) -> Value {
    serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(calls: &[&[String]]) -> Vec<String> {
        let mut response = Response::new(Body::empty());
        for warnings in calls {
            warn(&mut response, warnings);
        }
        let all = response.headers().get_all(header::WARNING).iter();
        all.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }

    fn shown(text: &str) -> String {
        format!("299 - \"{text}\"")
    }

    #[test]
    fn warnings_up_to_four_thousand_characters_are_whole() {
        let texts = ["ä".repeat(3000), "b".repeat(1000), "c".repeat(96)];
        assert_eq!(headers(&[&texts]), texts.clone().map(|text| shown(&text)));
        // Each once, and those of a second call after those of the first.
        let (first, second) = texts.split_at(1);
        let repeated = [second, first].concat();
        assert_eq!(headers(&[first, &repeated]), texts.map(|text| shown(&text)));
        assert_eq!(
            headers(&[&["a\"\n\\".to_owned(), String::new()]]),
            ["299 - \"a\\\"\\\\\""]
        );
    }

    #[test]
    fn warnings_above_four_thousand_characters_are_cut() {
        let texts = ["ä".repeat(3000), "b".repeat(1000), "c".repeat(97)];
        let cut = ["ä".repeat(256), "b".repeat(256), "c".repeat(97)];
        assert_eq!(headers(&[&texts]), cut.map(|text| shown(&text)));
        // As upstream's recorder: 16 times 256 characters are the limit.
        let long_warnings: Vec<String> = (0..270_000).map(|i| format!("{i:0300}")).collect();
        let cut: Vec<String> = long_warnings
            .iter()
            .take(16)
            .map(|text| shown(&text[..256]))
            .collect();
        assert_eq!(headers(&[&long_warnings]).len(), 16);
        assert_eq!(headers(&[&long_warnings])[0], cut[0]);
        let short: Vec<String> = (0..10_000).map(|i| format!("{i:04}")).collect();
        assert_eq!(
            headers(&[&short]).len(),
            1025,
            "the first that does not fit is the last"
        );
    }
}
