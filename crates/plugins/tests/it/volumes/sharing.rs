//! Pods with equivalent claims share cached node results; each gets the same result as without the cache.

mod world;

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use world::{CLAIMS, NODES, VolumeStep, VolumeWorld, machine, pick, pod_of, run, step};

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn shared_results_equal_individual_results(
        steps in prop::collection::vec(step(), 1..90),
    ) {
        let (engines, [shared, alone]) = run(&steps);
        prop_assert_eq!(shared, alone);
        prop_assert_eq!(engines[0].classes().mismatches(), 0, "every signature is complete");
    }

    /// Incremental counts of volumes, updated as pods and attachments change, match a count of the final
    /// state.
    #[test]
    fn incremental_volume_counts_match_recount(
        steps in prop::collection::vec(step(), 1..90),
        places in prop::collection::vec(0..NODES, 90),
    ) {
        let limits = || crate::small::engine(&["NodeVolumeLimits"], json!({}));
        let mut engines = vec![limits()];
        let mut world = VolumeWorld::default();
        let mut pods: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
        let now = at(0);
        for node in 0..NODES {
            world.apply(&mut engines, &VolumeStep::Node { name: node, zone: 0 }, now);
        }
        world.set(&mut engines, "sc", class("late", "csi.example", "Immediate", json!({})), now);
        for (step, node) in steps.iter().zip(&places) {
            match step {
                VolumeStep::Node { .. } | VolumeStep::NodeGone(_) => {}
                VolumeStep::Pod { claims, .. } => {
                    world.pods += 1;
                    let mut pod = pod_of(world.pods, *claims, 9, 0, 99);
                    pod.spec.as_mut().unwrap().node_name = Some(format!("n{node}"));
                    let pod = Arc::new(pod);
                    engines[0].pod_applied(pod.clone(), now);
                    pods.insert(pod.metadata.name.clone().unwrap(), pod);
                }
                VolumeStep::PodGone(n) => {
                    let names: Vec<String> = pods.keys().cloned().collect();
                    if let Some(pod) = pick(*n, &names).and_then(|at| pods.remove(&names[at])) {
                        engines[0].pod_deleted(&pod, now);
                    }
                }
                other => world.apply(&mut engines, other, now),
            }
        }
        let mut fresh = limits();
        for ((kind, _), value) in &world.objects {
            set(&mut fresh, kind, value.clone());
        }
        for (name, zone) in &world.nodes {
            fresh.node_applied(machine(*name, *zone), now);
        }
        for pod in pods.values() {
            fresh.pod_applied(pod.clone(), now);
        }
        engines.push(fresh);
        for claims in (0..CLAIMS).map(|claim| [claim, CLAIMS]).chain([[0, 1], [2, 3], [4, 5]]) {
            let shared: Vec<_> = engines.iter_mut().map(|engine| {
                engine.pod_applied(Arc::new(pod_of(1_000, claims, 9, 0, 99)), now);
                let pod = engine.queued("pod-p1000").unwrap().clone();
                let rejected = engine.inspector().nearest(&pod, usize::MAX, now).into_iter();
                let refused: BTreeMap<_, _> = rejected.map(|rejection| (rejection.node, rejection.lacks)).collect();
                engine.pod_deleted(&pod.object.pod, now);
                refused
            }).collect();
            prop_assert_eq!(&shared[0], &shared[1], "{:?}", claims);
        }
    }
}

/// Checks one by one the rules that distinguish a claim from other claims of its kind.
#[test]
fn distinguishing_claim_properties_are_not_shared() {
    let claim = |name: u8, mode: u8| VolumeStep::Bound {
        name,
        mode,
        place: 9,
        driver: 2,
    };
    let pod = |claim: u8| VolumeStep::Pod {
        claims: [claim, CLAIMS],
        disk: 9,
        priority: 0,
        times: 1,
        nominated: 99,
    };
    // Two pods share a ReadWriteOncePod claim; a third has a claim of its own.
    let once = [claim(0, 1), claim(1, 1), pod(0), pod(0), pod(1)];
    let (engines, [shared, alone]) = run(&once);
    assert_eq!(shared, alone);
    let placed = |shared: &[String]| shared.iter().filter(|text| text.contains("->")).count();
    assert_eq!(placed(&shared), 2, "{shared:?}");
    assert_eq!(engines[0].classes().mismatches(), 0);

    // Between two pods, a claim is bound where other claims of its class cannot be.
    let late_claim = |name| VolumeStep::Claim {
        name,
        class: 0,
        size: 1,
        mode: 0,
        selected: 99,
    };
    let bound_here = VolumeStep::Bound {
        name: 1,
        mode: 0,
        place: 4,
        driver: 2,
    };
    let between = [late_claim(0), late_claim(1), pod(0), bound_here, pod(1)];
    let (_, [shared, alone]) = run(&between);
    assert_eq!(shared, alone);
    assert!(shared.contains(&"p2 -> n1".to_owned()), "{shared:?}");

    // Four nodes take two volumes each; all pods are equivalent.
    let mut fill: Vec<VolumeStep> = (0..CLAIMS).map(|name| claim(name, 0)).collect();
    fill.push(VolumeStep::Limit { node: 0, count: 1 });
    fill.extend((0..CLAIMS).map(pod));
    let (engines, [shared, alone]) = run(&fill);
    assert_eq!(shared, alone);
    assert_eq!(placed(&shared), 7, "{shared:?}");
    assert!(
        shared
            .iter()
            .any(|text| text.contains("exceed max volume count"))
    );
    assert_eq!(engines[0].classes().mismatches(), 0);
}

/// Changes on nodes between equivalent pods, and the expected outputs.
#[test]
fn node_changes_reach_equivalent_pods() {
    let bound = |name| VolumeStep::Bound {
        name,
        mode: 0,
        place: 9,
        driver: 2,
    };
    let by_hand = |name| VolumeStep::Claim {
        name,
        class: 1,
        size: 1,
        mode: 0,
        selected: 99,
    };
    let free = |name, place| VolumeStep::Volume {
        name,
        class: 1,
        place,
        size: 1,
        claim: 99,
    };
    let limit = |node, count| VolumeStep::Limit { node, count };
    let pod = |claim: u8| VolumeStep::Pod {
        claims: [claim, CLAIMS],
        disk: 9,
        priority: 0,
        times: 1,
        nominated: 99,
    };
    // Only the first node takes a volume.
    let mut steps: Vec<VolumeStep> = (0..4)
        .map(|node| limit(node, u8::from(node == 0)))
        .collect();
    steps.extend([bound(0), bound(1), bound(7)]);
    let (volume, node) = (7, 0);
    let rows = [
        (
            "a node takes more than before",
            [&steps[..], &[pod(0), pod(1), limit(0, 2)]].concat(),
            "p2 -> n0",
        ),
        (
            "a volume is detached",
            [
                &steps[..],
                &[
                    VolumeStep::Attached { node, volume },
                    pod(0),
                    VolumeStep::Detached(7),
                ],
            ]
            .concat(),
            "p1 -> n0",
        ),
        (
            "another volume of a zone",
            vec![
                by_hand(0),
                by_hand(1),
                free(8, 0),
                pod(0),
                pod(1),
                free(9, 1),
            ],
            "v9 Patch",
        ),
        (
            "another volume of a host",
            vec![
                by_hand(0),
                by_hand(1),
                free(8, 3),
                pod(0),
                pod(1),
                free(9, 4),
            ],
            "v9 Patch",
        ),
        (
            "a volume of two hosts is assigned",
            vec![
                VolumeStep::Node { name: 4, zone: 1 },
                by_hand(0),
                by_hand(1),
                free(8, 7),
                pod(0),
                pod(1),
            ],
            "v8 Patch",
        ),
    ];
    for (case, mut steps, expected) in rows {
        steps.push(VolumeStep::Wait(9));
        let (engines, [shared, alone]) = run(&steps);
        assert_eq!(shared, alone, "{case}");
        let matching = shared.iter().filter(|text| text.starts_with(expected));
        assert_eq!(matching.count(), 1, "{case}: {shared:?}");
        assert_eq!(engines[0].classes().mismatches(), 0, "{case}");
    }
}

/// A nominated pod counts on its node with the volumes that it has now, whatever it had when equivalent pods
/// were last checked.
#[test]
fn nominated_pod_volume_changes_reach_equivalent_pods() {
    // Zone z1 has one node, n1.
    let bound = |name, driver| VolumeStep::Bound {
        name,
        mode: 0,
        place: 1,
        driver,
    };
    let pod = |claim, disk, priority| VolumeStep::Pod {
        claims: [claim, CLAIMS],
        disk,
        priority,
        times: 1,
        nominated: 99,
    };
    let unbound = VolumeStep::Claim {
        name: 7,
        class: 0,
        size: 1,
        mode: 0,
        selected: 1,
    };
    // The node takes one volume. The nominated pod will have one there, but its disk is in use until the
    // evicted pod is deleted.
    let kept_for = |nominated: VolumeStep| {
        vec![
            VolumeStep::Limit { node: 1, count: 1 },
            bound(0, 0),
            bound(1, 2),
            bound(2, 2),
            nominated,
            pod(0, 0, 0),
            pod(7, 0, 1),
            pod(1, 9, 0),
        ]
    };
    let rows = [
        ("another kind of volume", bound(7, 2), bound(7, 0)),
        ("the claim is gone", bound(7, 2), VolumeStep::ClaimGone(7)),
        ("the claim is bound otherwise", unbound.clone(), bound(7, 0)),
        (
            "a class of another driver",
            unbound,
            VolumeStep::Class { moved: true },
        ),
    ];
    for (case, before, change) in rows {
        let mut steps = kept_for(before);
        let (_, [shared, alone]) = run(&steps);
        assert_eq!(shared, alone, "{case}");
        let is_kept = [
            "p2 evicts [\"p1\"] from n1",
            "p3: 0/4 nodes are available: 1 node(s) exceed max",
        ];
        for text in is_kept {
            assert!(
                shared.iter().any(|shared| shared.contains(text)),
                "{case}: {text}: {shared:?}"
            );
        }
        steps.extend([change, pod(2, 9, 0)]);
        let (engines, [shared, alone]) = run(&steps);
        assert_eq!(shared, alone, "{case}");
        // Either the rejected pod or the new one.
        let shared_count = shared
            .iter()
            .filter(|shared| *shared == "p3 -> n1" || *shared == "p4 -> n1");
        assert_eq!(shared_count.count(), 1, "{case}: {shared:?}");
        assert_eq!(engines[0].classes().mismatches(), 0, "{case}");
    }
}
