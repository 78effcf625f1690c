use super::*;
use koord_host::fake::Tree;
use parking_lot::Mutex;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;

/// Packets sent by each group. Groups that are not in the map do not exist.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentPackets(Arc<Mutex<FxHashMap<CgroupPath, u64>>>);

#[derive(Debug)]
struct GroupCounter(SentPackets, CgroupPath);

impl SentPackets {
    pub(crate) fn set(&self, group: &CgroupPath, packets: u64) {
        self.0.lock().insert(group.clone(), packets);
    }
}

impl PacketCount for GroupCounter {
    fn packets(&self) -> koord_host::Result<Option<u64>> {
        Ok(self.0.0.lock().get(&self.1).copied())
    }
}

impl PacketSource for SentPackets {
    fn attach(&self, group: &Cgroup) -> koord_host::Result<Option<Box<dyn PacketCount>>> {
        let counter =
            || Box::new(GroupCounter(self.clone(), group.path().clone())) as Box<dyn PacketCount>;
        Ok(self.0.lock().contains_key(group.path()).then(counter))
    }
}

/// A source that refuses every group.
#[derive(Debug)]
struct RefusingSource;

impl PacketSource for RefusingSource {
    fn attach(&self, _: &Cgroup) -> koord_host::Result<Option<Box<dyn PacketCount>>> {
        Err(HostError::Unsupported {
            resource: "a count",
            version: "this test",
        })
    }
}

struct Fixture {
    _tree: Tree,
    sent: SentPackets,
    work: WorkMeter,
    now: u64,
}

impl Fixture {
    fn new() -> Self {
        let (tree, sent) = (Tree::hybrid("0-3").unwrap(), SentPackets::default());
        let work = WorkMeter::with_source(tree.root().clone(), Box::new(sent.clone()));
        Self {
            _tree: tree,
            sent,
            work,
            now: SECOND,
        }
    }

    fn follow(&mut self, pods: &[u64]) {
        let groups: Vec<_> = pods.iter().map(|n| (*n, group(*n))).collect();
        self.work
            .follow(groups.iter().map(|(n, group)| (*n, group)));
    }

    /// Samples one second later, in which every pod has used `cores` cores.
    fn sample(&mut self, cores: f64) {
        self.now += SECOND;
        self.work.sample(self.now, |_| Some(cores)).unwrap();
    }
}

fn group(n: u64) -> CgroupPath {
    CgroupPath::new(&format!("kubepods/pod{n}")).unwrap()
}

#[test]
fn the_value_is_cpu_time_by_packet() {
    let mut f = Fixture::new();
    f.sent.set(&group(1), 1000);
    f.sent.set(&group(2), 0);
    f.follow(&[1, 2]);
    f.sample(0.5);
    assert_eq!(f.work.cpu_per_packet(1), None, "one sample is no rate");
    f.sent.set(&group(1), 6000);
    f.sample(0.5);
    assert_eq!(
        f.work.cpu_per_packet(1),
        Some(100.0),
        "half a core and 5000 packets"
    );
    assert_eq!(f.work.cpu_per_packet(2), None, "it sends nothing");
    assert_eq!(f.work.cpu_per_packet(3), None);
    assert_eq!(f.work.problem(), None);
}

#[test]
fn too_little_to_be_compared_is_no_value() {
    for (packets, cores, want) in [
        (50, 0.01, Some(200.0)),
        (49, 0.01, None),
        (50, 0.009, None),
        (5000, 0.009, None),
    ] {
        let mut f = Fixture::new();
        f.sent.set(&group(1), 0);
        f.follow(&[1]);
        f.sample(cores);
        f.sent.set(&group(1), packets);
        f.sample(cores);
        assert_eq!(
            f.work.cpu_per_packet(1),
            want,
            "{packets} packets, {cores} cores"
        );
        f.now += SECOND;
        f.work.sample(f.now, |_| None).unwrap();
        assert_eq!(f.work.cpu_per_packet(1), None, "the CPU time is not known");
    }
}

#[test]
fn a_group_that_comes_and_goes_is_tried_again() {
    let mut f = Fixture::new();
    f.follow(&[1]);
    f.sample(1.0);
    let (state, why) = f.work.problem().unwrap();
    assert_eq!(state, State::Active);
    assert_eq!(why, "1 of 1 services have no group in the unified tree");
    f.sent.set(&group(1), 0);
    for _ in 0..9 {
        f.sample(1.0);
        assert!(f.work.problem().is_some(), "not tried each second");
    }
    f.sample(1.0);
    assert_eq!(f.work.problem(), None);
    f.sent.set(&group(1), 500);
    f.sample(1.0);
    assert_eq!(f.work.cpu_per_packet(1), Some(2000.0));
    f.sent.0.lock().clear();
    f.sample(1.0);
    assert_eq!(f.work.cpu_per_packet(1), None);
    // The recreated group counts from 0.
    f.sent.set(&group(1), 100);
    f.sample(1.0);
    f.sample(1.0);
    assert_eq!(
        f.work.cpu_per_packet(1),
        None,
        "the counter before was another"
    );
}

#[test]
fn at_rest_nothing_is_held() {
    let mut f = Fixture::new();
    f.sent.set(&group(1), 0);
    f.follow(&[1]);
    f.sample(1.0);
    f.sent.set(&group(1), 500);
    f.work.suspend();
    assert!(f.work.pods.iter().all(|pod| pod.counter.is_none()));
    f.sample(1.0);
    assert_eq!(
        f.work.cpu_per_packet(1),
        None,
        "a rate over the rest would be wrong"
    );
}

#[test]
fn missing_ebpf_support_is_reported_and_not_retried() {
    let tree = Tree::v1("0-3").unwrap();
    let mut work = WorkMeter::with_source(tree.root().clone(), Box::new(RefusingSource));
    let group = group(1);
    work.follow([(1, &group)].into_iter());
    for second in 1..30 {
        work.sample(second * SECOND, |_| Some(1.0)).unwrap();
    }
    let expected = (
        State::Unavailable,
        "a count does not exist in this test".to_owned(),
    );
    assert_eq!(work.problem(), Some(expected));
    assert!(matches!(work.stage, SourceState::Unavailable(_)));

    let mut off = WorkMeter::new(tree.root().clone(), false);
    off.follow([(1, &group)].into_iter());
    off.sample(SECOND, |_| Some(1.0)).unwrap();
    assert_eq!(off.problem().unwrap().0, State::Off);
    assert!(matches!(off.stage, SourceState::Off));
}

/// eBPF cannot be attached to ordinary directories, on any kernel.
#[test]
fn fake_tree_counts_no_packets_and_reports_it() {
    let tree = Tree::hybrid("0-3").unwrap();
    let group = tree.group("kubepods/pod1").unwrap();
    let mut work = WorkMeter::new(tree.root().clone(), true);
    work.follow([(1, &group)].into_iter());
    let rounds = [1, 2].map(|second| work.sample(second * SECOND, |_| Some(1.0)));
    assert_eq!(work.cpu_per_packet(1), None);
    assert!(work.problem().is_some(), "{rounds:?}");
}
