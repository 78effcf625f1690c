//! Webhooks of nodes: amplified resources in the status, and labels that would make settings ambiguous.

use super::configmap::Sections;
use super::metrics::WebhookMetrics;
use super::{Deps, json};
use futures::future::BoxFuture;
use koord_api::annotations::{NODE_RAW_ALLOCATABLE, NODE_RESOURCE_AMPLIFICATION_RATIO};
use koord_api::extension::{AmplificationRatios, MAX_AMPLIFICATION};
use koord_api::quantity::{Quantity, ResourceList};
use koord_kube::webhook::{Answer, Handler, Operation, Request};
use serde_json::{Value, json};
use std::sync::Arc;

/// Resources that are amplified.
const AMPLIFIED: [&str; 2] = ["cpu", "memory"];

/// Creates the handler of `/mutate-node-status`.
pub(super) fn mutating(deps: &Deps) -> Arc<dyn Handler> {
    Arc::new(NodeMutator(deps.metrics.clone()))
}

struct NodeMutator(WebhookMetrics);

impl Handler for NodeMutator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(std::future::ready(self.mutate(request)))
    }
}

impl NodeMutator {
    /// Amplifies the allocatable resources in an update of a Node's status; other requests are allowed unchanged.
    fn mutate(&self, mut request: Request) -> Answer {
        let is_status_write =
            request.resource.resource == "nodes" && request.sub_resource == "status";
        let Some(mut node) = request.object.take() else {
            return Answer::allow();
        };
        if !is_status_write || request.operation != Operation::Update {
            return Answer::allow();
        }
        let steps = self.0.steps("mutate", "node", request.operation.as_str());
        let step = steps.start("NodeResourceAmplificationPlugin");
        let by_kubelet = request.user.name.starts_with("system:node:")
            || request
                .user
                .groups
                .iter()
                .any(|group| group == "system:nodes");
        let old = request.old_object.as_ref();
        match step.stop(amplify(&mut node, old, by_kubelet)) {
            Ok(warnings) => Answer::Mutate {
                object: node,
                warnings,
            },
            Err(problem) => Answer::deny(500, problem),
        }
    }
}

/// Returns the amounts of the resources in [`AMPLIFIED`] that `list` has; `at` is its path, for errors.
fn amounts(list: &Value, at: &str) -> Result<ResourceList, String> {
    if !(list.is_object() || list.is_null()) {
        return Err(format!("{at}: {list}: expected an object"));
    }
    let mut amounts = ResourceList::new();
    for name in AMPLIFIED {
        let Some(value) = list.get(name).filter(|value| !value.is_null()) else {
            continue;
        };
        let amount: Quantity = serde_json::from_value(value.clone())
            .map_err(|error| format!("{at}.{name}: {value}: {error}"))?;
        amounts.insert(name.to_owned(), amount);
    }
    Ok(amounts)
}

/// Amplifies cpu and memory in `status.allocatable` by the factors in the node's annotation, and stores the
/// original amounts in another annotation.
///
/// Only a kubelet reports the capacity of a node. It may repeat the amplified amounts, which it reads from
/// the node; that is no new report. Writes of other clients do not change the original amounts.
///
/// # Errors
/// Names the annotation or field, and its value.
fn amplify(node: &mut Value, old: Option<&Value>, by_kubelet: bool) -> Result<Vec<String>, String> {
    const ANNOTATIONS: [&str; 2] = ["metadata", "annotations"];
    let annotations = json::annotations(node);
    let ratios = annotations.get(NODE_RESOURCE_AMPLIFICATION_RATIO);
    let Some(ratios) = ratios.filter(|text| !text.is_empty()) else {
        if annotations.contains_key(NODE_RAW_ALLOCATABLE)
            && let Ok(map) = json::object_at(node, &ANNOTATIONS)
        {
            map.remove(NODE_RAW_ALLOCATABLE);
        }
        return Ok(Vec::new());
    };
    let invalid = |key: &str, text: &str, error: &dyn std::fmt::Display| {
        format!("metadata.annotations[{key}]: {text:?}: {error}")
    };
    let ratios = AmplificationRatios::parse(ratios)
        .map_err(|error| invalid(NODE_RESOURCE_AMPLIFICATION_RATIO, ratios, &error))?;
    let warnings = ratios.excessive().map(|(resource, ratio)| {
        format!(
            "metadata.annotations[{NODE_RESOURCE_AMPLIFICATION_RATIO}]: invalid value {ratio:?} for {resource}: \
             expected at most {MAX_AMPLIFICATION}; {resource} is not amplified"
        )
    });
    let warnings: Vec<String> = warnings.collect();
    let Some(allocatable) = node
        .pointer("/status/allocatable")
        .filter(|l| l.is_object())
    else {
        return Ok(warnings);
    };
    let reported = amounts(allocatable, "status.allocatable")?;
    let stored_raw = match annotations.get(NODE_RAW_ALLOCATABLE) {
        None => None,
        Some(text) => {
            let list: Value = serde_json::from_str(text)
                .map_err(|error| invalid(NODE_RAW_ALLOCATABLE, text, &error))?;
            let list = amounts(&list, NODE_RAW_ALLOCATABLE);
            Some(list.map_err(|error| invalid(NODE_RAW_ALLOCATABLE, text, &error))?)
        }
    };
    let before = match old.and_then(|old| old.pointer("/status/allocatable")) {
        Some(list) => amounts(list, "status.allocatable of the stored node")?,
        None => ResourceList::new(),
    };
    let raw = match stored_raw {
        Some(stored_raw)
            if !(by_kubelet && is_new_report(&reported, &before, &stored_raw, &ratios)) =>
        {
            stored_raw
        }
        _ => reported,
    };
    if raw.is_empty() {
        return Ok(warnings);
    }
    let text = json!(raw).to_string();
    if annotations.get(NODE_RAW_ALLOCATABLE) != Some(&text)
        && let Ok(map) = json::object_at(node, &ANNOTATIONS)
    {
        map.insert(NODE_RAW_ALLOCATABLE.to_owned(), text.into());
    }
    for (name, amount) in &raw {
        if let Some(ratio) = ratios.factor(name)
            && let Ok(list) = json::object_at(node, &["status", "allocatable"])
        {
            list.insert(name.clone(), json!(amplified_amount(name, *amount, ratio)));
        }
    }
    Ok(warnings)
}

/// Returns true if a kubelet's amounts are neither the stored ones nor the amplified original ones.
fn is_new_report(
    reported: &ResourceList,
    before: &ResourceList,
    stored_raw: &ResourceList,
    ratios: &AmplificationRatios,
) -> bool {
    AMPLIFIED.into_iter().any(|name| {
        let is_close = |a: Option<&Quantity>, b: Option<Quantity>| match (a, b) {
            (Some(a), Some(b)) => a.milli_value().abs_diff(b.milli_value()) <= 1,
            (None, None) => true,
            _ => false,
        };
        let reported = reported.get(name);
        let shown = stored_raw
            .get(name)
            .map(|amount| match ratios.factor(name) {
                Some(ratio) => amplified_amount(name, *amount, ratio),
                None => *amount,
            });
        !is_close(reported, before.get(name).copied()) && !is_close(reported, shown)
    })
}

/// Returns `amount` times `ratio`, truncated to milli units as upstream does, but memory in whole bytes.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "binary floating point and truncation are the rule; casts saturate"
)]
fn amplified_amount(name: &str, amount: Quantity, ratio: f64) -> Quantity {
    let milli = (amount.milli_value() as f64 * ratio) as i64;
    let scaled = Quantity::from_milli(milli).with_format(amount.format());
    if name == "memory" {
        return Quantity::from_value(scaled.value()).with_format(amount.format());
    }
    scaled
}

/// Creates the handler of `/validate-node`.
pub(super) fn validating(deps: &Deps) -> Arc<dyn Handler> {
    Arc::new(NodeValidator {
        settings: deps.settings.clone(),
        metrics: deps.metrics.clone(),
    })
}

struct NodeValidator {
    settings: Arc<dyn super::configmap::SettingsSource>,
    metrics: WebhookMetrics,
}

impl Handler for NodeValidator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(std::future::ready(self.validate(&request)))
    }
}

impl NodeValidator {
    /// Refuses a label change that makes a node match two node strategies of one key.
    fn validate(&self, request: &Request) -> Answer {
        let (Some(node), Some(old)) = (&request.object, &request.old_object) else {
            return Answer::allow();
        };
        let labels = json::labels(node);
        if request.operation != Operation::Update
            || !request.sub_resource.is_empty()
            || labels == json::labels(old)
        {
            return Answer::allow();
        }
        let steps = self
            .metrics
            .steps("validate", "node", request.operation.as_str());
        let step = steps.start("SLOManagerConfigConflictForNode");
        let Some(data) = self.settings.data() else {
            return Answer::allow();
        };
        match step.stop(Sections::from_data(&data).conflict([(request.name.as_str(), &labels)])) {
            Ok(()) => Answer::allow(),
            Err(problem) => Answer::deny(400, problem.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATIO: &str = NODE_RESOURCE_AMPLIFICATION_RATIO;
    const RAW: &str = NODE_RAW_ALLOCATABLE;

    fn node(annotations: &[(&str, &str)], cpu: &str, memory: &str) -> Value {
        let annotations: serde_json::Map<String, Value> = annotations
            .iter()
            .map(|(key, text)| ((*key).to_owned(), json!(text)))
            .collect();
        json!({"metadata": {"annotations": annotations},
            "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}}})
    }

    fn shown(node: &Value) -> (&str, &str, &str) {
        let text = |pointer: &str| node.pointer(pointer).and_then(Value::as_str).unwrap_or("");
        let key = "/metadata/annotations/node.koordinator.sh~1raw-allocatable";
        (
            text("/status/allocatable/cpu"),
            text("/status/allocatable/memory"),
            text(key),
        )
    }

    /// From upstream's table: raw {cpu 1000, memory 2000} times {cpu 2, memory 3}.
    #[test]
    fn kubelet_amounts_are_stored_and_amplified() {
        let ratios = (RATIO, r#"{"cpu":2,"memory":3}"#);
        let raw = r#"{"cpu":"1k","memory":"2k"}"#;
        #[rustfmt::skip]
        let rows = [
            // Without a ratio the stored amounts are removed.
            (node(&[(RAW, raw)], "1000", "2000"), node(&[], "1", "1"), true, ("1000", "2000", "")),
            // No amounts were stored.
            (node(&[ratios], "1000", "2000"), node(&[], "1000", "2000"), true, ("2k", "6k", raw)),
            // The kubelet repeats the amplified amounts.
            (node(&[ratios, (RAW, raw)], "2k", "6k"), node(&[], "2k", "6k"), true, ("2k", "6k", raw)),
            // The node has more resources than before.
            (node(&[ratios, (RAW, raw)], "3k", "6k"), node(&[], "2k", "6k"), true,
                ("6k", "18k", r#"{"cpu":"3k","memory":"6k"}"#)),
            // The kubelet writes the stored amounts again.
            (node(&[ratios, (RAW, raw)], "1000", "2000"), node(&[], "2k", "6k"), true, ("2k", "6k", raw)),
            // Another client writes.
            (node(&[ratios, (RAW, raw)], "9", "9"), node(&[], "2k", "6k"), false, ("2k", "6k", raw)),
            // Only cpu; a ratio of at most one changes nothing.
            (node(&[(RATIO, r#"{"cpu":1.5,"memory":0.5}"#)], "3", "2000"), node(&[], "3", "2000"), true,
                ("4500m", "2000", r#"{"cpu":"3","memory":"2k"}"#)),
            // No fraction of a byte.
            (node(&[(RATIO, r#"{"memory":1.5}"#)], "3", "33"), node(&[], "3", "33"), true,
                ("3", "50", r#"{"cpu":"3","memory":"33"}"#)),
        ];
        for (mut new, old, by_kubelet, expected) in rows {
            let before = new.clone();
            amplify(&mut new, Some(&old), by_kubelet).unwrap();
            assert_eq!(shown(&new), expected, "{before}");
        }
    }

    #[test]
    fn excessive_ratio_amplifies_nothing_and_warns() {
        let annotations = [(RATIO, r#"{"cpu":1e300,"memory":2}"#)];
        let mut new = node(&annotations, "4", "2000");
        let warnings = amplify(&mut new, None, true).unwrap();
        assert_eq!(shown(&new), ("4", "4k", r#"{"cpu":"4","memory":"2k"}"#));
        assert_eq!(warnings.len(), 1);
        for part in ["amplification-ratio", "1e300", "cpu", "at most 100"] {
            assert!(warnings[0].contains(part), "{}", warnings[0]);
        }
    }

    #[test]
    fn mistakes_name_annotation_and_value() {
        for (annotations, names) in [
            (vec![(RATIO, "twice")], ["amplification-ratio", "twice"]),
            (
                vec![(RATIO, r#"{"cpu":"2"}"#)],
                ["amplification-ratio", "\\\"2\\\""],
            ),
            (
                vec![(RATIO, r#"{"cpu":2}"#), (RAW, r#"{"cpu":"x"}"#)],
                ["raw-allocatable", "x"],
            ),
            (
                vec![(RATIO, r#"{"cpu":2}"#), (RAW, "[]")],
                ["raw-allocatable", "[]"],
            ),
        ] {
            let error = amplify(&mut node(&annotations, "1", "1"), None, true).unwrap_err();
            assert!(names.iter().all(|name| error.contains(name)), "{error}");
        }
        let error = amplify(&mut node(&[(RATIO, "{}")], "much", "1"), None, true).unwrap_err();
        assert!(
            error.contains("status.allocatable.cpu: \"much\""),
            "{error}"
        );
    }
}
