//! What a gang asks for, as its PodGroup or one of its pods says.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use koord_api::duration::GoDuration;
use koord_api::extension::{GangMatchPolicy, GangMode, NetworkTopologySpec};
use koord_api::scheduling::PodGroup;
use koord_api::texts::Lookup as _;
use koord_api::{annotations, labels};
use std::sync::Arc;
use std::time::Duration;

/// Upstream takes such gangs as they are, and some may depend on it.
const NO_MINIMUM: &str = "expected 1 or more: members are placed one by one";

/// What applies where neither PodGroup nor pod says anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// How long members wait for the rest.
    pub wait: Duration,
    /// Which members count.
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

/// What a gang asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Members that must start together.
    pub min: usize,
    /// Members in all.
    pub total: usize,
    /// What happens to members that found a node when another did not.
    pub mode: GangMode,
    /// Which members count.
    pub policy: GangMatchPolicy,
    /// How long members wait for the rest.
    pub wait: Duration,
    /// Ids of the gangs that start together, this one included, sorted.
    pub group: Vec<Arc<str>>,
    /// How it wants to be gathered in the network topology, if it does.
    pub topology: Option<Arc<NetworkTopologySpec>>,
    /// When the object that says all this was created.
    pub created: Option<Time>,
}

/// A value that could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// The label, annotation or field.
    pub key: &'static str,
    /// What it says.
    pub value: String,
    /// What is wrong with it, and what is used in its place.
    pub why: &'static str,
}

/// What has labels and annotations.
pub trait Noted {
    /// The value of label `key`.
    fn label(&self, key: &str) -> Option<&str>;
    /// The value of annotation `key`.
    fn annotation(&self, key: &str) -> Option<&str>;
    /// When it was created.
    fn created(&self) -> Option<Time>;
}

impl Noted for ObjectMeta {
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

/// The gang's name of a pod: by the PodGroup label, its lightweight form, or the annotation.
#[must_use]
pub fn name_of(pod: &impl Noted) -> Option<&str> {
    label(pod, labels::POD_GROUP)
        .or_else(|| label(pod, labels::POD_GROUP_DEPRECATED))
        .or_else(|| annotation(pod, annotations::GANG_NAME))
}

/// Whether the pod belongs to a PodGroup object, whose word alone counts.
#[must_use]
pub fn has_pod_group(pod: &impl Noted) -> bool {
    label(pod, labels::POD_GROUP).is_some()
}

/// The id of the gang `name` in `namespace`, and of its pods.
#[must_use]
pub fn id(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}/{name}").into()
}

/// The gang `id` as its pod describes it. Without a usable minimum the pod describes nothing; other
/// unusable values are replaced by their defaults.
#[must_use]
pub fn of_pod(
    pod: &impl Noted,
    id: &Arc<str>,
    defaults: &Defaults,
) -> (Option<Spec>, Vec<Ignored>) {
    let mut ignored = Vec::new();
    let light = labels::POD_GROUP_MIN_AVAILABLE_DEPRECATED;
    let said = match label(pod, light) {
        Some(value) => Some((light, value)),
        None => pod
            .annotation(annotations::GANG_MIN_AVAILABLE)
            .map(|value| (annotations::GANG_MIN_AVAILABLE, value)),
    };
    let Some((key, value)) = said else {
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

/// The gang `id` as its PodGroup describes it.
#[must_use]
pub fn of_pod_group(group: &PodGroup, id: &Arc<str>, defaults: &Defaults) -> (Spec, Vec<Ignored>) {
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

/// What PodGroups and pods say in the same annotations.
fn common(
    object: &impl Noted,
    id: &Arc<str>,
    min: usize,
    wait: Duration,
    defaults: &Defaults,
    ignored: &mut Vec<Ignored>,
) -> Spec {
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
            known => mode = known,
        }
    }
    let mut policy = defaults.policy.clone();
    let key = annotations::GANG_MATCH_POLICY;
    let alias = annotations::GANG_MATCH_POLICY_ALIAS;
    let said = annotation(object, key).map(|value| (key, value));
    if let Some((key, value)) =
        said.or_else(|| annotation(object, alias).map(|value| (alias, value)))
    {
        match GangMatchPolicy::from(value) {
            GangMatchPolicy::Other(_) => ignore(
                key,
                value,
                "neither only-waiting, waiting-and-running nor once-satisfied: the default is used",
            ),
            known => policy = known,
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
    Spec {
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

/// A count; negative ones mean none, as no gang can have fewer.
fn number(text: &str) -> Option<usize> {
    let number = text.parse::<i32>().ok()?;
    Some(usize::try_from(number).unwrap_or(0))
}

fn label<'a>(of: &'a impl Noted, key: &str) -> Option<&'a str> {
    of.label(key).filter(|value| !value.is_empty())
}

fn annotation<'a>(of: &'a impl Noted, key: &str) -> Option<&'a str> {
    of.annotation(key).filter(|value| !value.is_empty())
}
