//! RuntimeHooks: brings pods, containers, classes and host applications to what [`crate::hooks`] say.
//!
//! This is the reconciler: the same functions answer whoever sits between the kubelet and the
//! runtime. New pods and new rules have their values at once; a foreign write is found at the
//! reconcile interval. Quotas are CPULimits' business, resctrl groups RdtResctrl's.

use crate::gates::Gate;
use crate::hooks::{self, Adjustment, Rules, Sources};
use crate::qos::reconcile::{Reconcile, Round};
use crate::qos::{Claim, Classes, Level, Once, Plan, Planner, Strategy, View, Write, cpu_suppress};
use crate::states::PodInfo;
use crate::states::slo::SuppressMode;
use koord_api::qos::{KubeQos, QosClass};
use koord_host::target::Attribute;
use koord_host::{Resource, Target, TargetKind};
use std::sync::Arc;

/// The strategy's name.
pub const NAME: &str = "RuntimeHooks";

const fn claim(level: Level, file: TargetKind, classes: Classes) -> Claim {
    Claim {
        file,
        level,
        classes,
    }
}

const SHARES: TargetKind = TargetKind::Cgroup(Resource::CpuShares);
const MEMORY: TargetKind = TargetKind::Cgroup(Resource::MemoryLimit);
const IDLE: TargetKind = TargetKind::Cgroup(Resource::CpuIdle);
const CPUS: TargetKind = TargetKind::Cgroup(Resource::CpusetCpus);
const BVT: TargetKind = TargetKind::Cgroup(Resource::CpuBvtWarp);
const NOT_BE: Classes = Classes::but(&[QosClass::Be]);

/// What it writes. The CPU lists of batch pods are CPUSuppress's.
pub const CLAIMS: &[Claim] = &[
    claim(Level::Pod, SHARES, Classes::BE),
    claim(Level::Pod, IDLE, Classes::ALL),
    claim(Level::Pod, MEMORY, Classes::BE),
    claim(Level::Container, SHARES, Classes::BE),
    claim(Level::Container, MEMORY, Classes::BE),
    claim(Level::Container, CPUS, NOT_BE),
    claim(Level::Host, CPUS, NOT_BE),
    claim(Level::Qos, BVT, Classes::ALL),
    claim(Level::Pod, BVT, Classes::ALL),
    claim(Level::Host, BVT, Classes::ALL),
    claim(
        Level::Container,
        TargetKind::Process(Attribute::OomScoreAdj),
        Classes::ALL,
    ),
];

/// The row.
pub const STRATEGY: Strategy = Strategy {
    name: NAME,
    gates: &[
        Gate::BatchResource,
        Gate::CPUSetAllocator,
        Gate::GroupIdentity,
        Gate::OOMScoreAdj,
    ],
    every: |settings| settings.interval_ms,
    claims: CLAIMS,
    make: |_, _| Box::new(RuntimeHooks::default()),
};

#[derive(Debug, Default)]
struct RuntimeHooks {
    reconcile: Reconcile,
    rules: Arc<Rules>,
    said: Once,
}

impl Planner for RuntimeHooks {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let facts = &view.facts;
        let asked = facts.slo.extension.be_cpu_idle;
        let rules = Rules::of(
            Sources {
                slo: facts.slo,
                node: facts.node,
                topology: facts.topology,
                settings: facts.settings,
                batch_quotas_lifted: plan.batch_quotas_lifted,
                batch_idle: facts.slo.enabled
                    && cpu_suppress::mode(facts).0 == SuppressMode::Pressure
                    && asked.unwrap_or(facts.settings.be_cpu_idle),
                group_identity: facts.machine.has(Resource::CpuBvtWarp),
                cpu_idle: facts.machine.has(Resource::CpuIdle),
            },
            Some(&self.rules),
        );
        let changed = rules != *self.rules;
        if changed {
            self.rules = Arc::new(rules);
        }
        let round = self
            .reconcile
            .due(view, facts.settings.reconcile_interval_ms);
        if round.is_none() && !changed {
            return;
        }
        plan.verify(round == Some(Round::Periodic));
        for kube in [KubeQos::Guaranteed, KubeQos::Burstable, KubeQos::BestEffort] {
            let class = match kube {
                KubeQos::Guaranteed => QosClass::Lsr,
                KubeQos::Burstable => QosClass::Ls,
                KubeQos::BestEffort => QosClass::Be,
            };
            if let Ok(group) = facts.layout.qos(kube) {
                let write = Write::class(&group, class, facts.node_name());
                self.push(
                    plan,
                    &write,
                    &hooks::desired_class(kube, &self.rules.clone()),
                );
            }
        }
        for pod in view
            .pods()
            .map(|pod| pod.info)
            .filter(|pod| pod.is_active())
        {
            self.pod(view, plan, pod);
        }
        for app in facts.slo.host_apps.iter() {
            let wanted = hooks::desired_host_app(app, &self.rules.clone());
            match facts.layout.host_app(app) {
                Ok(group) => {
                    let write = Write::at(Level::Host, &group, app.qos);
                    self.push(plan, &write, &wanted);
                }
                Err(error) => self.said.say("hostApplications", &error),
            }
        }
    }
}

impl RuntimeHooks {
    fn pod(&mut self, view: &View<'_>, plan: &mut Plan, pod: &PodInfo) {
        let rules = self.rules.clone();
        let wanted = hooks::desired(pod, None, &rules);
        self.push(plan, &Write::pod(pod), &wanted);
        for container in pod.all_containers() {
            let (Some(write), Some(group)) = (Write::container(pod, container), &container.cgroup)
            else {
                continue;
            };
            let wanted = hooks::desired(pod, Some(container), &rules);
            self.push(plan, &write, &wanted);
            let Some(score) = &wanted.oom_score_adj else {
                continue;
            };
            for pid in view.kernel.processes(group) {
                let target = Target::Process {
                    pid,
                    attribute: Attribute::OomScoreAdj,
                };
                let mut write = Write {
                    target,
                    ..write.clone()
                };
                write.reason = score.by;
                plan.write(write.value(score.value));
            }
        }
    }

    /// The files of one group.
    fn push(&mut self, plan: &mut Plan, at: &Write, wanted: &Adjustment) {
        for problem in &wanted.problems {
            self.said.say(problem.by, &problem.value);
        }
        let number = |said: &Option<hooks::Said<i64>>| {
            let said = said.as_ref()?;
            Some((said.value.to_string(), said.by))
        };
        let cpus = wanted.cpus.as_ref().filter(|said| !said.value.is_empty());
        let idle = wanted.cpu_idle.as_ref();
        for (file, value) in [
            (
                Resource::CpuIdle,
                idle.map(|said| (i32::from(said.value).to_string(), said.by)),
            ),
            (Resource::CpuShares, number(&wanted.cpu_shares)),
            (Resource::MemoryLimit, number(&wanted.memory_limit)),
            (Resource::CpuBvtWarp, number(&wanted.bvt)),
            (
                Resource::CpusetCpus,
                cpus.map(|said| (said.value.clone(), said.by)),
            ),
        ] {
            let Some((value, by)) = value else { continue };
            // The list of a batch pod is CPUSuppress's.
            if file == Resource::CpusetCpus && at.class == QosClass::Be {
                continue;
            }
            let mut write = at.clone().set(file, value);
            write.reason = by;
            plan.write(write);
        }
    }
}
