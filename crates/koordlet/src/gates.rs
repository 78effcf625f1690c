//! Feature gates, with upstream's names and defaults.

use std::fmt;
use std::str::FromStr;

macro_rules! gates {
    ($($(#[$meta:meta])* $name:ident = $default:literal $beta:literal,)+) => {
        /// A feature gate.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "upstream's names; the effects are in docs/compat.md")]
        pub enum Gate { $($(#[$meta])* $name,)+ }

        impl Gate {
            /// Every gate, in the order of the help text.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name in `--feature-gates`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            fn default(self) -> bool {
                match self { $(Self::$name => $default,)+ }
            }

            fn is_beta(self) -> bool {
                match self { $(Self::$name => $beta,)+ }
            }
        }
    };
}

gates! {
    AuditEvents = false false,
    AuditEventsHTTPHandler = false false,
    BECPUSuppress = true true,
    BECPUManager = false false,
    BECPUEvict = false false,
    CPUEvict = false false,
    CPUAllocatableEvict = false false,
    BEMemoryEvict = false false,
    MemoryEvict = false false,
    MemoryAllocatableEvict = false false,
    CPUBurst = true true,
    SystemConfig = false false,
    RdtResctrl = true true,
    ResctrlCollector = false false,
    CgroupReconcile = false false,
    BlkIOReconcile = false false,
    NodeTopologyReport = true true,
    Accelerators = false false,
    RDMADevices = false false,
    CPICollector = false false,
    Libpfm4 = false false,
    PSICollector = false false,
    ColdPageCollector = false false,
    HugePageReport = false false,
    PodResourcesProxy = false false,
    HamiCoreVGPUMonitor = false false,
    PerCPUMetric = false false,
    NodeMetricPromMetrics = false false,
    GroupIdentity = true true,
    CPUSetAllocator = true true,
    BatchResource = true true,
    GPUEnvInject = false false,
    RDMADeviceInject = false false,
    CPUNormalization = false false,
    CoreSched = false false,
    TerwayQoS = false false,
    TCNetworkQoS = false false,
    Resctrl = false false,
    OOMScoreAdj = false false,
}

/// Which gates are open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gates(Vec<bool>);

impl Default for Gates {
    fn default() -> Self {
        Self(Gate::ALL.iter().map(|gate| gate.default()).collect())
    }
}

/// A `--feature-gates` entry that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// The gate does not exist.
    #[error("feature-gates: {0:?} is no feature gate of koordlet")]
    Unknown(String),
    /// The entry is not `name=true` or `name=false`.
    #[error("feature-gates: entry {0:?} must be <name>=true or <name>=false")]
    Malformed(String),
}

impl Gates {
    /// Whether `gate` is open.
    #[must_use]
    pub fn is_on(&self, gate: Gate) -> bool {
        self.0.get(gate as usize).copied().unwrap_or(false)
    }

    /// Opens or closes `gate`.
    pub fn set(&mut self, gate: Gate, on: bool) {
        if let Some(slot) = self.0.get_mut(gate as usize) {
            *slot = on;
        }
    }
}

impl FromStr for Gates {
    type Err = GateError;

    /// Reads `A=true,B=false`. `AllAlpha` and `AllBeta` apply to every gate that is not named.
    fn from_str(text: &str) -> Result<Self, GateError> {
        let mut gates = Self::default();
        let mut named = Vec::new();
        for entry in text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            let malformed = || GateError::Malformed(entry.to_owned());
            let (name, value) = entry.split_once('=').ok_or_else(malformed)?;
            let on = match value.trim().to_ascii_lowercase().as_str() {
                "true" | "t" | "1" => true,
                "false" | "f" | "0" => false,
                _ => return Err(malformed()),
            };
            match name.trim() {
                group @ ("AllAlpha" | "AllBeta") => {
                    for gate in Gate::ALL
                        .iter()
                        .filter(|g| g.is_beta() == (group == "AllBeta"))
                    {
                        gates.set(*gate, on);
                    }
                }
                name => {
                    let gate = Gate::ALL.iter().find(|gate| gate.name() == name);
                    let gate = gate.ok_or_else(|| GateError::Unknown(name.to_owned()))?;
                    named.push((*gate, on));
                }
            }
        }
        for (gate, on) in named {
            gates.set(gate, on);
        }
        Ok(gates)
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
    fn bad_entries_are_named() {
        for (text, want) in [
            (
                "Nonsense=true",
                "feature-gates: \"Nonsense\" is no feature gate of koordlet",
            ),
            (
                "CPUBurst",
                "feature-gates: entry \"CPUBurst\" must be <name>=true or <name>=false",
            ),
            (
                "CPUBurst=maybe",
                "feature-gates: entry \"CPUBurst=maybe\" must be <name>=true or <name>=false",
            ),
        ] {
            assert_eq!(text.parse::<Gates>().unwrap_err().to_string(), want);
        }
    }
}
