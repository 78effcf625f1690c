//! Upstream's tables (`network_topology_solver_test.go`, `network_topology_workflow_test.go`,
//! `tree_manager_test.go`), and random trees compared with all ways to place pods on them.

use super::place::OfferSums;
use super::*;
use koord_api::extension::{GatherStrategy, NetworkTopologySpec};
use proptest::prelude::*;
use std::cmp::Ordering;

fn layer(name: &str, parent: &str, keys: &[&str]) -> NetworkTopologyLayerSpec {
    NetworkTopologyLayerSpec {
        label_key: keys.iter().map(|key| (*key).to_owned()).collect(),
        parent_topology_layer: parent.to_owned(),
        topology_layer: name.to_owned(),
    }
}

/// Returns the layers spine, block and node, out of order.
fn spines() -> Vec<NetworkTopologyLayerSpec> {
    vec![
        layer("BlockLayer", "SpineLayer", &["block", "old-block"]),
        layer("SpineLayer", "", &["spine"]),
        layer(NODE_TOPOLOGY_LAYER, "BlockLayer", &[]),
    ]
}

/// Builds a tree of `spine block node` triples.
fn tree(nodes: &[[&str; 3]]) -> TopologyTree {
    let layers = Layers::from_spec(&spines()).unwrap();
    let paths: Vec<Vec<Arc<str>>> = nodes
        .iter()
        .map(|[spine, block, node]| {
            let label = |key: &str| match key {
                "spine" => Some(*spine),
                "block" => Some(*block),
                _ => None,
            };
            layers.path(node, label).unwrap()
        })
        .collect();
    TopologyTree::new(layers.clone(), paths.iter().map(Vec::as_slice))
}

fn spec(rules: &[(&str, &str, i64)]) -> NetworkTopologySpec {
    let rules = rules
        .iter()
        .map(|(layer, strategy, multiple)| GatherStrategy {
            layer: (*layer).to_owned(),
            strategy: (*strategy).to_owned(),
            pod_count_multiple: Some(*multiple),
        });
    NetworkTopologySpec {
        gather_strategy: rules.collect(),
    }
}

fn place(
    tree: &TopologyTree,
    rules: &[(&str, &str, i64)],
    pods: usize,
    slots: &[(&str, usize)],
) -> Result<Vec<(String, usize)>, String> {
    let request = PlacementRequest::new(&spec(rules), pods, tree.layers());
    let offers = slots.iter().map(|(node, slots)| {
        let offer = NodeOffer {
            slots: *slots,
            ..NodeOffer::default()
        };
        (*node, offer)
    });
    let dealt = tree.place(&request, offers).map_err(|e| e.message("FIT"))?;
    Ok(dealt.into_iter().map(|(n, c)| (n.to_string(), c)).collect())
}

fn dealt(expected: &[(&str, usize)]) -> Result<Vec<(String, usize)>, String> {
    Ok(expected
        .iter()
        .map(|(n, c)| ((*n).to_owned(), *c))
        .collect())
}

const EIGHT: [[&str; 3]; 8] = [
    ["s1", "b1", "node-1"],
    ["s1", "b1", "node-8"],
    ["s1", "b2", "node-2"],
    ["s1", "b2", "node-7"],
    ["s2", "b3", "node-3"],
    ["s2", "b3", "node-6"],
    ["s2", "b4", "node-4"],
    ["s2", "b4", "node-5"],
];

#[test]
fn invalid_layers_give_the_reason() {
    let node = |parent| layer(NODE_TOPOLOGY_LAYER, parent, &[]);
    let line = |count: usize| -> Vec<NetworkTopologyLayerSpec> {
        let name = |at: usize| match at {
            0 => NODE_TOPOLOGY_LAYER.to_owned(),
            at => format!("L{at}"),
        };
        let of = |at| layer(&name(at), &name(at + 1), &[]);
        (0..count).map(of).collect()
    };
    let circle = || BadLayers::Circle(NODE_TOPOLOGY_LAYER.into());
    let rows: [(Vec<NetworkTopologyLayerSpec>, BadLayers); 9] = [
        (vec![], BadLayers::Missing(NODE_TOPOLOGY_LAYER.into())),
        (
            vec![layer("A", "", &[])],
            BadLayers::Missing(NODE_TOPOLOGY_LAYER.into()),
        ),
        (
            vec![node("B"), layer("A", "", &[])],
            BadLayers::Missing("B".into()),
        ),
        (
            vec![node("A"), layer("A", "", &[]), layer("B", "", &[])],
            BadLayers::Apart("B".into()),
        ),
        (
            vec![node("A"), layer("A", "A", &[]), layer("B", "", &[])],
            BadLayers::Circle("A".into()),
        ),
        (
            vec![node(""), node("")],
            BadLayers::Twice(NODE_TOPOLOGY_LAYER.into()),
        ),
        (vec![node(NODE_TOPOLOGY_LAYER)], circle()),
        (
            vec![node("A"), layer("A", NODE_TOPOLOGY_LAYER, &[])],
            circle(),
        ),
        (line(MAX_LAYERS + 1), BadLayers::TooMany(MAX_LAYERS + 1)),
    ];
    for (spec, error) in rows {
        assert_eq!(Layers::from_spec(&spec), Err(error), "{spec:?}");
    }
    assert_eq!(
        BadLayers::TooMany(17).to_string(),
        "17 topology layers are listed, at most 16 are possible"
    );
    let most = Layers::from_spec(&line(16)).unwrap();
    assert_eq!(most.depth(NODE_TOPOLOGY_LAYER), Some(16));
    let layers = Layers::from_spec(&spines()).unwrap();
    let depths = [
        "SpineLayer",
        "BlockLayer",
        NODE_TOPOLOGY_LAYER,
        CLUSTER_TOPOLOGY_LAYER,
        "x",
    ];
    assert_eq!(
        depths.map(|name| layers.depth(name)),
        [Some(1), Some(2), Some(3), Some(0), None]
    );
}

#[test]
fn only_lowest_layer_label_is_optional() {
    let layers = Layers::from_spec(&spines()).unwrap();
    let path = |labels: &[(&str, &'static str)]| {
        let label_value = |key: &str| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let path = layers.path("n", label_value);
        path.map(|path| {
            path.iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("/")
        })
        .map_err(|layer| layer.to_string())
    };
    assert_eq!(path(&[("spine", "s"), ("block", "b")]), Ok("s/b/n".into()));
    assert_eq!(
        path(&[("spine", "s"), ("old-block", "o")]),
        Ok("s/o/n".into())
    );
    // The first label of a layer that has a value names the domain.
    let aliased = path(&[("spine", "s"), ("block", ""), ("old-block", "o")]);
    assert_eq!(aliased, Ok("s/o/n".into()));
    assert_eq!(path(&[("spine", "s")]), Ok("s/n/n".into()));
    assert_eq!(path(&[("block", "b")]), Err("SpineLayer".into()));
    assert_eq!(path(&[]), Err("SpineLayer".into()));
}

#[test]
fn status_lists_domains_above_nodes() {
    let status = tree(&EIGHT).status();
    let row = |detail: &NetworkTopologyDetail| {
        let NetworkTopologyDetail {
            topology_info,
            parent_topology_info,
            child_topology_layer,
            child_topology_names,
            node_num,
        } = detail;
        let info = |info: &TopologyInfo| format!("{}/{}", info.topology_layer, info.topology_name);
        format!(
            "{} < {} > {child_topology_layer}{child_topology_names:?} {node_num}",
            info(topology_info),
            parent_topology_info.as_ref().map(info).unwrap_or_default(),
        )
    };
    let rows: Vec<String> = status.iter().map(row).collect();
    assert_eq!(
        rows,
        [
            r#"ClusterTopologyLayer/ <  > SpineLayer["s1", "s2"] 8"#,
            r#"SpineLayer/s1 < ClusterTopologyLayer/ > BlockLayer["b1", "b2"] 4"#,
            r#"BlockLayer/b1 < SpineLayer/s1 > NodeTopologyLayer[] 2"#,
            r#"BlockLayer/b2 < SpineLayer/s1 > NodeTopologyLayer[] 2"#,
            r#"SpineLayer/s2 < ClusterTopologyLayer/ > BlockLayer["b3", "b4"] 4"#,
            r#"BlockLayer/b3 < SpineLayer/s2 > NodeTopologyLayer[] 2"#,
            r#"BlockLayer/b4 < SpineLayer/s2 > NodeTopologyLayer[] 2"#,
        ]
    );
    let empty = TopologyTree::new(Layers::from_spec(&spines()).unwrap(), []);
    let rows: Vec<String> = empty.status().iter().map(row).collect();
    assert_eq!(rows, ["ClusterTopologyLayer/ <  > [] 0"]);
}

#[test]
fn whole_gangs_as_upstream_places_them() {
    let tree = tree(&EIGHT);
    let all: Vec<(&str, usize)> = EIGHT.iter().map(|[.., node]| (*node, 1)).collect();
    let prefers = [
        ("BlockLayer", "PreferGather", 0),
        ("SpineLayer", "PreferGather", 0),
    ];
    // Four pods fill a spine, node by node.
    let spine = dealt(&[("node-1", 1), ("node-8", 1), ("node-2", 1), ("node-7", 1)]);
    assert_eq!(place(&tree, &prefers, 4, &all), spine);
    let must = [("SpineLayer", "MustGather", 0)];
    assert_eq!(place(&tree, &must, 4, &all), spine);
    // The domain with the smallest sufficient offer: s2 offers less than s1.
    let mut tight: Vec<(&str, usize)> = all.clone();
    tight[0].1 = 4;
    let fits = dealt(&[("node-3", 1), ("node-6", 1), ("node-4", 1), ("node-5", 1)]);
    assert_eq!(place(&tree, &must, 4, &tight[1..]).map(|d| d.len()), Ok(4));
    // One node holds all pods: no domain is lower.
    assert_eq!(place(&tree, &must, 4, &tight), dealt(&[("node-1", 4)]));
    tight[0].1 = 3;
    assert_eq!(
        place(&tree, &must, 4, &tight),
        dealt(&[("node-1", 3), ("node-8", 1)])
    );
    tight[0].1 = 0;
    assert_eq!(place(&tree, &must, 4, &tight), fits);
    // Neither spine has enough slots.
    let three: Vec<(&str, usize)> = [1, 2, 3, 4, 5, 6].map(|at| all[at]).to_vec();
    let message = "no candidate topology nodes can accommodate job, desiredOfferSlot: 4, \
                   topology topologyNode SpineLayer/s1: 3;topology topologyNode SpineLayer/s2: 3, FIT";
    assert_eq!(place(&tree, &must, 4, &three), Err(message.into()));
    assert_eq!(
        place(&tree, &prefers, 4, &three).map(|dealt| dealt.len()),
        Ok(4)
    );
    let text = "topology layer Rack does not exist, FIT";
    let unknown = place(&tree, &[("Rack", "MustGather", 0)], 1, &all).unwrap_err();
    assert!(unknown.ends_with(text), "{unknown}");
}

#[test]
fn pod_counts_are_multiples_as_required() {
    // `TestDistributeOfferSlot_WithPodCountMultiple`; a plan is all or nothing, so the most that
    // upstream hands out is requested.
    let tree = tree(&[
        ["s", "b1", "n1"],
        ["s", "b1", "n2"],
        ["s", "b2", "n3"],
        ["s", "b2", "n4"],
    ]);
    let slots = [("n1", 5), ("n2", 7), ("n3", 6), ("n4", 4)];
    type MultipleRules<'a> = &'a [(&'a str, &'a str, i64)];
    type Nodes<'a> = &'a [(&'a str, usize)];
    let rows: [(MultipleRules<'_>, usize, Nodes<'_>); 4] = [
        (&[], 15, &[("n2", 7), ("n1", 5), ("n3", 3)]),
        (
            &[(NODE_TOPOLOGY_LAYER, "", 4)],
            16,
            &[("n1", 4), ("n2", 4), ("n3", 4), ("n4", 4)],
        ),
        (
            &[("BlockLayer", "", 8)],
            16,
            &[("n2", 7), ("n1", 1), ("n3", 6), ("n4", 2)],
        ),
        (
            &[(NODE_TOPOLOGY_LAYER, "", 2), ("BlockLayer", "", 8)],
            16,
            &[("n2", 6), ("n1", 2), ("n3", 6), ("n4", 2)],
        ),
    ];
    for (rules, pods, expected) in rows {
        assert_eq!(
            place(&tree, rules, pods, &slots),
            dealt(expected),
            "{rules:?}"
        );
        if !rules.is_empty() {
            let refusal = place(&tree, rules, pods + 4, &slots).unwrap_err();
            assert!(
                refusal.contains("; podCountMultiple constraints: "),
                "{refusal}"
            );
        }
    }
    let message = "no candidate topology nodes can accommodate job, desiredOfferSlot: 20, topology \
                   topologyNode ClusterTopologyLayer/: 16, FIT; podCountMultiple constraints: \
                   BlockLayer=8, NodeTopologyLayer=2";
    let rules = [(NODE_TOPOLOGY_LAYER, "", 2), ("BlockLayer", "", 8)];
    assert_eq!(place(&tree, &rules, 20, &slots), Err(message.into()));
    // 1, 0 and negative numbers require nothing.
    for nothing in [1, 0, -3] {
        let rules = [("BlockLayer", "PreferGather", nothing)];
        assert_eq!(place(&tree, &rules, 3, &slots), dealt(&[("n4", 3)]));
    }
    // Multiples of three that must add up to a multiple of four: the largest offer of each domain is no
    // solution.
    let rules = [(NODE_TOPOLOGY_LAYER, "", 3), ("SpineLayer", "", 4)];
    let sum = place(&tree, &rules, 12, &slots);
    assert_eq!(sum, dealt(&[("n2", 6), ("n1", 3), ("n3", 3)]));
}

#[test]
fn places_are_compared_as_upstream_does() {
    // `TestTopologyNodeLessFunc`: s1 (3) has b1 (2) and b2 (2), s2 (4) has b3 (2) and b4 (3).
    let tree = tree(&[
        ["s1", "b1", "1"],
        ["s1", "b2", "2"],
        ["s2", "b3", "3"],
        ["s2", "b4", "4"],
    ]);
    let request = PlacementRequest::new(&NetworkTopologySpec::default(), 1, tree.layers());
    let at = |name: &str| {
        tree.domains
            .iter()
            .position(|spot| *spot.name == *name)
            .unwrap()
    };
    let mut sums_by_domain = OfferSums::new(&tree, &request, &vec![None; tree.domains.len()]);
    for (name, slots) in [
        ("", 7),
        ("s1", 3),
        ("s2", 4),
        ("b1", 2),
        ("b2", 2),
        ("b3", 2),
        ("b4", 3),
    ] {
        sums_by_domain.sums[at(name)].slots = slots;
        sums_by_domain.sums[at(name)].score = 100;
    }
    let less = |sums_by_domain: &OfferSums<'_>, a: &str, b: &str, filling| {
        sums_by_domain.compare(at(a), at(b), filling) == Ordering::Less
    };
    let rows = [
        ("b1", "b4", false, true),
        ("b4", "b1", false, false),
        ("b1", "b4", true, false),
        ("b4", "b1", true, true),
        ("b1", "b3", false, true),
        ("b1", "b3", true, false),
        ("b1", "b2", false, true),
    ];
    for (a, b, filling, expected) in rows {
        assert_eq!(
            less(&sums_by_domain, a, b, filling),
            expected,
            "{a} {b} {filling}"
        );
    }
    sums_by_domain.sums[at("b2")].score = 200;
    assert!(!less(&sums_by_domain, "b1", "b2", false) && less(&sums_by_domain, "b2", "b1", true));
    // A pod is placed near the members of its gang, whatever other domains offer.
    sums_by_domain.sums[at("b3")].existing = 1;
    assert!(less(&sums_by_domain, "b3", "b1", false) && less(&sums_by_domain, "b3", "b4", true));
}

/// `TestPodGroupManager_PreScore`, with additional rows.
#[test]
fn nodes_near_gang_members_rank_first() {
    let nine = [&EIGHT[..], &[["s1", "b1", "node-9"]]].concat();
    let tree = tree(&nine);
    let mates = [("node-8", 1), ("node-7", 1), ("node-6", 1)];
    let candidates = ["node-1", "node-9", "node-2", "node-3", "node-5", "node-4"];
    // In s1 two have mates, b2 offers fewer nodes than b1; then b3 before b4.
    let ranks = tree.ranks(candidates, mates);
    assert_eq!(ranks, [1, 2, 0, 3, 5, 4]);
    // Nodes with members of the gang come first; nodes outside the tree, and their pods, come last and equal.
    let node_names = ["node-x", "node-4", "node-7", "node-1", "node-y"];
    let ranks = tree.ranks(node_names, [("node-7", 1), ("node-4", 2), ("node-y", 9)]);
    assert_eq!(ranks, [3, 0, 1, 2, 3]);
    // Without members, the domain with the fewest nodes comes first; between domains, names decide.
    assert_eq!(tree.ranks(["node-6", "node-5", "node-3"], []), [2, 0, 1]);
    assert_eq!(tree.ranks(["node-6", "node-5"], []), [1, 0]);
    assert_eq!(tree.ranks([], mates), [0; 0]);
}

/// Returns every way to place `pods` pods on nodes with these slots.
fn ways(slots: &[usize], pods: usize) -> Vec<Vec<usize>> {
    let Some((first, rest)) = slots.split_first() else {
        return if pods == 0 { vec![vec![]] } else { vec![] };
    };
    let mut out = Vec::new();
    for here in 0..=pods.min(*first) {
        for mut way in ways(rest, pods - here) {
            way.insert(0, here);
            out.push(way);
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Compares plans with all possible placements: a plan is found exactly when one exists, meets the
    /// requirements, and no other plan keeps the pods closer together.
    #[test]
    fn existing_plan_is_found(
        nodes in prop::collection::vec((0..2usize, 0..3usize, 0..5usize), 1..6),
        pods in 1..9usize,
        multiples in prop::array::uniform4(1..4usize),
        gather in 0..4usize,
    ) {
        let names: Vec<[String; 3]> = nodes
            .iter()
            .enumerate()
            .map(|(at, (s, b, _))| [format!("s{s}"), format!("s{s}b{b}"), format!("n{at}")])
            .collect();
        let triples: Vec<[&str; 3]> = names
            .iter()
            .map(|[s, b, n]| [s.as_str(), b.as_str(), n.as_str()])
            .collect();
        let tree = tree(&triples);
        let layers = [CLUSTER_TOPOLOGY_LAYER, "SpineLayer", "BlockLayer", NODE_TOPOLOGY_LAYER];
        let rules: Vec<(&str, &str, i64)> = (0..4)
            .map(|depth| {
                let strategy = if depth == gather { "MustGather" } else { "PreferGather" };
                (layers[depth], strategy, i64::try_from(multiples[depth]).unwrap())
            })
            .collect();
        // The domain of a node at each depth, as text.
        let spot = |node: usize, depth: usize| match depth {
            0 => String::new(),
            depth => names[node][depth - 1].clone(),
        };
        // The lowest depth at which all pods share a domain, if the placement is allowed.
        let judge = |way: &[usize]| -> Option<usize> {
            let mut shared = 0;
            for (depth, multiple) in multiples.iter().enumerate() {
                let mut counts = std::collections::BTreeMap::<String, usize>::new();
                for (node, here) in way.iter().enumerate() {
                    *counts.entry(spot(node, depth)).or_default() += here;
                }
                if counts.values().any(|count| count % multiple != 0) {
                    return None;
                }
                if counts.values().filter(|count| **count > 0).count() == 1 {
                    shared = depth;
                }
            }
            (shared >= gather).then_some(shared)
        };
        let slots: Vec<usize> = nodes.iter().map(|(.., slots)| *slots).collect();
        let best = ways(&slots, pods).iter().filter_map(|way| judge(way)).max();
        let offers: Vec<(&str, usize)> = triples
            .iter()
            .zip(&slots)
            .map(|([.., node], slots)| (*node, *slots))
            .collect();
        match place(&tree, &rules, pods, &offers) {
            Err(_) => prop_assert_eq!(best, None),
            Ok(dealt) => {
                let mut way = vec![0; nodes.len()];
                for (node, count) in &dealt {
                    let at: usize = node[1..].parse().unwrap();
                    prop_assert!(way[at] == 0 && *count > 0 && *count <= slots[at]);
                    way[at] = *count;
                }
                prop_assert_eq!(way.iter().sum::<usize>(), pods);
                prop_assert_eq!(judge(&way), best);
            }
        }
    }

/// Compares the ranks with the documented rule, node by node and domain by domain.
    #[test]
    fn node_ranks_follow_the_rule(
        nodes in prop::collection::vec((0..3usize, 0..3usize, 0..3usize, any::<bool>()), 1..12),
    ) {
        let names: Vec<[String; 3]> = nodes
            .iter()
            .enumerate()
            .map(|(at, (s, b, ..))| [format!("s{s}"), format!("s{s}b{b}"), format!("n{at}")])
            .collect();
        let triples: Vec<[&str; 3]> = names
            .iter()
            .map(|[s, b, n]| [s.as_str(), b.as_str(), n.as_str()])
            .collect();
        let fits: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].3).collect();
        // The sums over the nodes of the node, its block, its spine and the cluster.
        let sums = |at: usize, of: &dyn Fn(usize) -> usize| -> Vec<usize> {
            let triples = &triples;
            let within = |depth: usize| {
                let all = (0..nodes.len()).filter(move |other| {
                    depth == 0 || triples[*other][depth - 1] == triples[at][depth - 1]
                });
                all.map(of).sum()
            };
            [3, 2, 1, 0].map(within).to_vec()
        };
        let existing = |at: usize| nodes[at].2;
        let fitting = |at: usize| usize::from(nodes[at].3);
        let mut expected = fits.clone();
        expected.sort_by(|a, b| {
            let pods = sums(*b, &existing).cmp(&sums(*a, &existing));
            let offers = || sums(*a, &fitting).cmp(&sums(*b, &fitting));
            pods.then_with(offers).then_with(|| triples[*a][2].cmp(triples[*b][2]))
        });
        let mates = (0..nodes.len()).map(|at| (triples[at][2], existing(at)));
        let ranks = tree(&triples).ranks(fits.iter().map(|at| triples[*at][2]), mates);
        let mut order: Vec<(usize, usize)> = ranks.into_iter().zip(fits).collect();
        order.sort_unstable();
        prop_assert_eq!(order.into_iter().map(|(_, at)| at).collect::<Vec<_>>(), expected);
    }
}
