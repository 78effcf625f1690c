use super::*;

const QUOTA_OFF: i64 = -1;

struct Rig {
    strategy: CpuSuppress,
    slo: Slo,
    mode: SuppressMode,
    usage: NodeUsage,
    quota: i64,
    cpus: CpuSet,
    guard: LeverTargets,
    now_ms: u64,
    group: CgroupPath,
    processors: Vec<Processor>,
    lse: BTreeSet<u32>,
}

impl Rig {
    fn new(mode: SuppressMode, policy: SuppressPolicy) -> Self {
        let cpu = |cpu| Processor {
            cpu,
            core: cpu / 2,
            socket: cpu / 4,
            node: cpu / 8,
        };
        Self {
            strategy: CpuSuppress::default(),
            slo: Slo {
                known: true,
                enabled: true,
                suppress_percent: 70,
                policy,
                ..Slo::default()
            },
            mode,
            usage: NodeUsage {
                node: 12_000,
                pods: 10_000,
                pods_not_be: 8_000,
                ..NodeUsage::default()
            },
            quota: QUOTA_OFF,
            cpus: "0-15".parse().unwrap(),
            guard: LeverTargets::default(),
            now_ms: 0,
            group: CgroupPath::new("kubepods/besteffort").unwrap(),
            processors: (0..16).map(cpu).collect(),
            lse: BTreeSet::new(),
        }
    }

    /// Advances one second and applies the decision.
    fn step(&mut self) -> SuppressPlan {
        self.now_ms += 1000;
        let outcome = self.strategy.plan(&SuppressInput {
            now_ms: self.now_ms,
            node: "n",
            slo: &self.slo,
            mode: self.mode,
            policy: self.slo.policy,
            capacity: 16_000,
            reserved: 0,
            usage: Some(self.usage),
            guard: &self.guard,
            class: Some(Class {
                group: &self.group,
                quota: self.quota,
                cpuset: Some(&self.cpus),
            }),
            processors: &self.processors,
            excluded: &self.lse,
            kubelet_static: false,
            lsr: &BTreeSet::new(),
            groups: &[],
        });
        for write in &outcome.writes {
            match write.target.resource().unwrap() {
                Resource::CfsQuota => self.quota = write.value.parse().unwrap(),
                Resource::CpusetCpus => self.cpus = write.value.parse().unwrap(),
                _ => {}
            }
        }
        outcome
    }
}

use super::Input as SuppressInput;

#[test]
fn upstream_quota() {
    let mut rig = Rig::new(SuppressMode::Upstream, SuppressPolicy::CfsQuota);
    let outcome = rig.step();
    assert_eq!(outcome.limit, Some(1200));
    assert_eq!(rig.quota, 120_000);
    assert_eq!(
        outcome.writes[0].verbosity, 1,
        "the first application is important"
    );
    // Services end: the limit grows by a tenth of the node per step.
    rig.usage = NodeUsage {
        node: 3_000,
        pods: 3_000,
        pods_not_be: 1_000,
        ..NodeUsage::default()
    };
    for want in [280_000, 440_000, 600_000, 760_000, 920_000, 1_020_000] {
        rig.step();
        assert_eq!(rig.quota, want);
    }
    assert!(
        rig.step().writes.is_empty(),
        "nothing to do inside the dead band"
    );
}

#[test]
fn upstream_quota_without_samples_keeps_everything() {
    let mut rig = Rig::new(SuppressMode::Upstream, SuppressPolicy::CfsQuota);
    rig.quota = 50_000;
    let outcome = rig.strategy.plan(&SuppressInput {
        now_ms: 1,
        node: "n",
        slo: &rig.slo,
        mode: rig.mode,
        policy: rig.slo.policy,
        capacity: 16_000,
        reserved: 0,
        usage: None,
        guard: &rig.guard,
        class: Some(Class {
            group: &rig.group,
            quota: rig.quota,
            cpuset: None,
        }),
        processors: &rig.processors,
        excluded: &rig.lse,
        kubelet_static: false,
        lsr: &BTreeSet::new(),
        groups: &[],
    });
    assert!(outcome.writes.is_empty());
}

#[test]
fn upstream_cpuset_and_change_of_policy() {
    let mut rig = Rig::new(SuppressMode::Upstream, SuppressPolicy::Cpuset);
    rig.lse = (0..4).collect();
    rig.step();
    assert_eq!(rig.cpus.len(), 2);
    assert!(
        !rig.cpus.contains(0),
        "CPUs of LSE pods are not for batch work"
    );
    rig.slo.policy = SuppressPolicy::CfsQuota;
    rig.step();
    assert_eq!(
        rig.cpus,
        "4-15".parse().unwrap(),
        "the other policy is undone"
    );
    assert_eq!(rig.quota, 120_000);
    rig.slo.enabled = false;
    let outcome = rig.step();
    assert_eq!(rig.quota, QUOTA_OFF);
    assert_eq!(outcome.writes[0].reason, RECOVER);
    assert!(rig.step().writes.is_empty());
    // Restored once; later values belong to other programs.
    rig.quota = 99_000;
    assert!(rig.step().writes.is_empty());
}

#[test]
fn a_recovery_that_failed_is_tried_again() {
    let mut rig = Rig::new(SuppressMode::Upstream, SuppressPolicy::CfsQuota);
    rig.step();
    rig.slo.enabled = false;
    rig.step();
    assert_eq!(rig.quota, QUOTA_OFF);
    // The kernel refused the write.
    rig.quota = 120_000;
    rig.step();
    assert_eq!(rig.quota, QUOTA_OFF);
}

#[test]
fn without_settings_an_earlier_limit_stays() {
    let mut rig = Rig::new(SuppressMode::Upstream, SuppressPolicy::CfsQuota);
    rig.quota = 70_000;
    rig.slo = Slo::default();
    assert!(rig.step().writes.is_empty());
}

/// The guard's target is written, an experiment's level at once in both directions.
#[test]
fn pressure_mode_follows_the_guard() {
    let mut rig = Rig::new(SuppressMode::Pressure, SuppressPolicy::Cpuset);
    rig.quota = 70_000;
    let outcome = rig.step();
    assert_eq!(
        (rig.quota, outcome.cap),
        (QUOTA_OFF, None),
        "an earlier run's quota is taken off"
    );
    let shares = |i: &Write| i.target.resource() == Some(Resource::CpuShares);
    assert!(outcome.writes.iter().any(|i| shares(i) && i.value == "2"));
    for _ in 0..60 {
        assert!(rig.step().writes.iter().all(shares));
    }
    let ask = |rig: &mut Rig, cap, urgent| {
        rig.guard = LeverTargets {
            cap,
            urgent,
            why: "cart suffers".to_owned(),
            ..LeverTargets::default()
        };
        rig.step()
    };
    let outcome = ask(&mut rig, Some(0), true);
    assert_eq!(rig.quota, 2_000, "the least");
    assert!(outcome.writes[1].because.contains("cart suffers; budget"));
    ask(&mut rig, Some(70), true);
    assert_eq!(rig.quota, 120_000, "at once");
    assert!(ask(&mut rig, Some(70), false).writes.iter().all(shares));
    ask(&mut rig, Some(90), false);
    assert_eq!(rig.quota, 280_000, "without haste by a tenth of the node");
    ask(&mut rig, None, true);
    assert_eq!(rig.quota, QUOTA_OFF);
    // When disabled, the guard's last target has no effect.
    rig.slo.enabled = false;
    ask(&mut rig, Some(10), true);
    assert_eq!(rig.quota, QUOTA_OFF);
}

#[test]
fn a_partition_is_set_and_taken_back() {
    let mut rig = Rig::new(SuppressMode::Pressure, SuppressPolicy::Cpuset);
    rig.step();
    rig.guard.partition = Some("8-15".parse().unwrap());
    rig.step();
    assert_eq!(rig.cpus.to_string(), "8-15");
    rig.guard.partition = None;
    rig.step();
    assert_eq!(rig.cpus.to_string(), "0-15");
    rig.step();
    assert!(rig.strategy.ignores_cpusets());
}

#[test]
fn modes_switch_at_run_time() {
    let mut rig = Rig::new(SuppressMode::Pressure, SuppressPolicy::CfsQuota);
    rig.step();
    assert_eq!(rig.quota, QUOTA_OFF);
    rig.mode = SuppressMode::Upstream;
    rig.step();
    assert_eq!(rig.quota, 120_000);
    rig.mode = SuppressMode::Pressure;
    rig.step();
    assert_eq!(rig.quota, QUOTA_OFF);
}
