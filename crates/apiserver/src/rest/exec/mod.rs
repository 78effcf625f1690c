//! The `pods/exec` subresource over WebSocket, as kubectl 1.31 and later use it. The other streaming
//! subresources are refused with an explanation.
//!
//! The first byte of a message is its channel: 0 to 2 are the standard streams, 3 is the outcome (a Status),
//! 4 the size of the window. With `v5.channel.k8s.io` the client closes a channel by sending 255 and the
//! channel's number.

mod websocket;

use super::call::Call;
use super::{Api, guard, meta};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{SinkExt as _, Stream, StreamExt as _};
use http::{StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, Message};

const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const OUTCOME: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Capacity in frames of the queue to the client; when it is full, the command's output waits.
const WAITING: usize = 16;

/// Options of a `pods/exec` request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Program and arguments; never empty.
    pub command: Vec<String>,
    /// True if the command reads standard input from the client.
    pub stdin: bool,
    /// True if standard output is sent to the client.
    pub stdout: bool,
    /// True if standard error is sent to the client.
    pub stderr: bool,
    /// True if the command has a terminal; standard error is then part of standard output.
    pub tty: bool,
}

/// A running command. Dropping it ends the command.
pub struct ExecSession {
    /// Standard input; dropped at its end.
    pub stdin: Option<mpsc::Sender<Bytes>>,
    /// Output, with true for standard error, until both streams are closed.
    pub output: mpsc::Receiver<(bool, Bytes)>,
    /// Exit code, or why it is unknown.
    pub exit: BoxFuture<'static, Result<i32, String>>,
    /// Sets the size of the terminal, in columns and rows.
    pub resize: Option<Box<dyn Fn(u16, u16) + Send + Sync>>,
}

impl std::fmt::Debug for ExecSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecSession").finish_non_exhaustive()
    }
}

/// Runs commands in containers, for `kubectl exec`.
pub trait PodExec: Send + Sync {
    /// Checks whether a command can run in this container now. The error is a sentence for the user.
    fn check<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
    ) -> BoxFuture<'a, Result<(), String>>;

    /// Starts a command in a container. The error is a sentence for the user.
    fn start<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        options: ExecOptions,
    ) -> BoxFuture<'a, Result<ExecSession, String>>;
}

/// Returns the refusal of `kubectl debug`, which needs containers with namespaces of their own and would run
/// on this machine what is meant for an image.
pub(super) fn debug_refused() -> ApiError {
    ApiError::bad_request(
        "kubectl debug is not served by koord: pods are processes of the host without images, so a \
         shell on this machine, or kubectl exec, sees what they see",
    )
}

/// Returns true if a request creates the pod of `kubectl debug` for a node or a copy of a pod.
pub(super) fn is_debug_pod(resource: &Resource, call: &Call) -> bool {
    const BY: &str = "kubectl-debug";
    // Name prefix of the pod that kubectl creates for a node; older versions set no label.
    const OF_NODE: &str = "node-debugger-";
    let has = |word: &str| {
        let mut parts = call.body.windows(word.len());
        parts.any(|part| part == word.as_bytes())
    };
    &*resource.plural == "pods"
        && resource.group.is_empty()
        && (has(BY) || has(OF_NODE))
        && call.decode().is_ok_and(|body| {
            let label = "app.kubernetes.io/managed-by";
            let by = meta::text(&body.value, &["metadata", "labels", label]);
            by == BY || meta::name(&body.value).starts_with(OF_NODE)
        })
}

/// Returns true if a node of this cluster runs pods.
pub(super) fn runs_pods(api: &Api) -> bool {
    api.inner.pod_exec.is_some()
}

/// Refuses a streaming subresource that is not served, with an alternative.
pub(super) fn refuse_stream(api: &Api, call: &Call, sub: &str) -> Result<Response, ApiError> {
    let pods = api.builtin("", "v1", "pods")?;
    let key = Api::key(&pods, call.namespace(), call.name());
    api.entry(&pods, &key)?;
    let instead = match sub {
        "portforward" => {
            "pods use the network of the host, so the port is open on this machine already"
        }
        _ => "use kubectl logs -f for its output, or kubectl exec",
    };
    Err(ApiError::bad_request(format!(
        "{sub} is not served by koord: {instead}"
    )))
}

/// Serves GET (and POST) of `pods/exec`.
pub(super) async fn serve(api: &Api, call: &Call) -> Result<Response, ApiError> {
    // A GET is authorized as `get`, but running commands also needs `create`.
    guard::check_resource(api.guard(), &call.user, "create", &call.path, &call.query)?;
    let pods = api.builtin("", "v1", "pods")?;
    let key = Api::key(&pods, call.namespace(), call.name());
    let pod = api.entry(&pods, &key)?.value();
    let container = exec_container(&pod, call.query.get("container"))?;
    let options = ExecOptions {
        command: call.query.all("command").map(str::to_owned).collect(),
        stdin: call.query.flag("stdin").unwrap_or(false),
        stdout: call.query.flag("stdout").unwrap_or(false),
        stderr: call.query.flag("stderr").unwrap_or(false),
        tty: call.query.flag("tty").unwrap_or(false),
    };
    if options.command.is_empty() {
        return Err(ApiError::bad_request(
            "you must specify at least one command for the container",
        ));
    }
    if meta::text(&pod, &["spec", "nodeName"]).is_empty() {
        return Err(ApiError::bad_request(format!(
            "pod {} does not have a host assigned",
            call.name()
        )));
    }
    let Some(runner) = api.inner.pod_exec.clone() else {
        return Err(ApiError::bad_request(
            "exec is not served: no node of this cluster runs commands",
        ));
    };
    let (namespace, name) = (call.namespace().to_owned(), call.name().to_owned());
    let checked = runner.check(&namespace, &name, &container).await;
    checked.map_err(ApiError::bad_request)?;
    if !websocket::is_upgrade(&call.headers) {
        return Err(ApiError::bad_request(
            "exec is served over WebSocket only, which kubectl uses since 1.31",
        ));
    }
    let shake = websocket::handshake(&call.headers, &PROTOCOLS).map_err(ApiError::bad_request)?;
    let Some(upgrade) = call.upgrade.clone() else {
        return Err(ApiError::bad_request(
            "this connection cannot be upgraded to a WebSocket",
        ));
    };
    tokio::spawn(async move {
        let started = runner
            .start(&namespace, &name, &container, options.clone())
            .await;
        serve_stream(upgrade, started, &options).await;
    });
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, shake.accept)
        .header(header::SEC_WEBSOCKET_PROTOCOL, shake.protocol)
        .body(Body::empty());
    response.map_err(|error| ApiError::internal(error.to_string()))
}

/// Returns the name of the requested container, or of the pod's first one.
fn exec_container(pod: &Value, requested: Option<&str>) -> Result<String, ApiError> {
    let list = |key: &str| {
        let all = meta::at(pod, &["spec", key]).and_then(Value::as_array);
        all.into_iter()
            .flatten()
            .map(|c| meta::text(c, &["name"]).to_owned())
    };
    let mut all = list("containers").chain(list("initContainers"));
    match requested.filter(|name| !name.is_empty()) {
        None => all
            .next()
            .ok_or_else(|| ApiError::bad_request("the pod has no containers")),
        Some(requested) => all.find(|name| name == requested).ok_or_else(|| {
            let pod = meta::name(pod);
            ApiError::bad_request(format!("container {requested} is not valid for pod {pod}"))
        }),
    }
}

/// Carries a session's streams over an upgraded connection until the command ends or the client disconnects.
async fn serve_stream(
    upgrade: OnUpgrade,
    started: Result<ExecSession, String>,
    options: &ExecOptions,
) {
    match upgrade.await {
        Ok(connection) => {
            let socket = websocket::accept(TokioIo::new(connection)).await;
            carry_streams(socket, started, options).await;
        }
        Err(error) => tracing::debug!(%error, "failed to upgrade exec connection"),
    }
}

/// Carries the streams of a session over a WebSocket until the command ends.
async fn carry_streams<S: AsyncRead + AsyncWrite + Unpin + Send>(
    socket: WebSocketStream<S>,
    started: Result<ExecSession, String>,
    options: &ExecOptions,
) {
    let (mut sink, client) = socket.split();
    let (frames, mut waiting) = mpsc::channel::<Message>(WAITING);
    let write = async {
        while let Some(frame) = waiting.recv().await {
            if sink.send(frame).await.is_err() {
                return;
            }
        }
        // The client may have closed first.
        let _ = sink.close().await;
    };
    let session = async {
        let outcome = match started {
            Ok(session) => {
                let frames = frames.clone();
                run(client, &frames, session, options).await
            }
            Err(message) => Some(failure(&message)),
        };
        if let Some(outcome) = outcome {
            // The send fails only if the writer has ended.
            let _ = frames
                .send(websocket::data(OUTCOME, outcome.to_string().as_bytes()))
                .await;
            let _ = frames.send(websocket::close()).await;
        }
        drop(frames);
    };
    tokio::join!(write, session);
}

/// Runs the session until the command ends and returns its outcome; `None` if the client has disconnected.
async fn run(
    client: impl Stream<Item = tungstenite::Result<Message>> + Unpin + Send,
    frames: &mpsc::Sender<Message>,
    session: ExecSession,
    options: &ExecOptions,
) -> Option<Value> {
    let ExecSession {
        stdin,
        mut output,
        exit,
        resize,
    } = session;
    let messages = async {
        while let Some((is_error, bytes)) = output.recv().await {
            let (channel, is_requested) = match is_error {
                false => (STDOUT, options.stdout),
                true => (STDERR, options.stderr),
            };
            if is_requested && frames.send(websocket::data(channel, &bytes)).await.is_err() {
                break;
            }
        }
        exit.await
    };
    let received = forward_input(client, stdin, resize);
    tokio::select! {
        exit = messages => Some(match exit {
            Ok(0) => json!({"metadata": {}, "status": "Success"}),
            Ok(code) => exit_code_failure(code),
            Err(message) => failure(&message),
        }),
        () = received => None,
    }
}

/// Forwards what the client sends, until it disconnects.
async fn forward_input(
    mut client: impl Stream<Item = tungstenite::Result<Message>> + Unpin + Send,
    mut stdin: Option<mpsc::Sender<Bytes>>,
    resize: Option<Box<dyn Fn(u16, u16) + Send + Sync>>,
) {
    loop {
        let message = match client.next().await {
            Some(Ok(Message::Close(_))) | None => return,
            // Pings are answered by the socket itself.
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            Some(Ok(message)) => message.into_data(),
            Some(Err(error)) => {
                tracing::debug!(%error, "exec connection failed");
                return;
            }
        };
        let Some((channel, payload)) = message.split_first() else {
            continue;
        };
        match *channel {
            STDIN => {
                let sent = match &stdin {
                    Some(stdin) => stdin.send(message.slice(1..)).await.is_ok(),
                    None => true,
                };
                if !sent {
                    // The command has closed its standard input.
                    stdin = None;
                }
            }
            RESIZE => {
                if let (Some(resize), Ok(size)) = (&resize, serde_json::from_slice(payload)) {
                    let WindowSize { width, height } = size;
                    resize(width, height);
                }
            }
            CLOSE if payload.first() == Some(&STDIN) => stdin = None,
            _ => {}
        }
    }
}

/// Size of the client's window.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WindowSize {
    width: u16,
    height: u16,
}

/// Builds the Status of a failed command as the kubelet does: kubectl reads the exit code from the cause.
fn exit_code_failure(code: i32) -> Value {
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

fn failure(message: &str) -> Value {
    json!({
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "details": {"causes": [{"message": message}]},
        "code": 500,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
    use tokio_tungstenite::tungstenite::protocol::Role;

    /// Returns both ends of a socket.
    async fn sockets() -> (WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>) {
        let (client, server) = duplex(1 << 16);
        let client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        (client, websocket::accept(server).await)
    }

    /// Returns a session of a command that writes nothing and does not end, and a sender that shows when it
    /// was ended.
    fn silent() -> (ExecSession, mpsc::Sender<(bool, Bytes)>) {
        let (write, output) = mpsc::channel(4);
        let session = ExecSession {
            stdin: None,
            output,
            exit: futures::future::pending().boxed(),
            resize: None,
        };
        (session, write)
    }

    #[tokio::test]
    async fn streams_use_channels_and_outcome_is_last() {
        let (client, server) = sockets().await;
        let (stdin, mut read) = mpsc::channel::<Bytes>(4);
        let (write, output) = mpsc::channel(4);
        let sizes = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let observed = sizes.clone();
        let command = async move {
            let mut received = Vec::new();
            while let Some(bytes) = read.recv().await {
                received.extend_from_slice(&bytes);
            }
            write.send((false, received.into())).await.unwrap();
            write.send((true, Bytes::from_static(b"no"))).await.unwrap();
        };
        let session = ExecSession {
            stdin: Some(stdin),
            output,
            exit: async { Ok(3) }.boxed(),
            resize: Some(Box::new(move |width, height| {
                observed.lock().push((width, height))
            })),
        };
        let options = ExecOptions {
            stdout: true,
            stderr: true,
            ..ExecOptions::default()
        };
        let (mut to_server, mut from_server) = client.split();
        let client = async {
            let size = br#"{"Width":80,"Height":24}"#;
            for message in [
                websocket::data(RESIZE, size),
                websocket::data(RESIZE, b"nonsense"),
                websocket::data(STDIN, b"a"),
                Message::Ping(Bytes::from_static(b"hi")),
                websocket::data(99, b"?"),
                Message::Binary(Bytes::new()),
                websocket::data(STDIN, b"b"),
                websocket::data(CLOSE, &[STDIN]),
            ] {
                to_server.send(message).await.unwrap();
            }
            let mut all = Vec::new();
            while !all.last().is_some_and(Message::is_close) {
                all.push(from_server.next().await.unwrap().unwrap());
            }
            all
        };
        let ((), (), all) = tokio::join!(
            carry_streams(server, Ok(session), &options),
            command,
            client
        );
        assert_eq!(*sizes.lock(), [(80, 24)]);
        let (pongs, all): (Vec<_>, Vec<_>) = all.into_iter().partition(Message::is_pong);
        assert_eq!(pongs, [Message::Pong(Bytes::from_static(b"hi"))]);
        let frames_read: Vec<(u8, &str)> = all[..3]
            .iter()
            .map(|message| match message {
                Message::Binary(bytes) => (bytes[0], str::from_utf8(&bytes[1..]).unwrap()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(frames_read[..2], [(STDOUT, "ab"), (STDERR, "no")]);
        assert_eq!(
            (frames_read[2].0, &all[3..]),
            (OUTCOME, &[websocket::close()][..])
        );
        let outcome: Value = serde_json::from_str(frames_read[2].1).unwrap();
        assert_eq!(outcome["reason"], "NonZeroExitCode");
        let cause = json!({"reason": "ExitCode", "message": "3"});
        assert_eq!(outcome["details"]["causes"][0], cause);
    }

    #[tokio::test]
    async fn disconnect_ends_command() {
        let (client, server) = sockets().await;
        let (session, write) = silent();
        drop(client);
        carry_streams(server, Ok(session), &ExecOptions::default()).await;
        assert!(write.is_closed(), "the session was dropped");
    }

    #[tokio::test]
    async fn invalid_frames_end_the_command() {
        let long = [0x82, 0xff, 0, 0, 0, 0, 0, 16, 0, 1];
        for bytes in [&[0x82, 0x01, b'x'][..], &[0xc2, 0x80], &[0x80, 0x80], &long] {
            let (mut client, server) = duplex(1 << 10);
            // Only a mask follows, because the header alone causes the refusal.
            client.write_all(&[bytes, &[0; 4]].concat()).await.unwrap();
            let (session, write) = silent();
            carry_streams(
                websocket::accept(server).await,
                Ok(session),
                &ExecOptions::default(),
            )
            .await;
            assert!(write.is_closed(), "{bytes:?}");
        }
    }

    #[test]
    fn unnamed_container_defaults_to_first() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        for (requested, expected) in [
            (None, "a"),
            (Some(""), "a"),
            (Some("b"), "b"),
            (Some("i"), "i"),
        ] {
            assert_eq!(exec_container(&pod, requested).unwrap(), expected);
        }
        let error = exec_container(&pod, Some("c")).unwrap_err();
        assert_eq!(error.message, "container c is not valid for pod p");
    }
}
