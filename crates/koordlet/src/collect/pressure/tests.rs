use super::*;
use koord_host::fake::Tree;

const SECOND: u64 = 1_000_000_000;

struct Fixture {
    tree: Tree,
    pressure: Pressure,
    scratch: Scratch,
    now: u64,
}

impl Fixture {
    fn new(tree: Tree, limits: Limits) -> Self {
        Self {
            pressure: Pressure::new(tree.root().clone(), limits),
            tree,
            scratch: Scratch::new(),
            now: SECOND,
        }
    }

    fn pod(&self, n: u64) -> CgroupPath {
        self.tree.group(&format!("kubepods/pod{n}")).unwrap()
    }

    fn follow(&mut self, pods: &[u64]) {
        let groups: Vec<_> = pods.iter().map(|n| (*n, self.pod(*n))).collect();
        self.pressure
            .follow(groups.iter().map(|(n, group)| (*n, group, false)));
    }

    fn psi(&self, n: u64, total_us: u64) {
        let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n");
        self.tree
            .feed(&self.pod(n), Resource::CpuPressure, &text)
            .unwrap();
    }

    /// Adds threads to the container `c` of a pod.
    fn threads(&self, n: u64, ids: &[u32]) {
        let group = self.tree.group(&format!("kubepods/pod{n}/c")).unwrap();
        let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
        self.tree.feed(&group, Resource::Tasks, &text).unwrap();
    }

    fn thread(&self, id: u32, run_ns: u64, wait_ns: u64) {
        let text = format!("{run_ns} {wait_ns} 1\n");
        self.tree
            .put(&format!("proc/{id}/schedstat"), &text)
            .unwrap();
    }

    /// Samples one second later and returns the cost.
    fn sample(&mut self) -> PressureCost {
        self.now += SECOND;
        let before = self.pressure.cost();
        self.pressure.sample(self.now, &mut self.scratch).unwrap();
        let after = self.pressure.cost();
        PressureCost {
            reads: after.reads - before.reads,
            opens: after.opens - before.opens,
            lists: after.lists - before.lists,
        }
    }
}

fn trees() -> [Tree; 3] {
    [Tree::v1("0-3"), Tree::hybrid("0-3"), Tree::v2("0-3")].map(Result::unwrap)
}

#[test]
fn only_the_total_of_some_counts() {
    let text = "some avg10=1.50 avg60=0.44 avg300=2.98 total=123\nfull avg10=0 total=9\n";
    assert_eq!(some_total(text).unwrap(), 123);
    assert!(some_total("full total=1\n").is_err());
    assert!(some_total("some total=x\n").is_err());
}

#[test]
fn a_pod_without_psi_falls_back_alone() {
    let mut f = Fixture::new(Tree::hybrid("0-3").unwrap(), Limits::default());
    f.psi(1, 0);
    f.pod(2);
    let missing = f.tree.root().cgroup(&f.pod(2));
    std::fs::remove_file(missing.file(Resource::CpuPressure).unwrap()).unwrap();
    f.threads(2, &[20, 21]);
    f.thread(20, 0, 0);
    f.thread(21, 0, 0);
    f.follow(&[1, 2]);
    f.sample();
    assert_eq!((f.pressure.share(1), f.pressure.share(2)), (None, None));
    f.psi(1, 250_000);
    f.thread(20, 60_000_000, 10_000_000);
    f.thread(21, 0, 30_000_000);
    f.sample();
    assert_eq!(f.pressure.share(1), Some((0.25, Signal::CpuStall)));
    assert_eq!(f.pressure.share(2), Some((0.4, Signal::RunQueue)));
    // The file appears: the signal changes and starts over.
    f.psi(2, 7);
    f.now += 10 * SECOND;
    f.sample();
    assert_eq!(f.pressure.share(2), None);
    f.psi(2, 500_007);
    f.sample();
    assert_eq!(f.pressure.share(2), Some((0.5, Signal::CpuStall)));
    // It is removed with the group.
    f.tree.vanish(&f.pod(2)).unwrap();
    f.sample();
    assert_eq!(f.pressure.share(2), None);
    assert_eq!(f.pressure.share(3), None, "not tracked");
}

#[test]
fn a_steady_pod_costs_one_read_per_thread() {
    for tree in trees() {
        let mut f = Fixture::new(tree, Limits::default());
        for n in 1..=2 {
            let group = f.tree.root().cgroup(&f.pod(n));
            let _ = std::fs::remove_file(group.file(Resource::CpuPressure).unwrap());
            let ids = [n as u32 * 10, n as u32 * 10 + 1, n as u32 * 10 + 2];
            f.threads(n, &ids);
            ids.iter().for_each(|id| f.thread(*id, 0, 0));
        }
        f.follow(&[1, 2]);
        let first = f.sample();
        // Per pod: one open for PSI, three threads; two groups of two files or directories each.
        assert_eq!((first.opens, first.reads, first.lists), (8, 6, 8));
        for _ in 0..9 {
            let steady = f.sample();
            assert_eq!((steady.opens, steady.reads, steady.lists), (0, 6, 0));
        }
        let second_cost = f.sample();
        assert_eq!(
            (second_cost.opens, second_cost.reads, second_cost.lists),
            (2, 6, 8),
            "after ten seconds"
        );
        f.pressure.suspend();
        assert_eq!(f.sample().opens, 8, "nothing had stayed open");
    }
}

#[test]
fn the_number_of_threads_read_is_bounded() {
    let limits = Limits {
        threads_per_second: 100,
        open_files: 60,
        ..Limits::default()
    };
    let mut f = Fixture::new(Tree::v1("0-3").unwrap(), limits);
    let pods: Vec<u64> = (1..=8).collect();
    for n in &pods {
        let ids: Vec<u32> = (0..50).map(|k| *n as u32 * 100 + k).collect();
        f.threads(*n, &ids);
        ids.iter().for_each(|id| f.thread(*id, 0, 0));
    }
    f.threads(9, &[7]);
    f.thread(7, 0, 0);
    f.follow(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // The busy one is unknown at first, because it is not among the first.
    let mut busy = 0;
    let mut found_at = None;
    for second in 1..40 {
        busy += SECOND / 2;
        f.thread(349, busy, busy);
        f.thread(7, busy, 0);
        let cost = f.sample();
        assert!(cost.reads <= 100, "{cost:?}");
        if second > 1 {
            assert_eq!(f.pressure.share(9), Some((0.0, Signal::RunQueue)));
        }
        match f.pressure.share(3) {
            Some(found) => {
                assert_eq!(found, (0.5, Signal::RunQueue));
                found_at.get_or_insert(second);
            }
            None => assert_eq!(found_at, None, "once found it is read every time"),
        }
    }
    assert!(found_at.is_some_and(|second| second <= 30), "{found_at:?}");
}

#[test]
fn parts_fill_the_budget() {
    let part = |sizes: &[usize], budget| fair_share(sizes.iter().copied(), budget);
    assert_eq!(part(&[3, 3], 6), usize::MAX);
    assert_eq!(part(&[1, 9, 9], 11), 5);
    assert_eq!(part(&[9, 9, 9], 2), 1, "at least one");
    assert_eq!(part(&[], 0), usize::MAX);
}

#[test]
fn the_kernel_finds_threads_by_their_own_number() {
    let root = Root::system().unwrap();
    if !root.proc("self/schedstat").exists() {
        koord_host::testing::skip("schedstat", "run-queue delays cannot be read");
        return;
    }
    // Tests run on threads of their own.
    let link = std::fs::read_link(root.proc("thread-self")).unwrap();
    let own = link.file_name().unwrap().to_str().unwrap().to_owned();
    assert_ne!(own, std::process::id().to_string());
    let path = root.proc(&format!("{own}/schedstat"));
    let stat = koord_host::procfs::SchedStat::parse(&std::fs::read_to_string(path).unwrap());
    assert!(stat.unwrap().slices > 0);
}

#[test]
fn fast_lane_detects_peaks_within_a_second() {
    let mut fixture = Fixture::new(Tree::hybrid("0-1").unwrap(), Limits::default());
    fixture.follow(&[1]);
    fixture.psi(1, 0);
    fixture.sample();
    let mut total = 0;
    for step in 1..=10_u64 {
        // Stalled for 80 of 100 ms, once in the second.
        total += if step == 4 { 80_000 } else { 0 };
        fixture.psi(1, total);
        let now = fixture.now + step * SECOND / 10;
        fixture.pressure.sample_fast(now, &mut fixture.scratch);
    }
    fixture.sample();
    let (mean, signal) = fixture.pressure.share(1).unwrap();
    assert_eq!(signal, Signal::CpuStall);
    assert!((mean - 0.08).abs() < 1e-9, "{mean}");
    let peak = fixture.pressure.peak_share(1).unwrap();
    assert!((peak - 0.8).abs() < 1e-9, "{peak}");
    // Without steps in between there is no peak.
    fixture.sample();
    assert_eq!(fixture.pressure.peak_share(1), None);
}

/// The fast lane reads 16 files per step of 100 ms; a step lasts at most five times as long.
#[test]
fn fast_lane_slows_down_with_many_services() {
    for (pods, pace) in [(0, 1), (1, 1), (16, 1), (17, 2), (74, 5), (300, 5)] {
        let mut f = Fixture::new(Tree::hybrid("0-3").unwrap(), Limits::default());
        let all: Vec<u64> = (1..=pods).collect();
        all.iter().for_each(|n| f.psi(*n, 0));
        // One without PSI costs the fast lane nothing.
        let missing = f.tree.root().cgroup(&f.pod(1000));
        std::fs::remove_file(missing.file(Resource::CpuPressure).unwrap()).unwrap();
        f.follow(&[all, vec![1000]].concat());
        for _ in 0..10 {
            f.sample();
        }
        assert_eq!(f.pressure.pace(), pace, "{pods} pods");
        let before = f.pressure.cost().reads;
        f.now += SECOND;
        f.pressure.sample_fast(f.now, &mut f.scratch);
        assert_eq!(f.pressure.cost().reads - before, pods);
        // Files that it has read are not read again; of memory and IO one is read, or both.
        let other_files = if pace == 1 { 2 } else { 1 };
        f.now -= SECOND;
        assert_eq!(f.sample().reads, other_files * pods, "{pods} pods");
        assert_eq!(
            f.sample().reads,
            (1 + other_files) * pods,
            "without a fast lane"
        );
    }
}

/// On a node with many services, each of the two is an average over the last two seconds.
#[test]
fn memory_and_io_stalls_alternate_on_nodes_with_many_services() {
    let mut f = Fixture::new(Tree::hybrid("0-3").unwrap(), Limits::default());
    let all: Vec<u64> = (1..=20).collect();
    all.iter().for_each(|n| f.psi(*n, 0));
    f.follow(&all);
    let mut stalls = Vec::new();
    for second in 0..12_u64 {
        for (file, per_second) in [
            (Resource::MemoryPressure, 200_000),
            (Resource::IoPressure, 300_000),
        ] {
            // Only in every other second.
            let total = second / 2 * 2 * per_second;
            let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            f.tree.feed(&f.pod(7), file, &text).unwrap();
        }
        f.sample();
        let readings = f.pressure.readings(7);
        stalls.push((
            readings.get(Signal::MemoryStall),
            readings.get(Signal::IoStall),
        ));
    }
    assert_eq!(stalls[6..], [(Some(0.2), Some(0.3)); 6]);
}

/// A removed group is noticed, also while the fast lane reads it.
#[test]
fn pod_that_fast_lane_cannot_read_is_searched_again() {
    let mut f = Fixture::new(Tree::hybrid("0-3").unwrap(), Limits::default());
    f.psi(1, 0);
    f.follow(&[1]);
    f.sample();
    f.psi(1, 250_000);
    // A quarter second early: the share covers the time between the readings.
    f.pressure
        .sample_fast(f.now + 3 * SECOND / 4, &mut f.scratch);
    f.sample();
    let (share, _) = f.pressure.share(1).unwrap();
    assert!((share - 1.0 / 3.0).abs() < 1e-9, "{share}");
    f.tree.vanish(&f.pod(1)).unwrap();
    f.pressure.sample_fast(f.now + SECOND / 2, &mut f.scratch);
    f.sample();
    assert_eq!(f.pressure.share(1), None);
    f.psi(1, 100);
    f.sample();
    f.psi(1, 500_100);
    f.sample();
    assert_eq!(f.pressure.share(1), Some((0.5, Signal::CpuStall)));
}

/// A restarted pod has a new group: its file is opened at the next sample, not in turn.
#[test]
fn recreated_cgroup_is_found_at_the_next_sample() {
    let mut f = Fixture::new(Tree::hybrid("0-3").unwrap(), Limits::default());
    f.psi(1, 0);
    f.follow(&[1]);
    f.sample();
    f.tree.vanish(&f.pod(1)).unwrap();
    f.sample();
    f.psi(1, 100);
    f.sample();
    f.psi(1, 500_100);
    f.sample();
    assert_eq!(f.pressure.share(1), Some((0.5, Signal::CpuStall)));
}

#[test]
fn memory_and_io_stalls_are_read_in_addition_to_cpu_stalls() {
    for tree in [Tree::hybrid("0-3"), Tree::v2("0-3")].map(Result::unwrap) {
        let mut f = Fixture::new(tree, Limits::default());
        f.follow(&[1]);
        let feed = |f: &Fixture, file, total: u64| {
            let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            f.tree.feed(&f.pod(1), file, &text).unwrap();
        };
        for second in 0..3 {
            f.psi(1, second * 100_000);
            feed(&f, Resource::MemoryPressure, second * 200_000);
            feed(&f, Resource::IoPressure, second * 300_000);
            f.sample();
        }
        let readings = f.pressure.readings(1);
        for (signal, want) in [
            (Signal::CpuStall, Some(0.1)),
            (Signal::MemoryStall, Some(0.2)),
            (Signal::IoStall, Some(0.3)),
            (Signal::CpuPeak, None),
            (Signal::RunQueue, None),
        ] {
            assert_eq!(readings.get(signal), want, "{signal}");
        }
    }
}
