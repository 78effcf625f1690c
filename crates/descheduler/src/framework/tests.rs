use super::*;
use crate::testing::{AllowAll, TestCluster, balancing, moved};
use jiff::SignedDuration;
use serde_json::json;

/// A strategy that evicts every pod.
#[derive(Debug)]
struct All;

impl Strategy for All {
    fn name(&self) -> &'static str {
        "All"
    }
    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        for node in cycle.nodes() {
            for pod in cycle.snapshot().active_on(&node.name) {
                if cycle.filter(pod) {
                    let _ = cycle.evict(pod, "why not");
                }
            }
        }
        Ok(())
    }
}

/// A filter that refuses pods whose name begins with `no`, and more than one pod of a node.
#[derive(Debug, Default)]
struct Picky(Vec<Arc<str>>);

impl Filter for Picky {
    fn name(&self) -> &'static str {
        "Picky"
    }
    fn begin(&mut self, _: &Snapshot) {
        self.0.clear();
    }
    fn filter(&self, _: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        if pod.name.starts_with("no") {
            return Err(SkipReason::new("Named", "its name begins with no"));
        }
        if pod.node.as_ref().is_some_and(|node| self.0.contains(node)) {
            return Err(SkipReason::new("OneEach", "another one goes"));
        }
        Ok(())
    }
    fn moved(&mut self, _: &Snapshot, pod: &Arc<PodInfo>) {
        self.0.extend(pod.node.clone());
    }
}

fn two_nodes() -> TestCluster {
    let mut world = TestCluster::default();
    world.node("a", json!({"metadata": {"labels": {"zone": "1"}}}));
    world.node("b", json!({}));
    for (name, node) in [("p1", "a"), ("p2", "a"), ("no", "a"), ("p3", "b")] {
        world.pod(name, node, json!({}));
    }
    world
}

#[test]
fn plan_lists_moves_and_skipped_pods() {
    let world = two_nodes();
    let mut framework = balancing(
        Box::new(All),
        vec![Box::new(AllowAll), Box::<Picky>::default()],
    );
    for _ in 0..2 {
        let plan = framework.run(&world.snapshot());
        assert_eq!(moved(&plan), ["p1", "p3"]);
        let skipped: Vec<_> = plan
            .skipped
            .iter()
            .map(|skipped| (&*skipped.pod.name, skipped.reason.rule))
            .collect();
        assert_eq!(skipped, [("no", "Named"), ("p2", "OneEach")]);
        assert!(plan.moves().all(|planned| planned.intent.is_some()));
    }
    framework.dry_run = true;
    let plan = framework.run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1", "p3"]);
    assert!(plan.moves().all(|planned| planned.intent.is_none()));
}

#[test]
fn limits_are_of_a_cycle_and_over_all_profiles() {
    let world = two_nodes();
    let outcome = |limits| {
        let mut framework = balancing(Box::new(All), vec![Box::new(AllowAll)]);
        framework
            .profiles
            .extend(balancing(Box::new(All), vec![Box::new(AllowAll)]).profiles);
        framework.limits = limits;
        framework.run(&world.snapshot());
        let plan = framework.run(&world.snapshot());
        let rules: std::collections::BTreeSet<_> = plan
            .skipped
            .iter()
            .map(|skipped| skipped.reason.rule)
            .collect();
        (moved(&plan).len(), rules.into_iter().next())
    };
    let limits = Limits::default();
    assert_eq!(outcome(limits), (4, None));
    let per_node = Limits {
        per_node: Some(1),
        ..limits
    };
    assert_eq!(outcome(per_node), (2, Some("MaxNoOfPodsToEvictPerNode")));
    let per_namespace = Limits {
        per_namespace: Some(3),
        ..limits
    };
    assert_eq!(
        outcome(per_namespace),
        (3, Some("MaxNoOfPodsToEvictPerNamespace"))
    );
    let total = Limits {
        total: Some(0),
        ..limits
    };
    assert_eq!(outcome(total), (0, Some("MaxNoOfPodsToEvictTotal")));
}

#[test]
fn nodes_are_selected_and_fewer_than_two_are_left_alone() {
    let mut world = two_nodes();
    let mut framework = balancing(Box::new(All), vec![Box::new(AllowAll)]);
    framework.profiles[0].node_selector =
        Some(serde_json::from_value(json!({"matchLabels": {"zone": "1"}})).unwrap());
    assert_eq!(moved(&framework.run(&world.snapshot())), ["no", "p1", "p2"]);
    framework.node_selector = framework.profiles[0].node_selector.clone();
    let plan = framework.run(&world.snapshot());
    assert!(moved(&plan).is_empty() && plan.error.unwrap().contains("fewer than two"));
    framework.node_selector = None;
    world.nodes.pop();
    world.node(
        "b",
        json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
    );
    assert!(framework.run(&world.snapshot()).error.is_some());
}

/// A placement that returns `b` for every pod except `p2`.
#[derive(Debug)]
struct OnlyB;

impl Placement for OnlyB {
    fn begin(&mut self, _: &Snapshot) {}
    fn place_tentatively(
        &mut self,
        _: &Snapshot,
        pod: &Arc<PodInfo>,
    ) -> Result<Arc<str>, SkipReason> {
        if &*pod.name == "p2" {
            return Err(SkipReason::new("NoTarget", "0/2 nodes fit"));
        }
        Ok("b".into())
    }
}

#[test]
fn pod_without_target_is_skipped() {
    let world = two_nodes();
    let mut framework = balancing(Box::new(All), vec![Box::new(AllowAll)]);
    framework.placement = Some(Box::new(OnlyB));
    for _ in 0..2 {
        let plan = framework.run(&world.snapshot());
        assert_eq!(moved(&plan), ["no", "p1", "p3"]);
        assert!(
            plan.moves()
                .all(|planned| planned.target.as_deref() == Some("b"))
        );
        assert_eq!(plan.skipped[0].reason.rule, "NoTarget");
    }
}

/// Returns the outcomes of a plan in which the moves of these pods fail.
fn outcomes(plan: &Plan, failing: &[&str]) -> Vec<Result<String, String>> {
    let outcome = |action: &Action| match action {
        Action::Move(planned) if failing.contains(&&*planned.pod.name) => {
            Err("eviction: denied".to_owned())
        }
        _ => Ok("is evicted".to_owned()),
    };
    plan.actions.iter().map(outcome).collect()
}

#[test]
fn refused_pods_do_not_use_up_the_cycle_limit() {
    let mut world = two_nodes();
    let mut framework = balancing(Box::new(All), vec![Box::new(AllowAll)]);
    framework.limits.total = Some(1);
    let failing = ["no", "p1"];
    let mut planned = Vec::new();
    for _ in 0..12 {
        let snapshot = world.snapshot();
        let plan = framework.run(&snapshot);
        framework.record_outcomes(&snapshot, &plan, &outcomes(&plan, &failing));
        planned.push(moved(&plan).join(" "));
        world.now += SignedDuration::from_secs(10);
    }
    // The backoff is one cycle, then two, then four.
    let expected = [
        "no", "p1", "no", "p1", "p2", "no", "p1", "p2", "p2", "p2", "no", "p1",
    ];
    assert_eq!(planned, expected);
    let plan = framework.run(&world.snapshot());
    let reason = plan
        .skipped
        .iter()
        .find(|skipped| &*skipped.pod.name == "no");
    assert_eq!(
        reason.map(|skipped| skipped.reason.to_string()).as_deref(),
        Some("MoveRefused: its move failed 4 times in a row: not again for 7 cycles")
    );
    // A failure expires after an hour, and a success clears it.
    world.now += SignedDuration::from_hours(1);
    assert_eq!(moved(&framework.run(&world.snapshot())), ["no"]);
}

#[test]
fn untried_moves_are_not_backed_off() {
    /// A strategy that drains node `a`.
    #[derive(Debug)]
    struct Clears;
    impl Strategy for Clears {
        fn name(&self) -> &'static str {
            "Clears"
        }
        fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
            for pod in cycle.snapshot().active_on("a") {
                let _ = cycle.evict_with(pod, "", None, Some("a".into()));
            }
            Ok(())
        }
    }
    let world = two_nodes();
    let mut framework = balancing(Box::new(Clears), Vec::new());
    let snapshot = world.snapshot();
    let plan = framework.run(&snapshot);
    assert_eq!(moved(&plan), ["no", "p1", "p2"]);
    framework.record_outcomes(&snapshot, &plan, &outcomes(&plan, &["p1", "p2"]));
    let plan = framework.run(&snapshot);
    assert_eq!(moved(&plan), ["no", "p2"]);
    // A move that was only shown did not fail.
    framework.dry_run = true;
    let plan = framework.run(&snapshot);
    framework.record_outcomes(&snapshot, &plan, &outcomes(&plan, &["no"]));
    assert!(moved(&framework.run(&snapshot)).contains(&"no".to_owned()));
}
