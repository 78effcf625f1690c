//! Feature gates, with upstream's names and defaults, and their effect here.
//!
//! Parsing and defaults are in [`koord_app::features`].
//!
//! Parsing and defaults are [`koord_app::features`]'s.

use koord_app::features;
use std::fmt;
use std::str::FromStr;

pub use koord_app::features::GateError;

/// Effect of an open gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The gate has upstream's full effect.
    Works,
    /// The gate has less than upstream's effect; the text describes what is missing.
    Partly(&'static str),
    /// The gate has no effect; the text has the reason.
    Nothing(&'static str),
}

use Effect::{Nothing, Partly, Works};

const NOT_YET: Effect = Nothing("not built yet");

macro_rules! gates {
    ($($name:ident: $stage:ident, $default:literal, $effect:expr;)+) => {
        /// A feature gate.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "upstream's names; the table below has their effects")]
        pub enum Gate { $($name,)+ }

        impl Gate {
            /// Every gate, in the order of the help text.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the name in `--feature-gates`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// Returns the effect of the gate when it is open.
            #[must_use]
            pub fn effect(self) -> Effect {
                match self { $(Self::$name => $effect,)+ }
            }
        }

        /// Names, stages and defaults, in the order of [`Gate::ALL`].
        pub const GATES: &[features::Gate] = &[$(features::Gate {
            name: stringify!($name),
            stage: features::FeatureStage::$stage,
            default: $default,
        },)+];
    };
}

// Name: stage, default; what an open gate does. Change the last column together with the code.
gates! {
    AuditEvents: Alpha, false, Works;
    AuditEventsHTTPHandler: Alpha, false, Works;
    BECPUSuppress: Beta, true, Works;
    BECPUManager: Alpha, false, Works;
    BECPUEvict: Alpha, false, Works;
    CPUEvict: Alpha, false, Works;
    CPUAllocatableEvict: Alpha, false, Works;
    BEMemoryEvict: Alpha, false, Works;
    MemoryEvict: Alpha, false, Works;
    MemoryAllocatableEvict: Alpha, false, Works;
    CPUBurst: Beta, true, Works;
    SystemConfig: Alpha, false, Works;
    RdtResctrl: Beta, true, Works;
    ResctrlCollector: Alpha, false, Works;
    CgroupReconcile: Alpha, false, Works;
    BlkIOReconcile: Alpha, false, Works;
    NodeTopologyReport: Beta, true, Works;
    Accelerators: Alpha, false, Partly("devices are reported; how much of a GPU is used is not measured");
    RDMADevices: Alpha, false, Works;
    CPICollector: Alpha, false, Works;
    Libpfm4: Alpha, false, Nothing("perf events are read without the library");
    PSICollector: Alpha, false, Works;
    ColdPageCollector: Alpha, false, Works;
    HugePageReport: Alpha, false, Works;
    PodResourcesProxy: Alpha, false, NOT_YET;
    HamiCoreVGPUMonitor: Alpha, false, Partly("containers get the directory of HAMi's shared cache, which is not read");
    PerCPUMetric: Alpha, false, Works;
    NodeMetricPromMetrics: Alpha, false, Works;
    GroupIdentity: Beta, true, Works;
    CPUSetAllocator: Beta, true, Works;
    BatchResource: Beta, true, Works;
    GPUEnvInject: Alpha, false, Works;
    RDMADeviceInject: Alpha, false, Works;
    CPUNormalization: Alpha, false, Works;
    CoreSched: Alpha, false, Works;
    TerwayQoS: Alpha, false, Nothing("Terway is not supported");
    TCNetworkQoS: Alpha, false, Nothing("traffic control is not supported");
    Resctrl: Alpha, false, Works;
    OOMScoreAdj: Alpha, false, Works;
}

/// State of all feature gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gates(features::Gates);

impl Default for Gates {
    fn default() -> Self {
        Self(features::Gates::new(GATES))
    }
}

impl Gates {
    /// Returns whether `gate` is open.
    #[must_use]
    pub fn is_on(&self, gate: Gate) -> bool {
        self.0.enabled(gate.name())
    }

    /// Opens or closes `gate`.
    pub fn set(&mut self, gate: Gate, on: bool) {
        self.0.set(gate.name(), on);
    }

    /// Returns the open gates that do less than upstream's, each with the text to log at start.
    pub fn limited_gates(&self) -> impl Iterator<Item = (Gate, &'static str)> + '_ {
        let open = Gate::ALL.iter().filter(|gate| self.is_on(**gate));
        open.filter_map(|gate| match gate.effect() {
            Works => None,
            Partly(text) | Nothing(text) => Some((*gate, text)),
        })
    }

    /// Logs the open gates that do nothing or less than upstream's; at warn level if they are not open by
    /// default.
    pub fn announce(&self) {
        let usual = Self::default();
        let mut nothing: Vec<(&str, Vec<&str>)> = Vec::new();
        for (gate, why) in self.limited_gates() {
            if usual.is_on(gate) {
                tracing::info!(
                    gate = gate.name(),
                    why,
                    "feature gate only partly supported, open by default"
                );
                continue;
            }
            if matches!(gate.effect(), Partly(_)) {
                tracing::warn!(
                    gate = gate.name(),
                    why,
                    "feature gate only partly supported"
                );
                continue;
            }
            match nothing.iter_mut().find(|(text, _)| *text == why) {
                Some((_, gates)) => gates.push(gate.name()),
                None => nothing.push((why, vec![gate.name()])),
            }
        }
        for (why, gates) in nothing {
            tracing::warn!(gates = gates.join(","), why, "feature gates have no effect");
        }
    }
}

impl FromStr for Gates {
    type Err = GateError;

    /// Parses `A=true,B=false`. `AllAlpha` and `AllBeta` apply to every gate that is not named.
    fn from_str(text: &str) -> Result<Self, GateError> {
        features::Gates::parse(GATES, text).map(Self)
    }
}

impl fmt::Display for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on: Vec<_> = Gate::ALL
            .iter()
            .filter(|gate| self.is_on(**gate))
            .map(|gate| gate.name())
            .collect();
        f.write_str(&on.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::table::{COLLECTORS, Demand};

    #[test]
    fn names_win_over_groups() {
        let gates: Gates = "BECPUSuppress=false,AllBeta=true, AllAlpha=true"
            .parse()
            .unwrap();
        assert!(!gates.is_on(Gate::BECPUSuppress));
        assert!(gates.is_on(Gate::BEMemoryEvict) && gates.is_on(Gate::BatchResource));
        assert!(!Gates::default().is_on(Gate::BEMemoryEvict));
    }

    #[test]
    fn defaults_are_upstreams() {
        assert_eq!(
            Gates::default().to_string(),
            "BECPUSuppress,CPUBurst,RdtResctrl,NodeTopologyReport,GroupIdentity,CPUSetAllocator,\
             BatchResource"
        );
        assert_eq!(Gate::ALL.len(), 39);
    }

    #[test]
    fn bad_entries_are_named() {
        for text in ["Nonsense=true", "CPUBurst", "CPUBurst=maybe"] {
            let error = text.parse::<Gates>().unwrap_err().to_string();
            let name = text.split('=').next().unwrap();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn gates_of_strategies_and_collectors_work() {
        let strategies = crate::qos::STRATEGIES.iter().flat_map(|row| row.gates);
        let collectors = COLLECTORS.iter().filter_map(|row| match &row.demand {
            Demand::Gate(gate) => Some(gate),
            _ => None,
        });
        for gate in strategies.chain(collectors) {
            assert!(!matches!(gate.effect(), Nothing(_)), "{}", gate.name());
        }
    }

    #[test]
    fn open_gates_without_effect_are_listed() {
        let names =
            |gates: &Gates| -> Vec<_> { gates.limited_gates().map(|(g, _)| g.name()).collect() };
        let mut gates: Gates = "AllAlpha=false,AllBeta=false".parse().unwrap();
        assert!(names(&gates).is_empty());
        for gate in [Gate::BatchResource, Gate::TCNetworkQoS, Gate::Libpfm4] {
            gates.set(gate, true);
        }
        assert_eq!(names(&gates), ["Libpfm4", "TCNetworkQoS"]);
    }
}
