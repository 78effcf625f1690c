//! The latency-sensitive service: one worker thread per CPU, each pinned, each with its own epoll
//! set. A request costs a fixed amount of CPU and is answered on the connection it came from.
//!
//! Wire format, both directions: 8 bytes, opaque to the server, echoed back when the work is done.

use anyhow::{Context, Result};
use parking_lot::RwLock;
use rustix::event::epoll;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Size of a request and of a response, in bytes.
pub const FRAME: usize = 8;

/// How the service runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Worker threads, each pinned to the CPU of its number. Defaults to one per allowed CPU.
    #[arg(long)]
    pub workers: Option<usize>,
    /// CPU work per request, in xorshift steps.
    #[arg(long, default_value_t = 166_000)]
    pub steps: u64,
    /// File that receives the bound address once the service is ready.
    #[arg(long)]
    pub ready_file: Option<std::path::PathBuf>,
}

type Connections = Arc<RwLock<Vec<Arc<TcpStream>>>>;

/// Serves until the process is killed.
///
/// # Errors
/// When the address cannot be bound or a worker cannot be started.
pub fn run(args: &Args) -> Result<()> {
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let cpus = allowed_cpus();
    let workers = args.workers.unwrap_or(cpus.len()).max(1);
    let connections: Connections = Arc::new(RwLock::new(Vec::new()));
    let mut sets = Vec::with_capacity(workers);
    for number in 0..workers {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?);
        sets.push(set.clone());
        let connections = connections.clone();
        let cpu = cpus.get(number % cpus.len().max(1)).copied();
        let steps = args.steps;
        std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || {
                if let Some(cpu) = cpu {
                    pin_to(cpu);
                }
                work(&set, &connections, steps);
            })
            .context("cannot start a worker")?;
    }
    if let Some(path) = &args.ready_file {
        let address = listener.local_addr().context("local address")?;
        // Written whole and renamed, so that a reader never sees half an address.
        let partial = path.with_extension("partial");
        std::fs::write(&partial, address.to_string())
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        if stream.set_nodelay(true).is_err() || stream.set_nonblocking(true).is_err() {
            continue;
        }
        let stream = Arc::new(stream);
        let index = {
            let mut all = connections.write();
            all.push(stream.clone());
            all.len() - 1
        };
        let set = &sets[index % sets.len()];
        let data = epoll::EventData::new_u64(index as u64);
        if let Err(error) = epoll::add(set, &*stream, data, epoll::EventFlags::IN) {
            tracing::warn!(%error, "connection dropped");
        }
    }
    Ok(())
}

/// The CPUs this process may run on.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    let mask = rustix::thread::sched_getaffinity(None);
    mask.map(|mask| {
        (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|cpu| mask.is_set(*cpu))
            .collect()
    })
    .ok()
    .filter(|cpus: &Vec<usize>| !cpus.is_empty())
    .unwrap_or_else(|| vec![0])
}

/// Pins the calling thread to one CPU; a refusal is logged, the thread then floats.
pub fn pin_to(cpu: usize) {
    let mut mask = rustix::thread::CpuSet::new();
    mask.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &mask) {
        tracing::warn!(cpu, %error, "cannot pin the thread");
    }
}

fn work(set: &std::os::fd::OwnedFd, connections: &Connections, steps: u64) {
    let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
    let mut state = 0x9e37_79b9_7f4a_7c15;
    loop {
        events.clear();
        match epoll::wait(set, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "epoll_wait failed; the worker ends");
                return;
            }
        }
        for event in &events {
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let Some(stream) = connections.read().get(index).cloned() else {
                continue;
            };
            if !answer(&stream, steps, &mut state) {
                let _ = epoll::delete(set, &*stream);
            }
        }
    }
}

/// Answers one request. Returns false when the connection is finished.
fn answer(mut stream: &TcpStream, steps: u64, state: &mut u64) -> bool {
    let mut frame = [0u8; FRAME];
    // Frames are written whole on loopback, so a short read means the peer is gone or misbehaves.
    match stream.read(&mut frame) {
        Ok(FRAME) => {}
        Ok(_) => return false,
        Err(error) => return error.kind() == ErrorKind::WouldBlock,
    }
    *state = super::spin(*state, steps);
    matches!(stream.write(&frame), Ok(FRAME))
}
