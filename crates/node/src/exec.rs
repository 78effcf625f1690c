//! Commands inside running containers: for `kubectl exec` and for probes.

use crate::command::Invocation;
use crate::container_registry::RunningContainer;
use crate::context::{MARK, Shared};
use crate::pidfd;
use crate::session::{Ending, ExecOptions, Session, Terminal, WAITING};
use bytes::Bytes;
use koord_host::CgroupPath;
use koord_host::process::{ChildProcess, Exit, Spawn, Streams};
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Maximum size of a piece of output, in bytes.
const PIECE: usize = 32 << 10;
/// Time for which the output of an ended command may stay open, held by processes that it left behind.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// The container process that a command runs in: its id, group and invocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecTarget<'a> {
    pub(crate) id: &'a str,
    pub(crate) group: Option<&'a CgroupPath>,
    pub(crate) invocation: &'a Invocation,
}

/// Starts a command inside a running container of the process runner: in its cgroup, with its environment,
/// directory, user and files.
pub(crate) async fn spawn(
    shared: &Arc<Shared>,
    target: ExecTarget<'_>,
    options: ExecOptions,
) -> Result<Session, String> {
    let mut arguments = options.command.iter().map(OsString::from);
    let invocation = target.invocation;
    let mut env: Vec<(OsString, OsString)> = invocation
        .env
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .chain([(MARK.into(), OsString::from(target.id))])
        .collect();
    if options.tty && !invocation.env.iter().any(|(name, _)| name == "TERM") {
        env.push(("TERM".into(), "xterm".into()));
    }
    let entrances = match (&shared.groups, target.group) {
        (Some(groups), Some(group)) => groups.entrances(group),
        _ => Vec::new(),
    };
    let spawn = Spawn {
        program: arguments.next().ok_or("no command was given")?,
        args: arguments.collect(),
        env,
        dir: invocation.dir.clone(),
        cgroups: entrances,
        streams: match (options.tty, options.stdin) {
            (true, _) => Streams::Terminal,
            (false, true) => Streams::Piped,
            (false, false) => Streams::Output,
        },
        // The user, rights and files of its container.
        ..invocation.security.spawn(&shared.views)
    };
    let spawner = shared.clone();
    let spawned = tokio::task::spawn_blocking(move || spawner.spawner.spawn(spawn)).await;
    let mut spawned = spawned
        .map_err(|error| format!("start was interrupted: {error}"))?
        .map_err(|error| format!("error executing command in container: {error}"))?;
    let (pieces, output) = mpsc::channel(WAITING);
    let mut stdin = None;
    let mut terminal = None;
    let mut readers = Vec::new();
    if let Some(master) = spawned.terminal.take() {
        let failed = |error: std::io::Error| format!("terminal: {error}");
        readers.push(reader(
            master.try_clone().map_err(failed)?,
            false,
            pieces.clone(),
        ));
        if options.stdin {
            stdin = Some(writer(master.try_clone().map_err(failed)?, true));
        }
        terminal = Some(Terminal(Arc::new(master)));
    }
    if let Some(pipe) = spawned.stdin.take() {
        stdin = Some(writer(pipe, false));
    }
    for (stream, is_error) in [
        (spawned.stdout.take(), false),
        (spawned.stderr.take(), true),
    ] {
        readers.extend(stream.map(|stream| reader(stream, is_error, pieces.clone())));
    }
    drop(pieces);
    let killed = CancellationToken::new();
    let (sender, code) = oneshot::channel();
    tokio::spawn(watch(spawned, readers, killed.clone(), sender));
    Ok(Session {
        stdin,
        output,
        exit: Ending {
            code,
            _kill: killed.drop_guard(),
        },
        terminal,
    })
}

/// Waits for the end of a command, or kills it, and sends its exit code.
async fn watch(
    mut spawned: ChildProcess,
    readers: Vec<tokio::task::AbortHandle>,
    killed: CancellationToken,
    sender: oneshot::Sender<Result<i32, String>>,
) {
    let pid = spawned.pid;
    let exit = loop {
        match spawned.reap() {
            Ok(Some(exit)) => break Ok(exit),
            Ok(None) => {}
            Err(error) => break Err(error.to_string()),
        }
        let pidfd = match spawned.pidfd.try_clone() {
            Ok(pidfd) => pidfd,
            Err(error) => break Err(error.to_string()),
        };
        tokio::select! {
            ended = pidfd::ended(pidfd) => if let Err(error) = ended {
                break Err(error.to_string());
            },
            () = killed.cancelled() => {
                if let Err(error) = koord_host::process::kill_group(pid) {
                    tracing::debug!(pid, %error, "failed to kill a command");
                    break Err(error.to_string());
                }
                // It ends now; waiting for the token once more would only spin.
                let ended = spawned.pidfd.try_clone().map(pidfd::ended);
                if let Ok(ended) = ended {
                    let _ = ended.await;
                }
            }
        }
    };
    // Without a receiver the client is gone.
    let _ = sender.send(exit.map(Exit::code));
    // Processes that the command left behind may hold its output open forever.
    tokio::time::sleep(OUTPUT_GRACE).await;
    for reader in readers {
        reader.abort();
    }
}

/// Forwards the output of a command, on a thread of its own: a terminal cannot be polled like a pipe.
fn reader(
    stream: OwnedFd,
    is_error: bool,
    pieces: mpsc::Sender<(bool, Bytes)>,
) -> tokio::task::AbortHandle {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(1);
    tokio::task::spawn_blocking(move || {
        let mut stream = std::fs::File::from(stream);
        let mut buffer = vec![0; PIECE];
        // A terminal whose other side is closed returns an error.
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            let piece = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
            if sender.blocking_send(piece).is_err() {
                return;
            }
        }
    });
    let pass = async move {
        while let Some(piece) = receiver.recv().await {
            if pieces.send((is_error, piece)).await.is_err() {
                return;
            }
        }
    };
    tokio::spawn(pass).abort_handle()
}

/// Writes the received input to a command. A terminal gets the end-of-file character at the end.
fn writer(stream: OwnedFd, is_terminal: bool) -> mpsc::Sender<Bytes> {
    /// Ends the input of a terminal in its usual mode (Ctrl-D).
    const END: u8 = 4;
    let (sender, mut pieces) = mpsc::channel::<Bytes>(WAITING);
    tokio::task::spawn_blocking(move || {
        let mut stream = std::fs::File::from(stream);
        while let Some(piece) = pieces.blocking_recv() {
            if stream.write_all(&piece).is_err() {
                return;
            }
        }
        if is_terminal {
            // The command may have ended.
            let _ = stream.write_all(&[END]);
        }
    });
    sender
}

/// Runs a command and collects its output, at most `most` bytes; `None` when it took longer than `time`.
///
/// # Errors
/// A sentence, when it cannot be started or its exit status is unknown.
pub(crate) async fn run(
    live: &dyn RunningContainer,
    command: Vec<String>,
    time: Duration,
    most: usize,
) -> Result<Option<(i32, String)>, String> {
    let options = ExecOptions {
        command,
        ..ExecOptions::default()
    };
    let mut session = live.exec(options).await?;
    let work = async {
        let mut output = Vec::new();
        while let Some((_, piece)) = session.output.recv().await {
            let free = most.saturating_sub(output.len()).min(piece.len());
            output.extend_from_slice(piece.get(..free).unwrap_or_default());
        }
        let code = session.exit.wait().await?;
        Ok((code, String::from_utf8_lossy(&output).into_owned()))
    };
    match tokio::time::timeout(time, work).await {
        Ok(done) => done.map(Some),
        Err(_) => Ok(None),
    }
}
