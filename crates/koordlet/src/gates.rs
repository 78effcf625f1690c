//! Feature gates, with upstream's names and defaults, and what each does here.
//!
//! Parsing and defaults are [`koord_app::features`]'s.

use koord_app::features;
use std::fmt;
use std::str::FromStr;

pub use koord_app::features::GateError;

/// What a gate that is open does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// All that upstream's does.
    Works,
    /// Less than upstream's; the text says what is missing.
    Partly(&'static str),
    /// Nothing; the text says why.
    Nothing(&'static str),
}

use Effect::{Nothing, Partly, Works};

const NOT_YET: Effect = Nothing("not built yet");

macro_rules! gates {
    ($($name:ident: $stage:ident, $default:literal, $effect:expr;)+) => {
        /// A feature gate.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "upstream's names; the table below says what they do")]
        pub enum Gate { $($name,)+ }

        impl Gate {
            /// Every gate, in the order of the help text.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name in `--feature-gates`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// What it does when it is open.
            #[must_use]
            pub fn effect(self) -> Effect {
                match self { $(Self::$name => $effect,)+ }
            }
        }

        /// Names, stages and defaults, in the order of [`Gate::ALL`].
        pub const GATES: &[features::Gate] = &[$(features::Gate {
            name: stringify!($name),
            stage: features::Stage::$stage,
            default: $default,
        },)+];
    };
}

// Name: stage, default; what an open gate does. Change the last column with what makes it true.
gates! {
    AuditEvents: Alpha, false, Works;
    AuditEventsHTTPHandler: Alpha, false, Works;
    BECPUSuppress: Beta, true, Works;
    BECPUManager: Alpha, false, NOT_YET;
    BECPUEvict: Alpha, false, NOT_YET;
    CPUEvict: Alpha, false, NOT_YET;
    CPUAllocatableEvict: Alpha, false, NOT_YET;
    BEMemoryEvict: Alpha, false, Works;
    MemoryEvict: Alpha, false, NOT_YET;
    MemoryAllocatableEvict: Alpha, false, NOT_YET;
    CPUBurst: Beta, true, NOT_YET;
    SystemConfig: Alpha, false, NOT_YET;
    RdtResctrl: Beta, true, NOT_YET;
    ResctrlCollector: Alpha, false, NOT_YET;
    CgroupReconcile: Alpha, false, NOT_YET;
    BlkIOReconcile: Alpha, false, NOT_YET;
    NodeTopologyReport: Beta, true, NOT_YET;
    Accelerators: Alpha, false, NOT_YET;
    RDMADevices: Alpha, false, NOT_YET;
    CPICollector: Alpha, false, NOT_YET;
    Libpfm4: Alpha, false, Nothing("perf events are read without the library");
    PSICollector: Alpha, false, Partly("pressure guides suppression with the gate closed, too; no metrics");
    ColdPageCollector: Alpha, false, Nothing("cold memory needs a kernel with kidled");
    HugePageReport: Alpha, false, NOT_YET;
    PodResourcesProxy: Alpha, false, NOT_YET;
    HamiCoreVGPUMonitor: Alpha, false, Nothing("HAMi's shared cache is not read");
    PerCPUMetric: Alpha, false, Works;
    NodeMetricPromMetrics: Alpha, false, Works;
    GroupIdentity: Beta, true, NOT_YET;
    CPUSetAllocator: Beta, true, NOT_YET;
    BatchResource: Beta, true, Works;
    GPUEnvInject: Alpha, false, NOT_YET;
    RDMADeviceInject: Alpha, false, NOT_YET;
    CPUNormalization: Alpha, false, NOT_YET;
    CoreSched: Alpha, false, NOT_YET;
    TerwayQoS: Alpha, false, Nothing("Terway is not supported");
    TCNetworkQoS: Alpha, false, Nothing("traffic control is not supported");
    Resctrl: Alpha, false, NOT_YET;
    OOMScoreAdj: Alpha, false, NOT_YET;
}

/// Which gates are open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gates(features::Gates);

impl Default for Gates {
    fn default() -> Self {
        Self(features::Gates::new(GATES))
    }
}

impl Gates {
    /// Whether `gate` is open.
    #[must_use]
    pub fn is_on(&self, gate: Gate) -> bool {
        self.0.enabled(gate.name())
    }

    /// Opens or closes `gate`.
    pub fn set(&mut self, gate: Gate, on: bool) {
        self.0.set(gate.name(), on);
    }

    /// The gates that are open and do less than upstream's, with what to say about each at start.
    pub fn lacking(&self) -> impl Iterator<Item = (Gate, &'static str)> + '_ {
        let open = Gate::ALL.iter().filter(|gate| self.is_on(**gate));
        open.filter_map(|gate| match gate.effect() {
            Works => None,
            Partly(text) | Nothing(text) => Some((*gate, text)),
        })
    }

    /// Says in the log which open gates do nothing, and which do less than upstream's.
    pub fn announce(&self) {
        let mut nothing: Vec<(&str, Vec<&str>)> = Vec::new();
        for (gate, why) in self.lacking() {
            if matches!(gate.effect(), Partly(_)) {
                tracing::warn!(gate = gate.name(), why, "gate has part of its effect");
                continue;
            }
            match nothing.iter_mut().find(|(known, _)| *known == why) {
                Some((_, gates)) => gates.push(gate.name()),
                None => nothing.push((why, vec![gate.name()])),
            }
        }
        for (why, gates) in nothing {
            tracing::warn!(gates = gates.join(","), why, "gates have no effect");
        }
    }
}

impl FromStr for Gates {
    type Err = GateError;

    /// Reads `A=true,B=false`. `AllAlpha` and `AllBeta` apply to every gate that is not named.
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
    fn open_gates_without_effect_are_told() {
        let names = |gates: &Gates| -> Vec<_> { gates.lacking().map(|(g, _)| g.name()).collect() };
        let mut gates: Gates = "AllAlpha=false,AllBeta=false".parse().unwrap();
        assert!(names(&gates).is_empty());
        for gate in [Gate::BatchResource, Gate::TCNetworkQoS, Gate::Libpfm4] {
            gates.set(gate, true);
        }
        assert_eq!(names(&gates), ["Libpfm4", "TCNetworkQoS"]);
    }
}
