//! `NodeResourcesFitArgs`.

use crate::args::invalid;
use koord_scheduler::framework::BuildError;
use serde::Deserialize;

/// The plugin's arguments.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    pub(super) scoring_strategy: ScoringStrategy,
}

/// How full nodes should be.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ScoringStrategy {
    #[serde(rename = "type")]
    pub(super) kind: Strategy,
    pub(super) resources: Vec<ResourceSpec>,
    requested_to_capacity_ratio: Option<Ratio>,
}

impl Default for ScoringStrategy {
    fn default() -> Self {
        let resources = ["cpu", "memory"]
            .map(|name| ResourceSpec {
                name: name.to_owned(),
                weight: 1,
            })
            .to_vec();
        Self {
            kind: Strategy::default(),
            resources,
            requested_to_capacity_ratio: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum Strategy {
    #[default]
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio,
}

/// A resource and its weight, 1 when not given.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ResourceSpec {
    pub(crate) name: String,
    #[serde(default = "one")]
    pub(crate) weight: i64,
}

fn one() -> i64 {
    1
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Ratio {
    shape: Vec<Point>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Point {
    utilization: i64,
    score: i64,
}

impl Args {
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

    pub(super) fn validate(&self) -> Result<(), BuildError> {
        let refuse = |field: &str, message: String| {
            Err(invalid(
                super::NAME,
                format!("args.scoringStrategy.{field}: {message}"),
            ))
        };
        for spec in &self.scoring_strategy.resources {
            if !(1..=100).contains(&spec.weight) {
                let field = format!("resources[{}].weight", spec.name);
                return refuse(&field, format!("{} is not within 1 and 100", spec.weight));
            }
        }
        let shape = self.scoring_strategy.requested_to_capacity_ratio.as_ref();
        let points = shape
            .map(|ratio| ratio.shape.as_slice())
            .unwrap_or_default();
        let field = "requestedToCapacityRatio.shape";
        if self.scoring_strategy.kind == Strategy::RequestedToCapacityRatio && points.is_empty() {
            return refuse(field, "must have at least one point".to_owned());
        }
        for point in points {
            if !(0..=100).contains(&point.utilization) || !(0..=10).contains(&point.score) {
                let message = format!(
                    "utilization {} must be within 0 and 100, score {} within 0 and 10",
                    point.utilization, point.score
                );
                return refuse(field, message);
            }
        }
        if points
            .windows(2)
            .any(|pair| pair[0].utilization >= pair[1].utilization)
        {
            return refuse(
                field,
                "utilization must rise from point to point".to_owned(),
            );
        }
        Ok(())
    }
}

impl ScoringStrategy {
    /// 0..=100 for `used` of `total`, which is not 0.
    pub(super) fn score(&self, used: i64, total: i64) -> i64 {
        let percent = |part: i64| {
            i64::try_from(i128::from(part) * 100 / i128::from(total)).unwrap_or(i64::MAX)
        };
        match self.kind {
            Strategy::LeastAllocated if used > total => 0,
            Strategy::LeastAllocated => percent(total - used),
            Strategy::MostAllocated => percent(used.min(total)),
            Strategy::RequestedToCapacityRatio => {
                self.shaped(if used > total { 100 } else { percent(used) })
            }
        }
    }

    /// Piecewise linear between the points, flat outside them; scores are given in tenths.
    fn shaped(&self, utilization: i64) -> i64 {
        let Some(ratio) = &self.requested_to_capacity_ratio else {
            return 0;
        };
        let mut before: Option<Point> = None;
        for point in &ratio.shape {
            if utilization <= point.utilization {
                let Some(last) = before else {
                    return point.score * 10;
                };
                let rise = (point.score - last.score) * 10;
                let run = point.utilization - last.utilization;
                return last.score * 10 + rise * (utilization - last.utilization) / run;
            }
            before = Some(*point);
        }
        before.map_or(0, |last| last.score * 10)
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
    fn strategies_score_what_is_used() {
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
    fn bad_arguments_are_named() {
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
