//! The container runtime of `koord up --runtime`, and the mode of koordlet's runtime hooks.

use anyhow::{Context as _, Result};
use koordlet::runtime::{Config, Mode};
use std::path::{Path, PathBuf};

/// Flags that select the container runtime for this machine's pods.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Run this machine's pods in a container runtime (CRI v1) instead of as plain processes. Endpoint of the
    /// runtime, such as unix:///run/containerd/containerd.sock, or of koord-runtime-proxy.
    #[arg(long, value_name = "ENDPOINT")]
    pub runtime: Option<String>,
    /// How koordlet's hooks set the values of containers of --runtime: nri or proxy (before a container starts),
    /// or standalone (soon after). Default: proxy if koord-runtime-proxy serves the endpoint, else nri if the
    /// NRI socket exists.
    #[arg(long, value_name = "MODE", requires = "runtime")]
    pub runtime_hooks_mode: Option<Mode>,
    /// NRI socket of the runtime. Default: nri.sock next to the runtime's socket, or /var/run/nri/nri.sock.
    #[arg(long, value_name = "PATH", requires = "runtime")]
    pub nri_socket: Option<PathBuf>,
    /// Directory in which koord-runtime-proxy looks for registrations of hook servers.
    #[arg(long, value_name = "DIR", requires = "runtime", hide = true)]
    pub runtime_hook_server_config_dir: Option<PathBuf>,
}

/// A container runtime that has answered, and koordlet's settings for it.
#[derive(Debug, Clone)]
pub struct ChosenRuntime {
    /// Runtime client of the node agent.
    pub runtime: koord_node::Runtime,
    /// Settings of koordlet's runtime hooks.
    pub hooks: Config,
}

impl ChosenRuntime {
    /// Returns a description of the runtime and the hooks for users.
    #[must_use]
    pub fn description(&self) -> String {
        format!(
            "{} at {}; values of hooks by {}",
            self.runtime.version(),
            self.runtime.endpoint(),
            self.hooks.mode.name()
        )
    }
}

impl Args {
    /// Connects to the runtime, if one was named. koordlet's own socket, for a proxy, will be in `data_dir`.
    ///
    /// # Errors
    /// When it does not answer as a runtime.
    pub async fn choose(&self, data_dir: &Path) -> Result<Option<ChosenRuntime>> {
        let Some(endpoint) = &self.runtime else {
            return Ok(None);
        };
        let runtime = koord_node::Runtime::connect(endpoint).await;
        let runtime = runtime.context("--runtime")?;
        let mut hooks = Config::default();
        let sibling = runtime.socket().with_file_name("nri.sock");
        let sibling = Some(sibling).filter(|socket| socket.exists());
        if let Some(socket) = self.nri_socket.clone().or(sibling) {
            hooks.nri.socket = socket;
        }
        hooks.mode = match self.runtime_hooks_mode {
            Some(mode) => mode,
            None if is_proxy(runtime.socket(), runtime.listener()) => Mode::Proxy,
            None if hooks.nri.socket.exists() => Mode::Nri,
            None => Mode::Standalone,
        };
        let socket = std::path::absolute(data_dir.join("koordlet.sock"));
        hooks.server.socket = socket.context("--data-dir")?;
        hooks.server.endpoint = hooks.server.socket.display().to_string();
        if let Some(directory) = &self.runtime_hook_server_config_dir {
            hooks.server.directory.clone_from(directory);
        }
        Ok(Some(ChosenRuntime { runtime, hooks }))
    }
}

/// Returns true if koord-runtime-proxy, ours or upstream's, listens on the socket. After its hot restart the
/// process that made the socket is unknown, and the socket's usual name decides.
fn is_proxy(socket: &Path, listener: Option<&Path>) -> bool {
    let named = |path: &Path, name: &str| {
        let file = path.file_name().map(|file| file.to_string_lossy());
        file.is_some_and(|file| file.starts_with(name))
    };
    named(socket, "runtimeproxy.sock")
        || listener.is_some_and(|program| named(program, "koord-runtime-proxy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_runtime_endpoint_is_named() {
        let mut args = Args::default();
        let dir = Path::new("/data");
        assert!(args.choose(dir).await.unwrap().is_none());
        args.runtime = Some("unix:///no/such.sock".to_owned());
        let error = format!("{:#}", args.choose(dir).await.unwrap_err());
        assert!(
            error.starts_with("--runtime: runtime endpoint unix:///no/such.sock: No such file"),
            "{error}"
        );
    }

    #[test]
    fn proxy_is_detected_by_program_or_socket_name() {
        let of = |socket: &str, program: Option<&str>| {
            is_proxy(Path::new(socket), program.map(Path::new))
        };
        assert!(of("/r/proxy.sock", Some("/usr/bin/koord-runtime-proxy")));
        assert!(of(
            "/r/proxy.sock",
            Some("/usr/bin/koord-runtime-proxy (deleted)")
        ));
        assert!(of("/var/run/koord-runtimeproxy/runtimeproxy.sock", None));
        assert!(!of(
            "/run/containerd/containerd.sock",
            Some("/usr/bin/containerd")
        ));
    }
}
