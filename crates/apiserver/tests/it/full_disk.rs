//! A disk that is really full: a small tmpfs. Needs root.

use koord_apiserver::store::{Index, Key, Store, StoreError, StoreOptions, TableId};
use koord_app::Clock;
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// A tmpfs of a megabyte; unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(dir.path())
            .output()
            .map_err(|error| format!("mount: {error}"))?;
        if mount.status.success() {
            Ok(Self(dir))
        } else {
            Err(String::from_utf8_lossy(&mount.stderr).trim().to_owned())
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_works_again_with_room() {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(why) => {
            koord_host::testing::skip("mount", why);
            return;
        }
    };
    let table = TableId::new("", "configmaps");
    let write = async |store: &Store, number: usize| {
        let key = Key::new("default", format!("c{number}"));
        let value = json!({"data": {"x": "y".repeat(10_000)}});
        store
            .create(table.clone(), key, value, Index::default())
            .await
    };
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![0; 400_000]).unwrap();
    let dir = disk.path().join("store");
    let store = Store::open(StoreOptions::dir(&dir, Clock::system()))
        .await
        .unwrap();
    let mut written = 0;
    let error = loop {
        match write(&store, written).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "the disk does not fill up");
    };
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(dir.to_str().unwrap()) && text.contains("No space left"),
        "{text}"
    );
    assert!(write(&store, written).await.is_err());
    let count = |store: &Store| {
        store
            .list(&table, None, None, None, None, &|_| true)
            .unwrap()
            .items
            .len()
    };
    assert_eq!(count(&store), written);
    std::fs::remove_file(&ballast).unwrap();
    write(&store, written).await.unwrap();
    store.close().await;
    let store = Store::open(StoreOptions::dir(&dir, Clock::system()))
        .await
        .unwrap();
    assert_eq!(count(&store), written + 1);
    store.close().await;
}
