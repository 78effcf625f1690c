//! Tests of the pressure guard, from the services' files to the levers' files.

use super::*;
use crate::qos::guard::NAME;
use koord_host::fake::Attempt;

/// Lever that removes the harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EffectiveLever {
    /// `cpu.idle` of the batch pod.
    Idle,
    /// A CPU set of fewer CPUs.
    Partition,
    /// A quota of at most two and a half cores.
    Quota,
    /// No lever helps.
    None,
}

impl Rig {
    fn is_idle(&self) -> bool {
        let batch = self.tree.root().cgroup(&self.batch);
        batch.cpu_idle().unwrap() == Some(true)
    }

    fn class_cpus(&self) -> String {
        let class = self.tree.root().cgroup(&self.class);
        class.cpuset().unwrap().unwrap().to_string()
    }

    /// Runs a second in which the service is harmed unless the levers prevent it.
    fn suffer(&mut self, cure: EffectiveLever) -> TickOutcome {
        let quota = self.quota();
        let cores = match quota {
            -1 => 2.8,
            quota => (quota as f64 / 100_000.0).min(2.8),
        };
        let cured = match cure {
            EffectiveLever::Idle => self.is_idle(),
            EffectiveLever::Partition => self.class_cpus() != "0-3",
            EffectiveLever::Quota => cores <= 2.5,
            EffectiveLever::None => false,
        };
        self.step(SecondOfLoad {
            node_cores: 1.1 + cores,
            batch_cores: cores,
            stalled: if cured || (cores < 0.1 && cure != EffectiveLever::None) {
                0.01
            } else {
                0.35
            },
            ..BUSY
        })
    }

    /// Runs until `is_reached`; returns the number of seconds.
    fn until(&mut self, cure: EffectiveLever, is_reached: impl Fn(&Self) -> bool) -> u64 {
        for second in 1..300 {
            self.suffer(cure);
            if is_reached(self) {
                return second;
            }
        }
        let entries = self.agent.audit().entries();
        let entries_of_guard: Vec<_> = entries.iter().filter(|e| e.reason == NAME).collect();
        panic!("{cure:?} was never found: {entries_of_guard:#?}");
    }

    fn calm(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.step(BUSY);
        }
    }

    fn guard_entry_count(&self, kind: &str) -> usize {
        let entries = self.agent.audit().entries();
        let starts = format!("{kind}: ");
        let guard_entries = entries.iter().filter(|e| e.reason == NAME);
        guard_entries
            .filter(|e| e.message.starts_with(&starts))
            .count()
    }

    fn refused_writes(&self) -> Vec<Attempt> {
        let writes = self.tree.writes().into_iter();
        writes.filter(|write| write.refused.is_some()).collect()
    }
}

fn guarded() -> Rig {
    let mut rig = Rig::new();
    rig.suppress("pressure");
    rig.calm(2);
    assert_eq!(rig.quota(), 150_000, "a blind node starts at the threshold");
    rig.calm(24);
    let class = rig.class.clone();
    assert_eq!((rig.quota(), rig.shares(&class)), (-1, 2), "and is raised");
    rig
}

#[test]
fn harm_is_answered_by_the_cheapest_lever_that_helps() {
    let mut rig = guarded();
    assert_eq!(rig.agent.fast_pace(), Some(1), "batch work runs");
    let took = rig.until(EffectiveLever::Idle, |rig| {
        rig.is_idle() && rig.guard_entry_count("Helped") == 1
    });
    assert!(took < 20, "{took}");
    assert_eq!((rig.quota(), rig.class_cpus().as_str()), (-1, "0-3"));
    let guard = rig.agent.guard.clone().unwrap();
    assert!(guard.idle && guard.cap_percent.is_none());
    let service = &guard.services[0];
    assert_eq!((service.pod.as_str(), service.vote), ("default/ls", 1.0));
    assert_eq!(service.verdict, "protected");
    assert_eq!(service.held[0].lever, "cpu.idle");
    assert!(service.last.as_ref().unwrap().helped);
    assert_eq!(guard.services.len(), 1, "batch pods are no services");
    // The node's report contains it, too.
    let now = rig.now();
    let report = rig
        .agent
        .report(&MetricPolicy::default(), now.ms(), now.wall);
    let pods = report.unwrap().pods_metric;
    let extension = |name: &str| {
        pods.iter()
            .find(|p| p.name == name)
            .unwrap()
            .extensions
            .clone()
    };
    let reported = &extension("ls").unwrap()["pressureGuard"];
    assert_eq!(reported["verdict"], "protected");
    assert_eq!(reported["start"], "at the threshold, raised in steps");
    assert!(extension("be").is_none());
    assert!(rig.refused_writes().is_empty());
}

#[test]
fn where_only_a_partition_helps_batch_work_keeps_off() {
    let mut rig = guarded();
    rig.until(EffectiveLever::Partition, |rig| {
        rig.guard_entry_count("Helped") == 1
    });
    assert_eq!((rig.class_cpus().as_str(), rig.is_idle()), ("2-3", false));
    for path in ["/podbe", "/podbe/c1"] {
        assert_eq!(cpus_of(&rig, path), "2-3");
    }
    // The lever is released, the harm returns, and so does the partition.
    rig.until(EffectiveLever::Partition, |rig| {
        rig.guard_entry_count("Confirmed") == 1
    });
    assert_eq!(rig.class_cpus(), "2-3");
    // Without harm the lever is released.
    rig.calm(60);
    assert_eq!(rig.class_cpus(), "0-3");
    assert_eq!(rig.guard_entry_count("Over"), 1);
    assert!(rig.refused_writes().is_empty());
}

/// The cap is also lowered if pods in the class have limits; their quotas are lifted meanwhile.
#[test]
fn cap_settles_below_the_harmful_level() {
    let mut rig = guarded();
    let batch = json!({
        "requests": {"kubernetes.io/batch-cpu": "2000"},
        "limits": {"kubernetes.io/batch-cpu": "3000"}});
    let service = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    rig.pods(vec![pod("ls", "LS", service), pod("be", "BE", batch)]);
    let limit = |rig: &Rig| {
        let group = rig.tree.root().cgroup(&rig.batch);
        group.cfs_quota().unwrap().unwrap()
    };
    rig.calm(2);
    assert_eq!((rig.quota(), limit(&rig)), (-1, 300_000));
    rig.until(EffectiveLever::Quota, |rig| {
        rig.guard_entry_count("Confirmed") == 1
    });
    assert_eq!(limit(&rig), -1);
    for _ in 0..30 {
        rig.suffer(EffectiveLever::Quota);
    }
    let quota = rig.quota();
    assert!((150_000..=250_000).contains(&quota), "{quota}");
    let metrics = rig.registry.gather();
    let events = metrics
        .iter()
        .find(|family| family.name() == "koordlet_pressure_guard_events_total");
    assert!(!events.unwrap().get_metric().is_empty());
    rig.calm(300);
    assert_eq!((rig.quota(), limit(&rig)), (-1, 300_000));
    assert!(rig.refused_writes().is_empty());
}

#[test]
fn harm_not_caused_by_batch_work_restricts_it_little() {
    let mut rig = guarded();
    rig.until(EffectiveLever::None, |rig| {
        rig.guard_entry_count("Muted") == 1
    });
    rig.suffer(EffectiveLever::None);
    assert_eq!((rig.quota(), rig.is_idle()), (-1, false));
    assert_eq!(rig.class_cpus(), "0-3");
    let guard_actions = rig.suffer(EffectiveLever::None).guard_actions;
    assert!(guard_actions.is_empty(), "{guard_actions:?}");
    let guard = rig.agent.guard.clone().unwrap();
    assert!(guard.services[0].muted_seconds.is_some());
}

/// A lever held by an experiment is released when the service is removed.
#[test]
fn removed_service_ends_the_experiment() {
    let pulled = |rig: &Rig| (rig.is_idle(), rig.class_cpus() != "0-3", rig.quota() != -1);
    for (wanted, at) in [("idle", 0), ("partition", 1), ("quota", 2)] {
        let mut rig = guarded();
        rig.until(EffectiveLever::None, |rig| {
            let (idle, partition, quota) = pulled(rig);
            [idle, partition, quota][at]
        });
        rig.pods(vec![batch_pod()]);
        rig.calm(8);
        assert_eq!(pulled(&rig), (false, false, false), "{wanted}");
        assert!(rig.refused_writes().is_empty(), "{wanted}");
    }
}

/// Batch pods are removed with their groups during an experiment.
#[test]
fn removed_batch_pods_during_an_experiment_cause_no_error() {
    let mut rig = guarded();
    rig.until(EffectiveLever::None, Rig::is_idle);
    for path in ["kubepods/besteffort/podbe/c1", "kubepods/besteffort/podbe"] {
        let group = CgroupPath::new(path).unwrap();
        rig.tree.vanish(&group).unwrap();
    }
    rig.pods(vec![pod(
        "ls",
        "LS",
        json!({"requests": {"cpu": "1", "memory": "1Gi"}}),
    )]);
    for _ in 0..30 {
        rig.second += 1;
        let now = rig.now();
        rig.agent.tick(now);
    }
    assert_eq!((rig.quota(), rig.class_cpus().as_str()), (-1, "0-3"));
}

#[test]
fn a_clean_stop_lets_go_of_every_lever() {
    for cure in [
        EffectiveLever::Idle,
        EffectiveLever::Partition,
        EffectiveLever::Quota,
    ] {
        let mut rig = guarded();
        rig.until(cure, |rig| rig.guard_entry_count("Helped") == 1);
        let now = rig.now();
        rig.agent.restore(now);
        assert_eq!((rig.quota(), rig.is_idle()), (-1, false), "{cure:?}");
        assert_eq!(rig.class_cpus(), "0-3", "{cure:?}");
    }
}

/// A started agent releases the levers that a killed one held.
#[test]
fn restarted_agent_releases_levers_of_a_killed_one() {
    for cure in [
        EffectiveLever::Idle,
        EffectiveLever::Partition,
        EffectiveLever::Quota,
    ] {
        let mut rig = guarded();
        rig.until(cure, |rig| rig.guard_entry_count("Helped") == 1);
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let settings = Settings {
            layout: Layout::new(Driver::Cgroupfs, CgroupPath::root()),
            ..Settings::default()
        };
        let (root, log) = (rig.tree.root().clone(), audit::Log::default());
        rig.agent = Agent::new(root, settings, rig.states.clone(), log, metrics).unwrap();
        rig.calm(30);
        assert_eq!((rig.quota(), rig.is_idle()), (-1, false), "{cure:?}");
        assert_eq!(rig.class_cpus(), "0-3", "{cure:?}");
    }
}

#[test]
fn the_node_can_be_switched_to_upstreams_policy_and_back() {
    let mut rig = guarded();
    rig.until(EffectiveLever::Idle, |rig| {
        rig.guard_entry_count("Helped") == 1
    });
    rig.node(json!({"node.koordinator.sh/cpu-suppress-mode": "upstream"}));
    rig.calm(2);
    assert_eq!((rig.quota(), rig.is_idle()), (150_000, false));
    assert_eq!(rig.agent.fast_pace(), None);
    assert!(rig.agent.guard.is_none(), "nothing is shown of what rests");
    rig.node(json!({}));
    rig.calm(30);
    assert_eq!(rig.quota(), -1);
    rig.slo(json!({"resourceUsedThresholdWithBE": {"enable": false}}));
    rig.calm(2);
    assert_eq!(rig.quota(), -1);
    assert_eq!(rig.agent.fast_pace(), None);
}

/// A service without pressure files is judged by its threads' run delay. A service throttled by its own limit
/// is not counted as harmed.
#[test]
fn throttling_by_own_limit_is_ignored() {
    let mut rig = Rig::new();
    rig.suppress("pressure");
    let limited = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    rig.pods(vec![pod("ls", "LS", limited), batch_pod()]);
    let container = rig.service.join("c1").unwrap();
    let mut throttled_ns = 0_u64;
    for second in 0..120_u64 {
        throttled_ns += 400_000_000;
        let text =
            format!("nr_periods {second}\nnr_throttled {second}\nthrottled_time {throttled_ns}\n");
        rig.tree.feed(&container, Resource::CpuStat, &text).unwrap();
        rig.tree
            .feed(&container, Resource::CpuacctUsage, &format!("{second}\n"))
            .unwrap();
        rig.step(SecondOfLoad {
            stalled: 0.4,
            ..BUSY
        });
    }
    assert_eq!(rig.guard_entry_count("Tried"), 0);
    assert_eq!(rig.quota(), -1);
    let guard = rig.agent.guard.clone().unwrap();
    assert!(guard.services[0].value < 0.05, "{guard:?}");
}

/// The strategies that apply the levers may run more often than the guard.
#[test]
fn levers_stand_while_the_guard_is_not_due() {
    let settings = Settings {
        cpu_suppress_interval_ms: 3_000,
        ..Settings::default()
    };
    let mut rig = Rig::with(settings);
    rig.suppress("pressure");
    rig.until(EffectiveLever::Idle, |rig| {
        rig.is_idle() && rig.guard_entry_count("Helped") == 1
    });
    for second in 0..20 {
        rig.suffer(EffectiveLever::Idle);
        assert!(rig.is_idle(), "{second}");
    }
}

/// The service waits for memory unless pages of batch pods were reclaimed in the previous second.
#[test]
fn memory_stalls_trigger_reclaim_from_batch_pods() {
    const MIB: i64 = 1 << 20;
    let mut rig = Rig::on(Tree::v2("0-3").unwrap(), Settings::default());
    rig.suppress("pressure");
    let (service, batch) = (rig.service.clone(), rig.batch.clone());
    let used = |rig: &Rig| {
        let group = rig.tree.root().cgroup(&batch);
        i64::try_from(group.memory_usage().unwrap().unwrap()).unwrap()
    };
    let mut stalled = 0;
    let mut second = |rig: &mut Rig, harmed: bool| {
        stalled += if harmed { 300_000 } else { 5_000 };
        let text = format!(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled}\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        );
        rig.tree
            .feed(&service, Resource::MemoryPressure, &text)
            .unwrap();
        let before = used(rig);
        rig.step(BUSY);
        before - used(rig)
    };
    let start = 8192 * MIB;
    rig.tree
        .feed(&batch, Resource::MemoryUsage, &format!("{start}\n"))
        .unwrap();
    for _ in 0..30 {
        assert_eq!(second(&mut rig, false), 0, "no harm");
    }
    let mut reclaimed = 0;
    for _ in 0..60 {
        reclaimed = second(&mut rig, reclaimed == 0);
        assert!((0..=16 * MIB).contains(&reclaimed), "{reclaimed}");
    }
    assert!(rig.guard_entry_count("Helped") >= 1);
    let guard = rig.agent.guard.clone().unwrap();
    assert!(guard.levers.contains(&"memory reclaim".to_owned()));
    assert!(used(&rig) < start - 100 * MIB);
    // Without stalls the reclaim ends.
    for _ in 0..120 {
        second(&mut rig, false);
    }
    let remaining = used(&rig);
    for _ in 0..10 {
        assert_eq!(second(&mut rig, false), 0);
    }
    assert_eq!(used(&rig), remaining);
    // The pod requested 1 GiB, which is kept.
    rig.tree
        .feed(&batch, Resource::MemoryUsage, &format!("{}\n", 1034 * MIB))
        .unwrap();
    for _ in 0..60 {
        second(&mut rig, true);
    }
    assert_eq!(used(&rig), 1024 * MIB);
}
