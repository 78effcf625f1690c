//! Time that the runtime proxy adds to calls that cost the runtime next to nothing.

use super::lanes::{Pod, RuntimeClient, client};
use super::times::Percentiles;
use anyhow::{Result, ensure};
use koord_rpc::cri;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Concurrent calls when throughput is measured.
const PARALLEL: usize = 16;

/// An image that no runtime has.
const NO_IMAGE: &str = "koord.local/none:1";

/// Sockets of the same runtime.
pub(super) struct Sockets {
    pub(super) direct: PathBuf,
    /// Through a proxy without a hook server.
    pub(super) silent: PathBuf,
    /// Through one that calls koordlet.
    pub(super) asking: PathBuf,
}

/// Times of single calls, one after the other, and calls per second, 16 at once.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallFigures {
    /// CreateContainer of an image that does not exist: the proxy reads the request, the hook server answers,
    /// the request is changed, and the runtime looks the image up. Without the proxy.
    #[serde(rename = "directCreate")]
    pub(super) direct: Percentiles,
    /// CreateContainer through a proxy without a hook server.
    #[serde(rename = "silentCreate")]
    pub(super) silent: Percentiles,
    /// CreateContainer through one that calls koordlet.
    #[serde(rename = "askingCreate")]
    pub(super) asking: Percentiles,
    /// Version, a call that the proxy passes on unread.
    direct_passed: Percentiles,
    /// Version through the proxy.
    proxy_passed: Percentiles,
    direct_creates_per_sec: f64,
    silent_creates_per_sec: f64,
    asking_creates_per_sec: f64,
    direct_passed_per_sec: f64,
    proxy_passed_per_sec: f64,
}

/// A call whose answer is ignored.
#[derive(Clone)]
enum Call {
    Create(Box<cri::CreateContainerRequest>),
    Passed,
}

impl Call {
    async fn on(&self, client: &mut RuntimeClient) -> Duration {
        match self {
            Self::Create(request) => {
                let request = request.as_ref().clone();
                let begun = Instant::now();
                drop(client.create_container(request).await);
                begun.elapsed()
            }
            Self::Passed => {
                let begun = Instant::now();
                drop(client.version(cri::VersionRequest::default()).await);
                begun.elapsed()
            }
        }
    }

    /// Measures the call on each client, in turns, so that other load on the machine affects all.
    async fn spread<const N: usize>(
        &self,
        clients: &mut [RuntimeClient; N],
        calls: usize,
    ) -> [Percentiles; N] {
        let mut times = [const { Vec::new() }; N];
        for _ in 0..calls {
            for (client, times) in clients.iter_mut().zip(&mut times) {
                times.push(self.on(client).await);
            }
        }
        times.map(|times| Percentiles::from_times(&times))
    }

    /// Returns the calls per second of [`PARALLEL`] tasks.
    async fn rate(&self, client: &RuntimeClient, calls: usize) -> f64 {
        let begun = Instant::now();
        let each = calls.div_ceil(PARALLEL);
        let all = (0..PARALLEL).map(|_| {
            let (mut client, call) = (client.clone(), self.clone());
            tokio::spawn(async move {
                for _ in 0..each {
                    call.on(&mut client).await;
                }
            })
        });
        futures::future::join_all(all).await;
        (each * PARALLEL) as f64 / begun.elapsed().as_secs_f64()
    }
}

/// Measures with `calls` calls of each kind; creations are of the pod.
///
/// # Errors
/// When the runtime answers something else than that there is no such image.
pub(super) async fn measure(sockets: &Sockets, pod: &Pod, calls: usize) -> Result<CallFigures> {
    let mut clients = [&sockets.direct, &sockets.silent, &sockets.asking].map(|at| client(at));
    let request = pod.create(0, NO_IMAGE);
    for client in &mut clients {
        let answer = client.create_container(request.clone()).await;
        let error = answer
            .err()
            .map_or_else(String::new, |status| status.to_string());
        ensure!(
            error.contains(NO_IMAGE),
            "a container without image: {error:?}"
        );
    }
    let (create, passed) = (Call::Create(Box::new(request)), Call::Passed);
    // Connected and warm.
    create.spread(&mut clients, calls.min(200)).await;
    let [direct, silent, asking] = create.spread(&mut clients, calls).await;
    let [direct_passed, proxy_passed, _] = passed.spread(&mut clients, calls).await;
    let [at_direct, at_silent, at_asking] = &clients;
    Ok(CallFigures {
        direct,
        silent,
        asking,
        direct_passed,
        proxy_passed,
        direct_creates_per_sec: create.rate(at_direct, calls).await,
        silent_creates_per_sec: create.rate(at_silent, calls).await,
        asking_creates_per_sec: create.rate(at_asking, calls).await,
        direct_passed_per_sec: passed.rate(at_direct, calls).await,
        proxy_passed_per_sec: passed.rate(at_silent, calls).await,
    })
}
