//! Request bodies: JSON with detection of duplicate keys, YAML, Kubernetes protobuf.

use bytes::Bytes;
use http::HeaderMap;
use koord_kinds::proto;
use koord_kinds::status::ApiError;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};
use serde_saphyr::DuplicateKeyPolicy;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use tokio::time::Instant;

/// Largest request body in bytes, as upstream.
pub(super) const MAX_BODY: usize = 3 * 1024 * 1024;

/// Supported content types, for 415 responses.
const SUPPORTED: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

/// A decoded body.
#[derive(Debug, Default)]
pub(super) struct DecodedBody {
    /// The object; `Null` for an empty body.
    pub(super) value: Value,
    pub(super) problems: Problems,
}

/// Problems of a body that strict decoding reports.
#[derive(Debug, Clone, Default)]
pub(crate) struct Problems {
    /// `duplicate field "..."`, one per key that occurred twice.
    duplicates: Vec<String>,
    /// Paths of the fields in the order of the body, for a JSON body with duplicates.
    order: Option<Vec<String>>,
    /// Bytes of the paths written for `duplicates` and for `order`.
    written: (usize, usize),
}

/// Most problems that are listed; kube-apiserver has the same limit of strict decoding errors.
const MAX_PROBLEMS: usize = 100;
/// Most fields whose order is recorded.
const ORDERED: usize = 10_000;
/// Most bytes of paths written for one list: a long key is part of every path below it.
const MAX_WRITTEN: usize = 4 * 1024 * 1024;

impl Problems {
    /// Returns these problems and those of unknown fields, in the order of the body if `ordered`; at most
    /// [`MAX_PROBLEMS`].
    pub(super) fn with_unknown_fields(self, unknown: Vec<String>, ordered: bool) -> Vec<String> {
        let mut all = self.duplicates;
        let existing = all.len();
        all.extend(unknown);
        let Some(order) = self.order.filter(|_| ordered) else {
            all.truncate(MAX_PROBLEMS);
            return all;
        };
        let mut first = HashMap::with_capacity(order.len());
        let mut last = HashMap::with_capacity(order.len());
        for (at, path) in order.iter().enumerate() {
            first.entry(path.as_str()).or_insert(at);
            last.insert(path.as_str(), at);
        }
        let mut placed: Vec<(usize, String)> = all
            .into_iter()
            .enumerate()
            .map(|(i, problem)| {
                let path = problem.split_once('"').map_or("", |(_, path)| path);
                let path = path.strip_suffix('"').unwrap_or(path);
                let at = if i < existing { &last } else { &first };
                (at.get(path).copied().unwrap_or(usize::MAX), problem)
            })
            .collect();
        placed.sort_by_key(|(at, _)| *at);
        placed.truncate(MAX_PROBLEMS);
        placed.into_iter().map(|(_, problem)| problem).collect()
    }

    fn add_duplicate(&mut self, path: &[PathSegment], key: &str) {
        if self.duplicates.len() >= MAX_PROBLEMS || self.written.0 > MAX_WRITTEN {
            return;
        }
        let text = format!("duplicate field {:?}", show(path, key));
        self.written.0 += text.len();
        if !self.duplicates.contains(&text) {
            self.duplicates.push(text);
        }
    }

    fn add_field(&mut self, path: &[PathSegment], key: &str) {
        if let Some(order) = &mut self.order
            && order.len() < ORDERED
            && self.written.1 <= MAX_WRITTEN
        {
            let path = show(path, key);
            self.written.1 += path.len();
            order.push(path);
        }
    }
}

/// Returns the media type of the body without parameters, in lower case.
pub(super) fn content_type(headers: &HeaderMap) -> String {
    headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .map(|v| v.split(';').next().unwrap_or(v).trim().to_ascii_lowercase())
        .unwrap_or_default()
}

/// Reads the whole body, up to [`MAX_BODY`] bytes, until `deadline`.
pub(super) async fn read(body: axum::body::Body, deadline: Instant) -> Result<Bytes, ApiError> {
    use http_body_util::{BodyExt, LengthLimitError, Limited};
    let total = Limited::new(body, MAX_BODY).collect();
    match tokio::time::timeout_at(deadline, total).await {
        Ok(Ok(total)) => Ok(total.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(ApiError::too_large(MAX_BODY)),
        Ok(Err(e)) => Err(ApiError::bad_request(format!(
            "failed to read the request body: {e}"
        ))),
        Err(_) => Err(ApiError::timeout(
            "Timeout: request did not complete within the allotted timeout",
        )),
    }
}

/// Decodes a body by its content type; an empty one becomes `Null`.
pub(super) fn decode(content_type: &str, bytes: &Bytes) -> Result<DecodedBody, ApiError> {
    if bytes.is_empty() {
        return Ok(DecodedBody::default());
    }
    match content_type {
        "" | "application/json" | "*/*" | "text/plain" => json(bytes),
        "application/yaml" | "application/x-yaml" | "text/yaml" => yaml(bytes),
        "application/vnd.kubernetes.protobuf" => {
            let value = proto::decode(bytes)?;
            Ok(DecodedBody {
                value,
                problems: Problems::default(),
            })
        }
        _ => Err(ApiError::unsupported_media_type(SUPPORTED)),
    }
}

/// Parses JSON. The last of duplicate keys wins; the duplicates are reported.
pub(super) fn json(bytes: &[u8]) -> Result<DecodedBody, ApiError> {
    let read = |problems: &mut Problems| {
        let mut de = serde_json::Deserializer::from_slice(bytes);
        let path = &mut Vec::new();
        let value = Seed { path, problems }.deserialize(&mut de);
        value.and_then(|v| de.end().map(|()| v))
    };
    let mut problems = Problems::default();
    match read(&mut problems) {
        Ok(value) => {
            if !problems.duplicates.is_empty() {
                problems = Problems {
                    order: Some(Vec::new()),
                    ..Problems::default()
                };
                // A second read cannot fail after the first succeeded.
                drop(read(&mut problems));
            }
            Ok(DecodedBody { value, problems })
        }
        Err(e) => Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type Object): couldn't get \
             version/kind; json parse error: {e} ({})",
            excerpt(bytes)
        ))),
    }
}

/// Decodes a YAML body and collects duplicate fields.
fn yaml(bytes: &[u8]) -> Result<DecodedBody, ApiError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| ApiError::bad_request(format!("error parsing YAML: {e}")))?;
    // JSON is YAML; the JSON parser reports duplicates and is much faster.
    if text.trim_start().starts_with('{')
        && let Ok(done) = json(bytes)
    {
        return Ok(done);
    }
    let mut problems = Problems::default();
    match yaml_value(text, DuplicateKeyPolicy::LastWins, &mut problems) {
        Ok(value) => {
            // The first message names the line, for the author of the text.
            if let Some(first) = problems.duplicates.first_mut()
                && let Err(e) =
                    yaml_value(text, DuplicateKeyPolicy::Error, &mut Problems::default())
                && let serde_saphyr::Error::DuplicateMappingKey {
                    key: Some(key),
                    location,
                } = e.without_snippet()
            {
                *first = format!("line {}: key {key:?} already set in map", location.line());
            }
            Ok(DecodedBody { value, problems })
        }
        Err(e) => Err(ApiError::bad_request(format!("error parsing YAML: {e}"))),
    }
}

/// Reads a YAML document; quoted text that continues below its key is indented and read again.
fn yaml_value(
    text: &str,
    duplicate_keys: DuplicateKeyPolicy,
    problems: &mut Problems,
) -> Result<Value, serde_saphyr::Error> {
    let mut text = Cow::Borrowed(text);
    let mut rereads = REREAD_BYTES / (text.len() + 1);
    loop {
        *problems = Problems::default();
        let mut path = Vec::new();
        let options = serde_saphyr::options! { duplicate_keys: duplicate_keys };
        let read = serde_saphyr::with_deserializer_from_str_with_options(&text, options, |de| {
            let path = &mut path;
            Seed { path, problems }.deserialize(de)
        });
        let line = match &read {
            Err(e) if rereads > 0 && e.without_snippet().to_string().contains(QUOTED_INDENT) => {
                e.location().map(|at| at.line())
            }
            _ => None,
        };
        let Some(line) = line else {
            return read;
        };
        rereads -= 1;
        text = Cow::Owned(indented(&text, line));
    }
}

/// Error of the parser about a quoted scalar whose continuation lines are not indented deeper than its key.
/// Go's parser accepts such text, and Koordinator's definitions contain it.
const QUOTED_INDENT: &str = "invalid indentation in multiline quoted scalar";
/// Most bytes that are parsed again: the parser reports one such line at a time.
const REREAD_BYTES: usize = 4 << 20;

/// Returns `text` with line `line` (counted from 1) indented one space deeper than the line before. It
/// continues a quoted scalar, whose value does not depend on its indentation.
fn indented(text: &str, line: u64) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let mut before = 0;
    for (number, content) in (1..).zip(text.split_inclusive('\n')) {
        if number == line {
            out.extend(std::iter::repeat_n(' ', before + 1));
        }
        before = content.len() - content.trim_start_matches(' ').len();
        out.push_str(content);
    }
    out
}

/// Returns the first bytes of a body in hex, as upstream shows a body that it failed to parse.
fn excerpt(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(16)
        .map(|b| format!("{b:02x}"))
        .collect::<String>()
        + " ..."
}

enum PathSegment {
    Key(String),
    Index(usize),
}

fn show(path: &[PathSegment], key: &str) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            PathSegment::Key(k) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(k);
            }
            PathSegment::Index(i) => {
                out.push_str(&format!("[{i}]"));
            }
        }
    }
    if !out.is_empty() {
        out.push('.');
    }
    out.push_str(key);
    out
}

/// Builds a [`Value`] and records duplicate keys.
struct Seed<'a> {
    path: &'a mut Vec<PathSegment>,
    problems: &'a mut Problems,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let Seed { path, problems } = self;
        let mut out = Vec::new();
        loop {
            path.push(PathSegment::Index(out.len()));
            let next = seq.next_element_seed(Seed { path, problems });
            path.pop();
            match next? {
                Some(value) => out.push(value),
                None => return Ok(Value::Array(out)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let Seed { path, problems } = self;
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            problems.add_field(path, &key);
            // The key is moved into the path while its value is read, to avoid a copy per field.
            path.push(PathSegment::Key(key));
            let value = map.next_value_seed(Seed { path, problems });
            let Some(PathSegment::Key(key)) = path.pop() else {
                return Err(A::Error::custom("unbalanced path"));
            };
            match out.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(value?);
                }
                Entry::Occupied(mut entry) => {
                    problems.add_duplicate(path, entry.key());
                    entry.insert(value?);
                }
            }
        }
        if out.len() > 1_000_000 {
            return Err(A::Error::custom("too many keys"));
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_reported_with_their_path() {
        let got = json(br#"{"a":1,"spec":{"c":[{"x":1,"x":2}]},"a":3}"#).unwrap();
        assert_eq!(got.value["a"], 3);
        assert_eq!(
            got.problems.duplicates,
            [r#"duplicate field "spec.c[0].x""#, r#"duplicate field "a""#]
        );
    }

    /// Returns the problems of a body, with those of its unknown fields.
    fn problems(body: &str, unknown: &[&str]) -> Vec<String> {
        let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
        json(body.as_bytes())
            .unwrap()
            .problems
            .with_unknown_fields(unknown.collect(), true)
    }

    #[test]
    fn problems_are_deduplicated_up_to_limit() {
        let duplicates: Vec<String> = (0..500).map(|i| format!(r#""k{i}":1,"k{i}":2"#)).collect();
        let listed = problems(&format!("{{{}}}", duplicates.join(",")), &["k7"]);
        assert_eq!(listed.len(), 100);
        assert_eq!(
            listed[7..9],
            [r#"unknown field "k7""#, r#"duplicate field "k7""#]
        );
        let requeue = problems(r#"{"a":1,"a":2,"a":3,"b":{"c":1,"c":2}}"#, &[]);
        assert_eq!(
            requeue,
            [r#"duplicate field "a""#, r#"duplicate field "b.c""#]
        );
    }

    #[test]
    fn long_keys_are_reported_a_few_times() {
        // 100,000 duplicates, and as many fields, below a key of 1 MB: 100 GB of paths.
        let inner = vec![r#""a":1"#; 100_000].join(",");
        let body = format!(r#"{{"{}":{{{inner}}}}}"#, "k".repeat(1 << 20));
        assert_eq!(problems(&body, &[]).len(), 1);
        let inner: Vec<String> = (0..50_000).map(|i| format!(r#""{i}":1,"{i}":1"#)).collect();
        let body = format!(r#"{{"{}":{{{}}}}}"#, "k".repeat(1 << 20), inner.join(","));
        let listed = problems(&body, &[]);
        assert!((1..100).contains(&listed.len()), "{}", listed.len());
    }

    #[test]
    fn broken_bodies_are_bad_requests() {
        for body in ["{", "{}x", "[1,", "nul", "\"\u{1}\"", &"[".repeat(100_000)] {
            assert_eq!(json(body.as_bytes()).unwrap_err().code, 400, "{body:.20}");
        }
        let e = decode("application/cbor", &Bytes::from_static(b"x")).unwrap_err();
        assert_eq!(e.code, 415);
        let e = decode("application/yaml", &Bytes::from_static(b"a: [")).unwrap_err();
        assert_eq!(e.code, 400);
    }

    #[test]
    fn quoted_text_continues_below_its_key() {
        let decode =
            |text: &str| decode("application/yaml", &Bytes::copy_from_slice(text.as_bytes()));
        let text = "\
spec:
  - a: 'it''s one
    more: than

    one'
    b: \"x
y\"
    c: |
      'kept
      as it is
d: 1
";
        let want = serde_json::json!({"spec": [
            {"a": "it's one more: than\none", "b": "x y", "c": "'kept\nas it is\n"}
        ], "d": 1});
        assert_eq!(decode(text).unwrap().value, want);
        let endless = format!("a:\n  b: '{}'", "x\n".repeat(1_000_000));
        assert_eq!(decode(&endless).unwrap_err().code, 400);
        assert_eq!(decode("a:\n  b: 'x\n  y\n").unwrap_err().code, 400);
    }

    #[test]
    fn yaml_is_read_like_json() {
        let decode =
            |text: &str| decode("application/yaml", &Bytes::copy_from_slice(text.as_bytes()));
        let got =
            decode("a: 1\nspec:\n  c: [{x: 1, x: 2}]\na: 3\nt: true\nn: null\ns: '1'\n").unwrap();
        assert_eq!(
            got.value,
            serde_json::json!({"a": 3, "spec": {"c": [{"x": 2}]}, "t": true, "n": null, "s": "1"})
        );
        assert_eq!(
            got.problems.duplicates,
            [
                r#"line 3: key "x" already set in map"#,
                r#"duplicate field "a""#
            ]
        );
        let laughs = (1..12).fold("a0: &a0 [x, x]\n".to_owned(), |text, i| {
            let alias = format!("*a{}", i - 1);
            let ten = vec![alias; 10].join(", ");
            format!("{text}a{i}: &a{i} [{ten}]\n")
        });
        let deep_block: String = (0..2000)
            .map(|i| format!("{}a:\n", " ".repeat(i)))
            .collect();
        for bad in [
            &"[".repeat(100_000),
            &"{a: ".repeat(50_000),
            &deep_block,
            &laughs,
        ] {
            assert_eq!(decode(bad).unwrap_err().code, 400, "{bad:.20}");
        }
    }

    #[test]
    fn non_utf8_body_is_bad_request() {
        for kind in ["application/json", "application/yaml"] {
            let body = Bytes::from_static(b"{\"a\": \"\xff\xfe\"}");
            assert_eq!(decode(kind, &body).unwrap_err().code, 400, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn endless_body_is_rejected() {
        let slow = axum::body::Body::from_stream(futures::stream::pending::<
            Result<Bytes, std::convert::Infallible>,
        >());
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let e = read(slow, deadline).await.unwrap_err();
        assert_eq!((e.code, e.reason.as_ref()), (504, "Timeout"));
    }
}
