//! Queueing hints of claims: events of a claim concern only the pods that name it.

use super::*;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use koord_scheduler::framework::{ClusterEvent, QueueingHint, Subject};

const CLAIMS: &str = "persistentvolumeclaims.v1.";
const VOLUMES: &str = "persistentvolumes.v1.";

fn pod(name: &str, namespace: &str, volumes: Value) -> Value {
    json!({"metadata": {"name": name, "uid": name, "namespace": namespace},
        "spec": {"containers": [], "volumes": volumes}})
}

#[test]
fn claim_event_hints_only_pods_that_use_it() {
    let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let ephemeral =
        |name: &str| json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
    // Events of claim `data` in `ns`.
    let rows = [
        ("its claim", pod("p", "ns", json!([claim("data")])), true),
        (
            "among others",
            pod("p", "ns", json!([claim("a"), claim("data"), claim("z")])),
            true,
        ),
        (
            "in another namespace",
            pod("p", "other", json!([claim("data")])),
            false,
        ),
        (
            "another claim",
            pod("p", "ns", json!([claim("date")])),
            false,
        ),
        ("no claim", pod("p", "ns", json!([])), false),
        (
            "made for it",
            pod("da", "ns", json!([ephemeral("ta")])),
            false,
        ),
        (
            "made for another pod",
            pod("x", "ns", json!([ephemeral("data")])),
            false,
        ),
    ];
    let object: PersistentVolumeClaim =
        serde_json::from_value(json!({"metadata": {"name": "data", "namespace": "ns"}})).unwrap();
    let change_of = |kind: &'static str, new: Arc<dyn Any + Send + Sync>| ObjectChange {
        kind,
        action: Action::ADD,
        old: None,
        new,
    };
    let change = change_of(CLAIMS, Arc::new(object));
    let volume = change_of(VOLUMES, Arc::new(PersistentVolume::default()));
    fn event(change: &ObjectChange) -> ClusterEvent<'_> {
        ClusterEvent {
            subject: Subject::Object(CLAIMS),
            action: Action::ADD,
            node: None,
            pod: None,
            object: Some(change),
        }
    }
    for plugin in [
        "VolumeBinding",
        "VolumeZone",
        "NodeVolumeLimits",
        "VolumeRestrictions",
    ] {
        let alone = Alone::new(plugin, json!({}));
        let hints = alone.plugin.queue_hints().unwrap();
        let (change, volume) = (
            alone.as_delivered(change.clone()),
            alone.as_delivered(volume.clone()),
        );
        let about = hints.event_subject(&event(&change));
        assert_eq!(about.as_deref(), Some("ns/data"), "{plugin}");
        assert_eq!(hints.event_subject(&event(&volume)), None, "{plugin}");
        for (name, pod, expected) in &rows {
            let pod = Arc::new(serde_json::from_value(pod.clone()).unwrap());
            let pod = PodInfo::new(pod, alone.engine.cluster().resources()).unwrap();
            let is_named = hints.referenced_objects(&pod).contains(&"ns/data");
            let helps = hints.hint(&pod, &event(&change), alone.view()) == QueueingHint::Queue;
            assert_eq!(
                (is_named, helps),
                (*expected, *expected),
                "{plugin}: {name}"
            );
        }
    }
    // The claim of a generic ephemeral volume is named after pod and volume.
    let alone = Alone::new("VolumeBinding", json!({}));
    let hints = alone.plugin.queue_hints().unwrap();
    let pod = pod("p", "ns", json!([ephemeral("data")]));
    let pod = PodInfo::new(
        Arc::new(serde_json::from_value(pod).unwrap()),
        alone.engine.cluster().resources(),
    );
    assert_eq!(hints.referenced_objects(&pod.unwrap()), ["ns/p-data"]);
}
