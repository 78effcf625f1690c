//! Paging through the audit log, newest first: records in memory and in files, merged by time.

use super::Entry;
use super::files::ReverseReader;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time after its last use at which a page token expires.
const LIFE: Duration = Duration::from_secs(600);

/// An unknown, expired or displaced page token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pageToken {0:?} is unknown or expired")]
pub struct UnknownToken(pub String);

/// A page of records, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The records, as JSON objects.
    pub events: Vec<Value>,
    /// Token of the next page; `None` at the end.
    pub next: Option<String>,
}

/// Position in the log as of the first page.
#[derive(Debug)]
pub(super) struct Cursor {
    memory: VecDeque<Arc<Entry>>,
    files: ReverseReader,
    /// The newest record of the files that was not returned yet.
    line: Option<(Timestamp, Value)>,
}

impl Cursor {
    /// Creates a cursor over `memory`, oldest first, and `files`.
    pub(super) fn new(memory: VecDeque<Arc<Entry>>, files: ReverseReader) -> Self {
        let mut cursor = Self {
            memory,
            files,
            line: None,
        };
        cursor.advance();
        cursor
    }

    /// Reads the next line that is a record.
    fn advance(&mut self) {
        self.line = None;
        while let Some(line) = self.files.line() {
            let Ok(value) = serde_json::from_slice::<Value>(&line) else {
                continue;
            };
            let time = value["createdAt"]
                .as_str()
                .and_then(|time| time.parse().ok());
            if let Some(time) = time {
                self.line = Some((time, value));
                return;
            }
        }
    }

    fn next(&mut self) -> Option<Value> {
        let memory = self.memory.back().map(|entry| entry.created_at);
        let in_file = match (&self.line, memory) {
            (Some((line, _)), Some(memory)) => *line > memory,
            (line, _) => line.is_some(),
        };
        if in_file {
            let (_, value) = self.line.take()?;
            self.advance();
            return Some(value);
        }
        let entry = self.memory.pop_back()?;
        serde_json::to_value(&*entry).ok()
    }

    fn is_at_end(&self) -> bool {
        self.line.is_none() && self.memory.is_empty()
    }
}

#[derive(Debug)]
struct PageReader {
    token: String,
    used: Instant,
    cursor: Arc<Mutex<Cursor>>,
}

/// Readers that may request further pages, by token.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<VecDeque<PageReader>>);

impl Readers {
    /// Returns the first `size` records from `cursor`, which is stored if there are more; beyond `most`
    /// readers the oldest is dropped.
    pub(super) fn first_page(&self, cursor: Cursor, size: usize, most: usize) -> Page {
        let cursor = Arc::new(Mutex::new(cursor));
        let (events, end) = read(&cursor, size);
        let next = (!end).then(|| {
            let token = token();
            let mut readers = self.0.lock();
            readers.push_back(PageReader {
                token: token.clone(),
                used: Instant::now(),
                cursor,
            });
            while readers.len() > most.max(1) {
                readers.pop_front();
            }
            token
        });
        Page { events, next }
    }

    /// Returns the next `size` records for the reader with `token`.
    pub(super) fn next_page(&self, token: &str, size: usize) -> Result<Page, UnknownToken> {
        self.expire();
        let cursor = {
            let mut readers = self.0.lock();
            let reader = readers.iter_mut().find(|reader| reader.token == token);
            let reader = reader.ok_or_else(|| UnknownToken(token.to_owned()))?;
            reader.used = Instant::now();
            reader.cursor.clone()
        };
        let (events, end) = read(&cursor, size);
        if end {
            self.0.lock().retain(|reader| reader.token != token);
        }
        let next = (!end).then(|| token.to_owned());
        Ok(Page { events, next })
    }

    /// Drops expired readers, and with them their open files.
    pub(super) fn expire(&self) {
        self.0.lock().retain(|reader| reader.used.elapsed() <= LIFE);
    }
}

fn read(cursor: &Mutex<Cursor>, size: usize) -> (Vec<Value>, bool) {
    let mut cursor = cursor.lock();
    let mut events = Vec::new();
    while events.len() < size
        && let Some(event) = cursor.next()
    {
        events.push(event);
    }
    (events, cursor.is_at_end())
}

/// Returns a random token, so that no client continues another's pages by accident.
fn token() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
