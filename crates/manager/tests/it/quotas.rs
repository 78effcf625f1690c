//! Admission of quotas and of their pods on two replicas, and the controller of quota profiles.

use crate::cluster::{Cluster, typed};
use k8s_openapi::api::core::v1::{Event, Namespace};
use koord_api::quota::ElasticQuotaProfile;
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use koord_app::Context;
use koord_app::features::Gates;
use koord_kube::api::PostParams;
use koord_kube::webhook::Operation::{Create, Delete, Update};
use koord_kube::webhook::{Kind, Operation, Request, Resource, User, Verdict, Webhook};
use koord_kube::{Api, patch};
use koord_manager::webhook::ServeMode;
use koord_manager::{GATES, Options};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

const MUTATE: &str = "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota";
const VALIDATE: &str = "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota";

/// The webhooks of one manager.
#[derive(Clone)]
struct Replica(Arc<Vec<Webhook>>);

impl Replica {
    async fn start(cluster: &Cluster) -> Self {
        let (sender, receiver) = oneshot::channel();
        let sender = parking_lot::Mutex::new(Some(sender));
        let give = move |webhooks| {
            if let Some(sender) = sender.lock().take() {
                assert!(sender.send(webhooks).is_ok());
            }
        };
        let options = Options {
            gates: Gates::parse(GATES, "EnableQuotaAdmission=true,MultiQuotaTree=true").unwrap(),
            webhooks: ServeMode::InProcess(Arc::new(give)),
            ..Options::default()
        };
        // Each replica has metrics of its own, because both are in one process.
        let ctx = Context {
            shutdown: cluster.ctx.shutdown.clone(),
            ..Context::with_clock(cluster.ctx.clock.clone())
        };
        let run = koord_manager::run(options, cluster.limited.clone(), ctx);
        tokio::spawn(async move { run.await.unwrap() });
        Self(Arc::new(receiver.await.unwrap()))
    }

    async fn send(
        &self,
        path: &str,
        operation: Operation,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Verdict {
        self.review(path, operation, old, new, false).await
    }

    async fn review(
        &self,
        path: &str,
        operation: Operation,
        old: Option<&Value>,
        new: Option<&Value>,
        dry_run: bool,
    ) -> Verdict {
        let object = new.or(old).unwrap();
        let resource = if path.ends_with("pod") {
            "pods"
        } else {
            "elasticquotas"
        };
        let request = Request {
            uid: "u".to_owned(),
            kind: Kind::default(),
            resource: Resource {
                resource: resource.to_owned(),
                ..Resource::default()
            },
            sub_resource: String::new(),
            name: object["metadata"]["name"].as_str().unwrap().to_owned(),
            namespace: "default".to_owned(),
            operation,
            user: User::anonymous(),
            object: new.cloned(),
            old_object: old.cloned(),
            dry_run,
        };
        let webhook = self.0.iter().find(|webhook| webhook.path == path).unwrap();
        let verdict = webhook.review(request, Duration::from_secs(10)).await;
        verdict.unwrap()
    }
}

fn quota(name: &str, labels: Value, min: i64, max: i64) -> Value {
    json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"min": {"cpu": min}, "max": {"cpu": max}},
    })
}

fn pod(name: &str, quota: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "labels": {labels::POD_QUOTA_NAME: quota}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
    })
}

/// Verifies that the older of two quotas with one name counts. The other counts from the moment on at which
/// the older is deleted, long before the next resync.
#[tokio::test(start_paused = true)]
async fn second_quota_of_a_name_counts_once_the_first_is_deleted() {
    let cluster = Cluster::start().await;
    let replica = Replica::start(&cluster).await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let other = json!({"metadata": {"name": "other"}});
    let params = PostParams::default();
    namespaces.create(&params, &typed(other)).await.unwrap();
    let parent_quota = |namespace: &str, min: i64| {
        let mut quota = quota("parent", json!({labels::QUOTA_IS_PARENT: "true"}), min, 100);
        quota["metadata"]["namespace"] = json!(namespace);
        let api: Api<ElasticQuota> = Api::namespaced(cluster.client.clone(), namespace);
        (api, typed::<ElasticQuota>(quota))
    };
    let (first, second) = (parent_quota("default", 2), parent_quota("other", 9));
    first.0.create(&params, &first.1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    second.0.create(&params, &second.1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let child = quota("child", json!({labels::QUOTA_PARENT: "parent"}), 4, 100);
    let validate_child = async || {
        let verdict = replica
            .review(VALIDATE, Create, None, Some(&child), true)
            .await;
        (verdict.allowed, verdict.message)
    };
    let (allowed, message) = validate_child().await;
    assert!(
        !allowed && message.contains("checkMinQuotaSum"),
        "{message}"
    );
    let (api, _) = first;
    api.delete("parent", &Default::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(validate_child().await, (true, String::new()));
}

#[tokio::test(start_paused = true)]
pub(crate) async fn replicas_agree_on_quotas_without_overdraw() {
    let cluster = Cluster::start().await;
    let (first, second) = (
        Replica::start(&cluster).await,
        Replica::start(&cluster).await,
    );
    let quotas: Api<ElasticQuota> = Api::namespaced(cluster.client.clone(), "default");
    let parent = quota("parent", json!({labels::QUOTA_IS_PARENT: "true"}), 10, 100);
    let filled = first.send(MUTATE, Create, None, Some(&parent)).await;
    let mut paths: Vec<_> = filled
        .patch
        .iter()
        .map(|op| op["path"].as_str().unwrap())
        .collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        [
            "/metadata/annotations",
            "/metadata/labels/quota.scheduling.koordinator.sh~1parent"
        ]
    );
    let child = quota("child", json!({labels::QUOTA_PARENT: "parent"}), 4, 100);
    for quota in [&parent, &child] {
        let verdict = first.send(VALIDATE, Create, None, Some(quota)).await;
        assert!(verdict.allowed, "{}", verdict.message);
        quotas
            .create(&PostParams::default(), &typed(quota.clone()))
            .await
            .unwrap();
    }
    // The other replica receives them through its own watch.
    let sibling = quota("sibling", json!({labels::QUOTA_PARENT: "parent"}), 7, 100);
    let refused = loop {
        // A dry run: until its watch is in sync, the replica may admit.
        let verdict = second
            .review(VALIDATE, Create, None, Some(&sibling), true)
            .await;
        if !verdict.message.contains("not find parentInfo") && !verdict.allowed {
            break verdict.message;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(
        refused,
        "checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: parent"
    );
    let mut grown = child.clone();
    grown["spec"]["min"]["cpu"] = json!(11);
    let verdict = second
        .send(VALIDATE, Update, Some(&child), Some(&grown))
        .await;
    assert!(!verdict.allowed && verdict.code == 400, "{verdict:?}");
    let verdict = second.send(VALIDATE, Delete, Some(&parent), None).await;
    assert_eq!(
        verdict.message,
        "delete quota failed, quota parent has 1 child quotas"
    );
    let verdict = first
        .send("/validate-pod", Create, None, Some(&pod("p", "parent")))
        .await;
    assert!(
        verdict.message.contains("parentQuotaGroup,quota:parent"),
        "{verdict:?}"
    );

    // Two replicas, a hundred pods, room for thirty.
    let change =
        json!({"metadata": {"annotations": {annotations::QUOTA_ADMISSION: "{\"cpu\":\"30\"}"}}});
    patch::merge(&quotas, "child", &change).await.unwrap();
    // A dry run is not charged; a charge would show in the sum below.
    let dry = pod("dry", "child");
    let verdict = second
        .review("/validate-pod", Create, None, Some(&dry), true)
        .await;
    assert!(verdict.allowed, "{verdict:?}");
    let mut writers = Vec::new();
    for index in 0..100_u64 {
        let replica = if index.is_multiple_of(2) {
            first.clone()
        } else {
            second.clone()
        };
        writers.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(index % 9)).await;
            let pod = pod(&format!("p{index}"), "child");
            let verdict = replica
                .send("/validate-pod", Create, None, Some(&pod))
                .await;
            (verdict.allowed, verdict.message)
        }));
    }
    let mut granted = 0;
    let mut refusals = Vec::new();
    for writer in writers {
        match writer.await.unwrap() {
            (true, _) => granted += 1,
            (false, message) => refusals.push(message),
        }
    }
    let used = quotas.get("child").await.unwrap();
    let used = used.amounts(annotations::QUOTA_CHILD_REQUEST).unwrap();
    assert_eq!(used.get("cpu").map(|cpu| cpu.value()), Some(granted));
    assert!((1..=30).contains(&granted), "{granted} of 30: {refusals:?}");
    assert!(
        refusals
            .iter()
            .any(|reason| reason
                .contains("exceeded quota: default/child, requested: cpu=1, used: cpu=")),
        "{refusals:?}"
    );
}

#[tokio::test(start_paused = true)]
pub(crate) async fn profile_sizes_quota_by_its_nodes() {
    let cluster = Cluster::start().await;
    cluster.manager(Options::default());
    for (node, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        cluster
            .add_node(node, json!({"zone": zone}), "10", "64Gi")
            .await;
    }
    let profiles: Api<ElasticQuotaProfile> = Api::namespaced(cluster.client.clone(), "default");
    let profile = json!({
        "metadata": {"name": "zone-a", "namespace": "default"},
        "spec": {"quotaName": "zone-a-root", "quotaLabels": {"team": "x"},
            "nodeSelector": {"matchLabels": {"zone": "a"}}},
    });
    profiles
        .create(&PostParams::default(), &typed(profile))
        .await
        .unwrap();
    let mut quotas = cluster.watch::<ElasticQuota>();
    let min = |cpu: &'static str| {
        move |quota: &ElasticQuota| {
            let amount = quota.spec.min.get("cpu")?.to_string();
            (amount == cpu).then(|| quota.clone())
        }
    };
    let quota = quotas.until("a quota of two nodes", min("20")).await;
    assert_eq!(quota.metadata.name.as_deref(), Some("zone-a-root"));
    assert_eq!(quota.label(labels::QUOTA_PROFILE), "zone-a");
    assert_eq!(quota.label("team"), "x");
    assert!(quota.is_tree_root());
    let of_profile = profiles
        .get("zone-a")
        .await
        .unwrap()
        .metadata
        .labels
        .unwrap();
    assert_eq!(
        of_profile[labels::QUOTA_TREE_ID],
        quota.label(labels::QUOTA_TREE_ID)
    );
    assert_eq!(quota.spec.max["memory"].to_string(), "4611686018427387");
    // No node has reported that it is ready.
    let unschedulable = quota
        .amounts(annotations::QUOTA_UNSCHEDULABLE_RESOURCE)
        .unwrap();
    assert_eq!(unschedulable["memory"].to_string(), "128Gi");
    cluster
        .add_node("a3", json!({"zone": "a"}), "10", "64Gi")
        .await;
    quotas.until("a quota of three nodes", min("30")).await;

    // The profile is processed every ten seconds, and a problem is reported only when it appears.
    let bad = json!({
        "metadata": {"name": "bad", "namespace": "default"},
        "spec": {"quotaName": "bad-root", "nodeSelector": {}, "resourceRatio": "7"},
    });
    profiles
        .create(&PostParams::default(), &typed(bad))
        .await
        .unwrap();
    let count = |event: &Event| {
        let message = event.message.as_ref()?;
        let is_ratio = message.starts_with("spec.resourceRatio \"7\"");
        is_ratio.then_some(event.count)
    };
    let mut events = cluster.watch::<Event>();
    events.until("an event", count).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(events.until("an event", count).await, Some(1));
}
