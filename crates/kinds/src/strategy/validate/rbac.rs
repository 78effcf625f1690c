//! Validation of roles and bindings.

use serde_json::Value;

use super::{Errors, names};
use crate::meta::str_at;
use crate::status::FieldError;

/// API group of roles and bindings.
pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

/// Validates a Role or ClusterRole.
pub(super) fn role(object: &Value, namespaced: bool, errors: &mut Errors) {
    let rules = object.get("rules").and_then(Value::as_array);
    for (i, rule) in rules.into_iter().flatten().enumerate() {
        let at = |field: &str| format!("rules[{i}].{field}");
        let list = |field: &str| rule.get(field).and_then(Value::as_array);
        let has = |field: &str| list(field).is_some_and(|list| !list.is_empty());
        let mut require = |field: &str, detail: &str| {
            if !has(field) {
                errors.push(FieldError::required(at(field), detail));
            }
        };
        require("verbs", "verbs must contain at least one value");
        let paths = "nonResourceURLs";
        if !has(paths) {
            require(
                "apiGroups",
                "resource rules must supply at least one api group",
            );
            require(
                "resources",
                "resource rules must supply at least one resource",
            );
            continue;
        }
        let mut invalid = |detail: &str| {
            let value = list(paths).cloned().unwrap_or_default();
            errors.push(FieldError::invalid(at(paths), value, detail));
        };
        if namespaced {
            invalid("namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"]
            .into_iter()
            .any(has)
        {
            invalid("rules cannot apply to both regular resources and non-resource URLs");
        }
    }
}

/// Validates a RoleBinding or ClusterRoleBinding.
pub(super) fn binding(object: &Value, old: Option<&Value>, namespaced: bool, errors: &mut Errors) {
    let reference = |field: &str| str_at(object, &["roleRef", field]);
    let mut one_of = |path: String, value: &str, supported: &[&str]| {
        if !supported.contains(&value) {
            errors.push(FieldError::not_supported(path, value, supported));
        }
    };
    let kinds: &[&str] = if namespaced {
        &["Role", "ClusterRole"]
    } else {
        &["ClusterRole"]
    };
    one_of(
        "roleRef.apiGroup".to_owned(),
        reference("apiGroup"),
        &[GROUP],
    );
    one_of("roleRef.kind".to_owned(), reference("kind"), kinds);
    name(
        "roleRef.name",
        reference("name"),
        names::path_segment,
        errors,
    );
    let subjects = object.get("subjects").and_then(Value::as_array);
    for (i, subject) in subjects.into_iter().flatten().enumerate() {
        self::subject(subject, &format!("subjects[{i}]"), namespaced, errors);
    }
    // A user may change a binding's subjects without the permission to bind another role to them.
    if let Some(old) = old
        && old.get("roleRef") != object.get("roleRef")
    {
        let reference = object.get("roleRef").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            "roleRef",
            reference,
            "cannot change roleRef",
        ));
    }
}

/// Validates a subject of a binding.
fn subject(subject: &Value, path: &str, namespaced: bool, errors: &mut Errors) {
    let text = |field: &str| str_at(subject, &[field]);
    let at = |field: &str| format!("{path}.{field}");
    let group = match text("kind") {
        "ServiceAccount" => {
            name(&at("name"), text("name"), names::dns1123_subdomain, errors);
            if !namespaced && text("namespace").is_empty() {
                errors.push(FieldError::required(at("namespace"), ""));
            }
            ""
        }
        "User" | "Group" => {
            name(&at("name"), text("name"), |_| None, errors);
            GROUP
        }
        other => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported(at("kind"), other, &kinds));
            return;
        }
    };
    if text("apiGroup") != group {
        let api_group = text("apiGroup");
        errors.push(FieldError::not_supported(
            at("apiGroup"),
            api_group,
            &[group],
        ));
    }
}

fn name(path: &str, name: &str, check: fn(&str) -> Option<String>, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if let Some(detail) = check(name) {
        errors.push(FieldError::invalid(path, name, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(check: impl FnOnce(&mut Errors)) -> Vec<String> {
        let mut errors = Vec::new();
        check(&mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_of_roles() {
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"],
                          "resourceNames": ["a"]});
        let paths = json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]});
        let of = |rule: &Value, namespaced: bool| {
            let object = json!({ "rules": [rule] });
            texts(|errors| role(&object, namespaced, errors))
        };
        assert_eq!(of(&pods, true), [""; 0]);
        assert_eq!(of(&paths, false), [""; 0]);
        let cluster_only = "rules[0].nonResourceURLs: Invalid value: [\"/metrics\"]: namespaced \
                            rules cannot apply to non-resource URLs";
        assert_eq!(of(&paths, true), [cluster_only]);
        let mut mixed = pods.clone();
        mixed["nonResourceURLs"] = json!(["/metrics"]);
        let regular = "rules[0].nonResourceURLs: Invalid value: [\"/metrics\"]: rules cannot apply \
                       to both regular resources and non-resource URLs";
        assert_eq!(of(&mixed, false), [regular]);
        assert_eq!(
            of(&json!({}), true),
            [
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api \
                 group",
                "rules[0].resources: Required value: resource rules must supply at least one \
                 resource",
            ]
        );
    }

    #[test]
    fn references_and_subjects_of_bindings() {
        let good = json!({
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "r"},
            "subjects": [
                {"kind": "User", "apiGroup": GROUP, "name": "a:b/c"},
                {"kind": "ServiceAccount", "name": "s", "namespace": "n"},
            ],
        });
        let with = |change: Value, namespaced: bool| {
            let mut new = good.clone();
            json_patch::merge(&mut new, &change);
            texts(|errors| binding(&new, None, namespaced, errors))
        };
        assert_eq!(with(json!({}), true), [""; 0]);
        assert_eq!(with(json!({}), false), [""; 0]);
        let role = json!({"roleRef": {"kind": "Role"}});
        assert_eq!(with(role.clone(), true), [""; 0]);
        let error = "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"";
        assert_eq!(with(role, false), [error]);
        let of_pods = json!({"roleRef": {"apiGroup": "", "kind": "Pod", "name": "a/b"}});
        assert_eq!(
            with(of_pods, true),
            [
                "roleRef.apiGroup: Unsupported value: \"\": supported values: \
                 \"rbac.authorization.k8s.io\"",
                "roleRef.kind: Unsupported value: \"Pod\": supported values: \"Role\", \
                 \"ClusterRole\"",
                "roleRef.name: Invalid value: \"a/b\": may not contain '/'",
            ]
        );
        let subjects = json!({"subjects": [
            {"kind": "Group", "apiGroup": "x", "name": ""},
            {"kind": "ServiceAccount", "apiGroup": GROUP, "name": "A"},
            {"kind": "Robot", "name": "r"},
        ]});
        let errors = with(subjects, false);
        let starts = [
            "subjects[0].name: Required value",
            "subjects[0].apiGroup: Unsupported value: \"x\"",
            "subjects[1].name: Invalid value: \"A\": a lowercase RFC 1123 subdomain must",
            "subjects[1].namespace: Required value",
            "subjects[1].apiGroup: Unsupported value: \"rbac.authorization.k8s.io\"",
            "subjects[2].kind: Unsupported value: \"Robot\": supported values: \
             \"ServiceAccount\", \"User\", \"Group\"",
        ];
        assert_eq!(errors.len(), starts.len(), "{errors:#?}");
        for (error, start) in errors.iter().zip(starts) {
            assert!(error.starts_with(start), "{error}");
        }
    }
}
