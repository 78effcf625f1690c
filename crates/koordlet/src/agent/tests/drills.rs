//! Restarts and failures of the agent's node.

use super::*;
use koord_host::fake::Attempt;

fn refused(rig: &Rig) -> Vec<Attempt> {
    let writes = rig.tree.writes().into_iter();
    writes.filter(|write| write.refused.is_some()).collect()
}

#[test]
fn clean_stop_restores_previous_values() {
    let mut rig = Rig::new();
    let class = rig.tree.root().cgroup(&rig.class);
    class.set_cfs_quota(-1).unwrap();
    let shares = (rig.shares(&rig.batch), rig.shares(&rig.class));
    rig.suppress("upstream");
    for _ in 0..3 {
        rig.step(BUSY);
    }
    assert_eq!((rig.quota(), rig.shares(&rig.batch)), (150_000, 2048));
    // A value of another program is not restored.
    let container = rig.batch.join("c1").unwrap();
    let foreign = rig.tree.root().cgroup(&container);
    foreign.set_cpu_shares(777).unwrap();
    let now = rig.now();
    assert!(rig.agent.restore(now) > 0);
    assert_eq!(rig.quota(), -1);
    assert_eq!((rig.shares(&rig.batch), rig.shares(&rig.class)), shares);
    assert_eq!(rig.shares(&container), 777);
    assert!(refused(&rig).is_empty());
}

#[test]
fn groups_that_vanish_while_they_are_read() {
    let mut rig = Rig::new();
    rig.suppress("pressure");
    for _ in 0..3 {
        rig.step(BUSY);
    }
    let service = rig.service.clone();
    let container = service.join("c1").unwrap();
    rig.tree.vanish(&container).unwrap();
    rig.tree.vanish(&service).unwrap();
    for _ in 0..5 {
        rig.second += 1;
        let now = rig.now();
        rig.agent.tick(now);
    }
    // It comes back, as after a restart of the pod, and is measured again.
    rig.tree.group("kubepods/burstable/podls/c1").unwrap();
    for _ in 0..8 {
        rig.step(BUSY);
    }
    let now = rig.now();
    let status = rig
        .agent
        .report(&MetricPolicy::default(), now.ms(), now.wall);
    let pods = status.unwrap().pods_metric;
    assert!(pods.iter().any(|pod| pod.name == "ls"), "{pods:?}");
}

#[test]
fn a_wall_clock_that_jumps_changes_no_decision() {
    for jump in [-86_400_i64, 86_400] {
        let mut rig = Rig::new();
        rig.suppress("upstream");
        for _ in 0..3 {
            rig.step(BUSY);
        }
        let before = rig.quota();
        rig.jumped = jump;
        for _ in 0..5 {
            rig.step(BUSY);
        }
        assert_eq!(rig.quota(), before);
        let now = rig.now();
        let status = rig
            .agent
            .report(&MetricPolicy::default(), now.ms(), now.wall);
        let updated = status.unwrap().update_time.unwrap().0;
        assert_eq!(updated.as_second(), now.wall.as_second());
    }
}

#[test]
fn absurd_settings_throttle_no_service() {
    let mut settings = Settings::default();
    for gate in Gate::ALL {
        settings.gates.set(*gate, true);
    }
    for slo in [
        json!({"resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressThresholdPercent": -5,
            "cpuSuppressPolicy": "cfsQuota", "cpuSuppressMinPercent": 900}}),
        json!({"cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": -1,
            "cfsQuotaBurstPercent": 1, "cfsQuotaBurstPeriodSeconds": -9}}),
        json!({"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": true,
            "minLimitPercent": 100_000, "throttlingPercent": 1}}}}),
        json!({"resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressThresholdPercent": 1,
            "cpuEvictThresholdPercent": 0, "memoryEvictThresholdPercent": 0,
            "evictEnabledPriorityThreshold": 2_000_000_000}}),
    ] {
        let mut rig = Rig::with(settings.clone());
        let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
        rig.pods(vec![pod("ls", "LS", resources), batch_pod()]);
        let container = rig.service.join("c1").unwrap();
        for group in [&rig.service, &container] {
            let group = rig.tree.root().cgroup(group);
            group.set_cfs_quota(200_000).unwrap();
        }
        let read: NodeSLOSpec = serde_json::from_value(slo.clone()).unwrap();
        rig.states.slo.store(Arc::new(Slo::from_spec(&read)));
        for _ in 0..30 {
            for eviction in rig.step(BUSY).evictions {
                assert_eq!(eviction.name, "be", "{slo}");
            }
        }
        for group in [&rig.service, &container] {
            let quota = rig.tree.root().cgroup(group).cfs_quota().unwrap().unwrap();
            assert!(quota == -1 || quota >= 200_000, "{slo}: {quota}");
            assert!(rig.shares(group) >= 1024, "{slo}");
        }
        assert!(refused(&rig).is_empty(), "{slo}");
    }
}
