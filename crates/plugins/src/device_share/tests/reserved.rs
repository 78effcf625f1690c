//! Reservations in the form in which the engine and other plugins handle them: as pods that stand for them,
//! are treated as removed for their owners, and are nominated.

use super::*;
use crate::common::allocate_policy::RESERVATIONS;
use k8s_openapi::api::core::v1::ObjectReference;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::Factory;
use koord_scheduler::framework::{ObjectEvents, Release, Roles, Sign};

const HOLDS: &str = "holds.v1.test";

/// Test plugin that books reservations and lets each pod with label `owner` use the reservations named by its
/// value.
#[derive(Debug, Default)]
struct Holder;

fn owner(pod: &PodInfo) -> Option<&str> {
    pod.label("owner")
}

impl Plugin for Holder {
    const ROLES: Roles<Self> = Roles::none().sign().release().object_events();

    fn name(&self) -> &'static str {
        "Holder"
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER.or(Points::FILTER)
    }
}

impl Sign for Holder {
    fn sign(&self, _: &PodInfo, _: &ResourceTable, _: &mut Signature) -> Signable {
        Signable::No
    }
}

impl ObjectEvents for Holder {
    fn on_object(&mut self, change: &ObjectChange, _view: View<'_>, fx: &mut Effects) {
        if let Some(pod) = change.new_as::<PodInfo>() {
            fx.apply.push(Arc::new(pod.clone()));
        }
    }
}

impl Release for Holder {
    fn released(
        &self,
        cycle: &Cycle<'_>,
        _state: &State,
        node: NodeIndex,
        out: &mut Vec<Arc<PodInfo>>,
    ) {
        let reservation = owner(cycle.pod);
        let holders = cycle.view.nodes.booked(node).filter(|pod| pod.is_holder());
        // `r` owns `r`, `r2`, …
        let own = |pod: &&Arc<PodInfo>| {
            reservation.is_some_and(|reservation| pod.uid.starts_with(reservation))
        };
        out.extend(holders.filter(own).cloned());
    }
    fn nominate(
        &self,
        _: &Cycle<'_>,
        _: &State,
        _: NodeIndex,
        agreed: &[Arc<PodInfo>],
    ) -> Option<Arc<PodInfo>> {
        agreed.iter().min_by(|a, b| a.uid.cmp(&b.uid)).cloned()
    }
}

/// Creates an engine whose node has two GPUs; a reservation with this allocate policy holds half of minor 1.
fn reserved(policy: Option<&str>) -> Engine {
    let mut engine = with_policy(policy);
    stand_in(&mut engine, "r", 1);
    engine
}

/// Creates an engine whose node has two GPUs and a reservation with this allocate policy that holds nothing
/// yet.
fn with_policy(policy: Option<&str>) -> Engine {
    let mut registry = crate::registry();
    registry.factories.push(Factory {
        name: "Holder",
        default_weight: None,
        koord_weight: None,
        build: |_, _| Ok(Box::new(Holder)),
    });
    let mut engine = engine_with(json!({}), registry, &["Holder"], &[]);
    engine.node_applied(node("n", json!({})), now());
    engine.object_changed(&device("n", devices(2)), now());
    let mut object = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "r", "uid": "r"}, "spec": {"template": {}, "owners": []}
    });
    if let Some(policy) = policy {
        object["spec"]["allocatePolicy"] = json!(policy);
    }
    let object: scheduling::Reservation = serde_json::from_value(object).unwrap();
    let change = ObjectChange {
        kind: RESERVATIONS,
        action: Action::ADD,
        old: None,
        new: Arc::new(object),
    };
    engine.object_changed(&change, now());
    engine
}

/// Adds a reservation that holds half of a GPU.
fn stand_in(engine: &mut Engine, uid: &str, minor: u8) {
    let half_gpu = json!({"gpu": [{"minor": minor, "resources": {"koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory-ratio": "50", "koordinator.sh/gpu-memory": "40Gi"}}]});
    let mut pod = gpu(uid, 50);
    pod["spec"]["nodeName"] = json!("n");
    pod["metadata"]["annotations"] =
        annotated("device-allocated", &half_gpu)["annotations"].clone();
    let info = PodInfo::new(object(pod), &ResourceTable::new()).unwrap();
    let info = info.into_holder(ObjectReference {
        kind: Some("Reservation".to_owned()),
        name: Some(uid.to_owned()),
        ..ObjectReference::default()
    });
    let change = ObjectChange {
        kind: HOLDS,
        action: Action::ADD,
        old: None,
        new: Arc::new(info),
    };
    engine.object_changed(&change, now());
}

fn owned(name: &str, percent: u32) -> Value {
    let mut pod = gpu(name, percent);
    pod["metadata"]["labels"] = json!({"owner": "r"});
    pod
}

#[test]
fn reserved_devices_serve_owners_only() {
    let mut engine = reserved(None);
    assert_eq!(place(&mut engine, gpu("a", 100)), "n: gpu 0");
    assert_eq!(
        place(&mut engine, gpu("b", 60)),
        refused("Insufficient GPU Devices")
    );
    assert_eq!(place(&mut engine, gpu("c", 50)), "n: gpu 1");
    assert_eq!(
        place(&mut engine, gpu("d", 10)),
        refused("Insufficient GPU Devices")
    );
    assert_eq!(place(&mut engine, owned("e", 30)), "n: gpu 1");
    assert_eq!(
        place(&mut engine, gpu("f", 10)),
        refused("Insufficient GPU Devices")
    );
    assert_eq!(place(&mut engine, owned("g", 20)), "n: gpu 1");
    assert_eq!(
        place(&mut engine, owned("h", 10)),
        refused("Insufficient GPU Devices")
    );
}

#[test]
fn owners_take_reserved_devices_first() {
    for (policy, expected) in [
        (None, "n: gpu 1".to_owned()),
        (Some("Aligned"), "n: gpu 1".to_owned()),
        (Some("Restricted"), "n: gpu 0".to_owned()),
    ] {
        let mut engine = reserved(policy);
        assert_eq!(place(&mut engine, owned("a", 40)), "n: gpu 1", "{policy:?}");
        // More than is left of the reservation: the rest of its device, or another device.
        assert_eq!(place(&mut engine, owned("b", 60)), expected, "{policy:?}");
    }
    let mut engine = reserved(Some("Restricted"));
    let mut bound_to_it = owned("a", 60);
    bound_to_it["metadata"]["annotations"] = annotated(
        "reservation-affinity",
        &json!({"reservationSelector": {"a": "b"}}),
    )["annotations"]
        .clone();
    assert_eq!(
        place(&mut engine, bound_to_it),
        refused("Reservation(s) Insufficient GPU Devices")
    );
}

#[test]
fn owner_returns_devices_after_restart() {
    let mut first = reserved(None);
    first.pod_applied(object(owned("a", 50)), now());
    let mut pod = (*bound(&decide(&mut first).unwrap())).clone();
    let notes = pod.metadata.annotations.get_or_insert_default();
    let from = json!({"name": "r", "uid": "r"});
    notes.insert(
        annotations::RESERVATION_ALLOCATED.to_owned(),
        from.to_string(),
    );
    let pod = Arc::new(pod);
    let mut second = reserved(None);
    for engine in [&mut first, &mut second] {
        engine.pod_applied(pod.clone(), now());
        assert_eq!(
            place(engine, owned("b", 60)),
            "n: gpu 0",
            "nothing is left of it"
        );
        assert_eq!(place(engine, gpu("c", 50)), "n: gpu 1", "the other half");
        engine.pod_deleted(&pod, now());
        assert_eq!(
            place(engine, gpu("d", 50)),
            refused("Insufficient GPU Devices")
        );
        assert_eq!(place(engine, owned("e", 50)), "n: gpu 1");
    }
}

#[test]
fn pod_ignoring_reservations_takes_reserved_device() {
    let mut engine = reserved(None);
    assert_eq!(place(&mut engine, gpu("a", 100)), "n: gpu 0");
    let mut pod = gpu("b", 100);
    pod["metadata"]["labels"] = json!({"scheduling.koordinator.sh/reservation-ignored": "true"});
    assert_eq!(place(&mut engine, pod), "n: gpu 1");
}

#[test]
fn reservation_with_devices_is_nominated() {
    let mut engine = reserved(None);
    stand_in(&mut engine, "r2", 0);
    assert_eq!(place(&mut engine, gpu("a", 50)), "n: gpu 0");
    // `r` comes first and has half of minor 1, the other half of which is free; `r2` has half of
    // minor 0, the other half of which is taken.
    assert_eq!(place(&mut engine, owned("b", 100)), "n: gpu 1");
    let mut engine = reserved(None);
    stand_in(&mut engine, "r2", 0);
    engine.pod_applied(object(gpu("a", 50)), now());
    let first = decide(&mut engine).unwrap();
    assert_eq!(describe_binding(&first), "n: gpu 0");
    assert_eq!(place(&mut engine, gpu("c", 50)), "n: gpu 1");
    engine.pod_applied(bound(&first), now());
    engine.pod_deleted(&bound(&first), now());
    assert_eq!(
        place(&mut engine, owned("d", 100)),
        "n: gpu 0",
        "now only r2 has what it takes"
    );
}

/// Adds a holder of GPU shares, in percent of each GPU: a reservation, an owner of one, or any other pod.
fn holds(engine: &mut Engine, name: &str, shares: &[(u8, i64)], of: Option<&str>, reserves: bool) {
    const GPU: i64 = 8 << 30;
    let grant = |(minor, percent): &(u8, i64)| {
        json!({"minor": minor, "resources": {"koordinator.sh/gpu-core": percent.to_string(),
            "koordinator.sh/gpu-memory-ratio": percent.to_string(),
            "koordinator.sh/gpu-memory": (GPU * percent / 100).to_string()}})
    };
    let grants: Value = shares.iter().map(grant).collect();
    let mut pod = gpu(name, 100);
    pod["spec"]["nodeName"] = json!("n");
    let mut notes = annotated("device-allocated", &json!({ "gpu": grants }));
    if let Some(of) = of {
        let from = json!({"name": of, "uid": of}).to_string();
        notes["annotations"][annotations::RESERVATION_ALLOCATED] = json!(from);
    }
    pod["metadata"]["annotations"] = notes["annotations"].clone();
    if !reserves {
        engine.pod_applied(object(pod), now());
        return;
    }
    let info = PodInfo::new(object(pod), &ResourceTable::new()).unwrap();
    let info = info.into_holder(ObjectReference {
        kind: Some("Reservation".to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    });
    let change = ObjectChange {
        kind: HOLDS,
        action: Action::ADD,
        old: None,
        new: Arc::new(info),
    };
    engine.object_changed(&change, now());
}

/// Upstream's table of allocations from reservations, nominated or not: two GPUs of 8 GiB, of which a
/// reservation, its owners and other pods hold parts. Where upstream's state is impossible, a possible one
/// replaces it.
#[test]
fn upstream_reservation_allocations() {
    const HALF: &str = "gpu-core=50 gpu-memory=4Gi";
    const NONE: &[(u8, i64)] = &[];
    const BOTH: &[(u8, i64)] = &[(0, 100), (1, 100)];
    let lacks = "Insufficient gpu devices";
    let lacks_there = "Reservation(s) Insufficient gpu devices";
    let (may, must, ignores) = ("may", "must", "ignores");
    // (policy and what is reserved, what owners have of it, what others have, the pod's relation to it and
    // its requests, expected placement)
    #[rustfmt::skip]
    let rows = [
        ("nothing is reserved", "", NONE, NONE, NONE, may, HALF, "gpu 0"),
        ("more than is reserved", "", &[(0, 25)], NONE, NONE, may, HALF, "gpu 0"),
        ("it insists", "", &[(0, 75)], &[(0, 25)], NONE, must, HALF, "gpu 0"),
        ("nothing is left of it", "", &[(0, 50)], &[(0, 50)], &[(0, 50)], must, HALF, "gpu 1"),
        ("the node is full", "Aligned", &[(0, 50)], NONE, &[(0, 50), (1, 100)], may, HALF, "gpu 0"),
        ("more than there is", "Aligned", &[(0, 50)], NONE, &[(0, 50), (1, 100)], must,
            "gpu-core=60 gpu-memory=5Gi", lacks_there),
        ("more than is left", "Aligned", &[(0, 50)], &[(0, 25)], &[(0, 50), (1, 100)], must,
            "gpu-core=30 gpu-memory=1Gi", lacks_there),
        ("nothing else", "Restricted", &[(0, 50)], NONE, &[(0, 50), (1, 100)], may, HALF, "gpu 0"),
        ("only the node has it", "Restricted", &[(0, 50)], &[(0, 25)], &[(1, 100)], must, HALF, lacks_there),
        ("others ignored it", "Restricted", BOTH, NONE, &[(0, 75), (1, 50)], may, HALF, "gpu 1"),
        ("it ignores it", "Restricted", BOTH, &[(0, 75)], NONE, ignores, HALF, "gpu 1"),
        ("owners have it all", "Restricted", BOTH, BOTH, NONE, ignores, HALF, lacks),
        ("ignored, and some is left", "", &[(0, 50)], NONE, NONE, ignores, HALF, "gpu 0"),
        ("first what is reserved", "", &[(1, 100)], NONE, NONE, may, "gpu=100", "gpu 1"),
        ("all of it is in use", "", &[(1, 100)], BOTH, NONE, must, "gpu=100", lacks_there),
    ];
    for (name, policy, reserved, owned, others, stands, asked, expected) in rows {
        let policy = Some(policy).filter(|policy| !policy.is_empty());
        let mut engine = with_policy(policy);
        let list = [0_u8, 1].map(|minor| {
            json!({"type": "gpu", "id": minor.to_string(), "minor": minor, "health": true,
                "resources": {"koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": "8Gi"}})
        });
        engine.object_changed(&device("n", json!(list)), now());
        if !reserved.is_empty() {
            holds(&mut engine, "r", reserved, None, true);
        }
        if !owned.is_empty() {
            holds(&mut engine, "owner", owned, Some("r"), false);
        }
        if !others.is_empty() {
            holds(&mut engine, "other", others, None, false);
        }
        let requests: serde_json::Map<String, Value> = asked
            .split(' ')
            .filter_map(|token| token.split_once('='))
            .map(|(name, amount)| (format!("koordinator.sh/{name}"), json!(amount)))
            .collect();
        let mut probe = pod("p", json!(requests), json!({"labels": {"owner": "r"}}));
        if stands == ignores {
            let label = "scheduling.koordinator.sh/reservation-ignored";
            probe["metadata"]["labels"][label] = json!("true");
        }
        if stands == must {
            let affinity = json!({"reservationSelector": {"a": "b"}});
            let note = annotated("reservation-affinity", &affinity);
            probe["metadata"]["annotations"] = note["annotations"].clone();
        }
        let got = place(&mut engine, probe).replace("GPU Devices", "gpu devices");
        let expected = match expected.strip_prefix("gpu") {
            Some(at) => format!("n: gpu{at}"),
            None => refused(expected),
        };
        assert_eq!(got, expected, "{name}");
    }
}
