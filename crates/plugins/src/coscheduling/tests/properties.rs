//! Property test: whatever the order of events, no gang starts partially, resources are accounted correctly,
//! no member waits without a reason, and every gang that can start does.

use super::*;
use koord_model::resources::CPU;
use proptest::prelude::*;

const GANGS: usize = 3;
const MODES: [&str; 2] = ["Strict", "NonStrict"];
const POLICIES: [&str; 3] = ["once-satisfied", "waiting-and-running", "only-waiting"];

#[derive(Debug, Clone)]
enum GangStep {
    Pod(usize),
    Delete(usize),
    Node(usize),
    Declare(usize, i32),
    Undeclare(usize),
    /// Runs this many scheduling cycles.
    Decide(usize),
    /// Answers all bindings; those of gang `.0` fail if `.1`.
    Answer(usize, bool),
    /// Shows the informer what is bound.
    Echo,
    Wait(i64),
    /// Starts another leader from the state in the API.
    Restart,
}

#[derive(Debug, Clone)]
struct GangVariant {
    mode: usize,
    policy: usize,
    /// True if the first two gangs form a gang group.
    paired: bool,
}

fn step() -> impl Strategy<Value = GangStep> {
    prop_oneof![
        6 => (0..GANGS).prop_map(GangStep::Pod),
        2 => (0..40_usize).prop_map(GangStep::Delete),
        2 => (1..4_usize).prop_map(GangStep::Node),
        3 => (0..GANGS, 1..5).prop_map(|(gang, min)| GangStep::Declare(gang, min)),
        1 => (0..GANGS).prop_map(GangStep::Undeclare),
        8 => (1..12_usize).prop_map(GangStep::Decide),
        3 => (0..GANGS, prop::bool::weighted(0.3)).prop_map(|(gang, fail)| GangStep::Answer(gang, fail)),
        3 => Just(GangStep::Echo),
        2 => (1..400_i64).prop_map(GangStep::Wait),
        1 => Just(GangStep::Restart),
    ]
}

/// Simulated content of the API server.
struct Api {
    world: GangWorld,
    shape: GangVariant,
    nodes: Vec<usize>,
    /// Gang and node of each pod, by name.
    pods: BTreeMap<String, (usize, Option<String>)>,
    /// Bound pods that the informer has not shown yet.
    unseen: BTreeSet<String>,
    /// Minimum number of members, by gang.
    minimum: BTreeMap<usize, i32>,
    /// Gangs with at least one member that this leader has seen bound.
    began: BTreeSet<usize>,
    created: usize,
}

impl Api {
    fn new(shape: GangVariant) -> Self {
        let mut world = world(json!({"defaultTimeout": "100s"}));
        world.answer = false;
        Self {
            world,
            shape,
            nodes: Vec::new(),
            pods: BTreeMap::new(),
            unseen: BTreeSet::new(),
            minimum: BTreeMap::new(),
            began: BTreeSet::new(),
            created: 0,
        }
    }

    fn group(&self, gang: usize, min: i32) -> PodGroup {
        let prefix = "gang.scheduling.koordinator.sh";
        let mut annotations = json!({
            format!("{prefix}/mode"): MODES[self.shape.mode],
            format!("{prefix}/match-policy"): POLICIES[self.shape.policy],
        });
        if self.shape.paired && gang < 2 {
            annotations[format!("{prefix}/groups")] = json!(r#"["ns/g0","ns/g1"]"#);
        }
        group(&format!("g{gang}"), min, annotations, json!({}))
    }

    fn object(&self, name: &str) -> Pod {
        let (gang, node) = &self.pods[name];
        let pod = member(name, &format!("g{gang}"));
        match node {
            Some(node) => on_node(pod, node),
            None => pod,
        }
    }

    /// Returns the gangs in the gang group of `gang`.
    fn together(&self, gang: usize) -> Vec<usize> {
        if self.shape.paired && gang < 2 && [0, 1].iter().all(|g| self.minimum.contains_key(g)) {
            vec![0, 1]
        } else {
            vec![gang]
        }
    }

    fn take(&mut self, step: GangStep) {
        match step {
            GangStep::Pod(gang) => {
                let name = format!("p{:03}", self.created);
                self.created += 1;
                self.pods.insert(name.clone(), (gang, None));
                let pod = self.object(&name);
                self.world.apply(pod);
            }
            GangStep::Delete(at) => {
                if let Some(name) = self.pods.keys().nth(at).cloned() {
                    let pod = self.object(&name);
                    self.pods.remove(&name);
                    self.unseen.remove(&name);
                    self.world.delete(&pod);
                }
            }
            GangStep::Node(cpu) => {
                self.nodes.push(cpu);
                let name = format!("n{}", self.nodes.len());
                self.world.node(&name, cpu);
            }
            GangStep::Declare(gang, min) => {
                self.minimum.insert(gang, min);
                let group = self.group(gang, min);
                self.world.object(group, Action::UPDATE);
            }
            GangStep::Undeclare(gang) => {
                if let Some(min) = self.minimum.remove(&gang) {
                    let group = self.group(gang, min);
                    self.world.object(group, Action::DELETE);
                }
            }
            GangStep::Decide(count) => {
                for _ in 0..count {
                    let now = at(self.world.now);
                    let going = self.world.engine.schedule_one(now).is_some();
                    self.check_outputs();
                    if !going {
                        break;
                    }
                }
            }
            GangStep::Answer(gang, fail) => self.answer(fail.then_some(gang)),
            GangStep::Echo => {
                for name in std::mem::take(&mut self.unseen) {
                    let pod = self.object(&name);
                    self.world.apply(pod);
                }
            }
            GangStep::Wait(seconds) => self.world.now += seconds,
            GangStep::Restart => self.restart(),
        }
        self.check_outputs();
    }

    fn answer(&mut self, failing: Option<usize>) {
        for (pod, node) in std::mem::take(&mut self.world.pending) {
            // Deleted in the meantime: the API has no such pod.
            let Some((gang, bound)) = self.pods.get_mut(&*pod.name) else {
                let (message, gone) = ("not found".to_owned(), true);
                let result = Err(BindError { message, gone });
                self.world
                    .engine
                    .bind_finished(&pod.uid, result, at(self.world.now));
                continue;
            };
            let failed = failing == Some(*gang);
            if !failed {
                *bound = Some(node);
                self.unseen.insert(pod.name.to_string());
                self.began.insert(*gang);
            }
            let result = if failed {
                let message = "no".to_owned();
                Err(BindError {
                    message,
                    gone: false,
                })
            } else {
                Ok(())
            };
            self.world
                .engine
                .bind_finished(&pod.uid, result, at(self.world.now));
        }
    }

    fn restart(&mut self) {
        let now = self.world.now;
        self.world = world(json!({"defaultTimeout": "100s"}));
        self.world.answer = false;
        self.world.now = now;
        self.unseen.clear();
        self.began = self
            .pods
            .values()
            .filter(|(_, node)| node.is_some())
            .map(|(gang, _)| *gang)
            .collect();
        for name in self.pods.keys().rev() {
            let pod = self.object(name);
            self.world.apply(pod);
        }
        for (gang, min) in &self.minimum {
            let group = self.group(*gang, *min);
            self.world.declare(group);
        }
        for (at, cpu) in self.nodes.iter().enumerate() {
            self.world.node(&format!("n{}", at + 1), *cpu);
        }
    }

    /// Processes and checks the outputs of the engine.
    fn check_outputs(&mut self) {
        let before: BTreeSet<String> = self.on_the_way();
        self.world.collect();
        let now = self.on_the_way();
        for name in now.difference(&before) {
            let Some((gang, _)) = self.pods.get(name) else {
                continue;
            };
            let together = self.together(*gang);
            if together.iter().any(|gang| self.began.contains(gang)) {
                continue;
            }
            for gang in together {
                let min = self.minimum.get(&gang).copied().unwrap_or(i32::MAX);
                let going = self.pods.iter().filter(|(name, (of, node))| {
                    *of == gang && (node.is_some() || now.contains(*name))
                });
                let going = i32::try_from(going.count()).unwrap();
                assert!(going >= min, "gang {gang} starts with {going} of {min}");
            }
        }
        self.balance();
    }

    fn on_the_way(&self) -> BTreeSet<String> {
        let pending = self.world.pending.iter();
        pending.map(|(pod, _)| pod.name.to_string()).collect()
    }

    fn balance(&self) {
        let engine = &self.world.engine;
        let booked: Vec<&String> = self
            .pods
            .keys()
            .filter(|name| engine.cluster().placement(name).is_some())
            .collect();
        assert_eq!(
            booked.len(),
            engine.cluster().booked().0,
            "only what exists is booked"
        );
        for (name, (_, node)) in &self.pods {
            if let Some(node) = node {
                let placed = engine
                    .cluster()
                    .placement(name)
                    .map(|(node, _)| node.to_string());
                assert_eq!(
                    placed.as_ref(),
                    Some(node),
                    "{name} is bound and must be booked"
                );
            }
        }
        let mut total = 0;
        for node in engine.cluster().nodes().indices() {
            let used = engine.cluster().nodes().requested(node, CPU);
            assert!(used <= engine.cluster().nodes().allocatable(node, CPU));
            total += used;
        }
        assert_eq!(total, 1000 * i64::try_from(booked.len()).unwrap());
    }

    fn rest(&mut self) {
        for _ in 0..1000 {
            if self.world.engine.schedule_one(at(self.world.now)).is_none() {
                break;
            }
            self.check_outputs();
        }
        self.check_outputs();
    }

    /// Checks that, with no pod ready, strict gangs hold nothing that is not being bound.
    fn nothing_waits(&self) {
        if MODES[self.shape.mode] != "Strict" {
            return;
        }
        let going = self.on_the_way();
        for (name, (_, node)) in &self.pods {
            let booked = self.world.engine.cluster().placement(name).is_some();
            let reason = node.is_some() || going.contains(name);
            assert_eq!(booked, reason, "{name} waits for nothing");
        }
    }

    /// Checks that, with enough nodes and time, every complete gang runs.
    fn all_run(&mut self) {
        self.take(GangStep::Node(1000));
        for _ in 0..8 {
            self.rest();
            self.take(GangStep::Answer(0, false));
            self.take(GangStep::Echo);
            self.rest();
            self.nothing_waits();
            self.world.now += 400;
        }
        if POLICIES[self.shape.policy] == "only-waiting" {
            return;
        }
        let members = |gang: usize| self.pods.values().filter(move |(of, _)| *of == gang);
        for gang in 0..GANGS {
            let complete = self.together(gang).into_iter().all(|gang| {
                let min = self.minimum.get(&gang).copied().unwrap_or(i32::MAX);
                i32::try_from(members(gang).count()).unwrap() >= min
            });
            let group_exists = !self.shape.paired || gang > 1 || self.together(gang).len() == 2;
            if complete && group_exists {
                assert!(
                    members(gang).all(|(_, node)| node.is_some()),
                    "gang {gang} could run: {:?} {:?}",
                    self.pods,
                    self.world.conditions
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gangs_start_completely_in_any_order(
        mode in 0..MODES.len(),
        policy in 0..POLICIES.len(),
        paired: bool,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut api = Api::new(GangVariant { mode, policy, paired });
        for step in steps {
            api.take(step);
        }
        api.rest();
        api.nothing_waits();
        api.all_run();
    }
}
