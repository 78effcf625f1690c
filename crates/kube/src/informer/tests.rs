use super::*;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use std::time::Duration;

fn object(name: &str, uid: &str, version: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.namespace = Some("n".to_owned());
    object.metadata.name = Some(name.to_owned());
    object.metadata.uid = Some(uid.to_owned());
    object.metadata.resource_version = Some(version.to_owned());
    object.metadata.managed_fields = Some(Vec::new());
    object
}

fn show(change: &Change<ConfigMap>) -> String {
    let describe = |object: &ConfigMap| {
        assert_eq!(object.metadata.managed_fields, None);
        let meta = &object.metadata;
        format!(
            "{}{}",
            meta.name.as_deref().unwrap(),
            meta.resource_version.as_deref().unwrap()
        )
    };
    match change {
        Change::Applied { old: None, new } => format!("+{}", describe(new)),
        Change::Applied {
            old: Some(old),
            new,
        } => format!("{}>{}", describe(old), describe(new)),
        Change::Deleted(last) => format!("-{}", describe(last)),
        Change::Synced => "synced".to_owned(),
    }
}

fn informer(events: Vec<Event<ConfigMap>>) -> Informer<ConfigMap> {
    let events = events.into_iter().map(Ok).collect();
    informer_of(events)
}

fn informer_of(events: Vec<Result<Event<ConfigMap>, watcher::Error>>) -> Informer<ConfigMap> {
    let (sender, changes) = mpsc::channel(1);
    let (writer, store, absent) = StoreWriter::new("configmaps./v1".to_owned());
    let events = futures::stream::iter(events).chain(futures::stream::pending());
    let keep = |object| Decoded::Object(without_managed_fields(object));
    tokio::spawn(pump(map_objects(events.boxed(), keep), writer, sender));
    Informer {
        store,
        changes,
        absent,
    }
}

/// An object that can no longer be decoded stays in its last decoded state until it is deleted, even if it is
/// listed again.
#[test]
fn undecodable_object_keeps_its_last_state() {
    let unread = |name: &str| {
        let metadata = object(name, name, "9").metadata;
        let problem = "data: no".to_owned();
        Decoded::<ConfigMap>::Unread(Box::new(Unread { metadata, problem }))
    };
    let decoded = |name: &str| Decoded::Object(without_managed_fields(object(name, name, "1")));
    let (mut writer, store, _) = StoreWriter::new("configmaps./v1".to_owned());
    let mut out = VecDeque::new();
    let list = || {
        [
            Event::Init,
            Event::InitApply(unread("a")),
            Event::InitApply(unread("b")),
            Event::InitDone,
        ]
    };
    let first = [
        Event::Init,
        Event::InitApply(decoded("a")),
        Event::InitApply(unread("b")),
        Event::InitDone,
    ];
    let later = [Event::Apply(unread("a")), Event::Apply(unread("c"))];
    for event in first.into_iter().chain(later).chain(list()) {
        writer.handle(event, &mut out);
    }
    let shown: Vec<_> = out.drain(..).map(|change| show(&change)).collect();
    assert_eq!(shown, ["+a1", "synced"]);
    assert_eq!(store.len(), 1);
    for name in ["a", "b"] {
        writer.handle(Event::Delete(unread(name)), &mut out);
    }
    let shown: Vec<_> = out.drain(..).map(|change| show(&change)).collect();
    assert_eq!(shown, ["-a1"]);
}

async fn check(events: Vec<Event<ConfigMap>>, expected: &[&str]) {
    let mut informer = informer(events);
    for (at, expected) in expected.iter().enumerate() {
        let change = informer.changes.recv().await.unwrap();
        assert_eq!(show(&change), *expected, "change {at}");
    }
    tokio::task::yield_now().await;
    assert!(
        informer.changes.try_recv().is_err(),
        "more changes than expected"
    );
}

#[tokio::test(start_paused = true)]
async fn expired_watch_retries_at_once_and_outage_after_seconds() {
    let mut retry = Retry::default();
    let outage: Vec<u64> = (0..6)
        .map(|_| retry.delay(WatchFailure::Other).as_secs())
        .collect();
    assert!(
        outage[..4].is_sorted() && (6..=8).contains(&outage[5]),
        "{outage:?}"
    );
    assert_eq!(
        retry.delay(WatchFailure::Expired),
        Duration::ZERO,
        "the server is back"
    );
    assert!(
        retry.delay(WatchFailure::Expired) >= Retry::FIRST,
        "but not in a tight loop"
    );
    tokio::time::advance(Retry::RESET_AFTER * 2).await;
    assert!(
        retry.delay(WatchFailure::Other) < Retry::FIRST * 2,
        "forgotten"
    );
}

#[tokio::test]
async fn changes_have_the_old_object_and_the_last_state() {
    use Event::{Apply, Delete, Init, InitApply, InitDone};
    let events = vec![
        Init,
        InitApply(object("a", "1", "1")),
        InitDone,
        Apply(object("a", "1", "2")),
        Apply(object("a", "1", "2")),
        Delete(object("a", "1", "3")),
        Delete(object("a", "1", "3")),
    ];
    check(events, &["+a1", "synced", "a1>a2", "-a3"]).await;
}

#[tokio::test]
async fn new_list_yields_missed_changes_once() {
    use Event::{Init, InitApply, InitDone};
    let events = vec![
        Init,
        InitApply(object("a", "1", "1")),
        InitApply(object("b", "2", "2")),
        InitApply(object("c", "3", "3")),
        InitDone,
        Init,
        InitApply(object("a", "1", "1")),
        InitApply(object("b", "9", "7")),
        InitApply(object("d", "4", "4")),
        InitDone,
    ];
    let expected = ["+a1", "+b2", "+c3", "synced", "-b2", "+b7", "+d4", "-c3"];
    check(events, &expected).await;
}

#[tokio::test]
async fn slow_reader_delays_neither_store_nor_sync() {
    let mut events = vec![Event::Init];
    events.extend((0..1000).map(|n| Event::InitApply(object(&format!("o{n}-"), "1", "1"))));
    events.push(Event::InitDone);
    let mut informer = informer(events);
    assert!(informer.store.wait_synced().await);
    assert_eq!(informer.store.len(), 1000);
    let mut read = 0;
    while !matches!(informer.changes.recv().await.unwrap(), Change::Synced) {
        read += 1;
    }
    assert_eq!(read, 1000);
}

/// Stores the levels of the log lines of this thread.
#[derive(Clone, Default)]
struct Counter(Arc<parking_lot::Mutex<Vec<tracing::Level>>>);

impl tracing::Subscriber for Counter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO && metadata.target().contains("informer")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().push(*event.metadata().level());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn missing_kind_is_absent_and_forbidden_one_is_not() {
    let levels = Counter::default();
    let _guard = tracing::subscriber::set_default(levels.clone());
    use kube::core::Status;
    let failed = |code: u16| {
        let status = Status::failure("404 page not found", "").with_code(code);
        Err(watcher::Error::InitialListFailed(kube::Error::Api(
            status.boxed(),
        )))
    };
    for (name, code, expected) in [("not there", 404, true), ("forbidden", 403, false)] {
        let events = vec![Ok(Event::Init), failed(code), Ok(Event::Init), failed(code)];
        let mut informer = informer_of(events);
        // The clock is paused: both attempts are over by now.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(*informer.absent.borrow_and_update(), expected, "{name}");
        assert!(informer.changes.try_recv().is_err(), "{name}");
        let lines = std::mem::take(&mut *levels.0.lock()).len();
        assert_eq!(lines, 1, "{name}: number of log lines");
    }
    let events = vec![
        Ok(Event::Init),
        failed(404),
        Ok(Event::Init),
        Ok(Event::InitApply(object("a", "1", "1"))),
        Ok(Event::InitDone),
    ];
    let mut informer = informer_of(events);
    for expected in ["+a1", "synced"] {
        assert_eq!(show(&informer.changes.recv().await.unwrap()), expected);
    }
    assert!(!*informer.absent.borrow(), "it appeared");
    let levels = std::mem::take(&mut *levels.0.lock());
    assert_eq!(levels, [tracing::Level::WARN, tracing::Level::INFO]);
}

#[tokio::test(start_paused = true)]
async fn missing_permission_is_logged_once_and_backs_off() {
    use crate::testing::{LogLines, answer};
    use http::StatusCode;
    use serde_json::json;
    use std::sync::atomic::{AtomicU32, Ordering};
    let (log, _guard) = LogLines::capture();
    let requests = Arc::new(AtomicU32::new(0));
    let count = requests.clone();
    let client = crate::client::in_process(answer(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let message = "configmaps is forbidden: User \"u\" cannot list resource \"configmaps\" in API group \"\" at the cluster scope";
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message});
        (StatusCode::FORBIDDEN, status)
    }));
    let stop = CancellationToken::new();
    let _informer = Informer::<ConfigMap>::start(client, Scope::default(), stop);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let lines = log.lines();
    let rule = "{apiGroups: [\"\"], resources: [configmaps], verbs: [list, watch]}";
    assert!(lines.len() == 1 && lines[0].contains(rule), "{lines:#?}");
    let requests = requests.load(Ordering::SeqCst);
    assert!((10..=18).contains(&requests), "{requests} in ten minutes");
}
