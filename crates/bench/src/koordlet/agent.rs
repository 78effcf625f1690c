//! The process of the agent under test.

use super::fixture::Groups;
use super::objects::NODE;
use super::world::World;
use crate::process::{Process, free_port};
use anyhow::{Context as _, Result, bail};
use koord_app::console;
use koordlet::status::{State, Status};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Time limit for an agent to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// Origin of the agent: this repository or upstream. Agents of both origins take the same flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    Koord,
    Upstream,
}

impl Flavour {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Koord => "koord",
            Self::Upstream => "upstream",
        }
    }
}

const GATES: &str =
    "AllAlpha=true,AllBeta=true,PodResourcesProxy=false,TCNetworkQoS=false,TerwayQoS=false";

/// Settings of the agent.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AgentSettings {
    /// Feature gates of the agent: Name=true,Other=false. The default leaves out what needs the kubelet's
    /// PodResources socket or the machine's network.
    #[arg(long, default_value = GATES)]
    pub(crate) feature_gates: String,
    /// Verbosity of the agent's log.
    #[arg(long, default_value_t = 4)]
    pub(crate) v: u8,
}

/// The koordlet to measure, with the subcommand that precedes its flags if another program contains it.
#[derive(Debug)]
pub(crate) struct KoordletProgram {
    path: PathBuf,
    subcommand: Option<&'static str>,
    flavour: Flavour,
}

impl KoordletProgram {
    pub(crate) fn new(path: &Path, flavour: Flavour) -> Result<Self> {
        if !path.is_file() {
            bail!("{} is no file", path.display());
        }
        Ok(Self {
            path: path.to_owned(),
            subcommand: None,
            flavour,
        })
    }

    /// Returns the `koordlet` next to this program, or if there is none, the one that this program contains.
    pub(crate) fn locate() -> Result<Self> {
        let this = std::env::current_exe().context("this program's path")?;
        let path = this.with_file_name("koordlet");
        if path.is_file() {
            return Self::new(&path, Flavour::Koord);
        }
        console::warn("no koordlet next to this program; measuring the built-in one");
        Ok(Self {
            subcommand: Some("koordlet"),
            ..Self::new(&this, Flavour::Koord)?
        })
    }

    pub(crate) fn flavour(&self) -> Flavour {
        self.flavour
    }
}

/// Collectors and strategies that an agent reports as active.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Active {
    pub(crate) collectors: Vec<String>,
    pub(crate) strategies: Vec<String>,
}

/// A running agent.
pub(crate) struct KoordletAgent {
    process: Process,
    flavour: Flavour,
    port: u16,
}

impl KoordletAgent {
    /// Starts an agent with the flags of the stock manifest, and with its files in `work`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(
        program: &KoordletProgram,
        settings: &AgentSettings,
        groups: &Groups,
        world: &World,
        work: &Path,
    ) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(&program.path);
        command
            .args(program.subcommand)
            .args(flags(
                settings,
                groups.cgroup_dir(),
                world.kubeconfig(),
                port,
                work,
            )?)
            .env("NODE_NAME", NODE)
            .env("agent_mode", "hostMode");
        Ok(Self {
            process: Process::start_logging("agent", &mut command, work.join("log"))?,
            flavour: program.flavour,
            port,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// When it has ended, with the end of its log.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }

    /// Returns the active collectors and strategies: from the HTTP server of ours, and from the log of
    /// Koordinator's.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) async fn active(&self) -> Result<Active> {
        match self.flavour {
            Flavour::Koord => fetch_active(self.port).await,
            Flavour::Upstream => Ok(active_from_log(&self.process.output()?)),
        }
    }

    /// Terminates the agent, and kills it if it does not end in time.
    pub(crate) async fn stop(mut self) {
        let pid = self.pid().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let end = Instant::now() + GRACE;
        while self.process.is_running() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Returns the flags of the stock manifest, with the paths of the fixture.
fn flags(
    settings: &AgentSettings,
    cgroups: &Path,
    kubeconfig: &Path,
    port: u16,
    work: &Path,
) -> Result<Vec<OsString>> {
    let mut flags: Vec<OsString> = vec![
        format!("--feature-gates={}", settings.feature_gates).into(),
        format!("--v={}", settings.v).into(),
        format!("--addr=127.0.0.1:{port}").into(),
        "--logtostderr=true".into(),
        "--runtime-hooks-network=unix".into(),
    ];
    let mut path = |flag: &str, path: &Path| {
        let mut text = OsString::from(format!("--{flag}="));
        text.push(path);
        flags.push(text);
    };
    path("cgroup-root-dir", cgroups);
    path("kubeconfig", kubeconfig);
    path("runtime-hooks-addr", &work.join("koordlet.sock"));
    path("runtime-hooks-host-endpoint", &work.join("koordlet.sock"));
    for (flag, name) in [
        ("audit-log-dir", "audit"),
        ("prediction-checkpoint-filepath", "checkpoints"),
        ("tsdb-path", "tsdb"),
        ("var-run-root-dir", "var-run"),
        ("var-lib-kubelet-dir", super::kubelet::DIRECTORY),
        ("pod-resources-proxy-path", "pod-resources"),
        ("xpu-device-infos-dir", "xpu"),
        ("runtime-hooks-config-path", "hooks"),
    ] {
        let directory = work.join(name);
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        path(flag, &directory);
    }
    Ok(flags)
}

/// Reads both lists from the HTTP server of our agent.
async fn fetch_active(port: u16) -> Result<Active> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream
        .write_all(b"GET /debug/status HTTP/1.0\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_, body) = answer
        .split_once("\r\n\r\n")
        .context("no answer from /debug/status")?;
    Ok(active_from_status(&serde_json::from_str(body)?))
}

/// Returns the names that are on and not failing, whether or not there was work.
fn active_from_status(status: &Status) -> Active {
    let works = |state| matches!(state, State::Active | State::Idle);
    let collectors = status.collectors.iter();
    let strategies = status.strategies.iter();
    Active {
        collectors: collectors
            .filter(|row| works(row.state))
            .map(|row| row.name.clone())
            .collect(),
        strategies: strategies
            .filter(|row| works(row.state))
            .map(|row| row.name.clone())
            .collect(),
    }
}

/// Parses the log of Koordinator's agent: it has a line for each collector and strategy that started, and for
/// each hook with its state.
fn active_from_log(log: &str) -> Active {
    let between = |before: &str, after: &str| -> BTreeSet<String> {
        log.lines()
            .filter_map(|line| {
                let (_, rest) = line.split_once(before)?;
                rest.strip_suffix(after).map(str::to_owned)
            })
            .filter(|name| !name.contains(' '))
            .collect()
    };
    let mut collectors = between("] collector ", " start");
    collectors.extend(between("] device collector ", " start"));
    let mut strategies = between("] qos strategy ", " start");
    strategies.extend(between("] runtime hook plugin ", " enable true"));
    Active {
        collectors: collectors.into_iter().collect(),
        strategies: strategies.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_from_log_lists_started_collectors_and_strategies() {
        let log = "I1 1 a.go:98] ready to start collector podResource\n\
            I1 1 a.go:103] collector podResource start\n\
            I1 1 a.go:93] device collector GPU start\n\
            I1 1 a.go:120] qos strategy CPUEvict is not enabled, skip running\n\
            I1 1 a.go:124] qos strategy CPUBurst start\n\
            I1 1 a.go:197] runtime hook plugin GroupIdentity enable true\n\
            I1 1 a.go:197] runtime hook plugin CoreSched enable false\n";
        let active = active_from_log(log);
        assert_eq!(active.collectors, ["GPU", "podResource"]);
        assert_eq!(active.strategies, ["CPUBurst", "GroupIdentity"]);
    }

    #[test]
    fn active_from_status_omits_what_is_off() {
        let status = serde_json::from_value(serde_json::json!({
            "collectors": [{"name": "node", "state": "active"}],
            "strategies": [{"name": "CPUBurst", "state": "active"},
                {"name": "MemoryEvict", "state": "off"}]}));
        let active = active_from_status(&status.unwrap());
        assert_eq!(active.collectors, ["node"]);
        assert_eq!(active.strategies, ["CPUBurst"]);
    }
}
