//! `koord support-bundle`: collects what is needed to find a fault into one archive, without secrets.
//!
//! Invariant: Secrets are never requested but by `koord check`, which prints only the dates of certificates, and
//! whatever is written went through `redact`.

mod archive;
mod collect;
mod redact;

use crate::cluster_args::ClusterArgs;
use crate::fetch::Fetcher;
use anyhow::{Context as _, Result};
use archive::{BundleFiles, SizeLimits};
use collect::{Collector, LogLimits};
use jiff::Timestamp;
use koord_app::console;
use koord_app::daemon::runtime;
use koord_kube::Client;
use koord_kube::tls::install_crypto_provider;
use redact::Redactor;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Exit code if the cluster could not be reached, or the arguments are wrong.
const UNREACHABLE: u8 = 2;

/// Arguments of `koord support-bundle`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// File to write, which must not exist [default: koord-support-TIME.tar.gz].
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Namespace of the components.
    #[arg(short, long, value_name = "NAME", default_value = koord_api::configmap::NAMESPACE)]
    pub namespace: String,
    /// Number of lines of each log.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(i64).range(0..))]
    pub log_lines: i64,
    /// Number of pods whose logs are read.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub max_log_pods: usize,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Seconds within which each request has to be answered.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub request_timeout: u64,
}

/// An archive with what was read.
#[derive(Debug)]
pub struct Bundle {
    /// The compressed archive.
    pub archive: Vec<u8>,
    /// Number of files in it.
    pub files: usize,
    /// What could not be read, with the reason.
    pub failures: Vec<String>,
}

/// Writes a bundle of the selected cluster. Exit code 0 if everything was read, 1 if a part could not be read, 2 if
/// the cluster could not be reached.
///
/// # Errors
/// The file exists or cannot be written.
pub fn main(args: &Args) -> Result<ExitCode> {
    let now = Timestamp::now();
    let path = args.file.clone().unwrap_or_else(|| {
        let time = now.strftime("%Y%m%dT%H%M%SZ");
        PathBuf::from(format!("koord-support-{time}.tar.gz"))
    });
    let collected = runtime()?.block_on(async {
        install_crypto_provider();
        let client = args.cluster.connect().await?;
        bundle(client, args, now).await
    });
    let bundle = match collected {
        Ok(bundle) => bundle,
        Err(error) => {
            console::warn(format_args!("koord: {}", console::chain(&error)));
            return Ok(ExitCode::from(UNREACHABLE));
        }
    };
    write(&path, &bundle.archive).with_context(|| format!("failed to write {}", path.display()))?;
    for failure in &bundle.failures {
        console::warn(format_args!("koord: not in the bundle: {failure}"));
    }
    console::print_line(format_args!(
        "{}: {} files, {} KiB; secrets are removed as manifest.json says, look through it before you send it",
        path.display(),
        bundle.files,
        bundle.archive.len().div_ceil(1024)
    ));
    Ok(if bundle.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reads the cluster of `client` at `now`. A part that cannot be read is one of the failures.
///
/// # Errors
/// The API server cannot be reached, or refuses the caller.
pub async fn bundle(client: Client, args: &Args, now: Timestamp) -> Result<Bundle> {
    let fetcher = Fetcher::new(client, Duration::from_secs(args.request_timeout));
    let version = fetcher.version().await;
    let version =
        version.map_err(|error| anyhow::anyhow!("failed to reach the API server: {error}"))?;
    let mut collector = Collector {
        fetcher: &fetcher,
        namespace: &args.namespace,
        files: BundleFiles::new(Redactor::new()?, SizeLimits::default()),
        failures: Vec::new(),
        not_served: Vec::new(),
    };
    let logs = LogLimits {
        lines: args.log_lines,
        pods: args.max_log_pods,
    };
    let manifest = collector.collect(&version, logs, now).await;
    // The manifest is a file, too.
    let files = collector.files.count() + 1;
    Ok(Bundle {
        archive: collector.files.pack(manifest, now)?,
        files,
        failures: collector.failures,
    })
}

/// Writes a new file that only this user can read.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn file_is_private_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bundle");
        write(&path, b"a").unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(write(&path, b"b").is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"a");
    }
}
