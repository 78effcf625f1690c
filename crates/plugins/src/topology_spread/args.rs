//! `PodTopologySpreadArgs`.

use super::NAME;
use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use koord_scheduler::framework::BuildError;
use serde::Deserialize;
use serde_json::Value;

/// Source of the default constraints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) enum Defaulting {
    /// Built-in constraints: hosts and zones, preferred.
    #[default]
    System,
    /// The list in the arguments.
    List,
}

/// PodTopologySpreadArgs, with kube-scheduler's defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    default_constraints: Vec<TopologySpreadConstraint>,
    defaulting_type: Defaulting,
}

impl Args {
    pub(super) fn decode(value: Option<&Value>) -> Result<Self, BuildError> {
        let args: Self = crate::common::args::decode(NAME, value)?;
        args.validate()
            .map_err(|message| crate::common::args::invalid(NAME, message))?;
        Ok(args)
    }

    pub(super) fn is_system(&self) -> bool {
        self.defaulting_type == Defaulting::System
    }

    /// Returns the constraints of pods that have none.
    pub(super) fn constraints(&self) -> Vec<TopologySpreadConstraint> {
        if !self.is_system() {
            return self.default_constraints.clone();
        }
        let soft = |key: &str, max_skew| TopologySpreadConstraint {
            topology_key: key.to_owned(),
            max_skew,
            when_unsatisfiable: super::SCHEDULE_ANYWAY.to_owned(),
            ..TopologySpreadConstraint::default()
        };
        vec![
            soft(super::HOSTNAME, 3),
            soft("topology.kubernetes.io/zone", 5),
        ]
    }

    /// Validates the default constraints.
    fn validate(&self) -> Result<(), String> {
        if self.is_system() && !self.default_constraints.is_empty() {
            return Err("defaultingType: \"System\" cannot have defaultConstraints".to_owned());
        }
        for (at, constraint) in self.default_constraints.iter().enumerate() {
            let field = |name: &str| format!("defaultConstraints[{at}].{name}");
            let TopologySpreadConstraint {
                max_skew,
                topology_key,
                when_unsatisfiable,
                label_selector,
                ..
            } = constraint;
            if *max_skew <= 0 {
                return Err(format!("{}: {max_skew} is not positive", field("maxSkew")));
            }
            if topology_key.is_empty() {
                return Err(format!("{}: \"\" is empty", field("topologyKey")));
            }
            if ![super::DO_NOT_SCHEDULE, super::SCHEDULE_ANYWAY]
                .contains(&when_unsatisfiable.as_str())
            {
                let field = field("whenUnsatisfiable");
                return Err(format!("{field}: {when_unsatisfiable:?} is not supported"));
            }
            if label_selector.is_some() {
                return Err(format!(
                    "{}: a selector is not allowed here",
                    field("labelSelector")
                ));
            }
            let is_duplicate = |other: &TopologySpreadConstraint| {
                other.topology_key == *topology_key
                    && other.when_unsatisfiable == *when_unsatisfiable
            };
            if self.default_constraints[..at].iter().any(is_duplicate) {
                let field = field("topologyKey");
                return Err(format!(
                    "{field}: {topology_key:?} with {when_unsatisfiable:?} is listed twice"
                ));
            }
        }
        Ok(())
    }
}
