//! The process of the manager under test.

use crate::process::{Process, free_port};
use anyhow::{Context as _, Result, bail};
use koord_kube::Client;
use koord_kube::endpoint::{Trust, connect};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit for a manager to serve webhooks.
const START: Duration = Duration::from_secs(60);
/// Interval between two checks whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Timeout of a webhook request: the API server's default.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The manager to measure, with the subcommand that precedes its flags if another program contains it.
#[derive(Debug)]
pub(super) struct ManagerProgram {
    path: PathBuf,
    subcommand: Option<&'static str>,
}

impl fmt::Display for ManagerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl ManagerProgram {
    /// Returns `path`, else the `koord-manager` that was built along with this program, or the one inside
    /// it.
    ///
    /// # Errors
    /// There is no such file.
    pub(super) fn locate(path: Option<&Path>) -> Result<Self> {
        if let Some(path) = path {
            if !path.is_file() {
                bail!("--manager: {} is no file", path.display());
            }
            return Ok(Self {
                path: path.to_owned(),
                subcommand: None,
            });
        }
        let this = std::env::current_exe().context("this program's path")?;
        let sibling = this.with_file_name("koord-manager");
        Ok(if sibling.is_file() {
            Self {
                path: sibling,
                subcommand: None,
            }
        } else {
            Self {
                path: this,
                subcommand: Some("manager"),
            }
        })
    }
}

/// A running manager.
pub(super) struct Manager {
    process: Process,
    /// Client of its webhooks.
    pub(super) webhooks: Client,
}

impl Manager {
    /// Starts a manager with `flags` in addition to the common ones, and waits until it serves webhooks. Its
    /// files and its log are in `work`.
    ///
    /// # Errors
    /// It cannot be started, or serves nothing.
    pub(super) async fn start(
        program: &ManagerProgram,
        kubeconfig: &Path,
        work: &Path,
        flags: &[&str],
    ) -> Result<Self> {
        let certificates = work.join("certificates");
        std::fs::create_dir_all(&certificates)
            .with_context(|| format!("cannot create {}", certificates.display()))?;
        let port = free_port()?;
        let mut command = Command::new(&program.path);
        command
            .args(program.subcommand)
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args([
                "--enable-leader-election=false",
                "--metrics-addr=0",
                "--health-probe-addr=0",
                "--enable-pprof=false",
                // The default, 30 requests per second, is a setting and not the manager's own limit.
                "--rest-config-qps=100000",
                "--rest-config-burst=100000",
            ])
            .args(flags)
            .env("WEBHOOK_HOST", "localhost")
            .env("WEBHOOK_PORT", port.to_string())
            .env("WEBHOOK_CERT_DIR", &certificates)
            .env("POD_NAMESPACE", koord_api::configmap::NAMESPACE);
        let log = work.join("manager.log");
        let process = Process::start_logging("manager", &mut command, log)?;
        // Its certificate is self-signed and names localhost. HTTP/1.1 with a pool of connections, as
        // kube-apiserver uses for webhooks.
        let url = format!("https://127.0.0.1:{port}");
        let webhooks = connect(&url, &Trust::Any, None, ANSWER_WITHIN)?;
        let mut manager = Self { process, webhooks };
        manager.wait_until_serving().await?;
        Ok(manager)
    }

    async fn wait_until_serving(&mut self) -> Result<()> {
        let until = Instant::now() + START;
        loop {
            self.check_running()?;
            let get = http::Request::get("/healthz").body(Vec::new())?;
            if self.webhooks.request_text(get).await.is_ok() {
                return Ok(());
            }
            if Instant::now() > until {
                let tail = self.process.log_tail();
                bail!("the manager serves no webhooks after {START:?}:\n{tail}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the CPU time so far, user and system, in seconds.
    pub(super) fn cpu_seconds(&self) -> f64 {
        crate::meter::cpu_time_of(self.pid()).as_secs_f64()
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// When it has ended, with the end of its log.
    pub(super) fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }
}
