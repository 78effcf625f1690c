//! Snapshots: all entries at one revision, in frames, with their count at the end.

use super::codec::{self, Decoder, Record};
use super::disk::{Disk, sync_dir};
use super::files::{FileKind, HEADER, Header};
use super::frame::{self, FrameRead};
use super::{Entry, Revision, StoreError};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// Payload bytes of one frame of a snapshot.
const FRAME_BYTES: usize = 1 << 20;

/// Writes `entries`, the state at `revision`, and returns the number of bytes. The file gets its name only
/// when it is complete and on the disk.
pub(super) fn write(
    dir: &Path,
    disk: &dyn Disk,
    revision: Revision,
    entries: &[Arc<Entry>],
) -> Result<u64, StoreError> {
    let path = FileKind::Snapshot.path(dir, revision);
    let unfinished = path.with_extension("tmp");
    let result = write_file(&unfinished, disk, revision, entries).and_then(|written| {
        std::fs::rename(&unfinished, &path)?;
        sync_dir(dir)?;
        Ok(written)
    });
    result.map_err(|source| {
        let _ = std::fs::remove_file(&unfinished);
        StoreError::io("write snapshot", &path, source)
    })
}

/// Writes a snapshot file and returns its length in bytes.
fn write_file(
    path: &Path,
    disk: &dyn Disk,
    revision: Revision,
    entries: &[Arc<Entry>],
) -> io::Result<u64> {
    let mut file = disk.create(path)?;
    let header = Header {
        revision,
        previous: 0,
        previous_length: 0,
    };
    file.append(&header.encode(FileKind::Snapshot))?;
    let mut written = HEADER as u64;
    let mut buffer = Vec::new();
    frame::begin(&mut buffer);
    for entry in entries {
        codec::encode_entry(&mut buffer, entry);
        if buffer.len() >= FRAME_BYTES {
            frame::finish(&mut buffer, revision);
            file.append(&buffer)?;
            written += buffer.len() as u64;
            frame::begin(&mut buffer);
        }
    }
    frame::finish(&mut buffer, revision);
    file.append(&buffer)?;
    written += buffer.len() as u64;
    // The last frame has revision 0, which no other has, and contains the count.
    frame::begin(&mut buffer);
    buffer.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    frame::finish(&mut buffer, 0);
    file.append(&buffer)?;
    file.sync()?;
    Ok(written + buffer.len() as u64)
}

/// Calls `each` for every entry of the snapshot at `path`.
pub(super) fn load(
    path: &Path,
    decoder: &mut Decoder,
    mut each: impl FnMut(Entry),
) -> Result<(), StoreError> {
    let unreadable = |source| StoreError::io("read", path, source);
    let corrupt = |offset, reason: &str| StoreError::Corrupt {
        path: path.to_owned(),
        offset,
        reason: reason.to_owned(),
    };
    let mut input = BufReader::with_capacity(1 << 18, File::open(path).map_err(unreadable)?);
    let mut header = Vec::with_capacity(HEADER);
    input
        .by_ref()
        .take(HEADER as u64)
        .read_to_end(&mut header)
        .map_err(unreadable)?;
    let header =
        Header::decode(FileKind::Snapshot, &header).map_err(|reason| corrupt(0, reason))?;
    let mut offset = HEADER as u64;
    let mut payload = Vec::new();
    let mut count = 0u64;
    loop {
        match frame::read(&mut input, &mut payload).map_err(unreadable)? {
            FrameRead::Frame(0) => {
                return if payload == count.to_le_bytes() {
                    Ok(())
                } else {
                    Err(corrupt(
                        offset,
                        "number of entries differs from the count at its end",
                    ))
                };
            }
            FrameRead::Frame(_) => decoder
                .decode(&payload, |record| match record {
                    Record::Put(entry) if entry.revision <= header.revision => {
                        count += 1;
                        each(entry);
                        Ok(())
                    }
                    Record::Put(_) => Err("entry is newer than the snapshot"),
                    Record::Delete { .. } => Err("removal in a snapshot"),
                })
                .map_err(|reason| corrupt(offset, reason))?,
            FrameRead::End => return Err(corrupt(offset, "snapshot ends early")),
            FrameRead::Damaged(reason) => return Err(corrupt(offset, reason)),
        }
        offset += (frame::HEAD + payload.len()) as u64;
    }
}
