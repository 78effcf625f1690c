//! GetContainerEvents of a real containerd, byte by byte.

use crate::containerd::ContainerdFixture;
use crate::world::{GrpcClient, TestEnv, frame};
use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use koord_rpc::cri;
use koord_rpc::cri::ContainerEventType as Type;
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Longer than any machine needs for one event.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes that a server sent on each connection.
type ServerBytes = Arc<Mutex<Vec<BytesMut>>>;

/// Listens at `listen`, passes bytes on to `to` and back, and notes what comes back.
fn tap(listen: &Path, to: &Path) -> ServerBytes {
    let (listener, to) = (UnixListener::bind(listen).unwrap(), to.to_owned());
    let server_bytes = ServerBytes::default();
    let all = server_bytes.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = UnixStream::connect(&to).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let (all, at) = (all.clone(), all.lock().len());
            all.lock().push(BytesMut::new());
            tokio::spawn(async move {
                let mut bytes = BytesMut::new();
                while from_server.read_buf(&mut bytes).await.is_ok_and(|n| n > 0) {
                    all.lock()[at].extend_from_slice(&bytes);
                    if to_client.write_all_buf(&mut bytes).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    server_bytes
}

/// Returns the payload of each stream of an HTTP/2 connection (RFC 9113, 4.1 and 6.1).
fn streams(mut server_bytes: BytesMut) -> BTreeMap<u32, BytesMut> {
    let mut streams = BTreeMap::<u32, BytesMut>::new();
    while server_bytes.len() >= 9 {
        let head = server_bytes.get_uint(3);
        let (kind, flags, stream) = (
            server_bytes.get_u8(),
            server_bytes.get_u8(),
            server_bytes.get_u32(),
        );
        let payload = server_bytes.split_to(usize::try_from(head).unwrap());
        if kind == 0 {
            assert_eq!(flags & 8, 0, "Go does not pad");
            streams.entry(stream).or_default().extend(payload);
        }
    }
    streams
}

/// Removes and returns the first message, if it is complete.
fn event(bytes: &mut BytesMut) -> Option<cri::ContainerEventResponse> {
    let length = u32::from_be_bytes(bytes.get(1..5)?.try_into().unwrap());
    let length = 5 + usize::try_from(length).unwrap();
    if bytes.len() < length {
        return None;
    }
    let message = bytes.split_to(length).split_off(5);
    Some(cri::ContainerEventResponse::decode(message).unwrap())
}

#[tokio::test]
async fn the_events_of_a_runtime_come_byte_by_byte() {
    let Some(machine) = ContainerdFixture::start() else {
        return;
    };
    let mut world = TestEnv::new();
    world.options.runtime = world.path("tap.sock");
    let server_bytes = tap(&world.options.runtime, &machine.containerd.socket());
    let _proxy = world.proxy().await;
    let client = GrpcClient::connect(&world.options.listen).await;
    let full = Full::new(frame(b"")).map_err(|never| match never {});
    let request = GrpcClient::request("/runtime.v1.RuntimeService/GetContainerEvents")
        .body(full.boxed_unsync())
        .unwrap();
    // Its headers come with the first event.
    let events = client.send(request);
    let calls = async {
        let run = cri::RunPodSandboxRequest {
            config: Some(machine.sandbox("told")),
            runtime_handler: String::new(),
        };
        let got = client.cri("RunPodSandbox", &run).await;
        let pod = cri::RunPodSandboxResponse::decode(got.body.slice(5..)).unwrap();
        let pod = pod.pod_sandbox_id;
        let create = machine.create("told", &pod, "main");
        let got = client.cri("CreateContainer", &create).await;
        let container = cri::CreateContainerResponse::decode(got.body.slice(5..)).unwrap();
        let container_id = container.container_id;
        let start = cri::StartContainerRequest {
            container_id: container_id.clone(),
        };
        assert_eq!(client.cri("StartContainer", &start).await.status().0, "0");
        let stop = cri::StopContainerRequest {
            container_id: container_id.clone(),
            timeout: 0,
        };
        assert_eq!(client.cri("StopContainer", &stop).await.status().0, "0");
        let remove = cri::RemovePodSandboxRequest {
            pod_sandbox_id: pod.clone(),
        };
        let got = client.cri("RemovePodSandbox", &remove).await;
        assert_eq!(got.status().0, "0");
        [pod, container_id]
    };
    let (events, [pod, container]) = tokio::join!(events, calls);
    let mut events = events.unwrap().into_body();
    let (mut got, mut rest, mut seen) = (BytesMut::new(), BytesMut::new(), Vec::new());
    // The pod's end is the last of all.
    while seen.last() != Some(&(pod.clone(), Type::ContainerDeletedEvent)) {
        let frame = tokio::time::timeout(PATIENCE, events.frame()).await;
        let frame = frame.unwrap_or_else(|_| panic!("no more events after {seen:?}"));
        let data: Bytes = frame.unwrap().unwrap().into_data().unwrap();
        got.extend_from_slice(&data);
        rest.extend_from_slice(&data);
        while let Some(event) = event(&mut rest) {
            let kind = event.container_event_type();
            seen.push((event.container_id, kind));
        }
    }
    let types_of = |id: &String| -> Vec<Type> {
        let types_of = seen.iter().filter(|(types_of, _)| types_of == id);
        types_of.map(|(_, kind)| *kind).collect()
    };
    let all = [
        Type::ContainerCreatedEvent,
        Type::ContainerStartedEvent,
        Type::ContainerStoppedEvent,
        Type::ContainerDeletedEvent,
    ];
    assert_eq!(types_of(&container), all);
    assert_eq!(types_of(&pod), all);
    let server_bytes: Vec<_> = server_bytes
        .lock()
        .iter()
        .cloned()
        .flat_map(streams)
        .collect();
    let equal_count = server_bytes
        .iter()
        .filter(|(_, server_bytes)| *server_bytes == got)
        .count();
    assert_eq!(
        equal_count,
        1,
        "{} bytes differ from the server's",
        got.len()
    );
}
