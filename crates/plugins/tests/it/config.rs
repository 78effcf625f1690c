//! Configurations that upstream ships: they load and mean the same as upstream.

mod args;

use koord_scheduler::config::Configuration;
use koord_scheduler::framework::{BuildContext, Profile, Profiles};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const GROUP: &str = "kubescheduler.config.k8s.io/v1";

fn args(plugin: &str, fields: Value) -> Value {
    let mut args = json!({"apiVersion": GROUP, "kind": format!("{plugin}Args")});
    for (key, value) in fields.as_object().into_iter().flatten() {
        args[key] = value.clone();
    }
    json!({"name": plugin, "args": args})
}

/// Builds the plugins of extension points: `Name` or `Name=weight`; a leading `*` disables the defaults.
fn plugins(points: &[(&str, &str)]) -> Value {
    let mut out = json!({});
    for (point, list) in points {
        let enabled: Vec<Value> = list
            .split_whitespace()
            .filter(|token| *token != "*")
            .map(|token| match token.split_once('=') {
                Some((name, weight)) => {
                    json!({"name": name, "weight": weight.parse::<i64>().unwrap()})
                }
                None => json!({"name": token}),
            })
            .collect();
        out[point] = json!({"enabled": enabled});
        if list.starts_with('*') {
            out[point]["disabled"] = json!([{"name": "*"}]);
        }
    }
    out
}

fn file(namespace: &str, plugins: Value, args: Vec<Value>) -> Value {
    json!({
        "apiVersion": GROUP,
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": true, "resourceLock": "leases",
            "resourceName": "koord-scheduler", "resourceNamespace": namespace},
        "profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins, "pluginConfig": args}],
    })
}

fn fit() -> Value {
    let resources = [
        "cpu",
        "memory",
        "kubernetes.io/batch-cpu",
        "kubernetes.io/batch-memory",
    ];
    let resources = resources.map(|name| json!({"name": name, "weight": 1}));
    args(
        "NodeResourcesFit",
        json!({"scoringStrategy": {"type": "LeastAllocated", "resources": resources}}),
    )
}

fn load_aware(cpu: i64, memory: i64) -> Value {
    args(
        "LoadAwareScheduling",
        json!({
            "filterExpiredNodeMetrics": false, "nodeMetricExpirationSeconds": 300,
            "resourceWeights": {"cpu": 1, "memory": 1},
            "usageThresholds": {"cpu": cpu, "memory": memory},
            "estimatedScalingFactors": {"cpu": 85, "memory": 70},
        }),
    )
}

fn quota() -> Value {
    args(
        "ElasticQuota",
        json!({"quotaGroupNamespace": "koordinator-system"}),
    )
}

/// Plugins that `config/manager/scheduler-config.yaml` enables, per extension point.
const SAMPLE: [(&str, &str); 12] = [
    ("preEnqueue", "Coscheduling"),
    ("queueSort", "* PrioritySort"),
    (
        "preFilter",
        "SchedulingHint Reservation NodeNUMAResource DeviceShare Coscheduling ElasticQuota",
    ),
    (
        "filter",
        "LoadAwareScheduling NodeNUMAResource DeviceShare Reservation",
    ),
    (
        "postFilter",
        "* Reservation Coscheduling ElasticQuota DefaultPreemption",
    ),
    ("preScore", "Reservation Coscheduling"),
    (
        "score",
        "LoadAwareScheduling=1 NodeNUMAResource=1 DeviceShare=1 Reservation=5000 Coscheduling=1",
    ),
    (
        "reserve",
        "LoadAwareScheduling NodeNUMAResource DeviceShare Reservation Coscheduling ElasticQuota",
    ),
    ("permit", "Coscheduling"),
    (
        "preBind",
        "NodeNUMAResource DeviceShare Reservation Coscheduling DefaultPreBind",
    ),
    ("bind", "* Reservation DefaultBinder"),
    ("postBind", "Coscheduling"),
];

fn sample() -> Value {
    let args = vec![fit(), load_aware(0, 0), quota()];
    file("koordinator-system", plugins(&SAMPLE), args)
}

/// Returns the configuration of the 1.8.0 Helm chart; `preemption` is its value `enableJobPreemption`.
fn chart(preemption: bool) -> Value {
    let mut points = BTreeMap::from(SAMPLE);
    points.insert(
        "preFilter",
        "SchedulingHint Coscheduling Reservation NodeNUMAResource DeviceShare ElasticQuota",
    );
    points.insert(
        "filter",
        "Reservation LoadAwareScheduling NodeNUMAResource DeviceShare",
    );
    points.insert(
        "reserve",
        "Reservation LoadAwareScheduling NodeNUMAResource DeviceShare Coscheduling ElasticQuota",
    );
    let mut gang = json!({"awareNetworkTopology": true});
    if preemption {
        points.insert("postFilter", "* Reservation Coscheduling ElasticQuota");
        gang["enablePreemption"] = json!(true);
    }
    let points: Vec<_> = points.into_iter().collect();
    let models = json!([{"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"}]);
    let args = vec![
        fit(),
        load_aware(65, 95),
        quota(),
        args("Coscheduling", gang),
        args("DeviceShare", json!({"gpuShareUnsupportedModels": models})),
    ];
    file("koordinator-system", plugins(&points), args)
}

fn build(config: &Value, koord: bool) -> Result<Profiles, String> {
    let config = Configuration::parse(&config.to_string()).map_err(|e| e.to_string())?;
    let context = BuildContext::default();
    Profiles::build(&config, &koord_plugins::registry(), &context, koord).map_err(|e| e.to_string())
}

/// Returns plugin names per extension point, with weights at `score`.
fn resolved(profiles: &Profiles) -> BTreeMap<&'static str, Vec<String>> {
    let name = |at: &usize| profiles.instances[*at].name().to_owned();
    let list = |of: &[usize]| of.iter().map(name).collect::<Vec<_>>();
    let profile: &Profile = &profiles.profiles[0];
    let score = profile.score.iter();
    [
        ("preEnqueue", list(&profile.pre_enqueue)),
        ("preFilter", list(&profile.pre_filter)),
        ("filter", list(&profile.filter)),
        ("postFilter", list(&profile.post_filter)),
        ("preScore", list(&profile.pre_score)),
        (
            "score",
            score
                .map(|(at, weight)| format!("{}={weight}", name(at)))
                .collect(),
        ),
        ("reserve", list(&profile.reserve)),
        ("permit", list(&profile.permit)),
        ("preBind", list(&profile.pre_bind)),
        ("bind", list(&profile.bind)),
        ("postBind", list(&profile.post_bind)),
    ]
    .into()
}

/// Returns true if the words of `listed` that are in `all` have the same order there.
fn is_in_order(listed: &str, all: &[String]) -> bool {
    let at: Vec<usize> = listed
        .split_whitespace()
        .filter_map(|token| all.iter().position(|name| name == token))
        .collect();
    at.is_sorted()
}

#[test]
fn built_in_profile_matches_upstream() {
    let installed = resolved(&build(&sample(), false).unwrap());
    let config = Configuration::koord(&["koord-scheduler".to_owned()]);
    let registry = koord_plugins::registry();
    let built_in = Profiles::build(&config, &registry, &BuildContext::default(), true).unwrap();
    assert_eq!(resolved(&built_in), installed);
    for (point, listed) in SAMPLE {
        let Some(all) = installed.get(point) else {
            continue;
        };
        assert!(is_in_order(listed, all), "{point}: {all:?}");
        if listed.starts_with('*') {
            let foreign = all
                .iter()
                .find(|name| !listed.contains(&name.split('=').next().unwrap().to_owned()));
            assert_eq!(foreign, None, "{point}");
        }
    }
    let filters = &installed["filter"];
    assert_eq!(filters.first().unwrap(), "NodeUnschedulable");
    assert!(installed["preBind"].contains(&"DefaultPreBind".to_owned()));
}

#[test]
fn upstreams_charts_load() {
    for (name, config) in [
        ("sample", sample()),
        ("chart", chart(false)),
        ("chart, job preemption", chart(true)),
    ] {
        let profiles = build(&config, false).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(profiles.profiles[0].name, "koord-scheduler", "{name}");
    }
    // A plugin that filters and scores is prepared for both, whether or not it is named there.
    let profiles = build(&chart(false), false).unwrap();
    let points = resolved(&profiles);
    for point in ["preFilter", "preScore"] {
        assert!(points[point].contains(&"LoadAwareScheduling".to_owned()));
    }
}

/// The profile of `koord up` is the chart's, except for load thresholds.
#[test]
fn chart_defaults_match_the_chart() {
    let mut registry = koord_plugins::registry();
    koord_plugins::apply_chart_defaults(&mut registry);
    let config = Configuration::koord(&["koord-scheduler".to_owned()]);
    let context = BuildContext {
        network_topology: true,
        ..BuildContext::default()
    };
    let built_in = Profiles::build(&config, &registry, &context, true).unwrap();
    let config = chart(true);
    assert_eq!(
        resolved(&built_in),
        resolved(&build(&config, false).unwrap())
    );
    let entries = config["profiles"][0]["pluginConfig"].as_array().unwrap();
    for entry in entries {
        let name = entry["name"].as_str().unwrap();
        let mut expected = entry["args"].clone();
        for meta in ["apiVersion", "kind"] {
            expected.as_object_mut().unwrap().remove(meta);
        }
        if name == "LoadAwareScheduling" {
            expected["usageThresholds"] = json!({"cpu": 0, "memory": 0});
        }
        assert_eq!(registry.koord_args.get(name), Some(&expected), "{name}");
    }
    assert_eq!(registry.koord_args.len(), entries.len());
}

/// Rows of docs/compat.md that upstream accepts.
#[test]
fn invalid_settings_are_rejected_by_name() {
    let good = file("x", json!({}), Vec::new());
    let two = format!("{good}\n---\n{good}\n");
    let error = Configuration::parse(&two)
        .err()
        .map(|error| error.to_string());
    assert!(error.is_some(), "two documents");
    let weight = json!({"score": {"enabled": [{"name": "ImageLocality", "weight": 1_000_001}]}});
    for (config, part) in [
        (
            file("x", json!({}), vec![args("NoSuchPlugin", json!({}))]),
            "NoSuchPlugin",
        ),
        (file("x", weight, Vec::new()), "1000001"),
        (
            file(
                "x",
                json!({}),
                vec![args("ElasticQuota", json!({"revokePodInterval": "-1s"}))],
            ),
            "revokePodInterval",
        ),
        (
            file(
                "x",
                json!({}),
                vec![args("Reservation", json!({"gcIntervalSeconds": -1}))],
            ),
            "gcIntervalSeconds",
        ),
    ] {
        let error = build(&config, false).err().unwrap_or_default();
        assert!(error.contains(part), "{part}: {error:?}");
    }
}

/// Upstream decodes the arguments of all plugins when it starts, including plugins that no profile enables.
#[test]
fn arguments_of_disabled_plugins_are_checked() {
    let off = json!({"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultBinder"}]}});
    for (plugin, fields, part) in [
        (
            "LoadAwareScheduling",
            json!({"noSuchField": 1}),
            "noSuchField",
        ),
        (
            "LoadAwareScheduling",
            json!({"nodeMetricExpirationSeconds": -1}),
            "-1",
        ),
        (
            "NodeResourcesFit",
            json!({"scoringStrategy": {"type": "Best"}}),
            "Best",
        ),
        ("ElasticQuota", json!({"delayEvictTime": "soon"}), "soon"),
        (
            "Coscheduling",
            json!({"controllerWorkers": 0}),
            "controllerWorkers",
        ),
        (
            "Reservation",
            json!({"gcDurationSeconds": "x"}),
            "gcDurationSeconds",
        ),
        (
            "NodeNUMAResource",
            json!({"defaultCPUBindPolicy": "x"}),
            "defaultCPUBindPolicy",
        ),
    ] {
        let profile_args = args(plugin, fields.clone());
        let error = build(&file("x", off.clone(), vec![profile_args]), false)
            .err()
            .unwrap_or_default();
        assert!(
            error.contains(plugin) && error.contains(part),
            "{plugin} {fields}: {error:?}"
        );
    }
    let good = args(
        "LoadAwareScheduling",
        json!({"nodeMetricExpirationSeconds": 60}),
    );
    let profiles = build(&file("x", off.clone(), vec![good]), false).unwrap();
    assert_eq!(
        profiles.instances.len(),
        2,
        "DefaultBinder and DefaultPreBind"
    );
    // Another profile enables the plugin, with valid arguments.
    let mut two = file("x", json!({}), Vec::new());
    let mut other = file(
        "y",
        off,
        vec![args("LoadAwareScheduling", json!({"noSuchField": 1}))],
    );
    other["profiles"][0]["schedulerName"] = json!("other");
    two["profiles"]
        .as_array_mut()
        .unwrap()
        .push(other["profiles"][0].take());
    let error = build(&two, false).err().unwrap_or_default();
    assert!(
        error.contains("noSuchField") && error.contains("other"),
        "{error:?}"
    );
}

/// A profile without `plugins` has kube-scheduler's default plugins, whatever `pluginConfig` names.
#[test]
fn arguments_without_effect_are_warned_about() {
    let warnings = |config: &Value| build(config, false).unwrap().warnings;
    let warning = |profile: &str, plugin: &str| {
        format!(
            "profile {profile:?}: arguments of plugin {plugin} have no effect: the profile does not enable it"
        )
    };
    let none: [String; 0] = [];
    for shipped in [sample(), chart(false), chart(true)] {
        assert_eq!(warnings(&shipped), none);
    }
    let mut config = file("x", json!({}), vec![load_aware(65, 95), fit(), quota()]);
    let expected =
        ["ElasticQuota", "LoadAwareScheduling"].map(|name| warning("koord-scheduler", name));
    assert_eq!(warnings(&config), expected);
    // One extension point is enough.
    config["profiles"][0]["plugins"] = plugins(&[
        ("score", "LoadAwareScheduling"),
        ("postFilter", "ElasticQuota"),
    ]);
    assert_eq!(warnings(&config), none);
    let mut second = config["profiles"][0].clone();
    second["schedulerName"] = json!("other");
    second["plugins"] = json!({"multiPoint": {"disabled": [{"name": "NodeResourcesFit"}],
        "enabled": [{"name": "LoadAwareScheduling"}, {"name": "ElasticQuota"}]}});
    config["profiles"].as_array_mut().unwrap().push(second);
    assert_eq!(warnings(&config), [warning("other", "NodeResourcesFit")]);
}

#[test]
fn old_versions_are_rejected_by_name() {
    for version in ["v1beta2", "v1beta3", "v2"] {
        let mut config = sample();
        config["apiVersion"] = json!(format!("kubescheduler.config.k8s.io/{version}"));
        let error = build(&config, false).err().unwrap_or_default();
        assert!(error.contains(version), "{error}");
    }
}

#[test]
fn default_pre_bind_runs_unless_it_is_switched_off() {
    for (pre_bind, expected) in [
        (json!({}), true),
        (json!({"enabled": [{"name": "DefaultPreBind"}]}), true),
        (json!({"disabled": [{"name": "DefaultPreBind"}]}), false),
        (json!({"disabled": [{"name": "*"}]}), false),
        (json!({"disabled": [{"name": "VolumeBinding"}]}), true),
    ] {
        let plugins = json!({"preBind": pre_bind});
        let profiles = build(&file("x", plugins, Vec::new()), false).unwrap();
        let on = &resolved(&profiles)["preBind"];
        let times = on.iter().filter(|name| *name == "DefaultPreBind").count();
        assert_eq!(times, usize::from(expected), "{pre_bind}");
    }
}

#[test]
fn extension_point_lists_named_plugins_first() {
    let plugins = json!({
        "multiPoint": {"enabled": [{"name": "NodeResourcesFitPlus", "weight": 3}]},
        "score": {"enabled": [
            {"name": "LoadAwareScheduling", "weight": 2},
            {"name": "NodeAffinity", "weight": 7}
        ], "disabled": [{"name": "NodeResourcesFit"}]},
    });
    let profiles = build(&file("x", plugins, Vec::new()), false).unwrap();
    let points = resolved(&profiles);
    let score = &points["score"];
    assert_eq!(score.first().unwrap(), "NodeAffinity=7");
    assert_eq!(score.last().unwrap(), "LoadAwareScheduling=2");
    assert!(score.contains(&"NodeResourcesFitPlus=3".to_owned()));
    let named = |prefix: &str| score.iter().any(|name| name.starts_with(prefix));
    assert!(!named("NodeResourcesFit="), "{score:?}");
}
