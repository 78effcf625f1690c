//! The permissions that the components need, from the roles of the chart.

use serde_json::{Value, json};

/// Roles and accounts of the components.
const MANIFESTS: [&str; 4] = [
    include_str!("../../../../charts/koord/files/manager/rbac.yaml"),
    include_str!("../../../../charts/koord/files/scheduler/rbac.yaml"),
    include_str!("../../../../charts/koord/files/descheduler/rbac.yaml"),
    include_str!("../../../../charts/koord/files/koordlet/rbac.yaml"),
];

/// What koord-manager creates where it is missing. It needs no permission for it where the chart, `koord install` or an
/// administrator has created it.
const INSTALLED: [&str; 2] = ["customresourcedefinitions", "priorityclasses"];

/// Returns the SubjectAccessReviews for `accounts` in `namespace`: a description and the spec of each. A Role or
/// ClusterRole of a manifest is that of the manifest's ServiceAccount.
pub(super) fn reviews(namespace: &str, accounts: &[String]) -> Vec<(String, Value)> {
    let mut reviews = Vec::new();
    for manifest in MANIFESTS {
        let objects = documents(manifest);
        let account = objects.iter().find(|it| it["kind"] == "ServiceAccount");
        let account = account.and_then(|it| it["metadata"]["name"].as_str());
        let Some(account) = account.filter(|name| accounts.iter().any(|it| it == name)) else {
            continue;
        };
        for role in &objects {
            let within = match role["kind"].as_str() {
                Some("ClusterRole") => "",
                // Manifests of other namespaces than the components' name them.
                Some("Role") => match role["metadata"]["namespace"].as_str() {
                    Some("koordinator-system") | None => namespace,
                    Some(other) => other,
                },
                _ => continue,
            };
            for rule in role["rules"].as_array().into_iter().flatten() {
                review_rule(&mut reviews, namespace, account, within, rule);
            }
        }
    }
    reviews.sort_by(|a, b| a.0.cmp(&b.0));
    reviews.dedup_by(|a, b| a.0 == b.0);
    reviews
}

/// Adds one review per group, resource, name and verb of `rule`.
fn review_rule(
    reviews: &mut Vec<(String, Value)>,
    namespace: &str,
    account: &str,
    within: &str,
    rule: &Value,
) {
    let names = strings(&rule["resourceNames"]);
    let names = if names.is_empty() { vec![""] } else { names };
    for group in strings(&rule["apiGroups"]) {
        for resource in strings(&rule["resources"]) {
            for verb in strings(&rule["verbs"]) {
                if verb == "create" && INSTALLED.contains(&resource) {
                    continue;
                }
                for name in &names {
                    let mut description = format!("{account}: {verb} {resource}");
                    if !group.is_empty() {
                        description = format!("{description}.{group}");
                    }
                    if !name.is_empty() {
                        description = format!("{description} {name}");
                    }
                    if !within.is_empty() {
                        description = format!("{description} in {within}");
                    }
                    let (resource, subresource) =
                        resource.split_once('/').unwrap_or((resource, ""));
                    let spec = json!({
                        "user": format!("system:serviceaccount:{namespace}:{account}"),
                        "groups": ["system:serviceaccounts",
                            format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
                        "resourceAttributes": {"group": group, "resource": resource, "verb": verb,
                            "subresource": subresource, "name": name, "namespace": within},
                    });
                    reviews.push((description, spec));
                }
            }
        }
    }
}

/// Returns the documents of a YAML stream; an invalid one is left out.
fn documents(stream: &str) -> Vec<Value> {
    let documents = stream.split("\n---");
    documents
        .filter_map(|document| serde_saphyr::from_str(document).ok())
        .collect()
}

fn strings(list: &Value) -> Vec<&str> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_manifest_has_reviews_of_its_account() {
        for account in [
            "koord-manager",
            "koord-scheduler",
            "koord-descheduler",
            "koordlet",
        ] {
            let found = reviews("ns", &[account.to_owned()]);
            assert!(found.len() > 5, "{account}: {found:?}");
            let user = format!("system:serviceaccount:ns:{account}");
            assert!(found.iter().all(|(_, spec)| spec["user"] == user.as_str()));
        }
        assert!(reviews("ns", &[]).is_empty());
    }

    #[test]
    fn permissions_to_install_are_not_required() {
        let found = reviews("ns", &["koord-manager".to_owned()]);
        let creates: Vec<&str> = found
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| name.contains(": create "))
            .collect();
        assert!(creates.iter().any(|name| name.contains("nodeslos")));
        let of_installation = |name: &&str| INSTALLED.iter().any(|it| name.contains(it));
        assert_eq!(creates.into_iter().find(of_installation), None);
    }

    #[test]
    fn subresource_is_apart_in_a_review() {
        let found = reviews("ns", &["koordlet".to_owned()]);
        let (_, spec) = found
            .iter()
            .find(|(name, _)| name == "koordlet: patch nodemetrics/status.slo.koordinator.sh")
            .unwrap();
        let attributes = &spec["resourceAttributes"];
        assert_eq!(attributes["resource"], "nodemetrics");
        assert_eq!(attributes["subresource"], "status");
    }
}
