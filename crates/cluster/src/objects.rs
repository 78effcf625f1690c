//! Objects of a Koordinator installation, and the settings of a first start.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::configmap::{NAME as CONFIG_NAME, NAMESPACE as CONFIG_NAMESPACE};
use koord_api::labels;
use koord_kube::api::PostParams;
use koord_kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use std::time::Duration;

/// Creates the objects of a Koordinator installation: priority classes and the manager's ConfigMap. Existing
/// ones are kept unchanged.
///
/// # Errors
/// One cannot be written.
pub async fn first_objects(client: &Client, slo_config: &Value) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(client.clone());
    for class in koord_api::priority_class_values() {
        let class: PriorityClass = serde_json::from_value(class).context("PriorityClass")?;
        let name = class.name_any();
        create(&classes, &class)
            .await
            .with_context(|| format!("PriorityClass {name}"))?;
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), CONFIG_NAMESPACE);
    let map: ConfigMap = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": CONFIG_NAME, "namespace": CONFIG_NAMESPACE, "labels": {
            // Sends its writes to the webhook.
            labels::CONFIGMAP_TYPE: labels::CONFIGMAP_TYPE_SLO_CONTROLLER,
        }},
        "data": config_data(slo_config),
    }))
    .context("ConfigMap")?;
    create(&maps, &map)
        .await
        .context("ConfigMap slo-controller-config")?;
    label_config_map(&maps)
        .await
        .context("ConfigMap slo-controller-config")
}

/// Adds the label that the validating webhook's selector requires to a ConfigMap that an earlier version created.
/// Another value of the label is kept: a user set it.
async fn label_config_map(maps: &Api<ConfigMap>) -> Result<()> {
    let metadata = maps.get_metadata(CONFIG_NAME).await?.metadata;
    let label = labels::CONFIGMAP_TYPE;
    if metadata
        .labels
        .is_none_or(|labels| !labels.contains_key(label))
    {
        let value = labels::CONFIGMAP_TYPE_SLO_CONTROLLER;
        let patch = json!({"metadata": {"labels": {label: value}}});
        koord_kube::patch::merge(maps, CONFIG_NAME, &patch).await?;
    }
    Ok(())
}

/// Returns the `data` of the ConfigMap: each key's value as JSON text.
#[must_use]
pub fn config_data(slo_config: &Value) -> Value {
    let texts = slo_config.as_object().into_iter().flatten();
    texts
        .map(|(key, value)| (key.clone(), Value::String(value.to_string())))
        .collect()
}

/// Creates an object, unless there is one of its name.
///
/// # Errors
/// The object cannot be created.
pub async fn create<K>(api: &Api<K>, object: &K) -> Result<()>
where
    K: koord_kube::Decode + serde::Serialize,
{
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(error) if koord_kube::patch::is_status(&error, 409) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Interval of NodeMetric reports in interactive clusters, where a user waits for the first report.
pub const QUICK_REPORT: Duration = Duration::from_secs(2);

/// Returns the configuration of `koord up` and the demo: co-location on, with the shortest intervals that
/// koordlet accepts. This machine's koordlet nevertheless reports every [`QUICK_REPORT`].
#[must_use]
pub fn quick_config() -> Value {
    json!({
        "colocation-config": {
            "enable": true,
            "metricAggregateDurationSeconds": 60,
            "metricAggregatePolicy": {"durations": ["30s", "5m", "30m"]},
            "metricReportIntervalSeconds": 30,
            "updateTimeThresholdSeconds": 10,
            "cpuReclaimThresholdPercent": 60,
            "memoryReclaimThresholdPercent": 65,
        },
        "resource-threshold-config": {
            "clusterStrategy": {
                "enable": true,
                "cpuSuppressThresholdPercent": 65,
                "cpuSuppressPolicy": "cfsQuota",
            },
        },
    })
}

/// Returns the default configuration of the descheduler, which the chart's ConfigMap has: no strategy is on.
///
/// # Errors
/// Never, as a test shows.
pub fn descheduler_config() -> Result<koord_descheduler::config::Configuration> {
    const TEXT: &str = include_str!("../../../charts/koord/files/descheduler/config.yaml");
    Ok(koord_descheduler::config::Configuration::parse(TEXT)?)
}
