//! Compact construction of quotas for tests.

use super::check::QuotaPods;
use super::info::QuotaInfo;
use super::topology::QuotaTopology;
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use serde_json::{Value, json};

/// Returns a quota of namespace `ns` with `fields`: the texts `parent`, `tree` and `version`; the booleans
/// `isParent`, `isRoot` and `forced`; the resource lists `max`, `min`, `used`, `weight`, `guaranteed`,
/// `admission` and `childRequest`, which can be shortened to `[cpu, memory]`; the lists `namespaces` and
/// `strict`; and `annotations`.
pub(crate) fn quota(name: &str, fields: Value) -> ElasticQuota {
    let mut object = json!({"metadata": {
        "name": name, "namespace": "ns", "labels": {}, "annotations": {}}, "spec": {}});
    for (word, value) in fields.as_object().unwrap() {
        let amounts = amounts(value);
        let mut annotate = |key: &str, value: &Value| {
            object["metadata"]["annotations"][key] = json!(value.to_string());
        };
        match word.as_str() {
            "weight" => annotate(annotations::QUOTA_SHARED_WEIGHT, &amounts),
            "guaranteed" => annotate(annotations::QUOTA_GUARANTEED, &amounts),
            "admission" => annotate(annotations::QUOTA_ADMISSION, &amounts),
            "childRequest" => annotate(annotations::QUOTA_CHILD_REQUEST, &amounts),
            "namespaces" => annotate(annotations::QUOTA_NAMESPACES, value),
            "strict" => annotate(annotations::QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS, value),
            "annotations" => {
                let all = object["metadata"]["annotations"].as_object_mut().unwrap();
                all.extend(value.as_object().unwrap().clone());
            }
            "max" | "min" => object["spec"][word] = amounts,
            "used" => object["status"]["used"] = amounts,
            "parent" => object["metadata"]["labels"][labels::QUOTA_PARENT] = value.clone(),
            "tree" => object["metadata"]["labels"][labels::QUOTA_TREE_ID] = value.clone(),
            "isParent" => {
                object["metadata"]["labels"][labels::QUOTA_IS_PARENT] = json!(value.to_string())
            }
            "isRoot" => {
                object["metadata"]["labels"][labels::QUOTA_IS_ROOT] = json!(value.to_string())
            }
            "forced" => {
                object["metadata"]["labels"][labels::QUOTA_ALLOW_FORCE_UPDATE] =
                    json!(value.to_string())
            }
            "version" => object["metadata"]["resourceVersion"] = value.clone(),
            "uid" => object["metadata"]["uid"] = value.clone(),
            "namespace" => object["metadata"]["namespace"] = value.clone(),
            other => panic!("unknown field {other}"),
        }
    }
    serde_json::from_value(object).unwrap()
}

fn amounts(value: &Value) -> Value {
    match value.as_array().map(Vec::as_slice) {
        Some([cpu, memory]) => json!({"cpu": cpu, "memory": memory}),
        _ => value.clone(),
    }
}

/// Returns a topology that observed `quotas`.
pub(crate) fn topology<'a>(quotas: impl IntoIterator<Item = &'a ElasticQuota>) -> QuotaTopology {
    let mut topology = QuotaTopology::default();
    for quota in quotas {
        topology.observe(QuotaInfo::from_quota(quota));
    }
    topology
}

/// Pods: namespace, name and the quota that the label names.
#[derive(Debug, Default)]
pub(crate) struct Pods(pub(crate) Vec<(&'static str, &'static str, &'static str)>);

impl QuotaPods for Pods {
    fn pods_of_quota(&self, quota: &str) -> Vec<String> {
        let named = self.0.iter().filter(|(_, _, label)| *label == quota);
        named.map(|(_, name, _)| (*name).to_owned()).collect()
    }

    fn has_pods_in(&self, namespace: &str) -> bool {
        self.0.iter().any(|(own, _, _)| *own == namespace)
    }
}
