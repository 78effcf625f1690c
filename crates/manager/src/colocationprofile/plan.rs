//! Selects the pods that a profile is applied to, and limits the rate of updates.

use crate::facts::PodFacts;
use crate::webhook::profile::{self, Namespace, ProfileError};
use k8s_openapi::api::core::v1::Pod;
use koord_api::config::ClusterColocationProfile;
use koord_api::labels;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Returns true if the controller applies a profile: it has the label or `by_default` is set, and it is not
/// being deleted.
pub(super) fn is_managed(profile: &ClusterColocationProfile, by_default: bool) -> bool {
    let labels = profile.metadata.labels.as_ref();
    let has_label = labels
        .and_then(|all| all.get(labels::CONTROLLER_MANAGED))
        .is_some_and(|value| value == "true");
    profile.metadata.deletion_timestamp.is_none() && (by_default || has_label)
}

/// Returns true if a pod is pending and not bound to a node.
pub(super) fn is_pending(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let node_name = spec.and_then(|spec| spec.node_name.as_deref());
    let is_bound = node_name.is_some_and(|name| !name.is_empty());
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !is_bound && phase == Some("Pending")
}

/// Returns the pending pods that a profile selects, by selectors and probability, sorted by key. A profile
/// without a pod selector selects none; an unknown namespace does not match.
///
/// # Errors
/// A selector or the probability is invalid.
pub(super) fn pods(
    profile: &Arc<ClusterColocationProfile>,
    pods: &[Arc<PodFacts>],
    namespace: impl Fn(&str) -> Option<BTreeMap<String, String>>,
) -> Result<Vec<Arc<PodFacts>>, ProfileError> {
    if let Some(error) = profile::problems(profile).into_iter().next() {
        return Err(error);
    }
    if profile.spec.selector.is_none() {
        return Ok(Vec::new());
    }
    let percent = profile::percent(profile)?;
    let by_namespace = profile::needs_namespace(profile);
    let selected = |pod: &PodFacts| {
        let labels = by_namespace
            .then(|| namespace(&pod.key.namespace))
            .flatten();
        let namespace = labels
            .as_ref()
            .map_or(Namespace::Unknown, Namespace::Labels);
        let (matched, _) = profile::matching([profile.clone()], pod.labels(), namespace);
        !matched.is_empty()
    };
    let left_out = |pod: &PodFacts| {
        let uid = pod.uid().unwrap_or_default();
        profile::is_skipped(percent, || {
            profile::stable_percentage(uid, profile::name(profile))
        })
    };
    let waiting = pods.iter().filter(|pod| pod.node.is_empty() && pod.active);
    let mut chosen: Vec<_> = waiting
        .filter(|pod| selected(pod) && !left_out(pod))
        .cloned()
        .collect();
    chosen.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(chosen)
}

/// Returns the existing `pod` with the profile applied.
///
/// # Errors
/// The patch does not fit the pod.
pub(super) fn applied(
    profile: &ClusterColocationProfile,
    pod: &Value,
    merge: impl Fn(&Value, &Value) -> Result<Value, String>,
) -> Result<Value, String> {
    let mut new = pod.clone();
    profile::set_metadata(&mut new, &profile.spec).map_err(|error| error.to_string())?;
    match profile.spec.patch.as_ref().filter(|patch| !patch.is_null()) {
        Some(patch) => merge(&new, patch).map_err(|error| format!("spec.patch: {error}")),
        None => Ok(new),
    }
}

/// Token bucket that limits pod updates.
#[derive(Debug)]
pub(super) struct TokenBucket {
    per_second: f64,
    capacity: f64,
    tokens: f64,
    since: Option<Instant>,
}

impl TokenBucket {
    /// Creates a full bucket of `burst` tokens, refilled with `per_second` tokens a second.
    pub(super) fn new(per_second: f64, burst: u32) -> Self {
        let capacity = f64::from(burst);
        Self {
            per_second: per_second.max(0.0),
            capacity,
            tokens: capacity,
            since: None,
        }
    }

    /// Takes one token; returns false if none is available.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let passed = self
            .since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.tokens = (self.tokens + passed.as_secs_f64() * self.per_second).min(self.capacity);
        self.since = Some(now);
        let is_available = self.tokens >= 1.0;
        if is_available {
            self.tokens -= 1.0;
        }
        is_available
    }
}

/// Time of the last application, by resourceVersion of the profile and UID of the pod.
#[derive(Debug, Default)]
pub(super) struct AppliedVersions(HashMap<(String, String), Instant>);

impl AppliedVersions {
    /// Returns true if `version` was applied to the pod `uid` less than `keep` ago.
    pub(super) fn has(&self, version: &str, uid: &str, now: Instant, keep: Duration) -> bool {
        let applied = self.0.get(&(version.to_owned(), uid.to_owned()));
        applied.is_some_and(|applied| now.saturating_duration_since(*applied) < keep)
    }

    /// Records an application and drops entries older than `keep`.
    pub(super) fn add(&mut self, version: &str, uid: &str, now: Instant, keep: Duration) {
        self.0
            .retain(|_, at| now.saturating_duration_since(*at) < keep);
        self.0.insert((version.to_owned(), uid.to_owned()), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::FieldMask;
    use serde_json::json;

    fn profile(spec: Value, labels: Value) -> Arc<ClusterColocationProfile> {
        let profile = json!({"metadata": {"name": "p", "labels": labels}, "spec": spec});
        Arc::new(serde_json::from_value(profile).unwrap())
    }

    fn facts(namespace: &str, name: &str, phase: &str, node: &str) -> Arc<PodFacts> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": {"app": "x"}},
            "spec": {"containers": [], "nodeName": node},
            "status": {"phase": phase},
        }))
        .unwrap();
        Arc::new(PodFacts::from_pod(
            &pod,
            FieldMask {
                labels: true,
                uid: true,
                ..FieldMask::default()
            },
        ))
    }

    #[test]
    fn labeled_profiles_are_managed() {
        let labelled = json!({"config.koordinator.sh/controller-managed": "true"});
        let other = json!({"config.koordinator.sh/controller-managed": "yes"});
        assert!(is_managed(&profile(json!({}), labelled.clone()), false));
        assert!(!is_managed(&profile(json!({}), other.clone()), false));
        assert!(is_managed(&profile(json!({}), other), true));
        let mut going = profile(json!({}), labelled).as_ref().clone();
        going.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(!is_managed(&going, true));
    }

    /// Upstream's `TestReconciler_listPodsForProfile`, and the probability.
    #[test]
    fn waiting_pods_are_chosen() {
        let all = [
            facts("b", "waits", "Pending", ""),
            facts("a", "waits", "Pending", ""),
            facts("a", "bound", "Pending", "n1"),
            facts("a", "done", "Succeeded", ""),
        ];
        let chosen = |spec: Value| {
            let namespace =
                |name: &str| (name == "a").then(|| BTreeMap::from([("team".into(), "a".into())]));
            let chosen = pods(&profile(spec, json!({})), &all, namespace).unwrap();
            chosen
                .iter()
                .map(|pod| pod.key.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen(json!({})), [""; 0], "no selector selects nothing");
        assert_eq!(chosen(json!({"selector": {}})), ["a/waits", "b/waits"]);
        assert_eq!(
            chosen(json!({"selector": {"matchLabels": {"app": "y"}}})),
            [""; 0]
        );
        let app = json!({"matchLabels": {"app": "x"}});
        let team = json!({"matchLabels": {"team": "a"}});
        assert_eq!(
            chosen(json!({"selector": app, "namespaceSelector": {}})),
            ["a/waits", "b/waits"]
        );
        assert_eq!(
            chosen(json!({"selector": app, "namespaceSelector": team})),
            ["a/waits"]
        );
        assert_eq!(
            chosen(json!({"selector": {}, "probability": "0%"})),
            [""; 0]
        );
        let bad = profile(json!({"selector": {}, "probability": "x"}), json!({}));
        assert!(
            pods(&bad, &all, |_| None)
                .unwrap_err()
                .to_string()
                .contains("spec.probability")
        );
    }

    #[test]
    fn mutable_fields_are_applied() {
        let spec = json!({
            "selector": {}, "labels": {"a": "1"}, "labelSuffixes": {"b": "-x"}, "qosClass": "BE",
            "schedulerName": "other", "priorityClassName": "koord-batch", "patch": {"metadata": {"labels": {"c": "3"}}},
        });
        let pod = json!({
            "metadata": {"labels": {"b": "2"}},
            "spec": {"containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}}}]},
        });
        let merge = |pod: &Value, patch: &Value| {
            let mut pod = pod.clone();
            pod["metadata"]["labels"]["c"] = patch["metadata"]["labels"]["c"].clone();
            Ok(pod)
        };
        let profile = profile(spec, json!({}));
        let once = applied(&profile, &pod, merge).unwrap();
        let labels = json!({"a": "1", "b": "2-x", "c": "3", "koordinator.sh/qosClass": "BE"});
        assert_eq!(once["metadata"]["labels"], labels);
        assert_eq!(once["spec"], pod["spec"]);
        assert_eq!(
            applied(&profile, &once, merge).unwrap(),
            once,
            "a round later nothing changes"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn updates_are_rate_limited_and_recorded() {
        let mut budget = TokenBucket::new(10.0, 3);
        let start = Instant::now();
        let take_up_to_five =
            |budget: &mut TokenBucket, now| (0..5).filter(|_| budget.take(now)).count();
        assert_eq!(take_up_to_five(&mut budget, start), 3);
        assert_eq!(
            take_up_to_five(&mut budget, start + Duration::from_millis(250)),
            2
        );
        assert_eq!(
            take_up_to_five(&mut budget, start + Duration::from_secs(60)),
            3
        );

        let keep = Duration::from_secs(300);
        let mut applied = AppliedVersions::default();
        applied.add("7", "uid", start, keep);
        assert!(applied.has("7", "uid", start + Duration::from_secs(299), keep));
        assert!(!applied.has("7", "uid", start + keep, keep));
        assert!(
            !applied.has("8", "uid", start, keep),
            "a new version is applied at once"
        );
        applied.add("7", "other", start + keep, keep);
        assert_eq!(applied.0.len(), 1, "what is old is forgotten");
    }
}
