//! Garbage collection and namespace deletion in difficult cases.

use crate::support::{Cluster, MERGE, config_map, pod};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/team/configmaps";

async fn cluster() -> Cluster {
    let cluster = Cluster::start().await;
    let team = json!({"metadata": {"name": "team"}});
    cluster.post("/api/v1/namespaces", team).await.expect(201);
    cluster
}

/// Creates `names` in a cycle of owners with blocking references.
async fn circle(cluster: &Cluster, names: &[&str]) {
    let mut created = Vec::new();
    for name in names {
        let map = config_map(name, json!({}), json!({}));
        created.push(cluster.post(MAPS, map).await.expect(201));
    }
    for (i, name) in names.iter().enumerate() {
        let owner: &Value = &created[(i + names.len() - 1) % names.len()];
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": true});
        let body = json!({"metadata": {"ownerReferences": [reference]}});
        cluster
            .patch(&format!("{MAPS}/{name}"), MERGE, body)
            .await
            .expect(200);
    }
}

fn foreground() -> Value {
    json!({"propagationPolicy": "Foreground"})
}

#[tokio::test(start_paused = true)]
async fn owners_in_a_circle_go_in_the_foreground() {
    let cluster = cluster().await;
    // Cycles of one, two and more objects: one of them is deleted, or all at once.
    for names in [&["a"][..], &["b", "c"], &["d", "e", "f", "g"]] {
        circle(&cluster, names).await;
        cluster
            .delete(&format!("{MAPS}/{}", names[0]), foreground())
            .await
            .expect(200);
        for name in names {
            cluster.until_gone(&format!("{MAPS}/{name}")).await;
        }
    }
    circle(&cluster, &["x", "y", "z"]).await;
    for name in ["x", "y", "z"] {
        let path = format!("{MAPS}/{name}");
        let code = cluster.delete(&path, foreground()).await.code;
        assert!(code == 200 || code == 404, "{code}");
    }
    for name in ["x", "y", "z"] {
        cluster.until_gone(&format!("{MAPS}/{name}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cyclic_owners_wait_for_outside_dependents() {
    let cluster = cluster().await;
    circle(&cluster, &["a", "b"]).await;
    let b = cluster.get(&format!("{MAPS}/b")).await.expect(200);
    let mut child = config_map("child", json!({}), json!({}));
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    child["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "b", "uid": b["metadata"]["uid"], "blockOwnerDeletion": true}]);
    cluster.post(MAPS, child).await.expect(201);
    cluster
        .delete(&format!("{MAPS}/a"), foreground())
        .await
        .expect(200);
    cluster
        .until(&format!("{MAPS}/child"), |a| {
            a.body["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    cluster.get(&format!("{MAPS}/b")).await.expect(200);
    let free = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&format!("{MAPS}/child"), MERGE, free)
        .await
        .expect(200);
    for name in ["child", "b", "a"] {
        cluster.until_gone(&format!("{MAPS}/{name}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn namespace_deletion_ends_foreground_waits() {
    let cluster = cluster().await;
    let owner = cluster
        .post(MAPS, config_map("owner", json!({}), json!({})))
        .await
        .expect(201);
    let mut child = config_map("child", json!({}), json!({}));
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    child["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "owner", "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true}]);
    cluster.post(MAPS, child).await.expect(201);
    cluster
        .delete(&format!("{MAPS}/owner"), foreground())
        .await
        .expect(200);
    cluster
        .delete("/api/v1/namespaces/team", json!({}))
        .await
        .expect(200);
    cluster.until_gone(&format!("{MAPS}/owner")).await;
    cluster.get(&format!("{MAPS}/child")).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn namespace_deletes_pods_first() {
    let cluster = cluster().await;
    let pods = "/api/v1/namespaces/team/pods";
    let mut owned_rules = pod("held");
    owned_rules["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(pods, owned_rules).await.expect(201);
    cluster
        .post(MAPS, config_map("needed", json!({}), json!({})))
        .await
        .expect(201);
    cluster
        .delete("/api/v1/namespaces/team", json!({}))
        .await
        .expect(200);
    let waiting = cluster
        .until("/api/v1/namespaces/team", |a| {
            a.body["status"]["conditions"].is_array()
        })
        .await;
    assert!(
        waiting
            .body
            .to_string()
            .contains("Some resources are remaining: pods. has 1 resource instances"),
        "{}",
        waiting.body
    );
    let needed = cluster.get(&format!("{MAPS}/needed")).await.expect(200);
    assert!(needed["metadata"].get("deletionTimestamp").is_none());
    let free = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&format!("{pods}/held"), MERGE, free)
        .await
        .expect(200);
    cluster.until_gone("/api/v1/namespaces/team").await;
}
