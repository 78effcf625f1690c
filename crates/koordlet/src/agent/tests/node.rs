//! Tests of memory QoS and machine settings.

use super::*;

/// Bytes of a GiB.
const GIB: i64 = 1 << 30;

impl Rig {
    /// Lets a second pass without new samples.
    pub(super) fn pass(&mut self) {
        self.second += 1;
        let now = self.now();
        self.agent.tick(now);
    }

    fn memory(&self, group: &CgroupPath) -> [String; 3] {
        let group = self.tree.root().cgroup(group);
        let files = [
            Resource::MemoryMin,
            Resource::MemoryLow,
            Resource::MemoryHigh,
        ];
        files.map(|file| group.value(file).unwrap().unwrap())
    }
}

fn protected(min: i64, low: i64, high: i64) -> [String; 3] {
    let high = match high {
        i64::MAX => "max".to_owned(),
        high => high.to_string(),
    };
    [min.to_string(), low.to_string(), high]
}

fn shown(values: [String; 3]) -> [String; 3] {
    values.map(|value| match value.parse::<i64>() {
        // "max" is the largest number in the kernel's pages.
        Ok(number) if number >= i64::MAX - (1 << 16) => "max".to_owned(),
        Ok(-1) => "max".to_owned(),
        _ => value,
    })
}

#[test]
fn memory_is_protected_from_the_top_down_on_v2() {
    let mut settings = Settings::default();
    settings.gates.set(Gate::CgroupReconcile, true);
    let mut rig = Rig::on(Tree::v2("0-3").unwrap(), settings);
    let resources = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    rig.pods(vec![pod("ls", "LS", resources), batch_pod()]);
    rig.slo(json!({"resourceQOSStrategy": {"lsClass": {"memoryQOS": {
        "enable": true, "minLimitPercent": 50, "lowLimitPercent": 100, "throttlingPercent": 50}}}}));
    rig.pass();
    rig.pass();
    let container = rig.service.join("c1").unwrap();
    let burstable = rig.service.parent().unwrap();
    let kubepods = burstable.parent().unwrap();
    let memory = |rig: &Rig, group: &CgroupPath| shown(rig.memory(group));
    // high = request + (limit - request) * 50 %.
    let want = protected(GIB / 2, GIB, GIB + GIB / 2);
    assert_eq!(memory(&rig, &container), want);
    for group in [&rig.service, &burstable, &kubepods] {
        assert_eq!(memory(&rig, group)[..2], want[..2], "{group}");
    }
    assert_eq!(
        memory(&rig, &rig.batch.clone())[..2],
        protected(0, 0, 0)[..2]
    );
    // Disabled: protection is removed, and no write was refused on the way.
    rig.slo(json!({"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": false}}}}));
    rig.pass();
    assert_eq!(memory(&rig, &container), protected(0, 0, i64::MAX));
    assert_eq!(memory(&rig, &kubepods)[..2], protected(0, 0, 0)[..2]);
    let refused = |write: &koord_host::fake::Attempt| write.refused.is_some();
    assert!(!rig.tree.writes().iter().any(refused));
}

#[test]
fn a_foreign_write_stands_until_the_next_round() {
    let mut settings = Settings::default();
    settings.gates.set(Gate::CgroupReconcile, true);
    let mut rig = Rig::on(Tree::v2("0-3").unwrap(), settings);
    let resources = json!({"requests": {"memory": "1Gi"}});
    let service = || pod("ls", "LS", resources.clone());
    rig.pods(vec![service()]);
    rig.slo(json!({"resourceQOSStrategy": {"lsClass": {"memoryQOS":
        {"enable": true, "minLimitPercent": 100}}}}));
    rig.pass();
    rig.pass();
    let min = |rig: &Rig| rig.memory(&rig.service)[0].clone();
    assert_eq!(min(&rig), GIB.to_string());
    let foreign = |rig: &Rig| {
        let group = rig.tree.root().cgroup(&rig.service);
        group.set_value(Resource::MemoryMin, "0").unwrap();
    };
    foreign(&rig);
    for _ in 0..10 {
        rig.pass();
    }
    assert_eq!(min(&rig), GIB.to_string(), "the reconcile interval");
    foreign(&rig);
    let mut changed = service();
    let status = changed.status.as_mut().unwrap();
    status.container_statuses.as_mut().unwrap()[0].restart_count = 1;
    changed
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("koordinator.sh/priority".into(), "7".into());
    rig.pods(vec![changed]);
    rig.pass();
    assert_eq!(min(&rig), GIB.to_string(), "a pod event");
}

#[test]
fn machine_settings_are_written_if_the_kernel_has_them() {
    let mut settings = Settings::default();
    settings.gates.set(Gate::SystemConfig, true);
    let mut rig = Rig::with(settings);
    let scale = "proc/sys/vm/watermark_scale_factor";
    rig.tree.put(scale, "10\n").unwrap();
    rig.slo(json!({"systemStrategy": {"watermarkScaleFactor": 150, "schedIdleSaverWmark": 5}}));
    rig.pass();
    let read = |rig: &Rig| std::fs::read_to_string(rig.tree.dir().join(scale)).unwrap();
    assert_eq!(read(&rig).trim(), "150");
    rig.tree.put(scale, "20\n").unwrap();
    for _ in 0..10 {
        rig.pass();
    }
    assert_eq!(read(&rig).trim(), "150", "a foreign write does not stand");
    let entry = rig.agent.audit().entries().pop().unwrap();
    assert_eq!(entry.name, "n");
    assert!(
        entry.message.contains("vm.watermark_scale_factor to 150"),
        "{}",
        entry.message
    );
}

#[test]
fn strategies_report_their_mechanism() {
    use crate::health::State;
    let mut settings = Settings::default();
    settings.gates.set(Gate::BEMemoryEvict, true);
    let mut rig = Rig::with(settings);
    let state_of = |ticked: TickOutcome, name: &str| {
        let actions = ticked
            .strategy_states
            .into_iter()
            .find(|(row, ..)| *row == name);
        actions.map(|(_, state, text)| (state, text))
    };
    let idle = state_of(rig.step(BUSY), "BECPUSuppress").unwrap();
    assert_eq!(idle.0, State::Idle);
    rig.suppress("pressure");
    let (state, text) = state_of(rig.step(BUSY), "BECPUSuppress").unwrap();
    assert_eq!(state, State::Active);
    assert_eq!(text, "CFS quota at 65 % of the node, pressure mode");
    let (state, text) = state_of(rig.step(BUSY), "PressureGuard").unwrap();
    assert_eq!(state, State::Active);
    assert_eq!(text, "lowest weight, cap at 65 % of the node");
    rig.suppress("upstream");
    let (_, text) = state_of(rig.step(BUSY), "BECPUSuppress").unwrap();
    assert_eq!(text, "CFS quota at 65 % of the node, upstream mode");
    let (state, _) = state_of(rig.step(BUSY), "MemoryEvict").unwrap();
    assert_eq!(state, State::Active);
    let resctrl = (0..12).find_map(|_| state_of(rig.step(BUSY), "RdtResctrl"));
    assert_eq!(resctrl.unwrap().0, State::Unavailable);
}
