//! What the runtime proxy adds to a call.

use super::Args;
use anyhow::{Context as _, Result};
use koord_runtime_proxy::RunError;
use koord_runtime_proxy::bench::{Report, measure};

pub(super) async fn run(args: &Args) -> Result<Option<Report>> {
    let dir = tempfile::tempdir().context("temporary directory")?;
    let measuring = measure(&args.runtime, dir.path(), args.calls as usize);
    match Box::pin(measuring).await {
        Ok(report) => Ok(Some(report)),
        Err(error @ RunError::Runtime { .. }) => {
            crate::console::warn(format_args!(
                "{error}; bench/containerd starts one, and --runtime names its socket"
            ));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
