//! Compares the store with a map: random writes, lists at random revisions, watches from random ones.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum ModelStep {
    Create { name: u8, data: u8 },
    Update { name: u8, data: u8, stale: bool },
    Delete { name: u8, stale: bool },
    Compact { back: u8 },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let name = 0u8..6;
    let step = prop_oneof![
        3 => (name.clone(), any::<u8>()).prop_map(|(name, data)| ModelStep::Create { name, data }),
        5 => (name.clone(), 0u8..4, prop::bool::weighted(0.2))
            .prop_map(|(name, data, stale)| ModelStep::Update { name, data, stale }),
        2 => (name, prop::bool::weighted(0.2)).prop_map(|(name, stale)| ModelStep::Delete { name, stale }),
        1 => any::<u8>().prop_map(|back| ModelStep::Compact { back }),
        1 => Just(ModelStep::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

type ModelState = BTreeMap<String, (Revision, Value)>;

/// The expected state after every revision, and the changes.
struct Model {
    states: BTreeMap<Revision, ModelState>,
    events: Vec<(Revision, EventKind, String)>,
    compacted: Revision,
}

impl Model {
    fn now(&self) -> (Revision, &ModelState) {
        let (revision, state) = self.states.last_key_value().unwrap();
        (*revision, state)
    }

    fn change(&mut self, revision: Revision, name: &str, data: Option<Value>) {
        let (newest, state) = self.now();
        assert!(revision > newest, "revision {revision} was used already");
        let mut state = state.clone();
        let kind = if data.is_some() {
            EventKind::Put
        } else {
            EventKind::Delete
        };
        match data {
            Some(data) => state.insert(name.to_owned(), (revision, data)),
            None => state.remove(name),
        };
        self.states.insert(revision, state);
        self.events.push((revision, kind, name.to_owned()));
    }

    fn check(&self, store: &Store) {
        let (newest, _) = self.now();
        assert_eq!(store.revision(), newest);
        for (at, state) in &self.states {
            match list(store, Some(*at)) {
                Ok(page) => {
                    assert!(*at >= self.compacted);
                    let actual: ModelState = page
                        .items
                        .iter()
                        .map(|entry| {
                            let data = entry.value()["data"].clone();
                            (entry.key.name.to_string(), (entry.revision, data))
                        })
                        .collect();
                    assert_eq!(&actual, state, "at {at}");
                }
                Err(StoreError::Expired { .. }) => assert!(*at < self.compacted, "{at} expired"),
                Err(error) => panic!("{error}"),
            }
            match store.watch(pods(), *at) {
                Ok(mut watcher) => {
                    assert!(*at >= self.compacted);
                    let watched: Vec<_> = std::iter::from_fn(|| watcher.try_next().unwrap())
                        .map(|event| (event.revision, event.kind, event.new.key.name.to_string()))
                        .collect();
                    let expected: Vec<_> = self
                        .events
                        .iter()
                        .filter(|event| event.0 > *at)
                        .cloned()
                        .collect();
                    assert_eq!(watched, expected, "watch from {at}");
                    assert_eq!(watcher.progress(), newest);
                }
                Err(StoreError::Expired { .. }) => assert!(*at < self.compacted, "{at} expired"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

async fn run(steps: Vec<ModelStep>, options: StoreOptions) {
    let mut store = Store::open(options.clone()).await.unwrap();
    let start = store.revision();
    let mut model = Model {
        states: BTreeMap::from([(start, ModelState::new())]),
        events: Vec::new(),
        compacted: start,
    };
    let mut watcher = store.watch(pods(), start).unwrap();
    let mut live = 0;
    for step in steps {
        let (newest, state) = model.now();
        match step {
            ModelStep::Create { name, data } => {
                let name = format!("p{name}");
                let created = store
                    .create(pods(), key(&name), object(&name, data), index(&name))
                    .await;
                match created {
                    Ok(entry) => {
                        assert!(!state.contains_key(&name));
                        model.change(entry.revision, &name, Some(json!(data)));
                    }
                    Err(StoreError::Exists { current }) => {
                        assert_eq!(current.revision, state[&name].0);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            ModelStep::Update { name, data, stale } => {
                let name = format!("p{name}");
                let current = state.get(&name).cloned();
                let expected = if stale {
                    Some(newest + 1)
                } else {
                    current.as_ref().map(|c| c.0)
                };
                let object = object(&name, data);
                match (
                    store
                        .update(pods(), key(&name), expected, object, index(&name))
                        .await,
                    current,
                ) {
                    (Err(StoreError::NotFound { .. }), None) => {}
                    (Err(StoreError::Conflict { .. }), Some(_)) if stale => {}
                    (Ok(entry), Some((revision, old))) if old == json!(data) => {
                        assert_eq!(entry.revision, revision);
                    }
                    (Ok(entry), Some(_)) if !stale => {
                        model.change(entry.revision, &name, Some(json!(data)));
                    }
                    other => panic!("{other:?}"),
                }
            }
            ModelStep::Delete { name, stale } => {
                let name = format!("p{name}");
                let current = state.get(&name).cloned();
                let uid = if stale { "other" } else { name.as_str() };
                match (
                    store.delete(pods(), key(&name), None, Some(uid)).await,
                    current,
                ) {
                    (Err(StoreError::NotFound { .. }), None) => {}
                    (Err(StoreError::Conflict { .. }), Some(_)) if stale => {}
                    (Ok(entry), Some((_, data))) if !stale => {
                        assert_eq!(entry.value()["data"], data);
                        model.change(entry.revision, &name, None);
                    }
                    other => panic!("{other:?}"),
                }
            }
            ModelStep::Compact { back } => {
                let to = newest
                    .saturating_sub(u64::from(back % 8))
                    .max(model.compacted);
                // A watcher that has not read that far would lag.
                while let Some(event) = watcher.try_next().unwrap() {
                    assert_eq!(event.revision, model.events[live].0);
                    live += 1;
                }
                store.compact(&pods(), to);
                model.compacted = to;
            }
            ModelStep::Reopen => {
                if options.backing == Backing::Memory {
                    continue;
                }
                if newest % 2 == 0 {
                    store.snapshot().await.unwrap();
                    model.compacted = newest;
                }
                store.close().await;
                store = Store::open(options.clone()).await.unwrap();
                // The log restores the history that it still contains.
                model.compacted = store.watch(pods(), 0).map_or_else(
                    |error| match error {
                        StoreError::Expired { oldest, .. } => oldest,
                        error => panic!("{error}"),
                    },
                    |_| 0,
                );
                let existing = model.now().0;
                if store.revision() > existing {
                    let state = model.now().1.clone();
                    model.states.insert(store.revision(), state);
                }
                watcher = store.watch(pods(), store.revision()).unwrap();
                live = model.events.len();
            }
        }
    }
    while let Some(event) = watcher.try_next().unwrap() {
        assert_eq!(event.revision, model.events[live].0);
        live += 1;
    }
    assert_eq!(live, model.events.len());
    model.check(&store);
    store.close().await;
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn memory_store_equals_a_map(steps in steps()) {
        block_on(run(steps, StoreOptions::memory(Clock::system())));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn durable_store_equals_a_map(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::dir(dir.path(), Clock::system());
        options.durability = Durability::Os;
        block_on(run(steps, options));
    }
}
