//! CgroupReconcile: memory protection, throttling and reclaim by class.
//!
//! Values and formulas are in [`koord_model::memory_qos`]. Files that this kernel lacks are skipped: a stock
//! kernel has `memory.min`, `memory.low` and `memory.high` on cgroup v2 only.

use crate::claims::{Claim, Classes, Level};
use crate::gates::Gate;
use crate::health::State;
use crate::log_on_change::LogOnChange;
use crate::qos::reconcile::{Reconcile, ReconcileReason};
use crate::qos::{Plan, Planner, StrategySpec, View, Write};
use crate::states::PodInfo;
use crate::states::pod::Batch;
use koord_api::qos::{KubeQos, QosClass};
use koord_api::slo::MemoryQOSCfg;
use koord_host::{Resource, TargetKind};
use koord_model::memory_qos::{self, MemoryAmounts, Values};

/// The strategy's name.
pub const NAME: &str = "CgroupReconcile";

/// Returns the value of one file; `None` if it is not set.
type ValueGetter = fn(&Values) -> Option<i64>;

/// Files that the strategy writes, with the getter of each value.
const FILES: [(Resource, ValueGetter); 12] = [
    (Resource::MemoryMin, |values| values.min),
    (Resource::MemoryLow, |values| values.low),
    (Resource::MemoryHigh, |values| values.high),
    (Resource::MemoryWmarkRatio, |values| values.wmark_ratio),
    (Resource::MemoryWmarkScaleFactor, |values| {
        values.wmark_scale_factor
    }),
    (Resource::MemoryWmarkMinAdj, |values| values.wmark_min_adj),
    (Resource::MemoryUsePriorityOom, |values| {
        values.use_priority_oom
    }),
    (Resource::MemoryPriority, |values| values.priority),
    (Resource::MemoryOomGroup, |values| values.oom_group),
    (Resource::MemoryPagecacheLimitEnable, |values| {
        values.page_cache_enable
    }),
    (Resource::MemoryPagecacheLimitSize, |values| {
        values.page_cache_size
    }),
    (Resource::MemoryPagecacheLimitSync, |values| {
        values.page_cache_sync
    }),
];

/// Claims of the strategy: every file at the three levels.
pub const CLAIMS: &[Claim] = &{
    let levels = [Level::Qos, Level::Pod, Level::Container];
    let mut claims = [claim(Level::Qos, Resource::MemoryMin); 36];
    let mut index = 0;
    while index < claims.len() {
        claims[index] = claim(levels[index % 3], FILES[index / 3].0);
        index += 1;
    }
    claims
};

const fn claim(level: Level, file: Resource) -> Claim {
    Claim {
        file: TargetKind::Cgroup(file),
        level,
        classes: Classes::ALL,
    }
}

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[Gate::CgroupReconcile],
    every: |settings| settings.qos_reconcile_interval_ms,
    claims: CLAIMS,
    make: |_, _| Box::new(MemoryQos::default()),
};

#[derive(Debug, Default)]
struct MemoryQos {
    reconcile: Reconcile,
    log: LogOnChange,
}

impl Planner for MemoryQos {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let every = view.facts.settings.reconcile_interval_ms;
        let (Some(round), Some(_)) = (self.reconcile.due(view, every), view.pods) else {
            return;
        };
        if !view.facts.slo.known {
            return;
        }
        plan.verify(round == ReconcileReason::Periodic);
        let present = FILES.iter().map(|(file, _)| *file);
        let present: Vec<_> = present
            .filter(|file| view.facts.machine.has(*file))
            .collect();
        if present.is_empty() {
            plan.report_state(State::Unavailable, "this kernel has none of its files");
            return;
        }
        let names: Vec<_> = present.iter().map(|file| file.name()).collect();
        plan.report_state(State::Active, names.join(", "));
        let allocatable = view.facts.node.map(|node| node.allocatable.memory);
        let page = view.facts.machine.page_size;
        let mut all = Vec::new();
        for pod in view.pods().filter(|pod| pod.info.is_active()) {
            let settings = self.settings(view, pod.info);
            all.push((pod.info, settings));
        }
        let requests = all
            .iter()
            .map(|(pod, settings)| (pod.kube_qos, settings, requirements(pod, None).request));
        let slo = view.facts.slo;
        let classes = memory_qos::Classes {
            lsr: slo.memory_qos(QosClass::Lsr),
            ls: slo.memory_qos(QosClass::Ls),
            be: slo.memory_qos(QosClass::Be),
        };
        let dirs = memory_qos::directories(classes, requests);
        for (kube, class, values) in [
            (KubeQos::Guaranteed, QosClass::Lsr, dirs.kubepods),
            (KubeQos::Burstable, QosClass::Ls, dirs.burstable),
            (KubeQos::BestEffort, QosClass::Be, dirs.besteffort),
        ] {
            if let Ok(group) = view.facts.layout.qos(kube) {
                let write = Write::class(&group, class, view.facts.node_name());
                push(view, plan, &write, &values);
            }
        }
        for (pod, settings) in &all {
            let values = memory_qos::pod(settings, requirements(pod, None));
            push(view, plan, &Write::pod(pod), &values);
            for container in pod.resident_containers() {
                let Some(write) = Write::container(pod, container) else {
                    continue;
                };
                let amounts = qos_amounts(pod, container.native, container.batch);
                let ask = requirements(pod, Some(amounts));
                let values = memory_qos::container(settings, ask, allocatable, page);
                push(view, plan, &write, &values);
            }
        }
    }
}

/// Returns the request and limit that memory QoS is computed from: batch memory for batch pods, native memory for
/// others.
fn qos_amounts(pod: &PodInfo, native: Batch, batch: Option<Batch>) -> Batch {
    if pod.qos == QosClass::Be {
        batch.unwrap_or_default()
    } else {
        native
    }
}

/// Returns the request and limit of one container, or of all containers of the pod together; the limit is
/// `None` if one of them has none.
fn requirements(pod: &PodInfo, one: Option<Batch>) -> MemoryAmounts {
    let limit_of = |amounts: &Batch| amounts.memory_limit.filter(|bytes| *bytes > 0);
    let request_of = |amounts: &Batch| amounts.memory_request.unwrap_or(0).max(0);
    if let Some(amounts) = one {
        return MemoryAmounts {
            request: request_of(&amounts),
            limit: limit_of(&amounts),
        };
    }
    let each = || {
        pod.resident_containers()
            .map(|container| qos_amounts(pod, container.native, container.batch))
    };
    MemoryAmounts {
        request: each().fold(0, |sum: i64, a| sum.saturating_add(request_of(&a))),
        limit: each().try_fold(0_i64, |sum, a| Some(sum.saturating_add(limit_of(&a)?))),
    }
}

fn push(view: &View<'_>, plan: &mut Plan, at: &Write, values: &Values) {
    for (file, value) in FILES {
        if let Some(value) = value(values)
            && view.facts.machine.has(file)
        {
            plan.write(at.clone().set(file, value));
        }
    }
}

impl MemoryQos {
    fn settings(&mut self, view: &View<'_>, pod: &PodInfo) -> MemoryQOSCfg {
        let node = view.facts.slo.memory_qos(pod.qos_default);
        let own = pod.settings().memory_qos.as_ref();
        let (settings, errors) = memory_qos::settings(node, pod.qos_default, own);
        for error in errors {
            self.log.log_off(error.field, &error);
        }
        settings
    }
}
