use super::*;
use crate::config::Configuration;
use crate::registry::Registry;

fn complete(args: &Value) -> Result<Value, String> {
    let config = json!({
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "profiles": [{"name": "p", "pluginConfig": [{"name": "MigrationController", "args": args}]}],
    });
    let config = Configuration::parse(&config.to_string()).map_err(|error| error.to_string())?;
    let completed = Registry::in_tree().complete(config);
    let completed = completed.map_err(|error| error.to_string())?;
    Ok(completed.config.profiles[0].plugin_config[0].args.clone())
}

#[test]
fn absent_arguments_have_upstreams_defaults() {
    let args = complete(&json!({})).unwrap();
    for (field, value) in [
        ("maxConcurrentReconciles", json!(1)),
        ("maxMigratingPerNode", json!(2)),
        ("defaultJobMode", json!("ReservationFirst")),
        ("defaultJobTTL", json!("5m0s")),
        ("schedulerNames", json!(["koord-scheduler"])),
        ("evictQPS", json!(10.0)),
        ("evictBurst", json!(1)),
        ("evictionPolicy", json!("Eviction")),
        (
            "arbitrationArgs",
            json!({"enabled": true, "interval": "500ms"}),
        ),
        ("objectLimiters", json!({"workload": {"duration": "5m0s"}})),
        ("nodeFit", json!(false)),
    ] {
        assert_eq!(args[field], value, "{field}");
    }
    assert!(args.get("maxMigratingGlobally").is_none());
    // Zero values that Go cannot distinguish from absent fields.
    let empty = json!({
        "defaultJobMode": "", "schedulerNames": [], "evictionPolicy": "", "objectLimiters": {},
        "arbitrationArgs": {"interval": "0s"},
    });
    assert_eq!(super::args(empty), MigrationControllerArgs::default());
}

/// Upstream's eight cases, and its five small tables.
#[test]
fn arguments_that_cannot_be_meant_are_refused_by_name() {
    let selector = json!({"matchLabels": {"test/a/b/c": "123"}});
    let lists = json!({"include": ["a"], "exclude": ["b"]});
    let refused = [
        (json!({"evictQPS": "xxxx"}), "evictQPS: \"xxxx\""),
        (json!({"evictQPS": 11, "evictBurst": 0}), "evictBurst: 0"),
        (
            json!({"labelSelector": selector}),
            "labelSelector.matchLabels",
        ),
        (
            json!({"maxConcurrentReconciles": -1}),
            "maxConcurrentReconciles: -1",
        ),
        (
            json!({"defaultJobMode": "unsupportedMode"}),
            "defaultJobMode: \"unsupportedMode\"",
        ),
        (json!({"defaultJobTTL": "-10m"}), "defaultJobTTL: -10m0s"),
        (
            json!({"skipEvictionGates": ["NoSuchGate"]}),
            "skipEvictionGates[0]: NoSuchGate",
        ),
        (
            json!({"maxMigratingPerNamespace": -1}),
            "maxMigratingPerNamespace: -1",
        ),
        (
            json!({"maxMigratingGlobally": -1}),
            "maxMigratingGlobally: -1",
        ),
        (
            json!({"maxMigratingPerNode": -1}),
            "maxMigratingPerNode: -1",
        ),
        // Cases that are not in upstream.
        (
            json!({"maxMigratingPerWorkload": "many"}),
            "maxMigratingPerWorkload: \"many\"",
        ),
        (
            json!({"maxUnavailablePerWorkload": "10"}),
            "maxUnavailablePerWorkload: \"10\"",
        ),
        (
            json!({"evictionPolicy": "Politely"}),
            "evictionPolicy: \"Politely\"",
        ),
        (json!({"namespaces": lists}), "namespaces"),
        (json!({"nodeSelector": "a in"}), "nodeSelector: \"a in\""),
        (json!({"objectLimiters": {"pod": {}}}), "objectLimiters"),
        (
            json!({"objectLimiters": {"namespace": {"duration": "-1s"}}}),
            "objectLimiters.namespace.duration: -1s",
        ),
        (
            json!({"objectLimiters": {"workload": {"maxMigrating": "x"}}}),
            "objectLimiters.workload.maxMigrating",
        ),
        (json!({"dryrun": true}), "dryrun"),
        (json!({"evictQPS": 0}), "evictQPS: 0"),
    ];
    for (args, said) in refused {
        let error = complete(&args).unwrap_err();
        assert!(error.contains(said), "{args}: {error}");
    }
    let mut accepted = vec![
        json!({}),
        json!({"evictQPS": "10"}),
        json!({"skipEvictionGates": ["PVC", "NodeFit", "MaxMigratingGlobally"]}),
        json!({"maxMigratingPerWorkload": -1, "maxUnavailablePerWorkload": "50%"}),
    ];
    for number in [10, 100, 0] {
        for field in [
            "maxMigratingPerNamespace",
            "maxMigratingGlobally",
            "maxMigratingPerNode",
            "maxMigratingPerWorkload",
            "maxUnavailablePerWorkload",
        ] {
            accepted.push(json!({field: number}));
        }
    }
    for args in accepted {
        complete(&args).unwrap();
    }
}
