//! The configuration in the form of `/configz`: with the names of upstream's Go fields, which are those of
//! the file with a capital.

use koord_app::configz::GoNames;
use serde_json::Value;

const NAMES: GoNames = GoNames {
    as_they_are: &[
        "addedAffinity",
        "defaultConstraints",
        "defaultQuotaGroupMax",
        "estimatedScalingFactors",
        "prodUsageThresholds",
        "resourceWeights",
        "systemQuotaGroupMax",
        "tlsConfig",
        "usageThresholds",
    ],
    special: &[
        ("apiVersion", "apiVersion"),
        ("kind", "kind"),
        ("qps", "QPS"),
        ("urlPrefix", "URLPrefix"),
        ("tlsConfig", "TLSConfig"),
        ("httpTimeout", "HTTPTimeout"),
    ],
    zero: &["weight"],
};

/// The replacement for secrets.
const HIDDEN: &str = "--- REDACTED ---";

/// Hides the private keys of extenders: a user with read access to a scheduler must not be able to
/// impersonate it.
pub(super) fn hide_keys(config: &mut Value) {
    let extenders = config.get_mut("extenders").and_then(Value::as_array_mut);
    for extender in extenders.into_iter().flatten() {
        let tls = extender.get_mut("tlsConfig");
        let fields = tls.and_then(Value::as_object_mut).into_iter().flatten();
        for (name, value) in fields {
            if name.eq_ignore_ascii_case("keyData") && !value.is_null() {
                *value = HIDDEN.into();
            }
        }
    }
}

/// Returns `value` with upstream's field names.
pub(super) fn to_upstream_names(value: Value) -> Value {
    NAMES.rename_fields(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_of_extenders_are_hidden() {
        let mut config = json!({"extenders": [
            {"urlPrefix": "https://a", "tlsConfig": {"keyData": "c2VjcmV0", "certData": "YQ=="}},
            {"urlPrefix": "https://b", "tlsConfig": null},
            {"urlPrefix": "https://c"},
        ]});
        let mut shown = config.clone();
        shown["extenders"][0]["tlsConfig"]["keyData"] = HIDDEN.into();
        hide_keys(&mut config);
        assert_eq!(config, shown);
    }

    #[test]
    fn fields_have_capitals_and_map_keys_do_not() {
        let file = json!({
            "apiVersion": "v1", "kind": "K", "parallelism": 16,
            "leaderElection": {"leaderElect": true, "leaseDuration": "15s"},
            "clientConnection": {"qps": 50.0},
            "extenders": [],
            "profiles": [{
                "schedulerName": "koord-scheduler",
                "plugins": {"score": {"enabled": [{"name": "A", "weight": null}], "disabled": []}},
                "pluginConfig": [{"name": "LoadAwareScheduling", "args": {
                    "resourceWeights": {"cpu": 1},
                    "aggregated": {"usageThresholds": {"kubernetes.io/batch-cpu": 1}}
                }}]
            }]
        });
        let shown = json!({
            "apiVersion": "v1", "kind": "K", "Parallelism": 16,
            "LeaderElection": {"LeaderElect": true, "LeaseDuration": "15s"},
            "ClientConnection": {"QPS": 50.0},
            "Extenders": null,
            "Profiles": [{
                "SchedulerName": "koord-scheduler",
                "Plugins": {"Score": {"Enabled": [{"Name": "A", "Weight": 0}], "Disabled": null}},
                "PluginConfig": [{"Name": "LoadAwareScheduling", "Args": {
                    "ResourceWeights": {"cpu": 1},
                    "Aggregated": {"UsageThresholds": {"kubernetes.io/batch-cpu": 1}}
                }}]
            }]
        });
        assert_eq!(to_upstream_names(file), shown);
    }
}
