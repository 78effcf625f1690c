//! Features that programs for clusters must not have: fakes and schemas, which serve tests and tools, and tokio's
//! time that can be paused.

use serde_json::Value;

/// Features of this workspace's crates, and of tokio, that are for tests and tools.
const RESERVED: [&str; 4] = ["fake", "testing", "schema", "test-util"];

/// Returns the places where a package, as `cargo metadata` describes it, enables a reserved feature: by default, or
/// for a dependency that is not only its tests'. Cargo unifies features of what it builds together, so that one such
/// place is enough, also in a package of the lab: `cargo build` builds it with the daemons.
pub(crate) fn faults(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let mut faults: Vec<String> = default_features(package)
        .into_iter()
        .filter(|feature| is_reserved(feature))
        .map(|feature| format!("{name} has the feature {feature} by default"))
        .collect();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        if dependency["kind"].as_str() == Some("dev") {
            continue;
        }
        let on = dependency["name"].as_str().unwrap_or_default();
        let features = dependency["features"].as_array().into_iter().flatten();
        for feature in features.filter_map(Value::as_str) {
            if is_reserved(feature) {
                faults.push(format!(
                    "{name} enables the feature {feature} of {on}: only its tests may"
                ));
            }
        }
    }
    faults
}

/// Returns true for a reserved feature, of the package itself or (`koord-host/fake`) of a dependency.
fn is_reserved(feature: &str) -> bool {
    let own = feature.rsplit('/').next().unwrap_or(feature);
    RESERVED.contains(&own)
}

/// Returns the features that `default` enables, those of other features among them.
fn default_features(package: &Value) -> Vec<&str> {
    let mut enabled = vec!["default"];
    let mut next = 0;
    while let Some(feature) = enabled.get(next).copied() {
        next += 1;
        let implied = package["features"][feature].as_array();
        for other in implied.into_iter().flatten().filter_map(Value::as_str) {
            if !enabled.contains(&other) {
                enabled.push(other);
            }
        }
    }
    enabled
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, kind: Option<&str>, on: &str, feature: &str) -> Value {
        json!({
            "name": name,
            "features": {"fake": [], "default": []},
            "dependencies": [{"name": on, "kind": kind, "features": ["other", feature]}],
        })
    }

    #[test]
    fn feature_of_a_dependency_is_refused_outside_of_tests() {
        for (on, feature) in [("koord-host", "fake"), ("tokio", "test-util")] {
            let expected =
                format!("koordlet enables the feature {feature} of {on}: only its tests may");
            assert_eq!(faults(&package("koordlet", None, on, feature)), [expected]);
        }
        let lab = package("koord", None, "koord-host", "fake");
        assert_eq!(faults(&lab).len(), 1);
        let build = package("koordlet", Some("build"), "koord-api", "schema");
        assert_eq!(faults(&build).len(), 1);
        for fine in [
            package("koordlet", Some("dev"), "koord-host", "fake"),
            package("koordlet", None, "tokio", "time"),
        ] {
            assert_eq!(faults(&fine), [""; 0]);
        }
    }

    #[test]
    fn default_feature_is_refused_through_other_features() {
        for default in ["fake", "koord-host/fake", "full"] {
            let mut package = package("koord-sim", None, "koord-host", "other");
            package["features"]["default"] = json!([default]);
            package["features"]["full"] = json!(["more"]);
            package["features"]["more"] = json!(["full", "koord-api/schema"]);
            assert_eq!(faults(&package).len(), 1, "{default}");
        }
    }
}
