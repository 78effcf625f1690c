//! Gang specification, from its PodGroup or one of its pods.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use koord_api::duration::GoDuration;
use koord_api::extension::{GangMatchPolicy, GangMode, NetworkTopologySpec};
use koord_api::scheduling::PodGroup;
use koord_api::texts::Lookup as _;
use koord_api::{annotations, labels};
use std::sync::Arc;
use std::time::Duration;

/// Message for a minimum of 0. Upstream accepts such gangs, and users may depend on it.
const NO_MINIMUM: &str = "expected 1 or more: members are placed one by one";

/// Defaults for settings that neither PodGroup nor pod sets.
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// Time that members wait for the rest.
    pub wait: Duration,
    /// Members that count toward the minimum.
    pub policy: GangMatchPolicy,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(600),
            policy: GangMatchPolicy::OnceSatisfied,
        }
    }
}

/// Specification of a gang.
#[derive(Debug, Clone, PartialEq)]
pub struct GangDescription {
    /// Minimum number of members that start together.
    pub min: usize,
    /// Total number of members.
    pub total: usize,
    /// Treatment of members that have a node when another member has none.
    pub mode: GangMode,
    /// Members that count toward the minimum.
    pub policy: GangMatchPolicy,
    /// Time that members wait for the rest.
    pub wait: Duration,
    /// Ids of the gangs that are scheduled together, including this one, sorted.
    pub group: Vec<Arc<str>>,
    /// Network topology requirements, if any.
    pub topology: Option<Arc<NetworkTopologySpec>>,
    /// Creation time of the object that describes the gang.
    pub created: Option<Time>,
}

/// Value that was ignored because it is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// Label, annotation or field.
    pub key: &'static str,
    /// The value.
    pub value: String,
    /// Reason, and the value used instead.
    pub why: &'static str,
}

/// Object with labels and annotations.
pub trait HasMetadata {
    /// Returns the value of label `key`.
    fn label(&self, key: &str) -> Option<&str>;
    /// Returns the value of annotation `key`.
    fn annotation(&self, key: &str) -> Option<&str>;
    /// Returns the creation time.
    fn created(&self) -> Option<Time>;
}

impl HasMetadata for ObjectMeta {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.text(key)
    }
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.text(key)
    }
    fn created(&self) -> Option<Time> {
        self.creation_timestamp.clone()
    }
}

/// Returns the name of a pod's gang: from the PodGroup label, its deprecated form, or the annotation.
#[must_use]
pub fn gang_name(pod: &impl HasMetadata) -> Option<&str> {
    label(pod, labels::POD_GROUP)
        .or_else(|| label(pod, labels::POD_GROUP_DEPRECATED))
        .or_else(|| annotation(pod, annotations::GANG_NAME))
}

/// Returns true if the pod belongs to a PodGroup object, which alone describes the gang.
#[must_use]
pub fn has_pod_group(pod: &impl HasMetadata) -> bool {
    label(pod, labels::POD_GROUP).is_some()
}

/// Returns the id of the gang `name` in `namespace`.
#[must_use]
pub fn id(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}/{name}").into()
}

/// Parses the description of gang `id` by its pod. Without a valid minimum the pod describes nothing; other
/// invalid values are replaced by their defaults. Also returns the ignored values.
#[must_use]
pub fn from_pod(
    pod: &impl HasMetadata,
    id: &Arc<str>,
    defaults: &Defaults,
) -> (Option<GangDescription>, Vec<Ignored>) {
    let mut ignored = Vec::new();
    let light = labels::POD_GROUP_MIN_AVAILABLE_DEPRECATED;
    let minimum = match label(pod, light) {
        Some(value) => Some((light, value)),
        None => pod
            .annotation(annotations::GANG_MIN_AVAILABLE)
            .map(|value| (annotations::GANG_MIN_AVAILABLE, value)),
    };
    let Some((key, value)) = minimum else {
        ignored.push(Ignored {
            key: annotations::GANG_MIN_AVAILABLE,
            value: String::new(),
            why: "it is missing: the gang does not start before a member sets it",
        });
        return (None, ignored);
    };
    let Some(min) = number(value) else {
        ignored.push(Ignored {
            key,
            value: value.to_owned(),
            why: "not a whole number: the gang does not start before a member sets one",
        });
        return (None, ignored);
    };
    if min == 0 {
        ignored.push(Ignored {
            key,
            value: value.to_owned(),
            why: NO_MINIMUM,
        });
    }
    let mut wait = defaults.wait;
    let key = annotations::GANG_WAITING_TIME;
    if let Some(value) = annotation(pod, key) {
        match value.parse::<GoDuration>() {
            Ok(GoDuration::ZERO) => {}
            Ok(duration) if duration.to_std().is_some() => {
                wait = duration.to_std().unwrap_or(wait);
            }
            _ => ignored.push(Ignored {
                key,
                value: value.to_owned(),
                why: "not a positive duration such as 30s: the default is used",
            }),
        }
    }
    let spec = common(pod, id, min, wait, defaults, &mut ignored);
    (Some(spec), ignored)
}

/// Parses the description of gang `id` by its PodGroup. Also returns the ignored values.
#[must_use]
pub fn from_pod_group(
    group: &PodGroup,
    id: &Arc<str>,
    defaults: &Defaults,
) -> (GangDescription, Vec<Ignored>) {
    let mut ignored = Vec::new();
    let listed = group.spec.min_member.unwrap_or(0);
    let min = usize::try_from(listed).unwrap_or(0);
    if min == 0 {
        ignored.push(Ignored {
            key: "spec.minMember",
            value: listed.to_string(),
            why: NO_MINIMUM,
        });
    }
    let mut wait = defaults.wait;
    if let Some(seconds) = group.spec.schedule_timeout_seconds {
        match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => wait = Duration::from_secs(seconds),
            _ => ignored.push(Ignored {
                key: "spec.scheduleTimeoutSeconds",
                value: seconds.to_string(),
                why: "not positive: the default is used",
            }),
        }
    }
    let spec = common(&group.metadata, id, min, wait, defaults, &mut ignored);
    (spec, ignored)
}

/// Parses the annotations that PodGroups and pods share.
fn common(
    object: &impl HasMetadata,
    id: &Arc<str>,
    min: usize,
    wait: Duration,
    defaults: &Defaults,
    ignored: &mut Vec<Ignored>,
) -> GangDescription {
    let mut ignore = |key, value: &str, why| {
        ignored.push(Ignored {
            key,
            value: value.to_owned(),
            why,
        });
    };
    let mut total = min;
    let key = annotations::GANG_TOTAL_NUMBER;
    if let Some(value) = annotation(object, key) {
        match number(value) {
            Some(0) => {}
            Some(number) if number >= min => total = number,
            _ => ignore(
                key,
                value,
                "not a whole number of at least the minimum: the minimum is used",
            ),
        }
    }
    let mut mode = GangMode::Strict;
    let key = annotations::GANG_MODE;
    if let Some(value) = annotation(object, key) {
        match GangMode::from(value) {
            GangMode::Other(_) => {
                ignore(key, value, "neither Strict nor NonStrict: Strict is used")
            }
            valid => mode = valid,
        }
    }
    let mut policy = defaults.policy.clone();
    let key = annotations::GANG_MATCH_POLICY;
    let alias = annotations::GANG_MATCH_POLICY_ALIAS;
    let policy_value = annotation(object, key).map(|value| (key, value));
    if let Some((key, value)) =
        policy_value.or_else(|| annotation(object, alias).map(|value| (alias, value)))
    {
        match GangMatchPolicy::from(value) {
            GangMatchPolicy::Other(_) => ignore(
                key,
                value,
                "neither only-waiting, waiting-and-running nor once-satisfied: the default is used",
            ),
            valid => policy = valid,
        }
    }
    let mut group: Vec<Arc<str>> = Vec::new();
    let key = annotations::GANG_GROUPS;
    if let Some(value) = annotation(object, key) {
        match serde_json::from_str::<Option<Vec<String>>>(value) {
            Ok(ids) => group = ids.into_iter().flatten().map(Arc::from).collect(),
            Err(_) => ignore(
                key,
                value,
                "not a JSON list of namespace/name: the gang stands alone",
            ),
        }
        if !group.is_empty() && !group.contains(id) {
            ignore(key, value, "does not list the gang itself: it is added");
        }
    }
    group.push(id.clone());
    group.sort_unstable();
    group.dedup();
    let mut topology = None;
    let key = annotations::GANG_NETWORK_TOPOLOGY_SPEC;
    if let Some(value) = annotation(object, key) {
        match serde_json::from_str::<NetworkTopologySpec>(value) {
            Ok(spec) => topology = Some(Arc::new(spec)),
            Err(_) => ignore(
                key,
                value,
                "not a JSON object with a gatherStrategy: it is not used",
            ),
        }
    }
    GangDescription {
        min,
        total,
        mode,
        policy,
        wait,
        group,
        topology,
        created: object.created(),
    }
}

/// Parses a count. Negative ones count as 0.
fn number(text: &str) -> Option<usize> {
    let number = text.parse::<i32>().ok()?;
    Some(usize::try_from(number).unwrap_or(0))
}

fn label<'a>(of: &'a impl HasMetadata, key: &str) -> Option<&'a str> {
    of.label(key).filter(|value| !value.is_empty())
}

fn annotation<'a>(of: &'a impl HasMetadata, key: &str) -> Option<&'a str> {
    of.annotation(key).filter(|value| !value.is_empty())
}
