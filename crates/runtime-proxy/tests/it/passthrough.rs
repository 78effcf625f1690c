//! Tests of calls that are passed through unchanged.

use crate::world::{Body, GrpcClient, TestEnv, frame, record_call, reply, serve, trailers};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Returns the full path of every method of the CRI.
pub(crate) fn methods() -> Vec<String> {
    let mut methods = Vec::new();
    let mut service = "";
    for line in include_str!("../../../rpc/proto/cri.proto").lines() {
        let mut tokens = line.split([' ', '(']).filter(|word| !word.is_empty());
        match (tokens.next(), tokens.next()) {
            (Some("service"), Some(name)) => service = name,
            (Some("rpc"), Some(name)) => methods.push(format!("/runtime.v1.{service}/{name}")),
            _ => {}
        }
    }
    methods
}

/// Field 9999 with a text, a group of number 777 with a number in it, and 64 fixed bits.
pub(crate) const UNKNOWN: &[u8] = &[
    0xfa, 0xf0, 0x04, 3, b'n', b'e', b'w', // 9999: "new"
    0xcb, 0x30, 0x08, 0x05, 0xcc, 0x30, // 777 { 1: 5 }
    0xf9, 0xf0, 0x04, 1, 2, 3, 4, 5, 6, 7, 8, // 9999: fixed64
];

#[tokio::test]
async fn every_method_has_the_bytes_it_had() {
    let world = TestEnv::new();
    let answered = frame(&[b"\x0a\x02id".as_slice(), UNKNOWN].concat());
    let answer = answered.clone();
    let (_runtime, recorded) = world.runtime(move |_, _| reply(answer.clone(), "0"));
    let _proxy = world.proxy().await;
    let direct = GrpcClient::connect(&world.options.runtime).await;
    let through = GrpcClient::connect(&world.options.listen).await;
    let mut paths = methods();
    assert_eq!(paths.len(), 43, "{paths:?}");
    paths.extend(
        [
            "/runtime.v1.RuntimeService/FromTheFuture",
            "/runtime.v1alpha2.RuntimeService/Version2",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ]
        .map(str::to_owned),
    );
    // Nothing that a definition has, an id and more, and what is no message at all.
    let id = [b"\x0a\x02id".as_slice(), UNKNOWN].concat();
    for message in [
        Bytes::new(),
        UNKNOWN.into(),
        id.into(),
        vec![0xff; 100].into(),
    ] {
        let body = frame(&message);
        for path in paths.iter().filter(|path| !path.ends_with("/Version")) {
            let expected = direct.call(path, body.clone()).await;
            let got = through.call(path, body.clone()).await;
            assert_eq!(got, expected, "{path}");
            let recorded = std::mem::take(&mut *recorded.lock());
            assert_eq!(recorded[0], recorded[1], "{path}");
            assert_eq!(recorded[1].body, body);
            assert_eq!(got.body, answered);
        }
    }
}

#[tokio::test]
async fn failures_of_the_runtime_are_the_kubelets() {
    let world = TestEnv::new();
    let (_runtime, _) = world.runtime(|path, _| {
        let mut response = reply(Bytes::new(), "0");
        *response.body_mut() = if path.ends_with('3') {
            let last = Frame::trailers(trailers("5"));
            BodyExt::boxed_unsync(StreamBody::new(futures::stream::iter([Ok(last)])))
        } else {
            // Headers alone.
            response
                .headers_mut()
                .insert("grpc-status", HeaderValue::from_static("9"));
            let text = HeaderValue::from_static("na%C3%AFve");
            response.headers_mut().insert("grpc-message", text);
            Body::default()
        };
        response
    });
    let proxy = world.proxy().await;
    let direct = GrpcClient::connect(&world.options.runtime).await;
    let through = GrpcClient::connect(&world.options.listen).await;
    for path in [
        "/runtime.v1.RuntimeService/RunPodSandbox",
        "/runtime.v1.RuntimeService/Status",
        "/runtime.v1.RuntimeService/Status3",
    ] {
        let expected = direct.call(path, frame(&[])).await;
        assert_ne!(expected.status().0, "0");
        assert_eq!(through.call(path, frame(&[])).await, expected, "{path}");
    }
    proxy.assert_metrics(&[
        r#"calls_total{method="RunPodSandbox",result="error"} 1"#,
        r#"calls_total{method="Status",result="error"} 1"#,
        r#"calls_total{method="other",result="error"} 1"#,
    ]);
}

/// Sends back what comes, frame by frame.
fn echo(world: &TestEnv) -> crate::world::ServerTask {
    let handler = Arc::new(|request: http::Request<hyper::body::Incoming>| {
        let answer: futures::future::BoxFuture<'static, Response<Body>> = Box::pin(async move {
            if request.uri().path().ends_with("/Version") {
                record_call(request).await;
                return reply(frame(&[]), "0");
            }
            let mut answer = Response::new(BodyExt::boxed_unsync(request.into_body()));
            let kind = HeaderValue::from_static("application/grpc");
            answer.headers_mut().insert("content-type", kind);
            answer
        });
        answer
    });
    serve(&world.options.runtime, handler)
}

#[tokio::test]
async fn streams_pass_in_both_directions_at_once() {
    let world = TestEnv::new();
    let _runtime = echo(&world);
    let _proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    let (send, frames) = mpsc::unbounded_channel();
    let body = StreamBody::new(UnboundedReceiverStream::new(frames));
    let request = GrpcClient::request("/runtime.v1.RuntimeService/GetContainerEvents")
        .body(BodyExt::boxed_unsync(body))
        .unwrap();
    let mut answer = client.send(request).await.unwrap().into_body();
    for text in ["one", "two", "three"] {
        send.send(Ok(Frame::data(frame(text.as_bytes())))).unwrap();
        let frame = answer.frame().await.unwrap().unwrap();
        assert_eq!(&frame.into_data().unwrap()[5..], text.as_bytes());
    }
    let mut last = HeaderMap::new();
    last.insert("grpc-status", HeaderValue::from_static("0"));
    last.insert("x-bin", HeaderValue::from_bytes(b"\xc3\xa9").unwrap());
    send.send(Ok(Frame::trailers(last.clone()))).unwrap();
    drop(send);
    let frame = answer.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_trailers().unwrap(), last);
    assert!(answer.frame().await.is_none());
}

#[tokio::test]
async fn messages_of_16_mib_pass() {
    let world = TestEnv::new();
    let (_runtime, recorded) = world.runtime(|_, body| reply(body.clone(), "0"));
    let _proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    let mut message = vec![0x92, 0x03, 0xf5, 0xff, 0xff, 0x07];
    message.resize(16 << 20, b'a');
    let body = frame(&message);
    for method in ["ListContainers", "CreateContainer"] {
        let path = format!("/runtime.v1.RuntimeService/{method}");
        let got = client.call(&path, body.clone()).await;
        assert_eq!(got.body, body, "{method}");
    }
    assert_eq!(recorded.lock().len(), 2);
    // One byte more, of a call that is read, is more than a kubelet sends or a runtime takes.
    message.push(b'a');
    let path = "/runtime.v1.RuntimeService/CreateContainer";
    let got = client.call(path, frame(&message)).await;
    let (code, text) = got.status();
    assert_eq!(code, "8");
    assert!(text.contains("larger than 16777216 bytes"), "{text}");
    assert_eq!(recorded.lock().len(), 2);
}

#[tokio::test]
async fn a_call_that_the_kubelet_gives_up_ends_at_the_runtime() {
    let world = TestEnv::new();
    let (gone, mut is_gone) = mpsc::unbounded_channel::<()>();
    let (came, mut has_come) = mpsc::unbounded_channel::<()>();
    let handler = Arc::new(move |request: http::Request<hyper::body::Incoming>| {
        let (came, gone) = (came.clone(), gone.clone());
        let answer: futures::future::BoxFuture<'static, Response<Body>> = Box::pin(async move {
            if record_call(request).await.path.ends_with("/Version") {
                return reply(frame(&[]), "0");
            }
            // Dropped when the call is reset.
            let _gone = scopeguard(gone);
            came.send(()).unwrap();
            std::future::pending().await
        });
        answer
    });
    let _runtime = serve(&world.options.runtime, handler);
    let proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    for path in [
        "/runtime.v1.RuntimeService/ExecSync",
        "/runtime.v1.RuntimeService/CreateContainer",
    ] {
        tokio::select! {
            got = client.call(path, frame(&[])) => panic!("{got:?}"),
            _ = has_come.recv() => {}
        }
        is_gone.recv().await.unwrap();
    }
    proxy.assert_metrics(&[
        r#"calls_total{method="CreateContainer",result="aborted"} 1"#,
        r#"calls_total{method="ExecSync",result="aborted"} 1"#,
    ]);
}

struct Guard(mpsc::UnboundedSender<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

fn scopeguard(gone: mpsc::UnboundedSender<()>) -> Guard {
    Guard(gone)
}

#[tokio::test]
async fn a_runtime_that_is_away_is_unavailable_until_it_is_back() {
    let world = TestEnv::new();
    let (runtime, _) = world.runtime(|_, _| reply(frame(b""), "0"));
    let proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    let path = "/runtime.v1.RuntimeService/Status";
    assert_eq!(client.call(path, frame(&[])).await.status().0, "0");
    proxy.assert_metrics(&[r#"calls_total{method="Status",result="success"} 1"#]);
    drop(runtime);
    std::fs::remove_file(&world.options.runtime).unwrap();
    loop {
        // The connection breaks when the fake's task is gone.
        let (code, text) = client.call(path, frame(&[])).await.status();
        if code != "0" {
            assert_eq!(code, "14");
            assert!(text.contains("runtime.sock"), "{text}");
            proxy.assert_metrics(&[r#"calls_total{method="Status",result="unavailable"} 1"#]);
            break;
        }
    }
    let (_runtime, _) = world.runtime(|_, _| reply(frame(b""), "0"));
    assert_eq!(client.call(path, frame(&[])).await.status().0, "0");
}

#[tokio::test]
async fn without_a_runtime_the_proxy_ends() {
    let world = TestEnv::new();
    let error = world.proxy_with(world.options.clone()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("runtime.sock") && text.contains("CRI v1"),
        "{text}"
    );
    assert!(!world.options.listen.exists());
}

#[tokio::test]
async fn calls_in_progress_are_finished_when_the_proxy_stops() {
    let world = TestEnv::new();
    let (came, mut has_come) = mpsc::unbounded_channel::<()>();
    let go = Arc::new(tokio::sync::Notify::new());
    let gate = go.clone();
    let handler = Arc::new(move |request: http::Request<hyper::body::Incoming>| {
        let (came, gate) = (came.clone(), gate.clone());
        let answer: futures::future::BoxFuture<'static, Response<Body>> = Box::pin(async move {
            let path = record_call(request).await.path;
            if path.ends_with("/Version") {
                return reply(frame(&[]), "0");
            }
            if path.ends_with("/GetContainerEvents") {
                let body = StreamBody::new(futures::stream::pending());
                return Response::new(BodyExt::boxed_unsync(body));
            }
            came.send(()).unwrap();
            gate.notified().await;
            reply(frame(b"\x0a\x02id"), "0")
        });
        answer
    });
    let _runtime = serve(&world.options.runtime, handler);
    let proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    let events = client.call("/runtime.v1.RuntimeService/GetContainerEvents", frame(&[]));
    let run = client.call("/runtime.v1.RuntimeService/RunPodSandbox", frame(&[]));
    let stop = async {
        has_come.recv().await.unwrap();
        proxy.context.shutdown.cancel();
        // Nobody else can come, but who is here is served.
        while world.options.listen.exists() {
            tokio::task::yield_now().await;
        }
        go.notify_one();
    };
    let (events, run, ()) = tokio::join!(events, run, stop);
    assert_eq!(run.status().0, "0");
    assert_eq!(run.body, frame(b"\x0a\x02id"));
    // What never ends by itself is ended, as by a server that restarts.
    assert_eq!(events.status().0, "14");
    proxy.running.await.unwrap().unwrap();
}

/// Before the first event containerd sends nothing, not even headers.
#[tokio::test(start_paused = true)]
async fn waiting_event_stream_does_not_delay_shutdown() {
    let world = TestEnv::new();
    let handler = Arc::new(|request: http::Request<hyper::body::Incoming>| {
        let answer: futures::future::BoxFuture<'static, Response<Body>> = Box::pin(async move {
            if record_call(request)
                .await
                .path
                .ends_with("/GetContainerEvents")
            {
                std::future::pending::<()>().await;
            }
            reply(frame(b""), "0")
        });
        answer
    });
    let _runtime = serve(&world.options.runtime, handler);
    let proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    let events = client.call("/runtime.v1.RuntimeService/GetContainerEvents", frame(b""));
    let stop = async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        proxy.context.shutdown.cancel();
        let stopped = tokio::time::Instant::now();
        proxy.running.await.unwrap().unwrap();
        assert!(stopped.elapsed() < Duration::from_secs(3));
    };
    let (events, ()) = tokio::join!(events, stop);
    assert_eq!(events.status().0, "14");
}

/// Verifies a client that is connected and about to call. If it were refused first, its call would be lost
/// unless it retries elsewhere.
#[tokio::test(start_paused = true)]
async fn connected_client_can_call_once_during_shutdown() {
    let world = TestEnv::new();
    let (_runtime, _) = world.runtime(|_, _| reply(frame(b""), "0"));
    let proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    let _silent = GrpcClient::connect(&world.options.listen).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stopped = tokio::time::Instant::now();
    proxy.context.shutdown.cancel();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let got = client.try_call("/runtime.v1.RuntimeService/Status", frame(b""));
    assert_eq!(got.await.unwrap().status().0, "0");
    // Whoever calls again, or not at all, is not waited for much longer.
    let second = client.try_call("/runtime.v1.RuntimeService/Status", frame(b""));
    assert!(second.await.is_err());
    proxy.running.await.unwrap().unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(3));
}

/// Sends the bytes that grpc-go sends when it dials a path: no HTTP/2 library sends such an authority.
#[tokio::test]
async fn a_client_that_dials_a_bare_path_is_served() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let world = TestEnv::new();
    let (_runtime, recorded) = world.runtime(|_, _| reply(frame(b""), "0"));
    let _proxy = world.proxy().await;
    let mut stream = tokio::net::UnixStream::connect(&world.options.listen)
        .await
        .unwrap();
    // POST, http, then path, authority, content-type and te spelled out.
    let mut block = vec![0x83, 0x86];
    for (name, value) in [
        (&[0x04_u8][..], "/runtime.v1.RuntimeService/Status"),
        (&[0x01], "/run/proxy.sock"),
        (&[0x0f, 0x10], "application/grpc"),
        (&[0x00, 2, b't', b'e'], "trailers"),
    ] {
        block.extend(name);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend(value.as_bytes());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend([0, 0, u8::try_from(block.len()).unwrap(), 1, 4, 0, 0, 0, 1]);
    bytes.extend(block);
    bytes.extend([0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    stream.write_all(&bytes).await.unwrap();
    let kind = loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        if head[8] == 1 && head[3] != 8 {
            break head[3];
        }
    };
    assert_eq!(kind, 1, "headers, and not a reset");
    assert_eq!(recorded.lock()[0].path, "/runtime.v1.RuntimeService/Status");
}
