//! Merging of each section of a NodeSLO: the cases of the tables in Koordinator's
//! `pkg/slo-controller/nodeslo/{resource_strategy,nodeslo_cm_event_handler,nodeslo_controller}_test.go`, and
//! of `pkg/slo-controller/nodemetric` for the policy that koordlet measures by.

use super::*;
use crate::nodemetric;
use crate::nodeslo;
use crate::object::ObjectChange;
use koord_api::slo::{NodeMetricSpec, NodeSLOSpec};

/// A section: its key, its field in the NodeSLO, the cluster's settings, two overrides that select the same
/// node, and the settings in force on a plain node and on the selected one.
struct SectionCase {
    key: &'static str,
    field: &'static str,
    cluster: Value,
    overrides: [Value; 2],
    plain: Value,
    picked: Value,
    /// A cluster strategy that cannot be decoded.
    broken: Value,
}

fn sections() -> [SectionCase; 5] {
    [
        SectionCase {
            key: "resource-threshold-config",
            field: "resourceUsedThresholdWithBE",
            cluster: json!({"enable": true, "cpuSuppressThresholdPercent": 60}),
            overrides: [
                json!({"cpuSuppressThresholdPercent": 40, "memoryEvictThresholdPercent": 80}),
                json!({"enable": false}),
            ],
            plain: json!({"enable": true, "cpuSuppressThresholdPercent": 60,
                "cpuSuppressPolicy": "cpuset", "memoryEvictThresholdPercent": 70,
                "cpuEvictPolicy": "evictByRealLimit"}),
            picked: json!({"enable": true, "cpuSuppressThresholdPercent": 40,
                "cpuSuppressPolicy": "cpuset", "memoryEvictThresholdPercent": 80,
                "cpuEvictPolicy": "evictByRealLimit"}),
            broken: json!({"enable": "yes"}),
        },
        SectionCase {
            key: "resource-qos-config",
            field: "resourceQOSStrategy",
            cluster: json!({"beClass": {"cpuQOS": {"groupIdentity": 0}}}),
            overrides: [
                json!({"beClass": {"cpuQOS": {"enable": true}, "memoryQOS": {"wmarkRatio": 90}}}),
                json!({"beClass": {"cpuQOS": {"groupIdentity": 2}}}),
            ],
            plain: json!({"beClass": {"cpuQOS": {"groupIdentity": 0}}}),
            picked: json!({"beClass": {"cpuQOS": {"enable": true, "groupIdentity": 0},
                "memoryQOS": {"wmarkRatio": 90}}}),
            broken: json!({"beClass": []}),
        },
        SectionCase {
            key: "cpu-burst-config",
            field: "cpuBurstStrategy",
            cluster: json!({"cfsQuotaBurstPeriodSeconds": 120}),
            overrides: [
                json!({"policy": "auto", "sharePoolThresholdPercent": 70}),
                json!({"policy": "none"}),
            ],
            plain: json!({"policy": "none", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300,
                "cfsQuotaBurstPeriodSeconds": 120, "sharePoolThresholdPercent": 50}),
            picked: json!({"policy": "auto", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300,
                "cfsQuotaBurstPeriodSeconds": 120, "sharePoolThresholdPercent": 70}),
            broken: json!({"cpuBurstPercent": "200"}),
        },
        SectionCase {
            key: "system-config",
            field: "systemStrategy",
            cluster: json!({"watermarkScaleFactor": 150, "totalNetworkBandwidth": "10G"}),
            overrides: [
                json!({"minFreeKbytesFactor": 100}),
                json!({"minFreeKbytesFactor": 200}),
            ],
            plain: json!({"watermarkScaleFactor": 150, "totalNetworkBandwidth": "10G"}),
            picked: json!({"watermarkScaleFactor": 150, "totalNetworkBandwidth": "10G",
                "minFreeKbytesFactor": 100}),
            broken: json!({"totalNetworkBandwidth": "fast"}),
        },
        SectionCase {
            key: "host-application-config",
            field: "hostApplications",
            cluster: json!({"applications": [{"name": "nginx", "qos": "LS"}]}),
            overrides: [
                json!({"applications": [{"name": "db", "qos": "LSR", "priority": "koord-prod"}]}),
                json!({"applications": []}),
            ],
            plain: json!([{"name": "nginx", "qos": "LS"}]),
            picked: json!([{"name": "db", "qos": "LSR", "priority": "koord-prod"}]),
            broken: json!({"applications": {"name": "nginx"}}),
        },
    ]
}

impl SectionCase {
    fn text(&self, cluster: &Value, overrides: &[Value]) -> String {
        let with = |mut one: Value| {
            one["nodeSelector"] = json!({"matchLabels": {"pool": "picked"}});
            one
        };
        let overrides: Vec<_> = overrides.iter().cloned().map(with).collect();
        let document = if self.key == "host-application-config" {
            let mut document = cluster.clone();
            document["nodeConfigs"] = json!(overrides);
            document
        } else {
            json!({"clusterStrategy": cluster, "nodeStrategies": overrides})
        };
        document.to_string()
    }

    fn field_of(&self, config: &Config, pool: &str) -> Value {
        let (spec, problem) = config.slo(&node(json!({"pool": pool}), json!({})));
        assert_eq!(problem, None);
        let field = |spec: NodeSLOSpec| serde_json::to_value(spec).unwrap()[self.field].clone();
        field(spec)
    }
}

#[test]
fn sections_merge_separately_and_survive_invalid_text() {
    let empty = read(&[]);
    for section in sections() {
        let key = section.key;
        let fields = |config: &Config| {
            [
                section.field_of(config, "other"),
                section.field_of(config, "picked"),
            ]
        };
        let standard = section.field_of(&empty, "picked");
        assert_eq!(
            fields(&read(&[(key, "")])),
            [standard.clone(), standard.clone()],
            "{key}"
        );
        let cluster_only = read(&[(key, &section.text(&section.cluster, &[]))]);
        let plain = section.plain.clone();
        assert_eq!(fields(&cluster_only), [plain.clone(), plain], "{key}");
        // The first of two overrides, over the cluster, over the defaults.
        let full = section.text(&section.cluster, &section.overrides);
        let full = read(&[(key, &full)]);
        let want = [section.plain.clone(), section.picked.clone()];
        assert_eq!(fields(&full), want, "{key}");
        assert_eq!(
            fields(&cluster_only.updated(&data(&[(key, "")])).0)[0],
            standard,
            "{key}"
        );

        for text in ["{".to_owned(), section.text(&section.broken, &[])] {
            let (updated, problems) = full.updated(&data(&[(key, &text)]));
            assert_eq!(fields(&updated), want, "{key}: {text}");
            let reasons: Vec<_> = problems.iter().map(|p| (p.key, p.reason)).collect();
            assert_eq!(
                reasons,
                [(key, "SLOCfgUnmarshalFailed")],
                "{text}: {problems:?}"
            );
            // Without earlier settings the defaults apply.
            let (first, _) = Config::default().updated(&data(&[(key, &text)]));
            assert_eq!(
                fields(&first),
                [standard.clone(), standard.clone()],
                "{key}: {text}"
            );
        }
        // A text with the same meaning leads to an equal config, so that no node is processed again.
        let (again, _) = full.updated(&data(&[(
            key,
            &section.text(&section.cluster, &section.overrides),
        )]));
        assert_eq!(again, full, "{key}");
    }
}

#[test]
fn bandwidth_annotation_overrides_cluster_and_node() {
    let section = &sections()[3];
    let config = read(&[(
        section.key,
        &section.text(&section.cluster, &section.overrides),
    )]);
    let annotation = json!({"node.koordinator.sh/network-bandwidth": "25G"});
    for (pool, mut want) in [
        ("other", section.plain.clone()),
        ("picked", section.picked.clone()),
    ] {
        let (spec, problem) = config.slo(&node(json!({"pool": pool}), annotation.clone()));
        assert_eq!(problem, None);
        want["totalNetworkBandwidth"] = json!("25G");
        let strategy = serde_json::to_value(spec.system_strategy).unwrap();
        assert_eq!(strategy, want, "{pool}");
    }
}

/// Returns the spec of a NodeMetric with these fields of the policy; the others have their defaults.
fn metric_spec(policy_fields: Value) -> NodeMetricSpec {
    let mut policy = json!({"aggregateDurationSeconds": 300, "reportIntervalSeconds": 60,
        "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
        "nodeMemoryCollectPolicy": "usageWithoutPageCache"});
    policy
        .as_object_mut()
        .unwrap()
        .extend(policy_fields.as_object().unwrap().clone());
    serde_json::from_value(json!({ "metricCollectPolicy": policy })).unwrap()
}

#[test]
fn node_metric_follows_its_node() {
    let (old, standard) = (
        metric_spec(json!({"reportIntervalSeconds": 5})),
        metric_spec(json!({})),
    );
    let aggregate = json!({"enable": true, "metricAggregateDurationSeconds": 60,
        "nodeConfigs": [
            {"nodeSelector": {"matchLabels": {"pool": "a"}}, "metricReportIntervalSeconds": 20},
            {"nodeSelector": {"matchLabels": {"pool": "a"}}, "metricReportIntervalSeconds": 30},
            {"nodeSelector": {"matchLabels": {"pool": "bad"}}, "metricReportIntervalSeconds": -1},
            {"nodeSelector": {"matchLabels": {"pool": "off"}}, "enable": false, "metricReportIntervalSeconds": 7},
        ]})
    .to_string();
    let good = read_lenient(&aggregate);
    let unreadable = good.updated(&data(&[(keys::COLOCATION, "{")])).0;
    let invalid = good
        .updated(&data(&[(
            keys::COLOCATION,
            r#"{"enable": true, "metricAggregateDurationSeconds": -1}"#,
        )]))
        .0;
    let in_pool = |pool: &str| node(json!({"pool": pool}), json!({}));
    let of_pool = |spec: Value| ObjectChange::Create(metric_spec(spec));
    let minute = json!({"aggregateDurationSeconds": 60});
    for (node, existing, config, want) in [
        (None, None, &good, ObjectChange::Nothing),
        (None, Some(&old), &good, ObjectChange::Delete),
        (
            Some(plain()),
            None,
            &read(&[]),
            ObjectChange::Create(standard.clone()),
        ),
        (
            Some(plain()),
            Some(&old),
            &read(&[]),
            ObjectChange::Update(standard.clone()),
        ),
        (
            Some(plain()),
            Some(&standard),
            &read(&[]),
            ObjectChange::Nothing,
        ),
        (
            Some(plain()),
            None,
            &colocation(r#"{"enable": false}"#),
            ObjectChange::Create(standard.clone()),
        ),
        (Some(plain()), None, &good, of_pool(minute.clone())),
        (
            Some(in_pool("a")),
            None,
            &good,
            of_pool(json!({"aggregateDurationSeconds": 60, "reportIntervalSeconds": 20})),
        ),
        (Some(in_pool("bad")), None, &good, of_pool(minute.clone())),
        (Some(in_pool("off")), None, &good, of_pool(json!({}))),
        // Settings that cannot be used leave what is there, and do not keep a new node waiting.
        (
            Some(plain()),
            Some(&old),
            &unreadable,
            ObjectChange::Nothing,
        ),
        (Some(plain()), Some(&old), &invalid, ObjectChange::Nothing),
        (Some(plain()), None, &invalid, of_pool(minute)),
    ] {
        assert_eq!(
            nodemetric::plan(node.as_ref(), existing, config),
            want,
            "{node:?}"
        );
    }
}

#[test]
fn node_slo_follows_its_node() {
    let config = read(&[]);
    let mut standard = config.slo(&plain()).0;
    standard.extensions = Some(crate::suppress::empty_extensions());
    let mut old = standard.clone();
    old.cpu_burst_strategy = None;
    // Extensions belong to other writers.
    let mut with_extensions = old.clone();
    with_extensions.extensions = json!({"theirs": 1}).as_object().cloned();
    let mut expected = standard.clone();
    expected.extensions = with_extensions.extensions.clone();
    for (node, existing, want) in [
        (None, None, ObjectChange::Nothing),
        (None, Some(&old), ObjectChange::Delete),
        (Some(plain()), None, ObjectChange::Create(standard.clone())),
        (
            Some(plain()),
            Some(&old),
            ObjectChange::Update(standard.clone()),
        ),
        (
            Some(plain()),
            Some(&with_extensions),
            ObjectChange::Update(expected),
        ),
        (Some(plain()), Some(&standard), ObjectChange::Nothing),
    ] {
        let (action, problem) = nodeslo::plan(node.as_ref(), existing, &config);
        assert_eq!((action, problem), (want, None), "{existing:?}");
    }
}
