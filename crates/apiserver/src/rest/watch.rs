//! WATCH: a stream of events.

use super::accept::{NegotiatedFormat, only_protobuf};
use super::call::Call;
use super::query::Query;
use super::selection::Selection;
use super::watch_format::{Chunk, Format, SelectedEvent};
use super::{Api, list, respond, transform};
use crate::store::{
    Entry, Event, EventKind, QueueCharge, QueueStage, Revision, StoreError, Watcher,
};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use koord_kinds::Resource;
use koord_kinds::proto::ProtoError;
use koord_kinds::status::{ApiError, FieldError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Interval of bookmarks of an idle watch.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Time between the last bookmark of a watch and its end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Duration of watches without a timeout, in seconds; up to as much again is added at random.
const DEFAULT_TIMEOUT: u64 = 1800;
/// Size in bytes up to which events that are ready at once share a chunk.
const CHUNK: usize = 64 * 1024;

/// Start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartPoint {
    /// All objects as ADDED, then changes.
    State,
    /// All objects as ADDED, the bookmark that ends them, then changes.
    StateThenBookmark,
    /// Changes after this revision.
    After(Revision),
}

/// Options of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WatchOptions {
    start: StartPoint,
    bookmarks: bool,
    timeout: Duration,
}

/// Parses the options of a watch: start, bookmarks and timeout.
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
        (Some(true), _) if bookmarks => StartPoint::StateThenBookmark,
        (Some(true), _) => StartPoint::State,
        (_, None | Some(0)) => StartPoint::State,
        (_, Some(v)) => StartPoint::After(v),
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

/// Translates a change into the event of a watcher whose selection is `matches`; `None` if it does not
/// concern it.
fn select_event(event: &Event, matches: impl Fn(&Entry) -> bool) -> Option<SelectedEvent> {
    let before = event.old.as_deref().is_some_and(&matches);
    match event.kind {
        EventKind::Delete => {
            // Without the previous version, the final state decides whether it was selected.
            let selected = if event.old.is_some() {
                before
            } else {
                matches(&event.new)
            };
            selected.then(|| SelectedEvent::Deleted(event.new.clone()))
        }
        EventKind::Put => match (before, matches(&event.new)) {
            (false, true) => Some(SelectedEvent::Added(event.new.clone())),
            (true, true) => Some(SelectedEvent::Modified(event.new.clone())),
            (true, false) => event
                .old
                .clone()
                .map(|old| SelectedEvent::Left(old, event.revision)),
            (false, false) => None,
        },
    }
}

/// A running watch.
struct WatchStream {
    format: Format,
    selection: Selection,
    initial: VecDeque<Arc<Entry>>,
    /// Charge of the bytes in `initial` and `ready` to the queues of the client.
    charge: Option<QueueCharge>,
    /// Revision of the end-of-initial-events bookmark to send after `initial`.
    end_bookmark: Option<Revision>,
    /// Encoded parts that were not sent yet.
    ready: VecDeque<Bytes>,
    watcher: Watcher,
    bookmarks: bool,
    next_bookmark: Instant,
    last_bookmark: Option<Instant>,
    deadline: Instant,
    finished: bool,
}

impl WatchStream {
    /// Returns the next part of the response; `None` ends it.
    async fn next_part(&mut self) -> Option<Result<Bytes, ProtoError>> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                if let Some(charge) = &mut self.charge {
                    charge.shrink(part.len());
                }
                return Some(Ok(part));
            }
            if self.finished {
                return None;
            }
            match self.chunk().await {
                Ok(chunk) => {
                    if let Some(charge) = &mut self.charge {
                        charge.grow(chunk.len());
                    }
                    self.ready = chunk.finish();
                }
                // An event that cannot be encoded ends the watch.
                Err(error) => {
                    self.finished = true;
                    return Some(Err(error));
                }
            }
        }
    }

    /// Returns the next chunk; an empty one when the watch has ended.
    async fn chunk(&mut self) -> Result<Chunk, ProtoError> {
        let mut out = Chunk::default();
        while let Some(entry) = self.initial.pop_front() {
            if let Some(charge) = &mut self.charge {
                charge.shrink(entry.bytes.len());
            }
            self.format.event(&mut out, &SelectedEvent::Added(entry))?;
            if out.len() >= CHUNK {
                return Ok(out);
            }
        }
        if let Some(revision) = self.end_bookmark.take() {
            self.format.bookmark(&mut out, revision, true)?;
        }
        if out.len() > 0 {
            return Ok(out);
        }
        loop {
            let wake = self.wake();
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(wake) => {
                    if self.on_time(&mut out)? {
                        return Ok(out);
                    }
                }
                next = self.watcher.next() => match next {
                    Ok(event) => {
                        self.take(&mut out, &event)?;
                        self.take_ready(&mut out)?;
                        if out.len() > 0 {
                            return Ok(out);
                        }
                    }
                    Err(lagged) => {
                        self.finished = true;
                        let error = ApiError::too_old(lagged.at, lagged.oldest);
                        self.format.error(&mut out, &error)?;
                        return Ok(out);
                    }
                },
            }
        }
    }

    fn take(&mut self, out: &mut Chunk, event: &Event) -> Result<(), ProtoError> {
        let selection = &self.selection;
        match select_event(event, |e| selection.matches(e)) {
            Some(selected) => self.format.event(out, &selected),
            None => Ok(()),
        }
    }

    /// Adds the events that are ready to the same chunk.
    fn take_ready(&mut self, out: &mut Chunk) -> Result<(), ProtoError> {
        while out.len() < CHUNK {
            match self.watcher.try_next() {
                Ok(Some(event)) => self.take(out, &event)?,
                // A lagging watcher reports it again at the next read.
                Ok(None) | Err(_) => break,
            }
        }
        Ok(())
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

    /// Handles a timer: true if `out` is to be sent, which is empty when the watch has ended.
    fn on_time(&mut self, out: &mut Chunk) -> Result<bool, ProtoError> {
        let now = Instant::now();
        if now >= self.deadline {
            self.finished = true;
            return Ok(true);
        }
        if !self.bookmarks {
            return Ok(false);
        }
        let mut due = now >= self.next_bookmark;
        if due {
            self.next_bookmark = now + BOOKMARK_EVERY;
        }
        if self.last_bookmark.is_some_and(|at| now >= at) {
            self.last_bookmark = None;
            due = true;
        }
        if due {
            let revision = self.watcher.progress();
            self.format.bookmark(out, revision, false)?;
        }
        Ok(due)
    }
}

/// Serves the WATCH of a collection or of one object.
pub(super) fn serve(
    api: &Api,
    resource: &Arc<Resource>,
    selection: Selection,
    call: &Call,
    negotiated: NegotiatedFormat,
) -> Result<Response, ApiError> {
    let options = options(&call.query, api.store().revision())?;
    let include = transform::include(&call.query)?;
    let binary = only_protobuf(&call.headers);
    let format = Format::new(api, resource, negotiated.form, include, binary);
    let mut initial = VecDeque::new();
    let from = match options.start {
        StartPoint::After(revision) => revision,
        StartPoint::State | StartPoint::StateThenBookmark => {
            let page = api
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
    let watcher = match api.store().watch_queued(
        &resource.table,
        from,
        selection.scope(),
        call.queues.as_ref(),
    ) {
        Ok(watcher) => watcher,
        // Clients detect an expired version only in the stream, not by the HTTP code.
        Err(StoreError::Expired { requested, oldest }) => {
            let mut out = Chunk::default();
            let written = format.error(&mut out, &ApiError::too_old(requested, oldest));
            written.map_err(|e| ApiError::internal(e.to_string()))?;
            let parts: Vec<Bytes> = out.finish().into();
            let body = Body::from(parts.concat());
            return Ok(respond::with_body(200, format.media(), body));
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
    let media = format.media();
    let charge = call.queues.as_ref().map(|queues| {
        let bytes = initial.iter().map(|entry| entry.bytes.len()).sum();
        queues.charge(QueueStage::Queued, bytes)
    });
    let stream = WatchStream {
        format,
        selection,
        initial,
        charge,
        ready: VecDeque::new(),
        end_bookmark: (options.start == StartPoint::StateThenBookmark).then_some(from),
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
    let shutdown = api.shutdown().clone();
    let parts = futures::stream::unfold(stream, move |mut stream| {
        let shutdown = shutdown.clone();
        async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => None,
                part = stream.next_part() => part.map(|part| (part, stream)),
            }
        }
    });
    Ok(respond::with_body(200, media, Body::from_stream(parts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_start_follows_query() {
        let start = |q: &str| options(&Query::parse(q).unwrap(), 100).map(|o| o.start);
        assert_eq!(start("").unwrap(), StartPoint::State);
        assert_eq!(start("resourceVersion=0").unwrap(), StartPoint::State);
        assert_eq!(start("resourceVersion=7").unwrap(), StartPoint::After(7));
        let stream = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(
            start(&format!(
                "{stream}&allowWatchBookmarks=true&resourceVersion=7"
            ))
            .unwrap(),
            StartPoint::StateThenBookmark
        );
        assert_eq!(start(stream).unwrap(), StartPoint::State);
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
