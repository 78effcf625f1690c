//! A client that changes nothing, for dry runs.

use super::resource_path::ResourcePath;
use super::transport::{Sender, through};
use http::{Method, Request};
use kube::client::Body;
use tower::{BoxError, ServiceExt as _};

/// A request that was not sent because it would have changed something.
#[derive(Debug, thiserror::Error)]
#[error("dry run: {method} {path} not sent")]
pub struct NotSent {
    /// Method of the request.
    pub method: Method,
    /// Path of the request.
    pub path: String,
}

/// Groups and resources that are created only to get a response: the API server stores none of them.
const REVIEWS: [(&str, &str); 4] = [
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
];

/// Returns whether the request may change an object.
pub(super) fn is_write<B>(request: &Request<B>) -> bool {
    match *request.method() {
        Method::GET | Method::HEAD | Method::OPTIONS => false,
        Method::POST => {
            let path = ResourcePath::parse(request.uri().path());
            !path.is_some_and(|path| {
                path.name.is_none() && REVIEWS.contains(&(path.group, path.resource))
            })
        }
        _ => true,
    }
}

/// Returns a client that sends the requests which change nothing through `client`, and fails all others with
/// [`NotSent`].
#[must_use]
pub fn read_only(client: kube::Client) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let sender: Sender = through(client);
    let service = tower::service_fn(move |request: Request<Body>| {
        let sender = sender.clone();
        async move {
            if is_write(&request) {
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                return Err(BoxError::from(NotSent { method, path }));
            }
            sender.oneshot(request).await
        }
    });
    kube::Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::in_process;
    use http::Response;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn writes_are_not_sent() {
        let sent = Arc::new(AtomicU32::new(0));
        let count = sent.clone();
        let server = in_process(tower::service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, BoxError>(Response::new(Body::empty())) }
        }));
        let client = read_only(server);
        for (method, path, is_sent) in [
            (Method::GET, "/api/v1/nodes", true),
            (
                Method::POST,
                "/apis/authentication.k8s.io/v1/tokenreviews",
                true,
            ),
            (
                Method::POST,
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                true,
            ),
            (
                Method::POST,
                "/apis/authorization.k8s.io/v1/namespaces/n/localsubjectaccessreviews",
                true,
            ),
            (Method::POST, "/apis/example.com/v1/tokenreviews", false),
            (
                Method::POST,
                "/api/v1/namespaces/n/pods/tokenreviews",
                false,
            ),
            (Method::POST, "/api/v1/namespaces/n/events", false),
            (Method::POST, "/api/v1/namespaces/n/pods/p/eviction", false),
            (Method::PATCH, "/api/v1/nodes/n/status", false),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/n/leases/l",
                false,
            ),
            (Method::DELETE, "/api/v1/namespaces/n/pods/p", false),
        ] {
            sent.store(0, Ordering::SeqCst);
            let request = Request::builder().method(method.clone()).uri(path);
            let result = client.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!(result.is_ok(), is_sent, "{method} {path}");
            assert_eq!(
                sent.load(Ordering::SeqCst),
                u32::from(is_sent),
                "{method} {path}"
            );
            if let Err(error) = result {
                let text = format!("{error:?}");
                assert!(text.contains("NotSent"), "{text}");
            }
        }
    }
}
