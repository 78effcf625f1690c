//! SystemConfig: kernel settings of the whole machine, from the NodeSLO's `systemStrategy`.
//!
//! A setting that is not given leaves the kernel alone; one that this kernel lacks is skipped, with one log
//! line that names it. Switches that hooks need take precedence over the strategy. Values and bounds are in
//! [`koord_model::system_config`].

use crate::claims::{Claim, Classes, Level};
use crate::executor::WriteSubject;
use crate::gates::Gate;
use crate::log_on_change::LogOnChange;
use crate::qos::reconcile::{Reconcile, ReconcileReason};
use crate::qos::{Plan, Planner, StrategySpec, View, Write};
use koord_api::qos::QosClass;
use koord_api::slo::SystemStrategy;
use koord_host::target::{SchedFeature, Sysctl};
use koord_host::{Target, TargetKind};
use koord_model::system_config::{self, Setting};

/// The strategy's name.
pub const NAME: &str = "SystemConfig";

const fn claim(file: TargetKind) -> Claim {
    Claim {
        file,
        level: Level::Node,
        classes: Classes::ALL,
    }
}

/// Claims of the strategy.
pub const CLAIMS: &[Claim] = &[
    claim(TargetKind::Sysctl(Sysctl::MinFreeKbytes)),
    claim(TargetKind::Sysctl(Sysctl::WatermarkScaleFactor)),
    claim(TargetKind::Sysctl(Sysctl::MemcgReapBackground)),
    claim(TargetKind::Sysctl(Sysctl::GroupIdentityEnabled)),
    claim(TargetKind::Sysctl(Sysctl::SchedCore)),
    claim(TargetKind::Sysctl(Sysctl::IdleSaverWatermark)),
    claim(TargetKind::Sysctl(Sysctl::PagecacheLimitEnabled)),
    claim(TargetKind::SchedFeature),
];

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[Gate::SystemConfig, Gate::GroupIdentity, Gate::CoreSched],
    every: |settings| settings.qos_reconcile_interval_ms,
    claims: CLAIMS,
    make: |_, _| Box::new(SystemConfig::default()),
};

#[derive(Debug, Default)]
struct SystemConfig {
    reconcile: Reconcile,
    log: LogOnChange,
    /// Last switches that hooks needed.
    switches: Vec<(Sysctl, bool)>,
}

fn sysctl(setting: Setting) -> Sysctl {
    match setting {
        Setting::MinFreeKbytes => Sysctl::MinFreeKbytes,
        Setting::WatermarkScaleFactor => Sysctl::WatermarkScaleFactor,
        Setting::MemcgReapBackground => Sysctl::MemcgReapBackground,
        Setting::SchedGroupIdentityEnabled => Sysctl::GroupIdentityEnabled,
        Setting::SchedIdleSaverWmark => Sysctl::IdleSaverWatermark,
        Setting::PageCacheLimitEnabled => Sysctl::PagecacheLimitEnabled,
    }
}

impl Planner for SystemConfig {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let every = view.facts.settings.reconcile_interval_ms;
        let round = self.reconcile.due(view, every);
        if round.is_none() && self.switches == plan.switches {
            return;
        }
        plan.verify(round == Some(ReconcileReason::Periodic));
        self.switches.clone_from(&plan.switches);
        let off = SystemStrategy::default();
        let strategy = if view.facts.settings.gates.is_on(Gate::SystemConfig) {
            view.facts.slo.system()
        } else {
            &off
        };
        let (values, errors) = system_config::values(strategy, view.facts.memory_capacity());
        for error in errors {
            self.log.log_off(error.field, &error);
        }
        let subject = WriteSubject::Node {
            name: view.facts.node_name().to_owned(),
        };
        let mut push = |target: Target, value: i64| {
            let mut write = Write::to(Level::Node, target, QosClass::None).value(value);
            write.subject = subject.clone();
            write.reason = "systemConfig reconcile";
            plan.write(write);
        };
        for (switch, on) in &self.switches {
            push(Target::Sysctl(*switch), i64::from(*on));
        }
        for (setting, value) in values {
            let sysctl = sysctl(setting);
            if self.switches.iter().any(|(switch, _)| *switch == sysctl) {
                continue;
            }
            if view.kernel.has_sysctl(sysctl) {
                push(Target::Sysctl(sysctl), value);
            } else {
                let missing = format!("this kernel has no {}", sysctl.name());
                self.log.log_lack(sysctl.name(), &missing);
            }
        }
        for (name, on) in &strategy.sched_features {
            match name.parse::<SchedFeature>() {
                Ok(feature) if view.kernel.has_sched_feature(&feature) => {
                    push(Target::SchedFeature(feature), i64::from(*on));
                }
                Ok(feature) => {
                    let missing = format!("this kernel has no scheduler feature {feature}");
                    self.log.log_lack("schedFeatures", &missing);
                }
                Err(error) => self.log.log_off("schedFeatures", &error),
            }
        }
    }
}
