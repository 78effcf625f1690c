//! The pod webhooks as API servers call them, and the controller of profiles.

use crate::cluster::{Cluster, typed};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use koord_api::config::ClusterColocationProfile;
use koord_app::Context;
use koord_app::features::Gates;
use koord_kube::api::PostParams;
use koord_kube::webhook::{Kind, Operation, Request, Resource, User, Verdict, Webhook};
use koord_kube::{Api, ObjectKey, patch};
use koord_manager::webhook::pod::{BindingPolicy, Namespaces, Options, PodQuotas, ProfileLookup};
use koord_manager::webhook::{Deps, Priority, WebhookMetrics, webhooks};
use koord_manager::{GATES, ProfileOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Returns one profile, one namespace with labels, and one PriorityClass.
struct FixedLookup(ClusterColocationProfile);

impl ProfileLookup for FixedLookup {
    fn profiles(&self) -> BoxFuture<'_, Vec<Arc<ClusterColocationProfile>>> {
        async { vec![Arc::new(self.0.clone())] }.boxed()
    }

    fn namespace_labels<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Option<BTreeMap<String, String>>> {
        let labels = BTreeMap::from([("enable-koordinator-colocation".into(), "true".into())]);
        async move { (name == "default").then_some(labels) }.boxed()
    }

    fn priority_class<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Priority>> {
        let batch = Priority {
            value: 5000,
            preemption_policy: None,
        };
        async move { (name == "koord-batch").then_some(batch) }.boxed()
    }
}

/// Quota checks that deny by the name of the pod.
struct DenyByName;

impl PodQuotas for DenyByName {
    fn bind_to_tree(&self, _: &Request, pod: &mut Value) -> Result<(), String> {
        pod["spec"]["nodeSelector"] = json!({"tree": "a"});
        Ok(())
    }

    fn check_quota(&self, request: &Request, _: &Pod, _: Option<&Pod>) -> Result<(), String> {
        let parent = request.name == "of-parent";
        if parent {
            Err("quota is a parent".into())
        } else {
            Ok(())
        }
    }

    fn charge<'a>(
        &'a self,
        request: &'a Request,
        _: &'a Pod,
        _: Option<&'a Pod>,
    ) -> BoxFuture<'a, Result<(), String>> {
        let over = matches!(&*request.name, "too-much" | "of-parent");
        async move {
            if over {
                Err("exceeded quota".into())
            } else {
                Ok(())
            }
        }
        .boxed()
    }
}

/// Returns the example of the documentation.
fn profile() -> Value {
    json!({
        "metadata": {"name": "colocation-profile-example"},
        "spec": {
            "namespaceSelector": {"matchLabels": {"enable-koordinator-colocation": "true"}},
            "selector": {"matchLabels": {"koordinator.sh/enable-colocation": "true"}},
            "qosClass": "BE",
            "priorityClassName": "koord-batch",
            "koordinatorPriority": 1000,
            "schedulerName": "koord-scheduler",
            "labels": {"koordinator.sh/mutated": "true"},
            "annotations": {"koordinator.sh/intercepted": "true"},
            "patch": {"spec": {"terminationGracePeriodSeconds": 30}},
        },
    })
}

struct NoSettings;

impl koord_manager::webhook::SettingsSource for NoSettings {
    fn key(&self) -> ObjectKey {
        ObjectKey::new("koordinator-system", "slo-controller-config")
    }
    fn data(&self) -> Option<BTreeMap<String, String>> {
        None
    }
    fn nodes(&self) -> Vec<(String, BTreeMap<String, String>)> {
        Vec::new()
    }
    fn requires_names(&self) -> bool {
        false
    }
}

pub(crate) fn deps(cluster: &Cluster, gates: &str) -> Deps {
    deps_with(cluster, &cluster.ctx, gates)
}

/// Returns the same as [`deps`], with the metrics registry of another context.
pub(crate) fn deps_with(cluster: &Cluster, ctx: &Context, gates: &str) -> Deps {
    Deps {
        client: cluster.limited.clone(),
        gates: Gates::parse(GATES, gates).unwrap(),
        metrics: WebhookMetrics::new(&ctx.metrics).unwrap(),
        lookup: Arc::new(FixedLookup(typed(profile()))),
        admission: None,
        quotas: None,
        pods: Options::default(),
        settings: Arc::new(NoSettings),
    }
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"koordinator.sh/enable-colocation": "true"}},
        "spec": {
            "schedulerName": "default-scheduler",
            "priority": 0,
            "containers": [{
                "name": "app",
                "image": "i",
                "resources": {
                    "limits": {"cpu": "1", "memory": "3456Mi"},
                    "requests": {"cpu": "1", "memory": "3456Mi"},
                },
            }],
        },
    })
}

pub(crate) fn request(
    operation: Operation,
    object: Option<Value>,
    old_object: Option<Value>,
) -> Request {
    let named = object.as_ref().or(old_object.as_ref()).unwrap();
    Request {
        uid: "u".to_owned(),
        kind: Kind::default(),
        resource: Resource {
            group: String::new(),
            version: "v1".to_owned(),
            resource: "pods".to_owned(),
        },
        sub_resource: String::new(),
        name: named["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        namespace: "default".to_owned(),
        operation,
        user: User {
            name: "kube-scheduler".to_owned(),
            uid: String::new(),
            groups: Vec::new(),
            extra: BTreeMap::new(),
        },
        object,
        old_object,
        dry_run: false,
    }
}

fn webhook(deps: &Deps, path: &str) -> Webhook {
    let mut webhooks = webhooks(deps).into_iter();
    webhooks.find(|webhook| webhook.path == path).unwrap()
}

pub(crate) async fn admit(deps: &Deps, path: &str, request: Request) -> Verdict {
    webhook(deps, path)
        .review(request, Duration::from_secs(10))
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn documented_profile_creates_batch_pod() {
    let cluster = Cluster::start().await;
    let deps = deps(&cluster, "");
    let create = || request(Operation::Create, Some(pod("p")), None);
    let verdict = admit(&deps, "/mutate-pod", create()).await;
    assert!(verdict.allowed, "{verdict:?}");
    let mut operations: Vec<_> = verdict.patch.iter().map(|op| op.to_string()).collect();
    operations.sort();
    let amounts = r#"{"kubernetes.io/batch-cpu":"1k","kubernetes.io/batch-memory":"3456Mi"}"#;
    let spec = json!(format!(
        r#"{{"containers":{{"app":{{"limits":{amounts},"requests":{amounts}}}}}}}"#
    ));
    let resources = "/spec/containers/0/resources";
    let mut want = vec![
        json!({"op": "add", "path": "/metadata/annotations", "value": {
            "koordinator.sh/intercepted": "true",
            "node.koordinator.sh/extended-resource-spec": spec,
        }}),
        json!({"op": "add", "path": "/metadata/labels/koordinator.sh~1mutated", "value": "true"}),
        json!({"op": "add", "path": "/metadata/labels/koordinator.sh~1qosClass", "value": "BE"}),
        json!({"op": "add", "path": "/metadata/labels/koordinator.sh~1priority", "value": "1000"}),
        json!({"op": "replace", "path": "/spec/schedulerName", "value": "koord-scheduler"}),
        json!({"op": "add", "path": "/spec/priorityClassName", "value": "koord-batch"}),
        json!({"op": "replace", "path": "/spec/priority", "value": 5000}),
        json!({"op": "add", "path": "/spec/terminationGracePeriodSeconds", "value": 30}),
    ];
    for side in ["limits", "requests"] {
        for (native, own, amount) in [
            ("cpu", "batch-cpu", "1k"),
            ("memory", "batch-memory", "3456Mi"),
        ] {
            want.push(json!({"op": "remove", "path": format!("{resources}/{side}/{native}")}));
            let path = format!("{resources}/{side}/kubernetes.io~1{own}");
            want.push(json!({"op": "add", "path": path, "value": amount}));
        }
    }
    let mut want: Vec<_> = want.iter().map(Value::to_string).collect();
    want.sort();
    assert_eq!(operations, want);

    // Requests that the webhook does not change: subresources and updates.
    let mut other = create();
    other.sub_resource = "status".to_owned();
    assert_eq!(
        admit(&deps, "/mutate-pod", other).await.patch,
        Vec::<Value>::new()
    );
    let update = request(Operation::Update, Some(pod("p")), Some(pod("p")));
    assert_eq!(
        admit(&deps, "/mutate-pod", update).await.patch,
        Vec::<Value>::new()
    );
    // A namespace that does not exist yet.
    let mut elsewhere = create();
    elsewhere.namespace = "gone".to_owned();
    let verdict = admit(&deps, "/mutate-pod", elsewhere).await;
    assert_eq!(verdict.patch, Vec::<Value>::new());
    assert!(
        verdict.warnings[0].contains("spec.namespaceSelector"),
        "{verdict:?}"
    );
    let text = koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
    let series = r#"koord_manager_webhook_webhook_duration_milliseconds_count{object_type="pod",operation="CREATE",plugin_name="ClusterColocationProfile",status="allowed",webhook_type="mutate"} 2"#;
    assert!(text.contains(series), "{text}");
}

#[tokio::test(start_paused = true)]
async fn malformed_pods_are_refused_with_field_and_value() {
    let cluster = Cluster::start().await;
    let deps = deps(&cluster, "");
    for (field, value, parts) in [
        (
            "metadata",
            json!({"labels": {"a": 7}}),
            ["object: field metadata.labels", "7"],
        ),
        (
            "spec",
            json!({"containers": "many"}),
            ["object: field spec.containers", "many"],
        ),
        ("metadata", json!([]), ["object: field metadata", "[]"]),
    ] {
        for path in ["/mutate-pod", "/validate-pod"] {
            let mut bad = pod("p");
            bad[field] = value.clone();
            let verdict = admit(&deps, path, request(Operation::Create, Some(bad), None)).await;
            assert!(!verdict.allowed && verdict.code == 400, "{verdict:?}");
            assert!(
                parts.iter().all(|part| verdict.message.contains(part)),
                "{}",
                verdict.message
            );
        }
    }
    let mut none = request(Operation::Create, Some(pod("p")), None);
    none.object = None;
    assert_eq!(admit(&deps, "/validate-pod", none).await.code, 400);
    let mut bad = pod("p");
    bad["metadata"]["annotations"] =
        json!({"node.koordinator.sh/extended-resource-spec": "{\"containers\": 7}"});
    let verdict = admit(
        &deps,
        "/mutate-pod",
        request(Operation::Create, Some(bad), None),
    )
    .await;
    assert!(
        !verdict.allowed && verdict.message.contains("extended-resource-spec"),
        "{verdict:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn checks_run_in_order_and_the_first_to_fail_answers() {
    let cluster = Cluster::start().await;
    let mut deps = deps(
        &cluster,
        "MultiQuotaTree=true,ValidatePodDeviceResource=true",
    );
    deps.quotas = Some(Arc::new(DenyByName));
    let placed = admit(
        &deps,
        "/mutate-pod",
        request(Operation::Create, Some(pod("p")), None),
    )
    .await;
    assert!(
        placed
            .patch
            .iter()
            .any(|op| op["path"] == "/spec/nodeSelector"),
        "{placed:?}"
    );

    // Each pod violates one rule more than the one after it.
    let mut gpu = pod("p");
    gpu["spec"]["containers"][0]["resources"]["requests"]["koordinator.sh/gpu"] = json!("150");
    let named = |name: &str| {
        let mut pod = gpu.clone();
        pod["metadata"]["name"] = json!(name);
        pod
    };
    let mut batch = named("of-parent");
    batch["spec"]["containers"][0]["resources"]["requests"]["kubernetes.io/batch-cpu"] = json!("1");
    let mut reserve = batch.clone();
    reserve["metadata"]["annotations"] = json!({"scheduling.koordinator.sh/reserve-pod": "true"});
    for (pod, message) in [
        (reserve, "reserve-pod: Forbidden"),
        (batch, "qosClass: Required value"),
        (named("of-parent"), "quota is a parent"),
        (named("too-much"), "exceeded quota"),
        (gpu.clone(), "Invalid value: \"150\""),
        (pod("p"), ""),
    ] {
        for operation in [Operation::Create, Operation::Update] {
            let old = (operation == Operation::Update).then(|| pod.clone());
            let review = request(operation, Some(pod.clone()), old);
            let verdict = admit(&deps, "/validate-pod", review).await;
            assert_eq!(
                verdict.allowed,
                message.is_empty(),
                "{message}: {verdict:?}"
            );
            assert!(verdict.message.contains(message), "{message}: {verdict:?}");
        }
    }
    let delete = request(Operation::Delete, None, Some(gpu));
    assert!(admit(&deps, "/validate-pod", delete).await.allowed);
}

#[tokio::test(start_paused = true)]
pub(crate) async fn required_labels_are_read_again_and_the_last_ones_stay() {
    let cluster = Cluster::start().await;
    let deps = deps(&cluster, "EnablePodEnhancedValidator=true");
    // One handler, as in a server, because it caches the rules.
    let webhook = webhook(&deps, "/validate-pod");
    let is_allowed = || async {
        let review = request(Operation::Create, Some(pod("p")), None);
        let verdict = webhook
            .review(review, Duration::from_secs(10))
            .await
            .unwrap();
        assert!(
            verdict.allowed || verdict.message.contains("\"team\""),
            "{verdict:?}"
        );
        verdict.allowed
    };
    let configs: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "koordinator-system");
    let name = "pod-enhanced-validator-config";
    let write = |rules: &str| {
        let data = json!({"data": {"enable": "true", "rules": rules}});
        let configs = configs.clone();
        async move { patch::merge(&configs, name, &data).await.unwrap() }
    };
    assert!(is_allowed().await, "there is no ConfigMap");
    let empty = typed(json!({"metadata": {"name": name}}));
    configs
        .create(&PostParams::default(), &empty)
        .await
        .unwrap();
    write(r#"[{"name": "teams", "requiredLabels": ["team"]}]"#).await;
    assert!(is_allowed().await, "it is not read again yet");
    tokio::time::advance(Duration::from_secs(301)).await;
    assert!(!is_allowed().await);
    write("nonsense").await;
    tokio::time::advance(Duration::from_secs(301)).await;
    assert!(!is_allowed().await, "the last rules stay");
    write("[]").await;
    tokio::time::advance(Duration::from_secs(301)).await;
    assert!(is_allowed().await);
}

#[tokio::test(start_paused = true)]
pub(crate) async fn bindings_are_for_listed_users() {
    let cluster = Cluster::start().await;
    let mut deps = deps(&cluster, "BindingAdmissionWebhook=true");
    deps.pods.binding = BindingPolicy {
        users: ["koord-scheduler".to_owned()].into(),
        namespaces: Namespaces::All,
        ..BindingPolicy::default()
    };
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let mut exempt = pod("exempt");
    exempt["metadata"]["labels"]["koordinator.sh/binding-admission-bypass"] = json!("");
    for pod in [pod("plain"), exempt] {
        pods.create(&PostParams::default(), &typed(pod))
            .await
            .unwrap();
    }
    let binding = |pod: &str, user: &str| {
        let object = json!({"metadata": {"name": pod}, "target": {"name": "n1"}});
        let mut review = request(Operation::Create, Some(object), None);
        review.sub_resource = "binding".to_owned();
        review.user.name = user.to_owned();
        review
    };
    for (pod, user, allowed) in [
        ("plain", "koord-scheduler", true),
        ("plain", "kube-scheduler", false),
        ("plain", "not-koord-scheduler", false),
        ("exempt", "kube-scheduler", true),
        ("gone", "kube-scheduler", true),
    ] {
        let verdict = admit(&deps, "/validate-pod-binding", binding(pod, user)).await;
        assert_eq!(verdict.allowed, allowed, "{pod} {user}");
        assert!(
            allowed || (verdict.code == 403 && verdict.message.contains(user)),
            "{verdict:?}"
        );
    }
    let text = koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
    for (decision, count) in [("allowed_username", 1), ("denied", 2), ("bypass_label", 1)] {
        let name = "koord_manager_webhook_binding_admission_decisions_total";
        let series = format!("{name}{{decision=\"{decision}\"}} {count}");
        assert!(text.contains(&series), "{series} is not in {text}");
    }
    deps.gates = Gates::new(GATES);
    assert!(
        admit(
            &deps,
            "/validate-pod-binding",
            binding("plain", "kube-scheduler")
        )
        .await
        .allowed
    );
}

#[tokio::test(start_paused = true)]
pub(crate) async fn pods_that_wait_get_a_profile_that_comes_later() {
    let cluster = Cluster::start().await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let create = |pod: Value| {
        let pods = pods.clone();
        async move {
            pods.create(&PostParams::default(), &typed(pod))
                .await
                .unwrap()
        }
    };
    create(pod("waits")).await;
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = json!("n1");
    create(bound).await;
    let options = koord_manager::Options {
        gates: Gates::parse(GATES, "ColocationProfileController=true").unwrap(),
        colocation_profile: ProfileOptions::default(),
        ..koord_manager::Options::default()
    };
    cluster.manager(options);
    let profiles: Api<ClusterColocationProfile> = Api::all(cluster.client.clone());
    let managed = json!({"config.koordinator.sh/controller-managed": "true"});
    let write = |name: &str, labels: &Value, spec: Value| {
        let profile = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        let profiles = profiles.clone();
        async move {
            profiles
                .create(&PostParams::default(), &typed(profile))
                .await
                .unwrap()
        }
    };
    let selector = json!({"matchLabels": {"koordinator.sh/enable-colocation": "true"}});
    write(
        "ignored",
        &json!({}),
        json!({"selector": selector, "labels": {"from": "ignored"}}),
    )
    .await;
    write(
        "bad",
        &managed,
        json!({"selector": selector, "probability": "often"}),
    )
    .await;
    let spec = json!({
        "selector": selector, "labels": {"from": "managed"}, "labelSuffixes": {"from": "-x"},
        "patch": {"metadata": {"annotations": {"patched": "yes"}}},
    });
    write("managed", &managed, spec).await;
    let mut watch = cluster.watch::<Pod>();
    let label = |pod: &Pod| pod.metadata.labels.as_ref()?.get("from").cloned();
    let is = |pod: &Pod, name: &str| pod.metadata.name.as_deref() == Some(name);
    let from = watch
        .until("a changed pod", |pod| {
            if is(pod, "waits") { label(pod) } else { None }
        })
        .await;
    assert_eq!(from, "managed-x");
    let waits = pods.get("waits").await.unwrap();
    assert_eq!(waits.metadata.annotations.unwrap()["patched"], "yes");
    let version = waits.metadata.resource_version;
    assert_eq!(label(&pods.get("bound").await.unwrap()), None);
    let mut events = cluster.watch::<Event>();
    events
        .until("an event on the malformed profile", |event| {
            let is_about_bad = event.involved_object.name.as_deref() == Some("bad");
            let has_value = event
                .message
                .as_deref()
                .is_some_and(|text| text.contains("\"often\""));
            (is_about_bad && has_value).then_some(())
        })
        .await;
    // Two rounds after the time at which the pod may be updated again.
    tokio::time::sleep(Duration::from_secs(400)).await;
    let waits = pods.get("waits").await.unwrap();
    assert_eq!(
        waits.metadata.resource_version, version,
        "nothing is done twice"
    );
}
