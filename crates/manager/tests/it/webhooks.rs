//! Webhooks as API servers see them: certificates, configurations, calls over HTTPS.

use crate::cluster::{Cluster, typed};
use axum::http::Request;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::config::ClusterColocationProfile;
use koord_api::scheduling::ElasticQuota;
use koord_app::Context;
use koord_app::features::Gates;
use koord_kube::api::{DeleteParams, PostParams};
use koord_kube::certs::CertManager;
use koord_kube::client::{Peer, to_peer};
use koord_kube::{Api, patch};
use koord_manager::webhook::{MUTATING, ServeMode, Settings, VALIDATING, manifests};
use koord_manager::{GATES, Options};
use serde_json::{Value, json};
use std::time::Duration;

const SECRET: &str = "koordinator-webhook-certs";
const HOST: &str = "koordinator-webhook-service.koordinator-system.svc";

/// Returns upstream's defaults, but with a local address.
pub(crate) fn settings(host: Option<&str>) -> Settings {
    let mut settings = Settings::from_env(|_| None).unwrap();
    settings.address = "127.0.0.1:0".parse().unwrap();
    settings.host = host.map(str::to_owned);
    settings
}

pub(crate) fn options(settings: Settings) -> Options {
    Options {
        webhooks: ServeMode::Https(settings),
        ..Options::default()
    }
}

/// Creates the webhook configurations of the manifests.
pub(crate) async fn install(cluster: &Cluster) {
    let [mutating, validating] = manifests(&settings(None).service);
    let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
    let params = PostParams::default();
    api.create(&params, &typed(mutating)).await.unwrap();
    let api: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    api.create(&params, &typed(validating)).await.unwrap();
}

/// Returns the `caBundle` that the API server uses for pods.
fn bundle(configuration: &MutatingWebhookConfiguration) -> Option<Vec<u8>> {
    let webhook = configuration.webhooks.as_ref()?.first()?;
    Some(webhook.client_config.ca_bundle.as_ref()?.0.clone())
}

fn data(secret: &Secret, key: &str) -> Vec<u8> {
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    data.map(|bytes| bytes.0.clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
pub(crate) async fn certificates_are_created_published_and_repaired() {
    let cluster = Cluster::start().await;
    let manager = cluster.manager(options(settings(None)));
    let mut secrets = cluster.watch::<Secret>();
    let secret = secrets
        .until("the certificates", |secret| Some(secret.clone()))
        .await;
    assert_eq!(secret.metadata.name.as_deref(), Some(SECRET));
    let keys: Vec<_> = secret
        .data
        .iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .collect();
    let expected = [
        "ca-cert.pem",
        "ca-key.pem",
        "cert.pem",
        "key.pem",
        "tls.crt",
        "tls.key",
    ];
    assert_eq!(keys, expected);
    assert_eq!(data(&secret, "tls.crt"), data(&secret, "cert.pem"));

    // The configurations are created after the manager started, and are detected at once.
    let began = cluster.ctx.clock.now();
    install(&cluster).await;
    let mut configurations = cluster.watch::<MutatingWebhookConfiguration>();
    let configuration = configurations
        .until("a caBundle", |c| bundle(c).map(|_| c.clone()))
        .await;
    let took = cluster.ctx.clock.now().duration_since(began);
    assert!(took.as_secs() < 20, "{took}");
    assert_eq!(bundle(&configuration), Some(data(&secret, "ca-cert.pem")));
    let metrics = koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
    let expiry = metrics
        .lines()
        .find_map(|line| {
            line.strip_prefix("koord_manager_webhook_certificate_expiry_timestamp_seconds ")
        })
        .map(|seconds| seconds.parse::<i64>().unwrap());
    assert!(
        expiry.is_some_and(|at| at > began.as_second()),
        "{expiry:?}: {metrics}"
    );
    let template = &configuration.metadata.annotations.unwrap()["koordinator.sh/webhook-template"];
    let template: Value = serde_json::from_str(template).unwrap();
    assert_eq!(template[0]["clientConfig"].get("caBundle"), None);
    // A webhook whose gate is off is in the template only.
    let off = "/mutate-reservation";
    assert!(template.to_string().contains(off));
    let entries = serde_json::to_string(&configuration.webhooks).unwrap();
    assert!(!entries.contains(off), "{entries}");

    // The stored key is damaged: key and certificate are replaced, and the CA stays.
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), "koordinator-system");
    let broken = json!({"data": {"key.pem": "eA=="}});
    patch::merge(&api, SECRET, &broken).await.unwrap();
    let mended = secrets
        .until("a new key", |s| {
            (data(s, "key.pem") != b"x" && data(s, "key.pem") != data(&secret, "key.pem"))
                .then(|| s.clone())
        })
        .await;
    assert_eq!(data(&mended, "ca-cert.pem"), data(&secret, "ca-cert.pem"));

    // The Secret is deleted: a new CA is created, and published in `caBundle`.
    api.delete(SECRET, &DeleteParams::default()).await.unwrap();
    let other = configurations
        .until("another caBundle", |c| {
            bundle(c).filter(|b| *b != data(&secret, "ca-cert.pem"))
        })
        .await;
    let stored = api.get(SECRET).await.unwrap();
    assert_eq!(other, data(&stored, "ca-cert.pem"));

    // The entries of a configuration are deleted.
    let configs: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    let mut validating = configs.get(VALIDATING).await.unwrap();
    validating.webhooks = None;
    configs
        .replace(VALIDATING, &PostParams::default(), &validating)
        .await
        .unwrap();
    let mut configurations = cluster.watch::<ValidatingWebhookConfiguration>();
    configurations
        .until("the entries", |c| {
            c.webhooks.as_ref().filter(|w| !w.is_empty()).map(|_| ())
        })
        .await;
    cluster.ctx.shutdown.cancel();
    manager.await.unwrap();
}

/// Verifies that the manager gives way to another writer that removes an entry each time, such as
/// Koordinator's manager with its default gates. It stops restoring the entry after three times, and still
/// repairs what makes the other entries unusable.
#[tokio::test(start_paused = true)]
async fn conflicting_replicas_stop_rewriting_each_other() {
    let cluster = Cluster::start().await;
    let manager = cluster.manager(options(settings(None)));
    install(&cluster).await;
    let api: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    let other = "vconfigmap.koordinator.sh";
    let params = PostParams::default();
    let has = |c: &ValidatingWebhookConfiguration| {
        let mut webhooks = c.webhooks.iter().flatten();
        webhooks.any(|w| w.name == other && w.client_config.ca_bundle.is_some())
    };
    let wait_for_entry = async || loop {
        let configuration = api.get(VALIDATING).await.unwrap();
        if has(&configuration) {
            return configuration;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    let leave_out = async |mut c: ValidatingWebhookConfiguration| {
        c.webhooks.as_mut().unwrap().retain(|w| w.name != other);
        api.replace(VALIDATING, &params, &c).await.unwrap()
    };
    let mut without_entry = ValidatingWebhookConfiguration::default();
    for _ in 0..4 {
        let configuration = tokio::time::timeout(Duration::from_secs(60), wait_for_entry()).await;
        without_entry = leave_out(configuration.expect("the entry again")).await;
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    let now = api.get(VALIDATING).await.unwrap();
    assert_eq!(now.metadata.generation, without_entry.metadata.generation);

    let entry = &mut without_entry.webhooks.as_mut().unwrap()[0];
    entry.client_config.ca_bundle = Some(ByteString(b"other".to_vec()));
    api.replace(VALIDATING, &params, &without_entry)
        .await
        .unwrap();
    let mended = tokio::time::timeout(Duration::from_secs(60), wait_for_entry()).await;
    let mended = mended.expect("the certificate");
    let mut bundles = mended
        .webhooks
        .iter()
        .flatten()
        .map(|w| &w.client_config.ca_bundle);
    assert!(bundles.all(|b| b.as_ref().is_some_and(|b| b.0 != b"other")));

    // After an hour without changes it tries again.
    leave_out(mended).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!has(&api.get(VALIDATING).await.unwrap()));
    tokio::time::sleep(Duration::from_secs(4000)).await;
    assert!(has(&api.get(VALIDATING).await.unwrap()));
    cluster.ctx.shutdown.cancel();
    manager.await.unwrap();
}

/// Verifies that two replicas share one certificate, also when they start at once, and that one which expires
/// soon or has expired is replaced.
#[tokio::test(start_paused = true)]
async fn replicas_share_and_renew() {
    let cluster = Cluster::start().await;
    let keeper =
        || CertManager::in_secret(cluster.client.clone(), "koordinator-system", SECRET, HOST);
    let (a, b) = (keeper(), keeper());
    let now = |text: &str| text.parse().unwrap();
    let start = now("2026-01-01T00:00:00Z");
    let (first, second) = tokio::join!(a.ensure(start), b.ensure(start));
    let first = first.unwrap();
    assert_eq!(first, second.unwrap());
    for (time, renewed, same_authority) in [
        ("2035-06-01T00:00:00Z", false, true),
        ("2035-08-01T00:00:00Z", true, false),
    ] {
        let (a, b) = tokio::join!(a.ensure(now(time)), b.ensure(now(time)));
        let a = a.unwrap();
        assert_eq!(a, b.unwrap());
        assert_eq!(
            (a != first, a.ca_cert == first.ca_cert),
            (renewed, same_authority),
            "{time}"
        );
    }
    let expired = a.ensure(now("2060-01-01T00:00:00Z")).await.unwrap();
    expired.check(HOST, now("2060-01-01T00:00:00Z")).unwrap();
}

/// Verifies that the API server calls over the network, trusts only the manager's CA, and applies the failure
/// policy when no manager responds.
#[tokio::test]
async fn pods_are_admitted_over_https() {
    let cluster = Cluster::start().await;
    install(&cluster).await;
    let classes: Api<PriorityClass> = Api::all(cluster.client.clone());
    for class in koord_api::priority_class_values() {
        classes
            .create(&PostParams::default(), &typed(class))
            .await
            .unwrap();
    }
    let profile: ClusterColocationProfile = typed(json!({
        "apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile",
        "metadata": {"name": "batch"},
        "spec": {"selector": {"matchLabels": {"job": "yes"}}, "qosClass": "BE",
            "priorityClassName": "koord-batch"},
    }));
    let profiles: Api<ClusterColocationProfile> = Api::all(cluster.client.clone());
    profiles
        .create(&PostParams::default(), &profile)
        .await
        .unwrap();
    let mut settings = settings(Some("127.0.0.1"));
    // With `host` set, the certificates would be read from files.
    settings.directory = None;
    let ctx = Context::with_clock(cluster.ctx.clock.clone());
    let options = Options {
        gates: Gates::parse(GATES, "ElasticQuotaDump=true").unwrap(),
        ..options(settings)
    };
    let run = koord_manager::run(options, cluster.limited.clone(), ctx.clone());
    let manager = tokio::spawn(run);
    let mut configurations = cluster.watch::<MutatingWebhookConfiguration>();
    let configuration = configurations
        .until("a caBundle", |c| bundle(c).map(|_| c.clone()))
        .await;
    assert_eq!(configuration.metadata.name.as_deref(), Some(MUTATING));
    let url = configuration.webhooks.unwrap()[0]
        .client_config
        .url
        .clone()
        .unwrap();
    assert!(
        url.starts_with("https://127.0.0.1:") && url.ends_with("/mutate-pod"),
        "{url}"
    );
    let mut validated = cluster.watch::<ValidatingWebhookConfiguration>();
    validated
        .until("its caBundle", |c| {
            c.webhooks
                .as_ref()?
                .first()?
                .client_config
                .ca_bundle
                .clone()
        })
        .await;

    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let pod = |name: &str, labels: Value| -> Pod {
        typed(
            json!({"metadata": {"name": name, "labels": labels}, "spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}),
        )
    };
    let params = PostParams::default();
    let created = pods
        .create(&params, &pod("a", json!({"job": "yes"})))
        .await
        .unwrap();
    assert_eq!(
        created.metadata.labels.unwrap()["koordinator.sh/qosClass"],
        "BE"
    );
    assert_eq!(created.spec.unwrap().priority, Some(5000));
    let plain = pods.create(&params, &pod("b", json!({}))).await.unwrap();
    assert_eq!(plain.metadata.annotations, None);
    // QoS class BE without a priority class of its band.
    let refused = pods
        .create(&params, &pod("c", json!({"koordinator.sh/qosClass": "BE"})))
        .await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("vpod.koordinator.sh") && refused.contains("BE"),
        "{refused}"
    );

    // The replica's dump of its quotas, in the format of upstream's program.
    let quotas: Api<ElasticQuota> = Api::namespaced(cluster.client.clone(), "default");
    let quota =
        json!({"metadata": {"name": "q"}, "spec": {"max": {"cpu": "4"}, "min": {"cpu": "2"}}});
    quotas.create(&params, &typed(quota)).await.unwrap();
    let peer = Peer {
        url: url.trim_end_matches("/mutate-pod").to_owned(),
        insecure: true,
        ..Peer::default()
    };
    let peer = to_peer(&peer).await.unwrap();
    let request = Request::get("/elasticQuota").body(Vec::new()).unwrap();
    let dump: Value = serde_json::from_str(&peer.request_text(request).await.unwrap()).unwrap();
    let expected = json!({"name": "q", "parentName": "koordinator-root-quota", "isParent": false,
        "allowLentResource": true, "max": {"cpu": "4"}, "min": {"cpu": "2"}});
    assert_eq!(dump["quotaInfoMap"], json!({ "q": expected }));
    let children = json!({"koordinator-root-quota": ["q"], "q": []});
    assert_eq!(dump["quotaHierarchyInfo"], children);

    ctx.shutdown.cancel();
    manager.await.unwrap().unwrap();
    let refused = pods
        .create(&params, &pod("d", json!({})))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("failed calling webhook"), "{refused}");
    let ignores =
        json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
    let ignores: koord_kube::api::Patch<()> =
        koord_kube::api::Patch::Json(serde_json::from_value(ignores).unwrap());
    let configs: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
    configs
        .patch(MUTATING, &Default::default(), &ignores)
        .await
        .unwrap();
    let configs: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    configs
        .patch(VALIDATING, &Default::default(), &ignores)
        .await
        .unwrap();
    pods.create(&params, &pod("d", json!({}))).await.unwrap();
}

#[tokio::test(start_paused = true)]
pub(crate) async fn install_creates_missing_objects_and_keeps_existing() {
    let cluster = Cluster::bare().await;
    let classes: Api<PriorityClass> = Api::all(cluster.client.clone());
    let own: PriorityClass = typed(json!({"metadata": {"name": "koord-batch"}, "value": 5001}));
    classes.create(&PostParams::default(), &own).await.unwrap();
    let manager = cluster.manager(Options {
        install: true,
        ..Options::default()
    });
    let mut watch = cluster.watch::<PriorityClass>();
    // This class is created last.
    watch
        .until("koord-free", |c| {
            (c.metadata.name.as_deref() == Some("koord-free")).then_some(())
        })
        .await;
    assert_eq!(classes.get("koord-batch").await.unwrap().value, 5001);
    let profiles: Api<ClusterColocationProfile> = Api::all(cluster.client.clone());
    assert!(
        profiles
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    cluster.ctx.shutdown.cancel();
    manager.await.unwrap();
}
