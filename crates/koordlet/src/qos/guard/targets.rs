//! Targets of the pressure guard for other strategies, and the texts of its events.

use super::NAME;
use crate::audit::{Entry, Subject};
use crate::qos::{View, cpu_suppress};
use koord_api::qos::QosClass;
use koord_host::CpuSet;
use koord_model::guard::{Event, EventKind};
use koord_model::suppress::Processor;
use std::collections::BTreeSet;

/// Targets of the levers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeverTargets {
    /// Cap on the CPU usage of the whole node, in percent; `None` without a cap.
    pub cap: Option<i64>,
    /// True if the cap is a pause of one tick.
    pub pause: bool,
    /// True if the cap is new and must be in force at once.
    pub urgent: bool,
    /// True if batch pods get the idle policy.
    pub idle: bool,
    /// True if pages of batch pods are reclaimed.
    pub reclaim: bool,
    /// Limit of batch work's memory bandwidth, in percent; `None` without a limit.
    pub bandwidth: Option<i64>,
    /// CPUs left to batch work; `None` if it may use all.
    pub partition: Option<CpuSet>,
    /// Reason as text.
    pub why: String,
}

impl LeverTargets {
    /// Returns the targets for a tick in which the guard does not decide.
    #[must_use]
    pub fn standing(&self) -> Self {
        Self {
            urgent: false,
            ..self.clone()
        }
    }
}

/// An action of the guard, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardAction {
    /// Namespace and name of the service; `None` for the node as a whole.
    pub pod: Option<(String, String)>,
    /// Kind of the action as one word.
    pub kind: &'static str,
    /// Description as a sentence.
    pub message: String,
    /// True if the action is also recorded as an event of the node.
    pub event: bool,
}

impl GuardAction {
    /// Returns the audit record.
    pub(crate) fn entry(&self, node: &str) -> Entry {
        let subject = match self.pod {
            Some(_) => Subject::Pod,
            None => Subject::Node,
        };
        let mut entry = Entry::new(subject, 1, NAME, format!("{}: {}", self.kind, self.message));
        match &self.pod {
            Some((namespace, name)) => {
                entry.namespace.clone_from(namespace);
                entry.name.clone_from(name);
            }
            None => node.clone_into(&mut entry.name),
        }
        entry
    }
}

/// Describes the targets as text.
pub(super) fn describe(targets: &LeverTargets) -> String {
    let mut all = vec!["lowest weight".to_owned()];
    if targets.idle {
        all.push("cpu.idle on batch pods".to_owned());
    }
    if targets.reclaim {
        all.push("pages of batch pods are reclaimed".to_owned());
    }
    if let Some(percent) = targets.bandwidth {
        all.push(format!(
            "{percent} % of the memory bandwidth for batch pods"
        ));
    }
    if let Some(cpus) = &targets.partition {
        all.push(format!("batch work on CPUs {cpus}"));
    }
    match (targets.pause, targets.cap) {
        (true, _) => all.push("batch work pauses for this tick".to_owned()),
        (_, Some(cap)) => all.push(format!("cap at {cap} % of the node")),
        (_, None) => all.push("no cap".to_owned()),
    }
    all.join(", ")
}

/// Returns the kind of an event as one word.
pub(super) fn kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Tried { .. } => "Tried",
        EventKind::Helped { .. } => "Helped",
        EventKind::Useless { .. } => "Useless",
        EventKind::Ended => "Ended",
        EventKind::Confirmed { .. } => "Confirmed",
        EventKind::Hurt { .. } => "Hurt",
        EventKind::Chance => "Chance",
        EventKind::Over => "Over",
        EventKind::Muted { .. } => "Muted",
    }
}

/// Describes an event as a sentence.
pub(super) fn message(event: &Event<u64>, pod: &str, now_ms: u64) -> String {
    let (signal, lever) = (event.signal, event.lever);
    let number = |value: f64| match signal.is_share() {
        true => format!("{:.1} %", value * 100.0),
        false => format!("{value:.2}"),
    };
    match event.kind {
        EventKind::Tried { value, expected } => format!(
            "{signal} of {pod} is {} where {} is expected: {lever} is tried",
            number(value),
            number(expected)
        ),
        EventKind::Helped { before, after } => format!(
            "{lever} took {signal} of {pod} from {} to {} above what is expected: it is held",
            number(before),
            number(after)
        ),
        EventKind::Useless { before, after } => format!(
            "{lever} does not help {pod}: {signal} was {} above what is expected and is {}",
            number(before),
            number(after)
        ),
        EventKind::Ended => format!("the trial of {lever} for {pod} had no end: it is let go"),
        EventKind::Confirmed { level } => format!(
            "{signal} of {pod} rose when {lever} was let go: batch work is the cause, {lever} is \
             held at {level} %"
        ),
        EventKind::Hurt { level } => {
            format!("{signal} of {pod} rose again: {lever} goes back to {level} %")
        }
        EventKind::Chance => format!(
            "{signal} of {pod} did not rise when {lever} was let go: batch work was not the cause"
        ),
        EventKind::Over => format!("{pod} does not need {lever} any more"),
        EventKind::Muted { until_ms } => format!(
            "nothing helps {pod}: batch work is not the cause of its {signal}, which is ignored \
             for {} s",
            until_ms.saturating_sub(now_ms) / 1000
        ),
    }
}

/// Returns the CPUs left to batch work when it has to keep off these services: those outside their cores if
/// the services have exclusive CPUs, else the last half of the machine's cores.
pub(super) fn partition(view: &View<'_>, services: &[u64]) -> Option<CpuSet> {
    let excluded = cpu_suppress::excluded(view);
    let all = &view.facts.machine.processors;
    let free = |p: &&Processor| !excluded.contains(&p.cpu);
    let mut candidates: Vec<Processor> = all.iter().filter(free).copied().collect();
    candidates.sort_by_key(|p| (p.node, p.socket, p.core, p.cpu));
    let pods = view.pods().filter(|pod| services.contains(&pod.id));
    let own: Vec<Option<&CpuSet>> = pods.map(|pod| pod.info.cpus.as_ref()).collect();
    let own_cpus: BTreeSet<u32> = own.iter().flatten().flat_map(|cpus| cpus.iter()).collect();
    let cores: BTreeSet<(u32, u32)> = all
        .iter()
        .filter(|p| own_cpus.contains(&p.cpu))
        .map(|p| (p.socket, p.core))
        .collect();
    let off: Vec<u32> = candidates
        .iter()
        .filter(|p| !cores.contains(&(p.socket, p.core)))
        .map(|p| p.cpu)
        .collect();
    let batch_cpus = if own.iter().all(Option::is_some) && !off.is_empty() {
        off
    } else {
        // Cores are not split: batch work gets the core in the middle of the list and all after it.
        let half = candidates.len() / 2;
        let first = candidates.get(half)?;
        let last_half = candidates
            .iter()
            .filter(|p| (p.node, p.socket, p.core) >= (first.node, first.socket, first.core));
        last_half.map(|p| p.cpu).collect()
    };
    let lsr = cpu_suppress::cpus_of(view, QosClass::Lsr);
    let without: Vec<u32> = batch_cpus
        .iter()
        .copied()
        .filter(|c| !lsr.contains(c))
        .collect();
    let batch_cpus = if without.is_empty() {
        batch_cpus
    } else {
        without
    };
    (!batch_cpus.is_empty() && batch_cpus.len() < all.len())
        .then(|| batch_cpus.into_iter().collect())
}
