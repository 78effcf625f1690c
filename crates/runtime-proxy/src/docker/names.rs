//! Routes of the Docker API, and the names that a kubelet gives to containers.

use http::{Method, Uri};

/// A request that is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// Creation of a container of a kubelet.
    Create(Name),
    /// Start of any container, by id or name.
    Start(String),
    Stop(String),
    Update(String),
    Remove(String),
}

impl Route {
    /// Returns the name of the call in metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Start(_) => "start",
            Self::Stop(_) => "stop",
            Self::Update(_) => "update",
            Self::Remove(_) => "remove",
        }
    }

    pub(super) fn from_request(method: &Method, uri: &Uri) -> Option<Self> {
        let path = uri.path().strip_prefix('/')?;
        let path = match path.split_once('/') {
            Some((version, rest)) if is_version(version) => rest,
            _ => path,
        };
        let parts: Vec<&str> = path.split('/').collect();
        match (method.as_str(), parts.as_slice()) {
            ("POST", ["containers", "create"]) => {
                let mut query = uri.query().unwrap_or_default().split('&');
                let name = query.find_map(|pair| pair.strip_prefix("name="))?;
                Name::parse(name).map(Self::Create)
            }
            ("POST", ["containers", id, "start"]) => Some(Self::Start((*id).to_owned())),
            ("POST", ["containers", id, "stop"]) => Some(Self::Stop((*id).to_owned())),
            ("POST", ["containers", id, "update"]) => Some(Self::Update((*id).to_owned())),
            ("DELETE", ["containers", id]) => Some(Self::Remove((*id).to_owned())),
            _ => None,
        }
    }
}

/// Returns true for a version such as `v1.41`.
fn is_version(text: &str) -> bool {
    let numbers = text.strip_prefix('v').and_then(|text| text.split_once('.'));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(major, minor)| digits(major) && digits(minor))
}

/// A container name `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT`: no part can contain an underscore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) container: String,
    pub(super) pod: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) attempt: u32,
}

impl Name {
    /// Parses a name; returns `None` for containers that are not a kubelet's. Inspected names start with a
    /// slash.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let name = name.strip_prefix('/').unwrap_or(name);
        let parts: Vec<&str> = name.split('_').collect();
        let ["k8s", container, pod, namespace, uid, attempt] = parts.as_slice() else {
            return None;
        };
        Some(Self {
            container: (*container).to_owned(),
            pod: (*pod).to_owned(),
            namespace: (*namespace).to_owned(),
            uid: (*uid).to_owned(),
            attempt: attempt.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &str, uri: &str) -> Option<Route> {
        Route::from_request(&method.parse().unwrap(), &uri.parse().unwrap())
    }

    #[test]
    fn requests_for_kubelet_containers_are_recognized() {
        let text = |id: &str| id.to_owned();
        let name = Name {
            container: text("main"),
            pod: text("web-0"),
            namespace: text("shop"),
            uid: text("b1e3-4"),
            attempt: 2,
        };
        let create = "/v1.41/containers/create?platform=&name=k8s_main_web-0_shop_b1e3-4_2";
        assert_eq!(route("POST", create), Some(Route::Create(name.clone())));
        assert_eq!(Name::parse("/k8s_main_web-0_shop_b1e3-4_2"), Some(name));
        let start = Some(Route::Start(text("ab12")));
        assert_eq!(route("POST", "/containers/ab12/start"), start);
        assert_eq!(route("POST", "/v1.24/containers/ab12/start"), start);
        let stop = Some(Route::Stop(text("ab12")));
        assert_eq!(route("POST", "/v1.41/containers/ab12/stop?t=30"), stop);
        let update = Some(Route::Update(text("ab12")));
        assert_eq!(route("POST", "/v1.41/containers/ab12/update"), update);
        let remove = Some(Route::Remove(text("ab12")));
        assert_eq!(route("DELETE", "/v1.41/containers/ab12?v=1"), remove);
    }

    #[test]
    fn others_pass() {
        for (method, uri) in [
            ("POST", "/v1.41/containers/create"),
            ("POST", "/v1.41/containers/create?name=web"),
            ("POST", "/v1.41/containers/create?name=k8s_a_b_c_d_e"),
            ("POST", "/v1.41/containers/create?name=k8s_a_b_c_d"),
            ("POST", "/v1.41/containers/create?name=k8s_a_b_c_d_1_2"),
            ("GET", "/v1.41/containers/ab12/json"),
            ("GET", "/v1.41/containers/ab12/start"),
            ("POST", "/v1.41/containers/ab12/exec"),
            ("POST", "/v1/containers/ab12/stop"),
            ("POST", "/v1.x/containers/ab12/stop"),
            ("POST", "/v1.41/images/ab12/stop"),
            ("DELETE", "/v1.41/images/ab12"),
            ("GET", "/_ping"),
            ("GET", "/"),
        ] {
            assert_eq!(route(method, uri), None, "{method} {uri}");
        }
    }
}
