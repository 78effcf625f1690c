use super::*;
use crate::{Quantity, annotations, resources};
use koord_cpuset::CpuSet;
use serde_json::{Value, json};

fn annotated(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

/// Checks that the text is parsed as a `T` and serialized unchanged.
fn round_trip<T: DeserializeOwned + Serialize>(key: &str, text: &str) -> T {
    let value: T = read(Some(&annotated(key, text)), key).unwrap().unwrap();
    let mut written = BTreeMap::new();
    write(&mut written, key, &value).unwrap();
    let value_of = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(value_of(&written[key]), value_of(text), "{key}");
    value
}

#[test]
fn formats_are_upstreams() {
    let status: ResourceStatus = round_trip(
        annotations::RESOURCE_STATUS,
        r#"{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}]}"#,
    );
    assert_eq!(status.cpuset.parse().map(|cpus: CpuSet| cpus.len()), Ok(4));
    let spec: ResourceSpec = round_trip(
        annotations::RESOURCE_SPEC,
        r#"{"requiredCPUBindPolicy":"FullPCPUs","preferredCPUExclusivePolicy":"PCPULevel"}"#,
    );
    assert_eq!(
        spec.required_cpu_bind_policy,
        Some(CpuBindPolicy::FullPCPUs)
    );
    let spec: ExtendedResourceSpec = round_trip(
        annotations::POD_EXTENDED_RESOURCE_SPEC,
        r#"{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":"1k"},"requests":{"kubernetes.io/batch-cpu":"500"}}}}"#,
    );
    assert_eq!(
        spec.containers["main"].limits[resources::BATCH_CPU].value(),
        1000
    );
    let devices: DeviceAllocations = round_trip(
        annotations::DEVICE_ALLOCATED,
        r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50"},"id":"GPU-1","extension":{"vfs":[{"minor":1,"busID":"0000:5a:00.1"}],"gpuSharedResourceTemplate":"t"}}]}"#,
    );
    assert_eq!(devices["gpu"][0].minor, 0);
    round_trip::<ReservationAffinity>(
        annotations::RESERVATION_AFFINITY,
        r#"{"name":"r","requiredDuringSchedulingIgnoredDuringExecution":{"reservationSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}]},"reservationSelector":{"k":"v"}}"#,
    );
    round_trip::<Resctrl>(
        annotations::POD_RESCTRL,
        r#"{"llc":{"schemata":{"range":[0,50]},"schemataPerCache":[{"cacheID":0,"range":[0,30]}]},"mb":{"schemata":{"percent":20}}}"#,
    );
    let topology: CpuTopology = round_trip(
        annotations::NODE_CPU_TOPOLOGY,
        r#"{"detail":[{"id":0,"core":0,"socket":0,"node":0}]}"#,
    );
    assert_eq!(topology.detail.len(), 1);
    let thresholds: CustomUsageThresholds = round_trip(
        annotations::NODE_USAGE_THRESHOLDS,
        r#"{"usageThresholds":{"cpu":65},"aggregatedUsage":{"usageThresholds":{"cpu":70},"usageAggregationType":"p95","usageAggregatedDuration":"5m0s"}}"#,
    );
    assert_eq!(thresholds.usage_thresholds["cpu"], 65);
    round_trip::<KubeletCpuManagerPolicy>(
        annotations::KUBELET_CPU_MANAGER_POLICY,
        r#"{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0-1"}"#,
    );
    round_trip::<ThirdPartyAllocations>(
        annotations::NODE_THIRD_PARTY_ALLOCATIONS,
        r#"{"allocations":[{"name":"hadoop-yarn","priority":"koord-batch","resources":{"kubernetes.io/batch-cpu":"1k"}}]}"#,
    );
    let memory: PodMemoryQOSConfig = round_trip(
        annotations::POD_MEMORY_QOS,
        r#"{"policy":"auto","wmarkRatio":90}"#,
    );
    assert_eq!(memory.values.wmark_ratio, Some(90));
    round_trip::<crate::slo::CPUBurstConfig>(
        annotations::POD_CPU_BURST,
        r#"{"policy":"auto","cpuBurstPercent":200}"#,
    );
}

#[test]
fn node_reservation_counts_its_cpus() {
    let read = |text: &str| {
        let annotations = annotated(annotations::NODE_RESERVATION, text);
        ReservedResources::from_annotations(Some(&annotations))
    };
    // Upstream's table of amounts reserved from a node: cpu in milli-cores, memory in GiB.
    for (text, cpu, memory) in [
        ("{}", 0, 0),
        (r#"{"resources":{"cpu":"10"}}"#, 10_000, 0),
        (r#"{"resources":{"cpu":"1500m"}}"#, 1500, 0),
        (r#"{"reservedCPUs":"0-1"}"#, 2000, 0),
        (
            r#"{"resources":{"cpu":"10"},"reservedCPUs":"0-1"}"#,
            2000,
            0,
        ),
        (r#"{"resources":{"memory":"10Gi"}}"#, 0, 10),
        (r#"{"resources":{"cpu":"10","memory":"10Gi"}}"#, 10_000, 10),
        (
            r#"{"resources":{"memory":"10Gi"},"reservedCPUs":"0-1,7"}"#,
            3000,
            10,
        ),
    ] {
        let reserved = read(text).unwrap().unwrap();
        let cpu = Quantity::from_milli(cpu);
        assert_eq!(reserved.amount(resources::CPU), cpu, "{text}");
        let memory = Quantity::from_value(memory << 30);
        assert_eq!(reserved.amount(resources::MEMORY), memory, "{text}");
    }
    // Upstream ignores blanks.
    for (list, cpu) in [
        (" 0-1, 4 ", 3000),
        ("0 - 1", -1),
        (" ", 10_000),
        ("", 10_000),
    ] {
        let text = format!(r#"{{"resources":{{"cpu":"10"}},"reservedCPUs":"{list}"}}"#);
        let reserved = read(&text).ok().flatten();
        let milli = reserved.map_or(-1, |reserved| reserved.amount(resources::CPU).milli_value());
        assert_eq!(milli, cpu, "{list:?}");
    }
    assert_eq!(read("").unwrap(), None);
    assert_eq!(ReservedResources::from_annotations(None).unwrap(), None);
    for (policy, trims) in [("", true), ("Default", true), ("ReservedCPUsOnly", false)] {
        let text = format!(r#"{{"reservedCPUs":"0-2,7","applyPolicy":"{policy}"}}"#);
        let reserved = read(&text).unwrap().unwrap();
        assert_eq!(reserved.trims_allocatable, trims, "{policy}");
        assert_eq!(reserved.cpus, "0-2,7".parse().unwrap());
    }
    for (text, field) in [
        (r#"{"reservedCPUs":"3-1"}"#, "field reservedCPUs"),
        (
            r#"{"resources":{"memory":"1Gi"},"reservedCPUs":"a-b"}"#,
            "field reservedCPUs",
        ),
        (r#"{"reservedCPUs":"0-99999999"}"#, "field reservedCPUs"),
        (r#"{"resources":{"cpu":"1x"}}"#, "field resources.cpu"),
        ("3-1", "not JSON"),
    ] {
        let error = read(text).unwrap_err().to_string();
        for part in [annotations::NODE_RESERVATION, &format!("{text:?}"), field] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

/// Upstream's tables of evict_test.go, evict_test.go of qosmanager's util and helper_test.go of
/// oomscoreadj.
#[test]
fn eviction_and_oom_annotations() {
    let note = |key: &str, text: &str| Some(annotated(key, text));
    let policy = |text: &str| {
        let note = note(annotations::POD_EVICTION_POLICY, text);
        eviction_policy(note.as_ref()).map(Option::unwrap)
    };
    assert_eq!(eviction_policy(None), Ok(None));
    assert_eq!(policy(r#"["a","b"]"#), Ok(vec!["a".into(), "b".into()]));
    assert_eq!(policy("[]"), Ok(vec![]));
    for bad in ["", "invalid-json", r#""evictByMemoryUsage""#] {
        let error = policy(bad).unwrap_err().to_string();
        assert!(error.contains(annotations::POD_EVICTION_POLICY), "{error}");
    }
    let priority = |text: &str| {
        let note = note(annotations::POD_EVICTION_PRIORITY, text);
        eviction_priority(note.as_ref())
    };
    assert_eq!(eviction_priority(None), Ok(None));
    assert_eq!(
        (priority("100"), priority("-10")),
        (Ok(Some(100)), Ok(Some(-10)))
    );
    let error = priority("xxx").unwrap_err().to_string();
    assert!(
        error.contains("eviction-priority") && error.contains("\"xxx\""),
        "{error}"
    );

    let adj = |default: &str, spec: &str| {
        let mut notes = annotated(annotations::POD_OOM_SCORE_ADJ, default);
        notes.extend(annotated(annotations::POD_OOM_SCORE_ADJ_SPEC, spec));
        let default = OomScoreAdj::read_default(Some(&notes))?;
        let containers = OomScoreAdj::read_containers(Some(&notes))?;
        Ok::<_, AnnotationError>(
            OomScoreAdj {
                default,
                containers,
            }
            .for_container("c1"),
        )
    };
    assert_eq!(adj("-500", ""), Ok(Some(-500)));
    assert_eq!(adj("-500", r#"{"c1": 100}"#), Ok(Some(100)));
    assert_eq!(adj("-500", r#"{"c2": 100}"#), Ok(Some(-500)));
    assert_eq!(adj("", r#"{"c2": 100}"#), Ok(None));
    for (default, spec, part) in [
        ("", "{invalid}", "oom-score-adj-spec"),
        ("not-a-number", "", "\"not-a-number\""),
        ("1001", "", "-1000 to 1000"),
        ("", r#"{"c1": -1001}"#, "field c1"),
    ] {
        let error = adj(default, spec).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// Upstream's tables of resctrl_test.go and system_qos_test.go; Go reads names without regard to case.
#[test]
fn resctrl_system_qos_and_network_annotations() {
    let text = r#"{"mb":{"schemata":{"percent":35},"schemataPerCache":[{"cacheid":0,"percent":80}]},
        "llc":{"schemata":{"range":[20,80]},"schemataPerCache":[{"cacheid":1,"range":[20,30]}]}}"#;
    let key = annotations::POD_RESCTRL;
    let resctrl: Resctrl = read(Some(&annotated(key, text)), key).unwrap().unwrap();
    let mb = resctrl.mb.unwrap();
    assert_eq!(mb.schemata.unwrap().percent, Some(35));
    assert_eq!(
        (
            mb.schemata_per_cache[0].cache_id,
            mb.schemata_per_cache[0].percent
        ),
        (0, Some(80))
    );
    let llc = resctrl.llc.unwrap();
    assert_eq!(llc.schemata.unwrap().range, [20, 80]);
    assert_eq!(llc.schemata_per_cache[0].cache_id, 1);
    assert!(read::<Resctrl>(Some(&annotated(key, "test")), key).is_err());

    let key = annotations::NODE_SYSTEM_QOS_RESOURCE;
    for (text, exclusive) in [
        (r#"{"cpuset":"0-1"}"#, true),
        (r#"{"cpuset":"0-1", "cpusetExclusive": true}"#, true),
        (r#"{"cpuset":"0-1", "cpusetExclusive": false}"#, false),
    ] {
        let system: SystemQosResource = read(Some(&annotated(key, text)), key).unwrap().unwrap();
        assert_eq!(
            (system.cpuset.as_str(), system.is_exclusive()),
            ("0-1", exclusive)
        );
    }
    assert!(read::<SystemQosResource>(Some(&annotated(key, "bad-format-str")), key).is_err());

    let key = annotations::POD_NETWORK_QOS;
    let text = r#"{"IngressLimit":"10M"}"#;
    let network: PodNetworkQOS = read(Some(&annotated(key, text)), key).unwrap().unwrap();
    assert_eq!(network.ingress_limit.unwrap().value(), 10_000_000);
    assert_eq!(network.egress_limit, None);
    let bad = annotated(key, r#"{"IngressLimit": "invalid", "EgressLimit": "2000"}"#);
    let error = read::<PodNetworkQOS>(Some(&bad), key)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ingressLimit") && error.contains("invalid"),
        "{error}"
    );

    let cpu = |text: &str| pod_cpu_qos(Some(&annotated(annotations::POD_CPU_QOS, text)));
    assert_eq!(
        cpu(r#"{"groupIdentity":-1}"#)
            .unwrap()
            .unwrap()
            .group_identity,
        Some(-1)
    );
    let error = cpu(r#"{"groupIdentity":3}"#).unwrap_err().to_string();
    assert!(
        error.contains("field groupIdentity") && error.contains('3'),
        "{error}"
    );
}

#[test]
fn errors_name_key_value_and_field() {
    let key = annotations::RESOURCE_STATUS;
    let broken = annotated(key, r#"{"numaNodeResources":[{"resources":{"cpu":"4x"}}]}"#);
    let error = read::<ResourceStatus>(Some(&broken), key)
        .unwrap_err()
        .to_string();
    for part in [
        key,
        "numaNodeResources[0].resources.cpu",
        "\"4x\"",
        "unknown suffix",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(read::<ResourceStatus>(None, key).unwrap(), None);
    assert_eq!(
        read::<ResourceStatus>(Some(&annotated(key, "")), key).unwrap(),
        None
    );
}

#[test]
fn ratios_have_two_decimals() {
    let ratios = AmplificationRatios::parse(r#"{"cpu": 1.5, "memory": 1}"#).unwrap();
    assert_eq!(ratios.to_annotation(), r#"{"cpu":1.50,"memory":1.00}"#);
    assert_eq!(
        (ratios.factor("cpu"), ratios.factor("memory")),
        (Some(1.5), None)
    );
    assert_eq!(format_normalization_ratio(1.2), "1.20");
    assert_eq!(parse_normalization_ratio("1.20"), Ok(1.2));
    for bad in ["0", "-1", "NaN", "x", ""] {
        assert!(parse_normalization_ratio(bad).is_err(), "{bad}");
    }
}

#[test]
fn replacements_skip_malformed_parts() {
    assert_eq!(
        parse_replace_resources("a:b, c : d ,e:,f,g:h:i"),
        [("a", Some("b")), ("c", Some("d")), ("e", None)]
    );
}

#[test]
fn eviction_cost_is_a_plain_integer() {
    assert_eq!(parse_eviction_cost("2147483647"), Ok(i32::MAX));
    assert_eq!(parse_eviction_cost("-10"), Ok(-10));
    for bad in ["", "+1", "01", "-01", "1.0", "2147483648"] {
        assert!(parse_eviction_cost(bad).is_err(), "{bad}");
    }
}

#[test]
fn gangs_are_found_by_label_before_annotation() {
    let pod = |labels: Value, annotations: Value| {
        serde_json::from_value(
            json!({ "metadata": { "labels": labels, "annotations": annotations } }),
        )
        .unwrap()
    };
    let spec = gang_spec(&pod(
        json!({ "pod-group.scheduling.sigs.k8s.io": "g" }),
        json!({
            "gang.scheduling.koordinator.sh/name": "other",
            "gang.scheduling.koordinator.sh/min-available": "3",
            "gang.scheduling.koordinator.sh/waiting-time": "30s",
            "gang.scheduling.koordinator.sh/groups": "[\"ns/g\",\"ns/h\"]",
        }),
    ))
    .unwrap()
    .unwrap();
    assert_eq!(
        (spec.name.as_str(), spec.min_available, spec.total_number),
        ("g", 3, 3)
    );
    assert_eq!(spec.waiting_time.unwrap().as_secs(), 30);
    assert_eq!(
        (spec.mode, spec.match_policy),
        (GangMode::Strict, GangMatchPolicy::OnceSatisfied)
    );
    assert_eq!(spec.groups, ["ns/g", "ns/h"]);
    assert_eq!(gang_spec(&pod(json!({}), json!({}))).unwrap(), None);
    for (key, value) in [
        (annotations::GANG_MIN_AVAILABLE, "-1"),
        (annotations::GANG_WAITING_TIME, "30"),
        (annotations::GANG_GROUPS, "[\"g\"]"),
    ] {
        let error = gang_spec(&pod(
            json!({}),
            json!({ annotations::GANG_NAME: "g", key: value }),
        ))
        .unwrap_err()
        .to_string();
        assert!(error.contains(key), "{error}");
    }
}
