//! WATCH: a stream of JSON lines.

use super::accept::{Form, MetaVersion, Negotiated};
use super::query::Query;
use super::selection::Selection;
use super::{Api, list, meta, protobuf, transform};
use crate::store::{Entry, Event, EventKind, Revision, StoreError, Watcher};
use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use koord_kinds::Resource;
use koord_kinds::status::{ApiError, FieldError};
use koord_kinds::table::Include;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often an idle watch gets a bookmark.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long before its end a watch gets the last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Watches without a timeout end after this and up to as much again.
const DEFAULT_TIMEOUT: u64 = 1800;
/// Events that are ready at once share a chunk up to this size.
const CHUNK: usize = 64 * 1024;
/// Annotation of the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// All objects as ADDED, then what changes.
    State,
    /// All objects as ADDED, the bookmark that says so, then what changes.
    StateThenBookmark,
    /// What changes after a revision.
    After(Revision),
}

/// Options of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WatchOptions {
    start: Start,
    bookmarks: bool,
    timeout: Duration,
}

fn options(query: &Query, newest: Revision) -> Result<WatchOptions, ApiError> {
    let invalid = |e| super::query::invalid_option("ListOptions", e);
    let rv = list::revision(query)?;
    let initial = query.flag("sendInitialEvents");
    let matching = query.get("resourceVersionMatch");
    match (initial, matching) {
        (None, Some(_)) => {
            return Err(invalid(FieldError::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )));
        }
        (Some(_), None) => {
            return Err(invalid(FieldError::forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            )));
        }
        (Some(_), Some(m)) if m != "NotOlderThan" => {
            return Err(invalid(FieldError::not_supported(
                "resourceVersionMatch",
                m,
                &["NotOlderThan"],
            )));
        }
        _ => {}
    }
    let bookmarks = query.flag("allowWatchBookmarks").unwrap_or(false);
    let start = match (initial, rv) {
        (Some(true), Some(v)) if v > newest => {
            return Err(ApiError::too_large_resource_version(v, newest));
        }
        (Some(true), _) if bookmarks => Start::StateThenBookmark,
        (Some(true), _) => Start::State,
        (_, None | Some(0)) => Start::State,
        (_, Some(v)) => Start::After(v),
    };
    let timeout = match query.number("timeoutSeconds")? {
        Some(s) if s > 0 => Duration::from_secs(s.unsigned_abs().min(7 * 24 * 3600)),
        _ => Duration::from_secs(DEFAULT_TIMEOUT + fastrand::u64(..DEFAULT_TIMEOUT)),
    };
    Ok(WatchOptions {
        start,
        bookmarks,
        timeout,
    })
}

/// What a watcher with a selection sees of a change.
#[derive(Debug)]
enum Seen {
    Added(Arc<Entry>),
    Modified(Arc<Entry>),
    /// The object is gone.
    Deleted(Arc<Entry>),
    /// The object left the selection at this revision; the last state that was in it.
    Left(Arc<Entry>, Revision),
}

/// Translates a change into what a watcher whose selection is `matches` sees, if anything.
fn seen(event: &Event, matches: impl Fn(&Entry) -> bool) -> Option<Seen> {
    let before = event.old.as_deref().is_some_and(&matches);
    match event.kind {
        EventKind::Delete => {
            // Without the version before, the final state tells whether it was selected.
            let selected = if event.old.is_some() {
                before
            } else {
                matches(&event.new)
            };
            selected.then(|| Seen::Deleted(event.new.clone()))
        }
        EventKind::Put => match (before, matches(&event.new)) {
            (false, true) => Some(Seen::Added(event.new.clone())),
            (true, true) => Some(Seen::Modified(event.new.clone())),
            (true, false) => event.old.clone().map(|old| Seen::Left(old, event.revision)),
            (false, false) => None,
        },
    }
}

/// How events are written.
struct Format {
    api: Api,
    resource: Arc<Resource>,
    form: Form,
    include: Include,
    /// The columns were sent; later Tables leave them out.
    columns_sent: bool,
}

impl Format {
    fn event(&mut self, out: &mut BytesMut, seen: &Seen) {
        let (kind, entry, left) = match seen {
            Seen::Added(e) => ("ADDED", e, None),
            Seen::Modified(e) => ("MODIFIED", e, None),
            Seen::Deleted(e) => ("DELETED", e, None),
            Seen::Left(e, at) => ("DELETED", e, Some(*at)),
        };
        let bytes = left.map_or_else(|| entry.bytes.clone(), |at| entry.bytes_at(at));
        let object = if self.form == Form::Object && self.resource.reads_stored() {
            bytes
        } else {
            let stored: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            Bytes::from(
                self.transformed(&self.resource.from_storage(stored))
                    .to_string(),
            )
        };
        self.columns_sent = true;
        line(out, kind, &object);
    }

    fn transformed(&self, value: &Value) -> Value {
        match self.form {
            Form::Object => value.clone(),
            Form::Metadata(version) => transform::metadata_only(value, version),
            Form::Table(version) => {
                let list = json!({ "resourceVersion": meta::resource_version(value) });
                let now = self.api.clock().now();
                let items = std::slice::from_ref(value);
                let mut table =
                    transform::table(&self.resource, items, self.include, version, list, now);
                if self.columns_sent {
                    table["columnDefinitions"] = Value::Null;
                }
                table
            }
        }
    }

    fn bookmark(&self, out: &mut BytesMut, revision: Revision, end_of_initial: bool) {
        let mut metadata = json!({
            "resourceVersion": revision.to_string(),
            "creationTimestamp": null,
        });
        if end_of_initial {
            metadata["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
        }
        let (kind, api_version) = match self.form {
            Form::Metadata(v) => ("PartialObjectMetadata", v.api_version().to_owned()),
            _ => (&*self.resource.kind, self.resource.api_version()),
        };
        let object = json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata });
        let object = match self.form {
            Form::Table(version) => table_bookmark(object, version, revision),
            _ => object,
        };
        line(out, "BOOKMARK", object.to_string().as_bytes());
    }
}

/// A bookmark of a watch of Tables: an empty Table around the object.
fn table_bookmark(object: Value, version: MetaVersion, revision: Revision) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": version.api_version(),
        "metadata": { "resourceVersion": revision.to_string() },
        "columnDefinitions": [],
        "rows": [{ "cells": [], "object": object }],
    })
}

fn line(out: &mut BytesMut, kind: &str, object: &[u8]) {
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
}

fn error_line(error: &ApiError) -> Bytes {
    let mut out = BytesMut::new();
    line(&mut out, "ERROR", error.to_value().to_string().as_bytes());
    out.freeze()
}

/// A running watch.
struct Stream {
    format: Format,
    selection: Selection,
    initial: VecDeque<Arc<Entry>>,
    /// Send the end-of-initial-events bookmark after `initial`.
    end_bookmark: Option<Revision>,
    watcher: Watcher,
    bookmarks: bool,
    next_bookmark: Instant,
    last_bookmark: Option<Instant>,
    deadline: Instant,
    finished: bool,
}

impl Stream {
    /// The next chunk; `None` ends the stream.
    async fn chunk(&mut self) -> Option<Bytes> {
        if self.finished {
            return None;
        }
        let mut out = BytesMut::new();
        while let Some(entry) = self.initial.pop_front() {
            self.format.event(&mut out, &Seen::Added(entry));
            if out.len() >= CHUNK {
                return Some(out.freeze());
            }
        }
        if let Some(revision) = self.end_bookmark.take() {
            self.format.bookmark(&mut out, revision, true);
        }
        if !out.is_empty() {
            return Some(out.freeze());
        }
        loop {
            let wake = self.wake();
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(wake) => {
                    if let Some(done) = self.on_time() {
                        return done;
                    }
                }
                next = self.watcher.next() => match next {
                    Ok(event) => {
                        self.take(&mut out, &event);
                        self.take_ready(&mut out);
                        if !out.is_empty() {
                            return Some(out.freeze());
                        }
                    }
                    Err(lagged) => {
                        self.finished = true;
                        return Some(error_line(&ApiError::too_old(lagged.at, lagged.oldest)));
                    }
                },
            }
        }
    }

    fn take(&mut self, out: &mut BytesMut, event: &Event) {
        let selection = &self.selection;
        if let Some(seen) = seen(event, |e| selection.matches(e)) {
            self.format.event(out, &seen);
        }
    }

    /// What else is ready goes into the same chunk.
    fn take_ready(&mut self, out: &mut BytesMut) {
        while out.len() < CHUNK {
            match self.watcher.try_next() {
                Ok(Some(event)) => self.take(out, &event),
                // A lagging watcher says so again when it is asked next.
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn wake(&self) -> Instant {
        let mut wake = self.deadline;
        if self.bookmarks {
            wake = wake.min(self.next_bookmark);
            if let Some(last) = self.last_bookmark {
                wake = wake.min(last);
            }
        }
        wake
    }

    /// A timer fired: `Some` is what the stream does now.
    fn on_time(&mut self) -> Option<Option<Bytes>> {
        let now = Instant::now();
        if now >= self.deadline {
            self.finished = true;
            return Some(None);
        }
        if !self.bookmarks {
            return None;
        }
        let mut due = now >= self.next_bookmark;
        if due {
            self.next_bookmark = now + BOOKMARK_EVERY;
        }
        if self.last_bookmark.is_some_and(|at| now >= at) {
            self.last_bookmark = None;
            due = true;
        }
        if !due {
            return None;
        }
        let mut out = BytesMut::new();
        self.format
            .bookmark(&mut out, self.watcher.progress(), false);
        Some(Some(out.freeze()))
    }
}

impl Api {
    /// WATCH of a collection, or of one object.
    pub(super) fn serve_watch(
        &self,
        resource: &Arc<Resource>,
        selection: Selection,
        query: &Query,
        negotiated: Negotiated,
    ) -> Result<Response, ApiError> {
        let options = options(query, self.store().revision())?;
        let include = transform::include(query)?;
        let format = Format {
            api: self.clone(),
            resource: resource.clone(),
            form: negotiated.form,
            include,
            columns_sent: false,
        };
        let mut initial = VecDeque::new();
        let from = match options.start {
            Start::After(revision) => revision,
            Start::State | Start::StateThenBookmark => {
                let page = self
                    .store()
                    .list(
                        &resource.table,
                        selection.namespace.as_deref(),
                        None,
                        None,
                        None,
                        &|e| selection.matches(e),
                    )
                    .map_err(|e| {
                        super::check::store_error(resource, &crate::store::Key::cluster(""), e)
                    })?;
                initial = page.items.into();
                page.revision
            }
        };
        let watcher = match self
            .store()
            .watch_scoped(&resource.table, from, selection.scope())
        {
            Ok(watcher) => watcher,
            // Clients notice an expired version only inside the stream, not by the HTTP code.
            Err(StoreError::Expired { requested, oldest }) => {
                let bytes = error_line(&ApiError::too_old(requested, oldest));
                return Ok(protobuf::lines(Body::from(bytes)));
            }
            Err(e) => {
                return Err(super::check::store_error(
                    resource,
                    &crate::store::Key::cluster(""),
                    e,
                ));
            }
        };
        let now = Instant::now();
        let deadline = now + options.timeout;
        let stream = Stream {
            format,
            selection,
            initial,
            end_bookmark: (options.start == Start::StateThenBookmark).then_some(from),
            watcher,
            bookmarks: options.bookmarks,
            next_bookmark: now + BOOKMARK_EVERY,
            last_bookmark: options
                .timeout
                .checked_sub(LAST_BOOKMARK)
                .filter(|d| !d.is_zero())
                .map(|d| now + d),
            deadline,
            finished: false,
        };
        let shutdown = self.shutdown().clone();
        let chunks = futures::stream::unfold(stream, move |mut stream| {
            let shutdown = shutdown.clone();
            async move {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => None,
                    chunk = stream.chunk() => {
                        chunk.map(|c| (Ok::<_, std::convert::Infallible>(c), stream))
                    }
                }
            }
        });
        Ok(protobuf::lines(Body::from_stream(chunks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_watch_starts() {
        let start = |q: &str| options(&Query::parse(q).unwrap(), 100).map(|o| o.start);
        assert_eq!(start("").unwrap(), Start::State);
        assert_eq!(start("resourceVersion=0").unwrap(), Start::State);
        assert_eq!(start("resourceVersion=7").unwrap(), Start::After(7));
        let stream = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(
            start(&format!(
                "{stream}&allowWatchBookmarks=true&resourceVersion=7"
            ))
            .unwrap(),
            Start::StateThenBookmark
        );
        assert_eq!(start(stream).unwrap(), Start::State);
        assert_eq!(
            start(&format!("{stream}&resourceVersion=101"))
                .unwrap_err()
                .code,
            504
        );
        assert_eq!(start("sendInitialEvents=true").unwrap_err().code, 422);
        assert_eq!(
            start("resourceVersionMatch=NotOlderThan").unwrap_err().code,
            422
        );
        assert_eq!(start("resourceVersion=abc").unwrap_err().code, 400);
    }
}
