//! URL paths of the API server's resources.

/// A resource, an object or a subresource as the path of a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourcePath<'a> {
    /// API group; empty for the core group.
    pub group: &'a str,
    /// Version of the group.
    pub version: &'a str,
    /// Namespace of the objects; `None` for a cluster-scoped resource, or for all namespaces.
    pub namespace: Option<&'a str>,
    /// Plural of the resource.
    pub resource: &'a str,
    /// Name of the object; `None` for the collection.
    pub name: Option<&'a str>,
    /// Subresource of the object, such as `status`.
    pub subresource: Option<&'a str>,
}

impl<'a> ResourcePath<'a> {
    /// Parses a path without its query; `None` if it is not that of a resource.
    #[must_use]
    pub fn parse(path: &'a str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let version = parts.next()?;
        let mut rest: Vec<&str> = parts.collect();
        // A Namespace is an object, too, and has these subresources.
        let namespace = match rest[..] {
            ["namespaces", _, "status" | "finalize"] => None,
            ["namespaces", namespace, _, ..] => Some(namespace),
            _ => None,
        };
        if namespace.is_some() {
            rest.drain(..2);
        }
        if rest.iter().any(|part| part.is_empty()) {
            return None;
        }
        Some(Self {
            group,
            version,
            namespace,
            resource: rest.first()?,
            name: rest.get(1).copied(),
            subresource: rest.get(2).copied(),
        })
    }

    /// Returns the path of the collection.
    #[must_use]
    pub fn collection(&self) -> String {
        let Self {
            group,
            version,
            resource,
            ..
        } = self;
        let root = match *group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        match self.namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{resource}"),
            None => format!("{root}/{resource}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_parsed_by_its_structure() {
        for (path, group, namespace, resource, name, subresource) in [
            ("/api/v1/nodes", "", None, "nodes", None, None),
            (
                "/api/v1/nodes/status",
                "",
                None,
                "nodes",
                Some("status"),
                None,
            ),
            (
                "/api/v1/nodes/scale/status",
                "",
                None,
                "nodes",
                Some("scale"),
                Some("status"),
            ),
            ("/api/v1/namespaces", "", None, "namespaces", None, None),
            (
                "/api/v1/namespaces/n",
                "",
                None,
                "namespaces",
                Some("n"),
                None,
            ),
            (
                "/api/v1/namespaces/n/status",
                "",
                None,
                "namespaces",
                Some("n"),
                Some("status"),
            ),
            (
                "/api/v1/namespaces/n/finalize",
                "",
                None,
                "namespaces",
                Some("n"),
                Some("finalize"),
            ),
            (
                "/api/v1/namespaces/n/pods",
                "",
                Some("n"),
                "pods",
                None,
                None,
            ),
            (
                "/api/v1/namespaces/n/pods/p",
                "",
                Some("n"),
                "pods",
                Some("p"),
                None,
            ),
            (
                "/api/v1/namespaces/status/pods/binding",
                "",
                Some("status"),
                "pods",
                Some("binding"),
                None,
            ),
            (
                "/api/v1/namespaces/n/pods/p/binding",
                "",
                Some("n"),
                "pods",
                Some("p"),
                Some("binding"),
            ),
            (
                "/apis/scheduling.sigs.k8s.io/v1/namespaces/n/elasticquotas/status",
                "scheduling.sigs.k8s.io",
                Some("n"),
                "elasticquotas",
                Some("status"),
                None,
            ),
        ] {
            let version = "v1";
            let expected = ResourcePath {
                group,
                version,
                namespace,
                resource,
                name,
                subresource,
            };
            assert_eq!(ResourcePath::parse(path), Some(expected), "{path}");
            let mut built = expected.collection();
            for part in [name, subresource].into_iter().flatten() {
                built = format!("{built}/{part}");
            }
            assert_eq!(built, path);
        }
    }

    #[test]
    fn other_paths_are_refused() {
        for path in [
            "",
            "/",
            "/api",
            "/apis",
            "/apis/apps",
            "/api/v1",
            "/apis/apps/v1",
            "/api/v1/",
            "/version",
            "/healthz/ping",
            "/api/v1//n",
            "/api/v1/nodes/",
            "api/v1/nodes",
        ] {
            assert_eq!(ResourcePath::parse(path), None, "{path}");
        }
    }
}
