//! Tests which pods are evicted if a quota uses more than its limit.

use super::*;

/// Cores; MiB; whether the pod must not be preempted; whether it is being deleted.
type TestPod = (i64, i64, bool, bool);

fn pods(plain: &[(i64, i64)]) -> Vec<TestPod> {
    let plain = plain.iter();
    plain
        .map(|(cpu, memory)| (*cpu, *memory, false, false))
        .collect()
}

fn goes(limit: &Amounts, pods: &[TestPod]) -> Vec<usize> {
    let amounts: Vec<Amounts> = pods.iter().map(|pod| list(pod.0, pod.1)).collect();
    let mut used = Amounts::new();
    for amounts in &amounts {
        used.add_all(amounts);
    }
    let pods = pods.iter().zip(&amounts);
    let pods: Vec<ChargedPod<'_>> = pods
        .map(|((_, _, non_preemptible, deleting), amounts)| ChargedPod {
            amounts,
            non_preemptible: *non_preemptible,
            deleting: *deleting,
        })
        .collect();
    crate::quota::revoke(&used, limit, &pods)
}

#[test]
fn enough_of_the_least_important_pods_are_evicted() {
    struct RevokeRow {
        name: &'static str,
        /// Cores and MiB.
        limit: (i64, i64),
        /// The least important first.
        pods: Vec<TestPod>,
        goes: &'static [usize],
    }
    let (firm, leaving) = (true, true);
    let rows = [
        RevokeRow {
            name: "upstream: the small one of the others has the memory that is short",
            limit: (50, 0),
            pods: pods(&[(40, 0), (20, 0), (10, 1), (20, 0)]),
            goes: &[0, 2],
        },
        RevokeRow {
            name: "upstream: all together are not enough",
            limit: (-1, 0),
            pods: pods(&[(40, 0), (20, 0), (10, 1), (20, 0)]),
            goes: &[0, 1, 2, 3],
        },
        RevokeRow {
            name: "upstream: one of them is on no node",
            limit: (-1, 0),
            pods: pods(&[(20, 0), (10, 1), (20, 0)]),
            goes: &[0, 1, 2],
        },
        RevokeRow {
            name: "use equal to the limit",
            limit: (10, 10),
            pods: pods(&[(4, 4), (6, 6)]),
            goes: &[],
        },
        RevokeRow {
            name: "use above the limit by one",
            limit: (10, 9),
            pods: pods(&[(4, 4), (6, 6)]),
            goes: &[0],
        },
        RevokeRow {
            name: "a small pod stays if it fits once a larger one is evicted",
            limit: (12, 100),
            pods: pods(&[(1, 0), (5, 0), (9, 0)]),
            goes: &[1],
        },
        RevokeRow {
            name: "the more important of two that could stay",
            limit: (10, 100),
            pods: pods(&[(2, 0), (2, 0), (5, 0), (8, 0)]),
            goes: &[0, 2],
        },
        RevokeRow {
            name: "a non-preemptible pod stays",
            limit: (5, 100),
            pods: vec![
                (4, 0, firm, false),
                (4, 0, false, false),
                (1, 0, false, false),
            ],
            goes: &[1],
        },
        RevokeRow {
            name: "non-preemptible pods alone exceed the limit: all others are evicted",
            limit: (3, 100),
            pods: vec![
                (4, 0, firm, false),
                (4, 0, false, false),
                (1, 0, false, false),
            ],
            goes: &[1, 2],
        },
        RevokeRow {
            name: "but not those that use no exceeded resource",
            limit: (3, 100),
            pods: vec![
                (4, 0, firm, false),
                (0, 7, false, false),
                (1, 0, false, false),
            ],
            goes: &[2],
        },
        RevokeRow {
            name: "an unimportant pod that uses no exceeded resource stays",
            limit: (100, 5),
            pods: pods(&[(3, 0), (1, 4), (1, 4)]),
            goes: &[1],
        },
        RevokeRow {
            name: "the amounts of a terminating pod count as freed",
            limit: (10, 100),
            pods: vec![(6, 0, false, false), (6, 0, false, leaving)],
            goes: &[],
        },
        RevokeRow {
            name: "a terminating pod is not evicted again if it does not suffice",
            limit: (5, 100),
            pods: vec![(6, 0, false, leaving), (6, 0, false, false)],
            goes: &[1],
        },
        RevokeRow {
            name: "no pods",
            limit: (0, 0),
            pods: vec![],
            goes: &[],
        },
    ];
    for row in rows {
        let limit = list(row.limit.0, row.limit.1);
        assert_eq!(goes(&limit, &row.pods), row.goes, "{}", row.name);
    }
}

#[test]
fn unlisted_resources_are_unlimited() {
    let limit: Amounts = [(CPU, 10_000)].into_iter().collect();
    assert_eq!(goes(&limit, &pods(&[(5, 1000), (5, 1000)])), [0; 0]);
    assert_eq!(goes(&Amounts::new(), &pods(&[(5, 1000)])), [0; 0]);
    assert_eq!(goes(&limit, &pods(&[(i64::MAX / 1000, 0), (1, 0)])), [0]);
}
