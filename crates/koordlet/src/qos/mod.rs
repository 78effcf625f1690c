//! QoS strategies: each turns what was measured into intended writes or evictions.
//!
//! [`STRATEGIES`] is the table of all of them. Its order is the order in which they run in a tick;
//! it is printed at start and served at the debug endpoint. A strategy reads a [`View`], the
//! immutable snapshot of a tick, and adds to a [`Plan`], which accepts only what its row claims. It
//! never touches the kernel, and keeps only its own memory.
//!
//! Where several want one file, one row owns it and the others leave a contribution in the plan:
//! CPUSuppress says whether the quotas of batch pods are lifted and CPUBurst how far a service's is
//! raised, CPULimits writes them.

pub mod blkio;
pub mod cpu_burst;
pub mod cpu_evict;
pub mod cpu_limits;
pub mod cpu_suppress;
pub mod evict;
pub mod guard;
pub mod hook_reconcile;
pub mod memory_evict;
pub mod memory_qos;
pub mod plan;
pub mod reconcile;
pub mod resctrl;
pub mod standing;
pub mod system_config;
pub mod view;

pub use plan::{BurstAllowance, Eviction, Plan, Write};
pub use standing::EvictionHistory;
pub use view::{Facts, KernelReader, MachineFacts, PodView, View};

use crate::claims::{self, Claim, ClaimError};
use crate::collect::needs::Needs;
use crate::gates::{Gate, Gates};
use crate::metrics::Metrics;
use crate::settings::Settings;
use serde::Serialize;
use std::fmt;

/// The deciding part of a strategy.
pub trait Planner: fmt::Debug + Send {
    /// What must be measured for the next decision.
    fn needs(&self, facts: &Facts<'_>) -> Needs {
        let _ = facts;
        Needs::default()
    }

    /// Decides. Called every [`StrategySpec::every`], in the order of the table.
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan);

    /// An eviction that this strategy asked for was accepted.
    fn evicted(&mut self, eviction: &Eviction, now_ms: u64) {
        let _ = (eviction, now_ms);
    }
}

/// One row of the table.
#[derive(Clone, Copy)]
pub struct StrategySpec {
    /// Its name in logs, metrics and audit records.
    pub name: &'static str,
    /// It runs when one of these is open.
    pub gates: &'static [Gate],
    /// Milliseconds between two decisions; 0 is never.
    pub every: fn(&Settings) -> u64,
    /// What it writes.
    pub claims: &'static [Claim],
    /// Makes it, with empty memory.
    pub make: fn(&Settings, &Metrics) -> Box<dyn Planner>,
}

impl StrategySpec {
    /// Returns whether it runs at all.
    #[must_use]
    pub fn is_on(&self, settings: &Settings) -> bool {
        let open = |gates: &Gates| self.gates.iter().any(|gate| gates.is_on(*gate));
        open(&settings.gates) && (self.every)(settings) > 0
    }
}

impl fmt::Debug for StrategySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Every strategy, in the order in which they run in a tick.
pub const STRATEGIES: &[StrategySpec] = &[
    // Before those that pull its levers.
    guard::STRATEGY,
    cpu_suppress::STRATEGY,
    cpu_evict::STRATEGY,
    memory_evict::STRATEGY,
    memory_qos::STRATEGY,
    resctrl::STRATEGY,
    blkio::STRATEGY,
    // Before SystemConfig, which writes the switches that hooks need.
    hook_reconcile::STRATEGY,
    system_config::STRATEGY,
    cpu_burst::STRATEGY,
    // Last of those about CPU: it puts together what they left for it.
    cpu_limits::STRATEGY,
];

/// A row of the table as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StrategyRow {
    /// The strategy.
    pub name: &'static str,
    /// True if it runs.
    pub on: bool,
    /// The gates that switch it on.
    pub gates: Vec<&'static str>,
    /// Milliseconds between two decisions.
    pub every_ms: u64,
    /// What it writes.
    pub claims: Vec<String>,
}

/// Returns the table as `settings` make it.
#[must_use]
pub fn strategy_rows(settings: &Settings) -> Vec<StrategyRow> {
    STRATEGIES
        .iter()
        .map(|row| StrategyRow {
            name: row.name,
            on: row.is_on(settings),
            gates: row.gates.iter().map(|gate| gate.name()).collect(),
            every_ms: (row.every)(settings),
            claims: row.claims.iter().map(ToString::to_string).collect(),
        })
        .collect()
}

/// A strategy that runs.
#[derive(Debug)]
struct Active {
    row: &'static StrategySpec,
    planner: Box<dyn Planner>,
    every_ms: u64,
    due_ms: u64,
}

/// The strategies that run, in order.
#[derive(Debug)]
pub struct Strategies {
    active: Vec<Active>,
    /// What the pressure guard ordered last: it stands while the guard is not due.
    targets: guard::LeverTargets,
}

impl Strategies {
    /// Those that `settings` switch on.
    ///
    /// # Errors
    /// When two claim one file.
    pub fn new(settings: &Settings, metrics: &Metrics) -> Result<Self, ClaimError> {
        let rows: Vec<_> = STRATEGIES
            .iter()
            .map(|row| (row.name, row.claims))
            .collect();
        claims::check(&rows)?;
        let active = STRATEGIES.iter().filter(|row| row.is_on(settings));
        let active = active.map(|row| Active {
            row,
            planner: (row.make)(settings, metrics),
            every_ms: (row.every)(settings),
            due_ms: 0,
        });
        Ok(Self {
            active: active.collect(),
            targets: guard::LeverTargets::default(),
        })
    }

    /// What must be measured.
    #[must_use]
    pub fn needs(&self, facts: &Facts<'_>) -> Needs {
        let each = self.active.iter().map(|active| active.planner.needs(facts));
        each.fold(Needs::default(), Needs::and)
    }

    /// Lets every strategy decide that is due.
    pub fn plan(&mut self, view: &View<'_>) -> Plan {
        let mut plan = Plan::default();
        plan.guard = self.targets.standing();
        let now = view.now.ms();
        for active in &mut self.active {
            let name = active.row.name;
            if now < active.due_ms {
                plan.rounds.push((name, Ok(())));
                continue;
            }
            // Half a tick early is due: a timer that fires a little late must not cost a turn.
            let slack = view.facts.settings.interval_ms / 2;
            active.due_ms = now + active.every_ms.saturating_sub(slack);
            plan.begin_strategy(name, active.row.claims);
            active.planner.plan(view, &mut plan);
            plan.rounds.push((name, view.kernel.finish_round()));
        }
        self.targets.clone_from(&plan.guard);
        plan
    }

    /// Has these targets stand, as if the guard had given them; where its gate is open it gives others.
    #[cfg(test)]
    pub(crate) fn order(&mut self, targets: guard::LeverTargets) {
        self.targets = targets;
    }

    /// Tells the strategies that an eviction was accepted.
    pub fn evicted(&mut self, eviction: &Eviction, now_ms: u64) {
        for active in &mut self.active {
            active.planner.evicted(eviction, now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;

    #[test]
    fn the_table_has_one_writer_per_file() {
        let metrics = Metrics::new(&Registry::new()).unwrap();
        let mut settings = Settings::default();
        for gate in Gate::ALL {
            settings.gates.set(*gate, true);
        }
        let strategies = Strategies::new(&settings, &metrics).unwrap();
        assert_eq!(strategies.active.len(), STRATEGIES.len());
        let mut names: Vec<_> = STRATEGIES.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STRATEGIES.len(), "names are unique");
    }

    #[test]
    fn closed_gates_and_intervals_of_zero_switch_off() {
        let mut settings = Settings::default();
        let on = |settings: &Settings| {
            let row = shown(settings)
                .into_iter()
                .find(|row| row.name == hook_reconcile::NAME);
            row.unwrap().on
        };
        assert!(on(&settings));
        for gate in STRATEGIES.iter().flat_map(|row| row.gates) {
            settings.gates.set(*gate, false);
        }
        assert!(!on(&settings));
        settings.gates.set(Gate::BatchResource, true);
        assert!(on(&settings));
        settings.interval_ms = 0;
        assert!(!on(&settings));
    }
}
