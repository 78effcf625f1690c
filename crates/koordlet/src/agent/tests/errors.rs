//! Kernel errors of collectors, end to end.

use super::*;
use crate::collect::needs::Needs;
use crate::health::State;
use crate::log_on_change::tests::Warnings;

impl Rig {
    /// Returns the samples of `koordlet_collect_errors_total`, without its name and the node.
    fn collect_errors(&self) -> Vec<String> {
        let text = koord_app::metrics::encode(&self.registry).unwrap();
        let lines = text.lines().filter_map(|line| {
            let sample = line.strip_prefix("koordlet_collect_errors_total{collector=")?;
            Some(sample.replace(",node=\"n\"}", ""))
        });
        lines.collect()
    }

    fn feed(&self, group: &CgroupPath, resource: Resource, text: &str) {
        self.tree.feed(group, resource, text).unwrap();
    }

    fn collector(&self, name: &str) -> (State, String) {
        let mut rows = self.agent.collectors().into_iter();
        let row = rows.find(|row| row.name == name).unwrap();
        (row.state, row.why)
    }
}

#[test]
fn readable_files_are_no_collect_errors() {
    for tree in [Tree::v1("0-3"), Tree::hybrid("0-3"), Tree::v2("0-3")] {
        let mut settings = Settings::default();
        // eBPF cannot use the groups of a fake tree.
        settings.collectors.packets = false;
        for gate in Gate::ALL {
            settings.gates.set(*gate, true);
        }
        for gate in [
            Gate::PSICollector,
            Gate::CPICollector,
            Gate::ColdPageCollector,
        ] {
            settings.gates.set(gate, false);
        }
        let mut rig = Rig::on(tree.unwrap(), settings);
        rig.suppress("pressure");
        for _ in 0..40 {
            rig.step(BUSY);
        }
        assert_eq!(rig.collect_errors(), [""; 0]);
    }
}

#[test]
fn unreadable_file_is_counted_and_logged_once() {
    let mut rig = Rig::new();
    let group = rig.tree.group("kubepods/burstable/podother").unwrap();
    let feed = |resource, text| rig.tree.feed(&group, resource, text).unwrap();
    feed(Resource::CpuacctUsage, "1000\n");
    feed(Resource::MemoryStat, "total_active_anon many\n");
    rig.pods(vec![
        pod("other", "LS", json!({"requests": {"cpu": "1"}})),
        batch_pod(),
    ]);
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    for _ in 0..10 {
        rig.step(BUSY);
    }
    assert_eq!(rig.collect_errors(), ["\"pods\" 10"]);
    let logged = warnings.targets().into_iter();
    let logged = logged.filter(|target| target.ends_with("log_on_change"));
    assert_eq!(logged.count(), 1);
    let (state, why) = rig.collector("pods");
    assert_eq!(state, State::Failing);
    assert!(why.contains("podother/memory.stat"), "{why}");
    // A removed group is not an error, and no error remains in the end.
    rig.tree.vanish(&group).unwrap();
    for _ in 0..10 {
        rig.step(BUSY);
    }
    assert_eq!(rig.collect_errors(), ["\"pods\" 10"]);
    assert_eq!(rig.collector("pods"), (State::Active, String::new()));
}

#[test]
fn unreadable_cpu_stat_fails_throttling_only() {
    let mut rig = Rig::new();
    let limited = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
    rig.pods(vec![pod("ls", "LS", limited)]);
    rig.step(BUSY);
    let group = rig.tree.group("kubepods/burstable/podls/c1").unwrap();
    let feed = |resource, text| rig.tree.feed(&group, resource, text).unwrap();
    feed(Resource::CpuacctUsage, "1000\n");
    feed(Resource::CpuStat, "nr_periods many\n");
    let needs = Needs {
        containers: true,
        throttling: true,
        ..Needs::default()
    };
    for _ in 0..3 {
        rig.collect(needs);
    }
    assert_eq!(rig.collect_errors(), ["\"throttling\" 3"]);
    let (state, why) = rig.collector("throttling");
    assert_eq!(state, State::Failing);
    assert!(why.contains("podls/c1/cpu.stat"), "{why}");
    assert_eq!(rig.collector("containers").0, State::Active);
}

#[test]
fn standing_error_ends_with_the_demand() {
    let mut settings = Settings::default();
    // eBPF cannot use the groups of a fake tree.
    settings.collectors.packets = false;
    let mut rig = Rig::with(settings);
    let limited = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
    rig.pods(vec![pod("ls", "LS", limited)]);
    rig.step(BUSY);
    let container = rig.tree.group("kubepods/burstable/podls/c1").unwrap();
    rig.feed(&container, Resource::CpuacctUsage, "1000\n");
    let (service, class) = (rig.service.clone(), rig.class.clone());
    let files = [
        (&container, Resource::CpuStat, "nr_periods 1\n"),
        (&container, Resource::MemoryStat, "total_active_anon 1\n"),
        (&service, Resource::CpuPressure, "some avg10=0.00 total=9\n"),
        (&class, Resource::CfsQuota, "-1\n"),
    ];
    let needs = Needs {
        containers: true,
        throttling: true,
        pressure: true,
        fast_pressure: true,
        batch_limit: true,
    };
    let rows = ["containers", "throttling", "pressure", "batch limit"];
    for (group, file, good) in files {
        rig.feed(group, file, good);
    }
    rig.collect(needs);
    for (group, file, good) in files {
        rig.feed(
            group,
            file,
            &good.replace(|c: char| c.is_ascii_digit(), "x"),
        );
    }
    // The memory of a container is read in each fifth tick.
    for _ in 0..10 {
        rig.collect(needs);
    }
    for row in rows {
        assert_eq!(rig.collector(row).0, State::Failing, "{row}");
    }
    // An error of the fast lane that belongs to no sample any more.
    let now = rig.now();
    rig.agent.tick_fast(now);
    rig.collect(Needs::default());
    let before = rig.collect_errors();
    for (group, file, good) in files {
        rig.feed(group, file, good);
    }
    rig.collect(needs);
    for row in rows {
        assert_eq!(rig.collector(row), (State::Active, String::new()), "{row}");
    }
    assert_eq!(rig.collect_errors(), before);
}

#[test]
fn unreadable_file_fails_the_strategies_that_read_it() {
    let mut settings = Settings::default();
    // eBPF cannot use the groups of a fake tree.
    settings.collectors.packets = false;
    let mut rig = Rig::on(Tree::v2("0-3").unwrap(), settings);
    rig.suppress("pressure");
    rig.step(BUSY);
    assert_eq!(rig.agent.strategy_errors(), []);
    rig.feed(&rig.class, Resource::CfsQuota, "much\n");
    rig.step(BUSY);
    let errors = rig.agent.strategy_errors();
    let names: Vec<_> = errors.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["PressureGuard", "BECPUSuppress"]);
    for (_, error) in &errors {
        assert!(error.contains("besteffort/cpu.max"), "{error}");
    }
    let counted = ["\"BECPUSuppress\" 1", "\"PressureGuard\" 1"];
    assert_eq!(rig.collect_errors(), counted);
    rig.feed(&rig.class, Resource::CfsQuota, "max 100000\n");
    for _ in 0..STRATEGY_TURNS {
        assert_eq!(rig.agent.strategy_errors().len(), 2);
        rig.step(BUSY);
    }
    assert_eq!(rig.agent.strategy_errors(), []);
    assert_eq!(rig.collect_errors(), counted);
}

#[test]
fn names_of_collectors_and_strategies_differ() {
    let strategies: FxHashSet<&str> = STRATEGIES.iter().map(|row| row.name).collect();
    let mut collectors = table::COLLECTORS.iter();
    assert!(collectors.all(|row| !strategies.contains(row.name)));
}
