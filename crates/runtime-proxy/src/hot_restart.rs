//! One process that follows another: it gets the listening socket as its standard input, and says when
//! it serves.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixListener;
use tokio::process::Command;

/// Tells a successor that somebody reads its standard output for [`READY`].
const ANNOUNCE_VARIABLE: &str = "KOORD_RUNTIME_PROXY_FOLLOWS";

const READY: &[u8] = b"ready\n";

/// How long a successor may take until it serves: it asks the runtime for its version.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// Starts this program again, as it is on disk now and with the same arguments, and returns its process
/// id when it serves. One that does not is ended.
pub(crate) async fn start(socket: &UnixListener) -> Result<u32, String> {
    let argv: Vec<_> = std::env::args_os().collect();
    let (program, argv) = argv.split_first().ok_or("this process has no name")?;
    let socket = socket.as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| format!("the socket cannot be handed on: {error}"))?;
    let mut child = Command::new(program)
        .args(argv)
        .env(ANNOUNCE_VARIABLE, "1")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut first = stdout.take(READY.len() as u64);
        match tokio::time::timeout(READY_TIMEOUT, first.read_to_end(&mut output)).await {
            Ok(Ok(_)) if output == READY => {
                let pid = child.id().unwrap_or_default();
                // It lives on when this process ends, which is why it is never killed for being dropped.
                tokio::spawn(async move { child.wait().await });
                return Ok(pid);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the successor cannot be heard"),
            Err(_) => tracing::warn!("the successor does not serve after {READY_TIMEOUT:?}"),
        }
    }
    let _ = child.start_kill();
    match child.wait().await {
        Ok(status) => Err(format!("it ended: {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Says that this process serves: to the one before it, and to systemd, which is also told which process
/// it is to look after from now on.
pub(crate) fn announce() {
    use std::io::Write as _;
    if std::env::var_os(ANNOUNCE_VARIABLE).is_some() {
        let mut out = std::io::stdout();
        // The one before may be gone already.
        let _ = out.write_all(READY).and_then(|()| out.flush());
    }
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        let text = format!("READY=1\nMAINPID={}\n", std::process::id());
        if let Err(error) = notify(&socket, text.as_bytes()) {
            tracing::warn!(socket = %socket.display(), %error, "systemd cannot be told");
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
