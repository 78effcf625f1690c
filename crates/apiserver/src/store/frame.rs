//! Frames: the checksummed units of log and snapshot files.
//!
//! A frame is a 24-byte head (magic, payload length, last revision in it, CRC of the payload, CRC of the
//! head) and the payload. One group commit is one frame, and the next is written only when this one is on the
//! disk. So a damaged frame with a valid one after it is damage to acknowledged data. The last frame of a log
//! may be torn: after a crash it may be too short, or have a part that was never written, which reads as
//! zeros. A complete one may have been acknowledged.

use super::Revision;
use std::io::{self, Read};

const MAGIC: [u8; 4] = *b"KFr1";
/// Size of the head of a frame in bytes.
pub(super) const HEAD: usize = 24;
/// Largest payload in bytes; a larger length is damage.
pub(super) const MAX_PAYLOAD: usize = 1 << 30;

/// Starts a frame in `out`: the payload is appended to it, then [`finish`] is called.
pub(super) fn begin(out: &mut Vec<u8>) {
    out.clear();
    out.resize(HEAD, 0);
}

/// Fills in the header of the frame in `out`: magic, length of the payload, revision and checksums.
pub(super) fn finish(out: &mut [u8], revision: Revision) {
    let (head, payload) = out.split_at_mut(HEAD);
    head[..4].copy_from_slice(&MAGIC);
    // Batches end long before 4 GiB.
    head[4..8].copy_from_slice(
        &u32::try_from(payload.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes(),
    );
    head[8..16].copy_from_slice(&revision.to_le_bytes());
    head[16..20].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let check = crc32fast::hash(&head[..20]).to_le_bytes();
    head[20..24].copy_from_slice(&check);
}

/// Parsed head of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) revision: Revision,
    crc: u32,
}

impl Head {
    /// Parses `bytes`; `None` if they are not the head of a frame.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD] = bytes.get(..HEAD)?.try_into().ok()?;
        let token =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if head[..4] != MAGIC || token(20) != crc32fast::hash(&head[..20]) {
            return None;
        }
        let length = token(4) as usize;
        let revision = u64::from(token(8)) | u64::from(token(12)) << 32;
        (length <= MAX_PAYLOAD).then_some(Self {
            length,
            revision,
            crc: token(16),
        })
    }
}

/// Result of reading a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameRead {
    /// A frame with this revision; its payload is in the buffer.
    Frame(Revision),
    /// The end of the file after a complete frame.
    End,
    /// Data that is not a complete frame.
    Damaged(&'static str),
}

/// Reads the frame at the reader's position into `payload`.
pub(super) fn read(input: &mut impl Read, payload: &mut Vec<u8>) -> io::Result<FrameRead> {
    payload.clear();
    let mut head = [0; HEAD];
    match read_full(input, &mut head)? {
        0 => return Ok(FrameRead::End),
        HEAD => {}
        _ => return Ok(FrameRead::Damaged("incomplete frame head")),
    }
    let Some(head) = Head::parse(&head) else {
        return Ok(FrameRead::Damaged("invalid frame head"));
    };
    let read = input.take(head.length as u64).read_to_end(payload)?;
    Ok(if read < head.length {
        FrameRead::Damaged("incomplete frame")
    } else if crc32fast::hash(payload) != head.crc {
        FrameRead::Damaged("frame checksum mismatch")
    } else {
        FrameRead::Frame(head.revision)
    })
}

/// Returns the offset of the first frame head in `bytes` with a revision of at least `after`.
pub(super) fn find(bytes: &[u8], after: Revision) -> Option<usize> {
    bytes.windows(HEAD).position(|window| {
        window[..4] == MAGIC && Head::parse(window).is_some_and(|head| head.revision >= after)
    })
}

/// Returns true if a part of `tail`, read at `offset` of a file, was never written: it ends in a zero, which
/// no frame with a payload does, or one of its disk sectors is all zeros, which text never is.
pub(super) fn is_partly_unwritten(tail: &[u8], offset: u64) -> bool {
    const SECTOR: usize = 512;
    // Always less than a sector.
    let into = usize::try_from(offset % SECTOR as u64).unwrap_or(0);
    let aligned = tail.get((SECTOR - into) % SECTOR..).unwrap_or_default();
    tail.last() == Some(&0)
        || aligned
            .chunks_exact(SECTOR)
            .any(|sector| sector.iter().all(|byte| *byte == 0))
}

fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
