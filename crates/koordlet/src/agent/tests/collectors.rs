//! Tests of the table of collectors.

use super::*;
use crate::collect::needs::Needs;
use crate::collect::table::{COLLECTORS, Lane};

impl Rig {
    pub(super) fn collect(&mut self, needs: Needs) {
        self.second += 1;
        let now = self.now();
        self.agent.measure.collect(now, needs);
    }
}

#[test]
fn every_collector_of_the_table_runs() {
    let mut settings = Settings::default();
    for gate in Gate::ALL {
        settings.gates.set(*gate, true);
    }
    settings.collectors.page_cache = true;
    settings.collectors.resctrl = true;
    let mut rig = Rig::with(settings);
    rig.step(BUSY);
    let needs = Needs {
        pressure: true,
        fast_pressure: true,
        containers: true,
        throttling: true,
        batch_limit: true,
    };
    // The slowest one runs in each fifth tick.
    for _ in 0..5 {
        rig.collect(needs);
    }
    let mut jobs = table::slow_jobs(&SlowJobContext {
        root: &rig.agent.root,
        settings: &rig.agent.settings,
        states: &rig.states,
        facts: &rig.agent.measure.facts,
        metrics: &rig.agent.metrics,
    })
    .into_iter();
    for spec in COLLECTORS {
        let has_run = match spec.lane {
            Lane::Tick(_) | Lane::Along(_) => rig.agent.measure.errors.has_run(spec.name),
            Lane::Slow(_) => {
                let mut job = jobs.next().unwrap();
                // On a fake machine some collectors have no data.
                let _ = job.round();
                job.name() == spec.name
            }
        };
        assert!(has_run, "{}", spec.name);
    }
    assert!(jobs.next().is_none());
}

#[test]
fn collector_without_demand_does_not_run() {
    let mut rig = Rig::new();
    for _ in 0..5 {
        rig.collect(Needs::default());
    }
    let has_run = |name| rig.agent.measure.errors.has_run(name);
    let tick = COLLECTORS.iter();
    let tick = tick.filter(|spec| !matches!(spec.lane, Lane::Slow(_)));
    let rests: Vec<_> = tick
        .map(|spec| spec.name)
        .filter(|name| !has_run(name))
        .collect();
    let on_demand = [
        "containers",
        "throttling",
        "page cache",
        "batch limit",
        "pressure",
        "packets",
    ];
    assert_eq!(rests, on_demand);
}
