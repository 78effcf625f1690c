use super::*;

#[test]
fn runs_balance_load_within_budgets_and_cooldown() {
    let args = Args {
        nodes: 50,
        pods: 1000,
        minutes: 60,
        only_ours: false,
    };
    let report = run(&args).unwrap();
    let [shipped, ours, bare, greedy, upstream, unmoved] = &report.runs[..] else {
        panic!("{report:?}")
    };
    assert!(
        unmoved.hot_nodes_after >= 4 && unmoved.moves == 0,
        "{unmoved:?}"
    );
    assert!(
        unmoved.stddev_after > 0.9 * unmoved.stddev_before,
        "{unmoved:?}"
    );
    for run in [shipped, ours, bare, greedy, upstream] {
        assert!(run.moves > 10, "{run:?}");
        assert_eq!(run.pdb_violations, 0, "{run:?}");
        assert!(run.stddev_after < run.stddev_before, "{run:?}");
        assert!(run.max_moves_per_pod_per_hour <= 1, "{run:?}");
    }
    assert!(ours.cycles_to_balance.is_some(), "{ours:?}");
    // Every job moved a pod, except those that a budget or the cooldown of an hour held until they timed out.
    assert!(shipped.jobs >= shipped.moves, "{shipped:?}");
    assert!(
        shipped.jobs - shipped.moves >= shipped.jobs_failed,
        "{shipped:?}"
    );
    assert!(shipped.cycles_to_balance.is_some(), "{shipped:?}");
    // A pod that is moved only to a known target has a node.
    for run in [shipped, ours, greedy] {
        assert_eq!(
            (run.pods_without_node_most, run.pods_without_node_after),
            (0, 0),
            "{run:?}"
        );
    }
    // In this cluster, evictions without targets leave pods without a node.
    assert!(upstream.pods_without_node_most > 0, "{upstream:?}");
    assert!(
        ours.no_target > 0 || greedy.no_target > 0,
        "{ours:?} {greedy:?}"
    );
}
