//! Plans the status of a Recommendation, and when it is written. No I/O.

use super::learn::{ContainerEstimates, ENOUGH_DAYS};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use koord_api::analysis::recommendation_conditions::{
    CONFIG_UNSUPPORTED, LOW_CONFIDENCE, NO_OBJECTS_MATCHED,
};
use koord_api::analysis::{RecommendationStatus, RecommendedContainerStatus, RecommendedPodStatus};
use std::time::Duration;

/// Relative change up to which an amount is not written before the interval ends.
const NOTABLE_CHANGE: f64 = 0.1;
/// Interval after which an unchanged recommendation is confirmed.
const REFRESH: Duration = Duration::from_secs(3600);

/// Reason and message of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConditionCause {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// State of a condition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ConditionState {
    /// The condition was not evaluated: the previous one stays.
    #[default]
    Unknown,
    True(ConditionCause),
    False,
}

impl From<Option<ConditionCause>> for ConditionState {
    fn from(cause: Option<ConditionCause>) -> Self {
        cause.map_or(Self::False, Self::True)
    }
}

/// The conditions of a Recommendation, other than its amounts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Findings {
    pub(crate) config_unsupported: ConditionState,
    pub(crate) no_objects_matched: ConditionState,
    pub(crate) low_confidence: ConditionState,
    /// Appended to the message of `low_confidence`, whatever its state.
    pub(crate) remark: Option<String>,
}

/// Returns the cause for an invalid spec or annotation.
pub(crate) fn refused(message: impl Into<String>) -> ConditionCause {
    ConditionCause {
        reason: "Refused",
        message: message.into(),
    }
}

/// Returns why the confidence is low; `None` if it is not.
pub(crate) fn low_confidence(
    estimates: &ContainerEstimates,
    problem: Option<&str>,
) -> Option<ConditionCause> {
    let mut reasons = Vec::new();
    if estimates.is_estimated {
        let text =
            "nodes measure pods: the use of single containers is guessed from their requests";
        reasons.push(("PodLevelMetrics", text.to_owned()));
    }
    if !estimates.unmeasured.is_empty() {
        let mut text = format!("not measured yet: {}", estimates.unmeasured.join(", "));
        if let Some(problem) = problem {
            text = format!("{text} ({problem})");
        }
        reasons.push(("NoSamples", text));
    }
    if estimates.days < ENOUGH_DAYS {
        reasons.push(("ShortHistory", "less than a day of history".to_owned()));
    }
    let (reason, _) = reasons.first()?;
    let texts: Vec<&str> = reasons.iter().map(|(_, text)| text.as_str()).collect();
    Some(ConditionCause {
        reason,
        message: texts.join("; "),
    })
}

/// A planned write of a Recommendation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StatusWrite {
    pub(crate) status: RecommendationStatus,
    /// Message of the event about notable changes of amounts; `None` if there are none.
    pub(crate) change_summary: Option<String>,
    /// New message of `ConfigUnsupported`; `None` if it did not change.
    pub(crate) refusal: Option<String>,
}

/// Plans the status; `containers` are the recommended amounts, `None` keeps the old ones.
///
/// Amounts are written when one of them changed by more than a tenth, when `interval` has passed and anything
/// changed, and every hour; conditions are written immediately.
pub(crate) fn plan(
    old: Option<&RecommendationStatus>,
    generation: Option<i64>,
    containers: Option<Vec<RecommendedContainerStatus>>,
    findings: &Findings,
    now: Timestamp,
    interval: Duration,
) -> Option<StatusWrite> {
    let none = RecommendationStatus::default();
    let old = old.unwrap_or(&none);
    let before = old
        .pod_status
        .as_ref()
        .map_or(&[][..], |status| &status.container_statuses);
    let conditions = conditions(&old.conditions, generation, findings, now);
    let comparable = |list: &[Condition]| -> Vec<(String, String, String, String)> {
        list.iter()
            .map(|c| {
                let text = |text: &String| text.clone();
                (
                    text(&c.type_),
                    text(&c.status),
                    text(&c.reason),
                    text(&c.message),
                )
            })
            .collect()
    };
    let conditions_changed = comparable(&conditions) != comparable(&old.conditions);
    let change_summary = containers
        .as_ref()
        .and_then(|new| change_summary(before, new));
    let age = old
        .update_time
        .as_ref()
        .map(|time| Duration::try_from(now.duration_since(time.0)).unwrap_or(Duration::ZERO));
    let computed = containers.as_ref().is_some_and(|new| !new.is_empty());
    let due = match &containers {
        Some(new) if new.is_empty() && before.is_empty() => false,
        Some(new) => {
            let limit = if new.as_slice() == before {
                REFRESH
            } else {
                interval
            };
            change_summary.is_some() || age.is_none_or(|age| age >= limit)
        }
        None => false,
    };
    if !conditions_changed && !due {
        return None;
    }
    let refusal_message = |list: &[Condition]| {
        let condition = list.iter().find(|c| c.type_ == CONFIG_UNSUPPORTED);
        condition
            .filter(|c| c.status == "True")
            .map(|c| c.message.clone())
    };
    let refusal = refusal_message(&conditions)
        .filter(|text| refusal_message(&old.conditions).as_ref() != Some(text));
    let pod_status = match containers {
        Some(container_statuses) if computed => Some(RecommendedPodStatus { container_statuses }),
        _ => old.pod_status.clone(),
    };
    Some(StatusWrite {
        status: RecommendationStatus {
            pod_status,
            update_time: if computed {
                Some(Time(seconds(now)))
            } else {
                old.update_time.clone()
            },
            conditions,
        },
        change_summary,
        refusal,
    })
}

/// Truncates to seconds, as Kubernetes writes times.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Describes the notable changes of amounts; `None` if there are none.
fn change_summary(
    before: &[RecommendedContainerStatus],
    after: &[RecommendedContainerStatus],
) -> Option<String> {
    let mut parts = Vec::new();
    for new in after {
        let old = before
            .iter()
            .find(|status| status.container_name == new.container_name);
        let mut changes = Vec::new();
        for (resource, amount) in &new.resources {
            match old.and_then(|old| old.resources.get(resource)) {
                None => changes.push(format!("{resource} {amount}")),
                Some(was) => {
                    let (a, b) = (was.to_f64(), amount.to_f64());
                    if (b - a).abs() > a.abs() * NOTABLE_CHANGE {
                        changes.push(format!("{resource} {was} -> {amount}"));
                    }
                }
            }
        }
        if !changes.is_empty() {
            parts.push(format!("{}: {}", new.container_name, changes.join(", ")));
        }
    }
    for old in before {
        let stays = |new: &RecommendedContainerStatus| new.container_name == old.container_name;
        if !after.iter().any(stays) {
            parts.push(format!("{}: gone", old.container_name));
        }
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Returns the updated conditions. A condition that is not true is written only if it existed before.
fn conditions(
    old: &[Condition],
    generation: Option<i64>,
    findings: &Findings,
    now: Timestamp,
) -> Vec<Condition> {
    let rows = [
        (
            CONFIG_UNSUPPORTED,
            &findings.config_unsupported,
            "Supported",
            "the spec is understood",
        ),
        (
            NO_OBJECTS_MATCHED,
            &findings.no_objects_matched,
            "ObjectsMatched",
            "there are pods",
        ),
        (
            LOW_CONFIDENCE,
            &findings.low_confidence,
            "EnoughHistory",
            "a day of history or more",
        ),
    ];
    let mut all = old.to_vec();
    for (type_, verdict, cleared, text) in rows {
        let index = all.iter().position(|condition| condition.type_ == type_);
        let (status, reason, mut message) = match verdict {
            ConditionState::Unknown => continue,
            ConditionState::True(cause) => ("True", cause.reason, cause.message.clone()),
            ConditionState::False if index.is_none() => continue,
            ConditionState::False => ("False", cleared, text.to_owned()),
        };
        if let Some(remark) = findings.remark.as_ref().filter(|_| type_ == LOW_CONFIDENCE) {
            message = format!("{message}; {remark}");
        }
        let since = index
            .and_then(|index| all.get(index))
            .filter(|old| old.status == status)
            .map_or_else(
                || Time(seconds(now)),
                |old| old.last_transition_time.clone(),
            );
        let condition = Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: since,
            observed_generation: generation,
        };
        match index {
            Some(index) => all[index] = condition,
            None => all.push(condition),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN_MINUTES: Duration = Duration::from_secs(600);

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + minutes * 60).unwrap()
    }

    fn containers(cpu: &str) -> Option<Vec<RecommendedContainerStatus>> {
        Some(vec![RecommendedContainerStatus {
            container_name: "web".to_owned(),
            resources: [("cpu".to_owned(), cpu.parse().unwrap())].into(),
        }])
    }

    fn short() -> Findings {
        let estimates = ContainerEstimates {
            days: 0.5,
            ..ContainerEstimates::default()
        };
        Findings {
            low_confidence: low_confidence(&estimates, None).into(),
            ..Findings::default()
        }
    }

    #[test]
    fn small_changes_wait_and_large_ones_do_not() {
        let first = plan(None, None, containers("1"), &short(), at(0), TEN_MINUTES).unwrap();
        assert_eq!(first.change_summary.as_deref(), Some("web: cpu 1"));
        let old = Some(&first.status);
        let next = |cpu, minutes| {
            plan(
                old,
                None,
                containers(cpu),
                &short(),
                at(minutes),
                TEN_MINUTES,
            )
            .map(|write| write.change_summary.is_some())
        };
        for (cpu, minutes, want) in [
            ("1", 1, None),
            ("1050m", 9, None),
            ("1050m", 10, Some(false)),
            ("1150m", 1, Some(true)),
            ("850m", 1, Some(true)),
            // Unchanged amounts are confirmed once an hour.
            ("1", 59, None),
            ("1", 60, Some(false)),
        ] {
            assert_eq!(next(cpu, minutes), want, "{cpu} after {minutes} min");
        }
    }

    #[test]
    fn conditions_are_written_at_once_and_cleared_with_a_reason() {
        let first = plan(None, Some(1), containers("1"), &short(), at(0), TEN_MINUTES).unwrap();
        let condition = &first.status.conditions[0];
        assert_eq!(first.status.conditions.len(), 1);
        assert_eq!(
            (
                condition.type_.as_str(),
                condition.status.as_str(),
                condition.reason.as_str()
            ),
            ("LowConfidence", "True", "ShortHistory")
        );
        let clear = Findings {
            low_confidence: ConditionState::False,
            ..Findings::default()
        };
        let old = Some(&first.status);
        let second = plan(old, Some(1), containers("1"), &clear, at(1), TEN_MINUTES).unwrap();
        let condition = &second.status.conditions[0];
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("False", "EnoughHistory")
        );
        assert_eq!(condition.last_transition_time.0, at(1));
    }

    #[test]
    fn a_missing_target_keeps_the_recommendation_and_its_time() {
        let first = plan(None, None, containers("1"), &short(), at(0), TEN_MINUTES).unwrap();
        let missing = Findings {
            no_objects_matched: ConditionState::True(ConditionCause {
                reason: "TargetMissing",
                message: "no Deployment web".to_owned(),
            }),
            ..Findings::default()
        };
        let next = plan(
            Some(&first.status),
            None,
            None,
            &missing,
            at(100),
            TEN_MINUTES,
        )
        .unwrap();
        assert_eq!(next.status.pod_status, first.status.pod_status);
        assert_eq!(next.status.update_time, first.status.update_time);
        // The confidence was not evaluated.
        assert_eq!(next.status.conditions[0], first.status.conditions[0]);
        let second = plan(
            Some(&next.status),
            None,
            None,
            &missing,
            at(999),
            TEN_MINUTES,
        );
        assert_eq!(second, None);
    }

    #[test]
    fn refusal_is_reported_once() {
        let wrong = Findings {
            config_unsupported: ConditionState::True(refused("spec.target.type \"x\"")),
            ..Findings::default()
        };
        let first = plan(None, None, None, &wrong, at(0), TEN_MINUTES).unwrap();
        assert_eq!(first.refusal.as_deref(), Some("spec.target.type \"x\""));
        assert_eq!(first.status.update_time, None);
        assert_eq!(
            plan(Some(&first.status), None, None, &wrong, at(5), TEN_MINUTES),
            None
        );
    }

    #[test]
    fn estimate_is_reported_before_short_history() {
        let estimates = ContainerEstimates {
            is_estimated: true,
            days: 0.2,
            unmeasured: vec!["proxy".to_owned()],
            ..ContainerEstimates::default()
        };
        let cause = low_confidence(&estimates, Some("metrics.k8s.io: gone")).unwrap();
        assert_eq!(cause.reason, "PodLevelMetrics");
        assert!(
            cause
                .message
                .contains("not measured yet: proxy (metrics.k8s.io: gone)")
        );
        assert!(cause.message.contains("less than a day"));
    }
}
