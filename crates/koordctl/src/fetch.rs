//! Reads objects of a cluster page by page, with a timeout per request, and keeps the reason of a read that
//! was refused.

use koord_kube::api::{GetParams, ListParams, LogParams, PostParams};
use koord_kube::kube_core::Request;
use koord_kube::{Client, Error};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use tokio::task::JoinSet;

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// Largest number of bytes of a log.
const MAX_LOG: i64 = 4 << 20;
/// Requests in progress at a time.
const PARALLEL: usize = 16;

/// Result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fetched<T> {
    /// The API server returned it.
    Read(T),
    /// The API server does not serve the kind.
    NotServed(String),
    /// The caller lacks this permission, such as `list pods`.
    Forbidden(String),
    /// The request failed for another reason, or was not sent.
    Failed(String),
}

impl<T> Fetched<T> {
    /// Returns the value if it was read.
    pub(crate) const fn value(&self) -> Option<&T> {
        match self {
            Self::Read(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the value, or the reason why there is none.
    ///
    /// # Errors
    /// A sentence fragment such as `needs list pods`.
    pub(crate) fn read(&self) -> Result<&T, String> {
        match self {
            Self::Read(value) => Ok(value),
            Self::NotServed(kind) => Err(format!("{kind} not served by this cluster")),
            Self::Forbidden(permission) => Err(format!("needs {permission}")),
            Self::Failed(why) => Err(why.clone()),
        }
    }
}

/// A page of a list, with decoded items.
#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    items: Option<Vec<Value>>,
}

#[derive(Debug, Default, Deserialize)]
struct PageMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// A request for the log of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogRequest {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// True for the container's run before its last restart.
    pub(crate) is_previous: bool,
    /// Largest number of lines.
    pub(crate) lines: i64,
}

/// Sends reads to one cluster.
#[derive(Clone)]
pub(crate) struct Fetcher {
    client: Client,
    timeout: Duration,
}

impl Fetcher {
    /// Creates a fetcher whose requests each end after `timeout`.
    pub(crate) const fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    /// Returns the version that the API server reports.
    ///
    /// # Errors
    /// The API server cannot be reached, or refuses the caller.
    pub(crate) async fn version(&self) -> Result<String, String> {
        let request = self.client.apiserver_version();
        match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(info)) => Ok(info.git_version),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(self.timed_out()),
        }
    }

    /// Returns the API groups with their versions, such as `policy/v1`.
    pub(crate) async fn group_versions(&self) -> Fetched<Vec<String>> {
        let request = self.client.list_api_groups();
        match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(list)) => Fetched::Read(
                list.groups
                    .into_iter()
                    .flat_map(|group| group.versions)
                    .map(|version| version.group_version)
                    .collect(),
            ),
            Ok(Err(error)) => failed(&error, "get", "/apis"),
            Err(_) => Fetched::Failed(self.timed_out()),
        }
    }

    /// Returns all objects of the collection at `path`, page by page. Managed fields are removed.
    pub(crate) async fn list(&self, path: &str) -> Fetched<Vec<Value>> {
        self.list_selected(path, None).await
    }

    /// Like [`Self::list`], for the objects that a field selector matches.
    pub(crate) async fn list_selected(
        &self,
        path: &str,
        fields: Option<&str>,
    ) -> Fetched<Vec<Value>> {
        let mut objects = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let mut params = ListParams::default().limit(PAGE);
            if let Some(fields) = fields {
                params = params.fields(fields);
            }
            if let Some(token) = &token {
                params = params.continue_token(token);
            }
            let request = match Request::new(path).list(&params) {
                Ok(request) => request,
                Err(error) => return Fetched::Failed(error.to_string()),
            };
            let response = self.client.request::<Page>(request);
            let page = match tokio::time::timeout(self.timeout, response).await {
                Ok(Ok(page)) => page,
                Ok(Err(error)) => return failed(&error, "list", path),
                Err(_) => return Fetched::Failed(self.timed_out()),
            };
            objects.extend(page.items.unwrap_or_default().into_iter().map(trimmed));
            match page.metadata.next.filter(|next| !next.is_empty()) {
                // A server that repeats a token would be asked for ever.
                Some(next) if token.as_ref() != Some(&next) => token = Some(next),
                _ => return Fetched::Read(objects),
            }
        }
    }

    /// Returns one object; `None` if it does not exist.
    pub(crate) async fn get(&self, collection: &str, name: &str) -> Fetched<Option<Value>> {
        let request = Request::new(collection).get(name, &GetParams::default());
        match request {
            Ok(request) => {
                let response = self.client.request::<Value>(request);
                match tokio::time::timeout(self.timeout, response).await {
                    Ok(Ok(object)) => Fetched::Read(Some(trimmed(object))),
                    Ok(Err(Error::Api(status))) if status.code == 404 => Fetched::Read(None),
                    Ok(Err(error)) => failed(&error, "get", collection),
                    Err(_) => Fetched::Failed(self.timed_out()),
                }
            }
            Err(error) => Fetched::Failed(error.to_string()),
        }
    }

    /// Returns the configuration of the kubelet of each of `nodes`, in any order.
    pub(crate) async fn kubelet_configurations(
        &self,
        nodes: Vec<String>,
    ) -> Vec<(String, Fetched<Value>)> {
        let requests = nodes.into_iter().map(|node| {
            let fetcher = self.clone();
            async move {
                let request = Request::new("/api/v1/nodes").get_subresource("proxy/configz", &node);
                let fetched = match request {
                    Ok(request) => {
                        let response = fetcher.client.request::<Value>(request);
                        match tokio::time::timeout(fetcher.timeout, response).await {
                            Ok(Ok(config)) => Fetched::Read(config),
                            Ok(Err(error)) => failed(&error, "get", "/api/v1/nodes/proxy"),
                            Err(_) => Fetched::Failed(fetcher.timed_out()),
                        }
                    }
                    Err(error) => Fetched::Failed(error.to_string()),
                };
                (node, fetched)
            }
        });
        run_parallel(requests.collect()).await
    }

    /// Asks the API server for each `(name, spec of a SubjectAccessReview)` and returns the answers, in any
    /// order. Nothing is stored by such a request.
    pub(crate) async fn review_access(
        &self,
        reviews: Vec<(String, Value)>,
    ) -> Vec<(String, Fetched<bool>)> {
        const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let requests = reviews.into_iter().map(|(name, spec)| {
            let fetcher = self.clone();
            async move {
                let body = serde_json::json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
                });
                let body = body.to_string().into_bytes();
                let fetched = match Request::new(PATH).create(&PostParams::default(), body) {
                    Ok(request) => {
                        let response = fetcher.client.request::<Value>(request);
                        match tokio::time::timeout(fetcher.timeout, response).await {
                            Ok(Ok(review)) => {
                                Fetched::Read(review["status"]["allowed"] == Value::Bool(true))
                            }
                            Ok(Err(error)) => failed(&error, "create", PATH),
                            Err(_) => Fetched::Failed(fetcher.timed_out()),
                        }
                    }
                    Err(error) => Fetched::Failed(error.to_string()),
                };
                (name, fetched)
            }
        });
        run_parallel(requests.collect()).await
    }

    /// Returns the last lines of the logs of containers, in any order, each with its request.
    pub(crate) async fn logs(
        &self,
        requests: Vec<LogRequest>,
    ) -> Vec<(LogRequest, Fetched<String>)> {
        let fetching = requests.into_iter().map(|log| {
            let fetcher = self.clone();
            async move {
                let fetched = fetcher.log(&log).await;
                (log, fetched)
            }
        });
        run_parallel(fetching.collect()).await
    }

    async fn log(&self, log: &LogRequest) -> Fetched<String> {
        let params = LogParams {
            container: Some(log.container.clone()),
            previous: log.is_previous,
            tail_lines: Some(log.lines),
            limit_bytes: Some(MAX_LOG),
            ..LogParams::default()
        };
        let pods = format!("/api/v1/namespaces/{}/pods", log.namespace);
        let request = match Request::new(&pods).logs(&log.pod, &params) {
            Ok(request) => request,
            Err(error) => return Fetched::Failed(error.to_string()),
        };
        let response = self.client.request_text(request);
        match tokio::time::timeout(self.timeout, response).await {
            Ok(Ok(text)) => Fetched::Read(text),
            // A program may write anything, and the limit may cut a character.
            Ok(Err(Error::FromUtf8(error))) => {
                Fetched::Read(String::from_utf8_lossy(error.as_bytes()).into_owned())
            }
            // The pod or its container may be gone.
            Ok(Err(Error::Api(status))) if status.code == 404 => Fetched::Failed(status.message),
            Ok(Err(error)) => failed(&error, "get", &format!("{pods}/log")),
            Err(_) => Fetched::Failed(self.timed_out()),
        }
    }

    fn timed_out(&self) -> String {
        format!("no response within {:?}", self.timeout)
    }
}

/// Runs `futures`, at most [`PARALLEL`] at a time, and returns their results in any order.
async fn run_parallel<T, F>(futures: Vec<F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut results = Vec::with_capacity(futures.len());
    let mut running = JoinSet::new();
    for future in futures {
        if running.len() >= PARALLEL
            && let Some(Ok(result)) = running.join_next().await
        {
            results.push(result);
        }
        running.spawn(future);
    }
    while let Some(finished) = running.join_next().await {
        results.extend(finished.ok());
    }
    results
}

/// Removes what no reader uses and what makes up most of the bytes of many objects.
fn trimmed(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// Converts the error of a request for `path`.
fn failed<T>(error: &Error, verb: &str, path: &str) -> Fetched<T> {
    match error {
        Error::Api(status) if status.code == 403 => {
            Fetched::Forbidden(format!("{verb} {}", resource_of(path)))
        }
        Error::Api(status) if status.code == 404 => Fetched::NotServed(resource_of(path)),
        error => Fetched::Failed(error.to_string()),
    }
}

/// Returns the resource of a collection's URL path as RBAC names it, such as `nodemetrics.slo.koordinator.sh`.
fn resource_of(path: &str) -> String {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts[..] {
        ["api", _, ref rest @ ..] => ("", rest),
        ["apis", group, _, ref rest @ ..] => (group, rest),
        _ => return path.to_owned(),
    };
    let (resource, namespace) = match rest {
        ["namespaces", namespace, resource @ ..] if !resource.is_empty() => {
            (resource.join("/"), Some(namespace))
        }
        resource => (resource.join("/"), None),
    };
    let dot = if group.is_empty() { "" } else { "." };
    let within = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
    format!("{resource}{dot}{group}{within}")
}

/// Returns the text at a JSON pointer; empty if there is none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the integer at a JSON pointer.
pub(crate) fn integer(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// Returns the elements at a JSON pointer; none if there is no list.
pub(crate) fn elements<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Returns the name of an object.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Returns `NAMESPACE/NAME` of an object, or its name if it has no namespace.
pub(crate) fn full_name(object: &Value) -> String {
    match text(object, "/metadata/namespace") {
        "" => name(object).to_owned(),
        namespace => format!("{namespace}/{}", name(object)),
    }
}

/// Returns the value of a label; empty if it is missing.
pub(crate) fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    let labels = object.pointer("/metadata/labels");
    labels
        .and_then(|labels| labels.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns whether the object's condition `kind` has status True.
pub(crate) fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = elements(object, "/status/conditions");
    conditions
        .iter()
        .any(|condition| condition["type"] == kind && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn path_gives_resource_and_group() {
        for (path, resource) in [
            ("/api/v1/pods", "pods"),
            ("/api/v1/namespaces/a/pods", "pods in namespace a"),
            ("/api/v1/namespaces", "namespaces"),
            ("/api/v1/nodes/proxy", "nodes/proxy"),
            (
                "/apis/slo.koordinator.sh/v1alpha1/nodemetrics",
                "nodemetrics.slo.koordinator.sh",
            ),
            ("/apis", "/apis"),
        ] {
            assert_eq!(resource_of(path), resource, "{path}");
        }
    }

    #[test]
    fn missing_fields_read_as_empty() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"x": 1}});
        assert_eq!(full_name(&object), "a");
        assert_eq!(label(&object, "koord-app"), "");
        assert_eq!(text(&object, "/spec/x"), "");
        assert_eq!(integer(&object, "/spec/x"), Some(1));
        assert!(elements(&object, "/spec").is_empty());
        assert!(!has_condition(&object, "Ready"));
    }
}
