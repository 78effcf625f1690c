//! Rules of a Job about failure and success: its pod failure policy, its success policy, and the index sets
//! of its status.

use crate::rest::meta;
use serde_json::Value;
use std::collections::BTreeSet;

/// Effect of a failed pod on its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FailureEffect {
    /// The failure counts towards the backoff limit.
    Count,
    /// The failure does not count.
    Ignore,
    /// The index of the pod fails for good.
    FailIndex,
    /// The job fails, with this message.
    FailJob(String),
}

fn list<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> + use<'a> {
    let list = meta::at(value, path).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Returns the effect of a failed pod by the first rule of `spec.podFailurePolicy` that matches; without one
/// it counts.
pub(super) fn verdict(job: &Value, pod: &Value) -> FailureEffect {
    for (i, rule) in list(job, &["spec", "podFailurePolicy", "rules"]).enumerate() {
        let action = meta::text(rule, &["action"]);
        let Some(reason) = exit_code(rule, pod).or_else(|| pod_condition(rule, pod)) else {
            continue;
        };
        return match action {
            "Ignore" => FailureEffect::Ignore,
            "FailIndex" => FailureEffect::FailIndex,
            "FailJob" => {
                FailureEffect::FailJob(format!("{reason} matching FailJob rule at index {i}"))
            }
            _ => FailureEffect::Count,
        };
    }
    FailureEffect::Count
}

fn qualified_name(pod: &Value) -> String {
    format!("{}/{}", meta::namespace(pod), meta::name(pod))
}

fn exit_code(rule: &Value, pod: &Value) -> Option<String> {
    let exit_rule = rule.get("onExitCodes").filter(|v| v.is_object())?;
    let container = meta::text(exit_rule, &["containerName"]);
    let codes = || list(exit_rule, &["values"]);
    let result = ["containerStatuses", "initContainerStatuses"]
        .into_iter()
        .flat_map(|key| list(pod, &["status", key]))
        .filter(|status| container.is_empty() || meta::text(status, &["name"]) == container)
        .find_map(|status| {
            let code = meta::at(status, &["state", "terminated", "exitCode"])?;
            let listed = codes().any(|c| c == code);
            let matches = match meta::text(exit_rule, &["operator"]) {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            };
            (matches && code.as_i64() != Some(0)).then_some((status, code))
        });
    let (status, code) = result?;
    let (name, pod) = (meta::text(status, &["name"]), qualified_name(pod));
    Some(format!(
        "Container {name} for pod {pod} failed with exit code {code}"
    ))
}

fn pod_condition(rule: &Value, pod: &Value) -> Option<String> {
    list(rule, &["onPodConditions"]).find_map(|pattern| {
        let kind = meta::text(pattern, &["type"]);
        let expected_status = match meta::text(pattern, &["status"]) {
            "" => "True",
            status => status,
        };
        let condition = meta::condition(pod, kind)?;
        let pod = qualified_name(pod);
        (meta::text(condition, &["status"]) == expected_status)
            .then(|| format!("Pod {pod} has condition {kind}"))
    })
}

/// Returns the index of the first rule of `spec.successPolicy` that the indexes `done` satisfy.
pub(super) fn success(job: &Value, done: &BTreeSet<i64>) -> Option<usize> {
    list(job, &["spec", "successPolicy", "rules"]).position(|rule| {
        let named = match meta::text(rule, &["succeededIndexes"]) {
            "" => None,
            text => Some(ranges(text)),
        };
        let covered: i64 = match &named {
            None => i64::try_from(done.len()).unwrap_or(i64::MAX),
            Some(ranges) => {
                let within = |i: &&i64| ranges.iter().any(|(a, b)| (a..=b).contains(i));
                i64::try_from(done.iter().filter(within).count()).unwrap_or(i64::MAX)
            }
        };
        let all = named.map(|ranges| {
            let sizes = ranges
                .iter()
                .map(|(a, b)| b.saturating_sub(*a).saturating_add(1));
            sizes.fold(0, i64::saturating_add)
        });
        let required = rule.get("succeededCount").and_then(Value::as_i64).or(all);
        required.is_some_and(|required| covered >= required)
    })
}

/// Parses a text such as `0-2,4` into ranges, both ends included. Parts that are not numbers are skipped.
fn ranges(text: &str) -> Vec<(i64, i64)> {
    text.split(',')
        .filter_map(|part| {
            let (a, b) = part.split_once('-').unwrap_or((part, part));
            let (a, b) = (a.trim().parse().ok()?, b.trim().parse().ok()?);
            (a <= b).then_some((a, b))
        })
        .collect()
}

/// Returns the indexes below `limit` in a text such as `0-2,4`; at most 100,000, the most that a job can
/// have.
pub(super) fn indexes(text: &str, limit: i64) -> BTreeSet<i64> {
    let limit = limit.min(100_000);
    let all = ranges(text).into_iter();
    all.flat_map(|(a, b)| a.max(0)..=b.min(limit - 1)).collect()
}

/// Formats indexes such as `0-2,4`: runs of more than two become a range.
pub(super) fn text(indexes: &BTreeSet<i64>) -> String {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for &i in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == i => *last = i,
            _ => runs.push((i, i)),
        }
    }
    let format_run = |(a, b): (i64, i64)| match b - a {
        0 => a.to_string(),
        1 => format!("{a},{b}"),
        _ => format!("{a}-{b}"),
    };
    runs.into_iter()
        .map(format_run)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn first_matching_failure_rule_decides() {
        let job = json!({"spec": {"podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1]}},
        ]}}});
        let pod = |name: &str, code: i64, disrupted: &str| {
            json!({"metadata": {"name": "p", "namespace": "n"}, "status": {
                "conditions": [{"type": "DisruptionTarget", "status": disrupted}],
                "containerStatuses": [{"name": name, "state": {"terminated": {"exitCode": code}}}]}})
        };
        assert_eq!(
            verdict(&job, &pod("main", 42, "True")),
            FailureEffect::Ignore
        );
        let reason =
            "Container main for pod n/p failed with exit code 42 matching FailJob rule at index 1";
        let failed = FailureEffect::FailJob(reason.to_owned());
        assert_eq!(verdict(&job, &pod("main", 42, "False")), failed);
        assert_eq!(
            verdict(&job, &pod("side", 42, "")),
            FailureEffect::FailIndex
        );
        assert_eq!(verdict(&job, &pod("main", 1, "")), FailureEffect::Count);
        assert_eq!(verdict(&job, &pod("main", 0, "")), FailureEffect::Count);
        assert_eq!(
            verdict(&json!({}), &pod("main", 1, "")),
            FailureEffect::Count
        );
    }

    #[test]
    fn success_policy_counts_indexes() {
        let rule = |rule: Value| json!({"spec": {"successPolicy": {"rules": [rule]}}});
        let succeeded: BTreeSet<i64> = [0, 2, 3].into();
        for (rule, holds) in [
            (rule(json!({"succeededIndexes": "0,2-3"})), true),
            (rule(json!({"succeededIndexes": "0-2"})), false),
            (
                rule(json!({"succeededIndexes": "0-2", "succeededCount": 2})),
                true,
            ),
            (
                rule(json!({"succeededIndexes": "4-9", "succeededCount": 1})),
                false,
            ),
            (rule(json!({"succeededCount": 3})), true),
            (rule(json!({"succeededCount": 4})), false),
            (rule(json!({})), false),
            (json!({}), false),
        ] {
            assert_eq!(success(&rule, &succeeded).is_some(), holds, "{rule}");
        }
    }

    #[test]
    fn indexes_are_written_as_runs() {
        assert_eq!(text(&[0, 1, 3, 4, 5, 7].into()), "0,1,3-5,7");
        assert_eq!(indexes("0,1,3-5,7", 6), [0, 1, 3, 4, 5].into());
        assert_eq!(indexes("x,3-1,-4", 6), BTreeSet::new());
        assert_eq!(text(&BTreeSet::new()), "");
    }
}
