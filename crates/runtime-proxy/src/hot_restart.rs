//! Replacement of the running process: the new process inherits the listening socket as its standard input,
//! and announces when it serves.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixListener;
use tokio::process::Command;

/// Environment variable that makes the new process write [`READY`] to its standard output.
const ANNOUNCE_VARIABLE: &str = "KOORD_RUNTIME_PROXY_FOLLOWS";

const READY: &[u8] = b"ready\n";

/// Time until the new process must serve; it requests the runtime's version first.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// Starts the program on disk with the same arguments, and returns its process id when it serves. A process
/// that does not serve in time is killed.
pub(crate) async fn start(socket: &UnixListener) -> Result<u32, String> {
    let argv: Vec<_> = std::env::args_os().collect();
    let (program, argv) = argv.split_first().ok_or("empty argument list")?;
    let socket = socket.as_fd().try_clone_to_owned();
    let socket =
        socket.map_err(|error| format!("failed to duplicate the listening socket: {error}"))?;
    let mut child = Command::new(program)
        .args(argv)
        .env(ANNOUNCE_VARIABLE, "1")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("failed to start {}: {error}", program.display()))?;
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut first = stdout.take(READY.len() as u64);
        match tokio::time::timeout(READY_TIMEOUT, first.read_to_end(&mut output)).await {
            Ok(Ok(_)) if output == READY => {
                let pid = child.id().unwrap_or_default();
                // The child outlives this process, so it must not be killed on drop.
                tokio::spawn(async move { child.wait().await });
                return Ok(pid);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "failed to read from the new process"),
            Err(_) => {
                tracing::warn!(after = ?READY_TIMEOUT, "new process does not serve, killing it")
            }
        }
    }
    let _ = child.start_kill();
    match child.wait().await {
        Ok(status) => Err(format!("new process exited: {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Announces that this process serves: to the previous process, and to systemd together with the new main
/// process id.
pub(crate) fn announce() {
    use std::io::Write as _;
    if std::env::var_os(ANNOUNCE_VARIABLE).is_some() {
        let mut out = std::io::stdout();
        // The previous process may have ended.
        let _ = out.write_all(READY).and_then(|()| out.flush());
    }
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        let text = format!("READY=1\nMAINPID={}\n", std::process::id());
        if let Err(error) = notify(&socket, text.as_bytes()) {
            tracing::warn!(socket = %socket.display(), %error, "failed to notify systemd");
        }
    }
}

fn notify(socket: &std::ffi::OsStr, text: &[u8]) -> std::io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    let address = match socket.as_encoded_bytes() {
        [b'@', name @ ..] => std::os::unix::net::SocketAddr::from_abstract_name(name)?,
        _ => std::os::unix::net::SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(text, &address)?;
    Ok(())
}
