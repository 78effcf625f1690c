//! Reservations that hold CPUs, with a stand-in for the Reservation plugin.

use super::*;
use crate::common::allocate_policy::RESERVATIONS;
use k8s_openapi::api::core::v1::ObjectReference;
use koord_api::scheduling::Reservation;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{Factory, ObjectEvents, Registry, Release, Roles, Sign};

/// Test plugin that books reservations as pods, and opens the reservations named by label `use` to a pod.
struct StandIn;

impl StandIn {
    fn open<'a>(pod: &PodInfo, view: View<'a>, node: NodeIndex) -> Vec<&'a Arc<PodInfo>> {
        let names = pod.label("use").unwrap_or_default();
        let mut open: Vec<_> = view
            .nodes
            .booked(node)
            .filter(|pod| pod.is_holder())
            .filter(|pod| names.split('.').any(|name| *name == *pod.uid))
            .collect();
        open.sort_by(|a, b| a.uid.cmp(&b.uid));
        open
    }
}

impl Plugin for StandIn {
    const ROLES: Roles<Self> = Roles::none().sign().release().object_events();

    fn name(&self) -> &'static str {
        "StandIn"
    }
    fn points(&self) -> Points {
        Points::FILTER
    }
}

impl Sign for StandIn {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        for (key, value) in pod.labels().iter() {
            signature.text(key);
            signature.text(value);
        }
        Signable::Yes
    }
}

impl ObjectEvents for StandIn {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let Some(reservation) = change.new_as::<Reservation>() else {
            return;
        };
        let name = reservation.metadata.name.clone().unwrap_or_default();
        let annotations = reservation.metadata.annotations.clone().unwrap_or_default();
        let change = json!({"metadata": {"annotations": annotations}, "spec": {"nodeName": "n"}});
        let pod = Arc::new(pod(&name, "8", change));
        let info = PodInfo::new(pod, view.resources).unwrap();
        let info = info.into_holder(ObjectReference {
            name: Some(name),
            ..ObjectReference::default()
        });
        fx.apply.push(Arc::new(info));
    }
}

impl Release for StandIn {
    fn released(&self, cycle: &Cycle<'_>, _: &State, node: NodeIndex, out: &mut Vec<Arc<PodInfo>>) {
        out.extend(Self::open(cycle.pod, cycle.view, node).into_iter().cloned());
    }
    fn nominate(
        &self,
        cycle: &Cycle<'_>,
        _: &State,
        node: NodeIndex,
        agreed: &[Arc<PodInfo>],
    ) -> Option<Arc<PodInfo>> {
        let must = cycle.pod.annotation(annotations::RESERVATION_AFFINITY);
        let open = Self::open(cycle.pod, cycle.view, node);
        let only = open.first().filter(|_| must.is_some());
        agreed.first().or(only.copied()).cloned()
    }
}

pub(super) fn with_reservations(
    machine: CpuLayout,
    labels: Value,
    annotations: Value,
    cpu: u32,
) -> Engine {
    let mut registry: Registry = crate::registry();
    registry.factories.push(Factory {
        name: "StandIn",
        default_weight: None,
        koord_weight: None,
        build: |_, _| Ok(Box::new(StandIn)),
    });
    let mut engine = build_engine(json!({}), &["StandIn"], registry);
    engine.node_applied(machine.node("n", labels, annotations, cpu), now());
    engine.object_changed(&machine.topology("n", json!([]), json!({})), now());
    engine
}

pub(super) fn reserve(engine: &mut Engine, name: &str, policy: &str, status: Value) {
    let object: Reservation = serde_json::from_value(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name, "uid": name, "annotations": {
            "scheduling.koordinator.sh/resource-status": status.to_string()}},
        "spec": {"allocatePolicy": policy, "owners": [], "template": {}}
    }))
    .unwrap();
    let change = ObjectChange {
        kind: RESERVATIONS,
        action: Action::ADD,
        old: None,
        new: Arc::new(object),
    };
    engine.object_changed(&change, now());
}

fn owner(name: &str, cpu: &str, of: &str) -> Pod {
    let labels = json!({"use": of, "koordinator.sh/qosClass": "LSR"});
    pod(name, cpu, json!({"metadata": {"labels": labels}}))
}

/// Returns the bound owner as the Reservation plugin and the informer would show it.
fn owned(bind: &BindRequest, of: &str) -> Pod {
    let mut pod = bound(bind);
    let text = json!({"name": of, "uid": of}).to_string();
    let all = pod.metadata.annotations.get_or_insert_default();
    all.insert(annotations::RESERVATION_ALLOCATED.to_owned(), text);
    pod
}

#[test]
fn reserved_cpus_serve_owners_only() {
    let mut engine = with_reservations(TWO, json!({}), json!({}), 16);
    reserve(&mut engine, "r", "Aligned", json!({"cpuset": "0-7"}));
    assert_eq!(table(&mut engine, "n")["availableCPUs"], "8-15");
    assert_eq!(place(&mut engine, lsr("x", "6", "")), "n 8-13");
    assert_eq!(table(&mut engine, "n")["availableCPUs"], "14-15");
    let bind = try_bind(&mut engine, owner("a", "4", "r")).unwrap();
    assert_eq!(status(&bind), "0-3");
    assert_eq!(
        table(&mut engine, "n")["availableCPUs"],
        "14-15",
        "nothing is counted twice"
    );
    // The rest of the reservation is used first, then the node.
    let second = try_bind(&mut engine, owner("b", "6", "r")).unwrap();
    assert_eq!(status(&second), "4-7,14-15");
    engine.pod_applied(Arc::new(owned(&bind, "r")), now());
    engine.pod_applied(Arc::new(owned(&second, "r")), now());
    assert_eq!(table(&mut engine, "n")["availableCPUs"], "");
    // An owner leaves: its CPUs return to the reservation, not to the node.
    engine.pod_deleted(&owned(&bind, "r"), now());
    assert_eq!(table(&mut engine, "n")["availableCPUs"], "");
    assert_eq!(place(&mut engine, owner("c", "4", "r")), "n 0-3");
}

#[test]
fn restricted_reservation_provides_only_reserved_cpus() {
    // A pod that the reservation cannot serve gets other CPUs.
    let cases = [("Aligned", "n 0-3,8-9"), ("Restricted", "n 8-13")];
    for (policy, expected) in cases {
        let mut engine = with_reservations(TWO, json!({}), json!({}), 16);
        reserve(&mut engine, "r", policy, json!({"cpuset": "0-3"}));
        let required = owner("a", "6", "r");
        let got = place(&mut engine, required);
        assert_eq!(got, expected, "{policy}");
        assert_eq!(
            place(&mut engine, owner("b", "4", "r")).starts_with("n 0-3"),
            policy == "Restricted"
        );
    }
}

#[test]
fn reserved_numa_resources_are_for_owners() {
    let labels = json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"});
    let mut engine = with_reservations(TWO, labels, json!({}), 20);
    let zone = json!({"node": 1, "resources": {"cpu": "8", "memory": "8Gi"}});
    reserve(
        &mut engine,
        "r",
        "Aligned",
        json!({"numaNodeResources": [zone]}),
    );
    assert_eq!(
        place(&mut engine, pod("x", "8", json!({}))),
        "n 0: cpu 8, memory 1Gi"
    );
    let none = "1 Unsatisfied NUMA cpu, 1 Unsatisfied NUMA memory";
    assert_eq!(place(&mut engine, pod("y", "2", json!({}))), none);
    let uses = json!({"metadata": {"labels": {"use": "r"}}});
    assert_eq!(
        place(&mut engine, pod("a", "6", uses.clone())),
        "n 1: cpu 6, memory 1Gi"
    );
    assert_eq!(place(&mut engine, pod("b", "6", uses)), none);
}

#[test]
fn owners_use_reserved_cpus_on_amplified_nodes() {
    // 16 CPUs sold as 32, 8 of them (16 of 32) reserved and 16 taken by a shared pod.
    let ratio = json!({"node.koordinator.sh/resource-amplification-ratio": r#"{"cpu":2}"#});
    let mut engine = with_reservations(TWO, json!({}), ratio, 32);
    reserve(&mut engine, "r", "Aligned", json!({"cpuset": "0-7"}));
    assert_eq!(place(&mut engine, pod("x", "16", json!({}))), "n -");
    assert_eq!(
        place(&mut engine, lsr("y", "2", "")),
        "1 Insufficient amplified cpu"
    );
    assert_eq!(place(&mut engine, owner("a", "8", "r")), "n 0-7");
}

#[test]
fn restart_restores_owner_cpus() {
    let mut engine = with_reservations(TWO, json!({}), json!({}), 16);
    let bind = {
        let mut first = with_reservations(TWO, json!({}), json!({}), 16);
        reserve(&mut first, "r", "Aligned", json!({"cpuset": "0-7"}));
        try_bind(&mut first, owner("a", "4", "r")).unwrap()
    };
    engine.pod_applied(Arc::new(owned(&bind, "r")), now());
    reserve(&mut engine, "r", "Aligned", json!({"cpuset": "0-7"}));
    assert_eq!(place(&mut engine, owner("b", "4", "r")), "n 4-7");
    engine.pod_deleted(&owned(&bind, "r"), now());
    assert_eq!(table(&mut engine, "n")["availableCPUs"], "8-15");
    assert_eq!(table(&mut engine, "n")["allocatedCPUs"]["0"]["refCount"], 1);
}

#[test]
fn sufficient_reservation_is_selected() {
    let mut engine = with_reservations(TWO, json!({}), json!({}), 32);
    reserve(&mut engine, "r1", "Restricted", json!({"cpuset": "0-1"}));
    reserve(&mut engine, "r2", "Restricted", json!({"cpuset": "8-13"}));
    assert_eq!(place(&mut engine, owner("a", "4", "r1.r2")), "n 8-11");
    assert_eq!(place(&mut engine, owner("b", "2", "r1.r2")), "n 0-1");
}
