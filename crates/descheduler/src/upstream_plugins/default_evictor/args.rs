//! Arguments of `DefaultEvictor`.

use crate::rules::SYSTEM_CRITICAL;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::duration::GoDuration;
use koord_object::selector::LabelSelector as NodeSelector;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// `DefaultEvictorArgs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::upstream_plugins) struct Args {
    #[serde(rename = "nodeSelector", skip_serializing_if = "String::is_empty")]
    node_selector_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) label_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace_label_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority_threshold: Option<ThresholdArgs>,
    pub(super) node_fit: bool,
    pub(super) min_replicas: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) min_pod_age: Option<GoDuration>,
    #[serde(skip_serializing_if = "String::is_empty")]
    no_eviction_policy: String,
    pod_protections: PodProtections,
    evict_local_storage_pods: bool,
    evict_daemon_set_pods: bool,
    evict_system_critical_pods: bool,
    ignore_pvc_pods: bool,
    #[serde(rename = "ignorePodsWithoutPDB")]
    ignore_pods_without_pdb: bool,
    evict_failed_bare_pods: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ThresholdArgs {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodProtections {
    extra_enabled: Vec<String>,
    default_disabled: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<ProtectionsConfig>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ProtectionsConfig {
    #[serde(rename = "PodsWithPVC", skip_serializing_if = "Option::is_none")]
    pods_with_pvc: Option<PvcConfig>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PvcConfig {
    protected_storage_classes: Vec<StorageClass>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct StorageClass {
    name: String,
}

/// A rule that protects pods from eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    clippy::upper_case_acronyms,
    reason = "the names are the configuration's"
)]
pub(super) enum Protection {
    PodsWithLocalStorage,
    SystemCriticalPods,
    FailedBarePods,
    DaemonSetPods,
    PodsWithPVC,
    PodsWithoutPDB,
    PodsWithResourceClaims,
}

use Protection as P;

/// Protections that are enabled unless `defaultDisabled` lists them.
const BY_DEFAULT: [(&str, P); 4] = [
    ("PodsWithLocalStorage", P::PodsWithLocalStorage),
    ("SystemCriticalPods", P::SystemCriticalPods),
    ("FailedBarePods", P::FailedBarePods),
    ("DaemonSetPods", P::DaemonSetPods),
];
/// Protections that are enabled if `extraEnabled` lists them.
const EXTRA: [(&str, P); 3] = [
    ("PodsWithPVC", P::PodsWithPVC),
    ("PodsWithoutPDB", P::PodsWithoutPDB),
    ("PodsWithResourceClaims", P::PodsWithResourceClaims),
];

/// The effective part of `priorityThreshold`.
pub(super) struct Threshold<'a> {
    pub(super) value: Option<i32>,
    pub(super) name: &'a str,
}

impl Args {
    /// Parses `nodeSelector`, if it is set.
    pub(super) fn node_selector(&self) -> Result<Option<NodeSelector>, String> {
        let text = &self.node_selector_text;
        if text.is_empty() {
            return Ok(None);
        }
        let read = NodeSelector::parse(text);
        read.map(Some)
            .map_err(|error| format!("nodeSelector: {text:?}: {error}"))
    }

    pub(super) fn threshold(&self) -> Threshold<'_> {
        let given_threshold = self.priority_threshold.as_ref();
        Threshold {
            value: given_threshold.and_then(|given_threshold| given_threshold.value),
            name: given_threshold.map_or("", |given_threshold| &given_threshold.name),
        }
    }

    pub(super) fn is_mandatory(&self) -> bool {
        self.no_eviction_policy == "Mandatory"
    }

    pub(super) fn protected_storage_classes(&self) -> Vec<&str> {
        let config = self.pod_protections.config.as_ref();
        let pvc = config.and_then(|config| config.pods_with_pvc.as_ref());
        let classes = pvc
            .map(|pvc| &pvc.protected_storage_classes)
            .into_iter()
            .flatten();
        classes.map(|class| class.name.as_str()).collect()
    }

    /// Returns the enabled protections, from `podProtections` or, without it, from the deprecated fields.
    pub(super) fn protections(&self) -> Vec<Protection> {
        let PodProtections {
            extra_enabled,
            default_disabled,
            ..
        } = &self.pod_protections;
        if extra_enabled.is_empty() && default_disabled.is_empty() {
            let by_field = [
                (!self.evict_local_storage_pods, P::PodsWithLocalStorage),
                (!self.evict_daemon_set_pods, P::DaemonSetPods),
                (!self.evict_system_critical_pods, P::SystemCriticalPods),
                (!self.evict_failed_bare_pods, P::FailedBarePods),
                (self.ignore_pvc_pods, P::PodsWithPVC),
                (self.ignore_pods_without_pdb, P::PodsWithoutPDB),
            ];
            let on = by_field.into_iter().filter(|(on, _)| *on);
            return on.map(|(_, protection)| protection).collect();
        }
        let listed = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        let default = BY_DEFAULT
            .iter()
            .filter(|(name, _)| !listed(default_disabled, name));
        let extra = EXTRA.iter().filter(|(name, _)| listed(extra_enabled, name));
        default
            .chain(extra)
            .map(|(_, protection)| *protection)
            .collect()
    }

    fn deprecated(&self) -> Option<&'static str> {
        let fields = [
            ("evictLocalStoragePods", self.evict_local_storage_pods),
            ("evictDaemonSetPods", self.evict_daemon_set_pods),
            ("evictSystemCriticalPods", self.evict_system_critical_pods),
            ("ignorePvcPods", self.ignore_pvc_pods),
            ("evictFailedBarePods", self.evict_failed_bare_pods),
            ("ignorePodsWithoutPDB", self.ignore_pods_without_pdb),
        ];
        let mut set_fields = fields.into_iter().filter(|(_, is_set)| *is_set);
        set_fields.next().map(|(field, _)| field)
    }
}

/// Checks the arguments of DefaultEvictor.
pub(in crate::upstream_plugins) fn check(args: &Args) -> Result<(), String> {
    args.node_selector()?;
    let Threshold { value, name } = args.threshold();
    match value {
        Some(value) if !name.is_empty() => {
            return Err(format!(
                "priorityThreshold: only one of value ({value}) and name ({name:?}) can be given"
            ));
        }
        Some(value) if value > SYSTEM_CRITICAL => {
            return Err(format!(
                "priorityThreshold.value: {value} is above {SYSTEM_CRITICAL}"
            ));
        }
        _ => {}
    }
    let policy = args.no_eviction_policy.as_str();
    if !matches!(policy, "" | "Preferred" | "Mandatory") {
        return Err(format!(
            "noEvictionPolicy: {policy:?} is neither Preferred nor Mandatory"
        ));
    }
    let PodProtections {
        extra_enabled,
        default_disabled,
        ..
    } = &args.pod_protections;
    if extra_enabled.is_empty() && default_disabled.is_empty() {
        return Ok(());
    }
    if let Some(field) = args.deprecated() {
        return Err(format!(
            "podProtections: cannot be given together with {field}"
        ));
    }
    check_protections("extraEnabled", extra_enabled, &EXTRA)?;
    check_protections("defaultDisabled", default_disabled, &BY_DEFAULT)?;
    let nameless = args
        .protected_storage_classes()
        .iter()
        .position(|name| name.is_empty());
    match nameless {
        Some(at) if extra_enabled.iter().any(|name| name == "PodsWithPVC") => Err(format!(
            "podProtections.config.PodsWithPVC.protectedStorageClasses[{at}].name: must not be empty"
        )),
        _ => Ok(()),
    }
}

fn check_protections(
    field: &str,
    names: &[String],
    supported: &[(&str, Protection)],
) -> Result<(), String> {
    let field = format!("podProtections.{field}");
    let allowed: Vec<_> = supported.iter().map(|(name, _)| *name).collect();
    super::super::check_listed(&field, names, &allowed)?;
    let mut distinct = BTreeSet::new();
    match names.iter().find(|name| !distinct.insert(*name)) {
        Some(name) => Err(format!("{field}: {name:?} is listed twice")),
        None => Ok(()),
    }
}
