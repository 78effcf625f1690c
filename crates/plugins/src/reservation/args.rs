//! `ReservationArgs`: arguments of the plugin and their validation.

use super::NAME;
use crate::common::args::invalid;
use koord_api::resources::is_extended;
use koord_api::{annotations, labels};
use koord_model::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, ResourceId, ResourceTable};
use koord_scheduler::framework::BuildError;
use serde::Deserialize;

/// Arguments of `Reservation`, with upstream's defaults.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    pub(super) enable_preemption: bool,
    pub(super) min_candidate_nodes_percentage: i32,
    pub(super) min_candidate_nodes_absolute: i32,
    controller_workers: i32,
    #[serde(rename = "gcDurationSeconds")]
    pub(super) gc_duration_seconds: i64,
    #[serde(rename = "gcIntervalSeconds")]
    pub(super) gc_interval_seconds: i64,
    pub(super) disable_garbage_collection: bool,
    resync_interval_seconds: i64,
    pub(super) pre_allocation_config: PreAllocationConfig,
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    reservation_selector_index: SelectorIndex,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            enable_preemption: false,
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
            controller_workers: 1,
            gc_duration_seconds: 86_400,
            gc_interval_seconds: 60,
            disable_garbage_collection: false,
            resync_interval_seconds: 60,
            pre_allocation_config: PreAllocationConfig::default(),
            ignored_resources: Vec::new(),
            ignored_resource_groups: Vec::new(),
            reservation_selector_index: SelectorIndex::default(),
        }
    }
}

/// Configuration of pre-allocation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct PreAllocationConfig {
    /// True if reservations may select any pod of the cluster that has the pre-allocation label.
    pub(super) enable_cluster_mode: bool,
    cluster_label_key: String,
    cluster_priority_annotation_key: String,
    /// True if no pods are absorbed on a node that is large enough without.
    pub(super) prefer_no_pre_allocated_pods: bool,
}

impl PreAllocationConfig {
    /// Returns the label that marks a pod as pre-allocatable with the value `"true"`.
    pub(super) fn label(&self) -> &str {
        Some(&*self.cluster_label_key)
            .filter(|key| !key.is_empty())
            .unwrap_or(labels::POD_PRE_ALLOCATABLE)
    }

    /// Returns the annotation with the pod's integer priority in pre-allocation; higher is tried first.
    pub(super) fn priority(&self) -> &str {
        Some(&*self.cluster_priority_annotation_key)
            .filter(|key| !key.is_empty())
            .unwrap_or(annotations::POD_PRE_ALLOCATABLE_PRIORITY)
    }
}

/// Upstream's label index of reservations; accepted but not needed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SelectorIndex {
    enabled: bool,
    #[allow(dead_code, reason = "accepted but unused: owners are always indexed")]
    key_prefixes: Vec<String>,
    #[allow(dead_code, reason = "accepted but unused: owners are always indexed")]
    keys: Vec<String>,
}

impl Args {
    /// Parses and validates the arguments, and logs unsupported settings.
    pub(super) fn parse(value: Option<&serde_json::Value>) -> Result<Self, BuildError> {
        let args: Self = crate::common::args::decode(NAME, value)?;
        args.validate()?;
        for setting in args.unsupported() {
            tracing::warn!(
                plugin = NAME,
                setting,
                "ignoring setting: not supported yet"
            );
        }
        Ok(args)
    }

    /// Logs settings of a further profile that differ from the first profile's, whose values apply: the
    /// controller works without regard to profiles.
    pub(super) fn warn_about_other_profiles(&self, first: &Self, profile: &str) {
        let controls = [
            (
                self.gc_duration_seconds != first.gc_duration_seconds,
                "gcDurationSeconds",
            ),
            (
                self.gc_interval_seconds != first.gc_interval_seconds,
                "gcIntervalSeconds",
            ),
            (
                self.disable_garbage_collection != first.disable_garbage_collection,
                "disableGarbageCollection",
            ),
        ];
        for (_, setting) in controls.into_iter().filter(|(differs, _)| *differs) {
            crate::common::args::warn_set_by_first_profile(NAME, profile, setting);
        }
    }

    /// Validates the arguments.
    pub(super) fn validate(&self) -> Result<(), BuildError> {
        let percentage = self.min_candidate_nodes_percentage;
        if !(0..=100).contains(&percentage) {
            let message =
                format!("minCandidateNodesPercentage: {percentage} is not within 0 and 100");
            return Err(invalid(NAME, message));
        }
        for (field, value) in [
            (
                "minCandidateNodesAbsolute",
                i64::from(self.min_candidate_nodes_absolute),
            ),
            ("controllerWorkers", i64::from(self.controller_workers)),
            ("gcDurationSeconds", self.gc_duration_seconds),
            ("gcIntervalSeconds", self.gc_interval_seconds),
            ("resyncIntervalSeconds", self.resync_interval_seconds),
        ] {
            if value < 0 {
                return Err(invalid(NAME, format!("{field}: {value} is negative")));
            }
        }
        let no_nodes = percentage == 0 && self.min_candidate_nodes_absolute == 0;
        if self.enable_preemption && no_nodes {
            let message = "minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be 0 \
                           with enablePreemption: true";
            return Err(invalid(NAME, message.to_owned()));
        }
        for (at, name) in self.ignored_resources.iter().enumerate() {
            if !is_extended(name) {
                let message =
                    format!("ignoredResources[{at}]: {name:?} is not an extended resource");
                return Err(invalid(NAME, message));
            }
        }
        for (at, group) in self.ignored_resource_groups.iter().enumerate() {
            if group.contains('/') || !is_extended(&format!("{group}/x")) {
                let message = format!(
                    "ignoredResourceGroups[{at}]: {group:?} is not a prefix of extended resources"
                );
                return Err(invalid(NAME, message));
            }
        }
        Ok(())
    }

    /// Returns the settings that are accepted but not supported.
    pub(super) fn unsupported(&self) -> Vec<&'static str> {
        let set = [(
            self.reservation_selector_index.enabled,
            "reservationSelectorIndex.enabled",
        )];
        set.into_iter()
            .filter(|(on, _)| *on)
            .map(|(_, name)| name)
            .collect()
    }

    /// Returns true if the fit check of reservations skips this resource. Native resources are never skipped.
    pub(super) fn ignores(&self, id: ResourceId, table: &ResourceTable) -> bool {
        if (self.ignored_resources.is_empty() && self.ignored_resource_groups.is_empty())
            || matches!(id, CPU | MEMORY | EPHEMERAL_STORAGE)
        {
            return false;
        }
        let name = table.name(id);
        let group = name.split_once('/').map(|(group, _)| group);
        self.ignored_resources
            .iter()
            .any(|ignored| **ignored == *name)
            || group.is_some_and(|group| self.ignored_resource_groups.iter().any(|g| g == group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(args: Value) -> Result<Args, String> {
        let args: Args =
            crate::common::args::decode(NAME, Some(&args)).map_err(|e| e.to_string())?;
        args.validate().map_err(|e| e.to_string())?;
        Ok(args)
    }

    #[test]
    fn mistakes_name_the_field_and_the_value() {
        for (args, expected) in [
            (
                json!({"minCandidateNodesPercentage": -1}),
                "-1 is not within",
            ),
            (
                json!({"minCandidateNodesPercentage": 101}),
                "101 is not within",
            ),
            (
                json!({"minCandidateNodesAbsolute": -1}),
                "minCandidateNodesAbsolute: -1",
            ),
            (
                json!({"enablePreemption": true, "minCandidateNodesPercentage": 0,
                    "minCandidateNodesAbsolute": 0}),
                "cannot both be 0",
            ),
            (json!({"gcDurationSeconds": -3}), "gcDurationSeconds: -3"),
            (json!({"gcIntervalSeconds": -3}), "gcIntervalSeconds: -3"),
            (
                json!({"resyncIntervalSeconds": -2}),
                "resyncIntervalSeconds: -2",
            ),
            (
                json!({"ignoredResources": ["cpu"]}),
                "ignoredResources[0]: \"cpu\"",
            ),
            (
                json!({"ignoredResources": ["a.com/x", "hugepages-2Mi"]}),
                "ignoredResources[1]",
            ),
            (
                json!({"ignoredResources": ["kubernetes.io/batch-cpu"]}),
                "ignoredResources[0]",
            ),
            (
                json!({"ignoredResourceGroups": ["a.com/x"]}),
                "ignoredResourceGroups[0]",
            ),
            (
                json!({"ignoredResourceGroups": ["kubernetes.io"]}),
                "ignoredResourceGroups[0]",
            ),
            (
                json!({"ignoredResourceGroups": ["A_b"]}),
                "ignoredResourceGroups[0]: \"A_b\"",
            ),
            (json!({"preAllocationConfig": {"nope": 1}}), "nope"),
        ] {
            let error = check(args.clone()).unwrap_err();
            assert!(error.contains(expected), "{args}: {error}");
        }
    }

    #[test]
    fn unsupported_settings_are_accepted_and_listed() {
        assert!(check(json!({})).unwrap().unsupported().is_empty());
        let index = json!({"enabled": true, "keys": ["team"]});
        let args = check(json!({ "reservationSelectorIndex": index })).unwrap();
        assert_eq!(args.unsupported(), ["reservationSelectorIndex.enabled"]);
    }

    #[test]
    fn extended_resources_are_ignored_by_name_or_group() {
        let table = ResourceTable::new();
        let args =
            check(json!({"ignoredResources": ["a.com/x"], "ignoredResourceGroups": ["b.com"]}))
                .unwrap();
        for (name, ignored) in [
            ("a.com/x", true),
            ("a.com/y", false),
            ("b.com/z", true),
            ("cpu", false),
        ] {
            assert_eq!(args.ignores(table.intern(name), &table), ignored, "{name}");
        }
    }
}
