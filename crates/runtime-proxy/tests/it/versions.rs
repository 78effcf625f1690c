//! Tests with runtimes and kubelets that use another version of the CRI.

use crate::hook_calls::{ALL, Hooks};
use crate::passthrough::UNKNOWN;
use crate::world::{
    Body, GrpcClient, RecordedCall, ServerTask, TestEnv, frame, record_call, reply, serve,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use koord_rpc::cri;
use parking_lot::Mutex;
use prost::Message as _;
use std::sync::Arc;

/// Starts a runtime that responds to every call, including Version, with `answer` of its path.
fn runtime(
    world: &TestEnv,
    answer: impl Fn(&str) -> Response<Body> + Send + Sync + 'static,
) -> (ServerTask, Arc<Mutex<Vec<RecordedCall>>>) {
    let recorded: Arc<Mutex<Vec<RecordedCall>>> = Arc::default();
    let (all, answer) = (recorded.clone(), Arc::new(answer));
    let handler = Arc::new(move |request: Request<Incoming>| {
        let (all, answer) = (all.clone(), answer.clone());
        let answer: BoxFuture<'static, Response<Body>> = Box::pin(async move {
            let recorded = record_call(request).await;
            let answer = answer(&recorded.path);
            all.lock().push(recorded);
            answer
        });
        answer
    });
    (serve(&world.options.runtime, handler), recorded)
}

/// Returns the response of a runtime with version 2 of the API, with new fields.
fn version() -> Bytes {
    let version = cri::VersionResponse {
        version: "0.2.0".to_owned(),
        runtime_name: "other".to_owned(),
        runtime_version: "9.9".to_owned(),
        runtime_api_version: "v2".to_owned(),
    };
    frame(&[&version.encode_to_vec()[..], UNKNOWN].concat())
}

/// Upstream's proxy does not decode the services of other versions either.
#[tokio::test]
async fn other_api_versions_pass_without_hooks() {
    let mut world = TestEnv::new();
    let (_runtime, recorded) = runtime(&world, |path| match path.ends_with("/Version") {
        true => reply(version(), "0"),
        false => reply(frame(b"\x0a\x02id"), "0"),
    });
    // Every call of this hook server would fail.
    let (hooks, socket) = (Hooks::failing(), world.path("koordlet.sock"));
    let _hooks = hooks.serve(&socket);
    world.register("koordlet.json", &socket, "Fail", &ALL);
    world.options.hook_timeout = std::time::Duration::from_secs(60);
    let _proxy = world.proxy().await;
    let direct = GrpcClient::connect(&world.options.runtime).await;
    let through = GrpcClient::connect(&world.options.listen).await;
    recorded.lock().clear();
    let request = cri::VersionRequest {
        version: "v2".to_owned(),
    };
    let mut calls = vec![(
        "/runtime.v1.RuntimeService/Version".to_owned(),
        frame(&request.encode_to_vec()),
    )];
    for service in [
        "runtime.v1alpha2.RuntimeService",
        "runtime.v2.RuntimeService",
        "runtime.v1.ImageService",
        "RuntimeService",
    ] {
        for method in [
            "Version",
            "RunPodSandbox",
            "StopPodSandbox",
            "RemovePodSandbox",
            "CreateContainer",
            "StartContainer",
            "UpdateContainerResources",
            "StopContainer",
            "RemoveContainer",
        ] {
            let message = [b"\x0a\x02id".as_slice(), UNKNOWN].concat();
            calls.push((format!("/{service}/{method}"), frame(&message)));
        }
    }
    for (path, body) in calls {
        let expected = direct.call(&path, body.clone()).await;
        assert_eq!(expected.status().0, "0", "{path}");
        assert_eq!(through.call(&path, body.clone()).await, expected, "{path}");
        let recorded = std::mem::take(&mut *recorded.lock());
        assert_eq!(recorded[0], recorded[1], "{path}");
        assert_eq!((&recorded[1].path, &recorded[1].body), (&path, &body));
    }
    assert_eq!(hooks.all(), []);
    // It would have been.
    let path = "/runtime.v1.RuntimeService/RunPodSandbox";
    assert_eq!(through.call(path, frame(b"")).await.status().0, "2");
    assert_eq!(hooks.all().len(), 1);
}

#[tokio::test]
async fn a_runtime_of_an_older_version_only_is_refused_at_the_start() {
    let world = TestEnv::new();
    let (_runtime, recorded) = runtime(&world, |path| {
        if path.starts_with("/runtime.v1alpha2.") {
            return reply(version(), "0");
        }
        let mut response = Response::new(Body::default());
        let headers = response.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static("12"));
        let text = HeaderValue::from_static("unknown service runtime.v1.RuntimeService");
        headers.insert("grpc-message", text);
        response
    });
    let error = world.proxy_with(world.options.clone()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(
            "runtime.sock does not answer requests of the CRI v1: unknown service runtime.v1"
        ),
        "{text}"
    );
    assert!(!world.options.listen.exists());
    assert_eq!(
        recorded.lock()[0].path,
        "/runtime.v1.RuntimeService/Version"
    );
}
