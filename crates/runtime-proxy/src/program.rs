//! The program `koord-runtime-proxy`: flags around [`run`](crate::run()).

use crate::Args;
use koord_app::daemon;
use std::ffi::OsString;
use std::process::ExitCode;

/// Returns the command line of `koord-runtime-proxy`.
#[must_use]
pub fn command() -> clap::Command {
    koord_app::flags::command::<Args>()
}

/// Runs koord-runtime-proxy. The first element of `argv` is the program's name.
#[must_use]
pub fn run(argv: Vec<OsString>) -> ExitCode {
    daemon::start_on(daemon::one_thread, argv, |args: Args, context| async move {
        let options = args.options()?;
        Ok(crate::run(options, context, || {}).await?)
    })
}
