use super::*;

struct FixedSettings {
    nodes: Vec<(String, Strings)>,
    names_needed: bool,
}

impl SettingsSource for FixedSettings {
    fn key(&self) -> ObjectKey {
        ObjectKey::new("koordinator-system", "slo-controller-config")
    }
    fn data(&self) -> Option<Strings> {
        None
    }
    fn nodes(&self) -> Vec<(String, Strings)> {
        self.nodes.clone()
    }
    fn requires_names(&self) -> bool {
        self.names_needed
    }
}

fn strings(value: Value) -> Strings {
    let object = value.as_object().unwrap().clone().into_iter();
    object
        .map(|(key, value)| match value {
            Value::String(text) => (key, text),
            other => (key, other.to_string()),
        })
        .collect()
}

fn refusal(data: Value, old: Value, names_needed: bool) -> Option<(&'static str, String)> {
    let nodes = vec![
        ("n1".to_owned(), strings(json!({"pool": "a", "zone": "x"}))),
        ("n2".to_owned(), strings(json!({"pool": "b"}))),
    ];
    let settings = FixedSettings {
        nodes,
        names_needed,
    };
    let refused = check(&strings(data), &strings(old), &settings).err()?;
    let text = refused.to_string();
    assert!(text.starts_with("___{") && text.ends_with("}___"), "{text}");
    Some((refused.reason, text))
}

fn picks(name: &str, label: &str, value: &str) -> Value {
    json!({"name": name, "nodeSelector": {"matchLabels": {label: value}}})
}

#[test]
fn good_settings_pass() {
    for data in [
        json!({}),
        json!({"colocation-config": ""}),
        json!({"colocation-config": {"enable": true, "nodeConfigs": [picks("a", "pool", "a"), picks("b", "pool", "b")]}}),
        // Upstream also requires system-config.
        json!({"resource-qos-config": {"clusterStrategy": {"beClass": {"networkQOS": {"ingressRequest": 40}}}}}),
        // Upstream refuses one side of a pair alone.
        json!({"resource-threshold-config": {"clusterStrategy": {"memoryEvictThresholdPercent": 80}}}),
        json!({"cpu-suppress-config": {"clusterStrategy": {"mode": "pressure"}}}),
        json!({"other-program": "{"}),
    ] {
        assert_eq!(refusal(data.clone(), json!({}), false), None, "{data}");
    }
}

#[test]
fn refusals_name_key_field_and_value() {
    let threshold =
        |strategy: Value| json!({"resource-threshold-config": {"clusterStrategy": strategy}});
    let network =
        |class: &str, share: Value| json!({class: {"networkQOS": {"ingressRequest": share}}});
    let mut mixed = network("lsClass", json!("10M"));
    mixed["beClass"] = network("beClass", json!(10))["beClass"].clone();
    let mut large = network("lsClass", json!(60));
    large["beClass"] = network("beClass", json!(60))["beClass"].clone();
    let qos = |strategy: Value| json!({"resource-qos-config": {"clusterStrategy": strategy}});
    let mut over = qos(network("beClass", json!("20M")));
    over["system-config"] = json!({"clusterStrategy": {"totalNetworkBandwidth": "10M"}});
    for (data, reason, names) in [
        (
            json!({"colocation-config": "{"}),
            "ParseConfigFail",
            vec!["colocation-config"],
        ),
        (
            json!({"colocation-config": {"enable": "yes"}}),
            "ParseConfigFail",
            vec!["enable", "yes"],
        ),
        (
            json!({"colocation-config": {"cpuReclaimThresholdPercent": -5}}),
            "ConfigParamInvalid",
            vec!["colocation-config", "cpuReclaimThresholdPercent", "-5"],
        ),
        (
            threshold(json!({"cpuSuppressThresholdPercent": 650})),
            "ConfigParamInvalid",
            vec![
                "resource-threshold-config",
                "cpuSuppressThresholdPercent",
                "650",
            ],
        ),
        (
            threshold(json!({"memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 70})),
            "ConfigParamInvalid",
            vec!["memoryEvictLowerPercent", "70"],
        ),
        (
            json!({"cpu-normalization-config": {"defaultRatio": -1}}),
            "ConfigParamInvalid",
            vec!["cpu-normalization-config", "defaultRatio", "-1"],
        ),
        (
            json!({"host-application-config": {"applications": "all"}}),
            "ParseConfigFail",
            vec!["host-application-config", "applications", "all"],
        ),
        (
            json!({"resource-amplification-config": "[1"}),
            "ParseConfigFail",
            vec!["resource-amplification-config"],
        ),
        (
            json!({"cpu-suppress-config": "{"}),
            "ParseConfigFail",
            vec!["cpu-suppress-config"],
        ),
        (
            json!({"system-config": {"nodeStrategies": [{"name": "a"}]}}),
            "ConfigParamInvalid",
            vec!["system-config", "nodeSelector"],
        ),
        (
            json!({"system-config": {"nodeStrategies": [{"name": "a", "nodeSelector": {}}]}}),
            "ConfigParamInvalid",
            vec!["system-config", "\\\"a\\\"", "nodeSelector is empty"],
        ),
        (
            json!({"system-config": {"nodeStrategies": [picks("a", "pool of", "x")]}}),
            "ConfigParamInvalid",
            vec!["system-config", "\\\"a\\\"", "nodeSelector", "pool of"],
        ),
        (
            json!({"colocation-config": {"nodeConfigs": [picks("a", "pool", "x y")]}}),
            "ConfigParamInvalid",
            vec!["colocation-config", "\\\"a\\\"", "nodeSelector", "x y"],
        ),
        (
            json!({"cpu-burst-config": {"nodeStrategies": [{"name": "a", "nodeSelector": {
                "matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["x", "-"]}],
            }}]}}),
            "ConfigParamInvalid",
            vec!["cpu-burst-config", "nodeSelector", "\\\"-\\\""],
        ),
        (
            qos(network("beClass", json!(101))),
            "ConfigParamInvalid",
            vec![
                "resource-qos-config",
                "beClass.networkQOS.ingressRequest",
                "101",
            ],
        ),
        (
            qos(network("beClass", json!("fast"))),
            "ConfigParamInvalid",
            vec!["fast"],
        ),
        (
            qos(mixed),
            "ConfigParamInvalid",
            vec!["ingressRequest", "percentages"],
        ),
        (qos(large), "ConfigParamInvalid", vec!["120", "at most 100"]),
        (over, "ConfigParamInvalid", vec!["20M", "10M"]),
        // Upstream lets words pass that mean nothing.
        (
            threshold(json!({"cpuSuppressPolicy": "foo"})),
            "ConfigParamInvalid",
            vec!["cpuSuppressPolicy", "foo", "cpuset, cfsQuota"],
        ),
        (
            json!({"host-application-config": {"applications": [{"name": "a", "qos": "ls"}]}}),
            "ConfigParamInvalid",
            vec!["applications[0].qos", "ls", "LSE, LSR, LS, BE, SYSTEM"],
        ),
        (
            json!({"cpu-suppress-config": {"clusterStrategy": {"mode": "presure"}}}),
            "ConfigParamInvalid",
            vec!["clusterStrategy.mode", "presure"],
        ),
    ] {
        let Some((actual, text)) = refusal(data.clone(), json!({}), false) else {
            panic!("{data} passed");
        };
        assert_eq!(actual, reason, "{text}");
        for name in names {
            assert!(text.contains(name), "{name}: {text}");
        }
    }
}

#[test]
fn suspicious_settings_pass_with_a_warning() {
    let settings = FixedSettings {
        nodes: Vec::new(),
        names_needed: false,
    };
    let data = strings(json!({"colocation-config": {"enabled": true},
        "cpu-suppress-config": {"clusterStrategy": {"beCpuIdle": true}}}));
    let warnings = check(&data, &strings(json!({})), &settings).unwrap();
    assert_eq!(
        warnings,
        [
            "colocation-config: field enabled is true: there is no such field; it is ignored",
            "cpu-suppress-config: field clusterStrategy.beCpuIdle is true: there is no such field; it is ignored",
        ]
    );
    // Text that an earlier write stored gets no warnings.
    assert_eq!(check(&data, &data, &settings), Ok(Vec::new()));
}

#[test]
fn overrides_that_pick_the_same_node_are_refused() {
    let data = |nodes: Value| json!({"colocation-config": {"nodeConfigs": nodes}});
    // By the selectors themselves.
    let narrow = json!({"name": "n", "nodeSelector": {"matchLabels": {"pool": "c", "zone": "z"}}});
    let wide = picks("w", "pool", "c");
    let (reason, text) = refusal(data(json!([narrow, wide])), json!({}), false).unwrap();
    assert_eq!(reason, "NodeStrategiesOverlap");
    assert!(text.contains(r#""strategies":["n","w"]"#), "{text}");
    let among = json!({"name": "m", "nodeSelector": {"matchExpressions": [
        {"key": "pool", "operator": "In", "values": ["x", "c"]}]}});
    let (reason, _) = refusal(data(json!([among, wide])), json!({}), false).unwrap();
    assert_eq!(reason, "NodeStrategiesOverlap");
    // Only a node there is shows it.
    let apart = json!([picks("a", "pool", "a"), picks("x", "zone", "x")]);
    let (reason, text) = refusal(data(apart.clone()), json!({}), false).unwrap();
    assert_eq!(reason, "ExistNodeConfict");
    assert!(text.contains(r#""exampleNodes":["n1"]"#), "{text}");
    // What was there before is not looked at.
    let stored = strings(data(apart.clone()));
    let stored = json!(stored);
    assert_eq!(refusal(data(apart), stored, false), None);
}

#[test]
fn flag_requires_names() {
    let data = |nodes: Value| json!({"cpu-burst-config": {"nodeStrategies": nodes}});
    for (nodes, says) in [
        (json!([picks("", "pool", "c")]), "has no name"),
        (
            json!([picks("a", "pool", "c"), picks("a", "pool", "d")]),
            "two overrides",
        ),
    ] {
        assert_eq!(refusal(data(nodes.clone()), json!({}), false), None);
        let (reason, text) = refusal(data(nodes), json!({}), true).unwrap();
        assert_eq!(reason, "ConfigParamInvalid");
        assert!(text.contains(says), "{text}");
    }
}

/// The number of sample nodes is limited, however many values the selectors have.
#[test]
fn made_up_nodes_are_limited() {
    let values: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let requirement = |key: &str| json!({"key": key, "operator": "In", "values": values});
    let selector: LabelSelector = serde_json::from_value(
        json!({"matchExpressions": [requirement("a"), requirement("b"), requirement("c")]}),
    )
    .unwrap();
    assert_eq!(sample_nodes(Some(&selector)).len(), MAX_SAMPLE_NODES);
}

#[test]
fn rollout_percentage_is_checked() {
    let data = |percent: Value| {
        let mut strategy = picks("canary", "pool", "a");
        strategy["rolloutPercent"] = percent;
        let strategies = json!({"nodeStrategies": [strategy]});
        [
            json!({"resource-threshold-config": strategies}),
            json!({"cpu-suppress-config": strategies}),
            json!({"colocation-config": {"nodeConfigs": [strategies["nodeStrategies"][0]]}}),
        ]
    };
    for percent in [json!(0), json!(25), json!(100), json!(null)] {
        for data in data(percent) {
            assert_eq!(refusal(data.clone(), json!({}), true), None, "{data}");
        }
    }
    for percent in [json!(101), json!(-1), json!(0.5), json!("25"), json!([1])] {
        for data in data(percent.clone()) {
            let (reason, text) = refusal(data.clone(), json!({}), true).unwrap();
            assert_eq!(reason, "ConfigParamInvalid");
            let shown = serde_json::to_string(&percent.to_string()).unwrap();
            let shown = format!("rolloutPercent is {}", shown.trim_matches('"'));
            assert!(text.contains(&shown), "{text}");
            assert!(text.contains("a whole number from 0 to 100"), "{text}");
        }
    }
    // Unknown to the cluster strategy, where it would have no effect.
    let cluster = json!({"resource-threshold-config": {"clusterStrategy": {"rolloutPercent": 5}}});
    let nodes = Vec::new();
    let settings = FixedSettings {
        nodes,
        names_needed: false,
    };
    let warnings = check(&strings(cluster), &Strings::new(), &settings).unwrap();
    assert!(warnings[0].contains("rolloutPercent"), "{warnings:?}");
}
