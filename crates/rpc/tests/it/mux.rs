//! Channels over one connection.

use koord_rpc::mux::{Mux, UNREAD_LIMIT, frame};
use koord_rpc::ttrpc::{Answer, Client, Code, Incoming, Options, Server, Service, Status};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use crate::wire::{self, GoReader, Text, text};

struct Echo(&'static str);

impl Service for Echo {
    fn name(&self) -> &'static str {
        self.0
    }

    fn call(&self, call: Incoming) -> Answer {
        Box::pin(async move {
            match call.method.as_str() {
                "Echo" => Ok(call.payload.to_vec()),
                other => Err(Status::new(Code::Unimplemented, other)),
            }
        })
    }
}

#[tokio::test]
async fn both_sides_call_over_one_connection() {
    let (near, far) = duplex(1 << 16);
    let (_near, [plugin, runtime]) = Mux::open(near, [1, 2]);
    let (_far, [to_plugin, of_runtime]) = Mux::open(far, [1, 2]);
    let plugin_server = Server::default().with(Echo("plugin"));
    tokio::spawn(async move { plugin_server.serve(plugin).await });
    let runtime_server = Server::default().with(Echo("runtime"));
    tokio::spawn(async move { runtime_server.serve(of_runtime).await });
    let (to_plugin, to_runtime) = (Client::new(to_plugin), Client::new(runtime));
    let call_all = |client: Client, service: &'static str| async move {
        for size in [0, 10, 4086, 4087, 5000, 60_000, (4 << 20) - 64] {
            let (sent, options) = (text(size), Options::default());
            let answer: Text = client.call(service, "Echo", &sent, &options).await.unwrap();
            assert!(answer == sent, "{size}");
        }
    };
    tokio::join!(
        call_all(to_plugin, "plugin"),
        call_all(to_runtime, "runtime")
    );
}

/// Returns the bytes of calls on the wire, as frames of the channel.
async fn written(sizes: &[usize]) -> Vec<Vec<u8>> {
    let (near, mut far) = duplex(1 << 16);
    let sizes = sizes.to_vec();
    let call = tokio::spawn(async move {
        let (mux, [channel]) = Mux::open(near, [2]);
        let client = Client::new(channel);
        let options = Options::default();
        for size in sizes {
            let request = text(size);
            let call = client.call::<Text>("s", "m", &request, &options);
            // Written, but not answered.
            let soon = tokio::time::timeout(std::time::Duration::from_secs(1), call);
            assert!(soon.await.is_err());
        }
        mux.close().await;
    });
    let mut frames = Vec::new();
    while let Ok(channel) = far.read_u32().await {
        assert_eq!(channel, 2);
        let mut bytes = vec![0; far.read_u32().await.unwrap() as usize];
        far.read_exact(&mut bytes).await.unwrap();
        frames.push(bytes);
    }
    call.await.unwrap();
    frames
}

#[tokio::test(start_paused = true)]
async fn go_peer_can_read_written_frames() {
    let sizes = [0, 10, 4086, 4087, 5000, 60_000, (4 << 20) - 64];
    let frames = written(&sizes).await;
    assert_eq!(frames.len(), 2 * sizes.len());
    for (pair, size) in frames.chunks(2).zip(sizes) {
        assert_eq!(pair[0].len(), 10, "a header alone");
        assert!(pair[1].len() > size);
    }
    let messages = GoReader::new(frames.clone()).messages().unwrap();
    for (message, size) in messages.iter().zip(sizes) {
        let request = wire::Request::decode(message.as_slice()).unwrap();
        assert_eq!(request.payload, text(size).encode_to_vec());
    }
    // A frame with both header and message would fail on the peer.
    let joined = frames.chunks(2).map(<[Vec<u8>]>::concat);
    let fault = GoReader::new(joined).messages().unwrap_err();
    assert!(fault.ends_with("into 4096"), "{fault}");
}

#[tokio::test]
async fn unread_channel_does_not_block_others() {
    let (mut peer, far) = duplex(1 << 16);
    let (mux, [mut slow, mut other]) = Mux::open(far, [1, 2]);
    let large = vec![7; 5 << 20];
    for channel in [1, 9] {
        peer.write_all(&wire::piece(channel, &large)).await.unwrap();
    }
    peer.write_all(&wire::piece(2, b"x")).await.unwrap();
    assert_eq!(other.read_u8().await.unwrap(), b'x');
    let mut bytes = vec![0; large.len()];
    slow.read_exact(&mut bytes).await.unwrap();
    assert!(bytes == large);
    // Reading makes room for more.
    for _ in 0..(UNREAD_LIMIT / large.len()) {
        peer.write_all(&wire::piece(1, &large)).await.unwrap();
    }
    peer.write_all(&wire::piece(2, b"y")).await.unwrap();
    assert_eq!(other.read_u8().await.unwrap(), b'y');
    mux.close().await;
    assert_eq!(
        peer.read(&mut [0]).await.unwrap(),
        0,
        "the peer sees the end"
    );
}

#[tokio::test]
async fn unread_channel_ends_the_connection() {
    let (mut peer, far) = duplex(1 << 16);
    let (mux, [_slow, mut other]) = Mux::open(far, [1, 2]);
    let large = vec![7; 8 << 20];
    let mut sent = 0;
    while peer.write_all(&wire::piece(1, &large)).await.is_ok() {
        sent += large.len();
        assert!(sent <= UNREAD_LIMIT, "{sent}");
    }
    let error = mux.closed().await.unwrap();
    assert!(error.contains("of channel 1 were not read"), "{error}");
    let error = other.read(&mut [0]).await.unwrap_err();
    assert!(error.to_string().contains("channel 1"), "{error}");
    assert!(other.write_all(b"x").await.is_err());
}

#[tokio::test]
async fn end_of_connection_ends_its_channels() {
    let (peer, far) = duplex(1 << 16);
    let (mux, [mut one]) = Mux::open(far, [1]);
    drop(peer);
    assert_eq!(mux.closed().await, None);
    assert_eq!(one.read(&mut [0]).await.unwrap(), 0);
    assert!(one.write_all(b"x").await.is_err());

    let (mut peer, far) = duplex(1 << 16);
    let (mux, [mut one]) = Mux::open(far, [1]);
    peer.write_all(&frame::header(1, u32::MAX)).await.unwrap();
    let error = mux.closed().await.unwrap();
    assert!(error.contains("4294967295 bytes for channel 1"), "{error}");
    assert!(one.read(&mut [0]).await.is_err());
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
}
