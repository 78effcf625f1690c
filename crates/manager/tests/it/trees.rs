//! Many writers of quotas through the API server, which calls one replica over HTTPS and then the other.

use crate::cluster::{Cluster, typed};
use crate::https::{self, Replica};
use crate::webhooks::{install, settings};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use koord_api::labels;
use koord_api::scheduling::ElasticQuota;
use koord_kube::api::{DeleteParams, PostParams};
use koord_kube::{Api, ResourceExt, patch};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const WRITERS: u64 = 8;
const STEPS: usize = 15;
/// `min` of the parent of all quotas, in cores.
const PARENT_MIN: i64 = 40;

/// Points the Service of the webhooks to a replica.
async fn point_service(cluster: &Cluster, replica: &Replica) {
    let service = settings(None).service;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), &service.namespace);
    let ports = json!([{"port": 443, "targetPort": replica.port}]);
    let object = json!({"metadata": {"name": service.name}, "spec": {"ports": ports}});
    let endpoints: Api<Endpoints> = Api::namespaced(cluster.client.clone(), &service.namespace);
    let subsets = json!([{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": replica.port}]}]);
    if services.get_opt(&service.name).await.unwrap().is_none() {
        let params = PostParams::default();
        services.create(&params, &typed(object)).await.unwrap();
        let object = json!({"metadata": {"name": service.name}, "subsets": subsets});
        endpoints.create(&params, &typed(object)).await.unwrap();
    } else {
        let change = json!({ "subsets": subsets });
        patch::merge(&endpoints, &service.name, &change)
            .await
            .unwrap();
    }
}

fn quota(name: &str, parent: &str, min: i64) -> ElasticQuota {
    typed(json!({
        "metadata": {"name": name, "labels": {labels::QUOTA_PARENT: parent,
            labels::QUOTA_IS_PARENT: (parent == "koordinator-root-quota").to_string()}},
        "spec": {"min": {"cpu": min}, "max": {"cpu": 100}},
    }))
}

/// Creates, changes and deletes one quota at random. `current` is its `min` before, `None` if it does not
/// exist. Returns its `min` in the end and the number of refused writes.
async fn change_quota(
    quotas: Api<ElasticQuota>,
    seed: u64,
    mut current: Option<i64>,
    name: String,
) -> (Option<i64>, usize) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut refused = 0;
    for _ in 0..STEPS {
        let minimum = dice.i64(0..=12);
        let result = match current {
            None => {
                let (params, new) = (PostParams::default(), quota(&name, "team", minimum));
                quotas.create(&params, &new).await.map(|_| Some(minimum))
            }
            Some(_) if dice.u8(0..4) == 0 => {
                let params = DeleteParams::default();
                quotas.delete(&name, &params).await.map(|_| None)
            }
            Some(_) => {
                let change = json!({"spec": {"min": {"cpu": minimum}}});
                let changed = patch::merge(&quotas, &name, &change);
                changed.await.map(|_| Some(minimum))
            }
        };
        match result {
            Ok(now) => current = now,
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.contains("checkMinQuotaSum all brothers"),
                    "{name}: {message}"
                );
                refused += 1;
            }
        }
        // Requests that are always refused, whatever the other writers do.
        if dice.u8(0..4) == 0 {
            let orphan = quota(&format!("{name}-orphan"), "missing", 0);
            let created = quotas.create(&PostParams::default(), &orphan).await;
            let message = created.unwrap_err().to_string();
            assert!(message.contains("missing"), "{message}");
            let deleted = quotas.delete("team", &DeleteParams::default()).await;
            let message = deleted.unwrap_err().to_string();
            assert!(message.contains("child quotas"), "{message}");
        }
    }
    (current, refused)
}

/// Returns the `min` of all quotas.
async fn list_minimums(quotas: &Api<ElasticQuota>) -> BTreeMap<String, i64> {
    let all = quotas.list(&Default::default()).await.unwrap();
    let all = all.iter();
    all.map(|quota| (quota.name_any(), quota.spec.min["cpu"].value()))
        .collect()
}

#[tokio::test]
async fn concurrent_quota_writers_keep_the_tree_consistent() {
    let cluster = Cluster::start().await;
    install(&cluster).await;
    let gates = "ElasticQuotaDump=true";
    let replicas = [
        https::start(&cluster, gates, None).await,
        https::start(&cluster, gates, None).await,
    ];
    point_service(&cluster, &replicas[0]).await;
    let mut mutating = cluster.watch::<MutatingWebhookConfiguration>();
    mutating
        .until("a caBundle", |c| {
            let entry = c.webhooks.as_ref()?.first()?;
            entry.client_config.ca_bundle.clone()
        })
        .await;
    let mut validating = cluster.watch::<ValidatingWebhookConfiguration>();
    validating
        .until("its caBundle", |c| {
            let entry = c.webhooks.as_ref()?.first()?;
            entry.client_config.ca_bundle.clone()
        })
        .await;
    https::wait_for_quotas(&replicas[0].client, |_| true).await;
    let quotas: Api<ElasticQuota> = Api::namespaced(cluster.client.clone(), "default");
    let team = quota("team", "koordinator-root-quota", PARENT_MIN);
    // `one` always exists, so that the parent can never be deleted.
    for quota in [team, quota("one", "team", 1)] {
        quotas.create(&PostParams::default(), &quota).await.unwrap();
    }
    let has_one = |dump: &Value| dump["quotaInfoMap"].get("one").is_some();
    https::wait_for_quotas(&replicas[0].client, has_one).await;
    // All writers at once request an amount for which only three of them have room.
    let first = (0..WRITERS).map(|writer| {
        let (quotas, name) = (quotas.clone(), format!("w{writer}"));
        async move {
            let params = PostParams::default();
            let created = quotas.create(&params, &quota(&name, "team", 12)).await;
            (name, created.ok().map(|_| 12))
        }
    });
    let first = futures::future::join_all(first).await;
    let mut current: BTreeMap<String, Option<i64>> = first.into_iter().collect();
    assert_eq!(current.values().flatten().count(), 3, "{current:?}");
    for (round, replica) in replicas.iter().enumerate() {
        point_service(&cluster, replica).await;
        // The next replica decides by the stored quotas.
        let stored_quotas = list_minimums(&quotas).await;
        https::wait_for_quotas(&replica.client, |dump| {
            let min = |name: &String| dump["quotaInfoMap"][name]["min"]["cpu"].clone();
            stored_quotas
                .iter()
                .all(|(name, cpu)| min(name) == json!(cpu.to_string()))
                && dump["quotaInfoMap"].as_object().map(serde_json::Map::len)
                    == Some(stored_quotas.len())
        })
        .await;
        let writers = (0..).zip(&current).map(|(seed, (name, current))| {
            let seed = seed + 100 * u64::try_from(round).unwrap();
            let writer = change_quota(quotas.clone(), seed, *current, name.clone());
            let name = name.clone();
            async move { (name, tokio::spawn(writer).await.unwrap()) }
        });
        let results = futures::future::join_all(writers).await;
        let refused: usize = results.iter().map(|(_, (_, refused))| refused).sum();
        current = results
            .into_iter()
            .map(|(name, (current, _))| (name, current))
            .collect();
        let mut want: BTreeMap<String, i64> = current
            .iter()
            .filter_map(|(name, current)| Some((name.clone(), (*current)?)))
            .collect();
        want.extend([("team".to_owned(), PARENT_MIN), ("one".to_owned(), 1)]);
        let stored_quotas = list_minimums(&quotas).await;
        assert_eq!(
            stored_quotas, want,
            "stored quotas are those that were admitted"
        );
        let sum: i64 = stored_quotas
            .iter()
            .filter(|(name, _)| *name != "team")
            .map(|(_, min)| min)
            .sum();
        assert!(sum <= PARENT_MIN, "{stored_quotas:?}");
        assert!(
            refused > 0 && sum > 0,
            "no write was refused: {stored_quotas:?}"
        );
        replica.stop.cancel();
    }
    let refused = quotas.delete("one", &DeleteParams::default()).await;
    let message = refused.map(|_| Value::Null).unwrap_err().to_string();
    assert!(message.contains("failed calling webhook"), "{message}");
}
