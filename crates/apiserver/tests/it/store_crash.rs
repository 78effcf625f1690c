//! Kills a process with SIGKILL while it writes, repeatedly, and checks the remaining data.

use koord_apiserver::store::{Index, Key, Store, StoreOptions, TableId};
use koord_app::Clock;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const DIR: &str = "KOORD_STORE_CRASH_DIR";
const CHILD: &str = "store_crash::writer_process";
const WRITERS: usize = 6;
/// Number of killed processes unless `KOORD_STORE_CRASHES` is set.
const ROUNDS: usize = 100;
/// Number of steps after which a writer removes an object that it created.
const KEPT: u64 = 3;

fn table() -> TableId {
    TableId::new("", "configmaps")
}

fn created(writer: usize, step: u64) -> Key {
    Key::new("default", format!("w{writer}-{step}"))
}

fn counter(writer: usize) -> Key {
    Key::new("default", format!("w{writer}"))
}

async fn open(dir: &Path) -> Store {
    let mut options = StoreOptions::dir(dir, Clock::system());
    // Small, so that kills also hit snapshots.
    options.snapshot_after_bytes = 30_000;
    Store::open(options).await.expect("open after a crash")
}

/// Prints a line per acknowledged write: operation, writer, step, revision. A line is one `write`, so a kill
/// cannot tear it.
fn acknowledge(what: &str, writer: usize, step: u64, revision: u64) {
    let line = format!("\n@ {what} {writer} {step} {revision} .\n");
    std::io::stdout()
        .write_all(line.as_bytes())
        .expect("the parent reads");
}

/// The process that is killed; does nothing when it is run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_process() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let store = open(Path::new(&dir)).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move { write(&store, writer).await })
        })
        .collect();
    for writer in writers {
        writer.await.expect("writes until killed");
    }
}

async fn write(store: &Store, writer: usize) {
    let object = |step: u64| json!({"metadata": {}, "step": step, "padding": "x".repeat(300)});
    let mut step = 0;
    if let Some(current) = store.get(&table(), &counter(writer)) {
        step = current.value()["step"].as_u64().unwrap();
    } else {
        store
            .create(table(), counter(writer), object(0), Index::default())
            .await
            .unwrap();
    }
    loop {
        step += 1;
        // After a crash the last step may be done already, only not acknowledged.
        if store.get(&table(), &created(writer, step)).is_none() {
            let key = created(writer, step);
            let entry = store
                .create(table(), key, object(step), Index::default())
                .await
                .unwrap();
            acknowledge("create", writer, step, entry.revision);
        }
        let updated = store.update(
            table(),
            counter(writer),
            None,
            object(step),
            Index::default(),
        );
        acknowledge("update", writer, step, updated.await.unwrap().revision);
        if let Some(old) = step.checked_sub(KEPT)
            && store.get(&table(), &created(writer, old)).is_some()
        {
            let entry = store
                .delete(table(), created(writer, old), None, None)
                .await
                .unwrap();
            acknowledge("delete", writer, old, entry.revision);
        }
    }
}

#[derive(Default)]
struct Acknowledged {
    created: BTreeSet<(usize, u64)>,
    deleted: BTreeSet<(usize, u64)>,
    counters: BTreeMap<usize, u64>,
    revisions: BTreeSet<u64>,
}

impl Acknowledged {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let ["@", what, writer, step, revision, "."] = words[..] else {
            return;
        };
        let writer = writer.parse().unwrap();
        let step = step.parse().unwrap();
        let fresh = self.revisions.insert(revision.parse().unwrap());
        assert!(fresh, "revision {revision} was used twice");
        match what {
            "create" => assert!(self.created.insert((writer, step))),
            "delete" => assert!(self.deleted.insert((writer, step))),
            _ => {
                self.counters.insert(writer, step);
            }
        }
    }

    /// Checks that the store has everything that was acknowledged, and at most one step more: the one whose
    /// acknowledgement the kill cut off. The next process continues from there, so that step counts from now
    /// on: a writer may be cut off in several rounds in a row.
    fn check(&mut self, store: &Store) {
        for (&writer, step) in &mut self.counters {
            let entry = store.get(&table(), &counter(writer)).expect("counter");
            let matches = entry.value()["step"].as_u64().unwrap();
            assert!(
                matches == *step || matches == *step + 1,
                "writer {writer}: {matches} after {step}"
            );
            *step = matches;
        }
        for &(writer, step) in &self.created {
            let present = store.get(&table(), &created(writer, step)).is_some();
            if self.deleted.contains(&(writer, step)) {
                assert!(!present, "w{writer}-{step} came back");
            } else if self
                .counters
                .get(&writer)
                .is_none_or(|now| step + KEPT > *now)
            {
                assert!(present, "w{writer}-{step} is lost");
            }
        }
        let newest = self.revisions.last().copied().unwrap_or(0);
        assert!(
            store.revision() >= newest,
            "revision went back to {}",
            store.revision()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut existing = Acknowledged::default();
    let mut snapshots = 0;
    let rounds = std::env::var("KOORD_STORE_CRASHES");
    let rounds = rounds.map_or(ROUNDS, |text| text.parse().expect("a number"));
    for round in 0..rounds {
        let lines = 1 + kill_after(round) % 9;
        let path = dir.path().to_owned();
        let (output, count) = tokio::task::spawn_blocking(move || run_child(&path, lines))
            .await
            .unwrap();
        assert!(
            count >= lines,
            "the child ended by itself after {count} lines"
        );
        let newest = existing.revisions.last().copied().unwrap_or(0);
        let before = existing.revisions.len();
        for line in output {
            existing.note(&line);
        }
        let first_new = existing.revisions.range(newest + 1..).count();
        assert_eq!(
            first_new,
            existing.revisions.len() - before,
            "an old revision was used again"
        );
        let store = open(dir.path()).await;
        existing.check(&store);
        // The revisions assigned by the parent count, too.
        let parent_key = Key::new("default", format!("parent-{round}"));
        let value: Value = json!({"metadata": {}});
        let entry = store
            .create(table(), parent_key, value, Index::default())
            .await
            .unwrap();
        assert!(existing.revisions.insert(entry.revision));
        store.close().await;
        snapshots += std::fs::read_dir(dir.path())
            .unwrap()
            .filter(|entry| {
                entry
                    .as_ref()
                    .unwrap()
                    .path()
                    .extension()
                    .is_some_and(|e| e == "db")
            })
            .count();
    }
    assert!(snapshots > 0, "no snapshot was ever written");
}

/// Returns where to kill: varying, but the same in every run.
fn kill_after(round: usize) -> usize {
    round.wrapping_mul(2_654_435_761) >> 7
}

/// Starts the child, kills it after a number of lines, returns all lines it wrote.
fn run_child(dir: &Path, lines: usize) -> (Vec<String>, usize) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = Vec::new();
    let mut count = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with("@ ") {
            count += 1;
        }
        output.push(line);
        if count == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    (output, count)
}
