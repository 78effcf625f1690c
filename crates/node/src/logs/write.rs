//! Writer of container logs.

use super::{Logs, Progress, rotated};
use jiff::Timestamp;
use koord_app::Clock;
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

/// Maximum size of a piece of a line, as in other container runtimes.
const MAX_PIECE: usize = 16 * 1024;

/// The log of one start of a container. Clones write to the same file. Closed when the last clone
/// is dropped.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter(Arc<Mutex<LogFile>>);

#[derive(Debug)]
struct LogFile {
    logs: Logs,
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
    files: u32,
    rotations: u32,
    progress: watch::Sender<Progress>,
    /// True after a reported error until the next successful write.
    broken: bool,
    line: Vec<u8>,
}

impl LogWriter {
    pub(super) fn create(
        logs: Logs,
        path: PathBuf,
        limit: u64,
        files: u32,
        progress: watch::Sender<Progress>,
    ) -> io::Result<Self> {
        let file = File::create(&path)?;
        Ok(Self(Arc::new(Mutex::new(LogFile {
            logs,
            path,
            file,
            size: 0,
            limit: limit.max(1024),
            files: files.max(1),
            rotations: 0,
            progress,
            broken: false,
            line: Vec::new(),
        }))))
    }

    /// Appends one line or piece of a line. On a full disk lines are lost, with one warning, but the
    /// container is never blocked.
    pub(crate) fn write(&self, time: Timestamp, stream: &str, full: bool, content: &[u8]) {
        let mut inner = self.0.lock();
        match inner.append(time, stream, full, content) {
            Ok(()) => inner.broken = false,
            Err(error) => {
                if !inner.broken {
                    tracing::warn!(path = %inner.path.display(), %error, "failed to write a container log, dropping lines");
                }
                inner.broken = true;
            }
        }
    }
}

impl LogFile {
    fn append(
        &mut self,
        time: Timestamp,
        stream: &str,
        full: bool,
        content: &[u8],
    ) -> io::Result<()> {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        let tag = if full { 'F' } else { 'P' };
        write!(line, "{time:.9} {stream} {tag} ")?;
        line.extend_from_slice(content);
        line.push(b'\n');
        let result = self.append_line(&line);
        self.line = line;
        result
    }

    fn append_line(&mut self, line: &[u8]) -> io::Result<()> {
        let len = line.len() as u64;
        if self.size > 0 && self.size + len > self.limit {
            self.rotate()?;
        }
        // A file write goes to the page cache and is almost never slow enough to need another thread.
        self.file.write_all(line)?;
        self.size += len;
        let (size, rotations) = (len, self.rotations);
        self.progress.send_modify(|progress| {
            progress.bytes += size;
            progress.rotations = rotations;
        });
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        match fs::rename(&self.path, rotated(&self.path, self.rotations)) {
            // The file was renamed before, when there was no space for the new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        self.file = File::create(&self.path)?;
        self.size = 0;
        self.rotations += 1;
        if let Some(oldest) = self.rotations.checked_sub(self.files) {
            match fs::remove_file(rotated(&self.path, oldest)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.progress.send_modify(|progress| progress.closed = true);
        self.logs.close(&self.path);
    }
}

/// Copies a container's output on `stream` into its log, until end of file.
pub(crate) async fn pump(
    mut source: impl AsyncRead + Unpin,
    stream: &'static str,
    log: LogWriter,
    clock: Clock,
) {
    let mut buffer = vec![0; MAX_PIECE];
    let mut filled = 0;
    loop {
        let count = match source.read(&mut buffer[filled..]).await {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::debug!(%error, stream, "container output ended");
                break;
            }
        };
        filled += count;
        let now = clock.now();
        let mut start = 0;
        while let Some(end) = buffer[start..filled].iter().position(|byte| *byte == b'\n') {
            log.write(now, stream, true, &buffer[start..start + end]);
            start += end + 1;
        }
        if start == 0 && filled == buffer.len() {
            log.write(now, stream, false, &buffer);
            start = filled;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
    if filled > 0 {
        log.write(clock.now(), stream, true, &buffer[..filled]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LogKey, LogOptions, Logs};
    use super::*;
    use futures::StreamExt;

    fn key() -> LogKey {
        LogKey {
            namespace: "n".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "c".into(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    async fn read(logs: &Logs, options: LogOptions) -> String {
        let stream = logs.open("n", "p", "c", options).await.unwrap();
        let chunks: Vec<_> = stream.collect().await;
        chunks
            .into_iter()
            .map(|chunk| String::from_utf8(chunk.unwrap().to_vec()).unwrap())
            .collect()
    }

    #[tokio::test]
    async fn cri_lines_and_pieces() {
        let temp = tempfile::tempdir().unwrap();
        let logs = Logs::new(temp.path());
        let log = logs.create(&key(), 0, 1 << 20, 5).unwrap();
        let clock = Clock::following_tokio(at(5));
        let long = "x".repeat(MAX_PIECE + 10);
        let output = format!("one\n\n{long}\nlast");
        pump(output.as_bytes(), "stdout", log, clock).await;
        let file = fs::read_to_string(temp.path().join("logs/n_p_u/c/0.log")).unwrap();
        let lines: Vec<&str> = file.lines().collect();
        assert_eq!(
            lines[0].len(),
            "1970-01-01T00:00:05.000000000Z stdout F one".len()
        );
        assert!(lines[0].ends_with("Z stdout F one"), "{}", lines[0]);
        assert!(lines[1].ends_with(" stdout F "));
        assert!(lines[2].contains(" stdout P xxx"));
        assert_eq!(lines.len(), 5);
        assert_eq!(
            read(&logs, LogOptions::default()).await,
            format!("{output}\n")
        );
    }

    #[tokio::test]
    async fn rotation_keeps_the_youngest_files() {
        let temp = tempfile::tempdir().unwrap();
        let logs = Logs::new(temp.path());
        let log = logs.create(&key(), 0, 1024, 3).unwrap();
        for number in 0..200 {
            log.write(
                at(number),
                "stderr",
                true,
                format!("line {number}").as_bytes(),
            );
        }
        let dir = temp.path().join("logs/n_p_u/c");
        assert_eq!(fs::read_dir(dir).unwrap().count(), 3);
        let all = read(&logs, LogOptions::default()).await;
        assert!(all.ends_with("line 198\nline 199\n"));
        assert!(!all.starts_with("line 0\n"));
        let tail = LogOptions {
            tail_lines: Some(40),
            ..LogOptions::default()
        };
        let tail = read(&logs, tail).await;
        assert_eq!(
            (tail.lines().count(), tail.lines().next()),
            (40, Some("line 160"))
        );
    }

    #[tokio::test]
    async fn options_select_lines() {
        let temp = tempfile::tempdir().unwrap();
        let logs = Logs::new(temp.path());
        for attempt in 0..2 {
            let log = logs.create(&key(), attempt, 1 << 20, 5).unwrap();
            for second in 0..5 {
                let line = format!("start {attempt} second {second}");
                log.write(at(second), "stdout", true, line.as_bytes());
            }
        }
        let options = LogOptions {
            since_time: Some(at(3)),
            timestamps: true,
            ..Default::default()
        };
        let expected = "1970-01-01T00:00:03.000000000Z start 1 second 3\n\
                        1970-01-01T00:00:04.000000000Z start 1 second 4\n";
        assert_eq!(read(&logs, options).await, expected);
        let options = LogOptions {
            previous: true,
            tail_lines: Some(1),
            ..Default::default()
        };
        assert_eq!(read(&logs, options).await, "start 0 second 4\n");
        let options = LogOptions {
            limit_bytes: Some(7),
            ..Default::default()
        };
        assert_eq!(read(&logs, options).await, "start 1");
        let options = LogOptions {
            tail_lines: Some(0),
            ..Default::default()
        };
        assert_eq!(read(&logs, options).await, "");
        let missing = logs.open("n", "p", "zz", LogOptions::default()).await;
        assert!(missing.err().unwrap().contains("\"zz\""));
        assert!(
            logs.open("n", "p2", "c", LogOptions::default())
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn following_across_rotation_until_the_container_ends() {
        let temp = tempfile::tempdir().unwrap();
        let logs = Logs::new(temp.path());
        let log = logs.create(&key(), 0, 1024, 5).unwrap();
        log.write(at(0), "stdout", true, b"before");
        let options = LogOptions {
            follow: true,
            tail_lines: Some(0),
            ..Default::default()
        };
        let mut stream = logs.open("n", "p", "c", options).await.unwrap();
        let writing = tokio::spawn(async move {
            for number in 0..60 {
                log.write(
                    at(number),
                    "stdout",
                    true,
                    format!("line {number}").as_bytes(),
                );
                tokio::task::yield_now().await;
            }
        });
        let mut text = String::new();
        while let Some(chunk) = stream.next().await {
            text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
        writing.await.unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            (lines.len(), lines.first(), lines.last()),
            (60, Some(&"line 0"), Some(&"line 59"))
        );
    }
}
