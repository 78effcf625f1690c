//! Random events in any order: allocations stay exact and nothing is allocated twice.

use super::*;
use koord_model::resources::CPU;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
enum ReservationStep {
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
        /// Number of the only node that it may use, if such a node exists.
        hint: u8,
        /// True if two such pods arrive at the same time.
        twins: bool,
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

fn step() -> impl Strategy<Value = ReservationStep> {
    prop_oneof![
        8 => (0..6_u8, 1..5_u8, 0..3_u8, 0..3_u8, prop::bool::weighted(0.25)).prop_map(
            |(name, cpu, app, policy, once)| ReservationStep::Reserve { name, cpu, app, policy, once }
        ),
        2 => (0..6_u8).prop_map(ReservationStep::Unreserve),
        8 => (1..5_u8, 0..4_u8, prop::bool::weighted(0.2), 0..9_u8, any::<bool>())
            .prop_map(|(cpu, app, insists, hint, twins)| ReservationStep::Pod { cpu, app, insists, hint, twins }),
        4 => any::<u8>().prop_map(ReservationStep::PodGone),
        // Mostly to less than its owners use.
        6 => (0..6_u8, prop_oneof![3 => Just(1), 1 => 1..5_u8])
            .prop_map(|(name, cpu)| ReservationStep::Resize(name, cpu)),
        1 => (0..6_u8).prop_map(ReservationStep::Expire),
        1 => (0..3_u8).prop_map(ReservationStep::NodeGone),
        1 => (0..3_u8).prop_map(ReservationStep::Node),
        1 => any::<bool>().prop_map(ReservationStep::Broken),
        1 => any::<bool>().prop_map(ReservationStep::Slow),
        2 => (1..40_u8).prop_map(ReservationStep::Wait),
        1 => any::<bool>().prop_map(ReservationStep::Restart),
    ]
}

/// State of the last check, by uid of the reservation.
#[derive(Default)]
struct CheckState {
    owners: BTreeMap<String, BTreeSet<String>>,
    /// Counts of the cases that a run is meant to cover.
    reached: ReservationCoverage,
}

#[derive(Debug, Default)]
struct ReservationCoverage {
    /// Owners that joined a restricted reservation and filled it.
    full: u32,
    /// Owners that used more than was left in the reservation.
    over_size: u32,
    /// Reservations resized to less than their owners use.
    shrunk: u32,
    used_up: u32,
    insisted: u32,
    failed_writes: u32,
}

impl ReservationCoverage {
    fn counts(&self) -> [u32; 6] {
        [
            self.full,
            self.over_size,
            self.shrunk,
            self.used_up,
            self.insisted,
            self.failed_writes,
        ]
    }
}

impl ReservationWorld {
    fn step(&mut self, step: &ReservationStep) {
        match step {
            ReservationStep::Reserve {
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
            ReservationStep::Unreserve(name) => self.unreserve(&format!("r{name}")),
            ReservationStep::Pod {
                cpu,
                app,
                insists,
                hint,
                twins,
            } => {
                let mut change = if *insists {
                    json!({"metadata": {"annotations": {annotations::RESERVATION_AFFINITY: "{}"}}})
                } else {
                    json!({})
                };
                if *hint < 3 {
                    let hint = json!({"nodeNames": [format!("n{hint}")]}).to_string();
                    change["metadata"]["annotations"][annotations::SCHEDULING_HINT] = json!(hint);
                }
                for _ in 0..=u8::from(*twins) {
                    self.uids += 1;
                    let name = format!("p{}", self.uids);
                    let cpu = format!("{}00m", u32::from(*cpu) * 4);
                    self.pod(&name, &cpu, &format!("a{app}"), change.clone());
                }
            }
            ReservationStep::PodGone(at) => {
                let names: Vec<String> = self.pods.keys().cloned().collect();
                if !names.is_empty() {
                    self.pod_gone(&names[usize::from(*at) % names.len()]);
                }
            }
            ReservationStep::Resize(name, cpu) => {
                let name = format!("r{name}");
                let open = |r: &Value| r["status"]["phase"] == "Available";
                // Only smaller: nothing checks a larger size against the node.
                let now = self.reservations.get(&name).filter(|r| open(r)).map(|r| {
                    r["status"]["allocatable"]["cpu"]
                        .as_str()
                        .unwrap_or("0")
                        .to_owned()
                });
                if now.is_some_and(|now| now.parse::<u8>().is_ok_and(|now| now > *cpu)) {
                    let size = cpu.to_string();
                    self.edit(
                        &name,
                        json!({"metadata": {"annotations": {RESIZED: size}},
                            "status": {"allocatable": {"cpu": size}}}),
                    );
                }
            }
            ReservationStep::Expire(name) => {
                let name = format!("r{name}");
                if self.reservations.contains_key(&name) {
                    self.edit(&name, json!({"spec": {"ttl": "1s"}}));
                }
            }
            ReservationStep::NodeGone(at) => {
                let name = format!("n{at}");
                self.node_gone(&name);
                let on = |pod: &Value| pod["spec"]["nodeName"] == *name;
                let pods = self.pods.iter().filter(|(_, pod)| on(pod));
                for pod in pods.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
                    self.pod_gone(&pod);
                }
            }
            ReservationStep::Node(at) => {
                if !self.nodes.contains_key(&format!("n{at}")) {
                    self.node(&format!("n{at}"), 6);
                }
            }
            ReservationStep::Slow(decide_all_first) => self.decide_all_first = *decide_all_first,
            ReservationStep::Broken(broken) => self.broken = *broken,
            ReservationStep::Wait(seconds) => self.later(i64::from(*seconds)),
            ReservationStep::Restart(pods_first) => self.restart(*pods_first),
        }
    }

    /// Returns the uid of the reservation in the pod's annotation.
    pub(super) fn owned_by(pod: &Value) -> Option<String> {
        let text = pod["metadata"]["annotations"][annotations::RESERVATION_ALLOCATED].as_str()?;
        let used: Value = serde_json::from_str(text).unwrap();
        Some(used["uid"].as_str().unwrap().to_owned())
    }

    /// Compares the allocations that follow from the API objects with those of the engine.
    fn check(&self, state: &mut CheckState) -> Result<(), TestCaseError> {
        let nodes = self.engine.cluster().nodes();
        prop_assert!(nodes.books_balance());
        let milli = |pod: &Value| {
            let cpu = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
                .as_str()
                .unwrap();
            cpu.strip_suffix('m').unwrap().parse::<i64>().unwrap()
        };
        let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut expected: FxHashMap<String, i64> = FxHashMap::default();
        for (name, pod) in &self.pods {
            let Some(node) = pod["spec"]["nodeName"].as_str() else {
                continue;
            };
            *expected.entry(node.to_owned()).or_default() += milli(pod);
            let uid = Self::owned_by(pod);
            let insists = &pod["metadata"]["annotations"][annotations::RESERVATION_AFFINITY];
            prop_assert!(insists.is_null() || uid.is_some(), "{pod} goes without");
            state.reached.insisted += u32::from(!insists.is_null());
            if let Some(uid) = uid {
                owners.entry(uid).or_default().insert(name.clone());
            }
        }
        state.reached.failed_writes += u32::from(self.broken);
        for r in self.reservations.values() {
            let status = &r["status"];
            let uid = r["metadata"]["uid"].as_str().unwrap();
            let none = BTreeSet::new();
            let own_pods = owners.get(uid).unwrap_or(&none);
            let once = r["spec"]["allocateOnce"] == true;
            prop_assert!(!once || own_pods.len() <= 1, "{r} has {own_pods:?}");
            state.reached.used_up += u32::from(once && !own_pods.is_empty());
            let app = &r["spec"]["owners"][0]["labelSelector"]["matchLabels"]["app"];
            for name in own_pods {
                let pod = &self.pods[name];
                prop_assert_eq!(&pod["metadata"]["labels"]["app"], app, "{}", r);
            }
            if status["phase"] != "Available" {
                continue;
            }
            let node = status["nodeName"].as_str().unwrap();
            let cores = |value: &Value| value.as_str().unwrap().parse::<i64>().unwrap() * 1000;
            let template = &r["spec"]["template"]["spec"]["containers"][0];
            let requested = cores(&template["resources"]["requests"]["cpu"]);
            // The user's size counts; a user makes a reservation smaller in its status.
            let resized = &r["metadata"]["annotations"][RESIZED];
            let reserved = if resized.is_null() {
                requested
            } else {
                cores(resized)
            };
            prop_assert_eq!(cores(&status["allocatable"]["cpu"]), reserved, "{}", r);
            let used = own_pods
                .iter()
                .map(|name| milli(&self.pods[name]))
                .sum::<i64>();
            for name in own_pods {
                prop_assert_eq!(&self.pods[name]["spec"]["nodeName"], node, "{}", r);
            }
            let remaining = (reserved - used).max(0);
            *expected.entry(node.to_owned()).or_default() += remaining;
            let row = nodes.find(node).unwrap();
            let stands = nodes.booked(row).find(|pod| *pod.uid == *uid);
            prop_assert_eq!(stands.map(|pod| pod.requests.get(CPU)), Some(remaining));
            let joined = state.owners.get(uid);
            let joined = own_pods
                .iter()
                .any(|name| joined.is_none_or(|old| !old.contains(name)));
            state.reached.shrunk += u32::from(used > reserved && !resized.is_null());
            if joined {
                // A new owner must fit; existing owners stay when the reservation becomes smaller.
                let restricted = r["spec"]["allocatePolicy"] == "Restricted";
                prop_assert!(!restricted || used <= reserved, "{used} of {r}");
                state.reached.full += u32::from(restricted && used + 400 > reserved);
                state.reached.over_size += u32::from(used > reserved);
            }
            if !self.broken {
                prop_assert!(!once || used == 0, "used up and not over: {r}");
                let says = status["allocated"]["cpu"].as_str().unwrap_or("0");
                let says: koord_api::quantity::Quantity = says.parse().unwrap();
                prop_assert_eq!(says.milli_value(), used, "{}", r);
            }
        }
        state.owners = owners;
        for name in self.nodes.keys() {
            let row = nodes.find(name).unwrap();
            let booked = nodes.requested(row, CPU);
            prop_assert_eq!(booked, expected.get(name).copied().unwrap_or(0), "{}", name);
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

/// Annotation in which the test stores a user's resize of a reservation.
const RESIZED: &str = "example.com/resized";

fn world() -> ReservationWorld {
    let mut world = ReservationWorld::new();
    for node in ["n0", "n1", "n2"] {
        world.node(node, 6);
    }
    world
}

fn run(steps: &[ReservationStep]) -> Result<ReservationCoverage, TestCaseError> {
    let mut world = world();
    let mut state = CheckState::default();
    for step in steps {
        world.step(step);
        world.run();
        // Failed writes are repeated after a while.
        if !world.broken {
            world.later(16);
        }
        world.check(&mut state)?;
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
    Ok(state.reached)
}

#[test]
fn allocations_are_exact_and_exclusive() {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(128));
    let total = RefCell::new([0; 6]);
    let steps = prop::collection::vec(step(), 1..60);
    let ended = runner.run(&steps, |steps| {
        let reached = run(&steps)?.counts();
        for (sum, count) in total.borrow_mut().iter_mut().zip(reached) {
            *sum += count;
        }
        Ok(())
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
    let total = total.into_inner();
    assert!(total.iter().all(|count| *count >= 1), "{total:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
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
            prop_assert_eq!(&a.messages, &b.messages);
            prop_assert_eq!(a.engine.classes().mismatches(), 0, "every signature is complete");
        }
    }
}
