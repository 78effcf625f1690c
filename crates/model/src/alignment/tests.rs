//! The acceptance cases of the specification (AC), and the facts of upstream's tables.

use super::*;
use crate::resources::{ResourceTable, amount};
use koord_api::quantity::Quantity;

mod rows;

/// Parses texts like `cpu 2, memory 20Mi` to requests and amounts.
#[derive(Default)]
struct Fixture {
    table: ResourceTable,
}

impl Fixture {
    fn demands(&self, text: &str) -> Vec<ResourceDemand> {
        let parts = text.split(", ").filter(|part| !part.is_empty());
        let wants = parts.map(|part| {
            let (name, value) = part.split_once(' ').unwrap();
            let quantity: Quantity = value.parse().unwrap();
            let id = self.table.intern(name);
            ResourceDemand {
                id,
                amount: amount(id, &quantity),
                kind: ResourceKind::from_name(name),
            }
        });
        let mut wants: Vec<ResourceDemand> = wants.collect();
        wants.sort_by_key(|want| want.id);
        wants
    }

    fn amounts(&self, text: &str) -> Amounts {
        let wants = self.demands(text).into_iter();
        wants.map(|want| (want.id, want.amount)).collect()
    }

    /// Zones in order, with distances as rows of a matrix.
    fn zones(&self, zones: &[&str], costs: &[&[u32]]) -> Vec<Zone> {
        let zones = zones.iter().enumerate().map(|(at, text)| Zone {
            id: at as u32,
            available: self.amounts(text),
            costs: costs
                .get(at)
                .map(|row| (0..).zip(row.iter().copied()).collect())
                .unwrap_or_default(),
        });
        zones.collect()
    }

    /// Parses the containers of a pod: each is a request, with the prefix `init ` or `sidecar `, or none.
    fn ask(&self, guaranteed: bool, containers: &[&str]) -> AlignmentRequest {
        let mut whole = Amounts::new();
        let mut starting = Amounts::new();
        let parsed = containers.iter().map(|text| {
            let (role, text) = match text.split_once(' ') {
                Some(("init", rest)) => (Role::Init, rest),
                Some(("sidecar", rest)) => (Role::Sidecar, rest),
                _ => (Role::Main, *text),
            };
            (role, self.demands(text))
        });
        let containers: Vec<_> = parsed.collect();
        for (role, wants) in &containers {
            let wants = wants.iter().map(|want| (want.id, want.amount));
            match role {
                Role::Init => starting.max_all(&wants.collect()),
                _ => whole.add_all(&wants.collect()),
            }
        }
        whole.max_all(&starting);
        let whole = whole.iter().map(|(id, amount)| ResourceDemand {
            id,
            amount,
            kind: ResourceKind::from_name(&self.table.name(id)),
        });
        AlignmentRequest {
            guaranteed,
            whole: whole.collect(),
            containers,
        }
    }

    fn fits(
        &self,
        zones: &[&str],
        scope: Scope,
        ask: &AlignmentRequest,
    ) -> Result<(), &'static str> {
        let (zones, none) = (self.zones(zones, &[]), Amounts::new());
        let absent = self.table.intern("example.com/absent");
        let result =
            check_single_zone(ask, scope, FreeZones::new(&zones, &none), |id| id != absent);
        result.map_err(|unfit| unfit.message)
    }
}

const BOTH: [Scope; 2] = [Scope::Container, Scope::Pod];
const A: [&str; 2] = ["cpu 10, memory 32Gi"; 2];
const B: [&str; 2] = ["cpu 20, memory 32Gi"; 2];

#[test]
fn ac1_pod_fits_if_one_numa_node_holds_it() {
    let fixture = Fixture::default();
    let pod = fixture.ask(true, &["cpu 20, memory 1Gi"]);
    let refused = [Err("cannot align container"), Err("cannot align pod")];
    for (scope, refused) in BOTH.into_iter().zip(refused) {
        assert_eq!(fixture.fits(&A, scope, &pod), refused);
        assert_eq!(fixture.fits(&B, scope, &pod), Ok(()));
        let none = Amounts::new();
        let score = |zones: &[&str], kind| {
            let zones = fixture.zones(zones, &[]);
            strategy(kind, &pod, scope, &FreeZones::new(&zones, &none), |_| 1)
        };
        assert_eq!(score(&B, ZoneStrategy::LeastAllocated), 48);
        assert_eq!(score(&B, ZoneStrategy::MostAllocated), 51);
        assert_eq!(score(&B, ZoneStrategy::BalancedAllocation), 53);
        assert_eq!(score(&A, ZoneStrategy::LeastAllocated), 48);
        assert_eq!(score(&A, ZoneStrategy::MostAllocated), 1);
        for costs in [&[&[10, 20][..], &[20, 10]][..], &[]] {
            let zones = fixture.zones(&B, costs);
            assert_eq!(
                least_zones_score(&pod, scope, FreeZones::new(&zones, &none), 8),
                94
            );
        }
    }
}

#[test]
fn ac3_scope_aligns_containers_or_whole_pod() {
    let fixture = Fixture::default();
    for (containers, of_container, of_pod) in [
        (&["cpu 6", "cpu 6"][..], Ok(()), Err("cannot align pod")),
        (&["cpu 4", "cpu 6"], Ok(()), Ok(())),
        (&["init cpu 10", "cpu 6", "cpu 4"], Ok(()), Ok(())),
        (
            &["init cpu 11", "cpu 1"],
            Err("cannot align init container"),
            Err("cannot align pod"),
        ),
        (
            &["cpu 6", "cpu 6", "cpu 6"],
            Err("cannot align container"),
            Err("cannot align pod"),
        ),
        // CPUs of a sidecar stay allocated; those of an init container are used again.
        (
            &["sidecar cpu 6", "sidecar cpu 6", "cpu 5"],
            Err("cannot align container"),
            Err("cannot align pod"),
        ),
        (
            &["sidecar cpu 11"],
            Err("cannot align sidecar container"),
            Err("cannot align pod"),
        ),
        (
            &["init cpu 6", "init cpu 6", "cpu 10", "cpu 10"],
            Ok(()),
            Err("cannot align pod"),
        ),
    ] {
        let pod = fixture.ask(true, containers);
        let zones = ["cpu 10", "cpu 10"];
        assert_eq!(
            fixture.fits(&zones, Scope::Container, &pod),
            of_container,
            "{containers:?}"
        );
        assert_eq!(
            fixture.fits(&zones, Scope::Pod, &pod),
            of_pod,
            "{containers:?}"
        );
    }
}

#[test]
fn ac4_devices_are_on_numa_node_of_cpus() {
    let fixture = Fixture::default();
    let a = ["cpu 3, x.com/a 1, x.com/b 2", "cpu 3, x.com/a 2, x.com/b 1"];
    let b = ["cpu 3, x.com/a 3", "cpu 3, x.com/b 3"];
    let pod = fixture.ask(true, &["cpu 1, x.com/a 1, x.com/b 1"]);
    for scope in BOTH {
        assert_eq!(fixture.fits(&a, scope, &pod), Ok(()));
        assert!(fixture.fits(&b, scope, &pod).is_err());
    }
}

#[test]
fn ac5_and_9_shared_resources_are_not_aligned() {
    let fixture = Fixture::default();
    let zones = ["cpu 10, memory 8Gi, x.com/a 2"; 2];
    for (guaranteed, containers, fits) in [
        (false, "cpu 15", true),
        (false, "cpu 15, memory 64Gi", true),
        (false, "cpu 1, x.com/a 3", false),
        (false, "x.com/a 2", true),
        (true, "cpu 15", false),
        // The node has the resource, but no zone lists it.
        (true, "cpu 1, example.com/x 5, ephemeral-storage 1Ti", true),
        (true, "cpu 1, example.com/absent 1", false),
        (true, "cpu 1, example.com/absent 0", true),
        // Huge pages are always in zones.
        (true, "cpu 1, hugepages-2Mi 2Mi", false),
        (true, "cpu 1, hugepages-2Mi 0", true),
    ] {
        let pod = fixture.ask(guaranteed, &[containers]);
        for scope in BOTH {
            let result = fixture.fits(&zones, scope, &pod);
            assert_eq!(result.is_ok(), fits, "{containers}: {result:?}");
        }
    }
    // A node without zones aligns nothing.
    let pod = fixture.ask(true, &["cpu 1"]);
    assert_eq!(fixture.fits(&[], Scope::Pod, &pod), Err("cannot align pod"));
}

#[test]
fn held_amounts_are_subtracted_from_every_zone() {
    let fixture = Fixture::default();
    let zones = fixture.zones(&["cpu 10, x.com/a 1", "cpu 4"], &[]);
    let allocated = fixture.amounts("cpu 6, x.com/a 3");
    let free = FreeZones::new(&zones, &allocated);
    let (cpu, a) = (CPU, fixture.table.intern("x.com/a"));
    let free_amounts = |id| (0..2).map(|at| free.get(at, id)).collect::<Vec<_>>();
    assert_eq!(free_amounts(cpu), [Some(4000), Some(0)]);
    assert_eq!(free_amounts(a), [Some(0), None]);
}

/// Upstream's `defaultNUMANodes`: two equal zones each.
const SCORED: [[&str; 2]; 3] = [
    ["cpu 4, memory 500Mi"; 2],
    ["cpu 2, memory 50Mi"; 2],
    ["cpu 6, memory 60Mi"; 2],
];

#[test]
fn ac6_strategies_score_as_upstream() {
    let fixture = Fixture::default();
    let pod = fixture.ask(true, &["cpu 2, memory 20Mi"]);
    let none = Amounts::new();
    for (kind, scores) in [
        (ZoneStrategy::LeastAllocated, [73, 30, 66]),
        (ZoneStrategy::MostAllocated, [27, 70, 33]),
        (ZoneStrategy::BalancedAllocation, [89, 82, 100]),
    ] {
        for scope in BOTH {
            let node_scores = SCORED.map(|zones| {
                let zones = fixture.zones(&zones, &[]);
                strategy(kind, &pod, scope, &FreeZones::new(&zones, &none), |_| 1)
            });
            // 27 of MostAllocated is 50 and 4, 33 is 33 and 33, whole numbers.
            assert_eq!(node_scores, scores, "{kind:?} {scope:?}");
        }
    }
    let weighed = |weights: [i64; 2]| {
        let zones = fixture.zones(&SCORED[0], &[]);
        let weight = |id: ResourceId| weights[id.index()];
        let free = FreeZones::new(&zones, &none);
        strategy(
            ZoneStrategy::LeastAllocated,
            &pod,
            Scope::Pod,
            &free,
            weight,
        )
    };
    // CPU 50, memory 96.
    assert_eq!([weighed([3, 1]), weighed([1, 3])], [61, 84]);
    // A single resource is balanced; a request of nothing gets the full score.
    for ask in [fixture.ask(true, &["cpu 2"]), fixture.ask(true, &[""])] {
        let zones = fixture.zones(&SCORED[0], &[]);
        let free = FreeZones::new(&zones, &none);
        let score = strategy(
            ZoneStrategy::BalancedAllocation,
            &ask,
            Scope::Container,
            &free,
            |_| 1,
        );
        assert_eq!(score, BEST);
    }
}

#[test]
fn fewer_and_nearer_zones_score_higher() {
    let fixture = Fixture::default();
    let none = Amounts::new();
    let costs: &[&[u32]] = &[&[10, 20], &[20, 10]];
    let m = |cpu: i64| format!("cpu {cpu}, memory 50Mi");
    for (scope, containers, scores) in [
        (Scope::Container, vec![m(2)], [94, 94, 94]),
        (Scope::Container, vec![m(4)], [94, 82, 94]),
        (Scope::Container, vec![m(6)], [82, 0, 94]),
        (Scope::Container, vec![m(2), m(2)], [94, 94, 94]),
        (Scope::Container, vec![m(1), m(3)], [94, 82, 94]),
        (Scope::Container, vec![m(5), m(3)], [82, 0, 94]),
        (
            Scope::Container,
            vec!["x.com/n 1".to_owned(), "x.com/n 2".to_owned()],
            [100; 3],
        ),
        (Scope::Pod, vec![m(2), m(2)], [94, 82, 82]),
        (Scope::Pod, vec![m(1), m(3)], [94, 82, 82]),
        (Scope::Pod, vec![m(5), m(3)], [82, 0, 82]),
        (Scope::Pod, vec!["x.com/n 1".to_owned()], [100; 3]),
        // A resource that no zone lists does not prevent a fit.
        (
            Scope::Pod,
            vec![m(2) + ", ephemeral-storage 1Gi"],
            [94, 94, 94],
        ),
    ] {
        let containers: Vec<&str> = containers.iter().map(String::as_str).collect();
        let pod = fixture.ask(true, &containers);
        let node_scores = SCORED.map(|zones| {
            let zones = fixture.zones(&zones, costs);
            least_zones_score(&pod, scope, FreeZones::new(&zones, &none), 8)
        });
        assert_eq!(node_scores, scores, "{scope:?} {containers:?}");
    }
}

#[test]
fn zones_that_are_nearer_are_preferred() {
    let fixture = Fixture::default();
    let none = Amounts::new();
    let pod = fixture.ask(true, &["cpu 2, x.com/gpu 2"]);
    // GPUs at zones 0 and 3, which have the largest distance, or at zones 0 and 1.
    let costs: &[&[u32]] = &[
        &[10, 12, 20, 20],
        &[12, 10, 20, 20],
        &[20, 20, 10, 12],
        &[20, 20, 12, 10],
    ];
    let with = |gpus: [&str; 4]| {
        let zones = gpus.map(|gpu| format!("cpu 8, x.com/gpu {gpu}"));
        let zones = fixture.zones(&zones.each_ref().map(String::as_str), costs);
        least_zones_score(&pod, Scope::Pod, FreeZones::new(&zones, &none), 8)
    };
    assert_eq!(with(["1", "1", "0", "0"]), 82);
    assert_eq!(with(["1", "0", "0", "1"]), 76);
    assert_eq!(with(["2", "0", "0", "0"]), 94);
    assert_eq!(with(["1", "0", "0", "0"]), 0);
    // With more possible zones, each additional zone lowers the score less.
    let zones = fixture.zones(&["cpu 1"; 3], &[]);
    let three = fixture.ask(true, &["cpu 3"]);
    for (most, score) in [(8, 70), (2, 0), (64, 97)] {
        let free = FreeZones::new(&zones, &none);
        assert_eq!(least_zones_score(&three, Scope::Pod, free, most), score);
    }
    // Not all sets of many zones are tried: the search ends.
    let zones = fixture.zones(&["cpu 1"; 64], &[]);
    let pod = fixture.ask(true, &["cpu 20"]);
    assert_eq!(
        least_zones_score(&pod, Scope::Pod, FreeZones::new(&zones, &none), 64),
        80
    );
}

#[test]
fn attributes_take_precedence_over_policies() {
    use Policy::*;
    let read = |policies: &[&'static str], attributes: &[(&'static str, &'static str)]| {
        let policies = policies.iter().copied();
        let (config, unread) = Config::read(policies, attributes.iter().copied());
        ((config.policy, config.scope, config.max_zones), unread)
    };
    assert_eq!(read(&[], &[]), ((None, Scope::Container, 8), vec![]));
    for (name, policy, scope) in [
        ("SingleNUMANodePodLevel", SingleNumaNode, Scope::Pod),
        (
            "SingleNUMANodeContainerLevel",
            SingleNumaNode,
            Scope::Container,
        ),
        ("RestrictedPodLevel", Restricted, Scope::Pod),
        ("RestrictedContainerLevel", Restricted, Scope::Container),
        ("BestEffortPodLevel", BestEffort, Scope::Pod),
        ("BestEffortContainerLevel", BestEffort, Scope::Container),
        ("None", None, Scope::Container),
        ("Restricted", None, Scope::Container),
    ] {
        assert_eq!(read(&[name, "None"], &[]).0, (policy, scope, 8), "{name}");
    }
    let policy = |value| ("topologyManagerPolicy", value);
    let scope = |value| ("topologyManagerScope", value);
    let most = |value| ("topologyManagerMaxNUMANodes", value);
    let old = ["SingleNUMANodePodLevel"];
    let parsed = read(&old, &[policy("restricted"), ("other", "x"), most("16")]);
    assert_eq!(parsed, ((Restricted, Scope::Pod, 16), vec![]));
    let parsed = read(&old, &[scope("container"), most("4096")]);
    assert_eq!(parsed, ((SingleNumaNode, Scope::Container, 1024), vec![]));
    let wrong = [policy("Restricted"), scope("node"), most("1"), most("x")];
    assert_eq!(
        read(&old, &wrong),
        ((SingleNumaNode, Scope::Pod, 8), wrong.to_vec())
    );
}
