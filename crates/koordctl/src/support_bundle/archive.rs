//! The files of a bundle, within limits, and their archive.

use super::redact::Redactor;
use crate::fetch::{name, text};
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;

/// Folder of all files in the archive.
const FOLDER: &str = "koord-support-bundle";
/// Largest number of bytes of a file.
const MAX_FILE: usize = 16 << 20;
/// Largest number of bytes of all files.
const MAX_TOTAL: usize = 192 << 20;

/// Limits of the bytes of a bundle.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizeLimits {
    pub(super) file: usize,
    pub(super) total: usize,
}

impl Default for SizeLimits {
    fn default() -> Self {
        Self {
            file: MAX_FILE,
            total: MAX_TOTAL,
        }
    }
}

/// Files by their path in the archive, each without secrets.
#[derive(Debug)]
pub(super) struct BundleFiles {
    redactor: Redactor,
    limits: SizeLimits,
    files: BTreeMap<String, Vec<u8>>,
    total: usize,
    /// Rows of the manifest, by path.
    listed: BTreeMap<String, Value>,
    /// What is left out because of a limit.
    left_out: Vec<String>,
}

impl BundleFiles {
    /// Creates an empty set of files.
    pub(super) const fn new(redactor: Redactor, limits: SizeLimits) -> Self {
        Self {
            redactor,
            limits,
            files: BTreeMap::new(),
            total: 0,
            listed: BTreeMap::new(),
            left_out: Vec::new(),
        }
    }

    /// Adds a text; of one that is too long the end.
    pub(super) fn add_text(&mut self, path: &str, text: &str) {
        let text = self.redactor.text(text);
        let kept = tail(&text, self.limits.file);
        if kept.len() < text.len() {
            self.left_out.push(format!(
                "{path}: the first {} bytes",
                text.len() - kept.len()
            ));
        }
        let kept = kept.as_bytes().to_vec();
        self.insert(path, kept, None);
    }

    /// Adds a JSON value.
    pub(super) fn add_value(&mut self, path: &str, value: &Value) {
        let mut value = value.clone();
        self.redactor.object(&mut value);
        let text = pretty(&value);
        if text.len() > self.limits.file {
            self.left_out.push(format!("{path}: {} bytes", text.len()));
            return;
        }
        self.insert(path, text, None);
    }

    /// Adds objects as a list, sorted by namespace and name; those that do not fit are left out.
    pub(super) fn add_objects(&mut self, path: &str, mut objects: Vec<Value>) {
        let key = |it: &Value| {
            (
                text(it, "/metadata/namespace").to_owned(),
                name(it).to_owned(),
            )
        };
        objects.sort_by_cached_key(key);
        let mut size = 0;
        let all = objects.len();
        let mut kept = Vec::new();
        for mut object in objects {
            self.redactor.object(&mut object);
            size += pretty(&object).len();
            if size > self.limits.file {
                break;
            }
            kept.push(object);
        }
        let count = kept.len();
        if count < all {
            self.left_out
                .push(format!("{path}: {} of {all} objects", all - count));
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": kept});
        self.insert(path, pretty(&list), Some(count));
    }

    fn insert(&mut self, path: &str, bytes: Vec<u8>, objects: Option<usize>) {
        if self.total + bytes.len() > self.limits.total {
            self.left_out.push(format!("{path}: {} bytes", bytes.len()));
            return;
        }
        self.total += bytes.len();
        let mut row = json!({"path": path, "bytes": bytes.len()});
        if let Some(objects) = objects {
            row["objects"] = json!(objects);
        }
        self.listed.insert(path.to_owned(), row);
        self.files.insert(path.to_owned(), bytes);
    }

    /// Records what the caller leaves out because of a limit.
    pub(super) fn leave_out(&mut self, what: String) {
        self.left_out.push(what);
    }

    /// Returns the number of files.
    pub(super) fn count(&self) -> usize {
        self.files.len()
    }

    /// Adds `manifest.json`, which is `manifest` with the list of files and of what is left out, and returns the
    /// compressed archive. The entries are sorted by path.
    ///
    /// # Errors
    /// Never happens: the archive is written to memory.
    pub(super) fn pack(mut self, mut manifest: Value, modified: Timestamp) -> io::Result<Vec<u8>> {
        manifest["files"] = self.listed.values().cloned().collect();
        manifest["leftOut"] = json!(self.left_out);
        self.redactor.object(&mut manifest);
        self.files
            .insert("manifest.json".to_owned(), pretty(&manifest));
        let encoder = GzEncoder::new(Vec::new(), Compression::default());
        let mut archive = tar::Builder::new(encoder);
        let seconds = u64::try_from(modified.as_second()).unwrap_or_default();
        for (path, bytes) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            header.set_mode(0o600);
            header.set_mtime(seconds);
            archive.append_data(&mut header, format!("{FOLDER}/{path}"), bytes.as_slice())?;
        }
        archive.into_inner()?.finish()
    }
}

/// Formats a value for readers. A value without maps of other keys than texts can always be written.
fn pretty(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Returns the last lines of `text` that fit into `limit` bytes.
fn tail(text: &str, limit: usize) -> &str {
    let Some(excess) = text.len().checked_sub(limit).filter(|excess| *excess > 0) else {
        return text;
    };
    let line = text.as_bytes()[excess - 1..]
        .iter()
        .position(|byte| *byte == b'\n');
    let start = line.map_or(text.len(), |line| excess + line);
    text.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read as _;

    fn files(file: usize, total: usize) -> BundleFiles {
        BundleFiles::new(Redactor::new().unwrap(), SizeLimits { file, total })
    }

    fn object(name: &str) -> Value {
        json!({"metadata": {"name": name}, "text": "x".repeat(100)})
    }

    fn unpack(archive: &[u8]) -> Vec<(String, String, u32)> {
        let mut archive = tar::Archive::new(GzDecoder::new(archive));
        let entries = archive.entries().unwrap();
        entries
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                let path = entry.path().unwrap().display().to_string();
                (path, text, entry.header().mode().unwrap())
            })
            .collect()
    }

    #[test]
    fn same_content_gives_the_same_bytes() {
        let pack = |objects: Vec<Value>| {
            let mut files = files(10_000, 10_000);
            files.add_text("b.log", "line\n");
            files.add_objects("a.json", objects);
            files.pack(json!({}), Timestamp::UNIX_EPOCH).unwrap()
        };
        let archive = pack(vec![object("y"), object("x")]);
        assert_eq!(archive, pack(vec![object("x"), object("y")]));
        let entries = unpack(&archive);
        let paths: Vec<&str> = entries.iter().map(|(path, _, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            ["a.json", "b.log", "manifest.json"].map(|path| format!("{FOLDER}/{path}"))
        );
        assert!(entries.iter().all(|(_, _, mode)| *mode == 0o600));
        let manifest: Value = serde_json::from_str(&entries[2].1).unwrap();
        assert_eq!(manifest["files"][0]["objects"], 2);
    }

    #[test]
    fn limits_are_kept_and_listed() {
        let mut files = files(400, 900);
        files.add_objects("a.json", (0..5).map(|n| object(&n.to_string())).collect());
        files.add_text("b.log", &"0123456789\n".repeat(50));
        files.add_value("c.json", &json!("x".repeat(500)));
        files.add_text("d.log", &"y".repeat(399));
        assert_eq!(files.count(), 2);
        let archive = files.pack(json!({}), Timestamp::UNIX_EPOCH).unwrap();
        let entries = unpack(&archive);
        let manifest: Value = serde_json::from_str(&entries[2].1).unwrap();
        assert_eq!(
            manifest["leftOut"],
            json!([
                "a.json: 3 of 5 objects",
                "b.log: the first 154 bytes",
                "c.json: 503 bytes",
                "d.log: 399 bytes"
            ])
        );
    }

    #[test]
    fn tail_begins_at_a_line() {
        for (text, limit, expected) in [
            ("ab\ncd\n", 10, "ab\ncd\n"),
            ("ab\ncd\n", 6, "ab\ncd\n"),
            ("ab\ncd\n", 4, "cd\n"),
            ("ab\ncd\n", 3, "cd\n"),
            ("ab\ncd\n", 2, ""),
            ("äöü\nx", 2, "x"),
            ("abc", 1, ""),
        ] {
            assert_eq!(tail(text, limit), expected, "{text:?} {limit}");
        }
    }
}
