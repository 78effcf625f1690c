//! Processes that follow each other. A program of its own, without the test harness: it is started again
//! as the proxy, with the proxy's flags.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall panic")]

#[path = "it/world.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod world;

use futures::future::BoxFuture;
use http::Response;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use world::{Body, Client, World, frame, hear, reply, serve};

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
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
    runtime.block_on(no_call_fails_when_one_process_follows_another());
}

/// The process that says it serves.
fn announced(notify: &UnixDatagram) -> String {
    let mut text = [0; 100];
    let length = notify.recv(&mut text).unwrap();
    let text = String::from_utf8(text[..length].to_vec()).unwrap();
    let pid = text.strip_prefix("READY=1\nMAINPID=").unwrap();
    pid.trim_end().to_owned()
}

fn signal(name: &str, pid: &str) {
    let status = Command::new("kill").args([name, pid]).status();
    assert!(status.unwrap().success());
}

/// A kubelet's connection that was there before ends when its calls have; a new one is the successor's.
async fn no_call_fails_when_one_process_follows_another() {
    let world = World::new();
    let (came, mut has_come) = mpsc::unbounded_channel::<()>();
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    let handler = Arc::new(move |request: http::Request<hyper::body::Incoming>| {
        let (came, gate) = (came.clone(), gate.clone());
        let answer: BoxFuture<'static, Response<Body>> = Box::pin(async move {
            if hear(request).await.path.ends_with("/RunPodSandbox") {
                came.send(()).unwrap();
                gate.notified().await;
            }
            reply(frame(b"\x0a\x02id"), "0")
        });
        answer
    });
    let _runtime = serve(&world.options.runtime, handler);
    let notify_path = world.path("notify");
    let notify = UnixDatagram::bind(&notify_path).unwrap();
    let flag = |name: &str, path: &std::path::Path| format!("--{name}={}", path.display());
    let mut first = Command::new(std::env::current_exe().unwrap())
        .arg(flag("koord-runtimeproxy-endpoint", &world.options.listen))
        .arg(flag(
            "remote-runtime-service-endpoint",
            &world.options.runtime,
        ))
        .arg(flag("runtime-hook-server-config-dir", &world.options.hooks))
        .env("NOTIFY_SOCKET", &notify_path)
        .spawn()
        .unwrap();
    let wait = || tokio::task::block_in_place(|| announced(&notify));
    let mut pids = vec![wait()];
    assert_eq!(pids[0], first.id().to_string());
    for _ in 0..3 {
        let before = Client::connect(&world.options.listen).await;
        let run = before.call("/runtime.v1.RuntimeService/RunPodSandbox", frame(b""));
        let follow = async {
            has_come.recv().await.unwrap();
            signal("-HUP", pids.last().unwrap());
            pids.push(wait());
            let after = Client::connect(&world.options.listen).await;
            let got = after
                .call("/runtime.v1.RuntimeService/Status", frame(b""))
                .await;
            assert_eq!(got.status().0, "0");
            go.notify_one();
        };
        let (got, ()) = tokio::join!(run, follow);
        assert_eq!(got.status().0, "0", "{got:?}");
    }
    let status = tokio::task::block_in_place(|| first.wait()).unwrap();
    assert!(status.success(), "{status}");
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), 4);
    signal("-TERM", &wait_for_last(&world).await);
}

/// The process that serves now: the only one left.
async fn wait_for_last(world: &World) -> String {
    let flag = world.options.listen.display().to_string();
    loop {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&flag) {
                found.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        if let [pid] = found.as_slice() {
            return pid.clone();
        }
        tokio::task::yield_now().await;
    }
}
