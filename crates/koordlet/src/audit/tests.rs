use super::*;
use prometheus::Registry;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

fn entry(message: &str) -> Entry {
    Entry::new(Subject::Node, 1, "r", message.to_owned())
}

fn time_at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn files(dir: &Path) -> Config {
    Config {
        dir: Some(dir.to_owned()),
        // So that all pages come from files.
        capacity: 1,
        ..Config::default()
    }
}

fn write(log: &Log, messages: impl Iterator<Item = u32>) {
    for n in messages {
        log.record(time_at(n.into()), entry(&format!("m{n}")));
    }
}

fn messages(page: &Page) -> Vec<String> {
    let message = |event: &Value| event["message"].as_str().unwrap().to_owned();
    page.events.iter().map(message).collect()
}

fn named(newest_first: impl Iterator<Item = u32>) -> Vec<String> {
    newest_first.map(|n| format!("m{n}")).collect()
}

/// Upstream's TestAuditorLogger: 26 events, pages of 10, 1 and 5.
#[test]
fn pages_go_back_in_time() {
    let dir = tempfile::tempdir().unwrap();
    for config in [files(dir.path()), Config::default()] {
        let log = Log::open(config);
        write(&log, 0..26);
        let first = log.page(None, 10).unwrap();
        assert_eq!(messages(&first), named((16..26).rev()));
        let second = log.page(first.next.as_deref(), 1).unwrap();
        assert_eq!(messages(&second), ["m15"]);
        let (mut next, mut rest) = (second.next, Vec::new());
        while let Some(token) = next {
            let page = log.page(Some(&token), 5).unwrap();
            rest.extend(messages(&page));
            next = page.next;
        }
        assert_eq!(rest, named((0..15).rev()));
    }
}

#[test]
fn the_end_has_no_token_even_when_the_page_is_full() {
    let log = Log::default();
    write(&log, 0..3);
    let page = log.page(None, 3).unwrap();
    assert_eq!((page.events.len(), page.next), (3, None));
    assert_eq!(Log::default().page(None, 3).unwrap().events.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn tokens_expire_ten_minutes_after_their_last_use() {
    let log = Log::default();
    write(&log, 0..26);
    let unknown = |token: &str| Err(UnknownToken(token.to_owned()));
    assert_eq!(log.page(Some("no-such"), 1), unknown("no-such"));
    let token = log.page(None, 1).unwrap().next.unwrap();
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(599)).await;
        assert!(log.page(Some(&token), 1).is_ok());
    }
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(log.page(Some(&token), 1), unknown(&token));
}

/// Upstream's TestAuditorLoggerMaxActiveReaders.
#[test]
fn the_oldest_reader_makes_room() {
    let log = Log::default();
    write(&log, 0..26);
    let tokens: Vec<_> = (0..9)
        .map(|_| log.page(None, 1).unwrap().next.unwrap())
        .collect();
    let alive = |token: &String| log.page(Some(token), 1).is_ok();
    assert_eq!(tokens.iter().filter(|token| alive(token)).count(), 4);
    assert!(tokens[5..].iter().all(alive));
}

/// Reads ten thousand events from several files that are written meanwhile.
#[test]
fn rotation_while_reading_loses_and_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(files(dir.path()));
    let padding = "x".repeat(1000);
    let record = |n: u32| log.record(time_at(n.into()), entry(&format!("m{n} {padding}")));
    (0..10_000).for_each(record);
    let first = log.page(None, 2048).unwrap();
    // Every file that is read now is renamed or removed meanwhile.
    (10_000..30_000).for_each(record);
    let (mut read, mut next) = (messages(&first), first.next);
    while let Some(token) = next {
        let page = log.page(Some(&token), 2048).unwrap();
        read.extend(messages(&page));
        next = page.next;
    }
    assert_eq!(read.len(), 10_000);
    for (message, n) in read.iter().zip((0..10_000).rev()) {
        assert!(message.starts_with(&format!("m{n} ")), "{n}: {message:.9}");
    }
}

#[test]
fn files_rotate_and_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(Config {
        max_disk_mib: 6,
        ..files(&dir.path().join("audit"))
    });
    let long = "x".repeat(300_000);
    for n in 0..40 {
        log.record(time_at(n), entry(&long));
    }
    log.flush();
    let all = fs::read_dir(dir.path().join("audit")).unwrap();
    let names: BTreeSet<_> = all
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        Vec::from_iter(names),
        [
            "audit-2023-11-14-22-13-50-0.log",
            "audit-2023-11-14-22-13-56-0.log",
            "audit.log"
        ],
        "2 MiB each, 6 MiB together"
    );
    let text = fs::read_to_string(dir.path().join("audit/audit.log")).unwrap();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["type"], "node");
    }
}

#[test]
fn records_of_the_run_before_are_paged_too() {
    let dir = tempfile::tempdir().unwrap();
    write(&Log::open(files(dir.path())), 0..5);
    let path = dir.path().join("audit.log");
    let mut text = fs::read_to_string(&path).unwrap();
    // A crash in the middle of a line.
    text.push_str("{\"createdAt\":\"2023-");
    fs::write(&path, text).unwrap();
    let log = Log::open(files(dir.path()));
    write(&log, 5..8);
    let page = log.page(None, 100).unwrap();
    assert_eq!(messages(&page), named((0..8).rev()));
}

#[test]
fn verbosity_drops_details() {
    let config = |verbose| Config {
        verbose,
        ..Config::default()
    };
    let kept_levels = |verbose| {
        let log = Log::open(config(verbose));
        for level in 0..6 {
            log.record(
                time_at(0),
                Entry {
                    level,
                    ..entry("m")
                },
            );
        }
        log.entries().len()
    };
    assert_eq!(kept_levels(2), 3);
    assert_eq!(kept_levels(0), 6, "0 keeps all");
}

#[test]
fn full_disk_is_logged_and_counted_and_loses_no_events() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let log = Log::open(Config {
        dir: Some(dir.path().to_owned()),
        ..Config::default()
    });
    let registry = Registry::new();
    let metrics = Metrics::new(&registry).unwrap();
    metrics.record_start("n1", 0);
    log.set_metrics(metrics);
    write(&log, 0..3);
    log.flush();
    // Still full a minute later: nothing new to report.
    write(&log, 61..63);
    log.flush();
    fs::remove_file(&path).unwrap();
    write(&log, 100..101);
    assert!(!path.exists(), "not tried again at once");
    write(&log, 130..132);
    log.flush();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("m130") && text.contains("m131"), "{text}");
    assert!(!text.contains("m100"), "{text}");
    let page = log.page(None, 100).unwrap();
    let all = [131, 130, 100, 62, 61, 2, 1, 0];
    assert_eq!(messages(&page), named(all.into_iter()));
    let text = koord_app::metrics::encode(&registry).unwrap();
    let count = r#"koordlet_failures_total{name="write",node="n1",part="audit"} 1"#;
    assert!(text.contains(count), "{text}");
}

#[test]
fn a_directory_that_cannot_be_made_is_no_reason_not_to_start() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let log = Log::open(files(&dir.path().join("file/audit")));
    write(&log, 0..1);
    assert_eq!(messages(&log.page(None, 1).unwrap()), ["m0"]);
}

#[test]
fn memory_keeps_the_newest() {
    let log = Log::open(Config {
        capacity: 2,
        ..Config::default()
    });
    write(&log, 0..5);
    let messages_kept = log.entries().into_iter().map(|entry| entry.message);
    assert_eq!(messages_kept.collect::<Vec<_>>(), ["m3", "m4"]);
}

/// Events that reached the file before it failed are not returned from memory a second time.
#[test]
fn a_failed_rotation_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("log"), dir.path().join("away"));
    let log = Log::open(Config {
        capacity: 100,
        ..files(&path)
    });
    write(&log, 0..3);
    log.flush();
    // Larger than a file may be, so the log must rotate, but the directory is missing.
    fs::rename(&path, &away).unwrap();
    log.record(time_at(3), entry(&"x".repeat(3 << 20)));
    fs::rename(&away, &path).unwrap();
    let page = messages(&log.page(None, 100).unwrap());
    assert!(page[0].starts_with('x'));
    assert_eq!(page[1..], ["m2", "m1", "m0"]);
}
