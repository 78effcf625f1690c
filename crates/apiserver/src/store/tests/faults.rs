//! Failures of the disk.

use super::*;
use crate::store::disk::{Disk, LogFile, OsDisk};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

/// Files of the operating system on a simulated disk that can be full or fail to sync.
#[derive(Debug, Default)]
struct FaultSwitches {
    /// Free bytes.
    room: AtomicU64,
    sync_fails: AtomicBool,
    truncate_fails: AtomicBool,
    /// Blocks the next sync until the other end of this channel is dropped.
    slow: Mutex<Option<mpsc::Receiver<()>>>,
    /// Notifies that a slow sync has begun.
    syncing: AtomicBool,
}

#[derive(Debug)]
struct FaultyDisk(Arc<FaultSwitches>);

#[derive(Debug)]
struct FaultyFile(Box<dyn LogFile>, Arc<FaultSwitches>);

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(FaultyFile(
            OsDisk.create(path)?,
            Arc::clone(&self.0),
        )))
    }
}

impl LogFile for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let capacity = self.1.room.load(Ordering::Relaxed);
        let fits = bytes
            .len()
            .min(usize::try_from(capacity).unwrap_or(usize::MAX));
        self.0.append(&bytes[..fits])?;
        self.1.room.fetch_sub(fits as u64, Ordering::Relaxed);
        if fits < bytes.len() {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.1.sync_fails.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let slow = self.1.slow.lock().take();
        if let Some(released) = slow {
            self.1.syncing.store(true, Ordering::Release);
            // The channel's error is the expected signal.
            let _ = released.recv();
        }
        self.0.sync()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        if self.1.truncate_fails.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.truncate(length)
    }
}

fn faulty(dir: &Path) -> (StoreOptions, Arc<FaultSwitches>) {
    let switches = Arc::new(FaultSwitches::default());
    switches.room.store(u64::MAX, Ordering::Relaxed);
    let mut options = StoreOptions::dir(dir, Clock::system());
    options.disk = Arc::new(FaultyDisk(Arc::clone(&switches)));
    (options, switches)
}

async fn refused(store: &Store, name: &str) -> String {
    match store
        .create(pods(), key(name), object(name, 0), index(name))
        .await
    {
        Err(error @ StoreError::Io { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Fails writes at every amount of free space, then lets them succeed again, then kills the process.
#[tokio::test]
async fn full_disk_loses_nothing() {
    for truncate_fails in [false, true] {
        for capacity in (0..400).step_by(13) {
            let dir = tempfile::tempdir().unwrap();
            let (options, switches) = faulty(dir.path());
            switches
                .truncate_fails
                .store(truncate_fails, Ordering::Relaxed);
            let store = Store::open(options).await.unwrap();
            let mut watcher = store.watch(pods(), store.revision()).unwrap();
            let first = create(&store, "a", 1).await;
            switches.room.store(capacity, Ordering::Relaxed);
            let mut fitted = Vec::new();
            loop {
                let name = format!("fit{}", fitted.len());
                match store
                    .create(pods(), key(&name), object(&name, 0), index(&name))
                    .await
                {
                    Ok(entry) => fitted.push(entry),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
                        assert!(text.contains("no storage space"), "{text}");
                        break;
                    }
                }
            }
            refused(&store, "b").await;
            assert!(store.last_error().is_some());
            // Reads still work, and refused writes were never visible.
            assert_eq!(
                store.get(&pods(), &key("a")).unwrap().revision,
                first.revision
            );
            assert!(store.get(&pods(), &key("b")).is_none());
            let observed = std::iter::from_fn(|| watcher.try_next().unwrap()).count();
            assert_eq!(observed, 1 + fitted.len());

            switches.room.store(u64::MAX, Ordering::Relaxed);
            let later = create(&store, "c", 1).await;
            assert!(store.last_error().is_none());
            let existing = fitted
                .iter()
                .map(|entry| entry.revision)
                .chain([first.revision]);
            assert!(
                existing
                    .into_iter()
                    .all(|revision| revision < later.revision)
            );
            let before = contents(&store);

            // Killed here: only a copy of the files remains.
            let remaining = tempfile::tempdir().unwrap();
            for entry in std::fs::read_dir(dir.path()).unwrap() {
                let path = entry.unwrap().path();
                std::fs::copy(&path, remaining.path().join(path.file_name().unwrap())).unwrap();
            }
            let reopened = Store::open(StoreOptions::dir(remaining.path(), Clock::system()))
                .await
                .unwrap();
            assert_eq!(
                contents(&reopened),
                before,
                "room {capacity}, {truncate_fails}"
            );
            assert_eq!(reopened.revision(), later.revision);
            reopened.close().await;
            store.close().await;
        }
    }
}

#[tokio::test]
async fn a_failed_sync_refuses_the_write() {
    let dir = tempfile::tempdir().unwrap();
    let (options, switches) = faulty(dir.path());
    let store = Store::open(options).await.unwrap();
    create(&store, "a", 1).await;
    switches.sync_fails.store(true, Ordering::Relaxed);
    let text = refused(&store, "b").await;
    assert!(
        text.starts_with("failed to sync ") && text.contains("wal-"),
        "{text}"
    );
    // The next segment cannot be created either.
    let text = refused(&store, "b").await;
    assert!(text.starts_with("failed to create "), "{text}");
    switches.sync_fails.store(false, Ordering::Relaxed);
    create(&store, "b", 2).await;
    let before = contents(&store);
    store.close().await;
    let store = Store::open(StoreOptions::dir(dir.path(), Clock::system()))
        .await
        .unwrap();
    assert_eq!(contents(&store), before);
    store.close().await;
}

/// While a sync is slow, neither the writer nor readers see the write.
#[tokio::test]
async fn a_slow_sync_acknowledges_nothing_before_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (options, switches) = faulty(dir.path());
    let store = Store::open(options).await.unwrap();
    create(&store, "a", 1).await;
    let before = store.revision();
    let mut watcher = store.watch(pods(), before).unwrap();
    let (release, released) = mpsc::channel::<()>();
    *switches.slow.lock() = Some(released);
    let write = |name: &'static str| {
        let store = store.clone();
        tokio::spawn(async move {
            let created = store.create(pods(), key(name), object(name, 2), index(name));
            created.await.map(|entry| entry.revision)
        })
    };
    let first = write("b");
    while !switches.syncing.load(Ordering::Acquire) {
        tokio::task::yield_now().await;
    }
    // Queued behind it.
    let later = [write("c"), write("d")];
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!first.is_finished() && later.iter().all(|write| !write.is_finished()));
    assert_eq!(
        store.get(&pods(), &key("b")).map(|entry| entry.revision),
        None
    );
    assert_eq!(
        watcher.try_next().unwrap().map(|event| event.revision),
        None
    );
    assert_eq!(store.revision(), before);
    drop(release);
    let mut revisions = vec![first.await.unwrap().unwrap()];
    for write in later {
        revisions.push(write.await.unwrap().unwrap());
    }
    for expected in revisions {
        assert_eq!(watcher.next().await.unwrap().revision, expected);
    }
    assert_eq!(contents(&store).len(), 4);
    store.close().await;
}

#[tokio::test]
async fn a_failed_snapshot_keeps_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (options, switches) = faulty(dir.path());
    let store = Store::open(options).await.unwrap();
    create(&store, "a", 1).await;
    for capacity in [0, 60, 100] {
        switches.room.store(capacity, Ordering::Relaxed);
        assert!(store.snapshot().await.is_err());
        switches.room.store(u64::MAX, Ordering::Relaxed);
        update(&store, "a", i64::try_from(capacity).unwrap() + 2).await;
    }
    let before = contents(&store);
    store.close().await;
    let store = Store::open(StoreOptions::dir(dir.path(), Clock::system()))
        .await
        .unwrap();
    assert_eq!(contents(&store), before);
    store.snapshot().await.unwrap();
    store.close().await;
    let store = Store::open(StoreOptions::dir(dir.path(), Clock::system()))
        .await
        .unwrap();
    assert_eq!(contents(&store), before);
    store.close().await;
}
