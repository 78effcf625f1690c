use super::*;

fn profile(name: &str, spec: Value) -> Arc<ClusterColocationProfile> {
    let profile = json!({"metadata": {"name": name}, "spec": spec});
    Arc::new(serde_json::from_value(profile).unwrap())
}

fn text_map(value: Value) -> Labels {
    serde_json::from_value(value).unwrap()
}

fn names(matched: &[Arc<ClusterColocationProfile>]) -> Vec<&str> {
    matched.iter().map(|profile| name(profile)).collect()
}

#[test]
fn both_selectors_decide_and_names_order() {
    let pod = text_map(json!({"app": "spark"}));
    let namespace = text_map(json!({"team": "data"}));
    let profiles = [
        profile("z-all", json!({})),
        profile("empty", json!({"selector": {}, "namespaceSelector": {}})),
        profile(
            "pod",
            json!({"selector": {"matchLabels": {"app": "spark"}}}),
        ),
        profile(
            "other-pod",
            json!({"selector": {"matchLabels": {"app": "web"}}}),
        ),
        profile(
            "namespace",
            json!({"namespaceSelector": {"matchLabels": {"team": "data"}}}),
        ),
        profile(
            "other-namespace",
            json!({"namespaceSelector": {"matchLabels": {"team": "web"}}}),
        ),
        profile(
            "both",
            json!({
                "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
                "namespaceSelector": {"matchLabels": {"team": "data"}},
            }),
        ),
    ];
    let (matched, warnings) = matching(profiles.clone(), &pod, Namespace::Labels(&namespace));
    assert_eq!(
        names(&matched),
        ["both", "empty", "namespace", "pod", "z-all"]
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    let (matched, _) = matching(profiles, &pod, Namespace::Ignored);
    assert!(names(&matched).contains(&"other-namespace"));
}

#[test]
fn unknown_namespace_does_not_match_and_warns() {
    let pod = text_map(json!({"app": "spark"}));
    let bad = json!([{"key": "app", "operator": "in", "values": ["spark"]}]);
    let profiles = [
        profile("bad", json!({"selector": {"matchExpressions": bad}})),
        profile(
            "by-namespace",
            json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}),
        ),
        profile("fine", json!({})),
        // It would not apply anyway, so there is no warning.
        profile(
            "other",
            json!({
                "selector": {"matchLabels": {"app": "web"}},
                "namespaceSelector": {"matchLabels": {"a": "b"}},
            }),
        ),
    ];
    let (matched, warnings) = matching(profiles, &pod, Namespace::Unknown);
    assert_eq!(names(&matched), ["fine"]);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for (warning, parts) in warnings.iter().zip([
        ["\"bad\": spec.selector", "operator \"in\""],
        ["\"by-namespace\": spec.namespaceSelector", "not known"],
    ]) {
        assert!(parts.iter().all(|part| warning.contains(part)), "{warning}");
    }
}

#[test]
fn metadata_is_set_in_the_order_of_the_fields() {
    let spec = json!({
        "labels": {"a": "profile", "copied": "overwritten by the copy"},
        "labelKeysMapping": {"a": "copied", "absent": "empty"},
        "labelSuffixes": {"copied": "-x", "none": "-y", "empty": "-z"},
        "annotations": {"note": "1"},
        "annotationKeysMapping": {"note": "note-2"},
        "qosClass": "BE",
        "koordinatorPriority": -3,
    });
    let profile = profile("p", spec);
    let mut pod = json!({"metadata": {"labels": {"a": "own", "kept": "k"}}});
    let want = json!({"metadata": {
        "labels": {
            "a": "profile", "kept": "k", "copied": "profile-x", "empty": "-z",
            "koordinator.sh/qosClass": "BE", "koordinator.sh/priority": "-3",
        },
        "annotations": {"note": "1", "note-2": "1"},
    }});
    set_metadata(&mut pod, &profile.spec).unwrap();
    assert_eq!(pod, want);
    set_metadata(&mut pod, &profile.spec).unwrap();
    assert_eq!(pod, want, "a suffix is appended once");
}

#[test]
fn empty_profile_changes_nothing() {
    let profile = profile("p", json!({"labelSuffixes": {"a": "b"}}));
    for pod in [json!({}), json!({"metadata": {"name": "x", "labels": {}}})] {
        let mut changed = pod.clone();
        set_metadata(&mut changed, &profile.spec).unwrap();
        assert_eq!(changed, pod);
    }
}

#[test]
fn probability_is_a_number_or_a_percentage() {
    for (probability, roll, skipped) in [
        (Value::Null, 99, false),
        (json!(100), 99, false),
        (json!("100%"), 99, false),
        (json!(0), 0, true),
        (json!("0%"), 0, true),
        // Upstream's rows: 50 % and the rolled number.
        (json!(50), 70, true),
        (json!(50), 30, false),
        (json!("50%"), 50, false),
        (json!("50%"), 51, true),
        (json!(150), 99, false),
        (json!(-1), 0, true),
    ] {
        let percent = percent(&profile("p", json!({"probability": probability}))).unwrap();
        assert_eq!(
            is_skipped(percent, || roll),
            skipped,
            "{probability} {roll}"
        );
    }
    for bad in ["50", "half", "5.5%", "%", ""] {
        let error = percent(&profile("p", json!({"probability": bad})))
            .unwrap_err()
            .to_string();
        let parts = ["\"p\"", "spec.probability", &format!("{bad:?}")];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn rolls_are_uniform_and_repeatable() {
    let rolls: Vec<_> = (0..10_000)
        .map(|n| stable_percentage(&format!("uid-{n}"), "p"))
        .collect();
    assert!(rolls.iter().all(|roll| (0..100).contains(roll)));
    let low = rolls.iter().filter(|roll| **roll < 30).count();
    assert!(
        (2_700..3_300).contains(&low),
        "{low} of 10,000 are below 30"
    );
    assert_eq!(stable_percentage("uid-7", "p"), rolls[7]);
    assert!((0..100).any(|n| stable_percentage(&format!("uid-{n}"), "q") != rolls[n]));
}

#[test]
fn mistakes_are_found_before_a_pod_meets_them() {
    let bad = json!([{"key": "app", "operator": "Is", "values": ["x"]}]);
    let spec = json!({
        "selector": {"matchExpressions": bad},
        "namespaceSelector": {"matchExpressions": bad},
        "probability": "often",
        "patch": ["x"],
    });
    let fields: Vec<_> = problems(&profile("p", spec))
        .iter()
        .map(|error| error.field)
        .collect();
    let want = [
        "spec.selector",
        "spec.namespaceSelector",
        "spec.probability",
        "spec.patch",
    ];
    assert_eq!(fields, want);
    assert_eq!(problems(&profile("p", json!({"patch": {}}))), []);
}

#[test]
fn values_out_of_range_are_reported_with_their_effect() {
    for (spec, parts) in [
        (
            json!({"probability": "200%"}),
            ["spec.probability", "200", "counts as 100"],
        ),
        (
            json!({"probability": -5}),
            ["spec.probability", "-5", "counts as 0"],
        ),
        (
            json!({"selector": {"matchLabels": {"no label": "x"}}}),
            ["spec.selector", "no label", "selects nothing"],
        ),
    ] {
        let found_problems = problems(&profile("p", spec));
        assert_eq!(found_problems.len(), 1, "{found_problems:?}");
        let text = found_problems[0].to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    assert_eq!(problems(&profile("p", json!({"probability": 100}))), []);
}
