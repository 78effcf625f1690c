//! Behavior of all stores, independent of the backing.

use super::*;
use crate::store::watch::Scope;
use futures::StreamExt as _;
use std::time::Duration;

#[tokio::test]
async fn stamps_revisions_and_checks_preconditions() {
    let store = memory().await;
    let first = create(&store, "a", 1).await;
    assert_eq!(first.created, first.revision);
    assert_eq!(
        first.value()["metadata"]["resourceVersion"],
        json!(first.revision.to_string())
    );
    let requeue = store
        .create(pods(), key("a"), object("a", 2), index("x"))
        .await;
    assert!(
        matches!(requeue, Err(StoreError::Exists { current }) if current.revision == first.revision)
    );

    let second = update(&store, "a", 2).await;
    assert_eq!(
        (second.created, second.revision),
        (first.revision, first.revision + 1)
    );
    let stale = Some(first.revision);
    let refused = store
        .update(pods(), key("a"), stale, object("a", 3), index("a"))
        .await;
    assert!(
        matches!(refused, Err(StoreError::Conflict { current }) if current.revision == second.revision)
    );
    let refused = store.delete(pods(), key("a"), stale, None).await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })));
    let refused = store.delete(pods(), key("a"), None, Some("other")).await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })));

    let last = store
        .delete(pods(), key("a"), Some(second.revision), Some("a"))
        .await
        .unwrap();
    assert_eq!(last.revision, second.revision + 1);
    assert_eq!(
        last.value()["metadata"]["resourceVersion"],
        json!(last.revision.to_string())
    );
    assert_eq!(last.value()["data"], json!(2));
    assert!(store.get(&pods(), &key("a")).is_none());
    assert!(matches!(
        store
            .update(pods(), key("a"), None, object("a", 3), index("a"))
            .await,
        Err(StoreError::NotFound { .. })
    ));
    assert_eq!(store.revision(), last.revision);
    assert!(matches!(
        store
            .create(pods(), key("b"), json!("text"), index("b"))
            .await,
        Err(StoreError::NotAnObject { .. })
    ));
}

#[tokio::test]
async fn equal_write_changes_nothing() {
    let store = memory().await;
    let first = create(&store, "a", 1).await;
    let unchanged = update(&store, "a", 1).await;
    assert!(Arc::ptr_eq(&first, &unchanged));
    assert_eq!(store.revision(), first.revision);
}

#[tokio::test]
async fn pages_of_one_list_are_of_one_revision() {
    let store = memory().await;
    for name in ["a", "b", "c", "d", "e"] {
        create(&store, name, 0).await;
    }
    let all = |_: &Entry| true;
    let first = store
        .list(&pods(), None, None, None, Some(2), &all)
        .unwrap();
    assert_eq!((names(&first), first.remaining), (vec!["a", "b"], Some(3)));
    delete(&store, "c").await;
    create(&store, "bb", 0).await;
    update(&store, "d", 1).await;
    let at = Some(first.revision);
    let second = store
        .list(&pods(), None, at, first.next.as_ref(), Some(2), &all)
        .unwrap();
    // Counted once, for the first page.
    assert_eq!((names(&second), second.remaining), (vec!["c", "d"], None));
    assert_eq!(second.items[1].value()["data"], json!(0));
    let third = store
        .list(&pods(), None, at, second.next.as_ref(), Some(2), &all)
        .unwrap();
    assert_eq!(
        (names(&third), &third.next, third.remaining),
        (vec!["e"], &None, None)
    );
    assert_eq!(
        names(&list(&store, None).unwrap()),
        ["a", "b", "bb", "d", "e"]
    );
    assert!(matches!(
        list(&store, Some(1_000_000)),
        Err(StoreError::Future { .. })
    ));
}

#[tokio::test]
async fn lists_a_namespace_in_order() {
    let store = memory().await;
    for (namespace, name) in [("b", "x"), ("a", "y"), ("ab", "z"), ("a", "x"), ("b", "a")] {
        let key = Key::new(namespace, name);
        store
            .create(pods(), key, object(name, 0), index(name))
            .await
            .unwrap();
    }
    let of = |namespace| {
        let page = store
            .list(&pods(), namespace, None, None, None, &|_| true)
            .unwrap();
        page.items
            .iter()
            .map(|entry| entry.key.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(of(None), ["a/x", "a/y", "ab/z", "b/a", "b/x"]);
    assert_eq!(of(Some("a")), ["a/x", "a/y"]);
    assert_eq!(of(Some("b")), ["b/a", "b/x"]);
    assert!(of(Some("c")).is_empty());
    let page = store
        .list(&pods(), Some("a"), None, None, Some(1), &|_| true)
        .unwrap();
    assert_eq!((names(&page), page.remaining), (vec!["x"], Some(1)));
}

#[tokio::test]
async fn watches_from_the_past_and_on() {
    let store = memory().await;
    let first = create(&store, "a", 1).await;
    update(&store, "a", 2).await;
    let mut watcher = store.watch(pods(), first.revision).unwrap();
    delete(&store, "a").await;
    let event = watcher.next().await.unwrap();
    assert_eq!(
        (event.kind, event.revision),
        (EventKind::Put, first.revision + 1)
    );
    assert_eq!(event.old.unwrap().value()["data"], json!(1));
    assert_eq!(event.new.value()["data"], json!(2));
    let event = watcher.next().await.unwrap();
    assert_eq!(
        (event.kind, event.revision),
        (EventKind::Delete, first.revision + 2)
    );
    assert!(watcher.try_next().unwrap().is_none());
    // A change elsewhere advances the progress without an event.
    store
        .create(
            TableId::new("", "nodes"),
            Key::cluster("n"),
            object("n", 0),
            index("n"),
        )
        .await
        .unwrap();
    assert!(watcher.try_next().unwrap().is_none());
    assert_eq!(watcher.progress(), store.revision());

    // A waiting watch is woken.
    let store2 = store.clone();
    let (event, _) = tokio::join!(watcher.next(), async move { create(&store2, "b", 1).await });
    assert_eq!(&*event.unwrap().new.key.name, "b");
}

#[tokio::test]
async fn scoped_watches_see_entering_and_leaving_objects() {
    let store = memory().await;
    let on = |node: &str| Index {
        uid: "u".into(),
        fields: vec![("spec.nodeName".into(), node.into())],
        ..Index::default()
    };
    let from = store.revision();
    let watch = |scope: Scope| store.watch_scoped(&pods(), from, scope).unwrap();
    let field = |node: &str| Some(("spec.nodeName".into(), node.into()));
    let mut live = [
        watch(Scope {
            field: field("n1"),
            ..Scope::default()
        }),
        watch(Scope {
            name: Some("a".into()),
            ..Scope::default()
        }),
        watch(Scope {
            namespace: Some("other".into()),
            ..Scope::default()
        }),
        watch(Scope {
            namespace: Some("default".into()),
            field: field("n2"),
            name: None,
        }),
    ];
    for watcher in &mut live {
        assert!(watcher.try_next().unwrap().is_none());
    }
    let put = async |name: &str, data: i64, node: &str| {
        let created = store
            .create(pods(), key(name), object(name, data), on(node))
            .await;
        if created.is_err() {
            store
                .update(pods(), key(name), None, object(name, data), on(node))
                .await
                .unwrap();
        }
    };
    put("a", 1, "").await;
    put("a", 2, "n1").await;
    put("b", 3, "n2").await;
    put("a", 4, "n2").await;
    let mut past = [
        watch(Scope {
            field: field("n1"),
            ..Scope::default()
        }),
        watch(Scope {
            name: Some("a".into()),
            ..Scope::default()
        }),
        watch(Scope {
            namespace: Some("other".into()),
            ..Scope::default()
        }),
        watch(Scope {
            namespace: Some("default".into()),
            field: field("n2"),
            name: None,
        }),
    ];
    for watchers in [&mut live, &mut past] {
        let received: Vec<Vec<Value>> = watchers
            .iter_mut()
            .map(|watcher| {
                std::iter::from_fn(|| watcher.try_next().unwrap())
                    .map(|event| event.new.value()["data"].clone())
                    .collect()
            })
            .collect();
        assert_eq!(
            received,
            [json!([2, 4]), json!([1, 2, 4]), json!([]), json!([3, 4])]
                .map(|v| v.as_array().unwrap().clone())
        );
    }
    assert_eq!(store.stats()[0].watchers, 8);
    drop((live, past));
    assert_eq!(store.stats()[0].watchers, 0);
}

#[tokio::test]
async fn a_slow_watcher_loses_nothing_while_the_history_lasts() {
    let store = memory().await;
    let mut watcher = store.watch(pods(), store.revision()).unwrap();
    assert!(watcher.try_next().unwrap().is_none());
    create(&store, "a", 0).await;
    for data in 1..5000 {
        update(&store, "a", data).await;
    }
    for data in 0..5000 {
        assert_eq!(
            watcher.next().await.unwrap().new.value()["data"],
            json!(data)
        );
    }
    assert!(watcher.try_next().unwrap().is_none());
    assert_eq!(watcher.progress(), store.revision());
}

#[tokio::test]
async fn slow_watcher_of_large_objects_loses_nothing() {
    let store = memory().await;
    create(&store, "a", 0).await;
    let mut watcher = store.watch(pods(), store.revision()).unwrap();
    assert!(watcher.try_next().unwrap().is_none());
    for _ in 0..2 {
        let mut expected = Vec::new();
        for number in 0..12 {
            let data = format!("{number}{}", "x".repeat(1 << 20));
            let written = store
                .update(pods(), key("a"), None, object("a", data), index("a"))
                .await
                .unwrap();
            expected.push(written.revision);
        }
        let mut observed = Vec::new();
        while let Some(event) = watcher.try_next().unwrap() {
            observed.push(event.revision);
        }
        assert_eq!(observed, expected);
        assert_eq!(watcher.progress(), store.revision());
    }
}

#[tokio::test]
async fn no_object_is_larger_than_its_limit() {
    let store = memory().await;
    let large = object("a", "x".repeat(1600 << 10));
    let refused = store
        .create(pods(), key("a"), large.clone(), index("a"))
        .await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("too large, the limit is 1572864"), "{text}");
    create(&store, "a", 0).await;
    let refused = store
        .update(pods(), key("a"), None, large, index("a"))
        .await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })));
    assert_eq!(store.get(&pods(), &key("a")).unwrap().value()["data"], 0);
}

/// Returns a watcher of pods from `from` whose client may leave `limit` bytes unread, and its queue.
fn bounded(store: &Store, from: Revision, limit: usize) -> (Watcher, SendQueues) {
    let queues = SendQueues::new([Arc::new(SendQueue::new(limit))]);
    let watcher = store.watch_queued(&pods(), from, Scope::default(), Some(&queues));
    (watcher.unwrap(), queues)
}

#[tokio::test]
async fn watcher_with_a_full_queue_reads_the_history() {
    let store = memory().await;
    let size = create(&store, "a", 0).await.bytes.len();
    let (mut watcher, queues) = bounded(&store, store.revision(), size * 3);
    assert_eq!(
        watcher.try_next().unwrap().map(|event| event.revision),
        None
    );
    let written: Vec<_> = futures::stream::iter(100..200)
        .then(|data| update(&store, "a", data))
        .map(|entry| entry.revision)
        .collect()
        .await;
    let unread = queues.charge(QueueStage::Queued, 0);
    assert!(queues.full().is_some() || !{ unread }.try_grow(size));
    let mut read = Vec::new();
    while let Some(event) = watcher.try_next().unwrap() {
        read.push(event.revision);
        let mut growing = queues.charge(QueueStage::Queued, 0);
        assert!(
            growing.try_grow(size) || read.len() == 100,
            "at most three are held"
        );
    }
    assert_eq!(read, written);
    drop(watcher);
    assert!(
        queues.charge(QueueStage::Queued, 0).try_grow(size * 3),
        "all is given back"
    );
}

#[tokio::test]
async fn watcher_that_does_not_read_lags_however_little_it_holds() {
    let mut options = StoreOptions::memory(Clock::system());
    options.history = HistoryLimits {
        events: 10,
        ..HistoryLimits::default()
    };
    let store = Store::open(options).await.unwrap();
    let start = create(&store, "a", 0).await.revision;
    let (mut slow, queues) = bounded(&store, start, 1);
    assert!(slow.try_next().unwrap().is_none());
    for data in 1..100 {
        update(&store, "a", data).await;
    }
    assert_eq!(queues.full(), None, "nothing is held for it");
    let oldest = store.revision() - 10;
    assert_eq!(slow.next().await.unwrap_err(), Lagged { at: start, oldest });
}

#[tokio::test]
async fn a_watcher_behind_the_history_lags() {
    let mut options = StoreOptions::memory(Clock::system());
    options.history = HistoryLimits {
        events: 10,
        ..HistoryLimits::default()
    };
    let store = Store::open(options).await.unwrap();
    let start = store.revision();
    let mut slow = store.watch(pods(), start).unwrap();
    create(&store, "a", 0).await;
    for data in 1..100 {
        update(&store, "a", data).await;
    }
    let oldest = store.revision() - 10;
    assert_eq!(slow.next().await.unwrap_err(), Lagged { at: start, oldest });
    let refused = store.watch(pods(), start).unwrap_err();
    assert!(
        matches!(refused, StoreError::Expired { requested, oldest: o } if (requested, o) == (start, oldest))
    );
    assert!(store.watch(pods(), oldest).is_ok());
    assert!(matches!(
        list(&store, Some(start)),
        Err(StoreError::Expired { .. })
    ));
    assert_eq!(
        list(&store, Some(oldest)).unwrap().items[0].value()["data"],
        json!(89)
    );
}

#[tokio::test(start_paused = true)]
async fn history_is_bounded_by_age_and_bytes() {
    let clock = Clock::following_tokio(jiff::Timestamp::UNIX_EPOCH);
    let mut options = StoreOptions::memory(clock);
    options.history.bytes = 100_000;
    let store = Store::open(options).await.unwrap();
    let first = create(&store, "a", 0).await;
    tokio::time::advance(Duration::from_secs(301)).await;
    let second = update(&store, "a", 1).await;
    assert!(store.watch(pods(), first.revision - 1).is_err());
    assert!(store.watch(pods(), first.revision).is_ok());
    for _ in 0..20 {
        let data = "x".repeat(10_000 + store.revision() as usize);
        store
            .update(pods(), key("a"), None, object("a", data), index("a"))
            .await
            .unwrap();
    }
    let stats = store.stats();
    assert!(
        stats[0].history_bytes <= 100_000 && stats[0].history_events >= 5,
        "{stats:?}"
    );
    assert!(store.watch(pods(), second.revision).is_err());
}

#[tokio::test]
async fn history_is_bounded_by_the_current_versions_or_the_minimum() {
    let mut options = StoreOptions::memory(Clock::system());
    options.history.min_bytes = 100_000;
    options.history.min_events = 5;
    let store = Store::open(options).await.unwrap();
    create(&store, "a", 0).await;
    let write = async |name: &str, bytes: usize| {
        let data = "x".repeat(bytes + store.revision() as usize);
        let (object, index) = (object(name, data), index(name));
        let written = store.update(pods(), key(name), None, object, index).await;
        written.unwrap();
    };
    let history_bytes = || store.stats()[0].history_bytes;
    for _ in 0..50 {
        write("a", 10_000).await;
    }
    assert!((80_000..=100_000).contains(&history_bytes()));
    create(&store, "b", 0).await;
    write("b", 300_000).await;
    for _ in 0..50 {
        write("a", 10_000).await;
    }
    assert!((280_000..=320_000).contains(&history_bytes()));
    write("b", 0).await;
    let stats = &store.stats()[0];
    assert_eq!(stats.history_events, 5, "the large version is one of them");
    for _ in 0..6 {
        write("a", 10_000).await;
    }
    assert!(history_bytes() <= 100_000);
}

#[tokio::test]
async fn compaction_and_removal_of_a_table() {
    let store = memory().await;
    let first = create(&store, "a", 0).await;
    update(&store, "a", 1).await;
    let mut watcher = store.watch(pods(), store.revision()).unwrap();
    store.compact(&pods(), first.revision);
    assert!(store.watch(pods(), first.revision - 1).is_err());
    store.remove_table(&pods()).await.unwrap();
    assert!(store.tables().is_empty());
    assert!(watcher.next().await.is_err());
    let removed = store.revision();
    // The recreated table has no history from before.
    assert!(store.watch(pods(), removed - 1).is_err());
    assert!(store.watch(pods(), removed).is_ok());
    assert!(list(&store, None).unwrap().items.is_empty());
}

#[tokio::test]
async fn waits_for_a_revision() {
    let store = memory().await;
    let target = store.revision() + 2;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.wait_for(target).await }
    });
    create(&store, "a", 0).await;
    create(&store, "b", 0).await;
    waiting.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lists_under_concurrent_writes_are_exact() {
    let store = memory().await;
    for number in 0..3000 {
        create(&store, &format!("p{number:05}"), 0).await;
    }
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for round in 1..=5 {
                for number in 0..3000 {
                    update(&store, &format!("p{number:05}"), round).await;
                    if number % 500 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            }
        })
    };
    // One writer goes through the keys in order, so that at any revision at most one step from
    // one round to the one before is visible.
    while !writer.is_finished() {
        let page = list(&store, None).unwrap();
        assert_eq!(page.items.len(), 3000);
        assert!(
            page.items
                .iter()
                .all(|entry| entry.revision <= page.revision)
        );
        let rounds: Vec<i64> = page
            .items
            .iter()
            .map(|entry| entry.value()["data"].as_i64().unwrap())
            .collect();
        assert!(
            rounds.is_sorted_by(|a, b| a >= b) && rounds[0] - rounds[2999] <= 1,
            "{rounds:?}"
        );
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

#[tokio::test]
async fn dependents_are_found_by_owner_uid() {
    let store = memory().await;
    let owned = |uid: &str, owners: &[&str]| Index {
        owners: owners.iter().map(|o| Arc::from(*o)).collect(),
        ..index(uid)
    };
    let named = |owner: &str| -> Vec<String> {
        let matches = store.owned(&pods(), owner);
        matches.iter().map(|e| e.key.name.to_string()).collect()
    };
    for (name, owners) in [("b", &["x", "y"][..]), ("a", &["x"]), ("c", &[])] {
        let created = store.create(pods(), key(name), object(name, 0), owned(name, owners));
        created.await.unwrap();
    }
    assert_eq!(named("x"), ["a", "b"]);
    assert_eq!(named("y"), ["b"]);
    let moved = owned("b", &["y", "z"]);
    let result = store.update(pods(), key("b"), None, object("b", 1), moved);
    result.await.unwrap();
    assert_eq!(named("x"), ["a"]);
    assert_eq!(named("z"), ["b"]);
    store.delete(pods(), key("b"), None, None).await.unwrap();
    for removed in ["y", "z", ""] {
        assert!(named(removed).is_empty(), "{removed}");
    }
    assert!(store.owned(&TableId::new("", "nope"), "x").is_empty());
}
