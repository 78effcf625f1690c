//! Feature gates: named switches with a stage and a default.

use std::collections::BTreeMap;

/// Maturity of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureStage {
    /// Off by default; `AllAlpha` switches all gates of this stage.
    Alpha,
    /// Usually on by default; `AllBeta` switches all gates of this stage.
    Beta,
    /// Finished; cannot be switched off.
    Stable,
}

/// A feature gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// The name on the command line.
    pub name: &'static str,
    /// Maturity of the feature: alpha, beta or stable.
    pub stage: FeatureStage,
    /// True if it is on by default.
    pub default: bool,
}

impl Gate {
    /// Creates an alpha gate.
    #[must_use]
    pub const fn alpha(name: &'static str, default: bool) -> Self {
        Self {
            name,
            stage: FeatureStage::Alpha,
            default,
        }
    }

    /// Creates a beta gate.
    #[must_use]
    pub const fn beta(name: &'static str, default: bool) -> Self {
        Self {
            name,
            stage: FeatureStage::Beta,
            default,
        }
    }
}

/// An error in a `--feature-gates` value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// The gate does not exist.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// The entry is not `name=bool`.
    #[error("feature gate {0:?}: missing bool value")]
    NoValue(String),
    /// The value is no boolean.
    #[error("feature gate {name}: invalid value {value:?}, must be true or false")]
    Value {
        /// The gate.
        name: String,
        /// The given value.
        value: String,
    },
    /// A stable gate cannot be switched off.
    #[error("feature gate {0}: cannot be set to false, the feature is stable")]
    Locked(String),
}

/// The gates of a component and how they are set. Clones are independent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gates {
    table: &'static [Gate],
    set: BTreeMap<&'static str, bool>,
}

impl Gates {
    /// Returns all gates at their defaults.
    #[must_use]
    pub fn new(table: &'static [Gate]) -> Self {
        Self {
            table,
            set: BTreeMap::new(),
        }
    }

    /// Parses `A=true,B=false,AllAlpha=true`; the other gates have their defaults.
    ///
    /// # Errors
    ///
    /// Names the gate that is unknown or whose value is not a boolean.
    pub fn parse(table: &'static [Gate], text: &str) -> Result<Self, GateError> {
        let mut gates = Self::new(table);
        let mut groups = Vec::new();
        for entry in crate::flags::list(text) {
            let Some((name, value)) = entry.split_once('=') else {
                return Err(GateError::NoValue(entry));
            };
            let (name, value) = (name.trim(), value.trim());
            let on = crate::flags::boolean(value).map_err(|_| GateError::Value {
                name: name.to_owned(),
                value: value.to_owned(),
            })?;
            match name {
                "AllAlpha" => groups.push((FeatureStage::Alpha, on)),
                "AllBeta" => groups.push((FeatureStage::Beta, on)),
                _ => {
                    let gate = table.iter().find(|gate| gate.name == name);
                    let gate = gate.ok_or_else(|| GateError::Unknown(name.to_owned()))?;
                    if gate.stage == FeatureStage::Stable && !on {
                        return Err(GateError::Locked(name.to_owned()));
                    }
                    gates.set.insert(gate.name, on);
                }
            }
        }
        // A gate that is named wins over its group, wherever it stands.
        for (stage, on) in groups {
            for gate in table.iter().filter(|gate| gate.stage == stage) {
                gates.set.entry(gate.name).or_insert(on);
            }
        }
        Ok(gates)
    }

    /// Returns whether a gate is on. An unknown one is off.
    #[must_use]
    pub fn enabled(&self, name: &str) -> bool {
        self.set.get(name).copied().unwrap_or_else(|| {
            self.table
                .iter()
                .any(|gate| gate.name == name && gate.default)
        })
    }

    /// Switches `name` on or off; an unknown name changes nothing.
    pub fn set(&mut self, name: &str, on: bool) {
        if let Some(gate) = self.table.iter().find(|gate| gate.name == name) {
            self.set.insert(gate.name, on);
        }
    }

    /// Returns all gates and whether they are on, in table order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Gate, bool)> + '_ {
        self.table
            .iter()
            .map(|gate| (gate, self.enabled(gate.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Gate] = &[
        Gate::alpha("Young", false),
        Gate::alpha("Bold", true),
        Gate::beta("Known", true),
        Gate {
            name: "Done",
            stage: FeatureStage::Stable,
            default: true,
        },
    ];

    fn on(text: &str) -> Vec<&'static str> {
        let gates = Gates::parse(TABLE, text).unwrap();
        gates
            .iter()
            .filter(|(_, on)| *on)
            .map(|(gate, _)| gate.name)
            .collect()
    }

    #[test]
    fn gates_follow_default_group_and_name() {
        assert_eq!(on(""), ["Bold", "Known", "Done"]);
        assert_eq!(on("Young=true,Known=false"), ["Young", "Bold", "Done"]);
        assert_eq!(on("Bold=false,AllAlpha=true"), ["Young", "Known", "Done"]);
        assert_eq!(on("AllBeta=false"), ["Bold", "Done"]);
        assert!(!Gates::new(TABLE).enabled("Nope"));
        let mut gates = Gates::new(TABLE);
        gates.set("Young", true);
        gates.set("Nope", true);
        assert!(gates.enabled("Young") && !gates.enabled("Nope"));
    }

    #[test]
    fn mistakes_name_the_gate() {
        let error = |text| Gates::parse(TABLE, text).unwrap_err().to_string();
        assert_eq!(error("Nope=true"), "unrecognized feature gate: Nope");
        assert!(error("Young").contains("Young"));
        assert!(error("Young=yes").contains("Young") && error("Young=yes").contains("yes"));
        assert!(error("Done=false").contains("Done"));
    }
}
