//! The manager under test: a process of its own.

use anyhow::{Context as _, Result, bail};
use koord_kube::Client;
use koord_kube::endpoint::{Trust, connect};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a manager may take to serve webhooks.
const START: Duration = Duration::from_secs(60);
/// How often it is looked whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A request of a webhook that takes longer has failed: what an API server waits by default.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A program, with the argument that goes before its flags.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    first: Option<&'static str>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl Program {
    /// `given`, else the `koord-manager` that was built along with this program, or the one inside it.
    ///
    /// # Errors
    /// There is no such file.
    pub(super) fn of(given: Option<&Path>) -> Result<Self> {
        if let Some(path) = given {
            if !path.is_file() {
                bail!("--manager: {} is no file", path.display());
            }
            return Ok(Self {
                path: path.to_owned(),
                first: None,
            });
        }
        let this = std::env::current_exe().context("this program's path")?;
        let beside = this.with_file_name("koord-manager");
        Ok(if beside.is_file() {
            Self {
                path: beside,
                first: None,
            }
        } else {
            Self {
                path: this,
                first: Some("manager"),
            }
        })
    }
}

/// A running manager; killed on drop.
pub(super) struct Manager {
    child: Child,
    log: PathBuf,
    /// Asks its webhooks.
    pub(super) webhooks: Client,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Manager {
    /// Starts one with `flags` besides those that every one gets, and waits until it serves webhooks.
    /// Its files and its log are in `work`.
    ///
    /// # Errors
    /// It cannot be started, or serves nothing.
    pub(super) async fn start(
        program: &Program,
        kubeconfig: &Path,
        work: &Path,
        flags: &[&str],
    ) -> Result<Self> {
        let certificates = work.join("certificates");
        std::fs::create_dir_all(&certificates)
            .with_context(|| format!("cannot create {}", certificates.display()))?;
        let log = work.join("manager.log");
        let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let free = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let child = Command::new(&program.path)
            .args(program.first)
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args([
                "--enable-leader-election=false",
                "--metrics-addr=0",
                "--health-probe-addr=0",
                "--enable-pprof=false",
                // The default, 30 requests per second, is a setting and not what a manager can do.
                "--rest-config-qps=100000",
                "--rest-config-burst=100000",
            ])
            .args(flags)
            .env("WEBHOOK_HOST", "localhost")
            .env("WEBHOOK_PORT", port.to_string())
            .env("WEBHOOK_CERT_DIR", &certificates)
            .env("POD_NAMESPACE", koord_api::configmap::NAMESPACE)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        // Its certificate names localhost and is signed by itself. Over HTTP/1.1 with connections that
        // are kept and made as needed, as kube-apiserver asks webhooks.
        let url = format!("https://127.0.0.1:{port}");
        let webhooks = connect(&url, &Trust::Any, None, ANSWER_WITHIN)?;
        let mut manager = Self {
            child,
            log,
            webhooks,
        };
        manager.serves().await?;
        Ok(manager)
    }

    async fn serves(&mut self) -> Result<()> {
        let until = Instant::now() + START;
        loop {
            self.alive()?;
            let get = http::Request::get("/healthz").body(Vec::new())?;
            if self.webhooks.request_text(get).await.is_ok() {
                return Ok(());
            }
            if Instant::now() > until {
                bail!(
                    "the manager serves no webhooks after {START:?}: {}",
                    self.said()
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time so far, user and system.
    pub(super) fn cpu_seconds(&self) -> f64 {
        crate::meter::cpu_time_of(self.pid()).as_secs_f64()
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// Tells the end of its log.
    pub(super) fn alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the manager ended ({status}): {}", self.said()),
        }
    }

    /// The end of its log.
    fn said(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.get(lines.len().saturating_sub(20)..);
        format!("\n{}", last.unwrap_or_default().join("\n"))
    }
}
