//! `NodeNUMAResourceArgs`: arguments of the plugin and their validation.

use crate::common::args::invalid;
use koord_model::cpuset::{BindPolicy, CpuStrategy};
use koord_model::resources::{Amounts, ResourceId, ResourceTable};
use koord_scheduler::framework::BuildError;
use serde::Deserialize;

/// Arguments of `NodeNUMAResource`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    #[serde(rename = "defaultCPUBindPolicy")]
    default_cpu_bind_policy: String,
    scoring_strategy: NumaScoring,
    numa_scoring_strategy: NumaScoring,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            default_cpu_bind_policy: BindPolicy::FullPCpus.as_str().to_owned(),
            scoring_strategy: NumaScoring::default(),
            numa_scoring_strategy: NumaScoring::default(),
        }
    }
}

/// A scoring strategy and the resources it scores.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct NumaScoring {
    #[serde(rename = "type")]
    kind: NumaStrategy,
    resources: Vec<NumaResourceSpec>,
}

impl Default for NumaScoring {
    fn default() -> Self {
        let resources = ["cpu", "memory"].map(|name| NumaResourceSpec {
            name: name.to_owned(),
            weight: 1,
        });
        Self {
            kind: NumaStrategy::default(),
            resources: resources.to_vec(),
        }
    }
}

/// A strategy for scoring utilization.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
enum NumaStrategy {
    #[default]
    LeastAllocated,
    MostAllocated,
}

/// A resource and its weight; the weight defaults to 1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NumaResourceSpec {
    name: String,
    #[serde(default = "default_weight")]
    weight: i64,
}

fn default_weight() -> i64 {
    1
}

/// Settings of one profile, computed from the plugin arguments.
#[derive(Debug, Clone)]
pub(super) struct NumaSettings {
    /// Bind policy of pods with bound CPUs that name none; `None` means that their CPUs are not bound.
    pub(super) bind: Option<BindPolicy>,
    /// Scoring strategy between nodes.
    pub(super) nodes: CpuStrategy,
    /// Scoring strategy between NUMA nodes.
    pub(super) numa: CpuStrategy,
    /// Resource names and weights, for both scores.
    pub(super) weights: Vec<(String, i64)>,
}

impl NumaSettings {
    /// Returns the resources that are scored for a pod with these requests, and their weights.
    pub(super) fn scored_resources(
        &self,
        requests: &Amounts,
        table: &ResourceTable,
    ) -> Vec<(ResourceId, i64)> {
        let numbered = self
            .weights
            .iter()
            .filter_map(|(name, weight)| Some((table.get(name)?, name, *weight)));
        let counts = |(id, name, _): &(ResourceId, &String, i64)| {
            requests.get(*id) != 0 || !is_extended(name)
        };
        let counted = numbered.filter(counts);
        counted.map(|(id, _, weight)| (id, weight)).collect()
    }
}

/// Returns true for extended resources, which count only for pods that request them.
fn is_extended(name: &str) -> bool {
    !matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pods")
}

impl Args {
    /// Validates the arguments and computes the settings.
    pub(super) fn settings(self) -> Result<NumaSettings, BuildError> {
        let bind = match self.default_cpu_bind_policy.as_str() {
            "" => None,
            "FullPCPUs" => Some(BindPolicy::FullPCpus),
            "SpreadByPCPUs" => Some(BindPolicy::SpreadByPCpus),
            other => {
                let message = format!("{other:?} is not one of FullPCPUs, SpreadByPCPUs");
                return reject("defaultCPUBindPolicy", &message);
            }
        };
        let strategies = [
            ("scoringStrategy", &self.scoring_strategy),
            ("numaScoringStrategy", &self.numa_scoring_strategy),
        ];
        for (field, strategy) in strategies {
            for spec in &strategy.resources {
                if !(1..=100).contains(&spec.weight) {
                    let field = format!("{field}.resources[{}].weight", spec.name);
                    return reject(&field, &format!("{} is not within 1 and 100", spec.weight));
                }
            }
        }
        if self.numa_scoring_strategy.resources != self.scoring_strategy.resources {
            tracing::warn!(
                plugin = super::NAME,
                "ignoring numaScoringStrategy.resources: NUMA nodes are scored by \
                 scoringStrategy.resources"
            );
        }
        let strategy = |scoring: &NumaScoring| match scoring.kind {
            NumaStrategy::LeastAllocated => CpuStrategy::LeastAllocated,
            NumaStrategy::MostAllocated => CpuStrategy::MostAllocated,
        };
        let weights = self.scoring_strategy.resources.iter();
        Ok(NumaSettings {
            bind,
            nodes: strategy(&self.scoring_strategy),
            numa: strategy(&self.numa_scoring_strategy),
            weights: weights
                .map(|spec| (spec.name.clone(), spec.weight))
                .collect(),
        })
    }
}

fn reject<T>(field: &str, message: &str) -> Result<T, BuildError> {
    Err(invalid(super::NAME, format!("args.{field}: {message}")))
}
