//! Serialization of objects with an insertion point for `metadata.resourceVersion`.
//!
//! The revision is known only in the writer's critical section; serializing there would make every writer
//! wait for all others. So an object is serialized before, and the critical section only copies the bytes
//! around the insertion point with the digits between them.

use super::Revision;
use bytes::Bytes;
use serde_json::Value;

/// A serialized object without the digits of its `metadata.resourceVersion`.
#[derive(Debug)]
pub(super) struct UnstampedObject {
    bytes: Vec<u8>,
    hole: usize,
}

impl UnstampedObject {
    /// Serializes `value`; its `metadata.resourceVersion` is ignored. `None` if `value` or its `metadata` is
    /// not an object.
    pub(super) fn new(value: &Value) -> Option<Self> {
        let object = value.as_object()?;
        let mut bytes = Vec::with_capacity(1024);
        let mut hole = None;
        bytes.push(b'{');
        for (key, field) in object {
            if bytes.len() > 1 {
                bytes.push(b',');
            }
            write(&mut bytes, key)?;
            bytes.push(b':');
            if key == "metadata" {
                let metadata = field.as_object()?;
                bytes.extend_from_slice(b"{\"resourceVersion\":\"");
                hole = Some(bytes.len());
                bytes.push(b'"');
                for (key, field) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
                    bytes.push(b',');
                    write(&mut bytes, key)?;
                    bytes.push(b':');
                    write(&mut bytes, field)?;
                }
                bytes.push(b'}');
            } else {
                write(&mut bytes, field)?;
            }
        }
        let hole = match hole {
            Some(hole) => hole,
            None => {
                if bytes.len() > 1 {
                    bytes.push(b',');
                }
                bytes.extend_from_slice(b"\"metadata\":{\"resourceVersion\":\"");
                let hole = bytes.len();
                bytes.extend_from_slice(b"\"}");
                hole
            }
        };
        bytes.push(b'}');
        Some(Self { bytes, hole })
    }

    /// Returns the size in bytes without the revision.
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes before and after the insertion point.
    pub(super) fn halves(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.hole)
    }

    /// Returns the object with `revision` inserted, and the offset of its digits.
    pub(super) fn fill(&self, revision: Revision) -> (Bytes, u32) {
        let (before, after) = self.halves();
        join(before, revision, after)
    }
}

fn write<T: serde::Serialize + ?Sized>(bytes: &mut Vec<u8>, value: &T) -> Option<()> {
    serde_json::to_writer(bytes, value).ok()
}

/// Concatenates `before`, the digits of `revision` and `after`; also returns the offset of the digits.
pub(super) fn join(before: &[u8], revision: Revision, after: &[u8]) -> (Bytes, u32) {
    let mut bytes = Vec::with_capacity(before.len() + digits(revision) + after.len());
    bytes.extend_from_slice(before);
    let at = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut buffer = [0u8; 20];
    let mut start = buffer.len();
    let mut tail = revision;
    loop {
        start -= 1;
        buffer[start] = b'0' + (tail % 10) as u8;
        tail /= 10;
        if tail == 0 {
            break;
        }
    }
    bytes.extend_from_slice(&buffer[start..]);
    bytes.extend_from_slice(after);
    (bytes.into(), at)
}

/// Returns the number of decimal digits of `revision`.
pub(super) fn digits(revision: Revision) -> usize {
    revision.checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(value: Value, revision: Revision) {
        let (bytes, at) = UnstampedObject::new(&value).unwrap().fill(revision);
        let mut expected = value;
        if expected.get("metadata").is_none() {
            expected["metadata"] = json!({});
        }
        expected["metadata"]["resourceVersion"] = json!(revision.to_string());
        assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), expected);
        let at = at as usize;
        assert_eq!(
            &bytes[at..at + digits(revision)],
            revision.to_string().as_bytes()
        );
    }

    #[test]
    fn stamps_the_revision_and_keeps_the_rest() {
        for revision in [1, 9, 10, 999, 1000, u64::MAX] {
            check(
                json!({"kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}}}),
                revision,
            );
            check(
                json!({"metadata": {"resourceVersion": "12", "name": "\"}\u{1}"}, "z": [1]}),
                revision,
            );
            check(json!({"metadata": {}}), revision);
            check(json!({"kind": "Pod"}), revision);
            check(json!({}), revision);
        }
    }

    #[test]
    fn non_objects_are_refused() {
        assert!(UnstampedObject::new(&json!([])).is_none());
        assert!(UnstampedObject::new(&json!({"metadata": "x"})).is_none());
    }
}
