//! Parsing of request paths.

/// The parts of a path below `/api/v1` or `/apis/{group}/{version}`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ResourcePath {
    /// API group, empty for core.
    pub(super) group: String,
    pub(super) version: String,
    pub(super) namespace: Option<String>,
    pub(super) plural: String,
    pub(super) name: Option<String>,
    /// Subresource, with the rest of the path (`proxy/a/b`).
    pub(super) subresource: Option<String>,
    /// True if the deprecated `/watch/` prefix was used.
    pub(super) watch: bool,
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestTarget {
    /// An object, a collection or a subresource.
    Resource(ResourcePath),
    /// Anything else: discovery, health, version; the decoded segments.
    Other(Vec<String>),
}

/// Splits and decodes `path`. `None` when a percent escape is broken or not UTF-8.
pub(super) fn parse(path: &str) -> Option<RequestTarget> {
    let segments: Vec<String> = path
        .split('/')
        .filter(|s| !s.is_empty())
        .map(percent_decode)
        .collect::<Option<_>>()?;
    let (group, version, rest) = match segments.first().map(String::as_str) {
        Some("api") if segments.len() > 2 => (String::new(), segments[1].clone(), &segments[2..]),
        Some("apis") if segments.len() > 3 => {
            (segments[1].clone(), segments[2].clone(), &segments[3..])
        }
        _ => return Some(RequestTarget::Other(segments)),
    };
    let (watch, rest) = match rest {
        [first, tail @ ..] if first == "watch" && !tail.is_empty() => (true, tail),
        _ => (false, rest),
    };
    let mut out = ResourcePath {
        group,
        version,
        watch,
        ..ResourcePath::default()
    };
    let tail = match rest {
        [ns, name] if ns == "namespaces" => {
            out.plural = ns.clone();
            out.name = Some(name.clone());
            return Some(RequestTarget::Resource(out));
        }
        [ns, name, sub] if ns == "namespaces" && (sub == "status" || sub == "finalize") => {
            out.plural = ns.clone();
            out.name = Some(name.clone());
            out.subresource = Some(sub.clone());
            return Some(RequestTarget::Resource(out));
        }
        [ns, name, tail @ ..] if ns == "namespaces" => {
            out.namespace = Some(name.clone());
            tail
        }
        _ => rest,
    };
    let (plural, tail) = tail.split_first()?;
    out.plural = plural.clone();
    if let Some((name, sub)) = tail.split_first() {
        out.name = Some(name.clone());
        if !sub.is_empty() {
            out.subresource = Some(sub.join("/"));
        }
    }
    Some(RequestTarget::Resource(out))
}

/// Decodes percent encoding. `None` for a truncated escape or invalid UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%' {
            let hex = bytes
                .get(i + 1..i + 3)
                // The number parser would accept a sign, too.
                .filter(|hex| hex.iter().all(u8::is_ascii_hexdigit))?;
            let hex = std::str::from_utf8(hex).ok()?;
            out.push(u8::from_str_radix(hex, 16).ok()?);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(path: &str) -> ResourcePath {
        match parse(path) {
            Some(RequestTarget::Resource(r)) => r,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn namespaces_are_both_objects_and_prefixes() {
        let r = resource("/api/v1/namespaces/kube-system");
        assert_eq!(
            (r.plural.as_str(), r.name.as_deref()),
            ("namespaces", Some("kube-system"))
        );
        let r = resource("/api/v1/namespaces/x/status");
        assert_eq!(
            (r.name.as_deref(), r.subresource.as_deref()),
            (Some("x"), Some("status"))
        );
        let r = resource("/api/v1/namespaces/x/pods/p/log");
        assert_eq!(r.namespace.as_deref(), Some("x"));
        assert_eq!((r.plural.as_str(), r.name.as_deref()), ("pods", Some("p")));
        assert_eq!(r.subresource.as_deref(), Some("log"));
        let r = resource("/apis/apps/v1/deployments/");
        assert_eq!(
            (r.group.as_str(), r.plural.as_str()),
            ("apps", "deployments")
        );
        assert!(resource("/api/v1/watch/namespaces/x/pods").watch);
    }

    #[test]
    fn groups_without_a_resource_are_not_resources() {
        for path in [
            "/",
            "/api",
            "/api/v1",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/version",
        ] {
            assert!(
                matches!(parse(path), Some(RequestTarget::Other(_))),
                "{path}"
            );
        }
        assert_eq!(parse("/api/v1/%zz"), None);
        assert_eq!(parse("/%ff"), None);
        assert_eq!(percent_decode("%+f"), None);
    }
}
