//! A runtime that says what it likes to our plugin, after a registration as it should be: calls of any
//! method with any content, and bytes that are no frames. The plugin does not panic, and ends when the
//! runtime does.

#![no_main]

use koord_rpc::mux::frame::header;
use koord_rpc::nri::{
    Container, ContainerUpdate, Event, Handler, LinuxResources, PLUGIN_CHANNEL, PodSandbox,
    RUNTIME_CHANNEL, Reply, Settings, Socket, Stub,
};
use koord_rpc::ttrpc::frame::{FrameKind, Header};
use libfuzzer_sys::fuzz_target;
use std::os::fd::AsRawFd;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Wants nothing.
struct Plugin;

impl Handler for Plugin {
    fn synchronize(&self, _: &[PodSandbox], _: &[Container]) -> Vec<ContainerUpdate> {
        Vec::new()
    }
    fn create(&self, _: &PodSandbox, _: &Container) -> Result<Reply, String> {
        Ok(Reply::default())
    }
    fn update(
        &self,
        _: &PodSandbox,
        container: &Container,
        _: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        let update = ContainerUpdate {
            container_id: container.id.clone(),
            ..ContainerUpdate::default()
        };
        Ok(vec![update])
    }
    fn event(&self, _: Event, _: &PodSandbox, _: Option<&Container>) -> Result<(), String> {
        Ok(())
    }
}

const METHODS: [&str; 12] = [
    "Configure",
    "Synchronize",
    "Shutdown",
    "RunPodSandbox",
    "CreateContainer",
    "UpdateContainer",
    "StartContainer",
    "StateChange",
    "ValidateContainerAdjustment",
    "RemoveContainer",
    "UpdatePodSandbox",
    "None",
];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
});

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length > 0x7f {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(content);
    out
}

fn framed(channel: u32, stream: u32, kind: FrameKind, message: &[u8]) -> Vec<u8> {
    let length = message.len() as u32;
    let frame = Header {
        length,
        stream,
        kind,
        flags: 0,
    };
    [&header(channel, length + 10)[..], &frame.encode(), message].concat()
}

/// Pieces of one byte of kind, one of length, and so much content.
fn said(mut data: &[u8]) -> Vec<u8> {
    // The registration is answered: a response without status and content.
    let mut out = framed(RUNTIME_CHANNEL, 1, FrameKind::Response, &[]);
    let mut stream = 1;
    while let Some((&[kind, length], rest)) = data.split_first_chunk::<2>() {
        let (content, after) = rest.split_at(usize::from(length).min(rest.len()));
        data = after;
        if kind & 0x80 != 0 {
            out.extend(content);
            continue;
        }
        let method = METHODS[usize::from(kind) % METHODS.len()];
        let service = field(1, b"nri.pkg.api.v1alpha1.Plugin");
        let message = [service, field(2, method.as_bytes()), field(3, content)].concat();
        out.extend(framed(PLUGIN_CHANNEL, stream, FrameKind::Request, &message));
        stream += 2;
    }
    out
}

fuzz_target!(|data: &[u8]| {
    RUNTIME.block_on(async {
        let (mut runtime, plugin) = std::os::unix::net::UnixStream::pair()
            .and_then(|(a, b)| {
                a.set_nonblocking(true)?;
                Ok((UnixStream::from_std(a)?, b))
            })
            .expect("a pair of sockets");
        let mut settings = Settings::new("fuzz", "00", vec![Event::CreateContainer]);
        settings.socket = Socket::Inherited(plugin.as_raw_fd());
        let stub = Stub::new(settings, Arc::new(Plugin)).expect("settings");
        let stream = said(data);
        let talk = async {
            let mut answers = [0; 4096];
            // Its registration comes first.
            let _ = runtime.read(&mut answers).await;
            let _ = runtime.write_all(&stream).await;
            let _ = runtime.shutdown().await;
            while runtime
                .read(&mut answers)
                .await
                .is_ok_and(|length| length > 0)
            {}
        };
        let both = async { tokio::join!(stub.run(CancellationToken::new()), talk) };
        let ends = tokio::time::timeout(Duration::from_secs(8), both).await;
        assert!(ends.is_ok(), "the plugin goes on without its runtime");
        drop(plugin);
    });
});
