//! The RBAC rule that is missing when the API server denies a request.

use std::fmt;

/// An RBAC rule that no role of the client's user contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRule {
    group: String,
    /// Includes the subresource.
    resource: String,
    verbs: Vec<String>,
    namespace: Option<String>,
}

impl MissingRule {
    /// Returns the rule that allows an informer to list and watch `resource` of `group`.
    #[must_use]
    pub fn list_and_watch(group: &str, resource: &str) -> Self {
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            verbs: vec!["list".to_owned(), "watch".to_owned()],
            namespace: None,
        }
    }

    /// Parses the message of a refusal, such as `pods is forbidden: User "u" cannot list resource "pods" in
    /// API group "" at the cluster scope`. Returns `None` for refusals by admission, which no rule can fix.
    #[must_use]
    pub fn parse(message: &str) -> Option<Self> {
        let (_, rest) = message.split_once("\" cannot ")?;
        let (verb, rest) = rest.split_once(" resource \"")?;
        let (resource, rest) = rest.split_once("\" in API group \"")?;
        let (group, rest) = rest.split_once('"')?;
        let namespace = rest.strip_prefix(" in the namespace \"");
        let namespace = namespace.and_then(|rest| rest.split_once('"'));
        Some(Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            verbs: vec![verb.to_owned()],
            namespace: namespace.map(|(namespace, _)| namespace.to_owned()),
        })
    }

    /// Returns whether the rule has only the verbs of an informer.
    pub(super) fn is_of_informers(&self) -> bool {
        self.verbs
            .iter()
            .all(|verb| verb == "list" || verb == "watch")
    }
}

impl fmt::Display for MissingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, resource) = (&self.group, &self.resource);
        let verbs = self.verbs.join(", ");
        write!(
            f,
            "{{apiGroups: [{group:?}], resources: [{resource}], verbs: [{verbs}]}}"
        )?;
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_rbac_names_the_missing_rule() {
        let rule = |message: &str| MissingRule::parse(message).map(|rule| rule.to_string());
        // The wording of kube-apiserver 1.35.
        let cluster = "nodemetrics.slo.koordinator.sh \"n\" is forbidden: User \
             \"system:serviceaccount:koordinator-system:koordlet\" cannot patch resource \"nodemetrics/status\" in \
             API group \"slo.koordinator.sh\" at the cluster scope";
        let expected = "{apiGroups: [\"slo.koordinator.sh\"], resources: [nodemetrics/status], verbs: [patch]}";
        assert_eq!(rule(cluster).as_deref(), Some(expected));
        let namespaced = "leases.coordination.k8s.io \"l\" is forbidden: User \"u\" cannot get resource \"leases\" in \
             API group \"coordination.k8s.io\" in the namespace \"koordinator-system\"";
        let expected = "{apiGroups: [\"coordination.k8s.io\"], resources: [leases], verbs: [get]} in namespace \
             koordinator-system";
        assert_eq!(rule(namespaced).as_deref(), Some(expected));
        for other in [
            "admission webhook \"vpod.koordinator.sh\" denied the request: no",
            "pods \"p\" is forbidden: exceeded quota: q",
            "forbidden: User \"u\" cannot get path \"/metrics\"",
            "\" cannot x resource \"",
            "",
        ] {
            assert_eq!(rule(other), None, "{other}");
        }
    }
}
