//! Permissions that requests need and roles grant, in one text format: for tests of programs' manifests.

use super::Api;
use super::guard::{check_resource, verb};
use super::path::{self, RequestTarget, ResourcePath};
use super::query::Query;
use crate::authz::{Rule, User};
use http::{Method, Uri};
use serde_json::Value;

/// Returns the permission that a request needs, such as `list pods`, `patch nodes/status` or `get
/// leases.coordination.k8s.io`. `None` if it is not for a resource, such as discovery.
#[must_use]
pub fn required_right(method: &Method, uri: &Uri) -> Option<String> {
    let (path, query) = read(uri)?;
    let verb = verb(method, &path, &query);
    let subresource = path.subresource.as_deref().unwrap_or_default();
    let resource = match subresource.split('/').next() {
        None | Some("") => path.plural,
        Some(subresource) => format!("{}/{subresource}", path.plural),
    };
    Some(right(verb, &resource, &path.group))
}

/// Returns true if `user` has the permission that a request needs.
pub(crate) fn has_right(api: &Api, user: &User, method: &Method, uri: &Uri) -> bool {
    read(uri).is_none_or(|(path, query)| {
        let verb = verb(method, &path, &query);
        check_resource(api.guard(), user, verb, &path, &query).is_ok()
    })
}

fn read(uri: &Uri) -> Option<(ResourcePath, Query)> {
    let Some(RequestTarget::Resource(path)) = path::parse(uri.path()) else {
        return None;
    };
    let query = Query::parse(uri.query().unwrap_or_default()).ok()?;
    Some((path, query))
}

/// Returns the permissions that the `rules` of a role grant, in the format of [`required_right`].
#[must_use]
pub fn granted_rights(rules: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for rule in Rule::parse_list(Some(rules)) {
        for group in &rule.groups {
            for resource in &rule.resources {
                out.extend(rule.verbs.iter().map(|verb| right(verb, resource, group)));
            }
        }
    }
    out
}

fn right(verb: &str, resource: &str, group: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    format!("{verb} {resource}{dot}{group}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn required_and_granted_rights_match() {
        let rules = json!([
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            {"apiGroups": ["a", "b"], "resources": ["x"], "verbs": ["list", "watch"]},
            {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
        ]);
        let provided = granted_rights(&rules);
        assert_eq!(
            provided,
            [
                "patch nodes/status",
                "list x.a",
                "watch x.a",
                "list x.b",
                "watch x.b"
            ]
        );
        for (method, uri, right) in [
            (
                Method::PATCH,
                "/api/v1/nodes/n/status?fieldManager=m",
                Some(provided[0].as_str()),
            ),
            (
                Method::GET,
                "/apis/a/v1/namespaces/ns/x?limit=5",
                Some("list x.a"),
            ),
            (Method::GET, "/apis/b/v1/x?watch=true", Some("watch x.b")),
            (Method::GET, "/apis/b/v1/namespaces/ns/x/n", Some("get x.b")),
            (
                Method::DELETE,
                "/api/v1/namespaces/ns",
                Some("delete namespaces"),
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/ns/pods",
                Some("deletecollection pods"),
            ),
            (Method::GET, "/apis/a/v1", None),
        ] {
            assert_eq!(
                required_right(&method, &uri.parse().unwrap()).as_deref(),
                right,
                "{uri}"
            );
        }
    }
}
