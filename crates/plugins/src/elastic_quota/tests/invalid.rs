//! Invalid values of quotas.

use super::*;

/// Returns the problems since the last call, as `name: message`.
fn problems(engine: &mut Engine, seconds: i64) -> Vec<String> {
    engine.schedule_one(at(seconds));
    let outputs = engine.take_outputs().into_iter();
    let mut problems: Vec<String> = outputs
        .filter_map(|output| match output {
            Output::Problem(problem) => {
                assert_eq!(
                    (problem.kind, &*problem.uid),
                    ("ElasticQuota", &*problem.name)
                );
                Some(format!("{}: {}", problem.name, problem.message))
            }
            _ => None,
        })
        .collect();
    problems.sort();
    problems
}

#[test]
fn quota_with_invalid_values_is_reported_once() {
    let note = |key: &str, text: &str| json!({"metadata": {"annotations": {(key): text}}});
    let label = |key: &str, text: &str| json!({"metadata": {"labels": {(key): text}}});
    for (change, field, value, expected) in [
        (
            json!({"spec": {"min": {"cpu": "-1"}}}),
            "spec.min[cpu]",
            "-1",
            "0 or more",
        ),
        (
            json!({"spec": {"max": {"memory": "-1Gi"}}}),
            "spec.max[memory]",
            "-1Gi",
            "0 or more",
        ),
        (
            json!({"spec": {"min": {"cpu": "5"}, "max": {"cpu": "4"}}}),
            "spec.min[cpu]",
            "5",
            "at most spec.max[cpu], 4",
        ),
        (
            note(annotations::QUOTA_SHARED_WEIGHT, r#"{"cpu":"-3"}"#),
            "shared-weight[cpu]",
            "-3",
            "0 or more",
        ),
        (
            note(annotations::QUOTA_TOTAL_RESOURCE, r#"{"cpu":"-3"}"#),
            "total-resource[cpu]",
            "-3",
            "0 or more",
        ),
        (
            note(annotations::QUOTA_TOTAL_RESOURCE, r#"{"cpu":"3x"}"#),
            "total-resource",
            "3x",
            "a JSON object of resource amounts",
        ),
        (
            label(labels::QUOTA_IS_PARENT, "maybe"),
            "is-parent",
            "maybe",
            "true or false; false is used",
        ),
        (
            label(labels::QUOTA_ALLOW_LENT_RESOURCE, "no"),
            "allow-lent-resource",
            "no",
            "true or false; true is used",
        ),
    ] {
        let mut engine = engine_with(&json!({}), &["MultiQuotaTree"]);
        let mut object = quota("a", "", (10, 10), (0, 0));
        apply(&mut engine, &object, 0);
        assert_eq!(problems(&mut engine, 2), [""; 0]);
        let good = object.clone();
        for (part, fields) in change.as_object().unwrap() {
            for (key, inner) in fields.as_object().unwrap() {
                for (name, new) in inner.as_object().unwrap() {
                    object[part][key][name] = new.clone();
                }
            }
        }
        apply(&mut engine, &object, 3);
        let messages = problems(&mut engine, 5);
        assert!(
            !messages.is_empty() && messages[0].starts_with("a: invalid value"),
            "{messages:?}"
        );
        assert!(
            messages.iter().any(|message| [field, value, expected]
                .iter()
                .all(|part| message.contains(part))),
            "{field}: {messages:?}"
        );
        apply(&mut engine, &object, 6);
        assert_eq!(problems(&mut engine, 8), [""; 0], "{field}");
        apply(&mut engine, &good, 9);
        apply(&mut engine, &object, 10);
        assert_eq!(problems(&mut engine, 12), messages, "{field}");
    }
}

#[test]
fn quota_without_usable_parent_gets_its_min() {
    let mut engine = engine(&json!({}), 100, 100);
    for (name, parent) in [
        ("self", "self"),
        ("two-a", "two-b"),
        ("two-b", "two-a"),
        ("three-a", "three-b"),
        ("three-b", "three-c"),
        ("three-c", "three-a"),
        ("below", "two-a"),
        ("lost", "nowhere"),
        ("system", "koordinator-system-quota"),
        ("fine", ""),
        ("fine-child", "fine"),
    ] {
        apply(&mut engine, &quota(name, parent, (20, 30), (2, 2)), 0);
    }
    let messages = problems(&mut engine, 2);
    let starts: Vec<&str> = messages
        .iter()
        .filter_map(|message| message.split(" for label").next())
        .collect();
    let invalid = |name: &str, parent: &str| format!("{name}: invalid value \"{parent}\"");
    assert_eq!(
        starts,
        [
            invalid("lost", "nowhere"),
            invalid("self", "self"),
            invalid("system", "koordinator-system-quota"),
            invalid("three-a", "three-b"),
            invalid("three-b", "three-c"),
            invalid("three-c", "three-a"),
            invalid("two-a", "two-b"),
            invalid("two-b", "two-a"),
        ]
    );
    assert!(messages[0].contains("a quota that exists"), "{messages:?}");
    assert!(
        messages[1].contains("another quota than itself"),
        "{messages:?}"
    );
    assert!(
        messages[3].contains("three-a -> three-b -> three-c -> three-a"),
        "{messages:?}"
    );
    for name in ["self", "two-a", "three-c", "lost", "below"] {
        let is = place(&mut engine, &pod(name, name, 3, 1), 3);
        assert!(is.contains("runtime: cpu:2,"), "{name}: {is}");
    }
    assert_eq!(problems(&mut engine, 5), [""; 0]);
    // One parent is created, and one is deleted.
    apply(&mut engine, &quota("nowhere", "", (20, 30), (2, 2)), 6);
    engine.object_changed(
        &change(&quota("fine", "", (20, 30), (2, 2)), Action::DELETE),
        at(6),
    );
    let messages = problems(&mut engine, 8);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0].starts_with(&invalid("fine-child", "fine")),
        "{messages:?}"
    );
}

/// Two thousand quotas in one cycle are checked in linear time, and the message is cut.
#[test]
fn long_quota_cycle_is_reported_briefly() {
    let mut engine = engine(&json!({}), 100, 100);
    let name = |at: usize| format!("q{:04}", at % 2000);
    for at in 0..2000 {
        apply(
            &mut engine,
            &quota(&name(at), &name(at + 1), (20, 30), (2, 2)),
            0,
        );
    }
    let messages = problems(&mut engine, 2);
    assert_eq!(messages.len(), 2000);
    assert!(
        messages.iter().all(|message| message.len() < 400),
        "{}",
        messages[0]
    );
}
