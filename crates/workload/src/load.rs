//! The open-loop load generator.
//!
//! Requests leave at instants drawn in advance (Poisson arrivals), whether or not earlier ones were answered,
//! and latency counts from the *intended* instant. A stall of the service therefore shows in every request it
//! delays: there is no coordinated omission. Both threads request real-time priority, so that the generator
//! itself does not wait.

use super::monotonic_ns;
use super::serve::FRAME;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::time::{ClockId, Timespec};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Options of the load generator.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address of the service.
    #[arg(long)]
    pub connect: SocketAddr,
    /// Mean requests per second.
    #[arg(long, default_value_t = 2000.0)]
    pub rate: f64,
    /// Length of the measured window, in seconds.
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Warm-up before the measured window, not counted, in seconds.
    #[arg(long, default_value_t = 2.0)]
    pub warmup: f64,
    /// Number of connections, used in turn.
    #[arg(long, default_value_t = 32)]
    pub connections: usize,
    /// Seed of the arrival times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Send requests in bursts: for MS milliseconds at TIMES times the rate, then for the second MS at the second
    /// TIMES, in turn.
    #[arg(long, value_name = "MS:TIMES,MS:TIMES")]
    pub bursts: Option<Bursts>,
    /// Request this path with HTTP/1.1, over persistent connections.
    #[arg(long, value_name = "PATH")]
    pub http: Option<String>,
    /// Also report p99 over the cycle of the bursts, in slots of this many milliseconds.
    #[arg(long, requires = "bursts", value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub slots: Option<u64>,
}

/// A rate that alternates between two multiples of the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts([(u64, f64); 2]);

impl std::str::FromStr for Bursts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |part: &str| {
            let (millis, times) = part.split_once(':')?;
            let (millis, times): (u64, f64) = (millis.parse().ok()?, times.parse().ok()?);
            ((1..=60_000).contains(&millis) && (0.01..=100.0).contains(&times))
                .then_some((millis * 1_000_000, times))
        };
        text.split_once(',')
            .and_then(|(first, second)| Some(Self([part(first)?, part(second)?])))
            .ok_or_else(|| {
                format!("expected MS:TIMES,MS:TIMES, such as 60:2.4,140:0.4, got {text:?}")
            })
    }
}

impl Bursts {
    /// Returns the length of a cycle, in nanoseconds.
    fn length(self) -> u64 {
        self.0[0].0 + self.0[1].0
    }

    /// Returns when `mean_gaps` mean gaps of `gap_ns` nanoseconds have passed since `after`; result and
    /// `after` are nanoseconds since the start of the first cycle. A gap is shorter while the rate is higher.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "nanoseconds of a window"
    )]
    fn advance(self, after: u64, mut mean_gaps: f64, gap_ns: f64) -> u64 {
        let length = self.length();
        let mut at = after;
        loop {
            let place = at % length;
            let (end, times) = match place < self.0[0].0 {
                true => (self.0[0].0, self.0[0].1),
                false => (length, self.0[1].1),
            };
            let gaps_to_end = (end - place) as f64 * times / gap_ns;
            if mean_gaps < gaps_to_end {
                return at + (mean_gaps * gap_ns / times) as u64;
            }
            mean_gaps -= gaps_to_end;
            at += end - place;
        }
    }
}

/// Results of the generator in the measured window. Latencies are in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests that were due in the window.
    pub requests: u64,
    /// Requests without an answer two seconds after the window.
    pub errors: u64,
    /// Median latency.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Slowest answer.
    pub max_us: f64,
    /// Send delay of the generator itself, 99th percentile: noise of the machine, not of the service.
    pub send_lag_p99_us: f64,
    /// True if the generator ran at real-time priority.
    pub realtime: bool,
    /// The p99 of the requests due in each slot of the cycle, over all cycles, with `--slots`; 0 for a slot
    /// without requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cycle_p99_us: Vec<f64>,
    /// Points (latency, fraction of requests at most this slow) for drawing.
    pub distribution: Vec<(f64, f64)>,
    /// Begin and end of the window, `CLOCK_MONOTONIC` nanoseconds.
    pub window_ns: (u64, u64),
}

/// Runs the generator in a process of its own and waits for its outcome. `options` are those of `koord
/// workload load`; `started` receives the process's id.
///
/// # Errors
/// When the process cannot be started, fails, or prints anything else than an outcome.
pub async fn run_apart(
    executable: &Path,
    options: impl IntoIterator<Item = (&str, String)>,
    started: impl FnOnce(u32),
) -> Result<Outcome> {
    let mut command = tokio::process::Command::new(executable);
    command.args(["workload", "load"]);
    for (name, value) in options {
        command.args([name, &value]);
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start the load generator")?;
    child.id().map(started);
    let output = child.wait_with_output().await.context("load generator")?;
    anyhow::ensure!(
        output.status.success(),
        "the load generator failed: {}",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("the load generator's outcome")
}

/// Generates the load and measures.
///
/// # Errors
/// When the service cannot be reached.
pub fn run(args: &Args) -> Result<Outcome> {
    let realtime = koord_host::sched::set_fifo(50).is_ok();
    let mut streams = Vec::with_capacity(args.connections);
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?;
    for index in 0..args.connections.max(1) {
        let stream = TcpStream::connect(args.connect)
            .with_context(|| format!("cannot connect to {}", args.connect))?;
        stream.set_nodelay(true).context("TCP_NODELAY")?;
        stream
            .set_nonblocking(true)
            .context("non-blocking socket")?;
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&set, &stream, data, epoll::EventFlags::IN).context("epoll_ctl")?;
        streams.push(stream);
    }
    let start = monotonic_ns() + 50_000_000;
    let window = (
        start + nanos(args.warmup),
        start + nanos(args.warmup + args.seconds),
    );
    let sent = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let cycle = args.bursts.zip(args.slots).map(|(bursts, millis)| Cycle {
        start,
        length: bursts.length(),
        slot: millis * 1_000_000,
    });
    let http = args
        .http
        .as_deref()
        .map(|path| Http::new(path, streams.len()));
    let (lag, latency) = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            if realtime {
                let _ = koord_host::sched::set_fifo(50);
            }
            let latencies = WindowLatencies::new(window, cycle);
            receive(&set, &streams, http.as_ref(), latencies, &sent, &done)
        });
        let lag = send(args, http.as_ref(), &streams, start, window, &sent);
        done.store(true, Ordering::Release);
        (lag, receiver.join())
    });
    let (latency, slots) = latency.map_err(|_| anyhow::anyhow!("the receiving thread failed"))?;
    let requests = sent.load(Ordering::Acquire);
    let at = |quantile: f64| micros(latency.value_at_quantile(quantile));
    Ok(Outcome {
        requests,
        errors: requests.saturating_sub(latency.len()),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: micros(latency.max()),
        send_lag_p99_us: micros(lag.value_at_quantile(0.99)),
        realtime,
        cycle_p99_us: slots
            .iter()
            .map(|slot| micros(slot.value_at_quantile(0.99)))
            .collect(),
        distribution: distribution(&latency),
        window_ns: window,
    })
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds of a demo"
)]
pub fn nanos(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e9) as u64
}

#[allow(clippy::cast_precision_loss, reason = "microseconds for people")]
fn micros(nanoseconds: u64) -> f64 {
    (nanoseconds as f64 / 100.0).round() / 10.0
}

pub fn new_histogram() -> Histogram<u64> {
    // One nanosecond to one minute at three digits, the bounds the crate documents as valid.
    #[allow(clippy::expect_used, reason = "constant arguments")]
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

/// Returns points of the cumulative distribution, dense in the tail.
fn distribution(latency: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut quantiles: Vec<f64> = (0..100).map(|step| f64::from(step) / 100.0).collect();
    quantiles.extend((0..10).map(|step| 0.99 + f64::from(step) * 0.0009));
    quantiles.extend((0..=10).map(|step| 0.999 + f64::from(step) * 0.0001));
    quantiles
        .into_iter()
        .map(|quantile| (micros(latency.value_at_quantile(quantile)), quantile))
        .collect()
}

/// Sends requests at their due times until the window ends; returns the delays of this thread.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds of a window"
)]
fn send(
    args: &Args,
    http: Option<&Http>,
    streams: &[TcpStream],
    start: u64,
    window: (u64, u64),
    sent: &AtomicU64,
) -> Histogram<u64> {
    let mut lag = new_histogram();
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut due = start;
    for index in 0.. {
        let mean_gaps = -(1.0 - random.f64()).ln();
        let gap_ns = 1e9 / args.rate.max(0.001);
        due = match args.bursts {
            None => due + (mean_gaps * gap_ns) as u64,
            Some(bursts) => start + bursts.advance(due - start, mean_gaps, gap_ns),
        };
        if due >= window.1 {
            break;
        }
        sleep_until(due);
        lag.saturating_record(monotonic_ns().saturating_sub(due).max(1));
        if due >= window.0 {
            sent.fetch_add(1, Ordering::Release);
        }
        // A full socket buffer means hundreds of unanswered requests on this connection. The request then
        // counts as sent and never answered.
        let stream = &streams[index % streams.len()];
        match http {
            None => {
                let _ = (&*stream).write(&due.to_le_bytes());
            }
            Some(http) => http.send(index % streams.len(), stream, due),
        }
    }
    lag
}

/// Measures the delay with which this machine wakes a sleeping real-time thread, in microseconds: the 99th
/// percentile of `probes` sleeps of 4 ms. On a virtual machine the host causes it.
#[must_use]
pub fn wake_lag_us(probes: u32) -> f64 {
    let probe = std::thread::spawn(move || {
        let _ = koord_host::sched::set_fifo(50);
        let mut lag = new_histogram();
        for _ in 0..probes {
            let due = monotonic_ns() + 4_000_000;
            sleep_until(due);
            lag.saturating_record(monotonic_ns().saturating_sub(due).max(1));
        }
        micros(lag.value_at_quantile(0.99))
    });
    probe.join().unwrap_or(f64::INFINITY)
}

pub fn sleep_until(due: u64) {
    let target = Timespec {
        tv_sec: i64::try_from(due / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(due % 1_000_000_000).unwrap_or(0),
    };
    while rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &target)
        == Err(rustix::io::Errno::INTR)
    {}
}

/// The slots of a cycle of bursts, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Cycle {
    start: u64,
    length: u64,
    slot: u64,
}

impl Cycle {
    fn slots(self) -> usize {
        usize::try_from(self.length.div_ceil(self.slot)).unwrap_or(1)
    }

    fn slot_of(self, due: u64) -> usize {
        let place = due.saturating_sub(self.start) % self.length / self.slot;
        usize::try_from(place).unwrap_or(0)
    }
}

/// State of HTTP/1.1 connections: due times of the unanswered requests of each connection, in order, and the
/// bytes read of the next response.
struct Http {
    request: Vec<u8>,
    connections: Vec<Mutex<HttpConnection>>,
}

#[derive(Default)]
struct HttpConnection {
    due: VecDeque<u64>,
    head: Vec<u8>,
    body_left: usize,
}

impl Http {
    fn new(path: &str, connections: usize) -> Self {
        Self {
            request: format!("GET {path} HTTP/1.1\r\nHost: koord\r\n\r\n").into_bytes(),
            connections: (0..connections).map(|_| Mutex::default()).collect(),
        }
    }

    fn send(&self, index: usize, mut stream: &TcpStream, due: u64) {
        // Recorded before it is sent, because the response could arrive first.
        self.connections[index].lock().due.push_back(due);
        if stream.write(&self.request).is_err() {
            self.connections[index].lock().due.pop_back();
        }
    }

    /// Calls `answered` with the due time of every answer that `bytes` completes.
    fn read(&self, index: usize, mut bytes: &[u8], mut answered: impl FnMut(u64)) {
        let mut waiting = self.connections[index].lock();
        while !bytes.is_empty() {
            if waiting.body_left == 0 {
                let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                    waiting.head.extend_from_slice(bytes);
                    return;
                };
                waiting.head.extend_from_slice(&bytes[..=end]);
                bytes = &bytes[end + 1..];
                if !waiting.head.ends_with(b"\r\n\r\n") {
                    continue;
                }
                waiting.body_left = content_length(&waiting.head);
                waiting.head.clear();
            }
            let part = waiting.body_left.min(bytes.len());
            waiting.body_left -= part;
            bytes = &bytes[part..];
            if waiting.body_left == 0
                && let Some(due) = waiting.due.pop_front()
            {
                answered(due);
            }
        }
    }
}

/// Returns the `Content-Length` of a response's head; 0 without one.
fn content_length(head: &[u8]) -> usize {
    let text = String::from_utf8_lossy(head);
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_it = name.eq_ignore_ascii_case("content-length");
        is_it.then(|| value.trim().parse().ok()).flatten()
    });
    line.unwrap_or(0)
}

/// Latencies observed in the window.
struct WindowLatencies {
    window: (u64, u64),
    cycle: Option<Cycle>,
    all: Histogram<u64>,
    slots: Vec<Histogram<u64>>,
}

impl WindowLatencies {
    fn new(window: (u64, u64), cycle: Option<Cycle>) -> Self {
        let slots = cycle.map_or(0, Cycle::slots);
        Self {
            window,
            cycle,
            all: new_histogram(),
            slots: (0..slots).map(|_| new_histogram()).collect(),
        }
    }

    fn record_answer(&mut self, due: u64, now: u64) {
        if due < self.window.0 || due >= self.window.1 {
            return;
        }
        let took = now.saturating_sub(due).max(1);
        self.all.saturating_record(took);
        let slot = self.cycle.map(|cycle| cycle.slot_of(due));
        if let Some(slot) = slot.and_then(|slot| self.slots.get_mut(slot)) {
            slot.saturating_record(took);
        }
    }
}

/// Receives answers until all are there or two seconds have passed after the window.
fn receive(
    set: &std::os::fd::OwnedFd,
    streams: &[TcpStream],
    http: Option<&Http>,
    mut latencies: WindowLatencies,
    sent: &AtomicU64,
    done: &AtomicBool,
) -> (Histogram<u64>, Vec<Histogram<u64>>) {
    let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
    let patience = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    let mut bytes = [0u8; 32 << 10];
    loop {
        events.clear();
        match epoll::wait(
            set,
            rustix::buffer::spare_capacity(&mut events),
            Some(&patience),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return (latencies.all, latencies.slots),
        }
        let now = monotonic_ns();
        for event in &events {
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let Some(mut stream) = streams.get(index) else {
                continue;
            };
            let size = if http.is_some() {
                bytes.len()
            } else {
                FRAME * 64
            };
            let Ok(length) = stream.read(&mut bytes[..size]) else {
                continue;
            };
            if length == 0 {
                let _ = epoll::delete(set, stream);
            }
            match http {
                None => {
                    for frame in bytes[..length].chunks_exact(FRAME) {
                        latencies
                            .record_answer(frame.try_into().map_or(0, u64::from_le_bytes), now);
                    }
                }
                Some(http) => http.read(index, &bytes[..length], |due| {
                    latencies.record_answer(due, now);
                }),
            }
        }
        if done.load(Ordering::Acquire) {
            let answered = latencies.all.len() >= sent.load(Ordering::Acquire);
            if answered || now > latencies.window.1 + 2_000_000_000 {
                return (latencies.all, latencies.slots);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_loop_run_against_the_service_answers_every_request() {
        let dir = tempfile::tempdir().unwrap();
        let ready = dir.path().join("ready");
        let args = crate::serve::Args {
            listen: "127.0.0.1:0".parse().unwrap(),
            workers: Some(2),
            steps: 100,
            table_mib: 1,
            walk: 10,
            file: None,
            pages: 0,
            ready_file: Some(ready.clone()),
        };
        std::thread::spawn(move || crate::serve::run(&args));
        let deadline = monotonic_ns() + 10_000_000_000;
        let address = loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                break text.parse().unwrap();
            }
            assert!(monotonic_ns() < deadline, "the service did not start");
            std::thread::yield_now();
        };
        let outcome = run(&Args {
            connect: address,
            rate: 500.0,
            seconds: 0.4,
            warmup: 0.1,
            connections: 4,
            seed: 3,
            bursts: Some("20:1.5,20:0.5".parse().unwrap()),
            slots: Some(10),
            http: None,
        })
        .unwrap();
        assert!(outcome.requests > 50, "{outcome:?}");
        assert_eq!(outcome.errors, 0);
        assert_eq!(outcome.cycle_p99_us.len(), 4);
        assert!(outcome.cycle_p99_us[0] > 0.0);
        assert!(outcome.p50_us <= outcome.p99_us && outcome.p99_us <= outcome.max_us);
        assert!(
            outcome
                .distribution
                .windows(2)
                .all(|pair| pair[0].0 <= pair[1].0)
        );
    }

    #[test]
    fn http_responses_split_at_any_byte_are_counted_once() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\n\r\nab\r\nc\
            HTTP/1.1 304 Not Modified\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
        for size in 1..bytes.len() {
            let http = Http::new("/", 1);
            http.connections[0].lock().due.extend([7, 8, 9]);
            let mut answered = Vec::new();
            for part in bytes.chunks(size) {
                http.read(0, part, |due| answered.push(due));
            }
            assert_eq!(answered, [7, 8, 9], "in pieces of {size}");
        }
    }

    #[test]
    fn bursts_keep_the_mean_and_change_the_rate_within_a_cycle() {
        let bursts: Bursts = "60:2.4,140:0.4".parse().unwrap();
        // 0.3 x 2.4 + 0.7 x 0.4 = 1: a cycle of 200 ms holds 200 mean gaps of 1 ms, 144 of them in
        // the burst.
        let at = |gaps: f64| bursts.advance(0, gaps, 1e6) / 1_000_000;
        assert_eq!((at(72.0), at(144.0), at(172.0)), (30, 60, 130));
        assert_eq!((at(200.0), at(272.0)), (200, 230));
        for bad in ["60:2.4", "0:1,1:1", "60:2.4,140:x", "1:1,1:NaN"] {
            assert!(bad.parse::<Bursts>().is_err(), "{bad}");
        }
    }
}
