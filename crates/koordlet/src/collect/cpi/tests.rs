use super::*;
use crate::states::{Driver, Layout, PodInfo};
use koord_host::Cgroup;
use koord_host::fake::Tree;
use koord_host::process::{Spawn, Spawner};
use koord_host::testing::skip;
use serde_json::json;

const EVERY: Duration = Duration::from_secs(60);
const WINDOW: Duration = Duration::from_secs(10);

fn states(top: &CgroupPath, containers: &[&str]) -> Arc<States> {
    let names = containers.iter().map(|name| json!({"name": name}));
    let statuses = containers.iter().map(|name| {
        json!({"name": name, "containerID": format!("koord://{name}"), "image": "",
            "imageID": "", "ready": true, "restartCount": 0})
    });
    let pod = json!({"metadata": {"uid": "u", "name": "p", "namespace": "n"},
        "spec": {"containers": names.collect::<Vec<_>>()},
        "status": {"phase": "Running", "containerStatuses": statuses.collect::<Vec<_>>()}});
    let layout = Layout::new(Driver::Cgroupfs, top.clone());
    let pod = PodInfo::from_pod(&serde_json::from_value(pod).unwrap(), &layout).unwrap();
    let states = States::default();
    states.pods.store(Some(Arc::new(vec![pod])));
    Arc::new(states)
}

fn collector(root: &Root, states: Arc<States>) -> (CpiCollector, prometheus::Registry) {
    let registry = prometheus::Registry::new();
    let metrics = Metrics::new(&registry).unwrap();
    metrics.record_start("node", 0);
    let job = CpiCollector::new(root.clone(), states, Arc::default(), metrics, EVERY, WINDOW);
    (job, registry)
}

/// Removes the group and everything below it on drop.
struct TestGroup(Cgroup);

impl Drop for TestGroup {
    fn drop(&mut self) {
        for _ in 0..10_000 {
            if self.0.kill().is_ok() && self.0.remove().is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Uses the real tree and the real system call, with two of the kernel's software events in place of those of
/// the processor.
#[test]
fn containers_take_turns_in_windows() {
    let root = Root::system().unwrap();
    let top = CgroupPath::new(&format!("koord-cpi-{}", std::process::id())).unwrap();
    let ground = TestGroup(root.cgroup(&top));
    let pod = top.join("kubepods/besteffort/podu").unwrap();
    let groups = ["busy", "quiet"].map(|name| root.cgroup(&pod.join(name).unwrap()));
    if !root.has_cgroups() || groups.iter().any(|group| group.create(&[]).is_err()) {
        skip("cgroup-write", "the cgroup tree cannot be written");
        return;
    }
    // A container whose group the runtime has not created yet.
    let (mut job, registry) = collector(&root, states(&top, &["busy", "new", "quiet"]));
    job.events = [Event::TaskClock, Event::ContextSwitches];
    job.descriptors = 1;
    if let Err(error) = job.probe() {
        assert!(error.is::<UnavailableFeature>(), "{error}");
        skip("perf", error);
        return;
    }
    job.round().unwrap();
    assert_eq!((job.open.len(), job.every()), (1, WINDOW));
    let spawner = Spawner::start(root.clone()).unwrap();
    let _busy = spawner
        .spawn(Spawn {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), "while :; do :; done".into()],
            cgroups: groups[0].entrances(),
            ..Spawn::default()
        })
        .unwrap();
    let milli = 1_000_000;
    while job.open[0].1.read().unwrap().is_none_or(|c| c[0] < milli) {
        std::thread::yield_now();
    }
    job.round().unwrap();
    assert_eq!((job.open.len(), job.every()), (1, WINDOW));
    assert!(job.facts.cpi.load().is_none(), "one is still to come");
    job.round().unwrap();
    // The pause, in which no descriptor is held open.
    assert_eq!((job.open.len(), job.every()), (0, EVERY));
    let cpi = job.facts.cpi.load_full().unwrap();
    assert_eq!((cpi.0, cpi.1.len()), (1, 2));
    let counts_of = |group: &Cgroup| cpi.1[group.path()];
    assert!(counts_of(&groups[0]).cycles >= milli);
    assert!(
        !counts_of(&groups[0]).newest,
        "its window was the first of two"
    );
    let nothing = CpiCounts {
        cycles: 0,
        instructions: 0,
        newest: true,
    };
    assert_eq!(counts_of(&groups[1]), nothing);
    let families = registry.gather();
    let family = families
        .iter()
        .find(|family| family.name() == "koordlet_container_cpi");
    let rows = family.unwrap().get_metric().iter().map(|metric| {
        let value = |name: &str| {
            let mut labels = metric.get_label().iter();
            let label = labels.find(|label| label.name() == name).unwrap();
            label.value().to_owned()
        };
        let labels = (value("container_id"), value("cpi_field"));
        (labels, metric.get_gauge().get_value())
    });
    let rows: FxHashMap<_, _> = rows.collect();
    let row = |id: &str, field: &str| rows[&(id.to_owned(), field.to_owned())];
    assert_eq!(rows.len(), 4);
    assert!(row("koord://busy", "cycles") >= milli as f64);
    assert_eq!(row("koord://quiet", "instructions"), 0.0);

    // No pause while the guard watches.
    job.facts.watched.store(true, Ordering::Relaxed);
    assert_eq!(job.every(), Duration::ZERO);
    job.facts.watched.store(false, Ordering::Relaxed);

    // With enough descriptors, all are counted at once.
    job.descriptors = DESCRIPTORS;
    job.round().unwrap();
    assert_eq!(job.open.len(), 2);
    job.round().unwrap();
    assert_eq!((job.open.len(), job.every()), (0, EVERY));
    assert_eq!(job.facts.cpi.load_full().unwrap().0, 2);
    drop(ground);
    job.round().unwrap();
    assert!(job.facts.cpi.load_full().unwrap().1.is_empty());
    assert_eq!(job.every(), EVERY);
}

#[test]
fn machine_without_counters_is_reported_and_not_retried() {
    let tree = Tree::v1("0-1").unwrap();
    let (mut job, _) = collector(tree.root(), Arc::default());
    let error = job.round().unwrap_err();
    assert!(error.is::<UnavailableFeature>(), "{error}");

    let root = Root::system().unwrap();
    let (mut job, _) = collector(&root, Arc::default());
    match job.round() {
        Ok(()) => assert!(job.is_supported),
        Err(error) => {
            assert!(error.is::<UnavailableFeature>(), "{error}");
            skip("perf-hardware", &error);
            assert!(error.to_string().contains("perf event"), "{error}");
        }
    }
}

#[test]
fn a_pods_cpi_is_that_of_its_containers_together() {
    let counts = |cycles, instructions| CpiCounts {
        cycles,
        instructions,
        newest: true,
    };
    let cpi_of = |all: &[CpiCounts]| pod_cpi(all.iter());
    assert_eq!(cpi_of(&[counts(30_000_000, 10_000_000)]), Some(3.0));
    let two_counts = [
        counts(10_000_000, 20_000_000),
        counts(50_000_000, 10_000_000),
    ];
    assert_eq!(cpi_of(&two_counts), Some(2.0));
    assert_eq!(cpi_of(&[counts(30_000_000, 9_999_999)]), None);
    assert_eq!(cpi_of(&[]), None);
    let old = CpiCounts {
        newest: false,
        ..two_counts[0]
    };
    assert_eq!(cpi_of(&[old, two_counts[1]]), None);
    assert!(cpi_of(&[counts(u64::MAX, u64::MAX), counts(1, 1)]).is_some());
}
