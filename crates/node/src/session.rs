//! A command inside a container, from the client's side.

use bytes::Bytes;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum number of pieces in the channel between a command and its client.
pub(crate) const WAITING: usize = 16;

/// A command to run in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Program and arguments; must not be empty.
    pub command: Vec<String>,
    /// True if it gets standard input.
    pub stdin: bool,
    /// True if it gets a terminal; then all its output is standard output.
    pub tty: bool,
}

/// A running command; dropping [`Session::exit`] kills it.
pub struct Session {
    /// Standard input of the command, if it has one; dropped at the end of the input.
    pub stdin: Option<mpsc::Sender<Bytes>>,
    /// Output of the command, with true for standard error; closed when the command ends.
    pub output: mpsc::Receiver<(bool, Bytes)>,
    /// Result of the command.
    pub exit: Ending,
    /// Terminal of the command, if it has one.
    pub terminal: Option<Terminal>,
}

impl Session {
    /// Returns a session whose output arrives when the command ends: exit code, standard output, standard
    /// error.
    pub(crate) fn collected(
        run: impl Future<Output = Result<(i32, Vec<u8>, Vec<u8>), String>> + Send + 'static,
    ) -> Self {
        let (pieces, output) = mpsc::channel(WAITING);
        let (tell, code) = oneshot::channel();
        let killed = CancellationToken::new();
        let kill = killed.clone();
        tokio::spawn(async move {
            let result = tokio::select! {
                result = run => result,
                () = kill.cancelled() => return,
            };
            let ended = match result {
                Ok((code, out, err)) => {
                    for (is_error, bytes) in [(false, out), (true, err)] {
                        // Without a receiver the client is gone.
                        if !bytes.is_empty() {
                            let _ = pieces.send((is_error, bytes.into())).await;
                        }
                    }
                    Ok(code)
                }
                Err(why) => Err(why),
            };
            let _ = tell.send(ended);
        });
        Self {
            stdin: None,
            output,
            exit: Ending {
                code,
                _kill: killed.drop_guard(),
            },
            terminal: None,
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// The end of a command.
#[derive(Debug)]
pub struct Ending {
    pub(crate) code: oneshot::Receiver<Result<i32, String>>,
    pub(crate) _kill: DropGuard,
}

impl Ending {
    /// Waits for the end and returns the exit code; 128 + signal if a signal killed the command.
    ///
    /// # Errors
    /// A sentence, when the exit status is unknown.
    pub async fn wait(self) -> Result<i32, String> {
        let lost = |_| "the command was lost".to_owned();
        self.code.await.map_err(lost)?
    }
}

/// The terminal of a command.
#[derive(Debug, Clone)]
pub struct Terminal(pub(crate) Arc<OwnedFd>);

impl Terminal {
    /// Sets the size of the window, in characters.
    pub fn resize(&self, columns: u16, rows: u16) {
        if let Err(error) = koord_host::process::resize_terminal(&self.0, columns, rows) {
            tracing::debug!(%error, "failed to set the window size");
        }
    }
}
