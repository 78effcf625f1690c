//! Processes that follow each other. A program of its own, without the test harness: it is started again
//! as the proxy, with the proxy's flags.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on must panic"
)]

#[path = "it/world.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod world;

use futures::future::BoxFuture;
use http::Response;
use koord_host::testing::{PATIENCE, eventually};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use world::{Body, GrpcClient, TestEnv, frame, record_call, reply, serve};

/// Environment variable that makes the test program run the proxy.
const PROXY: &str = "KOORD_TEST_IS_PROXY";

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if std::env::var_os(PROXY).is_some() {
        let parsed = koord_app::flags::parse::<koord_runtime_proxy::Args>(std::env::args_os());
        let options = parsed.unwrap().args.options().unwrap();
        runtime.block_on(async {
            let context = koord_app::Context::new();
            koord_app::shutdown::on_signals(context.shutdown.clone()).unwrap();
            koord_runtime_proxy::run(options, context, || {})
                .await
                .unwrap();
        });
        return;
    }
    runtime.block_on(restart_fails_no_call());
    runtime.block_on(reloads_fail_no_call_of_new_connections());
}

/// The first process and all that follow it, which are of its process group: none outlives the test,
/// however it ends.
struct Family {
    first: Child,
}

impl Family {
    fn group(&self) -> String {
        format!("-{}", self.first.id())
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-KILL", "--", &self.group()])
            .stderr(Stdio::null())
            .status();
        let _ = self.first.wait();
    }
}

/// Returns the process that announced itself as serving.
fn announced(notify: &UnixDatagram) -> String {
    let mut text = [0; 100];
    let length = notify.recv(&mut text).expect("a process that serves");
    let text = String::from_utf8(text[..length].to_vec()).unwrap();
    let pid = text.strip_prefix("READY=1\nMAINPID=").unwrap();
    pid.trim_end().to_owned()
}

/// Returns true if a process runs; a zombie has no command line.
fn is_running(pid: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline"));
    line.is_ok_and(|line| !line.is_empty())
}

fn signal(name: &str, pid: &str) {
    let status = Command::new("kill").args([name, pid]).status();
    assert!(status.unwrap().success());
}

/// Starts a first process with these additional flags; returns the socket on which serving processes announce
/// themselves.
fn start(world: &TestEnv, flags: &[&str]) -> (Family, UnixDatagram) {
    let notify_path = world.path("notify");
    let notify = UnixDatagram::bind(&notify_path).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let flag = |name: &str, path: &std::path::Path| format!("--{name}={}", path.display());
    let first = Command::new(std::env::current_exe().unwrap())
        .arg(flag("koord-runtimeproxy-endpoint", &world.options.listen))
        .arg(flag(
            "remote-runtime-service-endpoint",
            &world.options.runtime,
        ))
        .arg(flag("runtime-hook-server-config-dir", &world.options.hooks))
        .args(flags)
        .env("NOTIFY_SOCKET", &notify_path)
        .env(PROXY, "1")
        .process_group(0)
        .spawn()
        .unwrap();
    (Family { first }, notify)
}

/// Verifies that an existing connection of a kubelet ends when its calls are done, and that a new one goes to
/// the new process.
async fn restart_fails_no_call() {
    let world = TestEnv::new();
    let (came, mut has_come) = mpsc::unbounded_channel::<()>();
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    let handler = Arc::new(move |request: http::Request<hyper::body::Incoming>| {
        let (came, gate) = (came.clone(), gate.clone());
        let answer: BoxFuture<'static, Response<Body>> = Box::pin(async move {
            if record_call(request).await.path.ends_with("/RunPodSandbox") {
                came.send(()).unwrap();
                gate.notified().await;
            }
            reply(frame(b"\x0a\x02id"), "0")
        });
        answer
    });
    let _runtime = serve(&world.options.runtime, handler);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (mut family, notify) = start(&world, &[&format!("--metrics-addr={address}")]);
    let wait = || tokio::task::block_in_place(|| announced(&notify));
    let mut pids = vec![wait()];
    assert_eq!(pids[0], family.first.id().to_string());
    for _ in 0..3 {
        let before = GrpcClient::connect(&world.options.listen).await;
        let run = before.call("/runtime.v1.RuntimeService/RunPodSandbox", frame(b""));
        let follow = async {
            has_come.recv().await.unwrap();
            signal("-HUP", pids.last().unwrap());
            pids.push(wait());
            let after = GrpcClient::connect(&world.options.listen).await;
            let got = after
                .call("/runtime.v1.RuntimeService/Status", frame(b""))
                .await;
            assert_eq!(got.status().0, "0");
            go.notify_one();
        };
        let (got, ()) = tokio::join!(run, follow);
        assert_eq!(got.status().0, "0", "{got:?}");
    }
    let status = tokio::task::block_in_place(|| family.first.wait()).unwrap();
    assert!(status.success(), "{status}");
    let last = pids.last().unwrap().clone();
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), 4);
    // The port of the processes before it is free for the last one.
    let served = async || {
        let scraped = scrape(address).await.ok()?;
        scraped
            .contains("koord_runtime_proxy_hook_servers 0")
            .then_some(())
    };
    eventually("metrics of the last process", served).await;
    signal("-TERM", &last);
    // The last process ends on SIGTERM, those before it when they have been replaced.
    let ended = async || pids.iter().all(|pid| !is_running(pid)).then_some(());
    eventually("end of all processes", ended).await;
}

/// Returns the metrics that a process serves.
async fn scrape(address: std::net::SocketAddr) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Number of restarts while clients call.
const RELOADS: usize = 100;

/// Verifies many reloads while clients call. Each call has its own connection, which exists for a moment
/// before the call is made, and no call is repeated.
async fn reloads_fail_no_call_of_new_connections() {
    let world = TestEnv::new();
    let handler = Arc::new(|request: http::Request<hyper::body::Incoming>| {
        let answer: BoxFuture<'static, Response<Body>> = Box::pin(async move {
            record_call(request).await;
            reply(frame(b""), "0")
        });
        answer
    });
    let _runtime = serve(&world.options.runtime, handler);
    let (_family, notify) = start(&world, &[]);
    let wait = || tokio::task::block_in_place(|| announced(&notify));
    let mut last = wait();
    let enough = CancellationToken::new();
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (enough, listen) = (enough.clone(), world.options.listen.clone());
            tokio::spawn(async move {
                let (mut calls, mut failed) = (0, Vec::new());
                while !enough.is_cancelled() {
                    let client = GrpcClient::connect(&listen).await;
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(..4))).await;
                    calls += 1;
                    let got = client.try_call("/runtime.v1.RuntimeService/Status", frame(b""));
                    match got.await {
                        Ok(got) if got.status().0 == "0" => {}
                        got => failed.push(format!("{got:?}")),
                    }
                }
                (calls, failed)
            })
        })
        .collect();
    for _ in 0..RELOADS {
        signal("-HUP", &last);
        let next = wait();
        assert_ne!(next, last);
        last = next;
    }
    enough.cancel();
    let mut calls = 0;
    for caller in callers {
        let (made, failed) = caller.await.unwrap();
        assert_eq!(failed, Vec::<String>::new());
        calls += made;
    }
    assert!(calls > RELOADS, "{calls} calls");
}
