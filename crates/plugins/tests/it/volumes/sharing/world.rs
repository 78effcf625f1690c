//! Random events of a cluster whose pods have claims, and the outputs of two engines.

use super::super::*;
use koord_scheduler::engine::BindError;
use koord_scheduler::framework::Write;
use proptest::prelude::*;
use std::collections::BTreeMap;

pub(super) const NODES: u8 = 6;
pub(super) const CLAIMS: u8 = 8;

#[derive(Debug, Clone)]
pub(super) enum VolumeStep {
    Node {
        name: u8,
        zone: u8,
    },
    NodeGone(u8),
    /// Maximum number of volumes of the driver on a node; `None` if not reported.
    Limit {
        node: u8,
        count: u8,
    },
    /// A claim that is not bound.
    Claim {
        name: u8,
        class: u8,
        size: u8,
        mode: u8,
        selected: u8,
    },
    ClaimGone(u8),
    /// The claim is bound to the volume of its number.
    Bound {
        name: u8,
        mode: u8,
        place: u8,
        driver: u8,
    },
    /// A volume that is free, or reserved for one claim.
    Volume {
        name: u8,
        class: u8,
        place: u8,
        size: u8,
        claim: u8,
    },
    VolumeGone(u8),
    Attached {
        node: u8,
        volume: u8,
    },
    Detached(u8),
    Capacity {
        zone: u8,
        size: u8,
    },
    Driver {
        asks: bool,
    },
    /// Class `late` gets another provisioner, or its first one again.
    Class {
        moved: bool,
    },
    Pod {
        claims: [u8; 2],
        disk: u8,
        priority: u8,
        times: u8,
        nominated: u8,
    },
    PodGone(u8),
    BindFails(u8),
    Confirm(u8),
    /// A write of the scheduler is applied, and the claim bound.
    Served(u8),
    Wait(u8),
}

pub(super) fn step() -> impl Strategy<Value = VolumeStep> {
    let claim = 0..CLAIMS;
    prop_oneof![
        3 => (0..NODES, 0..3_u8).prop_map(|(name, zone)| VolumeStep::Node { name, zone }),
        1 => (0..NODES).prop_map(VolumeStep::NodeGone),
        2 => (0..NODES, 0..4_u8).prop_map(|(node, count)| VolumeStep::Limit { node, count }),
        6 => (claim.clone(), 0..3_u8, 1..3_u8, 0..3_u8, 0..20_u8).prop_map(
            |(name, class, size, mode, selected)| VolumeStep::Claim { name, class, size, mode, selected }
        ),
        1 => claim.clone().prop_map(VolumeStep::ClaimGone),
        8 => (claim.clone(), 0..3_u8, 0..10_u8, 0..3_u8).prop_map(
            |(name, mode, place, driver)| VolumeStep::Bound { name, mode, place, driver }
        ),
        5 => (8..14_u8, 0..2_u8, 0..10_u8, 1..4_u8, 0..16_u8).prop_map(
            |(name, class, place, size, claim)| VolumeStep::Volume { name, class, place, size, claim }
        ),
        1 => (0..14_u8).prop_map(VolumeStep::VolumeGone),
        2 => (0..NODES, 0..CLAIMS).prop_map(|(node, volume)| VolumeStep::Attached { node, volume }),
        1 => (0..CLAIMS).prop_map(VolumeStep::Detached),
        2 => (0..3_u8, 0..4_u8).prop_map(|(zone, size)| VolumeStep::Capacity { zone, size }),
        1 => any::<bool>().prop_map(|asks| VolumeStep::Driver { asks }),
        1 => any::<bool>().prop_map(|moved| VolumeStep::Class { moved }),
        20 => ([0..CLAIMS, 0..CLAIMS + 8], 0..12_u8, 0..3_u8, 1..4_u8, 0..30_u8).prop_map(
            |(claims, disk, priority, times, nominated)|
                VolumeStep::Pod { claims, disk, priority, times, nominated }
        ),
        3 => any::<u8>().prop_map(VolumeStep::PodGone),
        1 => any::<u8>().prop_map(VolumeStep::BindFails),
        3 => any::<u8>().prop_map(VolumeStep::Confirm),
        4 => any::<u8>().prop_map(VolumeStep::Served),
        2 => (0..40_u8).prop_map(VolumeStep::Wait),
    ]
}

/// Returns node affinity for a zone, one host, two hosts, or none.
fn place(place: u8) -> Value {
    let label = |key: &str, values: &[String]| {
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": key, "operator": "In", "values": values}]}]}}}})
    };
    match place {
        0..3 => label("topology.kubernetes.io/zone", &[format!("z{place}")]),
        3..7 => label("kubernetes.io/hostname", &[format!("n{}", place - 3)]),
        7 => label(
            "kubernetes.io/hostname",
            &["n0".to_owned(), "n4".to_owned()],
        ),
        8 => json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "z1"}}}),
        _ => json!({}),
    }
}

const WAIT: &str = "WaitForFirstConsumer";
const CLASSES: [&str; 3] = ["late", "static", "made"];
const MODES: [&str; 3] = ["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"];

fn claim_of(name: u8, class: &str, size: u8, mode: u8) -> Value {
    let change = json!({"spec": {"accessModes": [MODES[usize::from(mode)]],
        "resources": {"requests": {"storage": format!("{size}Gi")}}}});
    claim(&format!("c{name}"), class, change)
}

fn bound_to(mut claim: Value, volume: &str) -> Value {
    claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
    claim["spec"]["volumeName"] = json!(volume);
    claim["status"]["phase"] = json!("Bound");
    claim
}

/// Builds a volume of driver `driver` that belongs to the claim.
fn volume_of(name: &str, class: &str, claim: &str, at: u8, driver: u8) -> Value {
    let source = match driver {
        0 => json!({"local": {"path": "/x"}}),
        // Two objects may be one volume to the driver.
        1 => json!({"csi": {"driver": "csi.example", "volumeHandle": name.len().to_string()}}),
        _ => json!({"csi": {"driver": "csi.example", "volumeHandle": name}}),
    };
    let mut out = merge(volume(name, class, place(at)), &json!({"spec": source}));
    out["spec"]["claimRef"] =
        json!({"namespace": "ns", "name": claim, "uid": format!("claim-{claim}")});
    out["status"]["phase"] = json!("Bound");
    out
}

pub(super) fn pod_of(number: usize, claims: [u8; 2], disk: u8, priority: u8, nominated: u8) -> Pod {
    let names: Vec<String> = claims
        .iter()
        .filter(|claim| **claim < CLAIMS)
        .map(|claim| format!("c{claim}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut volumes = uses(&names);
    if disk < 2 {
        let disk =
            json!({"name": "disk", "gcePersistentDisk": {"pdName": "x", "readOnly": disk == 1}});
        volumes.as_array_mut().unwrap().push(disk);
    }
    let mut pod = (*pod(&format!("p{number}"), volumes, None)).clone();
    let spec = pod.spec.as_mut().unwrap();
    spec.priority = Some(i32::from(priority) * 100);
    let requests = json!({"requests": {"cpu": "1"}});
    spec.containers[0].resources = serde_json::from_value(requests).unwrap();
    if nominated < NODES {
        let status = json!({"nominatedNodeName": format!("n{nominated}")});
        pod.status = serde_json::from_value(status).unwrap();
    }
    pod
}

/// Objects in the API; both engines receive the same ones.
#[derive(Default)]
pub(super) struct VolumeWorld {
    pub(super) objects: BTreeMap<(&'static str, String), Value>,
    pub(super) nodes: BTreeMap<u8, u8>,
    pub(super) pods: usize,
}

impl VolumeWorld {
    pub(super) fn set(
        &mut self,
        engines: &mut [Engine],
        kind: &'static str,
        value: Value,
        now: Timestamp,
    ) {
        let name = value["metadata"]["name"].as_str().unwrap().to_owned();
        let old = self.objects.insert((kind, name), value.clone());
        let (kind, new) = typed(kind, value);
        let change = ObjectChange {
            kind,
            action: if old.is_some() {
                Action::UPDATE
            } else {
                Action::ADD
            },
            old: None,
            new,
        };
        for engine in engines {
            let change = engine.plugins().as_delivered(change.clone());
            engine.object_changed(&change, now);
        }
    }

    fn remove(&mut self, engines: &mut [Engine], kind: &'static str, name: &str, now: Timestamp) {
        let Some(old) = self.objects.remove(&(kind, name.to_owned())) else {
            return;
        };
        let (kind, new) = typed(kind, old);
        let change = ObjectChange {
            kind,
            action: Action::DELETE,
            old: None,
            new,
        };
        for engine in engines {
            let change = engine.plugins().as_delivered(change.clone());
            engine.object_changed(&change, now);
        }
    }

    pub(super) fn apply(&mut self, engines: &mut [Engine], step: &VolumeStep, now: Timestamp) {
        match *step {
            VolumeStep::Node { name, zone } => {
                self.nodes.insert(name, zone);
                for engine in engines {
                    engine.node_applied(machine(name, zone), now);
                }
            }
            VolumeStep::NodeGone(name) => {
                self.nodes.remove(&name);
                for engine in engines {
                    engine.node_deleted(&format!("n{name}"), now);
                }
            }
            VolumeStep::Limit { node, count } => {
                let allocatable = (count < 3).then(|| json!({"count": count}));
                let value = json!({"metadata": {"name": format!("n{node}")}, "spec": {"drivers": [
                    {"name": "csi.example", "nodeID": "x", "allocatable": allocatable}]}});
                self.set(engines, "csinode", value, now);
            }
            VolumeStep::Claim {
                name,
                class,
                size,
                mode,
                selected,
            } => {
                let mut value = claim_of(name, CLASSES[usize::from(class)], size, mode);
                if selected < NODES {
                    value["metadata"]["annotations"] =
                        json!({"volume.kubernetes.io/selected-node": format!("n{selected}")});
                }
                self.set(engines, "pvc", value, now);
            }
            VolumeStep::ClaimGone(name) => self.remove(engines, "pvc", &format!("c{name}"), now),
            VolumeStep::Bound {
                name,
                mode,
                place,
                driver,
            } => {
                let (claim, volume) = (format!("c{name}"), format!("v{name}"));
                self.set(
                    engines,
                    "pv",
                    volume_of(&volume, "made", &claim, place, driver),
                    now,
                );
                let value = claim_of(name, "made", 1, mode);
                self.set(engines, "pvc", bound_to(value, &volume), now);
            }
            VolumeStep::Volume {
                name,
                class,
                place: at,
                size,
                claim,
            } => {
                let change = merge(
                    place(at),
                    &json!({"spec": {"capacity": {"storage": format!("{size}Gi")}}}),
                );
                let mut value = volume(&format!("v{name}"), CLASSES[usize::from(class)], change);
                value["spec"]["accessModes"] = json!(MODES);
                if claim < CLAIMS {
                    value["spec"]["claimRef"] =
                        json!({"namespace": "ns", "name": format!("c{claim}")});
                }
                self.set(engines, "pv", value, now);
            }
            VolumeStep::VolumeGone(name) => self.remove(engines, "pv", &format!("v{name}"), now),
            VolumeStep::Attached { node, volume } => {
                let value = json!({"metadata": {"name": format!("at{volume}")}, "spec": {
                    "attacher": "csi.example", "nodeName": format!("n{node}"),
                    "source": {"persistentVolumeName": format!("v{volume}")}},
                    "status": {"attached": true}});
                self.set(engines, "attachment", value, now);
            }
            VolumeStep::Detached(volume) => {
                self.remove(engines, "attachment", &format!("at{volume}"), now);
            }
            VolumeStep::Capacity { zone, size } => {
                let value = json!({"metadata": {"name": format!("room{zone}"), "namespace": "x"},
                    "storageClassName": "late", "capacity": format!("{size}Gi"), "nodeTopology":
                    {"matchLabels": {"topology.kubernetes.io/zone": format!("z{zone}")}}});
                self.set(engines, "capacity", value, now);
            }
            VolumeStep::Driver { asks } => {
                let value = json!({"metadata": {"name": "csi.example"},
                    "spec": {"storageCapacity": asks}});
                self.set(engines, "driver", value, now);
            }
            VolumeStep::Class { moved } => {
                let driver = if moved { "csi.other" } else { "csi.example" };
                let value = class("late", driver, WAIT, json!({}));
                self.set(engines, "sc", value, now);
            }
            _ => {}
        }
    }

    /// Shows the result of a write in the API, and binds its claim.
    fn serve(&mut self, engines: &mut [Engine], write: &Write, now: Timestamp) {
        let Verb::Patch(patch) = &write.verb else {
            return;
        };
        let (claim, name) = match write.plural {
            "persistentvolumes" => {
                let Some(mut volume) = self.objects.get(&("pv", write.name.clone())).cloned()
                else {
                    return;
                };
                volume["spec"]["claimRef"] = patch["spec"]["claimRef"].clone();
                volume["status"]["phase"] = json!("Bound");
                self.set(engines, "pv", volume, now);
                let claim = patch["spec"]["claimRef"]["name"].as_str().unwrap();
                (claim.to_owned(), write.name.clone())
            }
            _ => {
                let name = format!("v{}", write.name);
                let volume = volume_of(&name, "late", &write.name, 9, 2);
                self.set(engines, "pv", volume, now);
                (write.name.clone(), name)
            }
        };
        if let Some(claim) = self.objects.get(&("pvc", claim)).cloned() {
            self.set(engines, "pvc", bound_to(claim, &name), now);
        }
    }
}

pub(super) fn machine(name: u8, zone: u8) -> Arc<Node> {
    let name = format!("n{name}");
    let value = json!({
        "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": format!("z{zone}")}},
        "status": {"allocatable": {"cpu": "5", "memory": "8Gi", "pods": "12"}}
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn twin(cached: bool) -> Engine {
    let plugins = [
        &ALL[..],
        &[
            "NodeResourcesFit",
            "DefaultPreemption",
            "NodeResourcesBalancedAllocation",
        ],
    ]
    .concat();
    let mut engine = crate::small::engine(&plugins, json!({}));
    engine.set_caching(cached);
    engine
}

/// Outputs of an engine, and its pending bindings and writes.
#[derive(Default)]
struct EngineOutputs {
    placed: Vec<(Pod, String)>,
    writes: Vec<Write>,
}

impl EngineOutputs {
    fn drain(&mut self, engine: &mut Engine, now: Timestamp) -> Vec<String> {
        let mut out = Vec::new();
        for _ in 0..100 {
            let scheduled = engine.schedule_one(now).is_some();
            for output in engine.take_outputs() {
                out.push(match output {
                    Output::Bind(bind) => {
                        let pod = (*bind.pod.object.pod).clone();
                        self.placed.push((pod, bind.node.to_string()));
                        format!("{} -> {}", bind.pod.name, bind.node)
                    }
                    Output::Failed(failure) => {
                        format!("{}: {}", failure.pod.name, failure.message)
                    }
                    Output::Write(write) => {
                        let text = format!("{} {:?}", write.name, write.verb);
                        self.writes.push(write);
                        text
                    }
                    Output::Evict {
                        preemptor,
                        node,
                        victims,
                    } => {
                        let names: Vec<&str> = victims.iter().map(|pod| &*pod.name).collect();
                        format!("{preemptor} evicts {names:?} from {node}")
                    }
                    Output::Expect { pod, node } => format!("{pod} waits for {node}"),
                    other => format!("{other:?}"),
                });
            }
            if !scheduled {
                break;
            }
        }
        out
    }
}

pub(super) fn pick<T>(n: u8, from: &[T]) -> Option<usize> {
    (!from.is_empty()).then(|| usize::from(n) % from.len())
}

pub(super) fn run(steps: &[VolumeStep]) -> (Vec<Engine>, [Vec<String>; 2]) {
    let mut engines = vec![twin(true), twin(false)];
    let mut sides = [EngineOutputs::default(), EngineOutputs::default()];
    let mut world = VolumeWorld::default();
    let mut now = at(0);
    for (name, driver, mode) in [
        ("late", "csi.example", WAIT),
        ("static", "kubernetes.io/no-provisioner", WAIT),
        ("made", "csi.example", "Immediate"),
    ] {
        world.set(
            &mut engines,
            "sc",
            class(name, driver, mode, json!({})),
            now,
        );
    }
    for name in 0..4 {
        world.apply(
            &mut engines,
            &VolumeStep::Node {
                name,
                zone: name % 3,
            },
            now,
        );
        world.apply(
            &mut engines,
            &VolumeStep::Limit {
                node: name,
                count: 2,
            },
            now,
        );
    }
    let mut outputs: [Vec<String>; 2] = Default::default();
    for step in steps {
        now += jiff::SignedDuration::from_millis(400);
        match step {
            VolumeStep::Wait(seconds) => now += jiff::SignedDuration::from_secs((*seconds).into()),
            VolumeStep::Pod {
                claims,
                disk,
                priority,
                times,
                nominated,
            } => {
                for _ in 0..*times {
                    world.pods += 1;
                    let pod = pod_of(world.pods, *claims, *disk, *priority, *nominated);
                    for engine in &mut engines {
                        engine.pod_applied(Arc::new(pod.clone()), now);
                    }
                }
            }
            VolumeStep::Served(n) => {
                if let Some(at) = pick(*n, &sides[0].writes) {
                    let write = sides[0].writes.swap_remove(at);
                    world.serve(&mut engines, &write, now);
                }
            }
            VolumeStep::PodGone(n) => {
                for (engine, side) in engines.iter_mut().zip(&mut sides) {
                    if let Some(at) = pick(*n, &side.placed) {
                        engine.pod_deleted(&side.placed.swap_remove(at).0, now);
                    }
                }
            }
            VolumeStep::BindFails(n) => {
                for (engine, side) in engines.iter_mut().zip(&mut sides) {
                    let Some(at) = pick(*n, &side.placed) else {
                        continue;
                    };
                    let uid = side.placed[at].0.metadata.uid.clone().unwrap();
                    if engine
                        .cluster()
                        .placement(&uid)
                        .is_some_and(|(_, assumed)| assumed)
                    {
                        let message = "conflict".to_owned();
                        engine.bind_finished(
                            &uid,
                            Err(BindError {
                                message,
                                gone: false,
                            }),
                            now,
                        );
                        side.placed.swap_remove(at);
                    }
                }
            }
            VolumeStep::Confirm(n) => {
                for (engine, side) in engines.iter_mut().zip(&mut sides) {
                    let Some(at) = pick(*n, &side.placed) else {
                        continue;
                    };
                    let (mut pod, node) = side.placed[at].clone();
                    pod.spec.as_mut().unwrap().node_name = Some(node);
                    engine.pod_applied(Arc::new(pod), now);
                }
            }
            other => world.apply(&mut engines, other, now),
        }
        for ((engine, side), outputs) in engines.iter_mut().zip(&mut sides).zip(&mut outputs) {
            outputs.extend(side.drain(engine, now));
        }
        if outputs[0] != outputs[1] {
            break;
        }
    }
    (engines, outputs)
}
