//! What the guard asks of others, in values and in words.

use super::NAME;
use crate::audit::{Entry, Subject};
use crate::qos::{View, cpu_suppress};
use koord_api::qos::QosClass;
use koord_host::CpuSet;
use koord_model::guard::{Event, Kind};
use koord_model::suppress::Processor;
use std::collections::BTreeSet;

/// How the levers shall stand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeverTargets {
    /// Everything together may use this much of the node's CPU, in percent.
    pub cap: Option<i64>,
    /// The cap is a pause of one tick.
    pub pause: bool,
    /// The cap is new and shall be in force at once.
    pub urgent: bool,
    /// Batch pods get the idle policy.
    pub idle: bool,
    /// Pages of batch pods are reclaimed.
    pub reclaim: bool,
    /// Batch work may use this much of the memory bandwidth, in percent.
    pub bandwidth: Option<i64>,
    /// The CPUs left to batch work.
    pub partition: Option<CpuSet>,
    /// Why, in words.
    pub why: String,
}

impl LeverTargets {
    /// What still holds at a tick at which the guard does not decide.
    #[must_use]
    pub fn standing(&self) -> Self {
        Self {
            urgent: false,
            ..self.clone()
        }
    }
}

/// Something that happened, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Namespace and name of the service; none for the node as a whole.
    pub pod: Option<(String, String)>,
    /// In one word.
    pub kind: &'static str,
    /// In a sentence.
    pub message: String,
    /// True if the node's events shall tell it, too.
    pub event: bool,
}

impl Note {
    /// Returns the line of the audit log.
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

/// Returns the targets in words.
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

/// What happened, in one word.
pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Tried { .. } => "Tried",
        Kind::Helped { .. } => "Helped",
        Kind::Useless { .. } => "Useless",
        Kind::Ended => "Ended",
        Kind::Confirmed { .. } => "Confirmed",
        Kind::Hurt { .. } => "Hurt",
        Kind::Chance => "Chance",
        Kind::Over => "Over",
        Kind::Muted { .. } => "Muted",
    }
}

/// What happened, in a sentence.
pub(super) fn message(event: &Event<u64>, pod: &str, now_ms: u64) -> String {
    let (signal, lever) = (event.signal, event.lever);
    let number = |value: f64| match signal.is_share() {
        true => format!("{:.1} %", value * 100.0),
        false => format!("{value:.2}"),
    };
    match event.kind {
        Kind::Tried { value, expected } => format!(
            "{signal} of {pod} is {} where {} is expected: {lever} is tried",
            number(value),
            number(expected)
        ),
        Kind::Helped { before, after } => format!(
            "{lever} took {signal} of {pod} from {} to {} above what is expected: it is held",
            number(before),
            number(after)
        ),
        Kind::Useless { before, after } => format!(
            "{lever} does not help {pod}: {signal} was {} above what is expected and is {}",
            number(before),
            number(after)
        ),
        Kind::Ended => format!("the trial of {lever} for {pod} had no end: it is let go"),
        Kind::Confirmed { level } => format!(
            "{signal} of {pod} rose when {lever} was let go: batch work is the cause, {lever} is \
             held at {level} %"
        ),
        Kind::Hurt { level } => {
            format!("{signal} of {pod} rose again: {lever} goes back to {level} %")
        }
        Kind::Chance => format!(
            "{signal} of {pod} did not rise when {lever} was let go: batch work was not the cause"
        ),
        Kind::Over => format!("{pod} does not need {lever} any more"),
        Kind::Muted { until_ms } => format!(
            "nothing helps {pod}: batch work is not the cause of its {signal}, which is ignored \
             for {} s",
            until_ms.saturating_sub(now_ms) / 1000
        ),
    }
}

/// Returns the CPUs that batch work keeps when it has to keep off these services: none of their cores where
/// they have CPUs of their own, else the last half of the machine's cores.
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
        // Cores stay whole: the first one batch_cpus is the first with half of the CPUs behind it.
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
