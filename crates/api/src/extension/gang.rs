//! Gang labels and annotations of a pod.

use crate::duration::{GoDuration, ParseDurationError};
use crate::serde_util::open_enum;
use crate::{annotations, labels};
use k8s_openapi::api::core::v1::Pod;

open_enum! {
    /// Treatment of members that have a node when another member has none.
    GangMode {
        /// Members with a node give it up.
        Strict = "Strict",
        /// Members with a node keep waiting.
        NonStrict = "NonStrict",
    }
}

open_enum! {
    /// Members that count toward the minimum.
    GangMatchPolicy {
        /// Members that wait at permit.
        OnlyWaiting = "only-waiting",
        /// Members that wait at permit or run.
        WaitingAndRunning = "waiting-and-running",
        /// Once the minimum was reached, it is not checked again.
        OnceSatisfied = "once-satisfied",
    }
}

/// Description of a gang by one of its pods.
#[derive(Debug, Clone, PartialEq)]
pub struct GangSpec {
    /// Name of the gang in the pod's namespace.
    pub name: String,
    /// Minimum number of members that start together; 0 if the pod does not set it.
    pub min_available: i64,
    /// Total number of members; the minimum if the pod does not set it.
    pub total_number: i64,
    /// Time that members wait for the rest; `None` means the default.
    pub waiting_time: Option<GoDuration>,
    /// Treatment of the others when a member finds no node.
    pub mode: GangMode,
    /// Members that count toward the minimum.
    pub match_policy: GangMatchPolicy,
    /// Gangs that are scheduled together, as `namespace/name`.
    pub groups: Vec<String>,
}

/// Error for a gang annotation or label with an invalid value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GangAnnotationError {
    /// The value is not a whole number of at least 0.
    #[error("{key} has value {value:?}: want a whole number of at least 0")]
    Number {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// The value is not a Go duration.
    #[error("{key}: {problem}")]
    Duration {
        /// The key.
        key: &'static str,
        /// The reason.
        problem: ParseDurationError,
    },
    /// The value is not a JSON list of `namespace/name`.
    #[error("{key} has value {value:?}: want a JSON list of namespace/name")]
    Groups {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
}

/// Returns the gang that a pod names by the PodGroup label, its deprecated form or the gang annotation, in
/// this order; `None` without any of them. The numbers only matter if there is no PodGroup object.
///
/// # Errors
/// A gang annotation has an invalid value.
pub fn gang_spec(pod: &Pod) -> Result<Option<GangSpec>, GangAnnotationError> {
    let label = |key: &str| {
        pod.metadata
            .labels
            .as_ref()?
            .get(key)
            .filter(|v| !v.is_empty())
    };
    let annotation = |key: &str| {
        pod.metadata
            .annotations
            .as_ref()?
            .get(key)
            .filter(|v| !v.is_empty())
    };
    let name = label(labels::POD_GROUP)
        .or_else(|| label(labels::POD_GROUP_DEPRECATED))
        .or_else(|| annotation(annotations::GANG_NAME));
    let Some(name) = name else { return Ok(None) };

    let number = |key: &'static str, value: Option<&String>| match value {
        None => Ok(None),
        Some(value) => match value.parse::<i64>() {
            Ok(number) if number >= 0 => Ok(Some(number)),
            _ => Err(GangAnnotationError::Number {
                key,
                value: value.clone(),
            }),
        },
    };
    let deprecated = labels::POD_GROUP_MIN_AVAILABLE_DEPRECATED;
    let min_available = match number(
        annotations::GANG_MIN_AVAILABLE,
        annotation(annotations::GANG_MIN_AVAILABLE),
    )? {
        Some(number) => number,
        None => number(deprecated, label(deprecated))?.unwrap_or(0),
    };
    let total_number = number(
        annotations::GANG_TOTAL_NUMBER,
        annotation(annotations::GANG_TOTAL_NUMBER),
    )?
    .unwrap_or(min_available);
    let waiting_time = annotation(annotations::GANG_WAITING_TIME)
        .map(|text| {
            text.parse()
                .map_err(|problem| GangAnnotationError::Duration {
                    key: annotations::GANG_WAITING_TIME,
                    problem,
                })
        })
        .transpose()?;
    let policy = annotation(annotations::GANG_MATCH_POLICY)
        .or_else(|| annotation(annotations::GANG_MATCH_POLICY_ALIAS));
    Ok(Some(GangSpec {
        name: name.clone(),
        min_available,
        total_number,
        waiting_time,
        mode: annotation(annotations::GANG_MODE)
            .map_or(GangMode::Strict, |mode| mode.as_str().into()),
        match_policy: policy.map_or(GangMatchPolicy::OnceSatisfied, |policy| {
            policy.as_str().into()
        }),
        groups: annotation(annotations::GANG_GROUPS)
            .map_or_else(|| Ok(Vec::new()), |text| gang_groups(text))?,
    }))
}

/// Parses annotation `gang.scheduling.koordinator.sh/groups`.
///
/// # Errors
/// The text is not a JSON list of `namespace/name`.
pub fn gang_groups(text: &str) -> Result<Vec<String>, GangAnnotationError> {
    serde_json::from_str::<Vec<String>>(text)
        .ok()
        .filter(|groups| groups.iter().all(|group| group.split('/').count() == 2))
        .ok_or_else(|| GangAnnotationError::Groups {
            key: annotations::GANG_GROUPS,
            value: text.to_owned(),
        })
}
