//! Signals of harm through memory bandwidth, from the counters to the guard's output.

use super::*;
use crate::collect::cpi::CpiCounts;
use crate::collect::work::WorkMeter;
use crate::collect::work::tests::SentPackets;
use crate::qos::guard::NAME;
use koord_model::guard::Signal;

/// Returns an agent with simulated packet counts.
fn counted() -> (Rig, SentPackets) {
    let mut rig = Rig::new();
    let packets = SentPackets::default();
    packets.set(&rig.service, 0);
    let root = rig.tree.root().clone();
    rig.agent.measure.work = WorkMeter::with_source(root, Box::new(packets.clone()));
    rig.suppress("pressure");
    (rig, packets)
}

fn reading(rig: &Rig, uid: &str, signal: Signal) -> Option<f64> {
    let views = rig.agent.measure.views().unwrap();
    let pod = views.iter().find(|pod| pod.info.uid == uid).unwrap();
    pod.readings.get(signal)
}

fn guard_messages(rig: &Rig, kind: &str) -> Vec<String> {
    let entries = rig.agent.audit().entries();
    let guard_entries = entries.iter().filter(|entry| entry.reason == NAME);
    let guard_entries = guard_entries.filter(|entry| entry.message.starts_with(kind));
    guard_entries.map(|entry| entry.message.clone()).collect()
}

#[test]
fn service_with_late_packets_enables_the_signal_permanently() {
    let (mut rig, sent) = counted();
    for _ in 0..5 {
        rig.step(BUSY);
    }
    let shown = |rig: &Rig| rig.agent.guard.clone().unwrap();
    assert!(
        rig.quota() >= 150_000,
        "a blind node starts at the threshold"
    );
    assert!(shown(&rig).start.starts_with("at the threshold"));
    for second in 1..10 {
        sent.set(&rig.service, 4_000 * second);
        rig.step(BUSY);
    }
    // A core and 4,000 packets a second.
    let value = reading(&rig, "ls", Signal::CpuPerWork);
    assert_eq!(value, Some(250.0));
    assert_eq!(reading(&rig, "be", Signal::CpuPerWork), None);
    assert_eq!(rig.quota(), -1, "what it sees it need not fear");
    let guard = shown(&rig);
    assert!(guard.start.starts_with("free"), "{}", guard.start);
    let signals = &guard.signals;
    assert!(
        signals.contains(&Signal::CpuPerWork.to_string()),
        "{signals:?}"
    );
    // The service pauses: nothing is reported, and no signal is withdrawn.
    for _ in 0..30 {
        rig.step(BUSY);
    }
    assert_eq!(reading(&rig, "ls", Signal::CpuPerWork), None);
    assert_eq!(rig.quota(), -1);
    assert!(shown(&rig).start.starts_with("free"));
    assert_eq!(guard_messages(&rig, "Start: ").len(), 1);
    let changes = guard_messages(&rig, "Signals: ");
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(
        changes[0].contains("would be seen from now on"),
        "{changes:?}"
    );
}

#[test]
fn while_upstreams_policy_rules_no_packets_are_counted() {
    let (mut rig, sent) = counted();
    for second in 1..4 {
        sent.set(&rig.service, 4_000 * second);
        rig.step(BUSY);
    }
    assert!(reading(&rig, "ls", Signal::CpuPerWork).is_some());
    rig.slo(json!({"resourceUsedThresholdWithBE": {"enable": false}}));
    for second in 4..8 {
        sent.set(&rig.service, 4_000 * second);
        rig.step(BUSY);
    }
    assert_eq!(reading(&rig, "ls", Signal::CpuPerWork), None);
    let row = |name: &str| {
        let mut rows = rig.agent.collectors().into_iter();
        rows.find(|row| row.name == name).unwrap()
    };
    assert_eq!(row("packets").state, State::Idle);
}

#[test]
fn cycles_per_instruction_are_read_once() {
    let mut rig = Rig::new();
    rig.suppress("pressure");
    rig.step(BUSY);
    let container = rig.service.join("c1").unwrap();
    let counts = |round: u64, cycles: u64| {
        let group = container.clone();
        let instructions = 20_000_000;
        let counts = CpiCounts {
            cycles,
            instructions,
            newest: true,
        };
        Some(Arc::new((round, [(group, counts)].into_iter().collect())))
    };
    for (round, cycles, cpi) in [(1, 30_000_000, 1.5), (2, 40_000_000, 2.0)] {
        let measured = counts(round, cycles);
        rig.agent.measure.facts.cpi.store(measured);
        rig.step(BUSY);
        assert_eq!(reading(&rig, "ls", Signal::Cpi), Some(cpi));
        rig.step(BUSY);
        assert_eq!(
            reading(&rig, "ls", Signal::Cpi),
            None,
            "round {round} again"
        );
    }
    let watched = &rig.agent.measure.facts.watched;
    assert!(
        watched.load(std::sync::atomic::Ordering::Relaxed),
        "batch work runs"
    );
}
