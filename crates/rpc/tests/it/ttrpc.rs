//! Calls over ttrpc, against a peer with hand-written bytes, and against the implementation itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use koord_rpc::ttrpc::{Answer, Client, Code, Error, Incoming, Options, Server, Service, Status};
use prost::Message;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::wire::{self, Request, Response, Text, frame, text};

const LIMIT: usize = 4 << 20;

/// A service: `Echo` answers its input, `Large` as many bytes as its text is a number, `Hang` never, `Panic`
/// panics, `Told` with the metadata of the request.
#[derive(Default)]
struct Sample {
    hanging: Arc<Notify>,
    dropped: Arc<AtomicBool>,
}

struct Dropped(Arc<AtomicBool>);
impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Service for Sample {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn call(&self, call: Incoming) -> Answer {
        let (hanging, dropped) = (Arc::clone(&self.hanging), Arc::clone(&self.dropped));
        Box::pin(async move {
            match call.method.as_str() {
                "Echo" => Ok(call.payload.to_vec()),
                "Large" => {
                    let request_text = Text::decode(call.payload).unwrap().text;
                    Ok(text(request_text.parse().unwrap()).encode_to_vec())
                }
                "Hang" => {
                    let _dropped = Dropped(dropped);
                    hanging.notify_one();
                    std::future::pending().await
                }
                "Panic" => panic!("on purpose"),
                "Told" => {
                    let text = format!("{:?} {:?}", call.context.timeout, call.context.metadata);
                    Ok(Text { text }.encode_to_vec())
                }
                _ => Err(Status::new(Code::Unimplemented, "no such method")),
            }
        })
    }
}

fn serve(service: Sample) -> (DuplexStream, JoinHandle<Result<(), Error>>) {
    let (near, far) = duplex(1 << 16);
    let server = Server::default().with(service);
    (near, tokio::spawn(async move { server.serve(far).await }))
}

fn connected() -> Client {
    Client::new(serve(Sample::default()).0)
}

async fn call(client: &Client, method: &str, request: &Text) -> Result<Text, Error> {
    client
        .call("sample", method, request, &Options::default())
        .await
}

fn code(answer: Result<Text, Error>) -> Code {
    match answer {
        Err(Error::Status(status)) => status.code,
        other => panic!("not a status: {other:?}"),
    }
}

#[tokio::test]
async fn messages_of_any_size_get_a_response() {
    let client = connected();
    // The largest message leaves room for the request around it.
    for size in [0, 1, 10, 4086, 4087, 5000, 60_000, LIMIT - 64] {
        let request = text(size);
        assert!(
            call(&client, "Echo", &request).await.unwrap() == request,
            "{size}"
        );
    }
}

#[tokio::test]
async fn unknown_method_is_unimplemented() {
    let client = connected();
    assert_eq!(
        code(call(&client, "Other", &text(1)).await),
        Code::Unimplemented
    );
    let elsewhere = client
        .call("other", "Echo", &text(1), &Options::default())
        .await;
    assert_eq!(code(elsewhere), Code::Unimplemented);
}

#[tokio::test]
async fn oversized_request_is_refused_and_keeps_the_connection() {
    let (mut peer, _server) = serve(Sample::default());
    let bytes = frame(1, wire::REQUEST, &vec![7; LIMIT + 1]);
    peer.write_all(&bytes).await.unwrap();
    assert_eq!(
        wire::code_of(&mut peer, 1).await,
        Code::ResourceExhausted as i32
    );
    let sound = wire::request("sample", "Echo", &text(5));
    assert_eq!(wire::code(&mut peer, 3, &sound).await, 0);

    // The client does not even send it.
    let client = connected();
    let error = call(&client, "Echo", &text(LIMIT)).await.unwrap_err();
    assert!(
        matches!(error, Error::Oversized { limit: LIMIT, .. }),
        "{error}"
    );
    assert_eq!(call(&client, "Echo", &text(5)).await.unwrap(), text(5));
}

#[tokio::test]
async fn oversized_response_becomes_a_status_and_keeps_the_connection() {
    let client = connected();
    let request = Text {
        text: LIMIT.to_string(),
    };
    assert_eq!(
        code(call(&client, "Large", &request).await),
        Code::ResourceExhausted
    );
    assert_eq!(call(&client, "Echo", &text(5)).await.unwrap(), text(5));

    // A server that sends it nevertheless.
    let (near, mut peer) = duplex(1 << 16);
    let client = Client::new(near);
    let calls = async {
        let error = call(&client, "Echo", &text(1)).await.unwrap_err();
        assert!(
            matches!(error, Error::Oversized { length, .. } if length == LIMIT + 1),
            "{error}"
        );
        call(&client, "Echo", &text(1)).await.unwrap()
    };
    let server = async {
        let (stream, _, _) = wire::receive(&mut peer).await;
        peer.write_all(&frame(stream, wire::RESPONSE, &vec![7; LIMIT + 1]))
            .await
            .unwrap();
        let (stream, _, _) = wire::receive(&mut peer).await;
        peer.write_all(&frame(stream, wire::RESPONSE, &[]))
            .await
            .unwrap();
    };
    let (answer, ()) = tokio::join!(calls, server);
    assert_eq!(answer, text(0));
}

#[tokio::test]
async fn streams_are_odd_and_grow() {
    let (mut peer, _server) = serve(Sample::default());
    let echo = wire::request("sample", "Echo", &text(1));
    let invalid = Code::InvalidArgument as i32;
    assert_eq!(wire::code(&mut peer, 3, &echo).await, 0);
    assert_eq!(wire::code(&mut peer, 3, &echo).await, invalid, "used again");
    assert_eq!(wire::code(&mut peer, 1, &echo).await, invalid, "smaller");
    assert_eq!(wire::code(&mut peer, 4, &echo).await, invalid, "even");
    assert_eq!(wire::code(&mut peer, 5, &echo).await, 0);
    // Streaming calls, invalid frames, and extensions of later versions.
    peer.write_all(&frame(7, wire::DATA, b"x")).await.unwrap();
    assert_eq!(wire::code_of(&mut peer, 7).await, invalid);
    peer.write_all(&frame(9, wire::REQUEST, &[0xff; 3]))
        .await
        .unwrap();
    assert_eq!(wire::code_of(&mut peer, 9).await, invalid);
    peer.write_all(&frame(11, 9, b"new")).await.unwrap();
    assert_eq!(wire::code(&mut peer, 11, &echo).await, 0);
}

#[tokio::test]
async fn client_stream_ids_are_odd_and_increase() {
    let (near, mut peer) = duplex(1 << 16);
    let client = Client::new(near);
    let calls = futures::future::join_all((0..50).map(|_| async {
        call(&client, "Echo", &text(3)).await.unwrap();
    }));
    let server = async {
        for i in 0..50 {
            let (stream, kind, message) = wire::receive(&mut peer).await;
            assert_eq!((stream, kind), (i * 2 + 1, wire::REQUEST));
            let request = Request::decode(message.as_slice()).unwrap();
            let response = Response {
                status: None,
                payload: request.payload,
            };
            let bytes = frame(stream, wire::RESPONSE, &response.encode_to_vec());
            peer.write_all(&bytes).await.unwrap();
        }
    };
    tokio::join!(calls, server);
}

#[tokio::test(start_paused = true)]
async fn timeout_and_metadata_are_sent() {
    let client = connected();
    let options = Options {
        timeout: Some(Duration::from_secs(2)),
        metadata: vec![("k".into(), "v".into()), ("k".into(), "w".into())],
    };
    let response: Text = client
        .call("sample", "Told", &text(0), &options)
        .await
        .unwrap();
    assert_eq!(response.text, r#"Some(2s) [("k", "v"), ("k", "w")]"#);
}

#[tokio::test(start_paused = true)]
async fn late_response_is_an_error_on_both_sides() {
    let client = connected();
    let options = Options::within(Duration::from_millis(1500));
    let begun = tokio::time::Instant::now();
    let result: Result<Text, _> = client.call("sample", "Hang", &text(0), &options).await;
    // Both timeouts expire together; either may be first.
    match result.unwrap_err() {
        Error::Timeout { method, limit } => {
            assert_eq!((method.as_str(), limit.as_millis()), ("sample/Hang", 1500));
        }
        Error::Status(status) => assert_eq!(status.code, Code::DeadlineExceeded),
        other => panic!("{other}"),
    }
    assert_eq!(begun.elapsed(), Duration::from_millis(1500));
    assert_eq!(call(&client, "Echo", &text(5)).await.unwrap(), text(5));

    // A caller that waits longer gets the server's error.
    let sample = Sample::default();
    let dropped = Arc::clone(&sample.dropped);
    let (mut peer, _server) = serve(sample);
    let mut hang = wire::request("sample", "Hang", &text(0));
    hang.timeout_nano = 1_999_999_999;
    assert_eq!(
        wire::code(&mut peer, 1, &hang).await,
        Code::DeadlineExceeded as i32
    );
    assert!(dropped.load(Ordering::SeqCst), "the handler goes on");
}

#[tokio::test]
async fn hanging_or_dropped_call_blocks_no_other() {
    let sample = Sample::default();
    let hanging = Arc::clone(&sample.hanging);
    let client = Client::new(serve(sample).0);
    let (waiting, asked) = (client.clone(), text(0));
    let hung = tokio::spawn(async move { call(&waiting, "Hang", &asked).await });
    hanging.notified().await;
    assert_eq!(call(&client, "Echo", &text(5)).await.unwrap(), text(5));
    hung.abort();
    assert!(hung.await.unwrap_err().is_cancelled());
    assert_eq!(call(&client, "Echo", &text(6)).await.unwrap(), text(6));
}

#[tokio::test]
async fn response_without_caller_is_dropped() {
    let (near, mut peer) = duplex(1 << 16);
    let client = Client::new(near);
    peer.write_all(&frame(77, wire::RESPONSE, &[]))
        .await
        .unwrap();
    let server = async {
        let (stream, _, _) = wire::receive(&mut peer).await;
        peer.write_all(&frame(stream, wire::RESPONSE, &[0xff]))
            .await
            .unwrap();
        let (stream, _, _) = wire::receive(&mut peer).await;
        peer.write_all(&frame(stream, wire::DATA, &[]))
            .await
            .unwrap();
        let (stream, _, _) = wire::receive(&mut peer).await;
        peer.write_all(&frame(stream, wire::RESPONSE, &[]))
            .await
            .unwrap();
    };
    let calls = async {
        let nonsense = call(&client, "Echo", &text(1)).await.unwrap_err();
        assert!(matches!(nonsense, Error::Malformed { .. }), "{nonsense}");
        let streaming = call(&client, "Echo", &text(1)).await.unwrap_err();
        assert!(matches!(streaming, Error::Malformed { .. }), "{streaming}");
        assert_eq!(call(&client, "Echo", &text(1)).await.unwrap(), text(0));
    };
    tokio::join!(calls, server);
}

#[tokio::test]
async fn panic_gets_a_response() {
    let client = connected();
    assert_eq!(code(call(&client, "Panic", &text(0)).await), Code::Internal);
    assert_eq!(call(&client, "Echo", &text(5)).await.unwrap(), text(5));
}

#[tokio::test]
async fn end_of_connection_ends_its_calls() {
    // The server is dropped.
    let (near, peer) = duplex(1 << 16);
    let client = Client::new(near);
    let (waiting, asked) = (client.clone(), text(0));
    let under_way = tokio::spawn(async move { call(&waiting, "Hang", &asked).await });
    tokio::task::yield_now().await;
    drop(peer);
    assert!(matches!(under_way.await.unwrap(), Err(Error::Closed(_))));
    assert!(matches!(client.closed().await, Error::Closed(_)));
    assert!(matches!(
        call(&client, "Echo", &text(0)).await,
        Err(Error::Closed(_))
    ));

    // The client is dropped: the server ends without an error, and its work is dropped.
    let sample = Sample::default();
    let (hanging, dropped) = (Arc::clone(&sample.hanging), Arc::clone(&sample.dropped));
    let (near, server) = serve(sample);
    let client = Client::new(near);
    let (waiting, asked) = (client.clone(), text(0));
    let under_way = tokio::spawn(async move { call(&waiting, "Hang", &asked).await });
    hanging.notified().await;
    client.close();
    assert!(matches!(under_way.await.unwrap(), Err(Error::Closed(_))));
    server.await.unwrap().unwrap();
    tokio::task::yield_now().await;
    assert!(
        dropped.load(Ordering::SeqCst),
        "a call goes on after its connection"
    );

    // Also when the last handle is dropped.
    let (near, server) = serve(Sample::default());
    drop(Client::new(near));
    server.await.unwrap().unwrap();
}
