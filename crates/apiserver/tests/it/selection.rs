//! Selection of the controllers to run.

use crate::support::Cluster;
use koord_app::flags::selection;
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn only_the_controllers_that_are_wanted_run() {
    let (account, map) = ("serviceaccounts/default", "configmaps/kube-root-ca.crt");
    for (wanted, made, not_made) in [
        ("*,-serviceaccount-controller", map, account),
        ("serviceaccount-controller", account, map),
    ] {
        let cluster = Cluster::running(selection(wanted).unwrap()).await;
        let namespace = json!({"metadata": {"name": "x"}});
        cluster
            .post("/api/v1/namespaces", namespace)
            .await
            .expect(201);
        let path = |what: &str| format!("/api/v1/namespaces/x/{what}");
        cluster.until(&path(made), |a| a.code == 200).await;
        cluster.server.close().await;
        let answer = cluster.get(&path(not_made)).await;
        assert_eq!(answer.code, 404, "{wanted}: {not_made}");
    }
}
