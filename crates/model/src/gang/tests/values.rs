//! Tests how pods and PodGroups are read, and how PodGroups are written.

use super::*;
use crate::gang::spec;
use crate::gang::status::{self, advance, patch, same};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use koord_api::scheduling::{PodGroup, PodGroupStatus};
use serde_json::Value;

const PREFIX: &str = "gang.scheduling.koordinator.sh/";

fn object<T: serde::de::DeserializeOwned>(labels: Value, annotations: Value, rest: Value) -> T {
    let mut prefixed = json!({});
    for (key, value) in annotations.as_object().into_iter().flatten() {
        let key = if key.contains('/') {
            key.clone()
        } else {
            format!("{PREFIX}{key}")
        };
        prefixed[key] = value.clone();
    }
    let mut value = json!({"metadata": {
        "name": "p", "namespace": "default", "labels": labels, "annotations": prefixed,
    }});
    for (key, part) in rest.as_object().into_iter().flatten() {
        value[key] = part.clone();
    }
    serde_json::from_value(value).unwrap()
}

#[test]
fn pod_gang_is_parsed_from_labels_or_annotation() {
    for (labels, annotations, expected) in [
        (json!({}), json!({}), None),
        (json!({"test": "gang"}), json!({"test/x": "gang"}), None),
        (
            json!({"pod-group.scheduling.sigs.k8s.io": "a"}),
            json!({"name": "c"}),
            Some("a"),
        ),
        (
            json!({"pod-group.scheduling.sigs.k8s.io": "a", "pod-group.scheduling.sigs.k8s.io/name": "b"}),
            json!({}),
            Some("a"),
        ),
        (
            json!({"pod-group.scheduling.sigs.k8s.io/name": "b"}),
            json!({"name": "c"}),
            Some("b"),
        ),
        (
            json!({"pod-group.scheduling.sigs.k8s.io": ""}),
            json!({"name": "c"}),
            Some("c"),
        ),
    ] {
        let pod: Pod = object(labels.clone(), annotations, json!({}));
        assert_eq!(spec::gang_name(&pod.metadata), expected, "{labels}");
    }
}

/// Name, labels, annotations; then minimum, total, mode, policy, waiting time in seconds, group; and the
/// number of reported values.
type PodRow = (
    &'static str,
    Value,
    Value,
    Option<(
        usize,
        usize,
        &'static str,
        &'static str,
        u64,
        &'static [&'static str],
    )>,
    usize,
);

#[test]
fn pod_describes_gang_and_invalid_values_fall_back() {
    const A: &[&str] = &["default/a"];
    const AB: &[&str] = &["default/a", "default/b"];
    let once = "once-satisfied";
    let rows: Vec<PodRow> = vec![
        ("nothing but the name", json!({}), json!({}), None, 1),
        (
            "no number",
            json!({}),
            json!({"min-available": "xxx"}),
            None,
            1,
        ),
        (
            "too large",
            json!({}),
            json!({"min-available": "2147483648"}),
            None,
            1,
        ),
        (
            "minimum only",
            json!({}),
            json!({"min-available": "2"}),
            Some((2, 2, "Strict", once, 600, A)),
            0,
        ),
        (
            "all",
            json!({}),
            json!({
                "min-available": "2", "total-number": "5", "waiting-time": "30s",
                "mode": "NonStrict", "match-policy": "only-waiting",
                "groups": r#"["default/b","default/a"]"#,
            }),
            Some((2, 5, "NonStrict", "only-waiting", 30, AB)),
            0,
        ),
        (
            "lightweight label wins",
            json!({"pod-group.scheduling.sigs.k8s.io/min-available": "3"}),
            json!({"min-available": "2"}),
            Some((3, 3, "Strict", once, 600, A)),
            0,
        ),
        (
            "alias of the policy",
            json!({}),
            json!({
                "min-available": "1",
                "pod-group.scheduling.sigs.k8s.io/match-policy": "waiting-and-running",
            }),
            Some((1, 1, "Strict", "waiting-and-running", 600, A)),
            0,
        ),
        (
            "illegal values",
            json!({}),
            json!({
                "min-available": "2", "total-number": "1", "mode": "Wobbly",
                "waiting-time": "Wobbly", "groups": "a,x", "match-policy": "Wobbly",
            }),
            Some((2, 2, "Strict", once, 600, A)),
            5,
        ),
        (
            "zeros",
            json!({}),
            json!({"min-available": "0", "total-number": "0", "waiting-time": "0"}),
            Some((0, 0, "Strict", once, 600, A)),
            1,
        ),
        (
            "negative waiting, groups of no strings",
            json!({}),
            json!({"min-available": "0", "waiting-time": "-20s", "groups": "[a,b]"}),
            Some((0, 0, "Strict", once, 600, A)),
            3,
        ),
        (
            "a group without the gang",
            json!({}),
            json!({"min-available": "1", "groups": r#"["default/b"]"#}),
            Some((1, 1, "Strict", once, 600, AB)),
            1,
        ),
    ];
    for (name, labels, annotations, expected, reported) in rows {
        let pod: Pod = object(labels, annotations, json!({}));
        let (found, ignored) =
            spec::from_pod(&pod.metadata, &"default/a".into(), &Defaults::default());
        let expected = expected.map(|(min, total, mode, policy, wait, group)| GangDescription {
            min,
            total,
            mode: mode.into(),
            policy: policy.into(),
            wait: Duration::from_secs(wait),
            group: ids(group),
            topology: None,
            created: None,
        });
        assert_eq!(found, expected, "{name}");
        assert_eq!(ignored.len(), reported, "{name}: {ignored:?}");
    }
}

#[test]
fn pod_group_describes_gang() {
    for (name, spec, annotations, expected, reported) in [
        ("plain", json!({"minMember": 4}), json!({}), (4, 4, 600), 0),
        (
            "timeout and total",
            json!({"minMember": 4, "scheduleTimeoutSeconds": 10}),
            json!({"total-number": "5"}),
            (4, 5, 10),
            0,
        ),
        (
            "illegal",
            json!({"minMember": 4, "scheduleTimeoutSeconds": 0}),
            json!({"total-number": "3"}),
            (4, 4, 600),
            2,
        ),
        ("empty", json!({}), json!({}), (0, 0, 600), 1),
    ] {
        let rest = json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "spec": spec,
        });
        let group: PodGroup = object(json!({}), annotations, rest);
        let (found, ignored) =
            spec::from_pod_group(&group, &"default/p".into(), &Defaults::default());
        assert_eq!(
            (found.min, found.total, found.wait.as_secs()),
            expected,
            "{name}"
        );
        assert_eq!(ignored.len(), reported, "{name}: {ignored:?}");
    }
    // `TestGangCache_OnPodGroupAdd`: the same keys as on pods.
    let own = ["default/p".into()];
    let members: [Arc<str>; 2] = ["default/p".into(), "default/q".into()];
    type GroupRow<'a> = (&'a str, &'a str, GangMode, &'a [Arc<str>], usize);
    let rows: [GroupRow<'_>; 2] = [
        (
            "NonStrict",
            r#"["default/q","default/p"]"#,
            GangMode::NonStrict,
            &members,
            0,
        ),
        ("WenShiqi222", "a,b", GangMode::Strict, &own, 2),
    ];
    for (mode, groups, expected, group, reported) in rows {
        let rest = json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
            "spec": {"minMember": 2},
        });
        let annotations = json!({"mode": mode, "groups": groups});
        let described: PodGroup = object(json!({}), annotations, rest);
        let (found, ignored) =
            spec::from_pod_group(&described, &"default/p".into(), &Defaults::default());
        assert_eq!((found.mode, &*found.group), (expected, group), "{mode}");
        assert_eq!(ignored.len(), reported, "{mode}: {ignored:?}");
    }
}

fn time(hours: i64) -> Time {
    Time(Timestamp::from_second(1_700_000_000 + hours * 3600).unwrap())
}

#[test]
fn pod_group_passes_through_phases() {
    let pods = |total, bound, running, succeeded, failed| status::MemberCounts {
        total,
        bound,
        running,
        succeeded,
        failed,
        owners: "",
    };
    // Name, minimum, phase before, created (hours), members; phase once nothing changes.
    for (name, min, before, created, members, after) in [
        ("running", 2, "Scheduled", 0, pods(2, 2, 2, 0, 0), "Running"),
        (
            "running, more than the minimum",
            2,
            "Scheduled",
            0,
            pods(3, 3, 3, 0, 0),
            "Running",
        ),
        ("failed", 2, "Scheduled", 0, pods(2, 2, 0, 0, 2), "Failed"),
        (
            "finished",
            2,
            "Scheduled",
            0,
            pods(2, 2, 0, 2, 0),
            "Finished",
        ),
        (
            "scheduled",
            2,
            "Scheduling",
            0,
            pods(2, 2, 0, 0, 0),
            "Scheduled",
        ),
        (
            "scheduling to finished",
            2,
            "Scheduling",
            0,
            pods(2, 2, 0, 2, 0),
            "Finished",
        ),
        (
            "scheduled to finished",
            2,
            "Scheduled",
            0,
            pods(2, 2, 0, 2, 0),
            "Finished",
        ),
        (
            "pending to finished",
            2,
            "Pending",
            0,
            pods(2, 2, 0, 2, 0),
            "Finished",
        ),
        (
            "too old to be looked at",
            2,
            "Pending",
            -72,
            pods(2, 2, 2, 0, 0),
            "Pending",
        ),
        (
            "too few pods",
            3,
            "Pending",
            0,
            pods(2, 2, 0, 0, 0),
            "Pending",
        ),
        (
            "no pods left",
            2,
            "Running",
            0,
            pods(0, 0, 0, 0, 0),
            "Pending",
        ),
        (
            "all four run",
            4,
            "Scheduling",
            0,
            pods(4, 4, 4, 0, 0),
            "Running",
        ),
        ("new", 2, "", 0, pods(1, 0, 0, 0, 0), "Pending"),
        (
            "new and complete",
            2,
            "",
            0,
            pods(2, 0, 0, 0, 0),
            "Scheduling",
        ),
        (
            "no minimum",
            0,
            "Pending",
            0,
            pods(0, 0, 0, 0, 0),
            "Pending",
        ),
        (
            "one failed, the rest runs",
            2,
            "Running",
            0,
            pods(2, 2, 1, 0, 1),
            "Failed",
        ),
        (
            "one failed of many",
            4,
            "Running",
            0,
            pods(4, 4, 2, 0, 1),
            "Scheduled",
        ),
        ("over", 2, "Finished", 0, pods(0, 0, 0, 0, 0), "Finished"),
    ] {
        let mut status = PodGroupStatus {
            phase: (!before.is_empty()).then(|| before.into()),
            occupied_by: "test".to_owned(),
            scheduled: Some(min),
            schedule_start_time: Some(time(0)),
            ..PodGroupStatus::default()
        };
        for _ in 0..10 {
            let Some(next) = advance(min, Some(&time(created)), &status, &members, &time(1)) else {
                break;
            };
            status = next;
        }
        assert_eq!(status.phase.unwrap().as_str(), after, "{name}");
        assert_eq!(status.occupied_by, "test", "{name}");
        if name == "all four run" {
            assert_eq!((status.scheduled, status.running), (Some(4), Some(4)));
        }
    }
}

#[test]
fn each_step_writes_only_changed_fields() {
    let members = |bound, running| status::MemberCounts {
        total: 2,
        bound,
        running,
        owners: "ns/one,ns/two",
        ..status::MemberCounts::default()
    };
    let mut status = PodGroupStatus::default();
    let mut patches = Vec::new();
    for members in [
        members(0, 0),
        members(0, 0),
        members(1, 0),
        members(2, 1),
        members(2, 2),
        members(1, 0),
    ] {
        let next = advance(2, Some(&time(0)), &status, &members, &time(1)).unwrap();
        let body = patch(&status, &next);
        // The object after the server applied the patch.
        let mut object = serde_json::to_value(&status).unwrap();
        for (key, value) in body["status"].as_object().unwrap() {
            object[key] = value.clone();
        }
        let echoed: PodGroupStatus = serde_json::from_value(object).unwrap();
        assert!(same(&echoed, &next), "{echoed:?} {next:?}");
        patches.push(body["status"].clone());
        status = next;
    }
    let started = "2023-11-14T23:13:20Z";
    assert_eq!(
        patches,
        [
            json!({"phase": "Pending"}),
            json!({"phase": "PreScheduling", "occupiedBy": "ns/one,ns/two"}),
            json!({"phase": "Scheduling", "scheduled": 1, "scheduleStartTime": started}),
            json!({"phase": "Scheduled", "scheduled": 2, "running": 1}),
            json!({"phase": "Running", "running": 2}),
            json!({"phase": "Scheduling", "scheduled": 1, "running": null}),
        ]
    );
    assert_eq!(
        advance(2, Some(&time(0)), &status, &members(1, 0), &time(9)),
        None
    );
}
