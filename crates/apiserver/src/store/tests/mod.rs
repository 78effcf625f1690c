//! Tests of the store as a whole.

mod durable;
mod faults;
mod memory;
mod model;

use super::*;
use serde_json::json;

fn pods() -> TableId {
    TableId::new("", "pods")
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn index(uid: &str) -> Index {
    Index {
        uid: uid.into(),
        ..Index::default()
    }
}

fn object(name: &str, data: impl Into<Value>) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "data": data.into()})
}

async fn memory() -> Store {
    Store::open(StoreOptions::memory(Clock::system()))
        .await
        .unwrap()
}

async fn create(store: &Store, name: &str, data: i64) -> Arc<Entry> {
    store
        .create(pods(), key(name), object(name, data), index(name))
        .await
        .unwrap()
}

async fn update(store: &Store, name: &str, data: i64) -> Arc<Entry> {
    store
        .update(pods(), key(name), None, object(name, data), index(name))
        .await
        .unwrap()
}

async fn delete(store: &Store, name: &str) -> Arc<Entry> {
    store.delete(pods(), key(name), None, None).await.unwrap()
}

fn names(page: &Page) -> Vec<&str> {
    page.items.iter().map(|entry| &*entry.key.name).collect()
}

fn list(store: &Store, at: Option<Revision>) -> Result<Page, StoreError> {
    store.list(&pods(), None, at, None, None, &|_| true)
}

/// Returns the whole content: key, revision and object of each entry.
fn contents(store: &Store) -> Vec<(TableId, Key, Revision, Value)> {
    let mut contents = Vec::new();
    for table in store.tables() {
        let page = store
            .list(&table, None, None, None, None, &|_| true)
            .unwrap();
        for entry in page.items {
            let (key, revision) = (entry.key.clone(), entry.revision);
            contents.push((table.clone(), key, revision, entry.value()));
        }
    }
    contents
}
