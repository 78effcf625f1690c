//! Frames of ttrpc and of the mux, with any split and any content of the stream.

use bytes::{Bytes, BytesMut};
use koord_rpc::mux::frame as mux;
use koord_rpc::ttrpc::frame::{Decoder, Frame, FrameKind};
use koord_rpc::{cri, deviceplugin, hooks, nri, podresources};
use proptest::prelude::*;
use prost::Message;

use crate::wire;

/// Sizes around the limits of buffers and frames of the peers.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => prop::sample::select(vec![0, 1, 9, 10, 11, 4085, 4086, 4087, 4096, 5000, 60_000]),
        4 => 0usize..9000,
        1 => Just(4 << 20),
    ]
}

/// Splits `bytes` into pieces of these lengths, repeated.
fn cut<'a>(mut bytes: &'a [u8], lengths: &'a [usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for length in lengths.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (piece, rest) = bytes.split_at((*length).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(
        prop_oneof![3 => 1usize..100, 1 => 1000usize..2_000_000],
        1..8,
    )
}

fn content(size: usize, seed: usize) -> Vec<u8> {
    (0..size)
        .map(|i| ((i * 31 + seed * 7) % 251) as u8)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ttrpc_messages_come_whole_from_any_cut(
        sizes in prop::collection::vec(size(), 1..6),
        lengths in lengths(),
        limit in prop::sample::select(vec![5000usize, 4 << 20]),
    ) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for (at, size) in sizes.iter().enumerate() {
            let (id, kind) = (at as u32 * 2 + 1, at as u8 % 4 + 1);
            let message = content(*size, at);
            stream.extend(wire::frame(id, kind, &message));
            expected.push((id, kind, (*size <= limit).then_some(message), *size));
        }
        let mut decoder = Decoder::new(limit);
        let mut buffer = BytesMut::new();
        let mut frames = Vec::new();
        for piece in cut(&stream, &lengths) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = decoder.next(&mut buffer) {
                let (header, message) = match frame {
                    Frame::Message(header, message) => (header, Some(message.to_vec())),
                    Frame::Oversized(header) => (header, None),
                };
                let kind = match header.kind {
                    FrameKind::Request => 1,
                    FrameKind::Response => 2,
                    FrameKind::Data => 3,
                    FrameKind::Other(byte) => byte,
                };
                frames.push((header.stream, kind, message, header.length as usize));
            }
            // An oversized message is not buffered.
            prop_assert!(buffer.len() < limit + 10 + piece.len());
        }
        prop_assert!(buffer.is_empty());
        prop_assert!(frames == expected);
    }

    #[test]
    fn channels_get_their_bytes_from_any_cut(
        frames in prop::collection::vec((1u32..4, size()), 1..8),
        lengths in lengths(),
    ) {
        let mut stream = Vec::new();
        let mut expected = vec![Vec::new(); 4];
        for (at, (channel, size)) in frames.iter().enumerate() {
            let bytes = content(*size, at);
            stream.extend(wire::piece(*channel, &bytes));
            expected[*channel as usize].extend(bytes);
        }
        let mut decoder = mux::ChannelDecoder::default();
        let mut buffer = BytesMut::new();
        let mut channels = vec![Vec::new(); 4];
        for piece in cut(&stream, &lengths) {
            buffer.extend_from_slice(piece);
            while let Some((channel, bytes)) = decoder.next(&mut buffer).unwrap() {
                prop_assert!(!bytes.is_empty());
                channels[channel as usize].extend(bytes);
            }
            // A frame may be incomplete.
            prop_assert!(buffer.len() < mux::HEADER);
        }
        prop_assert!(buffer.is_empty());
        prop_assert!(channels == expected);
    }

    #[test]
    fn a_frame_that_is_too_long_is_an_error(
        channel: u32,
        length in mux::READ_LIMIT as u32 + 1..,
        before in 0usize..5000,
    ) {
        let mut buffer = BytesMut::from(wire::piece(1, &content(before, 0)).as_slice());
        buffer.extend_from_slice(&mux::header(channel, length));
        let mut decoder = mux::ChannelDecoder::default();
        if before > 0 {
            let (of, bytes) = decoder.next(&mut buffer).unwrap().unwrap();
            prop_assert_eq!((of, bytes.len()), (1, before));
        }
        prop_assert_eq!(decoder.next(&mut buffer), Err(mux::TooLong { channel, length }));
    }

    /// For any input, decoders terminate, consume no more than the input, and do not panic.
    #[test]
    fn arbitrary_input_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let bytes = Bytes::from(bytes);
        let mut buffer = BytesMut::from(&bytes[..]);
        let mut decoder = Decoder::new(100);
        let mut frames = 0;
        while let Some(frame) = decoder.next(&mut buffer) {
            if let Frame::Message(header, message) = &frame {
                prop_assert!(message.len() == header.length as usize && message.len() <= 100);
            }
            frames += 1;
        }
        prop_assert!(frames * 10 <= bytes.len());
        let mut buffer = BytesMut::from(&bytes[..]);
        let mut decoder = mux::ChannelDecoder::default();
        while let Ok(Some((_, piece))) = decoder.next(&mut buffer) {
            prop_assert!(!piece.is_empty());
        }
        assert_decodes(&bytes);
    }

    /// A message with a few changed bytes gets further than noise.
    #[test]
    fn damaged_messages_do_not_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().encode_to_vec();
        for (at, byte) in &damage {
            let position = at.index(bytes.len());
            bytes[position] = *byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        assert_decodes(&bytes.into());
    }
}

fn sample() -> nri::CreateContainerRequest {
    let resources = nri::LinuxResources {
        memory: Some(nri::LinuxMemory {
            limit: Some(nri::OptionalInt64 { value: -1 }),
            ..Default::default()
        }),
        cpu: Some(nri::LinuxCpu {
            cpus: "0-3".into(),
            ..Default::default()
        }),
        unified: [("memory.high".to_owned(), "max".to_owned())].into(),
        ..Default::default()
    };
    nri::CreateContainerRequest {
        pod: Some(nri::PodSandbox {
            id: "p".into(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            linux: Some(nri::LinuxPodSandbox {
                pod_resources: Some(resources.clone()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        container: Some(nri::Container {
            env: vec!["A=B".into()],
            linux: Some(nri::LinuxContainer {
                resources: Some(resources),
                ..Default::default()
            }),
            ..Default::default()
        }),
    }
}

/// Decodes input from other programs as every kind of message that a component reads: the result is an error,
/// or a message that encoding and decoding preserves.
fn assert_decodes(bytes: &Bytes) {
    macro_rules! decode {
        ($($message:ty),* $(,)?) => {$(
            if let Ok(message) = <$message>::decode(bytes.clone()) {
                let decoded = <$message>::decode(message.encode_to_vec().as_slice());
                assert_eq!(decoded.as_ref(), Ok(&message));
            }
        )*};
    }
    decode!(
        nri::ConfigureRequest,
        nri::SynchronizeRequest,
        nri::CreateContainerRequest,
        nri::UpdateContainerRequest,
        nri::StateChangeEvent,
        nri::ValidateContainerAdjustmentRequest,
        nri::UpdateContainersResponse,
        hooks::PodSandboxHookRequest,
        hooks::ContainerResourceHookRequest,
        hooks::ContainerResourceHookResponse,
        cri::RunPodSandboxRequest,
        cri::CreateContainerRequest,
        cri::UpdateContainerResourcesRequest,
        cri::ContainerStatusResponse,
        cri::PodSandboxStatusResponse,
        cri::ListContainersResponse,
        cri::ContainerEventResponse,
        podresources::ListPodResourcesResponse,
        podresources::AllocatableResourcesResponse,
        deviceplugin::ListAndWatchResponse,
        deviceplugin::AllocateRequest,
    );
}
