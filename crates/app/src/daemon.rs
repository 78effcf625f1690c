//! Frame of a daemon's program: flags, logs, signals, exit code.

use crate::admin::Exposure;
use crate::flags::{self, FlagError, ParsedFlags};
use crate::{Context, console};
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};

/// Returns the multi-threaded runtime all components share.
///
/// # Errors
/// The operating system's error.
pub fn runtime() -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.enable_all().build().context("tokio runtime")
}

/// Returns the single-threaded runtime of a node's own daemons. A call is a handful of steps of different
/// tasks: on several threads most of its time would be spent on waking them.
///
/// # Errors
/// The operating system's error.
pub fn one_thread() -> Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().context("tokio runtime")
}

/// Parses the flags, sets up logging and signals, and runs until shutdown. Exit code 2 for invalid flags, 1
/// for a failure.
pub fn start<A, F>(argv: Vec<OsString>, run: impl FnOnce(A, Context) -> F) -> ExitCode
where
    A: clap::Parser,
    F: Future<Output = Result<()>>,
{
    start_on(runtime, argv, run)
}

/// Runs like [`start`], on another runtime.
pub fn start_on<A, F>(
    runtime: impl FnOnce() -> Result<Runtime>,
    argv: Vec<OsString>,
    run: impl FnOnce(A, Context) -> F,
) -> ExitCode
where
    A: clap::Parser,
    F: Future<Output = Result<()>>,
{
    let ParsedFlags { args, logging } = match flags::parse::<A>(argv) {
        Ok(parsed) => parsed,
        Err(FlagError::Clap(error)) => error.exit(),
        Err(error) => {
            console::warn(error);
            return ExitCode::from(2);
        }
    };
    let outcome = (|| {
        crate::logging::init(&logging)?;
        runtime()?.block_on(async {
            let context = Context::new();
            crate::shutdown::on_signals(context.shutdown.clone()).context("signal handlers")?;
            Box::pin(run(args, context)).await
        })
    })();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::warn(console::chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Returns the exposure of the plain server on `address`. Upstream serves health and metrics in plain HTTP on
/// the pod network by default; so does koord when the flag names such an address.
#[must_use]
pub fn exposure(address: SocketAddr) -> Exposure {
    if address.ip().is_loopback() {
        Exposure::Loopback
    } else {
        Exposure::Anyone
    }
}

/// Writes a file that holds secrets: a new one is readable by this user only.
///
/// # Errors
/// When it cannot be written.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_written_configuration_is_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        for text in ["longer", "short"] {
            write_private(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}
