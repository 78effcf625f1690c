//! The open-loop load generator.
//!
//! Requests leave at instants drawn in advance (Poisson arrivals), whether or not earlier ones
//! were answered, and latency counts from the *intended* instant. A stall of the service therefore
//! shows in every request it delays: there is no coordinated omission. Both threads ask for
//! real-time priority, so that the generator itself is not what waits.

use super::monotonic_ns;
use super::serve::FRAME;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::event::epoll;
use rustix::time::{ClockId, Timespec};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How the load is made.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The service.
    #[arg(long)]
    pub connect: SocketAddr,
    /// Mean arrivals per second.
    #[arg(long, default_value_t = 2000.0)]
    pub rate: f64,
    /// Length of the measured window, in seconds.
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Load before the window that is not counted, in seconds.
    #[arg(long, default_value_t = 2.0)]
    pub warmup: f64,
    /// Connections, used in turn.
    #[arg(long, default_value_t = 32)]
    pub connections: usize,
    /// Seed of the arrival times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What the generator saw in the measured window. Latencies are in microseconds.
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
    /// How late the generator itself sent, 99th percentile: noise of the machine, not of the service.
    pub send_lag_p99_us: f64,
    /// Whether the generator ran at real-time priority.
    pub realtime: bool,
    /// Points (latency, fraction of requests at most this slow) for drawing.
    pub distribution: Vec<(f64, f64)>,
    /// When the window began and ended, `CLOCK_MONOTONIC` nanoseconds.
    pub window_ns: (u64, u64),
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
    let (lag, latency) = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            if realtime {
                let _ = koord_host::sched::set_fifo(50);
            }
            receive(&set, &streams, window, &sent, &done)
        });
        let lag = send(args, &streams, start, window, &sent);
        done.store(true, Ordering::Release);
        (lag, receiver.join())
    });
    let latency = latency.map_err(|_| anyhow::anyhow!("the receiving thread failed"))?;
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
        distribution: distribution(&latency),
        window_ns: window,
    })
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds of a demo"
)]
fn nanos(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e9) as u64
}

#[allow(clippy::cast_precision_loss, reason = "microseconds for people")]
fn micros(nanoseconds: u64) -> f64 {
    (nanoseconds as f64 / 100.0).round() / 10.0
}

fn new_histogram() -> Histogram<u64> {
    // One nanosecond to one minute at three digits, the bounds the crate documents as valid.
    #[allow(clippy::expect_used, reason = "constant arguments")]
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

/// Points of the cumulative distribution, dense in the tail.
fn distribution(latency: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut quantiles: Vec<f64> = (0..100).map(|step| f64::from(step) / 100.0).collect();
    quantiles.extend((0..10).map(|step| 0.99 + f64::from(step) * 0.0009));
    quantiles.extend((0..=10).map(|step| 0.999 + f64::from(step) * 0.0001));
    quantiles
        .into_iter()
        .map(|quantile| (micros(latency.value_at_quantile(quantile)), quantile))
        .collect()
}

fn send(
    args: &Args,
    streams: &[TcpStream],
    start: u64,
    window: (u64, u64),
    sent: &AtomicU64,
) -> Histogram<u64> {
    let mut lag = new_histogram();
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut due = start;
    for index in 0.. {
        let gap = -(1.0 - random.f64()).ln() / args.rate.max(0.001);
        due += nanos(gap);
        if due >= window.1 {
            break;
        }
        sleep_until(due);
        lag.saturating_record(monotonic_ns().saturating_sub(due).max(1));
        if due >= window.0 {
            sent.fetch_add(1, Ordering::Release);
        }
        // A full socket buffer means hundreds of unanswered requests on this connection. The
        // request then counts as sent and never answered, which is what happened.
        let _ = (&streams[index % streams.len()]).write(&due.to_le_bytes());
    }
    lag
}

/// How late this machine wakes a sleeping real-time thread at present, in microseconds: the 99th
/// percentile of `probes` sleeps of 4 ms. On a virtual machine this is the host's doing.
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

fn sleep_until(due: u64) {
    let target = Timespec {
        tv_sec: i64::try_from(due / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(due % 1_000_000_000).unwrap_or(0),
    };
    while rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &target)
        == Err(rustix::io::Errno::INTR)
    {}
}

fn receive(
    set: &std::os::fd::OwnedFd,
    streams: &[TcpStream],
    window: (u64, u64),
    sent: &AtomicU64,
    done: &AtomicBool,
) -> Histogram<u64> {
    let mut latency = new_histogram();
    let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
    let patience = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    loop {
        events.clear();
        match epoll::wait(
            set,
            rustix::buffer::spare_capacity(&mut events),
            Some(&patience),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return latency,
        }
        let now = monotonic_ns();
        for event in &events {
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let Some(mut stream) = streams.get(index) else {
                continue;
            };
            let mut frames = [0u8; FRAME * 64];
            let Ok(length) = stream.read(&mut frames) else {
                continue;
            };
            if length == 0 {
                let _ = epoll::delete(set, stream);
            }
            for frame in frames[..length].chunks_exact(FRAME) {
                let due = frame.try_into().map_or(0, u64::from_le_bytes);
                if due >= window.0 && due < window.1 {
                    latency.saturating_record(now.saturating_sub(due).max(1));
                }
            }
        }
        if done.load(Ordering::Acquire) {
            let answered = latency.len() >= sent.load(Ordering::Acquire);
            if answered || now > window.1 + 2_000_000_000 {
                return latency;
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
        let args = super::super::serve::Args {
            listen: "127.0.0.1:0".parse().unwrap(),
            workers: Some(2),
            steps: 100,
            ready_file: Some(ready.clone()),
        };
        std::thread::spawn(move || super::super::serve::run(&args));
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
        })
        .unwrap();
        assert!(outcome.requests > 50, "{outcome:?}");
        assert_eq!(outcome.errors, 0);
        assert!(outcome.p50_us <= outcome.p99_us && outcome.p99_us <= outcome.max_us);
        assert!(
            outcome
                .distribution
                .windows(2)
                .all(|pair| pair[0].0 <= pair[1].0)
        );
    }
}
