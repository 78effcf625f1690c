//! Binary encoding of changes and entries in the payload of a frame.
//!
//! A record is: kind, revision, table, namespace, name, and for a put also the revision of creation,
//! the place of the version digits, the index, and the object's bytes. Numbers are LEB128, texts and
//! bytes are preceded by their length. The index is stored so that the store needs no information
//! about resources when it loads.

use super::sequencer::Interner;
use super::{Entry, Event, EventKind, Index, Key, Revision, TableId};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::sync::Arc;

const PUT: u8 = 1;
const DELETE: u8 = 2;

type TextPair = (Arc<str>, Arc<str>);

/// A decoded record.
#[derive(Debug)]
pub(super) enum Record {
    Put(Entry),
    Delete {
        table: TableId,
        key: Key,
        revision: Revision,
    },
}

/// Appends the record of `event`.
pub(super) fn encode(out: &mut Vec<u8>, event: &Event) {
    match event.kind {
        EventKind::Put => encode_entry(out, &event.new),
        EventKind::Delete => encode_head(out, DELETE, &event.new),
    }
}

/// Appends the record of `entry` as a put.
pub(super) fn encode_entry(out: &mut Vec<u8>, entry: &Entry) {
    encode_head(out, PUT, entry);
    put_number(out, entry.created);
    put_number(out, u64::from(entry.version_at));
    let Index {
        uid,
        labels,
        fields,
        owners,
    } = &entry.index;
    put_bytes(out, uid.as_bytes());
    for pairs in [labels, fields] {
        put_number(out, pairs.len() as u64);
        for (key, value) in pairs {
            put_bytes(out, key.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    }
    put_number(out, owners.len() as u64);
    for owner in owners {
        put_bytes(out, owner.as_bytes());
    }
    put_bytes(out, &entry.bytes);
}

fn encode_head(out: &mut Vec<u8>, kind: u8, entry: &Entry) {
    out.push(kind);
    put_number(out, entry.revision);
    put_bytes(out, entry.table.as_str().as_bytes());
    put_bytes(out, entry.key.namespace.as_bytes());
    put_bytes(out, entry.key.name.as_bytes());
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Decodes payloads. Repeated strings share memory.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    interner: Interner,
    tables: FxHashMap<Arc<str>, TableId>,
}

impl Decoder {
    /// Calls `each` for every record of `payload`. Errors are the reason why it is invalid.
    pub(super) fn decode(
        &mut self,
        payload: &[u8],
        mut each: impl FnMut(Record) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let mut input = ByteReader(payload);
        while !input.0.is_empty() {
            each(self.record(&mut input)?)?;
        }
        Ok(())
    }

    /// Decodes a record.
    fn record(&mut self, input: &mut ByteReader<'_>) -> Result<Record, &'static str> {
        let kind = input.byte()?;
        let revision = input.number()?;
        let table = self.table(input.text()?);
        let namespace = self.interner.intern(input.text()?.into());
        let key = Key {
            namespace,
            name: input.text()?.into(),
        };
        match kind {
            DELETE => Ok(Record::Delete {
                table,
                key,
                revision,
            }),
            PUT => {
                let created = input.number()?;
                let version_at =
                    u32::try_from(input.number()?).map_err(|_| "version offset out of range")?;
                let index = self.index(input)?;
                let bytes = Bytes::copy_from_slice(input.bytes()?);
                let end = version_at as usize + super::stamp::digits(revision);
                if end > bytes.len() {
                    return Err("version offset beyond the object");
                }
                Ok(Record::Put(Entry {
                    table,
                    key,
                    revision,
                    created,
                    bytes,
                    index,
                    version_at,
                }))
            }
            _ => Err("unknown record kind"),
        }
    }

    fn table(&mut self, text: &str) -> TableId {
        if let Some(table) = self.tables.get(text) {
            return table.clone();
        }
        let table = TableId::from(text);
        self.tables.insert(text.into(), table.clone());
        table
    }

    fn index(&mut self, input: &mut ByteReader<'_>) -> Result<Index, &'static str> {
        let uid = input.text()?.into();
        let labels = self.pairs(input)?;
        let fields = self.pairs(input)?;
        let count = input.count()?;
        let mut owners = Vec::with_capacity(count);
        for _ in 0..count {
            owners.push(self.interner.intern(input.text()?.into()));
        }
        Ok(Index {
            uid,
            labels,
            fields,
            owners,
        })
    }

    fn pairs(&mut self, input: &mut ByteReader<'_>) -> Result<Vec<TextPair>, &'static str> {
        let count = input.count()?;
        let mut pairs = Vec::with_capacity(count);
        for _ in 0..count {
            let key = self.interner.intern(input.text()?.into());
            let value = self.interner.intern(input.text()?.into());
            pairs.push((key, value));
        }
        Ok(pairs)
    }
}

struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn byte(&mut self) -> Result<u8, &'static str> {
        let (&first, rest) = self.0.split_first().ok_or("record ends early")?;
        self.0 = rest;
        Ok(first)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("number is too long")
    }

    /// Reads a count of items that take at least a byte each.
    fn count(&mut self) -> Result<usize, &'static str> {
        let count = self.number()?;
        if count > self.0.len() as u64 {
            Err("count is too large")
        } else {
            Ok(count as usize)
        }
    }

    fn bytes(&mut self) -> Result<&'a [u8], &'static str> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, &'static str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "text is not UTF-8")
    }
}
