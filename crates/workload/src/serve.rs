//! The latency-sensitive service: one worker thread per CPU, each pinned, each with its own epoll
//! set. A request costs a fixed amount of CPU and is answered on the connection it came from.
//!
//! Wire format, both directions: 8 bytes, opaque to the server, echoed back when the work is done.

use anyhow::{Context, Result};
use parking_lot::RwLock;
use rustix::event::epoll;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

/// Size of a request and of a response, in bytes.
pub const FRAME: usize = 8;

/// Options of the service.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Number of worker threads, each pinned to the CPU of its number. Defaults to one per allowed CPU.
    #[arg(long)]
    pub workers: Option<usize>,
    /// CPU work per request, in xorshift steps.
    #[arg(long, default_value_t = 166_000)]
    pub steps: u64,
    /// Memory that requests walk through in random order, in MiB.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub table_mib: u32,
    /// Number of cache lines of that memory that a request reads one after the other.
    #[arg(long, default_value_t = 0)]
    pub walk: u32,
    /// File from which requests read pages at random.
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Number of 4 KiB pages that a request reads.
    #[arg(long, default_value_t = 0)]
    pub pages: u32,
    /// File that receives the bound address once the service is ready.
    #[arg(long)]
    pub ready_file: Option<PathBuf>,
}

/// Work of a request.
#[derive(Debug, Clone)]
struct RequestWork {
    steps: u64,
    table: Arc<[u32]>,
    walk: u32,
    file: Option<Arc<std::fs::File>>,
    file_pages: u64,
    pages: u32,
    state: u64,
    place: u32,
}

const PAGE: u64 = 4096;
/// Entries of the table per cache line of 64 bytes; one of them is used.
const LINE: usize = 16;

impl RequestWork {
    /// Prepares the table and the file of the requests.
    fn new(args: &Args) -> Result<Self> {
        let lines = args.table_mib as usize * (1 << 20) / 64;
        let file = args.file.as_ref().map(|path| {
            let open = std::fs::File::open(path);
            open.with_context(|| format!("cannot open {}", path.display()))
        });
        let file = file.transpose()?;
        let length = file.as_ref().map_or(Ok(0), |file| {
            file.metadata()
                .map(|meta| meta.len())
                .context("failed to read the length of the file")
        })?;
        Ok(Self {
            steps: args.steps,
            table: table(lines).into(),
            walk: if lines == 0 { 0 } else { args.walk },
            pages: if length < PAGE { 0 } else { args.pages },
            file: file.map(Arc::new),
            file_pages: length / PAGE,
            state: 0x9e37_79b9_7f4a_7c15,
            place: 0,
        })
    }

    fn request(&mut self) {
        self.state = super::spin(self.state, self.steps);
        for _ in 0..self.walk {
            let line = self.table.get(self.place as usize * LINE);
            self.place = line.copied().unwrap_or(0);
        }
        let Some(file) = &self.file else { return };
        let mut page = [0_u8; PAGE as usize];
        for _ in 0..self.pages {
            self.state = super::spin(self.state, 1);
            let at = self.state % self.file_pages.max(1) * PAGE;
            // A failed read costs the request its page and has no other effect.
            let _ = file.read_at(&mut page, at);
        }
    }
}

/// Returns one cycle through all lines in random order, so that no prefetcher can guess the next.
fn table(lines: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..u32::try_from(lines).unwrap_or(u32::MAX)).collect();
    let mut random = fastrand::Rng::with_seed(7);
    for last in (1..order.len()).rev() {
        order.swap(last, random.usize(0..last));
    }
    let mut table = vec![0; lines * LINE];
    for (line, next) in order.into_iter().enumerate() {
        table[line * LINE] = next;
    }
    table
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
    let request = RequestWork::new(args)?;
    let connections: Connections = Arc::new(RwLock::new(Vec::new()));
    let mut sets = Vec::with_capacity(workers);
    for number in 0..workers {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?);
        sets.push(set.clone());
        let connections = connections.clone();
        let cpu = cpus.get(number % cpus.len().max(1)).copied();
        let request = request.clone();
        std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || {
                if let Some(cpu) = cpu {
                    pin_to(cpu);
                }
                serve_requests(&set, &connections, request);
            })
            .context("cannot start a worker")?;
    }
    if let Some(path) = &args.ready_file {
        let address = listener.local_addr().context("local address")?;
        // Written whole and renamed, so that no reader gets half an address.
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
            tracing::warn!(%error, "failed to watch a connection, dropping it");
        }
    }
    Ok(())
}

/// Returns the CPUs this process may run on.
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
        tracing::warn!(cpu, %error, "failed to pin the thread");
    }
}

/// Answers the requests of the connections in `set`.
fn serve_requests(set: &std::os::fd::OwnedFd, connections: &Connections, mut request: RequestWork) {
    let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
    loop {
        events.clear();
        match epoll::wait(set, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "failed to wait for events, stopping the worker");
                return;
            }
        }
        for event in &events {
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let Some(stream) = connections.read().get(index).cloned() else {
                continue;
            };
            if !answer(&stream, &mut request) {
                let _ = epoll::delete(set, &*stream);
            }
        }
    }
}

/// Answers one request. Returns false when the connection is finished.
fn answer(mut stream: &TcpStream, request: &mut RequestWork) -> bool {
    let mut frame = [0u8; FRAME];
    // Frames are written whole on loopback, so a short read means the peer is gone or misbehaves.
    match stream.read(&mut frame) {
        Ok(FRAME) => {}
        Ok(_) => return false,
        Err(error) => return error.kind() == ErrorKind::WouldBlock,
    }
    request.request();
    matches!(stream.write(&frame), Ok(FRAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_visits_every_line_once_before_it_starts_again() {
        let table = table(1000);
        let (mut place, mut seen) = (0, std::collections::BTreeSet::new());
        for _ in 0..1000 {
            assert!(seen.insert(place));
            place = table[place as usize * LINE];
        }
        assert_eq!((place, seen.len()), (0, 1000));
    }
}
