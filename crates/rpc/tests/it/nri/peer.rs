//! Fake runtime as the peer of a plugin: the frames that containerd writes, and a reader as strict as
//! containerd's.

use std::collections::BTreeMap;

use koord_rpc::nri;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::wire::{self, GoReader, Request, Response};

const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;

pub(crate) struct Peer {
    pub(crate) io: UnixStream,
    next: u32,
    /// Unread frames of each channel.
    frames: BTreeMap<u32, Vec<Vec<u8>>>,
}

impl Peer {
    pub(crate) fn new(io: UnixStream) -> Peer {
        Peer {
            io,
            next: 1,
            frames: BTreeMap::new(),
        }
    }

    /// Sends a message split like Go's buffered writer of 4,096 bytes: what fills the buffer, then the rest.
    async fn send(&mut self, channel: u32, message: &[u8]) {
        let (first, rest) = message.split_at(message.len().min(4096));
        for part in [first, rest] {
            if !part.is_empty() {
                self.io
                    .write_all(&wire::piece(channel, part))
                    .await
                    .unwrap();
            }
        }
    }

    /// Returns the next message of a channel, with its header.
    async fn message(&mut self, channel: u32) -> Vec<u8> {
        loop {
            let frames = self.frames.entry(channel).or_default();
            let received = frames.concat();
            if let Some(length) = received.first_chunk::<4>() {
                let length = 10 + u32::from_be_bytes(*length) as usize;
                assert!(received.len() <= length, "one call at a time");
                if received.len() == length {
                    let frames = std::mem::take(frames);
                    GoReader::new(frames)
                        .messages()
                        .expect("containerd can read it");
                    return received;
                }
            }
            let sender = self.io.read_u32().await.unwrap();
            let mut bytes = vec![0; self.io.read_u32().await.unwrap() as usize];
            self.io.read_exact(&mut bytes).await.unwrap();
            self.frames.entry(sender).or_default().push(bytes);
        }
    }

    /// Calls the plugin like the runtime does, with its timeout of two seconds.
    pub(crate) async fn call<R: Message + Default>(
        &mut self,
        method: &str,
        request: &impl Message,
    ) -> Result<R, wire::Status> {
        let mut request = wire::request("nri.pkg.api.v1alpha1.Plugin", method, request);
        request.timeout_nano = 2_000_000_000;
        let stream = self.next;
        self.next += 2;
        let frame = wire::frame(stream, wire::REQUEST, &request.encode_to_vec());
        self.send(PLUGIN, &frame).await;
        let answer = self.message(PLUGIN).await;
        assert_eq!(answer[4..8], stream.to_be_bytes());
        let response = Response::decode(&answer[10..]).unwrap();
        match response.status.filter(|status| status.code != 0) {
            Some(status) => Err(status),
            None => Ok(R::decode(response.payload.as_slice()).unwrap()),
        }
    }

    /// Answers the plugin's next call with this response.
    pub(crate) async fn serve<Q: Message + Default>(
        &mut self,
        method: &str,
        answer: &impl Message,
    ) -> Q {
        let call = self.message(RUNTIME).await;
        let request = Request::decode(&call[10..]).unwrap();
        assert_eq!(request.service, "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(request.method, method);
        let response = Response {
            status: None,
            payload: answer.encode_to_vec(),
        };
        let stream = u32::from_be_bytes(call[4..8].try_into().unwrap());
        let frame = wire::frame(stream, wire::RESPONSE, &response.encode_to_vec());
        self.send(RUNTIME, &frame).await;
        Q::decode(request.payload.as_slice()).unwrap()
    }

    pub(crate) async fn registers(&mut self) -> nri::RegisterPluginRequest {
        self.serve("RegisterPlugin", &nri::Empty {}).await
    }

    /// Configures like containerd 1.7, which sends neither its NRI version nor its timeout.
    pub(crate) async fn configures(&mut self) -> Result<i32, wire::Status> {
        let request = nri::ConfigureRequest {
            runtime_name: "containerd".into(),
            runtime_version: "1.7.24".into(),
            ..Default::default()
        };
        let answer: nri::ConfigureResponse = self.call("Configure", &request).await?;
        Ok(answer.events)
    }

    /// Runs everything up to the first event, for a node without pods.
    pub(crate) async fn starts(&mut self) {
        self.registers().await;
        self.configures().await.unwrap();
        let nothing = nri::SynchronizeRequest::default();
        self.call::<nri::SynchronizeResponse>("Synchronize", &nothing)
            .await
            .unwrap();
    }

    /// Waits until the plugin has closed the connection.
    pub(crate) async fn ends(&mut self) {
        assert_eq!(
            self.io.read(&mut [0]).await.unwrap_or(0),
            0,
            "the plugin goes on"
        );
    }
}
