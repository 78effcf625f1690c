//! GET of an object and LIST of a collection.

use super::accept::{MetaVersion, NegotiatedFormat, ObjectForm};
use super::query::Query;
use super::respond::{self, ResponseFormat};
use super::selection::Selection;
use super::write::Object;
use super::{Api, accept, transform};
use crate::store::{Entry, Key, Page, Revision, StoreError};
use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use koord_kinds::Resource;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::{Value, json};
use std::sync::Arc;

/// Size in bytes of the chunks in which a long list is sent.
const CHUNK: usize = 256 * 1024;

/// Oldest age of a list's first page, in seconds, at which the next page may be requested. Upstream compacts
/// older states every five minutes.
const MAX_AGE: i64 = 300;

/// Upstream's message for a continue token that is too old.
const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent \
    list result. You can start a new list without the continue parameter, or use the continue token \
    in this response to retrieve the remainder of the results. Continuing with the provided token \
    results in an inconsistent list - objects that were created, modified, or deleted between the \
    time the first chunk was returned and now may show up in the list.";

/// Position and revision from which a list reads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListPosition {
    /// Revision to read exactly; `None`: the newest.
    at: Option<Revision>,
    /// Read the entries after this key.
    after: Option<Key>,
    limit: Option<usize>,
    continued: bool,
    /// Entries left after this position, from the continue token.
    entries_left: Option<u64>,
    /// Time at which the first page was read, in seconds since the epoch; `None`: now.
    since: Option<i64>,
}

/// Parses the `resourceVersion` of a query: `None` if absent, an error if it is not a number.
pub(super) fn revision(query: &Query) -> Result<Option<Revision>, ApiError> {
    let Some(text) = query.get("resourceVersion") else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| {
        let e = FieldError::invalid(
            "resourceVersion",
            text,
            "invalid syntax: a resource version is a decimal number",
        );
        ApiError::bad_request(format!("Invalid value: {text:?}: {}", e.detail))
    })
}

fn forbidden_option(field: &str, reason: &str) -> ApiError {
    super::query::invalid_option("ListOptions", FieldError::forbidden(field, reason))
}

/// Parses the position of a list from the revision and the continue token of the query.
fn position(query: &Query, newest: Revision) -> Result<ListPosition, ApiError> {
    let rv = revision(query)?;
    let matching = query.get("resourceVersionMatch");
    let token = query.get("continue");
    if query.get("sendInitialEvents").is_some() {
        return Err(forbidden_option(
            "sendInitialEvents",
            "sendInitialEvents is forbidden for list",
        ));
    }
    if let Some(m) = matching {
        if !matches!(m, "Exact" | "NotOlderThan") {
            let e = FieldError::not_supported(
                "resourceVersionMatch",
                m,
                &["Exact", "NotOlderThan", ""],
            );
            return Err(super::query::invalid_option("ListOptions", e));
        }
        if rv.is_none() {
            return Err(forbidden_option(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if token.is_some() {
            return Err(forbidden_option(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if m == "Exact" && rv == Some(0) {
            return Err(forbidden_option(
                "resourceVersionMatch",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
    }
    let limit = query
        .number("limit")?
        .filter(|l| *l > 0)
        .map(|l| usize::try_from(l).unwrap_or(usize::MAX));
    if let Some(token) = token {
        if rv.is_some_and(|v| v != 0) {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = ContinueToken::decode(token)?;
        return Ok(ListPosition {
            at: token.at,
            after: Some(token.after),
            limit,
            continued: true,
            entries_left: token.entries_left,
            since: token.since,
        });
    }
    if let Some(v) = rv
        && v > newest
    {
        return Err(ApiError::too_large_resource_version(v, newest));
    }
    let exact = match (rv, matching) {
        (Some(v), Some("Exact")) => Some(v),
        (Some(v), None) if v > 0 && limit.is_some() => Some(v),
        _ => None,
    };
    Ok(ListPosition {
        at: exact,
        after: None,
        limit,
        continued: false,
        entries_left: None,
        since: None,
    })
}

/// A continue token: where a list resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ContinueToken {
    /// Revision to read; `None`: the newest when the next page is read.
    at: Option<Revision>,
    after: Key,
    /// Number of entries after `after`, counted for the first page.
    entries_left: Option<u64>,
    /// Time at which the first page was read, in seconds since the epoch.
    since: Option<i64>,
}

impl ContinueToken {
    /// Encodes the token as Base64 of JSON, with upstream's members and two of this server's own.
    fn encode(&self) -> String {
        let rv = self.at.and_then(|r| i64::try_from(r).ok()).unwrap_or(-1);
        let start = [&*self.after.namespace, &*self.after.name];
        let mut token = json!({ "v": "meta.k8s.io/v1", "rv": rv, "start": start });
        if let Some(entries_left) = self.entries_left {
            token["left"] = entries_left.into();
        }
        if let Some(since) = self.since {
            token["since"] = since.into();
        }
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(token: &str) -> Result<Self, ApiError> {
        let bad = || {
            ApiError::bad_request(
                "continue key is not valid: the token was not made by this server",
            )
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(token.trim_end_matches('='))
            .map_err(|_| bad())?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        let rv = value.get("rv").and_then(Value::as_i64).ok_or_else(bad)?;
        let start = value
            .get("start")
            .and_then(Value::as_array)
            .ok_or_else(bad)?;
        let [Value::String(namespace), Value::String(name)] = start.as_slice() else {
            return Err(bad());
        };
        Ok(Self {
            at: Revision::try_from(rv).ok(),
            after: Key::new(namespace.as_str(), name.as_str()),
            entries_left: value.get("left").and_then(Value::as_u64),
            since: value.get("since").and_then(Value::as_i64),
        })
    }
}

/// Result of a list.
struct ListResult {
    page: Page,
    /// Number of entries after the page.
    entries_left: Option<u64>,
    token: Option<String>,
}

/// Serves the GET of one object.
pub(super) fn serve_get(
    api: &Api,
    resource: &Arc<Resource>,
    namespace: &str,
    name: &str,
    query: &Query,
    negotiated: NegotiatedFormat,
) -> Result<Response, ApiError> {
    let key = Api::key(resource, namespace, name);
    if let Some(v) = revision(query)?
        && v > api.store().revision()
    {
        return Err(ApiError::too_large_resource_version(
            v,
            api.store().revision(),
        ));
    }
    let entry = api.entry(resource, &key)?;
    let include = transform::include(query)?;
    let object = Object::Stored(entry);
    let bytes = transform::object_bytes(
        resource,
        &object,
        negotiated.form,
        include,
        api.clock().now(),
    );
    let style = ResponseFormat {
        encoding: negotiated.encoding,
        pretty: query.pretty(),
    };
    Ok(respond::bytes(200, bytes, style))
}

/// Serves the LIST of a collection.
pub(super) fn serve_list(
    api: &Api,
    resource: &Arc<Resource>,
    selection: &Selection,
    query: &Query,
    negotiated: NegotiatedFormat,
) -> Result<Response, ApiError> {
    let position = position(query, api.store().revision())?;
    let age = position
        .since
        .map(|since| api.clock().now().as_second() - since);
    if position.at.is_some() && age.is_some_and(|age| age > MAX_AGE) {
        return Ok(expired_continue(&position));
    }
    let matches = match read(api, resource, selection, &position) {
        Ok(matches) => matches,
        Err(StoreError::Expired { .. }) if position.continued => {
            return Ok(expired_continue(&position));
        }
        Err(StoreError::Expired { .. }) => {
            return Err(ApiError::expired(
                "The resourceVersion for the provided list is too old.",
            ));
        }
        Err(e) => {
            return Err(super::check::store_error(resource, &Key::cluster(""), e));
        }
    };
    let include = transform::include(query)?;
    let style = ResponseFormat {
        encoding: negotiated.encoding,
        pretty: query.pretty(),
    };
    let ListResult {
        page,
        entries_left,
        token,
    } = matches;
    let mut metadata = json!({ "resourceVersion": page.revision.to_string() });
    if let Some(token) = &token {
        metadata["continue"] = token.as_str().into();
        if let Some(n) = entries_left.filter(|_| selection.everything) {
            metadata["remainingItemCount"] = n.into();
        }
    }
    let head = |kind: &str, api_version: &str| {
        format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
            Value::from(kind),
            Value::from(api_version)
        )
    };
    let plain = style.encoding == accept::Encoding::Json && !style.pretty;
    match negotiated.form {
        ObjectForm::Object if plain => {
            let head = head(&resource.list_kind, &resource.api_version());
            Ok(stream(head, page.items, resource.clone(), put_item))
        }
        ObjectForm::Object => {
            let head = head(&resource.list_kind, &resource.api_version());
            let bytes = collect(head, &page.items, |e, out| put_item(resource, e, out));
            Ok(respond::bytes(200, bytes, style))
        }
        ObjectForm::Metadata(version) => {
            let head = head("PartialObjectMetadataList", version.api_version());
            let bytes = collect(head, &page.items, |e, out| {
                out.put_slice(&as_metadata(resource, e, version));
            });
            Ok(respond::bytes(200, bytes, style))
        }
        ObjectForm::Table(version) => {
            let items: Vec<Value> = page
                .items
                .iter()
                .map(|e| resource.from_storage(e.value()))
                .collect();
            let now = api.clock().now();
            let table = transform::table(resource, &items, include, version, metadata, now);
            Ok(respond::value(200, &table, style))
        }
    }
}

/// Reads a page of the selected objects.
fn read(
    api: &Api,
    resource: &Resource,
    selection: &Selection,
    position: &ListPosition,
) -> Result<ListResult, StoreError> {
    if position.at.is_none()
        && position.after.is_none()
        && let Some(key) = selection.only(resource)
    {
        // The revision is read first, so that the object is at least as new.
        let revision = api.store().revision();
        let entry = api.store().get(&resource.table, &key);
        let items: Vec<_> = entry.into_iter().filter(|e| selection.matches(e)).collect();
        let revision = items
            .iter()
            .map(|e| e.revision)
            .max()
            .unwrap_or(0)
            .max(revision);
        let page = Page {
            items,
            revision,
            next: None,
            remaining: None,
        };
        return Ok(ListResult {
            page,
            entries_left: None,
            token: None,
        });
    }
    let page = api.store().list(
        &resource.table,
        selection.namespace.as_deref(),
        position.at,
        position.after.as_ref(),
        position.limit,
        &|e| selection.matches(e),
    )?;
    let page_length = page.items.len() as u64;
    let entries_left = position
        .entries_left
        .map(|entries_left| entries_left.saturating_sub(page_length));
    let entries_left = page.remaining.or(entries_left);
    let since = position.at.and(position.since);
    let token = page.next.as_ref().map(|next| {
        let token = ContinueToken {
            at: Some(page.revision),
            after: next.clone(),
            entries_left,
            since: since.or_else(|| Some(api.clock().now().as_second())),
        };
        token.encode()
    });
    Ok(ListResult {
        page,
        entries_left,
        token,
    })
}

/// Returns the entries that currently match a selection.
pub(super) fn select_entries(
    api: &Api,
    resource: &Resource,
    selection: &Selection,
) -> Vec<Arc<Entry>> {
    let namespace = selection.namespace.as_deref();
    let matches = |e: &Entry| selection.matches(e);
    api.store().all(&resource.table, namespace, &matches)
}

/// Returns 410 with a token to resume from; the rest of the list is then inconsistent.
fn expired_continue(position: &ListPosition) -> Response {
    let mut status = ApiError::expired(CONTINUE_EXPIRED).to_value();
    if let Some(after) = &position.after {
        let token = ContinueToken {
            at: None,
            after: after.clone(),
            entries_left: None,
            since: None,
        };
        status["metadata"] = json!({ "continue": token.encode() });
    }
    respond::value(410, &status, ResponseFormat::default())
}

/// Returns the JSON of a stored object in the version of `resource`.
pub(super) fn as_object(resource: &Resource, entry: &Entry) -> Bytes {
    if resource.reads_stored() {
        entry.bytes.clone()
    } else {
        Bytes::from(resource.from_storage(entry.value()).to_string())
    }
}

/// Writes an item of a list. Items of built-in kinds have no apiVersion and kind of their own: the list has
/// them, and typed clients do not expect them in items.
fn put_item(resource: &Resource, entry: &Entry, out: &mut BytesMut) {
    let bytes = as_object(resource, entry);
    let version = format!("{{\"apiVersion\":{},", Value::from(resource.api_version()));
    let tail = match bytes.strip_prefix(version.as_bytes()) {
        Some(tail) if !resource.is_custom() => tail,
        _ => return out.put_slice(&bytes),
    };
    out.put_u8(b'{');
    match find_kind(tail, &resource.kind) {
        Some(kind) => {
            out.put_slice(tail.get(..kind.start).unwrap_or_default());
            out.put_slice(tail.get(kind.end..).unwrap_or_default());
        }
        None => out.put_slice(tail),
    }
}

/// Returns the range of `"kind":"…",` among the members of an object whose bytes begin after its opening
/// brace. Nested members are skipped.
fn find_kind(bytes: &[u8], kind: &str) -> Option<std::ops::Range<usize>> {
    let member = format!("\"kind\":{},", Value::from(kind));
    let (mut at, mut depth) = (0, 0usize);
    loop {
        match bytes.get(at)? {
            b'"' => {
                if depth == 0 && bytes.get(at..)?.starts_with(member.as_bytes()) {
                    return Some(at..at + member.len());
                }
                at += 1;
                while *bytes.get(at)? != b'"' {
                    at += if bytes.get(at) == Some(&b'\\') { 2 } else { 1 };
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += 1;
    }
}

fn as_metadata(resource: &Resource, entry: &Entry, version: MetaVersion) -> Bytes {
    let value = resource.from_storage(entry.value());
    Bytes::from(transform::metadata_only(&value, version).to_string())
}

fn collect(head: String, items: &[Arc<Entry>], write: impl Fn(&Entry, &mut BytesMut)) -> Bytes {
    let mut out = BytesMut::with_capacity(head.len() + items.len() * 1024);
    out.put_slice(head.as_bytes());
    for (i, entry) in items.iter().enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        write(entry, &mut out);
    }
    out.put_slice(b"]}");
    out.freeze()
}

/// Builds a list response whose bytes are produced while they are sent, so that a long list is never in
/// memory twice. A short one is sent in one piece with its length.
fn stream(
    head: String,
    items: Vec<Arc<Entry>>,
    resource: Arc<Resource>,
    write: fn(&Resource, &Entry, &mut BytesMut),
) -> Response {
    let total: usize = items.iter().map(|e| e.bytes.len() + 1).sum();
    if total <= CHUNK {
        let bytes = collect(head, &items, |e, out| write(&resource, e, out));
        return respond::bytes(200, bytes, ResponseFormat::default());
    }
    let state = (Some(head), items.into_iter().enumerate(), false);
    let chunks = futures::stream::unfold(state, move |(mut head, mut items, finished)| {
        let resource = resource.clone();
        async move {
            if finished {
                return None;
            }
            let mut out = BytesMut::with_capacity(CHUNK + 16 * 1024);
            if let Some(head) = head.take() {
                out.put_slice(head.as_bytes());
            }
            let mut finished = false;
            while out.len() < CHUNK {
                let Some((i, entry)) = items.next() else {
                    out.put_slice(b"]}");
                    finished = true;
                    break;
                };
                if i > 0 {
                    out.put_u8(b',');
                }
                write(&resource, &entry, &mut out);
            }
            Some((
                Ok::<_, std::convert::Infallible>(out.freeze()),
                (None, items, finished),
            ))
        }
    });
    respond::with_body(200, "application/json", Body::from_stream(chunks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_kind_is_found_among_members() {
        let object = r#""data":{"kind":"ConfigMap","a":"\"kind\":\"ConfigMap\","},"kind":"ConfigMap","metadata":{}}"#;
        let matches = find_kind(object.as_bytes(), "ConfigMap").unwrap();
        assert_eq!(&object[matches.clone()], "\"kind\":\"ConfigMap\",");
        assert!(object[..matches.start].ends_with("\"},"));
        for broken in ["", "\"", "\"a\\", "}}", "\"kind\":\"Pod\"}"] {
            assert_eq!(find_kind(broken.as_bytes(), "ConfigMap"), None);
        }
    }

    #[test]
    fn tokens_round_trip_and_foreign_ones_are_refused() {
        for (at, entries_left, since) in [(Some(7), None, Some(9)), (None, Some(3), None)] {
            let after = Key::new("ns", "a/b");
            let token = ContinueToken {
                at,
                after,
                entries_left,
                since,
            };
            assert_eq!(ContinueToken::decode(&token.encode()).unwrap(), token);
        }
        for bad in ["", "x", "e30", "bm90IGpzb24"] {
            assert_eq!(ContinueToken::decode(bad).unwrap_err().code, 400, "{bad}");
        }
    }

    #[test]
    fn resource_version_rules() {
        let at = |q: &str| position(&Query::parse(q).unwrap(), 100);
        assert_eq!(at("").unwrap().at, None);
        assert_eq!(at("resourceVersion=0&limit=5").unwrap().at, None);
        assert_eq!(at("resourceVersion=50").unwrap().at, None);
        assert_eq!(at("resourceVersion=50&limit=5").unwrap().at, Some(50));
        assert_eq!(
            at("resourceVersion=50&resourceVersionMatch=Exact")
                .unwrap()
                .at,
            Some(50)
        );
        assert_eq!(at("resourceVersion=101").unwrap_err().code, 504);
        for bad in [
            "resourceVersionMatch=Exact",
            "resourceVersion=0&resourceVersionMatch=Exact",
            "resourceVersion=5&resourceVersionMatch=Sometimes",
            "sendInitialEvents=true",
        ] {
            assert_eq!(at(bad).unwrap_err().code, 422, "{bad}");
        }
        assert_eq!(at("resourceVersion=x").unwrap_err().code, 400);
        assert_eq!(at("limit=x").unwrap_err().code, 400);
    }
}
