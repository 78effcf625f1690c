//! Encoding of watch events. Encoded events are shared by all watches that send them in the same form.

use super::accept::{MetaVersion, ObjectForm};
use super::{Api, meta, transform};
use crate::store::{Entry, Revision};
use bytes::{BufMut, Bytes, BytesMut};
use koord_kinds::Resource;
use koord_kinds::proto::{self, ProtoError};
use koord_kinds::status::ApiError;
use koord_kinds::table::Include;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// Media type of watch events in protobuf.
const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// Annotation of the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// Length in bytes from which data is sent as it is; shorter data is copied into a shared part.
const SHARED: usize = 16 * 1024;
/// Most bytes of encoded events in the cache.
const CACHE_BYTES: usize = 8 << 20;

/// A change as a watcher with a selection receives it.
#[derive(Debug)]
pub(super) enum SelectedEvent {
    Added(Arc<Entry>),
    Modified(Arc<Entry>),
    /// The object was deleted.
    Deleted(Arc<Entry>),
    /// The object left the selection at this revision; holds its last state in the selection.
    Left(Arc<Entry>, Revision),
}

/// Data that a watch sends next, in parts.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    parts: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl Chunk {
    /// Returns the bytes of all parts.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn put(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.tail.put_slice(bytes);
    }

    fn put_shared(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED {
            return self.put(&bytes);
        }
        self.len += bytes.len();
        if !self.tail.is_empty() {
            self.parts.push_back(self.tail.split().freeze());
        }
        self.parts.push_back(bytes);
    }

    fn put_line(&mut self, kind: &str, object: Bytes) {
        self.put(b"{\"type\":\"");
        self.put(kind.as_bytes());
        self.put(b"\",\"object\":");
        self.put_shared(object);
        self.put(b"}\n");
    }

    /// Returns the parts in order.
    pub(super) fn finish(mut self) -> VecDeque<Bytes> {
        if !self.tail.is_empty() {
            self.parts.push_back(self.tail.freeze());
        }
        self.parts
    }
}

/// Cache of encoded events by everything that determines their bytes; the oldest are evicted first.
#[derive(Debug, Default)]
pub(super) struct EventCache(Mutex<CachedEvents>);

#[derive(Debug, Default)]
struct CachedEvents {
    /// Encoded events, each with its resource, so that no other resource gets the same address.
    events: FxHashMap<CacheKey, (Bytes, Arc<Resource>)>,
    order: VecDeque<CacheKey>,
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CacheKey {
    /// Address of the resource: group, version and, for a custom one, its definition.
    resource: usize,
    /// Revisions are unique in the store.
    revision: Revision,
    left: Option<Revision>,
    kind: &'static str,
    form: ObjectForm,
    include: u8,
    with_columns: bool,
    binary: bool,
    /// Second of encoding for Tables, which show ages; else 0.
    second: i64,
}

impl EventCache {
    fn get(&self, key: &CacheKey) -> Option<Bytes> {
        let cached = self.0.lock();
        cached.events.get(key).map(|(bytes, _)| bytes.clone())
    }

    fn insert(&self, key: CacheKey, bytes: Bytes, resource: Arc<Resource>) {
        let mut cached = self.0.lock();
        if bytes.len() > CACHE_BYTES || cached.events.contains_key(&key) {
            return;
        }
        cached.bytes += bytes.len();
        cached.order.push_back(key.clone());
        cached.events.insert(key, (bytes, resource));
        while cached.bytes > CACHE_BYTES {
            let Some(oldest) = cached.order.pop_front() else {
                return;
            };
            if let Some((bytes, _)) = cached.events.remove(&oldest) {
                cached.bytes -= bytes.len();
            }
        }
    }
}

/// Encoder of a watch's events.
pub(super) struct Format {
    api: Api,
    resource: Arc<Resource>,
    form: ObjectForm,
    include: Include,
    /// True if events are protobuf instead of lines of JSON.
    binary: bool,
    /// True if the columns were sent; later Tables omit them.
    columns_sent: bool,
}

impl Format {
    pub(super) fn new(
        api: &Api,
        resource: &Arc<Resource>,
        form: ObjectForm,
        include: Include,
        binary: bool,
    ) -> Self {
        Self {
            api: api.clone(),
            resource: resource.clone(),
            form,
            include,
            binary,
            columns_sent: false,
        }
    }

    /// Returns the content type.
    pub(super) fn media(&self) -> &'static str {
        if self.binary {
            STREAM
        } else {
            "application/json"
        }
    }

    /// Encodes a change.
    ///
    /// # Errors
    /// If the object has no protobuf form.
    pub(super) fn event(
        &mut self,
        out: &mut Chunk,
        selected: &SelectedEvent,
    ) -> Result<(), ProtoError> {
        let (kind, entry, left) = match selected {
            SelectedEvent::Added(e) => ("ADDED", e, None),
            SelectedEvent::Modified(e) => ("MODIFIED", e, None),
            SelectedEvent::Deleted(e) => ("DELETED", e, None),
            SelectedEvent::Left(e, at) => ("DELETED", e, Some(*at)),
        };
        let stored = || left.map_or_else(|| entry.bytes.clone(), |at| entry.bytes_at(at));
        if self.form == ObjectForm::Object && self.resource.reads_stored() && !self.binary {
            out.put_line(kind, stored());
            return Ok(());
        }
        let key = self.key(kind, entry.revision, left);
        let cache = self.api.written_events();
        let bytes = if let Some(bytes) = cache.get(&key) {
            bytes
        } else {
            let value: Value = serde_json::from_slice(&stored()).unwrap_or_default();
            let value = self.transformed(self.resource.from_storage(value));
            let bytes = self.written(kind, &value)?;
            cache.insert(key, bytes.clone(), self.resource.clone());
            bytes
        };
        self.columns_sent = true;
        out.put_shared(bytes);
        Ok(())
    }

    fn key(&self, kind: &'static str, revision: Revision, left: Option<Revision>) -> CacheKey {
        let table = matches!(self.form, ObjectForm::Table(_));
        let now = self.api.clock().now();
        CacheKey {
            resource: Arc::as_ptr(&self.resource).addr(),
            revision,
            left,
            kind,
            form: self.form,
            include: self.include as u8,
            with_columns: table && !self.columns_sent,
            binary: self.binary,
            second: if table { now.as_second() } else { 0 },
        }
    }

    fn written(&self, kind: &str, object: &Value) -> Result<Bytes, ProtoError> {
        if self.binary {
            return proto::encode_event(kind, object).map(Bytes::from);
        }
        let mut out = Chunk::default();
        out.put_line(kind, Bytes::from(object.to_string()));
        let parts: Vec<Bytes> = out.finish().into();
        Ok(Bytes::from(parts.concat()))
    }

    fn transformed(&self, value: Value) -> Value {
        match self.form {
            ObjectForm::Object => value,
            ObjectForm::Metadata(version) => transform::metadata_only(&value, version),
            ObjectForm::Table(version) => {
                let list = json!({ "resourceVersion": meta::resource_version(&value) });
                let now = self.api.clock().now();
                let items = [value];
                let mut table =
                    transform::table(&self.resource, &items, self.include, version, list, now);
                if self.columns_sent {
                    table["columnDefinitions"] = Value::Null;
                }
                table
            }
        }
    }

    /// Encodes a bookmark.
    ///
    /// # Errors
    /// If the kind has no protobuf form.
    pub(super) fn bookmark(
        &self,
        out: &mut Chunk,
        revision: Revision,
        end_of_initial: bool,
    ) -> Result<(), ProtoError> {
        let mut metadata = json!({
            "resourceVersion": revision.to_string(),
            "creationTimestamp": null,
        });
        if end_of_initial {
            metadata["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
        }
        let (kind, api_version) = match self.form {
            ObjectForm::Metadata(v) => ("PartialObjectMetadata", v.api_version().to_owned()),
            _ => (&*self.resource.kind, self.resource.api_version()),
        };
        let object = json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata });
        let object = match self.form {
            ObjectForm::Table(version) => table_bookmark(object, version, revision),
            _ => object,
        };
        out.put_shared(self.written("BOOKMARK", &object)?);
        Ok(())
    }

    /// Encodes an error, which ends the watch.
    ///
    /// # Errors
    /// Never for a Status.
    pub(super) fn error(&self, out: &mut Chunk, error: &ApiError) -> Result<(), ProtoError> {
        out.put_shared(self.written("ERROR", &error.to_value())?);
        Ok(())
    }
}

/// Builds a bookmark of a watch of Tables: an empty Table around the object.
fn table_bookmark(object: Value, version: MetaVersion, revision: Revision) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": version.api_version(),
        "metadata": { "resourceVersion": revision.to_string() },
        "columnDefinitions": [],
        "rows": [{ "cells": [], "object": object }],
    })
}
