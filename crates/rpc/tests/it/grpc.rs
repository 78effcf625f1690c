//! gRPC over unix sockets: large messages, any `:authority`, bytes as they are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use koord_rpc::grpc::{Filter, MESSAGE_LIMIT, Raw, connect, incoming, listen};
use koord_rpc::podresources as api;
use koord_rpc::podresources::pod_resources_lister_client::PodResourcesListerClient;
use koord_rpc::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use proptest::prelude::*;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

/// A service that answers `Get` with a pod of the requested name and namespace.
struct Kubelet;

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<api::ListPodResourcesRequest>,
    ) -> Result<Response<api::ListPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<api::AllocatableResourcesRequest>,
    ) -> Result<Response<api::AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn get(
        &self,
        request: Request<api::GetPodResourcesRequest>,
    ) -> Result<Response<api::GetPodResourcesResponse>, Status> {
        let request = request.into_inner();
        let pod = api::PodResources {
            name: request.pod_name,
            namespace: request.pod_namespace,
            ..Default::default()
        };
        Ok(Response::new(api::GetPodResourcesResponse {
            pod_resources: Some(pod),
        }))
    }
}

fn service() -> PodResourcesListerServer<Kubelet> {
    PodResourcesListerServer::new(Kubelet)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

struct TempSocket {
    _directory: tempfile::TempDir,
    socket: PathBuf,
}

fn temp() -> TempSocket {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("below/kubelet.sock");
    TempSocket {
        _directory: directory,
        socket,
    }
}

/// A server that runs until it is stopped or dropped.
struct Serving {
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Serving {
    async fn end(self) {
        self.end.send(()).unwrap();
        self.task.await.unwrap();
    }
}

fn serve(socket: &Path) -> Serving {
    let listener = listen(socket).unwrap();
    let server = tonic::transport::Server::builder().add_service(service());
    let (end, ended) = oneshot::channel();
    let task = tokio::spawn(async move {
        let stopped = async { drop(ended.await) };
        server
            .serve_with_incoming_shutdown(incoming(listener), stopped)
            .await
            .unwrap();
    });
    Serving { end, task }
}

fn client(socket: &Path) -> PodResourcesListerClient<tonic::transport::Channel> {
    PodResourcesListerClient::new(connect(socket))
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

fn named(name: impl Into<String>) -> api::GetPodResourcesRequest {
    api::GetPodResourcesRequest {
        pod_name: name.into(),
        pod_namespace: "default".into(),
    }
}

#[tokio::test]
async fn messages_of_sixteen_mebibytes_pass_both_ways() {
    let temp = temp();
    let _server = serve(&temp.socket);
    let mut client = client(&temp.socket);
    let name = "x".repeat(MESSAGE_LIMIT - 1000);
    let answer = client.get(named(name.clone())).await.unwrap().into_inner();
    assert!(answer.pod_resources.unwrap().name == name);
    let above = client
        .get(named("x".repeat(MESSAGE_LIMIT)))
        .await
        .unwrap_err();
    // The stream is reset; the connection stays open.
    assert_ne!(above.code(), Code::Unavailable, "{above}");
    client.get(named("x")).await.unwrap();
}

#[tokio::test]
async fn a_channel_outlives_its_server() {
    let temp = temp();
    let mut client = client(&temp.socket);
    let unavailable = client.get(named("x")).await.unwrap_err();
    assert_eq!(unavailable.code(), Code::Unavailable);
    assert!(
        format!("{unavailable:?}").contains("kubelet.sock"),
        "{unavailable:?}"
    );
    for _ in 0..3 {
        // The second server replaces the socket of the first.
        let server = serve(&temp.socket);
        client.get(named("x")).await.unwrap();
        server.end().await;
        let error = client.get(named("x")).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
    }
}

#[tokio::test]
async fn only_a_socket_is_replaced() {
    let temp = temp();
    std::fs::create_dir(temp.socket.parent().unwrap()).unwrap();
    std::fs::write(&temp.socket, "mine").unwrap();
    let error = listen(&temp.socket).unwrap_err().to_string();
    assert!(
        error.contains("kubelet.sock") && error.contains("not a socket"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&temp.socket).unwrap(), "mine");
}

#[tokio::test]
async fn raw_messages_keep_fields_that_no_definition_has() {
    let temp = temp();
    let _server = serve(&temp.socket);
    let mut client = tonic::client::Grpc::new(connect(&temp.socket));
    let mut bytes = named("x").encode_to_vec();
    bytes.extend([0xfa, 0xf0, 0x04, 2, 1, 2]);
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/v1.PodResourcesLister/Get");
    let answer = client
        .unary(Request::new(Bytes::from(bytes)), path, Raw)
        .await
        .unwrap();
    let answer = api::GetPodResourcesResponse::decode(answer.into_inner()).unwrap();
    assert_eq!(answer.pod_resources.unwrap().name, "x");

    let message = Bytes::from_static(&[0xfa, 0xf0, 0x04, 2, 1, 2]);
    let path = http::uri::PathAndQuery::from_static("/v1.PodResourcesLister/Other");
    client.ready().await.unwrap();
    let error = client
        .unary(Request::new(message), path, Raw)
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
}

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![
        length[1], length[2], length[3], kind, flags, 0, 0, 0, stream,
    ];
    bytes.extend(payload);
    bytes
}

fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(text.len()).unwrap()];
    bytes.extend(text);
    bytes
}

/// Returns the first block of grpc-go, but without Huffman coding: everything is added to the table, where
/// `:authority` is second.
fn first_block(authority: &[u8]) -> Vec<u8> {
    // :method POST, :scheme http
    let mut block = vec![0x83, 0x86];
    let path = string(b"/v1.PodResourcesLister/Get");
    block.extend([vec![0x44], path].concat());
    block.extend([vec![0x41], authority.to_vec()].concat());
    block.extend([vec![0x5f], string(b"application/grpc")].concat());
    block.extend([vec![0x40], string(b"te"), string(b"trailers")].concat());
    block
}

fn grpc_message(message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend(message);
    bytes
}

/// Returns kind, stream and payload of the frames from the server until the stream ends.
async fn answer(from: &mut UnixStream, stream: u8) -> Result<Vec<u8>, String> {
    let mut data = Vec::new();
    loop {
        let mut header = [0; 9];
        let read = from.read_exact(&mut header).await;
        read.map_err(|e| format!("closed: {e}"))?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        from.read_exact(&mut payload)
            .await
            .map_err(|e| e.to_string())?;
        match (header[3], header[8]) {
            (0, of) if of == stream => data.extend(payload),
            (3, of) if of == stream => return Err(format!("reset with {payload:?}")),
            (7, _) => return Err(format!("the connection ends with {payload:?}")),
            _ => {}
        }
        if header[8] == stream && header[4] & END_STREAM != 0 {
            return Ok(data);
        }
    }
}

async fn request(to: &mut UnixStream, stream: u8, block: &[u8]) -> Result<Vec<u8>, String> {
    // Two frames with padding are allowed.
    let (one, two) = block.split_at(block.len() / 2);
    let padded = [&[3][..], one, &[0; 3]].concat();
    let bytes = [
        frame(1, 0x8, stream, &padded),
        frame(9, END_HEADERS, stream, two),
        frame(0, END_STREAM, stream, &grpc_message(&named("p"))),
    ];
    to.write_all(&bytes.concat()).await.unwrap();
    answer(to, stream).await
}

async fn hello(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    stream.write_all(preface).await.unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    stream
}

#[tokio::test]
async fn socket_path_is_accepted_as_authority() {
    let temp = temp();
    let _server = serve(&temp.socket);
    let expected = grpc_message(&api::GetPodResourcesResponse {
        pod_resources: Some(api::PodResources {
            name: "p".into(),
            namespace: "default".into(),
            ..Default::default()
        }),
    });
    // `/a` in Huffman coding is 0x60 0xff with its padding: five bits each.
    let coded = [vec![0x82], vec![0x60, 0xff]].concat();
    for authority in [
        string(b"/run/x.sock"),
        string(b"%2Frun%2Fx.sock"),
        string(b"localhost"),
        coded,
    ] {
        let mut stream = hello(&temp.socket).await;
        assert_eq!(
            request(&mut stream, 1, &first_block(&authority))
                .await
                .unwrap(),
            expected
        );
        // From the table: te 62, content-type 63, :authority 64, :path 65.
        let indexed_block = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        assert_eq!(
            request(&mut stream, 3, &indexed_block).await.unwrap(),
            expected
        );
        // Never indexed.
        for (id, first) in [(5, 0x01), (7, 0x11)] {
            let block = [
                &indexed_block[..3],
                &[first],
                &string(b"/run/y.sock"),
                &indexed_block[4..],
            ]
            .concat();
            assert_eq!(request(&mut stream, id, &block).await.unwrap(), expected);
        }
    }
}

/// Shows why [`koord_rpc::grpc::Tolerant`] is needed. Once this fails, it is not.
#[tokio::test]
async fn without_tolerance_the_stream_is_reset() {
    let temp = temp();
    std::fs::create_dir(temp.socket.parent().unwrap()).unwrap();
    let listener = tokio::net::UnixListener::bind(&temp.socket).unwrap();
    let server = tonic::transport::Server::builder().add_service(service());
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    let mut stream = hello(&temp.socket).await;
    let error = request(&mut stream, 1, &first_block(&string(b"/run/x.sock")))
        .await
        .unwrap_err();
    // PROTOCOL_ERROR
    assert_eq!(error, "reset with [0, 0, 0, 1]");
}

#[tokio::test]
async fn nonsense_ends_the_connection_and_not_the_server() {
    let temp = temp();
    let _server = serve(&temp.socket);
    for bytes in [
        vec![0xff; 5000],
        frame(9, 0, 1, b"no block was open"),
        frame(1, END_HEADERS | 0x8, 1, &[200, 1]),
        frame(
            1,
            END_HEADERS,
            1,
            &[0x41, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
        [frame(1, 0, 1, &[0x83]), frame(0, 0, 1, b"in between")].concat(),
    ] {
        let mut stream = hello(&temp.socket).await;
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), answer(&mut stream, 1));
        assert!(ended.await.expect("the connection stays").is_err());
    }
    client(&temp.socket).get(named("x")).await.unwrap();
}

fn filtered(bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut filter = Filter::default();
    let (mut came, mut out) = (BytesMut::new(), BytesMut::new());
    let (mut at, mut cuts) = (0, cuts.iter().cycle());
    while at < bytes.len() {
        let end = bytes.len().min(at + cuts.next().unwrap());
        came.extend_from_slice(&bytes[at..end]);
        filter.pass(&mut came, &mut out);
        at = end;
    }
    filter.end(&mut came, &mut out);
    out.to_vec()
}

/// Frames without a header block, or without a literal authority.
fn other_frames() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(vec![0u8, 2, 3, 4, 5, 6, 7, 8, 10]);
    let other = (
        kind,
        any::<u8>(),
        prop::collection::vec(any::<u8>(), 0..300),
    )
        .prop_map(|(kind, flags, payload)| frame(kind, flags, 1, &payload));
    let headers =
        prop::collection::vec(prop::sample::select(vec![0x82u8, 0x86, 0xbe, 0x81]), 0..40)
            .prop_map(|block| frame(1, END_HEADERS, 3, &block));
    prop::collection::vec(prop_oneof![other, headers], 0..12).prop_map(|frames| frames.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn frames_without_authority_pass_unchanged(
        frames in other_frames(),
        cuts in prop::collection::vec(1usize..200, 1..6),
    ) {
        let mut bytes = vec![0u8; 24];
        bytes.extend(frames);
        prop_assert_eq!(filtered(&bytes, &cuts), bytes);
    }

    /// The split of a block into frames and reads makes no difference.
    #[test]
    fn authority_is_replaced_for_any_split(
        length in 1usize..120,
        cuts in prop::collection::vec(1usize..60, 1..6),
        part in 1usize..80,
        after in other_frames(),
    ) {
        let block = first_block(&string(&vec![b'/'; length]));
        let mut bytes = vec![0u8; 24];
        let mut parts = block.chunks(part).peekable();
        let mut kind = 1;
        while let Some(chunk) = parts.next() {
            let flags = if parts.peek().is_none() { END_HEADERS } else { 0 };
            bytes.extend(frame(kind, flags, 1, chunk));
            kind = 9;
        }
        bytes.extend(&after);
        let mut expected = vec![0u8; 24];
        expected.extend(frame(1, END_HEADERS, 1, &first_block(&string(b"u"))));
        expected.extend(&after);
        prop_assert_eq!(filtered(&bytes, &cuts), expected);
    }

    /// Checks that noise is passed on, and that no bytes are held back at the end.
    #[test]
    fn noise_passes_unchanged(
        noise in prop::collection::vec(any::<u8>(), 0..600),
        headers in prop::collection::vec(any::<u8>(), 0..80),
        flags: u8,
        cuts in prop::collection::vec(1usize..100, 1..6),
    ) {
        let mut bytes = vec![0u8; 24];
        bytes.extend(frame(1, flags, 1, &headers));
        bytes.extend(&noise);
        let out = filtered(&bytes, &cuts);
        prop_assert!(out.len() <= bytes.len());
        prop_assert!(!noise.is_empty() || out.len() >= 24);
    }
}
