//! Whatever happens, in whatever order: the books are exact and nothing is given away twice.

use super::*;
use koord_model::resources::CPU;
use proptest::prelude::*;
use rustc_hash::FxHashMap;

#[derive(Debug, Clone)]
enum Step {
    Reserve {
        name: u8,
        cpu: u8,
        app: u8,
        policy: u8,
        once: bool,
    },
    Unreserve(u8),
    Pod {
        cpu: u8,
        app: u8,
        insists: bool,
        /// The only node it may go to, if there is one of this number.
        hint: u8,
    },
    PodGone(u8),
    Resize(u8, u8),
    Expire(u8),
    NodeGone(u8),
    Node(u8),
    Broken(bool),
    Slow(bool),
    Wait(u8),
    Restart(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_u8, 1..5_u8, 0..3_u8, 0..3_u8, any::<bool>()).prop_map(
            |(name, cpu, app, policy, once)| Step::Reserve { name, cpu, app, policy, once }
        ),
        2 => (0..6_u8).prop_map(Step::Unreserve),
        8 => (1..5_u8, 0..4_u8, prop::bool::weighted(0.2), 0..9_u8)
            .prop_map(|(cpu, app, insists, hint)| Step::Pod { cpu, app, insists, hint }),
        4 => any::<u8>().prop_map(Step::PodGone),
        1 => (0..6_u8, 1..5_u8).prop_map(|(name, cpu)| Step::Resize(name, cpu)),
        1 => (0..6_u8).prop_map(Step::Expire),
        1 => (0..3_u8).prop_map(Step::NodeGone),
        1 => (0..3_u8).prop_map(Step::Node),
        1 => any::<bool>().prop_map(Step::Broken),
        1 => any::<bool>().prop_map(Step::Slow),
        2 => (1..40_u8).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Restart),
    ]
}

impl World {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Reserve {
                name,
                cpu,
                app,
                policy,
                once,
            } => {
                let name = format!("r{name}");
                if !self.reservations.contains_key(&name) {
                    let policy = ["Aligned", "Restricted", ""][usize::from(*policy)];
                    let mut spec = json!({"allocateOnce": once});
                    if !policy.is_empty() {
                        spec["allocatePolicy"] = json!(policy);
                    }
                    let (cpu, app) = (cpu.to_string(), format!("a{app}"));
                    self.reserve(&name, &cpu, &app, json!({ "spec": spec }));
                }
            }
            Step::Unreserve(name) => self.unreserve(&format!("r{name}")),
            Step::Pod {
                cpu,
                app,
                insists,
                hint,
            } => {
                self.uids += 1;
                let mut change = if *insists {
                    json!({"metadata": {"annotations": {annotations::RESERVATION_AFFINITY: "{}"}}})
                } else {
                    json!({})
                };
                if *hint < 3 {
                    let hint = json!({"nodeNames": [format!("n{hint}")]}).to_string();
                    change["metadata"]["annotations"][annotations::SCHEDULING_HINT] = json!(hint);
                }
                let name = format!("p{}", self.uids);
                self.pod(
                    &name,
                    &format!("{}00m", u32::from(*cpu) * 4),
                    &format!("a{app}"),
                    change,
                );
            }
            Step::PodGone(at) => {
                let names: Vec<String> = self.pods.keys().cloned().collect();
                if !names.is_empty() {
                    self.pod_gone(&names[usize::from(*at) % names.len()]);
                }
            }
            Step::Resize(name, cpu) => {
                let name = format!("r{name}");
                let open = |r: &Value| r["status"]["phase"] == "Available";
                // Only down: resizing up is not checked against the node by anybody.
                let now = self.reservations.get(&name).filter(|r| open(r)).map(|r| {
                    r["status"]["allocatable"]["cpu"]
                        .as_str()
                        .unwrap_or("0")
                        .to_owned()
                });
                if now.is_some_and(|now| now.parse::<u8>().is_ok_and(|now| now > *cpu)) {
                    let status = json!({"allocatable": {"cpu": cpu.to_string()}});
                    self.edit(&name, json!({ "status": status }));
                }
            }
            Step::Expire(name) => {
                let name = format!("r{name}");
                if self.reservations.contains_key(&name) {
                    self.edit(&name, json!({"spec": {"ttl": "1s"}}));
                }
            }
            Step::NodeGone(at) => {
                let name = format!("n{at}");
                self.node_gone(&name);
                let on = |pod: &Value| pod["spec"]["nodeName"] == *name;
                let pods = self.pods.iter().filter(|(_, pod)| on(pod));
                for pod in pods.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
                    self.pod_gone(&pod);
                }
            }
            Step::Node(at) => {
                if !self.nodes.contains_key(&format!("n{at}")) {
                    self.node(&format!("n{at}"), 6);
                }
            }
            Step::Slow(slow) => self.slow = *slow,
            Step::Broken(broken) => self.broken = *broken,
            Step::Wait(seconds) => self.later(i64::from(*seconds)),
            Step::Restart(pods_first) => self.restart(*pods_first),
        }
    }

    /// What the API says must be held, against what the books hold.
    fn check(&self) -> Result<(), TestCaseError> {
        let nodes = self.engine.nodes();
        prop_assert!(nodes.books_balance());
        let milli = |pod: &Value| {
            let cpu = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
                .as_str()
                .unwrap();
            cpu.strip_suffix('m').unwrap().parse::<i64>().unwrap()
        };
        let mut owned: FxHashMap<String, i64> = FxHashMap::default();
        let mut held: FxHashMap<String, i64> = FxHashMap::default();
        for pod in self.pods.values() {
            let Some(node) = pod["spec"]["nodeName"].as_str() else {
                continue;
            };
            *held.entry(node.to_owned()).or_default() += milli(pod);
            let text = &pod["metadata"]["annotations"][annotations::RESERVATION_ALLOCATED];
            if let Some(text) = text.as_str() {
                let used: Value = serde_json::from_str(text).unwrap();
                let uid = used["uid"].as_str().unwrap_or_default();
                *owned.entry(format!("{uid}@{node}")).or_default() += milli(pod);
            }
        }
        for r in self.reservations.values() {
            let status = &r["status"];
            if status["phase"] != "Available" {
                continue;
            }
            let node = status["nodeName"].as_str().unwrap();
            let reserved = status["allocatable"]["cpu"]
                .as_str()
                .unwrap()
                .parse::<i64>()
                .unwrap();
            let uid = r["metadata"]["uid"].as_str().unwrap();
            let used = owned.get(&format!("{uid}@{node}")).copied().unwrap_or(0);
            let left = (reserved * 1000 - used).max(0);
            *held.entry(node.to_owned()).or_default() += left;
            let row = nodes.find(node).unwrap();
            let stands = nodes.booked(row).find(|pod| *pod.uid == *uid);
            prop_assert_eq!(stands.map(|pod| pod.requests.get(CPU)), Some(left));
            if !self.broken {
                let restricted = r["spec"]["allocatePolicy"] == "Restricted";
                let shrunk = r["metadata"]["annotations"]["shrunk"] == "true";
                prop_assert!(!restricted || shrunk || used <= reserved.max(4) * 1000);
                if r["spec"]["allocateOnce"] == true {
                    prop_assert_eq!(used, 0, "used up and not over: {}", r);
                }
                let says = status["allocated"]["cpu"].as_str().unwrap_or("0");
                let says: koord_api::quantity::Quantity = says.parse().unwrap();
                prop_assert_eq!(says.milli_value(), used, "{}", r);
            }
        }
        for name in self.nodes.keys() {
            let row = nodes.find(name).unwrap();
            let booked = nodes.requested(row, CPU);
            prop_assert_eq!(booked, held.get(name).copied().unwrap_or(0), "{}", name);
            prop_assert!(
                booked <= nodes.allocatable(row, CPU),
                "{} holds {}",
                name,
                booked
            );
        }
        Ok(())
    }
}

fn world() -> World {
    let mut world = World::new();
    for node in ["n0", "n1", "n2"] {
        world.node(node, 6);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_leaks_and_nothing_is_given_twice(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = world();
        for step in &steps {
            world.step(step);
            world.run();
            // What failed to be written is written later.
            if !world.broken {
                world.later(16);
            }
            world.check()?;
        }
        world.broken = false;
        for name in world.pods.keys().cloned().collect::<Vec<_>>() {
            world.pod_gone(&name);
        }
        for name in world.reservations.keys().cloned().collect::<Vec<_>>() {
            world.unreserve(&name);
        }
        world.later(16);
        for name in world.nodes.keys() {
            prop_assert_eq!(world.booked(name), 0);
        }
    }

    #[test]
    fn shared_evaluations_decide_as_fresh_ones(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut worlds = [world(), world()];
        worlds[1].caching(false);
        for step in &steps {
            for world in &mut worlds {
                world.step(step);
                world.run();
            }
            let [a, b] = &worlds;
            prop_assert_eq!(&a.pods, &b.pods);
            prop_assert_eq!(&a.reservations, &b.reservations);
            prop_assert_eq!(&a.said, &b.said);
            prop_assert_eq!(a.engine.mismatches(), 0, "every signature is complete");
        }
    }
}
