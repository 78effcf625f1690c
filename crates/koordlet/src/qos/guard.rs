//! PressureGuard: decides which levers hold batch work back, and for which service.
//!
//! The rule is in [`koord_model::guard`]. This row supplies the samples of services and the levers of this
//! node, and leaves its targets in the plan: CPUSuppress writes the cap and the partition of CPUs, RdtResctrl
//! the bandwidth, the hooks `cpu.idle` of batch pods. The row itself only has pages of batch pods reclaimed.

mod coverage;
mod reclaim;
mod report;
mod targets;
#[cfg(test)]
mod tests;

pub use targets::{GuardAction, LeverTargets};

use crate::collect::needs::Needs;
use crate::gates::Gate;
use crate::health::State;
use crate::metrics::Metrics;
use crate::qos::{Facts, Plan, Planner, StrategySpec, View, cpu_suppress};
use crate::states::PodInfo;
use crate::states::slo::SuppressMode;
use coverage::SignalCoverage;
use koord_api::priority::PriorityClass;
use koord_api::qos::QosClass;
use koord_host::Resource;
use koord_model::guard::{
    Config, Decision, Event, EventKind, Guard, Input, Lever, LeverSettings, ServiceSample,
};
use koord_model::suppress::{CFS_PERIOD_US, MIN_QUOTA_US};
use rustc_hash::FxHashMap;

/// The strategy's name.
pub const NAME: &str = "PressureGuard";
/// Ticks between two updates of the status without an event.
const STATUS_TICKS: u64 = 5;
/// Ticks between two checks of resctrl, which may be mounted later.
const RESCTRL_CHECK_TICKS: u64 = 60;
/// Lowest priority of the system's own pods: that of `system-cluster-critical`.
const SYSTEM_PRIORITY: i32 = 2_000_000_000;

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[Gate::BECPUSuppress],
    every: |settings| settings.cpu_suppress_interval_ms,
    claims: reclaim::CLAIMS,
    make: |settings, metrics| {
        let counted = &settings.collectors;
        Box::new(GuardPlanner {
            guard: Guard::new(Config {
                // Counts are stored in the tick after their window, hence a tick late.
                rare_window_ms: counted
                    .cpi_window_ms
                    .saturating_add(settings.interval_ms.saturating_mul(2)),
                rare_gap_ms: counted
                    .cpi_ms
                    .saturating_add(counted.cpi_window_ms.saturating_mul(3)),
                ..settings.guard
            }),
            metrics: metrics.clone(),
            watches: false,
            last: LeverSettings::default(),
            why: String::new(),
            names: FxHashMap::default(),
            chance: fastrand::Rng::new(),
            coverage: SignalCoverage::default(),
            forget_ms: settings.guard.forget_ms,
            started: None,
            changed_tick: 0,
            bandwidth: None,
        })
    },
};

/// Returns the weight of a pod's alarm, 0–1: 0 for batch work and the system's own pods, 1 for services that
/// are labeled LS or better and run at production priority, one half for those without a label.
#[must_use]
pub fn vote(pod: &PodInfo) -> f64 {
    let system = pod.qos == QosClass::System || pod.priority.is_some_and(|p| p >= SYSTEM_PRIORITY);
    if pod.is_best_effort() || system {
        return 0.0;
    }
    match (pod.priority_class, pod.qos) {
        (PriorityClass::Batch | PriorityClass::Free, _) => 0.0,
        (PriorityClass::Mid, _) => 0.25,
        (_, QosClass::Lse | QosClass::Lsr | QosClass::Ls) => 1.0,
        _ => 0.5,
    }
}

/// Returns the CPU usage up to which batch work counts as idle, in milli-cores: half a percent of the node,
/// but more than the minimum quota lets through and at most a tenth of a CPU.
fn idle_milli(capacity: i64) -> i64 {
    let least = MIN_QUOTA_US * 1000 / CFS_PERIOD_US;
    (capacity / 200).clamp(least * 3 / 2, 100)
}

/// Planner of the pressure guard: the guard and its state on this node.
#[derive(Debug)]
struct GuardPlanner {
    guard: Guard<u64>,
    metrics: Metrics,
    watches: bool,
    last: LeverSettings<u64>,
    /// Reason of the current targets: the newest event.
    why: String,
    /// `namespace/name` by pod number. Kept for removed pods, which events may refer to.
    names: FxHashMap<u64, String>,
    chance: fastrand::Rng,
    coverage: SignalCoverage,
    /// Milliseconds for which the signals of a removed service still count as covered.
    forget_ms: u64,
    /// Start mode of batch work that was logged last.
    started: Option<&'static str>,
    changed_tick: u64,
    /// Tick of the last check of resctrl, and the reason if it cannot limit bandwidth.
    bandwidth: Option<(u64, Option<&'static str>)>,
}

impl Planner for GuardPlanner {
    fn needs(&self, facts: &Facts<'_>) -> Needs {
        let on = facts.slo.enabled && cpu_suppress::mode(facts).0 == SuppressMode::Pressure;
        Needs {
            pressure: on,
            fast_pressure: on && self.watches,
            throttling: on && self.watches,
            ..Needs::default()
        }
    }

    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        plan.guard = LeverTargets::default();
        let slo = view.facts.slo;
        let mode = cpu_suppress::mode(&view.facts).0;
        let class = view.kernel.number(view.batch, Resource::CfsQuota);
        let idle = match (slo.enabled, class) {
            (false, _) => Some("the NodeSLO does not enable suppression"),
            (_, None) => Some("there is no group of batch pods yet"),
            _ => None,
        };
        if let Some(why) = idle {
            self.guard.release();
            self.last = LeverSettings::default();
            self.watches = false;
            plan.guard_status = Some(None);
            plan.report_state(State::Idle, why);
            return;
        }
        let upstream_mode = mode == SuppressMode::Upstream;
        self.refresh_bandwidth(view);
        let levers = self.levers(view);
        let samples: Vec<ServiceSample<u64>> = view
            .pods()
            .filter(|pod| pod.info.is_active() && vote(pod.info) > 0.0)
            .filter_map(|pod| {
                Some(ServiceSample {
                    key: pod.id,
                    vote: vote(pod.info),
                    load: pod.cpu?,
                    throttled: pod.throttled_share,
                    readings: pod.readings,
                })
            })
            .collect();
        let readings = samples.iter().map(|sample| (sample.key, sample.readings));
        self.coverage
            .update(view.now.ms(), self.forget_ms, readings);
        let sees_bandwidth = self.coverage.sees_bandwidth();
        self.record_names(view);
        let Decision {
            settings,
            events,
            watches,
        } = self.guard.step(
            &Input {
                now_ms: view.now.ms(),
                threshold: slo.suppress_percent,
                batch_ran: view.batch_cpu.unwrap_or(0) > idle_milli(view.facts.cpu_capacity()),
                held: upstream_mode,
                levers: &levers,
                sees_bandwidth,
                dice: self.chance.f64(),
            },
            &samples,
        );
        self.watches = watches;
        if upstream_mode {
            plan.guard_status = Some(None);
            plan.report_state(State::Idle, "upstream's policy is in force");
            return;
        }
        self.log_start(view, sees_bandwidth, plan);
        for event in &events {
            self.record_event(view, event, plan);
        }
        plan.guard = self.targets(view, &settings);
        if settings.reclaim {
            reclaim::write_reclaims(view, plan, &self.why);
        }
        let changed = settings != self.last || !events.is_empty();
        self.last = settings;
        if changed || view.tick.saturating_sub(self.changed_tick) >= STATUS_TICKS {
            self.changed_tick = view.tick;
            let shown = self.status(view, &levers, sees_bandwidth, &plan.guard);
            plan.guard_status = Some(Some(shown));
        }
        plan.report_state(State::Active, targets::describe(&plan.guard));
    }
}

/// Returns why this node cannot limit the memory bandwidth of batch work; `None` if it can.
fn bandwidth_problem(view: &View<'_>) -> Option<&'static str> {
    if !view.facts.settings.gates.is_on(Gate::RdtResctrl) {
        return Some("gate RdtResctrl is closed");
    }
    match view.kernel.resctrl() {
        Ok(None) => Some("resctrl is not mounted, or this kernel or CPU has none"),
        Ok(Some(info)) if info.bandwidth.is_none() => {
            Some("this CPU does not divide memory bandwidth")
        }
        Ok(Some(_)) => None,
        Err(_) => Some("resctrl cannot be read"),
    }
}

/// Returns the levers that this node lacks, and why, except bandwidth.
fn missing_levers(view: &View<'_>) -> Vec<(Lever, &'static str)> {
    let (facts, machine) = (&view.facts, view.facts.machine);
    let mut absent = Vec::new();
    let idle = facts.slo.extension.be_cpu_idle;
    if !machine.has(Resource::CpuIdle) {
        absent.push((Lever::Idle, "this kernel has no cpu.idle"));
    } else if idle.unwrap_or(facts.settings.be_cpu_idle) {
        absent.push((Lever::Idle, "batch pods are idle always, by configuration"));
    } else if !facts.settings.gates.is_on(Gate::BatchResource) {
        absent.push((Lever::Idle, "gate BatchResource is closed"));
    }
    if !machine.has(Resource::MemoryReclaim) {
        absent.push((
            Lever::Reclaim,
            "groups have no memory.reclaim: that is cgroup v2 of kernel 5.19, and v1 can only empty them",
        ));
    }
    if facts.settings.gates.is_on(Gate::BECPUManager) {
        absent.push((Lever::Partition, "CPU sets follow BECPUManager"));
    } else if !machine.has(Resource::CpusetCpus) {
        absent.push((Lever::Partition, "groups have no CPU sets"));
    } else if machine.processors.len() < 2 {
        absent.push((Lever::Partition, "there is one CPU"));
    }
    absent
}

impl GuardPlanner {
    /// Checks whether memory bandwidth can be limited, again after [`RESCTRL_CHECK_TICKS`].
    fn refresh_bandwidth(&mut self, view: &View<'_>) {
        let is_due = self
            .bandwidth
            .is_none_or(|(at, _)| view.tick.saturating_sub(at) >= RESCTRL_CHECK_TICKS);
        if is_due {
            self.bandwidth = Some((view.tick, bandwidth_problem(view)));
        }
    }

    fn missing_levers(&self, view: &View<'_>) -> Vec<(Lever, &'static str)> {
        let problem = self.bandwidth.and_then(|(_, problem)| problem);
        let bandwidth = problem.map(|problem| (Lever::Bandwidth, problem));
        missing_levers(view).into_iter().chain(bandwidth).collect()
    }

    fn levers(&self, view: &View<'_>) -> Vec<Lever> {
        let absent = self.missing_levers(view);
        let is_present = |lever: &Lever| absent.iter().all(|(other, _)| other != lever);
        Lever::ALL.into_iter().filter(is_present).collect()
    }

    fn record_names(&mut self, view: &View<'_>) {
        if view.pods().all(|pod| self.names.contains_key(&pod.id)) {
            return;
        }
        // Names of removed pods are kept for a while.
        if self.names.len() > 4 * view.pods().count().max(64) {
            self.names.clear();
        }
        for pod in view.pods() {
            let name = format!("{}/{}", pod.info.namespace, pod.info.name);
            self.names.entry(pod.id).or_insert(name);
        }
    }

    fn name_of(&self, key: u64) -> &str {
        self.names.get(&key).map_or("", String::as_str)
    }

    /// Logs once which signals and levers this node has and how batch work starts, and again when that
    /// changes.
    fn log_start(&mut self, view: &View<'_>, sees_bandwidth: bool, plan: &mut Plan) {
        let start = report::start_level(sees_bandwidth);
        let before = self.started.replace(start);
        if before == Some(start) {
            return;
        }
        let (kind, message) = match (before, sees_bandwidth) {
            (None, _) => {
                let levers: Vec<_> = self.levers(view).iter().map(ToString::to_string).collect();
                let levers = levers.join(", ");
                (
                    "Start",
                    format!("batch work starts {start}; levers: {levers}"),
                )
            }
            (Some(_), true) => {
                let signals: Vec<_> = self.coverage.signals().map(|s| s.to_string()).collect();
                let signals = signals.join(", ");
                let now = "harm through memory bandwidth and caches would be seen from now on";
                ("Signals", format!("{now}: {signals}"))
            }
            (Some(_), false) => {
                let now = "no signal shows harm through memory bandwidth and caches any more";
                ("Signals", now.to_owned())
            }
        };
        match before {
            None => tracing::info!(state = message, "pressure guard started"),
            Some(_) => tracing::info!(state = message, "signals of the pressure guard changed"),
        }
        plan.guard_actions.push(GuardAction {
            pod: None,
            kind,
            message,
            event: false,
        });
    }

    fn record_event(&mut self, view: &View<'_>, event: &Event<u64>, plan: &mut Plan) {
        let pod = self.name_of(event.key).to_owned();
        let kind = targets::kind(event.kind);
        let message = targets::message(event, &pod, view.now.ms());
        tracing::info!(service = pod, kind, lever = %event.lever, message, "pressure guard event");
        self.metrics.guard_event(&event.lever.to_string(), kind);
        self.why.clone_from(&message);
        let pod = view.pods().find(|view| view.id == event.key);
        plan.guard_actions.push(GuardAction {
            pod: pod.map(|pod| (pod.info.namespace.clone(), pod.info.name.clone())),
            kind,
            message,
            event: matches!(
                event.kind,
                EventKind::Confirmed { .. } | EventKind::Over | EventKind::Muted { .. }
            ),
        });
    }

    /// Returns the targets of the levers for `settings`.
    fn targets(&self, view: &View<'_>, settings: &LeverSettings<u64>) -> LeverTargets {
        let cap = match settings.pause {
            true => Some(0),
            false => settings.cap,
        };
        let why = match (settings.pause, self.why.is_empty()) {
            (true, _) => "a pause shows how services fare without batch work".to_owned(),
            (false, true) => format!("batch work starts {}", report::start_level(false)),
            (false, false) => self.why.clone(),
        };
        let before = match self.last.pause {
            true => Some(0),
            false => self.last.cap,
        };
        let partition = (!settings.partition.is_empty())
            .then(|| targets::partition(view, &settings.partition))
            .flatten();
        LeverTargets {
            cap,
            pause: settings.pause,
            urgent: cap != before,
            idle: settings.idle,
            reclaim: settings.reclaim,
            bandwidth: settings.bandwidth,
            partition,
            why,
        }
    }
}
