//! The sums of a node are those of the pods on it, whatever other pods request and in whatever order they are
//! removed.

use super::*;
use k8s_openapi::api::core::v1::Pod;
use koord_model::resources::{CPU, MEMORY, ResourceTable};
use proptest::prelude::*;
use serde_json::json;

fn pod(name: &str, requests: &[(&str, &str)], table: &ResourceTable) -> Arc<PodInfo> {
    let requests: serde_json::Map<_, _> = requests
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), json!(amount)))
        .collect();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    }))
    .unwrap();
    Arc::new(PodInfo::new(Arc::new(pod), table).unwrap())
}

#[test]
fn huge_request_does_not_corrupt_node_sums() {
    let table = ResourceTable::new();
    let mut store = NodeStore::default();
    let node = store.add_pod("n", pod("a", &[("memory", "100Gi")], &table));
    store.add_pod("n", pod("b", &[("memory", "8Ei")], &table));
    store.add_pod("n", pod("c", &[("memory", "8Ei"), ("cpu", "1E")], &table));
    assert!(store.requested(node, MEMORY) > 100 << 30);
    store.remove_pod(node, "b");
    store.remove_pod(node, "c");
    assert_eq!(store.requested(node, MEMORY), 100 << 30);
    assert_eq!(store.requested(node, CPU), 0);
    // The default for a pod without requests.
    assert_eq!(store.requested_for_scoring(node), [100, 100 << 30]);
}

proptest! {
    #[test]
    fn node_sums_equal_requests_of_its_pods(
        // Which of ten pods is added, removed or changed, and what it requests.
        steps in prop::collection::vec((0_u8..10, 0_u8..3, 0_usize..6, 0_usize..6), 1..60),
    ) {
        let cpus = ["0", "100m", "7", "1E", "9223372036854775807", "3"];
        let memories = ["0", "1", "100Gi", "7Ei", "8Ei", "5Gi"];
        let table = ResourceTable::new();
        let mut store = NodeStore::default();
        let mut present = std::collections::BTreeMap::new();
        // This pod keeps the row in use.
        let node = store.add_pod("n", pod("stays", &[], &table));
        for (number, what, cpu, memory) in steps {
            let name = number.to_string();
            let requests = [("cpu", cpus[cpu]), ("memory", memories[memory])];
            let new = pod(&name, &requests, &table);
            match (present.contains_key(&name), what) {
                (true, 0) => {
                    store.remove_pod(node, &name);
                    present.remove(&name);
                }
                (true, _) => {
                    store.update_pod(node, new.clone());
                    present.insert(name, new);
                }
                (false, _) => {
                    store.add_pod("n", new.clone());
                    present.insert(name, new);
                }
            }
            for resource in [CPU, MEMORY] {
                let sum = present.values().map(|pod| i128::from(pod.requests.get(resource))).sum::<i128>();
                prop_assert_eq!(i128::from(store.requested(node, resource)), sum);
            }
            let scoring = |at: usize| {
                let sum = present.values().map(|pod| i128::from(pod.scoring[at])).sum::<i128>();
                sum + [100, 200 << 20][at]
            };
            let is = store.requested_for_scoring(node).map(i128::from);
            prop_assert_eq!(is, [scoring(0), scoring(1)]);
        }
    }
}
