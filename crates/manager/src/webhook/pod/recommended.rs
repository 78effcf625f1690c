//! Annotates new pods with the share of their requests that they will use, for the scheduler, if a
//! Recommendation covers them.

use crate::facts::{RecommendationFacts, Target};
use crate::recommender::RecommenderPod;
use crate::webhook::json::{self, TypeMismatch};
use k8s_openapi::api::core::v1::Pod;
use koord_api::annotations::LOAD_ESTIMATED_SCALING_FACTORS;
use koord_api::quantity::Quantity;
use koord_api::{Uid, resources};
use koord_kube::Cacheable;
use koord_kube::owners::Owner;
use koord_model::recommend::admission::{ContainerAmounts, scaling_factors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Days of history below which a usage less than the request is not assumed.
const ENOUGH_DAYS: f64 = 1.0;

/// Sets the load estimate annotation on `pod` (`typed` is its decoded form) in `namespace`, unless it has
/// one. Recommendations with less than a day of history are ignored.
pub(super) fn pod(
    pod: &mut Value,
    typed: &Pod,
    namespace: &str,
    recommendations: &[Arc<RecommendationFacts>],
) -> Result<(), TypeMismatch> {
    if json::annotations(pod).contains_key(LOAD_ESTIMATED_SCALING_FACTORS) {
        return Ok(());
    }
    let facts = RecommenderPod::from_pod(typed);
    let (chain, labels) = (owners(&facts), facts.labels());
    let matches = |target: &Target| target.matches(&labels, &chain);
    let about = |recommendation: &&Arc<RecommendationFacts>| {
        recommendation.target.as_ref().is_ok_and(matches)
            && recommendation.key().namespace == namespace
    };
    let mut matching: Vec<_> = recommendations.iter().filter(about).collect();
    matching.sort_by_key(|recommendation| recommendation.key());
    let factors = matching
        .into_iter()
        .map(|recommendation| factors(&facts, recommendation));
    let Some(factors) = factors.into_iter().find(|factors| !factors.is_empty()) else {
        return Ok(());
    };
    let text = serde_json::to_string(&factors).unwrap_or_default();
    let annotations = json::object_at(pod, &["metadata", "annotations"])?;
    annotations.insert(LOAD_ESTIMATED_SCALING_FACTORS.to_owned(), text.into());
    Ok(())
}

/// Returns the expected usage in percent of the requests, by resource.
fn factors(
    pod: &RecommenderPod,
    recommendation: &RecommendationFacts,
) -> BTreeMap<&'static str, i64> {
    let status = recommendation.status().and_then(|status| status.pod_status);
    let recommended = |container: &str| {
        let enough = recommendation.days(container)? >= ENOUGH_DAYS;
        let mut all = status.as_ref()?.container_statuses.iter();
        let status =
            all.find(|container_status| enough && container_status.container_name == container)?;
        let amount = |name, of: fn(&Quantity) -> i64| Some((name, of(status.resources.get(name)?)));
        let cpu = amount(resources::CPU, |amount| amount.milli_value());
        let memory = amount(resources::MEMORY, |amount| amount.value());
        Some(cpu.into_iter().chain(memory).collect())
    };
    let containers: Vec<ContainerAmounts<'static>> = pod
        .containers
        .iter()
        .map(|container| {
            let cpu = container.cpu.map(|cores| (cores * 1000.0).round() as i64);
            let memory = container.memory.map(|bytes| bytes.round() as i64);
            let cpu = cpu.map(|amount| (resources::CPU, amount));
            let memory = memory.map(|amount| (resources::MEMORY, amount));
            ContainerAmounts {
                requested: cpu.into_iter().chain(memory).collect(),
                recommended: recommended(&container.name).unwrap_or_default(),
            }
        })
        .collect();
    scaling_factors(&containers)
}

/// Returns the controller of a pod, and its owner as derived from the name: an admission makes no further
/// requests.
fn owners(pod: &RecommenderPod) -> Vec<Owner> {
    let Some(owner) = pod.owner.as_deref().cloned() else {
        return Vec::new();
    };
    let above = |api_version: &str, kind: &str, name: &str| Owner {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: Uid::default(),
    };
    let labels = pod.labels();
    let without = |label: &str| {
        let hash = labels.get(label)?;
        owner.name.strip_suffix(hash.as_str())?.strip_suffix('-')
    };
    let next = match owner.kind.as_str() {
        "ReplicaSet" => without("rollouts-pod-template-hash")
            .map(|name| above("argoproj.io/v1alpha1", "Rollout", name))
            .or_else(|| {
                without("pod-template-hash").map(|name| above("apps/v1", "Deployment", name))
            }),
        "Job" => {
            let parts = owner.name.rsplit_once('-');
            let timed = parts.filter(|(_, time)| time.bytes().all(|byte| byte.is_ascii_digit()));
            timed.map(|(name, _)| above("batch/v1", "CronJob", name))
        }
        _ => None,
    };
    std::iter::once(owner).chain(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_api::analysis::DISTRIBUTION;
    use serde_json::json;

    fn new_pod() -> Value {
        json!({
            "metadata": {
                "labels": {"app": "web", "pod-template-hash": "7d9f"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                    "name": "web-7d9f", "uid": "u", "controller": true}],
            },
            "spec": {"containers": [
                {"name": "main", "resources": {"requests": {"cpu": "2", "memory": "4Gi"}}},
                {"name": "batch", "resources": {"requests": {"kubernetes.io/batch-cpu": "2000"}}},
            ]},
        })
    }

    fn recommendation(target: Value, days: f64) -> Arc<RecommendationFacts> {
        let detail = json!({"main": {"confidenceDays": days}});
        Arc::new(RecommendationFacts::from_object(
            serde_json::from_value(json!({
                "apiVersion": "analysis.koordinator.sh/v1alpha1", "kind": "Recommendation",
                "metadata": {"name": "r", "namespace": "shop",
                             "annotations": {DISTRIBUTION: detail.to_string()}},
                "spec": {"target": target},
                "status": {"podStatus": {"containerStatuses": [
                    {"containerName": "main", "resources": {"cpu": "500m", "memory": "1Gi"}}]}},
            }))
            .unwrap(),
        ))
    }

    fn admitted(
        mut value: Value,
        namespace: &str,
        recommendation: &Arc<RecommendationFacts>,
    ) -> Option<String> {
        let typed = serde_json::from_value(value.clone()).unwrap();
        pod(
            &mut value,
            &typed,
            namespace,
            std::slice::from_ref(recommendation),
        )
        .unwrap();
        json::annotations(&value).remove(LOAD_ESTIMATED_SCALING_FACTORS)
    }

    #[test]
    fn pod_gets_the_scaling_factors_annotation() {
        let workload = |kind: &str, name: &str| json!({"type": "workload", "workload": {"kind": kind, "name": name}});
        let facts = recommendation(workload("Deployment", "web"), 2.0);
        // 500m of 2 cores and 2 cores of 2, 1 GiB of 4.
        let want = Some(r#"{"cpu":63,"memory":25}"#.to_owned());
        assert_eq!(admitted(new_pod(), "shop", &facts), want);
        assert_eq!(admitted(new_pod(), "other", &facts), None);
        let labels = json!({"type": "podSelector", "podSelector": {"matchLabels": {"app": "web"}}});
        assert_eq!(
            admitted(new_pod(), "shop", &recommendation(labels, 2.0)),
            want
        );
        for (kind, name, days) in [
            ("Deployment", "web", 0.5),
            ("Deployment", "web-7d9f", 2.0),
            ("StatefulSet", "web", 2.0),
        ] {
            let facts = recommendation(workload(kind, name), days);
            assert_eq!(
                admitted(new_pod(), "shop", &facts),
                None,
                "{kind} {name} {days}"
            );
        }
    }

    #[test]
    fn existing_annotation_is_kept() {
        let mut pod = new_pod();
        pod["metadata"]["annotations"] = json!({LOAD_ESTIMATED_SCALING_FACTORS: "{}"});
        let target = json!({"type": "podSelector", "podSelector": {}});
        let text = admitted(pod, "shop", &recommendation(target, 2.0));
        assert_eq!(text.as_deref(), Some("{}"));
    }

    #[test]
    fn cron_job_is_derived_from_job_name() {
        let mut value = new_pod();
        let target = json!({"type": "workload", "workload": {"kind": "CronJob", "name": "web"}});
        let recommendation = recommendation(target, 2.0);
        for (name, there) in [("web-29384756", true), ("web-other", false)] {
            value["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1",
                "kind": "Job", "name": name, "uid": "u", "controller": true}]);
            assert_eq!(
                admitted(value.clone(), "shop", &recommendation).is_some(),
                there,
                "{name}"
            );
        }
    }
}
