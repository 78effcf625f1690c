use crate::cluster::Cluster;
use k8s_openapi::api::coordination::v1::Lease;
use koord_api::slo::NodeMetric;
use koord_app::Context;
use koord_kube::Api;
use koord_kube::lease::Election;
use koord_manager::{LEASE_NAME, Options};
use serde_json::json;

#[tokio::test(start_paused = true)]
pub(crate) async fn the_second_replica_takes_over_when_the_first_stops() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let start = |identity: &str| {
        let options = Options {
            election: Some(Election::new("koordinator-system", LEASE_NAME, identity)),
            ..Options::default()
        };
        let ctx = Context::with_clock(cluster.ctx.clock.clone());
        let run = koord_manager::run(options, cluster.limited.clone(), ctx.clone());
        (tokio::spawn(run), ctx)
    };
    let (first, first_ctx) = start("first");
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics
        .until("a NodeMetric by the first", |_| Some(()))
        .await;
    let (second, second_ctx) = start("second");
    first_ctx.shutdown.cancel();
    first.await.unwrap().unwrap();
    cluster.add_node("n2", json!({}), "10", "100G").await;
    metrics
        .until("a NodeMetric by the second", |metric| {
            (metric.metadata.name.as_deref() == Some("n2")).then_some(())
        })
        .await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "koordinator-system");
    let lease = leases.get(LEASE_NAME).await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.as_deref(), Some("second"));
    let text = koord_app::metrics::encode(&second_ctx.metrics).unwrap();
    assert!(text.contains("koordinator_manager_is_leader 1"));
    second_ctx.shutdown.cancel();
    second.await.unwrap().unwrap();
}
