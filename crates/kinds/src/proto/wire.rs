//! Reader of the protobuf wire format.

use super::{ProtoError, Result, malformed};

/// Payload of a field, after its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// Reads the fields of one message.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn varint(&mut self) -> Result<u64> {
        let mut out = 0_u64;
        for (i, b) in self.rest.iter().enumerate().take(10) {
            out |= u64::from(b & 0x7f).checked_shl(7 * i as u32).unwrap_or(0);
            if b & 0x80 == 0 {
                self.rest = self.rest.get(i + 1..).unwrap_or(&[]);
                return Ok(out);
            }
        }
        malformed("a varint does not end")
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(n) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => malformed(format!("{n} bytes announced, {} left", self.rest.len())),
        }
    }

    /// Reads the next field number and payload, `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Payload<'a>)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3)
            .map_err(|_| ProtoError::Malformed("a field number is too large".to_owned()))?;
        let payload = match tag & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => {
                let b: [u8; 8] = self.take(8)?.try_into().unwrap_or_default();
                Payload::Fixed64(u64::from_le_bytes(b))
            }
            2 => {
                let n = self.varint()?;
                let n = usize::try_from(n).unwrap_or(usize::MAX);
                Payload::Bytes(self.take(n)?)
            }
            5 => {
                let b: [u8; 4] = self.take(4)?.try_into().unwrap_or_default();
                Payload::Fixed32(u32::from_le_bytes(b))
            }
            other => return malformed(format!("wire type {other} is not supported")),
        };
        Ok(Some((number, payload)))
    }

    /// Reads the next number of a packed list, `None` at the end.
    pub(super) fn packed(&mut self) -> Result<Option<u64>> {
        if self.rest.is_empty() {
            Ok(None)
        } else {
            self.varint().map(Some)
        }
    }
}
