//! `kill -9` of the whole cluster under write load.

use crate::harness::{Up, eventually};
use k8s_openapi::api::core::v1::ConfigMap;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, ResourceExt};
use std::collections::BTreeMap;
use std::path::Path;

const ROUNDS: usize = 50;

fn revision(map: &ConfigMap) -> u64 {
    map.resource_version()
        .and_then(|text| text.parse().ok())
        .expect("a numeric resourceVersion")
}

fn config_map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.data = Some(BTreeMap::from([("key".to_owned(), "value".repeat(50))]));
    map
}

/// Every write that was acknowledged is there after every crash, and no resourceVersion that a
/// client has seen is given to another write.
#[test]
fn fifty_kills_lose_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut acknowledged: BTreeMap<String, u64> = BTreeMap::new();
    let mut highest = 0;
    for round in 0..ROUNDS {
        let mut up = Up::start(dir.path(), &[]);
        let written = runtime.block_on(async {
            let client = up.client().await;
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let stored: BTreeMap<String, u64> = maps
                .list(&ListParams::default().labels("!system"))
                .await
                .expect("a list")
                .iter()
                .map(|map| (map.name_any(), revision(map)))
                .collect();
            for (name, revision) in &acknowledged {
                assert_eq!(stored.get(name), Some(revision), "round {round}: {name}");
            }
            write_until_killed(&maps, round, &mut up).await
        });
        for (name, revision) in written {
            assert!(
                revision > highest,
                "round {round}: {revision} was used before ({highest})"
            );
            highest = highest.max(revision);
            acknowledged.insert(name, revision);
        }
    }
    assert!(
        acknowledged.len() >= ROUNDS,
        "the kills came too early to prove anything"
    );
    leftovers(dir.path());
}

/// Writes as fast as acknowledgements come, kills after a number of them that differs by round,
/// and returns what was acknowledged, in order.
async fn write_until_killed(
    maps: &Api<ConfigMap>,
    round: usize,
    up: &mut Up,
) -> Vec<(String, u64)> {
    let mut written = Vec::new();
    let limit = 3 + round * 7 % 40;
    for number in 0.. {
        let map = config_map(&format!("load-{round}-{number}"));
        let create = maps.create(&PostParams::default(), &map);
        if number == limit {
            // The kill lands while this request is on its way: it may or may not be stored.
            let (_, ()) = tokio::join!(
                tokio::time::timeout(std::time::Duration::from_secs(5), create),
                async { up.kill() }
            );
            break;
        }
        let stored = create.await.expect("the server is up");
        written.push((stored.name_any(), revision(&stored)));
    }
    written
}

/// After one more start and a clean stop, nothing of the node is left.
fn leftovers(dir: &Path) {
    let mut up = Up::start(dir, &[]);
    let pid = up.pid();
    assert_eq!(up.interrupt(), Some(0));
    eventually("the process to be gone", || {
        (!Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    });
}
