//! Validation of webhook configurations.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Errors, names};
use crate::meta::{self, str_at};
use crate::selector::LabelSelector;
use crate::status::FieldError;

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const URL_FORM: &str = "; desired format: https://host[/path]";

pub(super) fn configuration(object: &Value, errors: &mut Errors) {
    let mut observed = BTreeSet::new();
    let hooks = object.get("webhooks").and_then(Value::as_array);
    for (i, hook) in hooks.into_iter().flatten().enumerate() {
        let path = format!("webhooks[{i}]");
        webhook(hook, &path, errors);
        let name = str_at(hook, &["name"]);
        if !name.is_empty() && !observed.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
    }
}

fn list<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    let items = value.get(key).and_then(Value::as_array);
    items
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Validates a webhook of a configuration.
fn webhook(hook: &Value, path: &str, errors: &mut Errors) {
    let at = |key: &str| format!("{path}.{key}");
    let name = str_at(hook, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(at("name"), ""));
    } else if let Some(detail) = names::dns1123_subdomain(name) {
        errors.push(FieldError::invalid(at("name"), name, detail));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.push(FieldError::invalid(at("name"), name, detail));
    }
    let rules = hook.get("rules").and_then(Value::as_array);
    for (i, r) in rules.into_iter().flatten().enumerate() {
        rule(r, &format!("{path}.rules[{i}]"), errors);
    }
    for (key, supported) in [
        ("failurePolicy", &["Fail", "Ignore"][..]),
        ("matchPolicy", &["Equivalent", "Exact"]),
        ("reinvocationPolicy", &["IfNeeded", "Never"]),
        ("sideEffects", &["None", "NoneOnDryRun"]),
    ] {
        match hook.get(key).and_then(Value::as_str) {
            None if key == "sideEffects" => {
                let detail = "must specify one of None, NoneOnDryRun";
                errors.push(FieldError::required(at(key), detail));
            }
            Some(given) if !supported.contains(&given) => {
                errors.push(FieldError::not_supported(at(key), given, supported));
            }
            _ => {}
        }
    }
    if let Some(seconds) = hook.get("timeoutSeconds").and_then(Value::as_i64)
        && !(1..=30).contains(&seconds)
    {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(at("timeoutSeconds"), seconds, detail));
    }
    for key in ["namespaceSelector", "objectSelector"] {
        if let Some(selector) = hook.get(key).filter(|s| !s.is_null())
            && let Err(e) = LabelSelector::from_json(Some(selector))
        {
            errors.push(FieldError::invalid(
                at(key),
                selector.clone(),
                e.to_string(),
            ));
        }
    }
    client_config(hook, &at("clientConfig"), errors);
    review_versions(hook, &at("admissionReviewVersions"), errors);
}

fn review_versions(hook: &Value, path: &str, errors: &mut Errors) {
    let versions = list(hook, "admissionReviewVersions");
    if versions.is_empty() {
        errors.push(FieldError::required(
            path,
            "must specify one of v1, v1beta1",
        ));
        return;
    }
    let mut observed = BTreeSet::new();
    for (i, version) in versions.iter().enumerate() {
        let at = format!("{path}[{i}]");
        if !observed.insert(version) {
            errors.push(FieldError::invalid(at, *version, "duplicate version"));
        } else if let Some(detail) = names::dns1035_label(version) {
            errors.push(FieldError::invalid(at, *version, detail));
        }
    }
    if !versions.iter().any(|v| REVIEW_VERSIONS.contains(v)) {
        let detail = "must include at least one of v1, v1beta1";
        errors.push(FieldError::invalid(path, versions, detail));
    }
}

fn client_config(hook: &Value, path: &str, errors: &mut Errors) {
    let config = hook.get("clientConfig").unwrap_or(&Value::Null);
    let url = config.get("url").and_then(Value::as_str);
    let service = config.get("service").filter(|s| s.is_object());
    match (url, service) {
        (Some(url), None) => check_url(url, &format!("{path}.url"), errors),
        (None, Some(service)) => check_service(service, &format!("{path}.service"), errors),
        _ => {
            let detail = "exactly one of url or service is required";
            errors.push(FieldError::required(path, detail));
        }
    }
}

/// Validates the URL of a webhook.
fn check_url(url: &str, path: &str, errors: &mut Errors) {
    let mut bad =
        |value: &str, detail: String| errors.push(FieldError::invalid(path, value, detail));
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        bad(
            scheme,
            format!("'https' is the only allowed URL scheme{URL_FORM}"),
        );
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        bad(host, format!("host must be specified{URL_FORM}"));
    } else if http::Uri::try_from(url).is_err() {
        bad(url, format!("url must be a valid URL{URL_FORM}"));
    }
    for (part, detail) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            bad(part, detail.to_owned());
        }
    }
}

/// Validates the service reference of a webhook.
fn check_service(service: &Value, path: &str, errors: &mut Errors) {
    for key in ["name", "namespace"] {
        if str_at(service, &[key]).is_empty() {
            errors.push(FieldError::required(format!("{path}.{key}"), ""));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
    if !(1..=65535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(format!("{path}.port"), port, detail));
    }
    let url_path = str_at(service, &["path"]);
    if url_path.is_empty() || url_path == "/" {
        return;
    }
    let at = format!("{path}.path");
    let Some(steps) = url_path.strip_prefix('/') else {
        errors.push(FieldError::invalid(at, url_path, "must start with a '/'"));
        return;
    };
    let steps = steps.strip_suffix('/').unwrap_or(steps);
    for (i, step) in steps.split('/').enumerate() {
        if step.is_empty() {
            let detail = format!("segment[{i}] may not be empty");
            errors.push(FieldError::invalid(at.as_str(), url_path, detail));
        } else if let Some(detail) = names::dns1123_subdomain(step) {
            let detail = format!("segment[{i}]: {detail}");
            errors.push(FieldError::invalid(at.as_str(), url_path, detail));
        }
    }
}

/// Validates a rule of a webhook.
fn rule(rule: &Value, path: &str, errors: &mut Errors) {
    let at = |key: &str| format!("{path}.{key}");
    for (key, what) in [
        ("operations", "operations"),
        ("apiGroups", "API groups"),
        ("apiVersions", "API versions"),
    ] {
        let provided = list(rule, key);
        if provided.is_empty() {
            errors.push(FieldError::required(at(key), ""));
        }
        if provided.len() > 1 && provided.contains(&"*") {
            let detail = format!("if '*' is present, must not specify other {what}");
            errors.push(FieldError::invalid(at(key), provided.clone(), detail));
        }
        for (i, item) in provided.iter().enumerate() {
            let at = format!("{}[{i}]", at(key));
            match key {
                "operations" if !OPERATIONS.contains(item) => {
                    errors.push(FieldError::not_supported(at, *item, OPERATIONS));
                }
                "apiVersions" if item.is_empty() => errors.push(FieldError::required(at, "")),
                _ => {}
            }
        }
    }
    resources(&list(rule, "resources"), &at("resources"), errors);
    if let Some(scope) = meta::at(rule, &["scope"]).and_then(Value::as_str)
        && !matches!(scope, "*" | "Cluster" | "Namespaced")
    {
        let supported = &["*", "Cluster", "Namespaced"];
        errors.push(FieldError::not_supported(at("scope"), scope, supported));
    }
}

/// Validates the resource patterns of a rule: none may be covered by another.
fn resources(patterns: &[&str], path: &str, errors: &mut Errors) {
    if patterns.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut with_all_subs, mut of_all) = (BTreeSet::new(), BTreeSet::new());
    for (i, item) in patterns.iter().enumerate() {
        let at = format!("{path}[{i}]");
        if item.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let Some((plural, sub)) = item.split_once('/') else {
            continue;
        };
        for (covered, by) in [
            (with_all_subs.contains(plural), format!("{plural}/*")),
            (of_all.contains(sub), format!("*/{sub}")),
        ] {
            if covered {
                let detail = format!("if '{by}' is present, must not specify {item}");
                errors.push(FieldError::invalid(at.as_str(), *item, detail));
            }
        }
        if sub == "*" {
            with_all_subs.insert(plural);
        }
        if plural == "*" {
            of_all.insert(sub);
        }
    }
    if patterns.len() > 1 && patterns.contains(&"*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(path, patterns.to_vec(), detail));
    }
    let plain = patterns
        .iter()
        .any(|item| *item != "*" && !item.contains('/'));
    if patterns.contains(&"*") && plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, patterns.to_vec(), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(change: &Value) -> Vec<String> {
        let mut hook = json!({
            "name": "a.example.com",
            "clientConfig": {"url": "https://localhost:8443/x"},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods"], "scope": "*"}],
        });
        for (key, value) in change.as_object().into_iter().flatten() {
            match key.strip_prefix("rule.") {
                Some(key) => hook["rules"][0][key] = value.clone(),
                None => hook[key] = value.clone(),
            }
        }
        let mut errors = Vec::new();
        configuration(&json!({"webhooks": [hook]}), &mut errors);
        errors.iter().map(|e| e.field.clone()).collect()
    }

    #[test]
    fn each_bad_field_is_named() {
        assert_eq!(messages(&json!({})), [""; 0]);
        let service = |change: Value| {
            let mut service = json!({"name": "s", "namespace": "n", "path": "/p/q/", "port": 8443});
            for (key, value) in change.as_object().unwrap() {
                service[key] = value.clone();
            }
            json!({"clientConfig": {"service": service}})
        };
        assert_eq!(messages(&service(json!({}))), [""; 0]);
        let url = |url: &str| json!({"clientConfig": {"url": url}});
        #[rustfmt::skip]
        let rows = [
            (json!({"name": ""}), "webhooks[0].name"),
            (json!({"name": "a.b"}), "webhooks[0].name"),
            (json!({"name": "A.b.c"}), "webhooks[0].name"),
            (json!({"sideEffects": null}), "webhooks[0].sideEffects"),
            (json!({"sideEffects": "Some"}), "webhooks[0].sideEffects"),
            (json!({"failurePolicy": "Perhaps"}), "webhooks[0].failurePolicy"),
            (json!({"matchPolicy": "Perhaps"}), "webhooks[0].matchPolicy"),
            (json!({"reinvocationPolicy": "Always"}), "webhooks[0].reinvocationPolicy"),
            (json!({"timeoutSeconds": 0}), "webhooks[0].timeoutSeconds"),
            (json!({"timeoutSeconds": 31}), "webhooks[0].timeoutSeconds"),
            (json!({"admissionReviewVersions": []}), "webhooks[0].admissionReviewVersions"),
            (json!({"admissionReviewVersions": ["v7"]}), "webhooks[0].admissionReviewVersions"),
            (json!({"admissionReviewVersions": ["v1", "v1"]}), "webhooks[0].admissionReviewVersions[1]"),
            (json!({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
                "webhooks[0].objectSelector"),
            (json!({"clientConfig": {}}), "webhooks[0].clientConfig"),
            (url("http://localhost/x"), "webhooks[0].clientConfig.url"),
            (url("https:///x"), "webhooks[0].clientConfig.url"),
            (url("https://u@localhost/x"), "webhooks[0].clientConfig.url"),
            (url("https://localhost/x?a=b"), "webhooks[0].clientConfig.url"),
            (url("https://localhost/x#a"), "webhooks[0].clientConfig.url"),
            (service(json!({"name": ""})), "webhooks[0].clientConfig.service.name"),
            (service(json!({"namespace": ""})), "webhooks[0].clientConfig.service.namespace"),
            (service(json!({"port": 65536})), "webhooks[0].clientConfig.service.port"),
            (service(json!({"path": "p"})), "webhooks[0].clientConfig.service.path"),
            (service(json!({"path": "/p//q"})), "webhooks[0].clientConfig.service.path"),
            (json!({"rule.operations": []}), "webhooks[0].rules[0].operations"),
            (json!({"rule.operations": ["PATCH"]}), "webhooks[0].rules[0].operations[0]"),
            (json!({"rule.operations": ["*", "CREATE"]}), "webhooks[0].rules[0].operations"),
            (json!({"rule.apiGroups": []}), "webhooks[0].rules[0].apiGroups"),
            (json!({"rule.apiVersions": [""]}), "webhooks[0].rules[0].apiVersions[0]"),
            (json!({"rule.resources": []}), "webhooks[0].rules[0].resources"),
            (json!({"rule.resources": ["*", "pods"]}), "webhooks[0].rules[0].resources"),
            (json!({"rule.resources": ["pods/*", "pods/status"]}), "webhooks[0].rules[0].resources[1]"),
            (json!({"rule.resources": ["*/status", "pods/status"]}), "webhooks[0].rules[0].resources[1]"),
            (json!({"rule.scope": "Galaxy"}), "webhooks[0].rules[0].scope"),
        ];
        for (change, field) in rows {
            assert_eq!(messages(&change), [field], "{change}");
        }
    }

    #[test]
    fn names_are_unique() {
        let hook = json!({"name": "a.example.com"});
        let mut errors = Vec::new();
        configuration(&json!({"webhooks": [hook, hook]}), &mut errors);
        assert!(errors.iter().any(|e| e.field == "webhooks[1].name"));
    }
}
