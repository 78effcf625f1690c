//! PodTopologySpread compared with a plain implementation of its rules, which counts all pods on the nodes
//! that count for each constraint: the nodes that can take a pod, and the best of them.

use crate::failover::draw;
use crate::small::{engine, now};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_scheduler::engine::{Engine, Output};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const HOST: &str = "kubernetes.io/hostname";
const KEYS: [&str; 3] = ["zone", "rack", HOST];

#[derive(Debug, Clone)]
struct SpreadNode {
    labels: BTreeMap<&'static str, String>,
    tainted: bool,
}

#[derive(Debug, Clone)]
struct Constraint {
    key: &'static str,
    hard: bool,
    max_skew: i64,
    min_domains: Option<usize>,
    /// `nodeAffinityPolicy` and `nodeTaintsPolicy`; `None` if not set.
    affinity: Option<bool>,
    taints: Option<bool>,
    by_version: bool,
}

#[derive(Debug, Clone)]
struct SpreadPod {
    namespace: &'static str,
    app: &'static str,
    version: &'static str,
    pool: Option<&'static str>,
    tolerates: bool,
    constraints: Vec<Constraint>,
}

#[derive(Debug, Clone)]
struct Placed {
    node: String,
    namespace: &'static str,
    app: &'static str,
    version: &'static str,
    deleting: bool,
}

#[derive(Debug, Default)]
struct SpreadWorld {
    nodes: BTreeMap<String, SpreadNode>,
    pods: BTreeMap<String, Placed>,
}

impl SpreadNode {
    fn takes(&self, spread_pod: &SpreadPod) -> bool {
        self.chosen(spread_pod) && self.tolerated(spread_pod)
    }

    fn chosen(&self, spread_pod: &SpreadPod) -> bool {
        let pool = self.labels.get("pool").map(String::as_str);
        spread_pod.pool.is_none() || spread_pod.pool == pool
    }

    fn tolerated(&self, spread_pod: &SpreadPod) -> bool {
        !self.tainted || spread_pod.tolerates
    }
}

impl SpreadWorld {
    fn matching(&self, spread_pod: &SpreadPod, by: &Constraint, node: &str) -> i64 {
        let matching_pods = self.pods.values().filter(|pod| {
            pod.node == node
                && !pod.deleting
                && (pod.namespace, pod.app) == (spread_pod.namespace, spread_pod.app)
                && (!by.by_version || pod.version == spread_pod.version)
        });
        i64::try_from(matching_pods.count()).unwrap()
    }

    /// Returns the nodes that count for `by`, one of the pod's `all` constraints of the same kind.
    fn counted(&self, spread_pod: &SpreadPod, all: &[&Constraint], by: &Constraint) -> Vec<&str> {
        let nodes = self.nodes.iter().filter(|(_, node)| {
            all.iter()
                .all(|constraint| node.labels.contains_key(constraint.key))
                && (by.affinity == Some(false) || node.chosen(spread_pod))
                && (by.taints != Some(true) || node.tolerated(spread_pod))
        });
        nodes.map(|(name, _)| name.as_str()).collect()
    }

    fn feasible(&self, spread_pod: &SpreadPod) -> BTreeSet<String> {
        let hard: Vec<_> = spread_pod
            .constraints
            .iter()
            .filter(|constraint| constraint.hard)
            .collect();
        let fits = |name: &str, node: &SpreadNode| {
            node.takes(spread_pod)
                && hard.iter().all(|constraint| {
                    let mut domains = BTreeMap::<&str, i64>::new();
                    for at in self.counted(spread_pod, &hard, constraint) {
                        let domain = self.nodes[at].labels[constraint.key].as_str();
                        *domains.entry(domain).or_default() +=
                            self.matching(spread_pod, constraint, at);
                    }
                    let too_few = domains.len() < constraint.min_domains.unwrap_or(1);
                    let least = domains.values().min().copied();
                    let least = if too_few { 0 } else { least.unwrap_or(0) };
                    let _ = name;
                    let Some(own) = node.labels.get(constraint.key) else {
                        return false;
                    };
                    let own_count = domains.get(own.as_str()).copied().unwrap_or(0);
                    // The pod itself counts, because its labels match its own selector.
                    own_count + 1 - least <= constraint.max_skew
                })
        };
        let nodes = self.nodes.iter().filter(|(name, node)| fits(name, node));
        nodes.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the nodes of `feasible` with the best score; `None` without soft constraints.
    fn best(
        &self,
        spread_pod: &SpreadPod,
        feasible: &BTreeSet<String>,
    ) -> Option<BTreeSet<String>> {
        let soft: Vec<_> = spread_pod
            .constraints
            .iter()
            .filter(|constraint| !constraint.hard)
            .collect();
        if soft.is_empty() {
            return None;
        }
        let labelled = |name: &&String| {
            let labels = &self.nodes[*name].labels;
            soft.iter()
                .all(|constraint| labels.contains_key(constraint.key))
        };
        let scored: Vec<&String> = feasible.iter().filter(labelled).collect();
        let mut scores = BTreeMap::<&str, f64>::new();
        for constraint in &soft {
            let value = |name: &str| self.nodes[name].labels[constraint.key].clone();
            let size = if constraint.key == HOST {
                scored.len()
            } else {
                let domains = scored.iter().map(|name| value(name));
                domains.collect::<BTreeSet<_>>().len()
            };
            let weight = (f64::from(u32::try_from(size).unwrap()) + 2.0).ln();
            let counted = self.counted(spread_pod, &soft, constraint);
            for name in &scored {
                let matching = if constraint.key == HOST {
                    self.matching(spread_pod, constraint, name)
                } else {
                    let domain = value(name);
                    let in_domain = counted.iter().filter(|at| value(at) == domain);
                    in_domain
                        .map(|at| self.matching(spread_pod, constraint, at))
                        .sum()
                };
                let matching = f64::from(i32::try_from(matching).unwrap());
                let skew_allowance = f64::from(i32::try_from(constraint.max_skew - 1).unwrap());
                *scores.entry(name).or_default() += matching * weight + skew_allowance;
            }
        }
        if scores.is_empty() {
            return Some(feasible.clone());
        }
        let rounded = |score: &f64| score.round();
        let (least, most) = scores
            .values()
            .map(rounded)
            .fold((f64::MAX, f64::MIN), |(least, most), score| {
                (least.min(score), most.max(score))
            });
        let normal = |score: &f64| {
            if most == 0.0 {
                return 100.0;
            }
            (100.0 * (most + least - rounded(score)) / most).trunc()
        };
        // A node without one of the labels has score 0.
        let all = feasible.iter().map(|name| {
            let score = scores.get(name.as_str()).map_or(0.0, normal);
            (name, score)
        });
        let all: Vec<_> = all.collect();
        let top = all.iter().map(|(_, score)| *score).fold(f64::MIN, f64::max);
        let best = all.into_iter().filter(|(_, score)| *score == top);
        Some(best.map(|(name, _)| name.clone()).collect())
    }
}

/// Pseudorandom numbers from a seed.
struct Dice(u64, u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.1 += 1;
        draw(self.0 << 32 | self.1) % end
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    fn machine(&mut self, name: &str) -> SpreadNode {
        let mut labels = BTreeMap::from([(HOST, name.to_owned())]);
        for (key, values) in [
            ("zone", &["x", "y", "z", ""][..]),
            ("rack", &["1", "2", "3", "4", ""]),
            ("pool", &["a", "b"]),
        ] {
            let value = self.pick(values);
            if !value.is_empty() {
                labels.insert(key, value.to_owned());
            }
        }
        SpreadNode {
            labels,
            tainted: self.below(4) == 0,
        }
    }

    fn spread_pod(&mut self) -> SpreadPod {
        let mut keys = KEYS.to_vec();
        let constraints = (0..=self.below(2)).map(|_| {
            let key = keys.remove(usize::try_from(self.below(keys.len() as u64)).unwrap());
            let hard = self.below(2) == 0;
            Constraint {
                key,
                hard,
                max_skew: i64::try_from(self.below(2)).unwrap() + 1,
                min_domains: (hard && self.below(3) == 0)
                    .then(|| usize::try_from(self.below(4)).unwrap() + 1),
                affinity: self.pick(&[None, Some(true), Some(false)]),
                taints: self.pick(&[None, Some(true), Some(false)]),
                by_version: self.below(3) == 0,
            }
        });
        let constraints = constraints.collect();
        SpreadPod {
            constraints,
            namespace: self.pick(&["ns", "ns", "other"]),
            app: self.pick(&["a", "b"]),
            version: self.pick(&["1", "2"]),
            pool: self.pick(&[None, None, Some("a"), Some("b")]),
            tolerates: self.below(2) == 0,
        }
    }
}

fn node(name: &str, machine: &SpreadNode) -> Arc<Node> {
    let taints = json!([{"key": "k", "effect": "NoSchedule"}]);
    let taints = if machine.tainted { taints } else { json!([]) };
    let object = json!({
        "metadata": {"name": name, "uid": name, "labels": machine.labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": "100", "memory": "500Gi", "pods": "110"}},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn pod(name: &str, spread_pod: &SpreadPod, on: Option<&str>, deleting: bool) -> Arc<Pod> {
    let policy = |honor: bool| if honor { "Honor" } else { "Ignore" };
    let constraints = spread_pod.constraints.iter().map(|constraint| {
        let mut out = json!({
            "topologyKey": constraint.key, "maxSkew": constraint.max_skew,
            "whenUnsatisfiable": if constraint.hard { "DoNotSchedule" } else { "ScheduleAnyway" },
            "labelSelector": {"matchLabels": {"app": spread_pod.app}},
        });
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                out[key] = value;
            }
        };
        set("minDomains", constraint.min_domains.map(Value::from));
        set(
            "nodeAffinityPolicy",
            constraint.affinity.map(policy).map(Value::from),
        );
        set(
            "nodeTaintsPolicy",
            constraint.taints.map(policy).map(Value::from),
        );
        set(
            "matchLabelKeys",
            constraint.by_version.then(|| json!(["version"])),
        );
        out
    });
    let mut object = json!({
        "metadata": {
            "name": name, "namespace": spread_pod.namespace, "uid": name,
            "labels": {"app": spread_pod.app, "version": spread_pod.version},
        },
        "spec": {
            "containers": [{"name": "c"}], "nodeName": on,
            "topologySpreadConstraints": constraints.collect::<Vec<_>>(),
            "nodeSelector": spread_pod.pool.map(|pool| json!({"pool": pool})),
        },
    });
    if spread_pod.tolerates {
        object["spec"]["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
    }
    if deleting {
        object["metadata"]["deletionTimestamp"] = json!("2023-01-01T00:00:00Z");
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

/// Number of times that each situation was reached.
#[derive(Debug, Default)]
struct Reached {
    /// Pods that fit on some nodes, but not on others that match and are tolerated.
    apart: u32,
    /// Pods that fit on no node.
    refused: u32,
    /// Pods for which some nodes score higher than others.
    better: u32,
    /// Results that depend on `minDomains`, a policy or `matchLabelKeys` alone.
    min_domains: u32,
    affinity: u32,
    taints: u32,
    version: u32,
}

fn without(spread_pod: &SpreadPod, change: fn(&mut Constraint)) -> SpreadPod {
    let mut spread_pod = spread_pod.clone();
    spread_pod.constraints.iter_mut().for_each(change);
    spread_pod
}

fn compare(
    engine: &mut Engine,
    world: &SpreadWorld,
    name: &str,
    spread_pod: &SpreadPod,
    reached: &mut Reached,
) -> Option<String> {
    let context = || format!("{name} {spread_pod:#?} in {world:#?}");
    let expected = world.feasible(spread_pod);
    let info = engine.queued(name).unwrap().clone();
    let refused = engine.inspector().nearest(&info, usize::MAX, now());
    let refused: BTreeSet<&str> = refused.iter().map(|rejection| &*rejection.node).collect();
    let all = world.nodes.keys();
    let is: BTreeSet<String> = all
        .filter(|node| !refused.contains(node.as_str()))
        .cloned()
        .collect();
    assert_eq!(is, expected, "{}", context());
    let used = world
        .nodes
        .values()
        .filter(|node| node.takes(spread_pod))
        .count();
    reached.apart += u32::from(!expected.is_empty() && expected.len() < used);
    let differs = |change: fn(&mut Constraint)| {
        let plain = without(spread_pod, change);
        let fits = world.feasible(&plain);
        u32::from(
            fits != expected || world.best(&plain, &fits) != world.best(spread_pod, &expected),
        )
    };
    reached.min_domains += differs(|constraint| constraint.min_domains = None);
    reached.affinity += differs(|constraint| constraint.affinity = None);
    reached.taints += differs(|constraint| constraint.taints = None);
    reached.version += differs(|constraint| constraint.by_version = false);
    engine.take_outputs();
    engine.schedule_one(now()).unwrap();
    match engine.take_outputs().remove(0) {
        Output::Bind(bind) => {
            let node = bind.node.to_string();
            assert!(expected.contains(&node), "{node}: {}", context());
            if let Some(best) = world.best(spread_pod, &expected) {
                assert!(best.contains(&node), "{node} of {best:?}: {}", context());
                reached.better += u32::from(best.len() < expected.len());
            }
            Some(node)
        }
        Output::Failed(_) => {
            assert!(expected.is_empty(), "{}", context());
            reached.refused += 1;
            None
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn spread_matches_plain_counting() {
    let mut reached = Reached::default();
    for seed in 0..60 {
        let mut dice = Dice(seed, 0);
        let plugins = ["PodTopologySpread", "NodeAffinity", "TaintToleration"];
        let args = json!({"defaultingType": "List"});
        let mut engine = engine(&plugins, args);
        engine.set_caching(seed % 3 != 0);
        let mut world = SpreadWorld::default();
        let mut waiting = BTreeMap::<String, SpreadPod>::new();
        for number in 0..60 {
            let named = format!("n{}", dice.below(8));
            match dice.below(10) {
                0 | 1 => {
                    let machine = dice.machine(&named);
                    engine.node_applied(node(&named, &machine), now());
                    world.nodes.insert(named, machine);
                }
                2 if !world.pods.is_empty() => {
                    let names: Vec<_> = world.pods.keys().cloned().collect();
                    let name = &names[usize::try_from(dice.below(names.len() as u64)).unwrap()];
                    let placed = world.pods.get_mut(name).unwrap();
                    let spread_pod = SpreadPod {
                        namespace: placed.namespace,
                        app: placed.app,
                        version: placed.version,
                        pool: None,
                        tolerates: true,
                        constraints: Vec::new(),
                    };
                    let node = placed.node.clone();
                    if placed.deleting {
                        engine.pod_deleted(&pod(name, &spread_pod, Some(&node), true), now());
                        world.pods.remove(name);
                    } else {
                        placed.deleting = true;
                        engine.pod_applied(pod(name, &spread_pod, Some(&node), true), now());
                    }
                }
                _ if !world.nodes.is_empty() => {
                    // A pending pod would be tried in place of the new one.
                    for (name, spread_pod) in std::mem::take(&mut waiting) {
                        engine.pod_deleted(&pod(&name, &spread_pod, None, false), now());
                    }
                    let (name, spread_pod) = (format!("p{number}"), dice.spread_pod());
                    engine.pod_applied(pod(&name, &spread_pod, None, false), now());
                    let Some(node) = compare(&mut engine, &world, &name, &spread_pod, &mut reached)
                    else {
                        waiting.insert(name, spread_pod);
                        continue;
                    };
                    engine.pod_applied(pod(&name, &spread_pod, Some(&node), false), now());
                    let placed = Placed {
                        node,
                        namespace: spread_pod.namespace,
                        app: spread_pod.app,
                        version: spread_pod.version,
                        deleting: false,
                    };
                    world.pods.insert(name, placed);
                }
                _ => {}
            }
        }
    }
    let Reached {
        apart,
        refused,
        better,
        min_domains,
        affinity,
        taints,
        version,
    } = reached;
    let counts = [
        apart,
        refused,
        better,
        min_domains,
        affinity,
        taints,
        version,
    ];
    assert!(counts.iter().all(|count| *count >= 20), "{reached:?}");
}
