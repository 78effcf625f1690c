//! The other end of a connection, byte by byte: written from the descriptions of the protocols and without
//! the tested code.

use std::collections::VecDeque;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

pub(crate) const REQUEST: u8 = 1;
pub(crate) const RESPONSE: u8 = 2;
pub(crate) const DATA: u8 = 3;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
    #[prost(string, tag = "2")]
    pub(crate) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub(crate) timeout_nano: i64,
    #[prost(message, repeated, tag = "5")]
    pub(crate) metadata: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

/// A message whose only field is text.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Text {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
}

pub(crate) fn text(length: usize) -> Text {
    Text {
        text: "x".repeat(length),
    }
}

/// Returns a ttrpc frame.
pub(crate) fn frame(stream: u32, kind: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    let mut bytes = Vec::from(length.to_be_bytes());
    bytes.extend(stream.to_be_bytes());
    bytes.extend([kind, 0]);
    bytes.extend(message);
    bytes
}

/// Returns a frame of the mux.
pub(crate) fn piece(channel: u32, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap();
    let mut frame = Vec::from(channel.to_be_bytes());
    frame.extend(length.to_be_bytes());
    frame.extend(bytes);
    frame
}

/// Returns stream, kind and message of the next ttrpc frame.
pub(crate) async fn receive(from: &mut DuplexStream) -> (u32, u8, Vec<u8>) {
    let length = from.read_u32().await.unwrap();
    let stream = from.read_u32().await.unwrap();
    let kind = from.read_u8().await.unwrap();
    assert_eq!(from.read_u8().await.unwrap(), 0, "flags of a unary call");
    let mut message = vec![0; length as usize];
    from.read_exact(&mut message).await.unwrap();
    (stream, kind, message)
}

pub(crate) fn request(service: &str, method: &str, payload: &impl Message) -> Request {
    Request {
        service: service.into(),
        method: method.into(),
        payload: payload.encode_to_vec(),
        ..Default::default()
    }
}

/// Sends a request and returns the code of the response, which must be for its stream.
pub(crate) async fn code(to: &mut DuplexStream, stream: u32, request: &Request) -> i32 {
    let bytes = frame(stream, REQUEST, &request.encode_to_vec());
    to.write_all(&bytes).await.unwrap();
    code_of(to, stream).await
}

pub(crate) async fn code_of(to: &mut DuplexStream, stream: u32) -> i32 {
    let (of, kind, message) = receive(to).await;
    assert_eq!((of, kind), (stream, RESPONSE));
    let response = Response::decode(message.as_slice()).unwrap();
    response.status.map_or(0, |status| status.code)
}

/// A channel as the peer in Go reads it: each read takes one whole frame, through a buffer of 4,096 bytes,
/// and fails if the frame is longer than requested.
pub(crate) struct GoReader {
    frames: VecDeque<Vec<u8>>,
    buffered: VecDeque<u8>,
}

impl GoReader {
    const BUFFER: usize = 4096;

    pub(crate) fn new(frames: impl IntoIterator<Item = Vec<u8>>) -> GoReader {
        GoReader {
            frames: frames.into_iter().collect(),
            buffered: VecDeque::new(),
        }
    }

    fn take(&mut self, offered: usize) -> Result<Vec<u8>, String> {
        let frame = self.frames.pop_front().ok_or("end of stream")?;
        if frame.len() > offered {
            return Err(format!("a frame of {} bytes into {offered}", frame.len()));
        }
        Ok(frame)
    }

    pub(crate) fn read(&mut self, length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let missing = length - bytes.len();
            if !self.buffered.is_empty() {
                let available = missing.min(self.buffered.len());
                bytes.extend(self.buffered.drain(..available));
            } else if missing >= Self::BUFFER {
                bytes.extend(self.take(missing)?);
            } else {
                let frame = self.take(Self::BUFFER)?;
                self.buffered.extend(frame);
            }
        }
        Ok(bytes)
    }

    /// Returns the messages of all frames.
    pub(crate) fn messages(mut self) -> Result<Vec<Vec<u8>>, String> {
        let mut messages = Vec::new();
        while !self.frames.is_empty() {
            let header = self.read(10)?;
            let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
            messages.push(self.read(length as usize)?);
        }
        Ok(messages)
    }
}
