use super::*;
use proptest::prelude::*;
use serde_json::json;

const GIB: i64 = 1 << 30;
const PAGE: i64 = 4096;

fn cfg(value: serde_json::Value) -> MemoryQOSCfg {
    serde_json::from_value(value).unwrap()
}

fn annotation(value: serde_json::Value) -> PodMemoryQOSConfig {
    serde_json::from_value(value).unwrap()
}

/// Upstream: `Test_getPodResourceQoSByQoSClass`; the class of a pod without a label is
/// determined by `pod_qos_class_or_default`.
#[test]
fn classes_have_settings() {
    let strategy = defaults::resource_qos_strategy();
    for (class, want) in [
        (QosClass::Lse, &strategy.lsr_class),
        (QosClass::Lsr, &strategy.lsr_class),
        (QosClass::Ls, &strategy.ls_class),
        (QosClass::Be, &strategy.be_class),
        (QosClass::System, &strategy.system_class),
        (QosClass::None, &None),
    ] {
        assert_eq!(strategy.class_settings(class), want.as_ref(), "{class:?}");
    }
}

/// Upstream: `TestCgroupResourcesReconcile_getMergedPodResourceQoS`, all of BE pods.
#[test]
fn class_settings_and_annotation() {
    let defaults = defaults::memory_qos(QosClass::Be);
    let none = defaults::memory_qos(QosClass::None);
    let on = MemoryQOSCfg {
        enable: Some(true),
        ..defaults.clone()
    };
    let throttled = |under: &MemoryQOSCfg| MemoryQOSCfg {
        throttling_percent: Some(90),
        ..under.clone()
    };
    let auto_90 = json!({"policy": "auto", "throttlingPercent": 90});
    for (name, node, pod, want) in [
        ("node enabled, use node config", Some(&on), None, on.clone()),
        (
            "pod policy is None, use pod config",
            Some(&defaults),
            Some(json!({"policy": "none"})),
            none.clone(),
        ),
        (
            "pod policy is Auto, use pod config even if node disabled",
            Some(&none),
            Some(json!({"policy": "auto"})),
            defaults.clone(),
        ),
        (
            "pod policy is Auto, use merged pod config",
            Some(&defaults),
            Some(auto_90.clone()),
            throttled(&defaults),
        ),
        (
            "..., when qos=None, kubeQoS=Besteffort",
            None,
            Some(auto_90),
            MemoryQOSCfg {
                enable: None,
                ..throttled(&defaults)
            },
        ),
        // Ours.
        (
            "none ignores the other fields",
            Some(&on),
            Some(json!({"policy": "none", "throttlingPercent": 90})),
            none.clone(),
        ),
        (
            "default takes the class",
            Some(&on),
            Some(json!({"policy": "default", "throttlingPercent": 90})),
            throttled(&on),
        ),
        (
            "no policy takes the class",
            Some(&on),
            Some(json!({"throttlingPercent": 90})),
            throttled(&on),
        ),
    ] {
        let pod = pod.map(annotation);
        let got = settings(node, QosClass::Be, pod.as_ref());
        assert_eq!(got, (want, vec![]), "{name}");
    }
}

#[test]
fn invalid_values_are_reported_and_class_applies() {
    let node =
        cfg(json!({"enable": true, "throttlingPercent": -3, "wmarkRatio": 80, "priority": 5}));
    let pod = annotation(json!({
        "policy": "often", "wmarkRatio": 101, "wmarkMinAdj": -26, "priority": 13,
        "pageCacheLimitSize": -1, "oomKillGroup": 2,
    }));
    let (got, errors) = settings(Some(&node), QosClass::Ls, Some(&pod));
    assert_eq!(
        got,
        cfg(json!({"enable": true, "wmarkRatio": 80, "priority": 5}))
    );
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "throttlingPercent must be at least 0, got -3",
            "policy must be none, auto or default, got often",
            "wmarkRatio must be in 0..=100, got 101",
            "wmarkMinAdj must be in -25..=50, got -26",
            "priority must be in 0..=12, got 13",
            "oomKillGroup must be 0 or 1, got 2",
            "pageCacheLimitSize must be at least 0, got -1",
        ]
    );
}

/// Creates the settings of the pod of upstream's tables: two containers, of which only the second
/// requests memory (1 GiB, which is also its limit and the node's allocatable amount).
fn batch_settings(min: i64, throttling: i64) -> MemoryQOSCfg {
    let (settings, errors) = settings(
        None,
        QosClass::Be,
        Some(&annotation(json!({
            "policy": "auto", "minLimitPercent": min, "lowLimitPercent": 0,
            "throttlingPercent": throttling,
            "wmarkRatio": 95, "wmarkScalePermill": 20, "wmarkMinAdj": 50,
        }))),
    );
    assert!(errors.is_empty());
    settings
}

fn plain(min: i64, wmark: (i64, i64, i64)) -> Values {
    Values {
        min: Some(min),
        low: Some(0),
        wmark_ratio: Some(wmark.0),
        wmark_scale_factor: Some(wmark.1),
        wmark_min_adj: Some(wmark.2),
        use_priority_oom: Some(0),
        priority: Some(0),
        oom_group: Some(0),
        ..Values::default()
    }
}

/// Upstream: `TestCgroupResourceReconcile_calculateResources`, pods and containers.
#[test]
fn groups_of_pods() {
    let none = MemoryAmounts::default();
    let full = MemoryAmounts {
        request: GIB,
        limit: Some(GIB),
    };
    let wmark = (95, 20, 50);
    let unlimited = |values: Values| Values {
        high: Some(UNLIMITED),
        ..values
    };
    let high = |high, values: Values| Values {
        high: Some(high),
        ..values
    };
    let rounded = |bytes: i64| bytes / PAGE * PAGE;

    // "single pod using node-level config": LS defaults, with an adjustment of 0 in the test.
    let ls = MemoryQOSCfg {
        wmark_min_adj: Some(0),
        ..defaults::memory_qos(QosClass::Ls)
    };
    assert_eq!(pod(&ls, none), plain(0, (95, 20, 0)));
    assert_eq!(
        container(&ls, none, Some(GIB), PAGE),
        unlimited(plain(0, (95, 20, 0)))
    );
    // "single pod using pod-level config", "multiple pods".
    let be = batch_settings(100, 80);
    assert_eq!(pod(&be, full), plain(GIB, wmark));
    assert_eq!(
        container(&be, none, Some(GIB), PAGE),
        high(rounded(GIB * 80 / 100), plain(0, wmark))
    );
    assert_eq!(
        container(&be, full, Some(GIB), PAGE),
        high(GIB, plain(GIB, wmark))
    );
    // "single pod with memory.high is no less than memory.min".
    let be = batch_settings(50, 40);
    assert_eq!(pod(&be, full), plain(GIB / 2, wmark));
    assert_eq!(
        container(&be, none, Some(GIB), PAGE),
        high(rounded(GIB * 40 / 100), plain(0, wmark))
    );
    assert_eq!(
        container(&be, full, Some(GIB), PAGE),
        high(GIB, plain(GIB / 2, wmark))
    );
    // "multiple pods", LS disabled; "single SYSTEM pod using node-level config" is the same.
    let off = defaults::memory_qos(QosClass::System);
    assert_eq!(off, defaults::memory_qos(QosClass::None));
    assert_eq!(
        container(&off, full, Some(GIB), PAGE),
        unlimited(plain(0, (0, 50, 0)))
    );
    // "config is empty".
    assert_eq!(pod(&MemoryQOSCfg::default(), full), Values::default());
    assert_eq!(
        container(&MemoryQOSCfg::default(), full, Some(GIB), PAGE),
        Values::default()
    );
}

#[test]
fn protection_and_throttling() {
    let ask = |request, limit| MemoryAmounts { request, limit };
    for (name, settings, ask, (min, low, high)) in [
        (
            "half-way between request and limit",
            json!({"throttlingPercent": 50}),
            ask(GIB, Some(3 * GIB)),
            (None, None, Some(2 * GIB)),
        ),
        (
            "rounded down to a page",
            json!({"throttlingPercent": 50}),
            ask(4096, Some(3 * 4096)),
            (None, None, Some(8192)),
        ),
        (
            "low is raised to min",
            json!({"minLimitPercent": 80, "lowLimitPercent": 50}),
            ask(1000, None),
            (Some(800), Some(800), None),
        ),
        (
            "low 0 stays 0",
            json!({"minLimitPercent": 80, "lowLimitPercent": 0}),
            ask(1000, None),
            (Some(800), Some(0), None),
        ),
        (
            "high is at least min, though not of a whole page",
            json!({"minLimitPercent": 100, "throttlingPercent": 10}),
            ask(4097, Some(4097)),
            (Some(4097), None, Some(4097)),
        ),
        (
            "a negative request counts as none",
            json!({"minLimitPercent": 100}),
            ask(-1, None),
            (Some(0), None, None),
        ),
        (
            "absurd percent",
            json!({"minLimitPercent": i64::MAX}),
            ask(GIB, None),
            (Some(i64::MAX), None, None),
        ),
    ] {
        let values = container(&cfg(settings), ask, None, PAGE);
        assert_eq!(
            (values.min, values.low, values.high),
            (min, low, high),
            "{name}"
        );
    }
}

/// Upstream: `TestCgroupResourceReconcile_calculateResources`, QoS directories.
#[test]
fn directories_sum_up() {
    let ls = defaults::memory_qos(QosClass::Ls);
    let be = batch_settings(100, 80);
    let classes = Classes::default();
    assert_eq!(directories(classes, []), Directories::default());
    let protected = |min| Values {
        min: Some(min),
        low: Some(0),
        ..Values::default()
    };
    // "single pod using pod-level config".
    assert_eq!(
        directories(classes, [(KubeQos::BestEffort, &be, GIB)]),
        Directories {
            kubepods: protected(GIB),
            burstable: Values::default(),
            besteffort: protected(GIB),
        }
    );
    // "multiple pods", and a Guaranteed one.
    let half = batch_settings(50, 40);
    let pods = [
        (KubeQos::Burstable, &ls, GIB),
        (KubeQos::BestEffort, &be, GIB),
        (KubeQos::Guaranteed, &half, GIB),
    ];
    assert_eq!(
        directories(classes, pods),
        Directories {
            kubepods: protected(GIB + GIB / 2),
            burstable: protected(0),
            besteffort: protected(GIB),
        }
    );
    // The kill priority is that of the class.
    let class = |priority| MemoryQOSCfg {
        priority: Some(priority),
        priority_enable: Some(1),
        ..MemoryQOSCfg::default()
    };
    let (lsr, ls, be) = (class(3), class(2), class(1));
    let got = directories(
        Classes {
            lsr: Some(&lsr),
            ls: Some(&ls),
            be: Some(&be),
        },
        [],
    );
    assert_eq!(
        [got.kubepods, got.burstable, got.besteffort].map(|values| values.priority),
        [Some(3), Some(2), Some(1)]
    );
    assert_eq!(got.kubepods.use_priority_oom, Some(1));
}

/// Upstream: `Test_calculatePodResources_PageCacheLimit`; a pod limited to 1 GiB.
#[test]
fn page_cache() {
    const MIB: i64 = 1 << 20;
    let half = 512 * MIB;
    for (name, settings, want) in [
        (
            "size only",
            json!({"pageCacheLimitSize": half}),
            (Some(1), Some(half), Some(0)),
        ),
        (
            "size capped by memory limit",
            json!({"pageCacheLimitSize": 2 * GIB}),
            (Some(1), Some(GIB), Some(0)),
        ),
        (
            "size zero resets",
            json!({"pageCacheLimitSize": 0}),
            (Some(0), Some(0), None),
        ),
        ("unset does nothing", json!({}), (None, None, None)),
        (
            "explicit enable overrides implicit enable, keeps size",
            json!({"pageCacheLimitSize": half, "pageCacheEnable": false}),
            (Some(0), Some(half), Some(0)),
        ),
        (
            "explicit enable alone toggles switch",
            json!({"pageCacheEnable": true}),
            (Some(1), None, None),
        ),
        (
            "sync reclaim mode",
            json!({"pageCacheLimitSize": half, "pageCacheReclaimSync": true}),
            (Some(1), Some(half), Some(1)),
        ),
        (
            "legacy percent field",
            json!({"pageCacheLimitPercent": 50}),
            (Some(1), Some(half), Some(0)),
        ),
        (
            "size takes precedence over percent",
            json!({"pageCacheLimitPercent": 50, "pageCacheLimitSize": 256 * MIB}),
            (Some(1), Some(256 * MIB), Some(0)),
        ),
    ] {
        let ask = MemoryAmounts {
            request: GIB,
            limit: Some(GIB),
        };
        let values = pod(&cfg(settings), ask);
        let got = (
            values.page_cache_enable,
            values.page_cache_size,
            values.page_cache_sync,
        );
        assert_eq!(got, want, "{name}");
    }
    // A percentage of an unlimited value writes nothing.
    let unlimited = pod(
        &cfg(json!({"pageCacheLimitPercent": 50})),
        MemoryAmounts::default(),
    );
    assert_eq!(unlimited.page_cache_size, None);
}

proptest! {
    /// The protection of children never exceeds that of their parents.
    #[test]
    fn parents_protect_their_children(
        pods in prop::collection::vec((0_usize..3, 0_i64..150, 0_i64..150, 0..100 * GIB), 0..8),
    ) {
        let qos = [KubeQos::Guaranteed, KubeQos::Burstable, KubeQos::BestEffort];
        let settings: Vec<MemoryQOSCfg> = pods
            .iter()
            .map(|(_, min, low, _)| cfg(json!({"minLimitPercent": min, "lowLimitPercent": low})))
            .collect();
        let dirs = directories(
            Classes::default(),
            pods.iter().zip(&settings).map(|((at, _, _, request), cfg)| (qos[*at], cfg, *request)),
        );
        let mut sums = [0_i64; 3];
        for ((at, _, _, request), settings) in pods.iter().zip(&settings) {
            let values = pod(settings, MemoryAmounts { request: *request, limit: None });
            sums[*at] += values.min.unwrap_or(0);
        }
        prop_assert_eq!(dirs.kubepods.min.unwrap_or(0), sums.iter().sum::<i64>());
        prop_assert_eq!(dirs.burstable.min.unwrap_or(0), sums[1]);
        prop_assert_eq!(dirs.besteffort.min.unwrap_or(0), sums[2]);
    }
}
