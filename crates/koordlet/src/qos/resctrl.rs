//! Resctrl: last-level cache and memory bandwidth by class, and by pod if its annotation sets them.
//!
//! The resctrl groups `LSR`, `LS` and `BE` always exist and have the shares of their class; pods enter them
//! while their class's `resctrlQOS` is enabled. A pod with `node.koordinator.sh/resctrl` has a group of its
//! own, `koordlet-<uid>`, which is removed some time after the pod. Masks, roundings and vendors are in
//! [`koord_model::resctrl`].
//!
//! While the pressure guard limits the memory bandwidth of batch work, `BE` has the lesser of its limit and
//! the configured one, and batch pods enter `BE` whether or not `resctrlQOS` is enabled for them: in the root
//! group nothing would limit them. After that, `BE` has the configured bandwidth again, which is all of it
//! without a setting. Pods with settings of their own keep these.

use crate::claims::{Claim, Classes, Level};
use crate::gates::Gate;
use crate::health::State;
use crate::log_on_change::LogOnChange;
use crate::qos::reconcile::{Reconcile, ReconcileReason};
use crate::qos::{Plan, Planner, StrategySpec, View, Write};
use crate::states::PodInfo;
use koord_api::qos::QosClass;
use koord_api::slo::ResctrlQOSCfg;
use koord_host::resctrl::{ResctrlGroup, Schema};
use koord_host::target::ResctrlFile;
use koord_host::{HostError, Target, TargetKind};
use koord_model::resctrl::{self, Bandwidth, Hardware, Resource, SchemataLine};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Write as _;

/// The strategy's name.
pub const NAME: &str = "RdtResctrl";
/// Prefix of the resctrl group of a pod with its own settings, before its UID.
const POD_GROUP_PREFIX: &str = "koordlet-";
/// Milliseconds for which a pod's group outlives the pod, because a list may be late.
const LINGER_MS: u64 = 10_000;

const MISSING: &str = "resctrl is not mounted, or this kernel or CPU has none";

const fn claim(file: ResctrlFile) -> Claim {
    Claim {
        file: TargetKind::Resctrl(file),
        level: Level::Node,
        classes: Classes::ALL,
    }
}

/// Claims of the strategy.
pub const CLAIMS: &[Claim] = &[
    claim(ResctrlFile::Directory),
    claim(ResctrlFile::Tasks),
    claim(ResctrlFile::Schemata(Schema::L3)),
    claim(ResctrlFile::Schemata(Schema::L3Code)),
    claim(ResctrlFile::Schemata(Schema::L3Data)),
    claim(ResctrlFile::Schemata(Schema::Mb)),
];

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[Gate::RdtResctrl, Gate::Resctrl],
    every: |settings| settings.qos_reconcile_interval_ms,
    claims: CLAIMS,
    make: |_, _| Box::new(Control::default()),
};

#[derive(Debug, Default)]
struct Control {
    reconcile: Reconcile,
    log: LogOnChange,
    /// Last bandwidth limit of the guard, in percent.
    ordered: Option<i64>,
    /// True if the guard ever limited the bandwidth.
    narrowed: bool,
    /// Groups of removed pods, and since when in milliseconds.
    orphans: FxHashMap<ResctrlGroup, u64>,
}

impl Planner for Control {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let every = view.facts.settings.reconcile_interval_ms;
        let gates = &view.facts.settings.gates;
        let order = plan
            .guard
            .bandwidth
            .filter(|_| gates.is_on(Gate::RdtResctrl));
        let moved = order != self.ordered;
        let due = self.reconcile.due(view, every);
        let (Some(round), Some(_)) = (due.or(moved.then_some(ReconcileReason::Changed)), view.pods)
        else {
            return;
        };
        self.ordered = order;
        self.narrowed |= order.is_some();
        let hardware = match hardware(view) {
            Ok(Some(hardware)) => hardware,
            Ok(None) => {
                self.log.log_lack(NAME, &MISSING);
                plan.report_state(State::Unavailable, MISSING);
                return;
            }
            Err(error) => {
                self.log.log_off(NAME, &error);
                plan.report_state(State::Failing, error.to_string());
                return;
            }
        };
        let mut description = "schemata of LSR, LS and BE, and of pods that ask".to_owned();
        if let Some(percent) = order {
            let _ = write!(
                description,
                "; the pressure guard has BE at {percent} % of the memory bandwidth at most"
            );
        }
        plan.report_state(State::Active, description);
        plan.verify(round == ReconcileReason::Periodic);
        let classes = gates.is_on(Gate::RdtResctrl) && view.facts.slo.known;
        if classes {
            for class in [QosClass::Lsr, QosClass::Ls, QosClass::Be] {
                let settings = view.facts.slo.resctrl_qos(class);
                let (Some(name), Some(settings)) = (resctrl::class_group(class), settings) else {
                    continue;
                };
                let batch = class == QosClass::Be;
                let narrowed = match batch && self.narrowed {
                    true => &limit_bandwidth(settings, order),
                    false => settings,
                };
                let (lines, errors) = resctrl::class_lines(&hardware, narrowed);
                for error in errors {
                    self.log.log_off(name, &error);
                }
                let why = match order.filter(|_| batch) {
                    Some(percent) => format!("{}; {percent} % of bandwidth", plan.guard.why),
                    None => String::new(),
                };
                write_group(plan, name, class, &lines, &why);
            }
        }
        let mut own = FxHashSet::default();
        for pod in view.pods().map(|pod| pod.info) {
            let name = match &pod.settings().resctrl {
                Some(_) if !gates.is_on(Gate::Resctrl) => continue,
                Some((settings, _)) => {
                    let (lines, errors) = resctrl::pod_lines(&hardware, settings);
                    for error in errors {
                        self.log.log_off("node.koordinator.sh/resctrl", &error);
                    }
                    let name = format!("{POD_GROUP_PREFIX}{}", pod.uid);
                    if pod.is_active() {
                        write_group(plan, &name, pod.qos, &lines, "");
                    }
                    own.insert(name.clone());
                    name
                }
                None => {
                    let settings = view.facts.slo.resctrl_qos(pod.qos_default);
                    let enabled = settings.is_some_and(|settings| settings.enable == Some(true));
                    let ordered = order.is_some() && pod.qos_default == QosClass::Be;
                    match resctrl::class_group(pod.qos_default) {
                        Some(name) if classes && (enabled || ordered) => name.to_owned(),
                        _ => continue,
                    }
                }
            };
            if pod.is_active() {
                add_threads(view, plan, &name, pod);
            }
        }
        if gates.is_on(Gate::Resctrl) {
            self.remove(view, plan, &own);
        }
    }
}

/// The lines of `schemata` that are written here.
const RESOURCES: [(Resource, Schema); 4] = [
    (Resource::L3, Schema::L3),
    (Resource::L3Code, Schema::L3Code),
    (Resource::L3Data, Schema::L3Data),
    (Resource::Mb, Schema::Mb),
];

/// Returns what the machine can control; `None` if resctrl is not mounted.
fn hardware(view: &View<'_>) -> Result<Option<Hardware>, HostError> {
    let Some(info) = view.kernel.resctrl()? else {
        return Ok(None);
    };
    let caches = [Schema::L3, Schema::L3Data];
    let cache = caches.iter().find_map(|schema| info.caches.get(schema));
    let vendor = view.facts.machine.cpu_vendor.as_str();
    let bandwidth = info.bandwidth;
    let domains = RESOURCES.iter().filter_map(|(resource, schema)| {
        let domains = info.domains.get(schema)?;
        Some((*resource, domains.clone()))
    });
    Ok(Some(Hardware {
        cbm_mask: cache.map(|cache| cache.mask),
        min_cbm_bits: cache.map_or(1, |cache| cache.min_bits),
        bandwidth: bandwidth.map(|b| Bandwidth::from_vendor(vendor, Some(b.step), Some(b.min))),
        domains: domains.collect(),
    }))
}

/// Returns a class's settings with at most the bandwidth of the guard's limit `order`, and all of it if
/// neither is set. Invalid settings are kept, so that they are reported.
fn limit_bandwidth(settings: &ResctrlQOSCfg, order: Option<i64>) -> ResctrlQOSCfg {
    let percent = match settings.mba_percent {
        Some(configured @ 1..=100) => configured.min(order.unwrap_or(100)),
        Some(other) if order.is_none() => other,
        _ => order.unwrap_or(100),
    };
    ResctrlQOSCfg {
        mba_percent: Some(percent),
        ..settings.clone()
    }
}

/// Writes a group and its shares.
fn write_group(plan: &mut Plan, name: &str, class: QosClass, lines: &[SchemataLine], why: &str) {
    let Ok(group) = name.parse::<ResctrlGroup>() else {
        return;
    };
    let mut push = |file, value: String| {
        let target = Target::Resctrl {
            group: group.clone(),
            file,
        };
        let mut write = Write::to(Level::Node, target, class).value(value);
        write.reason = "UpdateResctrl";
        if matches!(file, ResctrlFile::Schemata(Schema::Mb)) {
            write = write.because(why);
        }
        plan.write(write);
    };
    push(ResctrlFile::Directory, "1".to_owned());
    for line in lines {
        let named = RESOURCES.iter().find(|(of, _)| *of == line.resource);
        let Some((_, schema)) = named else { continue };
        push(ResctrlFile::Schemata(*schema), schema.format(&line.domains));
    }
}

/// Adds the threads of the pod's containers that are not in the group yet.
fn add_threads(view: &View<'_>, plan: &mut Plan, name: &str, pod: &PodInfo) {
    let Ok(group) = name.parse::<ResctrlGroup>() else {
        return;
    };
    let inside = view.kernel.resctrl_tasks(&group);
    for cgroup in pod.all_containers().filter_map(|c| c.cgroup.as_ref()) {
        for thread in view.kernel.threads(cgroup) {
            if inside.contains(&thread) {
                continue;
            }
            let target = Target::Resctrl {
                group: group.clone(),
                file: ResctrlFile::Tasks,
            };
            let mut write = Write::to(Level::Node, target, pod.qos).value(thread);
            write.reason = "UpdateResctrl";
            write.subject = Write::pod(pod).subject;
            write.cacheable = false;
            plan.write(write);
        }
    }
}

impl Control {
    /// Removes the groups of pods that were removed [`LINGER_MS`] ago.
    fn remove(&mut self, view: &View<'_>, plan: &mut Plan, own: &FxHashSet<String>) {
        let now = view.now.ms();
        let groups = view.kernel.resctrl_groups();
        self.orphans
            .retain(|group, _| groups.contains(group) && !own.contains(group.as_str()));
        for group in groups {
            let name = group.as_str();
            if !name.starts_with(POD_GROUP_PREFIX) || own.contains(name) {
                continue;
            }
            let since = *self.orphans.entry(group.clone()).or_insert(now);
            if now.saturating_sub(since) < LINGER_MS {
                continue;
            }
            let target = Target::Resctrl {
                group,
                file: ResctrlFile::Directory,
            };
            let mut write = Write::to(Level::Node, target, QosClass::None).value(0);
            write.reason = "UpdateResctrl";
            write.cacheable = false;
            plan.write(write.because("its pod is gone"));
        }
    }
}
