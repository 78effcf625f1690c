//! A disk that is really full: a small tmpfs. Needs root.

use crate::support::Cluster;
use koord_apiserver::store::{Index, Key, Store, StoreError, StoreOptions, TableId};
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// A tmpfs of four megabytes; unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
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
async fn full_disk_refuses_writes_until_space_is_free() {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(reason) => {
            koord_host::testing::skip("mount", reason);
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
    std::fs::write(&ballast, vec![0; 3_500_000]).unwrap();
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

/// Fills the remaining disk space.
fn fill(disk: &SmallDisk) -> std::path::PathBuf {
    use std::io::Write as _;
    let ballast = disk.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    ballast
}

// In real time: while a write waits for the disk, paused time would advance to the deadline of its request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_on_full_disk_serves_reads() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    const CLASS: &str = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(reason) => {
            koord_host::testing::skip("mount", reason);
            return;
        }
    };
    let dir = disk.path().join("data");
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"x": "y".repeat(10_000)}});

    // With a disk that is full from the beginning there is nothing to serve.
    let ballast = fill(&disk);
    let config = Config::dir(&dir, Clock::system());
    let error = ApiServer::open(config).await.expect_err("nothing fits");
    assert!(error.to_string().contains("No space left"), "{error}");
    std::fs::remove_file(&ballast).unwrap();

    let cluster = Cluster::in_dir(&dir).await;
    cluster.post(MAPS, map("kept")).await.expect(201);
    // The next start has something to write.
    cluster.delete(CLASS, json!({})).await.expect(200);
    cluster.server.close().await;

    let ballast = fill(&disk);
    let cluster = Cluster::in_dir(&dir).await;
    let retained = cluster.get(&format!("{MAPS}/kept")).await.expect(200);
    assert_eq!(retained["data"], map("")["data"]);
    let store = cluster.server.store();
    let table = TableId::new("", "configmaps");
    let mut watcher = store.watch(table, store.revision()).unwrap();
    let refused = cluster.post(MAPS, map("late")).await;
    let message = refused.fails(500, "InternalError");
    assert!(message.contains("No space left"), "{message}");
    let health = cluster.get("/healthz").await;
    assert_eq!(health.code, 500, "{}", health.body);
    cluster.get(CLASS).await.fails(404, "NotFound");

    std::fs::remove_file(&ballast).unwrap();
    cluster.post(MAPS, map("late")).await.expect(201);
    assert_eq!(&*watcher.next().await.unwrap().new.key.name, "late");
    // Missing objects are created without another start.
    cluster.until(CLASS, |answer| answer.code == 200).await;
    cluster.server.close().await;
}
