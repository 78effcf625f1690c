use super::*;
use proptest::prelude::*;
use serde_json::json;

fn slo(value: &Value) -> Slo {
    let (slo, malformed) = Slo::read(value, None);
    assert_eq!(malformed, [], "{value}");
    slo
}

/// Returns the settings of `value`, and field and value of each rejected entry.
fn refused(value: &Value, last: Option<&Slo>) -> (Slo, Vec<(String, String)>) {
    let (slo, malformed) = Slo::read(value, last);
    let named = malformed
        .into_iter()
        .map(|entry| (entry.field, entry.value));
    (slo, named.collect())
}

#[test]
fn missing_fields_get_defaults() {
    let none = slo(&json!({}));
    let default = Slo::default();
    assert_eq!((none.known, default.known), (true, false));
    assert_eq!(none.spec, default.spec);
    let partial = slo(&json!({"resourceUsedThresholdWithBE": {
        "enable": true, "cpuSuppressPolicy": "cfsQuota", "memoryEvictThresholdPercent": 80}}));
    assert!(partial.enabled);
    assert_eq!(partial.policy, SuppressPolicy::CfsQuota);
    assert_eq!(
        (partial.suppress_percent, partial.memory_percent),
        (65, Some(80))
    );
    // An empty policy is upstream's default.
    let empty = slo(&json!({"resourceUsedThresholdWithBE": {"cpuSuppressPolicy": ""}}));
    assert_eq!(empty.policy, SuppressPolicy::Cpuset);
}

/// Upstream's merge (states_nodeslo): missing sections have the defaults, disabled features of LSR, LS and BE
/// the neutral values.
#[test]
fn all_sections_have_their_defaults() {
    let slo = slo(&json!({
        "resourceQOSStrategy": {
            "lsClass": {"memoryQOS": {"enable": true, "wmarkRatio": 90}},
            "beClass": {"cpuQOS": {"enable": true, "schedIdle": 1},
                        "resctrlQOS": {"enable": true, "catRangeEndPercent": 20}}},
        "cpuBurstStrategy": {"policy": "auto"},
        "systemStrategy": {"watermarkScaleFactor": 150},
        "hostApplications": [{"name": "nginx", "qos": "LS", "priority": "koord-prod",
            "cgroupPath": {"base": "CgroupRoot", "parentDir": "a", "relativePath": "b"}}]}));
    let ls = slo.memory_qos(QosClass::Ls).unwrap();
    assert_eq!((ls.wmark_ratio, ls.wmark_min_adj), (Some(90), Some(-25)));
    let lsr = slo.memory_qos(QosClass::Lse).unwrap();
    assert_eq!((lsr.enable, lsr.wmark_ratio), (Some(false), Some(0)));
    let be = slo.cpu_qos(QosClass::Be).unwrap();
    assert_eq!((be.group_identity, be.sched_idle), (Some(-1), Some(1)));
    let be = slo.resctrl_qos(QosClass::Be).unwrap();
    assert_eq!(
        (be.cat_range_start_percent, be.cat_range_end_percent),
        (Some(0), Some(20))
    );
    let ls = slo.resctrl_qos(QosClass::Ls).unwrap();
    assert_eq!(
        (ls.cat_range_end_percent, ls.mba_percent),
        (Some(100), Some(100))
    );
    assert_eq!(
        slo.cpu_qos(QosClass::System).unwrap().group_identity,
        Some(0)
    );
    assert!(slo.class(QosClass::None).is_none());
    let burst = slo.cpu_burst();
    assert_eq!(
        (burst.cpu_burst_percent, burst.cfs_quota_burst_percent),
        (Some(1000), Some(300))
    );
    assert_eq!(burst.share_pool_threshold_percent, Some(50));
    assert_eq!(slo.system().watermark_scale_factor, Some(150));
    assert_eq!(slo.system().min_free_kbytes_factor, None);
    assert!(!slo.by_core_sched());
    let app = &slo.host_apps[0];
    assert_eq!((app.name.as_str(), app.qos), ("nginx", QosClass::Ls));
    assert_eq!(app.path.as_ref().unwrap().parent_dir, "a");
}

#[test]
fn a_bad_field_keeps_its_last_good_value_and_costs_no_other() {
    let first = slo(&json!({
        "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressThresholdPercent": 70},
        "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 500},
        "hostApplications": [{"name": "a", "qos": "LS"}, {"name": "b", "qos": "BE"}]}));
    let second = json!({
        "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressThresholdPercent": 101,
            "cpuSuppressPolicy": "magic", "memoryEvictThresholdPercent": 60},
        "resourceQOSStrategy": {"lsClass": {"cpuQOS": {"enable": true, "groupIdentity": 7},
            "memoryQOS": "all"}, "policies": {"cpuPolicy": "luck"}},
        "cpuBurstStrategy": {"policy": "sometimes", "cpuBurstPercent": "many",
            "cfsQuotaBurstPercent": 1e40},
        "extensions": {"cpuSuppress": {"mode": "magic"}, "other": [1]},
        "hostApplications": [{"name": "b", "qos": "LS", "cgroupPath": 7}, {"name": "a", "qos": 1},
            {"name": "c", "cgroupPath": []}]});
    let (kept, mut refused) = refused(&second, Some(&first));
    assert!(kept.enabled);
    assert_eq!(kept.suppress_percent, 70);
    assert_eq!(
        (kept.policy, kept.memory_percent),
        (SuppressPolicy::Cpuset, Some(60))
    );
    let ls = kept.cpu_qos(QosClass::Ls).unwrap();
    assert_eq!((ls.enable, ls.group_identity), (Some(true), Some(2)));
    let burst = kept.cpu_burst();
    assert_eq!(burst.policy.as_ref().unwrap().as_str(), "auto");
    assert_eq!(burst.cpu_burst_percent, Some(500));
    assert_eq!(burst.cfs_quota_burst_percent, Some(300));
    assert_eq!(kept.extension, SuppressExtension::default());
    let apps: Vec<_> = kept
        .host_apps
        .iter()
        .map(|a| (a.name.as_str(), a.qos))
        .collect();
    assert_eq!(apps, [("b", QosClass::Be), ("a", QosClass::Ls)]);
    refused.sort();
    let mut want = [
        ("cpuBurstStrategy.cfsQuotaBurstPercent", "1e+40"),
        ("cpuBurstStrategy.cpuBurstPercent", "many"),
        ("cpuBurstStrategy.policy", "sometimes"),
        ("extensions.cpuSuppress.mode", "magic"),
        ("hostApplications[0].cgroupPath", "7"),
        ("hostApplications[1].qos", "1"),
        ("hostApplications[2].cgroupPath", "[]"),
        ("resourceQOSStrategy.lsClass.cpuQOS.groupIdentity", "7"),
        ("resourceQOSStrategy.lsClass.memoryQOS", "all"),
        ("resourceQOSStrategy.policies.cpuPolicy", "luck"),
        ("resourceUsedThresholdWithBE.cpuSuppressPolicy", "magic"),
        (
            "resourceUsedThresholdWithBE.cpuSuppressThresholdPercent",
            "101",
        ),
    ]
    .map(|(field, value)| (field.to_owned(), value.to_owned()));
    want.sort();
    assert_eq!(refused, want);
    // Removed fields return to defaults: only rejected values are replaced by the last good ones.
    assert_eq!(slo(&json!({})).suppress_percent, 65);
    let (gone, refused) = self::refused(&json!({}), Some(&kept));
    assert_eq!((gone.suppress_percent, refused.len()), (65, 0));
}

#[test]
fn absurd_specs_give_defaults() {
    let deep = (0..100).fold(json!(1), |value, _| json!({"a": value}));
    for value in [
        json!(7),
        json!("spec"),
        json!([]),
        json!({"resourceUsedThresholdWithBE": 7}),
        json!({"resourceQOSStrategy": []}),
        json!({"systemStrategy": {"schedFeatures": {"A": "yes"}}}),
        json!({"extensions": {"cpuSuppress": 7}}),
        json!({"hostApplications": {"name": "a"}}),
    ] {
        let (slo, malformed) = Slo::read(&value, None);
        assert_eq!(malformed.len(), 1, "{value}: {malformed:?}");
        let mut spec = (*slo.spec).clone();
        spec.extensions = None;
        assert_eq!(spec, *Slo::default().spec, "{value}");
    }
    let deep = slo(&json!({"extensions": {"cpuSuppress": deep}}));
    assert_eq!(deep.extension, SuppressExtension::default());
    // Two values that contradict each other are each valid alone; one must be rejected.
    let order = json!({"resourceUsedThresholdWithBE": {
        "memoryEvictThresholdPercent": 50, "memoryEvictLowerPercent": 60}});
    let (slo, refused) = refused(&order, None);
    assert_eq!(
        (slo.memory_percent, slo.memory_lower_percent),
        (Some(50), None)
    );
    let field = "resourceUsedThresholdWithBE.memoryEvictLowerPercent";
    assert_eq!(refused, [(field.to_owned(), "60".to_owned())]);
}

#[test]
fn the_extension_switches_the_mode() {
    let slo = slo(&json!({"extensions": {
        "cpuSuppress": {"mode": "upstream", "beCPUIdle": true}, "other": 1}}));
    assert_eq!(slo.extension.mode, Some(SuppressMode::Upstream));
    assert_eq!(slo.extension.be_cpu_idle, Some(true));
    assert!("magic".parse::<SuppressMode>().is_err());
}

/// Generates any JSON, with the names of fields among its keys.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..120).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof!["auto", "cpuset", "LS", "\\PC{0,8}"].prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        let key = prop::sample::select(vec![
            "resourceUsedThresholdWithBE",
            "resourceQOSStrategy",
            "cpuBurstStrategy",
            "systemStrategy",
            "extensions",
            "hostApplications",
            "enable",
            "ENABLE",
            "cpuSuppressThresholdPercent",
            "memoryEvictThresholdPercent",
            "memoryEvictLowerPercent",
            "cpuSuppressPolicy",
            "beClass",
            "lsClass",
            "cpuQOS",
            "memoryQOS",
            "blkioQOS",
            "resctrlQOS",
            "networkQOS",
            "groupIdentity",
            "wmarkRatio",
            "catRangeStartPercent",
            "catRangeEndPercent",
            "blocks",
            "ioCfg",
            "readIOPS",
            "policy",
            "cpuBurstPercent",
            "schedFeatures",
            "cpuSuppress",
            "mode",
            "name",
            "qos",
            "cgroupPath",
            "base",
            "ingressLimit",
            "totalNetworkBandwidth",
            "a.b[0]",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..8).prop_map(|members| {
                let members = members
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value));
                Value::Object(members.collect())
            }),
        ]
    })
}

proptest! {
    /// Any spec gives valid settings, which stay the same when they are read again.
    #[test]
    fn any_spec_gives_valid_settings(first in any_json(), second in any_json()) {
        let (before, _) = Slo::read(&first, None);
        let (slo, _) = Slo::read(&second, Some(&before));
        for slo in [&before, &slo] {
            prop_assert!((0..=100).contains(&slo.suppress_percent));
            prop_assert!(slo.memory_percent.is_none_or(|p| (0..=100).contains(&p)));
            let burst = slo.cpu_burst();
            prop_assert!(burst.cpu_burst_percent.is_some_and(|p| (1..=10_000).contains(&p)));
            prop_assert!(burst.policy.as_ref().is_some_and(|p| p.is_known() || p.as_str().is_empty()));
            for qos in [QosClass::Lsr, QosClass::Ls, QosClass::Be] {
                let identity = slo.cpu_qos(qos).and_then(|cpu| cpu.group_identity);
                prop_assert!(identity.is_some_and(|identity| (-1..=2).contains(&identity)));
            }
            let (again, malformed) = Slo::read(&slo.good, None);
            prop_assert_eq!(malformed, vec![]);
            prop_assert_eq!(&again.spec, &slo.spec);
        }
    }
}

#[test]
fn malformed_host_application_is_reported_and_last_good_stays() {
    let first = slo(&json!({"hostApplications": [
        {"name": "a", "qos": "LS"}, {"name": "b", "qos": "BE"}]}));
    let second = json!({"hostApplications": [
        {"name": "", "qos": "LS"},
        {"name": "../up", "qos": "LS"},
        {"name": "a", "qos": "LS"},
        {"name": "b", "qos": "SYSTEM"},
        {"name": "a", "qos": "BE"},
        {"name": "c", "cgroupPath": {"base": "Moon", "relativePath": "c"}},
        {"name": "d", "cgroupPath": {"parentDir": "x/../y", "relativePath": "d"}},
        {"name": "e", "qos": "SYSTEM", "cgroupPath": {"relativePath": "e"}}]});
    let (kept, mut refused) = refused(&second, Some(&first));
    let apps: Vec<_> = kept.host_apps.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(apps, ["a", "b", "e"]);
    assert_eq!(kept.host_apps[1].qos, QosClass::Be, "as it was");
    refused.sort();
    let mut fields: Vec<&str> = refused.iter().map(|(field, _)| field.as_str()).collect();
    fields.dedup();
    assert_eq!(
        fields,
        [
            "hostApplications[0].name",
            "hostApplications[1].name",
            "hostApplications[3].qos",
            "hostApplications[4].name",
            "hostApplications[5].cgroupPath",
            "hostApplications[6].cgroupPath",
        ]
    );
}

#[test]
fn the_extension_is_read_where_a_go_manager_keeps_it() {
    for extensions in [
        json!({"Object": {"cpuSuppress": {"mode": "upstream"}}}),
        json!({"cpuSuppress": {"mode": "upstream"}}),
        // The kept one wins.
        json!({"Object": {"cpuSuppress": {"mode": "upstream"}}, "cpuSuppress": {"mode": "pressure"}}),
    ] {
        let (slo, _) = refused(&json!({ "extensions": extensions }), None);
        assert_eq!(
            slo.extension.mode,
            Some(SuppressMode::Upstream),
            "{extensions}"
        );
    }
    let bad = json!({"extensions": {"Object": {"cpuSuppress": {"mode": "magic"}}}});
    let (_, refused) = refused(&bad, None);
    assert_eq!(refused[0].0, "extensions.Object.cpuSuppress.mode");
}
