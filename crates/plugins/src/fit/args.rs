//! `NodeResourcesFitArgs`: arguments of the plugin and their validation.

use crate::common::args::invalid;
use crate::common::shape::Shape;
use koord_model::resources::percent;
use koord_scheduler::framework::BuildError;
use serde::Deserialize;

/// Arguments of `NodeResourcesFit`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    pub(super) scoring_strategy: ScoringStrategy,
}

/// The scoring strategy and the resources it scores.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ScoringStrategy {
    #[serde(rename = "type")]
    pub(super) kind: FitStrategy,
    pub(super) resources: Vec<FitResourceSpec>,
    requested_to_capacity_ratio: Option<Ratio>,
}

impl Default for ScoringStrategy {
    fn default() -> Self {
        let resources = ["cpu", "memory"]
            .map(|name| FitResourceSpec {
                name: name.to_owned(),
                weight: 1,
            })
            .to_vec();
        Self {
            kind: FitStrategy::default(),
            resources,
            requested_to_capacity_ratio: None,
        }
    }
}

/// A strategy for scoring the utilization of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum FitStrategy {
    #[default]
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio,
}

/// A resource and its weight; the weight defaults to 1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FitResourceSpec {
    pub(crate) name: String,
    #[serde(default = "default_weight")]
    pub(crate) weight: i64,
}

fn default_weight() -> i64 {
    1
}

/// The utilization shape of the RequestedToCapacityRatio strategy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Ratio {
    shape: Shape,
}

impl Args {
    /// Ignores `resources`, which extenders manage. If there are any, they replace the ignored resources of
    /// the arguments, as in kube-scheduler.
    pub(super) fn ignore_extender_resources(&mut self, resources: &[String]) {
        if !resources.is_empty() {
            self.ignored_resources = resources.to_vec();
        }
    }

    /// Returns true if the resource is ignored by name or by group.
    pub(super) fn ignores(&self, name: &str) -> bool {
        if self.ignored_resources.iter().any(|ignored| ignored == name) {
            return true;
        }
        let Some((group, _)) = name.split_once('/') else {
            return false;
        };
        self.ignored_resource_groups
            .iter()
            .any(|ignored| ignored == group)
    }

    /// Checks weights and the utilization shape.
    pub(super) fn validate(&self) -> Result<(), BuildError> {
        let reject = |field: &str, message: String| {
            Err(invalid(
                super::NAME,
                format!("args.scoringStrategy.{field}: {message}"),
            ))
        };
        for spec in &self.scoring_strategy.resources {
            if !(1..=100).contains(&spec.weight) {
                let field = format!("resources[{}].weight", spec.name);
                return reject(&field, format!("{} is not within 1 and 100", spec.weight));
            }
        }
        let strategy = &self.scoring_strategy;
        let field = "requestedToCapacityRatio.shape";
        let required = strategy.kind == FitStrategy::RequestedToCapacityRatio;
        let shape = strategy.requested_to_capacity_ratio.clone();
        let shape = shape.unwrap_or_default().shape;
        if (required || !shape.is_empty())
            && let Err(message) = shape.validate()
        {
            return reject(field, message);
        }
        Ok(())
    }
}

impl ScoringStrategy {
    /// Returns the score, 0 to 100, for `used` of `total`; `total` must not be 0.
    pub(super) fn score(&self, used: i64, total: i64) -> i64 {
        let percent = |part: i64| percent(part, total).unwrap_or(i64::MAX);
        match self.kind {
            FitStrategy::LeastAllocated if used > total => 0,
            FitStrategy::LeastAllocated => percent(total - used),
            FitStrategy::MostAllocated => percent(used.min(total)),
            FitStrategy::RequestedToCapacityRatio => {
                self.shaped(if used > total { 100 } else { percent(used) })
            }
        }
    }

    fn shaped(&self, utilization: i64) -> i64 {
        let ratio = self.requested_to_capacity_ratio.as_ref();
        ratio.map_or(0, |ratio| ratio.shape.at(utilization))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn strategy(value: serde_json::Value) -> ScoringStrategy {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn strategies_score_utilization() {
        let least = strategy(json!({"type": "LeastAllocated"}));
        assert_eq!([least.score(1, 4), least.score(5, 4)], [75, 0]);
        let most = strategy(json!({"type": "MostAllocated"}));
        assert_eq!([most.score(1, 4), most.score(5, 4)], [25, 100]);
        let shape = json!([{"utilization": 0, "score": 0}, {"utilization": 50, "score": 10},
            {"utilization": 100, "score": 4}]);
        let ratio = strategy(json!({
            "type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}
        }));
        let scores = [0, 25, 50, 75, 100, 200].map(|used| ratio.score(used, 100));
        assert_eq!(scores, [0, 50, 100, 70, 40, 40]);
    }

    #[test]
    fn invalid_arguments_are_reported() {
        for (value, expected) in [
            (
                json!({"scoringStrategy": {"resources": [{"name": "cpu", "weight": 0}]}}),
                "cpu",
            ),
            (
                json!({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}),
                "shape",
            ),
            (
                json!({"scoringStrategy": {"type": "Most"}}),
                "scoringStrategy.type",
            ),
            (json!({"ignoredResource": []}), "ignoredResource"),
        ] {
            let error = super::super::build(Some(&value), &Default::default())
                .err()
                .unwrap();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn resources_are_ignored_by_name_and_by_group() {
        let args: Args = serde_json::from_value(json!({
            "ignoredResources": ["example.com/a"], "ignoredResourceGroups": ["other.org"]
        }))
        .unwrap();
        assert!(args.ignores("example.com/a") && args.ignores("other.org/x"));
        assert!(!args.ignores("example.com/b") && !args.ignores("cpu"));
    }
}
