//! Validation of the configuration.

use super::{API_VERSION, ConfigError, Configuration, KIND};
use koord_kube::component_config::refuse;
use std::collections::HashSet;

impl Configuration {
    /// Validates values as kube-scheduler does.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.api_version != API_VERSION {
            let message = format!(
                "{:?} is not supported, use {API_VERSION:?}",
                self.api_version
            );
            return refuse("apiVersion", message);
        }
        if self.kind != KIND {
            return refuse("kind", format!("{:?} is not {KIND:?}", self.kind));
        }
        if self.parallelism <= 0 {
            return refuse(
                "parallelism",
                format!("{} must be above 0", self.parallelism),
            );
        }
        if self.pod_initial_backoff_seconds <= 0 {
            let message = format!("{} must be above 0", self.pod_initial_backoff_seconds);
            return refuse("podInitialBackoffSeconds", message);
        }
        if self.pod_max_backoff_seconds < self.pod_initial_backoff_seconds {
            let message = format!(
                "{} must not be below podInitialBackoffSeconds {}",
                self.pod_max_backoff_seconds, self.pod_initial_backoff_seconds
            );
            return refuse("podMaxBackoffSeconds", message);
        }
        self.validate_election()?;
        super::extender::validate(&self.extenders)?;
        percentage(
            "percentageOfNodesToScore",
            self.percentage_of_nodes_to_score,
        )?;
        self.validate_profiles()
    }

    fn validate_election(&self) -> Result<(), ConfigError> {
        let election = &self.leader_election;
        election.validate()?;
        if !election.leader_elect {
            return Ok(());
        }
        for (field, value) in [
            ("resourceName", &election.resource_name),
            ("resourceNamespace", &election.resource_namespace),
        ] {
            if value.is_empty() {
                return refuse(format!("leaderElection.{field}"), "must not be empty");
            }
        }
        Ok(())
    }

    /// Checks names, percentages and plugins of all profiles.
    fn validate_profiles(&self) -> Result<(), ConfigError> {
        let mut names = HashSet::new();
        for (at, profile) in self.profiles.iter().enumerate() {
            let path = format!("profiles[{at}]");
            let name = profile
                .scheduler_name
                .as_deref()
                .unwrap_or("default-scheduler");
            if name.is_empty() {
                return refuse(format!("{path}.schedulerName"), "must not be empty");
            }
            if !names.insert(name) {
                return refuse(
                    format!("{path}.schedulerName"),
                    format!("{name:?} is used twice"),
                );
            }
            let field = format!("{path}.percentageOfNodesToScore");
            percentage(&field, profile.percentage_of_nodes_to_score)?;
            for (point, set) in profile.plugins.sets() {
                let mut plugin_names = HashSet::new();
                for (entry, plugin) in set.enabled.iter().enumerate() {
                    if plugin.name.is_empty() || !plugin_names.insert(&plugin.name) {
                        let field = format!("{path}.plugins.{point}.enabled[{entry}].name");
                        let message = format!("{:?} is empty or enabled twice", plugin.name);
                        return refuse(field, message);
                    }
                }
            }
            let mut plugin_names = HashSet::new();
            for (entry, args) in profile.plugin_config.iter().enumerate() {
                if !plugin_names.insert(&args.name) {
                    let field = format!("{path}.pluginConfig[{entry}].name");
                    return refuse(field, format!("{:?} is configured twice", args.name));
                }
            }
        }
        Ok(())
    }
}

fn percentage(path: &str, value: Option<i32>) -> Result<(), ConfigError> {
    match value {
        Some(value) if !(0..=100).contains(&value) => {
            refuse(path, format!("{value} is not within 0 and 100"))
        }
        _ => Ok(()),
    }
}
