//! Durability: restarts, torn tails at every byte, damage in the middle, a second process.

use super::*;
use crate::store::files::{FileKind, HEADER};
use std::collections::BTreeSet;
use std::path::Path;

async fn open(dir: &Path) -> Result<Store, StoreError> {
    Store::open(StoreOptions::dir(dir, Clock::system())).await
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut segments: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            FileKind::Segment
                .revision_of(path.file_name().unwrap().to_str().unwrap())
                .is_some()
        })
        .collect();
    segments.sort();
    segments
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[tokio::test]
async fn restart_restores_all_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let mut index = index("a");
    index.labels.push(("app".into(), "x".into()));
    index.fields.push(("spec.nodeName".into(), "n1".into()));
    index.owners.push("owner".into());
    let first = store
        .create(pods(), key("a"), object("a", "ü\"\n"), index.clone())
        .await
        .unwrap();
    create(&store, "b", 1).await;
    let second = update(&store, "b", 2).await;
    create(&store, "c", 1).await;
    delete(&store, "c").await;
    let before = contents(&store);
    let revision = store.revision();
    store.close().await;
    assert!(matches!(
        store
            .create(pods(), key("z"), object("z", 0), Index::default())
            .await,
        Err(StoreError::Closed)
    ));

    for snapshot in [false, true, false] {
        let store = open(dir.path()).await.unwrap();
        assert_eq!(contents(&store), before);
        assert!(store.revision() >= revision);
        let entry = store.get(&pods(), &key("a")).unwrap();
        assert_eq!(
            (&entry.index, entry.created, &entry.bytes),
            (&index, first.created, &first.bytes)
        );
        assert_eq!(
            store.get(&pods(), &key("b")).unwrap().created,
            second.created
        );
        if snapshot {
            store.snapshot().await.unwrap();
            assert_eq!(segments(dir.path()).len(), 1);
        }
        store.close().await;
    }
    let store = open(dir.path()).await.unwrap();
    assert!(create(&store, "d", 1).await.revision > revision);
    store.close().await;
    let store = open(dir.path()).await.unwrap();
    assert_eq!(contents(&store).len(), 3);
    store.close().await;
}

#[tokio::test]
async fn watch_continues_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let first = create(&store, "a", 1).await;
    update(&store, "a", 2).await;
    delete(&store, "a").await;
    store.close().await;
    let store = open(dir.path()).await.unwrap();
    let mut watcher = store.watch(pods(), first.revision).unwrap();
    assert_eq!(watcher.next().await.unwrap().kind, EventKind::Put);
    assert_eq!(watcher.next().await.unwrap().kind, EventKind::Delete);
    store.close().await;
}

/// Cuts the log at every byte of its last records, as a crash in the middle of a write does.
#[tokio::test]
async fn torn_tail_loses_only_the_torn_write() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let mut states = vec![(HEADER as u64, contents(&store))];
    for number in 0..4 {
        create(&store, &format!("p{number}"), number).await;
        let length = std::fs::metadata(&segments(dir.path())[0]).unwrap().len();
        states.push((length, contents(&store)));
    }
    delete(&store, "p0").await;
    let length = std::fs::metadata(&segments(dir.path())[0]).unwrap().len();
    states.push((length, contents(&store)));
    let newest = store.revision();

    for cut in 0..=length {
        let torn = tempfile::tempdir().unwrap();
        // The store is still open: this is the state after kill -9.
        copy(dir.path(), torn.path());
        let log = &segments(torn.path())[0];
        std::fs::OpenOptions::new()
            .write(true)
            .open(log)
            .unwrap()
            .set_len(cut)
            .unwrap();
        let reopened = open(torn.path()).await.unwrap();
        let total = states.iter().rposition(|(length, _)| *length <= cut);
        let expected = total.map_or(&states[0].1, |total| &states[total].1);
        assert_eq!(&contents(&reopened), expected, "cut at {cut}");
        let next = create(&reopened, "new", 0).await.revision;
        if total.is_some_and(|total| states[total].0 != cut) {
            assert!(
                next > newest,
                "revision {next} was used before the cut at {cut}"
            );
        }
        let after = contents(&reopened);
        reopened.close().await;
        let requeue = open(torn.path()).await.unwrap();
        assert_eq!(contents(&requeue), after);
        requeue.close().await;
    }
    store.close().await;
}

/// Writes three objects. Returns the files as a kill leaves them, where the last frame begins, and the
/// objects before it.
async fn killed(padding: usize) -> (tempfile::TempDir, u64, Vec<(TableId, Key, Revision, Value)>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let length = || std::fs::metadata(&segments(dir.path())[0]).unwrap().len();
    create(&store, "p0", 0).await;
    create(&store, "p1", 1).await;
    let (begin, before) = (length(), contents(&store));
    let object = object("p2", "x".repeat(padding));
    let created = store.create(pods(), key("p2"), object, index("p2"));
    created.await.unwrap();
    let remaining = tempfile::tempdir().unwrap();
    copy(dir.path(), remaining.path());
    store.close().await;
    (remaining, begin, before)
}

/// Opens a copy of `dir` in which `change` was made to the log.
async fn open_changed(
    dir: &Path,
    change: impl FnOnce(&mut Vec<u8>),
) -> (tempfile::TempDir, Result<Store, StoreError>) {
    let changed = tempfile::tempdir().unwrap();
    copy(dir, changed.path());
    let log = &segments(changed.path())[0];
    let mut bytes = std::fs::read(log).unwrap();
    change(&mut bytes);
    std::fs::write(log, bytes).unwrap();
    let opened = open(changed.path()).await;
    (changed, opened)
}

#[tokio::test]
async fn a_flipped_byte_of_the_last_write_is_refused() {
    let (dir, begin, before) = killed(0).await;
    let length = std::fs::metadata(&segments(dir.path())[0]).unwrap().len();
    for at in begin..length {
        for flip in [0x01, 0x10, 0xff] {
            let (changed, opened) =
                open_changed(dir.path(), |bytes| bytes[at as usize] ^= flip).await;
            let error = opened.expect_err("damage went unnoticed");
            let text = error.to_string();
            let StoreError::Corrupt { path, offset, .. } = error else {
                panic!("byte {at}: {text}")
            };
            assert_eq!((&path, offset), (&segments(changed.path())[0], begin));
            for part in [
                path.to_str().unwrap(),
                &format!("at byte {begin}"),
                &format!("cut to {begin} bytes, the file opens without it"),
                "restore it from a backup",
            ] {
                assert!(text.contains(part), "{part:?} is missing: {text}");
            }
        }
    }
    // The remedy in the message works.
    let (_changed, opened) = open_changed(dir.path(), |bytes| bytes.truncate(begin as usize)).await;
    let store = opened.unwrap();
    assert_eq!(contents(&store), before);
    store.close().await;
}

#[tokio::test]
async fn an_unwritten_tail_costs_only_the_torn_write() {
    let (dir, begin, before) = killed(0).await;
    let length = std::fs::metadata(&segments(dir.path())[0]).unwrap().len();
    for cut in begin..length {
        let (_changed, opened) =
            open_changed(dir.path(), |bytes| bytes[cut as usize..].fill(0)).await;
        let store = opened.unwrap();
        assert_eq!(contents(&store), before, "zeros from byte {cut}");
        store.close().await;
    }
}

#[tokio::test]
async fn an_unwritten_sector_costs_only_the_torn_write() {
    let (dir, begin, before) = killed(4096).await;
    let length = std::fs::metadata(&segments(dir.path())[0]).unwrap().len();
    let sectors = begin.next_multiple_of(512)..=length - 512;
    for sector in sectors.step_by(512) {
        let at = sector as usize;
        let (_changed, opened) =
            open_changed(dir.path(), |bytes| bytes[at..at + 512].fill(0)).await;
        let store = opened.unwrap();
        assert_eq!(contents(&store), before, "sector at byte {sector}");
        store.close().await;
    }
}

/// Flips every byte of the log except those of the last frame: each flip must be detected.
#[tokio::test]
async fn damage_in_the_middle_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    for number in 0..3 {
        create(&store, &format!("p{number}"), number).await;
    }
    let length = std::fs::metadata(&segments(dir.path())[0]).unwrap().len();
    store.close().await;
    // The padding of the header has no meaning.
    let padding = 44..HEADER as u64;
    for at in (0..length).filter(|at| !padding.contains(at)) {
        let damaged = tempfile::tempdir().unwrap();
        copy(dir.path(), damaged.path());
        let log = &segments(damaged.path())[0];
        let mut bytes = std::fs::read(log).unwrap();
        bytes[at as usize] ^= 0x10;
        std::fs::write(log, bytes).unwrap();
        let error = open(damaged.path())
            .await
            .expect_err("damage went unnoticed");
        let text = error.to_string();
        let StoreError::Corrupt { path, .. } = error else {
            panic!("at {at}: {error}")
        };
        assert!(
            text.contains(path.to_str().unwrap()) && text.contains("corrupt at byte"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_missing_or_short_file_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    // Two segments: one per start.
    for name in ["a", "b"] {
        let store = open(dir.path()).await.unwrap();
        create(&store, name, 0).await;
        store.close().await;
    }
    assert_eq!(segments(dir.path()).len(), 2);
    let check = async |damage: &dyn Fn(&Path), reason: &str| {
        let damaged = tempfile::tempdir().unwrap();
        copy(dir.path(), damaged.path());
        damage(damaged.path());
        let error = open(damaged.path()).await.expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    };
    check(
        &|dir| std::fs::remove_file(&segments(dir)[0]).unwrap(),
        "missing",
    )
    .await;
    let shorten = |dir: &Path| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&segments(dir)[0])
            .unwrap();
        file.set_len(HEADER as u64).unwrap();
    };
    check(&shorten, "shorter than it had been").await;

    let store = open(dir.path()).await.unwrap();
    store.snapshot().await.unwrap();
    store.close().await;
    check(
        &|dir| std::fs::remove_file(&segments(dir)[0]).unwrap(),
        "missing",
    )
    .await;
    let snapshot = |dir: &Path| {
        let files = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        files
            .into_iter()
            .find(|path| path.extension().is_some_and(|e| e == "db"))
            .unwrap()
    };
    check(
        &|dir| {
            let path = snapshot(dir);
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
        },
        "corrupt",
    )
    .await;
}

#[tokio::test]
async fn data_directory_is_locked_by_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let error = open(dir.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }));
    let expected = format!("is in use by process {}", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
    store.close().await;
    open(dir.path()).await.unwrap().close().await;
}

/// A duplicate of the lock's descriptor, like a child's between fork and exec.
fn copy_of_lock(dir: &Path) -> std::os::fd::OwnedFd {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let lock = dir.join("lock").canonicalize().unwrap();
    let mut open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let matches = open.find(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == lock));
    let number = matches
        .unwrap()
        .file_name()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    pidfd_getfd(own, number, PidfdGetfdFlags::empty()).unwrap()
}

#[tokio::test]
async fn a_directory_is_released_although_a_child_is_being_started() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let _copy = copy_of_lock(dir.path());
    store.close().await;
    open(dir.path()).await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_share_syncs_and_get_distinct_revisions() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let tasks: Vec<_> = (0..32)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut revisions = Vec::new();
                for number in 0..20 {
                    let entry = create(&store, &format!("w{writer}-{number}"), number).await;
                    // Acknowledged writes are visible.
                    assert!(store.get(&pods(), &entry.key).is_some());
                    revisions.push(entry.revision);
                }
                revisions
            })
        })
        .collect();
    let mut revisions = BTreeSet::new();
    for task in tasks {
        revisions.extend(task.await.unwrap());
    }
    assert_eq!(revisions.len(), 640);
    let batches = store.metrics().batch_writes.get_sample_count();
    assert!(batches < 400, "{batches} batches for 640 writes");
    let before = contents(&store);
    store.close().await;
    let store = open(dir.path()).await.unwrap();
    assert_eq!(contents(&store), before);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_key_has_one_winner_per_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    create(&store, "counter", 0).await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut wins = 0;
                while wins < 10 {
                    let current = store.get(&pods(), &key("counter")).unwrap();
                    let next = current.value()["data"].as_i64().unwrap() + 1;
                    let at = Some(current.revision);
                    let object = object("counter", next);
                    match store
                        .update(pods(), key("counter"), at, object, index("counter"))
                        .await
                    {
                        Ok(_) => wins += 1,
                        Err(StoreError::Conflict { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(
        store.get(&pods(), &key("counter")).unwrap().value()["data"],
        json!(80)
    );
    store.close().await;
}

#[tokio::test]
async fn the_log_is_replaced_by_snapshots_as_it_grows() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::dir(dir.path(), Clock::system());
    options.snapshot_after_bytes = 20_000;
    options.durability = Durability::Os;
    let store = Store::open(options).await.unwrap();
    create(&store, "a", 0).await;
    let files = || -> Vec<_> {
        let all = std::fs::read_dir(dir.path()).unwrap();
        all.map(|entry| entry.unwrap().file_name()).collect()
    };
    let first = files();
    let mut data = 0;
    // A snapshot is written in parallel to the log, at the disk's speed.
    while store.metrics().snapshots.get() < 3 {
        data += 1;
        update(&store, "a", data).await;
        assert!(data < 1_000_000, "no snapshot");
    }
    store.close().await;
    let last = files();
    let removed = first.iter().filter(|name| !last.contains(name)).count();
    assert!(removed > 0 && last.len() <= 4, "{first:?}, then {last:?}");
    let store = open(dir.path()).await.unwrap();
    assert_eq!(
        store.get(&pods(), &key("a")).unwrap().value()["data"],
        json!(data)
    );
    store.close().await;
}
