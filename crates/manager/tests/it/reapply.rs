//! The webhooks' manifests applied again after the manager completed them, as an upgrade does.

use crate::cluster::Cluster;
use crate::deploy::{WEBHOOKS, documents};
use crate::webhooks::{options, settings};
use koord_kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use koord_kube::{Api, kube_core};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns a client and the manifest of each webhook configuration.
fn configurations(cluster: &Cluster) -> Vec<(Api<DynamicObject>, Value)> {
    let all = documents(WEBHOOKS).into_iter();
    all.filter_map(|manifest| {
        let kind = manifest["kind"].as_str().unwrap();
        if !kind.ends_with("WebhookConfiguration") {
            return None;
        }
        let kind = kube_core::GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let api = Api::all_with(cluster.client.clone(), &ApiResource::from_gvk(&kind));
        Some((api, manifest))
    })
    .collect()
}

/// Applies a manifest as `kubectl apply` does: by default with a strategic merge, which for an unchanged
/// manifest sets its fields, merges lists by key, and removes nothing; or server-side.
async fn apply(api: &Api<DynamicObject>, manifest: &Value, server_side: bool) -> DynamicObject {
    let name = manifest["metadata"]["name"].as_str().unwrap();
    let params = PatchParams {
        field_manager: Some("kubectl".to_owned()),
        ..PatchParams::default()
    };
    if server_side {
        let applied = api.patch(name, &params, &Patch::Apply(manifest)).await;
        return applied.unwrap();
    }
    let mut annotated = manifest.clone();
    annotated["metadata"]["annotations"][LAST_APPLIED] = json!(manifest.to_string());
    if api.get_opt(name).await.unwrap().is_none() {
        let object = serde_json::from_value(annotated).unwrap();
        return api.create(&PostParams::default(), &object).await.unwrap();
    }
    let patched = api
        .patch(name, &params, &Patch::Strategic(&annotated))
        .await;
    patched.unwrap()
}

/// Returns the `caBundle` of each entry.
fn bundles(object: &DynamicObject) -> BTreeMap<String, Option<String>> {
    let entries = object.data["webhooks"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    entries
        .map(|entry| {
            let bundle = text(&entry["clientConfig"]["caBundle"]);
            (text(&entry["name"]).unwrap(), bundle)
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn reapplied_manifests_remove_nothing() {
    for server_side in [false, true] {
        let cluster = Cluster::start().await;
        let all = configurations(&cluster);
        assert_eq!(all.len(), 2);
        for (api, manifest) in &all {
            apply(api, manifest, server_side).await;
        }
        let manager = cluster.manager(options(settings(None)));
        tokio::time::sleep(Duration::from_secs(30)).await;
        for (api, manifest) in &all {
            let name = manifest["metadata"]["name"].as_str().unwrap();
            let before = api.get(name).await.unwrap();
            let bundles_before = bundles(&before);
            let listed = manifest["webhooks"].as_array().unwrap().len();
            assert!(
                !bundles_before.is_empty() && bundles_before.len() < listed,
                "some are off: {bundles_before:?}"
            );
            assert!(
                bundles_before.values().all(Option::is_some),
                "{bundles_before:?}"
            );

            let applied = apply(api, manifest, server_side).await;
            // Working entries keep their certificates from the first moment.
            let now = bundles(&applied);
            for (entry, bundle) in &bundles_before {
                assert_eq!(now.get(entry), Some(bundle), "{entry}, {server_side}");
            }
            // Entries that are off are removed again.
            tokio::time::sleep(Duration::from_secs(20)).await;
            let after = api.get(name).await.unwrap();
            assert_eq!(after.data["webhooks"], before.data["webhooks"]);
            tokio::time::sleep(Duration::from_secs(600)).await;
            let later = api.get(name).await.unwrap();
            assert_eq!(
                later.metadata.resource_version,
                after.metadata.resource_version
            );
        }
        cluster.ctx.shutdown.cancel();
        manager.await.unwrap();
    }
}

/// Verifies that an additional entry in a newer manifest takes effect, if its path is served.
#[tokio::test(start_paused = true)]
async fn an_entry_of_a_newer_manifest_takes_effect() {
    let cluster = Cluster::start().await;
    for (api, manifest) in configurations(&cluster) {
        let mut older = manifest.clone();
        let entries = older["webhooks"].as_array_mut().unwrap();
        // Paths that are served by default.
        let path = |entry: &Value| entry["clientConfig"]["service"]["path"].clone();
        let removed_paths = ["/mutate-pod", "/validate-pod"];
        entries.retain(|entry| !removed_paths.iter().any(|removed| path(entry) == *removed));
        apply(&api, &older, false).await;
    }
    let manager = cluster.manager(options(settings(None)));
    tokio::time::sleep(Duration::from_secs(30)).await;
    for (api, manifest) in configurations(&cluster) {
        let name = manifest["metadata"]["name"].as_str().unwrap();
        let before = bundles(&api.get(name).await.unwrap());
        let applied = apply(&api, &manifest, false).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let after = api.get(name).await.unwrap();
        let bundles_after = bundles(&after);
        assert!(
            bundles_after.values().all(Option::is_some),
            "{bundles_after:?}"
        );
        let added: Vec<_> = bundles_after
            .keys()
            .filter(|name| !before.contains_key(*name))
            .collect();
        assert!(added.iter().all(|name| name.contains("pod")), "{added:?}");
        assert!(!added.is_empty(), "{:?}", bundles(&applied));
        tokio::time::sleep(Duration::from_secs(600)).await;
        let later = api.get(name).await.unwrap();
        assert_eq!(
            later.metadata.resource_version,
            after.metadata.resource_version
        );
    }
    cluster.ctx.shutdown.cancel();
    manager.await.unwrap();
}

/// Helm 4 applies on the server without force, and fails on a field that another writer changed.
#[tokio::test(start_paused = true)]
async fn chart_and_manager_write_no_common_field() {
    // Koordinator's chart has an empty annotation `template`, which its manager fills.
    for annotations in [json!({}), json!({"template": ""})] {
        let chart = |manifest: &Value, policy: &str| {
            let mut manifest = manifest.clone();
            manifest["metadata"]["annotations"] = annotations.clone();
            for entry in manifest["webhooks"].as_array_mut().unwrap() {
                entry["failurePolicy"] = json!(policy);
            }
            manifest
        };
        let cluster = Cluster::start().await;
        let all = configurations(&cluster);
        for (api, manifest) in &all {
            apply(api, &chart(manifest, "Ignore"), true).await;
        }
        let manager = cluster.manager(options(settings(None)));
        tokio::time::sleep(Duration::from_secs(30)).await;
        for policy in ["Fail", "Ignore"] {
            for (api, manifest) in &all {
                let name = manifest["metadata"]["name"].as_str().unwrap();
                apply(api, &chart(manifest, policy), true).await;
                tokio::time::sleep(Duration::from_secs(20)).await;
                let after = api.get(name).await.unwrap();
                let bundles = bundles(&after);
                assert!(bundles.values().all(Option::is_some), "{bundles:?}");
                let entries = after.data["webhooks"].as_array().unwrap();
                assert!(!entries.is_empty());
                for entry in entries {
                    assert_eq!(entry["failurePolicy"], policy, "{entry}");
                }
            }
        }
        cluster.ctx.shutdown.cancel();
        manager.await.unwrap();
    }
}
