//! QoS strategies: each turns measurements into intended writes or evictions.
//!
//! [`STRATEGIES`] is the table of all of them, in the order in which they run in a tick. It is logged at
//! start and served at the debug endpoint. A strategy reads a [`View`], the immutable snapshot of a tick, and
//! adds to a [`Plan`], which accepts only what the strategy claims. It never accesses the kernel itself, and
//! stores only its own state.
//!
//! If several strategies need one file, one of them owns it and the others leave a contribution in the plan:
//! CPUSuppress decides whether the quotas of batch pods are lifted and CPUBurst how far a service's quota is
//! raised, and CPULimits writes them.

pub mod blkio;
pub mod cpu_burst;
pub mod cpu_evict;
pub mod cpu_limits;
pub mod cpu_suppress;
pub mod evict;
pub mod eviction_history;
pub mod guard;
pub mod hook_reconcile;
pub mod memory_evict;
pub mod memory_qos;
pub mod plan;
pub mod reconcile;
pub mod resctrl;
pub mod system_config;
pub mod view;

pub use eviction_history::EvictionHistory;
pub use plan::{BurstAllowance, Eviction, Plan, Write};
pub use view::{Facts, KernelReader, MachineFacts, PodView, View};

use crate::claims::{self, Claim, ClaimError};
use crate::collect::needs::Needs;
use crate::gates::{Gate, Gates};
use crate::metrics::Metrics;
use crate::settings::Settings;
use serde::Serialize;
use std::fmt;

/// Makes the decisions of a strategy.
pub trait Planner: fmt::Debug + Send {
    /// Returns the samples that the next decision needs.
    fn needs(&self, facts: &Facts<'_>) -> Needs {
        let _ = facts;
        Needs::default()
    }

    /// Decides. Called every [`StrategySpec::every`], in the order of the table.
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan);

    /// Handles the acceptance of an eviction that this strategy requested.
    fn evicted(&mut self, eviction: &Eviction, now_ms: u64) {
        let _ = (eviction, now_ms);
    }
}

/// A row of the table of strategies.
#[derive(Clone, Copy)]
pub struct StrategySpec {
    /// Name in logs, metrics and audit records.
    pub name: &'static str,
    /// Feature gates of which at least one must be open.
    pub gates: &'static [Gate],
    /// Returns the milliseconds between two decisions; 0 disables the strategy.
    pub every: fn(&Settings) -> u64,
    /// Files that the strategy may write.
    pub claims: &'static [Claim],
    /// Creates the planner, without state.
    pub make: fn(&Settings, &Metrics) -> Box<dyn Planner>,
}

impl StrategySpec {
    /// Returns whether the strategy runs.
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
    // Before the strategies that apply its levers.
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
    // Last of the CPU strategies: it combines their contributions.
    cpu_limits::STRATEGY,
];

/// A row of the table of strategies, for logs and the status page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StrategyRow {
    /// Name of the strategy.
    pub name: &'static str,
    /// True if the strategy runs.
    pub on: bool,
    /// Feature gates that enable it.
    pub gates: Vec<&'static str>,
    /// Milliseconds between two decisions.
    pub every_ms: u64,
    /// Files that it may write.
    pub claims: Vec<String>,
}

/// Returns the table of strategies under `settings`.
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

/// An enabled strategy.
#[derive(Debug)]
struct ActiveStrategy {
    row: &'static StrategySpec,
    planner: Box<dyn Planner>,
    every_ms: u64,
    due_ms: u64,
}

/// The enabled strategies, in the order of the table.
#[derive(Debug)]
pub struct Strategies {
    active: Vec<ActiveStrategy>,
    /// Newest lever targets of the pressure guard. They hold while the guard is not due.
    targets: guard::LeverTargets,
}

impl Strategies {
    /// Creates the strategies that `settings` enable.
    ///
    /// # Errors
    /// When two strategies claim one file.
    pub fn new(settings: &Settings, metrics: &Metrics) -> Result<Self, ClaimError> {
        let rows: Vec<_> = STRATEGIES
            .iter()
            .map(|row| (row.name, row.claims))
            .collect();
        claims::check(&rows)?;
        let active = STRATEGIES.iter().filter(|row| row.is_on(settings));
        let active = active.map(|row| ActiveStrategy {
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

    /// Returns the samples that the strategies need.
    #[must_use]
    pub fn needs(&self, facts: &Facts<'_>) -> Needs {
        let each = self.active.iter().map(|active| active.planner.needs(facts));
        each.fold(Needs::default(), Needs::and)
    }

    /// Runs each strategy that is due.
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
            // Being due half a tick early is enough: a timer that fires a little late must not cost a turn.
            let slack = view.facts.settings.interval_ms / 2;
            active.due_ms = now + active.every_ms.saturating_sub(slack);
            plan.begin_strategy(name, active.row.claims);
            active.planner.plan(view, &mut plan);
            plan.rounds.push((name, view.kernel.finish_round()));
        }
        self.targets.clone_from(&plan.guard);
        plan
    }

    /// Sets the lever targets, as if by the pressure guard. If its gate is open, the guard replaces them.
    #[cfg(test)]
    pub(crate) fn order(&mut self, targets: guard::LeverTargets) {
        self.targets = targets;
    }

    /// Notifies the strategies that an eviction was accepted.
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
            let row = strategy_rows(settings)
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
