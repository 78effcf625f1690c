//! The program `koord-manager`: flags and client around [`run`](crate::run).

use crate::Args;
use koord_app::daemon;
use koord_kube::client::from_kubeconfig;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs koord-manager. The first element of `argv` is the program's name.
#[must_use]
pub fn run(argv: Vec<OsString>) -> ExitCode {
    daemon::start(argv, |args: Args, context| async move {
        let options = args.options()?;
        koord_kube::tls::install_crypto_provider();
        let client =
            from_kubeconfig(args.kubeconfig(), &args.client_options(&context.metrics)?).await?;
        crate::run(options, client, context)
            .await
            .map_err(Into::into)
    })
}
