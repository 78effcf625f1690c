//! A program in a separate process, and the socket on which its requests are watched and it is killed.

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{Method, Request};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt;

/// Returns true if the request is a write that the tests follow: neither of an election nor of an event.
pub(crate) fn writes(method: &Method, path: &str) -> bool {
    *method != Method::GET && !path.contains("/leases") && !path.contains("/events")
}

/// Returns true if the request is a write of the lease.
pub(crate) fn elects(method: &Method, path: &str) -> bool {
    *method != Method::GET && path.contains("/leases")
}

/// Returns the command of a daemon inside koord, with this kubeconfig.
pub(crate) fn daemon(name: &str, kubeconfig: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_koord"));
    command.arg(name).arg("--kubeconfig").arg(kubeconfig);
    command
}

pub(crate) struct Wire {
    server: Router,
    /// Serializes writes to the server: the state at the time of a death is certain.
    pub(crate) turn: tokio::sync::Mutex<()>,
    dead: AtomicBool,
    /// Identity that the process wrote into the lease.
    identity: Mutex<Option<String>>,
    child: Mutex<Option<Child>>,
}

impl Wire {
    pub(crate) fn new(server: Router) -> Self {
        Self {
            server,
            turn: tokio::sync::Mutex::new(()),
            dead: AtomicBool::new(false),
            identity: Mutex::new(None),
            child: Mutex::new(None),
        }
    }

    /// Starts the program, before its first request.
    pub(crate) fn start(&self, command: &mut Command) {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.env("RUST_LOG", "error").spawn().unwrap();
        *self.child.lock().unwrap() = Some(child);
    }

    /// Stops serving the process's requests.
    pub(crate) fn cut(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Returns true if the process was started and has not been seen to end.
    pub(crate) fn is_there(&self) -> bool {
        self.child.lock().unwrap().is_some()
    }

    pub(crate) async fn serve(&self, request: Request<Body>) -> Response {
        let answer = self.server.clone().oneshot(request).await;
        answer.unwrap_or_else(|never| match never {})
    }

    /// Reads the process's identity from a write of the lease.
    pub(crate) async fn elected(&self, request: Request<Body>) -> Response {
        let (parts, body) = request.into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let lease: Value = serde_json::from_slice(&bytes).unwrap();
        // A leader that releases the lease writes an empty holder.
        if let Some(holder) = lease["spec"]["holderIdentity"].as_str()
            && !holder.is_empty()
        {
            *self.identity.lock().unwrap() = Some(holder.to_owned());
        }
        self.serve(Request::from_parts(parts, Body::from(bytes)))
            .await
    }

    pub(crate) fn identity(&self) -> Option<String> {
        self.identity.lock().unwrap().clone()
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&self) -> ExitStatus {
        let child = self.child.lock().unwrap().take();
        let mut child = child.expect("it was alive: it wrote");
        child.kill().unwrap();
        child.wait().unwrap()
    }

    /// Returns true if the process ended by itself, which happens only after a lost lease.
    pub(crate) fn has_left(&self) -> bool {
        let mut child = self.child.lock().unwrap();
        let ended = child.as_mut().map(|child| child.try_wait().unwrap());
        let Some(Some(status)) = ended else {
            return false;
        };
        assert_eq!(status.code(), Some(1), "it left because it lost its lease");
        *child = None;
        true
    }

    /// Waits until it was killed; `None` if it ended by itself.
    pub(crate) async fn died<T>(&self, killed: &mut oneshot::Receiver<T>) -> Option<T> {
        loop {
            // A process that ends by itself sends no message.
            let pause = tokio::time::sleep(Duration::from_millis(200));
            tokio::select! {
                death = &mut *killed => return Some(death.unwrap()),
                () = pause => {}
            }
            if self.has_left() {
                return None;
            }
        }
    }

    /// Stops it, and waits for an orderly end. On a busy machine, it may have lost its lease and ended
    /// before.
    pub(crate) async fn stop(&self) {
        self.has_left();
        let child = self.child.lock().unwrap().take();
        let Some(mut child) = child else { return };
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = tokio::task::spawn_blocking(move || child.wait().unwrap());
        let status = status.await.unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Serves `router` on a socket, and writes a kubeconfig for it to `dir`.
pub(crate) async fn listen(dir: &Path, router: Router) -> (PathBuf, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let kubeconfig = dir.join(format!("{port}.yaml"));
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
         users: [{{name: u, user: {{}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let stop = CancellationToken::new();
    let serving = stop.clone().drop_guard();
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            ended = axum::serve(listener, router) => ended.unwrap(),
        }
    });
    (kubeconfig, serving)
}
