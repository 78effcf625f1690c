//! Plans for small clusters, compared with an exhaustive search of all placements.

use super::*;

struct Dice(u64);

impl Dice {
    /// Returns a number below `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// Small nodes: their cores, and their pods as cores, priority and whether they may be evicted.
type SmallCluster = Vec<(usize, Vec<(usize, usize, bool)>)>;

/// Returns how many of `sizes` fit on nodes with these free cores, by trying all placements: a prefix of
/// `sizes` if `strict`, otherwise any subset.
fn most(free: &[usize], sizes: &[usize], strict: bool) -> usize {
    let Some((size, rest)) = sizes.split_first() else {
        return 0;
    };
    let without = if strict { 0 } else { most(free, rest, strict) };
    let placed = (0..free.len())
        .filter(|node| free[*node] >= *size)
        .map(|node| {
            let mut remaining = free.to_vec();
            remaining[node] -= size;
            1 + most(&remaining, rest, strict)
        });
    placed.max().unwrap_or(0).max(without)
}

/// Returns the free cores after all evictable pods up to a priority were evicted.
fn free(cluster: &SmallCluster, up_to: Option<usize>) -> Vec<usize> {
    let nodes = cluster.iter().map(|(cores, pods)| {
        let stay = pods
            .iter()
            .filter(|(_, priority, may)| !may || up_to.is_none_or(|up_to| *priority > up_to));
        cores - stay.map(|(cores, ..)| cores).sum::<usize>()
    });
    nodes.collect()
}

#[test]
fn plans_match_exhaustive_search() {
    // Cases reached: no victims; all fit without victims; some victims; on several nodes; not all of them;
    // more requested than fit.
    let mut reached = [0; 6];
    for seed in 0..1000 {
        let mut dice = Dice(seed);
        let cluster: SmallCluster = (0..1 + dice.roll(3))
            .map(|_| {
                let cores = 2 + dice.roll(5);
                let mut remaining = cores;
                let mut pods = Vec::new();
                for _ in 0..dice.roll(4) {
                    let size = (1 + dice.roll(3)).min(remaining);
                    if size > 0 {
                        remaining -= size;
                        pods.push((size, dice.roll(4), dice.roll(5) > 0));
                    }
                }
                (cores, pods)
            })
            .collect();
        let count = 1 + dice.roll(4);
        let alike = dice.roll(3) > 0;
        let first = 1 + dice.roll(3);
        let sizes: Vec<usize> = (0..count)
            .map(|_| if alike { first } else { 1 + dice.roll(3) })
            .collect();
        let strict = dice.roll(2) == 0;
        let mut world = evicting();
        for (nth, (cores, pods)) in cluster.iter().enumerate() {
            world.node(&format!("n{nth}"), *cores);
            for (at, (size, priority, may)) in pods.iter().enumerate() {
                let name = format!("v{nth}-{at}");
                let pod = plain(
                    &name,
                    &format!("n{nth}"),
                    *size,
                    i32::try_from(*priority).unwrap(),
                );
                let key = "scheduling.koordinator.sh/disable-preemptible";
                world.apply(if *may {
                    pod
                } else {
                    labelled(pod, key, "true")
                });
            }
        }
        let mode = if strict { "Strict" } else { "NonStrict" };
        let pods = members(count, count, 1, &json!({"mode": mode}));
        for (pod, size) in pods.into_iter().zip(&sizes) {
            world.apply(sized(pod, *size, 1000));
        }
        world.run();
        let case = format!("seed {seed}: {cluster:?}, {mode} {sizes:?}");
        let now = most(&free(&cluster, None), &sizes, false) == count;
        let reaches_count = most(&free(&cluster, Some(3)), &sizes, false) == count;
        let victims: Vec<String> = world
            .victims()
            .iter()
            .map(|name| (*name).to_owned())
            .collect();
        if !reaches_count {
            reached[0] += 1;
            assert!(
                victims.is_empty() && world.bound.is_empty(),
                "{case}: {victims:?}"
            );
            // Placed members of a gang that is not strict keep their places.
            assert_eq!(world.nominated.len(), world.booked().1, "{case}");
            continue;
        }
        if world.bound.len() == count {
            reached[1] += 1;
            assert!(now && victims.is_empty(), "{case}");
            continue;
        }
        assert!(world.bound.is_empty(), "{case}");
        if victims.is_empty() {
            // With members of different sizes, the first may take what the last needs.
            assert!(!alike, "{case}: a place was overlooked");
            reached[5] += 1;
            continue;
        }
        assert!(!(now && alike), "{case}: {victims:?} went for nothing");
        assert_eq!(world.nominated.len(), count, "{case}");
        // On each node, the placed members fit without the victims, and do not fit if any victim stays.
        let mut nodes = BTreeSet::new();
        let mut highest = None;
        for (nth, (cores, pods)) in cluster.iter().enumerate() {
            let pod_index = |(pod, _): &(&String, &String)| pod[1..].parse::<usize>().unwrap() - 1;
            let placed = world
                .nominated
                .iter()
                .filter(|(_, node)| **node == format!("n{nth}"));
            let placed: usize = placed.map(|it| sizes[pod_index(&it)]).sum();
            let is_victim = |at: usize| victims.contains(&format!("v{nth}-{at}"));
            let stay = pods.iter().enumerate().filter(|(at, _)| !is_victim(*at));
            let remaining = cores - stay.map(|(_, (size, ..))| size).sum::<usize>();
            assert!(placed <= remaining, "{case}: {:?}", world.nominated);
            for (at, (size, priority, may)) in
                pods.iter().enumerate().filter(|(at, _)| is_victim(*at))
            {
                assert!(*may, "{case}: v{nth}-{at} was spared");
                assert!(
                    placed > remaining - size,
                    "{case}: v{nth}-{at} went for nothing"
                );
                highest = highest.max(Some(*priority));
                nodes.insert(nth);
            }
        }
        if alike {
            let needed =
                (0..4).find(|up_to| most(&free(&cluster, Some(*up_to)), &sizes, false) == count);
            assert_eq!(highest, needed, "{case}: {victims:?}");
        }
        reached[2] += 1;
        reached[3] += usize::from(nodes.len() > 1);
        let all = cluster
            .iter()
            .flat_map(|(_, pods)| pods)
            .filter(|(.., may)| *may);
        reached[4] += usize::from(victims.len() < all.count());
        let promised = world.nominated.clone();
        if dice.roll(2) == 0 {
            world.all_leave();
            world.later(60);
            assert_eq!(world.bound, promised, "{case}: {:?}", world.conditions);
            continue;
        }
        // When some victims are gone, members may swap places: no further pod is evicted, and no member is
        // left out.
        for _ in 0..victims.len() {
            world.one_leaves();
            world.later(60);
        }
        assert!(world.evicted.is_empty(), "{case}: {:?}", world.victims());
        assert_eq!(world.bound.len(), count, "{case}: {:?}", world.conditions);
    }
    assert!(reached.iter().all(|times| *times >= 3), "{reached:?}");
}
