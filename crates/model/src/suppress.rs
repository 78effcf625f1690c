//! How much CPU batch work may use, and how the limit moves: the arithmetic of CPU suppression.
//!
//! CPU amounts are milli-cores, quotas are microseconds per CFS period of 100 ms.

use std::collections::BTreeSet;

/// The CFS period all quotas here refer to, in microseconds.
pub const CFS_PERIOD_US: i64 = 100_000;
/// The smallest quota batch work is cut to, in microseconds per period.
pub const MIN_QUOTA_US: i64 = 2_000;
/// A change smaller than this share of the node's capacity is not worth a write.
pub const DEAD_BAND: f64 = 0.01;
/// By how much of the node's capacity the limit may grow in one step.
pub const MAX_GROWTH: f64 = 0.10;
/// The fewest CPUs the `cpuset` policy leaves to batch work.
pub const MIN_CPUS: usize = 2;
/// The quota that means "no limit".
pub const UNLIMITED: i64 = -1;

/// What the node and its pods use, in milli-cores, from the newest samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The whole node.
    pub node: i64,
    /// All pods.
    pub pods: i64,
    /// Pods that are not best-effort: neither labelled BE nor of the kubelet's BestEffort class.
    /// A pod nobody knows counts here.
    pub pods_not_be: i64,
    /// All host applications.
    pub hosts: i64,
    /// Host applications that are not best-effort.
    pub hosts_not_be: i64,
}

impl Usage {
    /// What neither a pod nor a host application accounts for.
    #[must_use]
    pub fn system(&self) -> i64 {
        let known = self.pods.saturating_add(self.hosts);
        self.node.saturating_sub(known).max(0)
    }
}

/// The limits of the configured strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// How much of the node everything together may use, in percent.
    pub percent: i64,
    /// What batch work keeps in any case, in percent of the node.
    pub min_percent: Option<i64>,
}

/// What batch work may use, in milli-cores. May be negative when the node is over-used.
///
/// `capacity * percent / 100 - used by others - max(system, reserved)`, but at least `min_percent`
/// of the capacity where that is set.
#[must_use]
pub fn budget(capacity: i64, reserved: i64, usage: &Usage, threshold: Threshold) -> i64 {
    let system = usage.system().max(reserved);
    let budget = (capacity.saturating_mul(threshold.percent) / 100)
        .saturating_sub(usage.pods_not_be)
        .saturating_sub(usage.hosts_not_be)
        .saturating_sub(system);
    match threshold.min_percent {
        Some(percent) => budget.max(capacity.saturating_mul(percent) / 100),
        None => budget,
    }
}

/// The quota to write for a `budget`, given what is set now, or `None` when the present one stays.
///
/// The minimum is always written, a difference within the dead band never is, and growth is limited
/// per step unless there is no limit now.
#[must_use]
pub fn next_quota(capacity: i64, budget: i64, current: i64) -> Option<i64> {
    // Capacity in whole cores, rounded up, as the Kubernetes quantity reports it.
    let cores = (capacity.saturating_add(999) / 1000).max(0);
    let mut quota = budget
        .saturating_mul(CFS_PERIOD_US / 1000)
        .max(MIN_QUOTA_US);
    let band = cores as f64 * CFS_PERIOD_US as f64 * DEAD_BAND;
    let unlimited = current < 0;
    if !unlimited {
        if ((quota - current) as f64).abs() < band && quota != MIN_QUOTA_US {
            return None;
        }
        let step = (cores as f64 * CFS_PERIOD_US as f64 * MAX_GROWTH) as i64;
        quota = quota.min(current.saturating_add(step));
    }
    (quota != current).then_some(quota)
}

/// How many CPUs the `cpuset` policy grants for a `budget`, given how many it granted before.
#[must_use]
pub fn next_cpu_count(total: usize, budget: i64, current: usize) -> usize {
    let wanted = (budget.max(0) as usize).div_ceil(1000).max(MIN_CPUS);
    let step = (total as f64 * MAX_GROWTH).ceil() as usize;
    wanted.min(current.saturating_add(step)).max(MIN_CPUS)
}

/// One logical CPU and where it sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processor {
    /// The logical CPU id.
    pub cpu: u32,
    /// The physical core.
    pub core: u32,
    /// The socket.
    pub socket: u32,
    /// The NUMA node.
    pub node: u32,
}

/// Picks `count` CPUs for batch work: whole cores first, spread over NUMA nodes and sockets.
///
/// CPUs that LSR pods own (`lsr`) are taken in proportion to their share. A pool that has too few
/// CPUs gives none.
#[must_use]
pub fn pick_cpus(candidates: &[Processor], lsr: &BTreeSet<u32>, count: usize) -> BTreeSet<u32> {
    let (owned, shared): (Vec<_>, Vec<_>) = candidates
        .iter()
        .copied()
        .partition(|p| lsr.contains(&p.cpu));
    let all = owned.len() + shared.len();
    if all == 0 {
        return BTreeSet::new();
    }
    let from_owned = count * owned.len() / all;
    let mut picked = pick_from_pool(owned, from_owned);
    picked.extend(pick_from_pool(shared, count - from_owned));
    picked
}

fn pick_from_pool(pool: Vec<Processor>, count: usize) -> BTreeSet<u32> {
    let mut picked = BTreeSet::new();
    if count == 0 || pool.len() < count {
        return picked;
    }
    let mut buckets = buckets(pool);
    let mut at = 0;
    // Pairs that share a core, one per visit, until a whole round finds none.
    let mut missed = 0;
    while count - picked.len() > 1 && missed < buckets.len() {
        let bucket = &mut buckets[at];
        match bucket
            .windows(2)
            .position(|pair| pair[0].core == pair[1].core)
        {
            Some(first) => {
                picked.extend(bucket.drain(first..first + 2).map(|p| p.cpu));
                missed = 0;
            }
            None => missed += 1,
        }
        at = (at + 1) % buckets.len();
    }
    // Then single CPUs.
    while picked.len() < count {
        if !buckets[at].is_empty() {
            picked.insert(buckets[at].remove(0).cpu);
        }
        at = (at + 1) % buckets.len();
    }
    picked
}

fn buckets(pool: Vec<Processor>) -> Vec<Vec<Processor>> {
    let mut by_place = std::collections::BTreeMap::<(u32, u32), Vec<Processor>>::new();
    for processor in pool {
        by_place
            .entry((processor.node, processor.socket))
            .or_default()
            .push(processor);
    }
    let mut buckets: Vec<_> = by_place.into_values().collect();
    for bucket in &mut buckets {
        bucket.sort_unstable_by_key(|p| (p.core, p.cpu));
    }
    buckets.sort_by_key(|bucket| (std::cmp::Reverse(bucket.len()), bucket[0].cpu));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const C16: i64 = 16_000;

    fn usage(node: i64, pods: i64, pods_not_be: i64) -> Usage {
        Usage {
            node,
            pods,
            pods_not_be,
            ..Usage::default()
        }
    }

    fn percent(percent: i64) -> Threshold {
        Threshold {
            percent,
            min_percent: None,
        }
    }

    #[test]
    fn budget_table() {
        let cases = [
            (
                "ls 8, be 2, system 2",
                usage(12_000, 10_000, 8_000),
                0,
                percent(70),
                1_200,
            ),
            (
                "a pod without metadata counts as a service",
                usage(12_000, 12_000, 8_000),
                0,
                percent(70),
                3_200,
            ),
            (
                "reserved above system use",
                usage(12_000, 10_000, 8_000),
                3_000,
                percent(70),
                200,
            ),
            (
                "reserved below system use",
                usage(12_000, 10_000, 8_000),
                1_000,
                percent(70),
                1_200,
            ),
            (
                "over-used node",
                usage(15_000, 12_000, 11_000),
                0,
                percent(65),
                -3_600,
            ),
            (
                "floor",
                usage(15_000, 12_000, 11_000),
                0,
                Threshold {
                    percent: 65,
                    min_percent: Some(10),
                },
                1_600,
            ),
            (
                "pods above the node's sample",
                usage(9_000, 10_000, 8_000),
                0,
                percent(70),
                3_200,
            ),
        ];
        for (name, usage, reserved, threshold, want) in cases {
            assert_eq!(budget(C16, reserved, &usage, threshold), want, "{name}");
        }
        let hosts = Usage {
            hosts: 1_000,
            hosts_not_be: 500,
            ..usage(12_000, 10_000, 8_000)
        };
        assert_eq!(
            budget(C16, 0, &hosts, percent(70)),
            11_200 - 8_000 - 500 - 1_000
        );
        // An absurd reservation leaves nothing; it does not wrap around.
        let full = budget(C16, i64::MAX, &usage(15_000, 12_000, 11_900), percent(65));
        assert!(full < 0);
    }

    #[test]
    fn quota_table() {
        let cases = [
            ("first write is direct", 1_200, UNLIMITED, Some(120_000)),
            ("shrinks at once", 1_200, 1_500_000, Some(120_000)),
            (
                "grows by at most a tenth of the node",
                8_000,
                320_000,
                Some(480_000),
            ),
            ("grows to the target", 4_000, 320_000, Some(400_000)),
            ("inside the dead band", 3_300, 320_000, None),
            (
                "at the edge of the dead band",
                3_360,
                320_000,
                Some(336_000),
            ),
            ("never below the minimum", -500, 320_000, Some(MIN_QUOTA_US)),
            (
                "the minimum ignores the dead band",
                0,
                10_000,
                Some(MIN_QUOTA_US),
            ),
            ("already at the minimum", 0, MIN_QUOTA_US, None),
        ];
        for (name, budget, current, want) in cases {
            assert_eq!(next_quota(C16, budget, current), want, "{name}");
        }
        // A small first limit on a large node is written although it is "near" -1.
        assert_eq!(next_quota(64_000, 300, UNLIMITED), Some(30_000));
    }

    #[test]
    fn cpu_count_table() {
        assert_eq!(next_cpu_count(16, 1_200, 10), 2);
        assert_eq!(next_cpu_count(16, 9_100, 4), 6);
        assert_eq!(next_cpu_count(16, 5_000, 4), 5);
        assert_eq!(next_cpu_count(16, -3_000, 4), 2);
        assert_eq!(next_cpu_count(2, 1_000, 2), 2);
    }

    fn sixteen() -> Vec<Processor> {
        (0..16)
            .map(|cpu| Processor {
                cpu,
                core: cpu / 2,
                socket: cpu / 4,
                node: cpu / 8,
            })
            .collect()
    }

    fn ids(picked: &BTreeSet<u32>) -> Vec<u32> {
        picked.iter().copied().collect()
    }

    #[test]
    fn whole_cores_are_spread_over_sockets() {
        let none = BTreeSet::new();
        assert_eq!(ids(&pick_cpus(&sixteen(), &none, 2)), [0, 1]);
        assert_eq!(ids(&pick_cpus(&sixteen(), &none, 4)), [0, 1, 4, 5]);
        assert_eq!(ids(&pick_cpus(&sixteen(), &none, 5)), [0, 1, 4, 5, 8]);
        assert_eq!(ids(&pick_cpus(&sixteen(), &none, 16)).len(), 16);
        assert!(pick_cpus(&sixteen(), &none, 17).is_empty());
        assert!(pick_cpus(&[], &none, 2).is_empty());
    }

    #[test]
    fn pools_give_in_proportion() {
        let lsr: BTreeSet<u32> = (0..8).collect();
        let picked = pick_cpus(&sixteen(), &lsr, 4);
        assert_eq!(ids(&picked), [0, 1, 8, 9]);
    }

    proptest! {
        #[test]
        fn quota_steps_keep_their_rules(
            cores in 1_i64..256,
            budget in -50_000_i64..300_000,
            current in prop_oneof![Just(UNLIMITED), 2_000_i64..30_000_000],
        ) {
            if let Some(quota) = next_quota(cores * 1000, budget, current) {
                prop_assert!(quota >= MIN_QUOTA_US);
                prop_assert!(quota != current);
                if current >= 0 {
                    prop_assert!(quota <= (current + cores * CFS_PERIOD_US / 10).max(MIN_QUOTA_US));
                }
                prop_assert!(quota <= (budget * 100).max(MIN_QUOTA_US));
            }
        }

        #[test]
        fn repeated_steps_reach_the_target(cores in 1_i64..64, percent in 1_i64..100) {
            let budget = cores * 10 * percent;
            let mut current = MIN_QUOTA_US;
            for _ in 0..40 {
                if let Some(quota) = next_quota(cores * 1000, budget, current) {
                    current = quota;
                }
            }
            let target = (budget * 100).max(MIN_QUOTA_US);
            prop_assert!((target - current).abs() as f64 <= cores as f64 * 1000.0);
        }

        #[test]
        fn picked_cpus_are_candidates(count in 0_usize..17, owned in 0_u32..9) {
            let lsr: BTreeSet<u32> = (0..owned).collect();
            let picked = pick_cpus(&sixteen(), &lsr, count);
            prop_assert!(picked.len() <= count);
            prop_assert_eq!(picked.len(), count);
        }
    }
}
