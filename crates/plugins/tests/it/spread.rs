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
struct Machine {
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
struct Wish {
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
struct World {
    nodes: BTreeMap<String, Machine>,
    pods: BTreeMap<String, Placed>,
}

impl Machine {
    fn takes(&self, wish: &Wish) -> bool {
        self.chosen(wish) && self.tolerated(wish)
    }

    fn chosen(&self, wish: &Wish) -> bool {
        let pool = self.labels.get("pool").map(String::as_str);
        wish.pool.is_none() || wish.pool == pool
    }

    fn tolerated(&self, wish: &Wish) -> bool {
        !self.tainted || wish.tolerates
    }
}

impl World {
    fn matching(&self, wish: &Wish, by: &Constraint, node: &str) -> i64 {
        let here = self.pods.values().filter(|pod| {
            pod.node == node
                && !pod.deleting
                && (pod.namespace, pod.app) == (wish.namespace, wish.app)
                && (!by.by_version || pod.version == wish.version)
        });
        i64::try_from(here.count()).unwrap()
    }

    /// Returns the nodes that count for `by`, one of the pod's `all` constraints of the same kind.
    fn counted(&self, wish: &Wish, all: &[&Constraint], by: &Constraint) -> Vec<&str> {
        let nodes = self.nodes.iter().filter(|(_, node)| {
            all.iter().all(|one| node.labels.contains_key(one.key))
                && (by.affinity == Some(false) || node.chosen(wish))
                && (by.taints != Some(true) || node.tolerated(wish))
        });
        nodes.map(|(name, _)| name.as_str()).collect()
    }

    fn feasible(&self, wish: &Wish) -> BTreeSet<String> {
        let hard: Vec<_> = wish.constraints.iter().filter(|one| one.hard).collect();
        let fits = |name: &str, node: &Machine| {
            node.takes(wish)
                && hard.iter().all(|one| {
                    let mut domains = BTreeMap::<&str, i64>::new();
                    for at in self.counted(wish, &hard, one) {
                        let domain = self.nodes[at].labels[one.key].as_str();
                        *domains.entry(domain).or_default() += self.matching(wish, one, at);
                    }
                    let few = domains.len() < one.min_domains.unwrap_or(1);
                    let least = domains.values().min().copied();
                    let least = if few { 0 } else { least.unwrap_or(0) };
                    let _ = name;
                    let Some(own) = node.labels.get(one.key) else {
                        return false;
                    };
                    let here = domains.get(own.as_str()).copied().unwrap_or(0);
                    // The pod itself counts, because its labels match its own selector.
                    here + 1 - least <= one.max_skew
                })
        };
        let nodes = self.nodes.iter().filter(|(name, node)| fits(name, node));
        nodes.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the nodes of `feasible` with the best score; `None` without soft constraints.
    fn best(&self, wish: &Wish, feasible: &BTreeSet<String>) -> Option<BTreeSet<String>> {
        let soft: Vec<_> = wish.constraints.iter().filter(|one| !one.hard).collect();
        if soft.is_empty() {
            return None;
        }
        let labelled = |name: &&String| {
            let labels = &self.nodes[*name].labels;
            soft.iter().all(|one| labels.contains_key(one.key))
        };
        let scored: Vec<&String> = feasible.iter().filter(labelled).collect();
        let mut scores = BTreeMap::<&str, f64>::new();
        for one in &soft {
            let value = |name: &str| self.nodes[name].labels[one.key].clone();
            let size = if one.key == HOST {
                scored.len()
            } else {
                let domains = scored.iter().map(|name| value(name));
                domains.collect::<BTreeSet<_>>().len()
            };
            let weight = (f64::from(u32::try_from(size).unwrap()) + 2.0).ln();
            let counted = self.counted(wish, &soft, one);
            for name in &scored {
                let matching = if one.key == HOST {
                    self.matching(wish, one, name)
                } else {
                    let domain = value(name);
                    let same = counted.iter().filter(|at| value(at) == domain);
                    same.map(|at| self.matching(wish, one, at)).sum()
                };
                let matching = f64::from(i32::try_from(matching).unwrap());
                let more = f64::from(i32::try_from(one.max_skew - 1).unwrap());
                *scores.entry(name).or_default() += matching * weight + more;
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

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    fn machine(&mut self, name: &str) -> Machine {
        let mut labels = BTreeMap::from([(HOST, name.to_owned())]);
        for (key, values) in [
            ("zone", &["x", "y", "z", ""][..]),
            ("rack", &["1", "2", "3", "4", ""]),
            ("pool", &["a", "b"]),
        ] {
            let value = self.of(values);
            if !value.is_empty() {
                labels.insert(key, value.to_owned());
            }
        }
        Machine {
            labels,
            tainted: self.below(4) == 0,
        }
    }

    fn wish(&mut self) -> Wish {
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
                affinity: self.of(&[None, Some(true), Some(false)]),
                taints: self.of(&[None, Some(true), Some(false)]),
                by_version: self.below(3) == 0,
            }
        });
        let constraints = constraints.collect();
        Wish {
            constraints,
            namespace: self.of(&["ns", "ns", "other"]),
            app: self.of(&["a", "b"]),
            version: self.of(&["1", "2"]),
            pool: self.of(&[None, None, Some("a"), Some("b")]),
            tolerates: self.below(2) == 0,
        }
    }
}

fn node(name: &str, machine: &Machine) -> Arc<Node> {
    let taints = json!([{"key": "k", "effect": "NoSchedule"}]);
    let taints = if machine.tainted { taints } else { json!([]) };
    let object = json!({
        "metadata": {"name": name, "uid": name, "labels": machine.labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": "100", "memory": "500Gi", "pods": "110"}},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn pod(name: &str, wish: &Wish, on: Option<&str>, deleting: bool) -> Arc<Pod> {
    let policy = |honor: bool| if honor { "Honor" } else { "Ignore" };
    let constraints = wish.constraints.iter().map(|one| {
        let mut out = json!({
            "topologyKey": one.key, "maxSkew": one.max_skew,
            "whenUnsatisfiable": if one.hard { "DoNotSchedule" } else { "ScheduleAnyway" },
            "labelSelector": {"matchLabels": {"app": wish.app}},
        });
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                out[key] = value;
            }
        };
        set("minDomains", one.min_domains.map(Value::from));
        set(
            "nodeAffinityPolicy",
            one.affinity.map(policy).map(Value::from),
        );
        set("nodeTaintsPolicy", one.taints.map(policy).map(Value::from));
        set("matchLabelKeys", one.by_version.then(|| json!(["version"])));
        out
    });
    let mut object = json!({
        "metadata": {
            "name": name, "namespace": wish.namespace, "uid": name,
            "labels": {"app": wish.app, "version": wish.version},
        },
        "spec": {
            "containers": [{"name": "c"}], "nodeName": on,
            "topologySpreadConstraints": constraints.collect::<Vec<_>>(),
            "nodeSelector": wish.pool.map(|pool| json!({"pool": pool})),
        },
    });
    if wish.tolerates {
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
    /// Some nodes can take the pod, and others that match and are tolerated cannot.
    apart: u32,
    /// No node can take the pod.
    refused: u32,
    /// Some nodes score higher than others.
    better: u32,
    /// Results that depend on `minDomains`, a policy or `matchLabelKeys` alone.
    min_domains: u32,
    affinity: u32,
    taints: u32,
    version: u32,
}

fn without(wish: &Wish, change: fn(&mut Constraint)) -> Wish {
    let mut wish = wish.clone();
    wish.constraints.iter_mut().for_each(change);
    wish
}

fn compare(
    engine: &mut Engine,
    world: &World,
    name: &str,
    wish: &Wish,
    reached: &mut Reached,
) -> Option<String> {
    let what = || format!("{name} {wish:#?} in {world:#?}");
    let expected = world.feasible(wish);
    let info = engine.queued(name).unwrap().clone();
    let refused = engine.inspector().nearest(&info, usize::MAX, now());
    let refused: BTreeSet<&str> = refused.iter().map(|near| &*near.node).collect();
    let all = world.nodes.keys();
    let is: BTreeSet<String> = all
        .filter(|node| !refused.contains(node.as_str()))
        .cloned()
        .collect();
    assert_eq!(is, expected, "{}", what());
    let taken = world.nodes.values().filter(|node| node.takes(wish)).count();
    reached.apart += u32::from(!expected.is_empty() && expected.len() < taken);
    let differs = |change: fn(&mut Constraint)| {
        let plain = without(wish, change);
        let fits = world.feasible(&plain);
        u32::from(fits != expected || world.best(&plain, &fits) != world.best(wish, &expected))
    };
    reached.min_domains += differs(|one| one.min_domains = None);
    reached.affinity += differs(|one| one.affinity = None);
    reached.taints += differs(|one| one.taints = None);
    reached.version += differs(|one| one.by_version = false);
    engine.take_outputs();
    engine.schedule_one(now()).unwrap();
    match engine.take_outputs().remove(0) {
        Output::Bind(bind) => {
            let node = bind.node.to_string();
            assert!(expected.contains(&node), "{node}: {}", what());
            if let Some(best) = world.best(wish, &expected) {
                assert!(best.contains(&node), "{node} of {best:?}: {}", what());
                reached.better += u32::from(best.len() < expected.len());
            }
            Some(node)
        }
        Output::Failed(_) => {
            assert!(expected.is_empty(), "{}", what());
            reached.refused += 1;
            None
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn pods_are_spread_as_counting_anew_says() {
    let mut reached = Reached::default();
    for seed in 0..60 {
        let mut dice = Dice(seed, 0);
        let plugins = ["PodTopologySpread", "NodeAffinity", "TaintToleration"];
        let args = json!({"defaultingType": "List"});
        let mut engine = engine(&plugins, args);
        engine.set_caching(seed % 3 != 0);
        let mut world = World::default();
        let mut waiting = BTreeMap::<String, Wish>::new();
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
                    let wish = Wish {
                        namespace: placed.namespace,
                        app: placed.app,
                        version: placed.version,
                        pool: None,
                        tolerates: true,
                        constraints: Vec::new(),
                    };
                    let node = placed.node.clone();
                    if placed.deleting {
                        engine.pod_deleted(&pod(name, &wish, Some(&node), true), now());
                        world.pods.remove(name);
                    } else {
                        placed.deleting = true;
                        engine.pod_applied(pod(name, &wish, Some(&node), true), now());
                    }
                }
                _ if !world.nodes.is_empty() => {
                    // A pending pod would be tried in place of the new one.
                    for (name, wish) in std::mem::take(&mut waiting) {
                        engine.pod_deleted(&pod(&name, &wish, None, false), now());
                    }
                    let (name, wish) = (format!("p{number}"), dice.wish());
                    engine.pod_applied(pod(&name, &wish, None, false), now());
                    let Some(node) = compare(&mut engine, &world, &name, &wish, &mut reached)
                    else {
                        waiting.insert(name, wish);
                        continue;
                    };
                    engine.pod_applied(pod(&name, &wish, Some(&node), false), now());
                    let placed = Placed {
                        node,
                        namespace: wish.namespace,
                        app: wish.app,
                        version: wish.version,
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
