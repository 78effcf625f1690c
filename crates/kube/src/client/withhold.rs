//! A client whose writes are not sent but answered here, as if they had been made.

use super::read_only::is_write;
use super::resource_path::ResourcePath;
use super::transport::{HttpResponse, Sender, through};
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::{BoxError, ServiceExt as _};

/// A write that was not sent.
#[derive(Debug, Clone, PartialEq)]
pub struct WithheldWrite {
    /// HTTP method.
    pub method: Method,
    /// Path of the request.
    pub path: String,
    /// The object as the API server has it; `None` if it does not exist.
    pub before: Option<Value>,
    /// The object as the write would have left it; `None` if it would have been deleted. Defaults and webhooks
    /// are not applied, and lists of a strategic merge patch replace the old ones.
    pub after: Option<Value>,
}

/// Returns a client that sends requests which change nothing through `client`. Other requests are passed to
/// `observe`, and answered with the object that they would have written.
#[must_use]
pub fn withhold_writes(
    client: kube::Client,
    observe: impl Fn(WithheldWrite) + Send + Sync + 'static,
) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let sender: Sender = through(client);
    let observe: Arc<dyn Fn(WithheldWrite) + Send + Sync> = Arc::new(observe);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (sender, observe) = (sender.clone(), observe.clone());
        let answered: BoxFuture<'static, Result<HttpResponse, BoxError>> = Box::pin(async move {
            if is_write(&request) {
                withhold(sender, &*observe, request).await
            } else {
                sender.oneshot(request).await
            }
        });
        answered
    });
    kube::Client::new(service, namespace)
}

/// Reads the object of a write, applies the write to it in memory, and answers.
async fn withhold(
    sender: Sender,
    observe: &(dyn Fn(WithheldWrite) + Send + Sync),
    request: Request<Body>,
) -> Result<HttpResponse, BoxError> {
    let (head, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let document: Value = match body.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(&body)?,
    };
    let path = head.uri.path().to_owned();
    let before = match head.method {
        Method::POST => None,
        _ => {
            let object = ResourcePath::parse(&path);
            let Some((object, name)) = object.and_then(|object| Some((object, object.name?)))
            else {
                return answer(StatusCode::NOT_FOUND, &not_found(&path));
            };
            match read(sender, &object.collection(), name).await? {
                Ok(before) => Some(before),
                Err(missing) => return Ok(missing),
            }
        }
    };
    let after = match head.method {
        Method::DELETE => None,
        Method::PATCH => {
            let kind = head.headers.get(header::CONTENT_TYPE);
            let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            let mut after = before.clone().unwrap_or_default();
            if kind == "application/json-patch+json" {
                let patch: json_patch::Patch = serde_json::from_value(document)?;
                json_patch::patch(&mut after, &patch)?;
            } else {
                json_patch::merge(&mut after, &document);
            }
            Some(after)
        }
        _ => Some(document),
    };
    let answer = after
        .clone()
        .unwrap_or_else(|| json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
    observe(WithheldWrite {
        method: head.method,
        path,
        before,
        after,
    });
    self::answer(StatusCode::OK, &answer)
}

fn answer(code: StatusCode, object: &Value) -> Result<HttpResponse, BoxError> {
    let response = Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(serde_json::to_vec(object)?))?;
    Ok(response.map(BodyExt::boxed_unsync))
}

/// Returns the status of a request for an object that does not exist.
fn not_found(path: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
        "reason": "NotFound", "message": format!("{path} not found")})
}

/// Reads an object, by a list of one: who watches a kind may list it, but often may not get it. The inner error is
/// the API server's response.
async fn read(
    sender: Sender,
    collection: &str,
    name: &str,
) -> Result<Result<Value, HttpResponse>, BoxError> {
    let path = format!("{collection}/{name}");
    let listed = format!("{collection}?fieldSelector=metadata.name%3D{name}");
    let mut list = match get(sender.clone(), &listed).await? {
        Ok(list) => list,
        Err(refused) if refused.status() == StatusCode::FORBIDDEN => {
            return get(sender, &path).await;
        }
        Err(refused) => return Ok(Err(refused)),
    };
    let items = list["items"].as_array_mut().map(std::mem::take);
    let named = |item: &Value| item["metadata"]["name"] == name;
    let Some(mut object) = items.into_iter().flatten().find(named) else {
        return Ok(Err(answer(StatusCode::NOT_FOUND, &not_found(&path))?));
    };
    // Items of a list have no type of their own.
    let kind = list["kind"]
        .as_str()
        .and_then(|kind| kind.strip_suffix("List"));
    object["kind"] = json!(kind);
    object["apiVersion"] = list["apiVersion"].take();
    Ok(Ok(object))
}

/// Sends a GET request and parses the answer. The inner error is the API server's response.
async fn get(sender: Sender, path: &str) -> Result<Result<Value, HttpResponse>, BoxError> {
    let response = sender
        .oneshot(Request::get(path).body(Body::empty())?)
        .await?;
    if !response.status().is_success() {
        return Ok(Err(response));
    }
    let body = response.into_body().collect().await?.to_bytes();
    Ok(Ok(serde_json::from_slice(&body)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::in_process;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::Api;
    use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
    use parking_lot::Mutex;

    #[tokio::test]
    async fn writes_are_answered_as_if_made() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let log = sent.clone();
        let server = in_process(tower::service_fn(move |request: Request<Body>| {
            log.lock()
                .push(format!("{} {}", request.method(), request.uri()));
            async move {
                let node = json!({"metadata": {"name": "n"},
                    "status": {"allocatable": {"cpu": "4", "batch": "1"}}});
                let query = request.uri().query().unwrap_or_default();
                let items = if query.ends_with("%3Dn") {
                    vec![node]
                } else {
                    vec![]
                };
                let (code, body) = match request.uri().path() {
                    "/api/v1/nodes" => (
                        200,
                        json!({"apiVersion": "v1", "kind": "NodeList", "items": items}),
                    ),
                    "/api/v1/pods/p" => (
                        200,
                        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}),
                    ),
                    _ => (
                        403,
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                            "code": 403, "reason": "Forbidden", "message": "no"}),
                    ),
                };
                let body = Body::from(serde_json::to_vec(&body).unwrap());
                Ok::<_, BoxError>(Response::builder().status(code).body(body).unwrap())
            }
        }));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let writes = seen.clone();
        let client = withhold_writes(server, move |write| writes.lock().push(write));
        let nodes: Api<Node> = Api::all(client.clone());
        let patch = json!({"status": {"allocatable": {"batch": "2", "cpu": null}}});
        let patched = nodes
            .patch_status("n", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
        let allocatable = patched.status.unwrap().allocatable.unwrap();
        assert_eq!((allocatable.len(), &*allocatable["batch"].0), (1, "2"));
        let missing = nodes
            .patch("m", &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        assert!(crate::patch::is_not_found(&missing.unwrap_err()));
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "x"}})).unwrap();
        let created = nodes.create(&PostParams::default(), &node).await.unwrap();
        assert_eq!(created.metadata.name.as_deref(), Some("x"));
        nodes.delete("n", &DeleteParams::default()).await.unwrap();
        // The name of an object may be that of a subresource.
        nodes
            .patch_status("status", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap_err();
        nodes
            .delete("status", &DeleteParams::default())
            .await
            .unwrap_err();
        // What may be read but not listed.
        let pods: Api<Pod> = Api::all(client);
        pods.delete("p", &DeleteParams::default()).await.unwrap();
        let list = |name: &str| format!("GET /api/v1/nodes?fieldSelector=metadata.name%3D{name}");
        let mut expected = ["n", "m", "n", "status", "status"].map(list).to_vec();
        expected.push("GET /api/v1/pods?fieldSelector=metadata.name%3Dp".to_owned());
        expected.push("GET /api/v1/pods/p".to_owned());
        assert_eq!(*sent.lock(), expected);
        let seen = seen.lock();
        let methods: Vec<&str> = seen.iter().map(|write| write.method.as_str()).collect();
        assert_eq!(methods, ["PATCH", "POST", "DELETE", "DELETE"]);
        assert_eq!(seen[0].path, "/api/v1/nodes/n/status");
        let amount = |object: &Option<Value>| {
            object.as_ref().unwrap()["status"]["allocatable"]["batch"].clone()
        };
        assert_eq!(amount(&seen[0].before), "1");
        assert_eq!(amount(&seen[0].after), "2");
        assert!(seen[1].before.is_none() && seen[2].after.is_none());
    }
}
