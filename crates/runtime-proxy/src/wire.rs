//! Protobuf messages that are changed in place: unchanged fields keep their bytes.
//!
//! Decoding and encoding with generated types would drop all fields that the definition does not have, and a
//! proxy is older than some kubelets. So a change is made to the encoded message: [`Message::parse`] splits
//! it into fields, the `set` functions replace single ones, and [`Message::encode`] joins them in their
//! order. A `set` to the current value changes nothing, not even an unusual encoding.
//!
//! Wire format: <https://protobuf.dev/programming-guides/encoding/>.

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint};

/// Maximum depth of nested groups, as in common decoders.
const DEPTH: usize = 100;

/// Reason why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The message ends inside a field.
    #[error("message truncated inside a field at byte {0}")]
    Truncated(usize),
    /// A field key is invalid.
    #[error("invalid field key {key} at byte {at}")]
    Key { key: u64, at: usize },
    /// Groups are nested deeper than the limit.
    #[error("groups are nested too deeply at byte {0}")]
    TooDeep(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireType {
    Varint,
    /// Text, bytes or a message.
    Sized,
    /// Fixed-size numbers and groups, which are never changed here.
    Other,
}

/// Encoded field: its key and its value.
#[derive(Debug, Clone)]
struct Field {
    number: u32,
    kind: WireType,
    bytes: Bytes,
    /// Offset in `bytes` of the value of a [`WireType::Varint`] or the content of a [`WireType::Sized`].
    content: usize,
}

impl Field {
    fn sized(number: u32, content: &[u8]) -> Self {
        let mut bytes = BytesMut::with_capacity(content.len() + 12);
        encode_varint(u64::from(number) << 3 | 2, &mut bytes);
        encode_varint(content.len() as u64, &mut bytes);
        let content_start = bytes.len();
        bytes.put_slice(content);
        Self {
            number,
            kind: WireType::Sized,
            bytes: bytes.freeze(),
            content: content_start,
        }
    }

    fn varint(number: u32, value: u64) -> Self {
        let mut bytes = BytesMut::with_capacity(16);
        encode_varint(u64::from(number) << 3, &mut bytes);
        let content_start = bytes.len();
        encode_varint(value, &mut bytes);
        Self {
            number,
            kind: WireType::Varint,
            bytes: bytes.freeze(),
            content: content_start,
        }
    }

    fn content(&self) -> Bytes {
        self.bytes.slice(self.content..)
    }

    fn value(&self) -> Option<u64> {
        decode_varint(&mut self.content()).ok()
    }
}

/// A message as a list of encoded fields.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    fields: Vec<Field>,
}

impl Message {
    pub(crate) fn parse(bytes: &Bytes) -> Result<Self, WireError> {
        let mut fields = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let start = at;
            let (number, kind, content) = skip(bytes, &mut at)?;
            fields.push(Field {
                number,
                kind,
                bytes: bytes.slice(start..at),
                content: content - start,
            });
        }
        Ok(Self { fields })
    }

    pub(crate) fn encode(&self) -> Bytes {
        let len = self.fields.iter().map(|field| field.bytes.len()).sum();
        let mut out = BytesMut::with_capacity(len);
        for field in &self.fields {
            out.put_slice(&field.bytes);
        }
        out.freeze()
    }

    /// Returns the index of the last occurrence of a field, which is the effective one of a single value.
    fn last(&self, number: u32, kind: WireType) -> Option<usize> {
        self.fields
            .iter()
            .rposition(|field| field.number == number && field.kind == kind)
    }

    /// Sets a number; 0 removes the field, as in proto3.
    pub(crate) fn set_int(&mut self, number: u32, value: i64) {
        // Negative numbers take ten bytes.
        let value = value.cast_unsigned();
        let index = self.last(number, WireType::Varint);
        let now = index.and_then(|index| self.fields.get(index)?.value());
        if now.unwrap_or_default() == value {
            return;
        }
        self.put(index, value == 0, Field::varint(number, value));
    }

    /// Sets a string; an empty one removes the field, as in proto3.
    pub(crate) fn set_text(&mut self, number: u32, value: &[u8]) {
        let index = self.last(number, WireType::Sized);
        let now = index.and_then(|index| Some(self.fields.get(index)?.content()));
        if now.unwrap_or_default() == value {
            return;
        }
        self.put(index, value.is_empty(), Field::sized(number, value));
    }

    /// Replaces the field at the index or appends `field`; with `remove`, removes all fields with its number
    /// and kind.
    fn put(&mut self, index: Option<usize>, remove: bool, field: Field) {
        if remove {
            self.fields
                .retain(|other| other.number != field.number || other.kind != field.kind);
        } else if let Some(place) = index.and_then(|index| self.fields.get_mut(index)) {
            *place = field;
        } else {
            self.fields.push(field);
        }
    }

    /// Changes an embedded message. Several occurrences are merged into one message, as decoders do. A
    /// missing one starts empty, and is added unless it stays empty.
    pub(crate) fn edit(
        &mut self,
        number: u32,
        change: impl FnOnce(&mut Message) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let is_same_field = |field: &Field| field.number == number && field.kind == WireType::Sized;
        let mut before = BytesMut::new();
        for field in self.fields.iter().filter(|field| is_same_field(field)) {
            before.put_slice(&field.content());
        }
        let before = before.freeze();
        let mut inner = Self::parse(&before)?;
        change(&mut inner)?;
        let after = inner.encode();
        if after == before {
            return Ok(());
        }
        let index = self.fields.iter().position(is_same_field);
        self.fields.retain(|field| !is_same_field(field));
        let index = index.unwrap_or(self.fields.len());
        self.fields.insert(index, Field::sized(number, &after));
        Ok(())
    }

    /// Changes the last entry whose field 1 is `key`, or appends one. `value` is its field 2: this is the
    /// form of map entries, and of the CRI's lists of keys and values.
    pub(crate) fn set_entry(
        &mut self,
        number: u32,
        key: &str,
        value: &[u8],
    ) -> Result<(), WireError> {
        for field in self.fields.iter_mut().rev() {
            if field.number != number || field.kind != WireType::Sized {
                continue;
            }
            let before = field.content();
            let mut entry = Self::parse(&before)?;
            if entry.text(1) != key.as_bytes() {
                continue;
            }
            if entry.text(2) != value {
                entry.set_text(2, value);
                *field = Field::sized(number, &entry.encode());
            }
            return Ok(());
        }
        let mut entry = Self::default();
        entry.set_text(1, key.as_bytes());
        entry.set_text(2, value);
        self.fields.push(Field::sized(number, &entry.encode()));
        Ok(())
    }

    fn text(&self, number: u32) -> Bytes {
        self.last(number, WireType::Sized)
            .and_then(|index| Some(self.fields.get(index)?.content()))
            .unwrap_or_default()
    }
}

fn varint(bytes: &Bytes, at: &mut usize) -> Result<u64, WireError> {
    let mut remaining = bytes.get(*at..).unwrap_or_default();
    let before = remaining.len();
    let value = decode_varint(&mut remaining).map_err(|_| WireError::Truncated(*at))?;
    *at += before - remaining.len();
    Ok(value)
}

/// Moves the offset `at` forward by `by` bytes.
///
/// # Errors
/// The message ends before.
fn advance(bytes: &Bytes, at: &mut usize, by: u64) -> Result<(), WireError> {
    let end = usize::try_from(by)
        .ok()
        .and_then(|by| at.checked_add(by))
        .filter(|end| *end <= bytes.len())
        .ok_or(WireError::Truncated(*at))?;
    *at = end;
    Ok(())
}

/// Skips the field at `at`; returns its number, its kind, and the offset of its content.
fn skip(bytes: &Bytes, at: &mut usize) -> Result<(u32, WireType, usize), WireError> {
    let mut groups: Vec<u32> = Vec::new();
    let mut first = None;
    loop {
        let start = *at;
        let key = varint(bytes, at)?;
        let invalid_key = WireError::Key { key, at: start };
        let number = u32::try_from(key >> 3)
            .ok()
            .filter(|number| (1..1 << 29).contains(number))
            .ok_or(invalid_key.clone())?;
        let mut content = *at;
        let kind = match key & 7 {
            0 => {
                varint(bytes, at)?;
                WireType::Varint
            }
            1 => {
                advance(bytes, at, 8)?;
                WireType::Other
            }
            2 => {
                let len = varint(bytes, at)?;
                content = *at;
                advance(bytes, at, len)?;
                WireType::Sized
            }
            3 => {
                if groups.len() == DEPTH {
                    return Err(WireError::TooDeep(start));
                }
                groups.push(number);
                WireType::Other
            }
            4 if groups.pop() == Some(number) => WireType::Other,
            5 => {
                advance(bytes, at, 4)?;
                WireType::Other
            }
            _ => return Err(invalid_key),
        };
        let first = *first.get_or_insert((number, kind, content));
        if groups.is_empty() {
            return Ok(first);
        }
    }
}

#[cfg(test)]
mod tests;
